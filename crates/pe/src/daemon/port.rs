//! Opens an interface with AF_XDP if that is requested and safe, and with AF_PACKET otherwise.

use super::steering::FilterProgram;
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::ports::af_packet::{self, AfPacket};
use netstage_host::ports::af_xdp::{self, AfXdp};
use netstage_host::ports::{FramePort, ReceivedFrame};
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::PortKind;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Frames buffered while a configuration changes: 80 ms at 100,000 frames per second.
const RECEIVE_FRAMES: usize = 8_192;

/// Interface opened with AF_XDP or AF_PACKET.
#[derive(Debug)]
pub(super) enum AnyPort {
    Packet(Box<AfPacket>),
    Xdp(Box<AfXdp>),
}

impl AnyPort {
    /// Opens an interface. Only frames that `filter` accepts are received. Also returns the reason why AF_XDP
    /// is not used, unless AF_PACKET was requested.
    pub fn open(
        namespace: &Namespace,
        name: &str,
        kind: PortKind,
        filter: Option<&FilterProgram>,
    ) -> Result<(AnyPort, Option<String>), StartupError> {
        let mut why = None;
        if kind != PortKind::AfPacket {
            match open_xdp(namespace, name, kind) {
                Ok(port) => return Ok((AnyPort::Xdp(Box::new(port)), None)),
                Err(reason) if kind == PortKind::AfXdp => {
                    let remedy = "set `ports` to \"auto\" or \"af-packet\"";
                    return Err(StartupError::new(format!("{name}: {reason}"), remedy));
                }
                Err(reason) => why = Some(reason),
            }
        }
        let options = af_packet::AfPacketOptions { receive_frames: RECEIVE_FRAMES };
        let open = || -> io::Result<AfPacket> {
            let port = AfPacket::open(namespace, name, options)?;
            filter.map_or(Ok(()), |program| port.attach_filter(&program.filter()))?;
            Ok(port)
        };
        let port =
            open().map_err(|error| StartupError::from_system(format!("cannot open {name}"), &error))?;
        Ok((AnyPort::Packet(Box::new(port)), why))
    }

    /// Replaces the filter; `None` accepts all frames.
    pub fn steer(&self, filter: Option<&FilterProgram>) -> io::Result<()> {
        match (self, filter) {
            (AnyPort::Packet(port), Some(program)) => port.attach_filter(&program.filter()),
            (AnyPort::Packet(port), None) => port.detach_filter(),
            // An AF_XDP interface belongs to a single core.
            (AnyPort::Xdp(_), _) => Ok(()),
        }
    }

    /// Returns the name of the kind in outputs.
    pub fn kind(&self) -> &'static str {
        match self {
            AnyPort::Packet(_) => "af_packet",
            AnyPort::Xdp(_) => "af_xdp",
        }
    }

    fn port(&self) -> &dyn FramePort {
        match self {
            AnyPort::Packet(port) => &**port,
            AnyPort::Xdp(port) => &**port,
        }
    }
}

impl FramePort for AnyPort {
    #[inline]
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
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

/// Opens an interface with AF_XDP, or returns why that is not possible. AF_XDP serves only queue 0, so the
/// interface must have a single queue. Packets from this host over a veth may lack their checksum, which only
/// AF_PACKET reports.
fn open_xdp(namespace: &Namespace, name: &str, kind: PortKind) -> Result<AfXdp, String> {
    let link = Netlink::open(namespace).and_then(|mut netlink| netlink.link(name));
    let link = link.map_err(|error| error.to_string())?;
    if link.is_veth && kind == PortKind::Auto {
        return Err("the other end of the veth may leave checksums incomplete".into());
    }
    let folder = Path::new("/sys/class/net").join(name);
    // A mounted sysfs may show another network namespace, where the same name is another interface.
    let number = std::fs::read_to_string(folder.join("ifindex"));
    if number.is_ok_and(|number| number.trim() == link.index.to_string())
        && let Ok(entries) = std::fs::read_dir(folder.join("queues"))
        && let queues @ 2.. =
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count()
    {
        let remedy = format!("ethtool -L {name} combined 1");
        return Err(format!("it has {queues} receive queues, and AF_XDP uses only one ({remedy})"));
    }
    let options = af_xdp::AfXdpOptions { receive_frames: 4_096, send_frames: 2_048, receives: true };
    AfXdp::open(namespace, name, options).map_err(|error| error.to_string())
}
