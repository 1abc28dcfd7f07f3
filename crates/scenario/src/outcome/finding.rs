//! Outcome of a test: its findings, their interpretation, and all trials.

use super::Metric;
use netstage_core::measure::trial::{CountedLayer, Trial, TrialResult};
use serde::{Deserialize, Serialize};

/// Outcome of one `[test.NAME]` in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TestOutcome {
    /// Name of the test.
    pub name: String,
    /// Kind of the test, as in the scenario.
    pub kind: String,
    /// Numeric results.
    pub findings: Vec<Finding>,
    /// Interpretation of the findings, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<String>,
    /// Deviations from the rules of the test, which make its findings incomparable with others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deviations: Vec<String>,
    /// Reasons why the findings are void: the tool itself fell short.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub void: Vec<String>,
    /// Reasons why findings are lower bounds only: the tool could not offer more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortfalls: Vec<String>,
    /// Trials, in order.
    pub trials: Vec<TrialEntry>,
}

/// Numeric result of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the metric.
    #[serde(deserialize_with = "super::metric_name")]
    pub metric: String,
    /// `NAME`, or `NAME[64]` if the test has several frame sizes.
    pub subject: String,
    /// Value, in the metric's unit.
    pub value: f64,
    /// Lower bound, if the method has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper bound, if the method has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

/// Trial and its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialEntry {
    /// Subject, as in [`Finding`].
    pub subject: String,
    /// Bytes of a frame, including its check sequence.
    pub frame: u32,
    /// Requested rate at the IP layer, bits per second.
    #[serde(alias = "asked_bps")]
    pub requested_bps: f64,
    /// Offered rate at the IP layer, bits per second.
    pub offered_bps: f64,
    /// Sending time, nanoseconds.
    pub sending_ns: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost on the path.
    pub lost: u64,
    /// Packets dropped by the receiving host.
    #[serde(default)]
    pub receiver_dropped: u64,
    /// Packets received more than once.
    #[serde(default)]
    pub duplicated: u64,
    /// Packets received after a packet sent later.
    #[serde(default)]
    pub reordered: u64,
    /// Packets received with a changed payload.
    #[serde(default)]
    pub corrupted: u64,
    /// Bytes delivered by a TCP transfer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub transferred: u64,
    /// Segments retransmitted by a TCP transfer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retransmissions: u64,
    /// Mean round-trip time of a TCP transfer, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_ns: Option<u64>,
    /// Maximum number of packets sent back to back, if the generator reports it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub burst: u64,
    /// Mean one-way delay, nanoseconds, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ns: Option<u64>,
    /// Faults of the packets that a router forwarded or lost, by kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<PacketFault>,
    /// Reason why the trial does not count; empty if it does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub void: String,
}

/// Packets of a trial with one kind of fault. A packet can have several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketFault {
    /// Kind of fault, such as "wrong TTL".
    pub kind: String,
    /// Set if the packets preceded the trial, while the tester waited for the router to forward.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_before: bool,
    /// Number of packets.
    pub packets: u64,
    /// Number of networks to which they were sent.
    pub networks: u64,
    /// Networks with the most such packets, and their numbers of packets.
    pub most: Vec<(String, u64)>,
    /// Time from the start of the trial to the arrival of the first, nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first_ns: u64,
    /// Differences between the first such packet and the expected one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub example: String,
    /// Frame of the first, in hexadecimal; at most 2,048 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bytes: String,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Finding {
    /// Returns a finding, or `None` if the value is not finite.
    pub fn new(metric: Metric, subject: &str, value: f64) -> Option<Finding> {
        let (metric, subject) = (metric.info().name.to_owned(), subject.to_owned());
        value.is_finite().then_some(Finding { metric, subject, value, low: None, high: None })
    }

    /// Sets the bounds; one that is not finite is omitted.
    pub fn within(self, low: f64, high: f64) -> Finding {
        let finite = |bound: f64| bound.is_finite().then_some(bound);
        Finding { low: finite(low), high: finite(high), ..self }
    }
}

impl TrialEntry {
    /// Creates the entry of a trial and its result.
    pub fn new(subject: &str, trial: &Trial, result: &TrialResult) -> TrialEntry {
        let rate = |packets_per_second: f64| {
            packets_per_second * 8.0 * f64::from(trial.frame.bytes(CountedLayer::Ip))
        };
        let seconds = result.sending.as_secs_f64();
        TrialEntry {
            subject: subject.to_owned(),
            frame: trial.frame.link,
            requested_bps: rate(trial.load.0),
            offered_bps: if seconds > 0.0 { rate(result.sent as f64 / seconds) } else { 0.0 },
            sending_ns: result.sending.0,
            sent: result.sent,
            lost: result.lost(),
            receiver_dropped: result.receiver_dropped,
            duplicated: result.duplicated,
            reordered: result.reordered,
            corrupted: result.corrupted,
            delay_ns: result.delays.map(|delays| delays.mean.0),
            ..TrialEntry::default()
        }
    }
}
