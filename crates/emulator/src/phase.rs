//! Phases of TCP flows at a full queue.
//!
//! The time between the departure of a packet from a full drop-tail queue and the arrival of the packet that its ACK
//! releases decides which flows find room (Floyd and Jacobson 1992, "On traffic phase effects in packet-switched
//! gateways"). A tenth of a millisecond, which no scenario describes, can change the rate of a flow by a third. Each run
//! therefore draws it for each pair of hosts, so that the interval over several runs covers the effect.

use super::frame::EmulatedFrame;
use super::headers::Conversation;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// IP protocol number of TCP.
const TCP: u8 = 6;

/// Packets that wait for their phase before they enter a queue. They wait only while other packets do, so the line is
/// never idle for them.
#[derive(Debug)]
pub struct PhaseWait {
    rng: RandomStream,
    /// Share of a full packet's time, by source and destination.
    drawn: BTreeMap<(IpAddr, IpAddr), f64>,
    /// Packets by the time of their entry; in the order of arrival among equals.
    waiting: BTreeMap<(Instant, u64), EmulatedFrame>,
    arrivals: u64,
}

impl PhaseWait {
    /// Creates the phases of a queue. `rng` is the stream of its link direction.
    pub fn new(rng: &RandomStream) -> PhaseWait {
        PhaseWait { rng: rng.fork("phases"), drawn: BTreeMap::new(), waiting: BTreeMap::new(), arrivals: 0 }
    }

    /// Returns how long a packet waits whose queue sends a full packet in `packet_time`; `None` if it is not of TCP.
    pub fn draw(&mut self, conversation: &Conversation, packet_time: Duration) -> Option<Duration> {
        if conversation.protocol != TCP {
            return None;
        }
        let (source, destination) = (conversation.source, conversation.destination);
        let draw = || self.rng.fork(&format!("{source} {destination}")).uniform();
        let share = self.drawn.entry((source, destination)).or_insert_with(draw);
        Some(Duration((packet_time.0 as f64 * *share) as u64))
    }

    /// Adds a packet that enters at `at`.
    pub fn push(&mut self, at: Instant, frame: EmulatedFrame) {
        self.arrivals += 1;
        self.waiting.insert((at, self.arrivals), frame);
    }

    /// Returns the time of the next entry.
    pub fn next(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns the packet that enters next.
    pub fn pop(&mut self) -> Option<EmulatedFrame> {
        self.waiting.pop_first().map(|(_, frame)| frame)
    }
}
