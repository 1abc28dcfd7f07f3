//! Agents of the fleet, as last seen by the controller.

use super::{JsonResponse, SharedState, run_blocking};
use axum::Json;
use axum::extract::State;
use netstage_agent::fleet::{AgentAvailability as Does, AgentStatus, FleetFolder};
use serde::Serialize;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// State of a fleet.
#[derive(Debug, Default, Serialize)]
pub struct FleetState {
    /// A fleet exists.
    exists: bool,
    /// The controller (`netstage fleet serve`) is running.
    served: bool,
    /// Agents, sorted by name.
    agents: Vec<Agent>,
}

/// State of an agent.
#[derive(Debug, Serialize)]
pub struct Agent {
    /// Name of the agent.
    pub name: String,
    /// Labels of the agent.
    labels: Vec<String>,
    /// Name of the agent's host; empty before the first connection.
    host: String,
    /// Version of netstage; empty before the first connection.
    version: String,
    /// `never-seen`, `offline`, `idle` or `taken`.
    state: &'static str,
    /// The agent is connected.
    #[serde(skip)]
    pub is_up: bool,
    /// Seconds since the last message from the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen_s: Option<f64>,
    /// Maximum error of the clock offset, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_s: Option<f64>,
    /// The wall clock is synchronized (NTP or PTP) according to the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    is_clock_synchronized: Option<bool>,
    /// Expiration time of the certificate, seconds since 1970.
    pub certificate_expires_s: u64,
}

/// Lists the agents of the fleet.
pub async fn list(State(shared): State<SharedState>) -> JsonResponse<FleetState> {
    run_blocking(move || Ok(Json(fleet(&shared.fleet)))).await
}

/// Returns the state of the fleet in a folder.
pub fn fleet(folder: &Path) -> FleetState {
    let Ok(fleet) = FleetFolder::open(folder) else { return FleetState::default() };
    let agents = fleet.agents().unwrap_or_default();
    FleetState {
        exists: true,
        served: fleet.is_served(),
        agents: agents.into_iter().map(Agent::from).collect(),
    }
}

impl FleetState {
    /// Returns the agents.
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
            last_seen_s: status.last_seen_ns.map(|at| (now - at as f64 / 1e9).max(0.0)),
            clock_error_s: status.clock.map(|clock| clock.error_ns as f64 / 1e9),
            is_clock_synchronized: status.wall_clock.map(|(kept, _)| kept),
            name: status.name,
            labels: status.labels,
            host: status.host,
            version: status.version,
            certificate_expires_s: status.certificate_expires_s,
        }
    }
}
