//! Inputs and decisions of VPN flows as typed events, recorded by drivers and compared by tests.

use crate::fair::crowd::PeNews;
use crate::fair::parameters::Basis;
use crate::fair::{IngressTransmit, PublishedReference, Query, Reply};
use crate::packet::QueuePacket;
use crate::time::{Duration, Instant};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// An event. Times are nanoseconds since the start of the router; VPN flows are numbered as in their
/// [`ProviderEdge`](super::ProviderEdge), in the order of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum EdgeEvent {
    /// A customer packet arrived for the queue of a VPN flow.
    Packet {
        /// Time of arrival.
        at: u64,
        /// VPN flow.
        flow: u32,
        /// Size in bytes at the IP layer.
        size: u32,
        /// Class of the packet, if the flow has classes.
        #[serde(default, skip_serializing_if = "is_zero")]
        class: u32,
        /// Key that is equal for packets of one inner flow, if the queue distinguishes inner flows.
        #[serde(default, skip_serializing_if = "is_zero")]
        inside: u32,
        /// ECN field (RFC 3168): 0, 2 (ECN-capable) or 3 (marked).
        #[serde(default, skip_serializing_if = "is_zero")]
        ecn: u32,
        /// Decision: whether the queue accepted the packet.
        taken: bool,
    },
    /// A reply of the egress PE arrived.
    Reply {
        /// Time of arrival.
        at: u64,
        /// VPN flow.
        flow: u32,
        /// Sequence number of the query.
        sequence: u32,
        /// Time at which the query was sent.
        query_sent_at: u64,
        /// Data packets sent before the query.
        packets_sent: u64,
        /// Data packets the egress PE had received by then.
        received: u64,
        /// Received data packets with a congestion mark.
        marked: u64,
        /// Time for which the egress PE held the query, in nanoseconds.
        held: u64,
        /// Transit of the query, with the unknown offset of the clocks, in nanoseconds.
        #[serde(default, skip_serializing_if = "is_zero_time")]
        transit: i64,
        /// Decision: the new window in packets or, under rate consensus, the new rate in bytes per second.
        window: f64,
    },
    /// The measurements of a reference flow were published.
    Reference {
        /// Time of the local measurement, or of arrival.
        at: u64,
        /// Number of the reference, in the order of the configuration.
        reference: u32,
        /// Weight.
        weight: f64,
        /// Round trip in seconds.
        round_trip: f64,
        /// Loss rate, and the number of loss events it is based on; `None` before the first event.
        loss: Option<(f64, u64)>,
        /// Multiplicative decrease.
        decrease: f64,
    },
    /// The state of the VPN flows under rate consensus was measured and published.
    Publication {
        /// Time of the measurement.
        at: u64,
        /// Decision: what was published.
        news: PeNews,
    },
    /// News of another PE arrived.
    News {
        /// Time of arrival.
        at: u64,
        /// Number that identifies the PE.
        publisher: u64,
        /// The news.
        news: PeNews,
    },
    /// The news of all PEs was applied.
    Consensus {
        /// Time of the event.
        at: u64,
    },
    /// A customer wants to send, but the flow is suspended.
    Wake {
        /// Time of the event.
        at: u64,
        /// VPN flow.
        flow: u32,
    },
    /// Timers were handled and packets sent.
    Turn {
        /// Time of the turn.
        at: u64,
        /// Decision: the packets sent, in order.
        sent: Vec<SentPacket>,
        /// Decision: whether no more packets may leave now. Otherwise the router reached its limit per turn.
        drained: bool,
    },
    /// The configuration was changed.
    Reload {
        /// Time of the change.
        at: u64,
        /// Text of the configuration file.
        configuration: String,
    },
}

/// A packet that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SentPacket {
    /// A customer packet: VPN flow, and size in bytes at the IP layer.
    Data(u32, u32),
    /// A management packet: VPN flow, and sequence number.
    Query(u32, u32),
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_time(nanoseconds: &i64) -> bool {
    *nanoseconds == 0
}

impl EdgeEvent {
    /// Creates the event of a reply and of the resulting window.
    pub fn reply(at: Instant, flow: usize, reply: &Reply, window: f64) -> EdgeEvent {
        EdgeEvent::Reply {
            at: at.0,
            flow: flow as u32,
            sequence: reply.query.sequence,
            query_sent_at: reply.query.sent_at.0,
            packets_sent: reply.query.packets_sent,
            received: reply.packets_received,
            marked: reply.packets_marked,
            held: reply.residence_time.0,
            transit: reply.transit,
            window,
        }
    }

    /// Creates the event of a publication.
    pub fn reference(reference: usize, published: &PublishedReference) -> EdgeEvent {
        let PublishedReference { at, basis: Basis { weight, round_trip, loss }, decrease } = *published;
        EdgeEvent::Reference { at: at.0, reference: reference as u32, weight, round_trip, loss, decrease }
    }

    /// Creates the event of the publication of news.
    pub fn published(at: Instant, news: &PeNews) -> EdgeEvent {
        EdgeEvent::Publication { at: at.0, news: news.clone() }
    }

    /// Creates the event of news that arrived.
    pub fn news(at: Instant, publisher: u64, news: &PeNews) -> EdgeEvent {
        EdgeEvent::News { at: at.0, publisher, news: news.clone() }
    }

    /// Returns the reply, if this is the event of one.
    pub fn as_reply(&self) -> Option<Reply> {
        let EdgeEvent::Reply {
            sequence, query_sent_at, packets_sent, received, marked, held, transit, ..
        } = *self
        else {
            return None;
        };
        Some(Reply {
            query: Query { sequence, sent_at: Instant(query_sent_at), packets_sent },
            packets_received: received,
            packets_marked: marked,
            residence_time: Duration(held),
            transit,
        })
    }
}

impl SentPacket {
    /// Creates the record of a packet that leaves from a flow.
    pub fn new<H: QueuePacket>(flow: usize, transmit: &IngressTransmit<H>) -> SentPacket {
        match transmit {
            IngressTransmit::Data(packet) => SentPacket::Data(flow as u32, packet.size()),
            IngressTransmit::Query(query) => SentPacket::Query(flow as u32, query.sequence),
        }
    }
}
