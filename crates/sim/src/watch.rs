//! Histories of TCP windows, recorded if the plan requests them.

use netstage_core::tcp::event::{CongestionEvent, FlowEvent, FlowEventKind};
use netstage_core::tcp::history::{Bin, JoinedHistory, WindowHistory};
use netstage_core::tcp::{LimitDetector, TcpConfig, TcpDataSender};
use netstage_core::time::Instant;

use crate::bins::Grid;
use std::ops::Range;

/// Window histories and limiting causes of all flows; empty unless requested.
#[derive(Debug, Default)]
pub struct WindowHistories(Vec<(WindowHistory, LimitDetector)>);

impl WindowHistories {
    /// Creates histories for `flows` flows.
    pub fn new(grid: Grid, flows: usize) -> WindowHistories {
        WindowHistories(vec![(WindowHistory::new(grid.interval, grid.bins), LimitDetector::default()); flows])
    }

    /// Records an ACK that has arrived and is about to be processed.
    #[inline]
    pub fn acknowledged(&mut self, now: Instant, flow: u32, sender: &TcpDataSender, config: &TcpConfig) {
        let Some((history, limited)) = self.0.get_mut(flow as usize) else { return };
        let snapshot = sender.snapshot(config);
        if let Some(cause) = limited.observe(&snapshot) {
            history.handle(&FlowEvent { time: now, kind: FlowEventKind::Window(cause), snapshot });
        }
        history.handle(&FlowEvent { time: now, kind: FlowEventKind::Acknowledged, snapshot });
    }

    /// Records a possible window change of a sender.
    #[inline]
    pub fn changed(&mut self, now: Instant, flow: u32, sender: &mut TcpDataSender, config: &TcpConfig) {
        let Some((history, _)) = self.0.get_mut(flow as usize) else { return };
        let Some(event) = sender.poll_event() else { return };
        let kind = match event {
            CongestionEvent::Reduced(cause) => FlowEventKind::Window(cause),
            CongestionEvent::Recovered => FlowEventKind::Recovered,
        };
        history.handle(&FlowEvent { time: now, kind, snapshot: sender.snapshot(config) });
    }

    /// Returns the history of a flow up to `end`.
    pub fn flow_history(&self, flow: usize, end: Instant) -> Option<Vec<Bin>> {
        self.0.get(flow).map(|(history, _)| history.clone().finish(end))
    }

    /// Returns the joint history of the flows sent by one endpoint of a dialogue: every second flow of
    /// `flows`.
    pub fn endpoint_history(&self, flows: Range<usize>, grid: Grid, end: Instant) -> Option<Vec<Bin>> {
        let mut joined = JoinedHistory::new(grid.interval, grid.bins);
        let mut any = false;
        for bins in flows.step_by(2).filter_map(|flow| self.flow_history(flow, end)) {
            joined.add(&bins);
            any = true;
        }
        any.then(|| joined.finish())
    }
}
