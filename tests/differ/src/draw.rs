//! Random scenarios.

use crate::network::*;
use netstage_core::rng::RandomStream;

const MS: u64 = 1_000_000;
/// Bytes of the headers of a UDP packet in IPv4.
const UDP_HEADERS: u64 = 28;

/// Source of random decisions.
pub struct Draw(RandomStream);

impl Draw {
    /// Creates a source that depends on both arguments.
    pub fn new(seed: u64, subject: &str) -> Draw {
        Draw(RandomStream::new(seed, subject))
    }

    /// Returns an integer from `from` to `to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.0.below(to - from + 1)
    }

    /// Returns an integer from `from` to `to` whose logarithm is uniform.
    pub fn magnitude(&mut self, from: u64, to: u64) -> u64 {
        let (low, high) = ((from as f64).ln(), (to as f64).ln());
        ((low + self.0.uniform() * (high - low)).exp().round() as u64).clamp(from, to)
    }

    /// Returns true with a probability of 1 in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.0.below(n) == 0
    }

    /// Returns one of the values.
    pub fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.0.below(values.len() as u64) as usize].clone()
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.between(0, last as u64) as usize);
        }
    }
}

/// Draws a scenario.
pub fn network(seed: u64) -> Network {
    let mut draw = Draw::new(seed, "network");
    let mut network = Network {
        duration: 100 * MS * draw.between(10, 40),
        interval: MS * draw.pick(&[50, 100, 200]),
        nodes: Vec::new(),
        links: Vec::new(),
        vpns: Vec::new(),
        flows: Vec::new(),
    };
    network.duration -= network.duration % network.interval;
    let core_rate = draw.magnitude(500_000, 30_000_000);
    let routers = core(&mut draw, &mut network, core_rate);
    let hosts = hosts(&mut draw, &mut network, &routers, core_rate);
    if draw.one_in(3) {
        vpns(&mut draw, &mut network, &hosts, core_rate);
    }
    flows(&mut draw, &mut network, &hosts, core_rate);
    network
}

/// Draws a scenario that Linux hosts can run as written: its TCP has the settings of Linux.
pub fn real_network(seed: u64) -> Network {
    let mut network = network(seed);
    let mut draw = Draw::new(seed, "real network");
    let bins = 1_000 * MS * draw.between(4, 8) / network.interval;
    network.duration = bins * network.interval;
    // A provider edge router on real packets carries no flow outside of VPNs.
    if network.flows.iter().any(|flow| flow.vpn.is_none()) {
        network.vpns.clear();
        network.flows.iter_mut().for_each(|flow| flow.vpn = None);
    }
    for node in &mut network.nodes {
        node.device = None;
        if network.vpns.is_empty() && node.kind == "pe" {
            node.kind = "router";
        }
    }
    // Linux sets both per host.
    let (sack, timestamps) = (!draw.one_in(4), !draw.one_in(3));
    for flow in &mut network.flows {
        flow.stop = None;
        if matches!(flow.traffic, Traffic::Application(..)) {
            flow.traffic = Traffic::Bulk { size: None };
        }
        if flow.traffic.packet().is_some() && !matches!(flow.transport, Transport::Tcp(_)) {
            flow.transport = Transport::Udp;
            continue;
        }
        let drawn = match &flow.transport {
            Transport::Tcp(tcp) => tcp.clone(),
            _ => tcp(&mut draw),
        };
        flow.transport = Transport::Tcp(Tcp {
            ecn: drawn.ecn,
            window: drawn.window.max(16_000),
            ..linux_tcp(&mut draw, sack, timestamps)
        });
    }
    network
}

/// Draws a chain of two to five bottlenecks for TCP: flows over the whole chain, and other flows over each link of it.
/// Links lose at most 1 % of the packets at random.
pub fn chain(seed: u64) -> Network {
    let mut draw = Draw::new(seed, "chain");
    let links = draw.between(2, 5) as usize;
    let mut network = Network {
        duration: 20_000 * MS,
        interval: 500 * MS,
        nodes: Vec::new(),
        links: Vec::new(),
        vpns: Vec::new(),
        flows: Vec::new(),
    };
    let rate = draw.magnitude(1_000_000, 20_000_000);
    for number in 0..=links {
        network.nodes.push(Node { name: format!("r{number}"), kind: "router", device: None });
    }
    for number in 0..links {
        let rate = rate * draw.between(100, 200) / 100;
        let delay = draw.magnitude(MS, 40 * MS);
        let buffer = Buffer::Packets((rate * draw.between(20, 200) / 1000 / 12_000).max(10));
        let loss = if draw.one_in(3) { draw.pick(&[0.0001, 0.001, 0.005]) } else { 0.0 };
        let queue = if draw.one_in(2) { Queue::DropTail } else { queue(&mut draw) };
        let forward = Direction { rate, delay, buffer, loss, queue, ..Direction::wire() };
        let reverse = Direction { rate: 10 * rate, delay, ..Direction::wire() };
        let ends = [format!("r{number}"), format!("r{}", number + 1)];
        network.links.push(Link { name: format!("core{number}"), ends, directions: [forward, reverse] });
    }
    let sack = !draw.one_in(4);
    let mut groups: Vec<(usize, usize)> = (0..links).map(|link| (link, link + 1)).collect();
    groups.extend(vec![(0, links); draw.between(1, 2) as usize]);
    for (number, (from, to)) in groups.into_iter().enumerate() {
        let ends = [("a", from), ("b", to)].map(|(side, router)| {
            let host = format!("{side}{number}");
            network.nodes.push(Node { name: host.clone(), kind: "host", device: None });
            let line =
                Direction { rate: 100_000_000, delay: draw.magnitude(MS / 10, 10 * MS), ..Direction::wire() };
            let ends = [host.clone(), format!("r{router}")];
            network.links.push(Link {
                name: format!("access-{host}"),
                ends,
                directions: [line.clone(), line],
            });
            host
        });
        let [from, to] = ends;
        network.flows.push(Flow {
            name: format!("f{number}"),
            from,
            to,
            vpn: None,
            transport: Transport::Tcp(Tcp {
                window: draw.magnitude(64_000, 1_000_000),
                ..linux_tcp(&mut draw, sack, true)
            }),
            traffic: Traffic::Bulk { size: None },
            count: draw.between(1, 4),
            start: MS * draw.between(0, 1_000),
            stagger: MS * draw.between(0, 300),
            stop: None,
            background: false,
            twin: None,
        });
    }
    network
}

/// Draws a TCP with the settings of Linux.
fn linux_tcp(draw: &mut Draw, sack: bool, timestamps: bool) -> Tcp {
    Tcp {
        stack: "linux",
        algorithm: draw.pick(&["newreno", "cubic"]),
        sack,
        rack: false,
        ecn: false,
        timestamps,
        initial_window: 10,
        ..tcp(draw)
    }
}

/// Draws the routers and the links between them: a chain, a star, or a ring with an odd number of routers, in which
/// every shortest path is the only one.
fn core(draw: &mut Draw, network: &mut Network, rate: u64) -> Vec<String> {
    let shape = draw.between(0, 2);
    let count = if shape == 2 { draw.pick(&[3, 5]) } else { draw.between(1, 4) } as usize;
    let routers: Vec<String> = (0..count).map(|k| format!("r{k}")).collect();
    for name in &routers {
        network.nodes.push(Node { name: name.clone(), kind: "router", device: None });
    }
    let mut edges: Vec<(usize, usize)> = match shape {
        1 => (1..count).map(|k| (0, k)).collect(),
        _ => (1..count).map(|k| (k - 1, k)).collect(),
    };
    if shape == 2 {
        edges.push((count - 1, 0));
    }
    for (number, (a, b)) in edges.into_iter().enumerate() {
        let forward = direction(draw, network.duration, rate);
        let reverse = if draw.one_in(3) { direction(draw, network.duration, rate) } else { forward.clone() };
        network.links.push(Link {
            name: format!("core{number}"),
            ends: [routers[a].clone(), routers[b].clone()],
            directions: [forward, reverse],
        });
    }
    routers
}

/// Draws a direction of a core link.
fn direction(draw: &mut Draw, duration: u64, rate: u64) -> Direction {
    let rate = rate * draw.pick(&[1, 1, 2, 4]) / draw.pick(&[1, 1, 2]);
    let mut direction = Direction {
        rate,
        delay: draw.magnitude(1_000, 60 * MS),
        buffer: Buffer::Packets(draw.magnitude(2, 300)),
        queue: queue(draw),
        overhead: draw.pick(&[0, 0, 38]),
        ..Direction::wire()
    };
    if draw.one_in(3) {
        direction.buffer = Buffer::Bytes(draw.magnitude(3_000, 300_000));
    }
    match draw.between(0, 11) {
        0 => direction.loss = draw.pick(&[0.001, 0.01, 0.1]),
        1 => direction.bit_errors = draw.pick(&[1e-7, 1e-6]),
        2 => direction.duplicate = draw.pick(&[0.01, 0.2]),
        3 => {
            direction.jitter = Some(Jitter {
                amount: draw.magnitude(MS / 10, 20 * MS),
                exponential: draw.one_in(3),
                reorder: draw.one_in(2),
            });
        }
        4 => direction.schedule = schedule(draw, duration, rate),
        _ => {}
    }
    direction
}

fn queue(draw: &mut Draw) -> Queue {
    let ecn = draw.one_in(3);
    let target = MS * draw.pick(&[2, 5, 20]);
    match draw.between(0, 7) {
        0 => {
            let min = draw.between(2, 20) as f64;
            let probability = draw.pick(&[0.02, 0.1, 0.5]);
            Queue::Red { min, max: min * 3.0, probability, ecn }
        }
        1 => Queue::Codel { target, interval: 20 * target, ecn },
        2 | 3 => Queue::FqCodel { target, interval: 20 * target, ecn },
        4 => Queue::Drr { default_weight: draw.pick(&[0.5, 1.0, 4.0]) },
        _ => Queue::DropTail,
    }
}

fn schedule(draw: &mut Draw, duration: u64, rate: u64) -> Vec<Change> {
    let at = draw.between(duration / 8, duration / 2) / MS * MS;
    let later = at + draw.between(duration / 20, duration / 3) / MS * MS;
    let none = Change { at, rate: None, delay: None, loss: None, up: None };
    match draw.between(0, 3) {
        0 => vec![Change { up: Some(false), ..none }, Change { at: later, up: Some(true), ..none }],
        1 => {
            vec![Change { rate: Some(rate / 3), ..none }, Change { at: later, rate: Some(rate * 2), ..none }]
        }
        2 => vec![Change { delay: Some(40 * MS), ..none }, Change { at: later, delay: Some(MS), ..none }],
        _ => vec![Change { loss: Some(0.05), ..none }, Change { at: later, loss: Some(0.0), ..none }],
    }
}

/// Draws the hosts, each with a link to a router; returns each host and its router.
fn hosts(
    draw: &mut Draw,
    network: &mut Network,
    routers: &[String],
    core_rate: u64,
) -> Vec<(String, String)> {
    let count = draw.between(2, 6) as usize;
    let mut hosts = Vec::new();
    for number in 0..count {
        let name = format!("h{number}");
        // The first two hosts are at both ends of the core.
        let router = match number {
            0 => routers[0].clone(),
            1 => routers[routers.len() - 1].clone(),
            _ => draw.pick(routers),
        };
        let device =
            draw.one_in(8).then(|| (core_rate * draw.between(1, 3), draw.magnitude(10_000, 200_000)));
        network.nodes.push(Node { name: name.clone(), kind: "host", device });
        let bottleneck = draw.one_in(5);
        let access = Direction {
            rate: if bottleneck { core_rate / 2 } else { (core_rate * 10).max(10_000_000) },
            delay: draw.magnitude(1_000, 10 * MS),
            buffer: Buffer::Packets(draw.magnitude(if bottleneck { 5 } else { 100 }, 1_000)),
            queue: if bottleneck { queue(draw) } else { Queue::DropTail },
            ..Direction::wire()
        };
        network.links.push(Link {
            name: format!("access{number}"),
            ends: [name.clone(), router.clone()],
            directions: [access.clone(), access],
        });
        hosts.push((name, router));
    }
    hosts
}

fn vpns(draw: &mut Draw, network: &mut Network, hosts: &[(String, String)], core_rate: u64) {
    let pairs: Vec<(&String, &String)> = hosts
        .iter()
        .flat_map(|(_, from)| hosts.iter().map(move |(_, to)| (from, to)))
        .filter(|(from, to)| from != to)
        .collect();
    if pairs.is_empty() {
        return;
    }
    for number in 0..draw.between(1, 3) {
        let (ingress, egress) = draw.pick(&pairs);
        for node in &mut network.nodes {
            if node.name == *ingress || node.name == *egress {
                node.kind = "pe";
            }
        }
        let control = match draw.between(0, 3) {
            0 => Control::None,
            1 => Control::FixedRate { rate: core_rate / draw.between(1, 4), queue: draw.magnitude(10, 500) },
            _ => Control::I2vfc {
                increase: draw.pick(&[0.1, 0.5, 1.0]),
                decrease: draw.pick(&[0.05, 0.1, 0.5]),
                initial_window: draw.between(1, 50),
                pacing: draw.one_in(2),
            },
        };
        network.vpns.push(Vpn {
            name: format!("v{number}"),
            ingress: ingress.clone(),
            egress: egress.clone(),
            weight: draw.pick(&[0.5, 1.0, 1.0, 3.0]),
            control,
            encapsulation: draw.pick(&["none", "mpls", "mpls-in-udp"]),
        });
    }
}

fn flows(draw: &mut Draw, network: &mut Network, hosts: &[(String, String)], core_rate: u64) {
    for number in 0..draw.between(1, 5) {
        let mut from = draw.pick(hosts);
        let mut to = if number == 0 { hosts[1].clone() } else { draw.pick(hosts) };
        while from.0 == to.0 {
            from = draw.pick(hosts);
        }
        let vpn = Some(draw.between(0, 3) as usize).filter(|_| !network.vpns.is_empty());
        let mut flow = flow(draw, format!("f{number}"), core_rate);
        if let Some(vpn) = vpn.and_then(|vpn| network.vpns.get(vpn)) {
            let behind =
                |router: &String| hosts.iter().filter(|(_, at)| at == router).cloned().collect::<Vec<_>>();
            (from, to) = (draw.pick(&behind(&vpn.ingress)), draw.pick(&behind(&vpn.egress)));
            flow.vpn = Some(vpn.name.clone());
        }
        (flow.from, flow.to) = (from.0, to.0);
        if matches!(flow.transport, Transport::Udp) && flow.traffic.packet().is_some() {
            flow.background = flow.vpn.is_none() && draw.one_in(5);
        }
        let copies = flow.count == 1 && flow.stop.is_none() && draw.one_in(2);
        network.flows.push(flow.clone());
        if copies {
            let twin = Some(network.flows.len() - 1);
            network.flows.push(Flow { name: format!("t{number}"), twin, ..flow });
        }
    }
}

fn flow(draw: &mut Draw, name: String, core_rate: u64) -> Flow {
    let rate = (core_rate * draw.magnitude(2, 150) / 100).max(8_000);
    let packet = draw.pick(&[18, 100, 500, 972, 1_000, 1_472 - UDP_HEADERS, 1_472]);
    let [on, off] = [draw.magnitude(5 * MS, 500 * MS), draw.magnitude(5 * MS, 500 * MS)];
    let pattern = match draw.between(0, 7) {
        0..=2 => Traffic::Cbr { rate, packet },
        3 | 4 => Traffic::Poisson { rate, packet },
        5 => Traffic::OnOff { rate, packet, on, off },
        6 => Traffic::Pareto { rate, packet, on, off },
        _ => Traffic::Mmpp { states: [(rate, on), (rate / 4 + 8, off)], packet },
    };
    let (transport, traffic) = match draw.between(0, 19) {
        0..=7 => (Transport::Tcp(tcp(draw)), Traffic::Bulk { size: None }),
        8 => (Transport::Tcp(tcp(draw)), Traffic::Bulk { size: Some(draw.magnitude(100, 2_000_000)) }),
        9 => (Transport::Tcp(tcp(draw)), pattern),
        10 => (Transport::IcmpEcho, Traffic::Cbr { rate, packet }),
        11 => (Transport::UdpUnreachable, Traffic::Cbr { rate, packet }),
        12 => (
            Transport::Udp,
            draw.pick(&[
                Traffic::Application("voip", ""),
                Traffic::Application("dns", ", interval = \"50 ms\""),
                Traffic::Application("gaming", ""),
                Traffic::Application("video-frames", ", rate = \"500 kbit/s\""),
            ]),
        ),
        13 => (
            Transport::Tcp(tcp(draw)),
            draw.pick(&[
                Traffic::Application("request-response", ", response = \"20 kB\", think = \"50 ms\""),
                Traffic::Application("web", ", think = \"200 ms\""),
                Traffic::Application("ftp", ", size = \"100 kB\", think = \"100 ms\""),
                Traffic::Application("block-storage", ""),
                Traffic::Application("video", ""),
            ]),
        ),
        _ => (Transport::Udp, pattern),
    };
    Flow {
        name,
        from: String::new(),
        to: String::new(),
        vpn: None,
        transport,
        traffic,
        count: draw.pick(&[1, 1, 1, 2, 4]),
        start: 0,
        stagger: MS * draw.between(0, 30),
        stop: draw.one_in(6).then_some(700 * MS),
        background: false,
        twin: None,
    }
}

fn tcp(draw: &mut Draw) -> Tcp {
    let sack = !draw.one_in(4);
    Tcp {
        stack: draw.pick(&["rfc", "rfc", "linux"]),
        algorithm: draw.pick(&["reno", "newreno", "newreno", "cubic", "linux-cubic", "aimd"]),
        slow_start: draw.pick(&["standard", "standard", "hystart++"]),
        sack,
        rack: sack && draw.one_in(2),
        ecn: draw.one_in(3),
        timestamps: !draw.one_in(3),
        segment: 1_448,
        window: draw.magnitude(4_000, 1_000_000),
        initial_window: draw.pick(&[1, 2, 4, 10, 10]),
        ack_every: draw.pick(&[1, 2, 2]),
        delayed_ack: MS * draw.pick(&[40, 200]),
        timeout: MS * draw.pick(&[200, 1_000]),
        limited_transmit: !draw.one_in(3),
        handshake: !draw.one_in(3),
    }
}
