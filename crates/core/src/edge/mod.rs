//! The ingress of a provider edge with many VPN flows: queues, timers and fair turns.
//!
//! - [`ProviderEdge`]: the flows at their ingress, with common timers and a common list of the flows that
//!   have packets to send.
//! - [`LabelTable`]: maps a VPN label to what it is assigned to.
//! - [`VpnRoutes`]: maps the addresses of a VPN, by longest prefix.
//!
//! The control of each flow is in [`crate::fair`]. This module adds what many flows and a real clock
//! require: idle flows probe ever more rarely, and a late driver does not slow down a paced flow. The
//! simulator drives the same code in virtual time.

mod event;
mod flow;
mod labels;
mod recorder;
mod routes;
mod settings;
mod timers;

pub use event::{EdgeEvent, SentPacket};
pub use labels::{LabelTable, LabelUnavailable};
pub use recorder::EdgeRecorder;
pub use routes::{InvalidPrefix, IpPrefix, VpnRoutes};
pub use settings::VpnFlowSettings;

use crate::fair::CoreMembership;
use crate::fair::crowd::{Crowd, PeNews, Peers};
use crate::fair::paths::Paths;
use crate::fair::{I2vfcConfig, Ingress, IngressTransmit, PacedFlow, PublishedReference, Reply, VpnControl};
use crate::packet::QueuePacket;
use crate::rng::RandomStream;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use flow::IngressFlow;
use timers::Timers;

/// Tick for a driver in real time, and the maximum lateness of its timers.
pub const TICK: Duration = Duration::from_micros(50);
/// Number of packets a flow may send before it is the next flow's turn.
const TURN: u32 = 16;

/// VPN flows at their ingress, numbered in the order of addition.
///
/// Call [`handle_packet`](ProviderEdge::handle_packet), [`handle_reply`](ProviderEdge::handle_reply) or
/// [`handle_timeout`](ProviderEdge::handle_timeout). Then call
/// [`poll_transmit`](ProviderEdge::poll_transmit) until it returns `None` or the driver's limit is reached,
/// and sleep until [`poll_timeout`](ProviderEdge::poll_timeout). Time starts at [`Instant::ZERO`] with the
/// creation of the `ProviderEdge`.
#[derive(Debug)]
pub struct ProviderEdge<H> {
    /// Distinct window configurations, shared by the flows.
    configs: Vec<I2vfcConfig>,
    /// Latest publication for each reference, shared by the flows that follow it.
    references: Vec<Option<PublishedReference>>,
    /// News of the flows of the core under rate consensus.
    crowd: Crowd,
    /// Paths of those whose links are not known.
    paths: Paths,
    flows: Vec<IngressFlow<H>>,
    timers: Timers,
    /// Flows that may have packets to send, each listed once.
    ready: VecDeque<u32>,
    /// Packets sent by the first of them in its current turn.
    sent_in_turn: u32,
    /// Packets dropped by queues and not yet polled, with their flows.
    dropped: Vec<(u32, H)>,
}

impl<H: QueuePacket> ProviderEdge<H> {
    /// Creates an edge without flows. Timers are rounded up to multiples of `tick`, which suits many flows
    /// and a real clock ([`TICK`]). With a tick of zero, for virtual time, they are exact.
    pub fn new(tick: Duration) -> ProviderEdge<H> {
        ProviderEdge {
            configs: Vec::new(),
            references: Vec::new(),
            crowd: Crowd::default(),
            paths: Paths::default(),
            flows: Vec::new(),
            timers: Timers::new(tick),
            ready: VecDeque::new(),
            sent_in_turn: 0,
            dropped: Vec::new(),
        }
    }

    /// Adds a flow and returns its number. `rng` salts the hashes of its class queues.
    pub fn add(&mut self, now: Instant, settings: &VpnFlowSettings, rng: RandomStream) -> usize {
        let key = self.flows.len();
        let config = self.shared(&settings.control);
        if let VpnControl::RateConsensus(membership) = &settings.control {
            match membership {
                CoreMembership::Links(links) => links.iter().for_each(|link| self.crowd.add_link(*link)),
                CoreMembership::Path(path) => self.paths.add(*path),
            }
        }
        let mut flow = IngressFlow::new((key, now), settings, config);
        flow.set_queue(now, settings.queue(rng), &mut |_| {});
        self.flows.push(flow);
        self.timers.grow(key + 1);
        let due = self.flows[key].due(&self.configs);
        self.arm(key, due);
        key
    }

    /// Moves a flow from another edge to flow `own` of this one, with its queue, its counters and its
    /// estimates. Returns the packets that do not fit after a change of control. Both edges must use the
    /// same clock.
    pub fn adopt(
        &mut self,
        now: Instant,
        own: usize,
        (other, key): (&mut ProviderEdge<H>, usize),
        settings: &VpnFlowSettings,
    ) -> VecDeque<H> {
        let config = self.shared(&settings.control);
        let placeholder = IngressFlow::new((key, now), &VpnFlowSettings::default(), 0);
        let mut flow = core::mem::replace(&mut other.flows[key], placeholder);
        let mut refused = flow.change(&self.configs, now, settings, config);
        // Packets in the old scheduler move to the new one.
        let queue = self.flows[own].take_scheduled();
        flow.set_queue(now, queue, &mut |packet| refused.push_back(packet));
        (flow.armed, flow.is_ready) = (Instant::NEVER, false);
        self.flows[own] = flow;
        // The flow is polled at once and armed for its next event afterwards.
        self.make_ready(own);
        refused
    }

    /// Wakes up a flow through which a customer wants to send: its next probe is due as soon as if it had
    /// just become idle.
    pub fn wake(&mut self, now: Instant, flow: usize) {
        self.flows[flow].idle_probes = 0;
        let due = self.flows[flow].due(&self.configs).max(now);
        self.arm(flow, due);
    }

    /// Removes and returns the waiting packets of a flow.
    pub fn take_queue(&mut self, now: Instant, flow: usize) -> VecDeque<H> {
        self.flows[flow].take_all(now)
    }

    /// Returns the next packet that a queue has dropped, and its flow. Every method that accepts or returns
    /// packets may drop some.
    #[inline]
    pub fn poll_dropped(&mut self) -> Option<(usize, H)> {
        self.dropped.pop().map(|(flow, packet)| (flow as usize, packet))
    }

    /// Returns the index of a control's window configuration; zero if it has none.
    fn shared(&mut self, control: &VpnControl) -> u32 {
        let VpnControl::I2vfc(config) = control else { return 0 };
        let existing = self.configs.iter().position(|existing| existing == config);
        existing.unwrap_or_else(|| {
            self.configs.push(config.clone());
            self.configs.len() - 1
        }) as u32
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Enqueues a customer packet, or returns it if the queue of its flow is full.
    #[inline]
    pub fn handle_packet(&mut self, now: Instant, flow: usize, packet: H) -> Result<(), H> {
        let ProviderEdge { configs, flows, dropped, .. } = self;
        let dropped = &mut |packet| dropped.push((flow as u32, packet));
        // If other packets wait already, the timer of the flow is set, and one more packet does not change it.
        if flows[flow].handle_packet(configs, now, packet, dropped)? {
            self.make_ready(flow);
        }
        Ok(())
    }

    /// Loads a flow into the CPU cache. Calling this for the flows of several packets before handling those
    /// packets overlaps the memory accesses.
    #[inline]
    pub fn load(&self, flow: usize) {
        self.flows[flow].load();
        self.timers.load(flow);
    }

    /// Handles a reply for a flow. An impossible reply is counted and ignored.
    pub fn handle_reply(&mut self, now: Instant, flow: usize, reply: &Reply) {
        self.flows[flow].handle_reply(&self.configs, &self.references, now, reply);
        self.make_ready(flow);
    }

    /// Stores the measurements published by the ingress PE of a reference flow. They apply to all flows
    /// whose [`I2vfcConfig::reference`] has this number, from their next reply on.
    pub fn handle_reference(&mut self, reference: usize, published: PublishedReference) {
        if self.references.len() <= reference {
            self.references.resize(reference + 1, None);
        }
        self.references[reference] = Some(published);
    }

    /// Measures the flows under rate consensus and returns the news that other PEs need.
    pub fn publish_news(&mut self, now: Instant) -> PeNews {
        let ProviderEdge { crowd, paths, flows, .. } = self;
        paths.clear_own();
        let measured = flows.iter_mut().enumerate().filter_map(|(key, flow)| {
            let (membership, paced) = flow.consensus()?;
            let news = paced.publish(now);
            if let CoreMembership::Path(path) = membership {
                paths.add_own(*path, &news);
            }
            Some((key, news))
        });
        let links = crowd.set_own(measured);
        PeNews { links, paths: paths.news() }
    }

    /// Stores the news of another PE, which `publisher` identifies. It applies from the next
    /// [`consider_news`](Self::consider_news) on.
    pub fn handle_news(&mut self, at: Instant, publisher: u64, news: &PeNews) {
        news.links.iter().for_each(|news| self.crowd.handle_news(at, publisher, news));
        self.paths.handle_news(at, publisher, &news.paths);
    }

    /// Takes the news that another edge has received, as after a change of configuration.
    pub fn adopt_news(&mut self, other: &mut ProviderEdge<H>) {
        self.paths.adopt(&mut other.paths);
        self.paths.known_groups().for_each(|group| self.crowd.add_link(group));
        self.crowd.adopt(&mut other.crowd);
    }

    /// Applies the news of all PEs to the flows that [`publish_news`](Self::publish_news) has measured.
    pub fn consider_news(&mut self, now: Instant) {
        let ProviderEdge { crowd, paths, flows, .. } = self;
        let left = paths.consider(now);
        paths.known_groups().for_each(|group| crowd.add_link(group));
        left.into_iter().for_each(|group| crowd.remove_link(group));
        let links = crowd.links(now);
        for (key, flow) in flows.iter_mut().enumerate() {
            let (Some((membership, paced)), Some(news)) = (flow.consensus(), crowd.flow(key)) else {
                continue;
            };
            let crossed = match membership {
                CoreMembership::Links(links) => links,
                CoreMembership::Path(path) => paths.groups(*path),
            };
            let peers: Vec<(u32, Peers)> = crossed
                .iter()
                .filter_map(|link| Some((*link, links.get(link)?.others(*link, news))))
                .collect();
            // The link with the lowest level limits the flow, unless the difference to the present one is small.
            let level = |(link, peers): &&(u32, Peers)| match peers.weight {
                0.0 => f64::INFINITY,
                _ if paced.link() == Some(*link) => peers.level - 0.05,
                _ => peers.level,
            };
            let lowest = peers.iter().min_by(|a, b| level(a).total_cmp(&level(b)));
            let link = lowest.map(|(link, _)| *link);
            let others = peers.iter().filter(|(other, _)| Some(*other) != link);
            let elsewhere = others.map(|(_, peers)| peers.price).sum();
            let own = lowest.map(|(_, peers)| *peers).unwrap_or_default();
            let median = link.and_then(|link| Some(links.get(&link)?.median_level(news)));
            paced.set_peers(link, own, median.unwrap_or(news.level), elsewhere);
        }
    }

    /// Returns the latest publication for a reference.
    pub fn reference(&self, reference: usize) -> Option<&PublishedReference> {
        self.references.get(reference)?.as_ref()
    }

    /// Handles the expiry of [`poll_timeout`](ProviderEdge::poll_timeout); calling it at any other time has
    /// no effect.
    pub fn handle_timeout(&mut self, now: Instant) {
        let ProviderEdge { configs, flows, timers, ready, .. } = self;
        timers.expire(now, |key| {
            let flow = &mut flows[key];
            // Timers are not postponed each time a flow sends, so most of them expire too early.
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

    /// Returns the next packet to send now, and its flow. Flows take turns.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(usize, IngressTransmit<H>)> {
        loop {
            let key = *self.ready.front()? as usize;
            if self.sent_in_turn == TURN {
                self.sent_in_turn = 0;
                self.ready.rotate_left(1);
                continue;
            }
            let ProviderEdge { configs, flows, dropped, .. } = self;
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

    /// Returns the latest time for the next [`handle_timeout`](ProviderEdge::handle_timeout) and poll;
    /// [`Instant::ZERO`] if a flow is ready now.
    pub fn poll_timeout(&self) -> Instant {
        if self.ready.is_empty() { self.timers.poll_timeout() } else { Instant::ZERO }
    }

    #[inline]
    fn make_ready(&mut self, key: usize) {
        if !core::mem::replace(&mut self.flows[key].is_ready, true) {
            self.ready.push_back(key as u32);
        }
    }

    /// Arms the timer of a flow, unless it already expires earlier.
    #[inline]
    fn arm(&mut self, key: usize, due: Instant) {
        let flow = &mut self.flows[key];
        if due < flow.armed {
            flow.armed = due;
            self.timers.arm(key, due);
        }
    }

    /// Returns the window of a flow, if it has one.
    pub fn window(&self, flow: usize) -> Option<&Ingress<H>> {
        self.flows[flow].window()
    }

    /// Returns the window of a flow in packets or, under rate consensus, its rate in bytes per second; zero without
    /// either.
    pub fn permitted(&self, flow: usize) -> f64 {
        let rate = || self.paced(flow).map_or(0.0, PacedFlow::permitted);
        self.window(flow).map_or_else(rate, Ingress::window)
    }

    /// Returns the state of a flow under rate consensus, if it is.
    pub fn paced(&self, flow: usize) -> Option<&PacedFlow<H>> {
        self.flows[flow].paced()
    }

    /// Returns the number of waiting packets of a flow.
    #[inline]
    pub fn queue_len(&self, flow: usize) -> usize {
        self.flows[flow].queue_len()
    }

    /// Returns the number of data packets a flow has sent.
    #[inline]
    pub fn packets_sent(&self, flow: usize) -> u64 {
        self.flows[flow].packets_sent
    }

    /// Returns the number of bytes a flow has sent, at the IP layer.
    pub fn bytes_sent(&self, flow: usize) -> u64 {
        self.flows[flow].bytes_sent
    }

    /// Returns the time since which the egress PE of a flow has been silent;
    /// [`Silence`](crate::fair::Silence) describes the reaction of the flow.
    pub fn silent_since(&self, flow: usize) -> Option<Instant> {
        self.flows[flow].silent_since(&self.configs)
    }

    /// Returns whether a flow is suspended because its egress PE is silent
    /// ([`SilenceAction::Closed`](crate::fair::SilenceAction)).
    #[inline]
    pub fn is_stopped(&self, flow: usize) -> bool {
        self.flows[flow].is_stopped(&self.configs)
    }

    /// Returns the values that a flow publishes if it is a reference; `None` before its first round trip.
    pub fn publish(&self, now: Instant, flow: usize) -> Option<PublishedReference> {
        self.window(flow)?.publish(now)
    }
}

#[cfg(test)]
mod tests;
