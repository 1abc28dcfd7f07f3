//! What an agent has done for it: the traffic engine, seen from outside.

use crate::clock::Epoch;
use crate::protocol::Refusal;
use crate::results::Report;
use crate::task::Assignment;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Carries out assignments.
pub trait Worker: Send + Sync + 'static {
    /// Opens everything the assignment needs, so that only the start is missing.
    fn prepare(&self, assignment: &Assignment) -> Result<Box<dyn Work>, Refusal>;
}

/// A prepared run. Dropping it closes what was opened.
pub trait Work: Send {
    /// Carries it out from `epoch` on, on the calling thread and others of its own, until it
    /// is over or `stop` becomes true; the latter is looked at several times a second.
    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &Totals) -> Report;
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
}

impl Totals {
    /// What has been counted so far: packets and bytes sent, received, packets lost.
    pub fn read(&self) -> [u64; 5] {
        [&self.sent, &self.sent_bytes, &self.received, &self.received_bytes, &self.lost]
            .map(|count| count.load(Ordering::Relaxed))
    }
}
