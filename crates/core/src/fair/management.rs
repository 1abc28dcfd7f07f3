//! Management packets between ingress and egress PE (RFC 6374 combined loss and delay measurement).

use crate::time::{Duration, Instant};

/// A query, sent by the ingress PE in line with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Sequence number of the query within its VPN flow.
    pub sequence: u32,
    /// Time of sending, by the clock of the ingress PE.
    pub sent_at: Instant,
    /// Data packets the ingress PE had sent in total before this query.
    pub packets_sent: u64,
}

/// The reply of the egress PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The query being answered.
    pub query: Query,
    /// Data packets the egress PE had received in total when the query arrived.
    pub packets_received: u64,
    /// Received data packets that carried a congestion mark.
    pub packets_marked: u64,
    /// Time between the arrival of the query and the departure of the reply.
    pub residence_time: Duration,
    /// Arrival of the query by the clock of the egress PE minus its departure by that of the ingress PE, in
    /// nanoseconds. The offset of the clocks is unknown, so only changes have a meaning.
    pub transit: i64,
}

/// State of a VPN flow at its egress PE: only counters, so its size is independent of the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    /// Data packets received.
    pub packets: u64,
    /// Bytes received, at the IP layer.
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

    /// Returns the immediate reply to a query that arrives now.
    pub fn handle_query(&self, query: Query, now: Instant) -> Reply {
        Reply {
            query,
            packets_received: self.packets,
            packets_marked: self.marked,
            residence_time: Duration::ZERO,
            transit: now.0.wrapping_sub(query.sent_at.0) as i64,
        }
    }
}
