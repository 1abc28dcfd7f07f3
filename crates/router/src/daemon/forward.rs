//! Forwarding thread: processes frames, route changes of the kernel, and commands as they arrive.

use super::bfd::{Bfd, BfdQuery};
use super::cleanup::CleanupRecord;
use super::egress::Egress;
use super::fpm::Fpm;
use super::host::{InterfaceState, PortSlot, RouterHost, kernel_error, tables};
use super::lfa::Lfa;
use super::rsvp::{Rsvp, RsvpCommands};
use super::state::{LabelPage, LabelQuery, RoutePage, RouteQuery, RouterState};
use crate::fib::{Fib, FibError};
use crate::slow_path::SlowPath;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::log::{Level, Log};
use netstage_host::memory;
use netstage_host::netns::settings::TemporarySettings;
use netstage_host::ports::tun::Tun;
use netstage_host::ports::{FramePort as _, NO_MAC, synthetic_header};
use netstage_host::startup_error::StartupError;
use netstage_host::wait::Waiter;
use netstage_routing::lfa::LfaSources;
use netstage_routing::source::kernel::{KernelChanges, KernelRoutes};
use netstage_routing::source::path::{InterfaceNeighbor, RoutePath};
use netstage_routing::source::route::KernelIds;
use netstage_routing::source::{RankedRoutes, SourceKey, Sources};
use netstage_scenario::router::{CounterGranularity, KilledBehavior, LfaSettings, RouterConfig};
use netstage_wire::ethernet::{self, ethertype};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Minimum time between turns, nanoseconds.
const MODERATION_NS: u64 = 250_000;
/// Interval between queries for one neighbor.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum wait for the next hops before the XDP program of a killed router is replaced.
const TAKEOVER_WAIT: Duration = Duration::from_millis(500);
/// Interval at which next-hop neighbors are resolved and confirmed.
const REFRESH: Duration = Duration::from_secs(5);
/// Interval of checks whether redirected frames arrive.
const WATCH: Duration = Duration::from_millis(250);
/// Waiter tokens of descriptors other than ports.
const BELL: usize = usize::MAX;
const KERNEL: usize = usize::MAX - 1;
const FPM_LISTENER: usize = usize::MAX - 2;
const FPM_SESSION: usize = usize::MAX - 3;
pub(super) const OWN: usize = usize::MAX - 4;
/// Maximum number of packets of the kernel read in one turn.
const OWN_BATCH: usize = 64;

/// Command to the thread.
pub(super) enum RouterCommand {
    Show(Sender<RouterState>),
    Routes(RouteQuery, Sender<RoutePage>),
    Labels(LabelQuery, Sender<LabelPage>),
    /// Applies a configuration and the routes of its file. Interfaces keep their numbers.
    Replace(Box<RouterConfig>, RankedRoutes, Sender<Result<usize, StartupError>>),
    End,
}

/// Sender of commands to the thread.
#[derive(Clone, Debug)]
pub(super) struct RouterCommandSender {
    orders: Sender<RouterCommand>,
    bell: Arc<EventFd>,
}

impl RouterCommandSender {
    /// Sends a command and waits for its response. Returns `None` after the end.
    pub fn ask<T>(&self, order: impl FnOnce(Sender<T>) -> RouterCommand) -> Option<T> {
        let (sender, receiver) = channel();
        self.give(order(sender));
        receiver.recv().ok()
    }

    fn give(&self, order: RouterCommand) {
        if self.orders.send(order).is_ok() {
            let _ = self.bell.write(1);
        }
    }
}

/// Handle to the forwarding thread.
#[derive(Debug)]
pub(super) struct RouterForwardingThread {
    orders: RouterCommandSender,
    rsvp: Option<RsvpCommands>,
    bfd: Option<BfdQuery>,
    thread: JoinHandle<()>,
}

impl RouterForwardingThread {
    /// Starts to forward with the present routes.
    pub fn begin(
        router: &RouterConfig,
        file: RankedRoutes,
        log: Log,
    ) -> Result<RouterForwardingThread, StartupError> {
        let failed = |error: io::Error| StartupError::from_system("cannot start forwarding", &error);
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let bell = Arc::new(bell.map_err(|error| failed(error.into()))?);
        let (orders, received) = channel();
        let forward = RouterForwardingLoop::prepare(router, Arc::clone(&bell), received, file, log)?;
        let rsvp = forward.rsvp.as_ref().map(Rsvp::commands);
        let bfd = forward.bfd.as_ref().map(Bfd::query);
        let thread = std::thread::Builder::new().name("router-forward".into()).spawn(move || forward.run());
        Ok(RouterForwardingThread {
            orders: RouterCommandSender { orders, bell },
            rsvp,
            bfd,
            thread: thread.map_err(failed)?,
        })
    }

    pub fn orders(&self) -> RouterCommandSender {
        self.orders.clone()
    }

    /// Returns a sender of commands to the RSVP-TE speaker, if there is one.
    pub fn rsvp(&self) -> Option<RsvpCommands> {
        self.rsvp.clone()
    }

    /// Returns what requests of the state of BFD need, if the router speaks it.
    pub fn bfd(&self) -> Option<BfdQuery> {
        self.bfd.clone()
    }

    /// Returns whether the thread has ended.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops the thread and waits for it.
    pub fn end(self) {
        self.orders.give(RouterCommand::End);
        let _ = self.thread.join();
    }
}

fn remedy(refused: FibError) -> &'static str {
    match refused {
        FibError::Full => "increase [router] `v4_rows` or `v6_rows`",
        FibError::NoRoom => "increase [router] `next_hops`",
        FibError::TooManyLabels | FibError::Reserved | FibError::Unknown => "correct its source",
    }
}

pub(super) struct RouterForwardingLoop {
    pub slow_path: SlowPath<PortSlot>,
    pub fib: Fib,
    pub kernel: KernelRoutes,
    /// Routes of the file.
    pub file: RankedRoutes,
    pub fpm: Option<Fpm>,
    pub rsvp: Option<Rsvp>,
    pub bfd: Option<Bfd>,
    lfa: Option<Lfa>,
    pub delivery: Option<Tun>,
    pub waiter: Waiter,
    bell: Arc<EventFd>,
    orders: Receiver<RouterCommand>,
    /// Time of the last query for each neighbor.
    requested_at: BTreeMap<InterfaceNeighbor, Instant>,
    /// Routes and labels rejected because a table is full or they are invalid.
    pub refused: BTreeSet<SourceKey>,
    pub router: RouterConfig,
    pub machine: RouterHost,
    /// Present state of each interface.
    pub interface_states: Vec<Option<InterfaceState>>,
    pub names: KernelIds,
    pub egress: Egress,
    /// The XDP program may be attached, since the routes are loaded.
    pub has_begun: bool,
    epoch: Epoch,
    pub log: Log,
    pub settings: TemporarySettings,
    pub remains: CleanupRecord,
}

impl RouterForwardingLoop {
    fn prepare(
        router: &RouterConfig,
        bell: Arc<EventFd>,
        orders: Receiver<RouterCommand>,
        file: RankedRoutes,
        log: Log,
    ) -> Result<RouterForwardingLoop, StartupError> {
        let failed = |error: io::Error| StartupError::from_system("cannot start forwarding", &error);
        let mut machine = RouterHost::current()?;
        let seen = machine.interface_states(&router.interfaces).map_err(|error| kernel_error(&error))?;
        let mut stations = seen.iter().flatten().map(|seen| seen.mac);
        let mac = stations.find(|mac| *mac != NO_MAC).unwrap_or(NO_MAC);
        let tables = tables(router, mac, &|line| log(Level::Note, line))?;
        let mut waiter = Waiter::economical(MODERATION_NS).map_err(failed)?;
        waiter.add(BELL, Some(bell.as_fd())).map_err(failed)?;
        let kernel = KernelRoutes::open(&machine.namespace).map_err(failed)?;
        waiter.add(KERNEL, Some(kernel.as_fd())).map_err(failed)?;
        let names = machine.names(router);
        let mut fpm = None;
        if let Some(address) = router.fpm {
            let listening = Fpm::listen(&machine.namespace, address, names.clone())?;
            waiter.add(FPM_LISTENER, Some(listening.listener())).map_err(failed)?;
            fpm = Some(listening);
        }
        let namespace = machine.same_namespace()?;
        let (remains, before) = CleanupRecord::of(&router.control, &machine.namespace);
        let fib = Fib::new(Vec::new(), router.tables.len() as u32, router.model);
        let mut forward = RouterForwardingLoop {
            fib: if router.count == CounterGranularity::Prefix { fib.counting_prefixes() } else { fib },
            slow_path: SlowPath::new(Vec::new(), Vec::new(), tables),
            kernel,
            file,
            fpm,
            rsvp: None,
            bfd: None,
            lfa: None,
            delivery: None,
            waiter,
            bell,
            orders,
            requested_at: BTreeMap::new(),
            refused: BTreeSet::new(),
            router: router.clone(),
            names,
            settings: TemporarySettings::resume(namespace, before),
            machine,
            interface_states: Vec::new(),
            egress: Egress::default(),
            has_begun: false,
            epoch: Epoch(monotonic_ns()),
            log,
            remains,
        };
        match forward.start(seen) {
            Ok(()) => Ok(forward),
            Err(obstacle) => {
                forward.remains.leave(&mut forward.settings);
                Err(obstacle)
            }
        }
    }

    /// Opens the interfaces, loads the routes, and then attaches the XDP program.
    fn start(&mut self, seen: Vec<Option<InterfaceState>>) -> Result<(), StartupError> {
        self.open_all(seen)?;
        if let Some(settings) = &self.router.rsvp {
            let places = self.machine.rsvp_places(&self.router.interfaces, settings)?;
            let (namespace, bell) = (self.machine.same_namespace()?, Arc::clone(&self.bell));
            self.rsvp = Some(Rsvp::begin(settings, places, namespace, bell)?);
        }
        if let Some(settings) = &self.router.bfd {
            let neighbors = self.machine.bfd_neighbors(&self.router.interfaces, settings)?;
            let (namespace, bell) = (self.machine.same_namespace()?, Arc::clone(&self.bell));
            let names = self.router.interfaces.iter().map(|interface| interface.name.clone()).collect();
            self.bfd = Some(Bfd::begin(settings, neighbors, names, namespace, bell)?);
        }
        if let Some(LfaSettings { ospfd, ldpd }) = self.router.alternates.clone() {
            self.lfa = Some(Lfa::begin(LfaSources { ospfd, ldpd }, Arc::clone(&self.bell))?);
        }
        let news = self.load().map_err(|error| kernel_error(&error))?;
        self.take(news);
        self.file.keys().into_iter().for_each(|key| self.apply(key));
        if self.router.when_killed == KilledBehavior::Forward {
            self.resolve_next_hops();
        }
        self.attach_all()?;
        self.watch(Instant::ZERO);
        // Reading a file with a million routes allocates much more memory than is kept.
        memory::release_unused();
        Ok(())
    }

    fn run(mut self) {
        let mut ready = Vec::new();
        let (mut refresh, mut watch) = (Instant::ZERO, Instant::ZERO);
        loop {
            let due = self.poll_timeout().min(refresh).min(watch);
            if self.waiter.wait(self.epoch.monotonic_ns(due), &mut ready).is_err() {
                return;
            }
            if ready.contains(&BELL) {
                let _ = self.bell.read();
                while let Ok(order) = self.orders.try_recv() {
                    match order {
                        RouterCommand::Show(to) => drop(to.send(self.state())),
                        RouterCommand::Routes(query, to) => drop(to.send(self.routes(&query))),
                        RouterCommand::Labels(query, to) => drop(to.send(self.labels(&query))),
                        RouterCommand::Replace(router, file, to) => {
                            drop(to.send(self.replace(*router, file)))
                        }
                        RouterCommand::End => return,
                    }
                }
                self.poll_bfd();
                self.poll_rsvp();
                self.poll_lfa();
            }
            if ready.contains(&KERNEL) {
                match self.kernel.poll() {
                    Ok(news) => self.take(news),
                    Err(error) => (self.log)(Level::Alarm, &error.to_string()),
                }
            }
            let now = self.epoch.now();
            self.poll_fpm(now, &ready);
            if ready.contains(&OWN) {
                self.send_own(now);
            }
            while self.slow_path.turn(now).more {}
            self.deliver();
            self.resolve_neighbors(now);
            if now >= refresh {
                self.confirm_neighbors();
                self.retry_rejected();
                refresh = now + REFRESH;
            }
            if now >= watch {
                self.watch(now);
                watch = now + WATCH;
            }
        }
    }

    fn poll_timeout(&self) -> Instant {
        let fpm = self.fpm.as_ref().map_or(Instant::NEVER, Fpm::poll_timeout);
        self.slow_path.poll_timeout().min(fpm)
    }

    /// Handles connections and messages of the forwarding plane manager.
    fn poll_fpm(&mut self, now: Instant, ready: &[usize]) {
        let Some(fpm) = &mut self.fpm else { return };
        if ready.contains(&FPM_LISTENER) {
            if let Some(session) = fpm.session() {
                self.waiter.remove(FPM_SESSION, Some(session));
            }
            if fpm.accept(now) {
                (self.log)(Level::Note, "a forwarding plane manager connected");
            }
            if let Some(session) = fpm.session()
                && let Err(error) = self.waiter.add(FPM_SESSION, Some(session))
            {
                (self.log)(Level::Alarm, &format!("cannot read from the forwarding plane manager: {error}"));
            }
        }
        if ready.contains(&FPM_SESSION)
            && let Some(why) = fpm.read(now)
        {
            let line =
                format!("forwarding plane manager disconnected, its routes are kept for a while: {why}");
            (self.log)(Level::Alarm, &line);
        }
        fpm.changes(now).iter().for_each(|change| self.apply(change.into()));
    }

    /// Applies the failures of neighbors.
    fn poll_bfd(&mut self) {
        let Some(changes) = self.bfd.as_mut().map(|bfd| bfd.poll(&self.log)) else { return };
        for (neighbor, has_failed) in changes {
            self.fib.set_failed(self.slow_path.tables_mut(), neighbor, has_failed);
            if let Some(rsvp) = self.rsvp.as_ref().filter(|_| has_failed) {
                rsvp.fail_neighbor(neighbor);
            }
        }
    }

    /// Applies what the RSVP-TE speaker has reported.
    fn poll_rsvp(&mut self) {
        let Some((changes, unapplied)) = self.rsvp.as_mut().map(|rsvp| rsvp.poll(&self.log)) else { return };
        changes.into_iter().for_each(|key| self.apply(key));
        self.set_backups();
        drop(unapplied);
    }

    /// Applies the loop-free alternates that were reported.
    fn poll_lfa(&mut self) {
        let reported = self.lfa.as_mut().and_then(|lfa| lfa.poll(&self.router, &self.log));
        if let Some(alternates) = reported {
            self.fib.set_alternates(self.slow_path.tables_mut(), alternates);
        }
    }

    /// Prepares the LSPs that protect neighbors.
    pub fn set_backups(&mut self) {
        let backups: Vec<(Ipv4Addr, RoutePath)> = self.rsvp.iter().flat_map(Rsvp::backups).collect();
        let neighbor = |(address, path): (Ipv4Addr, RoutePath)| {
            let interface = self.machine.interface_of(&self.router.interfaces, address.into())?;
            Some(((interface, address.into()), path))
        };
        let backups = backups.into_iter().filter_map(neighbor).collect();
        self.fib.set_backups(self.slow_path.tables_mut(), backups);
    }

    /// Forwards packets of the kernel, which cannot add labels itself.
    fn send_own(&mut self, now: Instant) {
        let Some(tun) = &mut self.delivery else { return };
        let mut packets = Vec::new();
        // A removed interface delivers no packets.
        let _ = tun.receive(OWN_BATCH, &mut |received| {
            packets.extend(received.frame.get(ethernet::HEADER..).map(<[u8]>::to_vec));
        });
        let Some(number) = self.router.interfaces.iter().position(|interface| interface.table == 0) else {
            return;
        };
        packets.iter().for_each(|packet| self.slow_path.send_own(now, number as u32, packet));
    }

    /// Loads all routes and neighbors of the kernel, with the present interface numbers.
    pub fn load(&mut self) -> Result<KernelChanges, netstage_host::netns::netlink::NetlinkError> {
        if let Some(fpm) = &mut self.fpm {
            fpm.set_names(self.names.clone());
        }
        self.kernel.load(self.names.clone())
    }

    pub fn take(&mut self, news: KernelChanges) {
        news.changes.iter().for_each(|change| self.apply(change.into()));
        let now = self.epoch.now();
        for (neighbor, station) in news.neighbors {
            self.fib.set_neighbor(self.slow_path.tables_mut(), neighbor, station);
            if let Some(station) = station {
                self.slow_path.resolve(now, neighbor, station);
            }
        }
        if news.links {
            self.handle_link_changes();
        }
    }

    /// Applies the change of a route or label in any source.
    pub fn apply(&mut self, key: SourceKey) {
        let sources = Sources {
            file: &self.file,
            rsvp: None,
            manager: self.fpm.as_ref().map(Fpm::ranked),
            kernel: self.router.follow_kernel.then(|| self.kernel.ranked()),
        };
        if let Some(rsvp) = &mut self.rsvp {
            // The routes to other routers are those without LSPs.
            rsvp.follow(&sources.select(key));
        }
        let change = Sources { rsvp: self.rsvp.as_ref().map(Rsvp::ranked), ..sources }.select(key);
        let Err(refused) = self.fib.apply(self.slow_path.tables_mut(), &change) else {
            self.refused.remove(&key);
            return;
        };
        // Only the first rejection is logged; the state shows their number.
        if self.refused.is_empty() {
            let line = format!("{key} was rejected, as others may be: {refused}; {}", remedy(refused));
            (self.log)(Level::Alarm, &line);
        }
        self.refused.insert(key);
    }

    /// Retries some of the rejected routes and labels, since there may be room now.
    fn retry_rejected(&mut self) {
        const BATCH: usize = 1_024;
        let batch: Vec<SourceKey> = self.refused.iter().take(BATCH).copied().collect();
        batch.into_iter().for_each(|key| self.apply(key));
    }

    /// Passes packets received in LSPs to the kernel.
    fn deliver(&mut self) {
        while let Some(packet) = self.slow_path.poll_delivered() {
            let Some(tun) = &mut self.delivery else { continue };
            let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
            let header = synthetic_header(if is_v6 { ethertype::IPV6 } else { ethertype::IPV4 });
            let frame = [&header[..], &packet].concat();
            // The TUN interface counts packets it does not accept.
            let _ = tun.send(&frame).and_then(|_| tun.flush());
        }
    }

    /// Makes the kernel resolve the neighbors that packets wait for.
    fn resolve_neighbors(&mut self, now: Instant) {
        let wanted: Vec<InterfaceNeighbor> = self.slow_path.unresolved().collect();
        self.requested_at.retain(|neighbor, _| wanted.contains(neighbor));
        for neighbor in wanted {
            if self.requested_at.get(&neighbor).is_none_or(|asked| now >= *asked + RESOLVE_INTERVAL) {
                self.requested_at.insert(neighbor, now);
                self.kernel.resolve(neighbor);
            }
        }
    }

    /// Resolves the next hops, for a short time at most. The kernel may have forgotten neighbors to which it sends no
    /// packets itself, and the XDP program of a killed router is to be replaced by one that forwards at once.
    fn resolve_next_hops(&mut self) {
        let unresolved = |forward: &RouterForwardingLoop| -> Vec<InterfaceNeighbor> {
            let neighbors = forward.fib.neighbors();
            neighbors.filter(|(_, mac)| mac.is_none()).map(|(neighbor, _)| neighbor).collect()
        };
        unresolved(self).into_iter().for_each(|neighbor| self.kernel.resolve(neighbor));
        let deadline = self.epoch.now() + TAKEOVER_WAIT;
        while !unresolved(self).is_empty() && self.epoch.now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(2));
            match self.kernel.poll() {
                Ok(news) => self.take(news),
                Err(_) => return,
            }
        }
    }

    /// Makes the kernel resolve and confirm next-hop neighbors. It would forget them, since it sends them no
    /// packets itself.
    fn confirm_neighbors(&mut self) {
        let neighbors: Vec<InterfaceNeighbor> = self.fib.neighbors().map(|(neighbor, _)| neighbor).collect();
        neighbors.into_iter().for_each(|neighbor| self.kernel.resolve(neighbor));
    }
}
