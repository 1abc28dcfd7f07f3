//! Follows the kernel: where each peer is to be sent to, whenever routes, neighbours or
//! interfaces change.

use super::crew::Orders;
use super::forward::Order;
use super::host::{Host, Way};
use netstage_host::netns::lookup::Bell;
use netstage_host::obstacle::Obstacle;
use netstage_scenario::pe::Router;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Changes come in bursts: this long is waited for more of them.
const SETTLE: Duration = Duration::from_millis(10);
/// What the kernel knows is looked at again this often while a peer cannot be reached, and
/// otherwise, since the kernel forgets what nobody seems to use.
const IMPATIENT: Duration = Duration::from_millis(500);
const PATIENT: Duration = Duration::from_secs(5);

/// What is known of the ways to the peers.
#[derive(Debug)]
pub(super) struct Ways {
    pub router: Arc<Router>,
    /// Per peer: the way, or why there is none.
    pub ways: Vec<Result<Way, String>>,
}

/// Tells of a peer's way: its name, and the way or why there is none.
pub(super) type Tell = Box<dyn Fn(&str, &Result<Way, String>) + Send + Sync>;

struct Shared {
    host: Host,
    known: Ways,
}

/// The follower, from outside.
pub(super) struct Follower {
    shared: Arc<Mutex<Shared>>,
    orders: Orders,
    tell: Arc<Tell>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Finds all ways, tells the engine, and goes on following.
    pub fn begin(
        mut host: Host,
        router: Arc<Router>,
        orders: Orders,
        tell: Tell,
    ) -> Result<Follower, Obstacle> {
        let failed = |error: io::Error| Obstacle::system("the kernel cannot be followed", &error);
        let bell = Bell::open(&host.namespace).map_err(failed)?;
        let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let stop = Arc::new(stop.map_err(|error| failed(error.into()))?);
        let tell = Arc::new(tell);
        let mut known = Ways { ways: vec![Err(String::new()); router.peers.len()], router };
        refresh(&mut host, &mut known, &orders, &tell);
        let shared = Arc::new(Mutex::new(Shared { host, known }));
        let thread = {
            let (shared, orders, tell, stop) =
                (Arc::clone(&shared), orders.clone(), Arc::clone(&tell), Arc::clone(&stop));
            let follow = move || follow(&shared, &bell, &stop, &orders, &tell);
            std::thread::Builder::new().name("pe-follow".into()).spawn(follow).map_err(failed)?
        };
        Ok(Follower { shared, orders, tell, stop, thread: Some(thread) })
    }

    /// Does something with the machine while nothing is followed, and if that gives another
    /// configuration, which the engine then has, follows its peers from then on.
    pub fn change<E>(
        &self,
        change: impl FnOnce(&mut Host, &Router) -> Result<Arc<Router>, E>,
    ) -> Result<(), E> {
        let mut shared = lock(&self.shared);
        let Shared { host, known } = &mut *shared;
        let router = change(host, &known.router)?;
        let before: Vec<String> = known.router.peers.iter().map(|peer| peer.name.clone()).collect();
        let ways = router.peers.iter().map(|peer| {
            // What has not changed is not told again, but the engine numbers anew.
            let known_before = before.iter().position(|name| *name == peer.name);
            known_before.map_or(Err(String::new()), |number| known.ways[number].clone())
        });
        known.ways = ways.collect();
        known.router = router;
        for number in 0..known.ways.len() {
            give(known, number, &self.orders);
        }
        refresh(host, known, &self.orders, &self.tell);
        Ok(())
    }

    /// The ways at present.
    pub fn ways(&self) -> (Arc<Router>, Vec<Result<Way, String>>) {
        let shared = lock(&self.shared);
        (Arc::clone(&shared.known.router), shared.known.ways.clone())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // The worst a panic leaves behind is a way that is looked for again.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow(shared: &Mutex<Shared>, bell: &Bell, stop: &EventFd, orders: &Orders, tell: &Tell) {
    let mut next = Instant::now();
    loop {
        let left = next.saturating_duration_since(Instant::now());
        let mut descriptors =
            [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut descriptors, wait);
        let ready = descriptors.map(|one| one.revents().is_some_and(|events| !events.is_empty()));
        if ready[0] {
            return;
        }
        if ready[1] {
            std::thread::sleep(SETTLE);
            bell.has_rung();
        } else if Instant::now() < next {
            continue;
        }
        let mut shared = lock(shared);
        let Shared { host, known } = &mut *shared;
        refresh(host, known, orders, tell);
        let all = known.ways.iter().all(Result::is_ok);
        next = Instant::now() + if all { PATIENT } else { IMPATIENT };
    }
}

/// Looks for all ways, and tells of those that have changed.
fn refresh(host: &mut Host, known: &mut Ways, orders: &Orders, tell: &Tell) {
    for number in 0..known.ways.len() {
        let peer = &known.router.peers[number];
        let way = host.way(&known.router, &peer.tunnel, peer.mtu);
        if way == known.ways[number] {
            continue;
        }
        tell(&peer.name, &way);
        known.ways[number] = way;
        give(known, number, orders);
    }
}

fn give(known: &Ways, number: usize, orders: &Orders) {
    let way = known.ways[number].as_ref().ok().and_then(|way| {
        // The core's ports come first.
        let port = known.router.core.iter().position(|name| *name == way.interface)?;
        Some((port, way.mac, way.mtu))
    });
    orders.give(|| Order::Way(number, way));
}
