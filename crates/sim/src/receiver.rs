//! Receiver of datagrams, or of the responses to probes.

use crate::bins::{BinnedSum, Grid};
use netstage_core::measure::{ArrivalWindow, Arrivals};
use netstage_core::time::Instant;
use netstage_scenario::plan::Plan;

/// Receiver of one flow, which also knows the losses of its packets.
#[derive(Debug)]
pub struct DatagramReceiver {
    end: Instant,
    grid: Grid,
    /// Packets received before the end of the run.
    received: u64,
    /// Packets lost per bin, and in an incomplete bin at the end.
    lost: Vec<u64>,
    window: ArrivalWindow,
    /// Only if a link makes copies.
    copies: Option<CopyTracker>,
}

/// Fates of all packets, to count each once.
#[derive(Debug)]
struct CopyTracker {
    fates: Vec<Fate>,
    duplicated: BinnedSum,
}

/// Fate of the first copies of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Unknown,
    Received,
    /// Lost, in this bin.
    Lost(u32),
}

impl CopyTracker {
    fn fate(&mut self, number: u32) -> &mut Fate {
        let number = number as usize;
        if number >= self.fates.len() {
            self.fates.resize(number + 1, Fate::Unknown);
        }
        &mut self.fates[number]
    }
}

impl DatagramReceiver {
    /// Creates the receiver of each flow before the first packet. `groups` holds the group of each flow.
    pub fn all(plan: &Plan, groups: &[u32], grid: Grid) -> Vec<DatagramReceiver> {
        let mut directions = plan.links.iter().flat_map(|link| &link.directions);
        let may_duplicate = directions.any(|direction| direction.duplicate > 0.0);
        let receiver = |group: &u32| {
            let group = &plan.flows[*group as usize];
            let copies =
                may_duplicate.then(|| CopyTracker { fates: Vec::new(), duplicated: BinnedSum::new(grid) });
            DatagramReceiver {
                end: Instant::ZERO + plan.duration,
                grid,
                received: 0,
                lost: vec![0; grid.bins + 1],
                window: ArrivalWindow::new(group.stop.since(group.start)),
                copies,
            }
        };
        groups.iter().map(receiver).collect()
    }

    /// Records the arrival of a packet. Returns whether it counts as received: duplicates do not.
    pub fn accept(&mut self, now: Instant, number: u32) -> bool {
        if now > self.end {
            return true;
        }
        if let Some(copies) = &mut self.copies {
            match std::mem::replace(copies.fate(number), Fate::Received) {
                Fate::Unknown => {}
                Fate::Received => {
                    copies.duplicated.add(now, 1);
                    return false;
                }
                // Another copy was lost before.
                Fate::Lost(bin) => self.lost[bin as usize] -= 1,
            }
        }
        self.received += 1;
        self.window.record(now);
        true
    }

    /// Records the loss of a packet before the end of the run, unless a copy was received. A packet with several lost
    /// copies is lost with the last one.
    pub fn lose(&mut self, now: Instant, number: u32) {
        let bin = ((now.0 / self.grid.interval.0) as usize).min(self.grid.bins);
        if let Some(copies) = &mut self.copies {
            let fate = copies.fate(number);
            let before = match *fate {
                Fate::Received => return,
                Fate::Lost(before) => Some(before as usize),
                Fate::Unknown => None,
            };
            let last = before.map_or(bin, |before| before.max(bin));
            *fate = Fate::Lost(last as u32);
            if let Some(before) = before {
                self.lost[before] -= 1;
            }
            self.lost[last] += 1;
            return;
        }
        self.lost[bin] += 1;
    }

    /// Returns the packets lost per bin.
    pub fn lost(&self) -> Vec<f64> {
        self.lost[..self.grid.bins].iter().map(|count| *count as f64).collect()
    }

    /// Returns how many of `sent` packets were neither received nor lost before the end of the run.
    pub fn in_flight(&self, sent: u32) -> u64 {
        u64::from(sent).saturating_sub(self.received + self.lost.iter().sum::<u64>())
    }

    /// Returns the arrivals within the time of sending.
    pub fn arrivals(&self) -> Arrivals {
        self.window.arrivals()
    }

    /// Returns the duplicates per bin; `None` if no link makes any.
    pub fn duplicated(&self) -> Option<Vec<f64>> {
        self.copies.as_ref().map(|copies| copies.duplicated.scaled(1.0))
    }
}
