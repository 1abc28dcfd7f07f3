//! Prometheus metrics of a fleet's hub and agents.

use super::status::{AgentAvailability, AgentStatus};
use crate::AgentSnapshot;
use netstage_host::prometheus::Page;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of a hub since its start.
#[derive(Debug, Default)]
pub struct HubCounts {
    /// Connections, including those rejected.
    pub connections: AtomicU64,
    /// Rejected connections.
    pub rejected: AtomicU64,
    /// Hosts that have joined.
    pub joined: AtomicU64,
    /// Renewed certificates.
    pub renewed: AtomicU64,
    /// Agents disconnected because they were removed or their certificates expired.
    pub aborted: AtomicU64,
    /// Requests forwarded to agents.
    pub requests: AtomicU64,
}

/// Counters of an agent since its start.
#[derive(Debug, Default)]
pub struct AgentCounts {
    /// Connections to its controller.
    pub connections: AtomicU64,
    /// Requests accepted by the agent's policy.
    pub accepted: AtomicU64,
    /// Requests refused by the agent's policy.
    pub refused: AtomicU64,
}

/// Increments a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

/// Returns the metrics page of a hub.
pub fn hub_page(counts: &HubCounts, agents: &[AgentStatus], uptime: Duration) -> String {
    let mut page = Page::new("fleet", uptime);
    page.begin_metric("netstage_fleet_agents", "gauge", "Agents by state.");
    for state in [
        AgentAvailability::NeverSeen,
        AgentAvailability::Offline,
        AgentAvailability::Idle,
        AgentAvailability::Taken,
    ] {
        let count = agents.iter().filter(|agent| agent.state == state).count();
        page.sample("netstage_fleet_agents", &[("state", &state.to_string())], count as f64);
    }
    for (what, help, counter) in [
        ("connections", "Connections to the hub.", &counts.connections),
        ("turned_away", "Connections rejected.", &counts.rejected),
        ("joined", "Hosts that have joined.", &counts.joined),
        ("renewed", "Certificates renewed.", &counts.renewed),
        (
            "cut_off",
            "Agents disconnected because they were removed or their certificates expired.",
            &counts.aborted,
        ),
        ("requests", "Requests forwarded to agents.", &counts.requests),
    ] {
        page.metric(&format!("netstage_fleet_{what}_total"), "counter", help, read(counter));
    }
    let mut of_agents = |what: &str, help: &str, value: &dyn Fn(&AgentStatus) -> Option<f64>| {
        let name = format!("netstage_fleet_agent_{what}");
        page.begin_metric(&name, "gauge", help);
        for agent in agents {
            if let Some(value) = value(agent) {
                page.sample(&name, &[("agent", &agent.name)], value);
            }
        }
    };
    of_agents("up", "1 while the agent is connected.", &|agent| {
        Some(f64::from(u8::from(matches!(agent.state, AgentAvailability::Idle | AgentAvailability::Taken))))
    });
    of_agents("clock_error_seconds", "Error bound of the agent's clock offset.", &|agent| {
        agent.clock.map(|clock| clock.error_ns as f64 / 1e9)
    });
    of_agents(
        "certificate_expires_timestamp_seconds",
        "Expiry of the agent's certificate, since 1970.",
        &|agent| Some(agent.certificate_expires_s as f64),
    );
    page.text()
}

/// Returns the metrics page of an agent, whose certificate expires at `expires_s`, seconds since 1970.
pub fn agent_page(counts: &AgentCounts, now: &AgentSnapshot, expires_s: u64, uptime: Duration) -> String {
    let mut page = Page::new("agent", uptime);
    let flag = |is_set: bool| f64::from(u8::from(is_set));
    page.metric("netstage_agent_taken", "gauge", "1 while a controller owns the agent.", flag(now.is_taken));
    page.metric(
        "netstage_agent_run_number",
        "gauge",
        "Number of the current run; zero for none.",
        now.run as f64,
    );
    page.metric(
        "netstage_agent_running",
        "gauge",
        "1 while a run has a start time and is not over.",
        flag(now.is_running),
    );
    let [sent, sent_bytes, received, received_bytes, lost] = now.totals.map(|total| total as f64);
    for (what, help, value) in [
        ("sent_packets", "Packets sent in runs.", sent),
        ("sent_bytes", "Payload bytes sent in runs.", sent_bytes),
        ("received_packets", "Packets received in runs.", received),
        ("received_bytes", "Payload bytes received in runs.", received_bytes),
        ("lost_packets", "Packets lost in runs.", lost),
    ] {
        page.metric(&format!("netstage_agent_{what}_total"), "counter", help, value);
    }
    let help = "Times measured in finished runs, by metric.";
    page.begin_metric("netstage_agent_measured_seconds", "histogram", help);
    for (metric, times) in &now.times {
        page.histogram("netstage_agent_measured_seconds", &[("metric", metric)], times);
    }
    let help = "Reports that no controller has released.";
    page.metric("netstage_agent_kept_reports", "gauge", help, now.stored_reports as f64);
    for (what, help, counter) in [
        ("connections", "Connections to its controller.", &counts.connections),
        ("agreed", "Requests accepted by the agent's policy.", &counts.accepted),
        ("refused", "Requests refused by the agent's policy.", &counts.refused),
    ] {
        page.metric(&format!("netstage_agent_{what}_total"), "counter", help, read(counter));
    }
    let help = "Expiry of the agent's certificate, since 1970.";
    page.metric("netstage_agent_certificate_expires_timestamp_seconds", "gauge", help, expires_s as f64);
    page.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::measure::Histogram;
    use netstage_host::prometheus::scheme;

    #[test]
    fn metric_names_follow_the_scheme() {
        let second = Duration::from_secs(1);
        let hub = hub_page(&HubCounts::default(), &[], second);
        let names = scheme::check(&hub, "fleet");
        scheme::check_dashboard(include_str!("../../../../docs/dashboards/fleet.json"), "fleet", &names);
        let mut times = Histogram::default();
        times.record_many(3_000_000, 7);
        let now =
            AgentSnapshot { times: [("app.transaction_time", times)].into(), ..AgentSnapshot::default() };
        let agent = agent_page(&AgentCounts::default(), &now, 1, second);
        let count = "netstage_agent_measured_seconds_count{metric=\"app.transaction_time\"} 7\n";
        assert!(agent.contains(count), "{agent}");
        let names = scheme::check(&agent, "agent");
        scheme::check_dashboard(include_str!("../../../../docs/dashboards/agent.json"), "agent", &names);
    }
}
