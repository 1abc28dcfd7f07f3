//! What an agent found. Travels as JSON inside the messages of the agents' protocol and
//! is spooled in the same form.

use crate::service::ServiceResult;
use netstage_core::tcp::history::Bin;
use netstage_core::traffic::application::Quality;
use serde::{Deserialize, Serialize};

/// Everything one agent found in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the node it stands for.
    pub node: String,
    /// Its flows, in the order of the assignment.
    pub flows: Vec<FlowResult>,
    /// The VPN flows that enter at it, where it is a provider edge router.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vpns: Vec<VpnResult>,
    /// What the agent's process took up to the start, and to the end of each bin, where it is a router.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usage: Vec<Usage>,
    /// What happened to the windows of the flows it sends, where that was asked for.
    #[serde(default, skip_serializing_if = "Watched::is_empty")]
    pub watched: Watched,
    /// The services whose client it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceResult>,
    /// What a reader must know before trusting the figures.
    pub warnings: Vec<String>,
    /// Why the measurement is void: the agent itself fell short.
    pub void: Vec<String>,
    /// Somebody ended the run before its time: what is here, is of its beginning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// A VPN flow, at the provider edge router where it enters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VpnResult {
    /// Name of the VPN.
    pub vpn: String,
    /// Packets that waited, mean of each bin.
    pub queue: Vec<f64>,
    /// Packets the queue refused in each bin.
    pub queue_drops: Vec<u64>,
    /// Its window at the end of each bin; empty where it has none.
    pub window: Vec<WindowSample>,
}

/// What a process has taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time of its own code, nanoseconds.
    pub user_ns: u64,
    /// Processor time of the kernel on its behalf, nanoseconds.
    pub system_ns: u64,
    /// Resident memory, bytes.
    pub resident: u64,
}

/// The window of a VPN flow at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowSample {
    /// Packets.
    pub window: f64,
    /// Additive increase a, packets per round trip.
    pub increase: f64,
    /// Multiplicative decrease b.
    pub decrease: f64,
    /// Measured loss, as the control uses it.
    pub loss: f64,
    /// Smoothed round trip, nanoseconds; zero before the first reply.
    pub round_trip_ns: u64,
    /// Packets lost in the core so far.
    pub lost: u64,
}

/// One side of one flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowResult {
    /// Name of the flow.
    pub name: String,
    /// Whether this is the sending side.
    pub sends: bool,
    /// Counts of each bin.
    pub bins: Vec<Counts>,
    /// Sender's TCP at the end of each bin; empty without detail and for other transports.
    pub tcp: Vec<TcpSample>,
    /// Travel times of each bin, where this side sees them; empty without detail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub travel: Vec<Travel>,
    /// One-way delay, nanoseconds, where this side sees it.
    pub delay: Buckets,
    /// One-way delay of answers, nanoseconds, where the sender sees it (STAMP); `delay` is then that
    /// of what they answer.
    #[serde(default)]
    pub answer_delay: Buckets,
    /// Variation of the delay between packets sent one after the other (RFC 3393), magnitude, nanoseconds.
    pub delay_variation: Buckets,
    /// Round trip, nanoseconds, where the sender sees it.
    pub round_trip: Buckets,
    /// Gaps between packets as sent, nanoseconds.
    pub gaps: Buckets,
    /// How well the sender kept its schedule.
    pub schedule: Option<Schedule>,
    /// What the user at this end noticed in each bin; empty where the flow's traffic is a
    /// pattern. Both ends of an application count what they send and receive.
    #[serde(default)]
    pub quality: Vec<Quality>,
    /// Packets the receiver's own socket lost because nobody read them in time.
    pub socket_drops: u64,
    /// When the last bytes came, nanoseconds since the start of the run (receiver of a stream).
    #[serde(default)]
    pub last_bytes_ns: Option<u64>,
    /// Why it ended early.
    pub error: Option<String>,
}

/// What was counted in one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Packets sent (sender).
    pub sent: u64,
    /// Payload bytes handed to the transport (sender).
    pub sent_bytes: u64,
    /// Payload bytes the pattern asked for (sender).
    pub offered_bytes: u64,
    /// Packets received, duplicates not counted (receiver).
    pub received: u64,
    /// Payload bytes delivered to the application, duplicates not counted (receiver).
    pub received_bytes: u64,
    /// Packets lost, in the bin in which the loss was seen (receiver).
    pub lost: u64,
    /// Packets received more than once (receiver).
    pub duplicated: u64,
    /// Packets that arrived after one sent later (receiver; RFC 4737).
    pub reordered: u64,
    /// Packets whose payload differs from what was sent (receiver).
    pub corrupted: u64,
    /// Bits that differ (receiver).
    pub bit_errors: u64,
}

impl Counts {
    /// Adds what else was counted. Another host may tell anything: sums stop at the largest number.
    pub fn add(&mut self, more: &Counts) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.sent, more.sent);
        add(&mut self.sent_bytes, more.sent_bytes);
        add(&mut self.offered_bytes, more.offered_bytes);
        add(&mut self.received, more.received);
        add(&mut self.received_bytes, more.received_bytes);
        add(&mut self.lost, more.lost);
        add(&mut self.duplicated, more.duplicated);
        add(&mut self.reordered, more.reordered);
        add(&mut self.corrupted, more.corrupted);
        add(&mut self.bit_errors, more.bit_errors);
    }
}

/// A sender's TCP at one moment (TCP_INFO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpSample {
    /// Congestion window, segments.
    pub window: u32,
    /// Slow-start threshold, segments.
    pub slow_start_threshold: u32,
    /// Smoothed round trip, nanoseconds.
    pub round_trip_ns: u64,
    /// Smallest round trip, nanoseconds.
    pub min_round_trip_ns: u64,
    /// Segments sent again so far.
    pub retransmissions: u64,
    /// Window the peer advertises, bytes.
    pub peer_window: u64,
    /// Delivery rate, bits per second of payload.
    pub delivery_rate_bps: u64,
    /// Time limited by the peer's window so far, nanoseconds.
    pub peer_window_limited_ns: u64,
    /// Time limited by the send buffer so far, nanoseconds.
    pub send_buffer_limited_ns: u64,
    /// Time busy sending so far, nanoseconds.
    pub busy_ns: u64,
}

impl TcpSample {
    /// Whether there was a connection to ask.
    pub fn is_known(&self) -> bool {
        self.round_trip_ns > 0
    }
}

/// Travel times of the packets of one bin: one way at a receiver, there and back at a
/// one-ended sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Travel {
    /// Packets whose travel time is known.
    pub count: u64,
    /// Sum of theirs, nanoseconds.
    pub sum_ns: u64,
    /// The least, nanoseconds; zero where there are none.
    pub min_ns: u64,
    /// The largest, nanoseconds.
    pub max_ns: u64,
    /// Differences between packets sent one after the other (RFC 3393).
    pub variation_count: u64,
    /// Sum of their magnitudes, nanoseconds.
    pub variation_sum_ns: u64,
    /// The differences smoothed, at the end of the bin (RFC 3550 section 6.4.1), nanoseconds.
    pub jitter_ns: u64,
}

/// How well a sender kept its schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Packets the pattern asked for.
    pub asked: u64,
    /// Packets sent.
    pub sent: u64,
    /// Rate over asked rate, less one.
    pub rate_error: f64,
    /// Share of gaps within 5 % of those asked.
    pub gaps_within_5_percent: f64,
    /// Lateness of sending, nanoseconds: median, 99th percentile, largest.
    pub late_ns: (u64, u64, u64),
}

/// A bin that has ended on one side of a flow, told while the run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndedBin {
    /// Number of the flow.
    pub flow: u32,
    /// Whether this is the sending side.
    pub sends: bool,
    /// Number of the bin.
    pub bin: u32,
    /// What was counted in it so far.
    pub counts: Counts,
    /// The sender's TCP at its end, where asked for.
    pub tcp: Option<TcpSample>,
    /// Travel times of its packets, where this side sees them.
    pub travel: Option<Travel>,
}

/// What happened to a flow's TCP window in a bin that has ended, told while the run goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndedWindow {
    /// The flow, or one direction of it.
    pub subject: String,
    /// Number of the bin.
    pub bin: u32,
    /// What happened in it so far.
    pub window: Bin,
}

/// A VPN flow at the provider edge router where it enters, at the end of a bin, told while the run goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndedVpn {
    /// Name of the VPN.
    pub vpn: String,
    /// Number of the bin.
    pub bin: u32,
    /// Packets that waited, mean of the bin.
    pub queue: f64,
    /// Packets the queue refused in it.
    pub queue_drops: u64,
    /// Its window at the end; none where it has none.
    pub window: Option<WindowSample>,
}

/// What has ended since it was told of before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    /// Of sides of flows.
    pub bins: Vec<EndedBin>,
    /// Of watched windows.
    pub windows: Vec<EndedWindow>,
    /// Of VPN flows.
    pub vpns: Vec<EndedVpn>,
}

impl Ended {
    /// Adds what ended after it.
    pub fn extend(&mut self, later: Ended) {
        self.bins.extend(later.bins);
        self.windows.extend(later.windows);
        self.vpns.extend(later.vpns);
    }
}

/// What happened to the windows of TCP flows that were watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    /// Of each flow, by its subject.
    pub flows: Vec<(String, Vec<Bin>)>,
    /// What the kernel had no room to tell.
    pub lost: u64,
    /// What this kernel does not tell.
    pub missing: Vec<String>,
}

impl Watched {
    /// Whether nothing was watched.
    pub fn is_empty(&self) -> bool {
        *self == Watched::default()
    }
}

/// A histogram: values and how often each occurred, ascending. Values are rounded as an HDR
/// histogram of three significant digits rounds them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Buckets(pub Vec<(u64, u64)>);
