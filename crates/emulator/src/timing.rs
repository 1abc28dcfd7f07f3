//! Accuracy of the send times: the lateness of frames after their due times, and the achieved rate of saturated
//! lines.

use super::report::{Lateness, SaturatedRate};
use netstage_agent_api::results::Buckets;
use netstage_core::measure::histogram::{Histogram, rounded};
use netstage_core::time::{Duration, Instant};

/// Expected accuracy of an emulator. The share of later frames is reported.
const NOTABLE: Duration = Duration::from_micros(100);

/// Timing of one direction.
#[derive(Debug, Default)]
pub struct Timing {
    lateness: Histogram,
    notable: u64,
    /// Maximum lateness, and the time at which this frame was due.
    max: (Duration, Instant),
    period: Option<BusyPeriod>,
    longest: Option<BusyPeriod>,
}

/// Period in which frames were transmitted back to back.
#[derive(Clone, Copy, Debug)]
struct BusyPeriod {
    first_departure: Instant,
    last_due: Instant,
    last_departure: Instant,
    frames: u64,
    /// Transmission time of all frames but the first.
    sending: Duration,
}

impl BusyPeriod {
    fn span(&self) -> Duration {
        self.last_departure.since(self.first_departure)
    }
}

impl Timing {
    /// Creates the timing of a direction that has sent nothing.
    pub fn new() -> Timing {
        Timing::default()
    }

    /// Records a frame that was due at `due`, with its actual departure and transmission time.
    pub fn record(&mut self, due: Instant, departure: Instant, transmission: Duration) {
        let late = departure.since(due);
        self.lateness.record(late.0);
        self.notable += u64::from(late > NOTABLE);
        if late > self.max.0 {
            self.max = (late, due);
        }
        match &mut self.period {
            Some(period) if due == period.last_due + transmission => {
                (period.last_due, period.last_departure) = (due, departure);
                period.frames += 1;
                period.sending = period.sending + transmission;
            }
            // A duplicate leaves with its original.
            Some(period) if due == period.last_due => period.last_departure = departure,
            _ => {
                self.end_period();
                self.period = Some(BusyPeriod {
                    first_departure: departure,
                    last_due: due,
                    last_departure: departure,
                    frames: 1,
                    sending: Duration::ZERO,
                });
            }
        }
    }

    fn end_period(&mut self) {
        let longest = self.longest.map_or(Duration::ZERO, |period| period.sending);
        self.longest = self.period.take_if(|period| period.sending > longest).or(self.longest);
    }

    /// Adds the lateness of another direction.
    pub fn merge(&mut self, other: &Timing) {
        other.lateness.buckets().for_each(|(late, frames)| self.lateness.record_many(late, frames));
        self.notable += other.notable;
        if other.max.0 > self.max.0 {
            self.max = other.max;
        }
    }

    /// Returns the number of frames that left later than `bound`.
    pub fn later_than(&self, bound: Duration) -> u64 {
        let later = self.lateness.buckets().filter(|(late, _)| *late > rounded(bound.0));
        later.map(|(_, frames)| frames).sum()
    }

    /// Returns the statistics of the lateness.
    pub fn lateness(&self) -> Lateness {
        let frames = self.lateness.count();
        let quantile = |share| self.lateness.quantile(share).unwrap_or(0);
        Lateness {
            frames,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            max_ns: quantile(1.0),
            max_due_ns: self.max.1.0,
            share_over_100_us: if frames > 0 { self.notable as f64 / frames as f64 } else { 0.0 },
        }
    }

    /// Returns the distribution of the lateness in nanoseconds.
    pub fn distribution(&self) -> Buckets {
        Buckets(self.lateness.buckets().collect())
    }

    /// Returns the rate over the longest busy period of the line, relative to the configured rate; `None` if no busy
    /// period has 100 frames.
    pub fn saturated_rate(&mut self) -> Option<SaturatedRate> {
        self.end_period();
        let period = self.longest.filter(|period| period.span() > Duration::ZERO && period.frames >= 100)?;
        Some(SaturatedRate {
            frames: period.frames,
            span_ns: period.span().0,
            error: period.sending.0 as f64 / period.span().0 as f64 - 1.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_measured_over_the_longest_busy_period() {
        let mut timing = Timing::new();
        let send = |timing: &mut Timing, due: u64, late: u64| {
            timing.record(Instant(due), Instant(due + late), Duration(1000));
        };
        (0..50).for_each(|frame| send(&mut timing, frame * 1000, 0));
        (0..1001).for_each(|frame| send(&mut timing, 100_000 + frame * 1000, 10 * frame));
        let rate = timing.saturated_rate().unwrap();
        assert_eq!((rate.frames, rate.span_ns), (1001, 1_010_000));
        assert!((rate.error - (1.0 / 1.01 - 1.0)).abs() < 1e-12);
        assert_eq!(timing.lateness().frames, 1051);
        assert_eq!(timing.later_than(Duration(1_000_000)), 0);
    }

    #[test]
    fn lateness_has_shares_and_quantiles() {
        let mut timing = Timing::new();
        (0..90).for_each(|_| timing.record(Instant(0), Instant(1_000), Duration(0)));
        (0..10).for_each(|_| timing.record(Instant(0), Instant(200_000), Duration(0)));
        let lateness = timing.lateness();
        assert_eq!((lateness.share_over_100_us, lateness.frames), (0.1, 100));
        assert!((990..=1010).contains(&lateness.p50_ns) && lateness.p99_ns >= 198_000);
        assert_eq!(timing.later_than(Duration(150_000)), 10);
    }
}
