//! Series of a route server and its members.

use super::OutcomeBuilder;
use crate::topology::services::route_server::RouteServerReport;
use netstage_scenario::outcome::Metric;

impl OutcomeBuilder {
    pub(super) fn add_route_server(&mut self, report: &RouteServerReport) {
        let bin_ns = self.seconds * 1e9;
        for member in &report.members {
            let node = &member.node;
            let counts = |values: &[u32]| values.iter().map(|value| f64::from(*value)).collect();
            self.push(Metric::BgpRoutes, node, counts(&member.routes));
            self.push(Metric::BgpHijacked, node, counts(&member.hijacked));
            self.push(Metric::BgpReceived, node, member.received.iter().map(|value| *value as f64).collect());
            let share = member.session_ns.iter().map(|time| *time as f64 / bin_ns);
            self.push(Metric::BgpSession, node, share.collect());
            let ends = member.session_ends.iter().map(|end| format!("node.{node}: {end}"));
            self.outcome.warnings.extend(ends);
        }
        for (change, times) in &report.convergence {
            self.distribution(Metric::BgpConvergence, change, times);
        }
        for (program, samples) in &report.usage {
            self.add_processor(Metric::ServiceProcessor, program, samples, |usage| {
                usage.user_ns + usage.system_ns
            });
            self.add_memory(Metric::ServiceMemory, program, samples);
        }
    }
}
