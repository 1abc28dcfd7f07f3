//! Packets to the router's own addresses in a VPN. Echo requests are answered, so that customers can test
//! reachability; there are no other services.

use super::pool::{HEADROOM, StoredPacket};
use super::{Counter, EngineState, ICMP_BURST, ICMP_EVERY, PacketDrop};
use netstage_core::time::Instant;
use netstage_wire::checksum::updated;
use netstage_wire::ethernet;
use netstage_wire::ip::{self, Fragment, protocol, v4, v6};

/// Types of echo request and reply in ICMP and ICMPv6 (RFC 792, RFC 4443).
const ECHO: (u8, u8) = (8, 0);
const ECHO_V6: (u8, u8) = (128, 129);
const TTL: u8 = 64;

impl EngineState {
    /// Handles a packet to this router, from a customer frame or from the core.
    #[cold]
    pub(super) fn handle_own_packet(
        &mut self,
        now: Instant,
        vpn: usize,
        packet: &ip::View<'_>,
        frame: Option<(usize, &ethernet::View<'_>)>,
    ) -> Result<(), PacketDrop> {
        if let (Some((port, frame)), ip::View::V6(view)) = (frame, packet)
            && netstage_wire::neighbor_discovery::may_be(view)
        {
            return self.handle_link_frame(now, port, frame);
        }
        let transport = packet.transport().map_err(|_| Counter::NotAnEcho)?;
        let (protocol, (request, reply)) = match packet {
            ip::View::V4(_) => (protocol::ICMP, ECHO),
            ip::View::V6(_) => (protocol::ICMPV6, ECHO_V6),
        };
        let is_echo = transport.protocol == protocol
            && transport.fragment == Fragment::Whole
            && transport.payload.len() >= 8
            && transport.payload[0] == request;
        let limit = &mut self.vpns[vpn].next_icmp;
        if !is_echo || packet.source().is_multicast() || *limit > now + ICMP_BURST {
            return Err(Counter::NotAnEcho.into());
        }
        *limit = (*limit).max(now) + ICMP_EVERY;
        let kept = self.pool.store(packet.packet(), 0).ok_or(Counter::BuffersExhausted)?;
        self.turn_into_reply(kept, transport.offset, (request, reply));
        self.send_own(now, vpn, packet.source(), kept)
    }

    /// Turns an echo request into its reply. Swapping the addresses changes no checksum.
    fn turn_into_reply(&mut self, packet: StoredPacket, message: usize, (request, reply): (u8, u8)) {
        let bytes = &mut self.pool.bytes(packet.buffer)[HEADROOM..];
        let (sender, length) = if bytes[0] >> 4 == 6 { (8, 16) } else { (12, 4) };
        let (source, destination) = bytes[sender..sender + 2 * length].split_at_mut(length);
        source.swap_with_slice(destination);
        if let Ok(mut header) = v4::HeaderMut::new(bytes) {
            header.set_ttl(TTL);
        } else if let Ok(mut header) = v6::HeaderMut::new(bytes) {
            header.set_hop_limit(TTL);
        }
        let code = bytes[message + 1];
        bytes[message] = reply;
        let checksum = u16::from_be_bytes([bytes[message + 2], bytes[message + 3]]);
        let word = |kind: u8| u16::from_be_bytes([kind, code]);
        let checksum = updated(checksum, word(request), word(reply));
        bytes[message + 2..message + 4].copy_from_slice(&checksum.to_be_bytes());
    }
}
