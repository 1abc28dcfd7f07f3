//! The agents of the fleet, as its controller last saw them.

use super::{Answer, Shared, apart};
use axum::Json;
use axum::extract::State;
use netstage_agent::fleet::{AgentStatus, Fleet, State as Does};
use serde::Serialize;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A fleet.
#[derive(Debug, Default, Serialize)]
pub struct FleetState {
    /// Whether there is a fleet at all.
    exists: bool,
    /// Whether its controller is at work: `netstage fleet serve`.
    served: bool,
    /// Its agents, by name.
    agents: Vec<Agent>,
}

/// An agent.
#[derive(Debug, Serialize)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// Its labels.
    labels: Vec<String>,
    /// Name of its host; empty before it was seen.
    host: String,
    /// Version of its program; empty before it was seen.
    version: String,
    /// `never-seen`, `offline`, `idle` or `taken`.
    state: &'static str,
    /// Whether it is there.
    #[serde(skip)]
    pub is_up: bool,
    /// Seconds since it was last heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    seen_s_ago: Option<f64>,
    /// Bound of the error with which its clock is known, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_s: Option<f64>,
    /// Whether something keeps its wall clock right, as its kernel tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_kept: Option<bool>,
    /// When its certificate ends, seconds since 1970.
    pub certificate_expires_s: u64,
}

/// The agents of the fleet.
pub async fn list(State(shared): State<Shared>) -> Answer<FleetState> {
    apart(move || Ok(Json(fleet(&shared.fleet)))).await
}

/// What is known of a folder's fleet.
pub fn fleet(folder: &Path) -> FleetState {
    let Ok(fleet) = Fleet::open(folder) else { return FleetState::default() };
    let agents = fleet.agents().unwrap_or_default();
    FleetState {
        exists: true,
        served: fleet.is_served(),
        agents: agents.into_iter().map(Agent::from).collect(),
    }
}

impl FleetState {
    /// Its agents.
    pub fn agents(&self) -> &[Agent] {
        &self.agents
    }
}

impl From<AgentStatus> for Agent {
    fn from(status: AgentStatus) -> Agent {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        Agent {
            state: match status.state {
                Does::NeverSeen => "never-seen",
                Does::Offline => "offline",
                Does::Idle => "idle",
                Does::Taken => "taken",
            },
            is_up: matches!(status.state, Does::Idle | Does::Taken),
            seen_s_ago: status.last_seen_ns.map(|at| (now - at as f64 / 1e9).max(0.0)),
            clock_error_s: status.clock.map(|clock| clock.error_ns as f64 / 1e9),
            clock_kept: status.wall_clock.map(|(kept, _)| kept),
            name: status.name,
            labels: status.labels,
            host: status.host,
            version: status.version,
            certificate_expires_s: status.certificate_expires_s,
        }
    }
}
