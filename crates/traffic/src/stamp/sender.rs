//! The session-sender: measures towards a reflector, which need not be ours.

use super::clock::WallClock;
use super::socket::{PacketSocket, Received};
use super::{AT_ONCE, HmacKey, LARGEST, Timescale, mode, with_mac};
use netstage_core::measure::ClockOffset;
use netstage_core::measure::stamp::{Moment, Rejected, Sample, Sender, SenderConfig, SenderResult};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use socket2::Socket;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest wait before looking whether to stop.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// What to send.
#[derive(Clone)]
pub struct Sending {
    /// Where packets come from; none is an address and a port of the system's choice.
    pub source: Option<SocketAddr>,
    /// The reflector.
    pub target: SocketAddr,
    /// By what packets are dated.
    pub timescale: Timescale,
    /// Key of authenticated mode; none is unauthenticated.
    pub key: Option<HmacKey>,
    /// DSCP and ECN of our packets.
    pub traffic_class: u8,
    /// From packet to packet.
    pub interval: Duration,
    /// Packets.
    pub count: u32,
    /// How long a reply is waited for.
    pub timeout: Duration,
    /// Session identifier (RFC 8972 section 3), or 0.
    pub session: u16,
    /// Bytes of extra padding (RFC 8972 section 4.1).
    pub padding: Option<u16>,
    /// The reflector numbers its replies, so that loss can be told per direction.
    pub reflector_is_stateful: bool,
}

/// What a session found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Packets sent, answered, lost.
    pub counts: SenderResult,
    /// There and back, less the time at the reflector.
    pub round_trip: Delays,
    /// There: the reflector's clock less ours.
    pub forward: Delays,
    /// Back: our clock less the reflector's.
    pub backward: Delays,
    /// At the reflector, from receiving to sending.
    pub at_reflector: Delays,
    /// Most by which one-way delays may be off, by what both ends say of their clocks;
    /// none where an end is not synchronized.
    pub uncertainty_ns: Option<u64>,
    /// Whether our own clock is synchronized.
    pub own_clock: Option<WallClock>,
    /// How late packets left, nanoseconds.
    pub late: Delays,
    /// Packets the system would not send, and why.
    pub refused: Option<(u32, String)>,
    /// What the first packet that was not taken had wrong.
    pub rejection: Option<String>,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

impl Found {
    /// The reflector's clock less ours, by the packet that was there and back soonest.
    pub fn clock_offset(&self) -> Option<ClockOffset> {
        let exchanges = self.forward.iter().zip(self.backward.iter());
        let offsets = exchanges.filter_map(|(forward, backward)| ClockOffset::of_delays(forward, backward));
        offsets.min_by_key(|offset| offset.error_ns)
    }
}

/// Delays of packets, nanoseconds; one-way ones are negative where clocks differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays(Vec<i64>);

impl Delays {
    fn push(&mut self, delay: i64) {
        self.0.push(delay);
    }

    /// One by one, as answers came.
    pub fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        self.0.iter().copied()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest value that at least a share `q` of all does not exceed, for each `q`;
    /// none where there are no delays.
    pub fn quantiles<const N: usize>(&self, shares: [f64; N]) -> Option<[i64; N]> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        Some(shares.map(|q| {
            let rank = (q * sorted.len() as f64).ceil() as usize;
            sorted[rank.saturating_sub(1).min(last)]
        }))
    }

    /// Each less the least: a constant difference of clocks drops out (PDV, RFC 5481).
    pub fn above_least(&self) -> Delays {
        let least = self.0.iter().copied().min().unwrap_or(0);
        Delays(self.0.iter().map(|delay| delay.saturating_sub(least)).collect())
    }
}

/// A session on a socket of its own: [`Session::handle_timeout`] when [`Session::poll_timeout`] says,
/// [`Session::handle_ready`] when packets wait, until there is no timeout any more.
pub struct Session {
    socket: PacketSocket,
    sender: Sender,
    key: Option<HmacKey>,
    timescale: Timescale,
    traffic_class: u8,
    found: Found,
    /// Until a reply says otherwise, and never again once one is not synchronized.
    certain: bool,
    bytes: Vec<u8>,
    reply: Vec<u8>,
}

/// A packet whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// When it was to leave.
    pub due: Instant,
    /// When it left; none where the system would not send it.
    pub left: Option<Instant>,
}

impl Session {
    /// Opens a socket for a session whose first packet leaves at `start` of the run. Panics if the interval is zero.
    pub fn open(sending: &Sending, start: Instant) -> io::Result<Session> {
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
        Ok(Session {
            socket,
            sender: Sender::new(config, start),
            key: sending.key.clone(),
            timescale: sending.timescale,
            traffic_class: sending.traffic_class,
            found: Found { own_clock: Some(clock), ..Found::default() },
            certain: true,
            bytes: Vec::new(),
            reply: vec![0; LARGEST],
        })
    }

    /// Its socket.
    pub fn socket(&self) -> &Socket {
        self.socket.socket()
    }

    /// When to call [`Session::handle_timeout`] next; none when the session is over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.sender.poll_timeout()
    }

    /// Sends the packet that is due, if one is, and gives up replies that are overdue.
    pub fn handle_timeout(&mut self, epoch: Epoch) -> Option<Departure> {
        let due = self.sender.poll_timeout()?;
        let now = Moment { instant: epoch.now(), unix: self.timescale.now_ns() };
        let (sender, bytes) = (&mut self.sender, &mut self.bytes);
        if !with_mac(self.key.as_ref(), |mac| sender.poll_transmit(now, mac, bytes)) {
            return None;
        }
        self.found.late.push(now.instant.since(due).0 as i64);
        let sent = self.socket.send(&self.bytes, None, None, self.traffic_class);
        if let Err(error) = &sent {
            let refused = self.found.refused.get_or_insert((0, error.to_string()));
            refused.0 += 1;
        }
        Some(Departure { due, left: sent.is_ok().then_some(now.instant) })
    }

    /// Takes the replies that have come; `each` hears of every one, and what it says.
    pub fn handle_ready(&mut self, epoch: Epoch, mut each: impl FnMut(&Received, &Result<Sample, Rejected>)) {
        for _ in 0..AT_ONCE {
            // An error says that nobody listens there, which the missing replies will tell.
            let Ok(Some(received)) = self.socket.receive(&mut self.reply) else { return };
            let unix = self.timescale.arrival_ns(&received);
            let at = Moment { instant: epoch.instant(received.monotonic_ns), unix };
            let (sender, reply) = (&mut self.sender, &self.reply[..received.length]);
            let taken = with_mac(self.key.as_ref(), |mac| sender.handle_packet(reply, at, mac));
            match &taken {
                Ok(sample) => self.record(sample),
                Err(rejected) => {
                    self.found.rejection.get_or_insert_with(|| rejected.to_string());
                }
            }
            each(&received, &taken);
        }
    }

    /// What was found so far.
    pub fn finish(self) -> Found {
        Found { counts: self.sender.result(), ..self.found }
    }

    fn record(&mut self, sample: &Sample) {
        let found = &mut self.found;
        found.round_trip.push(sample.round_trip);
        found.forward.push(sample.forward);
        found.backward.push(sample.backward);
        found.at_reflector.push(sample.at_reflector);
        self.certain &= sample.uncertainty.is_some();
        found.uncertainty_ns = sample.uncertainty.max(found.uncertainty_ns).filter(|_| self.certain);
    }
}

/// Runs a session on this thread; `tell` is called with the counts a few times a second.
pub fn run(sending: &Sending, stop: &AtomicBool, mut tell: impl FnMut(&SenderResult)) -> io::Result<Found> {
    let mut session = Session::open(sending, Instant::ZERO)?;
    let epoch = Epoch(monotonic_ns());
    let mut told = Instant::ZERO;
    while let Some(due) = session.poll_timeout() {
        if stop.load(Ordering::Relaxed) {
            session.found.interrupted = true;
            break;
        }
        let now = epoch.now();
        if now >= due {
            session.handle_timeout(epoch);
        } else {
            let wait = std::time::Duration::from_nanos(due.since(now).0);
            session.socket.wait(wait.min(LOOK))?;
        }
        session.handle_ready(epoch, |_, _| {});
        if now.since(told) >= Duration::from_millis(250) {
            told = now;
            tell(&session.sender.result());
        }
    }
    Ok(session.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_ranks_and_variation_starts_at_nothing() {
        let delays = Delays(vec![-5, 10, 0, 20]);
        assert_eq!(delays.quantiles([0.0, 0.5, 0.75, 1.0]), Some([-5, 0, 10, 20]));
        assert_eq!(delays.above_least().quantiles([0.0, 1.0]), Some([0, 25]));
        assert_eq!(Delays::default().quantiles([0.5]), None);
    }
}
