//! Readiness of the router: before a measurement, routes are announced, and packets to each network are sent until
//! the router forwards all of them correctly. On a timeout, the error describes the incorrect forwarding.

use super::bench::{TestBench, lock};
use super::convergence::ExpectedForwarding;
use super::fault::{self, NetworkCounts};
use super::trial::{ExpectedPort, TrialError, TrialOutcome, TrialRunner, TrialTraffic};
use netstage_scenario::outcome::RunFailure;
use netstage_scenario::outcome::finding::PacketFault;
use netstage_scenario::tester::Operation;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Minimum and maximum rate of the readiness probes in packets per second.
const READINESS_RATE: (f64, f64) = (1_000.0, 100_000.0);
/// Duration of the probes in seconds, if the rate is between these limits.
const READINESS_SECONDS: f64 = 0.1;
/// Share of the networks that may be missing in a measurement. A router that lacks more is not configured as required.
const MISSING_SHARE: f64 = 0.01;

impl TestBench {
    /// Waits until the router performs an operation for each network, unless it has been observed to do so.
    pub(super) fn make_ready(&self, operation: Operation, stop: &dyn Fn() -> bool) -> Result<(), RunFailure> {
        if lock(&self.ready).contains(&operation) {
            return Ok(());
        }
        let networks = u64::from(self.tester.networks);
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

    /// Sends packets to the first networks repeatedly until the router forwards them as expected, or a time limit passes.
    /// The router is ready when packets to each network have come back correctly once. After the time limit, some
    /// networks may be missing ([`MISSING_SHARE`]).
    pub(super) fn wait_until_forwarding(
        &self,
        forwards: ExpectedForwarding,
        operation: Operation,
        length: u16,
        networks: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), RunFailure> {
        let streams = self.tester.directions.iter().map(|direction| direction.from.len() as u64);
        let frames = networks * streams.sum::<u64>();
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
        let leaving = match forwards {
            ExpectedForwarding::All(leaving) => leaving,
            ExpectedForwarding::NoPackets => ExpectedPort::Any,
        };
        let mut missing = MissingNetworks::new(self.tester.directions.len(), networks as u32);
        let started = Instant::now();
        loop {
            let number = self.trials.fetch_add(1, Ordering::Relaxed);
            let means = TrialRunner { expected_port: leaving, ..self.trial_runner() };
            let fault = match means.run(&TrialTraffic { number, ..trial.clone() }, stop) {
                _ if stop() => return Err(RunFailure::Interrupted),
                Ok(result) if forwards == ExpectedForwarding::NoPackets => {
                    match self.session_fault(operation) {
                        None if result.sent == frames && result.tally.received == 0 => return Ok(()),
                        Some(fault) => fault,
                        None => format!(
                            "{} still forwards {} of {} packets to networks whose routes or labels were withdrawn",
                            self.tester.router, result.tally.received, result.sent
                        ),
                    }
                }
                Ok(result) => {
                    missing.update(&result.networks);
                    // A router that forwards to less than half of the networks is not configured yet.
                    if missing.count() * 2 < missing.total() {
                        self.add_early_faults(result.faults.iter().filter(|fault| !fault::is_loss(fault)));
                    }
                    match self.session_fault(operation) {
                        None if missing.count() == 0 => return Ok(()),
                        Some(fault) => fault,
                        None => self.forwarding_fault(operation, length, &result, &missing),
                    }
                }
                Err(TrialError::Labels(message)) => format!("{}: {message}", operation.name()),
                Err(error) => return Err(RunFailure::Failed(error.to_string())),
            };
            if started.elapsed() > timeout {
                if missing.is_tolerable() && self.session_fault(operation).is_none() {
                    self.add_early_faults([&fault::missing_networks(&self.tester, missing.packets())]);
                    return Ok(());
                }
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

    /// Keeps faults of packets before a trial for the outcome of the next one.
    fn add_early_faults<'a>(&self, faults: impl IntoIterator<Item = &'a PacketFault>) {
        let mut kept = lock(&self.early_faults);
        for fault in faults {
            match kept.iter_mut().find(|known| known.kind == fault.kind) {
                Some(known) => {
                    known.packets += fault.packets;
                    known.networks = known.networks.max(fault.networks);
                }
                None => kept.push(PacketFault { is_before: true, ..fault.clone() }),
            }
        }
    }

    /// Forgets the operations that the router has been observed to perform.
    pub(super) fn reset_readiness(&self) {
        lock(&self.ready).clear();
    }

    /// Announces the routes that an operation needs. Operations whose routes these replace are no longer ready.
    pub(super) fn announce(&self, operation: Operation) {
        let Some(sessions) = &self.sessions else { return };
        lock(sessions).announce(&self.tester, &self.ports, operation);
        let mut ready = lock(&self.ready);
        if operation.is_routed() {
            ready.retain(|other| (*other == Operation::Push) == (operation == Operation::Push));
        }
    }

    /// Describes how the router's forwarding of readiness probes differs from the expected forwarding.
    fn forwarding_fault(
        &self,
        operation: Operation,
        length: u16,
        result: &TrialOutcome,
        missing: &MissingNetworks,
    ) -> String {
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
        let networks: Vec<String> = fault::missing_networks(&self.tester, missing.packets())
            .most
            .into_iter()
            .map(|(network, _)| network)
            .collect();
        let more = if missing.count() > networks.len() { ", …" } else { "" };
        format!(
            "{probes} only {} came back from {router}: it lacks routes or labels for {}{more}",
            tally.received,
            networks.join(", ")
        )
    }
}

/// Networks to which no packet has come back correctly yet, by direction.
struct MissingNetworks {
    networks: Vec<Vec<u32>>,
    total: usize,
}

impl MissingNetworks {
    fn new(directions: usize, networks: u32) -> MissingNetworks {
        MissingNetworks {
            networks: vec![(0..networks).collect(); directions],
            total: directions * networks as usize,
        }
    }

    fn update(&mut self, counts: &[NetworkCounts]) {
        for (missing, counts) in self.networks.iter_mut().zip(counts) {
            missing.retain(|network| !counts.is_right(*network as usize));
        }
    }

    fn count(&self) -> usize {
        self.networks.iter().map(Vec::len).sum()
    }

    fn total(&self) -> usize {
        self.total
    }

    fn is_tolerable(&self) -> bool {
        self.count() as f64 <= MISSING_SHARE * self.total as f64
    }

    /// Returns one packet for each network, by direction and network.
    fn packets(&self) -> BTreeMap<(usize, u32), u64> {
        let directions = self.networks.iter().enumerate();
        directions.flat_map(|(number, missing)| missing.iter().map(move |one| ((number, *one), 1))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_missing_until_all_their_packets_come_back() {
        let mut missing = MissingNetworks::new(1, 200);
        let mut counts = NetworkCounts::new(200, [400].into_iter());
        counts.received = vec![2; 200];
        (counts.received[7], counts.duplicates[8], counts.wrong[9]) = (1, 1, 1);
        missing.update(&[counts.clone()]);
        assert_eq!((missing.count(), missing.is_tolerable()), (3, false));
        (counts.received[7], counts.received[20]) = (2, 0);
        missing.update(&[counts]);
        assert_eq!(missing.packets(), BTreeMap::from([((0, 8), 1), ((0, 9), 1)]));
        assert!(missing.is_tolerable());
    }
}
