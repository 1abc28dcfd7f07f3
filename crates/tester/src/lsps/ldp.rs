//! Labels distributed by LDP. Packets carry the labels that the router advertises for the addresses of the peers and for
//! itself.

use super::{end, peers_behind, penultimate, router_address};
use crate::port::OpenPort;
use netstage_core::edge::IpPrefix;
use netstage_core::ldp::{Binding, FtSession, GracefulRestart, LdpConfig, LdpEvent, LdpPhase};
use netstage_core::time::Duration;
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::Namespace;
use netstage_routing::ldp::{self, LdpCommand, LdpInterface, LdpReport, LdpSockets, SessionEnding};
use netstage_routing::session_thread;
use netstage_scenario::tester::{Operation, Tester, TrafficDirection};
use netstage_wire::ldp::message::Fec;
use netstage_wire::mpls::LabelValue;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// LDP speakers, one for each port in order.
#[derive(Debug)]
pub struct LdpSpeakers(Vec<LdpSpeaker>, Option<JoinHandle<io::Result<()>>>);

/// Arguments of a speaker's task.
type LdpSpeakerTask = (LdpConfig, LdpSockets, UnboundedReceiver<LdpCommand>, Arc<Mutex<LdpPeerState>>);

#[derive(Debug)]
struct LdpSpeaker {
    commands: UnboundedSender<LdpCommand>,
    state: Arc<Mutex<LdpPeerState>>,
    bindings: Vec<(Fec, Binding)>,
    offer: Mutex<Offer>,
}

/// Session and labels that a port offers the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Whether the port has a session.
    pub has_session: bool,
    /// Whether it advertises labels.
    pub has_labels: bool,
    /// Graceful restart that it advertises.
    pub restart: Option<GracefulRestart>,
}

const COMPLETE: Offer = Offer { has_session: true, has_labels: true, restart: None };

/// State of a port's session with the router.
#[derive(Clone, Debug, Default)]
pub struct LdpPeerState {
    /// Whether the session is up.
    pub is_up: bool,
    /// Time at which the session came up (CLOCK_MONOTONIC).
    pub up_ns: u64,
    /// Number of withdrawn labels that the router has released in this session, and time of the last release.
    pub released: (u32, u64),
    /// Labels that the router advertises, by prefix.
    labels: BTreeMap<(IpAddr, u8), LabelValue>,
    /// Prefixes whose labels the router has withdrawn in this session.
    withdrawn: BTreeSet<(IpAddr, u8)>,
    fault: Option<String>,
    /// Number of sessions that have ended, and reason of the last end.
    ended: u32,
    end_reason: String,
}

impl LdpSpeakers {
    pub fn start(tester: &Tester, ports: &[OpenPort], namespace: &Namespace) -> io::Result<LdpSpeakers> {
        let (mut speakers, mut tasks) = (Vec::new(), Vec::new());
        for (number, port) in ports.iter().enumerate() {
            let IpAddr::V4(address) = port.settings.address.0 else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            let (commands, received) = unbounded_channel();
            let state = Arc::new(Mutex::new(LdpPeerState::default()));
            let place = LdpSockets {
                namespace: namespace.try_clone()?,
                interfaces: vec![LdpInterface { name: port.settings.interface.clone(), address }],
                targets: Vec::new(),
                md5_keys: Vec::new(),
            };
            // Cannot fail, because the receiver is in `tasks`.
            let _ = commands.send(LdpCommand::SetAddresses(vec![address.into()]));
            let bindings = bindings(tester, number);
            let _ = commands.send(LdpCommand::Bind(bindings.clone()));
            tasks.push((LdpConfig::new(address, address), place, received, Arc::clone(&state)));
            speakers.push(LdpSpeaker { commands, state, bindings, offer: Mutex::new(COMPLETE) });
        }
        let epoch = std::time::Instant::now();
        let speak = move |(config, place, received, state): LdpSpeakerTask| async move {
            let on_report = |_, report| update(&mut lock(&state), report);
            if let Err(error) = ldp::run(config, place, epoch, received, on_report).await {
                lock(&state).fault = Some(error.to_string());
            }
        };
        let thread = session_thread::run("tester-ldp", namespace, tasks, speak)?;
        Ok(LdpSpeakers(speakers, Some(thread)))
    }
}

impl LdpSpeakers {
    /// Returns the label that the router advertises for packets that a port sends to a peer.
    pub fn incoming(
        &self,
        tester: &Tester,
        port: &OpenPort,
        from: usize,
        operation: Operation,
        peer: (&TrafficDirection, u32),
    ) -> Result<LabelValue, String> {
        let speaker = &self.0[from];
        let end = end(tester, operation, peer);
        let label = match operation {
            Operation::Pop => speaker.router_label(router_address(tester, port)),
            _ => speaker.label_of(end),
        };
        label.ok_or_else(|| speaker.missing_label(port, operation, end))
    }

    /// Returns the number of sessions that have ended, except those of one port, and a message for the last port with
    /// such an end.
    pub fn ended_sessions(&self, ports: &[OpenPort], except: Option<usize>) -> (u32, Option<String>) {
        let (mut count, mut message) = (0, None);
        for (number, (speaker, port)) in self.0.iter().zip(ports).enumerate() {
            if Some(number) == except {
                continue;
            }
            let state = lock(&speaker.state);
            count += state.ended;
            if state.ended > 0 {
                let router = port.settings.router;
                message = Some(format!("the LDP session with {router} ended: {}", state.end_reason));
            }
        }
        (count, message)
    }

    /// Changes the session and the labels that a port offers the router, and waits until the messages are queued.
    pub fn offer(&self, port: usize, wanted: Offer) {
        let speaker = &self.0[port];
        let mut offer = lock(&speaker.offer);
        if offer.has_labels != wanted.has_labels {
            self.set_labels(port, wanted.has_labels);
        }
        // Graceful restart is advertised at the beginning of a session.
        if offer.has_session && (!wanted.has_session || offer.restart != wanted.restart) {
            self.end_session(port, SessionEnding::Shutdown, None);
            offer.has_session = false;
        }
        speaker.send(LdpCommand::SetRestart(wanted.restart));
        if wanted.has_session && !offer.has_session {
            self.resume(port);
        }
        *offer = wanted;
        // The answer follows the execution of all commands.
        let _ = ldp::snapshot(&speaker.commands);
    }

    /// Advertises or withdraws the labels of a port, until the next [`LdpSpeakers::offer`].
    pub fn set_labels(&self, port: usize, is_advertised: bool) {
        let speaker = &self.0[port];
        speaker.send(match is_advertised {
            true => LdpCommand::Bind(speaker.bindings.clone()),
            false => LdpCommand::Unbind(speaker.bindings.iter().map(|(fec, _)| *fec).collect()),
        });
    }

    /// Ends the session of a port.
    pub fn end_session(&self, port: usize, ending: SessionEnding, resume_after: Option<Duration>) {
        self.0[port].send(LdpCommand::Suspend { ending, resume_after });
    }

    /// Starts discovery at a port whose session was ended.
    pub fn resume(&self, port: usize) {
        self.0[port].send(LdpCommand::Resume);
    }

    /// Sets what a port offers after [`LdpSpeakers::set_labels`], [`LdpSpeakers::end_session`] and
    /// [`LdpSpeakers::resume`].
    pub fn set_offer(&self, port: usize, offer: Offer) {
        *lock(&self.0[port].offer) = offer;
    }

    /// Returns the state of a port's session.
    pub fn state(&self, port: usize) -> LdpPeerState {
        lock(&self.0[port].state).clone()
    }

    /// Returns the number of labels that a port advertises.
    pub fn label_count(&self, port: usize) -> usize {
        self.0[port].bindings.len()
    }

    /// Returns the FT Session TLV of the router in the session of a port.
    pub fn ft_session(&self, port: usize) -> Option<FtSession> {
        let snapshot = ldp::snapshot(&self.0[port].commands)?;
        let mut neighbors = snapshot.neighbors.iter();
        neighbors.find(|neighbor| neighbor.phase == Some(LdpPhase::Operational))?.ft_session
    }

    /// Describes a missing session.
    pub fn session_fault(&self, ports: &[OpenPort], port: usize) -> Option<String> {
        let state = lock(&self.0[port].state);
        (!state.is_up).then(|| no_session(&ports[port], state.fault.as_ref()))
    }
}

/// Describes a missing session with the router.
fn no_session(port: &OpenPort, fault: Option<&String>) -> String {
    let router = port.settings.router;
    match fault {
        Some(fault) => format!("no LDP session with {router}: {fault}"),
        None => format!("no LDP session with {router} yet; check that LDP is enabled there"),
    }
}

impl Drop for LdpSpeakers {
    fn drop(&mut self) {
        self.0.iter().for_each(|speaker| drop(speaker.commands.send(LdpCommand::Stop)));
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

impl LdpSpeaker {
    fn send(&self, command: LdpCommand) {
        // Fails only if the speaker has ended, which is a fault of its state.
        let _ = self.commands.send(command);
    }

    /// Returns the label that the router advertises for an address.
    fn label_of(&self, address: Ipv4Addr) -> Option<LabelValue> {
        lock(&self.state).labels.get(&(address.into(), 32)).copied()
    }

    /// Returns the label that the router advertises for itself: of the longest prefix with its address.
    fn router_label(&self, address: IpAddr) -> Option<LabelValue> {
        let holds_address = |&(prefix, length): &(IpAddr, u8)| {
            prefix.is_ipv4() && length > 0 && IpPrefix::containing(prefix, length).contains(address)
        };
        let state = lock(&self.state);
        let matches = state.labels.iter().filter(|(prefix, _)| holds_address(prefix));
        matches.max_by_key(|((_, length), _)| *length).map(|(_, label)| *label)
    }

    fn missing_label(&self, port: &OpenPort, operation: Operation, loopback: Ipv4Addr) -> String {
        let router = port.settings.router;
        let state = lock(&self.state);
        match operation {
            _ if !state.is_up => no_session(port, state.fault.as_ref()),
            Operation::Pop => format!("{router} advertises no label for itself"),
            _ if state.withdrawn.contains(&(loopback.into(), 32)) => format!(
                "{router} has withdrawn its label for {loopback}/32, as with ordered control; without a label, packets \
                 cannot be sent"
            ),
            _ => format!(
                "{router} advertises no label for {loopback}/32; check that it has a route to this address"
            ),
        }
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn update(state: &mut LdpPeerState, report: LdpReport) {
    match report {
        LdpReport::Fault(fault) => state.fault = Some(fault.to_string()),
        LdpReport::Event(LdpEvent::Up { .. }) => {
            (state.is_up, state.up_ns, state.fault) = (true, monotonic_ns(), None);
        }
        LdpReport::Event(LdpEvent::Released { .. }) => {
            state.released = (state.released.0 + 1, monotonic_ns());
        }
        LdpReport::Event(LdpEvent::Down { reason: why, .. } | LdpEvent::SetupFailed { reason: why, .. }) => {
            let ended = state.ended + u32::from(state.is_up);
            let end_reason = why.to_string();
            *state = LdpPeerState {
                fault: Some(end_reason.clone()),
                ended,
                end_reason,
                ..LdpPeerState::default()
            };
        }
        LdpReport::Event(LdpEvent::Mapping { fec: Fec::Prefix { address, length }, label, .. }) => {
            state.withdrawn.remove(&(address, length));
            state.labels.insert((address, length), label);
        }
        LdpReport::Event(LdpEvent::Withdrawn { fec: Fec::Prefix { address, length }, .. }) => {
            state.labels.remove(&(address, length));
            state.withdrawn.insert((address, length));
        }
        LdpReport::Event(_) => {}
    }
}

/// Returns the bindings that a port advertises: for the peers behind it.
fn bindings(tester: &Tester, port: usize) -> Vec<(Fec, Binding)> {
    let Some(labels) = tester.labels else { return Vec::new() };
    let bindings = peers_behind(tester, port).flat_map(|(direction, peer)| {
        let own = LabelValue::new(labels.push + direction.label_offset + peer);
        // Implicit null is the default of an egress.
        [(tester.loopback(direction, peer), own), (penultimate(tester, direction, peer), None)]
    });
    bindings
        .map(|(address, label)| {
            (Fec::Prefix { address: address.into(), length: 32 }, Binding::Egress { label })
        })
        .collect()
}
