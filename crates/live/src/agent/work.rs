//! What an agent has done for it: the traffic engine, seen from outside.

use super::spool::Journal;
use crate::clock::Epoch;
use crate::protocol::Refusal;
use crate::results::{Ended, EndedBin, EndedVpn, EndedWindow, Report};
use crate::task::Assignment;
use netstage_core::time::Instant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Counts since the start of the run, for those who watch it; any thread may add.
#[derive(Debug, Default)]
pub struct Totals {
    /// Packets sent.
    pub sent: AtomicU64,
    /// Payload bytes sent.
    pub sent_bytes: AtomicU64,
    /// Packets received.
    pub received: AtomicU64,
    /// Payload bytes received.
    pub received_bytes: AtomicU64,
    /// Packets lost.
    pub lost: AtomicU64,
    /// Whether somebody wants to be told of every bin.
    pub tell_bins: AtomicBool,
    ended: Mutex<Ended>,
    /// Where bins are written down as they end.
    journal: Mutex<Option<Journal>>,
}

impl Totals {
    /// What has been counted so far: packets and bytes sent, received, packets lost.
    pub fn read(&self) -> [u64; 5] {
        [&self.sent, &self.sent_bytes, &self.received, &self.received_bytes, &self.lost]
            .map(|count| count.load(Ordering::Relaxed))
    }

    /// Bins are written down there, too, as they end.
    pub fn write_down(&self, journal: Option<Journal>) {
        *self.journal.lock().unwrap_or_else(PoisonError::into_inner) = journal;
    }

    /// Tells of a bin, if anybody listens.
    pub fn end_bin(&self, ended: EndedBin) {
        if let Some(journal) = &mut *self.journal.lock().unwrap_or_else(PoisonError::into_inner) {
            journal.write(&ended);
        }
        if self.tell_bins.load(Ordering::Relaxed) {
            self.ended().bins.push(ended);
        }
    }

    /// Tells of a watched window's bin, if anybody listens.
    pub fn end_window(&self, ended: EndedWindow) {
        if self.tell_bins.load(Ordering::Relaxed) {
            self.ended().windows.push(ended);
        }
    }

    /// Tells of a VPN flow's bin, if anybody listens.
    pub fn end_vpn(&self, ended: EndedVpn) {
        if self.tell_bins.load(Ordering::Relaxed) {
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
