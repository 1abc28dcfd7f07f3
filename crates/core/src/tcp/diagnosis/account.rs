//! Account of a flow's time: each interval between two events is charged to one bottleneck.

use super::policing::{LossOrigin, LossSpacing};
use super::{Bottleneck, Diagnosis, RoundTrips, Verdict, shares};
use crate::quantity::BitRate;
use crate::tcp::event::{
    CongestionState, FlowEvent, FlowEventKind, FlowSnapshot, SendLimit, WindowChangeCause,
};
use crate::time::{Duration, Instant};

/// Minimum queueing delay that is distinguished from jitter.
const MIN_QUEUE: Duration = Duration::from_millis(2);
/// Queueing delay from which a path may be full although another window than the congestion window limits the sender.
const LONG_QUEUE: Duration = Duration::from_millis(5);
/// Queueing delay from which a queue is bloated, unless the base round trip is longer.
const BLOAT: Duration = Duration::from_millis(50);
/// Time for which a window must be closed to count as closed by a reader that stopped. The sender then sends a
/// zero-window probe (RFC 9293 section 3.8.6.1).
const STOPPED: Duration = Duration::from_millis(200);
/// Time and round trips after which a window that does not grow is clamped.
const CLAMPED: Duration = Duration::from_secs(3);
const CLAMPED_ROUND_TRIPS: u64 = 20;
/// Shortest observation for a verdict.
const MIN_TIME: Duration = Duration::from_millis(300);
/// Share of the time, percent, from which a bottleneck explains a flow, and its lead over the next one.
const DOMINANT: u64 = 40;
const LEAD: u64 = 10;
/// Growth of the delivery rate in a round trip, and number of round trips without it, by which BBR ends its
/// startup (draft-ietf-ccwg-bbr section 5.3.1.2).
const STARTUP_GROWTH: f64 = 1.25;
const STARTUP_ROUNDS: u32 = 3;
/// Share of lost segments that a model-based congestion control tolerates, but a line should not have.
const MODEL_LOSS: f64 = 0.02;
/// Share of acknowledged data that its reader had not read, below which it reads at once, and above which it is slow.
const READ: f64 = 0.02;
const UNREAD: f64 = 0.2;
/// Number of acknowledged segments that show that the path passes segments of their size.
const PASSED: u64 = 10;
/// Congestion window of BBR while it measures the round trip, segments.
const PROBE_WINDOW: u64 = 4;

/// Account of one flow.
///
/// Pass the events of the flow in order of time to [`handle`](FlowAccount::handle). An interval is charged by the
/// state at its end, when an acknowledgment arrives. Intervals that end in another event wait for the next
/// acknowledgment. An interval without outstanding data is charged to the application.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowAccount {
    first: Option<(Instant, u64, u64)>,
    last: Option<(Instant, FlowSnapshot)>,
    /// State at the last acknowledgment.
    acknowledged: Option<FlowSnapshot>,
    has_ended: bool,
    times: [Duration; Bottleneck::ALL.len()],
    /// Time since the last charged acknowledgment.
    pending: Duration,
    stall: Stall,
    /// Time for which the peer's window has been closed.
    closed: Duration,
    /// Reason for the current size of the congestion window, and that before the last reduction.
    reason: Bottleneck,
    previous_reason: Bottleneck,
    losses: LossSpacing,
    queue: QueueEstimate,
    path: PathUse,
    /// Use of the peer's window and of the send buffer while they limit the sender.
    receiver: WindowUse,
    sender: WindowUse,
    max_peer_window: u64,
    growth: WindowGrowth,
    startup: Startup,
    timeouts: u64,
    longest_stall: Duration,
    outstanding: u64,
    /// The last charged time was a stall, which had not ended.
    is_stalled: bool,
    /// Segments became smaller in a stall.
    has_smaller_segments: bool,
}

/// Retransmission timeouts since the last acknowledgment of new data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stall {
    timeouts: u32,
    retransmissions: u32,
    acknowledgments: u32,
    exceeds_path_mtu: bool,
    /// Payload of a full segment at the first timeout.
    segment: u32,
}

/// Queueing delay: minimum round trip of recent segments above that of all. The smoothed round trip also contains
/// delayed acknowledgments, and replaces an unknown one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct QueueEstimate {
    min: Option<Duration>,
    smoothed: Option<Duration>,
    /// Minimum of the current and of the previous round.
    recent: [Option<Duration>; 2],
    /// Round trips at the latest events.
    latest: [Option<Duration>; 3],
    round_ends: Instant,
    max: Duration,
    max_smoothed: Duration,
}

/// Use of a full path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PathUse {
    time: Duration,
    bytes: u64,
    /// Queueing delay times time, ns².
    delay: u128,
}

/// Use of a window or buffer while it limits the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct WindowUse {
    path: PathUse,
    /// Outstanding data times time, bytes × ns.
    outstanding: u128,
    /// Acknowledged data that did not advance the right edge of the peer's window, because the application had not
    /// read it.
    unread: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct WindowGrowth {
    cwnd: u64,
    since: Instant,
}

/// Startup of a model-based congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Startup {
    rate: f64,
    round_ends: Instant,
    rounds: u32,
    is_over: bool,
}

impl Default for FlowAccount {
    fn default() -> FlowAccount {
        FlowAccount {
            first: None,
            last: None,
            acknowledged: None,
            has_ended: false,
            times: [Duration::ZERO; Bottleneck::ALL.len()],
            pending: Duration::ZERO,
            stall: Stall::default(),
            closed: Duration::ZERO,
            reason: Bottleneck::SlowStart,
            previous_reason: Bottleneck::SlowStart,
            losses: LossSpacing::default(),
            queue: QueueEstimate::default(),
            path: PathUse::default(),
            receiver: WindowUse::default(),
            sender: WindowUse::default(),
            max_peer_window: 0,
            growth: WindowGrowth::default(),
            startup: Startup::default(),
            timeouts: 0,
            longest_stall: Duration::ZERO,
            outstanding: 0,
            is_stalled: false,
            has_smaller_segments: false,
        }
    }
}

impl FlowAccount {
    /// Adds an event. Events after [`FlowEventKind::Ended`] are ignored.
    pub fn handle(&mut self, event: &FlowEvent) {
        if self.has_ended {
            return;
        }
        let FlowEvent { time, kind, snapshot } = event;
        if self.first.is_none() {
            self.first = Some((*time, snapshot.acknowledged, snapshot.retransmissions));
            self.acknowledged = Some(*snapshot);
            if snapshot.ssthresh.is_some() {
                self.reason = Bottleneck::EarlierReduction;
            }
        }
        let from = self.last.map_or(*time, |(last, _)| last);
        self.pending = self.pending + time.since(from);
        self.observe(*time, snapshot);
        match kind {
            FlowEventKind::Acknowledged => self.handle_acknowledgment(*time, snapshot),
            FlowEventKind::Retransmitted => self.stall.retransmissions += 1,
            FlowEventKind::Window(cause) => self.handle_change(*time, *cause, snapshot),
            FlowEventKind::Ended => {
                self.charge_pending(*time, snapshot, self.acknowledged);
                self.has_ended = true;
            }
            FlowEventKind::Began | FlowEventKind::Recovered => {}
        }
        self.last = Some((from.max(*time), *snapshot));
    }

    /// Returns the diagnosis of the time from the first event until `end`, or until the flow ended.
    pub fn diagnose(&self, end: Instant) -> Diagnosis {
        let mut account = self.clone();
        if let Some((last, snapshot)) = self.last.filter(|_| !self.has_ended) {
            account.pending = account.pending + end.since(last);
            account.charge_pending(end.max(last), &snapshot, self.acknowledged);
        }
        account.charge_closed();
        account.conclude()
    }

    /// Updates values that do not depend on the kind of the event.
    fn observe(&mut self, time: Instant, snapshot: &FlowSnapshot) {
        self.queue.observe(time, snapshot);
        self.max_peer_window = self.max_peer_window.max(snapshot.peer_window);
        self.outstanding = self.outstanding.max(snapshot.outstanding);
        if snapshot.cwnd != self.growth.cwnd {
            self.growth = WindowGrowth { cwnd: snapshot.cwnd, since: time };
        }
        if snapshot.model_based {
            self.startup.observe(time, snapshot);
        }
    }

    fn handle_acknowledgment(&mut self, time: Instant, snapshot: &FlowSnapshot) {
        let before = self.acknowledged.replace(*snapshot);
        let advances = before.is_none_or(|before| snapshot.acknowledged > before.acknowledged);
        if self.stall.timeouts > 0 && !advances {
            // A stall ends when new data is acknowledged. Acknowledgments until then show that the path passes
            // some packets.
            self.stall.acknowledgments += 1;
            return;
        }
        self.charge_pending(time, snapshot, before);
    }

    fn handle_change(&mut self, time: Instant, cause: WindowChangeCause, snapshot: &FlowSnapshot) {
        let reason = match cause {
            WindowChangeCause::LocalDevice => Bottleneck::LocalDevice,
            WindowChangeCause::Ecn if self.queue.is_visible() => Bottleneck::PathFull,
            WindowChangeCause::Ecn => Bottleneck::Ecn,
            WindowChangeCause::FastRetransmit | WindowChangeCause::TailLossProbe => {
                self.reason_of_loss(time, snapshot)
            }
            WindowChangeCause::Timeout => {
                self.timeouts += 1;
                self.stall.timeouts += 1;
                if self.stall.timeouts == 1 {
                    self.stall.segment = snapshot.segment;
                    self.stall.acknowledgments = 0;
                    self.reason_of_loss(time, snapshot)
                } else {
                    Bottleneck::Outage
                }
            }
            WindowChangeCause::Undo => self.previous_reason,
            WindowChangeCause::IdleRestart => Bottleneck::IdleRestart,
            WindowChangeCause::PathMtu => {
                self.stall.exceeds_path_mtu = true;
                return;
            }
            WindowChangeCause::ReceiverWindow
            | WindowChangeCause::ApplicationLimited
            | WindowChangeCause::ZeroWindow
            | WindowChangeCause::ProbeRoundTrip => return,
        };
        if self.stall.timeouts < 2 {
            self.previous_reason = self.reason;
        }
        self.reason = reason;
    }

    /// Returns the reason for a loss: a queue that overflowed, if it is at least half as long as ever.
    fn reason_of_loss(&mut self, time: Instant, snapshot: &FlowSnapshot) -> Bottleneck {
        if self.queue.has_overflowed() {
            return Bottleneck::PathFull;
        }
        self.losses.add(time, snapshot);
        Bottleneck::Loss
    }

    /// Charges the time since the last charged acknowledgment, which had the state `before`.
    fn charge_pending(&mut self, time: Instant, snapshot: &FlowSnapshot, before: Option<FlowSnapshot>) {
        let pending = core::mem::take(&mut self.pending);
        let stall = core::mem::take(&mut self.stall);
        if stall.timeouts > 0 || stall.exceeds_path_mtu {
            self.longest_stall = self.longest_stall.max(pending);
            let bottleneck = self.reason_of_stall(&stall, snapshot);
            self.is_stalled = stall.timeouts > 0;
            return self.charge(bottleneck, pending, snapshot, before);
        }
        self.is_stalled = false;
        // Without outstanding and unsent data, the sender waited for the application until a round trip ago.
        let was_idle = before.is_some_and(|before| {
            before.unsent == 0
                && snapshot.acknowledged >= before.acknowledged.saturating_add(before.outstanding)
        });
        let active = match self.queue.smoothed.filter(|_| was_idle) {
            Some(round_trip) => pending.min(round_trip),
            None => pending,
        };
        if let Some(before) = before.filter(|_| active < pending) {
            let waits =
                if before.send_buffer_full { Bottleneck::SendBuffer } else { Bottleneck::Application };
            self.charge(waits, pending - active, snapshot, None);
        }
        let bottleneck = self.bottleneck(time, snapshot);
        self.charge(bottleneck, active, snapshot, before);
    }

    fn reason_of_stall(&mut self, stall: &Stall, snapshot: &FlowSnapshot) -> Bottleneck {
        let has_shrunk = stall.segment > 0 && snapshot.segment < stall.segment;
        // While acknowledgments arrive, the path is not interrupted. Only a source that reports each
        // retransmission reports each acknowledgment, too.
        let passes_some = stall.retransmissions > 0 && stall.acknowledgments > 2;
        // No full segment has ever been acknowledged.
        let passes_no_segment = snapshot.acknowledged < u64::from(stall.segment);
        self.has_smaller_segments |= stall.exceeds_path_mtu || has_shrunk;
        if stall.exceeds_path_mtu || has_shrunk || stall.timeouts > 1 && passes_no_segment {
            if stall.timeouts > 1 {
                self.reason = Bottleneck::PathMtu;
            }
            return Bottleneck::PathMtu;
        }
        if stall.timeouts > 1 && !passes_some { Bottleneck::Outage } else { self.reason }
    }

    /// Returns the bottleneck of an interval that ends with an acknowledgment.
    fn bottleneck(&mut self, time: Instant, snapshot: &FlowSnapshot) -> Bottleneck {
        if snapshot.is_window_closed() && snapshot.outstanding <= snapshot.peer_window {
            return Bottleneck::ZeroWindow;
        }
        let is_repairing = snapshot.state >= CongestionState::Recovery && snapshot.outstanding > 0;
        match snapshot.limit() {
            _ if is_repairing => {}
            SendLimit::SendBuffer => return Bottleneck::SendBuffer,
            SendLimit::Application => return Bottleneck::Application,
            SendLimit::PeerWindow => return Bottleneck::ReceiveBuffer,
            // Less than a segment waits for more data (RFC 896).
            SendLimit::Pacing if snapshot.unsent < u64::from(snapshot.segment) => {
                return match snapshot.send_buffer_full {
                    true => Bottleneck::SendBuffer,
                    false => Bottleneck::Application,
                };
            }
            // A sender waits until a third of the smaller window is free, to send large buffers.
            SendLimit::Pacing
                if snapshot.peer_window < snapshot.cwnd
                    && fills_two_thirds(snapshot.outstanding, snapshot.peer_window) =>
            {
                return Bottleneck::ReceiveBuffer;
            }
            SendLimit::Pacing
                if !snapshot.model_based && !fills_two_thirds(snapshot.in_flight, snapshot.cwnd) =>
            {
                return Bottleneck::LocalDevice;
            }
            SendLimit::Pacing | SendLimit::CongestionWindow => {}
        }
        // Unread data fills most of the receive buffer, and keeps the reader busy.
        if snapshot.state == CongestionState::Open && snapshot.peer_window < self.max_peer_window / 2 {
            return Bottleneck::SlowReader;
        }
        if snapshot.model_based { self.modeled(snapshot) } else { self.window_limited(time, snapshot) }
    }

    fn modeled(&self, snapshot: &FlowSnapshot) -> Bottleneck {
        let is_small = snapshot.cwnd <= PROBE_WINDOW * u64::from(snapshot.segment);
        if !self.startup.is_over && !self.queue.is_visible() {
            Bottleneck::SlowStart
        } else if is_small && snapshot.state <= CongestionState::Disorder {
            Bottleneck::ProbeRoundTrip
        } else {
            Bottleneck::PathFull
        }
    }

    /// Returns the bottleneck of a sender that its congestion window limits.
    fn window_limited(&mut self, time: Instant, snapshot: &FlowSnapshot) -> Bottleneck {
        if self.queue.is_visible() && self.reason != Bottleneck::LocalDevice {
            if snapshot.state <= CongestionState::Disorder {
                self.reason = Bottleneck::PathFull;
            }
            return Bottleneck::PathFull;
        }
        let round_trip = self.queue.smoothed.unwrap_or(Duration::ZERO);
        let constant = time.since(self.growth.since);
        let is_open = snapshot.state == CongestionState::Open;
        if is_open && constant > CLAMPED && constant > round_trip * CLAMPED_ROUND_TRIPS {
            return Bottleneck::WindowClamp;
        }
        self.reason
    }

    fn charge(
        &mut self,
        bottleneck: Bottleneck,
        time: Duration,
        snapshot: &FlowSnapshot,
        before: Option<FlowSnapshot>,
    ) {
        if bottleneck == Bottleneck::ZeroWindow {
            self.closed = self.closed + time;
            return;
        }
        self.charge_closed();
        self.add(bottleneck, time);
        let delay = self.queue.delay();
        match bottleneck {
            Bottleneck::PathFull if self.queue.is_visible() || snapshot.model_based => {
                self.path.add(time, acknowledged(snapshot, before), delay);
            }
            Bottleneck::ReceiveBuffer => self.receiver.add(time, snapshot, before, delay),
            Bottleneck::SendBuffer => self.sender.add(time, snapshot, before, delay),
            _ => {}
        }
    }

    /// Charges the time for which the peer's window was closed.
    fn charge_closed(&mut self) {
        let closed = core::mem::take(&mut self.closed);
        self.add(if closed < STOPPED { Bottleneck::SlowReader } else { Bottleneck::ZeroWindow }, closed);
    }

    fn add(&mut self, bottleneck: Bottleneck, time: Duration) {
        let total = &mut self.times[bottleneck as usize];
        *total = *total + time;
    }

    /// Moves the time of a bottleneck to another.
    fn rename(&mut self, from: Bottleneck, to: Bottleneck) {
        if from != to {
            let time = core::mem::take(&mut self.times[from as usize]);
            self.add(to, time);
        }
    }

    fn conclude(mut self) -> Diagnosis {
        let (segment, acknowledged, retransmissions) = match (self.first, self.last) {
            (Some((_, acknowledged, retransmissions)), Some((_, last))) => (
                last.segment,
                last.acknowledged.saturating_sub(acknowledged),
                last.retransmissions.saturating_sub(retransmissions),
            ),
            _ => (0, 0, 0),
        };
        let time = self.times.iter().fold(Duration::ZERO, |sum, time| sum + *time);
        let windows = [
            self.decide_window(Bottleneck::ReceiveBuffer, self.receiver.path),
            self.decide_window(Bottleneck::SendBuffer, self.sender.path),
        ];
        let queue = self.path.mean_delay();
        let mut diagnosis = Diagnosis {
            verdict: Verdict::TooShort,
            time,
            shares: alloc::vec::Vec::new(),
            rate: rate(acknowledged, time),
            path_rate: (self.path.bytes > 0).then(|| rate(self.path.bytes, self.path.time)),
            round_trip: self.queue.round_trips(),
            queue,
            segment,
            acknowledged,
            retransmissions,
            rate_at_losses: self.losses.rate(),
            timeouts: self.timeouts,
            longest_stall: self.longest_stall,
            peer_window: self.max_peer_window,
            outstanding: self.outstanding,
        };
        let alternatives = [
            windows[0],
            windows[1],
            self.decide_queue(queue),
            self.decide_loss(&diagnosis),
            self.decide_receiver(),
            self.decide_outage(acknowledged),
        ];
        let times =
            Bottleneck::ALL.into_iter().map(|bottleneck| (bottleneck, self.times[bottleneck as usize]));
        diagnosis.shares = shares(times);
        diagnosis.verdict = verdict(&diagnosis, &alternatives);
        diagnosis
    }

    /// Decides whether a window or buffer that limits the sender holds more than the path. Then, a larger one would
    /// only lengthen the queue. Delayed acknowledgments look like a short queue.
    fn decide_window(&mut self, limit: Bottleneck, used: PathUse) -> Option<[Bottleneck; 2]> {
        let (queue, min) = (used.mean_delay()?, self.queue.min.unwrap_or(Duration::ZERO));
        let reads = limit != Bottleneck::ReceiveBuffer || self.receiver.unread_share() < READ;
        if reads && queue >= BLOAT.max(min) {
            self.rename(limit, Bottleneck::PathFull);
            self.path.merge(&used);
            return None;
        }
        (queue > LONG_QUEUE.max(min / 2)).then_some([limit, Bottleneck::PathFull])
    }

    /// Decides whether the queue of a full path is bloated.
    fn decide_queue(&mut self, queue: Option<Duration>) -> Option<[Bottleneck; 2]> {
        let queue = queue?;
        let bloat = BLOAT.max(self.queue.min.unwrap_or(Duration::ZERO));
        if queue >= bloat {
            self.rename(Bottleneck::PathFull, Bottleneck::Bufferbloat);
        }
        let is_near = queue * 2 >= bloat && queue * 2 <= bloat * 3;
        is_near.then_some([Bottleneck::PathFull, Bottleneck::Bufferbloat])
    }

    /// Decides between random losses and a policer.
    fn decide_loss(&mut self, diagnosis: &Diagnosis) -> Option<[Bottleneck; 2]> {
        let both = Some([Bottleneck::Loss, Bottleneck::Policer]);
        if self.last.is_some_and(|(_, last)| last.model_based) {
            // A model-based control fills a policer's rate, and loses the excess. Random losses do not slow it.
            let is_lossy = diagnosis.loss_ratio() > MODEL_LOSS;
            let has_no_queue = diagnosis.queue.is_none_or(|queue| queue < MIN_QUEUE);
            if is_lossy && has_no_queue {
                return Some([Bottleneck::PathFull, Bottleneck::Policer]);
            }
        }
        match self.losses.origin() {
            LossOrigin::Random => None,
            LossOrigin::Policer => {
                self.rename(Bottleneck::Loss, Bottleneck::Policer);
                None
            }
            LossOrigin::Unknown => both,
        }
    }

    /// Decides between a small receive buffer, which is full of data in flight, and a slow reader, which leaves the
    /// buffer full of data received. A window that was never seen open may be either.
    fn decide_receiver(&mut self) -> Option<[Bottleneck; 2]> {
        let mean = self.receiver.outstanding.checked_div(u128::from(self.receiver.path.time.0))?;
        let is_small = (mean as f64) < 0.5 * self.max_peer_window as f64;
        let unread = self.receiver.unread_share();
        let is_slow = unread >= UNREAD || unread >= READ && is_small;
        if is_slow || is_small {
            self.rename(Bottleneck::ReceiveBuffer, Bottleneck::SlowReader);
        } else {
            self.rename(Bottleneck::SlowReader, Bottleneck::ReceiveBuffer);
        }
        let is_buffer = unread < READ && !is_small;
        (!is_slow && !is_buffer).then_some([Bottleneck::ReceiveBuffer, Bottleneck::SlowReader])
    }

    /// An outage that still lasts, or before which no full segment passed, may be a path that drops large packets.
    /// If full segments passed later, it was an outage.
    fn decide_outage(&mut self, acknowledged: u64) -> Option<[Bottleneck; 2]> {
        let segment = self.last.map_or(0, |(_, last)| u64::from(last.segment));
        if !self.has_smaller_segments && acknowledged > PASSED * segment {
            self.rename(Bottleneck::PathMtu, Bottleneck::Outage);
        }
        let is_possible = self.times[Bottleneck::PathMtu as usize] > Duration::ZERO || self.is_stalled;
        (is_possible && !self.has_smaller_segments).then_some([Bottleneck::PathMtu, Bottleneck::Outage])
    }
}

/// Returns whether data takes two thirds of a window.
fn fills_two_thirds(data: u64, window: u64) -> bool {
    data.saturating_mul(3) >= window.saturating_mul(2)
}

/// Returns the conclusion from the shares and the pairs of bottlenecks that the events do not distinguish.
fn verdict(diagnosis: &Diagnosis, alternatives: &[Option<[Bottleneck; 2]>]) -> Verdict {
    let Some(first) = diagnosis.shares.first().filter(|_| diagnosis.time >= MIN_TIME) else {
        return Verdict::TooShort;
    };
    let bottleneck = first.bottleneck;
    let percent = |share: Duration| u128::from(share.0) * 100 / u128::from(diagnosis.time.0);
    let second = diagnosis.shares.get(1);
    let near = second.filter(|second| percent(first.time) < percent(second.time) + u128::from(LEAD));
    let pair = alternatives.iter().flatten().find(|pair| pair.contains(&bottleneck));
    // A bottleneck with as much time is named rather than the other one of a pair.
    let near = near.filter(|near| pair.is_none_or(|pair| !pair.contains(&near.bottleneck)));
    if let (Some([one, other]), None) = (pair, near) {
        let alternative = if *one == bottleneck { *other } else { *one };
        return Verdict::Unsure { bottleneck, alternative };
    }
    match near.or(second.filter(|_| percent(first.time) < u128::from(DOMINANT))) {
        Some(second) => Verdict::Shared { bottleneck, second: second.bottleneck },
        None => Verdict::Certain { bottleneck },
    }
}

fn rate(bytes: u64, time: Duration) -> BitRate {
    let bits = u128::from(bytes) * 8_000_000_000;
    BitRate(u64::try_from(bits / u128::from(time.0.max(1))).unwrap_or(u64::MAX))
}

impl QueueEstimate {
    fn observe(&mut self, time: Instant, snapshot: &FlowSnapshot) {
        let Some(smoothed) = snapshot.smoothed_round_trip else { return };
        let latest = snapshot.latest_round_trip.unwrap_or(smoothed);
        // The kernel forgets a minimum after some minutes.
        let min = snapshot.min_round_trip.unwrap_or(latest).min(latest);
        self.min = Some(self.min.map_or(min, |before| before.min(min)));
        if time >= self.round_ends {
            self.recent = [None, self.recent[0]];
            self.round_ends = time + smoothed;
        }
        self.latest = [Some(latest), self.latest[0], self.latest[1]];
        self.recent[0] = Some(self.recent[0].map_or(latest, |before| before.min(latest)));
        self.smoothed = Some(smoothed);
        self.max = self.max.max(self.delay());
        self.max_smoothed = self.max_smoothed.max(smoothed);
    }

    fn delay(&self) -> Duration {
        self.above_min(self.recent.into_iter().flatten().min())
    }

    fn above_min(&self, round_trip: Option<Duration>) -> Duration {
        round_trip.zip(self.min).map_or(Duration::ZERO, |(round_trip, min)| round_trip - min)
    }

    /// Returns whether the delay exceeds jitter.
    fn is_visible(&self) -> bool {
        self.exceeds_jitter(self.delay())
    }

    fn exceeds_jitter(&self, delay: Duration) -> bool {
        delay > MIN_QUEUE.max(self.min.unwrap_or(Duration::ZERO) / 5)
    }

    /// Returns whether a queue of at least half its greatest length precedes a loss. Segments that follow a loss are
    /// acknowledged at once, so the latest round trips show the queue.
    fn has_overflowed(&self) -> bool {
        let delay = self.above_min(self.latest.into_iter().flatten().min());
        self.exceeds_jitter(delay) && delay >= self.max / 2
    }

    fn round_trips(&self) -> Option<RoundTrips> {
        let (now, min) = (self.smoothed?, self.min?);
        Some(RoundTrips { now, min, max: self.max_smoothed })
    }
}

/// Returns the data acknowledged between two states.
fn acknowledged(snapshot: &FlowSnapshot, before: Option<FlowSnapshot>) -> u64 {
    before.map_or(0, |before| snapshot.acknowledged.saturating_sub(before.acknowledged))
}

impl WindowUse {
    fn add(
        &mut self,
        time: Duration,
        snapshot: &FlowSnapshot,
        before: Option<FlowSnapshot>,
        delay: Duration,
    ) {
        let data = acknowledged(snapshot, before);
        self.path.add(time, data, delay);
        self.outstanding += u128::from(snapshot.outstanding) * u128::from(time.0);
        let edge = |snapshot: &FlowSnapshot| snapshot.acknowledged.saturating_add(snapshot.peer_window);
        let advance = before.map_or(0, |before| edge(snapshot).saturating_sub(edge(&before)));
        self.unread += data.saturating_sub(advance);
    }

    /// Returns the share of the acknowledged data that the application had not read.
    fn unread_share(&self) -> f64 {
        self.unread as f64 / self.path.bytes.max(1) as f64
    }
}

impl PathUse {
    fn add(&mut self, time: Duration, bytes: u64, delay: Duration) {
        self.time = self.time + time;
        self.bytes += bytes;
        self.delay += u128::from(delay.0) * u128::from(time.0);
    }

    fn merge(&mut self, other: &PathUse) {
        self.time = self.time + other.time;
        self.bytes += other.bytes;
        self.delay += other.delay;
    }

    fn mean_delay(&self) -> Option<Duration> {
        self.delay.checked_div(u128::from(self.time.0)).map(|mean| Duration(mean as u64))
    }
}

impl Startup {
    fn observe(&mut self, time: Instant, snapshot: &FlowSnapshot) {
        let Some(rate) = snapshot.delivery_rate.filter(|_| !self.is_over && time >= self.round_ends) else {
            return;
        };
        self.round_ends = time + snapshot.smoothed_round_trip.unwrap_or(Duration::ZERO);
        if rate.as_f64() >= self.rate * STARTUP_GROWTH {
            (self.rate, self.rounds) = (rate.as_f64(), 0);
        } else {
            self.rounds += 1;
            self.is_over = self.rounds >= STARTUP_ROUNDS;
        }
    }
}
