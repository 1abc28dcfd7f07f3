//! What becomes of packets when all routes of the first receiving port go or come at once (RFC 7747 section
//! 5.6). Where there are more receiving ports the same routes stand by there, by a longer path of autonomous
//! systems; else packets have nowhere to go.

use super::bench::Bench;
use super::trial::{Asked, Came, Happening, Leaving, Means, Watched};
use netstage_scenario::outcome::Stopped;
use netstage_scenario::tester::{Convergence, Event};
use std::time::Duration;

/// What is to be seen of a router before a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwards {
    /// It forwards all packets, by these ports.
    By(Leaving),
    /// It forwards none.
    Nothing,
}

impl Bench {
    /// Carries out the trial of an event. For how many networks it took how long, in nanoseconds, until their
    /// packets followed it.
    pub(super) fn converge(
        &self,
        (event, convergence): (Event, &Convergence),
        asked: &Asked,
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
        self.wait_until(before, asked.operation, asked.lengths[0], frames, stop)?;
        let cause = || self.sessions().tell_first(!is_announced);
        let after = Duration::from_nanos(convergence.before.0);
        let happening = Happening { after, cause: &cause };
        let means = Means { leaving: Leaving::Anywhere, ..self.means() };
        let came = means.run_while(asked, Some(happening), stop);
        let came = came.map_err(|error| Stopped::Failed(error.to_string()))?;
        if stop() {
            return Err(Stopped::Interrupted);
        }
        let apart_ns = (frames as f64 / asked.rate * 1e9) as u64;
        let times = came.watched.as_ref().map_or(Vec::new(), |watched| {
            let [first, others @ ..] = &self.tester.ways[0].to[..] else { return Vec::new() };
            match (event, others) {
                (Event::Announce, _) => began(watched, &[*first]),
                (Event::Withdraw, []) => ended(watched, *first, apart_ns),
                (Event::Withdraw, others) => began(watched, others),
            }
        });
        Ok((came, times))
    }
}

/// From the event to the first packet to each network at any of these ports.
fn began(watched: &Watched, ports: &[usize]) -> Vec<(u64, u64)> {
    let networks = watched.arrivals.first().map_or(0, Vec::len);
    let first = |network: usize| {
        let arrivals = ports.iter().map(|port| watched.arrivals[*port][network].first_ns);
        arrivals.filter(|first| *first > 0).min()
    };
    let times = (0..networks).filter_map(first);
    counted(times.map(|first| first.saturating_sub(watched.event_ns)).collect())
}

/// From the event to the last packet to each network at a port. To one whose packets came until the end they
/// did not cease: two of them are `apart_ns` apart.
fn ended(watched: &Watched, port: usize, apart_ns: u64) -> Vec<(u64, u64)> {
    let ceased = |last: &u64| *last + 2 * apart_ns < watched.end_ns;
    let last = watched.arrivals[port].iter().map(|arrival| arrival.last_ns).filter(ceased);
    counted(last.map(|last| last.saturating_sub(watched.event_ns)).collect())
}

/// Values in order, and how often each occurs.
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
    fn packets_that_never_follow_are_not_counted() {
        let watched = Watched {
            event_ns: 1_000,
            end_ns: 9_000,
            // The second network goes on at the first port and never comes to the other.
            arrivals: vec![
                arrivals(&[(1_100, 1_500), (1_100, 8_900), (0, 900)]),
                arrivals(&[(1_600, 9_000), (0, 0), (1_300, 9_000)]),
            ],
        };
        assert_eq!(began(&watched, &[1]), [(300, 1), (600, 1)]);
        assert_eq!(began(&watched, &[0]), [(100, 2)]);
        // What came last before the event follows it at once.
        assert_eq!(ended(&watched, 0, 100), [(0, 1), (500, 1)]);
    }
}
