//! Events of label distribution by LDP during a trial: the session of the first receiving port ends or comes up, its
//! labels are withdrawn or advertised, or its speaker restarts. The other receiving ports advertise labels for the same
//! LSPs, so that the router may use them instead; without them, packets stop.

use super::bench::TestBench;
use super::convergence::{ConvergenceOutcome, ExpectedForwarding, counted, end_times, gaps};
use super::lsps::Lsps;
use super::lsps::ldp::{LdpPeerState, LdpSpeakers, Offer};
use super::program::NetworkArrival;
use super::trial::{EventArrivals, ExpectedPort, TrialError, TrialEvent, TrialRunner, TrialTraffic};
use netstage_core::ldp::{FtSession, GracefulRestart};
use netstage_core::time::Duration as Time;
use netstage_routing::ldp::SessionEnding;
use netstage_scenario::outcome::RunFailure;
use netstage_scenario::tester::{Convergence, ConvergenceEvent};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval between checks of a session.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Port whose session and labels the event concerns, and its state before the event.
struct EventPort<'a> {
    ldp: &'a LdpSpeakers,
    number: usize,
    before: LdpPeerState,
    /// FT Session TLV of the router.
    ft_session: Option<FtSession>,
}

impl TestBench {
    /// Runs the trial of an event of LDP.
    pub(super) fn distribute(
        &self,
        (event, convergence): (ConvergenceEvent, &Convergence),
        trial: &TrialTraffic,
        stop: &dyn Fn() -> bool,
    ) -> Result<ConvergenceOutcome, RunFailure> {
        let (Lsps::Ldp(ldp), [first, others @ ..]) = (&self.lsps, &self.tester.directions[0].to[..]) else {
            return Err(RunFailure::Unsupported(format!("{}: labels are not set up by LDP", event.name())));
        };
        self.prepare(ldp, (event, convergence), trial, stop)?;
        let (number, before) = (*first, ldp.state(*first));
        let port = EventPort { ldp, number, before, ft_session: ldp.ft_session(number) };
        let ended = || self.lsps.ended_sessions(&self.ports, Some(number));
        let ended_before = ended().0;
        let cause = || port.cause(event, convergence);
        let after = Duration::from_nanos(convergence.before.0);
        let runner = TrialRunner { expected_port: ExpectedPort::Any, ..self.trial_runner() };
        let result = runner.run_while(trial, Some(TrialEvent { after, cause: &cause }), stop);
        port.ldp.set_offer(number, offer_after(event, convergence));
        let result = result.map_err(|error| RunFailure::Failed(error.to_string()))?;
        if stop() {
            return Err(RunFailure::Interrupted);
        }
        let gap_ns = (f64::from(self.tester.networks) / trial.rate * 1e9) as u64;
        let mut outcome = ConvergenceOutcome::default();
        if let Some(watched) = &result.event_arrivals {
            let found = ldp.state(number);
            outcome.times = times(event, watched, (number, others), (&found, gap_ns));
            let name = &self.ports[number].settings.name;
            outcome.observations = port.observations(event, watched, &found, (name, !others.is_empty()));
        }
        let (count, reason) = ended();
        outcome.ended = reason.filter(|_| count > ended_before);
        outcome.trial = result;
        Ok(outcome)
    }

    /// Waits until the router forwards as it must before an event.
    fn prepare(
        &self,
        ldp: &LdpSpeakers,
        (event, convergence): (ConvergenceEvent, &Convergence),
        trial: &TrialTraffic,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), RunFailure> {
        let to = &self.tester.directions[0].to;
        self.reset_readiness();
        self.announce(trial.operation);
        let offer = offer_before(event, convergence);
        ldp.offer(to[0], offer);
        let timeout = Duration::from_nanos(self.tester.ready_within.0);
        let started = Instant::now();
        for port in to.iter().filter(|port| **port != to[0] || offer.has_session) {
            while let Some(fault) = ldp.session_fault(&self.ports, *port) {
                if stop() {
                    return Err(RunFailure::Interrupted);
                }
                if started.elapsed() > timeout {
                    return Err(RunFailure::Failed(format!("{}: {fault}", event.name())));
                }
                std::thread::sleep(CHECK_INTERVAL);
            }
        }
        let is_in_use = offer.has_session && offer.has_labels;
        let before = match is_in_use || to.len() > 1 {
            true => ExpectedForwarding::All(ExpectedPort::Any),
            false => ExpectedForwarding::NoPackets,
        };
        let networks = u64::from(self.tester.networks);
        self.wait_until_forwarding(before, trial.operation, trial.lengths[0], networks, stop)?;
        if is_in_use { self.wait_until_used(trial, (timeout, started), stop) } else { Ok(()) }
    }

    /// Waits until packets leave to the first receiving port: with alternatives, the router could use those alone.
    fn wait_until_used(
        &self,
        trial: &TrialTraffic,
        (timeout, started): (Duration, Instant),
        stop: &dyn Fn() -> bool,
    ) -> Result<(), RunFailure> {
        let runner = TrialRunner { expected_port: ExpectedPort::Only(0), ..self.trial_runner() };
        let frames = u64::from(self.tester.networks);
        loop {
            let number = self.trials.fetch_add(1, Ordering::Relaxed);
            let probe = TrialTraffic { number, frames, ends_early: false, ..trial.clone() };
            let result = runner.run(&probe, stop);
            if stop() {
                return Err(RunFailure::Interrupted);
            }
            match result {
                Ok(result) if result.tally.received > 0 => return Ok(()),
                Ok(_) | Err(TrialError::Labels(_)) => {}
                Err(error) => return Err(RunFailure::Failed(error.to_string())),
            }
            if started.elapsed() > timeout {
                let port = &self.ports[self.tester.directions[0].to[0]].settings;
                return Err(RunFailure::Failed(format!(
                    "{} sends no packets to port `{}`: check that {} is a next hop of its routes to the LSPs' ends \
                     (netstage test router CONFIG --setup frr prints such routes)",
                    self.tester.router, port.name, port.address.0
                )));
            }
        }
    }
}

/// Returns what the first receiving port offers before an event.
fn offer_before(event: ConvergenceEvent, convergence: &Convergence) -> Offer {
    let restart = GracefulRestart {
        reconnect: convergence.reconnect_time,
        recovery: convergence.reconnect_time,
        // The labels of the router under test are not kept, so that the loss of its session shows at once.
        neighbor_liveness: Time::ZERO,
        max_recovery: Time::ZERO,
    };
    Offer {
        has_session: event != ConvergenceEvent::LdpSessionUp,
        has_labels: event != ConvergenceEvent::LabelMapping,
        restart: (event == ConvergenceEvent::LdpRestart).then_some(restart),
    }
}

/// Returns what the first receiving port offers after an event.
fn offer_after(event: ConvergenceEvent, convergence: &Convergence) -> Offer {
    let ends = matches!(event, ConvergenceEvent::LdpSessionLoss | ConvergenceEvent::LdpShutdown);
    Offer {
        has_session: !ends,
        has_labels: event != ConvergenceEvent::LabelWithdraw,
        ..offer_before(event, convergence)
    }
}

impl EventPort<'_> {
    fn cause(&self, event: ConvergenceEvent, convergence: &Convergence) {
        let (ldp, port) = (self.ldp, self.number);
        match event {
            ConvergenceEvent::LdpSessionLoss => ldp.end_session(port, SessionEnding::Reset, None),
            ConvergenceEvent::LdpShutdown => ldp.end_session(port, SessionEnding::Shutdown, None),
            ConvergenceEvent::LdpSessionUp => ldp.resume(port),
            ConvergenceEvent::LabelWithdraw => ldp.set_labels(port, false),
            ConvergenceEvent::LabelMapping => ldp.set_labels(port, true),
            ConvergenceEvent::LdpRestart => {
                ldp.end_session(port, SessionEnding::Reset, Some(convergence.restart_after));
            }
            ConvergenceEvent::Withdraw | ConvergenceEvent::Announce | ConvergenceEvent::Failure => {}
        }
    }

    /// Describes what the router did after an event, besides the packets' times.
    fn observations(
        &self,
        event: ConvergenceEvent,
        watched: &EventArrivals,
        after: &LdpPeerState,
        (name, has_alternative): (&str, bool),
    ) -> Vec<String> {
        let since = |ns: u64| milliseconds(ns.saturating_sub(watched.event_ns));
        let of_port = || watched.arrivals[self.number].iter();
        let mut found = Vec::new();
        match event {
            ConvergenceEvent::LdpSessionUp if after.is_up => {
                found.push(format!("the session was up {} after the first hello", since(after.up_ns)));
            }
            ConvergenceEvent::LdpSessionUp => {
                found.push("the session was not up at the end of the trial".to_owned());
            }
            ConvergenceEvent::LdpRestart => {
                found.push(ft_session_text(self.ft_session));
                found.push(match after.is_up && after.up_ns > watched.event_ns {
                    true => format!("the session was up again {} after its loss", since(after.up_ns)),
                    false => "the session was not up again at the end of the trial".to_owned(),
                });
            }
            ConvergenceEvent::LabelWithdraw => {
                let count = after.released.0.saturating_sub(self.before.released.0);
                let last = (count > 0).then(|| format!(", the last {} later", since(after.released.1)));
                found.push(format!(
                    "the router released {count} of {} withdrawn labels{}",
                    self.ldp.label_count(self.number),
                    last.unwrap_or_default()
                ));
            }
            _ => {}
        }
        if has_alternative {
            let last = of_port().map(|arrival| arrival.last_ns).max().unwrap_or(0);
            let ends = !offers_labels(event);
            if ends && last > watched.event_ns {
                found.push(format!("the last packet at port {name} arrived {} after the event", since(last)));
            }
            if !ends && of_port().all(|arrival| arrival.first_ns == 0) {
                found.push(format!("no packet arrived at port {name} after the event"));
            }
        }
        found
    }
}

/// Returns whether the first receiving port offers labels after an event.
fn offers_labels(event: ConvergenceEvent) -> bool {
    matches!(
        event,
        ConvergenceEvent::LdpSessionUp | ConvergenceEvent::LabelMapping | ConvergenceEvent::LdpRestart
    )
}

fn ft_session_text(ft_session: Option<FtSession>) -> String {
    let Some(found) = ft_session else {
        return "the router advertises no FT Session TLV, so it does not support graceful restart".to_owned();
    };
    let seconds = |ms: u32| f64::from(ms) / 1e3;
    format!(
        "the router advertises the FT Session TLV with reconnect timeout {} s and recovery time {} s{}",
        seconds(found.reconnect_timeout_ms),
        seconds(found.recovery_time_ms),
        if found.learns_from_network { "" } else { ", without the flag \"learn from network\"" }
    )
}

fn milliseconds(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

/// Returns the times of the networks, each with its number of networks.
fn times(
    event: ConvergenceEvent,
    watched: &EventArrivals,
    (first, others): (usize, &[usize]),
    (port, gap_ns): (&LdpPeerState, u64),
) -> Vec<(u64, u64)> {
    match event {
        ConvergenceEvent::LdpRestart => gaps(watched, gap_ns),
        ConvergenceEvent::LdpSessionUp if !port.is_up => Vec::new(),
        ConvergenceEvent::LdpSessionUp => settled_times(watched, port.up_ns, gap_ns),
        ConvergenceEvent::LabelMapping => settled_times(watched, watched.event_ns, gap_ns),
        _ if others.is_empty() => end_times(watched, first, gap_ns),
        _ => moved_times(watched, (first, others), gap_ns),
    }
}

/// Returns the times from the event to the first packet of each network at another port. A network whose packets still
/// arrive at the first port at the end, or no longer at all, is omitted; `gap_ns` is the time between two of its packets.
fn moved_times(watched: &EventArrivals, (first, others): (usize, &[usize]), gap_ns: u64) -> Vec<(u64, u64)> {
    let is_present = |arrival: &NetworkArrival| arrival.last_ns + 2 * gap_ns >= watched.end_ns;
    let moved = |network: usize| {
        let arrivals = || others.iter().map(|port| &watched.arrivals[*port][network]);
        let has_moved = !is_present(&watched.arrivals[first][network]) && arrivals().any(is_present);
        let times = arrivals().map(|arrival| arrival.first_ns).filter(|first| *first > 0);
        times.min().filter(|_| has_moved).map(|first| first.saturating_sub(watched.event_ns))
    };
    counted((0..watched.arrivals[first].len()).filter_map(moved).collect())
}

/// Returns the times from `since_ns` to the first packet of each network after the event at the port at which its packets
/// arrive at the end. A network whose packets do not arrive is omitted.
fn settled_times(watched: &EventArrivals, since_ns: u64, gap_ns: u64) -> Vec<(u64, u64)> {
    let networks = watched.arrivals.first().map_or(0, Vec::len);
    let settled = |network: usize| {
        let arrivals = watched.arrivals.iter().map(|port| port[network]);
        let present = arrivals.max_by_key(|arrival| arrival.last_ns)?;
        let is_present = present.last_ns + 2 * gap_ns >= watched.end_ns && present.first_ns > 0;
        is_present.then(|| present.first_ns.saturating_sub(since_ns))
    };
    counted((0..networks).filter_map(settled).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convergence::tests::arrivals;

    #[test]
    fn a_network_moves_with_its_first_packet_at_another_port() {
        // Networks that move, stay at the first port, have no packets any more, and were at the other port before.
        let first = arrivals(&[(1_100, 1_500), (1_100, 8_900), (1_100, 1_200), (0, 0)]);
        let other = arrivals(&[(1_700, 9_000), (0, 0), (0, 0), (1_050, 9_000)]);
        let watched = EventArrivals { event_ns: 1_000, end_ns: 9_000, arrivals: vec![first, other] };
        assert_eq!(moved_times(&watched, (0, &[1]), 100), [(50, 1), (700, 1)]);
    }

    #[test]
    fn a_network_settles_at_the_port_of_its_last_packets() {
        // Networks that return to the first port, stay at the other, and do not return.
        let first = arrivals(&[(3_000, 9_000), (0, 0), (1_100, 2_000)]);
        let other = arrivals(&[(1_100, 2_900), (1_200, 8_900), (0, 0)]);
        let watched = EventArrivals { event_ns: 1_000, end_ns: 9_000, arrivals: vec![first, other] };
        assert_eq!(settled_times(&watched, 1_000, 100), [(200, 1), (2_000, 1)]);
        // The session was up later than the event.
        assert_eq!(settled_times(&watched, 2_500, 100), [(0, 1), (500, 1)]);
    }

    #[test]
    fn the_ft_session_tlv_is_described() {
        let found =
            FtSession { learns_from_network: true, reconnect_timeout_ms: 120_000, recovery_time_ms: 1_500 };
        let text = ft_session_text(Some(found));
        assert!(text.ends_with("reconnect timeout 120 s and recovery time 1.5 s"), "{text}");
        assert!(ft_session_text(None).contains("does not support graceful restart"));
    }
}
