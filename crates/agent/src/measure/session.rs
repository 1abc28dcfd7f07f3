//! Session of a measurement, from its preparation to its result.

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

/// Names of the local and the remote agent.
const HERE: &str = "here";
const THERE: &str = "there";

/// Error that prevents a measurement from beginning.
#[derive(Debug)]
pub enum OpenError {
    /// This host has no route to the target.
    NoRoute(SocketAddr, String),
    /// The agents are unreachable, or refused.
    Agents(Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoRoute(target, reason) => write!(f, "no route to {}: {reason}", target.ip()),
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

/// Prepared measurement.
pub struct Session {
    parameters: Order,
    agents: Agents,
    here: JoinHandle<()>,
    /// Local address on the path to the remote host.
    pub own: SocketAddr,
    /// Number and port of each flow received by the remote host.
    pub ports_there: Vec<(u32, u16)>,
}

impl Session {
    /// Connects to the agent at `target`, which has this key, and prepares both sides. A one-ended
    /// measurement has no remote agent and no key.
    pub fn open(parameters: Order, target: SocketAddr, key: Option<Key>) -> Result<Session, OpenError> {
        let no_route = |error: std::io::Error| OpenError::NoRoute(target, error.to_string());
        let own = own_address(target).map_err(no_route)?;
        let (agent, connection) = Agent::pair().map_err(|error| Error::System(error.to_string()))?;
        let here = std::thread::spawn(move || {
            // The controller knows its result already.
            let _ = agent.serve(Engine);
        });
        let mut places = vec![(HERE.to_string(), Place::Connection(connection))];
        places.extend(key.map(|key| (THERE.to_string(), Place::Host(target, key))));
        let two = places.len() == 2;
        let mut agents = Agents::connect(places)?;
        agents.new_run(true);
        match prepare(&mut agents, &parameters, own, target, two) {
            Ok(ports_there) => Ok(Session { parameters, agents, here, own, ports_there }),
            Err(error) => {
                // Releases the server explicitly, so that it does not wait for a timeout.
                agents.finish();
                Err(error)
            }
        }
    }

    /// Returns the offset of the remote clock from the local one, as measured while connecting.
    pub fn clock(&self) -> Option<ClockOffset> {
        self.agents.clocks().of(THERE)
    }

    /// Runs the measurement. Calls `observe` with each interval soon after its end. Setting `stop` ends the
    /// run early.
    pub fn run(mut self, stop: &AtomicBool, mut observe: impl FnMut(&Interval)) -> Result<Outcome, Error> {
        let parameters = &self.parameters;
        let flows = parameters.flows().map(|(id, _)| id);
        let mut timeline = Timeline::new(
            parameters.interval,
            parameters.omit,
            parameters.duration(),
            flows,
            parameters.is_one_ended(),
        );
        let clock = self.clock();
        let epoch = self.agents.start_together()?;
        let mut stopped_at = None;
        self.agents.watch(|overview| {
            overview.ended.bins.iter().for_each(|ended| timeline.push(*ended));
            while let Some(interval) = timeline.pop(Duration(epoch.now().0)) {
                observe(&interval);
            }
            if stop.load(Ordering::Relaxed) || !overview.lost_agents.is_empty() {
                stopped_at.get_or_insert(Duration(epoch.now().0));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        let end = stopped_at.unwrap_or(parameters.duration()).min(parameters.duration());
        let collected = self.agents.collect();
        self.agents.take_ended().bins.into_iter().for_each(|ended| timeline.push(ended));
        let again = self.agents.read_clocks(&[]).of(THERE);
        let report = |name: &str| collected.reports.iter().find(|report| report.node == name);
        let flows_of = |name: &str| report(name).map(|report| report.flows.clone());
        let interrupted = stopped_at.is_some();
        let mut outcome =
            Outcome::of(parameters, flows_of(HERE), flows_of(THERE), &timeline, end, interrupted);
        for report in &collected.reports {
            outcome.warnings.extend(report.warnings.iter().cloned());
            outcome.void.extend(report.void.iter().cloned());
        }
        outcome.warnings.extend(collected.warnings);
        outcome.lost = collected.lost;
        outcome.clock = clock;
        outcome.clock_error_ns = clock.map(|before| before.error_with_drift(again));
        for interval in outcome.intervals.iter().filter(|interval| interval.number >= timeline.next()) {
            observe(interval);
        }
        self.agents.finish();
        // The agent ends because the controller has finished it, or is gone.
        let _ = self.here.join();
        Ok(outcome)
    }
}

/// Prepares both sides. Returns the number and port of each flow received by the remote host.
fn prepare(
    agents: &mut Agents,
    parameters: &Order,
    own: SocketAddr,
    target: SocketAddr,
    two: bool,
) -> Result<Vec<(u32, u16)>, OpenError> {
    let ports_here = ports_here(parameters, own)?;
    let mut ports_there = Vec::new();
    if two {
        let part = parameters.there(&ports_here, target.ip());
        ports_there = agents.add(vec![(THERE.into(), part)])?.pop().unwrap_or_default();
    }
    agents.add(vec![(HERE.into(), parameters.here(own, target, &ports_there, &ports_here))])?;
    Ok(ports_there)
}

/// Returns the local address on the path to the target, as chosen by the kernel.
fn own_address(target: SocketAddr) -> std::io::Result<SocketAddr> {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    // Nothing is sent. Some systems refuse port zero.
    let port = if target.port() == 0 { 9 } else { target.port() };
    let mut somewhere = target;
    somewhere.set_port(port);
    socket.connect(somewhere)?;
    let mut own = socket.local_addr()?;
    own.set_port(0);
    Ok(own)
}

/// Chooses the ports at which reverse flows are received. The remote agent has to know them before the local
/// one is prepared. A free port could therefore be taken by another program in between.
fn ports_here(parameters: &Order, own: SocketAddr) -> Result<Vec<(u32, u16)>, OpenError> {
    let system = |error: std::io::Error| OpenError::Agents(Error::System(format!("no free port: {error}")));
    // The sockets are held until all ports are chosen, so that none is chosen twice.
    let (mut datagrams, mut listeners) = (Vec::new(), Vec::new());
    let mut ports = Vec::new();
    for (id, _) in parameters.flows().filter(|(_, reverse)| *reverse) {
        let fixed = parameters.receiving_port(id, parameters.parallel + 1);
        let port = match (fixed, &parameters.method) {
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
