//! The window function of CUBIC (RFC 9438). Windows are in segments.
//!
//! Linux (tcp_cubic.c) departs from the RFC in the Reno-friendly region, which determines the growth of small
//! windows. The RFC switches to Reno's increase, a segment per round trip, once its estimate of Reno's window reaches
//! the window before the last loss, and sets the window to the estimate at once. Linux keeps the smaller increase,
//! and approaches the estimate by the remaining distance per round trip. Linux also looks ahead on the curve by the
//! minimum round trip, not the current one, so a window that fills a queue grows more slowly. Linux calculates with
//! whole segments, and rounds so that windows of two to four segments grow by up to a quarter faster.

use crate::time::{Duration, Instant};

/// RFC 9438 section 5.
const C: f64 = 0.4;
/// RFC 9438 section 4.6.
pub(super) const BETA: f64 = 0.7;
/// Additive increase that gives Reno's rate with CUBIC's decrease (RFC 9438 section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Implementation of the window function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// RFC 9438 section 4.3.
    Standard,
    Linux,
}

#[derive(Clone, Debug)]
pub(super) struct Cubic {
    /// Start of this congestion avoidance, moved forward by the time during which the window was not in full use (RFC
    /// 9438 section 5.8); [`Instant::NEVER`] before its first ACK.
    epoch: Instant,
    /// Time of the last update.
    updated: Instant,
    w_max: f64,
    /// Seconds from the epoch to the plateau.
    k: f64,
    /// Estimate of Reno's window under the same losses.
    w_est: f64,
    /// Window just before the last reduction.
    prior: f64,
    /// Whether no loss has set a plateau since the start or the last timeout.
    without_plateau: bool,
}

impl Cubic {
    pub fn new() -> Cubic {
        Cubic {
            epoch: Instant::NEVER,
            updated: Instant::ZERO,
            w_max: 0.0,
            k: 0.0,
            w_est: 0.0,
            prior: 0.0,
            without_plateau: true,
        }
    }

    /// Returns the window after `acked` segments were acknowledged in congestion avoidance. It looks ahead by a round
    /// trip.
    pub fn grow(&mut self, variant: Variant, now: Instant, cwnd: f64, acked: f64, round_trip_ns: f64) -> f64 {
        if self.epoch == Instant::NEVER {
            self.begin(now, cwnd);
        }
        self.updated = now;
        let t = now.since(self.epoch).as_secs_f64();
        let ahead = t + round_trip_ns * 1e-9;
        match variant {
            Variant::Standard => self.grow_by_rfc(t, ahead, cwnd, acked),
            Variant::Linux => self.grow_by_linux(ahead, cwnd, acked),
        }
    }

    fn grow_by_rfc(&mut self, t: f64, ahead: f64, cwnd: f64, acked: f64) -> f64 {
        let increase = if self.w_est >= self.prior { 1.0 } else { ALPHA };
        self.w_est += increase * acked / cwnd;
        if self.curve(t) < self.w_est {
            return cwnd.max(self.w_est);
        }
        cwnd + (self.curve(ahead).clamp(cwnd, 1.5 * cwnd) - cwnd) * (acked / cwnd).min(1.0)
    }

    /// Grows by one segment per `per_segment` acknowledged ones, at most by half a segment for each.
    fn grow_by_linux(&mut self, ahead: f64, cwnd: f64, acked: f64) -> f64 {
        /// Acknowledged segments for the estimate's growth by one, relative to the window: 1 / [`ALPHA`] in eighths.
        const EIGHTHS: f64 = 15.0;
        /// A window without a plateau grows by at least 5 % per round trip.
        const MAX_WITHOUT_PLATEAU: f64 = 20.0;
        let whole = libm::floor(cwnd).max(1.0);
        let reaching =
            |target: f64| if target > whole { libm::floor(whole / (target - whole)) } else { 100.0 * whole };
        self.w_est += acked / libm::floor(whole * EIGHTHS / 8.0);
        let mut per_segment = reaching(self.w_max + libm::trunc(self.curve(ahead) - self.w_max));
        if self.without_plateau {
            per_segment = per_segment.min(MAX_WITHOUT_PLATEAU);
        }
        per_segment = per_segment.min(reaching(libm::floor(self.w_est)));
        cwnd + acked / per_segment.max(2.0)
    }

    /// Returns W_cubic(t) (RFC 9438 equation 1).
    fn curve(&self, t: f64) -> f64 {
        let x = t - self.k;
        C * x * x * x + self.w_max
    }

    fn begin(&mut self, now: Instant, cwnd: f64) {
        self.epoch = now;
        self.w_est = cwnd;
        if cwnd < self.w_max {
            self.k = libm::cbrt((self.w_max - cwnd) / C);
        } else {
            self.k = 0.0;
            self.w_max = cwnd;
        }
    }

    /// Records a loss or mark at this window, with fast convergence (RFC 9438 section 4.7).
    pub fn reduce(&mut self, cwnd: f64) {
        self.prior = cwnd;
        self.without_plateau = false;
        self.w_max = if cwnd < self.w_max { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        self.epoch = Instant::NEVER;
    }

    /// Restarts the curve at its plateau after a timeout (RFC 9438 section 4.8).
    pub fn timeout(&mut self) {
        self.w_max = 0.0;
        self.without_plateau = true;
        self.epoch = Instant::NEVER;
    }

    /// Excludes the time since the last update: the window was not in full use, or this was slow start.
    pub fn pause(&mut self, now: Instant) {
        if self.epoch != Instant::NEVER {
            let idle: Duration = now.since(self.updated);
            self.epoch += idle;
        }
        self.updated = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_reaches_its_estimate_of_reno_by_whole_segments() {
        // With three segments, the estimate grows by one for floor(3 * 15/8) = 5 acknowledged segments, and then the
        // window by a third of a segment for each.
        let mut cubic = Cubic::new();
        cubic.reduce(3.0);
        let mut window = 3.0;
        let mut grow = || {
            let before = window;
            window = cubic.grow(Variant::Linux, Instant::ZERO, before, 1.0, 0.0);
            1.0 / (window - before)
        };
        let per_segment: [f64; 7] = core::array::from_fn(|_| libm::round(grow()));
        assert_eq!(per_segment, [300.0, 300.0, 300.0, 300.0, 3.0, 3.0, 3.0]);
    }

    #[test]
    fn linux_grows_by_a_twentieth_without_a_plateau() {
        let mut cubic = Cubic::new();
        let window = cubic.grow(Variant::Linux, Instant::ZERO, 100.0, 1.0, 0.0);
        assert!((window - 100.05).abs() < 1e-9, "{window}");
    }
}
