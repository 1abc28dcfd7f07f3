//! Values of provider edge routers: their VPN flows, and the resources that they use.

use super::OutcomeBuilder;
use netstage_agent_api::results::{AgentReport, ControlSample, VpnResult};
use netstage_scenario::outcome::Metric;

impl OutcomeBuilder {
    /// Adds the throughput of a VPN, and what its ingress router reports about it.
    pub(super) fn add_vpn(&mut self, name: &str, bytes: &[f64], own: Option<&VpnResult>) {
        let bits = 8.0 / self.seconds;
        self.push(Metric::VpnThroughput, name, bytes.iter().map(|bytes| bytes * bits).collect());
        let Some(own) = own else { return };
        self.push(Metric::VpnQueue, name, own.queue.clone());
        self.push(Metric::VpnQueueDrops, name, own.queue_drops.iter().map(|count| *count as f64).collect());
        let Some(last) = own.control.last() else { return };
        let sampled = |value: fn(&ControlSample) -> f64| own.control.iter().map(value).collect();
        if last.permitted_bps > 0.0 {
            self.push(Metric::VpnPermitted, name, sampled(|sample| sample.permitted_bps));
        } else {
            self.push(Metric::VpnWindow, name, sampled(|sample| sample.window));
            self.push(Metric::VpnIncrease, name, sampled(|sample| sample.increase));
            self.push(Metric::VpnDecrease, name, sampled(|sample| sample.decrease));
        }
        self.push(Metric::VpnLoss, name, sampled(|sample| sample.loss));
        self.push(Metric::VpnRoundTrip, name, sampled(|sample| sample.round_trip_ns as f64 * 1e-9));
        let before = [0].into_iter().chain(own.control.iter().map(|sample| sample.lost));
        let lost = own.control.iter().zip(before).map(|(sample, before)| (sample.lost - before) as f64);
        self.push(Metric::VpnLost, name, lost.collect());
    }

    /// Adds the resource usage of a provider edge router.
    pub(super) fn add_usage(&mut self, report: &AgentReport) {
        let (node, usage) = (&report.node, &report.usage);
        self.add_processor(Metric::PeProcessor, node, usage, |usage| usage.user_ns + usage.system_ns);
        self.add_processor(Metric::PeProcessorOwn, node, usage, |usage| usage.user_ns);
        self.add_memory(Metric::PeMemory, node, usage);
    }
}
