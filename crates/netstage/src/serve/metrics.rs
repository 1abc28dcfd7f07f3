//! Prometheus metrics of the controller.

use super::SharedState;
use super::agents::{self, Agent};
use super::studies::StudyCounters;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use netstage_host::prometheus::{CONTENT_TYPE, Page};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// Responds to `/metrics`.
pub async fn metrics(State(shared): State<SharedState>) -> impl IntoResponse {
    let (counted, folder) = (shared.studies.counters(), shared.fleet.clone());
    let fleet = spawn_blocking(move || agents::fleet(&folder)).await.unwrap_or_default();
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text(counted, fleet.agents(), shared.started.elapsed()))
}

fn text(counted: StudyCounters, agents: &[Agent], uptime: Duration) -> String {
    let mut page = Page::new("controller", uptime);
    page.metric("netstage_controller_studies_running", "gauge", "Running studies.", counted.running as f64);
    page.metric(
        "netstage_controller_studies_total",
        "counter",
        "Studies started since the controller was started.",
        counted.started as f64,
    );
    page.metric(
        "netstage_controller_studies_failed",
        "gauge",
        "Failed studies among the last 50.",
        counted.failed as f64,
    );
    page.metric(
        "netstage_controller_study_runs",
        "gauge",
        "Total runs of the running studies.",
        counted.runs.1 as f64,
    );
    page.metric(
        "netstage_controller_study_runs_done",
        "gauge",
        "Finished runs of the running studies.",
        counted.runs.0 as f64,
    );
    of_agents(&mut page, agents, "up", "1 if the agent is connected, else 0.", |agent| {
        Some(f64::from(u8::from(agent.is_up)))
    });
    let help = "Maximum error of the agent's clock offset.";
    of_agents(&mut page, agents, "clock_error_seconds", help, |agent| agent.clock_error_s);
    let help = "Expiration time of the agent's certificate, since 1970.";
    of_agents(&mut page, agents, "certificate_expires_timestamp_seconds", help, |agent| {
        Some(agent.certificate_expires_s as f64)
    });
    page.text()
}

fn of_agents(
    page: &mut Page,
    agents: &[Agent],
    metric: &str,
    help: &str,
    value: impl Fn(&Agent) -> Option<f64>,
) {
    let name = format!("netstage_controller_agent_{metric}");
    page.begin_metric(&name, "gauge", help);
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
    fn names_follow_the_naming_scheme() {
        let text = text(StudyCounters::default(), &[], Duration::from_secs(3));
        let names = scheme::check(&text, "controller");
        let dashboard = include_str!("../../../../docs/dashboards/controller.json");
        scheme::check_dashboard(dashboard, "controller", &names);
    }
}
