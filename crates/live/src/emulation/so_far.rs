//! What an emulated run has found so far, put together from the bins that agents and emulator tell while it
//! goes on: series under the same names as in the outcome. What is only known at the end (windows of
//! provider edges, why TCP windows fell, delays' distributions) is not among them.

use super::outcome::{self, Findings};
use crate::emulator;
use crate::fabric::assignments::Member;
use crate::fabric::watch::Watched;
use crate::results::{EndedBin, FlowResult, Report};
use netstage_scenario::outcome::Outcome;
use netstage_scenario::plan::Plan;
use std::collections::BTreeMap;

/// The bins told so far.
pub struct SoFar<'a> {
    plan: &'a Plan,
    members: &'a [Member],
    /// By number of the flow, and whether this is its sender's side.
    flows: BTreeMap<(u32, bool), FlowResult>,
    emulator: emulator::Report,
    /// Bins of which the emulator has told.
    bins: usize,
    /// Of those, bins that were passed on.
    told: usize,
}

impl<'a> SoFar<'a> {
    /// Nothing yet.
    pub fn new(plan: &'a Plan, members: &'a [Member], config: &emulator::Config) -> SoFar<'a> {
        let links = config.links.iter();
        let named =
            links.map(|link| (link.name.as_str(), [0, 1].map(|direction| link.direction_name(direction))));
        let emulator = emulator::Report::begun(config.interval, named);
        SoFar { plan, members, flows: BTreeMap::new(), emulator, bins: 0, told: 0 }
    }

    /// Bins of flows have ended.
    pub fn add_flows(&mut self, ended: &[EndedBin]) {
        for ended in ended {
            let Some(member) = self.members.get(ended.flow as usize) else { continue };
            let side = self.flows.entry((ended.flow, ended.sends)).or_insert_with(|| FlowResult {
                name: self.plan.flow_name(member.group, member.index),
                sends: ended.sends,
                ..FlowResult::default()
            });
            let bin = ended.bin as usize;
            put(&mut side.bins, bin, ended.counts);
            ended.tcp.into_iter().for_each(|tcp| put(&mut side.tcp, bin, tcp));
        }
    }

    /// Bins of links have ended.
    pub fn add_links(&mut self, ended: &[emulator::report::EndedBin]) {
        for ended in ended {
            self.emulator.add(ended);
            self.bins = ended.bin + 1;
        }
    }

    /// Whether bins have ended since this was asked before.
    pub fn has_news(&mut self) -> bool {
        std::mem::replace(&mut self.told, self.bins) < self.bins
    }

    /// The outcome of these bins.
    pub fn outcome(&self) -> Outcome {
        let reports = [Report { flows: self.flows.values().cloned().collect(), ..Report::default() }];
        let mut outcome = outcome::outcome(&Findings {
            plan: self.plan,
            members: self.members,
            reports: &reports,
            emulator: &self.emulator,
            is_real: false,
            clock_error: &|_, _| 0,
            services: &[],
            watched: &Watched::default(),
        });
        outcome.truncate(self.bins);
        outcome
    }
}

/// Puts a value at its place; what was not told before is nothing.
fn put<T: Clone + Default>(values: &mut Vec<T>, place: usize, value: T) {
    if values.len() <= place {
        values.resize(place + 1, T::default());
    }
    values[place] = value;
}
