//! From what the links have counted to a report, and whether it may be trusted: an emulator
//! that fell short says what, where, by how much, and what to do about it.

use super::config::{Config, LinkConfig};
use super::direction::Direction;
use super::links::Links;
use super::report::{DirectionReport, LinkReport, Report, Totals};
use super::timing::Timing;
use netstage_core::time::Instant;

/// What the driver knows beside the links.
#[derive(Debug)]
pub struct Faults {
    /// Per direction: why the port it comes from failed.
    pub failed: Vec<Option<String>>,
    /// The longest frame that was too long.
    pub too_long: Option<usize>,
    /// When the emulator stopped.
    pub stopped: Instant,
}

/// The report of links that were stopped at `now`.
pub fn report(config: &Config, mut links: Links, mut timing: Vec<Timing>, now: Instant) -> Report {
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
    let mut slipped = Slipped::default();
    for link in &config.links {
        let directions = [next(link), next(link)].map(|(report, late)| {
            slipped.add(config, &report, late);
            report
        });
        reports.push(LinkReport { name: link.name.clone(), directions, by_kernel: false });
    }
    let flow_lost = links.shared.flow_lost.into_iter();
    Report {
        interval: config.interval,
        links: reports,
        flow_lost: flow_lost.map(|(flow, lost)| (flow, lost.into_values())).collect(),
        lateness: overall.lateness(),
        lateness_distribution: overall.distribution(),
        void: slipped.verdict(config).into_iter().collect(),
        ..Report::default()
    }
}

fn direction_report(name: String, direction: Direction, timing: &mut Timing, bins: usize) -> DirectionReport {
    let (counts, totals) = (direction.counts, direction.totals);
    // A run that was stopped early leaves bins open.
    let closed = |mut values: Vec<u64>| {
        values.resize(bins, 0);
        values
    };
    let ended = totals.delivered + totals.corrupted + totals.dropped + totals.lost;
    DirectionReport {
        name,
        packets: counts.packets.into_values(),
        bytes: counts.bytes.into_values(),
        background: counts.background.into_values(),
        delivered: counts.delivered.into_iter().map(|(class, bytes)| (class, bytes.into_values())).collect(),
        waiting_ns: counts.waiting.into_values(),
        busy_ns: closed(counts.busy.into_values()),
        broadcast: counts.broadcast.into_values(),
        drops: counts.drops.into_values(),
        lost: counts.lost.into_values(),
        marks: closed(counts.marks.into_values()),
        totals: Totals { in_flight: totals.entered + totals.duplicated - ended, ..totals },
        lateness: timing.lateness(),
        saturated: timing.saturated_rate(),
    }
}

/// Fewer late packets than this are an accident.
const SUSTAINED: u64 = 10;

/// Directions whose packets left late too often. One overload makes many: the worst is told.
#[derive(Default)]
struct Slipped {
    directions: usize,
    /// Share of late packets in the worst direction, and what to say of it.
    worst: Option<(f64, String)>,
}

impl Slipped {
    fn add(&mut self, config: &Config, report: &DirectionReport, late: u64) {
        let frames = report.lateness.frames;
        let share = late as f64 / frames.max(1) as f64;
        if late < SUSTAINED || share <= config.tolerance.share {
            return;
        }
        self.directions += 1;
        if self.worst.as_ref().is_none_or(|(worst, _)| share > *worst) {
            let story = format!(
                "link.{}: {late} of {frames} packets left more than {:.1} ms late (99th percentile {:.1} ms)",
                report.name,
                config.tolerance.late.as_secs_f64() * 1e3,
                report.lateness.p99_ns as f64 / 1e6,
            );
            self.worst = Some((share, story));
        }
    }

    fn verdict(self, config: &Config) -> Option<String> {
        let (_, story) = self.worst?;
        let others = match self.directions {
            1 => String::new(),
            count => format!(", the worst of {count} of {} directions", 2 * config.links.len()),
        };
        Some(format!(
            "{story}{others}: the emulator could not keep up. Lower the rates, use fewer links, leave the \
             machine to the run, or grant real-time scheduling."
        ))
    }
}

/// Adds to the report why it is void, and what else a reader must know.
pub fn judge(report: &mut Report, config: &Config, faults: &Faults) {
    let mut void = Vec::new();
    for (index, direction) in report.links.iter().flat_map(|link| &link.directions).enumerate() {
        let (name, totals) = (&direction.name, direction.totals);
        if let Some(error) = &faults.failed[index] {
            void.push(format!("link.{name}: the interface its packets come from failed: {error}"));
        }
        if totals.missed > 0 {
            void.push(format!(
                "link.{name}: {} packets were lost before the emulator read them. Lower the rates, use \
                 fewer links, or grant real-time scheduling.",
                totals.missed
            ));
        }
        if totals.unkept > 0 {
            let why = match faults.too_long {
                Some(length) => format!(
                    "one was {length} bytes long. Switch segmentation offload (tso, gso, gro) off on the \
                     interfaces"
                ),
                None => format!(
                    "the {} MB for packets under way were used up. Lower the rates or delays, or raise \
                     pool_bytes",
                    config.pool_bytes >> 20
                ),
            };
            void.push(format!("link.{name}: {} packets could not be kept: {why}.", totals.unkept));
        }
        if totals.refused > 0 {
            void.push(format!(
                "link.{name}: the system refused to send {} packets on. Is the interface up, and its \
                 receiver reading?",
                totals.refused
            ));
        }
    }
    report.void.extend(void);
    if faults.stopped < Instant::ZERO + config.duration {
        let at = faults.stopped.as_secs_f64();
        report.warnings.push(format!("the emulator was stopped after {at:.3} s, before the end of the run"));
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
    fn of_many_directions_that_slipped_the_worst_is_told() {
        let config = Config {
            seed: 1,
            duration: Duration::from_secs(1),
            interval: Duration::from_secs(1),
            links: Vec::new(),
            labels: Vec::new(),
            others: 0,
            pool_bytes: POOL_BYTES,
            tolerance: Tolerance::default(),
        };
        let mut slipped = Slipped::default();
        for (name, late) in [("a.forward", 20), ("a.reverse", 300), ("b.forward", 30), ("b.reverse", 1)] {
            let lateness = Lateness { frames: 1000, ..Lateness::default() };
            let report = DirectionReport { name: name.into(), lateness, ..DirectionReport::default() };
            slipped.add(&config, &report, late);
        }
        let verdict = slipped.verdict(&config).unwrap();
        assert!(verdict.starts_with("link.a.reverse: 300 of 1000 packets left more than 1.0 ms late"));
        assert!(verdict.contains("the worst of 3 of "), "{verdict}");
        assert_eq!(Slipped::default().verdict(&config), None);
    }
}
