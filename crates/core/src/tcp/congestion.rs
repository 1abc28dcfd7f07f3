//! The congestion window: growth on ACKs and reduction on congestion. Loss detection and recovery are elsewhere.
//!
//! Growth counts acknowledged bytes (RFC 3465), as Linux and ns-3's TcpLinuxReno count acknowledged segments: one
//! segment per window of data, with or without delayed ACKs. In slow start an ACK counts for at most two segments, or
//! one after a timeout (RFC 3465 section 2.3), except with the choices of Linux.

use super::cubic::{self, Cubic, Variant};
use super::hystart::HyStart;
use super::hystart_plus_plus::HyStartPlusPlus;
use super::rtt::RttEstimator;
use super::{Algorithm, SlowStart, Stack, TcpConfig};
use crate::time::{Duration, Instant};
use alloc::boxed::Box;

#[derive(Clone, Debug)]
pub(super) struct CongestionWindow {
    /// In bytes, with a fraction so that slow increases are not lost.
    cwnd: f64,
    /// In bytes; infinite until the first reduction.
    ssthresh: f64,
    cubic: Cubic,
    /// Detects the end of slow start.
    detector: Option<Box<Detector>>,
}

#[derive(Clone, Debug)]
enum Detector {
    /// Of Linux's CUBIC.
    HyStart(HyStart),
    HyStartPlusPlus(HyStartPlusPlus),
}

impl CongestionWindow {
    pub fn new(config: &TcpConfig) -> CongestionWindow {
        CongestionWindow {
            cwnd: initial(config),
            ssthresh: f64::INFINITY,
            cubic: Cubic::new(),
            detector: None,
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
        round_trip: &RttEstimator,
        acked: u64,
        after_timeout: bool,
    ) {
        let segment = f64::from(config.max_segment_size);
        let acked = acked as f64;
        if self.cwnd < self.ssthresh {
            let limit = match (config.stack, after_timeout) {
                (Stack::Linux, _) => f64::INFINITY,
                (Stack::Rfc, true) => segment,
                (Stack::Rfc, false) => 2.0 * segment,
            };
            let divisor = match self.detector.as_deref() {
                Some(Detector::HyStartPlusPlus(detector)) => detector.growth_divisor(),
                _ => 1.0,
            };
            self.cwnd = (self.cwnd + acked.min(limit) / divisor).min(self.ssthresh);
            self.pause(config, now);
            return;
        }
        let round = match config.stack {
            Stack::Rfc => self.cwnd,
            Stack::Linux => whole_segments(config, self.cwnd).max(segment),
        };
        match config.algorithm {
            Algorithm::Reno | Algorithm::NewReno => self.cwnd += segment * acked / round,
            Algorithm::Aimd { increase, .. } => self.cwnd += increase * segment * acked / round,
            Algorithm::Cubic | Algorithm::LinuxCubic => {
                let (variant, round_trip_ns) = match config.algorithm {
                    Algorithm::LinuxCubic => (Variant::Linux, round_trip.min_ns()),
                    _ => (Variant::Standard, round_trip.smoothed_ns()),
                };
                let (cwnd, acked) = (self.cwnd / segment, acked / segment);
                self.cwnd = self.cubic.grow(variant, now, cwnd, acked, round_trip_ns) * segment;
            }
        }
    }

    /// Ends slow start by HyStart or HyStart++. Must be called before the growth for an ACK that gave a round-trip sample;
    /// `sequences` are those acknowledged and sent.
    #[inline]
    pub fn end_slow_start(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        sequences: (u64, u64),
        sample: Duration,
    ) {
        let new = match config {
            _ if self.cwnd >= self.ssthresh => return,
            TcpConfig { algorithm: Algorithm::LinuxCubic, .. } => || Detector::HyStart(HyStart::new()),
            TcpConfig { slow_start: SlowStart::HyStartPlusPlus, .. } if self.ssthresh.is_infinite() => {
                || Detector::HyStartPlusPlus(HyStartPlusPlus::new())
            }
            _ => return,
        };
        let window = self.cwnd / f64::from(config.max_segment_size);
        let ends = match &mut **self.detector.get_or_insert_with(|| Box::new(new())) {
            Detector::HyStart(detector) => detector.handle_ack(now, sequences, window, sample),
            Detector::HyStartPlusPlus(detector) => detector.handle_ack(sequences, sample),
        };
        if ends {
            self.ssthresh = self.cwnd;
            self.detector = None;
        }
    }

    /// Sets the threshold after congestion with `flight` bytes outstanding. The caller sets the window.
    ///
    /// Reno and NewReno take half of the flight size (RFC 5681 equation 4). The other algorithms take their share of
    /// the window if the flight filled it, else of the flight. A flight is whole segments, and rounding down would
    /// bias the decrease (RFC 9438 section 4.6 allows this). Linux takes the share of the window, in whole segments.
    pub fn reduce(&mut self, config: &TcpConfig, flight: u64) {
        let segment = f64::from(config.max_segment_size);
        let flight = flight as f64;
        let whole = |bytes| whole_segments(config, bytes);
        let full = flight <= self.cwnd && flight + segment > self.cwnd;
        let (flight, used) = match config.stack {
            Stack::Rfc => (flight, if full { self.cwnd } else { flight }),
            Stack::Linux => (whole(self.cwnd), whole(self.cwnd)),
        };
        let reduced = match config.algorithm {
            Algorithm::Reno | Algorithm::NewReno => flight / 2.0,
            Algorithm::Aimd { decrease, .. } => used * (1.0 - decrease),
            Algorithm::Cubic | Algorithm::LinuxCubic => {
                self.cubic.reduce(used / segment);
                used * cubic::BETA
            }
        };
        let reduced = if config.stack == Stack::Linux { whole(reduced) } else { reduced };
        self.ssthresh = reduced.max(2.0 * segment);
    }

    /// Sets the window to one segment after a timeout (RFC 5681 section 3.1: the loss window).
    pub fn timeout(&mut self, config: &TcpConfig) {
        self.cwnd = f64::from(config.max_segment_size);
        self.cubic.timeout();
        self.detector = None;
    }

    /// Restores the window and the threshold from before a needless reduction.
    pub fn restore(&mut self, cwnd: f64, ssthresh: f64) {
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = self.ssthresh.max(ssthresh);
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

fn whole_segments(config: &TcpConfig, bytes: f64) -> f64 {
    let segment = f64::from(config.max_segment_size);
    libm::floor(bytes / segment) * segment
}
