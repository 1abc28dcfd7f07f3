//! Rate consensus: a VPN flow's pace follows the mean rate per weight of the flows that share its bottleneck, and all
//! move together with the queueing delay and the loss of the core.
//!
//! The level of a flow is the logarithm of its permitted rate per unit of weight. Queueing delay and loss move the
//! level of all flows of a link, and with it their sum. Consensus removes the differences between levels, and with it
//! sets the shares, which therefore depend neither on round trips nor on packet sizes. docs/fairness.md derives the
//! law.

use super::crowd::{News, Peers};
use super::feedback::{Counters, Feedback, IDLE_PROBE, Report};
use super::management::Reply;
use super::{IngressTransmit, SilencePolicy};
use crate::packet::QueuePacket;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use core::f64::consts::LN_2;
use libm::{exp, log, log2, sqrt};
use netstage_wire::MANAGEMENT_PACKET;

/// Rate of a flow before its first reply, in bytes per second.
const FIRST_RATE: f64 = 30_000.0;
/// Greatest step of a newcomer to the level of the peers before a reply confirms the previous one: a factor of 32. The
/// query is sent so much later that it sees the queue of the step.
const LONGEST_JUMP: f64 = 5.0 * LN_2;
const JUMP_INTERVAL: Duration = Duration::from_millis(100);
/// Lowest rate with which a newcomer begins, in bytes per second.
const LOWEST_START: f64 = 2000.0;
/// Lowest rate, in bytes per second: a full packet in ten seconds.
const LOWEST_RATE: f64 = 150.0;
/// Interval between queries of a flow with packets in flight, unless a quarter of its round trip is between.
const QUERY_INTERVALS: (f64, f64) = (0.01, 0.05);
/// Greatest share of the rate that queries take, without the headers of an encapsulation.
const QUERY_SHARE: f64 = 0.015;
/// Longest interval between queries of a flow with packets in flight, a fraction of the time after which it counts as
/// silent.
const LONGEST_QUERY_INTERVAL: f64 = 0.2;

/// Time constants of the smoothed queueing delay, loss, use and rate, in seconds.
const DELAY_TIME: f64 = 0.05;
const LOSS_TIME: f64 = 0.5;
const USE_TIME: f64 = 0.3;
/// Least number of packets in a smoothed loss, at the greatest packet rate of the recent past, and the time constant with
/// which that is forgotten, in seconds.
const LOSS_PACKETS: f64 = 50.0;
const PACKET_RATE_TIME: f64 = 10.0;
/// Greatest loss under overload that can have other causes than congestion.
const GREATEST_BASE_LOSS: f64 = 0.1;
/// Time constant with which the greatest delay and old losses fade, in seconds.
const MEMORY_TIME: f64 = 20.0;

/// Price up to which the level accelerates.
const CALM: f64 = 0.3;
/// Queueing delay, in target delays, that shows an overload whatever others publish. Loss alone may have other causes.
const OVERLOAD: f64 = 2.0;
/// Loss beyond the base loss that has the price of a full target delay.
const LOSS_TARGET: f64 = 0.005;
/// Reaction to a change of the queueing delay and to loss, which both measure the overload, per round trip.
const DAMPING: f64 = 0.4;
/// Reaction to the price. A double pole of the loop needs a quarter of the square of the damping.
const RESTORING: f64 = DAMPING * DAMPING / 4.0;
/// Acceleration of the growth per squared round trip, and its limit per round trip.
const ACCELERATION: f64 = 0.02;
const FASTEST_GROWTH: f64 = 0.3;
/// Rate of convergence to the mean level of the peers, per second.
pub(super) const CONSENSUS: f64 = 5.0;
/// Time constant with which half of freed capacity is taken, in seconds, and the greatest growth of the level by it.
const FREED_TIME: f64 = 0.15;
const GREATEST_FREED: f64 = 1.5;
/// Growth by freed capacity that is permitted again per second.
const FREED_AGAIN: f64 = 0.3;
/// Greatest ratio of the weight of a newcomer to that of the settled flows.
const GREATEST_NEWCOMER: f64 = 20.0;
/// Shortest round trip that the gains consider, and longest step of time, in seconds.
const SHORTEST_ROUND_TRIP: f64 = 0.03;
/// Longest mean round trip of a link, unless that of the flow is longer, in seconds.
const LONGEST_ROUND_TRIP: f64 = 0.5;
const LONGEST_STEP: f64 = 0.5;
/// Factor above the greatest rate per weight of the group that a level may have under congestion.
const CEILING: f64 = 1.05;

/// A value that follows its samples.
fn follow(value: &mut f64, sample: f64, elapsed: f64, time: f64) {
    *value += (sample - *value) * (1.0 - exp(-elapsed / time));
}

/// Packets and losses that fade.
#[derive(Clone, Copy, Debug, Default)]
struct FadingLoss {
    packets: f64,
    lost: f64,
}

impl FadingLoss {
    fn add(&mut self, report: &Report, elapsed: f64, time: f64) {
        let keep = exp(-elapsed / time);
        self.packets = self.packets * keep + report.settled as f64;
        self.lost = self.lost * keep + report.lost as f64;
    }

    fn ratio(&self) -> f64 {
        if self.packets > 0.0 { self.lost / self.packets } else { 0.0 }
    }

    /// Returns whether there are enough packets for a ratio.
    fn is_known(&self) -> bool {
        self.packets >= LOSS_PACKETS
    }
}

/// Number of powers of two of the rate, from 64 bytes per second.
const OCTAVES: usize = 24;

/// Queueing delay and loss of the way to the egress PE.
#[derive(Clone, Copy, Debug)]
struct Congestion {
    /// Least round trip in seconds; infinite before the first reply.
    least: f64,
    /// Least transit, with the unknown offset of the clocks.
    least_transit: i64,
    /// Smoothed queueing delay in seconds, and its greatest value, which fades.
    delay: f64,
    greatest_delay: f64,
    loss: FadingLoss,
    /// Packets per second, and their greatest number, which fades.
    packet_rate: f64,
    greatest_packet_rate: f64,
    /// Packets since the last loss.
    without_loss: f64,
    /// Loss while the queue was short, and while it was long.
    short: FadingLoss,
    long: FadingLoss,
    /// Loss by the power of two of the rate sent, and the present power.
    octaves: [FadingLoss; OCTAVES],
    octave: usize,
}

impl Congestion {
    fn new() -> Congestion {
        let none = FadingLoss::default();
        Congestion {
            least: f64::INFINITY,
            least_transit: i64::MAX,
            delay: 0.0,
            greatest_delay: 0.0,
            loss: none,
            packet_rate: 0.0,
            greatest_packet_rate: 0.0,
            without_loss: 0.0,
            short: none,
            long: none,
            octaves: [none; OCTAVES],
            octave: 0,
        }
    }

    /// Adds a report and returns the change of the queueing delay. `target` is the wanted delay, `rate` the rate sent.
    fn add(&mut self, report: &Report, elapsed: f64, target: f64, rate: f64) -> f64 {
        let (before, delay) = (self.delay, self.queueing(report));
        follow(&mut self.delay, delay, elapsed, DELAY_TIME);
        self.greatest_delay = self.delay.max(self.greatest_delay * exp(-elapsed / MEMORY_TIME));
        let time = self.loss_time(report, elapsed);
        self.loss.add(report, elapsed, time);
        self.without_loss = if report.lost > 0 { 0.0 } else { self.without_loss + report.settled as f64 };
        self.octave = ((log2(rate.max(1.0)) - 6.0).max(0.0) as usize).min(OCTAVES - 1);
        self.octaves[self.octave].add(report, elapsed, MEMORY_TIME);
        if self.delay < (0.4 * self.greatest_delay).max(0.2 * target) {
            self.short.add(report, elapsed, MEMORY_TIME);
        } else if self.delay > 0.7 * self.greatest_delay {
            self.long.add(report, elapsed, MEMORY_TIME);
        }
        self.delay - before
    }

    /// Returns the time constant of the smoothed loss, in which LOSS_PACKETS or more packets leave. A flow that has slowed
    /// down because of losses must see soon that they have ended, and does not wait for as many packets.
    fn loss_time(&mut self, report: &Report, elapsed: f64) -> f64 {
        follow(&mut self.packet_rate, report.settled as f64 / elapsed.max(1e-3), elapsed, USE_TIME);
        let faded = self.greatest_packet_rate * exp(-elapsed / PACKET_RATE_TIME);
        self.greatest_packet_rate = self.packet_rate.max(faded);
        LOSS_TIME.max(LOSS_PACKETS / self.greatest_packet_rate.max(1e-3))
    }

    /// Returns the queueing delay of a query on its way to the egress PE, in seconds.
    fn queueing(&mut self, report: &Report) -> f64 {
        let round_trip = report.round_trip.as_secs_f64();
        // The path may have changed during a silence.
        if report.ends_silence || round_trip < self.least {
            self.least = round_trip;
        }
        let both_ways = round_trip - self.least;
        // Without a queue on either way, the transit shows the offset of the clocks, which may drift.
        if report.ends_silence || report.transit < self.least_transit || both_ways == 0.0 {
            self.least_transit = report.transit;
        }
        // A queue on the way back must not slow down this way. A clock that was set must not, either.
        let there = report.transit.saturating_sub(self.least_transit) as f64 / 1e9;
        there.min(both_ways)
    }

    /// Returns whether the queue is far longer than wanted.
    fn is_overloaded(&self, target: f64) -> bool {
        self.delay > OVERLOAD * target
    }

    /// Returns the loss beyond that which has other causes than congestion, and beyond its random variation.
    fn excess_loss(&self, target: f64) -> f64 {
        let greatest = if self.is_overloaded(target) { GREATEST_BASE_LOSS } else { 1.0 };
        let base = self.base_loss(target).min(greatest);
        let variation = 1.5 * sqrt(base / self.loss.packets.max(1.0));
        // After n packets without a loss, the loss is at most 3/n with a probability of 95 % (rule of three).
        let ratio = self.loss.ratio().min(3.0 / self.without_loss.max(1.0));
        (ratio - 1.25 * base - variation).max(0.0)
    }

    /// Returns the loss that has other causes than congestion: that while the queue is short or, if queries do not see
    /// the queue, that at less than half of the rate.
    fn base_loss(&self, target: f64) -> f64 {
        let is_queue_visible = self.greatest_delay > (0.5 * target).max(0.002);
        if is_queue_visible && self.short.is_known() {
            let short = self.short.ratio();
            return if self.long.is_known() { short.min(self.long.ratio()) } else { short };
        }
        let lower = self.octaves[..self.octave].iter();
        let lower = lower.fold(FadingLoss::default(), |sum, octave| FadingLoss {
            packets: sum.packets + octave.packets,
            lost: sum.lost + octave.lost,
        });
        if lower.is_known() { lower.ratio() } else { 1.0 }
    }
}

/// A VPN flow under rate consensus. Its methods are called as those of [`Ingress`](super::Ingress).
#[derive(Clone, Debug)]
pub struct PacedFlow<P> {
    queue: VecDeque<P>,
    feedback: Feedback,
    congestion: Congestion,
    weight: f64,
    /// Minimum rate in bytes per second.
    minimum: f64,
    /// Natural logarithm of the permitted rate per unit of weight, in bytes per second.
    level: f64,
    /// Growth of the level per second while the price is low.
    growth: f64,
    /// The flow has seen neither congestion nor peers yet.
    is_probing: bool,
    /// Time of the last step to the level of the peers, and whether a later query was answered.
    jumped: Instant,
    is_confirmed: bool,
    price: f64,
    /// Time of the last change of the level.
    updated: Instant,
    next_paced: Instant,
    /// Share of time with a backlog, and rate sent.
    used: f64,
    rate: f64,
    /// Time with a backlog and bytes sent since `measured`.
    measured: Instant,
    backlog_since: Instant,
    backlog: Duration,
    bytes: u64,
    /// Link that limits the flow, the other flows that it limits, the median of the levels of PEs there, and the price of
    /// the other links of the path.
    link: Option<u32>,
    peers: Peers,
    median: f64,
    elsewhere: f64,
    /// Growth of the level that takes half of what other flows have left.
    freed: f64,
    /// Further growth of this kind that is permitted, because news of rates may be wrong.
    may_take: f64,
    /// Smoothed sum of the rates of the other flows.
    others: f64,
}

impl<P: QueuePacket> PacedFlow<P> {
    /// Creates a flow that has not sent anything yet.
    pub fn new(now: Instant, weight: f64) -> PacedFlow<P> {
        PacedFlow {
            queue: VecDeque::new(),
            feedback: Feedback::default(),
            congestion: Congestion::new(),
            weight,
            minimum: 0.0,
            level: log(FIRST_RATE / weight),
            growth: 0.0,
            is_probing: true,
            jumped: now,
            is_confirmed: true,
            price: 0.0,
            updated: now,
            next_paced: Instant::ZERO,
            used: 0.0,
            rate: 0.0,
            measured: now,
            backlog_since: Instant::NEVER,
            backlog: Duration::ZERO,
            bytes: 0,
            link: None,
            peers: Peers::default(),
            median: 0.0,
            elsewhere: 0.0,
            freed: 0.0,
            may_take: GREATEST_FREED,
            others: 0.0,
        }
    }

    /// Guarantees a minimum rate in bytes per second.
    pub fn set_minimum(&mut self, rate: f64) {
        self.minimum = rate;
    }

    /// Changes the weight; the rate changes with it.
    pub fn set_weight(&mut self, weight: f64) {
        self.weight = weight;
    }

    /// Enqueues a customer packet, or returns it if the queue has `limit` packets.
    pub fn handle_packet(&mut self, now: Instant, limit: usize, packet: P) -> Result<(), P> {
        if self.queue.len() >= limit {
            self.feedback.counters.queue_drops += 1;
            return Err(packet);
        }
        if self.queue.is_empty() {
            self.backlog_since = now;
        }
        self.queue.push_back(packet);
        Ok(())
    }

    /// Removes and returns the waiting packets.
    pub fn take_queue(&mut self) -> VecDeque<P> {
        self.backlog_since = Instant::NEVER;
        core::mem::take(&mut self.queue)
    }

    /// Handles a reply. An impossible or replayed reply is counted and ignored.
    pub fn handle_reply(&mut self, now: Instant, reply: &Reply) {
        let Some(report) = self.feedback.handle_reply(now, reply) else { return };
        let elapsed = now.since(self.updated).as_secs_f64().min(LONGEST_STEP);
        self.updated = now;
        self.is_confirmed |= reply.query.sent_at >= self.jumped + JUMP_INTERVAL;
        let target = self.target();
        let change = self.congestion.add(&report, elapsed, target, self.rate);
        self.measure(now);
        let loss = self.congestion.excess_loss(target);
        let price = self.congestion.delay / target + loss / LOSS_TARGET;
        self.price = (price - self.elsewhere).max(0.0);
        let time = self.reaction_time();
        if self.price < CALM {
            self.grow(elapsed, time);
        } else {
            // The growth before the first sign of congestion was too much.
            self.level -= self.growth * self.used * time;
            (self.growth, self.is_probing) = (0.0, false);
            self.level += RESTORING * target / (time * time) * (1.0 - self.price).max(-4.0) * elapsed;
        }
        self.level -= DAMPING / time * (change + loss * elapsed);
        if loss > 0.0 && self.used < 0.5 {
            // The core limits the flows inside, and not the pace.
            let reached = log((CEILING * self.rate / self.weight).max(f64::MIN_POSITIVE));
            self.level -= (1.0 - exp(-elapsed / time)) * (self.level - reached).max(0.0);
        }
        self.take_freed(elapsed);
        self.approach_peers(elapsed, time);
        self.bound();
    }

    /// Returns the time in which the flows of the link react to a change, in seconds.
    fn reaction_time(&self) -> f64 {
        let own = self.rate * self.congestion.least;
        let mean = (self.peers.in_flight + own) / (self.peers.rate + self.rate).max(1.0);
        // News must not slow down the reaction without limit.
        let longest = self.congestion.least.clamp(LONGEST_ROUND_TRIP, 10.0);
        mean.clamp(SHORTEST_ROUND_TRIP, longest) + 2.0 * DELAY_TIME
    }

    /// Raises the level, ever faster while there is no congestion. A flow without a backlog does not need more.
    fn grow(&mut self, elapsed: f64, time: f64) {
        self.growth = match self.is_probing {
            true => LN_2 / time,
            false => (self.growth + ACCELERATION * elapsed / (time * time)).min(FASTEST_GROWTH / time),
        };
        self.level += self.growth * elapsed * self.used;
    }

    /// Takes half of what other flows have left.
    fn take_freed(&mut self, elapsed: f64) {
        let remaining = exp(-elapsed / FREED_TIME);
        if self.price < 0.6 {
            self.level += self.freed * (1.0 - remaining);
        }
        self.freed *= remaining;
        self.may_take = (self.may_take + FREED_AGAIN * elapsed).min(GREATEST_FREED);
    }

    /// Moves the level to the mean of the link's flows. Under congestion it does not exceed what one of them uses.
    ///
    /// The flow measures by itself whether the link is free or overloaded. News that contradicts this, whether wrong or
    /// old, must not empty the link or fill its queue: without congestion, consensus takes at most half of the fastest
    /// growth, and under overload it raises nothing beyond the median of the PEs.
    fn approach_peers(&mut self, elapsed: f64, time: f64) {
        if self.peers.weight == 0.0 {
            return;
        }
        let is_overloaded = self.congestion.is_overloaded(self.target());
        let others = self.peers.weight / (self.peers.weight + self.weight * self.used);
        let mut change = (1.0 - exp(-CONSENSUS * elapsed)) * others * (self.peers.level - self.level);
        if self.price < CALM {
            change = change.max(-0.5 * FASTEST_GROWTH / time * elapsed);
        } else if is_overloaded {
            change = change.min((self.median - self.level).max(0.0));
        }
        self.level += change;
        if self.price > CALM {
            let own = self.rate / self.weight;
            // A flow that sends almost nothing knows its loss late, and must not stay where it is.
            let limit = if is_overloaded { exp(self.median).max(2.0 * own) } else { f64::INFINITY };
            let greatest = self.peers.greatest.min(limit).max(own);
            self.level = self.level.min(log((CEILING * greatest).max(f64::MIN_POSITIVE)));
        }
    }

    /// Returns the target of the queueing delay in seconds: at least five full packets of the link's flows.
    fn target(&self) -> f64 {
        let sum = (self.peers.rate + self.rate).max(1.0);
        (0.005 + 0.02 * self.congestion.least.min(1.0)).max(5.0 * 1500.0 / sum).min(0.1)
    }

    fn bound(&mut self) {
        self.level = self.level.max(log(LOWEST_RATE.max(self.minimum) / self.weight));
    }

    /// Updates the use and the rate.
    fn measure(&mut self, now: Instant) {
        let elapsed = now.since(self.measured);
        if elapsed < Duration::from_millis(5) {
            return;
        }
        if self.backlog_since != Instant::NEVER {
            self.backlog = self.backlog + now.since(self.backlog_since.max(self.measured));
            self.backlog_since = now;
        }
        let seconds = elapsed.as_secs_f64();
        follow(&mut self.used, (self.backlog.as_secs_f64() / seconds).min(1.0), seconds, USE_TIME);
        follow(&mut self.rate, self.bytes as f64 / seconds, seconds, USE_TIME);
        (self.measured, self.backlog, self.bytes) = (now, Duration::ZERO, 0);
    }

    /// Handles the expiry of [`poll_timeout`](PacedFlow::poll_timeout).
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.feedback.gives_up(now) {
            self.level -= 0.3;
            self.bound();
        }
    }

    /// Sets the state of the links of the path: the one that limits the flow, with the other flows that it limits and the
    /// median of the levels of PEs, and the price of the others.
    pub fn set_peers(&mut self, link: Option<u32>, peers: Peers, median: f64, elsewhere: f64) {
        if self.is_probing && self.is_confirmed && peers.settled > 0.0 {
            self.jump(&peers);
        }
        if self.link == link && self.rate > 0.0 {
            let (before, sum) = (self.others + self.rate, peers.rate + self.rate);
            if sum < 0.95 * before {
                let freed = (0.5 * log(before / sum)).min(self.may_take);
                (self.freed, self.may_take) = (self.freed + freed, self.may_take - freed);
                self.others = peers.rate;
            }
        }
        self.others += 0.3 * (peers.rate - self.others);
        (self.link, self.peers, self.median, self.elsewhere) = (link, peers, median, elsewhere);
    }

    /// Moves a newcomer to the level of its peers, in steps that do not flood the link if the level is wrong.
    fn jump(&mut self, peers: &Peers) {
        // The newcomer leaves the others most of what it takes, until their levels have fallen.
        let ratio = (self.weight / peers.settled).min(GREATEST_NEWCOMER);
        let level = peers.level - 0.7 * log(1.0 + ratio);
        if level > self.level + LONGEST_JUMP {
            self.level += LONGEST_JUMP;
            (self.jumped, self.is_confirmed) = (self.feedback.last_query(), false);
            return;
        }
        self.level = level.max(log(LOWEST_START / self.weight));
        (self.is_probing, self.growth) = (false, 0.0);
        self.bound();
    }

    /// Returns the price of the link that limits the flow: 1 at the target.
    pub fn price(&self) -> f64 {
        self.price
    }

    /// Returns the weight.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Returns the level: the natural logarithm of the permitted rate per unit of weight, in bytes per second.
    pub fn level(&self) -> f64 {
        self.level
    }

    /// Returns the rate sent in bytes per second, and the share of time with a backlog.
    pub fn use_of_rate(&self) -> (f64, f64) {
        (self.rate, self.used)
    }

    /// Returns the other flows that the same link limits.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Returns the time since which the egress PE has been silent, if it is.
    pub fn silent_since(&self) -> Option<Instant> {
        let is_silent = self.feedback.is_silent(SilencePolicy::default().after);
        is_silent.then(|| self.feedback.unanswered_since())
    }

    /// Returns the link that limits the flow.
    pub fn link(&self) -> Option<u32> {
        self.link
    }

    /// Returns the news of the flow.
    pub fn publish(&mut self, now: Instant) -> News {
        self.measure(now);
        News {
            weight: self.weight,
            level: self.level,
            rate: self.rate,
            used: self.used,
            is_probing: self.is_probing,
            price: self.price,
            delay: self.congestion.delay,
            target: self.target(),
            round_trip: self.congestion.least.min(10.0),
            link: self.link,
        }
    }

    /// Returns the smoothed loss ratio, and the smoothed round trip in seconds, which is zero before the first reply.
    pub fn path(&self) -> (f64, f64) {
        (self.congestion.loss.ratio(), self.feedback.round_trip().seconds())
    }

    /// Returns the permitted rate in bytes per second.
    #[inline]
    pub fn permitted(&self) -> f64 {
        self.weight * exp(self.level)
    }

    /// Returns the next packet to send now. Pacing continues as if the driver had been on time, but not from before
    /// `earliest`.
    #[inline]
    pub fn poll_transmit_late(&mut self, now: Instant, earliest: Instant) -> Option<IngressTransmit<P>> {
        if now >= self.query_due() {
            return Some(IngressTransmit::Query(self.feedback.query(now)));
        }
        if self.queue.is_empty() || now < self.next_paced {
            return None;
        }
        let packet = self.queue.pop_front()?;
        let gap = Duration::from_secs_f64(f64::from(packet.size()) / self.permitted());
        self.next_paced = self.next_paced.max(earliest) + gap;
        if self.queue.is_empty() {
            self.backlog = self.backlog + now.since(self.backlog_since.max(self.measured));
            self.backlog_since = Instant::NEVER;
        }
        self.bytes += u64::from(packet.size());
        self.feedback.sent(now);
        Some(IngressTransmit::Data(packet))
    }

    fn query_due(&self) -> Instant {
        if self.feedback.round_trip().seconds() == 0.0
            && self.feedback.since_query() > 0
            && self.feedback.is_answered()
        {
            return Instant::ZERO;
        }
        let interval = if self.feedback.in_flight() == 0 && self.feedback.since_query() == 0 {
            IDLE_PROBE
        } else {
            let (least, most) = QUERY_INTERVALS;
            let interval = (self.feedback.round_trip().seconds() / 4.0).clamp(least, most);
            let shared =
                (f64::from(MANAGEMENT_PACKET) / (QUERY_SHARE * self.permitted())).min(LONGEST_QUERY_INTERVAL);
            Duration::from_secs_f64(interval.max(shared))
        };
        self.feedback.last_query() + interval
    }

    /// Returns the time of the next [`handle_timeout`](PacedFlow::handle_timeout) and poll.
    #[inline]
    pub fn poll_timeout(&self) -> Instant {
        let query = self.query_due();
        if self.queue.is_empty() { query } else { query.min(self.next_paced) }
    }

    /// Returns the number of packets sent and neither confirmed nor given up.
    pub fn in_flight(&self) -> u64 {
        self.feedback.in_flight()
    }

    /// Returns the number of waiting packets.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.feedback.counters
    }
}
