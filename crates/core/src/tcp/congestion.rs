//! The congestion window: how it grows on ACKs and shrinks on congestion, apart from how
//! losses are found and repaired.
//!
//! Growth counts acknowledged bytes (RFC 3465), as Linux and ns-3's TcpLinuxReno count
//! acknowledged segments: one segment per window of data, whether or not ACKs are delayed.
//! In slow start an ACK counts for at most two segments, one after a timeout (RFC 3465
//! section 2.3); Linux has no such limit.

use super::cubic::{self, Cubic, Friendliness};
use super::{Algorithm, Config};
use crate::time::Instant;

#[derive(Clone, Debug)]
pub(super) struct CongestionWindow {
    /// Bytes, with fractions, so that slow increases are not lost.
    cwnd: f64,
    /// Bytes; infinite until the first reduction.
    ssthresh: f64,
    cubic: Cubic,
}

impl CongestionWindow {
    pub fn new(config: &Config) -> CongestionWindow {
        CongestionWindow { cwnd: initial(config), ssthresh: f64::INFINITY, cubic: Cubic::new() }
    }

    /// Whole bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.cwnd as u64
    }

    #[inline]
    pub fn exact(&self) -> f64 {
        self.cwnd
    }

    pub fn slow_start_threshold(&self) -> f64 {
        self.ssthresh
    }

    pub fn set(&mut self, bytes: f64) {
        self.cwnd = bytes;
    }

    /// Back to the threshold, at the end of a recovery.
    pub fn set_to_threshold(&mut self) {
        self.cwnd = self.ssthresh;
    }

    /// Grow for `acked` newly acknowledged bytes that were sent with the window full.
    #[inline]
    pub fn grow(&mut self, config: &Config, now: Instant, smoothed_ns: f64, acked: u64, after_timeout: bool) {
        let segment = f64::from(config.max_segment_size);
        let acked = acked as f64;
        if self.cwnd < self.ssthresh {
            let limit = if after_timeout { segment } else { 2.0 * segment };
            self.cwnd = (self.cwnd + acked.min(limit)).min(self.ssthresh);
            self.pause(config, now);
            return;
        }
        match config.algorithm {
            Algorithm::Reno | Algorithm::NewReno => self.cwnd += segment * acked / self.cwnd,
            Algorithm::Aimd { increase, .. } => self.cwnd += increase * segment * acked / self.cwnd,
            Algorithm::Cubic | Algorithm::LinuxCubic => {
                let friendliness = match config.algorithm {
                    Algorithm::LinuxCubic => Friendliness::Linux,
                    _ => Friendliness::Standard,
                };
                let (cwnd, acked) = (self.cwnd / segment, acked / segment);
                self.cwnd = self.cubic.grow(friendliness, now, cwnd, acked, smoothed_ns) * segment;
            }
        }
    }

    /// Set the threshold after congestion found with `flight` bytes outstanding. The window
    /// itself is the recovery's to set.
    ///
    /// Reno and NewReno take half of the flight size (RFC 5681 equation 4). The others take
    /// their share of the window if the flight filled it, and of the flight if not: a flight is
    /// whole segments, and rounding down would bias the decrease (RFC 9438 section 4.6 allows it).
    pub fn reduce(&mut self, config: &Config, flight: u64) {
        let segment = f64::from(config.max_segment_size);
        let flight = flight as f64;
        let used = if flight <= self.cwnd && flight + segment > self.cwnd { self.cwnd } else { flight };
        let reduced = match config.algorithm {
            Algorithm::Reno | Algorithm::NewReno => flight / 2.0,
            Algorithm::Aimd { decrease, .. } => used * (1.0 - decrease),
            Algorithm::Cubic | Algorithm::LinuxCubic => {
                self.cubic.reduce(used / segment);
                used * cubic::BETA
            }
        };
        self.ssthresh = reduced.max(2.0 * segment);
    }

    /// One segment, after a timeout (RFC 5681 section 3.1: the loss window).
    pub fn timeout(&mut self, config: &Config) {
        self.cwnd = f64::from(config.max_segment_size);
        self.cubic.timeout();
    }

    /// Nothing was sent for longer than the timeout (RFC 5681 section 4.1).
    pub fn restart(&mut self, config: &Config) {
        self.cwnd = self.cwnd.min(initial(config));
    }

    /// The window grows by no ACK now, because it is not in full use.
    #[inline]
    pub fn pause(&mut self, config: &Config, now: Instant) {
        if matches!(config.algorithm, Algorithm::Cubic | Algorithm::LinuxCubic) {
            self.cubic.pause(now);
        }
    }
}

fn initial(config: &Config) -> f64 {
    f64::from(config.initial_window.max(1)) * f64::from(config.max_segment_size)
}
