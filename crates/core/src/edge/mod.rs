//! A provider edge's many VPN flows under one roof: who may send when, and fairly in turn.
//!
//! - [`Edge`]: the flows at their ingress, with one set of timers and one list of those that
//!   have something to send.
//! - [`Labels`]: from a VPN label to what it was given to.
//! - [`Routes`]: a VPN's own addresses, longest prefix first.
//!
//! Each flow's control is [`crate::fair`]'s. What is added here is what many flows and a real
//! clock ask for: idle flows probe ever more rarely, and a flow that was waiting for its pace is
//! not slowed by how late its driver comes. The simulator drives the same code in virtual time.

mod event;
mod flow;
mod labels;
mod routes;
mod settings;
mod tape;
mod timers;

pub use event::{Event, Sent};
pub use labels::{Labels, Taken};
pub use routes::{NotAPrefix, Prefix, Routes};
pub use settings::Settings;
pub use tape::Tape;

use crate::fair::{Config, Control, Ingress, Published, Reply, Transmit};
use crate::packet::Packet;
use crate::rng::Stream;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use flow::Flow;
use timers::Timers;

/// The tick of a driver in real time: timers are at most this late.
pub const TICK: Duration = Duration::from_micros(50);
/// What a flow may send before the next has its turn.
const TURN: u32 = 16;

/// VPN flows at their ingress, numbered in the order they were added.
///
/// Call [`handle_packet`](Edge::handle_packet), [`handle_reply`](Edge::handle_reply) or
/// [`handle_timeout`](Edge::handle_timeout), then [`poll_transmit`](Edge::poll_transmit) until it
/// returns `None` or the driver has enough, then sleep until
/// [`poll_timeout`](Edge::poll_timeout). Time starts at [`Instant::ZERO`] with the `Edge`.
#[derive(Debug)]
pub struct Edge<H> {
    /// Shared by the flows: there are few different ones.
    configs: Vec<Config>,
    /// What was last published of each reference; many flows follow one.
    references: Vec<Option<Published>>,
    flows: Vec<Flow<H>>,
    timers: Timers,
    /// Flows that may have something to send, each once.
    ready: VecDeque<u32>,
    /// What the first of them has sent in its turn.
    sent_in_turn: u32,
    /// What queues gave up, until it is asked for.
    dropped: Vec<(u32, H)>,
}

impl<H: Packet> Edge<H> {
    /// No flows yet. Timers are due in steps of `tick`, rounded up, which suits many flows and a
    /// real clock ([`TICK`]); without a tick, for virtual time, they are exact.
    pub fn new(tick: Duration) -> Edge<H> {
        Edge {
            configs: Vec::new(),
            references: Vec::new(),
            flows: Vec::new(),
            timers: Timers::new(tick),
            ready: VecDeque::new(),
            sent_in_turn: 0,
            dropped: Vec::new(),
        }
    }

    /// Adds a flow and gives its number. `rng` salts the hashes of its classes' queues.
    pub fn add(&mut self, now: Instant, settings: &Settings, rng: Stream) -> usize {
        let key = self.flows.len();
        let config = self.shared(&settings.control);
        let mut flow = Flow::new((key, now), settings, config);
        flow.set_queue(now, settings.queue(rng), &mut |_| {});
        self.flows.push(flow);
        self.timers.grow(key + 1);
        let due = self.flows[key].due(&self.configs);
        self.arm(key, due);
        key
    }

    /// Takes a flow over from another `Edge` in place of one of its own, with its queue, its
    /// counters and what it has learned; only what a change of control leaves no room for is
    /// given back. Both count time alike.
    pub fn adopt(
        &mut self,
        now: Instant,
        own: usize,
        (other, key): (&mut Edge<H>, usize),
        settings: &Settings,
    ) -> VecDeque<H> {
        let config = self.shared(&settings.control);
        let placeholder = Flow::new((key, now), &Settings::default(), 0);
        let mut flow = core::mem::replace(&mut other.flows[key], placeholder);
        let mut refused = flow.change(&self.configs, now, settings, config);
        // What waits in an order of its own moves to the order it is to have.
        let queue = self.flows[own].take_scheduled();
        flow.set_queue(now, queue, &mut |packet| refused.push_back(packet));
        (flow.armed, flow.is_ready) = (Instant::NEVER, false);
        self.flows[own] = flow;
        // It is looked at at once, and armed for what it waits for then.
        self.make_ready(own);
        refused
    }

    /// Somebody wants to send: a flow that has been idle for long asks as soon as one that has
    /// just fallen idle.
    pub fn wake(&mut self, now: Instant, flow: usize) {
        self.flows[flow].idle_probes = 0;
        let due = self.flows[flow].due(&self.configs).max(now);
        self.arm(flow, due);
    }

    /// Takes out the packets of a flow that wait.
    pub fn take_queue(&mut self, now: Instant, flow: usize) -> VecDeque<H> {
        self.flows[flow].take_all(now)
    }

    /// What queues have dropped, and of which flow, since this returned `None`. Packets may be
    /// dropped by all that takes or gives packets here.
    #[inline]
    pub fn poll_dropped(&mut self) -> Option<(usize, H)> {
        self.dropped.pop().map(|(flow, packet)| (flow as usize, packet))
    }

    /// The number of a control's configuration, where it has one.
    fn shared(&mut self, control: &Control) -> u32 {
        let Control::I2vfc(config) = control else { return 0 };
        let known = self.configs.iter().position(|known| known == config);
        known.unwrap_or_else(|| {
            self.configs.push(config.clone());
            self.configs.len() - 1
        }) as u32
    }

    /// How many flows there are.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// A customer's packet arrives; it is given back if its flow's queue is full.
    #[inline]
    pub fn handle_packet(&mut self, now: Instant, flow: usize, packet: H) -> Result<(), H> {
        let Edge { configs, flows, dropped, .. } = self;
        let dropped = &mut |packet| dropped.push((flow as u32, packet));
        // Where one waits already, what it waits for is known, and a further one changes nothing.
        if flows[flow].handle_packet(configs, now, packet, dropped)? {
            self.make_ready(flow);
        }
        Ok(())
    }

    /// Brings a flow to a cache. Called for the flows of several packets in a row, before those
    /// are handed in, it makes them wait for memory together.
    #[inline]
    pub fn load(&self, flow: usize) {
        self.flows[flow].load();
        self.timers.load(flow);
    }

    /// A reply arrives for a flow. One that cannot be true is counted by it and ignored.
    pub fn handle_reply(&mut self, now: Instant, flow: usize, reply: &Reply) {
        self.flows[flow].handle_reply(&self.configs, &self.references, now, reply);
        self.make_ready(flow);
    }

    /// The ingress PE of a reference flow published what it measures: it holds for all flows
    /// whose [`Config::reference`] has this number, from their next reply on.
    pub fn handle_reference(&mut self, reference: usize, published: Published) {
        if self.references.len() <= reference {
            self.references.resize(reference + 1, None);
        }
        self.references[reference] = Some(published);
    }

    /// What was last published of a reference.
    pub fn reference(&self, reference: usize) -> Option<&Published> {
        self.references.get(reference)?.as_ref()
    }

    /// The time of [`poll_timeout`](Edge::poll_timeout) has come; harmless at any other.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Edge { configs, flows, timers, ready, .. } = self;
        timers.expire(now, |key| {
            let flow = &mut flows[key];
            // Timers are not moved back each time a flow has sent: most come too early.
            let due = flow.due(configs);
            if due > now {
                flow.armed = due;
                return Some(due);
            }
            flow.armed = Instant::NEVER;
            flow.handle_timeout(configs, now);
            if !core::mem::replace(&mut flow.is_ready, true) {
                ready.push_back(key as u32);
            }
            None
        });
    }

    /// What to send now, and of which flow. Flows take turns.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(usize, Transmit<H>)> {
        loop {
            let key = *self.ready.front()? as usize;
            if self.sent_in_turn == TURN {
                self.sent_in_turn = 0;
                self.ready.rotate_left(1);
                continue;
            }
            let Edge { configs, flows, dropped, .. } = self;
            let mut dropped = |packet| dropped.push((key as u32, packet));
            if let Some(transmit) = flows[key].poll_transmit(configs, now, &mut dropped) {
                self.sent_in_turn += 1;
                return Some((key, transmit));
            }
            self.sent_in_turn = 0;
            self.ready.pop_front();
            self.flows[key].is_ready = false;
            let due = self.flows[key].due(&self.configs);
            self.arm(key, due);
        }
    }

    /// When to call [`handle_timeout`](Edge::handle_timeout) and poll again, at the latest;
    /// [`Instant::ZERO`] if there is something to poll already.
    pub fn poll_timeout(&self) -> Instant {
        if self.ready.is_empty() { self.timers.poll_timeout() } else { Instant::ZERO }
    }

    #[inline]
    fn make_ready(&mut self, key: usize) {
        if !core::mem::replace(&mut self.flows[key].is_ready, true) {
            self.ready.push_back(key as u32);
        }
    }

    /// Sees to it that the flow is looked at by then.
    #[inline]
    fn arm(&mut self, key: usize, due: Instant) {
        let flow = &mut self.flows[key];
        if due < flow.armed {
            flow.armed = due;
            self.timers.arm(key, due);
        }
    }

    /// A flow's window, where it has one.
    pub fn window(&self, flow: usize) -> Option<&Ingress<H>> {
        self.flows[flow].window()
    }

    /// Packets of a flow that wait.
    #[inline]
    pub fn queue_len(&self, flow: usize) -> usize {
        self.flows[flow].queue_len()
    }

    /// Data packets a flow has sent.
    #[inline]
    pub fn packets_sent(&self, flow: usize) -> u64 {
        self.flows[flow].packets_sent
    }

    /// Bytes a flow has sent, at the IP layer.
    pub fn bytes_sent(&self, flow: usize) -> u64 {
        self.flows[flow].bytes_sent
    }

    /// Since when a flow's egress PE has been silent; see
    /// [`Silence`](crate::fair::Silence) for what the flow does.
    pub fn silent_since(&self, flow: usize) -> Option<Instant> {
        self.flows[flow].silent_since(&self.configs)
    }

    /// Whether a flow sends nothing because its egress PE is silent
    /// ([`WhenSilent::Closed`](crate::fair::WhenSilent)).
    #[inline]
    pub fn is_stopped(&self, flow: usize) -> bool {
        self.flows[flow].is_stopped(&self.configs)
    }

    /// What a flow would publish as a reference; `None` before its first round trip.
    pub fn publish(&self, now: Instant, flow: usize) -> Option<Published> {
        self.window(flow)?.publish(now)
    }
}

#[cfg(test)]
mod tests;
