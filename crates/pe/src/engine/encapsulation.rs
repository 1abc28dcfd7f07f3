//! Headers of packets to the core, written in place: VPN label, tunnel, Ethernet.
//!
//! The label TTL is independent of the packet's (pipe model of RFC 3443): customers see two hops, this router
//! and the peer, regardless of the core. The traffic class is the upper half of the DSCP. All packets of a
//! VPN flow have the same UDP source port, so that routers that balance load by port keep management packets
//! on the path of the data they count.

use super::pool::{HEADROOM, StoredPacket};
use super::{Counter, DepartingFrame, EngineFlow, EngineState, PacketDrop};
use netstage_wire::gach::{self, channel};
use netstage_wire::ip::{Ecn, tunnel};
use netstage_wire::mpls::{ENTRY, LabelStackEntry, LabelValue};
use netstage_wire::mpls_in_udp::{TunnelHeader, source_port};
use std::net::IpAddr;

/// Encapsulation around the VPN label: the tunnel of a peer, with both ends known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encapsulation {
    /// Label stack on Ethernet.
    Mpls {
        /// Label of the path to the peer. `None` if the peer is the next hop or the next hop pops the label
        /// anyway.
        push: Option<LabelValue>,
        /// Expected label above the VPN label in packets from the peer. Packets without it or with an
        /// explicit null label are always accepted.
        accept: Option<LabelValue>,
    },
    /// MPLS in UDP (RFC 7510).
    MplsInUdp {
        /// Local address.
        local: IpAddr,
        /// Address of the peer.
        remote: IpAddr,
        /// Compute the UDP checksum, and require it over IPv6.
        has_checksum: bool,
    },
}

const LABEL_TTL: u8 = 255;
const TUNNEL_TTL: u8 = 64;

impl EngineState {
    /// Sends a customer packet.
    #[inline]
    pub(super) fn encapsulate_packet(&mut self, flow: usize, packet: StoredPacket) {
        let bytes = &self.pool.bytes(packet.buffer)[HEADROOM..];
        let class = if bytes[0] >> 4 == 6 { bytes[0] << 4 | bytes[1] >> 4 } else { bytes[1] };
        self.encapsulate(flow, packet, HEADROOM, class, true);
    }

    /// Sends a management message. The message starts after room for the channel header.
    pub(super) fn encapsulate_message(&mut self, flow: usize, message: StoredPacket) {
        let start = self.write_channel(message, channel::DIRECT_LOSS_DELAY);
        self.encapsulate(flow, message, start, 0, false);
    }

    /// Sends a message of the path to a peer, with the same room for the channel header.
    pub(super) fn encapsulate_path_message(
        &mut self,
        peer: usize,
        channel: u16,
        message: StoredPacket,
    ) -> Result<(), PacketDrop> {
        let start = self.write_channel(message, channel);
        self.tunnel(peer, message, start, (0, LabelValue::GENERIC_CHANNEL)).map_err(PacketDrop::from)
    }

    /// Writes the channel header and label, and returns their start.
    fn write_channel(&mut self, message: StoredPacket, channel: u16) -> usize {
        let bytes = self.pool.bytes(message.buffer);
        bytes[HEADROOM..HEADROOM + gach::HEADER].copy_from_slice(&gach::header(channel));
        push_label(bytes, HEADROOM, LabelValue::GENERIC_CHANNEL, 0, true)
    }

    /// Adds the VPN label and tunnel to the bytes from `start` and sends them. The label is the bottom of the
    /// stack for a packet, and above the GAL for a message.
    #[inline]
    fn encapsulate(
        &mut self,
        number: usize,
        buffered: StoredPacket,
        start: usize,
        class: u8,
        is_bottom: bool,
    ) {
        let EngineFlow { send, peer, .. } = self.flows[number];
        let start = push_label(self.pool.bytes(buffered.buffer), start, send, class, is_bottom);
        if let Err(counter) = self.tunnel(peer as usize, buffered, start, (class, send)) {
            self.count(counter.of(number));
        }
    }

    /// Adds the tunnel of a peer to the bytes from `start` and sends them, with the traffic class and the
    /// label beneath the tunnel. Releases the buffer if the peer is unreachable.
    #[inline]
    fn tunnel(
        &mut self,
        number: usize,
        buffered: StoredPacket,
        start: usize,
        (class, inner): (u8, LabelValue),
    ) -> Result<(), Counter> {
        let peer = &self.peers[number];
        if !peer.is_reachable {
            self.pool.release(buffered.buffer);
            return Err(Counter::PeerUnreachable);
        }
        let end = HEADROOM + usize::from(buffered.length);
        let bytes = self.pool.bytes(buffered.buffer);
        let mut start = start;
        match peer.encapsulation {
            Encapsulation::Mpls { push, .. } => {
                if let Some(label) = push {
                    start = push_label(bytes, start, label, class, false);
                }
            }
            Encapsulation::MplsInUdp { local, remote, has_checksum } => {
                let outer = TunnelHeader {
                    source: local,
                    destination: remote,
                    // Spreads adjacent labels over distant ports.
                    source_port: source_port(inner.number().wrapping_mul(0x9e37_79b9)),
                    dscp: class >> 2,
                    ecn: tunnel::encapsulated_ecn(Ecn::from_bits(class)),
                    ttl: TUNNEL_TTL,
                    has_checksum,
                };
                start -= outer.length();
                let written = outer.write(&mut bytes[start..end]);
                debug_assert!(written.is_ok(), "both addresses are of one IP version, and buffers are small");
                if self.secure.is_encrypted(number) {
                    self.encrypt(number, buffered.buffer, start..end, outer.dscp, outer.ecn);
                    return Ok(());
                }
            }
        }
        let header = peer.header.bytes();
        bytes[start - header.len()..start].copy_from_slice(header);
        self.departures[peer.port as usize].push(DepartingFrame {
            buffer: buffered.buffer,
            start: (start - header.len()) as u16,
            end: end as u16,
        });
        Ok(())
    }
}

/// Writes a label before `start` and returns the new start.
#[inline]
fn push_label(bytes: &mut [u8], start: usize, label: LabelValue, class: u8, bottom: bool) -> usize {
    let entry = LabelStackEntry { label, traffic_class: class >> 5, bottom, ttl: LABEL_TTL };
    bytes[start - ENTRY..start].copy_from_slice(&entry.to_bytes());
    start - ENTRY
}
