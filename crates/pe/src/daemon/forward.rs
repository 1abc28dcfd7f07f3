//! Forwarding thread: runs the engine when its ports and timers require, and executes commands in between.

use super::port::AnyPort;
use super::recorder::{self, Recorder};
use super::snapshot::{self, PeSnapshot};
use super::steering::FilterProgram;
use super::threads::CoreExchange;
use crate::engine::{AlarmView, MeasurementSource, PathMtuView, PeEngine, PreparedReplacement};
use crate::trace;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::ports::FramePort as _;
use netstage_host::wait::Waiter;
use netstage_wire::ethernet::Mac;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Interval of checks for silent peers, stale references and failed ports.
const WATCH: Duration = Duration::from_millis(250);
/// Turns in a row before commands are checked.
const TURNS: usize = 64;

/// Command to the thread.
pub(super) enum PeCommand {
    /// Sets the route to a peer, given by its number: port, MAC address of the next hop, and MTU.
    Way(usize, Option<(usize, Mac, u16)>),
    /// Applies a new configuration.
    Replace(Box<Replacement>),
    /// Requests the state.
    Show(Sender<Box<PeSnapshot>>),
    /// Stops the thread.
    Stop,
}

/// New configuration.
pub(super) struct Replacement {
    /// Prepared engine state.
    pub prepared: PreparedReplacement,
    /// Ports that are not open yet.
    pub opened: Vec<(String, AnyPort)>,
    /// New filter of each port.
    pub filters: Vec<Option<FilterProgram>>,
    /// Exchange with the other cores.
    pub exchange: CoreExchange,
    /// Minimum time between turns.
    pub moderation: Duration,
    /// Text of the configuration file.
    pub text: String,
    /// Notified when the configuration is applied.
    pub done: Sender<()>,
}

/// Event reported by the thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeEvent {
    /// A peer became silent for a VPN flow, or answers again.
    Silent {
        /// VPN of the flow.
        vpn: String,
        /// Name of the peer.
        peer: String,
        /// The peer does not answer.
        is_silent: bool,
    },
    /// A reference became too old to use, or is up to date again.
    Reference {
        /// Name of the reference.
        name: String,
        /// Peer that publishes it; `None` if a flow of this router is measured.
        from: Option<String>,
        /// It is too old.
        is_old: bool,
    },
    /// An alarm about packets of an attacker was raised or cleared.
    Alarm {
        /// Name of the alarm.
        name: &'static str,
        /// Description of the packets.
        description: &'static str,
        /// It was raised.
        is_raised: bool,
    },
    /// The largest packet that the path to a peer carries has changed.
    PathMtu {
        /// Name of the peer.
        peer: String,
        /// Size found.
        found: PathMtuView,
    },
    /// A port failed or works again.
    Port {
        /// Name of the interface.
        interface: String,
        /// Error; `None` if the port works.
        failure: Option<String>,
    },
    /// The trace ended before the router.
    Trace {
        /// Reason for the end.
        why: String,
    },
}

/// Handle to a forwarding thread.
#[derive(Debug)]
pub(super) struct PeForwardingThread {
    orders: Sender<PeCommand>,
    bell: Arc<EventFd>,
    thread: JoinHandle<()>,
}

/// Sender of commands to the thread.
#[derive(Clone, Debug)]
pub(super) struct PeCommandSender {
    orders: Sender<PeCommand>,
    bell: Arc<EventFd>,
}

impl PeCommandSender {
    /// Sends a command. Commands after the end are ignored.
    pub fn send(&self, order: PeCommand) {
        if self.orders.send(order).is_ok() {
            let _ = self.bell.write(1);
        }
    }

    /// Returns the state, or `None` after the end.
    pub fn show(&self) -> Option<Box<PeSnapshot>> {
        let (sender, receiver) = channel();
        self.send(PeCommand::Show(sender));
        receiver.recv().ok()
    }
}

impl PeForwardingThread {
    /// Starts a thread that takes at most one turn per `moderation`. Decisions go to `recorder`, if given.
    /// `report` is called from the thread and must not block.
    pub fn begin(
        mut engine: PeEngine<AnyPort>,
        epoch: Epoch,
        recorder: Option<Recorder>,
        moderation: Duration,
        exchange: CoreExchange,
        report: impl Fn(PeEvent) + Send + 'static,
    ) -> io::Result<PeForwardingThread> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let (orders, received) = channel();
        if recorder.is_some() {
            engine.trace();
        }
        let mut forward = PeForwardingLoop {
            failures: engine.port_names().iter().map(|_| None).collect(),
            waiter: waiter(&engine, &bell, moderation)?,
            engine,
            epoch,
            bell: Arc::clone(&bell),
            orders: received,
            recorder,
            exchange,
            report: Box::new(report),
        };
        let thread = std::thread::Builder::new().name("pe-forward".into()).spawn(move || forward.run())?;
        Ok(PeForwardingThread { orders, bell, thread })
    }

    pub fn orders(&self) -> PeCommandSender {
        PeCommandSender { orders: self.orders.clone(), bell: Arc::clone(&self.bell) }
    }

    /// Returns whether the thread has ended.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops the thread and waits for it.
    pub fn end(self) {
        self.orders().send(PeCommand::Stop);
        let _ = self.thread.join();
    }
}

fn waiter(engine: &PeEngine<AnyPort>, bell: &EventFd, moderation: Duration) -> io::Result<Waiter> {
    let mut waiter = Waiter::economical(moderation.0)?;
    for (index, port) in engine.ports().enumerate() {
        waiter.add(index, port.fd())?;
    }
    waiter.add(usize::MAX, Some(bell.as_fd()))?;
    Ok(waiter)
}

struct PeForwardingLoop {
    engine: PeEngine<AnyPort>,
    epoch: Epoch,
    waiter: Waiter,
    bell: Arc<EventFd>,
    orders: Receiver<PeCommand>,
    recorder: Option<Recorder>,
    exchange: CoreExchange,
    report: Box<dyn Fn(PeEvent) + Send>,
    /// Last reported failure of each port.
    failures: Vec<Option<String>>,
}

impl PeForwardingLoop {
    fn run(&mut self) {
        self.forward();
        self.record();
        if let Some(Err(error)) = self.recorder.take().map(Recorder::end) {
            (self.report)(PeEvent::Trace { why: format!("the trace is incomplete: {error}") });
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
                    if !self.execute(order) {
                        return;
                    }
                }
            }
            for _ in 0..TURNS {
                if !self.engine.turn(self.epoch.now()).more {
                    break;
                }
            }
            self.exchange.news(&mut self.engine);
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

    /// Executes a command; returns false at the end.
    fn execute(&mut self, order: PeCommand) -> bool {
        match order {
            PeCommand::Way(peer, way) => self.engine.set_peer_route(peer, way),
            PeCommand::Replace(replacement) => {
                let Replacement { prepared, opened, filters, exchange, moderation, text, done } =
                    *replacement;
                let now = self.epoch.now();
                // The reference values taken over must follow the configuration that names them in the trace.
                self.record();
                let closed = self.engine.replace(now, prepared, opened);
                self.write(|| vec![trace::EdgeEvent::Reload { at: now.0, configuration: text }]);
                self.failures = self.engine.port_names().iter().map(|_| None).collect();
                self.exchange = exchange;
                for (port, filter) in self.engine.ports().zip(&filters) {
                    // The filter has been validated when it was built.
                    let _ = port.steer(filter.as_ref());
                }
                match waiter(&self.engine, &self.bell, moderation) {
                    Ok(waiter) => self.waiter = waiter,
                    // Without descriptors there is nothing to wait for.
                    Err(_) => return false,
                }
                drop(closed);
                let _ = done.send(());
            }
            PeCommand::Show(to) => {
                let now = self.epoch.now();
                let _ = to.send(Box::new(snapshot::of(&mut self.engine, now)));
            }
            PeCommand::Stop => return false,
        }
        true
    }

    /// Passes recorded events to the recorder.
    fn record(&mut self) {
        let events = self.engine.take_trace();
        if !events.is_empty() {
            self.write(|| events);
        }
    }

    fn write(&mut self, events: impl FnOnce() -> Vec<trace::EdgeEvent>) {
        let Some(recorder) = self.recorder.take() else { return };
        match recorder.write(events()) {
            Ok(recorder) => self.recorder = Some(recorder),
            Err(why) => {
                self.engine.stop_trace();
                (self.report)(PeEvent::Trace { why });
            }
        }
    }

    fn watch(&mut self, now: Instant) {
        self.exchange.references(&mut self.engine);
        for (flow, is_silent) in self.engine.silence_changes() {
            let flow = self.engine.flow(flow);
            let (vpn, peer) = (flow.vpn().to_owned(), flow.peer().to_owned());
            (self.report)(PeEvent::Silent { vpn, peer, is_silent });
        }
        for (number, is_old) in self.engine.watch_references(now) {
            let Some(reference) = self.engine.references().nth(number) else { continue };
            let from = match reference.source {
                MeasurementSource::Peer(peer) => Some(peer.to_owned()),
                MeasurementSource::Flow { .. } | MeasurementSource::Elsewhere => None,
            };
            let name = reference.name.to_owned();
            (self.report)(PeEvent::Reference { name, from, is_old });
        }
        for alarm in self.engine.alarm_changes(now) {
            let AlarmView { name, description, is_raised, .. } = alarm;
            (self.report)(PeEvent::Alarm { name, description, is_raised });
        }
        for (peer, found) in self.engine.path_mtu_changes() {
            (self.report)(PeEvent::PathMtu { peer, found });
        }
        for port in 0..self.failures.len() {
            let failure = self.engine.failure(port).map(ToString::to_string);
            if failure != self.failures[port] {
                let interface = self.engine.port_names()[port].clone();
                self.failures[port].clone_from(&failure);
                (self.report)(PeEvent::Port { interface, failure });
            }
        }
    }
}
