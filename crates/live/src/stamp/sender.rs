//! The session-sender: measures towards a reflector, which need not be ours.

use super::clock::WallClock;
use super::socket::PacketSocket;
use super::{HmacKey, mode, with_mac};
use crate::clock::{Epoch, monotonic_ns, realtime_ahead_ns};
use netstage_core::measure::stamp::{Moment, Sample, Sender, SenderConfig, SenderResult};
use netstage_core::time::{Duration, Instant};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest reply that is read.
const LARGEST: usize = 9216;
/// Longest wait before looking whether to stop.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// What to send.
#[derive(Clone)]
pub struct Sending {
    /// The reflector.
    pub target: SocketAddr,
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

/// Delays of packets, nanoseconds; one-way ones are negative where clocks differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays(Vec<i64>);

impl Delays {
    fn push(&mut self, delay: i64) {
        self.0.push(delay);
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

/// Runs a session on this thread; `tell` is called with the counts a few times a second.
pub fn run(sending: &Sending, stop: &AtomicBool, mut tell: impl FnMut(&SenderResult)) -> io::Result<Found> {
    let any: SocketAddr =
        if sending.target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("valid");
    let socket = PacketSocket::bind(any)?;
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
    let epoch = Epoch(monotonic_ns());
    let mut sender = Sender::new(config, Instant::ZERO);
    let mut found = Found { own_clock: Some(clock), ..Found::default() };
    // Until a reply says otherwise, and never again once one is not synchronized.
    let mut certain = true;
    let (mut bytes, mut reply) = (Vec::new(), vec![0; LARGEST]);
    let mut told = Instant::ZERO;
    while let Some(due) = sender.poll_timeout() {
        if stop.load(Ordering::Relaxed) {
            found.interrupted = true;
            break;
        }
        let now = moment(epoch);
        if now.instant >= due {
            if with_mac(sending.key.as_ref(), |mac| sender.poll_transmit(now, mac, &mut bytes)) {
                found.late.push(now.instant.since(due).0 as i64);
                if let Err(error) = socket.send(&bytes, None, None, sending.traffic_class) {
                    let refused = found.refused.get_or_insert((0, error.to_string()));
                    refused.0 += 1;
                }
            }
        } else {
            let wait = std::time::Duration::from_nanos(due.since(now.instant).0);
            socket.wait(wait.min(LOOK))?;
        }
        // An error says that nobody listens there, which the missing replies will tell.
        while let Ok(Some(received)) = socket.receive(&mut reply) {
            let at = Moment { instant: epoch.instant(received.monotonic_ns), unix: received.unix_ns };
            let taken = with_mac(sending.key.as_ref(), |mac| {
                sender.handle_packet(&reply[..received.length], at, mac)
            });
            match taken {
                Ok(sample) => record(&mut found, &mut certain, &sample),
                Err(rejected) => {
                    found.rejection.get_or_insert_with(|| rejected.to_string());
                }
            }
        }
        if now.instant.since(told) >= Duration::from_millis(250) {
            told = now.instant;
            tell(&sender.result());
        }
    }
    found.counts = sender.result();
    Ok(found)
}

fn record(found: &mut Found, certain: &mut bool, sample: &Sample) {
    found.round_trip.push(sample.round_trip);
    found.forward.push(sample.forward);
    found.backward.push(sample.backward);
    found.at_reflector.push(sample.at_reflector);
    *certain &= sample.uncertainty.is_some();
    found.uncertainty_ns = sample.uncertainty.max(found.uncertainty_ns).filter(|_| *certain);
}

fn moment(epoch: Epoch) -> Moment {
    let now_ns = monotonic_ns();
    let unix = u64::try_from(i128::from(now_ns) + realtime_ahead_ns()).unwrap_or(0);
    Moment { instant: epoch.instant(now_ns), unix }
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
