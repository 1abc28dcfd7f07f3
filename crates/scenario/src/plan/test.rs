//! `[test.NAME]` in a plan: method and packets. Trials are plans of their own, which the study derives.

use super::{FlowDirection, FlowGroup};
use crate::outcome::Metric;
use netstage_core::measure::mlrsearch::Goal;
use netstage_core::measure::trial::FrameSize;
use netstage_core::measure::y1564::ServiceUnderTest;
use netstage_core::quantity::BitRate;
use netstage_core::tcp;
use netstage_core::time::Duration;

/// Measurement that consists of trials.
#[derive(Clone, Debug, PartialEq)]
pub struct TestPlan {
    /// Name, as in `[test.NAME]`.
    pub name: String,
    /// Method and its parameters.
    pub method: Method,
    /// Flow of the trials; each trial sets traffic and times.
    pub probe: FlowGroup,
    /// Packet sizes; the method is applied to each. For a transfer, the size of a full segment.
    pub frames: Vec<FrameSize>,
    /// Indices of the flow groups that run during the test.
    pub load: Vec<usize>,
    /// Time between the start of the load and of the probe.
    pub warm_up: Duration,
    /// Waiting time for packets in flight at the end of a trial.
    pub drain: Duration,
}

/// Method of a test. Rates are at the IP layer; shares are relative to the maximum rate.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// Maximum rate without loss (RFC 2544 section 26.1).
    Throughput(RateSearchConfig),
    /// Delay at a rate, or at the throughput (RFC 2544 section 26.2).
    Latency {
        /// Rate; `None` for the throughput.
        rate: Option<BitRate>,
        /// Search for the throughput, and duration of a trial.
        search: RateSearchConfig,
        /// Number of trials.
        repeats: u32,
    },
    /// Loss at decreasing rates (RFC 2544 section 26.3).
    FrameLoss {
        /// Maximum rate; `None` for the rate of the sender's link.
        max_rate: Option<BitRate>,
        /// Duration of a trial.
        trial: Duration,
        /// Step between rates, as a share.
        step: f64,
    },
    /// Longest burst without loss (RFC 9004).
    BackToBack {
        /// Search for the throughput.
        search: RateSearchConfig,
        /// Maximum burst duration.
        max_burst: Duration,
        /// Number of searches.
        repeats: u32,
    },
    /// Maximum rate that meets a goal (MLRsearch, RFC 9971).
    Mlrsearch {
        /// Maximum rate; `None` for the rate of the sender's link.
        max_rate: Option<BitRate>,
        /// Search goal.
        goal: Goal,
    },
    /// Delivered rate at saturation.
    Plateau {
        /// Maximum rate; `None` for the rate of the sender's link.
        max_rate: Option<BitRate>,
        /// Duration of a trial.
        trial: Duration,
        /// Number of trials at saturation.
        repeats: u32,
    },
    /// Maximum rate without loss or growing delay (`netstage_core::measure::steady`).
    Steady {
        /// Maximum rate; `None` for the rate of the sender's link.
        max_rate: Option<BitRate>,
        /// Low rate whose delay is the baseline of other rates.
        low: BitRate,
        /// Granularity of rates.
        step: BitRate,
        /// Duration of the decisive trial.
        trial: Duration,
        /// Duration of the earlier trials.
        search: Duration,
    },
    /// Bit error rate.
    BitError {
        /// Method of error detection.
        detection: ErrorDetection,
        /// Rate.
        rate: BitRate,
        /// Duration of the trial of each packet size.
        trial: Duration,
    },
    /// TCP transfer compared with the ideal one on its path (RFC 6349).
    Transfer(TransferConfig),
    /// Window with the maximum TCP throughput.
    Tune(TuneConfig),
    /// Service activation test (ITU-T Y.1564).
    Activation {
        /// Services with their agreed rates and acceptance criteria.
        services: Vec<ServiceUnderTest>,
        /// Duration of a step of one service.
        step: Duration,
        /// Duration of the test of all services together.
        performance: Duration,
    },
    /// Loss, delay and delay variation in both directions (STAMP, RFC 8762).
    Stamp {
        /// Interval between packets.
        interval: Duration,
        /// Sending time.
        trial: Duration,
    },
    /// Convergence time after the withdrawal or advertisement of routes (RFC 7747).
    Convergence {
        /// Rate.
        rate: BitRate,
        /// Duration of a trial. The stage determines the time of the event in it.
        trial: Duration,
        /// Number of destination networks, which packets are sent to in turn.
        networks: u32,
    },
    /// Loss at one rate.
    Loss {
        /// Rate.
        rate: BitRate,
        /// Duration of a trial.
        trial: Duration,
        /// Number of trials.
        repeats: u32,
    },
}

/// Method of detecting bit errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorDetection {
    /// Increase of loss with the packet size.
    Loss,
    /// Comparison of payloads, bit by bit.
    Payload,
}

/// Search over rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSearchConfig {
    /// Maximum rate; `None` for the rate of the sender's link.
    pub max_rate: Option<BitRate>,
    /// Resolution at which the search ends, as a share.
    pub resolution: f64,
    /// Duration of a trial.
    pub trial: Duration,
}

/// TCP transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferConfig {
    /// Size in bytes; `None` for a transfer limited by time.
    pub size: Option<u64>,
    /// Maximum duration.
    pub trial: Duration,
    /// Maximum rate of the search for the bottleneck rate; `None` for the rate of the sender's link.
    pub max_rate: Option<BitRate>,
    /// Duration of a trial of that search.
    pub search: Duration,
}

/// Search for a TCP window.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneConfig {
    /// Measured duration of a transfer, after `settle`.
    pub trial: Duration,
    /// Initial time of a transfer that is not measured.
    pub settle: Duration,
    /// Maximum number of transfers.
    pub trials: usize,
    /// Relative throughput difference that counts as equal.
    pub tolerance: f64,
    /// Maximum mean round-trip time.
    pub delay_bound: Option<Duration>,
    /// Congestion controls to try; empty for that of the probe.
    pub algorithms: Vec<tcp::Algorithm>,
    /// Maximum window tried, bytes.
    pub max_window: u64,
}

impl Method {
    /// Returns the kind of test in scenarios.
    pub fn kind(&self) -> &'static str {
        match self {
            Method::Throughput(_) => "rfc2544-throughput",
            Method::Latency { .. } => "rfc2544-latency",
            Method::FrameLoss { .. } => "rfc2544-frame-loss",
            Method::BackToBack { .. } => "rfc9004-back-to-back",
            Method::Mlrsearch { .. } => "mlrsearch",
            Method::Plateau { .. } => "plateau",
            Method::Steady { .. } => "steady-rate",
            Method::BitError { .. } => "bit-error",
            Method::Transfer(_) => "rfc6349",
            Method::Tune(_) => "tcp-window",
            Method::Activation { .. } => "y1564",
            Method::Stamp { .. } => "stamp",
            Method::Convergence { .. } => "convergence",
            Method::Loss { .. } => "loss",
        }
    }

    /// Returns the metrics of its findings.
    pub fn metrics(&self) -> &'static [Metric] {
        use Metric::*;
        match self {
            Method::Throughput(_) | Method::Mlrsearch { .. } => {
                &[TestThroughput, TestFrameRate, TestLineShare]
            }
            Method::Plateau { .. } => &[TestPlateau],
            Method::BitError { detection: ErrorDetection::Loss, .. } => {
                &[TestBitErrorRate, TestBaseLoss, TestLossRatio, TestDelivered]
            }
            Method::BitError { detection: ErrorDetection::Payload, .. } => {
                &[TestBitErrorRate, TestLossRatio, TestDelivered]
            }
            Method::Transfer(_) => &[
                TestTcpThroughput,
                TestTransferTime,
                TestTransferTimeRatio,
                TestTcpEfficiency,
                TestBufferDelay,
                TestRoundTrip,
                TestPlateau,
            ],
            Method::Tune(_) => &[
                TestWindow,
                TestTcpThroughput,
                TestWindowKnee,
                TestWindowLosses,
                TestWindowGain,
                TestWindowConclusive,
                TestRoundTrip,
                TestBandwidthDelayProduct,
                TestBuffer,
            ],
            Method::Steady { .. } | Method::Latency { rate: None, .. } => RATE_AND_LATENCY,
            Method::Latency { .. } => &RATE_AND_LATENCY[3..],
            Method::FrameLoss { .. } | Method::Loss { .. } => &[TestLossRatio, TestDelivered],
            Method::BackToBack { .. } => {
                &[TestThroughput, TestFrameRate, TestLineShare, TestBackToBack, TestBufferTime]
            }
            Method::Activation { .. } => {
                &[TestDelivered, TestLossRatio, TestLatency, TestDelayVariation, TestAccepted]
            }
            Method::Stamp { .. } => &[
                TestSent,
                TestLossRatio,
                TestLatency,
                TestLatencyMin,
                TestLatencyMedian,
                TestLatency99,
                TestLatency999,
                TestLatencyMax,
                TestDelayVariation,
                TestClockError,
            ],
            Method::Convergence { .. } => &[
                TestConvergence,
                TestConvergenceFirst,
                TestConvergenceMedian,
                TestConvergence99,
                TestLost,
                TestOutage,
            ],
        }
    }
}

/// Three metrics of the rate, followed by those of latency.
const RATE_AND_LATENCY: &[Metric] = &[
    Metric::TestThroughput,
    Metric::TestFrameRate,
    Metric::TestLineShare,
    Metric::TestLatency,
    Metric::TestLatencyMin,
    Metric::TestLatencyMedian,
    Metric::TestLatency99,
    Metric::TestLatency999,
    Metric::TestLatencyMax,
];

/// Part of a test that covers both directions together.
pub const ROUND_TRIP: &str = "round-trip";

impl TestPlan {
    /// Returns the subject of a frame size: `NAME[64]`, or `NAME` if the test has one size.
    pub fn subject(&self, frame: FrameSize) -> String {
        if self.frames.len() == 1 { self.name.clone() } else { format!("{}[{}]", self.name, frame.link) }
    }

    /// Returns the subject of a part of the test, in the same form.
    pub fn part(&self, part: &str) -> String {
        format!("{}[{part}]", self.name)
    }

    /// Returns all subjects of a metric.
    pub fn subjects(&self, metric: Metric) -> Vec<String> {
        use Metric::*;
        if !self.method.metrics().contains(&metric) {
            return Vec::new();
        }
        match &self.method {
            Method::Activation { services, .. } => {
                services.iter().map(|service| self.part(&service.name)).collect()
            }
            Method::Stamp { .. } if ![TestSent, TestClockError].contains(&metric) => {
                let directions = FlowDirection::BOTH.map(FlowDirection::name);
                directions.into_iter().chain([ROUND_TRIP]).map(|part| self.part(part)).collect()
            }
            _ if [TestBitErrorRate, TestBaseLoss].contains(&metric) => vec![self.name.clone()],
            _ => self.frames.iter().map(|&frame| self.subject(frame)).collect(),
        }
    }
}
