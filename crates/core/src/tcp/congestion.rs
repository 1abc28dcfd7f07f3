//! The congestion window: growth on ACKs and reduction on congestion. Loss detection and recovery are elsewhere.
//!
//! Growth counts acknowledged bytes (RFC 3465), as Linux and ns-3's TcpLinuxReno count acknowledged segments: one
//! segment per window of data, with or without delayed ACKs. In slow start an ACK counts for at most two segments, or
//! one after a timeout (RFC 3465 section 2.3). Linux does not have this limit.

use super::cubic::{self, Cubic, Friendliness};
use super::hystart::HyStart;
use super::{Algorithm, TcpConfig};
use crate::time::{Duration, Instant};
use alloc::boxed::Box;

#[derive(Clone, Debug)]
pub(super) struct CongestionWindow {
    /// In bytes, with a fraction so that slow increases are not lost.
    cwnd: f64,
    /// In bytes; infinite until the first reduction.
    ssthresh: f64,
    cubic: Cubic,
    /// In the slow start of Linux's CUBIC.
    hystart: Option<Box<HyStart>>,
}

impl CongestionWindow {
    pub fn new(config: &TcpConfig) -> CongestionWindow {
        CongestionWindow {
            cwnd: initial(config),
            ssthresh: f64::INFINITY,
            cubic: Cubic::new(),
            hystart: None,
        }
    }

    /// Returns the window in whole bytes.
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

    pub fn set_to_threshold(&mut self) {
        self.cwnd = self.ssthresh;
    }

    /// Grows the window for `acked` newly acknowledged bytes that were sent while the window was full.
    #[inline]
    pub fn grow(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        smoothed_ns: f64,
        acked: u64,
        after_timeout: bool,
    ) {
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

    /// Ends slow start with [`HyStart`], as the CUBIC of Linux. Must be called before the growth for an ACK that gave a
    /// round-trip sample; `sequences` are those acknowledged and sent.
    #[inline]
    pub fn end_slow_start(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        sequences: (u64, u64),
        sample: Duration,
    ) {
        if config.algorithm != Algorithm::LinuxCubic || self.cwnd >= self.ssthresh {
            return;
        }
        let window = self.cwnd / f64::from(config.max_segment_size);
        let hystart = self.hystart.get_or_insert_with(|| Box::new(HyStart::new()));
        if hystart.handle_ack(now, sequences, window, sample) {
            self.ssthresh = self.cwnd;
            self.hystart = None;
        }
    }

    /// Sets the threshold after congestion with `flight` bytes outstanding. The caller sets the window.
    ///
    /// Reno and NewReno take half of the flight size (RFC 5681 equation 4). The other algorithms take their share of
    /// the window if the flight filled it, else of the flight. A flight is whole segments, and rounding down would
    /// bias the decrease (RFC 9438 section 4.6 allows this).
    pub fn reduce(&mut self, config: &TcpConfig, flight: u64) {
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

    /// Sets the window to one segment after a timeout (RFC 5681 section 3.1: the loss window).
    pub fn timeout(&mut self, config: &TcpConfig) {
        self.cwnd = f64::from(config.max_segment_size);
        self.cubic.timeout();
        self.hystart = None;
    }

    /// Limits the window after an idle time longer than the timeout (RFC 5681 section 4.1).
    pub fn restart(&mut self, config: &TcpConfig) {
        self.cwnd = self.cwnd.min(initial(config));
    }

    /// Pauses growth while the window is not in full use.
    #[inline]
    pub fn pause(&mut self, config: &TcpConfig, now: Instant) {
        if matches!(config.algorithm, Algorithm::Cubic | Algorithm::LinuxCubic) {
            self.cubic.pause(now);
        }
    }
}

fn initial(config: &TcpConfig) -> f64 {
    f64::from(config.initial_window.max(1)) * f64::from(config.max_segment_size)
}
