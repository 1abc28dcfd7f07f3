//! Traffic engine as an agent's [`Worker`].

use super::edge::{self, ForwardingRouter};
use super::work::{PreparedWork, RunningTotals, Worker, refusal};
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::results::{AgentReport, CompletedBin};
use netstage_agent_api::task::{Assignment, FlowSide};
use netstage_agent_api::watch::WatchSpec;
use netstage_host::clock::Epoch;
use netstage_tcp_watch::watch::WindowWatch;

use std::sync::atomic::{AtomicBool, Ordering};

/// Carries out assignments with real packets.
pub struct AssignmentEngine;

impl Worker for AssignmentEngine {
    fn prepare(&self, assignment: &Assignment) -> Result<Box<dyn PreparedWork>, OrderRefusal> {
        if let Some(service) = assignment.services.first() {
            let reason = "this agent does not run services";
            return Err(OrderRefusal::new(OrderRefusalKind::Assignment, reason).service(&service.name));
        }
        let traffic = netstage_traffic::TrafficEngine::prepare(assignment)?;
        let Assignment { duration, interval, .. } = *assignment;
        let watch = WatchSpec::new(assignment.watch.clone(), duration, interval);
        let watch = watch.map(WindowWatch::start_here).transpose().map_err(refusal)?;
        let edge = assignment.edge.as_ref().map(ForwardingRouter::start).transpose()?;
        if watch.is_none() && edge.is_none() {
            return Ok(Box::new(traffic));
        }
        Ok(Box::new(ObservedTraffic { traffic, edge, watch, assignment: assignment.clone() }))
    }
}

/// Flows together with a provider edge router or a window watch, where the assignment requests them.
struct ObservedTraffic {
    traffic: netstage_traffic::TrafficEngine,
    edge: Option<ForwardingRouter>,
    watch: Option<WindowWatch>,
    assignment: Assignment,
}

impl PreparedWork for ObservedTraffic {
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        self.traffic.receiving_ports().to_vec()
    }

    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &RunningTotals) -> AgentReport {
        let ObservedTraffic { traffic, edge, watch, assignment } = *self;
        let over = AtomicBool::new(false);
        let mut report = std::thread::scope(|scope| {
            let router =
                edge.as_ref().map(|edge| scope.spawn(|| edge.watch(&assignment, epoch, stop, totals)));
            let windows =
                watch.map(|watch| scope.spawn(|| watch.run(epoch, &over, |ended| totals.end_window(ended))));
            let mut report = Box::new(traffic).run(epoch, stop, totals);
            if let Some(router) = router {
                let edge::RouterObservations { vpns, usage } = router.join().unwrap_or_default();
                (report.vpns, report.usage) = (vpns, usage);
            }
            over.store(true, Ordering::Relaxed);
            if let Some(windows) = windows {
                report.watched = windows.join().unwrap_or_default();
            }
            report
        });
        let alarms = edge.map(ForwardingRouter::stop).into_iter().flatten();
        report.warnings.extend(alarms.map(|alarm| format!("node.{}: {alarm}", assignment.node)));
        report
    }
}

impl PreparedWork for netstage_traffic::TrafficEngine {
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        netstage_traffic::TrafficEngine::receiving_ports(self).to_vec()
    }

    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &RunningTotals) -> AgentReport {
        self.run_when(&mut || Some(epoch), stop, totals).expect("the start is given")
    }

    fn run_when(
        self: Box<Self>,
        start: &mut dyn FnMut() -> Option<Epoch>,
        stop: &AtomicBool,
        totals: &RunningTotals,
    ) -> Option<AgentReport> {
        let flows = self.flows().to_vec();
        netstage_traffic::TrafficEngine::run_when(*self, start, stop, &mut |progress| {
            let netstage_traffic::FlowProgress { flow, bin, counts, tcp, travel } = progress;
            let (flow, side) = flows[flow];
            let sends = side == FlowSide::Send;
            totals.end_bin(CompletedBin { flow, sends, bin: bin as u32, counts, tcp, travel });
        })
    }
}
