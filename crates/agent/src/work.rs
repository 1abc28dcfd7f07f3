//! Interface between an agent and its traffic engine.

use super::spool::Journal;
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::results::{
    AgentReport, BinCounts, CompletedBin, CompletedBins, CompletedVpn, CompletedWindow,
};
use netstage_agent_api::task::Assignment;
use netstage_core::measure::Histogram;
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use netstage_host::startup_error::StartupError;
use netstage_scenario::outcome::Metric;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum sleep before the stop flag is checked again.
const MAX_SLEEP: std::time::Duration = std::time::Duration::from_millis(100);
/// Maximum number of completed bins that wait for a controller. Later ones are only in the report.
const MAX_WAITING_BINS: usize = 1 << 16;

/// Carries out assignments.
pub trait Worker: Send + Sync + 'static {
    /// Opens all resources of an assignment, so that it is ready to start.
    fn prepare(&self, assignment: &Assignment) -> Result<Box<dyn PreparedWork>, OrderRefusal>;
}

/// Prepared run. Dropping it closes its resources.
pub trait PreparedWork: Send {
    /// Returns the number and port of each received flow.
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        Vec::new()
    }

    /// Carries out the run from `epoch` on, on the calling thread and threads of its own, until it is over or
    /// `stop` becomes true. `stop` is checked several times per second.
    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &RunningTotals) -> AgentReport;

    /// Carries out the run like [`run`](PreparedRun::run), with the epoch returned by `start`, which blocks
    /// until shortly before it. Lengthy work can be done before the call of `start`. Returns `None` if the
    /// run is not to start.
    fn run_when(
        self: Box<Self>,
        start: &mut dyn FnMut() -> Option<Epoch>,
        stop: &AtomicBool,
        totals: &RunningTotals,
    ) -> Option<AgentReport> {
        Some(self.run(start()?, stop, totals))
    }
}

/// Distributions of times measured by an agent, in nanoseconds, by the name of their metric.
pub type TimeDistributions = BTreeMap<&'static str, Histogram>;

/// Packets sent, bytes sent, packets received, bytes received and packets lost, and distributions of finished runs. Any
/// thread may add to them.
#[derive(Debug, Default)]
pub struct PacketSums([AtomicU64; 5], Mutex<TimeDistributions>);

impl PacketSums {
    fn add(&self, counts: &BinCounts) {
        let BinCounts { sent, sent_bytes, received, received_bytes, lost, .. } = *counts;
        for (sum, more) in self.0.iter().zip([sent, sent_bytes, received, received_bytes, lost]) {
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Adds the distributions of a report.
    fn add_times(&self, report: &AgentReport) {
        let mut times = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        let mut add = |metric: Metric, buckets: &[(u64, u64)]| {
            if !buckets.is_empty() {
                times.entry(metric.info().name).or_default().add(buckets);
            }
        };
        for flow in &report.flows {
            let quality = &flow.quality_distributions;
            if flow.quality.is_empty() {
                add(Metric::FlowDelay, &flow.delay.0);
                add(Metric::FlowDelay, &flow.answer_delay.0);
                add(Metric::FlowDelayVariation, &flow.delay_variation.0);
                add(Metric::FlowRoundTrip, &flow.round_trip.0);
            }
            add(Metric::AppTransactionTime, &quality.transaction_time);
            add(Metric::AppPageLoadTime, &quality.page_load_time);
            add(Metric::AppStartupDelay, &quality.startup_delay);
            add(Metric::AppDelay, &quality.delay);
            add(Metric::AppDelayVariation, &quality.delay_variation);
        }
    }

    /// Returns the distributions of all finished runs.
    pub fn times(&self) -> TimeDistributions {
        self.1.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the current values: packets sent, bytes sent, packets received, bytes received, packets lost.
    pub fn read(&self) -> [u64; 5] {
        self.0.each_ref().map(|sum| sum.load(Ordering::Relaxed))
    }
}

/// Totals of a run, readable during the run. Any thread may add to them.
#[derive(Debug, Default)]
pub struct RunningTotals {
    run: PacketSums,
    /// Totals of all runs of the agent.
    agent: Arc<PacketSums>,
    /// Report each completed bin to the controller.
    report_bins: bool,
    ended: Mutex<CompletedBins>,
    /// Journal of completed bins.
    journal: Mutex<Option<Journal>>,
}

impl RunningTotals {
    /// Returns empty totals of a run that also count toward `agent`, and collect completed bins if
    /// `report_bins` is set.
    pub fn new(agent: Arc<PacketSums>, report_bins: bool) -> RunningTotals {
        RunningTotals { agent, report_bins, ..RunningTotals::default() }
    }

    /// Returns the current values: packets sent, bytes sent, packets received, bytes received, packets lost.
    pub fn read(&self) -> [u64; 5] {
        self.run.read()
    }

    /// Adds the distributions of the run's report to those of the agent.
    pub fn finish(&self, report: &AgentReport) {
        self.agent.add_times(report);
    }

    /// Sets the journal to which completed bins are also written.
    pub fn set_journal(&self, journal: Option<Journal>) {
        *self.journal.lock().unwrap_or_else(PoisonError::into_inner) = journal;
    }

    /// Adds the counters of some packets.
    pub fn count(&self, counts: &BinCounts) {
        self.run.add(counts);
        self.agent.add(counts);
    }

    /// Adds the counters of a completed bin, and reports the bin if requested.
    pub fn end_bin(&self, ended: CompletedBin) {
        if let Some(journal) = &mut *self.journal.lock().unwrap_or_else(PoisonError::into_inner) {
            journal.write(&ended);
        }
        self.count(&ended.counts);
        let mut waiting = self.ended();
        if self.report_bins && waiting.bins.len() < MAX_WAITING_BINS {
            waiting.bins.push(ended);
        }
    }

    /// Reports a completed bin of a watched window if requested.
    pub fn end_window(&self, ended: CompletedWindow) {
        if self.report_bins {
            self.ended().windows.push(ended);
        }
    }

    /// Reports a completed bin of a VPN flow if requested.
    pub fn end_vpn(&self, ended: CompletedVpn) {
        if self.report_bins {
            self.ended().vpns.push(ended);
        }
    }

    /// Returns the bins completed since the previous call.
    pub fn take_completed(&self) -> CompletedBins {
        std::mem::take(&mut *self.ended())
    }

    fn ended(&self) -> MutexGuard<'_, CompletedBins> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until a time of the run. Returns false if the run is stopped earlier.
pub(super) fn wait(epoch: Epoch, at: Instant, stop: &AtomicBool) -> bool {
    while epoch.now() < at {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let left = at.since(epoch.now());
        std::thread::sleep(std::time::Duration::from_nanos(left.0).min(MAX_SLEEP));
    }
    !stop.load(Ordering::Relaxed)
}

/// Converts an error of this host into a refusal of the run.
pub(crate) fn refusal(obstacle: StartupError) -> OrderRefusal {
    let kind = if obstacle.is_missing { OrderRefusalKind::Missing } else { OrderRefusalKind::System };
    OrderRefusal::new(kind, obstacle.message).remedy(obstacle.remedy)
}
