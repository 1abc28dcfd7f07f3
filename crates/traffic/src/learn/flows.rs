//! Flows of a capture: who talks to whom, and what each said when.
//!
//! A TCP message is what one end sends until the other one does, or until it has been silent
//! for [`IDLE_NS`]; bytes sent again are left out. Every UDP datagram is a message.

use super::frame::{Segment, Transport};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A silence this long ends a message.
pub const IDLE_NS: u64 = 500_000_000;

/// What one end said at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// By the client.
    pub by_client: bool,
    /// Bytes.
    pub bytes: u64,
    /// When its first and last packets were captured, nanoseconds.
    pub first_ns: u64,
    /// See `first_ns`.
    pub last_ns: u64,
}

/// One flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Whether it is TCP.
    pub tcp: bool,
    /// The client: who opened it, or spoke first.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// When its first packet was captured.
    pub start_ns: u64,
    /// When its last packet was.
    pub end_ns: u64,
    /// What was said, in order.
    pub said: Vec<Said>,
    /// Round trip from where it was captured to the server, and to the client, as the
    /// handshake shows it.
    pub to_server_ns: u64,
    /// See `to_server_ns`.
    pub to_client_ns: u64,
    /// Packets.
    pub packets: u64,
    syn_ns: Option<u64>,
    syn_ack_ns: Option<u64>,
    /// Next byte expected from the client and from the server.
    expected: [Option<u32>; 2],
}

impl Flow {
    /// Bytes said in all.
    pub fn bytes(&self) -> u64 {
        self.said.iter().map(|said| said.bytes).sum()
    }

    fn new(segment: &Segment, now: u64) -> Flow {
        // An answered SYN comes from the server.
        let answers = matches!(segment.transport, Transport::Tcp { syn: true, ack: true, .. });
        let (client, server) = match answers {
            true => (segment.destination, segment.source),
            false => (segment.source, segment.destination),
        };
        Flow {
            tcp: segment.transport != Transport::Udp,
            client,
            server,
            start_ns: now,
            end_ns: now,
            said: Vec::new(),
            to_server_ns: 0,
            to_client_ns: 0,
            packets: 0,
            syn_ns: None,
            syn_ack_ns: None,
            expected: [None; 2],
        }
    }

    fn add(&mut self, segment: &Segment, now: u64) {
        self.packets += 1;
        // Packets of several interfaces may be slightly out of order.
        let now = now.max(self.end_ns);
        self.end_ns = now;
        let by_client = segment.source == self.client;
        let bytes = match segment.transport {
            Transport::Udp => u64::from(segment.payload),
            Transport::Tcp { sequence, syn, ack, .. } => {
                self.handshake(by_client, syn, ack, now);
                self.fresh(usize::from(!by_client), sequence, syn, segment.payload)
            }
        };
        if bytes == 0 && self.tcp {
            return;
        }
        if let Some(last) = self.said.last_mut()
            && self.tcp
            && last.by_client == by_client
            && now - last.last_ns <= IDLE_NS
        {
            last.bytes += bytes;
            last.last_ns = now;
            return;
        }
        self.said.push(Said { by_client, bytes, first_ns: now, last_ns: now });
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

    /// Bytes of a segment not seen before. A gap counts with the segment that shows it: what
    /// fills it later is taken for sent again.
    fn fresh(&mut self, from: usize, sequence: u32, syn: bool, payload: u32) -> u64 {
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
        let ahead = end.wrapping_sub(expected);
        // Sequence numbers are compared in a window of half their range (RFC 9293 section 3.4).
        if ahead == 0 || ahead > 1 << 31 {
            return 0;
        }
        self.expected[from] = Some(end);
        // A gap larger than any window is another connection, or a broken packet.
        if ahead > (1 << 30) + payload { u64::from(payload) } else { u64::from(ahead) }
    }
}

/// Most flows kept; a scan of a whole network would hold more.
const MOST_FLOWS: usize = 200_000;

/// All flows of a capture, in the order of their first packets.
#[derive(Debug, Default)]
pub struct Flows {
    /// The flows.
    pub flows: Vec<Flow>,
    open: BTreeMap<(bool, SocketAddr, SocketAddr), usize>,
}

impl Flows {
    /// A segment captured at this time. False if there were too many flows to take it.
    pub fn add(&mut self, segment: &Segment, now: u64) -> bool {
        let (a, b) = (segment.source, segment.destination);
        let key = (segment.transport == Transport::Udp, a.min(b), a.max(b));
        let opens = matches!(segment.transport, Transport::Tcp { syn: true, ack: false, .. });
        let mut index = self.open.get(&key).copied();
        // A port used again after data is another connection.
        if opens && index.is_some_and(|index| !self.flows[index].said.is_empty()) {
            index = None;
        }
        let index = match index {
            Some(index) => index,
            None if self.flows.len() == MOST_FLOWS => return false,
            None => {
                self.flows.push(Flow::new(segment, now));
                self.open.insert(key, self.flows.len() - 1);
                self.flows.len() - 1
            }
        };
        self.flows[index].add(segment, now);
        true
    }
}
