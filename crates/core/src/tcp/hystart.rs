//! HyStart as in Linux (tcp_cubic.c): ends slow start before the first loss, when the ACKs of a round trip arrive as a
//! train that is as long as half of the path, or when the delay of a round trip has increased.
//!
//! Without it, slow start overshoots a long path by up to its bandwidth-delay product, and loses as many segments.

use crate::time::{Duration, Instant};

/// Minimum window, segments (`hystart_low_window`).
const LOW_WINDOW: f64 = 16.0;
/// Maximum gap between the ACKs of a train (`hystart_ack_delta_us`).
const ACK_DELTA: Duration = Duration::from_millis(2);
/// Allowance for ACKs of segments that left as one large packet (`hystart_ack_delay`), at rates below 2 Gbit/s.
const ACK_DELAY: Duration = Duration::from_millis(1);
/// Round-trip samples after which the delay of a round trip is known (`HYSTART_MIN_SAMPLES`).
const MIN_SAMPLES: u32 = 8;
/// Minimum and maximum increase of the delay (`HYSTART_DELAY_MIN` and `HYSTART_DELAY_MAX`).
const DELAY_BOUNDS: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));

/// Detector of the end of slow start.
#[derive(Clone, Debug)]
pub(super) struct HyStart {
    /// Sequence number whose ACK ends the round trip; `None` before the first ACK.
    round_end: Option<u64>,
    round_start: Instant,
    last_ack: Instant,
    /// Minimum delay of the connection, and of the round trip.
    min_delay: Duration,
    round_delay: Duration,
    samples: u32,
}

impl HyStart {
    pub fn new() -> HyStart {
        HyStart {
            round_end: None,
            round_start: Instant::ZERO,
            last_ack: Instant::ZERO,
            min_delay: Duration(u64::MAX),
            round_delay: Duration(u64::MAX),
            samples: 0,
        }
    }

    /// Handles an ACK in slow start, with a round-trip sample. `acknowledged` and `sent` are the sequence numbers up to
    /// which data is acknowledged and sent, `window` is in segments. Returns whether slow start ends.
    pub fn handle_ack(
        &mut self,
        now: Instant,
        (acknowledged, sent): (u64, u64),
        window: f64,
        delay: Duration,
    ) -> bool {
        self.min_delay = self.min_delay.min(delay);
        if self.round_end.is_none_or(|end| acknowledged > end) {
            self.round_end = Some(sent);
            (self.round_start, self.last_ack) = (now, now);
            self.round_delay = Duration(u64::MAX);
            self.samples = 0;
        }
        if window < LOW_WINDOW {
            return false;
        }
        let mut is_train_long = false;
        if now.since(self.last_ack) <= ACK_DELTA {
            self.last_ack = now;
            let threshold = Duration((self.min_delay.0 + ACK_DELAY.0) / 2);
            is_train_long = now.since(self.round_start) > threshold;
        }
        self.round_delay = self.round_delay.min(delay);
        let is_known = self.samples >= MIN_SAMPLES;
        self.samples += u32::from(!is_known);
        let increase = Duration(self.min_delay.0 / 8).clamp(DELAY_BOUNDS.0, DELAY_BOUNDS.1);
        is_train_long || is_known && self.round_delay > self.min_delay + increase
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Sends rounds of segments whose ACKs are `gap` apart, with this delay per round. Returns the round and window in
    /// which slow start ends.
    fn ends(gap: u64, delay: impl Fn(u64) -> u64) -> Option<(u64, f64)> {
        let (mut hystart, mut window, mut acknowledged) = (HyStart::new(), 10.0, 0);
        for round in 0..20 {
            let segments = window as u64;
            let start = round * 1_000 * MS;
            for segment in 0..segments {
                acknowledged += 1;
                window += 1.0;
                let now = Instant(start + segment * gap);
                let sent = acknowledged + window as u64;
                if hystart.handle_ack(now, (acknowledged, sent), window, Duration(delay(round))) {
                    return Some((round, window));
                }
            }
        }
        None
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_slow_start() {
        // A round trip of 100 ms and an ACK per ms: the train is long after 51 ACKs.
        let (round, window) = ends(MS, |_| 100 * MS).unwrap();
        assert_eq!(round, 3);
        assert!((80.0..160.0).contains(&window), "{window}");
    }

    #[test]
    fn an_increase_of_the_delay_by_an_eighth_ends_slow_start() {
        let increased =
            |increase| ends(10 * MS, move |round| 100 * MS + if round < 3 { 0 } else { increase });
        assert_eq!(increased(12 * MS), None);
        let (round, _) = increased(13 * MS).unwrap();
        assert_eq!(round, 3);
    }

    #[test]
    fn small_windows_are_ignored() {
        let mut hystart = HyStart::new();
        for segment in 0..1_000 {
            let now = Instant(segment * MS);
            assert!(!hystart.handle_ack(now, (segment, 10_000), 15.0, Duration(20 * MS)));
        }
    }
}
