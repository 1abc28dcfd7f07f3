//! Receiver of datagrams, or of the responses to probes.

use crate::bins::{BinnedSum, Grid};
use netstage_core::measure::sequence::{Sequence, SequenceArrival};
use netstage_core::measure::{ArrivalWindow, Arrivals};
use netstage_core::time::Instant;
use netstage_scenario::plan::Plan;

/// Receiver of one flow.
#[derive(Debug)]
pub struct DatagramReceiver {
    end: Instant,
    /// Packets received before the end of the run.
    received: u64,
    window: ArrivalWindow,
    /// Numbers received and duplicates per bin, if a link makes any.
    duplicates: Option<(Sequence, BinnedSum)>,
}

impl DatagramReceiver {
    /// Creates the receiver of each flow before the first packet. `groups` holds the group of each flow.
    pub fn all(plan: &Plan, groups: &[u32], grid: Grid) -> Vec<DatagramReceiver> {
        let mut directions = plan.links.iter().flat_map(|link| &link.directions);
        let may_duplicate = directions.any(|direction| direction.duplicate > 0.0);
        let receiver = |group: &u32| {
            let group = &plan.flows[*group as usize];
            DatagramReceiver {
                end: Instant::ZERO + plan.duration,
                received: 0,
                window: ArrivalWindow::new(group.stop.since(group.start)),
                duplicates: may_duplicate.then(|| (Sequence::new(), BinnedSum::new(grid))),
            }
        };
        groups.iter().map(receiver).collect()
    }

    /// Records the arrival of a packet. Returns whether it counts as received: duplicates do not.
    pub fn accept(&mut self, now: Instant, number: u32) -> bool {
        if let Some((sequence, duplicated)) = &mut self.duplicates {
            match sequence.handle_packet(number.into()) {
                SequenceArrival::Newest { .. } | SequenceArrival::Late => {}
                SequenceArrival::Duplicate => {
                    duplicated.add(now, 1);
                    return false;
                }
                SequenceArrival::TooOld => return false,
            }
        }
        self.received += u64::from(now <= self.end);
        self.window.record(now);
        true
    }

    /// Returns the packets received before the end of the run.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the arrivals within the time of sending.
    pub fn arrivals(&self) -> Arrivals {
        self.window.arrivals()
    }

    /// Returns the duplicates per bin; `None` if no link makes any.
    pub fn duplicated(&self) -> Option<Vec<f64>> {
        self.duplicates.as_ref().map(|(_, duplicated)| duplicated.scaled(1.0))
    }
}
