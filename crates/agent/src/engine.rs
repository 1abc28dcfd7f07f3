//! Traffic engine as an agent's [`Worker`].

use super::edge::{self, Edge};
use super::work::{Totals, Work, Worker, refusal};
use netstage_agent_api::protocol::{Refusal, RefusalKind};
use netstage_agent_api::results::{EndedBin, Report};
use netstage_agent_api::task::{Assignment, Side};
use netstage_agent_api::watch::WatchSpec;
use netstage_host::clock::Epoch;
use netstage_tcp_watch::watch::Watch;

use std::sync::atomic::{AtomicBool, Ordering};

/// Carries out assignments with real packets.
pub struct Engine;

impl Worker for Engine {
    fn prepare(&self, assignment: &Assignment) -> Result<Box<dyn Work>, Refusal> {
        if let Some(service) = assignment.services.first() {
            let reason = "this agent does not run services";
            return Err(Refusal::new(RefusalKind::Assignment, reason).service(&service.name));
        }
        let traffic = netstage_traffic::Engine::prepare(assignment)?;
        let Assignment { duration, interval, .. } = *assignment;
        let watch = WatchSpec::new(assignment.watch.clone(), duration, interval);
        let watch = watch.map(Watch::start_here).transpose().map_err(refusal)?;
        let edge = assignment.edge.as_ref().map(Edge::begin).transpose()?;
        if watch.is_none() && edge.is_none() {
            return Ok(Box::new(traffic));
        }
        Ok(Box::new(Attended { traffic, edge, watch, assignment: assignment.clone() }))
    }
}

/// Flows together with a provider edge router or a window watch, where the assignment requests them.
struct Attended {
    traffic: netstage_traffic::Engine,
    edge: Option<Edge>,
    watch: Option<Watch>,
    assignment: Assignment,
}

impl Work for Attended {
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        self.traffic.receiving_ports().to_vec()
    }

    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &Totals) -> Report {
        let Attended { traffic, edge, watch, assignment } = *self;
        let over = AtomicBool::new(false);
        let mut report = std::thread::scope(|scope| {
            let router =
                edge.as_ref().map(|edge| scope.spawn(|| edge.watch(&assignment, epoch, stop, totals)));
            let windows =
                watch.map(|watch| scope.spawn(|| watch.run(epoch, &over, |ended| totals.end_window(ended))));
            let mut report = Box::new(traffic).run(epoch, stop, totals);
            if let Some(router) = router {
                let edge::Watched { vpns, usage } = router.join().unwrap_or_default();
                (report.vpns, report.usage) = (vpns, usage);
            }
            over.store(true, Ordering::Relaxed);
            if let Some(windows) = windows {
                report.watched = windows.join().unwrap_or_default();
            }
            report
        });
        let alarms = edge.map(Edge::end).into_iter().flatten();
        report.warnings.extend(alarms.map(|alarm| format!("node.{}: {alarm}", assignment.node)));
        report
    }
}

impl Work for netstage_traffic::Engine {
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        netstage_traffic::Engine::receiving_ports(self).to_vec()
    }

    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &Totals) -> Report {
        self.run_when(&mut || Some(epoch), stop, totals).expect("the start is given")
    }

    fn run_when(
        self: Box<Self>,
        start: &mut dyn FnMut() -> Option<Epoch>,
        stop: &AtomicBool,
        totals: &Totals,
    ) -> Option<Report> {
        let flows = self.flows().to_vec();
        netstage_traffic::Engine::run_when(*self, start, stop, &mut |progress| {
            let netstage_traffic::Progress { flow, bin, counts, tcp, travel } = progress;
            let (flow, side) = flows[flow];
            let sends = side == Side::Send;
            totals.end_bin(EndedBin { flow, sends, bin: bin as u32, counts, tcp, travel });
        })
    }
}
