//! Results of an emulator.

use netstage_agent_api::results::Buckets;
use netstage_core::measure::VoidReason;
use netstage_core::time::Duration;
use netstage_host::realtime::Grants;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Results of an emulator in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmulatorReport {
    /// Width of a bin.
    pub interval: Duration,
    /// Links, in the order of the configuration.
    pub links: Vec<LinkReport>,
    /// Packets lost per bin on all links, for each numbered flow that lost any.
    pub flow_lost: BTreeMap<u32, Vec<u64>>,
    /// Lateness of all frames.
    pub lateness: Lateness,
    /// Processor time used, in nanoseconds.
    pub processor_ns: u64,
    /// Privileges granted by the kernel.
    pub grants: Grants,
    /// Warnings about the accuracy of the results.
    pub warnings: Vec<String>,
    /// Faults of the emulator that make the run void.
    pub void: Vec<VoidReason>,
}

/// Results of one link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Name of the link.
    pub name: String,
    /// Directions: from end 0 to end 1, then from end 1 to end 0.
    pub directions: [DirectionReport; 2],
    /// Whether the kernel emulated the link. It does not report the flows of lost packets.
    pub by_kernel: bool,
}

/// Results of one direction of a link. Series have one value per bin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Name, such as `core.forward`.
    pub name: String,
    /// Packets that reached the far end undamaged.
    pub packets: Vec<u64>,
    /// Bytes transmitted, at the IP layer.
    pub bytes: Vec<u64>,
    /// Bytes transmitted of background flows, at the IP layer.
    pub background: Vec<u64>,
    /// Bytes of each VPN whose path ends here, counted on arrival at the IP layer.
    pub delivered: BTreeMap<u16, Vec<u64>>,
    /// Queue length in packets, integrated over nanoseconds.
    pub waiting_ns: Vec<u64>,
    /// Nanoseconds of transmission.
    pub busy_ns: Vec<u64>,
    /// Broadcast frames received.
    pub broadcast: Vec<u64>,
    /// Packets dropped by the queue.
    pub drops: Vec<u64>,
    /// Packets lost on the line, including those with bit errors, which receivers discard.
    pub lost: Vec<u64>,
    /// Packets marked for congestion.
    pub marks: Vec<u64>,
    /// Sums over the run.
    pub totals: DirectionTotals,
    /// Lateness of the frames.
    pub lateness: Lateness,
    /// Distribution of the lateness in nanoseconds.
    pub lateness_distribution: Buckets,
    /// Rate achieved while the line was saturated; `None` if it never was.
    pub saturated: Option<SaturatedRate>,
}

/// Counts of all links in one bin, reported during the run. Counts that a direction adds later are only in the final
/// report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinReport {
    /// Number of the bin.
    pub bin: usize,
    /// Two directions per link, in the order of the configuration.
    pub directions: Vec<DirectionBin>,
}

/// Counts of one direction in one bin, with the fields of [`DirectionReport`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionBin {
    /// Bytes transmitted, at the IP layer.
    pub bytes: u64,
    /// Bytes transmitted of background flows, at the IP layer.
    pub background: u64,
    /// Bytes of each VPN whose path ends here.
    pub delivered: BTreeMap<u16, u64>,
    /// Queue length in packets, integrated over nanoseconds.
    pub waiting_ns: u64,
    /// Nanoseconds of transmission.
    pub busy_ns: u64,
    /// Packets dropped by the queue.
    pub drops: u64,
    /// Packets lost on the line.
    pub lost: u64,
    /// Packets marked for congestion.
    pub marks: u64,
}

impl EmulatorReport {
    /// Returns a report of these links without bins.
    pub fn empty<'a>(
        interval: Duration,
        links: impl Iterator<Item = (&'a str, [String; 2])>,
    ) -> EmulatorReport {
        let link = |(name, directions): (&str, [String; 2])| LinkReport {
            name: name.to_owned(),
            directions: directions.map(|name| DirectionReport { name, ..DirectionReport::default() }),
            by_kernel: false,
        };
        EmulatorReport { interval, links: links.map(link).collect(), ..EmulatorReport::default() }
    }

    /// Adds the next bin.
    pub fn add(&mut self, ended: &BinReport) {
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
pub struct DirectionTotals {
    /// Packets received by the link.
    pub entered: u64,
    /// Packets that reached the far end undamaged.
    pub delivered: u64,
    /// Packets that reached the far end with flipped bits.
    pub corrupted: u64,
    /// Copies among those delivered, corrupted or lost.
    pub duplicated: u64,
    /// Packets dropped by the queue.
    pub dropped: u64,
    /// Packets lost on the line.
    pub lost: u64,
    /// Packets queued or in transit at the end of the run.
    pub in_flight: u64,
    /// Frames that bypassed the link: address resolution, neighbor discovery, group membership, and all frames before
    /// the run.
    pub bypassed: u64,
    /// Frames that the port lost before the emulator read them.
    pub missed: u64,
    /// Frames dropped because the buffers were exhausted or too small.
    pub unbuffered: u64,
    /// Frames that the system refused to send.
    pub refused: u64,
}

/// Lateness of frames after their due times. Frames never leave early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Frames sent.
    pub frames: u64,
    /// Median in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile in nanoseconds.
    pub p99_ns: u64,
    /// Maximum in nanoseconds.
    pub max_ns: u64,
    /// Time at which the latest frame was due, nanoseconds.
    pub max_due_ns: u64,
    /// Share of frames more than 100 µs late.
    pub share_over_100_us: f64,
}

/// Rate over the longest busy period of a line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaturatedRate {
    /// Frames sent in the busy period.
    pub frames: u64,
    /// Length of the busy period in nanoseconds.
    pub span_ns: u64,
    /// Achieved rate divided by the configured rate, minus 1.
    pub error: f64,
}
