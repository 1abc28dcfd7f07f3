//! The thread that forwards: frames, the kernel's news and what others want, as they come.

use super::machine::Machine;
use super::state::State;
use crate::clock::{Epoch, monotonic_ns};
use crate::netns::settings::Settings;
use crate::obstacle::Obstacle;
use crate::ports::Port as _;
use crate::ports::af_packet::AfPacket;
use crate::ports::tun::Tun;
use crate::router::fib::{Change, Fib};
use crate::router::slow_path::{Neighbour, SlowPath};
use crate::router::source::file;
use crate::router::source::kernel::{Kernel, News};
use crate::wait::Waiter;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::router::Router;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::BTreeMap;
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
/// What the waiter calls that which is no port.
const BELL: usize = usize::MAX;
const KERNEL: usize = usize::MAX - 1;

enum Order {
    Show(Sender<State>),
    End,
}

/// The thread, from outside.
#[derive(Debug)]
pub(super) struct Forwarding {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    thread: JoinHandle<()>,
}

impl Forwarding {
    /// Begins, by the routes there are.
    pub fn begin(
        machine: Machine,
        router: &Router,
        tell: Box<dyn Fn(&str) + Send>,
    ) -> Result<Forwarding, Obstacle> {
        let failed = |error: io::Error| Obstacle::system("forwarding cannot begin", &error);
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let bell = Arc::new(bell.map_err(|error| failed(error.into()))?);
        let Machine { namespace, ports, interfaces, links, names, tables, delivery, settings } = machine;
        let mut waiter = Waiter::sparing(MODERATION_NS).map_err(failed)?;
        for (number, port) in ports.iter().enumerate() {
            waiter.add(number, port.fd()).map_err(failed)?;
        }
        waiter.add(BELL, Some(bell.as_fd())).map_err(failed)?;
        let mut kernel = Kernel::open(&namespace).map_err(failed)?;
        waiter.add(KERNEL, Some(kernel.as_fd())).map_err(failed)?;
        let news = kernel.load(names).map_err(|error| Obstacle::system(&error.action, &error.source))?;
        let (orders, received) = channel();
        let mut forward = Loop {
            fib: Fib::new(links, router.tables.len() as u32, router.model),
            slow_path: SlowPath::new(ports, interfaces, tables),
            kernel,
            follows: router.follow_kernel,
            delivery,
            waiter,
            bell: Arc::clone(&bell),
            orders: received,
            asked: BTreeMap::new(),
            refused: 0,
            router: router.clone(),
            epoch: Epoch(monotonic_ns()),
            tell,
            _settings: settings,
        };
        forward.take(news);
        for change in read(router)? {
            forward.apply(&change);
        }
        let thread = std::thread::Builder::new().name("router-forward".into()).spawn(move || forward.run());
        Ok(Forwarding { orders, bell, thread: thread.map_err(failed)? })
    }

    /// How it stands; none after the end.
    pub fn show(&self) -> Option<State> {
        let (sender, receiver) = channel();
        self.give(Order::Show(sender));
        receiver.recv().ok()
    }

    /// Whether it has ended by itself.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it.
    pub fn end(self) {
        self.give(Order::End);
        let _ = self.thread.join();
    }

    fn give(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            let _ = self.bell.write(1);
        }
    }
}

/// The routes of the configuration's file.
fn read(router: &Router) -> Result<Vec<Change>, Obstacle> {
    let Some(path) = &router.routes else { return Ok(Vec::new()) };
    let wrong = |why: &dyn std::fmt::Display| {
        Obstacle::new(format!("{}: {why}", path.display()), "docs/router.md tells how its lines look")
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let interfaces: Vec<String> = router.interfaces.iter().map(|interface| interface.name.clone()).collect();
    let tables: Vec<String> = router.tables.iter().map(|table| table.name.clone()).collect();
    file::read(&text, file::Names { interfaces: &interfaces, tables: &tables }).map_err(|error| wrong(&error))
}

struct Loop {
    slow_path: SlowPath<AfPacket>,
    fib: Fib,
    kernel: Kernel,
    /// The kernel's routes count.
    follows: bool,
    delivery: Option<Tun>,
    waiter: Waiter,
    bell: Arc<EventFd>,
    orders: Receiver<Order>,
    /// When neighbours were last asked for.
    asked: BTreeMap<Neighbour, Instant>,
    /// Changes there was no room for, or that cannot be.
    refused: u64,
    router: Router,
    epoch: Epoch,
    tell: Box<dyn Fn(&str) + Send>,
    _settings: Settings,
}

impl Loop {
    fn run(mut self) {
        let mut ready = Vec::new();
        let mut refresh = Instant::ZERO;
        loop {
            let due = self.epoch.monotonic_ns(self.slow_path.poll_timeout().min(refresh));
            if self.waiter.wait(due, &mut ready).is_err() {
                return;
            }
            if ready.contains(&BELL) {
                let _ = self.bell.read();
                while let Ok(order) = self.orders.try_recv() {
                    match order {
                        Order::Show(to) => drop(to.send(self.state())),
                        Order::End => return,
                    }
                }
            }
            if ready.contains(&KERNEL) {
                match self.kernel.poll() {
                    Ok(news) => self.take(news),
                    Err(error) => (self.tell)(&error.to_string()),
                }
            }
            let now = self.epoch.now();
            while self.slow_path.turn(now).more {}
            self.deliver();
            self.ask(now);
            if now >= refresh {
                self.keep();
                refresh = now + REFRESH;
            }
        }
    }

    fn take(&mut self, news: News) {
        let changes = if self.follows { news.changes } else { Vec::new() };
        changes.iter().for_each(|change| self.apply(change));
        for (neighbour, station) in news.neighbours {
            self.fib.set_neighbour(self.slow_path.tables_mut(), neighbour, station);
            if let Some(station) = station {
                self.slow_path.resolve(neighbour, station);
            }
        }
    }

    fn apply(&mut self, change: &Change) {
        if let Err(refused) = self.fib.apply(self.slow_path.tables_mut(), change) {
            // The first tells enough; how many there are is shown.
            if self.refused == 0 {
                (self.tell)(&format!("a route or label is not taken: {refused} ({change:?})"));
            }
            self.refused += 1;
        }
    }

    /// Hands over what came in LSPs.
    fn deliver(&mut self) {
        while let Some(packet) = self.slow_path.poll_delivered() {
            let Some(tun) = &mut self.delivery else { continue };
            let frame = [&[0; 14], &packet[..]].concat();
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

    fn state(&self) -> State {
        State::of(&self.router, &self.slow_path, &self.fib, self.refused)
    }
}
