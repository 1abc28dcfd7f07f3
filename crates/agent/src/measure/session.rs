//! Session of a measurement, from its preparation to its result.

use super::order::MeasurementParameters;
use super::outcome::MeasurementOutcome;
use super::timeline::{MeasurementInterval, Timeline};
use crate::controller::{AgentAddress, ControlledAgents, ControllerError};
use crate::{AssignmentEngine, LocalAgent};
use netstage_core::measure::ClockOffset;
use netstage_core::time::Duration;
use netstage_host::shared_key::PresharedKey;
use std::fmt;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Name of the agent in this process.
pub const LOCAL: &str = "here";
/// Name of the agent on the other host.
pub const REMOTE: &str = "there";

/// Error that prevents a measurement from beginning.
#[derive(Debug)]
pub enum OpenError {
    /// This host has no route to the target.
    NoRoute(SocketAddr, String),
    /// The agents are unreachable, or refused.
    Agents(ControllerError),
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

impl From<ControllerError> for OpenError {
    fn from(error: ControllerError) -> OpenError {
        OpenError::Agents(error)
    }
}

/// Prepared measurement.
pub struct PreparedMeasurement {
    parameters: MeasurementParameters,
    agents: ControlledAgents,
    here: JoinHandle<()>,
    /// Local address on the path to the remote host.
    pub own: SocketAddr,
    /// Number and port of each flow received by the remote host.
    pub remote_ports: Vec<(u32, u16)>,
}

impl PreparedMeasurement {
    /// Connects to the agent at `target`, which has this key, and prepares both sides. A one-ended
    /// measurement has no remote agent and no key.
    pub fn open(
        parameters: MeasurementParameters,
        target: SocketAddr,
        key: Option<PresharedKey>,
    ) -> Result<PreparedMeasurement, OpenError> {
        let no_route = |error: std::io::Error| OpenError::NoRoute(target, error.to_string());
        let own = source_address(target).map_err(no_route)?;
        let two = key.is_some();
        let (mut agents, here) = connect_pair(target, key)?;
        agents.new_run(true);
        match prepare(&mut agents, &parameters, own, target, two) {
            Ok(ports_there) => {
                Ok(PreparedMeasurement { parameters, agents, here, own, remote_ports: ports_there })
            }
            Err(error) => {
                // Releases the server explicitly, so that it does not wait for a timeout.
                agents.finish();
                Err(error)
            }
        }
    }

    /// Returns the offset of the remote clock from the local one, as measured while connecting.
    pub fn clock(&self) -> Option<ClockOffset> {
        self.agents.clocks().offset_of(REMOTE)
    }

    /// Runs the measurement. Calls `observe` with each interval soon after its end. Setting `stop` ends the
    /// run early.
    pub fn run(
        mut self,
        stop: &AtomicBool,
        mut observe: impl FnMut(&MeasurementInterval),
    ) -> Result<MeasurementOutcome, ControllerError> {
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
        self.agents.take_completed().bins.into_iter().for_each(|ended| timeline.push(ended));
        let again = self.agents.read_clocks(&[]).offset_of(REMOTE);
        let report = |name: &str| collected.reports.iter().find(|report| report.node == name);
        let flows_of = |name: &str| report(name).map(|report| report.flows.clone());
        let interrupted = stopped_at.is_some();
        let mut outcome = MeasurementOutcome::of(
            parameters,
            flows_of(LOCAL),
            flows_of(REMOTE),
            &timeline,
            end,
            interrupted,
        );
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

/// Starts an agent in this process, [`LOCAL`], and connects to it. With a key, also connects to the agent at
/// `target`, [`REMOTE`]. Returns the thread of the local agent, which ends once the controller has finished it.
pub fn connect_pair(
    target: SocketAddr,
    key: Option<PresharedKey>,
) -> Result<(ControlledAgents, JoinHandle<()>), ControllerError> {
    let (agent, connection) =
        LocalAgent::pair().map_err(|error| ControllerError::System(error.to_string()))?;
    let here = std::thread::spawn(move || {
        // The controller knows its result already.
        let _ = agent.serve(AssignmentEngine);
    });
    let mut places = vec![(LOCAL.to_string(), AgentAddress::Connection(connection))];
    places.extend(key.map(|key| (REMOTE.to_string(), AgentAddress::Host(target, key))));
    Ok((ControlledAgents::connect(places)?, here))
}

/// Prepares both sides. Returns the number and port of each flow received by the remote host.
fn prepare(
    agents: &mut ControlledAgents,
    parameters: &MeasurementParameters,
    own: SocketAddr,
    target: SocketAddr,
    two: bool,
) -> Result<Vec<(u32, u16)>, OpenError> {
    let ports_here = ports_here(parameters, own)?;
    let mut ports_there = Vec::new();
    if two {
        let part = parameters.remote_assignment(&ports_here, target.ip());
        ports_there = agents.add_agents(vec![(REMOTE.into(), part)])?.pop().unwrap_or_default();
    }
    agents.add_agents(vec![(
        LOCAL.into(),
        parameters.local_assignment(own, target, &ports_there, &ports_here),
    )])?;
    Ok(ports_there)
}

/// Returns the local address on the path to the target, as chosen by the kernel, with port 0.
pub fn source_address(target: SocketAddr) -> std::io::Result<SocketAddr> {
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
fn ports_here(parameters: &MeasurementParameters, own: SocketAddr) -> Result<Vec<(u32, u16)>, OpenError> {
    let system =
        |error: std::io::Error| OpenError::Agents(ControllerError::System(format!("no free port: {error}")));
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
