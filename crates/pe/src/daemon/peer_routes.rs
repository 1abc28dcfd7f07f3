//! Follows the kernel: updates the route to each peer when routes, neighbors or interfaces change.

use super::forward::PeCommand;
use super::host::{Host, PeerRoute};
use super::threads::AllCommandSenders;
use netstage_host::netns::lookup::ChangeMonitor;
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::PeConfig;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
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

/// Present routes to the peers.
#[derive(Debug)]
pub(super) struct PeerRoutes {
    pub router: Arc<PeConfig>,
    /// Route to each peer, or the reason why there is none.
    pub routes: Vec<Result<PeerRoute, String>>,
}

/// Callback for a changed route: peer name, and the route or the reason why there is none.
pub(super) type RouteCallback = Box<dyn Fn(&str, &Result<PeerRoute, String>) + Send + Sync>;

struct FollowerState {
    host: Host,
    known: PeerRoutes,
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
    ) -> Result<RouteFollower, StartupError> {
        let failed =
            |error: io::Error| StartupError::from_system("cannot follow the kernel's routes", &error);
        let bell = ChangeMonitor::open(&host.namespace).map_err(failed)?;
        let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let stop = Arc::new(stop.map_err(|error| failed(error.into()))?);
        let report = Arc::new(report);
        let mut known = PeerRoutes { routes: vec![Err(String::new()); router.peers.len()], router };
        refresh(&mut host, &mut known, &orders, &report);
        let shared = Arc::new(Mutex::new(FollowerState { host, known }));
        let thread = {
            let (shared, orders, report, stop) =
                (Arc::clone(&shared), orders.clone(), Arc::clone(&report), Arc::clone(&stop));
            let follow = move || follow(&shared, &bell, &stop, &orders, &report);
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
        let FollowerState { host, known } = &mut *shared;
        let router = change(host, &known.router)?;
        let before: Vec<String> = known.router.peers.iter().map(|peer| peer.name.clone()).collect();
        let ways = router.peers.iter().map(|peer| {
            // An unchanged route is not reported again, but the engines have renumbered their peers.
            let known_before = before.iter().position(|name| *name == peer.name);
            known_before.map_or(Err(String::new()), |number| known.routes[number].clone())
        });
        known.routes = ways.collect();
        known.router = router;
        for number in 0..known.routes.len() {
            send_route(known, number, &self.orders);
        }
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
        let FollowerState { host, known } = &mut *shared;
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
        if way == known.routes[number] {
            continue;
        }
        report(&peer.name, &way);
        known.routes[number] = way;
        send_route(known, number, orders);
    }
}

fn send_route(known: &PeerRoutes, number: usize, orders: &AllCommandSenders) {
    let way = known.routes[number].as_ref().ok().and_then(|way| {
        // Core ports precede customer ports.
        let port = known.router.core.iter().position(|name| *name == way.interface)?;
        Some((port, way.mac, way.mtu))
    });
    orders.send_all(|| PeCommand::Way(number, way));
}
