//! Worker of an agent that sends nothing, for tests of agents and controllers.

use netstage_agent::{PreparedWork, RunningTotals, Worker};
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::results::{AgentReport, BinCounts, FlowResult};
use netstage_agent_api::task::{Assignment, FlowSide, FlowTask};
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_host::clock::{Epoch, monotonic_ns};
use std::sync::atomic::{AtomicBool, Ordering};

/// Simulates sending a packet per millisecond for each flow. Flows with certain names misbehave.
pub struct Pretender;

struct Pretence(Assignment);

impl Worker for Pretender {
    fn prepare(&self, assignment: &Assignment) -> Result<Box<dyn PreparedWork>, OrderRefusal> {
        match assignment.flows.iter().find(|flow| flow.name == "port-in-use") {
            Some(flow) => Err(OrderRefusal::new(OrderRefusalKind::InUse, "port 7 is in use")
                .flow(&flow.name)
                .remedy("choose another port")),
            None => Ok(Box::new(Pretence(assignment.clone()))),
        }
    }
}

impl PreparedWork for Pretence {
    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &RunningTotals) -> AgentReport {
        let Assignment { node, duration, flows, .. } = self.0;
        let named = |name: &str| flows.iter().any(|flow| flow.name == name);
        let (stubborn, large) = (named("stubborn"), named("large"));
        assert!(!named("panics"), "as requested by the test");
        while (epoch.now() < netstage_core::time::Instant(duration.0) && !stop.load(Ordering::Relaxed))
            || stubborn
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
            if monotonic_ns() > epoch.0 {
                totals.count(&BinCounts { sent: 1, ..BinCounts::default() });
            }
        }
        let bin = BinCounts { sent: totals.read()[0], ..BinCounts::default() };
        let bins = vec![bin; if large { 100_000 } else { 1 }];
        let flow = |flow: FlowTask| FlowResult {
            name: flow.name,
            sends: true,
            bins: bins.clone(),
            ..FlowResult::default()
        };
        AgentReport { node, flows: flows.into_iter().map(flow).collect(), ..AgentReport::default() }
    }
}

/// Returns the assignment of one flow with this name.
pub fn assignment(node: &str, flow: &str, milliseconds: u64) -> (String, Assignment) {
    let duration = Duration::from_millis(milliseconds);
    let flow = FlowTask::udp(
        flow,
        FlowSide::Send,
        ["127.0.0.1:0", "127.0.0.1:9"].map(|end| end.parse().unwrap()),
        Pattern::Bulk { size: None },
        duration,
    );
    let assignment = Assignment::of_flows(node, duration, Duration::from_millis(100), vec![flow]);
    (node.into(), assignment)
}
