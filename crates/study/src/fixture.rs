//! A small scenario and a runner that makes its outcomes up, for tests.

use crate::{Options, Stopped};
use netstage_core::edge::Settings;
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use netstage_core::{link, tcp, traffic};
pub use netstage_harness::Folder as Scratch;
use netstage_scenario::expect::{Against, Bound, Expectation, Plot, Selection, Statistic};
use netstage_scenario::outcome::{Attendant, Metric, Outcome, Series, Totals};
use netstage_scenario::plan::{
    Datagrams, Family, FlowGroup, Hop, Link, Measure, Node, NodeKind, Plan, Transport, Vpn,
};
use netstage_scenario::{Cell, Scenario};
use std::path::Path;

/// A seconds' instant.
pub fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn direction(rate: u64) -> link::Config {
    link::Config::plain(BitRate(rate), Duration::from_millis(10), Capacity::Packets(50))
}

fn tcp_config() -> tcp::Config {
    tcp::Config {
        window: 65_536,
        initial_window: 2,
        delayed_ack: Duration::from_millis(100),
        ..tcp::Config::default()
    }
}

fn group(name: &str, vpn: Option<usize>, count: usize, start: u64) -> FlowGroup {
    let hops = |direction| (0..3).map(|link| Hop { link, direction }).collect();
    FlowGroup {
        name: name.into(),
        from: 0,
        to: 3,
        vpn,
        transport: if vpn.is_some() { Transport::Tcp(tcp_config()) } else { Transport::Udp },
        family: Family::V4,
        datagrams: Datagrams::default(),
        branches: Vec::new(),
        program: None,
        traffic: traffic::Pattern::Bulk { size: None }.into(),
        count,
        start: at(start),
        stagger: Duration::ZERO,
        stop: Instant::NEVER,
        background: vpn.is_none(),
        path: hops(0),
        reverse: hops(1),
    }
}

/// h – pe1 – pe2 – r with a core of 10 Mbit/s; VPNs a and b of weights 1 and 2, of two flows
/// each, b's starting at 2 s; background from the start. Ten bins of a second.
pub fn plan() -> Plan {
    let node =
        |name: &str, kind| Node { name: name.into(), kind, device: None, arp_timeout: None, place: None };
    let link = |name: &str, a, b, rate| Link {
        name: name.into(),
        ends: [a, b],
        kind: Default::default(),
        directions: [direction(rate), direction(rate)],
    };
    let vpn = |name: &str, weight| Vpn {
        name: name.into(),
        settings: Settings { weight, ..Settings::default() },
        ingress: 1,
        egress: 2,
        encapsulation: Default::default(),
        path: vec![Hop { link: 1, direction: 0 }],
        reverse: vec![Hop { link: 1, direction: 1 }],
        back: None,
    };
    let fast = 1_000_000_000;
    Plan {
        title: "fixture".into(),
        duration: Duration::from_secs(10),
        nodes: vec![
            node("h", NodeKind::Host),
            node("pe1", NodeKind::Pe),
            node("pe2", NodeKind::Pe),
            node("r", NodeKind::Host),
        ],
        links: vec![link("access", 0, 1, fast), link("core", 1, 2, 10_000_000), link("egress", 2, 3, fast)],
        vpns: vec![vpn("a", 1.0), vpn("b", 2.0)],
        flows: vec![group("bulka", Some(0), 2, 1), group("bulkb", Some(1), 2, 2), group("noise", None, 1, 0)],
        tests: Vec::new(),
        tunnels: Vec::new(),
        routing: None,
        measure: Measure {
            interval: Duration::from_secs(1),
            flow_detail: false,
            tcp_events: false,
            delay: false,
        },
    }
}

/// Variants `with` and `without`, each under two values of `x`, two seeds.
pub fn scenario() -> Scenario {
    let cell = |variant: &str, x: &str| Cell {
        variant: variant.into(),
        settings: vec![("flow.bulka.x".into(), x.into())],
        plan: plan(),
    };
    let select = |statistic| Selection {
        metric: "fairness.inter_vpn".into(),
        subject: String::new(),
        over: (at(2), at(10)),
        statistic,
        cells: Vec::new(),
    };
    let plot = |name: &str, metric: &str, against| Plot {
        name: name.into(),
        title: format!("Figure {name}"),
        caption: "What the fixture makes up.".into(),
        claim: String::new(),
        metric: metric.into(),
        subject: String::new(),
        against,
        reference_lines: Vec::new(),
        cells: Vec::new(),
        range: (None, None),
    };
    let over = (at(2), at(10));
    let swept = |rows: Option<&str>| Against::Swept {
        path: "flow.bulka.x".into(),
        rows: rows.map(str::to_owned),
        over,
    };
    Scenario {
        title: "Fixture".into(),
        description: "Made up.".into(),
        seed: 7,
        repeat: 2,
        cells: vec![cell("with", "0.1"), cell("with", "0.5"), cell("without", "0.1"), cell("without", "0.5")],
        expectations: vec![Expectation {
            name: "fair".into(),
            select: select(Statistic::Mean),
            bound: Bound::AtLeast(0.1),
            claim: "It is fair.".into(),
        }],
        plots: vec![
            plot("time", "vpn.throughput", Against::Time),
            plot("swept", "vpn.throughput", swept(None)),
            plot("map", "fairness.inter_vpn", swept(Some("variant"))),
            plot("bars", "fairness.intra_vpn.per_vpn.whole_run", Against::Subject { over }),
        ],
        text: "# the scenario".into(),
        warnings: vec!["made up".into()],
        files: Vec::new(),
    }
}

/// An outcome with throughputs drawn from the seed.
pub fn outcome(plan: &Plan, seed: u64) -> Outcome {
    let bins = (plan.duration.0 / plan.measure.interval.0) as usize;
    let mut series = Vec::new();
    let mut stream = Stream::new(seed, "fixture");
    let mut push = |metric, subject: String, values| series.push(Series { metric, subject, values });
    let mut vpns = vec![vec![0.0; bins]; plan.vpns.len()];
    let mut total = vec![0.0; bins];
    let mut background = vec![0.0; bins];
    for (index, group) in plan.flows.iter().enumerate() {
        for k in 0..group.count {
            let first = (group.start.0 / plan.measure.interval.0) as usize;
            let value = |bin: usize| if bin < first { 0.0 } else { (stream.uniform() * 1e6).round() };
            let values: Vec<f64> = (0..bins).map(value).collect();
            for (bin, value) in values.iter().enumerate() {
                total[bin] += value;
                match group.vpn {
                    Some(vpn) => vpns[vpn][bin] += value,
                    None => background[bin] += value,
                }
            }
            push(Metric::FlowThroughput, plan.flow_name(index, k), values);
        }
    }
    for (vpn, values) in plan.vpns.iter().zip(vpns) {
        push(Metric::VpnThroughput, vpn.name.clone(), values);
    }
    push(Metric::LinkThroughput, "core.forward".into(), total);
    push(Metric::LinkBackground, "core.forward".into(), background);
    let mut loss = vec![f64::NAN; bins];
    loss[bins - 1] = 0.25;
    push(Metric::VpnLoss, "a".into(), loss);
    series.sort_by_key(|s| s.metric);
    let totals = Totals {
        events: seed,
        sent: 100,
        delivered_data: 60,
        delivered: 90,
        lost: 8,
        in_flight: 2,
        packet_hops: 300,
    };
    let warnings = if seed == 7 { vec!["seven".into()] } else { Vec::new() };
    Outcome { interval: plan.measure.interval, bins, series, totals, warnings, ..Outcome::default() }
}

/// Runs the fixture.
pub fn runner(plan: &Plan, seed: u64, _: &dyn Attendant) -> Result<Outcome, Stopped> {
    Ok(outcome(plan, seed))
}

/// Options for a folder.
pub fn options(out: &Path, jobs: usize) -> Options {
    Options { out: out.to_owned(), jobs, retries: 0, stage: "sim".into(), tool: "netstage test".into() }
}
