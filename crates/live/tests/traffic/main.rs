//! The traffic engine over loopback. Counts decide, never a time.

mod dialogue;
mod namespaces;
mod one_ended;
mod path;
mod quic;
mod stamp;
#[path = "../support/mod.rs"]
mod support;
mod tcp;
mod udp;

use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_live::clock::{Epoch, monotonic_ns};
use netstage_live::results::{Counts, FlowResult, Report};
use netstage_live::task::{Assignment, FlowTask, Side, Transport};
use netstage_live::traffic::{Engine, PrepareError};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A packet every millisecond.
const CBR: Pattern = Pattern::Cbr { rate: BitRate(800_000), packet: 100 };

fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A port nobody uses, below those the system hands out, and no other test gets.
fn free_port(ip: &str) -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let base = 10_000 + std::process::id() * 97 % 15_000;
    loop {
        let port = (base + NEXT.fetch_add(1, Ordering::Relaxed)) as u16;
        let address = SocketAddr::new(ip.parse().unwrap(), port);
        if UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// The sending side of a flow of half a second.
fn flow(id: u32, transport: Transport, traffic: Pattern, destination: SocketAddr) -> FlowTask {
    FlowTask {
        name: format!("flow[{id}]"),
        id,
        side: Side::Send,
        transport,
        source: SocketAddr::new(destination.ip(), 0),
        destination,
        traffic: traffic.into(),
        start: Duration::ZERO,
        stop: millis(500),
        detail: false,
        settled: Duration::ZERO,
        traffic_class: 0,
    }
}

fn receiving(task: &FlowTask) -> FlowTask {
    FlowTask { side: Side::Receive, ..task.clone() }
}

fn prepare(flows: Vec<FlowTask>) -> Result<Engine, PrepareError> {
    Engine::prepare(&Assignment {
        node: "host".into(),
        seed: 1,
        duration: millis(500),
        interval: millis(100),
        flows,
        edge: None,
        watch: Vec::new(),
        services: Vec::new(),
    })
}

/// Both sides of each flow in one engine.
fn run_both(tasks: &[FlowTask]) -> (Vec<FlowResult>, Vec<FlowResult>, Report) {
    let flows = tasks.iter().flat_map(|task| [task.clone(), receiving(task)]).collect();
    let report = run(prepare(flows).unwrap_or_else(|error| panic!("{error}")));
    let (sent, received) = report.flows.iter().cloned().partition(|flow| flow.sends);
    (sent, received, report)
}

fn run(engine: Engine) -> Report {
    let epoch = Epoch(monotonic_ns()).later(millis(10));
    let report = engine.run(epoch, &AtomicBool::new(false), &mut |_| {});
    assert_eq!(report.void, Vec::<String>::new());
    report
}

fn total(flow: &FlowResult, field: impl Fn(&Counts) -> u64) -> u64 {
    flow.bins.iter().map(field).sum()
}
