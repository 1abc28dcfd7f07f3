//! Convergence of forwarding when all routes of the first receiving port are withdrawn or announced at once
//! (RFC 7747 section 5.6), or when a part of the network fails. `label_events` has the events of LDP. Further receiving ports announce the same routes as a
//! backup with a longer AS path; without them, the packets have no route.

use super::bench::TestBench;
use super::program::NetworkArrival;
use super::trial::{EventArrivals, ExpectedPort, TrialEvent, TrialOutcome, TrialRunner, TrialTraffic};
use netstage_scenario::outcome::RunFailure;
use netstage_scenario::tester::{Convergence, ConvergenceEvent};
use std::cell::Cell;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Forwarding that a router must show before a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedForwarding {
    /// All packets, through these ports.
    All(ExpectedPort),
    /// No packets.
    NoPackets,
}

/// Result of a trial with an event.
#[derive(Debug, Default)]
pub(super) struct ConvergenceOutcome {
    /// Result of the packets.
    pub trial: TrialOutcome,
    /// Convergence times in nanoseconds, each with its number of networks.
    pub times: Vec<(u64, u64)>,
    /// Further observations, for the report.
    pub observations: Vec<String>,
    /// Description of a session that ended without being part of the event.
    pub ended: Option<String>,
}

impl TestBench {
    /// Runs the trial of an event.
    pub(super) fn converge(
        &self,
        (event, convergence): (ConvergenceEvent, &Convergence),
        trial: &TrialTraffic,
        stop: &dyn Fn() -> bool,
    ) -> Result<ConvergenceOutcome, RunFailure> {
        if event == ConvergenceEvent::Failure {
            return self.fail(convergence, trial, stop);
        }
        if event.is_of_ldp() {
            return self.distribute((event, convergence), trial, stop);
        }
        let has_backup = self.tester.directions[0].to.len() > 1;
        let is_announced = event == ConvergenceEvent::Withdraw;
        let before = match (event, has_backup) {
            (ConvergenceEvent::Withdraw, _) => ExpectedForwarding::All(ExpectedPort::Only(0)),
            (_, true) => ExpectedForwarding::All(ExpectedPort::Only(1)),
            (_, false) => ExpectedForwarding::NoPackets,
        };
        self.reset_readiness();
        self.sessions().announce_everywhere(&self.tester, &self.ports, is_announced);
        let frames = u64::from(self.tester.networks);
        self.wait_until_forwarding(before, trial.operation, trial.lengths[0], frames, stop)?;
        let cause = || self.sessions().announce_first(!is_announced);
        let after = Duration::from_nanos(convergence.before.0);
        let happening = TrialEvent { after, cause: &cause };
        let means = TrialRunner { expected_port: ExpectedPort::Any, ..self.trial_runner() };
        let result = means.run_while(trial, Some(happening), stop);
        let result = result.map_err(|error| RunFailure::Failed(error.to_string()))?;
        if stop() {
            return Err(RunFailure::Interrupted);
        }
        let gap_ns = (frames as f64 / trial.rate * 1e9) as u64;
        let times = result.event_arrivals.as_ref().map_or(Vec::new(), |watched| {
            let [first, others @ ..] = &self.tester.directions[0].to[..] else { return Vec::new() };
            match (event, others) {
                (ConvergenceEvent::Withdraw, []) => end_times(watched, *first, gap_ns),
                (ConvergenceEvent::Withdraw, others) => start_times(watched, others),
                _ => start_times(watched, &[*first]),
            }
        });
        Ok(ConvergenceOutcome { trial: result, times, ..ConvergenceOutcome::default() })
    }

    /// Runs a trial in which a part of the network fails, and repairs it.
    fn fail(
        &self,
        convergence: &Convergence,
        trial: &TrialTraffic,
        stop: &dyn Fn() -> bool,
    ) -> Result<ConvergenceOutcome, RunFailure> {
        let frames = u64::from(self.tester.networks);
        self.reset_readiness();
        let before = ExpectedForwarding::All(ExpectedPort::Any);
        self.wait_until_forwarding(before, trial.operation, trial.lengths[0], frames, stop)?;
        let runner = TrialRunner { expected_port: ExpectedPort::Any, ..self.trial_runner() };
        let command = Cell::new(None);
        let cause = || command.set(Some(start(&convergence.fail_command)));
        let after = Duration::from_nanos(convergence.before.0);
        let result = runner.run_while(trial, Some(TrialEvent { after, cause: &cause }), stop);
        let failed = command.take().map_or(Ok(()), |started| finish(&convergence.fail_command, started));
        let repaired = match &convergence.repair_command[..] {
            [] => Ok(()),
            command => finish(command, start(command)),
        };
        failed.and(repaired)?;
        let result = result.map_err(|error| RunFailure::Failed(error.to_string()))?;
        if stop() {
            return Err(RunFailure::Interrupted);
        }
        let gap_ns = (f64::from(self.tester.networks) / trial.rate * 1e9) as u64;
        let times = result.event_arrivals.as_ref().map_or(Vec::new(), |watched| gaps(watched, gap_ns));
        Ok(ConvergenceOutcome { trial: result, times, ..ConvergenceOutcome::default() })
    }
}

fn start(command: &[String]) -> io::Result<Child> {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
}

/// Waits for the end of a command of the user.
fn finish(command: &[String], started: io::Result<Child>) -> Result<(), RunFailure> {
    let error = |reason: &str| {
        RunFailure::Failed(format!("[convergence] `{}`: {}", command.join(" "), reason.trim_end()))
    };
    let output = started.and_then(Child::wait_with_output).map_err(|system| error(&system.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(error(&format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)))),
    }
}

/// Returns, for each network, the longest time without a packet after the event. Its packets may leave by another port
/// afterwards, and return. A network without packets at the end is omitted; `gap_ns` is the time between two packets to
/// a network.
pub(super) fn gaps(watched: &EventArrivals, gap_ns: u64) -> Vec<(u64, u64)> {
    let networks = watched.arrivals.first().map_or(0, Vec::len);
    let gap = |network: usize| {
        let arrivals = || watched.arrivals.iter().map(|port| port[network]);
        let present = arrivals().max_by_key(|arrival| arrival.last_ns)?;
        let is_present = present.first_ns > 0 && present.last_ns + 2 * gap_ns >= watched.end_ns;
        is_present.then(|| longest_absence(arrivals(), watched.event_ns))
    };
    counted((0..networks).filter_map(gap).collect())
}

/// Returns the longest time after an event in which a network's packets arrive at no port. A gap at one port does not
/// count while packets arrive at another; of each port, the longest gap is known.
fn longest_absence(arrivals: impl Iterator<Item = NetworkArrival>, event_ns: u64) -> u64 {
    let presence = |arrival: NetworkArrival| {
        let NetworkArrival { first_ns, last_ns, gap_ns, gap_end_ns } = arrival;
        let first_ns = if first_ns > 0 { first_ns } else { last_ns };
        match gap_ns {
            0 => [(first_ns, last_ns); 2],
            _ => {
                let gap_start_ns = gap_end_ns.saturating_sub(gap_ns);
                [(first_ns.min(gap_start_ns), gap_start_ns), (gap_end_ns, last_ns)]
            }
        }
    };
    let mut spans: Vec<(u64, u64)> =
        arrivals.filter(|arrival| arrival.last_ns > 0).flat_map(presence).collect();
    spans.sort_unstable();
    let (mut longest, mut reached) = (0, spans.first().map_or(0, |span| span.1));
    for (start, end) in spans {
        if start > event_ns {
            longest = longest.max(start.saturating_sub(reached));
        }
        reached = reached.max(end);
    }
    longest
}

/// Returns the times from the event to the first packet of each network at any of these ports.
fn start_times(watched: &EventArrivals, ports: &[usize]) -> Vec<(u64, u64)> {
    let networks = watched.arrivals.first().map_or(0, Vec::len);
    let first = |network: usize| {
        let arrivals = ports.iter().map(|port| watched.arrivals[*port][network].first_ns);
        arrivals.filter(|first| *first > 0).min()
    };
    let times = (0..networks).filter_map(first);
    counted(times.map(|first| first.saturating_sub(watched.event_ns)).collect())
}

/// Returns the times from the event to the last packet of each network at a port. A network whose packets
/// arrived until the end is omitted; `gap_ns` is the time between two of its packets.
pub(super) fn end_times(watched: &EventArrivals, port: usize, gap_ns: u64) -> Vec<(u64, u64)> {
    let ceased = |last: &u64| *last + 2 * gap_ns < watched.end_ns;
    let last = watched.arrivals[port].iter().map(|arrival| arrival.last_ns).filter(ceased);
    counted(last.map(|last| last.saturating_sub(watched.event_ns)).collect())
}

/// Returns the values in ascending order, each with its number of occurrences.
pub(super) fn counted(mut values: Vec<u64>) -> Vec<(u64, u64)> {
    values.sort_unstable();
    values.chunk_by(|one, next| one == next).map(|equal| (equal[0], equal.len() as u64)).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns arrivals of networks from the times of their first and last packets.
    pub fn arrivals(times: &[(u64, u64)]) -> Vec<NetworkArrival> {
        let arrival =
            |&(first_ns, last_ns)| NetworkArrival { first_ns, last_ns, ..NetworkArrival::default() };
        times.iter().map(arrival).collect()
    }

    #[test]
    fn the_longest_time_without_a_packet_is_that_of_the_ports_in_use() {
        // Networks that stay at the first port, end, move to the other port, never arrive after the event, and move to
        // the other port and return.
        let mut first = arrivals(&[(1_100, 8_900), (1_100, 5_000), (1_100, 2_000), (0, 900), (1_100, 9_000)]);
        (first[0].gap_ns, first[0].gap_end_ns) = (400, 3_000);
        (first[1].gap_ns, first[1].gap_end_ns) = (500, 2_000);
        (first[4].gap_ns, first[4].gap_end_ns) = (4_000, 6_000);
        let second = arrivals(&[(0, 0), (0, 0), (6_000, 9_000), (0, 0), (2_200, 5_700)]);
        let watched = EventArrivals { event_ns: 1_000, end_ns: 9_000, arrivals: vec![first, second] };
        assert_eq!(gaps(&watched, 100), [(300, 1), (400, 1), (4_000, 1)]);
    }

    #[test]
    fn a_gap_across_the_event_counts_and_earlier_ones_do_not() {
        // The last packet before the event was at 200 at both ports, the first one after it at 1,500 at the second.
        let of_port =
            |first_ns, gap_ns| NetworkArrival { first_ns, last_ns: 9_000, gap_ns, gap_end_ns: first_ns };
        let ports = [of_port(3_000, 2_800), of_port(1_500, 1_300)];
        assert_eq!(longest_absence(ports.into_iter(), 1_000), 1_300);
        // Earlier packets of both ports, at 100 and 800.
        let ports = [of_port(1_100, 1_000), of_port(1_050, 250)];
        assert_eq!(longest_absence(ports.into_iter(), 1_000), 250);
    }

    #[test]
    fn networks_that_do_not_converge_are_omitted() {
        let watched = EventArrivals {
            event_ns: 1_000,
            end_ns: 9_000,
            // The second network stays at the first port and never moves to the other.
            arrivals: vec![
                arrivals(&[(1_100, 1_500), (1_100, 8_900), (0, 900)]),
                arrivals(&[(1_600, 9_000), (0, 0), (1_300, 9_000)]),
            ],
        };
        assert_eq!(start_times(&watched, &[1]), [(300, 1), (600, 1)]);
        assert_eq!(start_times(&watched, &[0]), [(100, 2)]);
        // A network whose last packet preceded the event converged at once.
        assert_eq!(end_times(&watched, 0, 100), [(0, 1), (500, 1)]);
    }
}
