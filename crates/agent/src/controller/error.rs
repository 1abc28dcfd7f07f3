//! Errors of a controller. They name the agent, so that the operator can act.

use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind, VERSIONS};
use netstage_scenario::outcome::RunFailure;
use std::fmt;

/// Error that prevents a run from beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerError {
    /// An agent cannot be reached, or does not answer.
    Unreachable {
        /// Name of the agent.
        agent: String,
        /// Address of the agent.
        place: String,
        /// Reason of the failure.
        reason: String,
    },
    /// An agent has no protocol version in common with this program.
    Version {
        /// Name of the agent.
        agent: String,
        /// Version of its program.
        tool: String,
        /// Oldest and newest protocol version it supports.
        speaks: (u32, u32),
    },
    /// An agent on another host has a different key.
    WrongKey {
        /// Name of the agent.
        agent: String,
        /// Address of the agent.
        place: String,
    },
    /// Agents refused.
    Refused(Vec<(String, OrderRefusal)>),
    /// Agents were lost before the start.
    Lost(Vec<AgentDisconnect>),
    /// No agent has this name.
    Unknown(String),
    /// This machine lacks a resource the controller needs.
    System(String),
}

impl ControllerError {
    /// Reports whether the only reason is that the start order arrived after the start.
    pub fn is_late_start(&self) -> bool {
        self.has_only(OrderRefusalKind::Late)
    }

    /// Reports whether the only reason is that other controllers own the agents.
    pub fn is_busy(&self) -> bool {
        self.has_only(OrderRefusalKind::Busy)
    }

    /// Reports whether the only reason is a missing privilege or kernel feature.
    pub fn is_missing_feature(&self) -> bool {
        self.has_only(OrderRefusalKind::Missing)
    }

    /// Reports whether the agents refused, all for this kind of reason.
    fn has_only(&self, kind: OrderRefusalKind) -> bool {
        match self {
            ControllerError::Refused(refusals) => refusals.iter().all(|(_, refusal)| refusal.kind == kind),
            _ => false,
        }
    }
}

/// Loss of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentDisconnect {
    /// Name of the agent.
    pub agent: String,
    /// Reason, time in the run, and packets counted until then.
    pub reason: String,
}

impl fmt::Display for AgentDisconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {} was lost: {}", self.agent, self.reason)
    }
}

impl fmt::Display for ControllerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControllerError::Unreachable { agent, place, reason } => {
                write!(f, "agent {agent} at {place}: {reason}")
            }
            ControllerError::Version { agent, tool, speaks: (oldest, newest) } => write!(
                f,
                "agent {agent} (netstage {tool}) supports agent protocol versions {oldest} to {newest}, \
                 this program {} to {}; run the same netstage version on both sides",
                VERSIONS.start(),
                VERSIONS.end()
            ),
            ControllerError::WrongKey { agent, place } => {
                write!(f, "agent {agent} at {place} has another key; use the same key on both sides")
            }
            ControllerError::Refused(refusals) => {
                list(f, refusals.iter().map(|(agent, refusal)| format!("agent {agent} refused: {refusal}")))
            }
            ControllerError::Lost(losses) => list(f, losses.iter().map(AgentDisconnect::to_string)),
            ControllerError::Unknown(agent) => write!(f, "there is no agent {agent}"),
            ControllerError::System(reason) => write!(f, "controller error: {reason}"),
        }
    }
}

/// Maximum number of agents listed in a message.
const MAX_LISTED: usize = 10;

fn list(f: &mut fmt::Formatter<'_>, mut lines: impl ExactSizeIterator<Item = String>) -> fmt::Result {
    for (index, line) in lines.by_ref().take(MAX_LISTED).enumerate() {
        write!(f, "{}{line}", if index == 0 { "" } else { "\n" })?;
    }
    match lines.len() {
        0 => Ok(()),
        more => write!(f, "\nand {more} more agents"),
    }
}

impl std::error::Error for ControllerError {}

impl From<ControllerError> for RunFailure {
    fn from(error: ControllerError) -> RunFailure {
        let message = error.to_string();
        match error.is_missing_feature() {
            true => RunFailure::Missing {
                message,
                remedy: "install the missing features on each agent's host".into(),
            },
            false => RunFailure::Failed(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_many_agents_are_listed() {
        let loss =
            |number: usize| AgentDisconnect { agent: format!("agent-{number}"), reason: "no answer".into() };
        let few = ControllerError::Lost((0..MAX_LISTED).map(loss).collect()).to_string();
        assert!(few.ends_with("agent agent-9 was lost: no answer"), "{few}");
        let many = ControllerError::Lost((0..1000).map(loss).collect()).to_string();
        assert_eq!(many, format!("{few}\nand 990 more agents"));
    }
}
