//! LSPs signaled by RSVP-TE. The first sending port of a direction signals an LSP through the router to each peer, and
//! every sending port uses its label: routers have one label space for all interfaces. LSPs for PUSH begin at the router.

use super::{end, peers_behind, penultimate, router_address};
use crate::port::OpenPort;
use netstage_core::quantity::BitRate;
use netstage_core::rsvp::EgressLabel;
use netstage_host::netns::Namespace;
use netstage_routing::rsvp::{
    self, LspStatus, RouteHop, RsvpCommand, RsvpConfig, RsvpEvent, RsvpPlace, RsvpReport, RsvpSockets,
    TunnelRequest,
};
use netstage_routing::session_thread;
use netstage_scenario::tester::{Operation, Tester, TrafficDirection};
use netstage_wire::mpls::LabelValue;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// RSVP-TE speakers, one for each port in order.
#[derive(Debug)]
pub struct RsvpSpeakers {
    speakers: Vec<RsvpSpeaker>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug)]
struct RsvpSpeaker {
    address: Ipv4Addr,
    commands: UnboundedSender<RsvpCommand>,
    state: Arc<Mutex<RsvpState>>,
}

/// Reports of a speaker.
#[derive(Debug, Default)]
struct RsvpState {
    /// Error of the last attempt, by tunnel.
    failures: BTreeMap<u16, String>,
    fault: Option<String>,
    /// Number of LSPs that have ended.
    ended: u32,
}

/// Arguments of a speaker's task.
type RsvpSpeakerTask = (RsvpConfig, RsvpSockets, UnboundedReceiver<RsvpCommand>, Arc<Mutex<RsvpState>>);

impl RsvpSpeakers {
    pub fn start(tester: &Tester, ports: &[OpenPort], namespace: &Namespace) -> io::Result<RsvpSpeakers> {
        let (mut speakers, mut tasks) = (Vec::new(), Vec::new());
        let instance = rsvp::new_instance();
        for (number, port) in ports.iter().enumerate() {
            let (IpAddr::V4(address), length) = port.settings.address else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            let (commands, received) = unbounded_channel();
            let name = port.settings.interface.clone();
            let sockets = RsvpSockets {
                namespace: namespace.try_clone()?,
                interfaces: vec![RsvpPlace { name, address, length, bandwidth: None, keys: Vec::new() }],
            };
            for (index, request) in requests(tester, ports, number).into_iter().enumerate() {
                // Cannot fail, because the receiver is in `tasks`.
                let _ = commands.send(RsvpCommand::SetTunnel(index as u16 + 1, request));
            }
            let endpoints = peers_behind(tester, number).flat_map(|(direction, peer)| {
                [
                    (tester.loopback(direction, peer), EgressLabel::Own),
                    (penultimate(tester, direction, peer), EgressLabel::ImplicitNull),
                ]
            });
            let config = RsvpConfig { endpoints: endpoints.collect(), ..RsvpConfig::new(address, instance) };
            let state = Arc::new(Mutex::new(RsvpState::default()));
            tasks.push((config, sockets, received, Arc::clone(&state)));
            speakers.push(RsvpSpeaker { address, commands, state });
        }
        let epoch = std::time::Instant::now();
        let speak = move |(config, sockets, received, state): RsvpSpeakerTask| async move {
            let on_reports = |_, reports: Vec<RsvpReport>| {
                reports.into_iter().for_each(|report| update(&mut lock(&state), report));
            };
            if let Err(error) = rsvp::run(config, sockets, epoch, received, on_reports).await {
                lock(&state).fault = Some(error.to_string());
            }
        };
        let thread = session_thread::run("tester-rsvp", namespace, tasks, speak)?;
        Ok(RsvpSpeakers { speakers, thread: Some(thread) })
    }

    /// Returns the label that the router has assigned to the LSP for packets to a peer.
    pub fn incoming(
        &self,
        tester: &Tester,
        ports: &[OpenPort],
        operation: Operation,
        (direction, peer): (&TrafficDirection, u32),
    ) -> Result<LabelValue, String> {
        let from = direction.from[0];
        let (speaker, port) = (&self.speakers[from], &ports[from]);
        let end = match operation {
            Operation::Pop => v4(router_address(tester, port)),
            _ => end(tester, operation, (direction, peer)),
        };
        let lsps = speaker.lsps();
        let begins = |lsp: &&LspStatus| lsp.upstream.is_none() && lsp.lsp.session.endpoint == end;
        let found = lsps.iter().filter(begins).find(|lsp| lsp.is_reserved).and_then(|lsp| lsp.outgoing);
        found.ok_or_else(|| {
            let state = lock(&speaker.state);
            let tunnel = requests(tester, ports, from).iter().position(|request| request.endpoint == end);
            let failure = tunnel.and_then(|tunnel| state.failures.get(&(tunnel as u16 + 1)));
            let router = port.settings.router;
            let reason = failure.or(state.fault.as_ref()).cloned().unwrap_or_else(|| {
                format!("{router} has not answered yet; check that RSVP-TE is enabled on its interfaces")
            });
            format!("no LSP to {end} through {router}: {reason}")
        })
    }

    /// Returns the label of packets in the LSP to a peer that the router swaps or pushes.
    pub fn outgoing(
        &self,
        tester: &Tester,
        ports: &[OpenPort],
        operation: Operation,
        (direction, peer): (&TrafficDirection, u32),
    ) -> Result<u32, String> {
        let to = direction.to[peer as usize % direction.to.len()];
        let end = tester.loopback(direction, peer);
        let of_tester: BTreeSet<Ipv4Addr> = self.speakers.iter().map(|speaker| speaker.address).collect();
        let from = self.speakers[direction.from[0]].address;
        let is_right = |sender: Ipv4Addr| match operation {
            Operation::Push => !of_tester.contains(&sender),
            _ => sender == from,
        };
        let lsps = self.speakers[to].lsps();
        let ends = |lsp: &&LspStatus| lsp.downstream.is_none() && lsp.lsp.session.endpoint == end;
        let found = lsps.iter().filter(ends).find(|lsp| is_right(lsp.lsp.sender.address));
        found.and_then(|lsp| lsp.incoming).map(LabelValue::number).ok_or_else(|| match operation {
            Operation::Push => format!(
                "{} has set up no LSP to {end}; configure it, as printed by --setup",
                ports[to].settings.router
            ),
            _ => format!("no LSP from {from} to {end} has arrived"),
        })
    }

    /// Returns the number of LSPs that have ended, and a message for the last port with such an end.
    pub fn ended_lsps(&self, ports: &[OpenPort]) -> (u32, Option<String>) {
        let (mut count, mut message) = (0, None);
        for (speaker, port) in self.speakers.iter().zip(ports) {
            let ended = lock(&speaker.state).ended;
            count += ended;
            if ended > 0 {
                message = Some(format!("{ended} LSPs through {} ended", port.settings.router));
            }
        }
        (count, message)
    }
}

impl Drop for RsvpSpeakers {
    fn drop(&mut self) {
        self.speakers.iter().for_each(|speaker| drop(speaker.commands.send(RsvpCommand::Stop)));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl RsvpSpeaker {
    /// Returns the present LSPs; none after the end of the speaker.
    fn lsps(&self) -> Vec<LspStatus> {
        rsvp::snapshot(&self.commands).map_or_else(Vec::new, |snapshot| snapshot.lsps)
    }
}

fn lock(state: &Mutex<RsvpState>) -> MutexGuard<'_, RsvpState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn update(state: &mut RsvpState, report: RsvpReport) {
    match report {
        RsvpReport::Fault(fault) => state.fault = Some(fault.to_string()),
        RsvpReport::Event(RsvpEvent::Up { tunnel, .. }) => {
            state.failures.remove(&tunnel);
            state.fault = None;
        }
        RsvpReport::Event(RsvpEvent::Failed { tunnel, error }) => {
            state.failures.insert(tunnel, format!("{} reports: {}", error.node, error.meaning()));
        }
        RsvpReport::Event(RsvpEvent::Down { .. }) => state.ended += 1,
        RsvpReport::Event(_) => {}
    }
}

/// Returns the LSPs that a port signals, without duplicates: those that the operations of the test need.
fn requests(tester: &Tester, ports: &[OpenPort], from: usize) -> Vec<TunnelRequest> {
    let router = v4(ports[from].settings.router);
    let request = |endpoint: Ipv4Addr, route: &[RouteHop]| TunnelRequest {
        endpoint,
        route: route.to_vec(),
        bandwidth: BitRate(0),
        name: format!("netstage-{endpoint}").into_bytes(),
        is_protected: true,
    };
    let mut requests: Vec<TunnelRequest> = Vec::new();
    for direction in tester.directions.iter().filter(|direction| direction.from[0] == from) {
        for operation in tester.signaled_operations() {
            match operation {
                Operation::Ip | Operation::Push => {}
                Operation::Pop => {
                    let end = v4(router_address(tester, &ports[from]));
                    requests.push(request(end, &[RouteHop::strict(router), RouteHop::loose(end)]));
                }
                Operation::Swap | Operation::Php | Operation::Unlabeled => {
                    for peer in 0..tester.peer_count(direction) {
                        let to = &ports[direction.to[peer as usize % direction.to.len()]];
                        let far = v4(to.settings.address.0);
                        // Further routers may be on the way to the far port.
                        let route = [RouteHop::strict(router), RouteHop::loose(far)];
                        requests.push(request(end(tester, operation, (direction, peer)), &route));
                    }
                }
            }
        }
    }
    let mut known = BTreeSet::new();
    requests.retain(|request| known.insert(request.endpoint));
    requests
}

/// Returns an IPv4 address; the configuration has no other ones with labels by RSVP-TE.
fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}
