//! The sending side: state, timers and ACK clock. The submodules choose the next segment (`transmit`) and recover
//! without SACK (`newreno`), with SACK (`sack`), and with RACK-TLP's loss detection (`rack`).

mod counted;
mod newreno;
mod rack;
mod sack;
mod snapshot;
mod transmit;

use alloc::boxed::Box;

use super::congestion::CongestionWindow;
use super::rack::Rack;
use super::rtt::RttEstimator;
use super::scoreboard::Scoreboard;
use super::{Ack, CongestionEvent, DataSegment, LossDetection, Stack, TcpConfig, WindowChangeCause};
use crate::time::{Duration, Instant};
use counted::CountedArrivals;

/// Sender of one flow.
///
/// Pass data to [`write`](TcpDataSender::write) and each ACK to [`handle_ack`](TcpDataSender::handle_ack), and call
/// [`handle_timeout`](TcpDataSender::handle_timeout) when [`poll_timeout`](TcpDataSender::poll_timeout) is due (earlier calls do
/// nothing). After each of them, call [`poll_transmit`](TcpDataSender::poll_transmit) until it returns `None`, then
/// [`poll_timeout`](TcpDataSender::poll_timeout) again, and [`poll_event`](TcpDataSender::poll_event) if needed. All calls of a
/// connection take the same `TcpConfig`.
#[derive(Clone, Debug)]
pub struct TcpDataSender {
    /// SND.UNA.
    unacknowledged: u64,
    /// SND.NXT; below `highest` only after a timeout.
    next: u64,
    /// One past the last byte ever sent.
    highest: u64,
    /// One past the last byte the application has written.
    written: u64,
    window: CongestionWindow,
    peer_window: u32,
    round_trip: RttEstimator,
    /// Expiry of the retransmission timer.
    deadline: Instant,
    last_sent: Instant,
    /// End and transmission time of the segment that is timed if there are no timestamps.
    timed: u64,
    timed_at: Instant,
    /// RecoveryPoint or "recover", exclusive; 0 before the first loss.
    recover: u64,
    /// ACKs up to here are for data sent while the congestion window was full.
    limited_until: u64,
    /// Data up to here was sent before the last reduction; marks on it cause no further reduction.
    reduced_until: u64,
    retransmissions: u64,
    /// Segments that may still be sent in the current burst.
    burst: u8,
    scoreboard: Option<Box<Scoreboard>>,
    /// Replaces the scoreboard if RACK-TLP detects losses.
    rack: Option<Box<Rack>>,
    /// Recovery of Linux without SACK.
    counted: Option<Box<CountedArrivals>>,
    /// Saturates; a few are enough.
    duplicates: u8,
    phase: SenderPhase,
    handshake: Handshake,
    /// Whether to send the first unacknowledged segment next, regardless of the window.
    retransmit_head: bool,
    /// Whether a partial ACK arrived in this recovery (RFC 6582 section 3.2).
    partial: bool,
    /// Whether the first unacknowledged segment has timed out before.
    head_timed_out: bool,
    reduced_without_loss: bool,
    cwr_pending: bool,
    event: Option<CongestionEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderPhase {
    /// Slow start or congestion avoidance.
    Open,
    /// Fast recovery.
    Recovery,
    /// After a timeout, until everything sent before it is acknowledged.
    Loss,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handshake {
    Closed,
    /// The SYN is sent next.
    Wanted,
    Sent,
    /// The SYN timed out and is retransmitted next.
    TimedOut,
    Retransmitted,
    Established,
}

impl TcpDataSender {
    /// Creates a sender without data.
    pub fn new(config: &TcpConfig) -> TcpDataSender {
        TcpDataSender {
            unacknowledged: 0,
            next: 0,
            highest: 0,
            written: 0,
            window: CongestionWindow::new(config),
            peer_window: u32::try_from(config.window).unwrap_or(u32::MAX),
            round_trip: RttEstimator::new(config),
            deadline: Instant::NEVER,
            last_sent: Instant::ZERO,
            timed: 0,
            timed_at: Instant::NEVER,
            recover: 0,
            limited_until: 0,
            reduced_until: 0,
            retransmissions: 0,
            burst: 0,
            scoreboard: None,
            rack: (config.sack && config.loss_detection == LossDetection::Rack)
                .then(|| Box::new(Rack::new())),
            counted: CountedArrivals::new(config),
            duplicates: 0,
            phase: SenderPhase::Open,
            handshake: if config.handshake { Handshake::Closed } else { Handshake::Established },
            retransmit_head: false,
            partial: false,
            head_timed_out: false,
            reduced_without_loss: false,
            cwr_pending: false,
            event: None,
        }
    }

    /// Adds `bytes` to the data to send; `u64::MAX` is unlimited. The first write opens the connection.
    #[inline]
    pub fn write(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// Opens the connection before data is written.
    pub fn open(&mut self) {
        if self.handshake == Handshake::Closed {
            self.handshake = Handshake::Wanted;
        }
    }

    /// Begins a new connection in place of a closed one. Its sequence numbers continue those of the old connection,
    /// so that segments of the old one still in flight are recognized, as by the growing initial sequence numbers of
    /// RFC 9293 section 3.4.1.
    pub fn renew(&mut self, config: &TcpConfig) {
        let at = self.written;
        *self = TcpDataSender {
            unacknowledged: at,
            next: at,
            highest: at,
            written: at,
            ..TcpDataSender::new(config)
        };
    }

    /// Handles an ACK. An ACK of data never sent, or older than a previous one, is ignored.
    #[inline]
    pub fn handle_ack(&mut self, config: &TcpConfig, now: Instant, ack: &Ack) {
        if ack.syn || self.handshake != Handshake::Established {
            self.handle_syn_ack(config, now, ack);
            return;
        }
        if ack.ack < self.unacknowledged || ack.ack > self.highest {
            return;
        }
        let same_window = self.peer_window == ack.window;
        self.peer_window = ack.window;
        if ack.ece && config.ecn {
            self.handle_mark(config, ack.ack);
        }
        let advanced = ack.ack - self.unacknowledged;
        if advanced > 0 {
            if let Some(sample) = self.sample_round_trip(config, now, ack)
                && self.phase == SenderPhase::Open
            {
                self.window.end_slow_start(config, now, (ack.ack, self.highest), sample);
            }
            self.unacknowledged = ack.ack;
            self.next = self.next.max(ack.ack);
            self.head_timed_out = false;
        }
        if config.sack {
            if self.rack.is_some() {
                self.handle_rack(config, now, ack, advanced);
            } else if self.scoreboard.is_some() || ack.sack[0].1 != 0 {
                self.handle_sack(config, now, ack, advanced);
            } else if advanced > 0 {
                self.handle_progress(config, now, advanced);
            }
        } else if advanced == 0 && !(same_window && self.highest > self.unacknowledged) {
            // Neither new nor a duplicate (RFC 5681 section 2).
        } else if self.counted.is_some() {
            self.handle_counted(config, now, advanced);
        } else if advanced > 0 {
            self.handle_new_ack(config, now, advanced);
        } else {
            self.handle_duplicate(config);
        }
    }

    /// Handles the refusal of a segment by a full queue of the sender's host. The window is reduced once per window
    /// of data, as for a mark. The segment is not lost, because the host still has it.
    pub fn handle_refusal(&mut self, config: &TcpConfig) {
        if self.phase == SenderPhase::Open && self.unacknowledged >= self.reduced_until {
            self.window.reduce(config, self.flight());
            self.window.set_to_threshold();
            self.reduced(WindowChangeCause::LocalDevice);
        }
    }

    /// Handles the expiry of the retransmission timer or one of RACK-TLP's timers.
    pub fn handle_timeout(&mut self, config: &TcpConfig, now: Instant) {
        if self.handle_rack_timeout(config, now) || now < self.deadline {
            return;
        }
        self.round_trip.back_off();
        self.deadline = now + self.round_trip.rto();
        self.timed_at = Instant::NEVER;
        if self.handshake != Handshake::Established {
            self.handshake = Handshake::TimedOut;
            return;
        }
        // A segment that times out again does not change the threshold (RFC 5681 section 3.1), nor, in Linux, does a
        // timeout in a recovery.
        let reduced_already = config.stack == Stack::Linux && self.phase == SenderPhase::Recovery;
        let forward = self.phase == SenderPhase::Open || self.head_timed_out;
        if !self.head_timed_out && !reduced_already {
            if let Some(rack) = &mut self.rack {
                rack.undo.begin(&self.window);
            }
            self.window.reduce(config, self.flight());
        }
        self.window.timeout(config);
        self.head_timed_out = true;
        self.phase = SenderPhase::Loss;
        self.recover = self.highest;
        self.duplicates = 0;
        if self.rack.is_some() {
            self.repair_after_timeout(config, now, forward);
        } else {
            self.next = self.unacknowledged;
            self.retransmit_head = false;
        }
        if let Some(scoreboard) = &mut self.scoreboard {
            scoreboard.begin(self.unacknowledged, 0);
        }
        if let Some(counted) = &mut self.counted {
            (counted.arrived, counted.lost) = (0, 0);
        }
        self.reduced(WindowChangeCause::Timeout);
    }

    /// Returns the next segment to send now, if any.
    #[inline]
    pub fn poll_transmit(&mut self, config: &TcpConfig, now: Instant) -> Option<DataSegment> {
        if self.handshake != Handshake::Established {
            return self.poll_syn(now);
        }
        if self.rack.is_some() {
            return self.poll_rack(config, now);
        }
        if self.retransmit_head {
            self.retransmit_head = false;
            return Some(self.retransmit_first(config, now));
        }
        if self.next < self.highest {
            self.poll_after_timeout(config, now)
        } else if self.phase == SenderPhase::Recovery && self.scoreboard.is_some() {
            self.poll_sack(config, now)
        } else {
            self.poll_new(config, now)
        }
    }

    /// Returns the time to call [`handle_timeout`](TcpDataSender::handle_timeout); [`Instant::NEVER`] if no timer runs.
    #[inline]
    pub fn poll_timeout(&self) -> Instant {
        match &self.rack {
            None => self.deadline,
            Some(rack) => self.deadline.min(rack.probe_deadline).min(rack.reordering_deadline),
        }
    }

    /// Returns the latest window event since the last call; earlier ones are lost.
    #[inline]
    pub fn poll_event(&mut self) -> Option<CongestionEvent> {
        self.event.take()
    }

    /// Returns the congestion window, in bytes.
    #[inline]
    pub fn congestion_window(&self) -> u64 {
        self.window.bytes()
    }

    /// Returns the slow start threshold, in bytes; `u64::MAX` before the first reduction.
    pub fn slow_start_threshold(&self) -> u64 {
        self.window.slow_start_threshold() as u64
    }

    /// Returns the bytes assumed to be in flight: the pipe of RFC 6675 with SACK information, otherwise the
    /// unacknowledged bytes, and after a timeout those sent since.
    #[inline]
    pub fn bytes_in_flight(&self) -> u64 {
        if let Some(rack) = &self.rack {
            return rack.pipe();
        }
        if let Some(counted) = &self.counted {
            return (self.next - self.unacknowledged).saturating_sub(counted.arrived + counted.lost);
        }
        match &self.scoreboard {
            None => self.next - self.unacknowledged,
            Some(s) if self.phase == SenderPhase::Loss => s.retransmitted_outstanding(self.unacknowledged),
            Some(s) => s.pipe(self.unacknowledged, self.highest),
        }
    }

    /// Returns the window last advertised by the receiver, in bytes.
    pub fn advertised_window(&self) -> u64 {
        u64::from(self.peer_window)
    }

    /// Returns the smoothed round-trip time.
    pub fn smoothed_round_trip(&self) -> Option<Duration> {
        self.round_trip.smoothed()
    }

    /// Returns the minimum round-trip time sampled.
    pub fn min_round_trip(&self) -> Option<Duration> {
        self.round_trip.min()
    }

    /// Returns the retransmission timeout, including back-off.
    pub fn retransmission_timeout(&self) -> Duration {
        self.round_trip.rto()
    }

    /// Returns the number of retransmitted segments, including SYNs.
    #[inline]
    pub fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// Returns the bytes acknowledged in order.
    #[inline]
    pub fn acknowledged(&self) -> u64 {
        self.unacknowledged
    }

    /// Returns the bytes written and not acknowledged yet.
    #[inline]
    pub fn backlog(&self) -> u64 {
        self.written - self.unacknowledged
    }

    /// Returns whether the handshake is complete or not configured.
    pub fn is_established(&self) -> bool {
        self.handshake == Handshake::Established
    }

    /// Returns whether all written data is acknowledged.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.unacknowledged == self.written
    }
}

/// The handshake.
impl TcpDataSender {
    fn poll_syn(&mut self, now: Instant) -> Option<DataSegment> {
        let retransmission = self.handshake == Handshake::TimedOut;
        match self.handshake {
            Handshake::Closed if self.written == self.unacknowledged => return None,
            Handshake::Closed | Handshake::Wanted => {
                self.handshake = Handshake::Sent;
                self.timed_at = now;
            }
            Handshake::TimedOut => {
                self.handshake = Handshake::Retransmitted;
                self.retransmissions += 1;
            }
            _ => return None,
        }
        self.deadline = now + self.round_trip.rto();
        Some(DataSegment { seq: 0, sent: now, len: 0, syn: true, cwr: false, retransmission })
    }

    #[cold]
    fn handle_syn_ack(&mut self, config: &TcpConfig, now: Instant, ack: &Ack) {
        if !ack.syn
            || !matches!(self.handshake, Handshake::Sent | Handshake::TimedOut | Handshake::Retransmitted)
        {
            return;
        }
        let lost = self.handshake != Handshake::Sent;
        if config.timestamps {
            self.round_trip.sample(config, now.since(ack.echo), 1.0);
        } else if !lost {
            self.round_trip.sample(config, now.since(self.timed_at), 1.0);
        }
        if lost {
            // RFC 5681 section 3.1: an initial window of one segment.
            self.window.set(f64::from(config.max_segment_size));
            self.round_trip.syn_was_lost();
        }
        self.timed_at = Instant::NEVER;
        self.deadline = Instant::NEVER;
        self.peer_window = ack.window;
        self.handshake = Handshake::Established;
    }
}

/// Handling of new ACKs: round-trip samples, timer and window growth.
impl TcpDataSender {
    #[inline]
    fn sample_round_trip(&mut self, config: &TcpConfig, now: Instant, ack: &Ack) -> Option<Duration> {
        if config.timestamps {
            // RFC 7323 appendix G expects an ACK for every second segment in flight.
            let flight = (self.highest - self.unacknowledged) as f64;
            let share = (2.0 * f64::from(config.max_segment_size) / flight).min(1.0);
            let sample = now.since(ack.echo);
            self.round_trip.sample(config, sample, share);
            Some(sample)
        } else if self.timed_at != Instant::NEVER && ack.ack >= self.timed {
            let sample = now.since(self.timed_at);
            self.round_trip.sample(config, sample, 1.0);
            self.timed_at = Instant::NEVER;
            Some(sample)
        } else {
            None
        }
    }

    /// Handles newly acknowledged data outside fast recovery.
    #[inline]
    fn handle_progress(&mut self, config: &TcpConfig, now: Instant, advanced: u64) {
        self.duplicates = 0;
        self.restart_timer(now);
        let after_timeout = self.phase == SenderPhase::Loss;
        if after_timeout && self.unacknowledged >= self.recover {
            self.finish_recovery();
        }
        let marked = self.reduced_without_loss && self.unacknowledged <= self.reduced_until;
        if self.unacknowledged <= self.limited_until && !marked {
            self.window.grow(config, now, &self.round_trip, advanced, after_timeout);
        } else {
            self.window.pause(config, now);
        }
    }

    fn finish_recovery(&mut self) {
        self.phase = SenderPhase::Open;
        self.event = Some(CongestionEvent::Recovered);
        if let Some(scoreboard) = &mut self.scoreboard {
            scoreboard.begin(self.unacknowledged, 0);
        }
    }

    /// RFC 6298 sections 5.2 and 5.3.
    #[inline]
    fn restart_timer(&mut self, now: Instant) {
        self.deadline =
            if self.highest > self.unacknowledged { now + self.round_trip.rto() } else { Instant::NEVER };
    }

    /// Returns FlightSize at the detection of a loss. Segments of limited transmit do not count (RFC 5681 section
    /// 3.2); only they exceed the window outside a recovery. In a recovery with SACK, data that has arrived beyond
    /// the holes does not count either: the window is the amount that the network may hold.
    fn flight(&self) -> u64 {
        let outstanding = self.highest - self.unacknowledged;
        let by_sack =
            self.rack.is_some() || (self.phase == SenderPhase::Recovery && self.scoreboard.is_some());
        if self.phase == SenderPhase::Open || by_sack {
            outstanding.min(self.window.bytes())
        } else {
            outstanding
        }
    }

    /// Handles an echoed mark: reduces the window once per window of data (RFC 3168 section 6.1.2).
    #[cold]
    fn handle_mark(&mut self, config: &TcpConfig, ack: u64) {
        if self.phase == SenderPhase::Open && ack > self.reduced_until {
            self.window.reduce(config, self.flight());
            self.window.set_to_threshold();
            self.reduced(WindowChangeCause::Ecn);
        }
    }

    /// Lowers the threshold at the start of a fast recovery, unless a mark or a refusal in the same window of data
    /// has already lowered it.
    fn reduce_for_loss(&mut self, config: &TcpConfig, flight: u64, cause: WindowChangeCause) {
        if !(self.reduced_without_loss && self.unacknowledged < self.reduced_until) {
            self.window.reduce(config, flight);
        }
        self.reduced(cause);
    }

    fn reduced(&mut self, cause: WindowChangeCause) {
        self.reduced_until = self.highest;
        self.reduced_without_loss = matches!(cause, WindowChangeCause::Ecn | WindowChangeCause::LocalDevice);
        self.cwr_pending = true;
        self.event = Some(CongestionEvent::Reduced(cause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_stays_small() {
        assert!(size_of::<TcpDataSender>() <= 248, "{}", size_of::<TcpDataSender>());
    }
}
