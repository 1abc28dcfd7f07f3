//! Forwarding thread: processes frames, route changes of the kernel, and commands as they arrive.

use super::egress::Egress;
use super::fpm::Fpm;
use super::machine::{Machine, Seen, Slot, refused, tables};
use super::remains::Remains;
use super::state::{LabelPage, LabelQuery, RoutePage, RouteQuery, State};
use crate::fib::{Fib, Refused};
use crate::slow_path::SlowPath;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::log::{Level, Log};
use netstage_host::memory;
use netstage_host::netns::settings::Settings;
use netstage_host::obstacle::Obstacle;
use netstage_host::ports::tun::Tun;
use netstage_host::ports::{NO_STATION, Port as _, bare_header};
use netstage_host::wait::Waiter;
use netstage_routing::source::kernel::{Kernel, News};
use netstage_routing::source::path::Neighbour;
use netstage_routing::source::route::Names;
use netstage_routing::source::{Key, Ranked, Sources};
use netstage_scenario::router::{Counting, Router};
use netstage_wire::ethernet::{self, ethertype};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Minimum time between turns, nanoseconds.
const MODERATION_NS: u64 = 250_000;
/// Interval between queries for one neighbor.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(500);
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
pub(super) enum Order {
    Show(Sender<State>),
    Routes(RouteQuery, Sender<RoutePage>),
    Labels(LabelQuery, Sender<LabelPage>),
    /// Applies a configuration and the routes of its file. Interfaces keep their numbers.
    Replace(Box<Router>, Ranked, Sender<Result<usize, Obstacle>>),
    End,
}

/// Sender of commands to the thread.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
}

impl Orders {
    /// Sends a command and waits for its response. Returns `None` after the end.
    pub fn ask<T>(&self, order: impl FnOnce(Sender<T>) -> Order) -> Option<T> {
        let (sender, receiver) = channel();
        self.give(order(sender));
        receiver.recv().ok()
    }

    fn give(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            let _ = self.bell.write(1);
        }
    }
}

/// Handle to the forwarding thread.
#[derive(Debug)]
pub(super) struct Forwarding {
    orders: Orders,
    thread: JoinHandle<()>,
}

impl Forwarding {
    /// Starts to forward with the present routes.
    pub fn begin(router: &Router, file: Ranked, log: Log) -> Result<Forwarding, Obstacle> {
        let failed = |error: io::Error| Obstacle::system("cannot start forwarding", &error);
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let bell = Arc::new(bell.map_err(|error| failed(error.into()))?);
        let (orders, received) = channel();
        let forward = Loop::prepare(router, Arc::clone(&bell), received, file, log)?;
        let thread = std::thread::Builder::new().name("router-forward".into()).spawn(move || forward.run());
        Ok(Forwarding { orders: Orders { orders, bell }, thread: thread.map_err(failed)? })
    }

    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }

    /// Returns whether the thread has ended.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops the thread and waits for it.
    pub fn end(self) {
        self.orders.give(Order::End);
        let _ = self.thread.join();
    }
}

fn remedy(refused: Refused) -> &'static str {
    match refused {
        Refused::Full => "increase [router] `v4_rows` or `v6_rows`",
        Refused::NoRoom => "increase [router] `next_hops`",
        Refused::TooManyLabels | Refused::Reserved | Refused::Unknown => "correct its source",
    }
}

pub(super) struct Loop {
    pub slow_path: SlowPath<Slot>,
    pub fib: Fib,
    pub kernel: Kernel,
    /// Routes of the file.
    pub file: Ranked,
    pub fpm: Option<Fpm>,
    pub delivery: Option<Tun>,
    pub waiter: Waiter,
    bell: Arc<EventFd>,
    orders: Receiver<Order>,
    /// Time of the last query for each neighbor.
    asked: BTreeMap<Neighbour, Instant>,
    /// Routes and labels rejected because a table is full or they are invalid.
    pub refused: BTreeSet<Key>,
    pub router: Router,
    pub machine: Machine,
    /// Present state of each interface.
    pub seen: Vec<Option<Seen>>,
    pub names: Names,
    pub egress: Egress,
    /// The XDP program may be attached, since the routes are loaded.
    pub has_begun: bool,
    epoch: Epoch,
    pub log: Log,
    pub settings: Settings,
    pub remains: Remains,
}

impl Loop {
    fn prepare(
        router: &Router,
        bell: Arc<EventFd>,
        orders: Receiver<Order>,
        file: Ranked,
        log: Log,
    ) -> Result<Loop, Obstacle> {
        let failed = |error: io::Error| Obstacle::system("cannot start forwarding", &error);
        let mut machine = Machine::here()?;
        let seen = machine.look(&router.interfaces).map_err(|error| refused(&error))?;
        let mut stations = seen.iter().flatten().map(|seen| seen.mac);
        let mac = stations.find(|mac| *mac != NO_STATION).unwrap_or(NO_STATION);
        let tables = tables(router, mac, &|line| log(Level::Note, line))?;
        let mut waiter = Waiter::sparing(MODERATION_NS).map_err(failed)?;
        waiter.add(BELL, Some(bell.as_fd())).map_err(failed)?;
        let kernel = Kernel::open(&machine.namespace).map_err(failed)?;
        waiter.add(KERNEL, Some(kernel.as_fd())).map_err(failed)?;
        let names = machine.names(router);
        let mut fpm = None;
        if let Some(address) = router.fpm {
            let listening = Fpm::listen(&machine.namespace, address, names.clone())?;
            waiter.add(FPM_LISTENER, Some(listening.listener())).map_err(failed)?;
            fpm = Some(listening);
        }
        let namespace = machine.same_namespace()?;
        let (remains, before) = Remains::of(&router.control, &machine.namespace);
        let fib = Fib::new(Vec::new(), router.tables.len() as u32, router.model);
        let mut forward = Loop {
            fib: if router.count == Counting::Prefix { fib.counting_prefixes() } else { fib },
            slow_path: SlowPath::new(Vec::new(), Vec::new(), tables),
            kernel,
            file,
            fpm,
            delivery: None,
            waiter,
            bell,
            orders,
            asked: BTreeMap::new(),
            refused: BTreeSet::new(),
            router: router.clone(),
            names,
            settings: Settings::changed_before(namespace, before),
            machine,
            seen: Vec::new(),
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
    fn start(&mut self, seen: Vec<Option<Seen>>) -> Result<(), Obstacle> {
        self.open_all(seen)?;
        let news = self.load().map_err(|error| refused(&error))?;
        self.take(news);
        self.file.keys().into_iter().for_each(|key| self.apply(key));
        self.attach_all()?;
        self.watch(Instant::ZERO);
        // Reading a file with a million routes allocates much more memory than is kept.
        memory::give_back();
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
                        Order::Show(to) => drop(to.send(self.state())),
                        Order::Routes(query, to) => drop(to.send(self.routes(&query))),
                        Order::Labels(query, to) => drop(to.send(self.labels(&query))),
                        Order::Replace(router, file, to) => drop(to.send(self.replace(*router, file))),
                        Order::End => return,
                    }
                }
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
    pub fn load(&mut self) -> Result<News, netstage_host::netns::netlink::Error> {
        if let Some(fpm) = &mut self.fpm {
            fpm.set_names(self.names.clone());
        }
        self.kernel.load(self.names.clone())
    }

    pub fn take(&mut self, news: News) {
        news.changes.iter().for_each(|change| self.apply(change.into()));
        let now = self.epoch.now();
        for (neighbour, station) in news.neighbours {
            self.fib.set_neighbour(self.slow_path.tables_mut(), neighbour, station);
            if let Some(station) = station {
                self.slow_path.resolve(now, neighbour, station);
            }
        }
        if news.links {
            self.look_at_links();
        }
    }

    /// Applies the change of a route or label in any source.
    pub fn apply(&mut self, key: Key) {
        let sources = Sources {
            file: &self.file,
            manager: self.fpm.as_ref().map(Fpm::ranked),
            kernel: self.router.follow_kernel.then(|| self.kernel.ranked()),
        };
        let change = sources.settled(key);
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
        let batch: Vec<Key> = self.refused.iter().take(BATCH).copied().collect();
        batch.into_iter().for_each(|key| self.apply(key));
    }

    /// Passes packets received in LSPs to the kernel.
    fn deliver(&mut self) {
        while let Some(packet) = self.slow_path.poll_delivered() {
            let Some(tun) = &mut self.delivery else { continue };
            let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
            let header = bare_header(if is_v6 { ethertype::IPV6 } else { ethertype::IPV4 });
            let frame = [&header[..], &packet].concat();
            // The TUN interface counts packets it does not accept.
            let _ = tun.send(&frame).and_then(|_| tun.flush());
        }
    }

    /// Makes the kernel resolve the neighbors that packets wait for.
    fn resolve_neighbors(&mut self, now: Instant) {
        let wanted: Vec<Neighbour> = self.slow_path.unresolved().collect();
        self.asked.retain(|neighbour, _| wanted.contains(neighbour));
        for neighbour in wanted {
            if self.asked.get(&neighbour).is_none_or(|asked| now >= *asked + RESOLVE_INTERVAL) {
                self.asked.insert(neighbour, now);
                self.kernel.find(neighbour);
            }
        }
    }

    /// Makes the kernel resolve and confirm next-hop neighbors. It would forget them, since it sends them no
    /// packets itself.
    fn confirm_neighbors(&mut self) {
        let neighbours: Vec<Neighbour> = self.fib.neighbours().map(|(neighbour, _)| neighbour).collect();
        neighbours.into_iter().for_each(|neighbour| self.kernel.find(neighbour));
    }
}
