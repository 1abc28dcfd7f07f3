//! What an agent has done for it: the traffic engine, seen from outside.

use super::spool::Journal;
use netstage_agent_api::protocol::{Refusal, RefusalKind};
use netstage_agent_api::results::{Counts, Ended, EndedBin, EndedVpn, EndedWindow, Report};
use netstage_agent_api::task::Assignment;
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use netstage_host::obstacle::Obstacle;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest sleep between two looks at whether the run is stopped.
const NAP: std::time::Duration = std::time::Duration::from_millis(100);

/// Carries out assignments.
pub trait Worker: Send + Sync + 'static {
    /// Opens everything the assignment needs, so that only the start is missing.
    fn prepare(&self, assignment: &Assignment) -> Result<Box<dyn Work>, Refusal>;
}

/// A prepared run. Dropping it closes what was opened.
pub trait Work: Send {
    /// Number and port of each flow it receives.
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        Vec::new()
    }

    /// Carries it out from `epoch` on, on the calling thread and others of its own, until it
    /// is over or `stop` becomes true; the latter is looked at several times a second.
    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &Totals) -> Report;

    /// As [`run`](Work::run), once `start` has told the epoch, which blocks until shortly before it. What
    /// takes its time can be done before. None where there is no start.
    fn run_when(
        self: Box<Self>,
        start: &mut dyn FnMut() -> Option<Epoch>,
        stop: &AtomicBool,
        totals: &Totals,
    ) -> Option<Report> {
        Some(self.run(start()?, stop, totals))
    }
}

/// Packets and bytes sent, received, packets lost; any thread may add.
#[derive(Debug, Default)]
pub struct Sums([AtomicU64; 5]);

impl Sums {
    fn add(&self, counts: &Counts) {
        let Counts { sent, sent_bytes, received, received_bytes, lost, .. } = *counts;
        for (sum, more) in self.0.iter().zip([sent, sent_bytes, received, received_bytes, lost]) {
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// What has been counted so far: packets and bytes sent, received, packets lost.
    pub fn read(&self) -> [u64; 5] {
        self.0.each_ref().map(|sum| sum.load(Ordering::Relaxed))
    }
}

/// Counts since the start of the run, for those who watch it; any thread may add.
#[derive(Debug, Default)]
pub struct Totals {
    run: Sums,
    /// Over all runs of the agent.
    agent: Arc<Sums>,
    /// Whether somebody wants to be told of every bin.
    tell_bins: bool,
    ended: Mutex<Ended>,
    /// Where bins are written down as they end.
    journal: Mutex<Option<Journal>>,
}

impl Totals {
    /// Of a run of the agent that counts there, and tells of every bin if somebody wants to be told.
    pub fn new(agent: Arc<Sums>, tell_bins: bool) -> Totals {
        Totals { agent, tell_bins, ..Totals::default() }
    }

    /// What has been counted so far: packets and bytes sent, received, packets lost.
    pub fn read(&self) -> [u64; 5] {
        self.run.read()
    }

    /// Bins are written down there, too, as they end.
    pub fn write_down(&self, journal: Option<Journal>) {
        *self.journal.lock().unwrap_or_else(PoisonError::into_inner) = journal;
    }

    /// Adds what was counted.
    pub fn count(&self, counts: &Counts) {
        self.run.add(counts);
        self.agent.add(counts);
    }

    /// Counts what a bin saw, and tells of it, if anybody listens.
    pub fn end_bin(&self, ended: EndedBin) {
        if let Some(journal) = &mut *self.journal.lock().unwrap_or_else(PoisonError::into_inner) {
            journal.write(&ended);
        }
        self.count(&ended.counts);
        if self.tell_bins {
            self.ended().bins.push(ended);
        }
    }

    /// Tells of a watched window's bin, if anybody listens.
    pub fn end_window(&self, ended: EndedWindow) {
        if self.tell_bins {
            self.ended().windows.push(ended);
        }
    }

    /// Tells of a VPN flow's bin, if anybody listens.
    pub fn end_vpn(&self, ended: EndedVpn) {
        if self.tell_bins {
            self.ended().vpns.push(ended);
        }
    }

    /// What was told of since this was called before.
    pub fn take_ended(&self) -> Ended {
        std::mem::take(&mut *self.ended())
    }

    fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a moment of the run; false where the run is stopped before.
pub(super) fn wait(epoch: Epoch, at: Instant, stop: &AtomicBool) -> bool {
    while epoch.now() < at {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let left = at.since(epoch.now());
        std::thread::sleep(std::time::Duration::from_nanos(left.0).min(NAP));
    }
    !stop.load(Ordering::Relaxed)
}

/// The refusal of a run that this host keeps from starting.
pub(crate) fn refusal(obstacle: Obstacle) -> Refusal {
    let kind = if obstacle.is_missing { RefusalKind::Missing } else { RefusalKind::System };
    Refusal::new(kind, obstacle.message).remedy(obstacle.remedy)
}
