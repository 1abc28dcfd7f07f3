//! The traffic engine as an agent's [`Worker`].

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
        Ok(Box::new(traffic::Engine::prepare(assignment)?))
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
