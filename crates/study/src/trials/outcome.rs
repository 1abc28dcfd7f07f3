//! From the outcome of a trial's run to what a search learns from it.

use netstage_core::measure::Histogram;
use netstage_core::measure::trial::{Delays, Trial, TrialResult};
use netstage_core::time::{Duration, Instant};
use netstage_scenario::outcome::{Metric, Outcome};
use netstage_scenario::plan::Direction;

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

/// What came of a TCP transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transferred {
    /// Payload bytes delivered, up to those that were to be transferred.
    pub bytes: u64,
    /// Until the last of them arrived, or the run ended.
    pub duration: Duration,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Least smoothed round trip the sender saw.
    pub least_round_trip: Option<Duration>,
    /// Mean of its smoothed round trips.
    pub mean_round_trip: Option<Duration>,
    /// The longest of them.
    pub longest_round_trip: Option<Duration>,
}

/// What came of a transfer that began at `start`, of `size` bytes where it has an end. What comes before it has
/// settled for so long tells the least round trip alone.
pub fn transfer(
    outcome: &Outcome,
    probe: &str,
    start: Instant,
    (size, settle): (Option<u64>, Duration),
) -> Transferred {
    let values = |metric| outcome.get(metric, probe).map_or(&[][..], |series| &series.values);
    let interval = outcome.interval;
    let (size, mut bytes) = (size.map_or(f64::INFINITY, |size| size as f64), 0.0);
    let mut bins = outcome.bins;
    let settled = start + settle;
    let first = if settle > Duration::ZERO { settled.0.div_ceil(interval.0) as usize } else { 0 };
    for (bin, rate) in values(Metric::FlowThroughput).iter().enumerate().skip(first) {
        bytes += rate * interval.as_secs_f64() / 8.0;
        // Half a byte for what floating point loses.
        if bytes + 0.5 >= size {
            (bytes, bins) = (size, bin + 1);
            break;
        }
    }
    let end = Instant::ZERO + interval * bins as u64;
    // What the sender keeps when all has arrived says nothing of the transfer.
    let seen = |first: usize| {
        let during = values(Metric::FlowRoundTrip).iter().take(bins).skip(first);
        during.copied().filter(|v| *v > 0.0)
    };
    let (count, sum) = seen(first).fold((0.0, 0.0), |(count, sum), v| (count + 1.0, sum + v));
    let again = values(Metric::FlowRetransmissions).iter().skip(first);
    Transferred {
        bytes: bytes.round() as u64,
        duration: end.since(settled),
        retransmissions: again.sum::<f64>().round() as u64,
        least_round_trip: seen(0).reduce(f64::min).map(Duration::from_secs_f64),
        mean_round_trip: (count > 0.0).then(|| Duration::from_secs_f64(sum / count)),
        longest_round_trip: seen(first).reduce(f64::max).map(Duration::from_secs_f64),
    }
}

/// How long packets were sent: at the rate asked for, unless the stage says how well it kept it.
fn sending(outcome: &Outcome, probe: &str, trial: &Trial, sent: u64) -> Duration {
    let kept = outcome.loads.iter().find(|load| load.subject == probe && load.quantity == "rate");
    let share = kept.map_or(1.0, |load| load.achieved / load.asked);
    Duration::from_secs_f64(sent as f64 / (trial.load.0 * share))
}

/// How long the probe's packets were under way: one way, or there and back where its sender
/// alone measures.
pub fn travel_times<'a>(outcome: &'a Outcome, probe: &str) -> Option<&'a [(u64, u64)]> {
    let of = |metric| {
        let mut taken = outcome.distributions.iter();
        let taken = taken.find(|taken| taken.metric == metric && taken.subject == probe)?;
        (!taken.buckets.is_empty()).then_some(&taken.buckets[..])
    };
    of(Metric::FlowDelay).or_else(|| of(Metric::FlowRoundTrip))
}

/// For how many networks it took how long, in nanoseconds, until packets followed an event.
pub fn convergence(outcome: Outcome, probe: &str) -> Vec<(u64, u64)> {
    let mut told = outcome.distributions.into_iter();
    let told = told.find(|told| told.metric == Metric::FlowConvergence && told.subject == probe);
    told.map_or(Vec::new(), |told| told.buckets)
}

/// What became of the packets of a probe that is answered, in each direction.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    /// Packets lost, there and back; none where the stage did not tell.
    pub lost: Option<[u64; 2]>,
    /// One-way delays, nanoseconds, there and back.
    pub delays: [Histogram; 2],
    /// Most by which these may be off, seconds; none where the stage did not tell.
    pub clock_error: Option<f64>,
}

/// What became of a probe's packets in each direction.
pub fn ways(outcome: &Outcome, probe: &str) -> Ways {
    let subjects = Direction::BOTH.map(|direction| direction.of(probe));
    let lost = subjects.each_ref().map(|subject| {
        let values = &outcome.get(Metric::FlowLost, subject)?.values;
        let lost = values.iter().sum::<f64>();
        // What a side did not tell is unknown, not zero.
        lost.is_finite().then(|| lost.round() as u64)
    });
    let delays = subjects.each_ref().map(|subject| {
        let mut delays = Histogram::default();
        delays.add(travel_times(outcome, subject).unwrap_or_default());
        delays
    });
    let errors = outcome.get(Metric::FlowClockError, probe).map(|series| series.values.as_slice());
    let clock_error = errors.and_then(|values| values.iter().copied().reduce(f64::max));
    Ways { lost: lost[0].zip(lost[1]).map(|(there, back)| [there, back]), delays, clock_error }
}

/// Wrong bits found in the payloads of a probe that compares them; none where it does not.
pub fn bit_errors(outcome: &Outcome, probe: &str) -> Option<u64> {
    let values = &outcome.get(Metric::FlowBitErrors, probe)?.values;
    Some(values.iter().filter(|value| !value.is_nan()).sum::<f64>().round() as u64)
}

/// The mean delay of each of the first bins, in seconds; NaN where none was measured.
pub fn delays_by_bin(outcome: &Outcome, probe: &str, bins: usize) -> Vec<f64> {
    let series = outcome.get(Metric::FlowDelay, probe).or_else(|| outcome.get(Metric::FlowRoundTrip, probe));
    series.map_or(Vec::new(), |series| series.values.iter().copied().take(bins).collect())
}

fn delays(outcome: &Outcome, probe: &str) -> Option<Delays> {
    let mut histogram = Histogram::default();
    histogram.add(travel_times(outcome, probe)?);
    Delays::of(&histogram)
}
