//! What an emulator found.

use netstage_agent_api::results::Buckets;
use netstage_core::time::Duration;
use netstage_host::realtime::Grants;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything an emulator found in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Width of a bin.
    pub interval: Duration,
    /// Its links, in the order of the configuration.
    pub links: Vec<LinkReport>,
    /// Packets lost per bin, of each numbered flow that lost any, over all links.
    pub flow_lost: BTreeMap<u32, Vec<u64>>,
    /// Lateness of all frames.
    pub lateness: Lateness,
    /// Its distribution, nanoseconds.
    pub lateness_distribution: Buckets,
    /// Processor time the emulator used, nanoseconds.
    pub processor_ns: u64,
    /// What the kernel granted.
    pub grants: Grants,
    /// What a reader must know before trusting the figures.
    pub warnings: Vec<String>,
    /// Why the run is void: the emulator itself fell short.
    pub void: Vec<String>,
}

/// One link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Its name.
    pub name: String,
    /// From end 0 to end 1, then the other way.
    pub directions: [DirectionReport; 2],
    /// Whether the kernel worked it, which does not tell whose packets were lost.
    pub by_kernel: bool,
}

/// One direction of a link. Series have a value per bin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Its name: `core.forward`.
    pub name: String,
    /// Packets carried.
    pub packets: Vec<u64>,
    /// Bytes carried, at the IP layer.
    pub bytes: Vec<u64>,
    /// Bytes of background flows carried, at the IP layer.
    pub background: Vec<u64>,
    /// Bytes of each VPN whose last link this is, as they arrived, at the IP layer.
    pub delivered: BTreeMap<u16, Vec<u64>>,
    /// Packets waiting times nanoseconds.
    pub waiting_ns: Vec<u64>,
    /// Nanoseconds spent sending.
    pub busy_ns: Vec<u64>,
    /// Frames to all stations that came to it.
    pub broadcast: Vec<u64>,
    /// Packets dropped by the queue.
    pub drops: Vec<u64>,
    /// Packets lost on the line, those with bit errors among them: no receiver takes these.
    pub lost: Vec<u64>,
    /// Packets marked for congestion.
    pub marks: Vec<u64>,
    /// Sums over the run.
    pub totals: Totals,
    /// How late frames left.
    pub lateness: Lateness,
    /// The rate achieved where the line was busy without a pause, if it was.
    pub saturated: Option<SaturatedRate>,
}

/// What the directions of all links counted in one bin, told while the run goes on. What a direction
/// has yet to look back at is missing; the report has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedBin {
    /// Number of the bin.
    pub bin: usize,
    /// Two per link, in the order of the configuration.
    pub directions: Vec<DirectionBin>,
}

/// One direction in one bin; the fields are those of [`DirectionReport`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionBin {
    /// Bytes carried, at the IP layer.
    pub bytes: u64,
    /// Bytes of background flows carried, at the IP layer.
    pub background: u64,
    /// Bytes of each VPN whose last link this is.
    pub delivered: BTreeMap<u16, u64>,
    /// Packets waiting times nanoseconds.
    pub waiting_ns: u64,
    /// Nanoseconds spent sending.
    pub busy_ns: u64,
    /// Packets dropped by the queue.
    pub drops: u64,
    /// Packets lost on the line.
    pub lost: u64,
    /// Packets marked for congestion.
    pub marks: u64,
}

impl Report {
    /// Before the first bin of a run: links of these names, without values.
    pub fn begun<'a>(interval: Duration, links: impl Iterator<Item = (&'a str, [String; 2])>) -> Report {
        let link = |(name, directions): (&str, [String; 2])| LinkReport {
            name: name.to_owned(),
            directions: directions.map(|name| DirectionReport { name, ..DirectionReport::default() }),
            by_kernel: false,
        };
        Report { interval, links: links.map(link).collect(), ..Report::default() }
    }

    /// Adds a bin that has ended. They come in order.
    pub fn add(&mut self, ended: &EndedBin) {
        let directions = self.links.iter_mut().flat_map(|link| &mut link.directions);
        for (report, counted) in directions.zip(&ended.directions) {
            report.bytes.push(counted.bytes);
            report.background.push(counted.background);
            report.waiting_ns.push(counted.waiting_ns);
            report.busy_ns.push(counted.busy_ns);
            report.drops.push(counted.drops);
            report.lost.push(counted.lost);
            report.marks.push(counted.marks);
            for (class, bytes) in &counted.delivered {
                report.delivered.entry(*class).or_default().push(*bytes);
            }
        }
    }
}

/// Sums over the run: `entered + duplicated = delivered + corrupted + dropped + lost + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Packets that came to the link.
    pub entered: u64,
    /// Packets that reached the far end as they were.
    pub delivered: u64,
    /// Packets that reached the far end with flipped bits.
    pub corrupted: u64,
    /// Copies among those delivered, corrupted or lost.
    pub duplicated: u64,
    /// Packets dropped by the queue.
    pub dropped: u64,
    /// Packets lost on the line.
    pub lost: u64,
    /// Packets under way when the run ended: waiting, on the line or between the ends.
    pub in_flight: u64,
    /// Frames that pass beside the link, at once: address resolution, neighbour discovery,
    /// group membership, and whatever came before the run began.
    pub beside: u64,
    /// Frames the port lost before the emulator could read them.
    pub missed: u64,
    /// Frames the pool had no room for, or was too small for.
    pub unkept: u64,
    /// Frames the system refused to send.
    pub refused: u64,
}

/// How late frames left, against the moment each was due. Frames never leave early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Frames sent.
    pub frames: u64,
    /// Median, nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile, nanoseconds.
    pub p99_ns: u64,
    /// Largest, nanoseconds.
    pub max_ns: u64,
    /// Share of frames more than 100 µs late.
    pub share_over_100_us: f64,
}

/// The rate over the longest time in which the line was never free.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaturatedRate {
    /// Frames sent in it.
    pub frames: u64,
    /// Its length, nanoseconds.
    pub span_ns: u64,
    /// Rate over configured rate, less one.
    pub error: f64,
}
