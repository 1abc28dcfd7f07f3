//! Converts the counters of the two netems of a direction into a report like that of netstage's emulator. Each reading
//! is passed with its time, without a clock.

use super::super::counts::{BinSums, Grid};
use super::super::report::{DirectionReport, DirectionTotals};
use super::ETHERNET;
use netstage_core::link::LinkDirectionConfig;
use netstage_core::quantity::BitRate;
use netstage_core::time::{Duration, Instant};
use netstage_host::netns::qdiscs::QueueStatistics;

/// Counters of both netems of a direction, read one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Counters of the line.
    pub line: QueueStatistics,
    /// Counters of the propagation after the line.
    pub propagation: QueueStatistics,
}

/// Counts of one direction. A change between two readings is added to the bin of the first. Readings at the bin edges
/// make this exact, except for their lateness.
#[derive(Debug)]
pub struct Counter {
    rate: BitRate,
    overhead: u64,
    /// Count traffic when it leaves the line, because all of it arrives, instead of on arrival.
    counted_by_line: bool,
    previous: Reading,
    previous_at: Instant,
    packets: BinSums,
    bytes: BinSums,
    waiting: BinSums,
    busy: BinSums,
    drops: BinSums,
    lost: BinSums,
    totals: DirectionTotals,
}

impl Counter {
    /// Creates a counter; the run begins with this reading.
    pub fn new(config: &LinkDirectionConfig, grid: Grid, first: Reading) -> Counter {
        let bins = || BinSums::new(grid);
        Counter {
            rate: config.rate,
            overhead: u64::from(config.overhead),
            counted_by_line: config.loss == 0.0
                && config.duplicate == 0.0
                && config.jitter.amount == Duration::ZERO,
            previous: first,
            previous_at: Instant::ZERO,
            packets: bins(),
            bytes: bins(),
            waiting: bins(),
            busy: bins(),
            drops: bins(),
            lost: bins(),
            totals: DirectionTotals::default(),
        }
    }

    /// Adds a reading taken at `at`, later than the previous one.
    pub fn handle_reading(&mut self, at: Instant, now: Reading) {
        let (before, since) = (self.previous, self.previous_at);
        let line = CounterDelta::between(before.line, now.line);
        let way = CounterDelta::between(before.propagation, now.propagation);
        let carried = if self.counted_by_line { line } else { way };
        self.packets.add(since, carried.packets);
        self.bytes.add(since, carried.bytes);
        let on_line = line.bytes + line.packets * self.overhead;
        let sending = u128::from(on_line) * 8 * 1_000_000_000 / u128::from(self.rate.0.max(1));
        self.busy.add(since, sending as u64);
        // One of the packets in the netem of the line is being transmitted.
        let waiting = u64::from(before.line.queued.saturating_sub(1));
        self.waiting.spread(since, at, waiting);
        self.drops.add(since, line.dropped);
        self.lost.add(since, way.dropped);
        // Packets enter the second netem from the line or as duplicates.
        let held = |reading: Reading| i64::from(reading.propagation.queued);
        let entered = (way.packets + way.dropped) as i64 + held(now) - held(before);
        let totals = &mut self.totals;
        totals.entered += (line.packets + line.dropped)
            .saturating_add_signed(i64::from(now.line.queued) - i64::from(before.line.queued));
        totals.delivered += way.packets;
        totals.dropped += line.dropped;
        totals.lost += way.dropped;
        totals.duplicated += u64::try_from(entered - line.packets as i64).unwrap_or(0);
        totals.in_flight = u64::from(now.line.queued) + u64::from(now.propagation.queued);
        (self.previous, self.previous_at) = (now, at);
    }

    /// Returns the report of the direction.
    pub fn finish(self, name: String) -> DirectionReport {
        let drops = self.drops.into_values();
        let none = vec![0; drops.len()];
        DirectionReport {
            name,
            packets: self.packets.into_values(),
            bytes: self.bytes.into_values(),
            background: none.clone(),
            waiting_ns: self.waiting.into_values(),
            busy_ns: self.busy.into_values(),
            drops,
            lost: self.lost.into_values(),
            marks: none,
            totals: self.totals,
            ..DirectionReport::default()
        }
    }
}

/// Increase of the counters of one netem between two readings. Bytes are at the IP layer.
#[derive(Clone, Copy)]
struct CounterDelta {
    packets: u64,
    bytes: u64,
    dropped: u64,
}

impl CounterDelta {
    fn between(before: QueueStatistics, now: QueueStatistics) -> CounterDelta {
        let packets = u64::from(now.packets.wrapping_sub(before.packets));
        let frames = now.bytes.wrapping_sub(before.bytes);
        CounterDelta {
            packets,
            bytes: frames.saturating_sub(packets * ETHERNET as u64),
            dropped: u64::from(now.dropped.wrapping_sub(before.dropped)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;
    use super::*;
    use netstage_core::link::Jitter;

    fn without_jitter_and_loss(config: LinkDirectionConfig) -> LinkDirectionConfig {
        let jitter = Jitter { amount: Duration::ZERO, ..config.jitter };
        LinkDirectionConfig { jitter, loss: 0.0, ..config }
    }

    fn reading(line: [u32; 3], way: [u32; 3]) -> Reading {
        let counted = |[packets, held, dropped]: [u32; 3]| QueueStatistics {
            packets,
            bytes: u64::from(packets) * 1014,
            queued: held,
            dropped,
        };
        Reading { line: counted(line), propagation: counted(way) }
    }

    #[test]
    fn readings_are_converted_into_bins() {
        let grid = Grid::new(Duration(1_000_000_000), Duration(2_000_000_000));
        let mut counter =
            Counter::new(&without_jitter_and_loss(config()), grid, reading([5, 0, 0], [5, 0, 0]));
        // 10 Mbit/s, packets of 1000 bytes and 18 bytes of framing.
        counter.handle_reading(Instant(500_000_000), reading([15, 4, 0], [8, 7, 0]));
        counter.handle_reading(Instant(1_000_000_000), reading([25, 11, 3], [20, 5, 0]));
        counter.handle_reading(Instant(2_000_000_000), reading([36, 0, 3], [36, 0, 0]));
        let report = counter.finish("line.forward".into());
        assert_eq!((report.packets, report.bytes), (vec![20, 11], vec![20_000, 11_000]));
        assert_eq!(report.busy_ns, [20 * 814_400, 11 * 814_400]);
        assert_eq!(report.waiting_ns, [3 * 500_000_000, 10 * 1_000_000_000]);
        assert_eq!((report.drops, report.lost), (vec![3, 0], vec![0, 0]));
        let totals = report.totals;
        assert_eq!((totals.entered, totals.delivered, totals.dropped, totals.in_flight), (34, 31, 3, 0));
        assert_eq!(totals.duplicated, 0);
    }

    #[test]
    fn losses_and_duplicates_are_distinguished_and_counters_wrap() {
        let grid = Grid::new(Duration(10), Duration(10));
        let before = reading([u32::MAX, 0, u32::MAX], [u32::MAX, 0, 7]);
        let mut after = reading([9, 0, 1], [5, 0, 11]);
        // 10 more packets of 1014 bytes, of which 6 arrived.
        after.line.bytes = before.line.bytes + 10_140;
        after.propagation.bytes = before.propagation.bytes + 6084;
        let mut lossy = Counter::new(&config(), grid, before);
        lossy.handle_reading(Instant(9), after);
        let report = lossy.finish(String::new());
        assert_eq!(
            (&report.packets[..], &report.bytes[..], &report.lost[..]),
            (&[6][..], &[6000][..], &[4][..])
        );
        assert_eq!((report.totals.entered, report.totals.duplicated, report.totals.dropped), (12, 0, 2));

        let copying = LinkDirectionConfig { duplicate: 0.5, ..without_jitter_and_loss(config()) };
        let mut copying = Counter::new(&copying, grid, Reading::default());
        copying.handle_reading(Instant(9), reading([10, 0, 0], [12, 3, 0]));
        let totals = copying.finish(String::new()).totals;
        assert_eq!((totals.duplicated, totals.delivered, totals.in_flight), (5, 12, 3));
    }
}
