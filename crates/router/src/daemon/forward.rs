//! The thread that forwards: frames, the kernel's news and what others want, as they come.

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

/// Time between turns.
const MODERATION_NS: u64 = 250_000;
/// A neighbour is asked for this often.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Neighbours that are next routers are looked for, and kept, this often.
const REFRESH: Duration = Duration::from_secs(5);
/// Whether redirected frames arrive is looked at this often.
const WATCH: Duration = Duration::from_millis(250);
/// What the waiter calls that which is no port.
const BELL: usize = usize::MAX;
const KERNEL: usize = usize::MAX - 1;
const MANAGERS: usize = usize::MAX - 2;
const MANAGER: usize = usize::MAX - 3;
pub(super) const OWN: usize = usize::MAX - 4;
/// Packets of the system's own taken in one turn.
const OWN_BATCH: usize = 64;

/// What others want of the thread.
pub(super) enum Order {
    Show(Sender<State>),
    Routes(RouteQuery, Sender<RoutePage>),
    Labels(LabelQuery, Sender<LabelPage>),
    /// Another configuration, whose interfaces have the numbers they had, and the routes of its file.
    Replace(Box<Router>, Ranked, Sender<Result<usize, Obstacle>>),
    End,
}

/// Gives orders to the thread, from any other.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
}

impl Orders {
    /// Gives an order that is answered; none after the end.
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

/// The thread, from outside.
#[derive(Debug)]
pub(super) struct Forwarding {
    orders: Orders,
    thread: JoinHandle<()>,
}

impl Forwarding {
    /// Begins, by the routes there are.
    pub fn begin(router: &Router, file: Ranked, log: Log) -> Result<Forwarding, Obstacle> {
        let failed = |error: io::Error| Obstacle::system("forwarding cannot begin", &error);
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

    /// Whether it has ended by itself.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it.
    pub fn end(self) {
        self.orders.give(Order::End);
        let _ = self.thread.join();
    }
}

fn remedy(refused: Refused) -> &'static str {
    match refused {
        Refused::Full => "give [router] more `v4_rows` or `v6_rows`",
        Refused::NoRoom => "give [router] more `next_hops`",
        Refused::TooManyLabels | Refused::Reserved | Refused::Unknown => "see who told it",
    }
}

pub(super) struct Loop {
    pub slow_path: SlowPath<Slot>,
    pub fib: Fib,
    pub kernel: Kernel,
    /// The routes of the file.
    pub file: Ranked,
    pub fpm: Option<Fpm>,
    pub delivery: Option<Tun>,
    pub waiter: Waiter,
    bell: Arc<EventFd>,
    orders: Receiver<Order>,
    /// When neighbours were last asked for.
    asked: BTreeMap<Neighbour, Instant>,
    /// What there was no room for, or cannot be.
    pub refused: BTreeSet<Key>,
    pub router: Router,
    pub machine: Machine,
    /// The interfaces, as they are at present.
    pub seen: Vec<Option<Seen>>,
    pub names: Names,
    pub egress: Egress,
    /// Frames are taken by the program in the kernel from now on.
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
        let failed = |error: io::Error| Obstacle::system("forwarding cannot begin", &error);
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
            waiter.add(MANAGERS, Some(listening.listener())).map_err(failed)?;
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

    /// Opens interfaces, learns routes, and then has frames taken.
    fn start(&mut self, seen: Vec<Option<Seen>>) -> Result<(), Obstacle> {
        self.open_all(seen)?;
        let news = self.load().map_err(|error| refused(&error))?;
        self.take(news);
        self.file.keys().into_iter().for_each(|key| self.apply(key));
        self.attach_all()?;
        self.watch(Instant::ZERO);
        // Of a file with a million routes much more is read than kept.
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
            self.hear(now, &ready);
            if ready.contains(&OWN) {
                self.send_own(now);
            }
            while self.slow_path.turn(now).more {}
            self.deliver();
            self.ask(now);
            if now >= refresh {
                self.keep();
                self.try_again();
                refresh = now + REFRESH;
            }
            if now >= watch {
                self.watch(now);
                watch = now + WATCH;
            }
        }
    }

    fn poll_timeout(&self) -> Instant {
        let told = self.fpm.as_ref().map_or(Instant::NEVER, Fpm::poll_timeout);
        self.slow_path.poll_timeout().min(told)
    }

    /// Hears the forwarding plane manager.
    fn hear(&mut self, now: Instant, ready: &[usize]) {
        let Some(fpm) = &mut self.fpm else { return };
        if ready.contains(&MANAGERS) {
            if let Some(session) = fpm.session() {
                self.waiter.remove(MANAGER, Some(session));
            }
            if fpm.accept(now) {
                (self.log)(Level::Note, "a forwarding plane manager has connected");
            }
            if let Some(session) = fpm.session()
                && let Err(error) = self.waiter.add(MANAGER, Some(session))
            {
                (self.log)(Level::Alarm, &format!("the forwarding plane manager cannot be heard: {error}"));
            }
        }
        if ready.contains(&MANAGER)
            && let Some(why) = fpm.read(now)
        {
            let line = format!("what the forwarding plane manager told holds for a while: {why}");
            (self.log)(Level::Alarm, &line);
        }
        fpm.changes(now).iter().for_each(|change| self.apply(change.into()));
    }

    /// Has the system's own packets, which know no labels, go as all others do.
    fn send_own(&mut self, now: Instant) {
        let Some(tun) = &mut self.delivery else { return };
        let mut packets = Vec::new();
        // By an interface that is gone nothing comes.
        let _ = tun.receive(OWN_BATCH, &mut |received| {
            packets.extend(received.frame.get(ethernet::HEADER..).map(<[u8]>::to_vec));
        });
        let Some(by) = self.router.interfaces.iter().position(|interface| interface.table == 0) else {
            return;
        };
        packets.iter().for_each(|packet| self.slow_path.send_own(now, by as u32, packet));
    }

    /// All the kernel knows, by the numbers interfaces have now.
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

    /// A source tells of a change.
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
        // The first tells enough; how many there are is shown.
        if self.refused.is_empty() {
            let line = format!("{key} is not taken, nor may others be: {refused}; {}", remedy(refused));
            (self.log)(Level::Alarm, &line);
        }
        self.refused.insert(key);
    }

    /// Tries what was refused again, some of it each time: there may be room now.
    fn try_again(&mut self) {
        const SOME: usize = 1_024;
        let some: Vec<Key> = self.refused.iter().take(SOME).copied().collect();
        some.into_iter().for_each(|key| self.apply(key));
    }

    /// Hands over what came in LSPs.
    fn deliver(&mut self) {
        while let Some(packet) = self.slow_path.poll_delivered() {
            let Some(tun) = &mut self.delivery else { continue };
            let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
            let header = bare_header(if is_v6 { ethertype::IPV6 } else { ethertype::IPV4 });
            let frame = [&header[..], &packet].concat();
            // What it does not take is lost, as on any interface; it counts there.
            let _ = tun.send(&frame).and_then(|_| tun.flush());
        }
    }

    /// Has the kernel look for the stations packets wait for.
    fn ask(&mut self, now: Instant) {
        let wanted: Vec<Neighbour> = self.slow_path.unresolved().collect();
        self.asked.retain(|neighbour, _| wanted.contains(neighbour));
        for neighbour in wanted {
            if self.asked.get(&neighbour).is_none_or(|asked| now >= *asked + ASK_AGAIN) {
                self.asked.insert(neighbour, now);
                self.kernel.find(neighbour);
            }
        }
    }

    /// Has the kernel look for next routers, and see whether they are still there: it forgets whom it sends
    /// nothing itself.
    fn keep(&mut self) {
        let neighbours: Vec<Neighbour> = self.fib.neighbours().map(|(neighbour, _)| neighbour).collect();
        neighbours.into_iter().for_each(|neighbour| self.kernel.find(neighbour));
    }
}
