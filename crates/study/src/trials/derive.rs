//! From a trial to the plan that runs it: the same network, the test's own flow, and the flows
//! that run beside it.

use netstage_core::measure::trial::Trial;
use netstage_core::quantity::BitRate;
use netstage_core::tcp;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_scenario::plan::{FlowGroup, Measure, Plan, Test, Transport};

/// The plan of a trial of packets. Its only flow that is not load is named as the test's probe.
pub fn packets(plan: &Plan, test: &Test, trial: &Trial) -> Plan {
    together(plan, test, &[(test.probe.name.clone(), *trial)])
}

/// The plan of trials at the same time, each with a flow of its own of the name given.
pub fn together(plan: &Plan, test: &Test, trials: &[(String, Trial)]) -> Plan {
    let probes: Vec<FlowGroup> = trials.iter().map(|(name, trial)| probe(test, name, trial)).collect();
    let drain = trials.iter().map(|(_, trial)| trial.pauses.drain).max().unwrap_or(Duration::ZERO);
    let end = probes.iter().map(|probe| probe.stop).max().unwrap_or(Instant::ZERO) + drain;
    // All that is asked of it are totals: a bin as long as the run.
    let measure = Measure { interval: Duration(end.0), flow_detail: true, tcp_events: false, delay: true };
    alone(plan, test, probes, end, measure)
}

fn probe(test: &Test, name: &str, trial: &Trial) -> FlowGroup {
    let (payload, count) = (trial.frame.payload, trial.packets().max(1));
    // Half a gap before the packet that is not to be sent any more.
    let (pattern, sending) = match test.probe.transport {
        // Its gap is what was asked for, to the nanosecond; no rate in whole bits per second need be
        // as exact. A trace begins with a gap.
        Transport::Stamp { interval } => {
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
            // A test of TCP searches for the rate of the line by UDP.
            Transport::Tcp(_) => Transport::Udp,
            other => other.clone(),
        },
        start,
        stop: start + sending,
        ..test.probe.clone()
    }
}

/// Some segments one by one, each acknowledged at once: they tell the round trip of an idle path.
pub fn trickle(plan: &Plan, test: &Test, config: &tcp::Config) -> Plan {
    const SEGMENTS_PER_SECOND: u64 = 10;
    let segment = config.max_segment_size;
    let rate = BitRate(u64::from(segment) * 8 * SEGMENTS_PER_SECOND);
    let start = Instant::ZERO + test.warm_up;
    let probe = FlowGroup {
        traffic: Pattern::Cbr { rate, packet: segment }.into(),
        transport: Transport::Tcp(tcp::Config { ack_every: 1, ..config.clone() }),
        start,
        stop: start + Duration::from_secs(2),
        ..test.probe.clone()
    };
    let end = probe.stop + test.drain;
    let measure =
        Measure { interval: Duration::from_millis(100), flow_detail: true, tcp_events: false, delay: false };
    alone(plan, test, vec![probe], end, measure)
}

/// A TCP transfer of so many bytes, or as many as the time allows.
pub fn transfer(plan: &Plan, test: &Test, config: &tcp::Config, size: Option<u64>, trial: Duration) -> Plan {
    let start = Instant::ZERO + test.warm_up;
    let end = start + trial;
    let traffic = Pattern::Bulk { size }.into();
    let transport = Transport::Tcp(config.clone());
    let probe = FlowGroup { traffic, transport, start, stop: end, ..test.probe.clone() };
    // Fine enough to see when the last byte arrives.
    let interval = Duration::from_millis(10).min(trial);
    alone(
        plan,
        test,
        vec![probe],
        end,
        Measure { interval, flow_detail: true, tcp_events: false, delay: false },
    )
}

/// The network with probes and the load, and no tests.
fn alone(plan: &Plan, test: &Test, probes: Vec<FlowGroup>, end: Instant, measure: Measure) -> Plan {
    let run_end = Instant::ZERO + plan.duration;
    let load = test.load.iter().map(|&index| {
        let flow = plan.flows[index].clone();
        // What would last as long as the run of the flows lasts as long as the trial.
        let stop = if flow.stop >= run_end { end } else { flow.stop };
        FlowGroup { stop, background: true, ..flow }
    });
    let mut flows: Vec<FlowGroup> = load.collect();
    flows.extend(probes);
    Plan {
        title: format!("{}: {}", plan.title, test.name),
        duration: end.since(Instant::ZERO),
        nodes: plan.nodes.clone(),
        links: plan.links.clone(),
        vpns: plan.vpns.clone(),
        flows,
        tests: Vec::new(),
        tunnels: plan.tunnels.clone(),
        routing: plan.routing.clone(),
        measure,
    }
}
