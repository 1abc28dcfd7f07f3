//! Status of the agents of a fleet. The hub writes it once a second; any process that can read the
//! controller's folder can query it with [`Fleet::agents`](super::Fleet::agents).

use super::policy;
use crate::services;
use netstage_agent_api::path::NatMapping;
use netstage_core::measure::ClockOffset;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Last known status of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Name of the agent, as in its certificate.
    pub name: String,
    /// Labels of the agent.
    pub labels: Vec<String>,
    /// Remote address of its connection.
    pub address: Option<SocketAddr>,
    /// Name of its host; empty before the first connection.
    pub host: String,
    /// Version of its program; empty before the first connection.
    pub version: String,
    /// State of the agent.
    pub state: AgentAvailability,
    /// Time of its last answer, nanoseconds since 1970.
    pub last_seen_ns: Option<u64>,
    /// Offset of its monotonic clock from the controller's.
    pub clock: Option<ClockOffset>,
    /// State of its wall clock according to its kernel: whether it is synchronized (NTP, PTP), and the error
    /// bound, nanoseconds.
    pub wall_clock: Option<(bool, u64)>,
    /// Optional capabilities.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Addresses of its host that flows may use; empty if they are unknown.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Addresses of its host as the controller sees them by STUN.
    #[serde(default)]
    pub mappings: Vec<NatMapping>,
    /// Expiry of its certificate, seconds since 1970.
    pub certificate_expires_s: u64,
}

impl AgentStatus {
    /// Returns the services whose programs its policy allows, each with the missing Debian packages, if any.
    pub fn services(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.capabilities.iter().filter_map(|capability| services::of_capability(capability))
    }

    /// Returns whether it can continue a run without its controller, if its policy permits it.
    pub fn supports_leases(&self) -> bool {
        self.policy().any(|(rule, _)| rule == "max_lease")
    }

    /// Describes the NAT in front of its host: `none`, the address of each mapping, or an empty text if none is known.
    pub fn nat(&self) -> String {
        let translated = self.mappings.iter().filter(|mapping| mapping.is_translated());
        let described: Vec<String> = translated.map(ToString::to_string).collect();
        match described.is_empty() && !self.mappings.is_empty() {
            true => "none".into(),
            false => described.join(", "),
        }
    }

    /// Returns the rules of its policy with their values; a rule with several values occurs several times.
    pub fn policy(&self) -> impl Iterator<Item = (&str, &str)> {
        self.capabilities.iter().filter_map(|capability| policy::rule_of_capability(capability))
    }
}

/// State of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentAvailability {
    /// Joined, but never connected.
    NeverSeen,
    /// Not connected.
    Offline,
    /// Connected and free.
    Idle,
    /// Owned by a controller, during a run or between runs.
    Taken,
}

impl fmt::Display for AgentAvailability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AgentAvailability::NeverSeen => "never seen",
            AgentAvailability::Offline => "offline",
            AgentAvailability::Idle => "idle",
            AgentAvailability::Taken => "taken",
        })
    }
}

/// Content of the hub's status file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct StatusFile {
    /// Time of writing, nanoseconds since 1970.
    pub at_ns: u64,
    /// Status of every agent that has ever connected.
    pub agents: Vec<AgentStatus>,
}
