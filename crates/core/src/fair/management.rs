//! Management packets between ingress and egress PE (RFC 6374 combined loss and delay).

use crate::time::{Duration, Instant};

/// Sent by the ingress PE in line with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Counts queries of this VPN flow.
    pub sequence: u32,
    /// When the ingress PE sent it, by its own clock.
    pub sent_at: Instant,
    /// Data packets the ingress PE has sent in all, before this query.
    pub packets_sent: u64,
}

/// The egress PE's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The query it answers.
    pub query: Query,
    /// Data packets the egress PE had received in all when the query passed.
    pub packets_received: u64,
    /// Of these, how many carried a congestion mark.
    pub packets_marked: u64,
    /// How long the egress PE held the query.
    pub held: Duration,
}

/// What an egress PE keeps of a VPN flow: counters, nothing that grows with traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    /// Data packets received.
    pub packets: u64,
    /// Bytes received, IP layer.
    pub bytes: u64,
    /// Packets received with a congestion mark.
    pub marked: u64,
}

impl Egress {
    /// Counts a data packet.
    #[inline]
    pub fn handle_packet(&mut self, size: u32, marked: bool) {
        self.packets += 1;
        self.bytes += u64::from(size);
        self.marked += u64::from(marked);
    }

    /// Answers a query at once.
    pub fn handle_query(&self, query: Query) -> Reply {
        Reply { query, packets_received: self.packets, packets_marked: self.marked, held: Duration::ZERO }
    }
}
