//! One run: a thread that prepares it, waits for the start, carries it out, and keeps the
//! report. What was opened for the run is closed where it was opened.

use super::clocks::Clocks;
use super::spool::Journal;
use super::work::{Totals, Worker};
use netstage_agent_api::protocol::{Refusal, RefusalKind};
use netstage_agent_api::results::Report;
use netstage_agent_api::task::Assignment;
use netstage_core::fleet::COMMITTED;
use netstage_host::clock::{Epoch, monotonic_ns};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// A run, seen from outside.
pub struct Run {
    /// Where its start is told, and later ones until it begins; without it the run ends before it begins.
    pub start: Option<mpsc::Sender<Epoch>>,
    /// Ends the run early.
    pub stop: Arc<AtomicBool>,
    /// Counts so far.
    pub totals: Arc<Totals>,
    /// What it found, once it is over.
    pub outcome: Option<Arc<Outcome>>,
    /// Its part in comparing clocks, once it is prepared.
    pub clocks: Option<Clocks>,
    /// Its thread.
    pub thread: JoinHandle<()>,
}

/// What a run found.
pub struct Outcome {
    /// The report, as JSON.
    pub report: Vec<u8>,
    /// Where it is kept, if it is, or why it could not be.
    pub spooled: Result<Option<PathBuf>, String>,
}

/// What the thread of a run needs.
pub struct Orders {
    /// What to do.
    pub assignment: Assignment,
    /// Its start; a closed channel means there will be none.
    pub start: mpsc::Receiver<Epoch>,
    /// Becomes true when it is to end early.
    pub stop: Arc<AtomicBool>,
    /// Where it counts.
    pub totals: Arc<Totals>,
    /// The thread of the run before, whose sockets must be closed first.
    pub before: Option<JoinHandle<()>>,
}

/// Prepares, says so through `prepared` with where it receives, and, unless that says that nobody wants it
/// any more, carries out on the start; `begin` says whether the start stands, `journal` opens where bins are
/// written down, if they are, which takes its time and so is done once a start is told. None if there was nothing
/// to carry out.
pub fn carry_out(
    worker: &dyn Worker,
    orders: Orders,
    prepared: impl FnOnce(Result<Vec<(u32, u16)>, Refusal>) -> bool,
    journal: impl Fn(&Assignment) -> Option<Journal>,
    begin: impl Fn(Epoch) -> bool,
) -> Option<Report> {
    let Orders { assignment, start, stop, totals, before } = orders;
    if let Some(before) = before {
        let _ = before.join();
    }
    let work = match catch_unwind(AssertUnwindSafe(|| worker.prepare(&assignment))) {
        Ok(Ok(work)) => work,
        Ok(Err(refusal)) => {
            prepared(Err(refusal));
            return None;
        }
        Err(panic) => {
            let reason = format!("preparing panicked: {}", words(panic.as_ref()));
            prepared(Err(Refusal::new(RefusalKind::System, reason)));
            return None;
        }
    };
    if !prepared(Ok(work.receiving_ports())) {
        return None;
    }
    let begun = Cell::new(false);
    let mut wait = || {
        let first = start.recv().ok()?;
        let journal = journal(&assignment);
        let epoch = last_start(first, &start, &begin);
        begun.set(epoch.is_some());
        match epoch {
            Some(_) => totals.write_down(journal),
            None => journal.into_iter().for_each(Journal::discard),
        }
        epoch
    };
    let report = catch_unwind(AssertUnwindSafe(|| work.run_when(&mut wait, &stop, &totals)));
    report.unwrap_or_else(|panic| {
        if !begun.get() {
            wait()?;
        }
        Some(Report {
            void: vec![format!("the traffic engine panicked: {}", words(panic.as_ref()))],
            node: assignment.node.clone(),
            ..Report::default()
        })
    })
}

/// The last start that is told before the run has to begin for it; none where there will be none.
fn last_start(
    mut epoch: Epoch,
    start: &mpsc::Receiver<Epoch>,
    begin: &impl Fn(Epoch) -> bool,
) -> Option<Epoch> {
    loop {
        let committed_ns = epoch.0.saturating_sub(COMMITTED.0);
        let left = std::time::Duration::from_nanos(committed_ns.saturating_sub(monotonic_ns()));
        match start.recv_timeout(left) {
            Ok(later) => epoch = epoch.max(later),
            Err(_) if begin(epoch) => return Some(epoch),
            // A later one is on its way here.
            Err(_) => epoch = start.recv().ok()?,
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
