//! CUBIC's curve (RFC 9438). Windows are in segments here.
//!
//! HyStart++ is left out: the slow start is the standard one.
//!
//! Linux (tcp_cubic.c) departs from the RFC in the Reno-friendly region, which decides at small windows.
//! The RFC gives Reno's increase, a segment per round trip, once its estimate of Reno's window is back where
//! the last loss was, and takes the estimate for the window at once. Linux keeps to the smaller increase, and
//! follows the estimate by its distance per round trip: as fast as Reno, where the RFC's way is faster.

use crate::time::{Duration, Instant};

/// RFC 9438 section 5.
const C: f64 = 0.4;
/// RFC 9438 section 4.6.
pub(super) const BETA: f64 = 0.7;
/// Additive increase that gives Reno's rate with CUBIC's decrease (RFC 9438 section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Whose growth beside Reno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Friendliness {
    /// RFC 9438 section 4.3.
    Standard,
    Linux,
}

#[derive(Clone, Debug)]
pub(super) struct Cubic {
    /// Begin of this congestion avoidance, moved on by the time when the window was not in
    /// full use (RFC 9438 section 5.8); "never" before its first ACK.
    epoch: Instant,
    /// When the window was last looked at.
    updated: Instant,
    w_max: f64,
    /// Seconds from the epoch to the plateau.
    k: f64,
    /// Reno's window under the same losses.
    w_est: f64,
    /// The window just before the last reduction.
    prior: f64,
}

impl Cubic {
    pub fn new() -> Cubic {
        Cubic { epoch: Instant::NEVER, updated: Instant::ZERO, w_max: 0.0, k: 0.0, w_est: 0.0, prior: 0.0 }
    }

    /// The window after `acked` segments were acknowledged in congestion avoidance.
    pub fn grow(
        &mut self,
        friendliness: Friendliness,
        now: Instant,
        cwnd: f64,
        acked: f64,
        smoothed_ns: f64,
    ) -> f64 {
        if self.epoch == Instant::NEVER {
            self.begin(now, cwnd);
        }
        self.updated = now;
        let t = now.since(self.epoch).as_secs_f64();
        let caught_up = self.w_est >= self.prior && friendliness == Friendliness::Standard;
        let pace = if caught_up { 1.0 } else { ALPHA };
        self.w_est += pace * acked / cwnd;
        let mut target = self.curve(t + smoothed_ns * 1e-9);
        match friendliness {
            Friendliness::Standard if self.curve(t) < self.w_est => return cwnd.max(self.w_est),
            Friendliness::Standard => {}
            Friendliness::Linux => target = target.max(self.w_est),
        }
        cwnd + (target.clamp(cwnd, 1.5 * cwnd) - cwnd) * (acked / cwnd).min(1.0)
    }

    /// W_cubic(t), equation 1.
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

    /// A loss or mark at this window, with fast convergence (RFC 9438 section 4.7).
    pub fn reduce(&mut self, cwnd: f64) {
        self.prior = cwnd;
        self.w_max = if cwnd < self.w_max { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        self.epoch = Instant::NEVER;
    }

    /// After a timeout the curve begins at its plateau (RFC 9438 section 4.8).
    pub fn timeout(&mut self) {
        self.w_max = 0.0;
        self.epoch = Instant::NEVER;
    }

    /// The window is not in use, or in slow start: this time does not count.
    pub fn pause(&mut self, now: Instant) {
        if self.epoch != Instant::NEVER {
            let idle: Duration = now.since(self.updated);
            self.epoch += idle;
        }
        self.updated = now;
    }
}
