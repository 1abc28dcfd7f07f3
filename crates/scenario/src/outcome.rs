//! Outcome of one run of a plan on any stage, and the registry of metrics.

pub mod finding;

use finding::{PacketFault, TestOutcome};
use netstage_core::measure::Arrivals;
use netstage_core::measure::trial::LinkLateness;
use netstage_core::quantity::BitRate;
use netstage_core::time::{Duration, Instant};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Aggregation of the values of one bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// Mean over the bin.
    Mean,
    /// Sum over the bin.
    Sum,
    /// Value at the end of the bin.
    Last,
    /// Largest value in the bin.
    Max,
}

/// Registry entry of a metric, copied into every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricInfo {
    /// Name used in `[expect]`, `[plot]` and records.
    pub name: &'static str,
    /// Unit of the values; empty if none.
    pub unit: &'static str,
    /// Layer at which a rate or size is counted, or empty.
    pub layer: &'static str,
    /// Aggregation of a bin's values.
    pub aggregation: Aggregation,
    /// One-line description.
    pub help: &'static str,
}

impl Metric {
    /// Returns whether the metric requires the recording of window events (`[measure] tcp = "events"`).
    pub fn is_of_tcp_events(self) -> bool {
        (Metric::FlowWindowPeak..=Metric::FlowLimitedSendBuffer).contains(&self)
    }

    /// Returns whether the metric is measured at a flow's sender. A flow with several receivers has one subject
    /// for such metrics, and one per receiver for the others.
    pub fn is_of_sender(self) -> bool {
        use Metric::*;
        matches!(self, FlowOffered | FlowSent | FlowGap | FlowGapScheduled | FlowLateness)
    }

    /// Returns whether the metric is a result of tests: one number per test and frame size, none per bin.
    pub fn is_finding(self) -> bool {
        self.info().name.starts_with("test.")
    }
}

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $variant:ident = $name:literal $(| $former:literal)?, $unit:literal, $layer:literal, $aggregation:ident;)+) => {
        /// Metrics that netstage measures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Metric {
            $($(#[doc = $help])+ #[serde(rename = $name $(, alias = $former)?)] $variant,)+
        }

        impl Metric {
            /// All metrics, in the order of the registry.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant,)+];

            /// Returns the metric of this name, which may be one of version 0.1.
            pub fn by_name(name: &str) -> Option<Metric> {
                match name {
                    $($name $(| $former)? => Some(Metric::$variant),)+
                    _ => None,
                }
            }

            /// Returns the registry entry.
            pub fn info(self) -> MetricInfo {
                match self {
                    $(Metric::$variant => MetricInfo {
                        name: $name,
                        unit: $unit,
                        layer: $layer,
                        aggregation: Aggregation::$aggregation,
                        help: concat!($($help),+).trim_ascii(),
                    },)+
                }
            }
        }
    };
}

/// Returns the current name of a metric that may have a name of version 0.1. Unknown names are unchanged.
pub fn current_name(name: &str) -> &str {
    Metric::by_name(name).map_or(name, |metric| metric.info().name)
}

/// Deserializes the name of a metric as its current name.
pub fn metric_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(current_name(&String::deserialize(deserializer)?).to_owned())
}

metrics! {
    /// Payload delivered in order to the receiving application.
    FlowThroughput = "flow.throughput", "bit/s", "payload", Mean;
    /// Payload offered by the application (patterns other than bulk).
    FlowOffered = "flow.offered", "bit/s", "payload", Mean;
    /// Packets sent by the flow's sender.
    FlowSent = "flow.sent", "packets", "", Sum;
    /// Packets of the flow lost on the path.
    FlowLost = "flow.lost", "packets", "", Sum;
    /// Packets of the flow that arrived more than once.
    FlowDuplicated = "flow.duplicated", "packets", "", Sum;
    /// Packets of the flow that arrived after a packet sent later (RFC 4737).
    FlowReordered = "flow.reordered", "packets", "", Sum;
    /// Packets of the flow that arrived with a changed payload.
    FlowCorrupted = "flow.corrupted", "packets", "", Sum;
    /// Bit errors in the payload of the flow.
    FlowBitErrors = "flow.bit_errors", "bits", "", Sum;
    /// Packets dropped by the socket of the receiving host, which do not count as loss on the path.
    FlowReceiverDrops = "flow.receiver_drops", "packets", "", Sum;
    /// One-way delay from the sending to the receiving application.
    FlowDelay = "flow.delay", "s", "", Mean;
    /// Absolute difference of the one-way delays of consecutive packets (RFC 3393).
    FlowDelayVariation = "flow.delay_variation", "s", "", Mean;
    /// Maximum error of one-way delays due to the clock offset between both ends.
    FlowClockError = "flow.clock_error", "s", "", Last;
    /// Time between consecutive packets as sent.
    FlowGap = "flow.gap", "s", "", Mean;
    /// Time between consecutive packets as scheduled by the traffic pattern.
    FlowGapScheduled = "flow.gap.scheduled" | "flow.gap.asked", "s", "", Mean;
    /// Time from the scheduled to the actual departure of a packet.
    FlowLateness = "flow.lateness", "s", "", Mean;
    /// Congestion window of a TCP sender.
    FlowWindow = "flow.window", "packets", "", Last;
    /// Maximum congestion window of a TCP sender in the bin.
    FlowWindowPeak = "flow.window.peak", "packets", "", Max;
    /// Usable window of a TCP sender: the smaller of its congestion window and the peer's window.
    FlowWindowUsable = "flow.window.usable", "packets", "", Last;
    /// Window reductions of a TCP sender due to congestion: the total of the first five causes.
    FlowReductions = "flow.reductions", "", "", Sum;
    /// Window reductions of a TCP sender due to a full queue of its own host.
    FlowCauseLocalDevice = "flow.cause.local_device", "", "", Sum;
    /// Window reductions of a TCP sender due to an ECN echo.
    FlowCauseEcn = "flow.cause.ecn", "", "", Sum;
    /// Window reductions of a TCP sender due to duplicate or selective acknowledgments.
    FlowCauseFastRetransmit = "flow.cause.fast_retransmit", "", "", Sum;
    /// Window reductions of a TCP sender due to a loss repaired by a tail-loss probe.
    FlowCauseTailLossProbe = "flow.cause.tail_loss_probe", "", "", Sum;
    /// Window reductions of a TCP sender due to a retransmission timeout.
    FlowCauseTimeout = "flow.cause.timeout", "", "", Sum;
    /// Spurious window reductions undone by a TCP sender.
    FlowCauseUndo = "flow.cause.undo", "", "", Sum;
    /// Restarts of a TCP sender after an idle period.
    FlowCauseIdleRestart = "flow.cause.idle_restart", "", "", Sum;
    /// Times a TCP sender became limited by the receiver's window.
    FlowCauseReceiverWindow = "flow.cause.receiver_window", "", "", Sum;
    /// Times a TCP sender became limited by the application.
    FlowCauseApplicationLimited = "flow.cause.application_limited", "", "", Sum;
    /// Reductions of a TCP sender's segments to the path MTU.
    FlowCausePathMtu = "flow.cause.path_mtu", "", "", Sum;
    /// Times the window of a TCP sender's peer closed.
    FlowCauseZeroWindow = "flow.cause.zero_window", "", "", Sum;
    /// Times a model-based TCP sender emptied the path to measure its round trip.
    FlowCauseProbeRoundTrip = "flow.cause.probe_round_trip", "", "", Sum;
    /// Share of time in which a TCP sender was limited by its congestion window.
    FlowLimitedCongestionWindow = "flow.limited.congestion_window", "", "", Mean;
    /// Share of time in which a TCP sender was limited by the receiver's window.
    FlowLimitedPeerWindow = "flow.limited.peer_window", "", "", Mean;
    /// Share of time in which a TCP sender had no more data from the application.
    FlowLimitedApplication = "flow.limited.application", "", "", Mean;
    /// Share of time in which a TCP sender was limited by pacing or a queue of its host.
    FlowLimitedPacing = "flow.limited.pacing", "", "", Mean;
    /// Share of time in which a TCP sender was limited by its send buffer.
    FlowLimitedSendBuffer = "flow.limited.send_buffer", "", "", Mean;
    /// Slow-start threshold of a TCP sender.
    FlowSlowStartThreshold = "flow.slow_start_threshold", "packets", "", Last;
    /// Window advertised by a TCP sender's peer.
    FlowPeerWindow = "flow.peer_window", "bytes", "payload", Last;
    /// Delivery rate measured by a TCP sender from acknowledgments.
    FlowDeliveryRate = "flow.delivery_rate", "bit/s", "payload", Last;
    /// Round-trip time measured by the sender; smoothed for TCP.
    FlowRoundTrip = "flow.round_trip", "s", "", Last;
    /// Segments retransmitted by a TCP sender.
    FlowRetransmissions = "flow.retransmissions", "packets", "", Sum;
    /// Time from the scheduled start of a bulk transfer of a given size to the arrival of its last byte.
    FlowCompletionTime = "flow.completion_time", "s", "", Mean;
    /// Transactions completed by an application: responses, transfers, lookups, pages.
    AppTransactions = "app.transactions", "", "", Sum;
    /// Requests and connections abandoned by an application.
    AppFailures = "app.failures", "", "", Sum;
    /// Time from the request of a transaction to the last byte of its response.
    AppTransactionTime = "app.transaction_time", "s", "", Mean;
    /// File size divided by the transfer time.
    AppTransferRate = "app.transfer_rate", "bit/s", "payload", Mean;
    /// Time from the request of a page to the arrival of its last object.
    AppPageLoadTime = "app.page_load_time", "s", "", Mean;
    /// Time from the request of a video to the start of playback.
    AppStartupDelay = "app.startup_delay", "s", "", Mean;
    /// Share of time after the start of playback in which a video stalled.
    AppStallRatio = "app.stall_ratio", "", "", Mean;
    /// Bit rate of the media during playback.
    AppBitRate = "app.bit_rate", "bit/s", "payload", Mean;
    /// Changes of the bit rate of a video.
    AppSwitches = "app.switches", "", "", Sum;
    /// Share of packets or frames that were lost or arrived too late for playback.
    AppLoss = "app.loss", "", "", Mean;
    /// One-way delay of an application's packets or frames, in both directions.
    AppDelay = "app.delay", "s", "", Mean;
    /// Absolute difference of the one-way delays of successive packets or frames of an application (RFC 3393).
    AppDelayVariation = "app.delay_variation", "s", "", Mean;
    /// Mean opinion score of a call (ITU-T G.107) in its worse direction.
    AppMos = "app.mos", "", "", Mean;
    /// Traffic of a VPN that arrives at its egress.
    VpnThroughput = "vpn.throughput", "bit/s", "ip", Mean;
    /// Window of a VPN flow.
    VpnWindow = "vpn.window", "packets", "", Last;
    /// Rate that rate consensus permits to a VPN flow.
    VpnPermitted = "vpn.permitted", "bit/s", "ip", Last;
    /// Packets queued at the ingress PE.
    VpnQueue = "vpn.queue", "packets", "", Mean;
    /// Packets dropped by the full queue of the ingress PE.
    VpnQueueDrops = "vpn.queue_drops", "packets", "", Sum;
    /// Packets of a VPN lost between ingress and egress.
    VpnLost = "vpn.lost", "packets", "", Sum;
    /// Current additive increase a.
    VpnIncrease = "vpn.increase", "packets", "", Last;
    /// Current multiplicative decrease b.
    VpnDecrease = "vpn.decrease", "", "", Last;
    /// Loss probability p reported by the estimator of a VPN flow.
    VpnLoss = "vpn.loss", "", "", Last;
    /// Round-trip time of a VPN flow between its PEs.
    VpnRoundTrip = "vpn.round_trip", "s", "", Last;
    /// CPU usage of a provider edge router's process as a share of one core, including kernel work charged to it.
    PeProcessor = "pe.processor", "", "", Mean;
    /// CPU usage of a provider edge router's own code, part of `pe.processor`.
    PeProcessorOwn = "pe.processor.own", "", "", Mean;
    /// Resident memory of a provider edge router's process.
    PeMemory = "pe.memory", "B", "", Last;
    /// Routes that a member of an exchange has received from the route server and that were not withdrawn.
    BgpRoutes = "bgp.routes", "routes", "", Last;
    /// Routes of `bgp.routes` whose next hop is not the member that holds the prefix.
    BgpHijacked = "bgp.hijacked", "routes", "", Last;
    /// Routes that a member of an exchange has received as announced or withdrawn.
    BgpReceived = "bgp.received", "routes", "", Sum;
    /// Share of time in which the BGP session of a member with the route server was established.
    BgpSession = "bgp.session", "", "", Mean;
    /// Time from a change of a member until another member has received the resulting routes, per member.
    BgpConvergence = "bgp.convergence", "s", "", Mean;
    /// CPU usage of a program of a service as a share of one core, including kernel work charged to it.
    ServiceProcessor = "service.processor", "", "", Mean;
    /// Resident memory of a program of a service.
    ServiceMemory = "service.memory", "B", "", Last;
    /// Traffic that a link transmits in one direction, including packets lost on the line.
    LinkThroughput = "link.throughput", "bit/s", "ip", Mean;
    /// Traffic of background flows that a link transmits, part of its throughput.
    LinkBackground = "link.background", "bit/s", "ip", Mean;
    /// Share of time in which a link was transmitting.
    LinkUtilization = "link.utilization" | "link.utilisation", "", "", Mean;
    /// Packets queued at a link, mean over time.
    LinkQueue = "link.queue", "packets", "", Mean;
    /// Packets dropped by the queue of a link.
    LinkDrops = "link.drops", "packets", "", Sum;
    /// Packets lost on a link (loss, bit errors, failure).
    LinkLost = "link.lost", "packets", "", Sum;
    /// Packets marked for congestion by the queue of a link.
    LinkMarks = "link.marks", "packets", "", Sum;
    /// Broadcast frames on a link in one direction, such as ARP requests. Only on `emu`, on LANs and with routing
    /// daemons.
    LinkBroadcast = "link.broadcast", "frames", "", Sum;
    /// Time from the scheduled to the actual departure of a packet in the emulator.
    LinkLateness = "link.lateness", "s", "", Mean;
    /// Weighted fairness index F of the VPNs' throughputs.
    FairnessInterVpn = "fairness.inter_vpn", "", "ip", Mean;
    /// Jain's index over all flows in VPNs, per bin: the primary index.
    FairnessIntraVpn = "fairness.intra_vpn", "", "payload", Mean;
    /// Jain's index over the flows of one VPN, per bin.
    FairnessIntraVpnEach = "fairness.intra_vpn.per_vpn", "", "payload", Mean;
    /// Jain's index over the mean rates of all flows in VPNs in the selected time span.
    FairnessIntraVpnWholeRun = "fairness.intra_vpn.whole_run", "", "payload", Mean;
    /// Jain's index over the mean rates of the flows of one VPN in the selected time span.
    FairnessIntraVpnEachWholeRun = "fairness.intra_vpn.per_vpn.whole_run", "", "payload", Mean;
    /// Utilization of a bottleneck link by measured flows, relative to the capacity left by background flows.
    LinkUtilizationNet = "link.utilization.net_of_background" | "link.utilisation.net_of_background", "", "ip", Mean;
    /// Maximum rate without loss (RFC 2544).
    TestThroughput = "test.throughput", "bit/s", "ip", Mean;
    /// Maximum frame rate without loss.
    TestFrameRate = "test.frame_rate", "frames/s", "", Mean;
    /// Maximum frame rate without loss as a share of the line rate of the sender at this frame size.
    TestLineShare = "test.line_share", "", "", Mean;
    /// Rate of delivered packets.
    TestDelivered = "test.delivered", "bit/s", "ip", Mean;
    /// Packets sent.
    TestSent = "test.sent", "packets", "", Mean;
    /// Share of packets lost.
    TestLossRatio = "test.loss_ratio", "", "", Mean;
    /// Mean delay of the frames tagged per RFC 2544, or of all frames: one-way, or round-trip in one-ended tests.
    TestLatency = "test.latency", "s", "", Mean;
    /// Minimum delay of all frames.
    TestLatencyMin = "test.latency.min" | "test.latency.least", "s", "", Mean;
    /// Median delay of all frames.
    TestLatencyMedian = "test.latency.median", "s", "", Mean;
    /// 99th percentile of the delay of all frames.
    TestLatency99 = "test.latency.p99", "s", "", Mean;
    /// 99.9th percentile of the delay of all frames.
    TestLatency999 = "test.latency.p999", "s", "", Mean;
    /// Maximum delay of all frames.
    TestLatencyMax = "test.latency.max" | "test.latency.most", "s", "", Mean;
    /// 99.9th percentile of the delay above the minimum (ITU-T Y.1563; PDV of RFC 5481).
    TestDelayVariation = "test.delay_variation", "s", "", Mean;
    /// Maximum error of one-way delays due to the clock offset between the ends of the test.
    TestClockError = "test.clock_error", "s", "", Mean;
    /// 1 if a service met its agreement, 0 otherwise (ITU-T Y.1564).
    TestAccepted = "test.accepted", "", "", Mean;
    /// Longest burst without loss (RFC 9004).
    TestBackToBack = "test.back_to_back", "packets", "", Mean;
    /// Buffer size in time, derived from bursts and corrected for packets forwarded in the meantime (RFC 9004).
    TestBufferTime = "test.buffer_time", "s", "", Mean;
    /// Delivered rate at saturation.
    TestPlateau = "test.plateau", "bit/s", "ip", Mean;
    /// Bit error rate.
    TestBitErrorRate = "test.bit_error_rate", "", "", Mean;
    /// Loss ratio independent of the packet size.
    TestBaseLoss = "test.base_loss", "", "", Mean;
    /// Throughput of a TCP transfer (RFC 6349).
    TestTcpThroughput = "test.tcp_throughput", "bit/s", "payload", Mean;
    /// Duration of a TCP transfer.
    TestTransferTime = "test.transfer_time", "s", "", Mean;
    /// Duration of a TCP transfer divided by the ideal duration on its path (RFC 6349).
    TestTransferTimeRatio = "test.transfer_time_ratio", "", "", Mean;
    /// Share of the bytes of a TCP transfer that were not retransmissions (RFC 6349).
    TestTcpEfficiency = "test.tcp_efficiency", "", "", Mean;
    /// Increase of the round-trip time during a TCP transfer, relative to that of the idle path (RFC 6349).
    TestBufferDelay = "test.buffer_delay", "", "", Mean;
    /// Time from the event until packets to a network follow the route change, per network.
    FlowConvergence = "flow.convergence", "s", "", Mean;
    /// Time from the event until packets to all networks follow the route change (full convergence, RFC 6412).
    TestConvergence = "test.convergence", "s", "", Mean;
    /// Time from the event until packets to the first network follow the route change.
    TestConvergenceFirst = "test.convergence.first", "s", "", Mean;
    /// Time from the event until packets to half of the networks follow the route change.
    TestConvergenceMedian = "test.convergence.median", "s", "", Mean;
    /// Time from the event until packets to 99 % of the networks follow the route change.
    TestConvergence99 = "test.convergence.p99", "s", "", Mean;
    /// Packets lost.
    TestLost = "test.lost", "packets", "", Mean;
    /// Packets lost divided by the rate: mean outage of a network (loss-derived, RFC 6412).
    TestOutage = "test.outage", "s", "", Mean;
    /// Round-trip time of the idle path.
    TestRoundTrip = "test.round_trip", "s", "", Mean;
    /// Minimum window with the maximum TCP throughput.
    TestWindow = "test.window", "B", "", Mean;
    /// Minimum window with 97 % of the maximum throughput, interpolated between the windows tried.
    TestWindowKnee = "test.window.knee", "B", "", Mean;
    /// Minimum window from which every transfer had retransmissions.
    TestWindowLosses = "test.window.losses_from", "B", "", Mean;
    /// 1 if no other window is better by more than the tolerance (95 % confidence), 0 if the trials were exhausted.
    TestWindowConclusive = "test.window.conclusive" | "test.window.sure", "", "", Mean;
    /// Relative throughput gain of the best window over an unlimited window.
    TestWindowGain = "test.window.gain", "", "", Mean;
    /// Bandwidth-delay product: bottleneck rate times round-trip time (RFC 6349).
    TestBandwidthDelayProduct = "test.bandwidth_delay_product", "B", "", Mean;
    /// Maximum payload queued on the path.
    TestBuffer = "test.buffer", "B", "", Mean;
}

impl Metric {
    /// Metrics that may have a distribution of their values, not only bins.
    pub const DISTRIBUTED: &'static [Metric] = &[
        Metric::FlowDelay,
        Metric::FlowConvergence,
        Metric::FlowDelayVariation,
        Metric::FlowGap,
        Metric::FlowGapScheduled,
        Metric::FlowLateness,
        Metric::FlowRoundTrip,
        Metric::LinkLateness,
        Metric::FlowCompletionTime,
        Metric::AppTransactionTime,
        Metric::AppPageLoadTime,
        Metric::AppStartupDelay,
        Metric::AppDelay,
        Metric::AppDelayVariation,
        Metric::AppMos,
        Metric::BgpConvergence,
    ];
}

/// Values of one metric of one subject, one per bin; NaN in a bin without a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Metric.
    pub metric: Metric,
    /// Name of a flow, VPN or link direction; empty for the whole network.
    pub subject: String,
    /// One value per bin.
    pub values: Vec<f64>,
}

/// Distribution of the values of a metric in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Metric.
    pub metric: Metric,
    /// Subject, as in [`Series`].
    pub subject: String,
    /// Values in billionths of the metric's unit (nanoseconds), ascending, and their counts. Recording rounds the values to the buckets of
    /// [`netstage_core::measure::Histogram`]: three significant digits.
    pub buckets: Vec<(u64, u64)>,
}

/// Quantity of the packets of a flow that the policy of the sender's host let pass. Those that it dropped may belong to any
/// flow of the host, so that the achieved value is a lower bound.
pub const POLICY_LOAD: &str = "packets within the policy";

/// Requested and achieved value of a quantity that the tool itself controls, by which to judge a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AchievedLoad {
    /// Subject, as in [`Series`].
    pub subject: String,
    /// Name of the quantity: "rate", "packets", "gaps within 5 %".
    pub quantity: String,
    /// Unit of both values; empty if none.
    pub unit: String,
    /// Layer at which a rate or size is counted, or empty.
    pub layer: String,
    /// Requested value.
    #[serde(alias = "asked")]
    pub requested: f64,
    /// Achieved value.
    pub achieved: f64,
}

/// Outcome of one run. A stage leaves empty what it cannot measure (`..Outcome::default()`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOutcome {
    /// Width of a bin.
    pub interval: Duration,
    /// Number of values in each series.
    pub bins: usize,
    /// Series, ordered by metric, then by subject in the plan's order.
    pub series: Vec<Series>,
    /// Distributions, in any order.
    pub distributions: Vec<Distribution>,
    /// Requested and achieved values of the tool itself.
    pub loads: Vec<AchievedLoad>,
    /// Outcomes of the tests, in the plan's order.
    pub tests: Vec<TestOutcome>,
    /// Totals of the run.
    pub totals: RunTotals,
    /// Warnings about the validity of the results.
    pub warnings: Vec<String>,
    /// Reasons why the measurement is void: the tool itself fell short.
    pub void: Vec<String>,
    /// Flows whose sender fell short of its schedule, each with the reason. The run is void, unless the flow is the probe
    /// of a trial, which is judged by what it sent.
    pub late_senders: Vec<(String, String)>,
    /// Flows of streams whose sender had packets dropped by the policy of its host, each with the reason. Their rate is at
    /// most that of the policy.
    pub limited_by_policy: Vec<(String, String)>,
    /// Flows with the maximum rate that the policy of their sender's host permits, at the IP layer.
    pub sender_limits: Vec<(String, BitRate)>,
    /// Flows whose packets left after their timestamp, each with the maximum time in nanoseconds. It is an error of their
    /// delays.
    pub held: Vec<(String, u64)>,
    /// Largest lateness of the threads that send packets and replies of flows.
    pub stalls: Vec<ThreadStall>,
    /// Flows with packets that left an emulated link late.
    pub late_links: Vec<(String, LinkLateness)>,
    /// Arrivals of the flows of datagrams.
    pub arrivals: Vec<FlowArrivals>,
    /// Faults of packets that a router under test forwarded or lost.
    pub packet_faults: Vec<PacketFault>,
    /// Observations of a trial with an event, for the report.
    pub observations: Vec<String>,
    /// Partial failures, such as a lost agent or a flow that did not start.
    pub failures: Vec<String>,
    /// Differences between the stage and the scenario, such as "TCP: Linux reno for aimd".
    pub differences: Vec<String>,
}

/// Largest lateness of a thread with a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStall {
    /// Name of the flow.
    pub flow: String,
    /// Name of the thread, such as "sender".
    pub thread: String,
    /// Lateness.
    pub lateness: Duration,
    /// Time in the run at which the late packet was due.
    pub due: Instant,
}

impl fmt::Display for ThreadStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lateness, due) = (self.lateness.as_secs_f64() * 1e3, self.due.as_secs_f64());
        write!(f, "the {} was late, at most by {lateness:.1} ms at {due:.3} s", self.thread)
    }
}

/// Arrivals of a flow of datagrams that the bins do not show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowArrivals {
    /// Name of the flow.
    pub flow: String,
    /// Packets that arrived within the time of sending.
    pub window: Arrivals,
    /// Packets that arrived after the end of the run or, in a simulation, were on their way then. They are not lost.
    pub after_end: u64,
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTotals {
    /// Events processed by the simulator.
    pub events: u64,
    /// Packets sent into the network.
    pub sent: u64,
    /// Packets whose payload reached their destination host; for real TCP, reads of the receiver.
    pub delivered_data: u64,
    /// Copies made by links that deliver packets twice.
    pub duplicated: u64,
    /// Packets that reached their destination host or PE, with copies.
    pub delivered: u64,
    /// Packets dropped by queues or lost on links, with copies.
    pub lost: u64,
    /// Packets still in flight at the end, with copies. `sent + duplicated = delivered + lost + in_flight`.
    pub in_flight: u64,
    /// Links crossed by packets, total over all packets.
    pub packet_hops: u64,
}

impl RunOutcome {
    /// Returns the series of a metric and subject.
    pub fn get(&self, metric: Metric, subject: &str) -> Option<&Series> {
        self.series.iter().find(|s| s.metric == metric && s.subject == subject)
    }

    /// Drops all bins after the first `bins`.
    pub fn truncate(&mut self, bins: usize) {
        self.bins = self.bins.min(bins);
        self.series.iter_mut().for_each(|series| series.values.truncate(bins));
    }
}

/// Observer of a run, which may stop it and receives intermediate outcomes. Results do not depend on it.
///
/// A closure that returns whether to stop is an observer without intermediate outcomes.
pub trait RunObserver {
    /// Returns whether to stop the run now. Called several times a second.
    fn stop(&self) -> bool;

    /// Returns whether `bins_ended` is used, which may cost a stage additional work.
    fn wants_bins(&self) -> bool {
        false
    }

    /// Reports the end of bins. `outcome` computes the outcome of the bins up to now, if it is wanted.
    fn bins_ended(&self, outcome: &mut dyn FnMut() -> RunOutcome) {
        let _ = outcome;
    }

    /// Reports the current time of the run, often enough to show its progress.
    fn progress(&self, time: Instant) {
        let _ = time;
    }
}

impl<F: Fn() -> bool> RunObserver for F {
    fn stop(&self) -> bool {
        self()
    }
}

/// Reason why a run has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFailure {
    /// The run was stopped on request.
    Interrupted,
    /// The run failed.
    Failed(String),
    /// The stage cannot run this plan on any host.
    Unsupported(String),
    /// The host or the user lacks a requirement of the stage.
    Missing {
        /// Missing requirement.
        message: String,
        /// Instructions to provide it.
        remedy: String,
    },
}
