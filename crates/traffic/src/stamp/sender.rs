//! Session-sender: measures to any STAMP reflector.

use super::clock::WallClock;
use super::{HmacKey, MAX_PACKET_BYTES, PACKETS_PER_CALL, Timescale, mode, with_mac};
use netstage_core::measure::stamp::{
    ClockChange, ClockReading, RejectReason, SenderConfig, SenderResult, SessionSender, StampSample,
};
use netstage_core::measure::{ClockOffset, Histogram, values_needed};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::packet_socket::{PacketSocket, ReceivedDatagram};
use socket2::Socket;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum wait, after which a stop request is checked.
const MAX_WAIT: std::time::Duration = std::time::Duration::from_millis(50);

/// Settings of a session.
#[derive(Clone)]
pub struct StampSessionConfig {
    /// Source address and port. `None` lets the system choose.
    pub source: Option<SocketAddr>,
    /// Address of the reflector.
    pub target: SocketAddr,
    /// Clock of the timestamps.
    pub timescale: Timescale,
    /// Key of authenticated mode, or `None` for unauthenticated mode.
    pub key: Option<HmacKey>,
    /// DSCP and ECN of sent packets.
    pub traffic_class: u8,
    /// Time between packets.
    pub interval: Duration,
    /// Number of packets.
    pub count: u32,
    /// Time after which a missing reply counts as lost.
    pub timeout: Duration,
    /// Session identifier (RFC 8972 section 3), or 0.
    pub session: u16,
    /// Bytes of extra padding (RFC 8972 section 4.1).
    pub padding: Option<u16>,
    /// Whether the reflector numbers its replies, so that loss is known per direction.
    pub reflector_is_stateful: bool,
}

/// Result of a session.
#[derive(Clone, Debug, Default)]
pub struct StampSessionResult {
    /// Numbers of packets sent, answered and lost.
    pub counts: SenderResult,
    /// Round-trip delays without the time at the reflector.
    pub round_trip: DelayHistogram,
    /// One-way delays to the reflector: its clock minus the local clock.
    pub forward: DelayHistogram,
    /// One-way delays from the reflector: the local clock minus its clock.
    pub backward: DelayHistogram,
    /// Times from reception to transmission at the reflector.
    pub at_reflector: DelayHistogram,
    /// Number of negative one-way delays to the reflector and from it.
    pub negative: [u64; 2],
    /// Reflector's clock minus the local clock, from the packet with the shortest round trip.
    pub clock_offset: Option<ClockOffset>,
    /// Maximum error of one-way delays in nanoseconds, from the clock errors that both ends report. `None` if an end is
    /// not synchronized.
    pub uncertainty_ns: Option<u64>,
    /// Detects that one of the clocks was set, or runs at another rate.
    pub clock_change: ClockChange,
    /// State of the local clock.
    pub local_clock: Option<WallClock>,
    /// Lateness of sent packets in nanoseconds.
    pub lateness: DelayHistogram,
    /// Number of packets that could not be sent, and error of the first.
    pub failed_sends: Option<(u32, String)>,
    /// Reason for rejecting the first invalid reply.
    pub rejection: Option<String>,
    /// Whether the session was stopped before its end.
    pub interrupted: bool,
    /// Set once a reply reported a clock that is not synchronized.
    is_unsynchronized: bool,
}

impl StampSessionResult {
    /// Records the delays of a reply.
    pub fn record(&mut self, sample: &StampSample) {
        self.clock_change.record(sample);
        self.round_trip.record(sample.round_trip);
        self.forward.record(sample.forward);
        self.backward.record(sample.backward);
        self.at_reflector.record(sample.reflector_time);
        let delays = [sample.forward, sample.backward];
        (0..2).for_each(|way| self.negative[way] += u64::from(delays[way] < 0));
        let offset = ClockOffset::from_delays(sample.forward, sample.backward);
        self.clock_offset = self.clock_offset.into_iter().chain(offset).min_by_key(|offset| offset.error_ns);
        self.is_unsynchronized |= sample.uncertainty.is_none();
        self.uncertainty_ns = sample.uncertainty.max(self.uncertainty_ns).filter(|_| !self.is_unsynchronized);
    }
}

/// Distribution of delays in nanoseconds. One-way delays may be negative if the clocks differ. The differences from the first
/// delay have three significant digits, so that a large clock offset takes no accuracy from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayHistogram {
    first: i64,
    above: Histogram,
    below: Histogram,
}

impl DelayHistogram {
    fn record(&mut self, delay: i64) {
        if self.count() == 0 {
            self.first = delay;
        }
        let side = if delay < self.first { &mut self.below } else { &mut self.above };
        side.record(delay.abs_diff(self.first));
    }

    /// Returns the number of delays.
    pub fn count(&self) -> u64 {
        self.above.count() + self.below.count()
    }

    /// Returns the delays in ascending order, each with its number of occurrences.
    pub fn buckets(&self) -> Vec<(i64, u64)> {
        let below =
            self.below.buckets().map(|(less, count)| (self.first.saturating_sub_unsigned(less), count));
        let mut buckets: Vec<(i64, u64)> = below.collect();
        buckets.reverse();
        let above = self.above.buckets();
        buckets.extend(above.map(|(more, count)| (self.first.saturating_add_unsigned(more), count)));
        buckets
    }

    /// Returns the smallest value that at least a share `q` of all delays does not exceed, or `None` with fewer delays than
    /// [`values_needed`].
    pub fn quantile(&self, q: f64) -> Option<i64> {
        let rank = ((q * self.count() as f64).ceil() as u64).max(1);
        let mut below = 0;
        let mut reached = self.buckets().into_iter().skip_while(|(_, count)| {
            below += count;
            below < rank
        });
        reached.next().map(|(delay, _)| delay).filter(|_| self.count() >= values_needed(q))
    }

    /// Returns the delays minus the smallest delay (PDV, RFC 5481), which cancels a constant clock offset.
    pub fn above_min(&self) -> DelayHistogram {
        let buckets = self.buckets();
        let min = buckets.first().map_or(0, |(min, _)| *min);
        let mut above = Histogram::default();
        buckets.iter().for_each(|(delay, count)| above.record_many(delay.abs_diff(min), *count));
        DelayHistogram { above, ..DelayHistogram::default() }
    }
}

/// Session on its own socket. Call [`StampSenderSession::handle_timeout`] at the time of [`StampSenderSession::poll_timeout`], and
/// [`StampSenderSession::handle_ready`] when the socket is readable, until there is no timeout.
pub struct StampSenderSession {
    socket: PacketSocket,
    sender: SessionSender,
    key: Option<HmacKey>,
    timescale: Timescale,
    traffic_class: u8,
    result: StampSessionResult,
    bytes: Vec<u8>,
    reply: Vec<u8>,
}

/// Transmission of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketDeparture {
    /// Scheduled time.
    pub due: Instant,
    /// Timestamp of the packet.
    pub stamped: Instant,
    /// Actual time, or `None` if the packet could not be sent.
    pub left: Option<Instant>,
}

impl StampSenderSession {
    /// Opens the socket of a session whose first packet leaves at `start` of the run.
    ///
    /// # Panics
    ///
    /// Panics if the interval is zero.
    pub fn open(sending: &StampSessionConfig, start: Instant) -> io::Result<StampSenderSession> {
        let any =
            if sending.target.is_ipv4() { (IpAddr::from([0; 4]), 0) } else { (IpAddr::from([0; 16]), 0) };
        let socket = PacketSocket::bind(sending.source.unwrap_or(any.into()))?;
        socket.connect(sending.target)?;
        let clock = WallClock::read();
        let config = SenderConfig {
            mode: mode(sending.key.as_ref()),
            session: sending.session,
            clock_error: (clock.error_ns, clock.synchronized),
            interval: sending.interval,
            count: sending.count,
            timeout: sending.timeout,
            reflector_is_stateful: sending.reflector_is_stateful,
            padding: sending.padding,
            ..SenderConfig::default()
        };
        Ok(StampSenderSession {
            socket,
            sender: SessionSender::new(config, start),
            key: sending.key.clone(),
            timescale: sending.timescale,
            traffic_class: sending.traffic_class,
            result: StampSessionResult { local_clock: Some(clock), ..StampSessionResult::default() },
            bytes: Vec::new(),
            reply: vec![0; MAX_PACKET_BYTES],
        })
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        self.socket.socket()
    }

    /// Returns the time of the next call of [`StampSenderSession::handle_timeout`], or `None` when the session is over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.sender.poll_timeout()
    }

    /// Returns the number of packets skipped so far, and the scheduled time of the packet sent or skipped last.
    pub fn schedule(&self) -> (u32, Instant) {
        self.sender.schedule()
    }

    /// Sends the packet that is due, if any, and counts overdue replies as lost.
    pub fn handle_timeout(&mut self, epoch: Epoch) -> Option<PacketDeparture> {
        let now = ClockReading { instant: epoch.now(), unix: self.timescale.now_ns() };
        let (sender, bytes) = (&mut self.sender, &mut self.bytes);
        if !with_mac(self.key.as_ref(), |mac| sender.poll_transmit(now, mac, bytes)) {
            return None;
        }
        let due = self.sender.schedule().1;
        self.result.lateness.record(now.instant.since(due).0 as i64);
        let sent = self.socket.send(&self.bytes, None, None, self.traffic_class);
        if let Err(error) = &sent {
            let failures = self.result.failed_sends.get_or_insert((0, error.to_string()));
            failures.0 += 1;
        }
        let left = sent.is_ok().then(|| epoch.now());
        Some(PacketDeparture { due, stamped: now.instant, left })
    }

    /// Receives replies. Calls `each` for every reply, with its delays or the reason for its rejection.
    pub fn handle_ready(
        &mut self,
        epoch: Epoch,
        mut each: impl FnMut(&ReceivedDatagram, &Result<StampSample, RejectReason>),
    ) {
        for _ in 0..PACKETS_PER_CALL {
            // An error shows as missing replies, for example from a closed port.
            let Ok(Some(received)) = self.socket.receive(&mut self.reply) else { return };
            let unix = self.timescale.arrival_ns(&received);
            let at = ClockReading { instant: epoch.instant(received.monotonic_ns), unix };
            let (sender, reply) = (&mut self.sender, &self.reply[..received.length]);
            let sample = with_mac(self.key.as_ref(), |mac| sender.handle_packet(reply, at, mac));
            match &sample {
                Ok(sample) => self.result.record(sample),
                Err(rejected) => {
                    self.result.rejection.get_or_insert_with(|| rejected.to_string());
                }
            }
            each(&received, &sample);
        }
    }

    /// Returns the result.
    pub fn finish(self) -> StampSessionResult {
        StampSessionResult { counts: self.sender.result(), ..self.result }
    }
}

/// Runs a session on the calling thread. Calls `progress` with the counts four times per second.
pub fn run(
    sending: &StampSessionConfig,
    stop: &AtomicBool,
    mut progress: impl FnMut(&SenderResult),
) -> io::Result<StampSessionResult> {
    let mut session = StampSenderSession::open(sending, Instant::ZERO)?;
    let epoch = Epoch(monotonic_ns());
    let mut reported_at = Instant::ZERO;
    while let Some(due) = session.poll_timeout() {
        if stop.load(Ordering::Relaxed) {
            session.result.interrupted = true;
            break;
        }
        let now = epoch.now();
        if now >= due {
            session.handle_timeout(epoch);
        } else {
            let wait = std::time::Duration::from_nanos(due.since(now).0);
            session.socket.wait(wait.min(MAX_WAIT))?;
        }
        session.handle_ready(epoch, |_, _| {});
        if now.since(reported_at) >= Duration::from_millis(250) {
            reported_at = now;
            progress(&session.sender.result());
        }
    }
    Ok(session.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::RandomStream;

    fn histogram(delays: impl IntoIterator<Item = i64>) -> DelayHistogram {
        let mut histogram = DelayHistogram::default();
        delays.into_iter().for_each(|delay| histogram.record(delay));
        histogram
    }

    #[test]
    fn quantiles_are_ranks_and_variation_starts_at_zero() {
        let delays = histogram([10, -5, 0, 20]);
        assert_eq!([0.0, 0.5, 1.0].map(|q| delays.quantile(q)), [Some(-5), None, Some(20)]);
        assert_eq!([0.0, 1.0].map(|q| delays.above_min().quantile(q)), [Some(0), Some(25)]);
        assert_eq!([0.0, 0.5].map(|q| DelayHistogram::default().quantile(q)), [None, None]);
        let many = |count| {
            let delays = histogram((1..=count).rev());
            [0.5, 0.9, 0.99, 0.999].map(|q| delays.quantile(q))
        };
        assert_eq!(many(367), [Some(184), Some(331), None, None]);
        assert_eq!(many(3_687), [Some(1_844), Some(3_319), Some(3_651), None]);
        assert_eq!(many(3_688)[3], Some(3_685));
    }

    #[test]
    fn quantiles_match_the_sorted_delays_whatever_the_clock_offset() {
        let seed = netstage_harness::seed("delays");
        for case in 0..200 {
            let mut random = RandomStream::new(seed, &format!("case.{case}"));
            let offset = random.next_u64() as i64 / 4;
            let spread = 10_f64.powf(2.0 + 7.0 * random.uniform());
            let mut delays: Vec<i64> =
                (0..1 + random.below(5_000)).map(|_| offset + random.exponential(spread) as i64).collect();
            let found = histogram(delays.iter().copied());
            delays.sort_unstable();
            let (min, range) = (delays[0], delays[delays.len() - 1].abs_diff(delays[0]));
            assert_eq!(found.count(), delays.len() as u64);
            for q in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let rank = ((q * delays.len() as f64).ceil() as usize).max(1);
                let is_known = delays.len() as u64 >= values_needed(q);
                let variation = found.above_min().quantile(q);
                assert_eq!((found.quantile(q).is_some(), variation.is_some()), (is_known, is_known));
                let (Some(delay), Some(variation)) = (found.quantile(q), variation) else { continue };
                let truth = delays[rank - 1];
                assert!(
                    delay.abs_diff(truth) <= range / 1_024 + 1,
                    "case {case}: {delay} instead of {truth}"
                );
                let error = variation.abs_diff(truth - min);
                assert!(error <= range / 256 + 2, "case {case}: variation {variation} of {}", truth - min);
            }
        }
    }
}
