//! What the controller tells Prometheus.

use super::Shared;
use super::agents::{self, Agent};
use super::studies::Counted;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use netstage_host::prometheus::{CONTENT, Page};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// `/metrics`.
pub async fn tell(State(shared): State<Shared>) -> impl IntoResponse {
    let (counted, folder) = (shared.studies.counted(), shared.fleet.clone());
    let fleet = spawn_blocking(move || agents::fleet(&folder)).await.unwrap_or_default();
    ([(CONTENT_TYPE, CONTENT)], text(counted, fleet.agents(), shared.since.elapsed()))
}

fn text(counted: Counted, agents: &[Agent], uptime: Duration) -> String {
    let mut page = Page::new("controller", uptime);
    page.one("netstage_controller_studies_running", "gauge", "Studies that run now.", counted.running as f64);
    page.one(
        "netstage_controller_studies_total",
        "counter",
        "Studies started since the controller began.",
        counted.started as f64,
    );
    page.one(
        "netstage_controller_studies_failed",
        "gauge",
        "Studies that failed, of the last fifty.",
        counted.failed as f64,
    );
    page.one(
        "netstage_controller_study_runs",
        "gauge",
        "Runs in all of the studies that run now.",
        counted.runs.1 as f64,
    );
    page.one(
        "netstage_controller_study_runs_done",
        "gauge",
        "Runs finished of the studies that run now.",
        counted.runs.0 as f64,
    );
    of_agents(&mut page, agents, "up", "1 while the agent is there.", |agent| {
        Some(f64::from(u8::from(agent.is_up)))
    });
    let help = "Bound of the error with which the agent's clock is known.";
    of_agents(&mut page, agents, "clock_error_seconds", help, |agent| agent.clock_error_s);
    let help = "When the agent's certificate ends, since 1970.";
    of_agents(&mut page, agents, "certificate_expires_timestamp_seconds", help, |agent| {
        Some(agent.certificate_expires_s as f64)
    });
    page.text()
}

fn of_agents(
    page: &mut Page,
    agents: &[Agent],
    what: &str,
    help: &str,
    value: impl Fn(&Agent) -> Option<f64>,
) {
    let name = format!("netstage_controller_agent_{what}");
    page.head(&name, "gauge", help);
    for agent in agents {
        if let Some(value) = value(agent) {
            page.sample(&name, &[("agent", &agent.name)], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_host::prometheus::scheme;

    #[test]
    fn names_keep_to_the_scheme() {
        let text = text(Counted::default(), &[], Duration::from_secs(3));
        let names = scheme::check(&text, "controller");
        let dashboard = include_str!("../../../../docs/dashboards/controller.json");
        scheme::check_dashboard(dashboard, "controller", &names);
    }
}
