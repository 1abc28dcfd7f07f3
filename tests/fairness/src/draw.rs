//! Random cases: a core of one to three bottlenecks, and the VPNs that share it.
//!
//! docs/fairness.md describes the distributions. They never change, so that results of all versions are comparable.

use crate::owed;
use netstage_differ::draw::Draw;
use netstage_differ::network::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;

const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;
/// Number of packets that the bottlenecks of a case carry in one run, unless the run would be shorter than [`SHORTEST`].
const PACKETS: f64 = 12.5e6;
/// Shortest run.
const SHORTEST: u64 = 15 * SECOND;
/// Packets that each VPN is owed per bin.
pub const PACKETS_PER_BIN: f64 = 20.0;
/// Start of the measurement.
pub const SETTLED: u64 = 5 * SECOND;
/// Time within which the flows of a VPN start.
const STARTING: u64 = 200 * MS;
const FULL_PACKET: u64 = 1_500;
const UDP_HEADERS: u64 = 28;
const TCP_HEADERS: u64 = 52;
/// One-way propagation delay of a bottleneck.
const CORE_DELAY: u64 = MS / 2;

/// Drawn case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Seed of the simulation, too.
    pub seed: u64,
    /// Scenario without control.
    pub network: Network,
    pub vpns: Vec<Customer>,
    pub cores: Vec<Core>,
    /// Bin in which each VPN is owed enough packets, nanoseconds.
    pub bin: u64,
    /// Starts of the spans between which VPNs join or leave.
    pub spans: Vec<u64>,
    pub features: Features,
}

/// Bottleneck.
#[derive(Clone, Debug)]
pub struct Core {
    pub rate: f64,
    /// Mean rate of its uncontrolled datagrams, at the IP layer.
    pub background: f64,
    /// Bandwidth-delay product in bytes.
    pub product: f64,
}

/// VPN and its customer.
#[derive(Clone, Debug)]
pub struct Customer {
    pub weight: f64,
    /// Bottlenecks that the VPN crosses.
    pub cores: Range<usize>,
    /// Share of the packets lost at random behind the bottlenecks.
    pub loss: f64,
    pub active: Range<u64>,
    pub round_trip: u64,
    /// Size of its largest packets, at the IP layer.
    pub packet: u64,
    /// Rate at the IP layer, if no flow adapts its rate.
    pub offered: Option<f64>,
    /// Flows that have equals in the same VPN: the name of the group, and their number.
    pub equals: Vec<(String, u64)>,
}

/// Properties by which results are grouped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Number of bottlenecks.
    pub bottlenecks: usize,
    /// Rate of the first bottleneck in bit/s.
    pub rate: f64,
    /// Number of VPNs.
    pub vpns: usize,
    /// Largest weight divided by the smallest.
    pub weight_ratio: f64,
    /// Median round trip in seconds.
    pub round_trip: f64,
    /// Largest round trip divided by the smallest.
    pub round_trip_ratio: f64,
    /// Buffer in bandwidth-delay products.
    pub buffer: f64,
    /// Queue discipline of the bottlenecks.
    pub queue: String,
    /// Smallest number of flows of a VPN.
    pub flows: u64,
    /// Uncontrolled traffic: "none", "udp" or "tcp".
    pub background: String,
    /// Largest random loss of a VPN.
    pub loss: f64,
    /// Random loss on the way back.
    pub loss_back: f64,
    /// Delay and rate differ between the two ways.
    pub asymmetric: bool,
    /// Whether VPNs join or leave.
    pub changes: bool,
    /// Number of VPNs with datagrams.
    pub datagrams: usize,
    /// Smallest of the VPNs' largest packets, in bytes.
    pub smallest_packet: u64,
}

/// Draws a case: of eight, five have one bottleneck and three have two or three.
pub fn case(seed: u64, index: u64) -> Case {
    let mut draw = Draw::new(seed, &format!("case {index}"));
    let bottlenecks = if index % 8 < 5 { 1 } else { draw.between(2, 3) as usize };
    // In the shortest run, the bottlenecks carry at most `PACKETS` full packets.
    let rate = draw.magnitude(3_000_000, 10_000_000_000 / bottlenecks as u64);
    let rates: Vec<u64> = (0..bottlenecks)
        .map(|core| if core == 0 { rate } else { rate * draw.between(50, 100) / 100 })
        .collect();
    let smallest = (rates.iter().sum::<u64>() as f64 * (SHORTEST / SECOND) as f64 / 8.0 / PACKETS)
        .ceil()
        .max(64.0) as u64;
    let mut vpns = customers(&mut draw, bottlenecks);
    let capacities: Vec<f64> = rates.iter().map(|rate| *rate as f64).collect();
    let endless = vec![f64::INFINITY; vpns.len()];
    let shares = owed::weighted_shares(&vpns, &capacities, &endless, |_| true);
    let kinds = kinds(&mut draw, &mut vpns, smallest);

    let (bin, duration, spans) = schedule(&mut draw, &mut vpns, &shares);
    let mut case = Case {
        seed,
        network: Network {
            duration,
            interval: bin / 2,
            nodes: Vec::new(),
            links: Vec::new(),
            vpns: Vec::new(),
            flows: Vec::new(),
        },
        vpns,
        cores: Vec::new(),
        bin,
        spans,
        features: features(&mut draw, &rates),
    };
    core(&mut draw, &mut case, &rates);
    access(&mut draw, &mut case, rate);
    background(&mut draw, &mut case);
    let mut least = u64::MAX;
    for (vpn, (kind, share)) in kinds.into_iter().zip(shares).enumerate() {
        least = least.min(kind.flows);
        case.features.datagrams += usize::from(kind.datagrams != Datagrams::None);
        flows(&mut draw, &mut case, vpn, &kind, share);
    }
    case.features.flows = least;
    describe(&mut case);
    case
}

/// Draws when each VPN is active. Returns the width of a bin, the duration, and the starts of the spans between changes.
fn schedule(draw: &mut Draw, vpns: &mut [Customer], shares: &[f64]) -> (u64, u64, Vec<u64>) {
    let need = |(vpn, share): (&Customer, &f64)| PACKETS_PER_BIN * 8.0 * vpn.packet as f64 / share;
    let seconds = vpns.iter().zip(shares).map(need).fold(1.0, f64::max).ceil();
    let bin = seconds as u64 * SECOND;
    let longest = vpns.iter().map(|vpn| vpn.round_trip).max().unwrap_or(0);
    let wanted = (20 * SECOND).max(100 * longest).max(15 * bin);
    let hops = |(vpn, share): (&Customer, &f64)| share / 8.0 / vpn.packet as f64 * vpn.cores.len() as f64;
    let per_second: f64 = vpns.iter().zip(shares).map(hops).sum();
    let affordable = (PACKETS / per_second * 1e9) as u64;
    let third = (wanted.min(affordable.max(SHORTEST)) / 3).div_ceil(bin) * bin;
    let duration = 3 * third;
    let changes = draw.one_in(2);
    for vpn in vpns.iter_mut() {
        vpn.active = 0..duration;
    }
    for vpn in vpns.iter_mut().skip(1).filter(|_| changes) {
        if draw.between(1, 5) <= 2 {
            vpn.active = draw.pick(&[third..duration, 0..2 * third, third..2 * third]);
        }
    }
    let mut spans: Vec<u64> = vpns.iter().flat_map(|vpn| [vpn.active.start, vpn.active.end]).collect();
    spans.sort_unstable();
    spans.dedup();
    spans.pop();
    (bin, duration, spans)
}

fn features(draw: &mut Draw, rates: &[u64]) -> Features {
    Features {
        bottlenecks: rates.len(),
        rate: rates[0] as f64,
        vpns: 0,
        weight_ratio: 1.0,
        round_trip: 0.0,
        round_trip_ratio: 1.0,
        buffer: draw.magnitude(100, 4_000) as f64 / 1_000.0,
        queue: draw.pick(&["drop-tail", "drop-tail", "drop-tail", "red", "codel", "fq-codel"]).to_owned(),
        flows: 0,
        // 40 % none, 30 % each of the others.
        background: draw
            .pick(&["none", "none", "none", "none", "udp", "udp", "udp", "tcp", "tcp", "tcp"])
            .to_owned(),
        loss: 0.0,
        loss_back: if draw.one_in(4) { draw.magnitude(10, 300) as f64 / 1_000.0 } else { 0.0 },
        asymmetric: draw.one_in(3),
        changes: false,
        datagrams: 0,
        smallest_packet: 0,
    }
}

fn customers(draw: &mut Draw, bottlenecks: usize) -> Vec<Customer> {
    let fewest = if bottlenecks == 1 { 2 } else { bottlenecks as u64 + 1 };
    let count = draw.magnitude(fewest, 50) as usize;
    let (same_weights, same_round_trips) = (draw.one_in(4), draw.one_in(3));
    let round_trip = draw.magnitude(5, 400) * MS;
    // Random loss: none, the same for all VPNs, or one for each.
    let losses = draw.pick(&[0, 0, 1, 2]);
    let loss = |draw: &mut Draw| draw.magnitude(100, 50_000) as f64 / 1e6;
    let common = loss(draw);
    let customer = |vpn: usize| {
        let cores = match vpn {
            0 => 0..bottlenecks,
            vpn if bottlenecks == 1 || vpn > bottlenecks => {
                let first = draw.between(0, bottlenecks as u64 - 1);
                first as usize..draw.between(first + 1, bottlenecks as u64) as usize
            }
            vpn => vpn - 1..vpn,
        };
        Customer {
            weight: if same_weights { 1.0 } else { draw.magnitude(1, 20) as f64 },
            cores,
            loss: match losses {
                0 => 0.0,
                1 => common,
                _ => loss(draw),
            },
            active: 0..0,
            round_trip: if same_round_trips { round_trip } else { draw.magnitude(5, 400) * MS },
            packet: 0,
            offered: None,
            equals: Vec::new(),
        }
    };
    (0..count).map(customer).collect()
}

/// Traffic of a VPN.
struct Kind {
    flows: u64,
    has_tcp: bool,
    datagrams: Datagrams,
    datagram: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Datagrams {
    None,
    Constant,
    OnOff,
}

/// Draws the traffic of each VPN: 70 % only TCP, 15 % TCP and datagrams, 15 % only datagrams.
fn kinds(draw: &mut Draw, vpns: &mut [Customer], smallest: u64) -> Vec<Kind> {
    let fewest = draw.magnitude(1, 20);
    let full_packets = draw.one_in(2);
    let size = |draw: &mut Draw, lowest: u64| match full_packets || draw.one_in(2) {
        true => FULL_PACKET,
        false => draw.magnitude(smallest.max(lowest), FULL_PACKET),
    };
    let kind = |(number, vpn): (usize, &mut Customer)| {
        let flows = draw.magnitude(fewest, 100);
        let datagrams = draw.pick(&[Datagrams::Constant, Datagrams::OnOff]);
        let (has_tcp, datagrams) = match draw.between(0, 19) {
            // The first VPN, which crosses all bottlenecks, adapts its rate.
            0..=2 if number > 0 => (false, Datagrams::Constant),
            3..=5 => (true, datagrams),
            _ => (true, Datagrams::None),
        };
        let (packet, datagram) = (size(draw, 256), draw.magnitude(smallest, FULL_PACKET));
        vpn.packet = match (has_tcp, datagrams) {
            (false, _) => datagram,
            (true, Datagrams::None) => packet,
            (true, _) => packet.max(datagram),
        };
        Kind { flows, has_tcp, datagrams, datagram }
    };
    vpns.iter_mut().enumerate().map(kind).collect()
}

fn core(draw: &mut Draw, case: &mut Case, rates: &[u64]) {
    let mut round_trips: Vec<u64> = case.vpns.iter().map(|vpn| vpn.round_trip).collect();
    round_trips.sort_unstable();
    let median = round_trips[round_trips.len() / 2] as f64 * 1e-9;
    case.features.round_trip = median;
    case.features.round_trip_ratio = round_trips[round_trips.len() - 1] as f64 / round_trips[0] as f64;
    // The way back of an asymmetric core is slower.
    let slower = if case.features.asymmetric { draw.between(10, 100) } else { 100 };
    case.network.nodes.push(node("r0", "router"));
    for (index, &rate) in rates.iter().enumerate() {
        let product = rate as f64 * median / 8.0;
        let bytes = (product * case.features.buffer).max(10.0 * FULL_PACKET as f64) as u64;
        let packets = bytes as f64 / FULL_PACKET as f64;
        // Two packets, at least the default.
        let target = (5 * MS).max(2 * FULL_PACKET * 8 * SECOND / rate);
        let queue = match case.features.queue.as_str() {
            "red" => Queue::Red { min: packets / 6.0, max: packets / 2.0, probability: 0.1, ecn: false },
            "codel" => Queue::Codel { target, interval: 20 * target, ecn: false },
            "fq-codel" => Queue::FqCodel { target, interval: 20 * target, ecn: false },
            _ => Queue::DropTail,
        };
        let forward =
            Direction { rate, delay: CORE_DELAY, buffer: Buffer::Bytes(bytes), queue, ..Direction::wire() };
        let reverse = Direction {
            rate: rate * slower / 100,
            delay: CORE_DELAY,
            buffer: Buffer::Bytes(bytes),
            ..Direction::wire()
        };
        case.network.nodes.push(node(&format!("r{}", index + 1), "router"));
        link(
            case,
            &format!("core{index}"),
            [&format!("r{index}"), &format!("r{}", index + 1)],
            [forward, reverse],
        );
        case.cores.push(Core { rate: rate as f64, background: 0.0, product });
    }
}

/// Adds the customers' hosts, their PEs, and the links between them and the core.
fn access(draw: &mut Draw, case: &mut Case, rate: u64) {
    let line = wide(rate);
    for (index, vpn) in case.vpns.clone().into_iter().enumerate() {
        let [a, p, q, b] = ["a", "p", "q", "b"].map(|side| format!("{side}{index}"));
        for (name, kind) in [(&a, "host"), (&p, "pe"), (&q, "pe"), (&b, "host")] {
            case.network.nodes.push(node(name, kind));
        }
        let core = CORE_DELAY * vpn.cores.len() as u64;
        let percent = if case.features.asymmetric { draw.between(10, 90) } else { 50 };
        let there = vpn.round_trip * percent / 100;
        let [there, back] = [there, vpn.round_trip - there].map(|delay| delay.saturating_sub(core));
        let way = |delay, loss| Direction { delay, loss, ..line.clone() };
        link(case, &format!("in{index}"), [&a, &p], [line.clone(), line.clone()]);
        let [first, last] = [vpn.cores.start, vpn.cores.end].map(|router| format!("r{router}"));
        link(case, &format!("up{index}"), [&p, &first], [way(there, 0.0), way(back, 0.0)]);
        let losses = [vpn.loss, case.features.loss_back];
        link(case, &format!("down{index}"), [&last, &q], losses.map(|loss| way(0, loss)));
        link(case, &format!("out{index}"), [&q, &b], [line.clone(), line.clone()]);
        case.network.vpns.push(Vpn {
            name: format!("v{index}"),
            ingress: p,
            egress: q,
            weight: vpn.weight,
            control: Control::None,
            encapsulation: "none",
        });
    }
}

/// Adds the hosts beside each bottleneck, their uncontrolled traffic, and the probe of the bottleneck's queue.
fn background(draw: &mut Draw, case: &mut Case) {
    for index in 0..case.cores.len() {
        let rate = case.cores[index].rate as u64;
        let [x, y] = ["x", "y"].map(|side| format!("{side}{index}"));
        let round_trip = draw.magnitude(5, 400) * MS;
        for (host, router, delay) in [(&x, index, round_trip / 2 - CORE_DELAY), (&y, index + 1, 0)] {
            case.network.nodes.push(node(host, "host"));
            let line = Direction { delay, ..wide(rate) };
            let ends = [host.as_str(), &format!("r{router}")];
            link(case, &format!("side-{host}"), ends, [line.clone(), line]);
        }
        let share = draw.magnitude(10, 300);
        match case.features.background.as_str() {
            "udp" => {
                let packet = FULL_PACKET - UDP_HEADERS;
                let at_ip = (rate * share / 1_000).max(1_000);
                let payload = at_ip * packet / FULL_PACKET;
                let traffic = draw.pick(&[
                    Traffic::Cbr { rate: payload, packet },
                    Traffic::Poisson { rate: payload, packet },
                ]);
                case.cores[index].background = at_ip as f64;
                case.network.flows.push(Flow {
                    background: true,
                    ..flow(&format!("beside{index}"), &x, &y, Transport::Udp, traffic)
                });
            }
            "tcp" => {
                let tcp = Transport::Tcp(tcp(draw, FULL_PACKET, rate, round_trip));
                case.network.flows.push(Flow {
                    count: draw.magnitude(1, 20),
                    stagger: 10 * MS,
                    ..flow(&format!("beside{index}"), &x, &y, tcp, Traffic::Bulk { size: None })
                });
            }
            _ => {}
        }
        if case.features.asymmetric && draw.one_in(2) {
            let back = case.network.links[index].directions[1].rate;
            let payload = back * draw.between(30, 90) / 100 * (FULL_PACKET - UDP_HEADERS) / FULL_PACKET;
            let traffic = Traffic::Poisson { rate: payload, packet: FULL_PACKET - UDP_HEADERS };
            case.network.flows.push(flow(&format!("back{index}"), &y, &x, Transport::Udp, traffic));
        }
        let probe = Traffic::Poisson { rate: 36 * 8 * 20, packet: 36 };
        case.network.flows.push(Flow {
            start: SETTLED,
            ..flow(&format!("core-probe{index}"), &x, &y, Transport::Udp, probe)
        });
    }
}

/// Adds the flows of a VPN, and its probe.
fn flows(draw: &mut Draw, case: &mut Case, index: usize, kind: &Kind, share: f64) {
    let vpn = case.vpns[index].clone();
    let rate = case.features.rate as u64;
    let mut groups: Vec<(Transport, Traffic, u64)> = Vec::new();
    if kind.has_tcp {
        let flavours = if kind.flows >= 4 && draw.one_in(3) { 2 } else { 1 };
        for flavour in 0..flavours {
            let count = (kind.flows + flavours - 1 - flavour) / flavours;
            let tcp = tcp(draw, vpn.packet, rate, vpn.round_trip);
            groups.push((Transport::Tcp(tcp), Traffic::Bulk { size: None }, count));
        }
    }
    if kind.datagrams != Datagrams::None {
        let count = if kind.has_tcp { draw.between(1, 3) } else { kind.flows };
        let percent = match (kind.has_tcp, draw.one_in(2)) {
            (true, _) => draw.between(20, 150),
            (false, true) => draw.between(30, 90),
            (false, false) => draw.between(120, 200),
        };
        let packet = kind.datagram - UDP_HEADERS;
        let total = share * percent as f64 / 100.0;
        let each = ((total / count as f64 * packet as f64 / kind.datagram as f64) as u64).max(8);
        let [on, off] = [(); 2].map(|()| draw.between(500, 2_000) * MS);
        let traffic = match kind.datagrams {
            Datagrams::OnOff => Traffic::OnOff { rate: each, packet, on, off },
            _ => Traffic::Cbr { rate: each, packet },
        };
        if !kind.has_tcp {
            let at_ip = each as f64 * kind.datagram as f64 / packet as f64;
            case.vpns[index].offered = Some(at_ip * count as f64);
        }
        groups.push((Transport::Udp, traffic, count));
    }
    let stop = (vpn.active.end < case.network.duration).then_some(vpn.active.end);
    let [a, b] = ["a", "b"].map(|side| format!("{side}{index}"));
    for (group, (transport, traffic, count)) in groups.into_iter().enumerate() {
        let name = format!("f{index}-{group}");
        if count > 1 {
            case.vpns[index].equals.push((name.clone(), count));
        }
        case.network.flows.push(Flow {
            vpn: Some(format!("v{index}")),
            count,
            start: vpn.active.start + draw.between(0, STARTING / 2),
            stagger: STARTING / 2 / count,
            stop,
            ..flow(&name, &a, &b, transport, traffic)
        });
    }
    // Sparse: at most 1 % of the share.
    let interval = ((64.0 * 8.0 / (0.01 * share) * 1e9) as u64).max(20 * MS);
    let traffic = Traffic::Poisson { rate: (36 * 8 * SECOND / interval).max(1), packet: 36 };
    case.network.flows.push(Flow {
        vpn: Some(format!("v{index}")),
        start: vpn.active.start + SETTLED,
        stop,
        ..flow(&format!("probe{index}"), &a, &b, Transport::Udp, traffic)
    });
}

/// Draws a TCP whose windows are no limit.
fn tcp(draw: &mut Draw, packet: u64, rate: u64, round_trip: u64) -> Tcp {
    let (stack, algorithm) =
        draw.pick(&[("rfc", "newreno"), ("rfc", "cubic"), ("linux", "newreno"), ("linux", "cubic")]);
    let sack = !draw.one_in(4);
    let product = (rate as f64 * round_trip as f64 * 1e-9 / 8.0) as u64;
    Tcp {
        stack,
        algorithm,
        slow_start: if stack == "rfc" {
            draw.pick(&["standard", "standard", "hystart++"])
        } else {
            "standard"
        },
        sack,
        rack: sack && stack == "linux",
        ecn: false,
        timestamps: true,
        segment: packet - TCP_HEADERS,
        window: (8 * product).clamp(1_000_000, 1_000_000_000),
        initial_window: 10,
        ack_every: 2,
        delayed_ack: 40 * MS,
        timeout: draw.pick(&[200, 1_000]) * MS,
        limited_transmit: true,
        handshake: true,
    }
}

fn describe(case: &mut Case) {
    let of = |value: fn(&Customer) -> f64| case.vpns.iter().map(value);
    let weights = of(|vpn| vpn.weight);
    let features = &mut case.features;
    features.vpns = case.vpns.len();
    features.weight_ratio = weights.clone().fold(0.0, f64::max) / weights.fold(f64::INFINITY, f64::min);
    features.loss = of(|vpn| vpn.loss).fold(0.0, f64::max);
    features.changes = case.spans.len() > 1;
    features.smallest_packet = case.vpns.iter().map(|vpn| vpn.packet).min().unwrap_or(0);
}

/// Returns a line that is no bottleneck for this rate.
fn wide(rate: u64) -> Direction {
    Direction { rate: 4 * rate, buffer: Buffer::Packets(1_000_000), ..Direction::wire() }
}

fn node(name: &str, kind: &'static str) -> Node {
    Node { name: name.to_owned(), kind, device: None }
}

fn link(case: &mut Case, name: &str, ends: [&str; 2], directions: [Direction; 2]) {
    case.network.links.push(Link { name: name.to_owned(), ends: ends.map(str::to_owned), directions });
}

fn flow(name: &str, from: &str, to: &str, transport: Transport, traffic: Traffic) -> Flow {
    Flow {
        name: name.to_owned(),
        from: from.to_owned(),
        to: to.to_owned(),
        vpn: None,
        transport,
        traffic,
        count: 1,
        start: 0,
        stagger: 0,
        stop: None,
        background: false,
        twin: None,
    }
}
