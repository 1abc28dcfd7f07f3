//! The traffic engine as an agent's [`Worker`].

use super::work::{Totals, Work, Worker};
use crate::clock::Epoch;
use crate::protocol::{Refusal, RefusalKind};
use crate::results::Report;
use crate::task::Assignment;
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
    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &Totals) -> Report {
        traffic::Engine::run(*self, epoch, stop, &mut |progress| {
            let counts = progress.counts;
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
