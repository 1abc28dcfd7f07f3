//! Reception of RSVP packets from an interface, with or without link-layer header, and sending to its neighbors.

use super::RsvpPlace;
use netstage_core::rsvp::RsvpTransmit;
use netstage_host::netns::Namespace;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_host::ports::{FramePort as _, readiness, router_alert};
use netstage_wire::ethernet;
use netstage_wire::ip::v4;
use netstage_wire::rsvp::PROTOCOL;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd as _, OwnedFd};
use std::task::{Context, Poll, Waker};
use tokio::io::unix::AsyncFd;

/// Frames that the kernel queues between two reads.
const RECEIVE_FRAMES: usize = 512;
/// Frames handled between two events of the driver.
const BATCH: usize = 64;
/// Differentiated services codepoint of network control (RFC 4594).
const NETWORK_CONTROL: u8 = 48;
/// Router alert option (RFC 2113).
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];

/// Sockets of an interface.
#[derive(Debug)]
pub(super) struct Interface {
    frames: AfPacket,
    ready: AsyncFd<OwnedFd>,
    raw: Socket,
}

/// A received packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received<'a> {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    /// The packet has IP options, such as router alert.
    pub has_options: bool,
    /// RSVP message.
    pub message: &'a [u8],
}

/// Program of classic BPF that accepts unfragmented IPv4 packets with protocol 46 which are sent to the interface's own
/// MAC address, if it has one.
fn filter() -> [SockFilter; 10] {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_ANY: u16 = 0x45;
    const RETURN: u16 = 0x06;
    /// Ancillary data: EtherType and packet type; and the start of the network header (SKF_NET_OFF).
    const ETHERTYPE: u32 = 0xffff_f000;
    const PACKET_TYPE: u32 = ETHERTYPE + 4;
    const NETWORK: u32 = 0xfff0_0000;
    let load = |code, at| SockFilter::new(code, 0, 0, at);
    [
        load(LOAD_WORD, PACKET_TYPE),
        SockFilter::new(JUMP_IF_EQUAL, 0, 7, 0),
        load(LOAD_WORD, ETHERTYPE),
        SockFilter::new(JUMP_IF_EQUAL, 0, 5, ethernet::ethertype::IPV4.into()),
        load(LOAD_BYTE, NETWORK + 9),
        SockFilter::new(JUMP_IF_EQUAL, 0, 3, PROTOCOL.into()),
        load(LOAD_HALF, NETWORK + 6),
        SockFilter::new(JUMP_IF_ANY, 1, 0, 0x3fff),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

impl Interface {
    pub(super) fn open(namespace: &Namespace, place: &RsvpPlace) -> io::Result<Interface> {
        let frames =
            AfPacket::open(namespace, &place.name, AfPacketOptions { receive_frames: RECEIVE_FRAMES })?;
        frames.attach_filter(&filter())?;
        let ready = readiness::register(&frames)?;
        let raw = namespace.run(|| raw_socket(&place.name)).flatten()?;
        Ok(Interface { frames, ready, raw })
    }

    /// Completes when a packet has arrived.
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        self.ready.poll_read_ready(context).map(drop)
    }

    /// Passes received packets to `each`.
    pub(super) fn receive(&mut self, each: &mut dyn FnMut(Received<'_>)) -> io::Result<()> {
        // The guard precedes the read, so that a packet that arrives in the meantime sets the readiness again.
        let mut context = Context::from_waker(Waker::noop());
        let guard = match self.ready.poll_read_ready(&mut context) {
            Poll::Ready(guard) => Some(guard?),
            Poll::Pending => None,
        };
        let count = self.frames.receive(BATCH, &mut |received| {
            if let Some(packet) = parse(received.frame) {
                each(packet);
            }
        })?;
        if let Some(mut guard) = guard.filter(|_| count == 0) {
            guard.clear_ready();
        }
        Ok(())
    }

    /// Sends a message to a neighbor on the link, whatever the destination address.
    pub(super) fn send(&self, transmit: &RsvpTransmit) -> io::Result<()> {
        let next_hop = SocketAddrV4::new(transmit.to.address, 0);
        self.raw.send_to(&packet(transmit), &next_hop.into()).map(drop)
    }
}

/// Opens a socket that sends packets with their IP header, and makes the kernel consume received RSVP packets.
fn raw_socket(name: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(i32::from(PROTOCOL))))?;
    // The packets are read from the link layer: "return 0" drops them here.
    socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)])?;
    socket.set_nonblocking(true)?;
    socket.set_header_included_v4(true)?;
    socket.bind_device(Some(name.as_bytes()))?;
    router_alert::receive(socket.as_fd())?;
    Ok(socket)
}

/// Returns the RSVP packet of a frame.
fn parse(frame: &[u8]) -> Option<Received<'_>> {
    let packet = v4::View::new(frame.get(ethernet::HEADER..)?).ok()?;
    if packet.protocol() != PROTOCOL || !packet.is_checksum_valid() {
        return None;
    }
    Some(Received {
        source: packet.source(),
        destination: packet.destination(),
        has_options: !packet.options().is_empty(),
        message: packet.packet().get(packet.header_length()..)?,
    })
}

/// Returns the IP packet of a message. The kernel sets its length, identification and checksum.
fn packet(transmit: &RsvpTransmit) -> Vec<u8> {
    let options: &[u8] = if transmit.has_router_alert { &ROUTER_ALERT } else { &[] };
    let header = v4::Header {
        dscp: NETWORK_CONTROL,
        dont_fragment: false,
        ttl: transmit.ttl,
        protocol: PROTOCOL,
        source: transmit.source,
        destination: transmit.destination,
        ..v4::Header::default()
    };
    let mut bytes = vec![0; v4::HEADER];
    // The length of a message fits into the header.
    let _ = header.write(&mut bytes, options.len() + transmit.bytes.len());
    bytes[0] += options.len() as u8 / 4;
    bytes.extend(options);
    bytes.extend(&transmit.bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rsvp::RsvpNeighbor;
    use netstage_wire::checksum::checksum;

    #[test]
    fn path_messages_carry_the_router_alert_option() {
        let address = Ipv4Addr::new(10, 0, 0, 1);
        let transmit = RsvpTransmit {
            to: RsvpNeighbor { interface: 1, address },
            source: address,
            destination: Ipv4Addr::new(10, 9, 9, 9),
            ttl: 63,
            has_router_alert: true,
            bytes: vec![1; 8],
        };
        let bytes = packet(&transmit);
        let view = v4::View::new(&bytes).unwrap();
        assert_eq!((view.options(), view.ttl(), view.protocol()), (&ROUTER_ALERT[..], 63, PROTOCOL));
        assert_eq!((view.source(), view.destination()), (transmit.source, transmit.destination));
        assert_eq!((view.header_length(), bytes.len()), (24, 32));
        let plain = packet(&RsvpTransmit { has_router_alert: false, ..transmit.clone() });
        for (mut bytes, has_options) in [(bytes, true), (plain, false)] {
            // The kernel sets the checksum.
            let header = v4::View::new(&bytes).unwrap().header_length();
            bytes[10..12].fill(0);
            let sum = checksum(&bytes[..header]);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            let frame = [&[0; 14][..], &bytes].concat();
            let destination = transmit.destination;
            let expected = Received { source: address, destination, has_options, message: &[1; 8] };
            assert_eq!(parse(&frame), Some(expected));
        }
    }
}
