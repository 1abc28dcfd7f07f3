//! What one run of a plan yields, whatever stage it ran on, and the registry of metrics.

pub mod finding;

use finding::TestOutcome;
use netstage_core::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// How the values of one bin were formed.
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

/// A metric's entry in the registry, copied into every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricInfo {
    /// Name used in `[expect]`, `[plot]` and records.
    pub name: &'static str,
    /// Unit of its values; empty where there is none.
    pub unit: &'static str,
    /// Layer a rate or size counts, or empty.
    pub layer: &'static str,
    /// How a bin's value is formed.
    pub aggregation: Aggregation,
    /// One line for people.
    pub help: &'static str,
}

impl Metric {
    /// Whether it is told where what happens to windows is recorded (`[measure] tcp = "events"`).
    pub fn is_of_tcp_events(self) -> bool {
        (Metric::FlowWindowPeak..=Metric::FlowLimitedPacing).contains(&self)
    }

    /// Whether it is found where a flow is sent, not where it is received: of a flow with several
    /// receivers, those of the flow and those of each receiver have subjects of their own.
    pub fn is_of_sender(self) -> bool {
        use Metric::*;
        matches!(self, FlowOffered | FlowSent | FlowGap | FlowGapAsked | FlowLateness)
    }

    /// Whether tests find it: a number for each test and frame size, none for a bin.
    pub fn is_finding(self) -> bool {
        self.info().name.starts_with("test.")
    }
}

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $variant:ident = $name:literal, $unit:literal, $layer:literal, $aggregation:ident;)+) => {
        /// Everything netstage can measure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Metric {
            $($(#[doc = $help])+ #[serde(rename = $name)] $variant,)+
        }

        impl Metric {
            /// Every metric, in the order of the registry.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant,)+];

            /// The registry's entry.
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

metrics! {
    /// Payload delivered in order to the receiving application.
    FlowThroughput = "flow.throughput", "bit/s", "payload", Mean;
    /// Payload the application wanted to send (patterns other than bulk).
    FlowOffered = "flow.offered", "bit/s", "payload", Mean;
    /// Packets the flow's sender sent.
    FlowSent = "flow.sent", "packets", "", Sum;
    /// Packets of the flow lost on the way.
    FlowLost = "flow.lost", "packets", "", Sum;
    /// Packets of the flow that arrived more than once.
    FlowDuplicated = "flow.duplicated", "packets", "", Sum;
    /// Packets of the flow that arrived after one sent later (RFC 4737).
    FlowReordered = "flow.reordered", "packets", "", Sum;
    /// Packets of the flow that arrived with another payload than was sent.
    FlowCorrupted = "flow.corrupted", "packets", "", Sum;
    /// Bits of the flow's payload that arrived changed.
    FlowBitErrors = "flow.bit_errors", "bits", "", Sum;
    /// Packets that reached the receiving host and were lost in its socket: no loss of the path.
    FlowReceiverDrops = "flow.receiver_drops", "packets", "", Sum;
    /// One-way delay from the sending to the receiving application.
    FlowDelay = "flow.delay", "s", "", Mean;
    /// Difference of the one-way delays of packets sent one after the other, as a magnitude (RFC 3393).
    FlowDelayVariation = "flow.delay_variation", "s", "", Mean;
    /// Most by which one-way delays of a flow may be off, since the clocks of its ends differ.
    FlowClockError = "flow.clock_error", "s", "", Last;
    /// Time between packets as sent.
    FlowGap = "flow.gap", "s", "", Mean;
    /// Time between packets as the pattern asks for it.
    FlowGapAsked = "flow.gap.asked", "s", "", Mean;
    /// How long after its time a packet was sent.
    FlowLateness = "flow.lateness", "s", "", Mean;
    /// Congestion window of a TCP sender.
    FlowWindow = "flow.window", "packets", "", Last;
    /// Largest congestion window of a TCP sender in the bin.
    FlowWindowPeak = "flow.window.peak", "packets", "", Max;
    /// What a TCP sender may have in flight: the smaller of its congestion window and its peer's window.
    FlowWindowUsable = "flow.window.usable", "packets", "", Last;
    /// Times a TCP sender reduced its window for congestion: any of the first five causes.
    FlowReductions = "flow.reductions", "", "", Sum;
    /// Times a queue of the sender's own host refused a segment, and its window fell.
    FlowCauseLocalDevice = "flow.cause.local_device", "", "", Sum;
    /// Times a TCP sender's window fell for an echoed congestion mark.
    FlowCauseEcn = "flow.cause.ecn", "", "", Sum;
    /// Times a TCP sender's window fell for duplicate or selective acknowledgements.
    FlowCauseFastRetransmit = "flow.cause.fast_retransmit", "", "", Sum;
    /// Times a TCP sender's window fell for a loss that a tail-loss probe repaired.
    FlowCauseTailLossProbe = "flow.cause.tail_loss_probe", "", "", Sum;
    /// Times a TCP sender's window fell for a retransmission timeout.
    FlowCauseTimeout = "flow.cause.timeout", "", "", Sum;
    /// Times a TCP sender took a needless reduction back.
    FlowCauseUndo = "flow.cause.undo", "", "", Sum;
    /// Times a TCP sender began anew after it had sent nothing for long.
    FlowCauseIdleRestart = "flow.cause.idle_restart", "", "", Sum;
    /// Times the receiver's window began to hold a TCP sender back.
    FlowCauseReceiverWindow = "flow.cause.receiver_window", "", "", Sum;
    /// Times the application began to hold a TCP sender back.
    FlowCauseApplicationLimited = "flow.cause.application_limited", "", "", Sum;
    /// Share of the time in which the congestion window held a TCP sender back.
    FlowLimitedCongestionWindow = "flow.limited.congestion_window", "", "", Mean;
    /// Share of the time in which the receiver's window held a TCP sender back.
    FlowLimitedPeerWindow = "flow.limited.peer_window", "", "", Mean;
    /// Share of the time in which the application had nothing more to send.
    FlowLimitedApplication = "flow.limited.application", "", "", Mean;
    /// Share of the time in which pacing, or a queue of the host's, held a TCP sender back.
    FlowLimitedPacing = "flow.limited.pacing", "", "", Mean;
    /// Slow-start threshold of a TCP sender.
    FlowSlowStartThreshold = "flow.slow_start_threshold", "packets", "", Last;
    /// Window a TCP sender's peer advertises.
    FlowPeerWindow = "flow.peer_window", "bytes", "payload", Last;
    /// Rate at which a TCP sender sees its data arrive.
    FlowDeliveryRate = "flow.delivery_rate", "bit/s", "payload", Last;
    /// Round trip the sender measures; of TCP, smoothed.
    FlowRoundTrip = "flow.round_trip", "s", "", Last;
    /// Segments a TCP sender sent again.
    FlowRetransmissions = "flow.retransmissions", "packets", "", Sum;
    /// Transactions an application completed: answers, transfers, lookups, pages.
    AppTransactions = "app.transactions", "", "", Sum;
    /// Requests and connections an application gave up.
    AppFailures = "app.failures", "", "", Sum;
    /// Time of a transaction, from the request to the last byte of its answer.
    AppTransactionTime = "app.transaction_time", "s", "", Mean;
    /// Size of a file over the time of its transfer.
    AppTransferRate = "app.transfer_rate", "bit/s", "payload", Mean;
    /// Time from asking for a page until all its objects are there.
    AppPageLoadTime = "app.page_load_time", "s", "", Mean;
    /// Time from asking for a video until it plays.
    AppStartupDelay = "app.startup_delay", "s", "", Mean;
    /// Share of the time after its start in which a video stood still.
    AppStallRatio = "app.stall_ratio", "", "", Mean;
    /// Bit rate of the media played, while they play.
    AppBitRate = "app.bit_rate", "bit/s", "payload", Mean;
    /// Changes of a video's bit rate.
    AppSwitches = "app.switches", "", "", Sum;
    /// Share of packets or frames that did not come, or too late to be played.
    AppLoss = "app.loss", "", "", Mean;
    /// One-way delay of an application's packets or frames, both ways.
    AppDelay = "app.delay", "s", "", Mean;
    /// Mean opinion score of a call (ITU-T G.107), of the worse direction.
    AppMos = "app.mos", "", "", Mean;
    /// Traffic of a VPN that reaches its egress.
    VpnThroughput = "vpn.throughput", "bit/s", "ip", Mean;
    /// Window of a VPN flow.
    VpnWindow = "vpn.window", "packets", "", Last;
    /// Packets waiting at the ingress PE.
    VpnQueue = "vpn.queue", "packets", "", Mean;
    /// Packets dropped because the ingress PE's queue was full.
    VpnQueueDrops = "vpn.queue_drops", "packets", "", Sum;
    /// Packets of a VPN lost between ingress and egress.
    VpnLost = "vpn.lost", "packets", "", Sum;
    /// Additive increase a in force.
    VpnIncrease = "vpn.increase", "packets", "", Last;
    /// Multiplicative decrease b in force.
    VpnDecrease = "vpn.decrease", "", "", Last;
    /// Loss p a VPN flow's estimator reports.
    VpnLoss = "vpn.loss", "", "", Last;
    /// Round trip a VPN flow measures between its PEs.
    VpnRoundTrip = "vpn.round_trip", "s", "", Last;
    /// Share of a core a provider edge router's process takes, the kernel's work on its behalf
    /// included as far as it is charged to it.
    PeProcessor = "pe.processor", "", "", Mean;
    /// The part of that which is its own code.
    PeProcessorOwn = "pe.processor.own", "", "", Mean;
    /// Resident memory of a provider edge router's process.
    PeMemory = "pe.memory", "B", "", Last;
    /// Traffic on a link, in one direction.
    LinkThroughput = "link.throughput", "bit/s", "ip", Mean;
    /// Traffic of background flows on a link, part of its throughput.
    LinkBackground = "link.background", "bit/s", "ip", Mean;
    /// Share of a link's time spent sending.
    LinkUtilisation = "link.utilisation", "", "", Mean;
    /// Packets waiting before a link, mean over time.
    LinkQueue = "link.queue", "packets", "", Mean;
    /// Packets dropped by a link's queue.
    LinkDrops = "link.drops", "packets", "", Sum;
    /// Packets lost on the line (loss, bit errors, failure).
    LinkLost = "link.lost", "packets", "", Sum;
    /// Packets a link's queue marked for congestion.
    LinkMarks = "link.marks", "packets", "", Sum;
    /// Frames to all stations that came to a link, in one direction: ARP's questions, and whatever else is
    /// broadcast. Of `emu`, on LANs and where routing daemons run.
    LinkBroadcast = "link.broadcast", "frames", "", Sum;
    /// How long after its time the emulator handed a packet on.
    LinkLateness = "link.lateness", "s", "", Mean;
    /// Weighted fairness index F of the VPNs' throughputs.
    FairnessInterVpn = "fairness.inter_vpn", "", "ip", Mean;
    /// Jain's index pooled over all flows in VPNs, per bin: the index of record.
    FairnessIntraVpn = "fairness.intra_vpn", "", "payload", Mean;
    /// Jain's index inside one VPN, per bin.
    FairnessIntraVpnEach = "fairness.intra_vpn.per_vpn", "", "payload", Mean;
    /// Jain's index pooled over all flows in VPNs, of their means over the whole span asked.
    FairnessIntraVpnWholeRun = "fairness.intra_vpn.whole_run", "", "payload", Mean;
    /// Jain's index inside one VPN, of its flows' means over the whole span asked.
    FairnessIntraVpnEachWholeRun = "fairness.intra_vpn.per_vpn.whole_run", "", "payload", Mean;
    /// Share of what the background leaves on a link that limits measured flows.
    LinkUtilisationNet = "link.utilisation.net_of_background", "", "ip", Mean;
    /// Highest rate without loss (RFC 2544).
    TestThroughput = "test.throughput", "bit/s", "ip", Mean;
    /// Highest rate without loss, in frames.
    TestFrameRate = "test.frame_rate", "frames/s", "", Mean;
    /// That as a share of what the sender's line carries at this frame size.
    TestLineShare = "test.line_share", "", "", Mean;
    /// Rate at which packets came through.
    TestDelivered = "test.delivered", "bit/s", "ip", Mean;
    /// Packets sent.
    TestSent = "test.sent", "packets", "", Mean;
    /// Share of packets lost.
    TestLossRatio = "test.loss_ratio", "", "", Mean;
    /// Mean delay, of the frames RFC 2544 tags or of all: one way, or there and back where one end
    /// measures.
    TestLatency = "test.latency", "s", "", Mean;
    /// Least delay of all frames.
    TestLatencyLeast = "test.latency.least", "s", "", Mean;
    /// Half of all frames had at most this delay.
    TestLatencyMedian = "test.latency.median", "s", "", Mean;
    /// 99 % of all frames had at most this delay.
    TestLatency99 = "test.latency.p99", "s", "", Mean;
    /// 99.9 % of all frames had at most this delay.
    TestLatency999 = "test.latency.p999", "s", "", Mean;
    /// Largest delay of all frames.
    TestLatencyMost = "test.latency.most", "s", "", Mean;
    /// 99.9 % of frames had at most this delay above the least (ITU-T Y.1563; PDV of RFC 5481).
    TestDelayVariation = "test.delay_variation", "s", "", Mean;
    /// Most by which one-way delays may be off, since the clocks of both ends differ.
    TestClockError = "test.clock_error", "s", "", Mean;
    /// 1 where a service kept all that was agreed, 0 where it did not (ITU-T Y.1564).
    TestAccepted = "test.accepted", "", "", Mean;
    /// Longest burst without loss (RFC 9004).
    TestBackToBack = "test.back_to_back", "packets", "", Mean;
    /// Buffer that bursts imply, less what is forwarded meanwhile (RFC 9004).
    TestBufferTime = "test.buffer_time", "s", "", Mean;
    /// Rate at which what comes through tops out.
    TestPlateau = "test.plateau", "bit/s", "ip", Mean;
    /// Bit error rate.
    TestBitErrorRate = "test.bit_error_rate", "", "", Mean;
    /// Loss that does not depend on the size of packets.
    TestBaseLoss = "test.base_loss", "", "", Mean;
    /// What a TCP transfer reached (RFC 6349).
    TestTcpThroughput = "test.tcp_throughput", "bit/s", "payload", Mean;
    /// How long a TCP transfer took.
    TestTransferTime = "test.transfer_time", "s", "", Mean;
    /// That over the time its path allows (RFC 6349).
    TestTransferTimeRatio = "test.transfer_time_ratio", "", "", Mean;
    /// Share of a transfer's bytes that were no retransmissions (RFC 6349).
    TestTcpEfficiency = "test.tcp_efficiency", "", "", Mean;
    /// Growth of the round trip under the transfer, as a share of that of the idle path (RFC 6349).
    TestBufferDelay = "test.buffer_delay", "", "", Mean;
    /// From the event until packets to a network followed it, network by network.
    FlowConvergence = "flow.convergence", "s", "", Mean;
    /// From the event until packets to all networks followed it (full convergence, RFC 6412).
    TestConvergence = "test.convergence", "s", "", Mean;
    /// Until those to the first network did.
    TestConvergenceFirst = "test.convergence.first", "s", "", Mean;
    /// Until those to half of the networks did.
    TestConvergenceMedian = "test.convergence.median", "s", "", Mean;
    /// Until those to 99 % of the networks did.
    TestConvergence99 = "test.convergence.p99", "s", "", Mean;
    /// Packets lost.
    TestLost = "test.lost", "packets", "", Mean;
    /// That over the rate: how long a network was cut off, on average (loss-derived, RFC 6412).
    TestOutage = "test.outage", "s", "", Mean;
    /// Round trip of the idle path.
    TestRoundTrip = "test.round_trip", "s", "", Mean;
    /// Smallest window with which TCP carries as much as with any other.
    TestWindow = "test.window", "B", "", Mean;
    /// Least window with 97 % of the best throughput, between those tried.
    TestWindowKnee = "test.window.knee", "B", "", Mean;
    /// Smallest window from which on every transfer had something to send again.
    TestWindowLosses = "test.window.losses_from", "B", "", Mean;
    /// 1 where no other window is better by more than the tolerance (95 % confidence), 0 where the trials were used up.
    TestWindowSure = "test.window.sure", "", "", Mean;
    /// By what share more the best window carries than one that does not limit.
    TestWindowGain = "test.window.gain", "", "", Mean;
    /// Payload that fills the path: rate of its narrowest place times round trip (RFC 6349).
    TestBandwidthDelayProduct = "test.bandwidth_delay_product", "B", "", Mean;
    /// Payload that waited on the path at most.
    TestBuffer = "test.buffer", "B", "", Mean;
}

impl Metric {
    /// Those of which a stage may tell how often each value occurs, not only the bins.
    pub const DISTRIBUTED: &'static [Metric] = &[
        Metric::FlowDelay,
        Metric::FlowConvergence,
        Metric::FlowDelayVariation,
        Metric::FlowGap,
        Metric::FlowGapAsked,
        Metric::FlowLateness,
        Metric::FlowRoundTrip,
        Metric::LinkLateness,
    ];
}

/// Values of one metric of one subject, one per bin; NaN where there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What was measured.
    pub metric: Metric,
    /// Of whom: a flow, VPN or link direction by name; empty for the whole network.
    pub subject: String,
    /// One value per bin.
    pub values: Vec<f64>,
}

/// How often each value of a metric occurred in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// What was measured; its unit is the second.
    pub metric: Metric,
    /// Of whom, as in [`Series`].
    pub subject: String,
    /// Nanoseconds, ascending, and how often each occurred. Recording rounds them to the
    /// buckets of [`netstage_core::measure::Histogram`]: three significant digits.
    pub buckets: Vec<(u64, u64)>,
}

/// Something asked of the tool itself, and what it achieved: the honesty of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Of whom, as in [`Series`].
    pub subject: String,
    /// What, in a few words: "rate", "packets", "gaps within 5 %".
    pub quantity: String,
    /// Unit of both numbers; empty where there is none.
    pub unit: String,
    /// Layer a rate or size counts, or empty.
    pub layer: String,
    /// What was asked.
    pub asked: f64,
    /// What was achieved.
    pub achieved: f64,
}

/// What one run yields.
///
/// A stage fills what it can tell and leaves the rest empty (`..Outcome::default()`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Width of a bin.
    pub interval: Duration,
    /// All series have this many values.
    pub bins: usize,
    /// The series, ordered by metric, then in the plan's order of subjects.
    pub series: Vec<Series>,
    /// Distributions, in any order.
    pub distributions: Vec<Distribution>,
    /// How well the tool kept what it was asked.
    pub loads: Vec<Load>,
    /// What the tests came to, in the plan's order.
    pub tests: Vec<TestOutcome>,
    /// What the run cost and moved.
    pub totals: Totals,
    /// What a reader must know before trusting the figures.
    pub warnings: Vec<String>,
    /// Why the measurement is void: the tool itself fell short.
    pub void: Vec<String>,
    /// What failed while the rest went on: an agent lost, a flow that could not start.
    pub failures: Vec<String>,
    /// Where the stage differs from what the scenario says: "TCP: Linux reno for aimd".
    pub differences: Vec<String>,
}

/// What a run cost and moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Events the simulator processed.
    pub events: u64,
    /// Packets handed to the network.
    pub sent: u64,
    /// Packets whose payload reached the host they were addressed to; of real TCP, what the
    /// receiver took at a time.
    pub delivered_data: u64,
    /// Packets that reached a host or PE they were addressed to.
    pub delivered: u64,
    /// Packets dropped by queues or lost on lines.
    pub lost: u64,
    /// Packets still under way at the end.
    pub in_flight: u64,
    /// Links crossed by packets, in all.
    pub packet_hops: u64,
}

impl Outcome {
    /// The series of one metric and subject.
    pub fn get(&self, metric: Metric, subject: &str) -> Option<&Series> {
        self.series.iter().find(|s| s.metric == metric && s.subject == subject)
    }

    /// Keeps the first `bins` bins.
    pub fn truncate(&mut self, bins: usize) {
        self.bins = self.bins.min(bins);
        self.series.iter_mut().for_each(|series| series.values.truncate(bins));
    }
}

/// Who attends a run: may end it, and hears what it has found so far. Results do not depend on it.
///
/// A closure that says whether to stop is one that does not listen.
pub trait Attendant {
    /// Whether the run is to end now; asked several times a second.
    fn stop(&self) -> bool;

    /// Whether it hears of bins: a stage may have to do more for that.
    fn listens(&self) -> bool {
        false
    }

    /// Bins have ended. `so_far` works out what was found in them, an outcome of that many bins,
    /// for an attendant that wants it now.
    fn bins_ended(&self, so_far: &mut dyn FnMut() -> Outcome) {
        let _ = so_far;
    }

    /// The run has come to this time of its own; told often enough to see it go on.
    fn reached(&self, time: Instant) {
        let _ = time;
    }
}

impl<F: Fn() -> bool> Attendant for F {
    fn stop(&self) -> bool {
        self()
    }
}

/// Why a run yields no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was asked to stop.
    Interrupted,
    /// It failed.
    Failed(String),
    /// The stage cannot run this plan, wherever it runs.
    Unsupported(String),
    /// This host or this user lacks what the stage needs.
    Missing {
        /// What is missing.
        message: String,
        /// How to get it.
        remedy: String,
    },
}
