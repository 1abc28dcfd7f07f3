//! The stage a router is tested on: it runs the plan of a trial as any stage does, but that what is between
//! sender and receiver is a real router.

use super::beside;
use super::calibration::{Calibration, calibrate};
use super::choice::{Choice, choose};
use super::convergence::Forwards;
use super::lsps::Lsps;
use super::port::{LIFETIME, Port};
use super::routes::Sessions;
use super::trial::{Asked, Came, Failed, Leaving, Means};
use crate::netns::Namespace;
use crate::obstacle::Obstacle;
use netstage_core::traffic::Pattern;
use netstage_scenario::outcome::{Distribution, Load, Metric, Outcome, Series, Stopped, Totals};
use netstage_scenario::plan::{FlowGroup, Plan};
use netstage_scenario::tester::{Event, Generator, Operation, PacketSize, Tester, Told, of_test};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Addresses are kept this often.
const KEEP: Duration = Duration::from_secs(LIFETIME.as_secs() / 4);
/// Packets a second with which the tester sees whether the router is ready.
const SLOWLY: f64 = 100_000.0;

/// The tester, and the router that it surrounds.
#[derive(Debug)]
pub struct Bench {
    pub(super) tester: Tester,
    pub(super) ports: Vec<Port>,
    namespace: Namespace,
    choice: Choice,
    trials: AtomicU16,
    /// What the router was seen to do.
    ready: Mutex<BTreeSet<Operation>>,
    calibration: Calibration,
    lsps: Lsps,
    /// By which it is told of routes, where it is.
    sessions: Option<Mutex<Sessions>>,
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

    /// Sees that the router does with a packet to each network what it is to do, before anything is measured.
    fn make_ready(&self, operation: Operation, stop: &dyn Fn() -> bool) -> Result<(), Stopped> {
        if lock(&self.ready).contains(&operation) {
            return Ok(());
        }
        let networks = u64::from(self.tester.networks) * self.tester.ways.len() as u64;
        let (shortest, longest) = self.tester.lengths().into_inner();
        self.announce(operation);
        // One to each network of the shortest, then some of the longest.
        for (length, frames) in [(shortest, networks), (longest, networks.min(1_000))] {
            self.wait_until(Forwards::By(Leaving::Spread), operation, length, frames, stop)?;
        }
        lock(&self.ready).insert(operation);
        Ok(())
    }

    /// Waits until a router does so with packets, as long as it may take.
    pub(super) fn wait_until(
        &self,
        forwards: Forwards,
        operation: Operation,
        length: u16,
        frames: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Stopped> {
        let patience = Duration::from_nanos(self.tester.ready_within.0);
        let asked = Asked {
            operation,
            lengths: vec![length],
            rate: (frames as f64).clamp(1_000.0, SLOWLY),
            frames,
            drain: Duration::from_millis(200),
            number: 0,
            ends_early: false,
        };
        let (leaving, forwarded) = match forwards {
            Forwards::By(leaving) => (leaving, frames),
            Forwards::Nothing => (Leaving::Anywhere, 0),
        };
        let started = Instant::now();
        loop {
            let number = self.trials.fetch_add(1, Ordering::Relaxed);
            let means = Means { leaving, ..self.means() };
            let came = means.run(&Asked { number, ..asked.clone() }, stop);
            if stop() {
                return Err(Stopped::Interrupted);
            }
            let why = match came {
                Ok(came) if came.sent == frames && came.is_clean(forwarded) => match self.obstacle(operation)
                {
                    None => return Ok(()),
                    Some(obstacle) => obstacle,
                },
                Ok(came) if forwards == Forwards::Nothing => format!(
                    "{} still forwards {} of {} packets to networks whose routes were withdrawn",
                    self.tester.router, came.tally.received, came.sent
                ),
                Ok(came) => self.not_ready(operation, length, &came),
                Err(Failed::Labels(why)) => format!("{}: {why}", operation.name()),
                Err(Failed::Programs(error)) => return Err(Stopped::Failed(error.to_string())),
            };
            if started.elapsed() > patience {
                return Err(Stopped::Failed(self.obstacle(operation).unwrap_or(why)));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// What keeps an operation's routes from being told.
    fn obstacle(&self, operation: Operation) -> Option<String> {
        let sessions = self.sessions.as_ref().filter(|_| operation.is_routed())?;
        lock(sessions).obstacle(&self.ports)
    }

    /// How many sessions with the router have ended, and of one of them why.
    fn ended(&self) -> (u32, Option<String>) {
        let told = self.sessions.as_ref().map(|sessions| lock(sessions).ended(&self.ports));
        let (routes, labels) = (told.unwrap_or_default(), self.lsps.ended(&self.ports));
        (routes.0 + labels.0, routes.1.or(labels.1))
    }

    /// Whatever the router was seen to do is to be seen again.
    pub(super) fn forget(&self) {
        lock(&self.ready).clear();
    }

    /// The sessions of a tester that tells routes by BGP.
    pub(super) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        lock(self.sessions.as_ref().expect("a configuration with [convergence] has sessions"))
    }

    /// Tells the router of what an operation needs. What is announced for another one is not there any more.
    fn announce(&self, operation: Operation) {
        let Some(sessions) = &self.sessions else { return };
        lock(sessions).announce(&self.tester, &self.ports, operation);
        let mut ready = lock(&self.ready);
        if operation.is_routed() {
            ready.retain(|other| (*other == Operation::Push) == (operation == Operation::Push));
        }
    }

    fn not_ready(&self, operation: Operation, length: u16, came: &Came) -> String {
        let (name, router) = (operation.name(), &self.tester.router);
        let told = format!("{name}: of {} packets of {length} B, one to each network,", came.sent);
        let tally = &came.tally;
        if let Some(wrong) = &came.wrong {
            return format!("{told} {router} forwarded {} otherwise than it shall: {wrong}", tally.wrong);
        }
        if tally.stray > 0 {
            return format!(
                "{told} {router} sent {} to another port than the one they shall leave by",
                tally.stray
            );
        }
        if tally.duplicates > 0 {
            return format!("{told} {router} sent {} of them more than once", tally.duplicates);
        }
        if tally.received == 0 {
            return format!(
                "{told} none came back from {router}: see that it forwards at all, its routes and labels (netstage test \
                 router CONFIG --setup prints what it needs), the MTU of its links (a label takes 4 B), and that GRO is on at its ends of veth \
                 pairs (ethtool -K NAME gro on)"
            );
        }
        format!(
            "{told} {} came back from {router}: it does not know all routes or labels yet",
            tally.received
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a stage tells of a trial.
fn outcome(
    plan: &Plan,
    flow: &FlowGroup,
    asked: &Asked,
    payload: u32,
    came: &Came,
    own: netstage_core::time::Duration,
) -> Outcome {
    let subject = flow.name.clone();
    let interval = plan.measure.interval;
    let bins = plan.duration.0.div_ceil(interval.0).max(1) as usize;
    let whole = 1_000_000_000 == interval.0;
    let tally = &came.tally;
    // By the second where seconds are asked for; else all in one bin.
    let received: Vec<f64> = match whole {
        true => (0..bins).map(|bin| tally.seconds.get(bin).map_or(0.0, |second| second.0 as f64)).collect(),
        false => std::iter::once(tally.received as f64).chain(std::iter::repeat(0.0)).take(bins).collect(),
    };
    let mean = |(frames, sum): (u64, u64)| match frames {
        0 => f64::NAN,
        _ => (sum as f64 / frames as f64 - own.0 as f64).max(0.0) / 1e9,
    };
    let delays: Vec<f64> = match whole {
        true => (0..bins).map(|bin| mean(tally.seconds.get(bin).copied().unwrap_or_default())).collect(),
        false => {
            let all = tally.seconds.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
            std::iter::once(mean(all)).chain(std::iter::repeat(f64::NAN)).take(bins).collect()
        }
    };
    let first = |count: u64| std::iter::once(count as f64).chain(std::iter::repeat(0.0)).take(bins).collect();
    let bits = 8.0 * f64::from(payload) / interval.as_secs_f64();
    let series = |metric, values| Series { metric, subject: subject.clone(), values };
    let load = |quantity: &str, unit: &str, asked, achieved| Load {
        subject: subject.clone(),
        quantity: quantity.into(),
        unit: unit.into(),
        layer: String::new(),
        asked,
        achieved,
    };
    let less = |delay: u64| delay.saturating_sub(own.0);
    let mut buckets: Vec<(u64, u64)> =
        tally.delays.iter().map(|(delay, times)| (less(*delay), *times)).collect();
    buckets.sort_unstable();
    buckets.dedup_by(|next, one| {
        let is_same = next.0 == one.0;
        one.1 += if is_same { next.1 } else { 0 };
        is_same
    });
    Outcome {
        interval,
        bins,
        series: vec![
            series(Metric::FlowThroughput, received.iter().map(|frames| frames * bits).collect()),
            series(Metric::FlowSent, first(came.sent)),
            series(Metric::FlowDuplicated, first(tally.duplicates)),
            series(Metric::FlowReordered, first(tally.reordered)),
            series(Metric::FlowCorrupted, first(tally.wrong)),
            series(Metric::FlowDelay, delays),
        ],
        distributions: vec![Distribution { metric: Metric::FlowDelay, subject: subject.clone(), buckets }],
        loads: vec![
            load("rate", "packets/s", asked.rate, came.offered),
            load("burst", "packets", f64::from(came.burst), f64::from(came.burst)),
        ],
        totals: Totals { sent: came.sent, delivered: tally.received, ..Totals::default() },
        ..Outcome::default()
    }
}
