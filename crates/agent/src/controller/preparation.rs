//! Preparation of a run: receivers consent to their flows, and every agent opens the resources of its part.

use super::calls::call_all;
use super::member::ANSWER_TIMEOUT;
use super::{AgentDisconnect, ControlledAgents, ControllerError, MAX_CONCURRENT_CALLS, PREPARE_TIMEOUT};
use netstage_agent_api::protocol::OrderRefusal;
use netstage_agent_api::protocol::generated::{
    AgreeReply, AgreeRequest, Consent, PrepareReply, PrepareRequest,
};
use netstage_agent_api::task::{self, Assignment};
use std::collections::BTreeSet;

impl ControlledAgents {
    /// Collects the receivers' consents to the flows of these assignments. Senders need them: agents of a
    /// fleet send to no receiver without its consent.
    pub fn collect_consents(&mut self, assignments: &[(String, Assignment)]) -> Result<(), ControllerError> {
        let (controller, run) = (self.controller, self.run);
        let receives = |(_, part): &&(String, Assignment)| part.received().next().is_some();
        let (mut asked, mut calls) = (Vec::new(), Vec::new());
        for (name, assignment) in assignments.iter().filter(receives) {
            let request = AgreeRequest {
                controller,
                run,
                task_version: task::VERSION,
                assignment: serde_json::to_vec(assignment).expect("assignments have string keys only"),
            };
            let member = self.member(name)?.clone();
            asked.push((name, assignment));
            calls.push(async move {
                let mut client = member.client();
                member.answer(ANSWER_TIMEOUT, client.agree(request)).await
            });
        }
        let agreed = |answer: &Result<AgreeReply, String>| answer.as_ref().is_ok_and(|r| r.refusal.is_none());
        let answers = call_all(&self.runtime, MAX_CONCURRENT_CALLS, calls, agreed).answers;
        let (mut refused, mut lost) = (Vec::new(), Vec::new());
        for ((agent, assignment), answer) in asked.into_iter().zip(answers) {
            match answer {
                None => {}
                Some(Err(reason)) => lost.push(AgentDisconnect { agent: agent.clone(), reason }),
                Some(Ok(reply)) => match reply.refusal {
                    Some(refusal) => refused.push((agent.clone(), OrderRefusal::from(refusal))),
                    None => self.consents.extend(requested_consents(reply.consents, assignment)),
                },
            }
        }
        match (refused.is_empty(), lost.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(ControllerError::Refused(refused)),
            (true, false) => Err(ControllerError::Lost(lost)),
        }
    }

    /// Prepares the run on further agents. Returns for each agent the number and port of each received flow.
    /// After an error, no agent has the run prepared.
    pub fn add_agents(
        &mut self,
        assignments: Vec<(String, Assignment)>,
    ) -> Result<Vec<Vec<(u32, u16)>>, ControllerError> {
        let first = self.taking_part.len();
        self.length = assignments
            .iter()
            .map(|(_, a)| a.duration)
            .chain([self.length])
            .max()
            .expect("the iterator is not empty");
        let leases = assignments.iter().filter_map(|(_, assignment)| assignment.lease);
        self.lease = leases.chain([self.lease]).max().expect("the iterator is not empty");
        let indices = assignments.iter().map(|(name, _)| self.index(name)).collect::<Result<Vec<_>, _>>()?;
        let mut calls = Vec::new();
        for (&index, (_, assignment)) in indices.iter().zip(&assignments) {
            let request = PrepareRequest {
                controller: self.controller,
                run: self.run,
                task_version: task::VERSION,
                assignment: serde_json::to_vec(assignment).expect("assignments have string keys only"),
                report_bins: self.report_bins,
                consents: self.consents_for(assignment),
            };
            let member = self.members[index].clone();
            member.expect_bins(self.run, assignment, self.report_bins);
            calls.push(async move {
                let mut client = member.client();
                member.answer(PREPARE_TIMEOUT, client.prepare(request)).await
            });
        }
        self.taking_part.extend(indices);
        let ready =
            |answer: &Result<PrepareReply, String>| answer.as_ref().is_ok_and(|r| r.refusal.is_none());
        let answers = call_all(&self.runtime, MAX_CONCURRENT_CALLS, calls, ready).answers;
        let mut ports = Vec::new();
        let answers = answers.into_iter().zip(&assignments).map(|(answer, (_, assignment))| {
            answer.map(|answer| {
                let reply = answer?;
                ports.push(requested_ports(&reply, assignment));
                Ok(reply.refusal)
            })
        });
        let answers = answers.collect();
        self.all_agreed(first, answers)?;
        Ok(ports)
    }

    /// Returns the consents to the flows that an assignment sends.
    fn consents_for(&self, assignment: &Assignment) -> Vec<Consent> {
        let ids: BTreeSet<u32> = assignment.sent().collect();
        self.consents.iter().filter(|consent| ids.contains(&consent.flow)).cloned().collect()
    }
}

/// Returns the requested consents among those of an answer: only for flows that the agent itself receives.
fn requested_consents(consents: Vec<Consent>, assignment: &Assignment) -> impl Iterator<Item = Consent> {
    let mut asked: BTreeSet<(u32, String)> =
        assignment.received().map(|(number, at)| (number, at.to_string())).collect();
    // A requested consent is removed once found, so that duplicates are ignored.
    consents.into_iter().filter(move |consent| asked.remove(&(consent.flow, consent.destination.clone())))
}

/// Returns the ports of requested flows among those of an answer.
fn requested_ports(reply: &PrepareReply, assignment: &Assignment) -> Vec<(u32, u16)> {
    let asked: BTreeSet<u32> = assignment.flows.iter().map(|flow| flow.id).collect();
    let requested = reply.ports.iter().filter(|at| asked.contains(&at.flow));
    requested.filter_map(|at| Some((at.flow, u16::try_from(at.port).ok()?))).take(asked.len()).collect()
}
