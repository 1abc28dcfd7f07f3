//! What the two netems of one direction have counted, as the emulator of our own would report
//! it: pure, told every reading and its time.

use super::super::counts::{Bins, Grid};
use super::super::report::{DirectionReport, Totals};
use super::ETHERNET;
use netstage_core::link::Config;
use netstage_core::quantity::BitRate;
use netstage_core::time::{Duration, Instant};
use netstage_host::netns::qdiscs::QueueStatistics;

/// Both netems of a direction, read one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The line.
    pub line: QueueStatistics,
    /// The way behind it.
    pub way: QueueStatistics,
}

/// Counts of one direction. What changed between two readings belongs to the bin of the first;
/// readings at the edges of bins make that exact but for how late they are.
#[derive(Debug)]
pub struct Counter {
    rate: BitRate,
    overhead: u64,
    /// Traffic is counted as it leaves the line, where everything that does arrives; else as it
    /// arrives.
    counted_by_line: bool,
    last: Reading,
    last_at: Instant,
    packets: Bins,
    bytes: Bins,
    waiting: Bins,
    busy: Bins,
    drops: Bins,
    lost: Bins,
    totals: Totals,
}

impl Counter {
    /// The run begins with this reading.
    pub fn new(config: &Config, grid: Grid, first: Reading) -> Counter {
        let bins = || Bins::new(grid);
        Counter {
            rate: config.rate,
            overhead: u64::from(config.overhead),
            counted_by_line: config.loss == 0.0
                && config.duplicate == 0.0
                && config.jitter.amount == Duration::ZERO,
            last: first,
            last_at: Instant::ZERO,
            packets: bins(),
            bytes: bins(),
            waiting: bins(),
            busy: bins(),
            drops: bins(),
            lost: bins(),
            totals: Totals::default(),
        }
    }

    /// It was read at `at`, later than before.
    pub fn handle_reading(&mut self, at: Instant, now: Reading) {
        let (before, since) = (self.last, self.last_at);
        let line = Growth::between(before.line, now.line);
        let way = Growth::between(before.way, now.way);
        let carried = if self.counted_by_line { line } else { way };
        self.packets.add(since, carried.packets);
        self.bytes.add(since, carried.bytes);
        let on_line = line.bytes + line.packets * self.overhead;
        let sending = u128::from(on_line) * 8 * 1_000_000_000 / u128::from(self.rate.0.max(1));
        self.busy.add(since, sending as u64);
        // One of those in the line's netem is being sent.
        let waiting = u64::from(before.line.held.saturating_sub(1));
        self.waiting.spread(since, at, waiting);
        self.drops.add(since, line.dropped);
        self.lost.add(since, way.dropped);
        // What enters the way has left the line, or is a copy.
        let held = |reading: Reading| i64::from(reading.way.held);
        let entered_way = (way.packets + way.dropped) as i64 + held(now) - held(before);
        let totals = &mut self.totals;
        totals.entered += (line.packets + line.dropped)
            .saturating_add_signed(i64::from(now.line.held) - i64::from(before.line.held));
        totals.delivered += way.packets;
        totals.dropped += line.dropped;
        totals.lost += way.dropped;
        totals.duplicated += u64::try_from(entered_way - line.packets as i64).unwrap_or(0);
        totals.in_flight = u64::from(now.line.held) + u64::from(now.way.held);
        (self.last, self.last_at) = (now, at);
    }

    /// What it comes to.
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

/// What one netem counted between two readings; bytes at the IP layer.
#[derive(Clone, Copy)]
struct Growth {
    packets: u64,
    bytes: u64,
    dropped: u64,
}

impl Growth {
    fn between(before: QueueStatistics, now: QueueStatistics) -> Growth {
        let packets = u64::from(now.packets.wrapping_sub(before.packets));
        let frames = now.bytes.wrapping_sub(before.bytes);
        Growth {
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

    fn steady(config: Config) -> Config {
        let jitter = Jitter { amount: Duration::ZERO, ..config.jitter };
        Config { jitter, loss: 0.0, ..config }
    }

    fn reading(line: [u32; 3], way: [u32; 3]) -> Reading {
        let counted = |[packets, held, dropped]: [u32; 3]| QueueStatistics {
            packets,
            bytes: u64::from(packets) * 1014,
            held,
            dropped,
        };
        Reading { line: counted(line), way: counted(way) }
    }

    #[test]
    fn what_is_read_becomes_bins() {
        let grid = Grid::new(Duration(1_000_000_000), Duration(2_000_000_000));
        let mut counter = Counter::new(&steady(config()), grid, reading([5, 0, 0], [5, 0, 0]));
        // 10 Mbit/s, 1000 bytes and 18 of framing.
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
    fn losses_and_copies_are_told_apart_and_counters_wrap() {
        let grid = Grid::new(Duration(10), Duration(10));
        let before = reading([u32::MAX, 0, u32::MAX], [u32::MAX, 0, 7]);
        let mut after = reading([9, 0, 1], [5, 0, 11]);
        // 10 packets of 1014 bytes more, of which 6 went all the way.
        after.line.bytes = before.line.bytes + 10_140;
        after.way.bytes = before.way.bytes + 6084;
        let mut lossy = Counter::new(&config(), grid, before);
        lossy.handle_reading(Instant(9), after);
        let report = lossy.finish(String::new());
        assert_eq!(
            (&report.packets[..], &report.bytes[..], &report.lost[..]),
            (&[6][..], &[6000][..], &[4][..])
        );
        assert_eq!((report.totals.entered, report.totals.duplicated, report.totals.dropped), (12, 0, 2));

        let copying = Config { duplicate: 0.5, ..steady(config()) };
        let mut copying = Counter::new(&copying, grid, Reading::default());
        copying.handle_reading(Instant(9), reading([10, 0, 0], [12, 3, 0]));
        let totals = copying.finish(String::new()).totals;
        assert_eq!((totals.duplicated, totals.delivered, totals.in_flight), (5, 12, 3));
    }
}
