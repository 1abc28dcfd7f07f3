//! Opening an interface: by AF_XDP where that is wanted and safe, by AF_PACKET else.

use super::host::Obstacle;
use crate::netns::{Namespace, Netlink};
use crate::pe::engine::config::Side;
use crate::ports::af_packet::{self, AfPacket};
use crate::ports::af_xdp::{self, AfXdp};
use crate::ports::{Port, Received};
use netstage_scenario::pe::PortKind;
use netstage_wire::mpls_in_udp;
use socket2::SockFilter;
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
    /// Opens an interface. Also says why it is not by AF_XDP, where that is worth a word.
    pub fn open(
        namespace: &Namespace,
        name: &str,
        side: Side,
        kind: PortKind,
    ) -> Result<(AnyPort, Option<String>), Obstacle> {
        let mut why = None;
        if side == Side::Customer && kind != PortKind::AfPacket {
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
            if side == Side::Core {
                port.keep_only(&tunnels())?;
            }
            Ok(port)
        };
        let port = open().map_err(|error| Obstacle::system(format!("{name} cannot be opened"), &error))?;
        Ok((AnyPort::Packet(Box::new(port)), why))
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
    let options = af_xdp::Options { receive_frames: 4_096, send_frames: 2_048 };
    AfXdp::open(namespace, name, options).map_err(|error| error.to_string())
}

/// Accepts MPLS, and UDP to the port of MPLS in UDP: all else on the core's interfaces is the
/// kernel's.
fn tunnels() -> Vec<SockFilter> {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF_INDEXED: u16 = 0x48;
    const LOAD_HEADER_LENGTH: u16 = 0xb1;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_ANY_SET: u16 = 0x45;
    const RETURN: u16 = 0x06;
    let step = SockFilter::new;
    let port = u32::from(mpls_in_udp::PORT);
    vec![
        step(LOAD_HALF, 0, 0, 12),
        step(JUMP_EQUAL, 13, 0, 0x8847),
        step(JUMP_EQUAL, 0, 7, 0x0800),
        // IPv4: UDP, not a later fragment, to the port.
        step(LOAD_BYTE, 0, 0, 23),
        step(JUMP_EQUAL, 0, 11, 17),
        step(LOAD_HALF, 0, 0, 20),
        step(JUMP_ANY_SET, 9, 0, 0x1fff),
        step(LOAD_HEADER_LENGTH, 0, 0, 14),
        step(LOAD_HALF_INDEXED, 0, 0, 16),
        step(JUMP_EQUAL, 5, 6, port),
        // IPv6: UDP at once, to the port.
        step(JUMP_EQUAL, 0, 5, 0x86dd),
        step(LOAD_BYTE, 0, 0, 20),
        step(JUMP_EQUAL, 0, 3, 17),
        step(LOAD_HALF, 0, 0, 56),
        step(JUMP_EQUAL, 0, 1, port),
        step(RETURN, 0, 0, u32::MAX),
        step(RETURN, 0, 0, 0),
    ]
}
