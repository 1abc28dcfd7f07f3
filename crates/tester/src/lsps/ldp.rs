//! Labels distributed by LDP. Packets carry the labels that the router advertises for the addresses of the peers and for
//! itself.

use super::{end, peers_behind, penultimate, router_address};
use crate::port::OpenPort;
use netstage_core::edge::IpPrefix;
use netstage_core::ldp::{Binding, LdpConfig, LdpEvent};
use netstage_host::netns::Namespace;
use netstage_routing::ldp::{self, LdpCommand, LdpInterface, LdpReport, LdpSockets};
use netstage_routing::session_thread;
use netstage_scenario::tester::{Operation, Tester, TrafficDirection};
use netstage_wire::ldp::message::Fec;
use netstage_wire::mpls::LabelValue;
use std::collections::BTreeMap;
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
            let _ = commands.send(LdpCommand::Bind(bindings(tester, number)));
            tasks.push((LdpConfig::new(address, address), place, received, Arc::clone(&state)));
            speakers.push(LdpSpeaker { commands, state });
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

    /// Returns the number of sessions that have ended, and a message for the last port with such an end.
    pub fn ended_sessions(&self, ports: &[OpenPort]) -> (u32, Option<String>) {
        let (mut count, mut message) = (0, None);
        for (speaker, port) in self.0.iter().zip(ports) {
            let state = lock(&speaker.state);
            count += state.ended;
            if state.ended > 0 {
                let router = port.settings.router;
                message = Some(format!("the LDP session with {router} ended: {}", state.end_reason));
            }
        }
        (count, message)
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
