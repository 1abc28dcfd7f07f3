//! `[test.NAME]` in a plan: what is searched, and with which packets. The trials themselves are
//! plans of their own, which the study derives.

use super::{Direction, FlowGroup};
use crate::outcome::Metric;
use netstage_core::measure::mlrsearch::Goal;
use netstage_core::measure::trial::FrameSize;
use netstage_core::measure::y1564::Service;
use netstage_core::quantity::BitRate;
use netstage_core::tcp;
use netstage_core::time::Duration;

/// A measurement made of trials.
#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    /// Its name, as in `[test.NAME]`.
    pub name: String,
    /// What is searched.
    pub method: Method,
    /// The flow of its trials; each puts in its own traffic and times.
    pub probe: FlowGroup,
    /// Sizes of its packets: what is searched is searched for each. For a transfer, its segment of full size.
    pub frames: Vec<FrameSize>,
    /// Indices of the flow groups that run beside the probe.
    pub load: Vec<usize>,
    /// How long these run before the probe starts.
    pub warm_up: Duration,
    /// How long packets still under way are waited for.
    pub drain: Duration,
}

/// What is searched. Rates count the IP layer; shares are of the highest rate.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// The highest rate without loss (RFC 2544, 26.1).
    Throughput(Search),
    /// The delay at a rate, or at the throughput (RFC 2544, 26.2).
    Latency {
        /// The rate; none: the throughput.
        rate: Option<BitRate>,
        /// Search for the throughput, and length of a trial.
        search: Search,
        /// Trials.
        repeats: u32,
    },
    /// Loss at rates from the highest down (RFC 2544, 26.3).
    FrameLoss {
        /// The highest rate; none: what the sender's own link carries.
        max_rate: Option<BitRate>,
        /// Length of a trial.
        trial: Duration,
        /// From one rate to the next, as a share.
        step: f64,
    },
    /// The longest burst without loss (RFC 9004).
    BackToBack {
        /// Search for the throughput.
        search: Search,
        /// The longest burst tried.
        longest: Duration,
        /// Searches.
        repeats: u32,
    },
    /// The highest rate that keeps to a goal (MLRsearch, RFC 9971).
    Mlrsearch {
        /// The highest rate; none: what the sender's own link carries.
        max_rate: Option<BitRate>,
        /// The goal.
        goal: Goal,
    },
    /// The rate at which what comes through tops out.
    Plateau {
        /// The highest rate; none: what the sender's own link carries.
        max_rate: Option<BitRate>,
        /// Length of a trial.
        trial: Duration,
        /// Trials on the plateau.
        repeats: u32,
    },
    /// The highest rate that is carried steadily (`netstage_core::measure::steady`).
    Steady {
        /// The highest rate; none: what the sender's own link carries.
        max_rate: Option<BitRate>,
        /// The low rate, whose delay others are measured by.
        low: BitRate,
        /// Rates are whole multiples of this.
        step: BitRate,
        /// Length of the trial that decides.
        trial: Duration,
        /// Length of those before it.
        search: Duration,
    },
    /// Bit error rate.
    BitError {
        /// What it is concluded from.
        by: ErrorsBy,
        /// The rate.
        rate: BitRate,
        /// Length of the trial of each size.
        trial: Duration,
    },
    /// A TCP transfer beside what its path allows (RFC 6349).
    Transfer(Transfer),
    /// The window with which TCP carries most.
    Tune(Tune),
    /// Whether services keep what was agreed (ITU-T Y.1564).
    Activation {
        /// What was agreed.
        services: Vec<Service>,
        /// Length of a step of one service.
        step: Duration,
        /// Length of the test of all together.
        performance: Duration,
    },
    /// Loss, delay and its variation there and back (STAMP, RFC 8762).
    Stamp {
        /// From packet to packet.
        interval: Duration,
        /// How long packets are sent.
        trial: Duration,
    },
    /// How long packets take to follow routes that go or come (RFC 7747).
    Convergence {
        /// The rate.
        rate: BitRate,
        /// Length of a trial; when in it the event is, the stage knows.
        trial: Duration,
        /// To how many networks packets go, in turn.
        networks: u32,
    },
    /// Loss at one rate.
    Loss {
        /// The rate.
        rate: BitRate,
        /// Length of a trial.
        trial: Duration,
        /// Trials.
        repeats: u32,
    },
}

/// What a bit error rate is concluded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorsBy {
    /// How loss grows with the size of packets.
    Loss,
    /// Payloads compared, bit by bit.
    Payload,
}

/// A search over rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// The highest rate; none: what the sender's own link carries.
    pub max_rate: Option<BitRate>,
    /// Where it ends, as a share.
    pub resolution: f64,
    /// Length of a trial.
    pub trial: Duration,
}

/// A TCP transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Bytes; none: as many as the time allows.
    pub size: Option<u64>,
    /// The longest it takes.
    pub trial: Duration,
    /// The highest rate of the search for the line's; none: what the sender's own link carries.
    pub max_rate: Option<BitRate>,
    /// Length of a trial of that search.
    pub search: Duration,
}

/// A search for a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Tune {
    /// Length of a transfer, without what is left out.
    pub trial: Duration,
    /// How much of its beginning is left out.
    pub settle: Duration,
    /// Most transfers.
    pub trials: usize,
    /// Shares of throughput below this make no difference.
    pub tolerance: f64,
    /// The longest mean round trip.
    pub delay_bound: Option<Duration>,
    /// Congestion controls to choose from; none: that of the probe.
    pub algorithms: Vec<tcp::Algorithm>,
    /// The largest window tried, bytes.
    pub largest: u64,
}

impl Method {
    /// The word of the scenario for it.
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

    /// What it finds.
    pub fn metrics(&self) -> &'static [Metric] {
        use Metric::*;
        match self {
            Method::Throughput(_) | Method::Mlrsearch { .. } => {
                &[TestThroughput, TestFrameRate, TestLineShare]
            }
            Method::Plateau { .. } => &[TestPlateau],
            Method::BitError { by: ErrorsBy::Loss, .. } => {
                &[TestBitErrorRate, TestBaseLoss, TestLossRatio, TestDelivered]
            }
            Method::BitError { by: ErrorsBy::Payload, .. } => {
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
                TestWindowSure,
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
                TestLatencyLeast,
                TestLatencyMedian,
                TestLatency99,
                TestLatency999,
                TestLatencyMost,
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

/// Three metrics of the rate, then those of latency.
const RATE_AND_LATENCY: &[Metric] = &[
    Metric::TestThroughput,
    Metric::TestFrameRate,
    Metric::TestLineShare,
    Metric::TestLatency,
    Metric::TestLatencyLeast,
    Metric::TestLatencyMedian,
    Metric::TestLatency99,
    Metric::TestLatency999,
    Metric::TestLatencyMost,
];

/// The part of a test that is there and back together.
pub const ROUND_TRIP: &str = "round-trip";

impl Test {
    /// Name of what is found for one of its frame sizes: `NAME[64]`, or `NAME` where there is
    /// only one.
    pub fn subject(&self, frame: FrameSize) -> String {
        if self.frames.len() == 1 { self.name.clone() } else { format!("{}[{}]", self.name, frame.link) }
    }

    /// Name of what is found for one part of it, as of a frame size.
    pub fn part(&self, part: &str) -> String {
        format!("{}[{part}]", self.name)
    }

    /// Names of all that it finds of a metric.
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
                let ways = Direction::BOTH.map(Direction::name);
                ways.into_iter().chain([ROUND_TRIP]).map(|part| self.part(part)).collect()
            }
            _ if [TestBitErrorRate, TestBaseLoss].contains(&metric) => vec![self.name.clone()],
            _ => self.frames.iter().map(|&frame| self.subject(frame)).collect(),
        }
    }
}
