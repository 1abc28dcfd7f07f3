//! LdpSpeaker of the label distribution protocol with arbitrary input from a peer and its caller: it accepts or
//! rejects the input, stores no more than its limits, sends only valid messages, and finally returns every
//! label exactly once.
//!
//! The first byte configures it. Steps follow: the kind of step, the number of its bytes, and the bytes.

use netstage_core::ldp::{
    Binding, GracefulRestart, LabelControl, LdpAction, LdpConfig, LdpConnection, LdpEvent, LdpSpeaker,
    NullLabel,
};
use netstage_core::time::{Duration, Instant};
use netstage_wire::ldp::message::{Fec, LdpMessage};
use netstage_wire::ldp::{HEADER, Identifier, MAX_PDU_LENGTH, Pdu};
use netstage_wire::mpls::LabelValue;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const LOWER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const HIGHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const MAX_BINDINGS: usize = 8;

struct Run {
    speaker: LdpSpeaker,
    now: Instant,
    /// Peer of each open connection.
    open: BTreeMap<LdpConnection, Ipv4Addr>,
    connections: u64,
    /// Labels that were bound and are not free yet.
    used: BTreeSet<LabelValue>,
}

/// Returns a PDU of a router with these messages.
fn framed(router: Ipv4Addr, messages: &[u8]) -> Vec<u8> {
    let length = (messages.len() + HEADER - 4) as u16;
    [&[0, 1][..], &length.to_be_bytes(), &router.octets(), &[0, 0], messages].concat()
}

/// Returns a message of a type with these TLVs.
fn message(kind: [u8; 2], tlvs: &[u8]) -> Vec<u8> {
    let length = (tlvs.len() + 4) as u16;
    [&kind[..], &length.to_be_bytes(), &[0, 0, 0, 7], tlvs].concat()
}

impl Run {
    fn step(&mut self, kind: u8, bytes: &[u8]) {
        let first = bytes.first().copied().unwrap_or(0);
        let peer = if kind & 0x80 == 0 { HIGHER } else { LOWER };
        let connection =
            self.open.iter().find(|(_, remote)| **remote == peer).map(|(connection, _)| *connection);
        match (kind & 0x0f, connection) {
            (0, _) => self.speaker.handle_hello(self.now, 0, peer, bytes),
            (1, _) => self.speaker.handle_hello(self.now, 0, peer, &framed(peer, &message([1, 0], bytes))),
            (2, _) => {
                self.connections += 1;
                let connection = LdpConnection(self.connections);
                self.open.insert(connection, peer);
                self.speaker.handle_accepted(self.now, connection, peer);
            }
            (3, Some(connection)) => self.speaker.handle_bytes(self.now, connection, bytes),
            (4, Some(connection)) => {
                let kind = [first & 0x83, bytes.get(1).copied().unwrap_or(0)];
                let bytes = framed(peer, &message(kind, bytes.get(2..).unwrap_or_default()));
                self.speaker.handle_bytes(self.now, connection, &bytes);
            }
            (5, Some(connection)) => {
                self.open.remove(&connection);
                self.speaker.handle_closed(self.now, connection);
            }
            (6, Some(connection)) => self.speaker.set_writable(connection, first & 1 != 0),
            (7, _) => {
                self.now += Duration::from_secs(first.into());
                self.speaker.handle_timeout(self.now);
            }
            (8, _) => {
                let fec = Fec::prefix(Ipv4Addr::new(10, first & 3, 0, 0).into(), 16).expect("it is short");
                // The caller must not reuse a label before it is free.
                let label = LabelValue::new(16 + u32::from(first)).filter(|label| !self.used.contains(label));
                let next_hops = vec![peer.into()];
                let binding = match label {
                    Some(label) => Binding::Transit { label, next_hops },
                    None => Binding::Egress { label: None },
                };
                self.used.extend(label);
                self.speaker.bind(fec, binding).expect("a prefix and a label");
            }
            (9, _) => {
                let fec = Fec::prefix(Ipv4Addr::new(10, first & 3, 0, 0).into(), 16).expect("it is short");
                self.speaker.unbind(fec);
            }
            (10, _) => {
                self.speaker.set_addresses(bytes.iter().map(|byte| Ipv4Addr::new(10, 1, 0, *byte).into()))
            }
            _ => {}
        }
        self.poll();
    }

    fn poll(&mut self) {
        while let Some(transmit) = self.speaker.poll_transmit(self.now) {
            match transmit {
                LdpAction::Discovery { bytes, .. } | LdpAction::Stream { bytes, .. } => {
                    let pdu = Pdu::new(&bytes, MAX_PDU_LENGTH).expect("a PDU");
                    assert_eq!((pdu.sender, pdu.messages().count() > 0), (self.speaker.identifier(), true));
                    for raw in pdu.messages() {
                        assert!(matches!(LdpMessage::new(&raw.expect("a message")), Ok(Some(_))));
                    }
                }
                LdpAction::Connect { peer, address } => {
                    self.connections += 1;
                    let connection = LdpConnection(self.connections);
                    self.open.insert(connection, address);
                    self.speaker.handle_connected(self.now, peer, connection);
                }
                LdpAction::Close { connection } => {
                    assert!(self.open.remove(&connection).is_some(), "the connection was open");
                }
            }
        }
        while let Some(event) = self.speaker.poll_event() {
            if let LdpEvent::Free { label } = event {
                assert!(self.used.remove(&label), "the label was in use");
            }
        }
        let peers: Vec<Identifier> = self.speaker.peers().collect();
        for peer in peers {
            assert!(self.speaker.mappings_of(peer).count() <= MAX_BINDINGS);
        }
    }
}

pub fn run(bytes: &[u8]) {
    let Some((settings, mut rest)) = bytes.split_first() else { return };
    let mut config = LdpConfig::new(OWN, OWN);
    config.control = if settings & 1 == 0 { LabelControl::Independent } else { LabelControl::Ordered };
    config.null = if settings & 2 == 0 { NullLabel::Implicit } else { NullLabel::Explicit };
    config.loop_detection = (settings & 4 != 0).then_some(settings >> 3);
    config.max_bindings = MAX_BINDINGS;
    config.restart = (settings & 0x80 != 0).then_some(GracefulRestart {
        reconnect: Duration::from_secs(20),
        recovery: Duration::from_secs(10),
        neighbor_liveness: Duration::from_secs(60),
        max_recovery: Duration::from_secs(30),
    });
    let mut speaker = LdpSpeaker::new(config);
    speaker.add_interface(Instant::ZERO, 0);
    let (open, used) = (BTreeMap::new(), BTreeSet::new());
    let mut run = Run { speaker, now: Instant::ZERO, open, connections: 0, used };
    while let [kind, length, tail @ ..] = rest {
        let (head, tail) = tail.split_at(tail.len().min((*length).into()));
        run.step(*kind, head);
        rest = tail;
    }
    run.speaker.shut_down(run.now);
    for net in 0..4 {
        run.speaker.unbind(Fec::prefix(Ipv4Addr::new(10, net, 0, 0).into(), 16).expect("it is short"));
    }
    run.poll();
    assert!(run.open.is_empty() && run.used.is_empty());
}
