//! Follows the kernel: updates the route to each peer when routes, neighbors or interfaces change, and takes interfaces
//! up again that were removed and recreated.

use super::forward::PeCommand;
use super::host::{Host, PeerRoute};
use super::threads::AllCommandSenders;
use netstage_host::netns::lookup::ChangeMonitor;
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::PeConfig;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Changes come in bursts; delay before the first one is processed.
const SETTLE: Duration = Duration::from_millis(10);
/// Refresh intervals while a peer is unreachable and otherwise. The refresh is needed because the kernel
/// forgets neighbor entries that seem unused.
const IMPATIENT: Duration = Duration::from_millis(500);
const PATIENT: Duration = Duration::from_secs(5);
/// Time in which a new peer may become reachable before that is an alarm: the kernel asks for a neighbor three times, once a
/// second.
const RESOLUTION: Duration = Duration::from_secs(4);

/// Present routes to the peers.
#[derive(Debug)]
pub(super) struct PeerRoutes {
    pub router: Arc<PeConfig>,
    /// Route to each peer, or the reason why there is none.
    pub routes: Vec<Result<PeerRoute, String>>,
    /// Start of the resolution of each peer that has not been resolved or reported yet.
    resolving: Vec<Option<Instant>>,
}

impl PeerRoutes {
    fn unresolved(router: Arc<PeConfig>) -> PeerRoutes {
        let peers = router.peers.len();
        let resolving = vec![Some(Instant::now()); peers];
        PeerRoutes { router, routes: vec![Err("its route is being resolved".into()); peers], resolving }
    }
}

/// Callback for a changed route: peer name, and the route or the reason why there is none.
pub(super) type RouteCallback = Box<dyn Fn(&str, &Result<PeerRoute, String>) + Send + Sync>;

/// Callback for interfaces that are others now than those the router opened. Returns whether it opened them.
pub(super) type InterfaceCallback = Box<dyn Fn(&mut Host, &PeConfig, &BTreeSet<String>) -> bool + Send>;

struct FollowerState {
    host: Host,
    known: PeerRoutes,
    /// The kernel's number of each interface when it was opened.
    opened: BTreeMap<String, u32>,
}

/// Handle to the thread.
pub(super) struct RouteFollower {
    shared: Arc<Mutex<FollowerState>>,
    orders: AllCommandSenders,
    report: Arc<RouteCallback>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl RouteFollower {
    /// Resolves all routes, passes them to the engines, and starts to follow changes.
    pub fn begin(
        mut host: Host,
        router: Arc<PeConfig>,
        orders: AllCommandSenders,
        report: RouteCallback,
        reopen: InterfaceCallback,
    ) -> Result<RouteFollower, StartupError> {
        let failed =
            |error: io::Error| StartupError::from_system("cannot follow the kernel's routes", &error);
        let bell = ChangeMonitor::open(&host.namespace).map_err(failed)?;
        let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let stop = Arc::new(stop.map_err(|error| failed(error.into()))?);
        let report = Arc::new(report);
        let opened = host.link_numbers(&router);
        let mut known = PeerRoutes::unresolved(router);
        refresh(&mut host, &mut known, &orders, &report);
        let shared = Arc::new(Mutex::new(FollowerState { host, known, opened }));
        let thread = {
            let (shared, orders, report, stop) =
                (Arc::clone(&shared), orders.clone(), Arc::clone(&report), Arc::clone(&stop));
            let follow = move || follow(&shared, &bell, &stop, &orders, &report, &reopen);
            std::thread::Builder::new().name("pe-follow".into()).spawn(follow).map_err(failed)?
        };
        Ok(RouteFollower { shared, orders, report, stop, thread: Some(thread) })
    }

    /// Runs `change` while route updates are paused. If it succeeds, the engines already use the
    /// configuration it returns, and the routes of its peers are followed.
    pub fn change<E>(
        &self,
        change: impl FnOnce(&mut Host, &PeConfig) -> Result<Arc<PeConfig>, E>,
    ) -> Result<(), E> {
        let mut shared = lock(&self.shared);
        let FollowerState { host, known, opened } = &mut *shared;
        let router = change(host, &known.router)?;
        let mut new = PeerRoutes::unresolved(router);
        for (number, peer) in new.router.peers.iter().enumerate() {
            // An unchanged route is not reported again, but the engines have renumbered their peers.
            if let Some(before) = known.router.peers.iter().position(|before| before.name == peer.name) {
                new.routes[number].clone_from(&known.routes[before]);
                new.resolving[number] = known.resolving[before];
            }
        }
        *known = new;
        let present = host.link_numbers(&known.router);
        opened.retain(|name, _| known.router.interfaces().contains(&name.as_str()));
        present.into_iter().for_each(|(name, number)| {
            opened.entry(name).or_insert(number);
        });
        send_routes(known, &self.orders);
        refresh(host, known, &self.orders, &self.report);
        Ok(())
    }

    /// Returns the present configuration and routes.
    pub fn peer_routes(&self) -> (Arc<PeConfig>, Vec<Result<PeerRoute, String>>) {
        let shared = lock(&self.shared);
        (Arc::clone(&shared.known.router), shared.known.routes.clone())
    }
}

impl Drop for RouteFollower {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<FollowerState>) -> MutexGuard<'_, FollowerState> {
    // A panic leaves at worst an outdated route, which is resolved again.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow(
    shared: &Mutex<FollowerState>,
    bell: &ChangeMonitor,
    stop: &EventFd,
    orders: &AllCommandSenders,
    report: &RouteCallback,
    reopen: &InterfaceCallback,
) {
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
            bell.has_changed();
        } else if Instant::now() < next {
            continue;
        }
        let mut shared = lock(shared);
        let FollowerState { host, known, opened } = &mut *shared;
        let present = host.link_numbers(&known.router);
        let others =
            present.iter().filter(|(name, number)| opened.get(*name).is_some_and(|old| old != *number));
        let others: BTreeSet<String> = others.map(|(name, _)| name.clone()).collect();
        if !others.is_empty() && reopen(host, &known.router, &others) {
            opened.extend(present);
            send_routes(known, orders);
        }
        refresh(host, known, orders, report);
        let all = known.routes.iter().all(Result::is_ok);
        next = Instant::now() + if all { PATIENT } else { IMPATIENT };
    }
}

/// Resolves all routes, and reports those that have changed.
fn refresh(host: &mut Host, known: &mut PeerRoutes, orders: &AllCommandSenders, report: &RouteCallback) {
    for number in 0..known.routes.len() {
        let peer = &known.router.peers[number];
        let way = host.route_to_peer(&known.router, &peer.tunnel, peer.mtu);
        let is_resolving = known.resolving[number].is_some_and(|start| start.elapsed() < RESOLUTION);
        if way == known.routes[number] || (way.is_err() && is_resolving) {
            continue;
        }
        report(&peer.name, &way);
        known.resolving[number] = None;
        known.routes[number] = way;
        send_route(known, number, orders);
    }
}

fn send_routes(known: &PeerRoutes, orders: &AllCommandSenders) {
    (0..known.routes.len()).for_each(|number| send_route(known, number, orders));
}

fn send_route(known: &PeerRoutes, number: usize, orders: &AllCommandSenders) {
    let way = known.routes[number].as_ref().ok().and_then(|way| {
        // Core ports precede customer ports.
        let port = known.router.core.iter().position(|name| *name == way.interface)?;
        Some((port, way.mac, way.mtu))
    });
    orders.send_all(|| PeCommand::Way(number, way));
}
