//! Reads the counters of the links that the kernel emulates during a run.

use super::chain::ChainInterfaces;
use super::count::{Counter, Reading};
use crate::LinkConfig;
use crate::counts::Grid;
use crate::report::LinkReport;
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::netns::netlink::NetlinkError;
use netstage_host::netns::qdiscs::QueueStatistics;
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::realtime::{Grants, Rank};
use netstage_host::wait::timespec;
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum time between two readings, and so the resolution of queue lengths.
pub const READ_INTERVAL: Duration = Duration::from_millis(10);

/// Link that the kernel emulates.
#[derive(Clone, Debug)]
pub struct KernelLink {
    /// Configuration of the link.
    pub config: LinkConfig,
    /// Interfaces of the link.
    pub names: ChainInterfaces,
}

/// Reader of the counters of all kernel links of a namespace.
#[derive(Debug)]
pub struct NetemMonitor {
    netlink: Netlink,
    links: Vec<KernelLink>,
    /// Interface indexes of each direction: the line and the propagation.
    interfaces: Vec<[u32; 2]>,
}

/// Results of the kernel links.
#[derive(Debug, Default)]
pub struct NetemReport {
    /// Links, in the order of the configuration.
    pub links: Vec<LinkReport>,
    /// Warnings about the accuracy of the results.
    pub warnings: Vec<String>,
    /// Faults that make the run void.
    pub void: Vec<VoidReason>,
}

impl NetemMonitor {
    /// Creates a reader of existing links.
    pub fn new(namespace: &Namespace, links: Vec<KernelLink>) -> Result<NetemMonitor, NetlinkError> {
        let mut netlink = Netlink::open(namespace)?;
        let mut interfaces = Vec::new();
        for link in &links {
            for direction in [0, 1] {
                let mut number = |name| Ok::<u32, NetlinkError>(netlink.link(name)?.index);
                interfaces
                    .push([number(link.names.line(direction))?, number(link.names.propagation(direction))?]);
            }
        }
        Ok(NetemMonitor { netlink, links, interfaces })
    }

    /// Reads the counters until the end of the run or until `stop` is set. Requires a thread of its own, for which it
    /// requests real-time scheduling.
    pub fn run(
        mut self,
        epoch: Epoch,
        interval: Duration,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<NetemReport, NetlinkError> {
        let grid = Grid::new(interval, duration);
        Grants::request(Rank::Links);
        sleep_until(epoch.0);
        let dropped_before = self.dropped()?;
        let first = self.read()?;
        let directions = self.links.iter().flat_map(|link| &link.config.directions);
        let mut counters: Vec<Counter> =
            directions.zip(first).map(|(config, first)| Counter::new(config, grid, first)).collect();
        // Readings divide each bin evenly, so that one coincides with its edge.
        let steps = interval.0.div_ceil(READ_INTERVAL.0).max(1);
        let mut max_lateness = Duration::ZERO;
        let due = |reading: u64| Instant(reading / steps * interval.0 + reading % steps * interval.0 / steps);
        for reading in 1.. {
            let due = due(reading).min(Instant::ZERO + duration);
            sleep_until(epoch.monotonic_ns(due));
            let at = epoch.now();
            max_lateness = max_lateness.max(at.since(due));
            for (counter, now) in counters.iter_mut().zip(self.read()?) {
                // The due time replaces the time of reading, so that no count is after the end of the run.
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
                let fault = format!("the kernel lost {lost} packets between its own interfaces");
                let reason = VoidReason::new(format!("link.{name}:"), fault, FaultTime::Within(duration));
                watched.void.push(reason.advise("lower the rates, or raise net.core.netdev_max_backlog"));
            }
        }
        if max_lateness.0 > interval.0 / 100 {
            watched.warnings.push(format!(
                "the counters of the kernel's links were read up to {:.1} ms late, which limits the accuracy of bins of {} ms",
                max_lateness.as_secs_f64() * 1e3,
                interval.0 / 1_000_000
            ));
        }
        Ok(watched)
    }

    /// Reads the counters of the netems of each direction.
    fn read(&mut self) -> Result<Vec<Reading>, NetlinkError> {
        let counted: BTreeMap<u32, QueueStatistics> =
            self.netlink.queue_statistics("netem")?.into_iter().collect();
        let counters = |interface: &u32| counted.get(interface).copied().unwrap_or_default();
        let reading = |[line, way]: &[u32; 2]| Reading { line: counters(line), propagation: counters(way) };
        Ok(self.interfaces.iter().map(reading).collect())
    }

    /// Returns the packets that the interfaces of each link have dropped outside their netems.
    fn dropped(&mut self) -> Result<BTreeMap<String, u64>, NetlinkError> {
        let all = self.netlink.links()?;
        let sum = |link: &KernelLink| {
            let own = all.iter().filter(|found| link.names.carriers().any(|name| name == found.name));
            own.map(|found| found.statistics.sent_dropped).sum()
        };
        Ok(self.links.iter().map(|link| (link.config.name.clone(), sum(link))).collect())
    }

    fn report(self, counters: Vec<Counter>) -> NetemReport {
        let mut counters = counters.into_iter();
        let links = self.links.into_iter().map(|link| {
            let mut next = |direction| {
                let counter = counters.next().expect("each direction has a counter");
                counter.finish(link.config.direction_name(direction))
            };
            let directions = [next(0), next(1)];
            LinkReport { name: link.config.name, directions, by_kernel: true }
        });
        NetemReport { links: links.collect(), ..NetemReport::default() }
    }
}

fn sleep_until(monotonic_ns: u64) {
    // After an interruption by a signal the reading is early.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(monotonic_ns));
}
