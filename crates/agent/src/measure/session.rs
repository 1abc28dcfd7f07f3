//! A measurement from beginning to end.

use super::order::Order;
use super::outcome::Outcome;
use super::timeline::{Interval, Timeline};
use crate::controller::{Agents, Error, Place};
use crate::{Agent, Engine};
use netstage_core::measure::ClockOffset;
use netstage_core::time::Duration;
use netstage_host::keyed::Key;
use std::fmt;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Names of the two agents.
const HERE: &str = "here";
const THERE: &str = "there";

/// Why a measurement cannot begin.
#[derive(Debug)]
pub enum OpenError {
    /// This host has no way to the other.
    NoRoute(SocketAddr, String),
    /// The agents cannot be had, or refuse.
    Agents(Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoRoute(target, reason) => write!(f, "no way to {}: {reason}", target.ip()),
            OpenError::Agents(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<Error> for OpenError {
    fn from(error: Error) -> OpenError {
        OpenError::Agents(error)
    }
}

/// A measurement that is prepared.
pub struct Session {
    order: Order,
    agents: Agents,
    here: JoinHandle<()>,
    /// Our address on the way to the other host.
    pub own: SocketAddr,
    /// Where each flow is received there: its number and port.
    pub ports_there: Vec<(u32, u16)>,
}

impl Session {
    /// Connects to the agent at `target`, which has this key, and has both sides prepare. For
    /// a one-ended order there is no agent there, and no key.
    pub fn open(order: Order, target: SocketAddr, key: Option<Key>) -> Result<Session, OpenError> {
        let no_route = |error: std::io::Error| OpenError::NoRoute(target, error.to_string());
        let own = own_address(target).map_err(no_route)?;
        let (agent, connection) = Agent::pair().map_err(|error| Error::System(error.to_string()))?;
        let here = std::thread::spawn(move || {
            // How it ended says no more than the controller knows.
            let _ = agent.serve(Engine);
        });
        let mut places = vec![(HERE.to_string(), Place::Connection(connection))];
        places.extend(key.map(|key| (THERE.to_string(), Place::Host(target, key))));
        let two = places.len() == 2;
        let mut agents = Agents::connect(places)?;
        agents.new_run(true);
        match prepare(&mut agents, &order, own, target, two) {
            Ok(ports_there) => Ok(Session { order, agents, here, own, ports_there }),
            Err(error) => {
                // A word of farewell: the server need not wonder what became of us.
                agents.finish();
                Err(error)
            }
        }
    }

    /// The clock there against the one here, as compared when connecting.
    pub fn clock(&self) -> Option<ClockOffset> {
        self.agents.clocks().of(THERE)
    }

    /// Measures: `tell` is called with each interval soon after its end. Setting `stop` ends
    /// the run early.
    pub fn run(mut self, stop: &AtomicBool, mut tell: impl FnMut(&Interval)) -> Result<Outcome, Error> {
        let order = &self.order;
        let flows = order.flows().map(|(id, _)| id);
        let mut timeline =
            Timeline::new(order.interval, order.omit, order.duration(), flows, order.is_one_ended());
        let clock = self.clock();
        let epoch = self.agents.start_together()?;
        let mut stopped_at = None;
        self.agents.watch(|overview| {
            overview.ended.bins.iter().for_each(|ended| timeline.push(*ended));
            while let Some(interval) = timeline.pop(Duration(epoch.now().0)) {
                tell(&interval);
            }
            if stop.load(Ordering::Relaxed) || !overview.lost_agents.is_empty() {
                stopped_at.get_or_insert(Duration(epoch.now().0));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        let end = stopped_at.unwrap_or(order.duration()).min(order.duration());
        let collected = self.agents.collect();
        self.agents.take_ended().bins.into_iter().for_each(|ended| timeline.push(ended));
        let again = self.agents.read_clocks(&[]).of(THERE);
        let report = |name: &str| collected.reports.iter().find(|report| report.node == name);
        let flows_of = |name: &str| report(name).map(|report| report.flows.clone());
        let interrupted = stopped_at.is_some();
        let mut outcome = Outcome::of(order, flows_of(HERE), flows_of(THERE), &timeline, end, interrupted);
        for report in &collected.reports {
            outcome.warnings.extend(report.warnings.iter().cloned());
            outcome.void.extend(report.void.iter().cloned());
        }
        outcome.warnings.extend(collected.warnings);
        outcome.lost = collected.lost;
        outcome.clock = clock;
        outcome.clock_error_ns = clock.map(|before| before.error_with_drift(again));
        for interval in outcome.intervals.iter().filter(|interval| interval.number >= timeline.next()) {
            tell(interval);
        }
        self.agents.finish();
        // It ends by the controller's word, or because the controller is gone.
        let _ = self.here.join();
        Ok(outcome)
    }
}

/// Has both sides open what they need; returns where flows are received there.
fn prepare(
    agents: &mut Agents,
    order: &Order,
    own: SocketAddr,
    target: SocketAddr,
    two: bool,
) -> Result<Vec<(u32, u16)>, OpenError> {
    let ports_here = ports_here(order, own)?;
    let mut ports_there = Vec::new();
    if two {
        let part = order.there(&ports_here, target.ip());
        ports_there = agents.add(vec![(THERE.into(), part)])?.pop().unwrap_or_default();
    }
    agents.add(vec![(HERE.into(), order.here(own, target, &ports_there, &ports_here))])?;
    Ok(ports_there)
}

/// Our address on the way there: the kernel's choice for a socket to it.
fn own_address(target: SocketAddr) -> std::io::Result<SocketAddr> {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    // Nothing is sent; a port of zero would be refused by some systems.
    let port = if target.port() == 0 { 9 } else { target.port() };
    let mut somewhere = target;
    somewhere.set_port(port);
    socket.connect(somewhere)?;
    let mut own = socket.local_addr()?;
    own.set_port(0);
    Ok(own)
}

/// Where flows from there are received here. The agent there has to know before the one
/// here can be prepared, so a free port is looked for, and could be taken in between.
fn ports_here(order: &Order, own: SocketAddr) -> Result<Vec<(u32, u16)>, OpenError> {
    let system = |error: std::io::Error| OpenError::Agents(Error::System(format!("no free port: {error}")));
    // Held until all are found, so that none is found twice.
    let (mut datagrams, mut listeners) = (Vec::new(), Vec::new());
    let mut ports = Vec::new();
    for (id, _) in order.flows().filter(|(_, reverse)| *reverse) {
        let fixed = order.receiving_port(id, order.parallel + 1);
        let port = match (fixed, &order.method) {
            (0, super::Method::Tcp(_)) => {
                let listener = TcpListener::bind(own).map_err(system)?;
                let port = listener.local_addr().map_err(system)?.port();
                listeners.push(listener);
                port
            }
            (0, _) => {
                let socket = UdpSocket::bind(own).map_err(system)?;
                let port = socket.local_addr().map_err(system)?.port();
                datagrams.push(socket);
                port
            }
            (fixed, _) => fixed,
        };
        ports.push((id, port));
    }
    Ok(ports)
}
