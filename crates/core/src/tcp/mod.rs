//! TCP of the simulated hosts: data in one direction, acknowledgments in the other.
//!
//! [`TcpDataSender`] and [`TcpDataReceiver`] are sans-I/O. Sequence numbers are 64-bit byte offsets, so they never wrap. Flows
//! share a configuration, which is passed to each call, so that the state of a flow stays small. Only losses and
//! reordering need memory beyond the two structs, and only while they last.
//!
//! Omitted, because they do not change the rates of flows: connection closing, the urgent pointer, zero-window probes
//! (the receiver's window never closes), Nagle's algorithm (every flow sets TCP_NODELAY), the third segment of the
//! handshake (the first data segment replaces it), duplicate SACK (RFC 2883) and, with the choices of the RFCs, undoing
//! needless reductions.

mod congestion;
mod cubic;
pub mod diagnosis;
pub mod event;
pub mod history;
mod hystart;
mod hystart_plus_plus;
mod limit_detector;
mod prr;
mod rack;
mod ranges;
mod receiver;
mod rtt;
mod scoreboard;
mod sender;

pub use event::{CongestionEvent, WindowChangeCause};
pub use limit_detector::LimitDetector;
pub use receiver::TcpDataReceiver;
pub use sender::TcpDataSender;

use crate::time::{Duration, Instant};

/// Configuration of a flow's TCP.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpConfig {
    /// Choices that the RFCs leave to the implementation.
    pub stack: Stack,
    /// Congestion control algorithm.
    pub algorithm: Algorithm,
    /// End of slow start of algorithms that have no rule of their own.
    pub slow_start: SlowStart,
    /// Whether to use selective acknowledgments (RFC 2018) and recover by them.
    pub sack: bool,
    /// Loss detection of a sender with SACK.
    pub loss_detection: LossDetection,
    /// Whether to negotiate and obey ECN (RFC 3168).
    pub ecn: bool,
    /// Whether to use the timestamps option (RFC 7323): 12 bytes per segment, one RTT sample per ACK.
    pub timestamps: bool,
    /// Maximum payload of a segment, in bytes.
    pub max_segment_size: u32,
    /// Advertised window of the receiver, in bytes.
    pub window: u64,
    /// Initial congestion window, in segments.
    pub initial_window: u32,
    /// Number of full segments per ACK (RFC 1122: at most two).
    pub ack_every: u32,
    /// Maximum delay of an ACK.
    pub delayed_ack: Duration,
    /// Minimum retransmission timeout (RFC 6298 recommends 1 s).
    pub min_rto: Duration,
    /// Retransmission timeout before the first RTT sample.
    pub initial_rto: Duration,
    /// Whether to send a new segment on each of the first two duplicate ACKs (RFC 3042).
    pub limited_transmit: bool,
    /// Whether to open with SYN and SYN-ACK; otherwise data starts at once.
    pub handshake: bool,
}

impl Default for TcpConfig {
    /// Returns NewReno with SACK, the values the RFCs recommend, and the initial window of RFC 6928.
    fn default() -> TcpConfig {
        TcpConfig {
            stack: Stack::Rfc,
            algorithm: Algorithm::NewReno,
            slow_start: SlowStart::Standard,
            sack: true,
            loss_detection: LossDetection::DuplicateAcks,
            ecn: false,
            timestamps: false,
            max_segment_size: 1460,
            window: 1 << 20,
            initial_window: 10,
            ack_every: 2,
            delayed_ack: Duration::from_millis(200),
            min_rto: Duration::from_secs(1),
            initial_rto: Duration::from_secs(1),
            limited_transmit: true,
            handshake: true,
        }
    }
}

impl TcpConfig {
    /// Returns the configuration with the choices and constants of Linux 6.18. Algorithm, options, segment size and
    /// windows stay, but CUBIC is that of Linux.
    pub fn like_linux(self) -> TcpConfig {
        TcpConfig {
            stack: Stack::Linux,
            algorithm: match self.algorithm {
                Algorithm::Cubic => Algorithm::LinuxCubic,
                algorithm => algorithm,
            },
            slow_start: SlowStart::Standard,
            loss_detection: LossDetection::Rack,
            ack_every: 2,
            delayed_ack: Duration::from_millis(40),
            min_rto: Duration::from_millis(200),
            initial_rto: Duration::from_secs(1),
            limited_transmit: true,
            handshake: true,
            ..self
        }
    }
}

/// Implementation whose choices apply where the RFCs allow several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// The recommendations of the RFCs.
    Rfc,
    /// Linux 6.18: segments leave in bursts of two or more, and the last one of an odd number waits for the next ACK.
    /// The minimum retransmission timeout is added to the smoothed round trip. Slow start counts every acknowledged
    /// segment, and congestion avoidance divides by the whole segments of the window. Reductions take their share of the
    /// window, not of the flight, in whole segments, and a timeout in a recovery is part of its reduction. With SACK,
    /// F-RTO (RFC 5682) follows a timeout, and needless reductions are undone (RFC 3522). Without SACK, duplicate ACKs
    /// count as arrived segments, each partial ACK restarts the timer ("slow but steady", RFC 6582 section 4), and the
    /// window falls by Proportional Rate Reduction (RFC 9937).
    Linux,
}

/// End of slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowStart {
    /// At the first loss or mark (RFC 5681).
    Standard,
    /// The first slow start also ends when the delay increases: HyStart++ (RFC 9406).
    HyStartPlusPlus,
}

/// Congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// RFC 5681 with Reno's fast recovery, which ends at the first new ACK.
    Reno,
    /// RFC 5681 with NewReno's fast recovery (RFC 6582).
    NewReno,
    /// CUBIC (RFC 9438).
    Cubic,
    /// CUBIC with the Reno-friendly region of Linux. Its increase is never raised to one segment per round trip, so
    /// it is no faster than Reno at small windows. Slow start ends by HyStart.
    LinuxCubic,
    /// AIMD(a, b) with NewReno's recovery: `a` segments per round trip, decrease to `1 - b`.
    Aimd {
        /// Additive increase, segments per round trip.
        increase: f64,
        /// Multiplicative decrease, in (0, 1).
        decrease: f64,
    },
}

impl Algorithm {
    /// Returns the name used in scenarios and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Reno => "reno",
            Algorithm::NewReno => "newreno",
            Algorithm::Cubic => "cubic",
            Algorithm::LinuxCubic => "linux-cubic",
            Algorithm::Aimd { .. } => "aimd",
        }
    }
}

/// Loss detection and window reduction of a sender with SACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossDetection {
    /// A segment is lost once three segments or ranges above it are received (RFC 6675). The window is reduced at
    /// once. A lost retransmission waits for the timer.
    DuplicateAcks,
    /// A segment is lost once one sent later has arrived and a reordering window has passed (RACK-TLP, RFC 8985), as
    /// in Linux. Includes limited transmit, tail-loss probes and Proportional Rate Reduction (RFC 9937). A sender
    /// without SACK ignores this setting.
    Rack,
}

/// A segment from sender to receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// Offset of the first payload byte.
    pub seq: u64,
    /// Timestamp value, echoed by the receiver.
    pub sent: Instant,
    /// Payload bytes; 0 for a SYN.
    pub len: u32,
    /// Whether the segment opens the connection.
    pub syn: bool,
    /// Whether the sender has reduced its window (RFC 3168 section 6.1.2).
    pub cwr: bool,
    /// Whether the segment is a retransmission.
    pub retransmission: bool,
}

/// An acknowledgment from receiver to sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Next byte expected.
    pub ack: u64,
    /// Timestamp of the segment that caused this ACK (RFC 7323 section 4.3).
    pub echo: Instant,
    /// Advertised window, in bytes.
    pub window: u32,
    /// Up to three blocks received out of order, newest first, each with its start relative to `ack` and its length,
    /// in bytes. An empty block ends the list.
    pub sack: [(u32, u32); 3],
    /// Whether the ACK answers a SYN.
    pub syn: bool,
    /// Whether the ACK echoes a congestion mark (RFC 3168 section 6.1.3).
    pub ece: bool,
}

impl DataSegment {
    /// Returns whether the segment is sent as ECN-capable. Only new data is: neither a SYN nor a retransmission may
    /// carry ECT (RFC 3168 sections 6.1.1 and 6.1.5).
    #[inline]
    pub fn ecn_capable(&self, config: &TcpConfig) -> bool {
        config.ecn && !self.syn && !self.retransmission
    }
}
