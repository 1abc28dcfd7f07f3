//! Before anything is measured: the router is told what it needs, and waited for until it does with a packet
//! to each network what it is to do. What it does instead is said.

use super::bench::{Bench, lock};
use super::convergence::Forwards;
use super::trial::{Asked, Came, Failed, Leaving, Means};
use netstage_scenario::outcome::Stopped;
use netstage_scenario::tester::Operation;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Min and max rate of the packets that show whether the router is ready, in packets a second.
const READINESS_RATE: (f64, f64) = (1_000.0, 100_000.0);
/// How long they take between these rates, in seconds.
const READINESS_SECONDS: f64 = 0.1;

impl Bench {
    /// Sees that the router does with a packet to each network what it is to do, before anything is measured.
    pub(super) fn make_ready(&self, operation: Operation, stop: &dyn Fn() -> bool) -> Result<(), Stopped> {
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
            rate: (frames as f64 / READINESS_SECONDS).clamp(READINESS_RATE.0, READINESS_RATE.1),
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
                Err(error) => return Err(Stopped::Failed(error.to_string())),
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

    /// Whatever the router was seen to do is to be seen again.
    pub(super) fn forget(&self) {
        lock(&self.ready).clear();
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
