//! Why a controller cannot go on: named by agent, so that someone can act.

use netstage_agent_api::protocol::{Refusal, RefusalKind, VERSIONS};
use netstage_scenario::outcome::Stopped;
use std::fmt;

/// Why a run cannot begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// An agent cannot be reached, or does not answer.
    Unreachable {
        /// The agent's name.
        agent: String,
        /// Where it was expected.
        place: String,
        /// What happened.
        reason: String,
    },
    /// An agent speaks no version of the protocol this program does.
    Version {
        /// The agent's name.
        agent: String,
        /// Version of its program.
        tool: String,
        /// Oldest and newest version of the protocol it speaks.
        speaks: (u32, u32),
    },
    /// An agent on another host has another key.
    OtherKey {
        /// The agent's name.
        agent: String,
        /// Where it listens.
        place: String,
    },
    /// Agents refuse.
    Refused(Vec<(String, Refusal)>),
    /// Agents were lost before the start.
    Lost(Vec<Loss>),
    /// There is no agent of this name.
    Unknown(String),
    /// This machine cannot do what a controller needs.
    System(String),
}

impl Error {
    /// Whether others have the agents, and nothing else is in the way.
    pub fn is_busy(&self) -> bool {
        match self {
            Error::Refused(refusals) => refusals.iter().all(|(_, r)| r.kind == RefusalKind::Busy),
            _ => false,
        }
    }

    /// Whether a privilege or kernel feature is missing, and nothing else.
    pub fn is_missing_feature(&self) -> bool {
        match self {
            Error::Refused(refusals) => refusals.iter().all(|(_, r)| r.kind == RefusalKind::Missing),
            _ => false,
        }
    }
}

/// An agent that was lost, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The agent's name.
    pub agent: String,
    /// What happened, when in the run, and what it had done until then.
    pub reason: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {} was lost: {}", self.agent, self.reason)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreachable { agent, place, reason } => write!(f, "agent {agent} at {place}: {reason}"),
            Error::Version { agent, tool, speaks: (oldest, newest) } => write!(
                f,
                "agent {agent} (netstage {tool}) speaks versions {oldest} to {newest} of the agents' protocol, \
                 this program {} to {}; use the same netstage on both sides",
                VERSIONS.start(),
                VERSIONS.end()
            ),
            Error::OtherKey { agent, place } => {
                write!(f, "agent {agent} at {place} has another key: give both sides the same one")
            }
            Error::Refused(refusals) => {
                list(f, refusals.iter().map(|(agent, refusal)| format!("agent {agent} refuses: {refusal}")))
            }
            Error::Lost(losses) => list(f, losses.iter().map(Loss::to_string)),
            Error::Unknown(agent) => write!(f, "there is no agent {agent}"),
            Error::System(reason) => write!(f, "the controller cannot work: {reason}"),
        }
    }
}

/// So many agents are told of one by one: of a thousand, nobody reads more.
const MOST_TOLD: usize = 10;

fn list(f: &mut fmt::Formatter<'_>, mut lines: impl ExactSizeIterator<Item = String>) -> fmt::Result {
    for (index, line) in lines.by_ref().take(MOST_TOLD).enumerate() {
        write!(f, "{}{line}", if index == 0 { "" } else { "\n" })?;
    }
    match lines.len() {
        0 => Ok(()),
        more => write!(f, "\nand {more} agents more"),
    }
}

impl std::error::Error for Error {}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        let message = error.to_string();
        match error.is_missing_feature() {
            true => Stopped::Missing { message, remedy: "see what each agent's host lacks".into() },
            false => Stopped::Failed(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_thousand_agents_the_first_are_named() {
        let loss = |number: usize| Loss { agent: format!("agent-{number}"), reason: "it is gone".into() };
        let few = Error::Lost((0..MOST_TOLD).map(loss).collect()).to_string();
        assert!(few.ends_with("agent agent-9 was lost: it is gone"), "{few}");
        let many = Error::Lost((0..1000).map(loss).collect()).to_string();
        assert_eq!(many, format!("{few}\nand 990 agents more"));
    }
}
