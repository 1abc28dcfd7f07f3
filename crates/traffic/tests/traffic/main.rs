//! Traffic engine over loopback. Assertions check counts, never times.

mod dialogue;
mod namespaces;
mod one_ended;
#[path = "../../../../tests/support/pair.rs"]
mod pair;
mod path;
mod quic;
mod stamp;
mod tcp;
mod udp;

use netstage_agent_api::results::{AgentReport, BinCounts, FlowResult};
use netstage_agent_api::task::{Assignment, FlowSide, FlowTask, TaskTransport, UdpOptions};
use netstage_core::measure::VoidReason;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_traffic::{PrepareError, TrafficEngine};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One packet per millisecond.
const CBR: Pattern = Pattern::Cbr { rate: BitRate(800_000), packet: 100 };

fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Returns an unused port below the ephemeral range, different for each call.
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

/// Returns the sending side of a flow of half a second.
fn flow(id: u32, transport: TaskTransport, traffic: Pattern, destination: SocketAddr) -> FlowTask {
    FlowTask {
        id,
        transport,
        ..FlowTask::udp(
            &format!("flow[{id}]"),
            FlowSide::Send,
            [SocketAddr::new(destination.ip(), 0), destination],
            traffic,
            millis(500),
        )
    }
}

fn receiving(task: &FlowTask) -> FlowTask {
    FlowTask { side: FlowSide::Receive, ..task.clone() }
}

fn prepare(flows: Vec<FlowTask>) -> Result<TrafficEngine, PrepareError> {
    TrafficEngine::prepare(&Assignment::of_flows("host", millis(500), millis(100), flows))
}

/// Runs both sides of each flow in one engine. Returns the results of senders and receivers, and the report.
fn run_both(tasks: &[FlowTask]) -> (Vec<FlowResult>, Vec<FlowResult>, AgentReport) {
    let flows = tasks.iter().flat_map(|task| [task.clone(), receiving(task)]).collect();
    let report = run(prepare(flows).unwrap_or_else(|error| panic!("{error}")));
    let (sent, received) = report.flows.iter().cloned().partition(|flow| flow.sends);
    (sent, received, report)
}

fn run(engine: TrafficEngine) -> AgentReport {
    let epoch = Epoch(monotonic_ns()).delayed_by(millis(10));
    let report = engine.run(epoch, &AtomicBool::new(false), &mut |_| {});
    // A run is void by its own threads only if the machine stopped them.
    let is_stall =
        |reason: &VoidReason| reason.contains("did not run for") || reason.contains("the sender was late");
    if let Some(stall) = report.void.iter().find(|reason| is_stall(reason)) {
        netstage_harness::skip_busy(stall.to_string());
    }
    assert_eq!(report.void, []);
    let skipped: u64 =
        report.flows.iter().filter_map(|flow| flow.schedule).map(|schedule| schedule.skipped).sum();
    if skipped > 0 {
        netstage_harness::skip_busy(format!("the senders skipped {skipped} late packets"));
    }
    report
}

fn without_a_start_no_packet_is_sent_and_all_threads_end() {
    let udp = flow(1, TaskTransport::Udp(UdpOptions::default()), CBR, free_port("127.0.0.1"));
    let quic = flow(2, TaskTransport::Quic, Pattern::Bulk { size: None }, free_port("127.0.0.1"));
    let flows = [udp, quic].iter().flat_map(|task| [task.clone(), receiving(task)]).collect();
    let engine = prepare(flows).unwrap_or_else(|error| panic!("{error}"));
    let mut progress = |bin| panic!("unexpected progress: {bin:?}");
    // Returns after all threads have ended.
    assert_eq!(engine.run_when(&mut || None, &AtomicBool::new(false), &mut progress), None);
}

/// Returns the payload bytes received, including those that arrived after the end of the run.
fn received_bytes(flow: &FlowResult) -> u64 {
    total(flow, |counts| counts.received_bytes) + flow.drained.bytes
}

fn total(flow: &FlowResult, field: impl Fn(&BinCounts) -> u64) -> u64 {
    flow.bins.iter().map(field).sum()
}

netstage_harness::tests![without_a_start_no_packet_is_sent_and_all_threads_end];
netstage_harness::main![self, dialogue, namespaces, one_ended, path, quic, stamp, tcp, udp];
