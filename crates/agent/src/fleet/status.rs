//! How the agents of a fleet are. The hub writes it down once a second; whoever may read
//! the controller's folder, can look: [`Fleet::agents`](super::Fleet::agents).

use crate::services;
use netstage_core::measure::ClockOffset;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

/// One agent, as the controller last saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its name, which its certificate bears.
    pub name: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// Where it dials from.
    pub address: Option<SocketAddr>,
    /// Name of its host; empty before it was seen.
    pub host: String,
    /// Version of its program; empty before it was seen.
    pub version: String,
    /// What it does.
    pub state: State,
    /// When it was last heard, nanoseconds since 1970.
    pub last_seen_ns: Option<u64>,
    /// Its monotonic clock against the controller's.
    pub clock: Option<ClockOffset>,
    /// What its kernel says of its wall clock: whether something (NTP, PTP) keeps it right,
    /// and the bound of its error, nanoseconds.
    pub wall_clock: Option<(bool, u64)>,
    /// What it can do beyond its version.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// When its certificate ends, seconds since 1970.
    pub certificate_expires_s: u64,
}

impl AgentStatus {
    /// The kinds of services whose programs its policy allows, each with the Debian packages that it lacks, if any.
    pub fn services(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.capabilities.iter().filter_map(|capability| services::of_capability(capability))
    }
}

/// What an agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has joined, and never dialled since.
    NeverSeen,
    /// It is not there.
    Offline,
    /// It is there, and free.
    Idle,
    /// A controller has it, in the phase of a run or between runs.
    Taken,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::NeverSeen => "never seen",
            State::Offline => "offline",
            State::Idle => "idle",
            State::Taken => "taken",
        })
    }
}

/// What the hub writes down.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Written {
    /// When, nanoseconds since 1970.
    pub at_ns: u64,
    /// Of every agent it has seen.
    pub agents: Vec<AgentStatus>,
}
