//! Random policies, and random attempts against them.

use super::stage::{FAR, OWN, UNASKED};
use netstage_agent_api::service::{ServiceRole, ServiceWorkload};
use netstage_agent_api::task::{
    Assignment, ClockTask, EdgeTask, FlowSide, FlowTask, NatPath, OneEnded, ServiceTask, TaskTransport,
    TcpOptions, UdpOptions,
};
use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::{Application, BlockStorage, Exchange, Pace, SizeDistribution};
use netstage_core::traffic::application::{Dns, TransferDirection, Transfers};
use netstage_core::traffic::{FlowTraffic, Pattern};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};

/// Prefixes from which the destinations of policies are drawn. They contain neither the controller's network
/// nor all addresses of the attacker.
const PREFIXES: [&str; 4] = ["10.99.0.0/24", "fd99::/64", "239.192.0.0/14", "10.88.0.0/24"];
/// Other addresses in assignments: groups, hosts without an agent, and the controller's.
const OTHERS: [&str; 8] = [
    "239.192.0.5",
    "ff18::5",
    "8.8.8.8",
    "10.99.0.77",
    "192.168.77.1",
    "255.255.255.255",
    "127.0.0.1",
    "0.0.0.0",
];

/// Random policy.
#[derive(Clone, Debug)]
pub struct TestPolicy {
    /// Bits per second.
    pub rate: Option<u64>,
    pub bytes_per_day: Option<u64>,
    /// Bytes.
    pub memory: u64,
    pub destinations: Option<Vec<&'static str>>,
    /// Whether the link `side` is permitted.
    pub side: bool,
    pub one_ended: bool,
    /// MTU of the links, which makes the kernel split packets.
    pub mtu: u32,
    spin: bool,
    routers: bool,
    services: bool,
    max_duration_ms: Option<u64>,
}

impl TestPolicy {
    /// Returns the content of the policy's file.
    pub fn file(&self) -> String {
        let mut file = String::from("[policy]\ncontrollers = [\"lab\"]\n");
        if let Some(rate) = self.rate {
            file += &format!("rate = \"{rate} bit/s\"\n");
        }
        if let Some(bytes) = self.bytes_per_day {
            file += &format!("bytes_per_day = \"{bytes} B\"\n");
        }
        file += &format!("memory = \"{} B\"\n", self.memory);
        if let Some(prefixes) = &self.destinations {
            file += &format!("destinations = {prefixes:?}\n");
        }
        if !self.side {
            file += "interfaces = [\"data\"]\n";
        }
        if let Some(longest) = self.max_duration_ms {
            file += &format!("max_duration = \"{longest} ms\"\n");
        }
        if self.services {
            file += "services = [\"ftp\", \"iscsi\"]\n";
        }
        file + &format!("one_ended = {}\nspin = {}\nrouters = {}\n", self.one_ended, self.spin, self.routers)
    }

    /// Returns whether every destination is permitted on every interface.
    pub fn is_open(&self) -> bool {
        self.destinations.is_none() && self.side
    }

    /// Returns whether an address of the attacker's host is permitted.
    fn permits(&self, far: &str) -> bool {
        let network = far.rsplit_once([':', '.']).map_or(far, |(network, _)| network);
        let is_listed = |prefixes: &Vec<&str>| prefixes.iter().any(|prefix| prefix.starts_with(network));
        let is_listed = self.destinations.as_ref().is_none_or(is_listed);
        is_listed && (self.side || far != FAR[4])
    }
}

pub fn policy(random: &mut RandomStream) -> TestPolicy {
    let rate = 1e6 * 100_f64.powf(random.uniform());
    let bytes = 1e6 * 1000_f64.powf(random.uniform());
    let limits_destinations = random.chance(0.9);
    let mut prefixes: Vec<&str> = PREFIXES.into_iter().filter(|_| random.chance(0.6)).collect();
    if prefixes.is_empty() {
        prefixes.push(PREFIXES[0]);
    }
    TestPolicy {
        rate: random.chance(0.85).then_some(rate as u64),
        bytes_per_day: random.chance(0.3).then_some(bytes as u64),
        memory: (8e6 * 16_f64.powf(random.uniform())) as u64,
        destinations: limits_destinations.then_some(prefixes),
        side: random.chance(0.4),
        one_ended: random.chance(0.5),
        // Smaller MTUs would fragment path checks, whose later fragments cannot be counted apart.
        mtu: [1500, 1500, 1280, 576, 512, 256][random.below(6) as usize],
        spin: random.chance(0.3),
        routers: random.chance(0.2),
        services: random.chance(0.5),
        max_duration_ms: random.chance(0.7).then_some(1000),
    }
}

/// One attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub assignment: Assignment,
    /// Change of one value of the encoded assignment, by its position among all values.
    mutation: Option<(usize, Value)>,
}

impl Attempt {
    /// Returns the encoded assignment, which is JSON.
    pub fn bytes(&self) -> Vec<u8> {
        let mut encoded = serde_json::to_value(&self.assignment).unwrap();
        if let Some((position, value)) = &self.mutation {
            let count = leaves(&mut encoded, usize::MAX, &Value::Null);
            leaves(&mut encoded, position % count.max(1), value);
        }
        serde_json::to_vec(&encoded).unwrap()
    }
}

/// Returns a path through NATs that no agent has found, and that leads to a host without an agent.
fn forged_path(side: FlowSide, port: u16) -> NatPath {
    let [unasked, far] = [UNASKED, FAR[0]].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
    match side {
        FlowSide::Send => NatPath { source: far, destination: unasked, opened_by: side },
        FlowSide::Receive => NatPath { source: unasked, destination: far, opened_by: side },
    }
}

/// Replaces the leaf at a position. Returns the number of leaves.
fn leaves(value: &mut Value, position: usize, with: &Value) -> usize {
    fn visit(value: &mut Value, at: &mut usize, position: usize, with: &Value) {
        match value {
            Value::Array(list) => list.iter_mut().for_each(|one| visit(one, at, position, with)),
            Value::Object(fields) => fields.values_mut().for_each(|one| visit(one, at, position, with)),
            leaf => {
                if *at == position {
                    *leaf = with.clone();
                }
                *at += 1;
            }
        }
    }
    let mut at = 0;
    visit(value, &mut at, position, with);
    at
}

struct Draw<'a> {
    random: &'a mut RandomStream,
    policy: &'a TestPolicy,
    /// Probability of a value that an honest controller would choose.
    honest: f64,
}

pub fn attempt(random: &mut RandomStream, policy: &TestPolicy) -> Attempt {
    let honest = [1.0, 0.95, 0.7][random.below(3) as usize];
    let mut draw = Draw { random, policy, honest };
    let count = 1 + draw.random.below(3);
    let flows: Vec<FlowTask> = (0..count).map(|id| draw.flow(id as u32 + 1)).collect();
    let longest = policy.max_duration_ms.unwrap_or(700).min(700);
    let duration = match draw.is_honest() {
        true => Duration::from_millis(50 + draw.random.below(longest - 50)),
        false => Duration::from_millis(draw.random.below(4000)),
    };
    let mut assignment = Assignment::of_flows("a", duration, Duration::from_millis(100), flows);
    assignment.seed = draw.random.next_u64();
    if draw.random.chance(0.1) {
        assignment.interval = Duration(10_f64.powf(9.0 * draw.random.uniform()) as u64);
    }
    if draw.random.chance(if policy.services { 0.1 } else { 0.02 }) {
        assignment.services.push(draw.service(90));
    }
    if draw.random.chance(0.1) {
        assignment.clocks = Some(draw.clocks(&assignment));
    }
    if draw.random.chance(if policy.routers { 0.1 } else { 0.01 }) {
        assignment.edge = Some(draw.edge());
    }
    if draw.random.chance(0.1) {
        assignment.lease = Some(Duration::from_millis(draw.random.below(8_000)));
    }
    let mutation = draw.random.chance(0.2).then(|| (draw.random.next_u64() as usize, draw.value()));
    Attempt { assignment, mutation }
}

impl Draw<'_> {
    fn is_honest(&mut self) -> bool {
        self.random.chance(self.honest)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len() as u64) as usize]
    }

    fn any_address(&mut self) -> IpAddr {
        let all: Vec<&str> = OWN.iter().chain(&FAR).chain(&OTHERS).copied().collect();
        self.pick(&all).parse().unwrap()
    }

    fn port(&mut self) -> u16 {
        match self.is_honest() {
            true => 5001 + self.random.below(2000) as u16,
            false => self.random.next_u64() as u16,
        }
    }

    fn value(&mut self) -> Value {
        match self.random.below(6) {
            0 => self.random.next_u64().into(),
            1 => self.random.below(100).into(),
            2 => (-self.random.uniform() * 1e9).into(),
            3 => SocketAddr::new(self.any_address(), self.port()).to_string().into(),
            4 => self.any_address().to_string().into(),
            _ => self.random.chance(0.5).into(),
        }
    }

    fn flow(&mut self, id: u32) -> FlowTask {
        let side = if self.random.chance(0.7) { FlowSide::Send } else { FlowSide::Receive };
        // Pairs of addresses that the policy may permit: one link and one family.
        let pairs = [(OWN[0], FAR[0]), (OWN[1], FAR[1]), (OWN[2], FAR[4])];
        let permitted: Vec<_> = pairs.into_iter().filter(|(_, far)| self.policy.permits(far)).collect();
        let is_honest = self.is_honest() && !permitted.is_empty();
        let (own, far) = if is_honest { self.pick(&permitted) } else { self.pick(&pairs) };
        let (mut own, mut far): (IpAddr, IpAddr) = (own.parse().unwrap(), far.parse().unwrap());
        let transport = self.transport();
        let is_one_ended = matches!(transport, TaskTransport::IcmpEcho(_) | TaskTransport::UdpUnreachable(_));
        let side = if is_one_ended && self.is_honest() { FlowSide::Send } else { side };
        if let TaskTransport::Multicast { .. } = transport {
            far = if own.is_ipv4() { OTHERS[0] } else { OTHERS[1] }.parse().unwrap();
        }
        if !self.is_honest() {
            far = self.any_address();
        }
        if self.random.chance((1.0 - self.honest) / 2.0) {
            own = self.any_address();
        }
        let port = self.port();
        let (source, destination) = match side {
            FlowSide::Send => (SocketAddr::new(own, 0), SocketAddr::new(far, port)),
            FlowSide::Receive => (SocketAddr::new(far, 0), SocketAddr::new(own, port)),
        };
        let stop = Duration::from_millis(50 + self.random.below(1500));
        FlowTask {
            id,
            transport,
            traffic: match side {
                // The client's end sends requests, the server's end as much as they ask for.
                FlowSide::Receive if self.random.chance(0.5) => self.application().into(),
                _ => self.traffic(),
            },
            traffic_class: self.random.below(256) as u8,
            detail: self.random.chance(0.3),
            nat: self.random.chance(0.03).then(|| forged_path(side, port)),
            ..FlowTask::udp(
                &format!("f{id}"),
                side,
                [source, destination],
                Pattern::Cbr { rate: BitRate(1), packet: 1 },
                stop,
            )
        }
    }

    fn transport(&mut self) -> TaskTransport {
        let one_ended = OneEnded {
            limit: self.random.chance(0.7).then(|| BitRate(1 << self.random.below(36))),
            keep_rate: self.random.chance(0.5),
        };
        match self.random.below(if self.policy.one_ended { 9 } else { 7 }) {
            0 | 1 => TaskTransport::Tcp(TcpOptions {
                no_delay: self.random.chance(0.5),
                window: self.random.chance(0.3).then(|| 1 << self.random.below(30)),
                max_segment_size: self.random.chance(0.2).then(|| self.random.below(1500) as u32),
                congestion_control: None,
            }),
            2 | 3 => TaskTransport::Udp(UdpOptions {
                checksum_zero: self.random.chance(0.1),
                compare_payload: self.random.chance(0.2),
                batch: if self.random.chance(0.5) { self.random.below(70) as u16 } else { 0 },
                spin: self.policy.spin && self.random.chance(0.2),
            }),
            4 => TaskTransport::Multicast { source: None, ttl: self.random.below(4) as u8, receiver: None },
            5 => TaskTransport::Quic,
            6 => TaskTransport::Stamp { interval: Duration(1_000 << self.random.below(15)) },
            7 => TaskTransport::IcmpEcho(one_ended),
            _ => TaskTransport::UdpUnreachable(one_ended),
        }
    }

    /// Returns a rate: within the policy, a little beyond it, or anything.
    fn rate(&mut self) -> BitRate {
        let limit = self.policy.rate.unwrap_or(100_000_000) as f64;
        BitRate(match self.random.below(3) {
            0 | 1 => limit * self.random.uniform() * 0.5,
            _ if self.is_honest() => limit * 0.9,
            _ => 10_f64.powf(4.0 + 6.0 * self.random.uniform()),
        } as u64)
    }

    fn traffic(&mut self) -> FlowTraffic {
        let (rate, packet) = (self.rate(), self.pick(&[64, 200, 1000, 1200, 1400]));
        let packet = if self.is_honest() { packet } else { self.random.below(70_000) as u32 };
        // Phases whose mean is the rate, and whose peak is far above it.
        let share = [1, 3, 30, 1000][self.random.below(4) as usize];
        let peak = BitRate(rate.0.saturating_mul(share));
        let on = Duration::from_millis(1 + self.random.below(50));
        let off = Duration(on.0.saturating_mul(share - 1).max(1));
        // Without a rate of its own, it is refused by a policy that limits rates.
        let kinds = if self.policy.rate.is_some() && self.is_honest() { 10 } else { 13 };
        match self.random.below(kinds) {
            0..=3 => Pattern::Cbr { rate, packet }.into(),
            4 => Pattern::Poisson { rate, packet }.into(),
            5 | 6 => Pattern::OnOff { rate: peak, packet, on, off }.into(),
            7 => Pattern::Pareto { rate: peak, packet, on, off, shape: 1.0 + self.random.uniform() }.into(),
            8 => Pattern::Mmpp { states: vec![(peak, on), (BitRate(0), off)], packet }.into(),
            9 => {
                let gap = Duration(u64::from(packet) * 8_000_000_000 / rate.0.max(1));
                // A burst, and a pause that makes up for it.
                let mut packets = vec![(Duration::ZERO, packet); share as usize];
                packets[0].0 = gap * share;
                Pattern::Trace { packets: packets.into(), repeat: self.random.chance(0.8) }.into()
            }
            10 => Pattern::Bulk { size: self.random.chance(0.5).then(|| 1 << self.random.below(34)) }.into(),
            _ => self.application().into(),
        }
    }

    fn application(&mut self) -> Application {
        let size = SizeDistribution::constant(1 << self.random.below(31));
        let server = Duration::from_micros(self.random.below(1000));
        match self.random.below(4) {
            0 => Application::Transfers(Transfers {
                size,
                think: Duration::from_millis(self.random.below(10)),
                direction: match self.random.chance(0.7) {
                    true => TransferDirection::Download,
                    false => TransferDirection::Upload,
                },
                files: None,
            }),
            1 => Application::Exchange(Exchange {
                request: SizeDistribution::constant(1000),
                response: SizeDistribution::constant(1 << self.random.below(20)),
                pace: Pace::Open(10_f64.powf(4.0 * self.random.uniform())),
                server,
                connections: 1 + self.random.below(4) as u32,
                timeout: Duration::from_secs(1),
            }),
            2 => Application::Dns(Dns {
                query: 60,
                answer: SizeDistribution::constant(1400),
                interval: Duration::from_micros(10 + self.random.below(10_000)),
                timeout: Duration::from_millis(10),
                attempts: 3,
                server,
            }),
            _ => Application::BlockStorage(BlockStorage {
                block: 1 << self.random.below(22),
                reads: self.random.uniform(),
                queue_depth: 1 + self.random.below(32) as u32,
                server,
                follow_window: self.random.chance(0.5),
            }),
        }
    }

    fn service(&mut self, id: u32) -> ServiceTask {
        let role = if self.random.chance(0.6) { ServiceRole::Server } else { ServiceRole::Client };
        let own: IpAddr = if self.is_honest() { OWN[0].parse().unwrap() } else { self.any_address() };
        let far: IpAddr = if self.is_honest() { FAR[0].parse().unwrap() } else { self.any_address() };
        let (source, server) = if role == ServiceRole::Server { (far, own) } else { (own, far) };
        ServiceTask {
            name: "s".into(),
            id,
            role,
            task: match self.random.chance(0.5) {
                true => ServiceWorkload::Ftp { size: 1 << self.random.below(42) },
                false => ServiceWorkload::Iscsi { block: 1 << 16, queue_depth: 8 },
            },
            source,
            destination: SocketAddr::new(server, self.port()),
            start: Instant::ZERO,
        }
    }

    fn clocks(&mut self, assignment: &Assignment) -> ClockTask {
        let at = |flow: &FlowTask, side| (flow.side == side).then_some((flow.source, flow.destination));
        let honest = self.is_honest();
        let port = if honest { 4704 } else { self.port() };
        let with_port = |mut address: SocketAddr, port| {
            address.set_port(port);
            address
        };
        let sent = assignment.flows.iter().filter_map(|flow| at(flow, FlowSide::Send));
        let mut asks: Vec<_> = sent.map(|(from, to)| (with_port(from, 0), with_port(to, port))).collect();
        let received = assignment.flows.iter().filter_map(|flow| at(flow, FlowSide::Receive));
        let answers = received.map(|(_, to)| with_port(to, port)).collect();
        if !honest {
            asks.push((SocketAddr::new(self.any_address(), 0), SocketAddr::new(self.any_address(), port)));
        }
        ClockTask { key: format!("{:032x}{:032x}", self.random.next_u64(), 7), answers, asks }
    }

    fn edge(&mut self) -> EdgeTask {
        let core = self.pick(&["data", "data", "side", "mgmt"]);
        let circuit = self.pick(&["side", "side", "data", "lo"]);
        let peer = if self.is_honest() { FAR[0].parse().unwrap() } else { self.any_address() };
        EdgeTask {
            configuration: format!(
                "[pe]\ncore = [\"{core}\"]\n[peer.east]\ntunnel = {{ kind = \"mpls-in-udp\", to = \"{peer}\" }}\ntrusted = true\n\
                 [vpn.gold.peer.east]\nsend = 2001\nreceive = 1001\nroutes = [\"10.0.2.0/24\"]\n\
                 [circuit.office]\nvpn = \"gold\"\ninterface = \"{circuit}\"\naddress = \"10.1.1.1/24\"\n"
            ),
        }
    }
}
