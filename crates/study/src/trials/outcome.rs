//! Conversion of a run's outcome to the result of a trial.

use netstage_core::measure::Histogram;
use netstage_core::measure::trial::{DelayStatistics, LinkLateness, Trial, TrialResult};
use netstage_core::time::{Duration, Instant};
use netstage_scenario::outcome::{AchievedLoad, Metric, POLICY_LOAD, RunOutcome};
use netstage_scenario::plan::FlowDirection;

/// Returns the result of a trial of packets. `probe` is the name of its flow.
pub fn packets(outcome: &RunOutcome, probe: &str, trial: &Trial) -> TrialResult {
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
    let sending = sending(outcome, probe, trial, sent);
    let received = of_payload(Metric::FlowThroughput);
    let arrivals = outcome.arrivals.iter().find(|arrivals| arrivals.flow == probe);
    let after_end = arrivals.map_or(0, |arrivals| arrivals.after_end);
    let received = (received + after_end).min(sent);
    // Packets that the policy of the sender's host dropped were not offered to the path.
    let sent = (sent - dropped_by_policy(outcome, probe).min(sent)).max(received);
    let delays = delays(outcome, probe);
    let links = outcome.late_links.iter().find(|(flow, _)| flow == probe);
    let links = links.map_or(LinkLateness::default(), |&(_, links)| links);
    TrialResult {
        sent,
        arrivals: arrivals.map(|arrivals| arrivals.window),
        late: late(outcome, probe) + links.packets,
        links,
        held: held(outcome, probe),
        received,
        receiver_dropped: count(Metric::FlowReceiverDrops),
        duplicated: count(Metric::FlowDuplicated),
        reordered: count(Metric::FlowReordered),
        corrupted: count(Metric::FlowCorrupted),
        sending,
        delays,
        // All delays are known; the median replaces the delay of the tagged frame of RFC 2544.
        tagged_delay: trial.tag_after.and(delays).map(|delays| delays.median),
    }
}

/// Result of a TCP transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TransferResult {
    /// Payload bytes delivered, up to the requested size.
    pub bytes: u64,
    /// Time until the last byte arrived or the run ended.
    pub duration: Duration,
    /// Retransmitted segments.
    pub retransmissions: u64,
    /// Minimum of the sender's smoothed round trip.
    pub min_round_trip: Option<Duration>,
    /// Mean of the sender's smoothed round trip.
    pub mean_round_trip: Option<Duration>,
    /// Maximum of the sender's smoothed round trip.
    pub max_round_trip: Option<Duration>,
}

/// Returns the result of a transfer from `start`, of `size` bytes or without end. The first `settle` of it is used only
/// for the minimum round trip.
pub fn transfer(
    outcome: &RunOutcome,
    probe: &str,
    start: Instant,
    (size, settle): (Option<u64>, Duration),
) -> TransferResult {
    let values = |metric| outcome.get(metric, probe).map_or(&[][..], |series| &series.values);
    let interval = outcome.interval;
    let (size, mut bytes) = (size.map_or(f64::INFINITY, |size| size as f64), 0.0);
    let mut bins = outcome.bins;
    let settled = start + settle;
    let first = if settle > Duration::ZERO { settled.0.div_ceil(interval.0) as usize } else { 0 };
    for (bin, rate) in values(Metric::FlowThroughput).iter().enumerate().skip(first) {
        bytes += rate * interval.as_secs_f64() / 8.0;
        // Half a byte compensates for rounding errors.
        if bytes + 0.5 >= size {
            (bytes, bins) = (size, bin + 1);
            break;
        }
    }
    let end = Instant::ZERO + interval * bins as u64;
    // Values after the end of the transfer are not measurements of it.
    let round_trips = |first: usize| {
        let during = values(Metric::FlowRoundTrip).iter().take(bins).skip(first);
        during.copied().filter(|v| *v > 0.0)
    };
    let (count, sum) = round_trips(first).fold((0.0, 0.0), |(count, sum), v| (count + 1.0, sum + v));
    let retransmissions = values(Metric::FlowRetransmissions).iter().skip(first);
    TransferResult {
        bytes: bytes.round() as u64,
        duration: end.since(settled),
        retransmissions: retransmissions.sum::<f64>().round() as u64,
        min_round_trip: round_trips(0).reduce(f64::min).map(Duration::from_secs_f64),
        mean_round_trip: (count > 0.0).then(|| Duration::from_secs_f64(sum / count)),
        max_round_trip: round_trips(first).reduce(f64::max).map(Duration::from_secs_f64),
    }
}

/// Returns the duration of sending: that at the requested rate, corrected by the achieved load if the stage reports it.
fn sending(outcome: &RunOutcome, probe: &str, trial: &Trial, sent: u64) -> Duration {
    let load = outcome.loads.iter().find(|load| load.subject == probe && load.quantity == "rate");
    let share = load.map_or(1.0, |load| load.achieved / load.requested);
    Duration::from_secs_f64(sent as f64 / (trial.load.0 * share))
}

/// Returns the number of packets that the policy of the sender's host dropped, at most.
pub fn dropped_by_policy(outcome: &RunOutcome, probe: &str) -> u64 {
    let load = outcome.loads.iter().find(|load| load.subject == probe && load.quantity == POLICY_LOAD);
    load.map_or(0, |load| (load.requested - load.achieved).round() as u64)
}

/// Returns the number of packets and replies that were sent late.
fn late(outcome: &RunOutcome, probe: &str) -> u64 {
    let is_late = |load: &&AchievedLoad| {
        load.subject == probe && ["packets on time", "replies on time"].contains(&load.quantity.as_str())
    };
    let late = outcome.loads.iter().filter(is_late).map(|load| load.requested - load.achieved);
    late.sum::<f64>().round() as u64
}

/// Returns the maximum time between the timestamp of a packet or reply and its departure.
fn held(outcome: &RunOutcome, probe: &str) -> Duration {
    let held = outcome.held.iter().filter(|(flow, _)| flow == probe).map(|&(_, time)| Duration(time));
    held.max().unwrap_or(Duration::ZERO)
}

/// Returns the distribution of the probe's delay in nanoseconds: one-way, or round-trip if only the sender measures.
pub fn travel_times<'a>(outcome: &'a RunOutcome, probe: &str) -> Option<&'a [(u64, u64)]> {
    let buckets = |metric| {
        let mut distributions = outcome.distributions.iter();
        let found = distributions.find(|other| other.metric == metric && other.subject == probe)?;
        (!found.buckets.is_empty()).then_some(&found.buckets[..])
    };
    buckets(Metric::FlowDelay).or_else(|| buckets(Metric::FlowRoundTrip))
}

/// Returns the convergence times in nanoseconds, each with its number of networks.
pub fn convergence(outcome: RunOutcome, probe: &str) -> Vec<(u64, u64)> {
    let mut distributions = outcome.distributions.into_iter();
    let found = distributions.find(|other| other.metric == Metric::FlowConvergence && other.subject == probe);
    found.map_or(Vec::new(), |distribution| distribution.buckets)
}

/// Loss and delay of a reflected probe in each direction.
#[derive(Clone, Debug, Default)]
pub struct DirectionResults {
    /// Packets lost forward and backward; `None` if the stage does not report it.
    pub lost: Option<[u64; 2]>,
    /// One-way delays in nanoseconds, forward and backward.
    pub delays: [Histogram; 2],
    /// Maximum clock error of the delays in seconds; `None` if the stage does not report it.
    pub clock_error: Option<f64>,
}

/// Returns the loss and delay of a reflected probe in each direction.
pub fn direction_results(outcome: &RunOutcome, probe: &str) -> DirectionResults {
    let subjects = FlowDirection::BOTH.map(|direction| direction.subject(probe));
    let lost = subjects.each_ref().map(|subject| {
        let values = &outcome.get(Metric::FlowLost, subject)?.values;
        let lost = values.iter().sum::<f64>();
        // A value that is not reported is unknown, not zero.
        lost.is_finite().then(|| lost.round() as u64)
    });
    let delays = subjects.each_ref().map(|subject| {
        let mut delays = Histogram::default();
        delays.add(travel_times(outcome, subject).unwrap_or_default());
        delays
    });
    let errors = outcome.get(Metric::FlowClockError, probe).map(|series| series.values.as_slice());
    let clock_error = errors.and_then(|values| values.iter().copied().reduce(f64::max));
    DirectionResults {
        lost: lost[0].zip(lost[1]).map(|(forward, backward)| [forward, backward]),
        delays,
        clock_error,
    }
}

/// Returns the wrong bits in a probe's payloads, or `None` if they are not compared.
pub fn bit_errors(outcome: &RunOutcome, probe: &str) -> Option<u64> {
    let values = &outcome.get(Metric::FlowBitErrors, probe)?.values;
    Some(values.iter().filter(|value| !value.is_nan()).sum::<f64>().round() as u64)
}

/// Returns the mean delay of each of the first `bins` bins in seconds (NaN: not measured).
pub fn delays_by_bin(outcome: &RunOutcome, probe: &str, bins: usize) -> Vec<f64> {
    let series = outcome.get(Metric::FlowDelay, probe).or_else(|| outcome.get(Metric::FlowRoundTrip, probe));
    series.map_or(Vec::new(), |series| series.values.iter().copied().take(bins).collect())
}

fn delays(outcome: &RunOutcome, probe: &str) -> Option<DelayStatistics> {
    let mut histogram = Histogram::default();
    histogram.add(travel_times(outcome, probe)?);
    DelayStatistics::from_histogram(&histogram)
}
