//! Readiness of the router: before a measurement, routes are announced, and packets to each network are sent until
//! the router forwards all of them correctly. On a timeout, the error describes the incorrect forwarding.

use super::bench::{TestBench, lock};
use super::convergence::ExpectedForwarding;
use super::trial::{ExpectedPort, TrialError, TrialOutcome, TrialRunner, TrialTraffic};
use netstage_scenario::outcome::RunFailure;
use netstage_scenario::tester::Operation;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Minimum and maximum rate of the readiness probes in packets per second.
const READINESS_RATE: (f64, f64) = (1_000.0, 100_000.0);
/// Duration of the probes in seconds, if the rate is between these limits.
const READINESS_SECONDS: f64 = 0.1;

impl TestBench {
    /// Waits until the router performs an operation for each network, unless it has been observed to do so.
    pub(super) fn make_ready(&self, operation: Operation, stop: &dyn Fn() -> bool) -> Result<(), RunFailure> {
        if lock(&self.ready).contains(&operation) {
            return Ok(());
        }
        let networks = u64::from(self.tester.networks) * self.tester.directions.len() as u64;
        let (shortest, longest) = self.tester.lengths().into_inner();
        self.announce(operation);
        // Shortest packets to all networks, then longest packets to some of them.
        for (length, frames) in [(shortest, networks), (longest, networks.min(1_000))] {
            self.wait_until_forwarding(
                ExpectedForwarding::All(ExpectedPort::Spread),
                operation,
                length,
                frames,
                stop,
            )?;
        }
        lock(&self.ready).insert(operation);
        Ok(())
    }

    /// Sends packets repeatedly until the router forwards them as expected, or a time limit passes.
    pub(super) fn wait_until_forwarding(
        &self,
        forwards: ExpectedForwarding,
        operation: Operation,
        length: u16,
        frames: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), RunFailure> {
        let timeout = Duration::from_nanos(self.tester.ready_within.0);
        let trial = TrialTraffic {
            operation,
            lengths: vec![length],
            rate: (frames as f64 / READINESS_SECONDS).clamp(READINESS_RATE.0, READINESS_RATE.1),
            frames,
            drain: Duration::from_millis(200),
            number: 0,
            ends_early: false,
        };
        let (leaving, forwarded) = match forwards {
            ExpectedForwarding::All(leaving) => (leaving, frames),
            ExpectedForwarding::NoPackets => (ExpectedPort::Any, 0),
        };
        let started = Instant::now();
        loop {
            let number = self.trials.fetch_add(1, Ordering::Relaxed);
            let means = TrialRunner { expected_port: leaving, ..self.trial_runner() };
            let fault = match means.run(&TrialTraffic { number, ..trial.clone() }, stop) {
                _ if stop() => return Err(RunFailure::Interrupted),
                Ok(result) if result.sent == frames && result.is_clean(forwarded) => {
                    match self.session_fault(operation) {
                        None => return Ok(()),
                        Some(fault) => fault,
                    }
                }
                Ok(result) if forwards == ExpectedForwarding::NoPackets => format!(
                    "{} still forwards {} of {} packets to networks whose routes were withdrawn",
                    self.tester.router, result.tally.received, result.sent
                ),
                Ok(result) => self.forwarding_fault(operation, length, &result),
                Err(TrialError::Labels(message)) => format!("{}: {message}", operation.name()),
                Err(error) => return Err(RunFailure::Failed(error.to_string())),
            };
            if started.elapsed() > timeout {
                return Err(RunFailure::Failed(self.session_fault(operation).unwrap_or(fault)));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// Describes a session that is down and needed for the operation's routes.
    fn session_fault(&self, operation: Operation) -> Option<String> {
        let sessions = self.sessions.as_ref().filter(|_| operation.is_routed())?;
        lock(sessions).session_fault(&self.ports)
    }

    /// Forgets the operations that the router has been observed to perform.
    pub(super) fn reset_readiness(&self) {
        lock(&self.ready).clear();
    }

    /// Announces the routes that an operation needs. Operations whose routes these replace are no longer ready.
    fn announce(&self, operation: Operation) {
        let Some(sessions) = &self.sessions else { return };
        lock(sessions).announce(&self.tester, &self.ports, operation);
        let mut ready = lock(&self.ready);
        if operation.is_routed() {
            ready.retain(|other| (*other == Operation::Push) == (operation == Operation::Push));
        }
    }

    /// Describes how the router's forwarding of readiness probes differs from the expected forwarding.
    fn forwarding_fault(&self, operation: Operation, length: u16, result: &TrialOutcome) -> String {
        let (name, router) = (operation.name(), &self.tester.router);
        let probes = format!("{name}: of {} packets of {length} B, one to each network,", result.sent);
        let tally = &result.tally;
        if let Some(wrong) = &result.wrong {
            return format!("{probes} {router} forwarded {} incorrectly: {wrong}", tally.wrong);
        }
        if tally.stray > 0 {
            return format!("{probes} {router} forwarded {} to the wrong port", tally.stray);
        }
        if tally.duplicates > 0 {
            return format!("{probes} {router} sent {} more than once", tally.duplicates);
        }
        if tally.received == 0 {
            return format!(
                "{probes} none came back from {router}: check that forwarding is enabled, its routes and labels \
                 (netstage test router CONFIG --setup prints its configuration), the MTU of its links (a label takes 4 B), \
                 and that GRO is on at its ends of veth pairs (ethtool -K NAME gro on)"
            );
        }
        format!("{probes} only {} came back from {router}: it lacks routes or labels", tally.received)
    }
}
