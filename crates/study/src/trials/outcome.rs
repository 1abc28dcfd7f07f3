//! From the outcome of a trial's run to what a search learns from it.

use netstage_core::measure::Histogram;
use netstage_core::measure::trial::{Delays, Trial, TrialResult};
use netstage_core::time::Duration;
use netstage_scenario::outcome::{Metric, Outcome};

/// What came of a trial of packets. `probe` is the name of its flow.
pub fn packets(outcome: &Outcome, probe: &str, trial: &Trial) -> TrialResult {
    let sum = |metric| {
        let values = outcome.get(metric, probe)?.values.iter();
        Some(values.filter(|value| !value.is_nan()).sum::<f64>())
    };
    let count = |metric| sum(metric).unwrap_or(0.0).round() as u64;
    let of_payload = |metric| {
        let bits = sum(metric).unwrap_or(0.0) * outcome.interval.as_secs_f64();
        (bits / 8.0 / f64::from(trial.frame.payload)).round() as u64
    };
    let sent = match sum(Metric::FlowSent) {
        Some(sent) => sent.round() as u64,
        None => of_payload(Metric::FlowOffered),
    };
    let delays = delays(outcome, probe);
    TrialResult {
        sent,
        received: of_payload(Metric::FlowThroughput).min(sent),
        receiver_dropped: count(Metric::FlowReceiverDrops),
        duplicated: count(Metric::FlowDuplicated),
        reordered: count(Metric::FlowReordered),
        corrupted: count(Metric::FlowCorrupted),
        sending: sending(outcome, probe, trial, sent),
        delays,
        // The delay of every packet is known; their median stands for the one RFC 2544 tags.
        tagged_delay: trial.tag_after.and(delays).map(|delays| delays.median),
    }
}

/// How long packets were sent: at the rate asked for, unless the stage says how well it kept it.
fn sending(outcome: &Outcome, probe: &str, trial: &Trial, sent: u64) -> Duration {
    let kept = outcome.loads.iter().find(|load| load.subject == probe && load.quantity == "rate");
    let share = kept.map_or(1.0, |load| load.achieved / load.asked);
    Duration::from_secs_f64(sent as f64 / (trial.load.0 * share))
}

fn delays(outcome: &Outcome, probe: &str) -> Option<Delays> {
    let mut taken = outcome.distributions.iter();
    let taken = taken.find(|taken| taken.metric == Metric::FlowDelay && taken.subject == probe)?;
    let mut histogram = Histogram::default();
    histogram.add(&taken.buckets);
    Delays::of(&histogram)
}
