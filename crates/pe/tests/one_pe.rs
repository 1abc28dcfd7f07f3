//! One PE, two drivers: runs a plan in the simulator and through two engines in virtual time, and compares
//! all decisions: accepted and dropped packets, transmitted packets and queries, and each window to the last
//! bit.

use netstage_core::edge::{EdgeEvent, SentPacket, VpnFlowSettings};
use netstage_core::fair::{I2vfcConfig as Window, VpnControl, WeightReference};
use netstage_core::link::LinkDirection;
use netstage_core::packet::{Ecn, QueuePacket};
use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::PatternSource;
use netstage_harness::needs;
use netstage_host::clock::Epoch;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::ring::{self, RingPort};
use netstage_pe::engine::PeEngine;
use netstage_pe::engine::host_properties::{HostInterface, HostProperties, PeerProperties};
use netstage_scenario::plan::Plan;
use netstage_scenario::{LoadOptions, parse, pe};
use netstage_sim::Decisions;
use netstage_wire::Encapsulation;
use netstage_wire::ethernet::{self, Tag, ethertype};
use netstage_wire::gach;
use netstage_wire::ip::v4;
use netstage_wire::loss_delay::{LossDelayMessage, LossDelaySession};
use netstage_wire::udp;
use std::net::Ipv4Addr;

const SEED: u64 = 7;
const CUSTOMER: [u8; 6] = [2, 0, 0, 0, 0, 3];
const PORTS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// Four VPNs in each direction over a line too slow for them: a window with minimum and maximum, a window in
/// classes that follows it, a fixed rate, and no control under a maximum. The names sort in pairs, so that a
/// VPN's flows have the same number at both PEs. FQ-CoDel has one flow, because with several flows a random
/// salt per driver decides which of two equally long queues drops.
const SCENARIO: &str = r#"
[scenario]
duration = "20 s"
[defaults.link]
rate = "1 Gbit/s"
buffer = "1000 packets"
[defaults.vpn]
ingress = "west"
egress = "east"
encapsulation = "ENCAPSULATION"
[defaults.flow]
from = "a"
to = "b"
transport = "udp"
[node.a]
[node.b]
[node.west]
kind = "pe"
[node.east]
kind = "pe"
[link.a]
ends = ["a", "west"]
[link.b]
ends = ["b", "east"]
[link.line]
ends = ["west", "east"]
rate = "6 Mbit/s"
delay = "7 ms"
buffer = "20 packets"

[vpn.blue]
weight = 2
control = { kind = "i2vfc", reference = "red" }
classes = [
  { dscp = [46], buffer = "20 packets" },
  { dscp = [], priority = 1, queue = { kind = "fq-codel", flows = 1024 } },
]
[vpn.blue-back]
ingress = "east"
egress = "west"
control = { kind = "i2vfc", pacing = false, report_every = 7, idle_probe = "3 s" }
[vpn.green]
control = { kind = "fixed-rate", rate = "1 Mbit/s", queue = "30 packets" }
classes = [{ dscp = [46], weight = 3 }, { dscp = [] }]
[vpn.green-back]
ingress = "east"
egress = "west"
control = { kind = "i2vfc", initial_window = 5 }
[vpn.grey]
control = "none"
maximum = "700 kbit/s"
[vpn.grey-back]
ingress = "east"
egress = "west"
control = "none"
maximum = "300 kbit/s"
[vpn.red]
minimum = "500 kbit/s"
maximum = "3 Mbit/s"
control = { kind = "i2vfc", decrease = 0.1 }
[vpn.red-back]
ingress = "east"
egress = "west"
control = "i2vfc"
when_silent = "open"

[flow.blue]
vpn = "blue"
traffic = { model = "on-off", rate = "6 Mbit/s", packet = "900 B", on = "400 ms", off = "300 ms" }
[flow.blue-voice]
vpn = "blue"
udp = { dscp = 46 }
traffic = { model = "poisson", rate = "80 kbit/s", packet = "160 B" }
[flow.green]
vpn = "green"
traffic = { model = "poisson", rate = "1.2 Mbit/s", packet = "700 B" }
[flow.green-voice]
vpn = "green"
udp = { dscp = 46 }
traffic = { model = "poisson", rate = "300 kbit/s", packet = "200 B" }
[flow.grey]
vpn = "grey"
traffic = { model = "poisson", rate = "900 kbit/s", packet = "400 B" }
[flow.red]
vpn = "red"
start = "2 s"
stop = "14 s"
traffic = { model = "poisson", rate = "4 Mbit/s", packet = "1200 B" }
[flow.red-back]
from = "b"
to = "a"
vpn = "red-back"
traffic = { model = "poisson", rate = "5 Mbit/s", packet = "1100 B" }
[flow.green-back]
from = "b"
to = "a"
vpn = "green-back"
traffic = { model = "on-off", rate = "4 Mbit/s", packet = "500 B", on = "1 s", off = "2 s" }
"#;

fn plan(encapsulation: &str) -> Plan {
    let text = SCENARIO.replace("ENCAPSULATION", encapsulation);
    match parse("one-pe.toml", &text, None, &LoadOptions::default()) {
        Ok(scenario) => {
            let mut plan = scenario.cells[0].plan.clone();
            // The engines get the packets without random delays at hosts.
            plan.flows.iter_mut().for_each(|flow| flow.exact = true);
            plan
        }
        Err(errors) => panic!("{errors}"),
    }
}

/// Returns the address of side 0 or 1 in every VPN.
fn address(side: usize) -> Ipv4Addr {
    [10, 0, side as u8, 1].into()
}

/// Returns the tunnel to the other router.
fn tunnel(plan: &Plan, side: usize) -> String {
    let far = 1 - side;
    match plan.vpns[0].encapsulation {
        Encapsulation::MplsInUdp => {
            format!("kind = \"mpls-in-udp\", from = \"192.0.2.{}\", to = \"192.0.2.{}\"", 1 + side, 1 + far)
        }
        _ => {
            format!(
                "kind = \"mpls\", next_hop = \"192.0.2.9\", push = {}, accept = {}",
                500 + far,
                500 + side
            )
        }
    }
}

/// Returns the VPNs of the plan that enter at each side, in plan order.
fn entering(plan: &Plan) -> [Vec<usize>; 2] {
    ["west", "east"].map(|name| {
        let at = |vpn: &usize| plan.nodes[plan.vpns[*vpn].ingress].name == name;
        (0..plan.vpns.len()).filter(at).collect()
    })
}

/// Returns the settings of a VPN, with the index of its reference in the router's list.
fn settings(plan: &Plan, vpn: usize) -> VpnFlowSettings {
    let mut settings = plan.vpns[vpn].settings.clone();
    if let VpnControl::I2vfc(Window { reference: WeightReference::Vpn(index), .. }) = &mut settings.control {
        assert_eq!(plan.vpns[*index].name, "red");
        *index = 0;
    }
    settings
}

/// Returns the configuration of a side. VPN number k has VLAN 100 + k and label 1000 · (1 + side) + k.
fn configured(plan: &Plan, side: usize) -> pe::PeConfig {
    let (own, far) = (&entering(plan)[side], 1 - side);
    let mut text = format!(
        "[pe]\ncore = [\"core\"]\n[peer.far]\ntrusted = true\ntunnel = {{ {} }}\nclamp_segment_size = false\n",
        tunnel(plan, side)
    );
    for number in 0..own.len() {
        let label = |side: usize| 1000 * (1 + side) + number;
        let (send, receive, vlan) = (label(far), label(side), 100 + number);
        text += &format!(
            r#"
            [vpn.{number}.peer.far]
            send = {send}
            receive = {receive}
            routes = ["10.0.{far}.0/24"]
            [circuit.{number}]
            vpn = "{number}"
            interface = "customers"
            vlan = {vlan}
            mac = "02:00:00:00:00:03"
            address = "10.0.{side}.254/24"
            "#
        );
    }
    let mut router = pe::parse("pe.toml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    for (vpn, own) in router.vpns.iter_mut().zip(own) {
        vpn.flows[0].settings = settings(plan, *own);
    }
    if let Some(vpn) = own.iter().position(|vpn| plan.vpns[*vpn].name == "red") {
        let source = pe::ReferenceSource::Flow { vpn, peer: 0, publish_to: Vec::new() };
        router.references = vec![pe::ReferenceConfig { name: "red".into(), number: 1, source }];
    }
    router
}

fn machine() -> HostProperties {
    let interfaces = ["customers", "core"].into_iter().zip(PORTS);
    HostProperties {
        interfaces: interfaces.map(|(name, mac)| (name.into(), HostInterface { mac, mtu: 1600 })).collect(),
        peers: vec![PeerProperties::default()],
        epoch: Epoch(0),
        epoch_unix_ns: 1_795_255_703_000_000_000,
        session_seed: 1,
        tick: Duration::ZERO,
    }
}

/// Frame on a link, with its IP-layer size.
#[derive(Clone)]
struct LinkFrame {
    bytes: Vec<u8>,
    size: usize,
}

impl QueuePacket for LinkFrame {
    fn size(&self) -> u32 {
        self.size as u32
    }
    fn class(&self) -> u16 {
        0
    }
    fn ecn(&self) -> Ecn {
        Ecn::NotCapable
    }
    fn mark_congestion(&mut self) {}
    fn flow_key(&self) -> u64 {
        0
    }
}

/// Builds a customer datagram of a flow on the circuit of its VPN. `flow` is its number among all flows.
fn datagram(side: usize, vpn: usize, flow: usize, dscp: u8, payload: u64) -> LinkFrame {
    let tags = [Tag { kind: ethertype::VLAN, vlan: 100 + vpn as u16, ..Tag::default() }];
    let kind = ethertype::IPV4;
    let header = ethernet::Header { destination: PORTS[0], source: CUSTOMER, tags: &tags, kind };
    let (size, start) = (v4::HEADER + udp::HEADER + payload as usize, header.length());
    let mut bytes = vec![0; start + size];
    header.write(&mut bytes).unwrap();
    let packet = &mut bytes[start..];
    let (source, destination) = (address(side), address(1 - side));
    v4::Header { dscp, protocol: 17, source, destination, ..v4::Header::default() }
        .write(packet, size - v4::HEADER)
        .unwrap();
    let ports = &mut packet[v4::HEADER..];
    ports[..2].copy_from_slice(&(2000 + flow as u16).to_be_bytes());
    ports[4..6].copy_from_slice(&((size - v4::HEADER) as u16).to_be_bytes());
    LinkFrame { bytes, size }
}

/// Member of a flow group.
struct FlowGroupMember {
    source: PatternSource,
    next: Option<(Instant, u64)>,
    stop: Instant,
    side: usize,
    vpn: usize,
    dscp: u8,
}

impl FlowGroupMember {
    fn advance(&mut self) {
        let Some((at, _)) = self.next else { return };
        self.next = self.source.next().map(|emission| (at + emission.gap, emission.bytes));
        self.next = self.next.filter(|(at, _)| *at < self.stop);
    }
}

fn senders(plan: &Plan) -> Vec<FlowGroupMember> {
    let mut senders = Vec::new();
    for (index, group) in plan.flows.iter().enumerate() {
        let through = group.vpn.unwrap();
        let entering = entering(plan);
        let position = |side: usize| entering[side].iter().position(|vpn| *vpn == through);
        let (side, vpn) = (0..2).find_map(|side| Some((side, position(side)?))).unwrap();
        for member in 0..group.count {
            let stream = RandomStream::new(SEED, &format!("flow.{}", plan.flow_name(index, member)));
            let mut sender = FlowGroupMember {
                source: PatternSource::new(group.traffic.pattern().unwrap(), stream),
                next: Some((group.start + group.stagger * member as u64, 0)),
                stop: group.stop,
                side,
                vpn,
                dscp: group.datagrams.dscp,
            };
            sender.advance();
            senders.push(sender);
        }
    }
    senders
}

/// Engine, the far ends of its ports, and the links of its side: from its customers and to the other engine.
struct RouterUnderTest {
    engine: PeEngine<RingPort>,
    customers: RingPort,
    core: RingPort,
    links: [LinkDirection<LinkFrame>; 2],
}

fn router(plan: &Plan, side: usize) -> RouterUnderTest {
    let (customer_port, customers) = ring::pair(1 << 16).unwrap();
    let (core_port, core) = ring::pair(1 << 16).unwrap();
    let ports = vec![core_port, customer_port];
    let mut engine = PeEngine::new(&configured(plan, side), &machine(), ports).unwrap();
    engine.set_peer_route(0, Some((0, PORTS[1], 1600)));
    engine.trace();
    let link = |name: &str, direction: usize| {
        let link = plan.links.iter().find(|link| link.name == name).unwrap();
        LinkDirection::new(&link.directions[direction], RandomStream::new(SEED, name))
    };
    RouterUnderTest { engine, customers, core, links: [link(["a", "b"][side], 0), link("line", side)] }
}

fn give(end: &mut RingPort, now: Instant, frame: &[u8]) {
    end.send_at(frame, now.0);
    end.flush().unwrap();
}

fn taken(end: &mut RingPort) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    end.receive(usize::MAX, &mut |received| frames.push(received.frame.to_vec())).unwrap();
    frames
}

/// Returns whether a frame is a probe of the path MTU, a query of its session. The simulator has none.
fn is_probe(frame: &[u8]) -> bool {
    let header = gach::header(gach::channel::DIRECT_LOSS_DELAY);
    let channel = frame.windows(gach::HEADER).position(|bytes| bytes == header);
    let message = channel.and_then(|at| LossDelayMessage::read(&frame[at + gach::HEADER..]).ok());
    message.is_some_and(|(message, _)| message.session == LossDelaySession::from_bits(0))
}

/// Returns inputs and decisions of two engines.
fn by_engines(plan: &Plan) -> Vec<Decisions> {
    let mut routers = [router(plan, 0), router(plan, 1)];
    let mut senders = senders(plan);
    let (end, mut now) = (Instant::ZERO + plan.duration, Instant::ZERO);
    let mut events: [Vec<EdgeEvent>; 2] = Default::default();
    while now <= end {
        for side in 0..2 {
            while let Some(arrival) = routers[side].links[0].poll_arrival(now) {
                give(&mut routers[side].customers, now, &arrival.packet.bytes);
            }
            while let Some(arrival) = routers[side].links[1].poll_arrival(now) {
                give(&mut routers[1 - side].core, now, &arrival.packet.bytes);
            }
        }
        for (number, sender) in senders.iter_mut().enumerate() {
            while let Some((at, payload)) = sender.next.filter(|(at, _)| *at <= now) {
                let frame = datagram(sender.side, sender.vpn, number, sender.dscp, payload);
                routers[sender.side].links[0].handle_packet(at, frame);
                sender.advance();
            }
        }
        for (router, events) in routers.iter_mut().zip(&mut events) {
            while router.engine.turn(now).more {}
            events.extend(router.engine.take_trace());
            taken(&mut router.customers);
            for bytes in taken(&mut router.core).into_iter().filter(|frame| !is_probe(frame)) {
                let size = bytes.len() - ethernet::HEADER;
                router.links[1].handle_packet(now, LinkFrame { bytes, size });
            }
        }
        let timers = routers.iter().flat_map(|router| {
            let links = router.links.iter().map(LinkDirection::poll_timeout);
            links.chain([router.engine.poll_timeout()])
        });
        let emissions = senders.iter().filter_map(|sender| Some(sender.next?.0));
        let next = timers.chain(emissions).min().unwrap();
        assert!(next > now, "time advances: {next:?}");
        now = next;
    }
    let entering = entering(plan);
    for router in &routers {
        assert_eq!(router.engine.counters().get(netstage_pe::engine::Counter::ReplyUnasked), 0);
    }
    events.into_iter().zip(entering).map(|(events, vpns)| Decisions { vpns, events }).collect()
}

/// Decision or input, without fields that differ between drivers.
#[derive(Clone, Debug, PartialEq)]
enum TraceStep {
    Packet { at: u64, flow: u32, size: u32, class: u32, taken: bool },
    Reply { at: u64, flow: u32, sequence: u32, sent: u64, received: u64, window: u64 },
    Sent { at: u64, sent: SentPacket },
}

fn steps(decisions: &Decisions) -> Vec<TraceStep> {
    let steps = decisions.events.iter().flat_map(|event| match event {
        &EdgeEvent::Packet { at, flow, size, class, taken, .. } => {
            vec![TraceStep::Packet { at, flow, size, class, taken }]
        }
        &EdgeEvent::Reply { at, flow, sequence, packets_sent: sent, received, window, .. } => {
            let window = window.to_bits();
            vec![TraceStep::Reply { at, flow, sequence, sent, received, window }]
        }
        EdgeEvent::Turn { at, sent, .. } => {
            sent.iter().map(|sent| TraceStep::Sent { at: *at, sent: *sent }).collect()
        }
        _ => Vec::new(),
    });
    steps.collect()
}

/// Returns the first difference between decisions, if any.
fn difference(one: &[Decisions], other: &[Decisions]) -> Option<String> {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        assert_eq!(one.vpns, other.vpns);
        let (one, other) = (steps(one), steps(other));
        let differ = one.iter().zip(&other).position(|(one, other)| one != other);
        let at = differ.or((one.len() != other.len()).then_some(one.len().min(other.len())));
        if let Some(at) = at {
            let (one, other) = (one.get(at), other.get(at));
            return Some(format!("decision {at}: simulator {one:?}, engine {other:?}"));
        }
    }
    None
}

/// Returns the decisions of the simulator's PEs in the order of the engines, west first.
fn simulated(plan: &Plan) -> Vec<Decisions> {
    let mut decisions = netstage_sim::decisions(plan, SEED);
    decisions.sort_by_key(|pe| plan.nodes[plan.vpns[pe.vpns[0]].ingress].name != "west");
    decisions
}

fn simulator_and_router_make_equal_decisions() {
    needs::time(3);
    for encapsulation in ["mpls", "mpls-in-udp"] {
        let plan = plan(encapsulation);
        let (simulated, engines) = (simulated(&plan), by_engines(&plan));
        assert_eq!(difference(&simulated, &engines), None, "{encapsulation}");
        // Ensures that every kind of decision occurred.
        let steps: Vec<TraceStep> = simulated.iter().flat_map(steps).collect();
        let count = |is_kind: &dyn Fn(&TraceStep) -> bool| steps.iter().filter(|step| is_kind(step)).count();
        let refused = count(&|step| matches!(step, TraceStep::Packet { taken: false, .. }));
        let queries = count(&|step| matches!(step, TraceStep::Sent { sent: SentPacket::Query(..), .. }));
        let data = count(&|step| matches!(step, TraceStep::Sent { sent: SentPacket::Data(..), .. }));
        let replies = count(&|step| matches!(step, TraceStep::Reply { .. }));
        let lost = count(&|step| matches!(step, TraceStep::Reply { sent, received, .. } if sent > received));
        let counts = [refused, queries, data, replies, lost];
        println!("{encapsulation}: dropped, queries, data, replies, replies with losses: {counts:?}");
        assert!(refused > 100 && queries > 1_000 && data > 10_000 && replies > 1_000, "{counts:?}");
        assert!(lost > 100, "{counts:?}");
    }
}

fn a_setting_changed_in_one_of_them_is_detected() {
    needs::time(6);
    let plan = plan("mpls");
    let simulated = simulated(&plan);
    type SettingsChange = fn(&mut VpnFlowSettings);
    let changes: [(&str, SettingsChange); 5] = [
        ("blue", |settings| settings.weight *= 1.0 + 1e-9),
        ("blue", |settings| settings.classes[0].codepoints.clear()),
        ("green-back", |settings| {
            let VpnControl::I2vfc(window) = &mut settings.control else { panic!("{settings:?}") };
            window.report_within = Duration::from_millis(250);
        }),
        ("red", |settings| settings.minimum = None),
        ("grey", |settings| settings.maximum = settings.maximum.map(|rate| BitRate(rate.0 + 1_000))),
    ];
    for (name, change) in changes {
        let mut changed = plan.clone();
        change(&mut changed.vpns.iter_mut().find(|vpn| vpn.name == name).unwrap().settings);
        let found = difference(&simulated, &by_engines(&changed));
        assert!(found.is_some(), "a change of {name} is not detected");
    }
}

netstage_harness::tests![
    simulator_and_router_make_equal_decisions,
    a_setting_changed_in_one_of_them_is_detected
];
netstage_harness::main![self];
