//! Emissions of a flow's pattern, as times of the run.

use super::error::FlowProblem;
use netstage_agent_api::task::FlowTask;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::{Pattern, PatternSource};

/// Emissions of a flow between its start and stop. Times are sums of whole nanoseconds, so they do not drift.
#[derive(Clone, Debug)]
pub struct Emissions {
    source: PatternSource,
    pattern: Pattern,
    clock: Instant,
    stop: Instant,
}

impl Emissions {
    /// Creates the emissions of a flow, identical to those of the simulator for the same seed. They end with the
    /// run.
    pub fn new(task: &FlowTask, seed: u64, duration: Duration) -> Result<Emissions, FlowProblem> {
        let pattern = pattern(task)?;
        pattern.check().map_err(FlowProblem::Pattern)?;
        Ok(Emissions {
            source: PatternSource::new(pattern, RandomStream::new(seed, &format!("flow.{}", task.name))),
            pattern: pattern.clone(),
            clock: Instant(task.start.0),
            stop: Instant(task.stop.0.min(duration.0)),
        })
    }

    /// Returns the time and payload bytes of the next emission. A size of `u64::MAX` is unlimited.
    pub fn next_emission(&mut self) -> Option<(Instant, u64)> {
        let emission = self.source.next()?;
        self.clock += emission.gap;
        (self.clock < self.stop).then_some((self.clock, emission.bytes))
    }

    /// Returns the stop time of the flow.
    pub fn stop(&self) -> Instant {
        self.stop
    }

    /// Returns whether the pattern is bulk, which sends as fast as the transport allows.
    pub fn is_bulk(&self) -> bool {
        matches!(self.pattern, Pattern::Bulk { .. })
    }

    /// Returns the long-run mean payload rate in bits per second, or `None` if the pattern has no rate.
    pub fn mean_rate(&self) -> Option<f64> {
        self.pattern.mean_rate()
    }

    /// Returns the payload bytes of the largest packet, or `None` if the pattern has no packets.
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

    /// Returns whether all packets have the same size.
    pub fn has_one_size(&self) -> bool {
        !matches!(self.pattern, Pattern::Bulk { .. } | Pattern::Trace { .. })
    }

    /// Returns the long-run mean packet rate per second, or `None` if the pattern has no packets.
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

/// Returns the pattern of a flow.
pub fn pattern(task: &FlowTask) -> Result<&Pattern, FlowProblem> {
    task.traffic
        .pattern()
        .ok_or(FlowProblem::InvalidTask("this transport supports traffic patterns, not applications"))
}
