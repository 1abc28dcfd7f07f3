//! A VPN flow at its ingress PE: a queue, a window, and what is known of the path.

use super::estimator::{Loss, RoundTrip};
use super::management::{Query, Reply};
use super::parameters::{self, Basis, Parameters};
use super::{Config, Decrease, Reference, WhenSilent};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;

/// Without a reply for this long (or four round trips) with packets under way, the window shrinks.
const SILENCE: Duration = Duration::from_secs(1);
/// An idle VPN flow asks this often, to keep its round trip fresh.
const IDLE_PROBE: Duration = Duration::from_secs(1);
/// However short the round trip, what is under way is asked for no sooner.
const SHORTEST_PROBE: Duration = Duration::from_millis(10);
/// A published reference older than this is not used.
pub const REFERENCE_AGE: Duration = Duration::from_secs(5);

/// Until its first loss, a window that is the limit grows by this share of what is confirmed.
const PROBING_INCREASE: f64 = 0.5;

/// After this many replies in a row with an impossible count, the far end has restarted.
const RESTARTED_AFTER: u8 = 3;

/// What a VPN flow hands to the line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transmit<P> {
    /// A customer's packet.
    Data(P),
    /// A management packet.
    Query(Query),
}

/// What a reference flow's ingress PE publishes to the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// When.
    pub at: Instant,
    /// What its parameters rest on.
    pub basis: Basis,
    /// Its decrease b.
    pub decrease: f64,
}

/// Cumulative counters of a VPN flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data packets sent to the core.
    pub sent: u64,
    /// Data packets confirmed by the egress PE.
    pub received: u64,
    /// Data packets lost in the core, as the reports tell.
    pub lost: u64,
    /// Data packets that did not fit the queue.
    pub queue_drops: u64,
    /// Management packets sent.
    pub queries: u64,
    /// Replies that were replayed, or impossible; ignored.
    pub bad_replies: u64,
    /// Times the far end was silent for too long.
    pub silences: u64,
}

/// A VPN flow under window control.
///
/// Call [`handle_packet`](Ingress::handle_packet), [`handle_reply`](Ingress::handle_reply) or
/// [`handle_timeout`](Ingress::handle_timeout), then [`poll_transmit`](Ingress::poll_transmit)
/// until it returns `None`, then arm a timer for [`poll_timeout`](Ingress::poll_timeout).
#[derive(Clone, Debug)]
pub struct Ingress<P> {
    queue: VecDeque<P>,
    window: f64,
    /// No loss yet.
    probing: bool,
    parameters: Parameters,
    weight: f64,
    /// Packets per second below which the window never holds it; zero is no such promise.
    minimum: f64,
    round_trip: RoundTrip,
    loss: Loss,
    counters: Counters,
    /// Packets confirmed or given up by the newest reply: those sent before its query.
    settled: u64,
    /// Where the window was before the far end fell silent, less one loss; zero once a loss has
    /// shown that the path carries less. Up to there it grows as it did before its first loss.
    regain: f64,
    /// The far end was silent, and nothing has been heard of it since.
    is_lapsed: bool,
    /// Packets sent when the window last shrank; losses before that belong to the same event.
    recovery: u64,
    /// The window kept a packet waiting since the last reply. Waiting for the pace is no
    /// reason to grow: docs/i2vfc.md tells what was measured.
    blocked: bool,
    /// Data packets since the last query.
    since_query: u32,
    /// Sequence of the next query, and of the newest one answered.
    next_sequence: u32,
    answered: u32,
    /// Marked packets, as the newest reply counts them.
    marked: u64,
    /// What a restarted egress PE's count lacks.
    received_offset: u64,
    /// Replies in a row whose count cannot be.
    impossible: u8,
    last_query: Instant,
    /// The first query since anything was heard; `NEVER` if there was none.
    asked_since: Instant,
    last_progress: Instant,
    next_paced: Instant,
}

impl<P> Ingress<P> {
    /// A flow that has sent nothing yet.
    pub fn new(config: &Config, weight: f64) -> Ingress<P> {
        let decrease = match (config.decrease, config.reference) {
            (Decrease::Fixed(decrease), _) => decrease,
            (Decrease::FromWeight, Reference::Nominal(nominal)) => nominal.decrease,
            (Decrease::FromWeight, Reference::Vpn(_)) => super::Nominal::default().decrease,
        };
        Ingress {
            queue: VecDeque::new(),
            window: config.initial_window.max(1.0),
            probing: true,
            parameters: Parameters { increase: config.increase, decrease, infeasible: false },
            weight,
            minimum: 0.0,
            round_trip: RoundTrip::default(),
            loss: Loss::new(config.loss_measure),
            counters: Counters::default(),
            settled: 0,
            regain: 0.0,
            is_lapsed: false,
            recovery: 0,
            blocked: false,
            since_query: 0,
            next_sequence: 0,
            answered: 0,
            marked: 0,
            received_offset: 0,
            impossible: 0,
            last_query: Instant::ZERO,
            asked_since: Instant::NEVER,
            last_progress: Instant::ZERO,
            next_paced: Instant::ZERO,
        }
    }

    /// Reads from each of its cache lines that a packet or reply needs, so that they are in a cache.
    #[inline]
    pub fn load(&self) {
        let lines = [self.counters.sent, self.last_query.0, self.next_paced.0, self.loss.events()];
        core::hint::black_box((lines, self.window, self.weight, self.queue.front().is_some()));
    }

    /// Promises so many packets per second: the window is never less than they need at the round
    /// trip measured. What is promised in all has to fit the core; nobody here can know.
    pub fn set_minimum(&mut self, config: &Config, packets_per_second: f64) {
        self.minimum = packets_per_second;
        self.window = self.window.max(self.least_window(config));
    }

    /// A customer's packet arrives; it is given back if the queue is full.
    #[inline]
    pub fn handle_packet(&mut self, config: &Config, packet: P) -> Result<(), P> {
        if self.queue.len() >= config.queue as usize {
            self.counters.queue_drops += 1;
            return Err(packet);
        }
        self.queue.push_back(packet);
        Ok(())
    }

    /// A reply arrives. One that cannot be true, or was seen before, is counted and ignored.
    ///
    /// `reference` is what the ingress PE of the reference flow published last, where there is
    /// such a flow. It is given and not kept, since many flows follow one.
    pub fn handle_reply(
        &mut self,
        config: &Config,
        reference: Option<&Published>,
        now: Instant,
        reply: &Reply,
    ) {
        let query = reply.query;
        let fresh = self.next_sequence.wrapping_sub(query.sequence).wrapping_sub(1)
            < self.next_sequence.wrapping_sub(self.answered);
        if !fresh || query.sent_at > now || query.packets_sent > self.counters.sent {
            self.counters.bad_replies += 1;
            return;
        }
        let mut received = reply.packets_received.wrapping_add(self.received_offset);
        if !(self.counters.received..=query.packets_sent).contains(&received) {
            self.counters.bad_replies += 1;
            self.impossible += 1;
            if self.impossible < RESTARTED_AFTER {
                return;
            }
            // One such reply is an error or a lie; several in a row are a PE that has
            // restarted and counts anew. Nothing is known to be lost since.
            received = query.packets_sent.saturating_sub(self.counters.lost).max(self.counters.received);
            self.received_offset = received.wrapping_sub(reply.packets_received);
        }
        self.impossible = 0;
        self.answered = query.sequence.wrapping_add(1);
        self.round_trip.sample(now.since(query.sent_at) - reply.held);
        self.last_progress = now;
        self.asked_since = Instant::NEVER;

        let confirmed = received - self.counters.received;
        let settled = query.packets_sent.saturating_sub(self.settled);
        // A restarted PE may answer a query older than what is known to have come.
        let lost = query.packets_sent.saturating_sub(received).saturating_sub(self.counters.lost);
        self.counters.received = received;
        self.counters.lost += lost;
        self.settled = self.settled.max(query.packets_sent);
        self.loss.sample(settled, lost);
        // A restarted egress PE counts marks anew, too.
        let marked = reply.packets_marked.saturating_sub(self.marked);
        self.marked = reply.packets_marked;

        if core::mem::take(&mut self.is_lapsed) {
            // All that was lost meanwhile belongs to the silence, which has shrunk the window.
            self.recovery = self.counters.sent;
        }
        if lost > 0 || (marked > 0 && config.marks_count) {
            if query.packets_sent > self.recovery {
                self.regain = 0.0;
                self.shrink(config);
            }
        } else if self.blocked {
            self.window += if self.probing || self.window < self.regain {
                PROBING_INCREASE * confirmed as f64
            } else {
                self.parameters.increase * confirmed as f64 / self.window
            };
        }
        self.blocked = false;
        // The round trip may have grown, and with it what a promised rate needs.
        self.window = self.window.max(self.least_window(config));
        self.update_parameters(config, reference, now);
    }

    /// Another weight, and settings given with what is called next: they hold from the next
    /// reply on. Window and counters stay.
    pub fn set_weight(&mut self, weight: f64) {
        self.weight = weight;
    }

    /// Takes out what waits.
    pub fn take_queue(&mut self) -> VecDeque<P> {
        core::mem::take(&mut self.queue)
    }

    /// The time of [`poll_timeout`](Ingress::poll_timeout) has come.
    pub fn handle_timeout(&mut self, config: &Config, now: Instant) {
        let silence = SILENCE.max(Duration::from_secs_f64(4.0 * self.round_trip.seconds()));
        if self.in_flight() > 0 && now.since(self.last_progress) >= silence {
            // Nothing is heard of what is under way: count it as lost, once, and go on.
            self.counters.silences += 1;
            self.settled = self.counters.sent;
            // What is to be sent openly keeps its window; losses are told when replies come again.
            if config.silence.then != WhenSilent::Open {
                self.regain = self.regain.max(self.window * (1.0 - self.parameters.decrease));
                self.shrink(config);
            }
            self.is_lapsed = true;
            self.last_progress = now;
        }
    }

    /// What to send now.
    #[inline]
    pub fn poll_transmit(&mut self, config: &Config, now: Instant) -> Option<Transmit<P>> {
        self.poll_transmit_late(config, now, now)
    }

    /// The same for a driver that comes late: its pace goes on as if it had come in time, but for
    /// what lies before `earliest`.
    #[inline]
    pub fn poll_transmit_late(
        &mut self,
        config: &Config,
        now: Instant,
        earliest: Instant,
    ) -> Option<Transmit<P>> {
        if self.since_query >= config.report_every || self.must_probe(config, now) {
            return Some(Transmit::Query(self.query(now)));
        }
        if self.queue.is_empty() || self.is_stopped(config) {
            return None;
        }
        if self.is_closed(config) {
            self.blocked = true;
            return None;
        }
        if config.pacing {
            if now < self.next_paced {
                return None;
            }
            let gap = Duration::from_secs_f64(self.round_trip.seconds() / self.window);
            self.next_paced = self.next_paced.max(earliest) + gap;
        }
        let packet = self.queue.pop_front()?;
        if self.in_flight() == 0 {
            self.last_progress = now;
        }
        self.counters.sent += 1;
        self.since_query += 1;
        Some(Transmit::Data(packet))
    }

    /// When to call [`handle_timeout`](Ingress::handle_timeout) and poll again.
    #[inline]
    pub fn poll_timeout(&self, config: &Config) -> Instant {
        let probe = self.last_query + self.probe_interval(config);
        let waits_for_pace =
            config.pacing && !self.queue.is_empty() && !self.is_closed(config) && !self.is_stopped(config);
        if waits_for_pace { self.next_paced.min(probe) } else { probe }
    }

    /// One packet more would be more than the window's whole packets.
    #[inline]
    fn is_closed(&self, config: &Config) -> bool {
        self.window < (self.in_flight() + 1) as f64 && !self.runs_open(config)
    }

    /// Nothing confirms what is sent, so that only the pace holds it to the window's rate.
    fn runs_open(&self, config: &Config) -> bool {
        config.silence.then == WhenSilent::Open && config.pacing && self.is_silent(config)
    }

    /// Nothing is sent until the egress PE answers again.
    #[inline]
    pub fn is_stopped(&self, config: &Config) -> bool {
        config.silence.then == WhenSilent::Closed && self.is_silent(config)
    }

    #[inline]
    fn is_silent(&self, config: &Config) -> bool {
        self.last_query.since(self.asked_since) >= config.silence.after
    }

    /// Since when the egress PE has been asked in vain, once that is longer than
    /// [`Silence::after`](super::Silence::after).
    pub fn silent_since(&self, config: &Config) -> Option<Instant> {
        self.is_silent(config).then_some(self.asked_since)
    }

    /// What a promised rate has under way in a round trip, and what is not reported on yet.
    fn least_window(&self, config: &Config) -> f64 {
        if self.minimum == 0.0 {
            return 1.0;
        }
        self.minimum * self.round_trip.seconds() + f64::from(config.report_every) + 1.0
    }

    /// A window must never stall for want of a report: ask early when it closes with no
    /// query under way, again when the answer is overdue, and now and then when idle.
    #[inline]
    fn must_probe(&self, config: &Config, now: Instant) -> bool {
        let since = now.since(self.last_query);
        // Most are asked in time, by count: what the interval is then need not be known.
        (self.is_closed(config) && self.since_query > 0 && self.next_sequence == self.answered)
            || (since >= SHORTEST_PROBE && since >= self.probe_interval(config))
    }

    #[inline]
    fn probe_interval(&self, config: &Config) -> Duration {
        if self.in_flight() == 0 {
            return IDLE_PROBE;
        }
        match self.round_trip.overdue() {
            Duration::ZERO => IDLE_PROBE / 4,
            // A closed window waits for the report; an open one can do without for a while.
            overdue if self.is_closed(config) => overdue.max(SHORTEST_PROBE),
            overdue => overdue.max(config.report_within).max(SHORTEST_PROBE),
        }
    }

    #[inline]
    fn query(&mut self, now: Instant) -> Query {
        let query = Query { sequence: self.next_sequence, sent_at: now, packets_sent: self.counters.sent };
        self.next_sequence = self.next_sequence.wrapping_add(1);
        self.counters.queries += 1;
        self.since_query = 0;
        self.last_query = now;
        self.asked_since = self.asked_since.min(now);
        query
    }

    fn shrink(&mut self, config: &Config) {
        self.probing = false;
        self.loss.event();
        self.window = (self.window * (1.0 - self.parameters.decrease)).max(self.least_window(config));
        self.recovery = self.counters.sent;
    }

    fn update_parameters(&mut self, config: &Config, published: Option<&Published>, now: Instant) {
        let own = self.basis();
        let (reference, decrease) = reference_basis(config, published, now);
        self.parameters = parameters::from_weight(
            &own,
            &reference,
            decrease,
            config.increase,
            config.decrease,
            config.rule,
        );
    }

    /// What this flow would publish as a reference; `None` before its first round trip.
    pub fn publish(&self, now: Instant) -> Option<Published> {
        (self.round_trip.seconds() > 0.0).then(|| Published {
            at: now,
            basis: self.basis(),
            decrease: self.parameters.decrease,
        })
    }

    fn basis(&self) -> Basis {
        Basis {
            weight: self.weight,
            round_trip: self.round_trip.seconds(),
            loss: self.loss.rate().map(|rate| (rate, self.loss.events())),
        }
    }

    /// Packets sent and neither confirmed nor given up.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.counters.sent - self.settled
    }

    /// Window in packets.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Increase and decrease in force.
    pub fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// Smoothed round trip, seconds; zero before the first reply.
    pub fn round_trip(&self) -> f64 {
        self.round_trip.seconds()
    }

    /// Loss by the configured measure.
    pub fn loss(&self) -> Option<f64> {
        self.loss.rate()
    }

    /// Packets waiting.
    #[inline]
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Counters so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// The reference and its decrease b: what was published of late, or the nominal flow.
fn reference_basis(config: &Config, published: Option<&Published>, now: Instant) -> (Basis, f64) {
    let nominal = match (published, config.reference) {
        (Some(published), _) if now.since(published.at) <= REFERENCE_AGE => {
            return (published.basis, published.decrease);
        }
        (_, Reference::Nominal(nominal)) => nominal,
        (_, Reference::Vpn(_)) => super::Nominal::default(),
    };
    (nominal.basis(), nominal.decrease)
}
