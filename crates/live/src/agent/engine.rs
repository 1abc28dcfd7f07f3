//! The traffic engine as an agent's [`Worker`].

use super::edge::Edge;
use super::work::{Totals, Work, Worker};
use crate::clock::Epoch;
use crate::protocol::{Refusal, RefusalKind};
use crate::results::{EndedBin, Report};
use crate::task::{Assignment, Side};
use crate::traffic::{self, PrepareError, Problem};
use std::sync::atomic::{AtomicBool, Ordering};

/// Carries out assignments with real packets.
pub struct Engine;

impl Worker for Engine {
    fn prepare(&self, assignment: &Assignment) -> Result<Box<dyn Work>, Refusal> {
        let traffic = traffic::Engine::prepare(assignment)?;
        let Some(task) = &assignment.edge else { return Ok(Box::new(traffic)) };
        Ok(Box::new(EdgeWork { traffic, edge: Edge::begin(task)?, assignment: assignment.clone() }))
    }
}

/// A provider edge router, with whatever flows begin or end there.
struct EdgeWork {
    traffic: traffic::Engine,
    edge: Edge,
    assignment: Assignment,
}

impl Work for EdgeWork {
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        self.traffic.receiving_ports().to_vec()
    }

    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &Totals) -> Report {
        let EdgeWork { traffic, edge, assignment } = *self;
        let (mut report, watched) = std::thread::scope(|scope| {
            let watching = scope.spawn(|| edge.watch(&assignment, epoch, stop));
            let report = Box::new(traffic).run(epoch, stop, totals);
            (report, watching.join().unwrap_or_default())
        });
        (report.vpns, report.usage) = (watched.vpns, watched.usage);
        let alarms = edge.end().into_iter().map(|alarm| format!("node.{}: {alarm}", assignment.node));
        report.warnings.extend(alarms);
        report
    }
}

impl Work for traffic::Engine {
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        traffic::Engine::receiving_ports(self).to_vec()
    }

    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &Totals) -> Report {
        let flows = self.flows().to_vec();
        traffic::Engine::run(*self, epoch, stop, &mut |progress| {
            let traffic::Progress { flow, bin, counts, tcp, travel } = progress;
            let (flow, side) = flows[flow];
            let sends = side == Side::Send;
            totals.end_bin(EndedBin { flow, sends, bin: bin as u32, counts, tcp, travel });
            totals.sent.fetch_add(counts.sent, Ordering::Relaxed);
            totals.sent_bytes.fetch_add(counts.sent_bytes, Ordering::Relaxed);
            totals.received.fetch_add(counts.received, Ordering::Relaxed);
            totals.received_bytes.fetch_add(counts.received_bytes, Ordering::Relaxed);
            totals.lost.fetch_add(counts.lost, Ordering::Relaxed);
        })
    }
}

impl From<PrepareError> for Refusal {
    fn from(error: PrepareError) -> Refusal {
        let kind = match &error.problem {
            Problem::PortInUse(_) => RefusalKind::InUse,
            Problem::Permission { .. } | Problem::CongestionControl(_) => RefusalKind::Missing,
            Problem::Pattern(_)
            | Problem::Application(_)
            | Problem::NoRate(_)
            | Problem::PacketSize { .. }
            | Problem::AboveLimit { .. }
            | Problem::Refused(_) => RefusalKind::Assignment,
            Problem::NoSuchAddress(_) | Problem::System { .. } => RefusalKind::System,
        };
        match error.problem {
            Problem::Permission { what, remedy } => {
                Refusal::new(kind, format!("no permission for {what}")).remedy(remedy)
            }
            problem => Refusal::new(kind, problem.to_string()),
        }
        .flow(error.flow)
    }
}
