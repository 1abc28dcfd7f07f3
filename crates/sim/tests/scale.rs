//! 100,000 TCP flows over a 100 Gbit/s core for one simulated second: memory is asserted,
//! time is printed. Alone in its process, since it reads the process's peak memory.

mod support;

use netstage_core::quantity::Capacity;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::plan::Plan;
use support::*;

const FLOWS: usize = 100_000;

/// Nanoseconds per event, and events.
fn cost(plan: &Plan) -> (f64, u64) {
    let started = std::time::Instant::now();
    let events = netstage_sim::run(plan, 1, &|| false).unwrap().totals.events;
    (started.elapsed().as_nanos() as f64 / events as f64, events)
}

fn peak_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

/// Every flow starts within the first half second and has 1 MiB of window.
fn large() -> Plan {
    let rate = 100_000_000_000;
    let mut tcp = tcp_config();
    tcp.window = 1 << 20;
    let dumbbell = Dumbbell {
        weights: vec![1.0; 5],
        flows: FLOWS / 5,
        rate,
        access_rate: 20 * rate,
        buffer: 100_000,
        background: 0.0,
        tcp,
        seconds: 1,
        ..Dumbbell::default()
    };
    let mut plan = dumbbell.plan();
    for group in &mut plan.flows {
        group.start = Instant::ZERO;
        group.stagger = Duration::from_millis(500) / group.count as u64;
    }
    for link in &mut plan.links {
        if link.name != "bottleneck" {
            link.directions.iter_mut().for_each(|direction| direction.buffer = Capacity::Packets(100_000));
        }
    }
    plan
}

#[test]
#[ignore = "takes some seconds; part of make test-full"]
fn a_hundred_thousand_flows() {
    let (small, small_events) = cost(&Dumbbell::default().plan());
    let before = peak_bytes();
    let (per_event, events) = cost(&large());
    let per_flow = (peak_bytes() - before) / FLOWS as f64;
    println!("150 flows: {small:.0} ns per event, {small_events} events");
    println!("{FLOWS} flows: {per_event:.0} ns per event, {events} events, {:.2} times", per_event / small);
    println!("{per_flow:.0} bytes per flow, packets under way included");
    assert!(per_flow <= 2_000.0);
}
