//! Label switched paths of a test. Their labels are configured, or distributed by LDP (RFC 5036).
//!
//! With LDP each port is a router of its own. Receiving ports are the egresses of LSPs to addresses behind
//! them, one for each peer. Packets carry the labels that the router advertises for these addresses and for
//! itself.

use super::port::OpenPort;
use super::session_thread;
use netstage_core::edge::IpPrefix;
use netstage_core::ldp::{Binding, LdpConfig, LdpEvent};
use netstage_host::netns::Namespace;
use netstage_routing::ldp::{self, LdpCommand, LdpInterface, LdpReport, LdpSockets};
use netstage_scenario::tester::{INNER, LabelSource, Operation, Tester, TrafficDirection};
use netstage_wire::ldp::message::Fec;
use netstage_wire::mpls::LabelValue;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Offset of the addresses whose LSPs end with penultimate hop popping.
const PENULTIMATE: u32 = 128;

/// Label switched paths.
#[derive(Debug)]
pub enum Lsps {
    /// Labels as configured.
    Configured,
    /// Labels distributed by LDP.
    Distributed(TesterLdpSpeakers),
}

impl Lsps {
    /// Starts the label distribution that the configuration requires.
    pub fn start(tester: &Tester, ports: &[OpenPort], namespace: &Namespace) -> io::Result<Lsps> {
        match tester.labels.map(|labels| labels.source) {
            None | Some(LabelSource::User) => Ok(Lsps::Configured),
            Some(LabelSource::Ldp) => {
                TesterLdpSpeakers::start(tester, ports, namespace).map(Lsps::Distributed)
            }
            Some(LabelSource::RsvpTe) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the outer labels of packets that a port sends to each peer of a direction, or an empty list if
    /// packets have no label. The error explains why labels are unknown.
    pub fn incoming(
        &self,
        tester: &Tester,
        ports: &[OpenPort],
        operation: Operation,
        direction: &TrafficDirection,
        from: usize,
    ) -> Result<Vec<u32>, String> {
        let Some(labels) = tester.labels else { return Ok(Vec::new()) };
        let Some(first) = labels.incoming(operation) else { return Ok(Vec::new()) };
        let peers = 0..tester.peer_count(direction);
        let Lsps::Distributed(speakers) = self else {
            return Ok(peers.map(|peer| first + direction.label_offset + peer).collect());
        };
        let speaker = &speakers.0[from];
        let port = &ports[from];
        let label = |peer: u32| {
            let label = match operation {
                Operation::Pop => {
                    speaker.router_label(labels.router_loopback.map_or(port.settings.router, IpAddr::V4))
                }
                Operation::Php | Operation::Unlabeled => {
                    speaker.label_of(penultimate(tester, direction, peer))
                }
                _ => speaker.label_of(tester.loopback(direction, peer)),
            };
            let missing = || speaker.missing_label(port, operation, tester.loopback(direction, peer));
            match label.ok_or_else(missing)? {
                LabelValue::IMPLICIT_NULL => Err(format!(
                    "{} advertises implicit null, so packets have no label to pop: configure it to advertise \
                     explicit null",
                    port.settings.router
                )),
                label => Ok(label.number()),
            }
        };
        peers.map(label).collect()
    }

    /// Returns the number of sessions that have ended, and a message for the last port with such an end.
    pub fn ended_sessions(&self, ports: &[OpenPort]) -> (u32, Option<String>) {
        let Lsps::Distributed(speakers) = self else { return (0, None) };
        let (mut count, mut message) = (0, None);
        for (speaker, port) in speakers.0.iter().zip(ports) {
            let state = lock(&speaker.state);
            count += state.ended;
            if state.ended > 0 {
                let router = port.settings.router;
                message = Some(format!("the LDP session with {router} ended: {}", state.end_reason));
            }
        }
        (count, message)
    }

    /// Returns the outer labels of packets that the router forwards to each peer of a direction.
    pub fn outgoing(&self, tester: &Tester, operation: Operation, direction: &TrafficDirection) -> Vec<u32> {
        let Some(labels) = tester.labels else { return Vec::new() };
        let first = match (self, operation) {
            // LDP assigns one label per LSP, whether the router swaps or pushes it.
            (Lsps::Distributed(_), Operation::Swap) => Some(labels.push),
            _ => labels.outgoing(operation),
        };
        let Some(first) = first else { return Vec::new() };
        let peers = 0..tester.peer_count(direction);
        // All peers share the inner label.
        peers.map(|peer| if first == INNER { first } else { first + direction.label_offset + peer }).collect()
    }
}

/// Returns the address of the LSP of which the router is the penultimate hop.
pub fn penultimate(tester: &Tester, direction: &TrafficDirection, peer: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(tester.loopback(direction, peer)) + PENULTIMATE)
}

/// LDP speakers, one for each port in order.
#[derive(Debug)]
pub struct TesterLdpSpeakers(Vec<TesterLdpSpeaker>, Option<JoinHandle<io::Result<()>>>);

/// Arguments of a speaker's task.
type LdpSpeakerTask = (LdpConfig, LdpSockets, UnboundedReceiver<LdpCommand>, Arc<Mutex<LdpPeerState>>);

#[derive(Debug)]
struct TesterLdpSpeaker {
    commands: UnboundedSender<LdpCommand>,
    state: Arc<Mutex<LdpPeerState>>,
}

#[derive(Debug, Default)]
struct LdpPeerState {
    is_up: bool,
    /// Labels that the router advertises, by prefix.
    labels: BTreeMap<(IpAddr, u8), LabelValue>,
    fault: Option<String>,
    /// Number of sessions that have ended, and reason of the last end.
    ended: u32,
    end_reason: String,
}

impl TesterLdpSpeakers {
    fn start(tester: &Tester, ports: &[OpenPort], namespace: &Namespace) -> io::Result<TesterLdpSpeakers> {
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
            let _ = commands.send(LdpCommand::Bind(bindings(tester, number)));
            tasks.push((LdpConfig::new(address, address), place, received, Arc::clone(&state)));
            speakers.push(TesterLdpSpeaker { commands, state });
        }
        let epoch = std::time::Instant::now();
        let speak = move |(config, place, received, state): LdpSpeakerTask| async move {
            let on_report = |_, report| update(&mut lock(&state), report);
            if let Err(error) = ldp::run(config, place, epoch, received, on_report).await {
                lock(&state).fault = Some(error.to_string());
            }
        };
        let thread = session_thread::run("tester-ldp", namespace, tasks, speak)?;
        Ok(TesterLdpSpeakers(speakers, Some(thread)))
    }
}

impl Drop for TesterLdpSpeakers {
    fn drop(&mut self) {
        self.0.iter().for_each(|speaker| drop(speaker.commands.send(LdpCommand::Stop)));
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

impl TesterLdpSpeaker {
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
        match (&state.fault, state.is_up) {
            (Some(fault), false) => format!("no LDP session with {router}: {fault}"),
            (None, false) => format!("no LDP session with {router} yet; check that LDP is enabled there"),
            (_, true) => match operation {
                Operation::Pop => format!("{router} advertises no label for itself"),
                _ => format!(
                    "{router} advertises no label for {loopback}/32; check that it has a route to this address"
                ),
            },
        }
    }
}

fn lock(state: &Mutex<LdpPeerState>) -> MutexGuard<'_, LdpPeerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn update(state: &mut LdpPeerState, report: LdpReport) {
    match report {
        LdpReport::Fault(fault) => state.fault = Some(fault.to_string()),
        LdpReport::Event(LdpEvent::Up { .. }) => (state.is_up, state.fault) = (true, None),
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
            state.labels.insert((address, length), label);
        }
        LdpReport::Event(LdpEvent::Withdrawn { fec: Fec::Prefix { address, length }, .. }) => {
            state.labels.remove(&(address, length));
        }
        LdpReport::Event(_) => {}
    }
}

/// Returns the bindings that a port advertises: for the peers behind it.
fn bindings(tester: &Tester, port: usize) -> Vec<(Fec, Binding)> {
    let Some(labels) = tester.labels else { return Vec::new() };
    let mut bindings = Vec::new();
    for direction in &tester.directions {
        let Some(position) = direction.to.iter().position(|to| *to == port) else { continue };
        let port_count = direction.to.len();
        for peer in (0..tester.peer_count(direction)).filter(|peer| *peer as usize % port_count == position) {
            let own = LabelValue::new(labels.push + direction.label_offset + peer);
            for (address, label) in [
                (tester.loopback(direction, peer), own),
                // Implicit null, the default of an egress.
                (penultimate(tester, direction, peer), None),
            ] {
                bindings
                    .push((Fec::Prefix { address: address.into(), length: 32 }, Binding::Egress { label }));
            }
        }
    }
    bindings
}
