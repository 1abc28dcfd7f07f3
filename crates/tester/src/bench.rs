//! The stage a router is tested on: it runs the plan of a trial as any stage does, but that what is between
//! sender and receiver is a real router.

use super::beside;
use super::calibration::{Calibration, calibrate};
use super::choice::{Choice, choose};
use super::lsps::Lsps;
use super::outcome::outcome;
use super::port::{LIFETIME, Port};
use super::routes::Sessions;
use super::trial::{Asked, Leaving, Means};
use netstage_core::traffic::Pattern;
use netstage_host::netns::Namespace;
use netstage_host::obstacle::Obstacle;
use netstage_scenario::outcome::{Distribution, Metric, Outcome, Stopped};
use netstage_scenario::plan::Plan;
use netstage_scenario::tester::{Event, Generator, Operation, PacketSize, Tester, Told, of_test};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Addresses are kept this often.
const KEEP: Duration = Duration::from_secs(LIFETIME.as_secs() / 4);

/// The tester, and the router that it surrounds.
#[derive(Debug)]
pub struct Bench {
    pub(super) tester: Tester,
    pub(super) ports: Vec<Port>,
    namespace: Namespace,
    choice: Choice,
    pub(super) trials: AtomicU16,
    /// What the router was seen to do.
    pub(super) ready: Mutex<BTreeSet<Operation>>,
    calibration: Calibration,
    lsps: Lsps,
    /// By which it is told of routes, where it is.
    pub(super) sessions: Option<Mutex<Sessions>>,
    /// How many routes of a file it is told of beside, and how many of them are left out.
    told_beside: Option<(usize, usize)>,
}

impl Bench {
    /// Takes the interfaces of the calling thread's namespace.
    pub fn open(tester: &Tester) -> Result<Bench, Obstacle> {
        let failed = |error: std::io::Error| Obstacle::system("the network namespace", &error);
        Bench::within(tester, Namespace::of_this_thread().map_err(failed)?)
    }

    /// Takes the interfaces of a namespace.
    pub fn within(tester: &Tester, namespace: Namespace) -> Result<Bench, Obstacle> {
        let ports =
            tester.ports.iter().map(|port| Port::open(&namespace, port)).collect::<Result<Vec<_>, _>>()?;
        let labels = tester.operations.iter().map(|operation| operation.labels());
        let labels = labels.map(|(arriving, leaving)| arriving.max(leaving)).max().unwrap_or(0);
        ports.iter().try_for_each(|port| port.check_length((*tester.lengths().end()).into(), labels))?;
        let choice = choose(tester, &ports, &namespace);
        let calibration = calibrate(tester, choice.generator)?;
        let lsps = Lsps::begin(tester, &ports, &namespace);
        let lsps = lsps.map_err(|error| Obstacle::system("LDP cannot begin", &error))?;
        let beside = beside::read(tester, &ports)?;
        let told_beside = beside.as_ref().map(|beside| (beside.table.len(), beside.left_out));
        let sessions = match tester.told {
            Told::You => None,
            Told::Bgp => Some(Sessions::begin(tester, &ports, &namespace, beside.map(|beside| beside.table))),
        };
        let sessions = sessions.transpose().map_err(|error| Obstacle::system("BGP cannot begin", &error))?;
        let sessions = sessions.map(Mutex::new);
        Ok(Bench {
            tester: tester.clone(),
            ports,
            namespace,
            choice,
            trials: AtomicU16::new(0),
            ready: Mutex::default(),
            calibration,
            lsps,
            sessions,
            told_beside,
        })
    }

    /// Runs the plan of one trial.
    pub fn run(&self, plan: &Plan, stop: &dyn Fn() -> bool) -> Result<Outcome, Stopped> {
        let Some(flow) = plan.flows.first() else {
            return Err(Stopped::Unsupported("a router is tested by trials of packets".into()));
        };
        let name = flow.name.strip_prefix("test.").unwrap_or(&flow.name);
        let event = Event::of_test(name);
        let (Some((operation, is_mix)), Some(Pattern::Cbr { rate, packet })) =
            (event.map(|_| (Operation::Ip, false)).or(of_test(name)), flow.traffic.pattern())
        else {
            return Err(Stopped::Unsupported(format!("{}: no trial of a router", flow.name)));
        };
        let rate = rate.as_f64() / 8.0 / f64::from(*packet);
        let sending = flow.stop.since(flow.start).as_secs_f64();
        let headers = netstage_wire::IPV4_HEADER + netstage_wire::UDP_HEADER;
        let asked = Asked {
            operation,
            lengths: if is_mix { self.tester.mix() } else { PacketSize::Bytes(packet + headers) }.lengths(),
            rate,
            frames: ((sending * rate + 0.5) as u64).min(u64::from(u32::MAX)),
            drain: Duration::from_nanos(plan.duration.0.saturating_sub(flow.stop.0)),
            number: self.trials.fetch_add(1, Ordering::Relaxed),
            ends_early: true,
        };
        self.keeping(|| {
            if let (Some(event), Some(convergence)) = (event, &self.tester.convergence) {
                let (came, times) = self.converge((event, convergence), &asked, stop)?;
                let mut outcome = outcome(plan, flow, &asked, *packet, &came, self.calibration.own_delay);
                let (metric, subject) = (Metric::FlowConvergence, flow.name.clone());
                outcome.distributions.push(Distribution { metric, subject, buckets: times });
                return Ok(outcome);
            }
            self.make_ready(operation, stop)?;
            let before = self.ended().0;
            let came = self.means().run(&asked, stop).map_err(|error| Stopped::Failed(error.to_string()))?;
            if stop() {
                return Err(Stopped::Interrupted);
            }
            let mut outcome = outcome(plan, flow, &asked, *packet, &came, self.calibration.own_delay);
            let (after, why) = self.ended();
            // What it was told may be gone, and after a loss like this the router itself.
            if after > before || came.tally.received < came.sent / 2 {
                self.forget();
            }
            outcome.void.extend(why.filter(|_| after > before));
            Ok(outcome)
        })
    }

    pub(super) fn means(&self) -> Means<'_> {
        Means {
            tester: &self.tester,
            ports: &self.ports,
            namespace: &self.namespace,
            generator: self.choice.generator,
            lsps: &self.lsps,
            leaving: Leaving::Spread,
            is_loop: false,
        }
    }

    /// What the tester is by itself, in a sentence for reports.
    pub fn calibration(&self) -> String {
        let Calibration { own_delay, most } = self.calibration;
        let own_delay = own_delay.as_secs_f64() * 1e6;
        let sends = match self.choice.generator {
            Generator::Auto | Generator::Xdp => "a program in the kernel",
            Generator::AfXdp => "AF_XDP",
            Generator::AfPacket => "AF_PACKET",
        };
        format!(
            "The tester sends by {sends}. Its own delay, {own_delay:.2} us (median over a veth pair of this machine, without a router), is \
             taken from every delay. There it sends at most {:.2} million frames a second.",
            most / 1e6
        )
    }

    /// What it tells the router of beside the networks, in a sentence for reports.
    pub fn told_beside(&self) -> Option<String> {
        let (told, left_out) = self.told_beside?;
        let file = self.tester.bgp.beside.as_ref()?.file_name()?.to_string_lossy().into_owned();
        Some(format!(
            "Beside the networks the router is told of {told} routes of {file} ({left_out} left out)."
        ))
    }

    /// Why it does not send faster, where the configuration left it the choice.
    pub fn slower_because(&self) -> &[String] {
        &self.choice.because
    }

    /// Does something while the addresses are kept.
    fn keeping<T>(&self, task: impl FnOnce() -> Result<T, Stopped>) -> Result<T, Stopped> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let keeper = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // What fails here shows in the trial: the router finds nobody.
                    self.ports.iter().for_each(|port| drop(port.keep()));
                    std::thread::park_timeout(KEEP);
                }
            });
            let done = task();
            over.store(true, Ordering::Relaxed);
            keeper.thread().unpark();
            done
        })
    }

    /// How many sessions with the router have ended, and of one of them why.
    fn ended(&self) -> (u32, Option<String>) {
        let told = self.sessions.as_ref().map(|sessions| lock(sessions).ended(&self.ports));
        let (routes, labels) = (told.unwrap_or_default(), self.lsps.ended(&self.ports));
        (routes.0 + labels.0, routes.1.or(labels.1))
    }

    /// The sessions of a tester that tells routes by BGP.
    pub(super) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        lock(self.sessions.as_ref().expect("a configuration with [convergence] has sessions"))
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
