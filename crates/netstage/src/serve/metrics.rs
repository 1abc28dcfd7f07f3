//! What the controller tells Prometheus.

use super::Shared;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use netstage_live::prometheus::{CONTENT, Page};
use std::time::Duration;

/// `/metrics`.
pub async fn tell(State(shared): State<Shared>) -> impl IntoResponse {
    let counted = shared.studies.counted();
    ([(CONTENT_TYPE, CONTENT)], text(counted, shared.since.elapsed()))
}

fn text(counted: super::runs::Counted, uptime: Duration) -> String {
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
    page.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_live::prometheus::scheme;

    #[test]
    fn names_keep_to_the_scheme() {
        let text = text(super::super::runs::Counted::default(), Duration::from_secs(3));
        let names = scheme::check(&text, "controller");
        let dashboard = include_str!("../../../../docs/dashboards/controller.json");
        scheme::check_dashboard(dashboard, "controller", &names);
    }
}
