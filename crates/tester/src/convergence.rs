//! Convergence of forwarding when all routes of the first receiving port are withdrawn or announced at once
//! (RFC 7747 section 5.6). Further receiving ports announce the same routes as a backup with a longer AS path;
//! without them, the packets have no route.

use super::bench::Bench;
use super::trial::{Asked, Came, Happening, Leaving, Means, Watched};
use netstage_scenario::outcome::Stopped;
use netstage_scenario::tester::{Convergence, Event};
use std::time::Duration;

/// Forwarding that a router must show before a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwards {
    /// All packets, through these ports.
    By(Leaving),
    /// No packets.
    Nothing,
}

impl Bench {
    /// Runs the trial of an event. Also returns the convergence times in nanoseconds, each with its number of
    /// networks.
    pub(super) fn converge(
        &self,
        (event, convergence): (Event, &Convergence),
        trial: &Asked,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Came, Vec<(u64, u64)>), Stopped> {
        let has_backup = self.tester.ways[0].to.len() > 1;
        let is_announced = event == Event::Withdraw;
        let before = match (event, has_backup) {
            (Event::Withdraw, _) => Forwards::By(Leaving::By(0)),
            (Event::Announce, true) => Forwards::By(Leaving::By(1)),
            (Event::Announce, false) => Forwards::Nothing,
        };
        self.forget();
        self.sessions().stage(&self.tester, &self.ports, is_announced);
        let frames = u64::from(self.tester.networks);
        self.wait_until(before, trial.operation, trial.lengths[0], frames, stop)?;
        let cause = || self.sessions().tell_first(!is_announced);
        let after = Duration::from_nanos(convergence.before.0);
        let happening = Happening { after, cause: &cause };
        let means = Means { leaving: Leaving::Anywhere, ..self.means() };
        let result = means.run_while(trial, Some(happening), stop);
        let result = result.map_err(|error| Stopped::Failed(error.to_string()))?;
        if stop() {
            return Err(Stopped::Interrupted);
        }
        let gap_ns = (frames as f64 / trial.rate * 1e9) as u64;
        let times = result.watched.as_ref().map_or(Vec::new(), |watched| {
            let [first, others @ ..] = &self.tester.ways[0].to[..] else { return Vec::new() };
            match (event, others) {
                (Event::Announce, _) => start_times(watched, &[*first]),
                (Event::Withdraw, []) => end_times(watched, *first, gap_ns),
                (Event::Withdraw, others) => start_times(watched, others),
            }
        });
        Ok((result, times))
    }
}

/// Returns the times from the event to the first packet of each network at any of these ports.
fn start_times(watched: &Watched, ports: &[usize]) -> Vec<(u64, u64)> {
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
fn end_times(watched: &Watched, port: usize, gap_ns: u64) -> Vec<(u64, u64)> {
    let ceased = |last: &u64| *last + 2 * gap_ns < watched.end_ns;
    let last = watched.arrivals[port].iter().map(|arrival| arrival.last_ns).filter(ceased);
    counted(last.map(|last| last.saturating_sub(watched.event_ns)).collect())
}

/// Returns the values in ascending order, each with its number of occurrences.
fn counted(mut values: Vec<u64>) -> Vec<(u64, u64)> {
    values.sort_unstable();
    values.chunk_by(|one, next| one == next).map(|equal| (equal[0], equal.len() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::program::Arrival;
    use super::*;

    fn arrivals(times: &[(u64, u64)]) -> Vec<Arrival> {
        times.iter().map(|&(first_ns, last_ns)| Arrival { first_ns, last_ns }).collect()
    }

    #[test]
    fn networks_that_do_not_converge_are_omitted() {
        let watched = Watched {
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
