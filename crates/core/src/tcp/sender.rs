//! The sending side: its state, timers and the ACK clock. Beside it are what may leave now
//! (`transmit`), and recovery without SACK (`newreno`), with it (`sack`), and with RACK-TLP's loss
//! detection (`rack`).

mod newreno;
mod rack;
mod sack;
mod snapshot;
mod transmit;

use alloc::boxed::Box;

use super::congestion::CongestionWindow;
use super::rack::Rack;
use super::rtt::RoundTrip;
use super::scoreboard::Scoreboard;
use super::{Ack, Cause, Config, Data, Event, LossDetection};
use crate::time::{Duration, Instant};

/// One flow's sender.
///
/// Give it data by [`write`](Sender::write), each ACK by [`handle_ack`](Sender::handle_ack), and call
/// [`handle_timeout`](Sender::handle_timeout) when [`poll_timeout`](Sender::poll_timeout) is due (earlier calls do
/// nothing). After each of them call [`poll_transmit`](Sender::poll_transmit) until it gives `None`, then
/// look at [`poll_timeout`](Sender::poll_timeout) again; [`poll_event`](Sender::poll_event) when wanted.
/// All calls of a connection take the same `Config`.
#[derive(Clone, Debug)]
pub struct Sender {
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
    round_trip: RoundTrip,
    /// When the retransmission timer expires.
    deadline: Instant,
    last_sent: Instant,
    /// Without timestamps one segment is timed: its end, and when it left.
    timed: u64,
    timed_at: Instant,
    /// RecoveryPoint or "recover", exclusive; 0 before the first loss.
    recover: u64,
    /// ACKs up to here are for data sent with the congestion window full.
    limited_until: u64,
    /// Data up to here was sent before the last reduction, which no mark may repeat.
    reduced_until: u64,
    retransmissions: u64,
    scoreboard: Option<Box<Scoreboard>>,
    /// In place of the scoreboard, where losses are detected by RACK-TLP.
    rack: Option<Box<Rack>>,
    duplicates: u32,
    phase: Phase,
    handshake: Handshake,
    /// Send the first unacknowledged segment next, whatever the window.
    retransmit_head: bool,
    /// A partial ACK was seen in this recovery (RFC 6582 section 3.2).
    partial: bool,
    /// The first unacknowledged segment has timed out before.
    head_timed_out: bool,
    reduced_without_loss: bool,
    tell_reduced: bool,
    event: Option<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
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
    /// The SYN goes next.
    Wanted,
    Sent,
    /// The SYN timed out and goes again.
    TimedOut,
    SentAgain,
    Established,
}

impl Sender {
    /// A sender with nothing to send yet.
    pub fn new(config: &Config) -> Sender {
        Sender {
            unacknowledged: 0,
            next: 0,
            highest: 0,
            written: 0,
            window: CongestionWindow::new(config),
            peer_window: u32::try_from(config.window).unwrap_or(u32::MAX),
            round_trip: RoundTrip::new(config),
            deadline: Instant::NEVER,
            last_sent: Instant::ZERO,
            timed: 0,
            timed_at: Instant::NEVER,
            recover: 0,
            limited_until: 0,
            reduced_until: 0,
            retransmissions: 0,
            scoreboard: None,
            rack: (config.sack && config.loss_detection == LossDetection::Rack)
                .then(|| Box::new(Rack::new())),
            duplicates: 0,
            phase: Phase::Open,
            handshake: if config.handshake { Handshake::Closed } else { Handshake::Established },
            retransmit_head: false,
            partial: false,
            head_timed_out: false,
            reduced_without_loss: false,
            tell_reduced: false,
            event: None,
        }
    }

    /// The application has this many more bytes to send; `u64::MAX` never ends. The first write
    /// opens the connection.
    #[inline]
    pub fn write(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// Opens the connection before there is anything to send.
    pub fn open(&mut self) {
        if self.handshake == Handshake::Closed {
            self.handshake = Handshake::Wanted;
        }
    }

    /// Begins a new connection in place of one that is over. Its bytes are numbered on from
    /// the old one's, so that what is still under way of that one is told apart, as by the
    /// growing initial sequence numbers of RFC 9293 section 3.4.1.
    pub fn renew(&mut self, config: &Config) {
        let at = self.written;
        *self = Sender { unacknowledged: at, next: at, highest: at, written: at, ..Sender::new(config) };
    }

    /// An ACK arrived. One for what was never sent, or older than one before, is ignored.
    #[inline]
    pub fn handle_ack(&mut self, config: &Config, now: Instant, ack: &Ack) {
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
            self.sample_round_trip(config, now, ack);
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
        } else if advanced > 0 {
            self.handle_new_ack(config, now, advanced);
        } else if same_window && self.highest > self.unacknowledged {
            self.handle_duplicate(config);
        }
    }

    /// A queue of the sender's own host is full: the window is reduced once for the data of one window, as
    /// for a mark. What did not fit is not lost, since the host still has it.
    pub fn handle_refusal(&mut self, config: &Config) {
        if self.phase == Phase::Open && self.unacknowledged >= self.reduced_until {
            self.window.reduce(config, self.flight());
            self.window.set_to_threshold();
            self.reduced(Cause::LocalDevice);
        }
    }

    /// The retransmission timer, or one of RACK-TLP's, may have expired.
    pub fn handle_timeout(&mut self, config: &Config, now: Instant) {
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
        // A segment that times out again leaves the threshold as it is (RFC 5681 section 3.1).
        if !self.head_timed_out {
            self.window.reduce(config, self.flight());
        }
        self.window.timeout(config);
        self.head_timed_out = true;
        self.phase = Phase::Loss;
        self.recover = self.highest;
        self.duplicates = 0;
        if let Some(rack) = &mut self.rack {
            let (min, smoothed) = (self.round_trip.min(), self.round_trip.smoothed());
            let reordering_window = rack.reordering_window(true, min, smoothed);
            rack.mark_losses_on_timeout(now, reordering_window);
            self.retransmit_head = true;
        } else {
            self.next = self.unacknowledged;
            self.retransmit_head = false;
        }
        if let Some(scoreboard) = &mut self.scoreboard {
            scoreboard.begin(self.unacknowledged, 0);
        }
        self.reduced(Cause::Timeout);
    }

    /// The next segment to send now, if there is one.
    #[inline]
    pub fn poll_transmit(&mut self, config: &Config, now: Instant) -> Option<Data> {
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
        } else if self.phase == Phase::Recovery && self.scoreboard.is_some() {
            self.poll_sack(config, now)
        } else {
            self.poll_new(config, now)
        }
    }

    /// When to call [`handle_timeout`](Sender::handle_timeout); [`Instant::NEVER`] if no timer runs.
    #[inline]
    pub fn poll_timeout(&self) -> Instant {
        match &self.rack {
            None => self.deadline,
            Some(rack) => self.deadline.min(rack.probe_deadline).min(rack.reordering_deadline),
        }
    }

    /// What happened to the window since the last call; only the latest is kept.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Congestion window, bytes.
    #[inline]
    pub fn congestion_window(&self) -> u64 {
        self.window.bytes()
    }

    /// Slow start threshold, bytes; `u64::MAX` before the first reduction.
    pub fn slow_start_threshold(&self) -> u64 {
        self.window.slow_start_threshold() as u64
    }

    /// Bytes believed to be on their way: the pipe of RFC 6675 where there is SACK information, what
    /// is not acknowledged elsewhere, and what was sent since after a timeout.
    #[inline]
    pub fn bytes_in_flight(&self) -> u64 {
        if let Some(rack) = &self.rack {
            return rack.pipe();
        }
        match &self.scoreboard {
            None => self.next - self.unacknowledged,
            Some(s) if self.phase == Phase::Loss => s.retransmitted_outstanding(self.unacknowledged),
            Some(s) => s.pipe(self.unacknowledged, self.highest),
        }
    }

    /// The window the receiver advertised last, bytes.
    pub fn advertised_window(&self) -> u64 {
        u64::from(self.peer_window)
    }

    /// Smoothed round-trip time.
    pub fn smoothed_round_trip(&self) -> Option<Duration> {
        self.round_trip.smoothed()
    }

    /// Smallest round-trip time sampled.
    pub fn min_round_trip(&self) -> Option<Duration> {
        self.round_trip.min()
    }

    /// The retransmission timeout, as backed off.
    pub fn retransmission_timeout(&self) -> Duration {
        self.round_trip.rto()
    }

    /// Segments sent again, SYNs too.
    #[inline]
    pub fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// Bytes acknowledged in order.
    #[inline]
    pub fn acknowledged(&self) -> u64 {
        self.unacknowledged
    }

    /// Bytes written and not acknowledged yet.
    #[inline]
    pub fn backlog(&self) -> u64 {
        self.written - self.unacknowledged
    }

    /// The handshake is done, or there is none.
    pub fn is_established(&self) -> bool {
        self.handshake == Handshake::Established
    }

    /// All that was written is acknowledged.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.unacknowledged == self.written
    }
}

/// The handshake.
impl Sender {
    fn poll_syn(&mut self, now: Instant) -> Option<Data> {
        let again = self.handshake == Handshake::TimedOut;
        match self.handshake {
            Handshake::Closed if self.written == self.unacknowledged => return None,
            Handshake::Closed | Handshake::Wanted => {
                self.handshake = Handshake::Sent;
                self.timed_at = now;
            }
            Handshake::TimedOut => {
                self.handshake = Handshake::SentAgain;
                self.retransmissions += 1;
            }
            _ => return None,
        }
        self.deadline = now + self.round_trip.rto();
        Some(Data { seq: 0, sent: now, len: 0, syn: true, cwr: false, retransmission: again })
    }

    #[cold]
    fn handle_syn_ack(&mut self, config: &Config, now: Instant, ack: &Ack) {
        if !ack.syn || !matches!(self.handshake, Handshake::Sent | Handshake::TimedOut | Handshake::SentAgain)
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

/// Progress: samples, timer, growth.
impl Sender {
    #[inline]
    fn sample_round_trip(&mut self, config: &Config, now: Instant, ack: &Ack) {
        if config.timestamps {
            // RFC 7323 appendix G expects an ACK for every second segment in flight.
            let flight = (self.highest - self.unacknowledged) as f64;
            let share = (2.0 * f64::from(config.max_segment_size) / flight).min(1.0);
            self.round_trip.sample(config, now.since(ack.echo), share);
        } else if self.timed_at != Instant::NEVER && ack.ack >= self.timed {
            self.round_trip.sample(config, now.since(self.timed_at), 1.0);
            self.timed_at = Instant::NEVER;
        }
    }

    /// New data is acknowledged outside of fast recovery.
    #[inline]
    fn handle_progress(&mut self, config: &Config, now: Instant, advanced: u64) {
        self.duplicates = 0;
        self.restart_timer(now);
        let after_timeout = self.phase == Phase::Loss;
        if after_timeout && self.unacknowledged >= self.recover {
            self.finish_recovery();
        }
        let marked = self.reduced_without_loss && self.unacknowledged <= self.reduced_until;
        if self.unacknowledged <= self.limited_until && !marked {
            self.window.grow(config, now, self.round_trip.smoothed_ns(), advanced, after_timeout);
        } else {
            self.window.pause(config, now);
        }
    }

    fn finish_recovery(&mut self) {
        self.phase = Phase::Open;
        self.event = Some(Event::Recovered);
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

    /// FlightSize when a loss shows. Segments of limited transmit do not count (RFC 5681 section
    /// 3.2), and only they exceed the window outside of a recovery; nor does, in a recovery by
    /// SACK, what has arrived beyond the holes: the window is what the network may hold.
    fn flight(&self) -> u64 {
        let outstanding = self.highest - self.unacknowledged;
        let by_sack = self.rack.is_some() || (self.phase == Phase::Recovery && self.scoreboard.is_some());
        if self.phase == Phase::Open || by_sack { outstanding.min(self.window.bytes()) } else { outstanding }
    }

    /// A mark was echoed: reduce once for the data of one window (RFC 3168 section 6.1.2).
    #[cold]
    fn handle_mark(&mut self, config: &Config, ack: u64) {
        if self.phase == Phase::Open && ack > self.reduced_until {
            self.window.reduce(config, self.flight());
            self.window.set_to_threshold();
            self.reduced(Cause::Ecn);
        }
    }

    /// Begin of a fast recovery: the threshold falls, unless a mark or a refusal from the same window
    /// of data has brought it down already.
    fn reduce_for_loss(&mut self, config: &Config, flight: u64, cause: Cause) {
        if !(self.reduced_without_loss && self.unacknowledged < self.reduced_until) {
            self.window.reduce(config, flight);
        }
        self.reduced(cause);
    }

    fn reduced(&mut self, cause: Cause) {
        self.reduced_until = self.highest;
        self.reduced_without_loss = matches!(cause, Cause::Ecn | Cause::LocalDevice);
        self.tell_reduced = true;
        self.event = Some(Event::Reduced(cause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_stays_small() {
        assert!(size_of::<Sender>() <= 224, "{}", size_of::<Sender>());
    }
}
