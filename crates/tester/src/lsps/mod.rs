//! Label switched paths of a test. Their labels are configured, or distributed by LDP (RFC 5036) or RSVP-TE (RFC 3209).
//!
//! With either protocol each port is a router of its own. Receiving ports are the egresses of LSPs to addresses behind
//! them, one for each peer.

pub(crate) mod ldp;
mod rsvp;

use super::port::OpenPort;
use ldp::LdpSpeakers;
use netstage_host::netns::Namespace;
use netstage_scenario::tester::{INNER, LabelSource, Operation, Tester, TrafficDirection};
use netstage_wire::mpls::LabelValue;
use rsvp::RsvpSpeakers;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// Offset of the addresses whose LSPs end with penultimate hop popping.
const PENULTIMATE: u32 = 128;

/// Label switched paths.
#[derive(Debug)]
pub enum Lsps {
    /// Labels as configured.
    Configured,
    /// Labels distributed by LDP.
    Ldp(LdpSpeakers),
    /// LSPs signaled by RSVP-TE.
    Rsvp(RsvpSpeakers),
}

impl Lsps {
    /// Starts the label distribution that the configuration requires.
    pub fn start(tester: &Tester, ports: &[OpenPort], namespace: &Namespace) -> io::Result<Lsps> {
        match tester.labels.map(|labels| labels.source) {
            None | Some(LabelSource::User) => Ok(Lsps::Configured),
            Some(LabelSource::Ldp) => LdpSpeakers::start(tester, ports, namespace).map(Lsps::Ldp),
            Some(LabelSource::RsvpTe) => RsvpSpeakers::start(tester, ports, namespace).map(Lsps::Rsvp),
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
        let label = |peer| {
            let advertised = match self {
                Lsps::Configured => return Ok(first + direction.label_offset + peer),
                Lsps::Ldp(speakers) => {
                    speakers.incoming(tester, &ports[from], from, operation, (direction, peer))?
                }
                Lsps::Rsvp(speakers) => speakers.incoming(tester, ports, operation, (direction, peer))?,
            };
            match advertised {
                LabelValue::IMPLICIT_NULL => Err(format!(
                    "{} advertises implicit null, so packets have no label to pop: configure it to advertise \
                     explicit null",
                    ports[from].settings.router
                )),
                label => Ok(label.number()),
            }
        };
        (0..tester.peer_count(direction)).map(label).collect()
    }

    /// Returns the number of sessions or LSPs that have ended, and a message for the last port with such an end. The LDP
    /// sessions of the port `except` do not count.
    pub fn ended_sessions(&self, ports: &[OpenPort], except: Option<usize>) -> (u32, Option<String>) {
        match self {
            Lsps::Configured => (0, None),
            Lsps::Ldp(speakers) => speakers.ended_sessions(ports, except),
            Lsps::Rsvp(speakers) => speakers.ended_lsps(ports),
        }
    }

    /// Returns the outer labels of packets that the router forwards to each peer of a direction. The error explains why
    /// labels are unknown.
    pub fn outgoing(
        &self,
        tester: &Tester,
        ports: &[OpenPort],
        operation: Operation,
        direction: &TrafficDirection,
    ) -> Result<Vec<u32>, String> {
        let Some(labels) = tester.labels else { return Ok(Vec::new()) };
        let Some(configured) = labels.outgoing(operation) else { return Ok(Vec::new()) };
        let label = |peer| match self {
            // All peers share the inner label.
            _ if configured == INNER => Ok(INNER),
            Lsps::Configured => Ok(configured + direction.label_offset + peer),
            // LDP assigns one label per LSP, whether the router swaps or pushes it.
            Lsps::Ldp(_) => Ok(labels.push + direction.label_offset + peer),
            Lsps::Rsvp(speakers) => speakers.outgoing(tester, ports, operation, (direction, peer)),
        };
        (0..tester.peer_count(direction)).map(label).collect()
    }
}

/// Returns the address of the LSP of which the router is the penultimate hop.
pub fn penultimate(tester: &Tester, direction: &TrafficDirection, peer: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(tester.loopback(direction, peer)) + PENULTIMATE)
}

/// Returns the address of a peer at which its LSP for an operation ends.
fn end(tester: &Tester, operation: Operation, (direction, peer): (&TrafficDirection, u32)) -> Ipv4Addr {
    match operation {
        Operation::Php | Operation::Unlabeled => penultimate(tester, direction, peer),
        _ => tester.loopback(direction, peer),
    }
}

/// Returns the peers behind a receiving port, with their direction.
fn peers_behind(tester: &Tester, port: usize) -> impl Iterator<Item = (&TrafficDirection, u32)> {
    tester.directions.iter().flat_map(move |direction| {
        let is_behind = move |peer: &u32| tester.ports_of_peer(direction, *peer).any(|other| other == port);
        (0..tester.peer_count(direction)).filter(is_behind).map(move |peer| (direction, peer))
    })
}

/// Returns the address of the router at which packets are popped.
fn router_address(tester: &Tester, port: &OpenPort) -> IpAddr {
    tester.labels.and_then(|labels| labels.router_loopback).map_or(port.settings.router, IpAddr::V4)
}
