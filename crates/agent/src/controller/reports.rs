//! Collection of reports. Each report is stored before its agent may delete it.

use super::member::{ANSWER_TIMEOUT, AgentConnection};
use super::{AgentDisconnect, ControlledAgents};
use netstage_agent_api::protocol::MAX_REPORT_BYTES;
use netstage_agent_api::protocol::generated::{KeptRequest, ReleaseRequest};
use netstage_agent_api::results::AgentReport;
use netstage_core::fleet::{AgentRunState, COMPLETION_TIMEOUT};
use netstage_core::time::Duration;
use std::ops::ControlFlow;

/// Reports of a run.
#[derive(Clone, Debug, Default)]
pub struct CollectedReports {
    /// Reports, in the order of the agents.
    pub reports: Vec<AgentReport>,
    /// Agents whose reports are missing.
    pub lost: Vec<AgentDisconnect>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Remark on a slow start: time between announcement and start, and number of postponements.
    pub slow_start: Option<String>,
}

impl ControlledAgents {
    /// Fetches the reports of earlier runs that no controller has released. Releases those for which `keep`
    /// returns true, so that their agents delete them.
    pub fn fetch_stored_reports(
        &self,
        mut keep: impl FnMut(&str, u64, &AgentReport) -> bool,
    ) -> Vec<AgentDisconnect> {
        let controller = self.controller;
        let calls = self.members.iter().map(|member| {
            let member = member.clone();
            async move {
                let mut client = member.client();
                let listed = member.answer(ANSWER_TIMEOUT, client.kept(KeptRequest { controller })).await;
                let mut reports = Vec::new();
                for kept in listed.map_err(|reason| (member.name.clone(), reason))?.reports {
                    let report = member.collect(controller, kept.run, MAX_REPORT_BYTES).await;
                    reports.push((kept.run, report));
                }
                Ok::<_, (String, String)>((member, reports))
            }
        });
        let (mut losses, mut released) = (Vec::new(), Vec::new());
        for result in self.ask_all(calls) {
            match result {
                Err((agent, reason)) => losses.push(AgentDisconnect { agent, reason }),
                Ok((member, reports)) => {
                    for (run, report) in reports {
                        match report {
                            Ok((report, _)) if keep(&member.name, run, &report) => {
                                released.push((member.clone(), run));
                            }
                            Ok(_) => {}
                            Err(reason) => {
                                losses.push(AgentDisconnect { agent: member.name.clone(), reason })
                            }
                        }
                    }
                }
            }
        }
        self.ask_all(released.into_iter().map(|(member, run)| release(member, controller, run)));
        losses
    }

    /// Waits like [`watch`](ControlledAgents::watch), and fetches the reports.
    pub fn collect(&mut self) -> CollectedReports {
        self.collect_and_store(|_, _| Ok(()))
    }

    /// Collects reports like [`collect`](ControlledAgents::collect), and passes each one to `keep` before its agent may
    /// delete it. A report for which `keep` fails stays with the agent.
    pub fn collect_and_store(
        &mut self,
        mut keep: impl FnMut(&str, &AgentReport) -> Result<(), String>,
    ) -> CollectedReports {
        self.watch(|_| ControlFlow::Continue(()));
        let (controller, run) = (self.controller, self.run);
        let calls = self.taking_part.iter().enumerate().map(|(place, &index)| {
            let member = self.members[index].clone();
            let given_up = match self.conduct.as_ref().and_then(|conduct| conduct.state(place)) {
                Some(AgentRunState::TimedOut(phase)) => Some(phase),
                _ => None,
            };
            async move {
                if let Some(phase) = given_up {
                    let seconds = COMPLETION_TIMEOUT.0 / 1_000_000_000;
                    return Err(format!("still {} {seconds} s after the end of the run", phase.name()));
                }
                let max_bytes = member.max_report_bytes();
                member.collect(controller, run, max_bytes).await
            }
        });
        let mut collected = CollectedReports::default();
        let mut released = Vec::new();
        collected.slow_start = self.lead.get().remark(self.taking_part.len());
        for (&index, result) in self.taking_part.iter().zip(self.ask_all(calls)) {
            let member = &self.members[index];
            match result {
                Ok((report, spool_error)) => {
                    collected.warnings.extend(self.absences(index));
                    if !spool_error.is_empty() {
                        let warning =
                            format!("agent {} could not spool its report: {spool_error}", member.name);
                        collected.warnings.push(warning);
                    }
                    match keep(&member.name, &report) {
                        Ok(()) => released.push(member.clone()),
                        Err(why) => collected.warnings.push(format!(
                            "cannot store the report of agent {}; it stays with the agent: {why}",
                            member.name
                        )),
                    }
                    collected.reports.push(report);
                }
                Err(why) => collected.lost.push(self.loss(index, why)),
            }
        }
        self.ask_all(released.into_iter().map(|member| release(member, controller, run)));
        self.taking_part.clear();
        self.conduct = None;
        self.set_leases(Duration::ZERO);
        collected
    }
}

impl ControlledAgents {
    /// Describes the absences of an agent during the run.
    fn absences(&self, index: usize) -> Option<String> {
        let member = &self.members[index];
        let times = member.state().absences.into_iter().map(|(from_ns, to_ns)| {
            let from = self.epoch.instant(from_ns).0 as f64 / 1e9;
            format!("for {:.1} s from {from:.1} s after the start", (to_ns - from_ns) as f64 / 1e9)
        });
        let times = times.collect::<Vec<_>>().join(", ");
        (!times.is_empty()).then(|| {
            format!(
                "agent {} was not connected {times}; its results were collected after its return",
                member.name
            )
        })
    }
}

/// Lets an agent delete a report. An agent that does not receive the request keeps the report, which is
/// harmless.
async fn release(member: AgentConnection, controller: u64, run: u64) {
    let mut client = member.client();
    let _ = member.answer(ANSWER_TIMEOUT, client.release(ReleaseRequest { controller, run })).await;
}
