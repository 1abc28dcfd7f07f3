//! Report of the links and its validity. Each fault of the emulator is reported with its place, extent and remedy.

use super::config::{EmulatorConfig, LinkConfig};
use super::direction::EmulatedDirection;
use super::links::Links;
use super::report::{DirectionReport, DirectionTotals, EmulatorReport, LinkReport};
use super::timing::Timing;
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::time::Instant;

/// Failure of a port.
#[derive(Debug)]
pub struct Failure {
    /// Error of the system.
    pub reason: String,
    /// Time of the failure.
    pub at: Instant,
}

/// Faults recorded by the driver.
#[derive(Debug)]
pub struct Faults {
    /// Failure of each direction's input port, if it failed in the run.
    pub failed: Vec<Option<Failure>>,
    /// Length of the longest frame that was too long.
    pub too_long: Option<usize>,
    /// Time at which the emulator stopped.
    pub stopped: Instant,
}

/// Returns the report of links that were stopped at `now`.
pub fn report(
    config: &EmulatorConfig,
    mut links: Links,
    mut timing: Vec<Timing>,
    now: Instant,
) -> EmulatorReport {
    let mut overall = Timing::new();
    timing.iter().for_each(|timing| overall.merge(timing));
    for direction in &mut links.directions {
        direction.handle_timeout(now.min(links.shared.end), &mut links.shared);
    }
    let bins = links.shared.grid.bins;
    let mut counted = links.directions.into_iter().zip(&mut timing).enumerate();
    let mut next = |link: &LinkConfig| {
        let (index, (direction, timing)) = counted.next().expect("each link has two directions");
        let late = timing.later_than(config.tolerance.late);
        let report = direction_report(link.direction_name(index % 2), direction, timing, bins);
        (report, late)
    };
    let mut reports = Vec::new();
    let mut late_directions = LateDirections::default();
    for link in &config.links {
        let directions = [next(link), next(link)].map(|(report, late)| {
            late_directions.add(config, &report, late);
            report
        });
        reports.push(LinkReport { name: link.name.clone(), directions, by_kernel: false });
    }
    let flow_lost = links.shared.flow_lost.into_iter();
    EmulatorReport {
        interval: config.interval,
        links: reports,
        flow_lost: flow_lost.map(|(flow, lost)| (flow, lost.into_values())).collect(),
        lateness: overall.lateness(),
        void: late_directions.verdict(config).into_iter().collect(),
        ..EmulatorReport::default()
    }
}

fn direction_report(
    name: String,
    direction: EmulatedDirection,
    timing: &mut Timing,
    bins: usize,
) -> DirectionReport {
    let (counts, totals) = (direction.counts, direction.totals);
    // A run that was stopped early has bins that were not closed.
    let padded = |mut values: Vec<u64>| {
        values.resize(bins, 0);
        values
    };
    let ended = totals.delivered + totals.corrupted + totals.dropped + totals.lost;
    DirectionReport {
        name,
        packets: counts.packets.into_values(),
        bytes: padded(counts.bytes.into_values()),
        background: padded(counts.background.into_values()),
        delivered: counts.delivered.into_iter().map(|(class, bytes)| (class, bytes.into_values())).collect(),
        waiting_ns: counts.waiting.into_values(),
        busy_ns: padded(counts.busy.into_values()),
        broadcast: counts.broadcast.into_values(),
        drops: counts.drops.into_values(),
        lost: counts.lost.into_values(),
        marks: padded(counts.marks.into_values()),
        totals: DirectionTotals { in_flight: totals.entered + totals.duplicated - ended, ..totals },
        lateness: timing.lateness(),
        lateness_distribution: timing.distribution(),
        saturated: timing.saturated_rate(),
    }
}

/// Minimum number of late packets that voids a run. Fewer may be accidental.
const MIN_LATE: u64 = 10;

/// Directions with too many late packets. One overload affects many directions, so only the worst is reported.
#[derive(Default)]
struct LateDirections {
    count: usize,
    /// Share of late packets in the worst direction, and its description.
    worst: Option<(f64, VoidReason)>,
}

impl LateDirections {
    fn add(&mut self, config: &EmulatorConfig, report: &DirectionReport, late: u64) {
        let frames = report.lateness.frames;
        let share = late as f64 / frames.max(1) as f64;
        if late < MIN_LATE || share <= config.tolerance.share {
            return;
        }
        self.count += 1;
        if self.worst.as_ref().is_none_or(|(worst, _)| share > *worst) {
            let fault = format!(
                "{late} of {frames} packets left more than {:.1} ms late (99th percentile {:.1} ms), at most by {:.1} ms",
                config.tolerance.late.as_secs_f64() * 1e3,
                report.lateness.p99_ns as f64 / 1e6,
                report.lateness.max_ns as f64 / 1e6,
            );
            let at = FaultTime::At(Instant(report.lateness.max_due_ns));
            self.worst = Some((share, VoidReason::new(format!("link.{}:", report.name), fault, at)));
        }
    }

    fn verdict(self, config: &EmulatorConfig) -> Option<VoidReason> {
        let (_, reason) = self.worst?;
        let reason = match self.count {
            1 => reason,
            count => {
                reason.advise(format!("it is the worst of {count} of {} directions", 2 * config.links.len()))
            }
        };
        Some(reason.advise(
            "the emulator could not keep up: lower the rates, use fewer links, stop other programs on this machine, or \
             grant real-time scheduling",
        ))
    }
}

/// Adds faults that void the run, and warnings, to the report.
pub fn judge(report: &mut EmulatorReport, config: &EmulatorConfig, faults: &Faults) {
    let mut void = Vec::new();
    for (index, direction) in report.links.iter().flat_map(|link| &link.directions).enumerate() {
        let (name, totals) = (&direction.name, direction.totals);
        let within = |fault: String| {
            VoidReason::new(format!("link.{name}:"), fault, FaultTime::Within(config.duration))
        };
        if let Some(Failure { reason, at }) = &faults.failed[index] {
            let fault = format!("the input interface failed: {reason}");
            void.push(VoidReason::new(format!("link.{name}:"), fault, FaultTime::At(*at)));
        }
        if totals.missed > 0 {
            let fault = format!("{} packets were lost before the emulator read them", totals.missed);
            let advice = "lower the rates, use fewer links, or grant real-time scheduling";
            void.push(within(fault).advise(advice));
        }
        if totals.unbuffered > 0 {
            let (reason, advice) = match faults.too_long {
                Some(length) => (
                    format!("one was {length} bytes long"),
                    "disable segmentation offload (tso, gso, gro) on the interfaces",
                ),
                None => (
                    format!("the buffers of {} MB are exhausted", config.pool_bytes >> 20),
                    "lower the rates or delays, or raise pool_bytes",
                ),
            };
            let fault = format!("{} packets could not be buffered ({reason})", totals.unbuffered);
            void.push(within(fault).advise(advice));
        }
        if totals.refused > 0 {
            let fault = format!("the system refused to send {} packets", totals.refused);
            void.push(within(fault).advise("check that the interface is up and its receiver reads"));
        }
    }
    report.void.extend(void);
    if faults.stopped < Instant::ZERO + config.duration {
        let seconds = faults.stopped.as_secs_f64();
        let warning = format!("the emulator was stopped after {seconds:.3} s, before the end of the run");
        report.warnings.push(warning);
    }
    let lateness = report.lateness;
    if report.void.is_empty() && lateness.share_over_100_us > 0.01 {
        report.warnings.push(format!(
            "{:.1} % of packets left a link more than 100 µs late (99th percentile {} µs)",
            lateness.share_over_100_us * 100.0,
            lateness.p99_ns / 1000
        ));
        report.warnings.extend(report.grants.advice());
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{POOL_BYTES, Tolerance};
    use super::super::report::Lateness;
    use super::*;
    use netstage_core::time::Duration;

    #[test]
    fn only_the_worst_of_several_late_directions_is_reported() {
        let config = EmulatorConfig {
            seed: 1,
            duration: Duration::from_secs(1),
            interval: Duration::from_secs(1),
            links: Vec::new(),
            labels: Vec::new(),
            default_class: 0,
            pool_bytes: POOL_BYTES,
            tolerance: Tolerance::default(),
        };
        let mut late_directions = LateDirections::default();
        for (name, late) in [("a.forward", 20), ("a.reverse", 300), ("b.forward", 30), ("b.reverse", 1)] {
            let lateness = Lateness { frames: 1000, ..Lateness::default() };
            let report = DirectionReport { name: name.into(), lateness, ..DirectionReport::default() };
            late_directions.add(&config, &report, late);
        }
        let verdict = late_directions.verdict(&config).unwrap();
        assert!(verdict.starts_with("link.a.reverse: 300 of 1000 packets left more than 1.0 ms late"));
        assert!(verdict.contains("the worst of 3 of "), "{verdict}");
        assert_eq!(LateDirections::default().verdict(&config), None);
    }
}
