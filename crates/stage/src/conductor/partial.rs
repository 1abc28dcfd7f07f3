//! Partial outcome of a run, from the bins that agents and emulator report during it. Its series have the names of
//! those in the final outcome. Delay distributions are only available at the end.
//!
//! Bins that do not belong to the run are ignored, because the agents of the live stage are not trusted.

use super::outcome::{self, Findings};
use crate::topology::assignments::PlacedFlow;
use netstage_agent_api::results::{
    AgentReport, BinCounts, CompletedBins, CompletedWindow, FlowResult, VpnResult, WatchedWindows,
};
use netstage_agent_api::task::Assignment;
use netstage_core::tcp::history::Bin;
use netstage_core::time::{Duration, Instant};
use netstage_emulator as emulator;
use netstage_scenario::outcome::RunOutcome;
use netstage_scenario::plan::Plan;
use std::collections::BTreeMap;

/// Maximum time to wait for missing reports of a bin. A lost agent reports no more bins.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Partial outcome of a run.
pub struct PartialOutcome<'a> {
    plan: &'a Plan,
    members: &'a [PlacedFlow],
    /// Expected numbers of flow sides and of windows.
    expected: (usize, usize),
    /// Results by flow number and side; `true` is the sender.
    flows: BTreeMap<(u32, bool), FlowResult>,
    windows: BTreeMap<String, Vec<Bin>>,
    vpns: BTreeMap<String, VpnResult>,
    emulator: emulator::EmulatorReport,
    /// Number of bins reported by the emulator; `None` for a real network.
    links: Option<usize>,
    /// Number of bins that were passed on.
    reported: usize,
}

impl<'a> PartialOutcome<'a> {
    /// Creates an empty outcome for these assignments and this number of windows. `config` is that of the emulator.
    pub fn new<'b>(
        plan: &'a Plan,
        members: &'a [PlacedFlow],
        assignments: impl Iterator<Item = &'b Assignment>,
        windows: usize,
        config: Option<&emulator::EmulatorConfig>,
    ) -> PartialOutcome<'a> {
        let expected = (assignments.map(|assignment| assignment.flows.len()).sum(), windows);
        let empty_report = |config: &emulator::EmulatorConfig| {
            let links = config.links.iter();
            let named = links
                .map(|link| (link.name.as_str(), [0, 1].map(|direction| link.direction_name(direction))));
            emulator::EmulatorReport::empty(config.interval, named)
        };
        PartialOutcome {
            plan,
            members,
            expected,
            flows: BTreeMap::new(),
            windows: BTreeMap::new(),
            vpns: BTreeMap::new(),
            emulator: config.map(empty_report).unwrap_or_default(),
            links: config.map(|_| 0),
            reported: 0,
        }
    }

    /// Adds bins reported by agents.
    pub fn add(&mut self, ended: &CompletedBins) {
        let bin_count = self.bin_count();
        for ended in ended.bins.iter().filter(|ended| (ended.bin as usize) < bin_count) {
            let Some(member) = self.members.get(ended.flow as usize) else { continue };
            let side = self.flows.entry((ended.flow, ended.sends)).or_insert_with(|| FlowResult {
                name: self.plan.flow_name(member.group, member.index),
                sends: ended.sends,
                ..FlowResult::default()
            });
            let bin = ended.bin as usize;
            // The two halves of a one-ended flow report separately.
            bin_mut(&mut side.bins, bin, BinCounts::default()).add(&ended.counts);
            if let Some(tcp) = ended.tcp {
                *bin_mut(&mut side.tcp, bin, tcp) = tcp;
            }
            if let Some(travel) = ended.travel {
                *bin_mut(&mut side.travel, bin, travel) = travel;
            }
        }
        self.add_windows(&ended.windows);
        for ended in ended.vpns.iter().filter(|ended| (ended.bin as usize) < bin_count) {
            if !self.plan.vpns.iter().any(|vpn| vpn.name == ended.vpn) {
                continue;
            }
            let vpn = self
                .vpns
                .entry(ended.vpn.clone())
                .or_insert_with_key(|name| VpnResult { vpn: name.clone(), ..VpnResult::default() });
            let bin = ended.bin as usize;
            *bin_mut(&mut vpn.queue, bin, 0.0) = ended.queue;
            *bin_mut(&mut vpn.queue_drops, bin, 0) = ended.queue_drops;
            if let Some(control) = ended.control {
                *bin_mut(&mut vpn.control, bin, control) = control;
            }
        }
    }

    /// Adds bins of watched windows.
    pub fn add_windows(&mut self, ended: &[CompletedWindow]) {
        let bin_count = self.bin_count();
        for ended in ended.iter().filter(|ended| (ended.bin as usize) < bin_count) {
            let bins = self.windows.entry(ended.subject.clone()).or_default();
            *bin_mut(bins, ended.bin as usize, Bin::default()) = ended.window;
        }
    }

    /// Adds bins of links.
    pub fn add_links(&mut self, ended: &[emulator::report::BinReport]) {
        for ended in ended {
            self.emulator.add(ended);
            self.links = Some(ended.bin + 1);
        }
    }

    /// Returns whether bins have been completed since the last call: all their reports have arrived or timed out.
    pub fn has_new_bins(&mut self, now: Instant) -> bool {
        let complete = |lengths: Vec<usize>, expected: usize| match lengths.len() < expected {
            true => 0,
            false => lengths.into_iter().min().unwrap_or(usize::MAX),
        };
        let flows = complete(self.flows.values().map(|flow| flow.bins.len()).collect(), self.expected.0);
        let windows = complete(self.windows.values().map(Vec::len).collect(), self.expected.1);
        let vpns = complete(self.vpns.values().map(|vpn| vpn.queue.len()).collect(), 0);
        let timed_out = (now.0.saturating_sub(REPORT_TIMEOUT.0) / self.plan.measure.interval.0) as usize;
        let by_agents = flows.min(windows).min(vpns).max(timed_out);
        let bins = by_agents.min(self.links.unwrap_or(usize::MAX)).min(self.bin_count());
        let before = self.reported;
        self.reported = before.max(bins);
        before < self.reported
    }

    /// Returns the outcome of the completed bins.
    pub fn outcome(&self) -> RunOutcome {
        let reports = [AgentReport {
            flows: self.flows.values().cloned().collect(),
            vpns: self.vpns.values().cloned().collect(),
            ..AgentReport::default()
        }];
        let windows = self.windows.iter().map(|(subject, bins)| (subject.clone(), bins.clone()));
        let mut outcome = outcome::outcome(&Findings {
            plan: self.plan,
            members: self.members,
            reports: &reports,
            emulator: &self.emulator,
            is_real: self.links.is_none(),
            clock_error: &|_, _| 0,
            route_server: None,
            services: &[],
            watched: &WatchedWindows { flows: windows.collect(), ..WatchedWindows::default() },
        });
        outcome.truncate(self.reported);
        outcome
    }

    /// Returns the number of bins of the run.
    fn bin_count(&self) -> usize {
        (self.plan.duration.0 / self.plan.measure.interval.0) as usize
    }
}

/// Returns the value of a bin. Missing bins up to it are filled with `blank`.
fn bin_mut<T: Clone>(values: &mut Vec<T>, bin: usize, blank: T) -> &mut T {
    if values.len() <= bin {
        values.resize(bin + 1, blank);
    }
    &mut values[bin]
}
