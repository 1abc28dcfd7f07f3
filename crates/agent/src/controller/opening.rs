//! Before the start: receivers give their word for what they are to receive, and every agent opens what its
//! part needs.

use super::member::ANSWER_WITHIN;
use super::round::ask;
use super::{AT_A_TIME, Agents, Error, Loss, PREPARE_WITHIN};
use netstage_agent_api::protocol::Refusal;
use netstage_agent_api::protocol::generated::{
    AgreeReply, AgreeRequest, Consent, PrepareReply, PrepareRequest,
};
use netstage_agent_api::task::{self, Assignment};
use std::collections::BTreeSet;

impl Agents {
    /// Has the agents of these assignments give their word for what they are to receive. It is
    /// handed to those that send: agents of a fleet send to nobody without.
    pub fn agree(&mut self, assignments: &[(String, Assignment)]) -> Result<(), Error> {
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
                let mut client = member.client.clone();
                member.answer(ANSWER_WITHIN, client.agree(request)).await
            });
        }
        let agreed = |answer: &Result<AgreeReply, String>| answer.as_ref().is_ok_and(|r| r.refusal.is_none());
        let answers = ask(&self.runtime, AT_A_TIME, calls, agreed).answers;
        let (mut refused, mut lost) = (Vec::new(), Vec::new());
        for ((agent, assignment), answer) in asked.into_iter().zip(answers) {
            match answer {
                None => {}
                Some(Err(reason)) => lost.push(Loss { agent: agent.clone(), reason }),
                Some(Ok(reply)) => match reply.refusal {
                    Some(refusal) => refused.push((agent.clone(), Refusal::from(refusal))),
                    None => self.consents.extend(own_words(reply.consents, assignment)),
                },
            }
        }
        match (refused.is_empty(), lost.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(Error::Refused(refused)),
            (true, false) => Err(Error::Lost(lost)),
        }
    }

    /// Has further agents open what their part of the run needs; returns where each receives:
    /// number and port of each flow. On an error nothing of the run remains prepared.
    pub fn add(&mut self, assignments: Vec<(String, Assignment)>) -> Result<Vec<Vec<(u32, u16)>>, Error> {
        let first = self.taking_part.len();
        self.length =
            assignments.iter().map(|(_, a)| a.duration).chain([self.length]).max().expect("not none");
        let indices = assignments.iter().map(|(name, _)| self.index(name)).collect::<Result<Vec<_>, _>>()?;
        let mut calls = Vec::new();
        for (&index, (_, assignment)) in indices.iter().zip(&assignments) {
            let request = PrepareRequest {
                controller: self.controller,
                run: self.run,
                task_version: task::VERSION,
                assignment: serde_json::to_vec(assignment).expect("assignments have string keys only"),
                tell_bins: self.tell_bins,
                consents: self.consents_for(assignment),
            };
            let member = self.members[index].clone();
            member.expect(self.run, assignment, self.tell_bins);
            calls.push(async move {
                let mut client = member.client.clone();
                member.answer(PREPARE_WITHIN, client.prepare(request)).await
            });
        }
        self.taking_part.extend(indices);
        let ready =
            |answer: &Result<PrepareReply, String>| answer.as_ref().is_ok_and(|r| r.refusal.is_none());
        let answers = ask(&self.runtime, AT_A_TIME, calls, ready).answers;
        let mut ports = Vec::new();
        let answers = answers.into_iter().zip(&assignments).map(|(answer, (_, assignment))| {
            answer.map(|answer| {
                let reply = answer?;
                ports.push(own_ports(&reply, assignment));
                Ok(reply.refusal)
            })
        });
        let answers = answers.collect();
        self.all_agreed(first, answers)?;
        Ok(ports)
    }

    /// What was agreed to of the flows an assignment sends.
    fn consents_for(&self, assignment: &Assignment) -> Vec<Consent> {
        let ids: BTreeSet<u32> = assignment.sent().collect();
        self.consents.iter().filter(|consent| ids.contains(&consent.flow)).cloned().collect()
    }
}

/// Of what an agent says it agreed to, what it was asked: where it receives itself.
fn own_words(consents: Vec<Consent>, assignment: &Assignment) -> impl Iterator<Item = Consent> {
    let mut asked: BTreeSet<(u32, String)> =
        assignment.received().map(|(number, at)| (number, at.to_string())).collect();
    // Removed as it is found: a word given twice is one.
    consents.into_iter().filter(move |word| asked.remove(&(word.flow, word.destination.clone())))
}

/// Where an agent says it receives, of the flows it was asked to.
fn own_ports(reply: &PrepareReply, assignment: &Assignment) -> Vec<(u32, u16)> {
    let asked: BTreeSet<u32> = assignment.flows.iter().map(|flow| flow.id).collect();
    let told = reply.ports.iter().filter(|at| asked.contains(&at.flow));
    told.filter_map(|at| Some((at.flow, u16::try_from(at.port).ok()?))).take(asked.len()).collect()
}
