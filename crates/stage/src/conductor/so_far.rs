//! What a run has found so far, put together from the bins that agents and emulator tell while it goes on:
//! series under the same names as in the outcome. Delays' distributions are known at the end.
//!
//! What an agent tells is taken as far as it can be of this run: on `live` it is somebody else's program.

use super::outcome::{self, Findings};
use crate::topology::assignments::Member;
use netstage_agent_api::results::{Counts, Ended, EndedWindow, FlowResult, Report, VpnResult, Watched};
use netstage_agent_api::task::Assignment;
use netstage_core::tcp::history::Bin;
use netstage_core::time::{Duration, Instant};
use netstage_emulator as emulator;
use netstage_scenario::outcome::Outcome;
use netstage_scenario::plan::Plan;
use std::collections::BTreeMap;

/// How long a bin waits for those who have not told of it. A lost agent tells nothing any more.
const PATIENCE: Duration = Duration::from_secs(2);

/// The bins told so far.
pub struct SoFar<'a> {
    plan: &'a Plan,
    members: &'a [Member],
    /// Sides of flows, and windows, that are told of.
    expected: (usize, usize),
    /// By number of the flow, and whether this is its sender's side.
    flows: BTreeMap<(u32, bool), FlowResult>,
    windows: BTreeMap<String, Vec<Bin>>,
    vpns: BTreeMap<String, VpnResult>,
    emulator: emulator::Report,
    /// Bins of which the emulator has told; none where the network is a real one.
    links: Option<usize>,
    /// Bins that were passed on.
    told: usize,
}

impl<'a> SoFar<'a> {
    /// Nothing yet of what these agents are to do, and of so many windows; links are those of an emulator, if there is one.
    pub fn new<'b>(
        plan: &'a Plan,
        members: &'a [Member],
        assignments: impl Iterator<Item = &'b Assignment>,
        windows: usize,
        config: Option<&emulator::Config>,
    ) -> SoFar<'a> {
        let expected = (assignments.map(|assignment| assignment.flows.len()).sum(), windows);
        let begun = |config: &emulator::Config| {
            let links = config.links.iter();
            let named = links
                .map(|link| (link.name.as_str(), [0, 1].map(|direction| link.direction_name(direction))));
            emulator::Report::begun(config.interval, named)
        };
        SoFar {
            plan,
            members,
            expected,
            flows: BTreeMap::new(),
            windows: BTreeMap::new(),
            vpns: BTreeMap::new(),
            emulator: config.map(begun).unwrap_or_default(),
            links: config.map(|_| 0),
            told: 0,
        }
    }

    /// Bins have ended at agents.
    pub fn add(&mut self, ended: &Ended) {
        let whole = self.whole();
        for ended in ended.bins.iter().filter(|ended| (ended.bin as usize) < whole) {
            let Some(member) = self.members.get(ended.flow as usize) else { continue };
            let side = self.flows.entry((ended.flow, ended.sends)).or_insert_with(|| FlowResult {
                name: self.plan.flow_name(member.group, member.index),
                sends: ended.sends,
                ..FlowResult::default()
            });
            let bin = ended.bin as usize;
            // The halves of a one-ended flow tell apart.
            place(&mut side.bins, bin, Counts::default()).add(&ended.counts);
            if let Some(tcp) = ended.tcp {
                *place(&mut side.tcp, bin, tcp) = tcp;
            }
            if let Some(travel) = ended.travel {
                *place(&mut side.travel, bin, travel) = travel;
            }
        }
        self.add_windows(&ended.windows);
        for ended in ended.vpns.iter().filter(|ended| (ended.bin as usize) < whole) {
            if !self.plan.vpns.iter().any(|vpn| vpn.name == ended.vpn) {
                continue;
            }
            let vpn = self
                .vpns
                .entry(ended.vpn.clone())
                .or_insert_with_key(|name| VpnResult { vpn: name.clone(), ..VpnResult::default() });
            let bin = ended.bin as usize;
            *place(&mut vpn.queue, bin, 0.0) = ended.queue;
            *place(&mut vpn.queue_drops, bin, 0) = ended.queue_drops;
            if let Some(window) = ended.window {
                *place(&mut vpn.window, bin, window) = window;
            }
        }
    }

    /// Bins of watched windows have ended.
    pub fn add_windows(&mut self, ended: &[EndedWindow]) {
        let whole = self.whole();
        for ended in ended.iter().filter(|ended| (ended.bin as usize) < whole) {
            let bins = self.windows.entry(ended.subject.clone()).or_default();
            *place(bins, ended.bin as usize, Bin::default()) = ended.window;
        }
    }

    /// Bins of links have ended.
    pub fn add_links(&mut self, ended: &[emulator::report::EndedBin]) {
        for ended in ended {
            self.emulator.add(ended);
            self.links = Some(ended.bin + 1);
        }
    }

    /// Whether bins have ended since this was asked before: all have told of them, or had the time.
    pub fn has_news(&mut self, now: Instant) -> bool {
        let told_of = |lengths: Vec<usize>, expected: usize| match lengths.len() < expected {
            true => 0,
            false => lengths.into_iter().min().unwrap_or(usize::MAX),
        };
        let flows = told_of(self.flows.values().map(|flow| flow.bins.len()).collect(), self.expected.0);
        let windows = told_of(self.windows.values().map(Vec::len).collect(), self.expected.1);
        let vpns = told_of(self.vpns.values().map(|vpn| vpn.queue.len()).collect(), 0);
        let waited = (now.0.saturating_sub(PATIENCE.0) / self.plan.measure.interval.0) as usize;
        let by_agents = flows.min(windows).min(vpns).max(waited);
        let bins = by_agents.min(self.links.unwrap_or(usize::MAX)).min(self.whole());
        let before = self.told;
        self.told = before.max(bins);
        before < self.told
    }

    /// The outcome of these bins.
    pub fn outcome(&self) -> Outcome {
        let reports = [Report {
            flows: self.flows.values().cloned().collect(),
            vpns: self.vpns.values().cloned().collect(),
            ..Report::default()
        }];
        let windows = self.windows.iter().map(|(subject, bins)| (subject.clone(), bins.clone()));
        let mut outcome = outcome::outcome(&Findings {
            plan: self.plan,
            members: self.members,
            reports: &reports,
            emulator: &self.emulator,
            is_real: self.links.is_none(),
            clock_error: &|_, _| 0,
            services: &[],
            watched: &Watched { flows: windows.collect(), ..Watched::default() },
        });
        outcome.truncate(self.told);
        outcome
    }

    /// Bins of the run.
    fn whole(&self) -> usize {
        (self.plan.duration.0 / self.plan.measure.interval.0) as usize
    }
}

/// A bin's place; what was not told before it is as `blank`.
fn place<T: Clone>(values: &mut Vec<T>, place: usize, blank: T) -> &mut T {
    if values.len() <= place {
        values.resize(place + 1, blank);
    }
    &mut values[place]
}
