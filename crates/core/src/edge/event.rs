//! What flows are told and decide, as typed events: drivers record them, and tests compare them.

use crate::fair::parameters::Basis;
use crate::fair::{Published, Query, Reply, Transmit};
use crate::packet::Packet;
use crate::time::{Duration, Instant};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// One thing that happened. Times are nanoseconds since the router began; VPN flows have the numbers of
/// their [`Edge`](super::Edge), in the order of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    /// A customer's packet for a VPN flow's queue.
    Packet {
        /// When.
        at: u64,
        /// Which VPN flow's.
        flow: u32,
        /// Bytes at the IP layer.
        size: u32,
        /// Its class, where the flow has classes.
        #[serde(default, skip_serializing_if = "is_zero")]
        class: u32,
        /// Equal for packets of one flow inside, where that counts.
        #[serde(default, skip_serializing_if = "is_zero")]
        inside: u32,
        /// Its ECN field (RFC 3168): 0, 2 (can be marked) or 3 (marked).
        #[serde(default, skip_serializing_if = "is_zero")]
        ecn: u32,
        /// Decided: it found room.
        taken: bool,
    },
    /// An answer of the egress PE.
    Reply {
        /// When it arrived.
        at: u64,
        /// Of which VPN flow.
        flow: u32,
        /// The query it answers.
        sequence: u32,
        /// When that was sent.
        asked_at: u64,
        /// Data packets sent before it.
        packets_sent: u64,
        /// Data packets the egress PE had received by then.
        received: u64,
        /// Of these, marked.
        marked: u64,
        /// How long the egress PE held the query, nanoseconds.
        held: u64,
        /// Decided: the window, packets.
        window: f64,
    },
    /// What a flow that weights are relative to measures, as it was published.
    Reference {
        /// When it was measured here, or arrived.
        at: u64,
        /// Number of the reference, in the order of the configuration.
        reference: u32,
        /// Its weight.
        weight: f64,
        /// Its round trip, seconds.
        round_trip: f64,
        /// Its loss, and the loss events that rests on; none before the first.
        loss: Option<(f64, u64)>,
        /// Its multiplicative decrease.
        decrease: f64,
    },
    /// Somebody wants to send, and may not.
    Wake {
        /// When.
        at: u64,
        /// Which VPN flow.
        flow: u32,
    },
    /// Timers, and what left.
    Turn {
        /// When.
        at: u64,
        /// Decided: what left, in order.
        sent: Vec<Sent>,
        /// Decided: nothing more may leave now. Otherwise the router had done enough in one turn.
        drained: bool,
    },
    /// Another configuration.
    Reload {
        /// When.
        at: u64,
        /// The file's text.
        configuration: String,
    },
}

/// What leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sent {
    /// A customer's packet: VPN flow, and bytes at the IP layer.
    Data(u32, u32),
    /// A management packet: VPN flow, and sequence number.
    Query(u32, u32),
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Event {
    /// An answer, and the window it led to.
    pub fn reply(at: Instant, flow: usize, reply: &Reply, window: f64) -> Event {
        Event::Reply {
            at: at.0,
            flow: flow as u32,
            sequence: reply.query.sequence,
            asked_at: reply.query.sent_at.0,
            packets_sent: reply.query.packets_sent,
            received: reply.packets_received,
            marked: reply.packets_marked,
            held: reply.held.0,
            window,
        }
    }

    /// A published reference.
    pub fn reference(reference: usize, published: &Published) -> Event {
        let Published { at, basis: Basis { weight, round_trip, loss }, decrease } = *published;
        Event::Reference { at: at.0, reference: reference as u32, weight, round_trip, loss, decrease }
    }

    /// The answer in it.
    pub fn as_reply(&self) -> Option<Reply> {
        let Event::Reply { sequence, asked_at, packets_sent, received, marked, held, .. } = *self else {
            return None;
        };
        Some(Reply {
            query: Query { sequence, sent_at: Instant(asked_at), packets_sent },
            packets_received: received,
            packets_marked: marked,
            held: Duration(held),
        })
    }
}

impl Sent {
    /// What leaves, of which flow.
    pub fn new<H: Packet>(flow: usize, transmit: &Transmit<H>) -> Sent {
        match transmit {
            Transmit::Data(packet) => Sent::Data(flow as u32, packet.size()),
            Transmit::Query(query) => Sent::Query(flow as u32, query.sequence),
        }
    }
}
