//! What is written in front of what leaves to the core, in place: VPN label, tunnel, next hop.
//!
//! The label's time to live is its own (the pipe model of RFC 3443): customers see two hops, this
//! router and the peer, whatever the core is like. Its traffic class is the upper half of the
//! packet's DSCP. All packets of a VPN flow have one UDP source port, so that routers that
//! spread by it keep management packets with the data they count.

use super::pool::{Buffered, HEADROOM};
use super::{Counter, Departure, Flow, Refused, State};
use netstage_wire::gach::{self, channel};
use netstage_wire::ip::{Ecn, tunnel};
use netstage_wire::mpls::{ENTRY, Entry, Label};
use netstage_wire::mpls_in_udp::{Outer, source_port};
use std::net::IpAddr;

/// Encapsulation around the VPN label: a peer's tunnel, both ends known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encapsulation {
    /// A label stack on Ethernet.
    Mpls {
        /// Label of the path to the peer; none where the peer is the next hop, or the next hop
        /// pops anyway.
        push: Option<Label>,
        /// Label above the VPN label in what the peer sends, where it arrives. Without it, and
        /// with an explicit null, packets are taken in any case.
        accept: Option<Label>,
    },
    /// MPLS in UDP (RFC 7510).
    MplsInUdp {
        /// This router's address.
        local: IpAddr,
        /// The peer's.
        remote: IpAddr,
        /// Compute the UDP checksum, and over IPv6 ask for it.
        has_checksum: bool,
    },
}

const LABEL_TTL: u8 = 255;
const TUNNEL_TTL: u8 = 64;

impl State {
    /// Sends a customer's packet.
    #[inline]
    pub(super) fn encapsulate_packet(&mut self, flow: usize, packet: Buffered) {
        let bytes = &self.pool.bytes(packet.buffer)[HEADROOM..];
        let class = if bytes[0] >> 4 == 6 { bytes[0] << 4 | bytes[1] >> 4 } else { bytes[1] };
        self.encapsulate(flow, packet, HEADROOM, class, true);
    }

    /// Sends a management message, which has left room for the channel's header at its beginning.
    pub(super) fn encapsulate_message(&mut self, flow: usize, message: Buffered) {
        let start = self.write_channel(message, channel::DIRECT_LOSS_DELAY);
        self.encapsulate(flow, message, start, 0, false);
    }

    /// Sends a message of the path to a peer, which has left the same room.
    pub(super) fn encapsulate_path_message(
        &mut self,
        peer: usize,
        channel: u16,
        message: Buffered,
    ) -> Result<(), Refused> {
        let start = self.write_channel(message, channel);
        self.tunnel(peer, message, start, (0, Label::GENERIC_CHANNEL)).map_err(Refused::from)
    }

    /// Writes channel header and label, and gives where they begin.
    fn write_channel(&mut self, message: Buffered, channel: u16) -> usize {
        let bytes = self.pool.bytes(message.buffer);
        bytes[HEADROOM..HEADROOM + gach::HEADER].copy_from_slice(&gach::header(channel));
        put(bytes, HEADROOM, Label::GENERIC_CHANNEL, 0, true)
    }

    /// Puts around what begins at `start` and is of this traffic class: a packet whose label is
    /// the stack's bottom, or a message under one label more.
    #[inline]
    fn encapsulate(&mut self, number: usize, buffered: Buffered, start: usize, class: u8, is_bottom: bool) {
        let Flow { send, peer, .. } = self.flows[number];
        let start = put(self.pool.bytes(buffered.buffer), start, send, class, is_bottom);
        if let Err(counter) = self.tunnel(peer as usize, buffered, start, (class, send)) {
            self.count(counter.of(number));
        }
    }

    /// Puts a peer's tunnel around what begins at `start`, of a traffic class and below a label. The
    /// buffer is given back where there is no way to the peer.
    #[inline]
    fn tunnel(
        &mut self,
        peer: usize,
        buffered: Buffered,
        start: usize,
        (class, inner): (u8, Label),
    ) -> Result<(), Counter> {
        let peer = &self.peers[peer];
        if !peer.is_reachable {
            self.pool.give(buffered.buffer);
            return Err(Counter::PeerUnreachable);
        }
        let end = HEADROOM + usize::from(buffered.length);
        let bytes = self.pool.bytes(buffered.buffer);
        let mut start = start;
        match peer.encapsulation {
            Encapsulation::Mpls { push, .. } => {
                if let Some(label) = push {
                    start = put(bytes, start, label, class, false);
                }
            }
            Encapsulation::MplsInUdp { local, remote, has_checksum } => {
                let outer = Outer {
                    source: local,
                    destination: remote,
                    // Neighbouring labels, far apart ports.
                    source_port: source_port(inner.number().wrapping_mul(0x9e37_79b9)),
                    dscp: class >> 2,
                    ecn: tunnel::encapsulated_ecn(Ecn::from_bits(class)),
                    ttl: TUNNEL_TTL,
                    has_checksum,
                };
                start -= outer.length();
                let written = outer.write(&mut bytes[start..end]);
                debug_assert!(written.is_ok(), "both addresses are of one version, and buffers small");
            }
        }
        let header = peer.header.bytes();
        bytes[start - header.len()..start].copy_from_slice(header);
        self.departures[peer.port as usize].push(Departure {
            buffer: buffered.buffer,
            start: (start - header.len()) as u16,
            end: end as u16,
        });
        Ok(())
    }
}

/// Writes a label in front, and gives where it begins.
#[inline]
fn put(bytes: &mut [u8], start: usize, label: Label, class: u8, bottom: bool) -> usize {
    let entry = Entry { label, traffic_class: class >> 5, bottom, ttl: LABEL_TTL };
    bytes[start - ENTRY..start].copy_from_slice(&entry.to_bytes());
    start - ENTRY
}
