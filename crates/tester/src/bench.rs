//! Stage of a router test: it runs the plan of a trial like any stage, but with a real router between sender
//! and receiver.

use super::background;
use super::calibration::{Calibration, calibrate};
use super::generator_choice::{GeneratorChoice, choose_generator};
use super::lsps::Lsps;
use super::outcome::outcome;
use super::port::{ADDRESS_LIFETIME, OpenPort};
use super::routes::BgpSessions;
use super::trial::{ExpectedPort, TrialRunner, TrialTraffic};
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::traffic::Pattern;
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use netstage_scenario::outcome::finding::PacketFault;
use netstage_scenario::outcome::{Distribution, Metric, RunFailure, RunOutcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::tester::{
    ConvergenceEvent, Generator, Operation, PacketSize, RouteSource, Tester, parse_test_name,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval at which the lifetime of the port addresses is renewed.
const RENEWAL: Duration = Duration::from_secs(ADDRESS_LIFETIME.as_secs() / 4);

/// Tester attached to a router.
#[derive(Debug)]
pub struct TestBench {
    pub(super) tester: Tester,
    pub(super) ports: Vec<OpenPort>,
    namespace: Namespace,
    choice: GeneratorChoice,
    pub(super) trials: AtomicU16,
    /// Operations that the router has been observed to perform.
    pub(super) ready: Mutex<BTreeSet<Operation>>,
    /// Faults of packets that preceded the next trial.
    pub(super) early_faults: Mutex<Vec<PacketFault>>,
    calibration: Calibration,
    pub(super) lsps: Lsps,
    /// BGP sessions, if routes are announced by BGP.
    pub(super) sessions: Option<Mutex<BgpSessions>>,
    /// Number of background routes announced, and number of routes of the file that are left out.
    background: Option<(usize, usize)>,
}

impl TestBench {
    /// Opens the interfaces in the namespace of the calling thread.
    pub fn open(tester: &Tester) -> Result<TestBench, StartupError> {
        let failed = |error: std::io::Error| StartupError::from_system("the network namespace", &error);
        TestBench::within(tester, Namespace::of_this_thread().map_err(failed)?)
    }

    /// Opens the interfaces in a namespace.
    pub fn within(tester: &Tester, namespace: Namespace) -> Result<TestBench, StartupError> {
        let ports = tester
            .ports
            .iter()
            .map(|port| OpenPort::open(&namespace, port))
            .collect::<Result<Vec<_>, _>>()?;
        let labels = tester.signaled_operations().map(Operation::labels);
        let labels = labels.map(|(ingress, egress)| ingress.max(egress)).max().unwrap_or(0);
        ports.iter().try_for_each(|port| port.check_length((*tester.lengths().end()).into(), labels))?;
        let choice = choose_generator(tester, &ports, &namespace);
        let calibration = calibrate(tester, choice.generator)?;
        let lsps = Lsps::start(tester, &ports, &namespace);
        let lsps =
            lsps.map_err(|error| StartupError::from_system("cannot start the label distribution", &error))?;
        let routes = background::read_background(tester, &ports)?;
        let background = routes.as_ref().map(|routes| (routes.table.len(), routes.left_out));
        let sessions = match tester.route_source {
            RouteSource::User => None,
            RouteSource::Bgp => {
                Some(BgpSessions::start(tester, &ports, &namespace, routes.map(|routes| routes.table)))
            }
        };
        let sessions =
            sessions.transpose().map_err(|error| StartupError::from_system("cannot start BGP", &error))?;
        let sessions = sessions.map(Mutex::new);
        Ok(TestBench {
            tester: tester.clone(),
            ports,
            namespace,
            choice,
            trials: AtomicU16::new(0),
            ready: Mutex::default(),
            early_faults: Mutex::default(),
            calibration,
            lsps,
            sessions,
            background,
        })
    }

    /// Runs the plan of one trial.
    pub fn run(&self, plan: &Plan, stop: &dyn Fn() -> bool) -> Result<RunOutcome, RunFailure> {
        let Some(flow) = plan.flows.first() else {
            return Err(RunFailure::Unsupported("a router test needs a plan with a flow".into()));
        };
        let name = flow.name.strip_prefix("test.").unwrap_or(&flow.name);
        let event = ConvergenceEvent::from_test_name(name);
        let (Some((operation, is_mix)), Some(Pattern::Cbr { rate, packet })) =
            (self.operation_at(event).or(parse_test_name(name)), flow.traffic.pattern())
        else {
            return Err(RunFailure::Unsupported(format!("{}: not a trial of a router test", flow.name)));
        };
        let rate = rate.as_f64() / 8.0 / f64::from(*packet);
        let sending = flow.stop.since(flow.start).as_secs_f64();
        let headers = netstage_wire::IPV4_HEADER + netstage_wire::UDP_HEADER;
        let trial = TrialTraffic {
            operation,
            lengths: if is_mix { self.tester.mix() } else { PacketSize::Bytes(packet + headers) }.lengths(),
            rate,
            frames: ((sending * rate + 0.5) as u64).min(u64::from(u32::MAX)),
            drain: Duration::from_nanos(self.tester.drain.0),
            number: self.trials.fetch_add(1, Ordering::Relaxed),
            ends_early: true,
        };
        self.with_addresses_renewed(|| {
            if let (Some(event), Some(convergence)) = (event, &self.tester.convergence) {
                let found = self.converge((event, convergence), &trial, stop)?;
                let own_delay = self.calibration.own_delay;
                let mut outcome = outcome(plan, flow, &trial, *packet, &found.trial, own_delay);
                let (metric, subject) = (Metric::FlowConvergence, flow.name.clone());
                outcome.distributions.push(Distribution { metric, subject, buckets: found.times });
                outcome.observations = found.observations;
                outcome.void.extend(found.ended.map(|reason| ended_session(reason, plan)));
                return Ok(outcome);
            }
            self.make_ready(operation, stop)?;
            let before = self.ended_sessions().0;
            let result = self
                .trial_runner()
                .run(&trial, stop)
                .map_err(|error| RunFailure::Failed(error.to_string()))?;
            if stop() {
                return Err(RunFailure::Interrupted);
            }
            let mut outcome = outcome(plan, flow, &trial, *packet, &result, self.calibration.own_delay);
            outcome.packet_faults.append(&mut lock(&self.early_faults));
            let (after, reason) = self.ended_sessions();
            // A session that ended may have taken its routes along. A loss of more than half suggests that
            // the router restarts.
            if after > before || result.tally.received < result.sent / 2 {
                self.reset_readiness();
            }
            let ended = reason.filter(|_| after > before);
            outcome.void.extend(ended.map(|reason| ended_session(reason, plan)));
            Ok(outcome)
        })
    }

    /// Returns the operation of the packets in the trial of an event, which have one length.
    fn operation_at(&self, event: Option<ConvergenceEvent>) -> Option<(Operation, bool)> {
        Some((self.tester.convergence.as_ref()?.operation_at(event?), false))
    }

    pub(super) fn trial_runner(&self) -> TrialRunner<'_> {
        TrialRunner {
            tester: &self.tester,
            ports: &self.ports,
            namespace: &self.namespace,
            generator: self.choice.generator,
            lsps: &self.lsps,
            expected_port: ExpectedPort::Spread,
            is_loop: false,
        }
    }

    /// Describes the tester's own delay and maximum rate, for reports.
    pub fn calibration(&self) -> String {
        let Calibration { own_delay, max_rate: most } = self.calibration;
        let own_delay = own_delay.as_secs_f64() * 1e6;
        let generator = match self.choice.generator {
            Generator::Auto | Generator::Xdp => "an XDP program",
            Generator::AfXdp => "AF_XDP",
            Generator::AfPacket => "AF_PACKET",
        };
        format!(
            "The tester sends by {generator}. Its own delay of {own_delay:.2} us (median over a veth pair of this \
             machine, without a router) is subtracted from every delay. Its maximum rate over the veth pair is \
             {:.2} million frames/s.",
            most / 1e6
        )
    }

    /// Describes the background routes announced to the router, for reports.
    pub fn background_summary(&self) -> Option<String> {
        let (announced, left_out) = self.background?;
        let file = self.tester.bgp.additional_routes.as_ref()?.file_name()?.to_string_lossy().into_owned();
        Some(format!(
            "In addition to the tested networks, the tester announces {announced} routes of {file} \
             ({left_out} left out)."
        ))
    }

    /// Returns the reasons why faster generators are not used, if the configuration leaves the choice.
    pub fn slower_reasons(&self) -> &[String] {
        &self.choice.reasons
    }

    /// Runs a task while the lifetime of the port addresses is renewed.
    fn with_addresses_renewed<T>(
        &self,
        task: impl FnOnce() -> Result<T, RunFailure>,
    ) -> Result<T, RunFailure> {
        let is_finished = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let renewal = scope.spawn(|| {
                while !is_finished.load(Ordering::Relaxed) {
                    // A failure shows in the trial, because the router cannot resolve the address.
                    self.ports.iter().for_each(|port| drop(port.renew_address()));
                    std::thread::park_timeout(RENEWAL);
                }
            });
            let result = task();
            is_finished.store(true, Ordering::Relaxed);
            renewal.thread().unpark();
            result
        })
    }

    /// Returns the number of sessions with the router that have ended, and the reason of one of them.
    fn ended_sessions(&self) -> (u32, Option<String>) {
        let routes = self.sessions.as_ref().map(|sessions| lock(sessions).ended_sessions(&self.ports));
        let (routes, labels) = (routes.unwrap_or_default(), self.lsps.ended_sessions(&self.ports, None));
        (routes.0 + labels.0, routes.1.or(labels.1))
    }

    /// Returns the BGP sessions. Panics if routes are not announced by BGP.
    pub(super) fn sessions(&self) -> MutexGuard<'_, BgpSessions> {
        lock(self.sessions.as_ref().expect("a configuration with [convergence] has sessions"))
    }
}

/// Returns why a trial in which a session ended is void.
fn ended_session(reason: String, plan: &Plan) -> String {
    VoidReason::new("the tester's peer:", format!("{reason},"), FaultTime::Within(plan.duration)).into()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
