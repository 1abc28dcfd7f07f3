//! Opening an interface: by AF_XDP where that is wanted and safe, by AF_PACKET else.

use super::steering::Program;
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::obstacle::Obstacle;
use netstage_host::ports::af_packet::{self, AfPacket};
use netstage_host::ports::af_xdp::{self, AfXdp};
use netstage_host::ports::{Port, Received};
use netstage_scenario::pe::PortKind;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Frames that may wait while a configuration changes: at 100,000 frames a second, 80 ms.
const WAITING: usize = 8_192;

/// An interface of either kind.
#[derive(Debug)]
pub(super) enum AnyPort {
    Packet(Box<AfPacket>),
    Xdp(Box<AfXdp>),
}

impl AnyPort {
    /// Opens an interface, at which only frames that `filter` takes arrive. Also says why it is not by
    /// AF_XDP, where that is worth a word.
    pub fn open(
        namespace: &Namespace,
        name: &str,
        kind: PortKind,
        filter: Option<&Program>,
    ) -> Result<(AnyPort, Option<String>), Obstacle> {
        let mut why = None;
        if kind != PortKind::AfPacket {
            match by_xdp(namespace, name, kind) {
                Ok(port) => return Ok((AnyPort::Xdp(Box::new(port)), None)),
                Err(reason) if kind == PortKind::AfXdp => {
                    let remedy = "set `ports` to \"auto\" or \"af-packet\"";
                    return Err(Obstacle::new(format!("{name}: {reason}"), remedy));
                }
                Err(reason) => why = Some(reason),
            }
        }
        let options = af_packet::Options { receive_frames: WAITING };
        let open = || -> io::Result<AfPacket> {
            let port = AfPacket::open(namespace, name, options)?;
            filter.map_or(Ok(()), |program| port.keep_only(&program.filter()))?;
            Ok(port)
        };
        let port = open().map_err(|error| Obstacle::system(format!("{name} cannot be opened"), &error))?;
        Ok((AnyPort::Packet(Box::new(port)), why))
    }

    /// From now on only frames that `filter` takes arrive, or all.
    pub fn steer(&self, filter: Option<&Program>) -> io::Result<()> {
        match (self, filter) {
            (AnyPort::Packet(port), Some(program)) => port.keep_only(&program.filter()),
            (AnyPort::Packet(port), None) => port.keep_all(),
            // Nobody else has an interface that is opened so.
            (AnyPort::Xdp(_), _) => Ok(()),
        }
    }

    /// Its name in outputs.
    pub fn kind(&self) -> &'static str {
        match self {
            AnyPort::Packet(_) => "af_packet",
            AnyPort::Xdp(_) => "af_xdp",
        }
    }

    fn port(&self) -> &dyn Port {
        match self {
            AnyPort::Packet(port) => &**port,
            AnyPort::Xdp(port) => &**port,
        }
    }
}

impl Port for AnyPort {
    #[inline]
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        match self {
            AnyPort::Packet(port) => port.receive(limit, each),
            AnyPort::Xdp(port) => port.receive(limit, each),
        }
    }

    #[inline]
    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        match self {
            AnyPort::Packet(port) => port.send(frame),
            AnyPort::Xdp(port) => port.send(frame),
        }
    }

    fn flush(&mut self) -> io::Result<usize> {
        match self {
            AnyPort::Packet(port) => port.flush(),
            AnyPort::Xdp(port) => port.flush(),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port().fd()
    }

    fn missed(&mut self) -> u64 {
        match self {
            AnyPort::Packet(port) => port.missed(),
            AnyPort::Xdp(port) => port.missed(),
        }
    }
}

/// By AF_XDP, or why not. Only queue 0 is taken over, so there may be no other; and what comes
/// from this very machine over a veth may have its checksum still to be filled in, which only
/// AF_PACKET would tell.
fn by_xdp(namespace: &Namespace, name: &str, kind: PortKind) -> Result<AfXdp, String> {
    let link = Netlink::open(namespace).and_then(|mut netlink| netlink.link(name));
    let link = link.map_err(|error| error.to_string())?;
    if link.is_veth && kind == PortKind::Auto {
        return Err("its other end may leave checksums to be filled in".into());
    }
    let folder = Path::new("/sys/class/net").join(name);
    // What is mounted there may show another namespace; the interface there would be another one.
    let number = std::fs::read_to_string(folder.join("ifindex"));
    if number.is_ok_and(|number| number.trim() == link.index.to_string())
        && let Ok(entries) = std::fs::read_dir(folder.join("queues"))
        && let queues @ 2.. =
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count()
    {
        let remedy = format!("ethtool -L {name} combined 1");
        return Err(format!("it has {queues} receive queues, of which AF_XDP takes one ({remedy})"));
    }
    let options = af_xdp::Options { receive_frames: 4_096, send_frames: 2_048, receives: true };
    AfXdp::open(namespace, name, options).map_err(|error| error.to_string())
}
