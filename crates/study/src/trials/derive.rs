//! Plan of a trial: the same network, the flow of the test, and its load.

use netstage_core::measure::trial::Trial;
use netstage_core::quantity::BitRate;
use netstage_core::tcp;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_scenario::plan::{FlowGroup, FlowTransport, MeasureConfig, Plan, TestPlan};

/// Returns the plan of a trial of packets. Its probe flow has the name of the test's probe.
pub fn packets(plan: &Plan, test: &TestPlan, trial: &Trial) -> Plan {
    together(plan, test, &[(test.probe.name.clone(), *trial)])
}

/// Returns the plan of simultaneous trials, each with a probe flow of this name.
pub fn together(plan: &Plan, test: &TestPlan, trials: &[(String, Trial)]) -> Plan {
    let probes: Vec<FlowGroup> = trials.iter().map(|(name, trial)| probe(test, name, trial)).collect();
    let drain = trials.iter().map(|(_, trial)| trial.pauses.drain).max().unwrap_or(Duration::ZERO);
    let end = probes.iter().map(|probe| probe.stop).max().unwrap_or(Instant::ZERO) + drain;
    // Only totals are needed, so there is one bin for the whole run.
    let measure =
        MeasureConfig { interval: Duration(end.0), flow_detail: true, tcp_events: false, delay: true };
    alone(plan, test, probes, end, measure)
}

fn probe(test: &TestPlan, name: &str, trial: &Trial) -> FlowGroup {
    let (payload, count) = (trial.frame.payload, trial.packets().max(1));
    // The flow stops half a gap before the first excess packet.
    let (pattern, sending) = match test.probe.transport {
        // A trace specifies the gap to the nanosecond, which a rate in whole bits per second cannot. It starts
        // with a gap.
        FlowTransport::Stamp { interval } => {
            let pattern = Pattern::Trace { packets: [(interval, payload)].into(), repeat: true };
            (pattern, interval * count + Duration(interval.0 / 2))
        }
        _ => {
            let rate = (trial.load.0 * 8.0 * f64::from(payload)).round().max(1.0);
            let gap = f64::from(payload) * 8.0 / rate;
            let pattern = Pattern::Cbr { rate: BitRate(rate as u64), packet: payload };
            (pattern, Duration::from_secs_f64((count as f64 - 0.5) * gap))
        }
    };
    let start = Instant::ZERO + test.warm_up;
    FlowGroup {
        name: name.to_owned(),
        traffic: pattern.into(),
        transport: match &test.probe.transport {
            // Tests of TCP search for the line rate with UDP.
            FlowTransport::Tcp(_) => FlowTransport::Udp,
            other => other.clone(),
        },
        start,
        stop: start + sending,
        ..test.probe.clone()
    }
}

/// Returns the plan that measures the round trip of the idle path, with single segments that are acknowledged at once.
pub fn trickle(plan: &Plan, test: &TestPlan, config: &tcp::TcpConfig) -> Plan {
    const SEGMENTS_PER_SECOND: u64 = 10;
    let segment = config.max_segment_size;
    let rate = BitRate(u64::from(segment) * 8 * SEGMENTS_PER_SECOND);
    let start = Instant::ZERO + test.warm_up;
    let probe = FlowGroup {
        traffic: Pattern::Cbr { rate, packet: segment }.into(),
        transport: FlowTransport::Tcp(tcp::TcpConfig { ack_every: 1, ..config.clone() }),
        start,
        stop: start + Duration::from_secs(2),
        ..test.probe.clone()
    };
    let end = probe.stop + test.drain;
    let measure = MeasureConfig {
        interval: Duration::from_millis(100),
        flow_detail: true,
        tcp_events: false,
        delay: false,
    };
    alone(plan, test, vec![probe], end, measure)
}

/// Returns the plan of a TCP transfer of `size` bytes; `None`: as many as the time allows.
pub fn transfer(
    plan: &Plan,
    test: &TestPlan,
    config: &tcp::TcpConfig,
    size: Option<u64>,
    trial: Duration,
) -> Plan {
    let start = Instant::ZERO + test.warm_up;
    let end = start + trial;
    let traffic = Pattern::Bulk { size }.into();
    let transport = FlowTransport::Tcp(config.clone());
    let probe = FlowGroup { traffic, transport, start, stop: end, ..test.probe.clone() };
    // Short bins, to determine the arrival of the last byte.
    let interval = Duration::from_millis(10).min(trial);
    alone(
        plan,
        test,
        vec![probe],
        end,
        MeasureConfig { interval, flow_detail: true, tcp_events: false, delay: false },
    )
}

/// Returns the plan with these probes and the load, without tests.
fn alone(plan: &Plan, test: &TestPlan, probes: Vec<FlowGroup>, end: Instant, measure: MeasureConfig) -> Plan {
    let run_end = Instant::ZERO + plan.duration;
    let load = test.load.iter().map(|&index| {
        let flow = plan.flows[index].clone();
        // A flow that lasts until the end of the run lasts until the end of the trial.
        let stop = if flow.stop >= run_end { end } else { flow.stop };
        FlowGroup { stop, background: true, ..flow }
    });
    let mut flows: Vec<FlowGroup> = load.collect();
    flows.extend(probes);
    Plan {
        title: format!("{}: {}", plan.title, test.name),
        duration: end.since(Instant::ZERO),
        lease: plan.lease,
        nodes: plan.nodes.clone(),
        links: plan.links.clone(),
        vpns: plan.vpns.clone(),
        flows,
        tests: Vec::new(),
        tunnels: plan.tunnels.clone(),
        routing: plan.routing.clone(),
        route_server: None,
        measure,
    }
}
