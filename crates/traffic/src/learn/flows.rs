//! Flows of a capture, with the messages of both ends.
//!
//! A TCP message ends when the other end sends, or after a silence of [`IDLE_NS`]. Retransmitted bytes do not count, and
//! a silence that ends with a retransmission is the timeout of the sender, not the end of a message. SYN and FIN occupy
//! sequence numbers, but are no data.
//! Every UDP datagram is a message.

use super::frame::{CapturedSegment, SegmentTransport};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Silence that ends a message, in nanoseconds.
pub const IDLE_NS: u64 = 500_000_000;

/// Message of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedMessage {
    /// Set if the client sent the message.
    pub by_client: bool,
    /// Length in bytes.
    pub bytes: u64,
    /// Capture time of the first packet in nanoseconds.
    pub first_ns: u64,
    /// Capture time of the last packet in nanoseconds.
    pub last_ns: u64,
}

/// Flow between a client and a server.
#[derive(Clone, Debug)]
pub struct CapturedFlow {
    /// Set for TCP, unset for UDP.
    pub tcp: bool,
    /// Address of the client, which opened the connection or sent first.
    pub client: SocketAddr,
    /// Address of the server.
    pub server: SocketAddr,
    /// Capture time of the first packet in nanoseconds.
    pub start_ns: u64,
    /// Capture time of the last packet in nanoseconds.
    pub end_ns: u64,
    /// Messages in order.
    pub messages: Vec<CapturedMessage>,
    /// Round-trip time between the point of capture and the server, measured in the handshake.
    pub to_server_ns: u64,
    /// Round-trip time between the point of capture and the client, measured in the handshake.
    pub to_client_ns: u64,
    /// Number of packets.
    pub packets: u64,
    syn_ns: Option<u64>,
    syn_ack_ns: Option<u64>,
    /// Next sequence number expected from the client and from the server.
    expected: [Option<u32>; 2],
    /// Times of the last retransmissions of the client and of the server.
    retransmitted_ns: [u64; 2],
}

impl CapturedFlow {
    /// Returns whether the capture has the handshake of the connection, and so its round trips.
    pub fn has_handshake(&self) -> bool {
        self.syn_ns.is_some() && self.to_server_ns > 0
    }

    /// Returns the number of message bytes.
    pub fn bytes(&self) -> u64 {
        self.messages.iter().map(|message| message.bytes).sum()
    }

    fn new(segment: &CapturedSegment, now: u64) -> CapturedFlow {
        let is_syn_ack = matches!(segment.transport, SegmentTransport::Tcp { syn: true, ack: true, .. });
        let (client, server) = match is_syn_ack {
            true => (segment.destination, segment.source),
            false => (segment.source, segment.destination),
        };
        CapturedFlow {
            tcp: segment.transport != SegmentTransport::Udp,
            client,
            server,
            start_ns: now,
            end_ns: now,
            messages: Vec::new(),
            to_server_ns: 0,
            to_client_ns: 0,
            packets: 0,
            syn_ns: None,
            syn_ack_ns: None,
            expected: [None; 2],
            retransmitted_ns: [0; 2],
        }
    }

    fn add(&mut self, segment: &CapturedSegment, now: u64) {
        self.packets += 1;
        // Packets of several interfaces may be slightly out of order.
        let now = now.max(self.end_ns);
        self.end_ns = now;
        let by_client = segment.source == self.client;
        let bytes = match segment.transport {
            SegmentTransport::Udp => u64::from(segment.payload),
            SegmentTransport::Tcp { sequence, syn, ack, .. } => {
                self.handshake(by_client, syn, ack, now);
                self.new_bytes(usize::from(!by_client), sequence, syn, segment.payload)
            }
        };
        if bytes == 0 && self.tcp {
            if segment.payload > 0 {
                self.retransmitted_ns[usize::from(!by_client)] = now;
            }
            return;
        }
        let active_ns = self.retransmitted_ns[usize::from(!by_client)];
        if let Some(last) = self.messages.last_mut()
            && self.tcp
            && last.by_client == by_client
            && now - last.last_ns.max(active_ns) <= IDLE_NS
        {
            last.bytes += bytes;
            last.last_ns = now;
            return;
        }
        self.messages.push(CapturedMessage { by_client, bytes, first_ns: now, last_ns: now });
    }

    fn handshake(&mut self, by_client: bool, syn: bool, ack: bool, now: u64) {
        match (by_client, syn, ack) {
            (true, true, false) => self.syn_ns = Some(now),
            (false, true, true) => {
                self.to_server_ns = self.syn_ns.map_or(0, |syn| now - syn);
                self.syn_ack_ns = Some(now);
            }
            (true, false, true) => {
                if let Some(syn_ack) = self.syn_ack_ns.take() {
                    self.to_client_ns = now - syn_ack;
                }
            }
            _ => {}
        }
    }

    /// Returns the number of new bytes of a segment. A gap counts with the segment after it; the bytes that fill it
    /// later count as retransmitted.
    fn new_bytes(&mut self, from: usize, sequence: u32, syn: bool, payload: u32) -> u64 {
        let start = sequence.wrapping_add(u32::from(syn));
        let end = start.wrapping_add(payload);
        let Some(expected) = self.expected[from] else {
            self.expected[from] = Some(end);
            return u64::from(payload);
        };
        if syn {
            self.expected[from] = Some(end);
            return u64::from(payload);
        }
        // An ACK after a FIN has the next sequence number, but no data.
        if payload == 0 {
            return 0;
        }
        let ahead = end.wrapping_sub(expected);
        // Sequence numbers are compared in a window of half their range (RFC 9293 section 3.4).
        if ahead == 0 || ahead > 1 << 31 {
            return 0;
        }
        self.expected[from] = Some(end);
        // A gap larger than any window belongs to another connection or a malformed packet.
        if ahead > (1 << 30) + payload { u64::from(payload) } else { u64::from(ahead) }
    }
}

/// Maximum number of flows; a network scan could have more.
const MAX_FLOWS: usize = 200_000;

/// All flows of a capture.
#[derive(Debug, Default)]
pub struct CapturedFlows {
    /// Flows in the order of their first packets.
    pub flows: Vec<CapturedFlow>,
    open: BTreeMap<(bool, SocketAddr, SocketAddr), usize>,
}

impl CapturedFlows {
    /// Adds a segment captured at this time. Returns false if it would open a flow beyond the maximum.
    pub fn add(&mut self, segment: &CapturedSegment, now: u64) -> bool {
        let (a, b) = (segment.source, segment.destination);
        let key = (segment.transport == SegmentTransport::Udp, a.min(b), a.max(b));
        let opens = matches!(segment.transport, SegmentTransport::Tcp { syn: true, ack: false, .. });
        let mut index = self.open.get(&key).copied();
        // A reused port after data is another connection.
        if opens && index.is_some_and(|index| !self.flows[index].messages.is_empty()) {
            index = None;
        }
        let index = match index {
            Some(index) => index,
            None if self.flows.len() == MAX_FLOWS => return false,
            None => {
                self.flows.push(CapturedFlow::new(segment, now));
                self.open.insert(key, self.flows.len() - 1);
                self.flows.len() - 1
            }
        };
        self.flows[index].add(segment, now);
        true
    }
}
