//! A VPN flow at its ingress PE: its queue, its window and its path estimates.

use super::estimator::LossEstimator;
use super::feedback::{Counters, Feedback, IDLE_PROBE};
use super::management::{Query, Reply};
use super::parameters::{self, Basis, Parameters};
use super::{Decrease, I2vfcConfig, SilenceAction, WeightReference};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;

/// Minimum interval between probes for packets in flight, regardless of the round trip.
const SHORTEST_PROBE: Duration = Duration::from_millis(10);
/// Maximum age of a published reference; an older one is not used.
pub const REFERENCE_AGE: Duration = Duration::from_secs(5);

/// Growth of the window per confirmed packet before the first loss, while the window is the limit.
const PROBING_INCREASE: f64 = 0.5;

/// A packet that a VPN flow sends to the core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IngressTransmit<P> {
    /// A data packet of the customer.
    Data(P),
    /// A management packet.
    Query(Query),
}

/// The measurements that the ingress PE of a reference flow publishes to the other PEs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedReference {
    /// Time of the measurement; for a received reference, its time of arrival.
    pub at: Instant,
    /// The inputs of its parameters.
    pub basis: Basis,
    /// Its multiplicative decrease b.
    pub decrease: f64,
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
    /// Whether the flow is before its first loss.
    probing: bool,
    parameters: Parameters,
    weight: f64,
    /// Minimum rate in packets per second that the window always permits; zero if there is none.
    minimum: f64,
    feedback: Feedback,
    loss: LossEstimator,
    /// Window before the egress PE fell silent, minus one decrease; zero after a loss has shown that the
    /// path carries less. Up to this value the window grows as fast as before its first loss.
    regain: f64,
    /// Packets sent when the window last shrank; losses before that belong to the same event.
    recovery: u64,
    /// Whether the window has kept a packet waiting since the last reply. Waiting because of pacing does
    /// not let the window grow; docs/i2vfc.md has the measurements.
    blocked: bool,
    next_paced: Instant,
}

impl<P> Ingress<P> {
    /// Creates a flow that has not sent anything yet.
    pub fn new(config: &I2vfcConfig, weight: f64) -> Ingress<P> {
        let decrease = match (config.decrease, config.reference) {
            (Decrease::Fixed(decrease), _) => decrease,
            (Decrease::FromWeight, WeightReference::Nominal(nominal)) => nominal.decrease,
            (Decrease::FromWeight, WeightReference::Vpn(_)) => super::NominalReference::default().decrease,
        };
        Ingress {
            queue: VecDeque::new(),
            window: config.initial_window.max(1.0),
            probing: true,
            parameters: Parameters { increase: config.increase, decrease, infeasible: false },
            weight,
            minimum: 0.0,
            feedback: Feedback::default(),
            loss: LossEstimator::new(config.loss_measure),
            regain: 0.0,
            recovery: 0,
            blocked: false,
            next_paced: Instant::ZERO,
        }
    }

    /// Loads the cache lines that the handling of a packet or a reply needs.
    #[inline]
    pub fn load(&self) {
        let feedback = [self.feedback.counters.sent, self.feedback.last_query().0];
        let lines = (feedback, self.next_paced.0, self.loss.events());
        core::hint::black_box((lines, self.window, self.weight, self.queue.front().is_some()));
    }

    /// Guarantees a minimum rate: the window never falls below what this rate needs at the measured round
    /// trip. The core must have the capacity for the sum of all minimum rates, which cannot be checked
    /// here.
    pub fn set_minimum(&mut self, config: &I2vfcConfig, packets_per_second: f64) {
        self.minimum = packets_per_second;
        self.window = self.window.max(self.min_window(config));
    }

    /// Enqueues a customer packet, or returns it if the queue is full.
    #[inline]
    pub fn handle_packet(&mut self, config: &I2vfcConfig, packet: P) -> Result<(), P> {
        if self.queue.len() >= config.queue as usize {
            self.feedback.counters.queue_drops += 1;
            return Err(packet);
        }
        self.queue.push_back(packet);
        Ok(())
    }

    /// Handles a reply. An impossible or replayed reply is counted and ignored.
    ///
    /// `reference` is the latest publication for the reference flow, if there is such a flow. It is a
    /// parameter because many flows share one reference.
    pub fn handle_reply(
        &mut self,
        config: &I2vfcConfig,
        reference: Option<&PublishedReference>,
        now: Instant,
        reply: &Reply,
    ) {
        let Some(report) = self.feedback.handle_reply(now, reply) else { return };
        self.loss.sample(report.settled, report.lost);
        if report.ends_silence {
            // All losses during the silence belong to it, and the silence has already shrunk the window.
            self.recovery = self.feedback.counters.sent;
        }
        if report.lost > 0 || (report.marked > 0 && config.marks_are_losses) {
            if report.packets_sent > self.recovery {
                self.regain = 0.0;
                self.shrink(config);
            }
        } else if self.blocked {
            self.window += if self.probing || self.window < self.regain {
                PROBING_INCREASE * report.confirmed as f64
            } else {
                self.parameters.increase * report.confirmed as f64 / self.window
            };
        }
        self.blocked = false;
        // The round trip may have grown, and with it the window that the minimum rate needs.
        self.window = self.window.max(self.min_window(config));
        self.update_parameters(config, reference, now);
    }

    /// Changes the weight. The new weight, and a new configuration passed to later calls, apply from the
    /// next reply on. Window and counters stay.
    pub fn set_weight(&mut self, weight: f64) {
        self.weight = weight;
    }

    /// Removes and returns the waiting packets.
    pub fn take_queue(&mut self) -> VecDeque<P> {
        core::mem::take(&mut self.queue)
    }

    /// Handles the expiry of [`poll_timeout`](Ingress::poll_timeout).
    pub fn handle_timeout(&mut self, config: &I2vfcConfig, now: Instant) {
        // The packets in flight count as lost, once. With fail-open the window stays; losses are counted when
        // replies arrive again.
        if self.feedback.gives_up(now) && config.silence.action != SilenceAction::Open {
            self.regain = self.regain.max(self.window * (1.0 - self.parameters.decrease));
            self.shrink(config);
        }
    }

    /// Returns the next packet to send now.
    #[inline]
    pub fn poll_transmit(&mut self, config: &I2vfcConfig, now: Instant) -> Option<IngressTransmit<P>> {
        self.poll_transmit_late(config, now, now)
    }

    /// Returns the next packet to send for a driver that calls late: pacing continues as if the driver had
    /// been on time, but not from before `earliest`.
    #[inline]
    pub fn poll_transmit_late(
        &mut self,
        config: &I2vfcConfig,
        now: Instant,
        earliest: Instant,
    ) -> Option<IngressTransmit<P>> {
        if self.feedback.since_query() >= config.report_every || self.must_probe(config, now) {
            return Some(IngressTransmit::Query(self.feedback.query(now)));
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
            let gap = Duration::from_secs_f64(self.round_trip() / self.window);
            self.next_paced = self.next_paced.max(earliest) + gap;
        }
        let packet = self.queue.pop_front()?;
        self.feedback.sent(now);
        Some(IngressTransmit::Data(packet))
    }

    /// Returns the time of the next [`handle_timeout`](Ingress::handle_timeout) and poll.
    #[inline]
    pub fn poll_timeout(&self, config: &I2vfcConfig) -> Instant {
        let probe = self.feedback.last_query() + self.probe_interval(config);
        let waits_for_pace =
            config.pacing && !self.queue.is_empty() && !self.is_closed(config) && !self.is_stopped(config);
        if waits_for_pace { self.next_paced.min(probe) } else { probe }
    }

    /// Returns whether another packet would exceed the window.
    #[inline]
    fn is_closed(&self, config: &I2vfcConfig) -> bool {
        self.window < (self.in_flight() + 1) as f64 && !self.runs_open(config)
    }

    /// Returns whether the flow runs without confirmation, so that only pacing limits it to the rate of the
    /// window.
    fn runs_open(&self, config: &I2vfcConfig) -> bool {
        config.silence.action == SilenceAction::Open && config.pacing && self.is_silent(config)
    }

    /// Returns whether sending is suspended until the egress PE answers again.
    #[inline]
    pub fn is_stopped(&self, config: &I2vfcConfig) -> bool {
        config.silence.action == SilenceAction::Closed && self.is_silent(config)
    }

    #[inline]
    fn is_silent(&self, config: &I2vfcConfig) -> bool {
        self.feedback.is_silent(config.silence.after)
    }

    /// Returns the time of the first unanswered query, if the egress PE has been silent for longer than
    /// [`Silence::after`](super::Silence::after).
    pub fn silent_since(&self, config: &I2vfcConfig) -> Option<Instant> {
        self.is_silent(config).then(|| self.feedback.unanswered_since())
    }

    /// Returns the minimum window: the packets in flight at the minimum rate, plus those not yet reported on.
    fn min_window(&self, config: &I2vfcConfig) -> f64 {
        if self.minimum == 0.0 {
            return 1.0;
        }
        self.minimum * self.round_trip() + f64::from(config.report_every) + 1.0
    }

    /// Returns whether a query must be sent early, so that the window never stalls for lack of a report:
    /// when the window closes with no query in flight, when the reply is overdue, and from time to time
    /// when idle.
    #[inline]
    fn must_probe(&self, config: &I2vfcConfig, now: Instant) -> bool {
        let since = now.since(self.feedback.last_query());
        // Most queries are sent in time because of the packet count, so the probe interval is computed last.
        (self.is_closed(config) && self.feedback.since_query() > 0 && self.feedback.is_answered())
            || (since >= SHORTEST_PROBE && since >= self.probe_interval(config))
    }

    #[inline]
    fn probe_interval(&self, config: &I2vfcConfig) -> Duration {
        if self.in_flight() == 0 {
            return IDLE_PROBE;
        }
        match self.feedback.round_trip().overdue() {
            Duration::ZERO => IDLE_PROBE / 4,
            // A closed window needs the report; an open one can wait longer.
            overdue if self.is_closed(config) => overdue.max(SHORTEST_PROBE),
            overdue => overdue.max(config.report_within).max(SHORTEST_PROBE),
        }
    }

    fn shrink(&mut self, config: &I2vfcConfig) {
        self.probing = false;
        self.loss.event();
        self.window = (self.window * (1.0 - self.parameters.decrease)).max(self.min_window(config));
        self.recovery = self.feedback.counters.sent;
    }

    fn update_parameters(
        &mut self,
        config: &I2vfcConfig,
        published: Option<&PublishedReference>,
        now: Instant,
    ) {
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

    /// Returns the values to publish if this flow is a reference; `None` before its first round trip.
    pub fn publish(&self, now: Instant) -> Option<PublishedReference> {
        (self.round_trip() > 0.0).then(|| PublishedReference {
            at: now,
            basis: self.basis(),
            decrease: self.parameters.decrease,
        })
    }

    fn basis(&self) -> Basis {
        Basis {
            weight: self.weight,
            round_trip: self.round_trip(),
            loss: self.loss.rate().map(|rate| (rate, self.loss.events())),
        }
    }

    /// Returns the number of packets sent and neither confirmed nor given up.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.feedback.in_flight()
    }

    /// Returns the window in packets.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Returns the current increase and decrease.
    pub fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// Returns the smoothed round trip in seconds; zero before the first reply.
    pub fn round_trip(&self) -> f64 {
        self.feedback.round_trip().seconds()
    }

    /// Returns the loss rate by the configured measure.
    pub fn loss(&self) -> Option<f64> {
        self.loss.rate()
    }

    /// Returns the number of waiting packets.
    #[inline]
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.feedback.counters
    }
}

/// Returns the reference and its decrease b: the published one if it is recent, otherwise the nominal flow.
fn reference_basis(
    config: &I2vfcConfig,
    published: Option<&PublishedReference>,
    now: Instant,
) -> (Basis, f64) {
    let nominal = match (published, config.reference) {
        (Some(published), _) if now.since(published.at) <= REFERENCE_AGE => {
            return (published.basis, published.decrease);
        }
        (_, WeightReference::Nominal(nominal)) => nominal,
        (_, WeightReference::Vpn(_)) => super::NominalReference::default(),
    };
    (nominal.basis(), nominal.decrease)
}
