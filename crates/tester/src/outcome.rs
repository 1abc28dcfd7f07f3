//! Outcome of a trial, as of any stage.

use super::trial::{TrialOutcome, TrialTraffic};
use netstage_core::time::{Duration, Instant};
use netstage_scenario::outcome::{
    AchievedLoad, Distribution, Metric, RunOutcome, RunTotals, Series, ThreadStall,
};
use netstage_scenario::plan::{FlowGroup, Plan};

pub(super) fn outcome(
    plan: &Plan,
    flow: &FlowGroup,
    trial: &TrialTraffic,
    payload: u32,
    result: &TrialOutcome,
    own_delay: Duration,
) -> RunOutcome {
    let subject = flow.name.clone();
    let interval = plan.measure.interval;
    let bins = plan.duration.0.div_ceil(interval.0).max(1) as usize;
    let is_by_second = interval.0 == 1_000_000_000;
    let tally = &result.tally;
    // One bin per second if the interval is one second; otherwise all in the first bin.
    let received: Vec<f64> = match is_by_second {
        true => (0..bins).map(|bin| tally.seconds.get(bin).map_or(0.0, |second| second.0 as f64)).collect(),
        false => std::iter::once(tally.received as f64).chain(std::iter::repeat(0.0)).take(bins).collect(),
    };
    // The tester's own delay was measured before. If the mean is below it, the load of this machine has changed since, and
    // the delay of the router is unknown.
    let mean = |(frames, sum): (u64, u64)| {
        let mean = sum as f64 / frames as f64 - own_delay.0 as f64;
        if mean > 0.0 { mean / 1e9 } else { f64::NAN }
    };
    let all = tally.seconds.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    let delays: Vec<f64> = match is_by_second {
        true => (0..bins).map(|bin| mean(tally.seconds.get(bin).copied().unwrap_or_default())).collect(),
        false => std::iter::once(mean(all)).chain(std::iter::repeat(f64::NAN)).take(bins).collect(),
    };
    let first = |count: u64| std::iter::once(count as f64).chain(std::iter::repeat(0.0)).take(bins).collect();
    let bits = 8.0 * f64::from(payload) / interval.as_secs_f64();
    let series = |metric, values| Series { metric, subject: subject.clone(), values };
    let load = |quantity: &str, unit: &str, requested, achieved| AchievedLoad {
        subject: subject.clone(),
        quantity: quantity.into(),
        unit: unit.into(),
        layer: String::new(),
        requested,
        achieved,
    };
    let router_delay = |delay: u64| delay.saturating_sub(own_delay.0);
    let mut buckets: Vec<(u64, u64)> =
        tally.delays.iter().map(|(delay, count)| (router_delay(*delay), *count)).collect();
    buckets.sort_unstable();
    buckets.dedup_by(|next, previous| {
        let is_same = next.0 == previous.0;
        previous.1 += if is_same { next.1 } else { 0 };
        is_same
    });
    let distribution = Distribution { metric: Metric::FlowDelay, subject: subject.clone(), buckets };
    RunOutcome {
        interval,
        bins,
        series: vec![
            series(Metric::FlowThroughput, received.iter().map(|frames| frames * bits).collect()),
            series(Metric::FlowSent, first(result.sent)),
            series(Metric::FlowDuplicated, first(tally.duplicates)),
            series(Metric::FlowReordered, first(tally.reordered)),
            series(Metric::FlowCorrupted, first(tally.wrong)),
            series(Metric::FlowDelay, delays),
        ],
        distributions: if mean(all).is_nan() { Vec::new() } else { vec![distribution] },
        loads: vec![
            load("rate", "packets/s", trial.rate, result.offered),
            load("packets on time", "packets", result.sent as f64, (result.sent - result.late) as f64),
            load("burst", "packets", f64::from(result.burst), f64::from(result.burst)),
        ],
        held: vec![(subject.clone(), result.held_ns)],
        stalls: stall(&subject, result).into_iter().collect(),
        void: late_sender(result).into_iter().collect(),
        packet_faults: result.faults.clone(),
        totals: RunTotals { sent: result.sent, delivered: tally.received, ..RunTotals::default() },
        ..RunOutcome::default()
    }
}

/// Returns the largest lateness of a sender.
fn stall(flow: &str, result: &TrialOutcome) -> Option<ThreadStall> {
    let stall = result.stall.as_ref()?;
    Some(ThreadStall {
        flow: flow.into(),
        thread: format!("sender of {}", stall.interface),
        lateness: Duration(stall.lateness_ns),
        due: Instant(stall.due_ns),
    })
}

/// Returns why the losses of a trial may be due to its senders. Losses that exceed the late frames are the router's.
fn late_sender(result: &TrialOutcome) -> Option<String> {
    let stall = stall("", result)?;
    let lost = result.sent.saturating_sub(result.tally.received);
    (lost > 0 && lost <= result.late).then(|| {
        format!(
            "{}: {} of {} frames left late, which may have caused the loss of {lost}",
            stall, result.late, result.sent
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::ReceiverTally;
    use crate::trial::SenderStall;

    #[test]
    fn losses_not_above_the_late_frames_are_void() {
        let result = |late, received| TrialOutcome {
            sent: 1000,
            late,
            stall: Some(SenderStall { interface: "a1".into(), lateness_ns: 200_000, due_ns: 1_500_000_000 }),
            tally: ReceiverTally { received, ..ReceiverTally::default() },
            ..TrialOutcome::default()
        };
        for right in [result(0, 990), result(9, 990), result(9, 1000), result(0, 1000)] {
            assert_eq!(late_sender(&right), None);
        }
        let reason = late_sender(&result(10, 990)).expect("a reason");
        for part in ["sender of a1", "0.2 ms at 1.500 s", "10 of 1000 frames", "loss of 10"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
}
