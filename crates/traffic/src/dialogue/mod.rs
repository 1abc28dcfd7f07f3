//! Applications: both ends of a flow talk. What they say is decided by
//! `netstage_core::traffic::application`; here their messages travel.

mod datagram;
mod inbox;
mod stream;

pub use datagram::DatagramDialogue;
pub use stream::StreamDialogue;

use super::error::Problem;
use super::ledger::{Ledger, Times};
use netstage_agent_api::results::{Counts, FlowResult};
use netstage_agent_api::task::{FlowTask, Side};
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::{Carriage, Endpoint, QualityBins, Role};

/// One end of an application, and what it writes down.
pub struct Talk {
    name: String,
    role: Role,
    endpoint: Endpoint,
    start: Instant,
    stop: Instant,
    phase: Phase,
    ledger: Ledger,
    quality: QualityBins,
    delay: Times,
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Stopped,
}

impl Talk {
    /// The flow's end of the application, the same as in the simulator for the same seed.
    fn new(
        task: &FlowTask,
        carriage: Carriage,
        seed: u64,
        interval: Duration,
        duration: Duration,
    ) -> Result<Talk, Problem> {
        let application = task
            .traffic
            .application()
            .ok_or(Problem::Refused("its traffic is a pattern, not an application"))?;
        application.check(carriage).map_err(Problem::Application)?;
        let role = match task.side {
            Side::Send => Role::Client,
            Side::Receive => Role::Server,
        };
        let ledger = Ledger::new(interval, duration);
        let stream = Stream::new(seed, &format!("flow.{}", task.name));
        Ok(Talk {
            name: task.name.clone(),
            role,
            endpoint: Endpoint::new(application, role, carriage, &stream),
            start: Instant(task.start.0),
            stop: Instant(task.stop.0.min(duration.0)),
            phase: Phase::Waiting,
            quality: ledger.quality_bins(),
            ledger,
            delay: Times::new(),
            error: None,
        })
    }

    /// When to call [`handle_due`](Talk::handle_due).
    fn due(&self) -> Instant {
        match self.phase {
            Phase::Waiting => self.start,
            Phase::Running => self.endpoint.poll_timeout().min(self.stop),
            Phase::Stopped => Instant::NEVER,
        }
    }

    /// Starts, wakes or stops the endpoint. Its actions are to be taken after.
    fn handle_due(&mut self, now: Instant) {
        match self.phase {
            Phase::Waiting if now >= self.start => {
                self.phase = Phase::Running;
                self.endpoint.start(now);
            }
            Phase::Running if now >= self.stop => {
                self.phase = Phase::Stopped;
                self.endpoint.stop(self.stop);
            }
            Phase::Running => self.endpoint.handle_timeout(now),
            Phase::Waiting | Phase::Stopped => {}
        }
        self.note();
    }

    /// Takes down what the endpoint noticed.
    fn note(&mut self) {
        while let Some(observation) = self.endpoint.poll_observation() {
            self.quality.add(observation);
        }
    }

    fn finish(mut self, now: Instant) -> FlowResult {
        if self.phase == Phase::Running {
            self.endpoint.stop(now);
            self.note();
        }
        FlowResult {
            name: self.name,
            sends: self.role == Role::Client,
            bins: self.ledger.into_bins(),
            delay: self.delay.buckets(),
            quality: self.quality.bins().to_vec(),
            error: self.error,
            ..FlowResult::default()
        }
    }

    fn counts(&mut self, bin: usize) -> Counts {
        *self.ledger.counts(bin)
    }
}
