//! Thread of one run: it prepares the run, waits for the start, carries it out, and stores the report.
//! Resources opened for the run are closed by the same thread.

use super::clocks::ClockResponder;
use super::guard::RunGuard;
use super::spool::Journal;
use super::work::{RunningTotals, Worker};
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::results::{AgentReport, PolicyDrops};
use netstage_agent_api::task::Assignment;
use netstage_core::fleet::COMMITTED;
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_host::clock::{Epoch, monotonic_ns};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Handle of a run.
pub struct RunHandle {
    /// Sender of the start time, and of later ones until the run begins; dropping it ends the run before it
    /// begins.
    pub start: Option<mpsc::Sender<Epoch>>,
    /// Set to end the run early.
    pub stop: Arc<AtomicBool>,
    /// Counters so far.
    pub totals: Arc<RunningTotals>,
    /// Report, once the run is over.
    pub outcome: Option<Arc<RunReport>>,
    /// Clock comparison, once the run is prepared.
    pub clocks: Option<ClockResponder>,
    /// Thread of the run.
    pub thread: JoinHandle<()>,
}

/// Report of a run, and its copy in the spool.
pub struct RunReport {
    /// Report as JSON.
    pub report: Vec<u8>,
    /// Path of the spooled copy, or `None` without a spool; an error if it could not be written.
    pub spooled: Result<Option<PathBuf>, String>,
}

/// Input of the thread of a run.
pub struct RunInput {
    /// Assignment to carry out.
    pub assignment: Assignment,
    /// Receiver of the start time; the channel is closed when the run is not to start.
    pub start: mpsc::Receiver<Epoch>,
    /// Set when the run is to end early.
    pub stop: Arc<AtomicBool>,
    /// Counters of the run.
    pub totals: Arc<RunningTotals>,
    /// Thread of the previous run, whose sockets must be closed first.
    pub before: Option<JoinHandle<()>>,
}

/// Prepares a run, waits for its start and carries it out. Returns the report, or `None` if the run did not
/// begin.
///
/// `prepared` receives the ports of the received flows, or the refusal, and returns whether the run is still
/// wanted. `journal` opens the journal of completed bins, if there is one; this takes time, and is therefore
/// done once a start time is known. `begin` confirms a start time.
pub fn run(
    worker: &dyn Worker,
    guard: Option<&dyn RunGuard>,
    orders: RunInput,
    prepared: impl FnOnce(Result<Vec<(u32, u16)>, OrderRefusal>) -> bool,
    journal: impl Fn(&Assignment) -> Option<Journal>,
    begin: impl Fn(Epoch) -> bool,
) -> Option<AgentReport> {
    let RunInput { assignment, start, stop, totals, before } = orders;
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
            let reason = format!("panic during preparation: {}", panic_message(panic.as_ref()));
            prepared(Err(OrderRefusal::new(OrderRefusalKind::System, reason)));
            return None;
        }
    };
    if !prepared(Ok(work.receiving_ports())) {
        return None;
    }
    let drops = || guard.map(RunGuard::drops).unwrap_or_default();
    let before = drops();
    let begun = Cell::new(false);
    let mut wait = || {
        let first = start.recv().ok()?;
        let journal = journal(&assignment);
        let epoch = last_start(first, &start, &begin);
        begun.set(epoch.is_some());
        match epoch {
            Some(_) => totals.set_journal(journal),
            None => journal.into_iter().for_each(Journal::discard),
        }
        epoch
    };
    let report = catch_unwind(AssertUnwindSafe(|| work.run_when(&mut wait, &stop, &totals)));
    let report = report.map(|report| {
        report.map(|report| {
            totals.finish(&report);
            report.with_policy_drops(PolicyDrops::since(drops(), &before))
        })
    });
    report.unwrap_or_else(|panic| {
        if !begun.get() {
            wait()?;
        }
        Some(AgentReport {
            void: vec![VoidReason::new(
                "the traffic engine",
                format!("panicked: {}", panic_message(panic.as_ref())),
                FaultTime::Within(assignment.duration),
            )],
            node: assignment.node.clone(),
            ..AgentReport::default()
        })
    })
}

/// Returns the last start time received before the run has to begin, or `None` when the run is not to start.
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
            // A later start time is in transit.
            Err(_) => epoch = start.recv().ok()?,
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
