//! From a trial to the plan that runs it: the same network, the test's own flow, and the flows
//! that run beside it.

use netstage_core::measure::trial::Trial;
use netstage_core::quantity::BitRate;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_scenario::plan::{FlowGroup, Measure, Plan, Test};

/// The plan of a trial of packets. Its only flow that is not load is named as the test's probe.
pub fn packets(plan: &Plan, test: &Test, trial: &Trial) -> Plan {
    let (payload, count) = (trial.frame.payload, trial.packets().max(1));
    let rate = (trial.load.0 * 8.0 * f64::from(payload)).round().max(1.0);
    // Half a gap before the packet that is not to be sent any more.
    let gap = f64::from(payload) * 8.0 / rate;
    let sending = Duration::from_secs_f64((count as f64 - 0.5) * gap);
    let start = Instant::ZERO + test.warm_up;
    let probe = FlowGroup {
        traffic: Pattern::Cbr { rate: BitRate(rate as u64), packet: payload }.into(),
        start,
        stop: start + sending,
        ..test.probe.clone()
    };
    let end = start + sending + trial.pauses.drain;
    // All that is asked of it are totals: a bin as long as the run.
    let measure = Measure { interval: Duration(end.0), flow_detail: true, delay: true };
    alone(plan, test, probe, end, measure)
}

/// The network with the probe and the load, and no tests.
fn alone(plan: &Plan, test: &Test, probe: FlowGroup, end: Instant, measure: Measure) -> Plan {
    let run_end = Instant::ZERO + plan.duration;
    let load = test.load.iter().map(|&index| {
        let flow = plan.flows[index].clone();
        // What would last as long as the run of the flows lasts as long as the trial.
        let stop = if flow.stop >= run_end { end } else { flow.stop };
        FlowGroup { stop, background: true, ..flow }
    });
    let mut flows: Vec<FlowGroup> = load.collect();
    flows.push(probe);
    Plan {
        title: format!("{}: {}", plan.title, test.name),
        duration: end.since(Instant::ZERO),
        nodes: plan.nodes.clone(),
        links: plan.links.clone(),
        vpns: plan.vpns.clone(),
        flows,
        tests: Vec::new(),
        measure,
    }
}
