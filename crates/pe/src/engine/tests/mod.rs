//! Two engines connected through rings and a simulated core with delay and loss, in virtual time.

mod answers;
mod attacks;
mod configuration;
mod end_to_end;
mod isolation;
mod neighbors;
mod news;
mod path_mtu;
mod queues;
mod references;
mod refusals;
mod replaced;
mod secure;

use super::host_properties::{self, HostInterface, HostProperties};
use super::{Counter, Keys, PeEngine, PreparedReplacement};
use netstage_core::edge::{IpPrefix, TICK, VpnFlowSettings};
use netstage_core::fair::{self, VpnControl};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::ring::{self, RingPort};
use netstage_scenario::pe;
use netstage_wire::checksum::Sum;
use netstage_wire::ethernet::{self, Tag, ethertype};
use netstage_wire::gach;
use netstage_wire::ip::{self, Ecn, protocol, v4, v6};
use netstage_wire::loss_delay::{LossDelayMessage, LossDelaySession};
use netstage_wire::mpls::LabelValue;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

/// MAC addresses of the engine's customer and core ports, and of the customer.
const CUSTOMER_PORT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const CORE_PORT: [u8; 6] = [2, 0, 0, 0, 0, 2];
const CUSTOMER: [u8; 6] = [2, 0, 0, 0, 0, 3];

const CORE: usize = 0;
const CUSTOMERS: usize = 1;

/// Encapsulation in the core.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CoreEncapsulation {
    Mpls,
    MplsNextHop,
    Udp4,
    Udp6,
}

const WAYS: [CoreEncapsulation; 4] = [
    CoreEncapsulation::Mpls,
    CoreEncapsulation::MplsNextHop,
    CoreEncapsulation::Udp4,
    CoreEncapsulation::Udp6,
];

fn label(number: u32) -> LabelValue {
    LabelValue::new(number).unwrap()
}

fn tunnel_address(way: CoreEncapsulation, side: u8) -> IpAddr {
    match way {
        CoreEncapsulation::Udp6 => IpAddr::from([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, side]),
        _ => IpAddr::from([192, 0, 2, side]),
    }
}

fn prefix(text: &str) -> IpPrefix {
    let (address, length) = text.split_once('/').unwrap();
    IpPrefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
}

/// Configuration and host properties of an engine.
#[derive(Clone)]
struct EngineConfig {
    router: pe::PeConfig,
    machine: HostProperties,
}

/// Returns the configuration of side 0 or 1. On both sides VPN v has VLAN 100 + v, the addresses
/// 10.0.SIDE.0/24 and fd00:SIDE::/32 (equal in all VPNs), and the label 1000 · (1 + side) + v.
fn config(side: u8, way: CoreEncapsulation, vpns: u16) -> EngineConfig {
    config_of(side, way, 0..vpns)
}

fn config_of(side: u8, way: CoreEncapsulation, vpns: Range<u16>) -> EngineConfig {
    let far = 1 - side;
    let tunnel = match way {
        CoreEncapsulation::Mpls => {
            format!("kind = \"mpls\", next_hop = \"192.0.2.9\", push = 50{far}, accept = 50{side}")
        }
        CoreEncapsulation::MplsNextHop => "kind = \"mpls\", next_hop = \"192.0.2.9\"".into(),
        CoreEncapsulation::Udp4 | CoreEncapsulation::Udp6 => {
            let (from, to, checksum) =
                (tunnel_address(way, 1 + side), tunnel_address(way, 1 + far), way == CoreEncapsulation::Udp6);
            format!("kind = \"mpls-in-udp\", from = \"{from}\", to = \"{to}\", checksum = {checksum}")
        }
    };
    let mut text = format!(
        "[pe]\ncore = [\"core\"]\nbuffers = \"4096 packets\"\n[peer.far]\ntrusted = true\ntunnel = {{ {tunnel} }}\n"
    );
    for number in vpns {
        let label = |side: u8| 1000 * (1 + u16::from(side)) + number;
        let (send, receive, vlan) = (label(far), label(side), 100 + number);
        text += &format!(
            r#"
            [vpn.vpn{number}.peer.far]
            control = "i2vfc"
            send = {send}
            receive = {receive}
            routes = ["10.0.{far}.0/24", "fd00:{far}::/32"]
            [circuit.circuit{number}]
            vpn = "vpn{number}"
            interface = "customers"
            vlan = {vlan}
            mac = "02:00:00:00:00:03"
            address = ["10.0.{side}.254/24", "fd00:{side}::fe/32"]
            "#
        );
    }
    let interfaces = [("core", CORE_PORT), ("customers", CUSTOMER_PORT)];
    let machine = HostProperties {
        interfaces: interfaces.map(|(name, mac)| (name.into(), HostInterface { mac, mtu: 1500 })).into(),
        peers: vec![host_properties::PeerProperties::default()],
        epoch: Epoch(0),
        epoch_unix_ns: 1_795_255_703_000_000_000,
        session_seed: 1,
        tick: TICK,
    };
    EngineConfig { router: pe::parse("pe.toml", &text).unwrap_or_else(|errors| panic!("{errors}")), machine }
}

impl EngineConfig {
    /// Returns the settings of a VPN's flow.
    fn settings(&mut self, vpn: usize) -> &mut VpnFlowSettings {
        &mut self.router.vpns[vpn].flows[0].settings
    }

    fn prepared(&self) -> PreparedReplacement {
        PreparedReplacement::new(&self.router, &self.machine).unwrap()
    }
}

/// Engine with the far ends of its two ports.
struct TestRouter {
    engine: PeEngine<RingPort>,
    customers: RingPort,
    core: RingPort,
    buffers: usize,
}

fn router(config: &EngineConfig) -> TestRouter {
    let (customer_port, customers) = ring::pair(1 << 16).unwrap();
    let (core_port, core) = ring::pair(1 << 16).unwrap();
    let mut engine = PeEngine::new(&config.router, &config.machine, vec![core_port, customer_port]).unwrap();
    let mtu = config.machine.peer_mtu(&config.router, &config.router.peers[0]);
    engine.set_peer_route(0, Some((CORE, CORE_PORT, mtu)));
    let buffers = engine.free_buffers();
    TestRouter { engine, customers, core, buffers }
}

impl TestRouter {
    fn turn(&mut self, now: Instant) {
        while self.engine.turn(now).more {}
    }

    fn give(&mut self, port: usize, now: Instant, frame: &[u8]) {
        let end = if port == CUSTOMERS { &mut self.customers } else { &mut self.core };
        end.send_at(frame, now.0);
        end.flush().unwrap();
    }

    /// Returns the frames sent by a port.
    fn taken(&mut self, port: usize) -> Vec<Vec<u8>> {
        let end = if port == CUSTOMERS { &mut self.customers } else { &mut self.core };
        let mut frames = Vec::new();
        end.receive(usize::MAX, &mut |received| frames.push(received.frame.to_vec())).unwrap();
        frames
    }

    /// Sends a frame into a port and returns the frames sent by both ports, without probes of the path MTU.
    fn pass(&mut self, port: usize, now: Instant, frame: &[u8]) -> [Vec<Vec<u8>>; 2] {
        self.give(port, now, frame);
        self.turn(now);
        let mut core = self.taken(CORE);
        core.retain(|frame| !is_probe(frame));
        [self.taken(CUSTOMERS), core]
    }

    fn count(&self, counter: Counter) -> u64 {
        self.engine.counters().get(counter)
    }
}

/// Simulated core: returns the arrival time of a frame, or `None` if it is lost.
type CoreModel<'a> = &'a mut dyn FnMut(Instant, usize, &mut Vec<u8>) -> Option<Instant>;

/// Two routers and the frames between them.
struct TwoRouters {
    routers: [TestRouter; 2],
    now: Instant,
    in_flight: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    number: u64,
    /// Number of the next packet in tests that number them.
    offered: u64,
    /// Frames sent by each router to its customers.
    delivered: [Vec<Vec<u8>>; 2],
}

impl TwoRouters {
    fn new(configs: [EngineConfig; 2]) -> TwoRouters {
        TwoRouters {
            routers: configs.map(|config| router(&config)),
            now: Instant::ZERO,
            in_flight: BTreeMap::new(),
            number: 0,
            offered: 0,
            delivered: Default::default(),
        }
    }

    /// Runs until the given time.
    fn run(&mut self, until: Instant, fate: CoreModel<'_>) {
        loop {
            self.settle(fate);
            let timers = self.routers.iter().map(|router| router.engine.poll_timeout());
            let arrival = self.in_flight.first_key_value().map_or(Instant::NEVER, |((at, _), _)| *at);
            let next = timers.min().unwrap().min(arrival).max(self.now + Duration(1));
            if next > until {
                self.now = until;
                return;
            }
            self.now = next;
        }
    }

    /// Processes everything due at the present time.
    fn settle(&mut self, fate: CoreModel<'_>) {
        while let Some(entry) = self.in_flight.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, frame) = entry.remove();
            self.routers[to].give(CORE, self.now, &frame);
        }
        for from in 0..2 {
            self.routers[from].turn(self.now);
            for mut frame in self.routers[from].taken(CORE) {
                self.number += 1;
                if let Some(at) = fate(self.now, from, &mut frame) {
                    self.in_flight.insert((at, self.number), (1 - from, frame));
                }
            }
            let frames = self.routers[from].taken(CUSTOMERS);
            self.delivered[from].extend(frames);
        }
    }
}

const DELAY: Duration = Duration::from_millis(5);

/// Returns whether a frame is a probe of the path MTU to the first peer: a query of its session.
fn is_probe(frame: &[u8]) -> bool {
    let header = gach::header(gach::channel::DIRECT_LOSS_DELAY);
    let channel = frame.windows(gach::HEADER).position(|bytes| bytes == header);
    let message = channel.and_then(|at| LossDelayMessage::read(&frame[at + gach::HEADER..]).ok());
    message
        .is_some_and(|(message, _)| !message.is_response && message.session == LossDelaySession::from_bits(0))
}

fn delay(now: Instant, _: usize, _: &mut Vec<u8>) -> Option<Instant> {
    Some(now + DELAY)
}

/// Returns whether a [`CorePath::Udp4`] frame is a management packet: its VPN label is not the bottom of the
/// stack.
fn is_management(frame: &[u8]) -> bool {
    frame[14 + 20 + 8 + 2] & 1 == 0
}

/// Builds an IP packet from the customer of one side to that of the other, with a VPN and a number in its
/// payload.
fn packet(is_v6: bool, from: u8, vpn: u16, number: u64, size: usize) -> Vec<u8> {
    let header = if is_v6 { v6::HEADER } else { v4::HEADER };
    let mut bytes = vec![0; size.max(header + 10)];
    let payload = bytes.len() - header;
    if is_v6 {
        let address = |side: u8| format!("fd00:{side}::1").parse().unwrap();
        let (source, destination) = (address(from), address(1 - from));
        v6::Header { next_header: 253, source, destination, ..v6::Header::default() }
            .write(&mut bytes, payload)
            .unwrap();
    } else {
        let (source, destination) = ([10, 0, from, 1].into(), [10, 0, 1 - from, 1].into());
        v4::Header { protocol: 253, source, destination, ..v4::Header::default() }
            .write(&mut bytes, payload)
            .unwrap();
    }
    bytes[header..header + 2].copy_from_slice(&vpn.to_be_bytes());
    bytes[header + 2..header + 10].copy_from_slice(&number.to_be_bytes());
    bytes[header + 10..].iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
    bytes
}

fn frame(vlan: u16, packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 6 { ethertype::IPV6 } else { ethertype::IPV4 };
    let tags = [Tag { kind: ethertype::VLAN, vlan, ..Tag::default() }];
    let header = ethernet::Header { destination: CUSTOMER_PORT, source: CUSTOMER, tags: &tags, kind };
    let mut bytes = vec![0; header.length()];
    header.write(&mut bytes).unwrap();
    bytes.extend(packet);
    bytes
}

/// Returns VLAN and packet of a delivered frame. Asserts that it is valid and addressed to the customer.
fn opened(frame: &[u8]) -> (u16, &[u8]) {
    let view = ethernet::View::new(frame).unwrap();
    assert_eq!((view.destination(), view.source()), (CUSTOMER, CUSTOMER_PORT));
    let tags: Vec<Tag> = view.tags().collect();
    assert_eq!(tags.len(), 1);
    let packet = ip::View::new(view.payload()).unwrap();
    match packet {
        ip::View::V4(view4) => assert!(view.kind() == ethertype::IPV4 && view4.is_checksum_valid()),
        ip::View::V6(_) => assert_eq!(view.kind(), ethertype::IPV6),
    }
    (tags[0].vlan, packet.packet())
}

/// Returns VPN and number from a packet built by [`packet`].
fn numbers(packet: &[u8]) -> (u16, u64) {
    let header = if packet[0] >> 4 == 6 { v6::HEADER } else { v4::HEADER };
    let vpn = u16::from_be_bytes(*packet[header..].first_chunk().unwrap());
    (vpn, u64::from_be_bytes(*packet[header + 2..].first_chunk().unwrap()))
}

/// Returns a packet as it looks after a number of hops.
fn after_hops(packet: &[u8], hops: u8) -> Vec<u8> {
    let mut packet = packet.to_vec();
    for _ in 0..hops {
        if let Ok(mut header) = v4::HeaderMut::new(&mut packet) {
            header.decrement_ttl().unwrap();
        } else {
            v6::HeaderMut::new(&mut packet).unwrap().decrement_hop_limit().unwrap();
        }
    }
    packet
}
