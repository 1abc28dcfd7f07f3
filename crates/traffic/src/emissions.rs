//! A flow's pattern as moments of the run.

use super::error::Problem;
use netstage_agent_api::task::FlowTask;
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::{Pattern, Source};

/// When a flow hands over how many bytes, from its start until its stop. Sums of whole
/// nanoseconds, so nothing drifts.
#[derive(Clone, Debug)]
pub struct Emissions {
    source: Source,
    pattern: Pattern,
    clock: Instant,
    stop: Instant,
}

impl Emissions {
    /// The emissions of a flow, the same as in the simulator for the same seed. They end
    /// with the run.
    pub fn new(task: &FlowTask, seed: u64, duration: Duration) -> Result<Emissions, Problem> {
        let pattern = pattern(task)?;
        pattern.check().map_err(Problem::Pattern)?;
        Ok(Emissions {
            source: Source::new(pattern, Stream::new(seed, &format!("flow.{}", task.name))),
            pattern: pattern.clone(),
            clock: Instant(task.start.0),
            stop: Instant(task.stop.0.min(duration.0)),
        })
    }

    /// The next emission's moment and payload bytes; `u64::MAX` bytes have no end.
    pub fn next(&mut self) -> Option<(Instant, u64)> {
        let emission = self.source.next()?;
        self.clock += emission.gap;
        (self.clock < self.stop).then_some((self.clock, emission.bytes))
    }

    /// When the application stops.
    pub fn stop(&self) -> Instant {
        self.stop
    }

    /// Whether the pattern is bulk: as much as the transport takes.
    pub fn is_bulk(&self) -> bool {
        matches!(self.pattern, Pattern::Bulk { .. })
    }

    /// Long-run mean payload rate, bits per second; none where the pattern has no rate.
    pub fn mean_rate(&self) -> Option<f64> {
        self.pattern.mean_rate()
    }

    /// Payload of the largest packet; none where the pattern is no packets.
    pub fn largest_packet(&self) -> Option<u64> {
        match &self.pattern {
            Pattern::Bulk { .. } => None,
            Pattern::Trace { packets, .. } => packets.iter().map(|&(_, bytes)| bytes.into()).max(),
            Pattern::Cbr { packet, .. }
            | Pattern::Poisson { packet, .. }
            | Pattern::OnOff { packet, .. }
            | Pattern::Pareto { packet, .. }
            | Pattern::Mmpp { packet, .. } => Some((*packet).into()),
        }
    }

    /// Whether all packets have the same size.
    pub fn has_one_size(&self) -> bool {
        !matches!(self.pattern, Pattern::Bulk { .. } | Pattern::Trace { .. })
    }

    /// Mean packets per second over the long run; none where the pattern is no packets.
    pub fn packet_rate(&self) -> Option<f64> {
        let mean = match &self.pattern {
            Pattern::Trace { packets, .. } => {
                packets.iter().map(|&(_, bytes)| f64::from(bytes)).sum::<f64>() / packets.len() as f64
            }
            _ => self.largest_packet()? as f64,
        };
        Some(self.pattern.mean_rate()? / 8.0 / mean.max(1.0))
    }
}

/// The flow's pattern.
pub fn pattern(task: &FlowTask) -> Result<&Pattern, Problem> {
    task.traffic.pattern().ok_or(Problem::Refused("this transport carries patterns, not applications"))
}
