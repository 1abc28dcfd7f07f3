//! Search for the paths of flows between agents behind NAT: all agents offer their addresses, and then check those of
//! the others at the same time.

use super::calls::call_all;
use super::{AgentDisconnect, ControlledAgents, ControllerError, MAX_CONCURRENT_CALLS, PREPARE_TIMEOUT};
use netstage_agent_api::path::{FoundPath, PathAddresses, PathSearch};
use netstage_agent_api::protocol::OrderRefusal;
use netstage_agent_api::protocol::generated::{PathsReply, PathsRequest};
use netstage_agent_api::task;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// Request about paths.
#[derive(Clone, Copy)]
enum PathCall {
    Open,
    Check,
}

impl ControlledAgents {
    /// Returns the addresses at which agents may be reached, by name of the agent.
    pub fn open_paths(
        &self,
        searches: &BTreeMap<String, PathSearch>,
    ) -> Result<BTreeMap<String, Vec<PathAddresses>>, ControllerError> {
        self.call_paths(PathCall::Open, searches)
    }

    /// Has agents check the addresses of the other ends of their flows, and returns the paths that each found.
    pub fn check_paths(
        &self,
        peers: &BTreeMap<String, Vec<PathAddresses>>,
    ) -> Result<BTreeMap<String, Vec<FoundPath>>, ControllerError> {
        self.call_paths(PathCall::Check, peers)
    }

    fn call_paths<T: DeserializeOwned + Send + 'static>(
        &self,
        call: PathCall,
        contents: &BTreeMap<String, impl Serialize>,
    ) -> Result<BTreeMap<String, T>, ControllerError> {
        let (controller, run) = (self.controller, self.run);
        let mut calls = Vec::new();
        for (name, content) in contents {
            let content = serde_json::to_vec(content).expect("paths have string keys only");
            let request = PathsRequest { controller, run, task_version: task::VERSION, content };
            let member = self.member(name)?.clone();
            calls.push(async move {
                let mut client = member.client();
                match call {
                    PathCall::Open => member.answer(PREPARE_TIMEOUT, client.open_paths(request)).await,
                    PathCall::Check => member.answer(PREPARE_TIMEOUT, client.check_paths(request)).await,
                }
            });
        }
        let agreed = |answer: &Result<PathsReply, String>| answer.as_ref().is_ok_and(|r| r.refusal.is_none());
        let answers = call_all(&self.runtime, MAX_CONCURRENT_CALLS, calls, agreed).answers;
        let (mut refused, mut lost, mut results) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (agent, answer) in contents.keys().zip(answers) {
            let disconnect = |reason| AgentDisconnect { agent: agent.clone(), reason };
            match answer {
                None => {}
                Some(Err(reason)) => lost.push(disconnect(reason)),
                Some(Ok(PathsReply { refusal: Some(refusal), .. })) => {
                    refused.push((agent.clone(), OrderRefusal::from(refusal)));
                }
                Some(Ok(PathsReply { content, .. })) => match serde_json::from_slice(&content) {
                    Ok(result) => drop(results.insert(agent.clone(), result)),
                    Err(error) => lost.push(disconnect(format!("invalid answer about paths: {error}"))),
                },
            }
        }
        match (refused.is_empty(), lost.is_empty()) {
            (true, true) => Ok(results),
            (false, _) => Err(ControllerError::Refused(refused)),
            (true, false) => Err(ControllerError::Lost(lost)),
        }
    }
}
