//! TCP as the simulator's hosts speak it: one direction of data, acknowledgements back.
//!
//! [`Sender`] and [`Receiver`] are sans-IO. Sequence numbers are 64-bit byte offsets, so
//! they never wrap; the connection's configuration is shared by all its flows and passed
//! in, so a flow's own state stays small. Losses and reordering alone need memory beyond
//! the two structs, and only while they last.
//!
//! What is left out, because it does not change who gets what rate: connection closing,
//! the urgent pointer, zero-window probes (the receiver's window never closes), Nagle's
//! algorithm (every flow sets TCP_NODELAY), the third segment of the handshake (the first
//! data takes its place), duplicate-SACK (RFC 2883) and undoing spurious retransmissions.

mod congestion;
mod cubic;
pub mod event;
pub mod history;
mod limited;
mod prr;
mod rack;
mod ranges;
mod receiver;
mod rtt;
mod scoreboard;
mod sender;

pub use event::{Cause, Event};
pub use limited::Limited;
pub use receiver::Receiver;
pub use sender::Sender;

use crate::time::{Duration, Instant};

/// How a flow's TCP behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How the congestion window grows and shrinks.
    pub algorithm: Algorithm,
    /// Selective acknowledgements (RFC 2018) and recovery by them.
    pub sack: bool,
    /// What tells a loss where there is SACK.
    pub loss_detection: LossDetection,
    /// Negotiate and obey ECN (RFC 3168).
    pub ecn: bool,
    /// Timestamps option (RFC 7323): 12 bytes a segment, one RTT sample per ACK.
    pub timestamps: bool,
    /// Largest payload of a segment, bytes.
    pub max_segment_size: u32,
    /// The receiver's advertised window, bytes.
    pub window: u64,
    /// Initial congestion window, segments.
    pub initial_window: u32,
    /// Acknowledge every this many full segments (RFC 1122: at least every second).
    pub ack_every: u32,
    /// Longest time an ACK is held back.
    pub delayed_ack: Duration,
    /// Lower bound of the retransmission timeout (RFC 6298 recommends 1 s).
    pub min_rto: Duration,
    /// Timeout before the first RTT sample.
    pub initial_rto: Duration,
    /// Send a new segment on each of the first two duplicate ACKs (RFC 3042).
    pub limited_transmit: bool,
    /// Open with SYN and SYN-ACK; otherwise data starts at once.
    pub handshake: bool,
}

impl Default for Config {
    /// NewReno with SACK, the values the RFCs recommend, and RFC 6928's initial window.
    fn default() -> Config {
        Config {
            algorithm: Algorithm::NewReno,
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

/// How the congestion window grows and shrinks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// RFC 5681 with Reno's fast recovery, which ends at the first new ACK.
    Reno,
    /// RFC 5681 with NewReno's fast recovery (RFC 6582).
    NewReno,
    /// CUBIC (RFC 9438).
    Cubic,
    /// CUBIC, beside Reno as Linux has it: it never grows faster than RFC 9438's estimate before it has
    /// caught up, and so is no faster than Reno where windows are small.
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
    /// Its name in scenarios and reports.
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

/// What tells a sender with SACK that a segment is lost, and how it then reduces its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossDetection {
    /// Three segments or ranges received above it (RFC 6675); the window is reduced at once. A
    /// retransmission that is lost waits for the timer.
    DuplicateAcks,
    /// Time: one that left later has arrived (RACK-TLP, RFC 8985); tail-loss probes, and Proportional
    /// Rate Reduction (RFC 9937). What Linux does. Limited transmit is part of it; a sender without
    /// SACK takes no notice of it.
    Rack,
}

/// A segment from sender to receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Offset of the first payload byte.
    pub seq: u64,
    /// Timestamp value, echoed by the receiver.
    pub sent: Instant,
    /// Payload bytes; 0 for a SYN.
    pub len: u32,
    /// Opens the connection.
    pub syn: bool,
    /// The sender has reduced its window (RFC 3168 section 6.1.2).
    pub cwr: bool,
    /// Sent before.
    pub retransmission: bool,
}

/// An acknowledgement from receiver to sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Next byte expected.
    pub ack: u64,
    /// Timestamp of the segment that caused this ACK (RFC 7323 section 4.3).
    pub echo: Instant,
    /// Advertised window, bytes.
    pub window: u32,
    /// Up to three blocks received out of order, newest first: start relative to `ack`,
    /// and length, in bytes; an empty block ends the list.
    pub sack: [(u32, u32); 3],
    /// Answers a SYN.
    pub syn: bool,
    /// Echoes a congestion mark (RFC 3168 section 6.1.3).
    pub ece: bool,
}

impl Data {
    /// Whether the segment travels as ECN-capable: new data only, since neither a SYN nor a
    /// retransmission may carry ECT (RFC 3168 sections 6.1.1 and 6.1.5).
    #[inline]
    pub fn ecn_capable(&self, config: &Config) -> bool {
        config.ecn && !self.syn && !self.retransmission
    }
}
