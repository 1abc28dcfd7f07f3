//! Histories of TCP windows, recorded if the plan requests them.

use netstage_core::tcp::event::{Event, FlowEvent, Kind};
use netstage_core::tcp::history::{Bin, History, Joined};
use netstage_core::tcp::{Config, Limited, Sender};
use netstage_core::time::Instant;

use crate::bins::Grid;
use std::ops::Range;

/// Window histories and limiting causes of all flows; empty unless requested.
#[derive(Debug, Default)]
pub struct Watch(Vec<(History, Limited)>);

impl Watch {
    /// Creates histories for `flows` flows.
    pub fn new(grid: Grid, flows: usize) -> Watch {
        Watch(vec![(History::new(grid.interval, grid.bins), Limited::default()); flows])
    }

    /// Records an ACK that has arrived and is about to be processed.
    #[inline]
    pub fn acknowledged(&mut self, now: Instant, flow: u32, sender: &Sender, config: &Config) {
        let Some((history, limited)) = self.0.get_mut(flow as usize) else { return };
        let snapshot = sender.snapshot(config);
        if let Some(cause) = limited.observe(&snapshot) {
            history.handle(&FlowEvent { time: now, kind: Kind::Window(cause), snapshot });
        }
        history.handle(&FlowEvent { time: now, kind: Kind::Acknowledged, snapshot });
    }

    /// Records a possible window change of a sender.
    #[inline]
    pub fn changed(&mut self, now: Instant, flow: u32, sender: &mut Sender, config: &Config) {
        let Some((history, _)) = self.0.get_mut(flow as usize) else { return };
        let Some(event) = sender.poll_event() else { return };
        let kind = match event {
            Event::Reduced(cause) => Kind::Window(cause),
            Event::Recovered => Kind::Recovered,
        };
        history.handle(&FlowEvent { time: now, kind, snapshot: sender.snapshot(config) });
    }

    /// Returns the history of a flow up to `end`.
    pub fn of(&self, flow: usize, end: Instant) -> Option<Vec<Bin>> {
        self.0.get(flow).map(|(history, _)| history.clone().finish(end))
    }

    /// Returns the joint history of the flows sent by one endpoint of a dialogue: every second flow of
    /// `flows`.
    pub fn of_end(&self, flows: Range<usize>, grid: Grid, end: Instant) -> Option<Vec<Bin>> {
        let mut joined = Joined::new(grid.interval, grid.bins);
        let mut any = false;
        for bins in flows.step_by(2).filter_map(|flow| self.of(flow, end)) {
            joined.add(&bins);
            any = true;
        }
        any.then(|| joined.finish())
    }
}
