//! What happens to the windows of TCP flows, where a plan asks for it.

use netstage_core::tcp::event::{Event, FlowEvent, Kind};
use netstage_core::tcp::history::{Bin, History, Joined};
use netstage_core::tcp::{Config, Limited, Sender};
use netstage_core::time::Instant;

use crate::bins::Grid;
use std::ops::Range;

/// The histories of all flows, and what holds each back; empty unless asked for.
#[derive(Debug, Default)]
pub struct Watch(Vec<(History, Limited)>);

impl Watch {
    /// Of so many flows.
    pub fn new(grid: Grid, flows: usize) -> Watch {
        Watch(vec![(History::new(grid.interval, grid.bins), Limited::default()); flows])
    }

    /// An acknowledgement has arrived, and is to be processed.
    #[inline]
    pub fn acknowledged(&mut self, now: Instant, flow: u32, sender: &Sender, config: &Config) {
        let Some((history, limited)) = self.0.get_mut(flow as usize) else { return };
        let snapshot = sender.snapshot(config);
        if let Some(cause) = limited.observe(&snapshot) {
            history.handle(&FlowEvent { time: now, kind: Kind::Window(cause), snapshot });
        }
        history.handle(&FlowEvent { time: now, kind: Kind::Acknowledged, snapshot });
    }

    /// Something was done with a sender that may have changed its window.
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

    /// A flow's history up to `end`.
    pub fn of(&self, flow: usize, end: Instant) -> Option<Vec<Bin>> {
        self.0.get(flow).map(|(history, _)| history.clone().finish(end))
    }

    /// The history of what one end of a dialogue sends: in every second flow of these.
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
