//! What a test came to: its findings, what they mean, and every trial they rest on.

use super::Metric;
use netstage_core::measure::trial::{Layer, Trial, TrialResult};
use serde::{Deserialize, Serialize};

/// What one `[test.NAME]` came to in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TestOutcome {
    /// Its name.
    pub name: String,
    /// Its kind, as in the scenario.
    pub kind: String,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What it means, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<String>,
    /// Where its rules were not kept in full, so that its findings compare with no others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deviations: Vec<String>,
    /// Why it found nothing that counts: the tool itself fell short.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub void: Vec<String>,
    /// Its trials, in order.
    pub trials: Vec<TrialEntry>,
}

/// A number a test found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of a metric.
    pub metric: String,
    /// `NAME`, or `NAME[64]` where there are several frame sizes.
    pub subject: String,
    /// The value, in the metric's unit.
    pub value: f64,
    /// Lower bound, where the method gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

/// A trial and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialEntry {
    /// What it was for, as in [`Finding`].
    pub subject: String,
    /// Bytes of a frame, with its check sequence.
    pub frame: u32,
    /// Rate asked for at the IP layer, bits per second.
    pub asked_bps: f64,
    /// Rate offered at the IP layer, bits per second.
    pub offered_bps: f64,
    /// How long packets were sent, nanoseconds.
    pub sending_ns: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost on the way.
    pub lost: u64,
    /// Packets the receiving host lost itself.
    #[serde(default)]
    pub receiver_dropped: u64,
    /// Packets received more than once.
    #[serde(default)]
    pub duplicated: u64,
    /// Packets received after one sent later.
    #[serde(default)]
    pub reordered: u64,
    /// Packets received with another payload than was sent.
    #[serde(default)]
    pub corrupted: u64,
    /// Bytes a TCP transfer delivered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub transferred: u64,
    /// Segments it sent again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retransmissions: u64,
    /// Mean round trip of a transfer, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_ns: Option<u64>,
    /// Packets sent back to back at most, where the generator tells.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub burst: u64,
    /// Mean one-way delay, nanoseconds, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ns: Option<u64>,
    /// Why it does not count; empty where it does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub void: String,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Finding {
    /// A finding; none where there is no number.
    pub fn new(metric: Metric, subject: &str, value: f64) -> Option<Finding> {
        let (metric, subject) = (metric.info().name.to_owned(), subject.to_owned());
        value.is_finite().then_some(Finding { metric, subject, value, low: None, high: None })
    }

    /// With its bounds, as far as there are any.
    pub fn within(self, low: f64, high: f64) -> Finding {
        let known = |bound: f64| bound.is_finite().then_some(bound);
        Finding { low: known(low), high: known(high), ..self }
    }
}

impl TrialEntry {
    /// What a trial and its result say.
    pub fn new(subject: &str, trial: &Trial, result: &TrialResult) -> TrialEntry {
        let rate =
            |packets_per_second: f64| packets_per_second * 8.0 * f64::from(trial.frame.bytes(Layer::Ip));
        let seconds = result.sending.as_secs_f64();
        TrialEntry {
            subject: subject.to_owned(),
            frame: trial.frame.link,
            asked_bps: rate(trial.load.0),
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
