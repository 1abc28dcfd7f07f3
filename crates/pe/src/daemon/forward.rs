//! The thread that forwards: the engine's turns, as its ports and timers ask for them, and
//! between two of them what others want of it.

use super::crew::Board;
use super::port::AnyPort;
use super::recorder::{self, Recorder};
use super::snapshot::{self, Snapshot};
use super::steering::Program;
use crate::engine::{Engine, Prepared, Source};
use crate::trace;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::ports::Port as _;
use netstage_host::wait::Waiter;
use netstage_wire::ethernet::Mac;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Peers that do not answer are looked for this often.
const WATCH: Duration = Duration::from_millis(250);
/// Turns in a row before what others want is looked at.
const TURNS: usize = 64;

/// What others want.
pub(super) enum Order {
    /// Where a peer, by its number, is to be sent to: port, next router's station and MTU.
    Way(usize, Option<(usize, Mac, u16)>),
    /// Another configuration.
    Replace(Box<Replacement>),
    /// How things stand.
    Show(Sender<Box<Snapshot>>),
    /// The end.
    Stop,
}

/// Another configuration.
pub(super) struct Replacement {
    /// What the engine makes of it.
    pub prepared: Prepared,
    /// The ports it needs that are not open yet.
    pub opened: Vec<(String, AnyPort)>,
    /// Which frames arrive at each of its ports from now on.
    pub filters: Vec<Option<Program>>,
    /// Where its cores meet.
    pub board: Arc<Board>,
    /// The time between turns.
    pub moderation: Duration,
    /// The file's text.
    pub text: String,
    /// Is told when it is taken.
    pub done: Sender<()>,
}

/// What the thread tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A VPN flow's peer has stopped answering, or answers again.
    Silent {
        /// The VPN.
        vpn: String,
        /// The peer.
        peer: String,
        /// It does not answer.
        is_silent: bool,
    },
    /// What is known of a reference has become too old to be used, or is new again.
    Reference {
        /// Its name.
        name: String,
        /// The peer that tells of it; none: a flow of this router is measured.
        from: Option<String>,
        /// Too old.
        is_old: bool,
    },
    /// A port is of no use, or is again.
    Port {
        /// The interface.
        interface: String,
        /// Why; none: it works.
        failure: Option<String>,
    },
    /// The trace ends before the router does.
    Trace {
        /// Why.
        why: String,
    },
}

/// The forwarding thread, from outside.
#[derive(Debug)]
pub(super) struct Forwarding {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    thread: JoinHandle<()>,
}

/// Gives orders to it.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
}

impl Orders {
    /// Hands over an order. After the end nobody hears it.
    pub fn give(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            let _ = self.bell.write(1);
        }
    }

    /// How things stand; none after the end.
    pub fn show(&self) -> Option<Box<Snapshot>> {
        let (sender, receiver) = channel();
        self.give(Order::Show(sender));
        receiver.recv().ok()
    }
}

impl Forwarding {
    /// Begins; a turn is taken once in `moderation` at most. What is decided goes to `recorder`, if
    /// there is one. `tell` is called from the thread, and must not wait.
    pub fn begin(
        mut engine: Engine<AnyPort>,
        epoch: Epoch,
        recorder: Option<Recorder>,
        moderation: Duration,
        board: Arc<Board>,
        tell: impl Fn(Event) + Send + 'static,
    ) -> io::Result<Forwarding> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let (orders, received) = channel();
        if recorder.is_some() {
            engine.trace();
        }
        let mut forward = Loop {
            failures: engine.port_names().iter().map(|_| None).collect(),
            waiter: waiter(&engine, &bell, moderation)?,
            engine,
            epoch,
            bell: Arc::clone(&bell),
            orders: received,
            recorder,
            board,
            tell: Box::new(tell),
        };
        let thread = std::thread::Builder::new().name("pe-forward".into()).spawn(move || forward.run())?;
        Ok(Forwarding { orders, bell, thread })
    }

    pub fn orders(&self) -> Orders {
        Orders { orders: self.orders.clone(), bell: Arc::clone(&self.bell) }
    }

    /// Whether it still runs.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it.
    pub fn end(self) {
        self.orders().give(Order::Stop);
        let _ = self.thread.join();
    }
}

fn waiter(engine: &Engine<AnyPort>, bell: &EventFd, moderation: Duration) -> io::Result<Waiter> {
    let mut waiter = Waiter::sparing(moderation.0)?;
    for (index, port) in engine.ports().enumerate() {
        waiter.add(index, port.fd())?;
    }
    waiter.add(usize::MAX, Some(bell.as_fd()))?;
    Ok(waiter)
}

struct Loop {
    engine: Engine<AnyPort>,
    epoch: Epoch,
    waiter: Waiter,
    bell: Arc<EventFd>,
    orders: Receiver<Order>,
    recorder: Option<Recorder>,
    board: Arc<Board>,
    tell: Box<dyn Fn(Event) + Send>,
    /// What was last told of each port.
    failures: Vec<Option<String>>,
}

impl Loop {
    fn run(&mut self) {
        self.forward();
        self.record();
        if let Some(Err(error)) = self.recorder.take().map(Recorder::end) {
            (self.tell)(Event::Trace { why: format!("the trace is not whole: {error}") });
        }
    }

    fn forward(&mut self) {
        let mut ready = Vec::new();
        let mut watch = Instant::ZERO;
        loop {
            let due = self.epoch.monotonic_ns(self.engine.poll_timeout().min(watch));
            if self.waiter.wait(due, &mut ready).is_err() {
                return;
            }
            if ready.contains(&usize::MAX) {
                let _ = self.bell.read();
                while let Ok(order) = self.orders.try_recv() {
                    if !self.carry_out(order) {
                        return;
                    }
                }
            }
            for _ in 0..TURNS {
                if !self.engine.turn(self.epoch.now()).more {
                    break;
                }
            }
            if self.engine.traced() >= recorder::CHUNK {
                self.record();
            }
            let now = self.epoch.now();
            if now >= watch {
                self.watch(now);
                self.record();
                watch = now + WATCH;
            }
        }
    }

    /// False at the end.
    fn carry_out(&mut self, order: Order) -> bool {
        match order {
            Order::Way(peer, way) => self.engine.set_way(peer, way),
            Order::Replace(replacement) => {
                let Replacement { prepared, opened, filters, board, moderation, text, done } = *replacement;
                let now = self.epoch.now();
                // What it takes over of references comes after the configuration that names them.
                self.record();
                let closed = self.engine.replace(now, prepared, opened);
                self.write(|| vec![trace::Event::Reload { at: now.0, configuration: text }]);
                self.failures = self.engine.port_names().iter().map(|_| None).collect();
                self.board = board;
                for (port, filter) in self.engine.ports().zip(&filters) {
                    // The kernel takes it as it took the one before: what could be wrong is checked.
                    let _ = port.steer(filter.as_ref());
                }
                match waiter(&self.engine, &self.bell, moderation) {
                    Ok(waiter) => self.waiter = waiter,
                    // Without descriptors nothing can be waited for.
                    Err(_) => return false,
                }
                drop(closed);
                let _ = done.send(());
            }
            Order::Show(to) => {
                let now = self.epoch.now();
                let _ = to.send(Box::new(snapshot::of(&mut self.engine, now)));
            }
            Order::Stop => return false,
        }
        true
    }

    /// Hands over what the engine has recorded.
    fn record(&mut self) {
        let events = self.engine.take_trace();
        if !events.is_empty() {
            self.write(|| events);
        }
    }

    fn write(&mut self, events: impl FnOnce() -> Vec<trace::Event>) {
        let Some(recorder) = self.recorder.take() else { return };
        match recorder.write(events()) {
            Ok(recorder) => self.recorder = Some(recorder),
            Err(why) => {
                self.engine.stop_trace();
                (self.tell)(Event::Trace { why });
            }
        }
    }

    fn watch(&mut self, now: Instant) {
        self.board.exchange(&mut self.engine);
        for (flow, is_silent) in self.engine.watch() {
            let flow = self.engine.flow(flow);
            let (vpn, peer) = (flow.vpn().to_owned(), flow.peer().to_owned());
            (self.tell)(Event::Silent { vpn, peer, is_silent });
        }
        for (number, is_old) in self.engine.watch_references(now) {
            let Some(reference) = self.engine.references().nth(number) else { continue };
            let from = match reference.source {
                Source::Peer(peer) => Some(peer.to_owned()),
                Source::Flow { .. } | Source::Elsewhere => None,
            };
            let name = reference.name.to_owned();
            (self.tell)(Event::Reference { name, from, is_old });
        }
        for port in 0..self.failures.len() {
            let failure = self.engine.failure(port).map(ToString::to_string);
            if failure != self.failures[port] {
                let interface = self.engine.port_names()[port].clone();
                self.failures[port].clone_from(&failure);
                (self.tell)(Event::Port { interface, failure });
            }
        }
    }
}
