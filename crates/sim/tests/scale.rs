//! 100,000 TCP flows over a 100 Gbit/s core for one simulated second. Memory is asserted, time is printed.
//! Runs alone in its process because it reads the peak memory of the process.

mod support;

use netstage_core::quantity::Capacity;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::plan::Plan;
use support::*;

const FLOWS: usize = 100_000;

/// Returns nanoseconds per event and the number of events.
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

/// Returns a plan in which every flow starts within the first half second and has a window of 1 MiB.
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
#[ignore = "takes several seconds; part of make test-full"]
fn one_hundred_thousand_flows_fit_in_2_kb_each() {
    let (small, small_events) = cost(&Dumbbell::default().plan());
    let before = peak_bytes();
    let (per_event, events) = cost(&large());
    let per_flow = (peak_bytes() - before) / FLOWS as f64;
    println!("150 flows: {small:.0} ns per event, {small_events} events");
    println!(
        "{FLOWS} flows: {per_event:.0} ns per event, {events} events, {:.2} times the cost of 150 flows",
        per_event / small
    );
    println!("{per_flow:.0} bytes per flow, including packets in flight");
    assert!(per_flow <= 2_000.0);
}
