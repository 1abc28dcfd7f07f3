//! Reads what the kernel's links have counted, from the beginning of a run to its end.

use super::chain::Names;
use super::count::{Counter, Reading};
use crate::LinkConfig;
use crate::counts::Grid;
use crate::report::LinkReport;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::netns::netlink::Error;
use netstage_host::netns::qdiscs::QueueStatistics;
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::realtime::{Grants, Rank};
use netstage_host::wait::timespec;
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest time between two readings: what is known of queues is known that often.
pub const STEP: Duration = Duration::from_millis(10);

/// A link the kernel emulates.
#[derive(Clone, Debug)]
pub struct KernelLink {
    /// What it does.
    pub config: LinkConfig,
    /// Its interfaces.
    pub names: Names,
}

/// All links of a namespace that the kernel emulates.
#[derive(Debug)]
pub struct Watch {
    netlink: Netlink,
    links: Vec<KernelLink>,
    /// Numbers of each direction's two interfaces: the line's and the way's.
    interfaces: Vec<[u32; 2]>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Watched {
    /// The links, in their order.
    pub links: Vec<LinkReport>,
    /// What a reader must know.
    pub warnings: Vec<String>,
    /// Why the run is void.
    pub void: Vec<String>,
}

impl Watch {
    /// Of links that are there.
    pub fn new(namespace: &Namespace, links: Vec<KernelLink>) -> Result<Watch, Error> {
        let mut netlink = Netlink::open(namespace)?;
        let mut interfaces = Vec::new();
        for link in &links {
            for direction in [0, 1] {
                let mut number = |name| Ok::<u32, Error>(netlink.link(name)?.index);
                interfaces.push([number(link.names.line(direction))?, number(link.names.way(direction))?]);
            }
        }
        Ok(Watch { netlink, links, interfaces })
    }

    /// Reads until the run of this length is over or `stop` is set. Call it on a thread of its
    /// own: it asks for real-time scheduling.
    pub fn run(
        mut self,
        epoch: Epoch,
        interval: Duration,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<Watched, Error> {
        let grid = Grid::new(interval, duration);
        Grants::request(Rank::Links);
        sleep_until(epoch.0);
        let dropped_before = self.dropped()?;
        let first = self.read()?;
        let directions = self.links.iter().flat_map(|link| &link.config.directions);
        let mut counters: Vec<Counter> =
            directions.zip(first).map(|(config, first)| Counter::new(config, grid, first)).collect();
        // Readings divide each bin evenly, so that one falls on its edge.
        let steps = interval.0.div_ceil(STEP.0).max(1);
        let mut latest = Duration::ZERO;
        let due = |reading: u64| Instant(reading / steps * interval.0 + reading % steps * interval.0 / steps);
        for reading in 1.. {
            let due = due(reading).min(Instant::ZERO + duration);
            sleep_until(epoch.monotonic_ns(due));
            let at = epoch.now();
            latest = latest.max(at.since(due));
            for (counter, now) in counters.iter_mut().zip(self.read()?) {
                // What is left of the moments between is no later than the run's end.
                counter.handle_reading(due, now);
            }
            if due >= Instant::ZERO + duration || stop.load(Ordering::Relaxed) {
                break;
            }
        }
        let dropped = self.dropped()?;
        let mut watched = self.report(counters);
        for (name, before) in &dropped_before {
            let lost = dropped.get(name).map_or(0, |now| now.saturating_sub(*before));
            if lost > 0 {
                watched.void.push(format!(
                    "link.{name}: the kernel lost {lost} packets between its own interfaces. Lower the rates, or raise \
                     net.core.netdev_max_backlog."
                ));
            }
        }
        if latest.0 > interval.0 / 100 {
            watched.warnings.push(format!(
                "what the kernel's links counted was read up to {:.1} ms late: bins of {} ms are no sharper",
                latest.as_secs_f64() * 1e3,
                interval.0 / 1_000_000
            ));
        }
        Ok(watched)
    }

    /// Of each direction what its netems have counted.
    fn read(&mut self) -> Result<Vec<Reading>, Error> {
        let counted: BTreeMap<u32, QueueStatistics> =
            self.netlink.queue_statistics("netem")?.into_iter().collect();
        let of = |interface| counted.get(interface).copied().unwrap_or_default();
        Ok(self.interfaces.iter().map(|[line, way]| Reading { line: of(line), way: of(way) }).collect())
    }

    /// Packets each link's interfaces lost apart from their netems, so far.
    fn dropped(&mut self) -> Result<BTreeMap<String, u64>, Error> {
        let all = self.netlink.links()?;
        let sum = |link: &KernelLink| {
            let own = all.iter().filter(|found| link.names.carriers().any(|name| name == found.name));
            own.map(|found| found.statistics.sent_dropped).sum()
        };
        Ok(self.links.iter().map(|link| (link.config.name.clone(), sum(link))).collect())
    }

    fn report(self, counters: Vec<Counter>) -> Watched {
        let mut counters = counters.into_iter();
        let links = self.links.into_iter().map(|link| {
            let mut next = |direction| {
                let counter = counters.next().expect("one for each direction");
                counter.finish(link.config.direction_name(direction))
            };
            let directions = [next(0), next(1)];
            LinkReport { name: link.config.name, directions, by_kernel: true }
        });
        Watched { links: links.collect(), ..Watched::default() }
    }
}

fn sleep_until(monotonic_ns: u64) {
    // An interruption makes the reading an early one.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(monotonic_ns));
}
