//! Timers of a speaker: one deadline per timer.

use super::{Lsp, RsvpNeighbor};
use crate::time::Instant;
use alloc::collections::{BTreeMap, BTreeSet};
use netstage_wire::mpls::LabelValue;

/// A timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Refresh of the Path message sent downstream.
    PathRefresh(Lsp),
    /// Cleanup of path state.
    PathCleanup(Lsp),
    /// Refresh of the Resv message sent upstream.
    ResvRefresh(Lsp),
    /// Cleanup of reservation state.
    ResvCleanup(Lsp),
    /// Limit on the time without a reservation.
    Setup(Lsp),
    /// End of the quarantine of a label.
    Label(LabelValue),
    /// Next attempt to signal a tunnel.
    Tunnel(u16),
    /// Removal of the previous LSP of a tunnel.
    Replaced(u16),
    /// Retransmission of a message that a neighbor has not acknowledged.
    Retransmission(RsvpNeighbor, u32),
    /// Transmission of a summary refresh.
    SummaryRefresh(RsvpNeighbor),
    /// Transmission of a hello.
    Hello(RsvpNeighbor),
    /// Silence of a neighbor that answers hellos.
    HelloTimeout(RsvpNeighbor),
}

/// Deadlines, ordered by time.
#[derive(Clone, Debug, Default)]
pub(super) struct Agenda {
    deadlines: BTreeMap<Timer, Instant>,
    ordered: BTreeSet<(Instant, Timer)>,
}

impl Agenda {
    /// Starts or restarts a timer.
    pub fn set(&mut self, timer: Timer, at: Instant) {
        self.cancel(timer);
        self.deadlines.insert(timer, at);
        self.ordered.insert((at, timer));
    }

    /// Starts a timer that is not running.
    pub fn set_if_idle(&mut self, timer: Timer, at: Instant) {
        if !self.is_running(timer) {
            self.set(timer, at);
        }
    }

    pub fn is_running(&self, timer: Timer) -> bool {
        self.deadlines.contains_key(&timer)
    }

    pub fn cancel(&mut self, timer: Timer) {
        if let Some(at) = self.deadlines.remove(&timer) {
            self.ordered.remove(&(at, timer));
        }
    }

    /// Removes and returns the first timer that is due.
    pub fn expired(&mut self, now: Instant) -> Option<Timer> {
        let (_, timer) = *self.ordered.first().filter(|(at, _)| *at <= now)?;
        self.cancel(timer);
        Some(timer)
    }

    pub fn next(&self) -> Instant {
        self.ordered.first().map_or(Instant::NEVER, |(at, _)| *at)
    }
}
