//! Tests of `netstage agent` processes: real packets between two agents, and errors.

use crate::support::{TemporaryFolder, TestProcess, within};
use netstage_agent::controller::{CollectedReports, ControlledAgents, ControllerError};
use netstage_agent_api::protocol::OrderRefusalKind;
use netstage_agent_api::task::{Assignment, FlowSide, FlowTask};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_harness::needs;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PACKETS_PER_SECOND: u64 = 1_000;
const PACKET_BYTES: u32 = 125;

/// Folder of the agents' sockets and spools.
struct AgentFolder(TemporaryFolder);

impl AgentFolder {
    fn new(name: &str) -> AgentFolder {
        AgentFolder(TemporaryFolder::new(name))
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }

    fn agent(&self, name: &str) -> TestProcess {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netstage"));
        command.arg("agent").arg("--socket").arg(self.socket(name)).arg("--spool").arg(&*self.0);
        TestProcess::new(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn connect(&self, names: &[&str]) -> ControlledAgents {
        let agents = names.iter().map(|name| (name.to_string(), self.socket(name)));
        ControlledAgents::connect(agents.collect()).unwrap()
    }
}

/// Returns an unused address.
fn free_address() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn assignment(node: &str, side: FlowSide, to: SocketAddr) -> (String, Assignment) {
    let duration = Duration::from_secs(1);
    let rate = BitRate(PACKETS_PER_SECOND * u64::from(PACKET_BYTES) * 8);
    let flow = FlowTask::udp(
        "voice",
        side,
        ["127.0.0.1:0".parse().unwrap(), to],
        Pattern::Cbr { rate, packet: PACKET_BYTES },
        duration,
    );
    let interval = Duration::from_millis(100);
    (node.into(), Assignment::of_flows(node, duration, interval, vec![flow]))
}

fn run(agents: &mut ControlledAgents, to: SocketAddr) -> Result<CollectedReports, ControllerError> {
    agents.prepare(vec![assignment("a", FlowSide::Send, to), assignment("b", FlowSide::Receive, to)])?;
    agents.start(agents.earliest_start())?;
    Ok(agents.collect())
}

fn two_agents_send_real_packets() {
    needs::time(2);
    let place = AgentFolder::new("udp");
    let processes = ["a", "b"].map(|name| place.agent(name));
    let mut agents = place.connect(&["a", "b"]);
    let collected = run(&mut agents, free_address()).unwrap();
    let [sender, receiver] = &collected.reports[..] else { panic!("{collected:?}") };
    let sent: u64 = sender.flows[0].bins.iter().map(|bin| bin.sent).sum();
    let received = receiver.flows[0].received();
    let lost: u64 = receiver.flows[0].bins.iter().map(|bin| bin.lost).sum();
    let schedule = sender.flows[0].schedule.unwrap();
    // A busy sender skips late packets.
    assert_eq!((schedule.requested, sent + schedule.skipped), (PACKETS_PER_SECOND, PACKETS_PER_SECOND));
    assert!(received > 0 && received + lost <= sent, "received {received}, lost {lost} of {sent}");
    assert!(collected.lost.is_empty() && collected.warnings.is_empty(), "{collected:?}");
    agents.finish();
    for process in processes {
        let output = process.output();
        assert_eq!(output.status.code(), Some(0));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.lines().count() == 1 && stderr.contains("listening on"), "{stderr}");
    }
    assert_eq!(fs::read_dir(&place.0).unwrap().count(), 0, "no sockets or reports remain");
}

fn a_port_in_use_is_named_and_the_agents_remain_usable() {
    needs::time(2);
    let place = AgentFolder::new("port");
    let _processes = ["a", "b"].map(|name| place.agent(name));
    let mut agents = place.connect(&["a", "b"]);
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = run(&mut agents, address).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("agent b refused: flow voice") && message.contains(&address.to_string()),
        "{message}"
    );
    assert!(
        matches!(error, ControllerError::Refused(refusals) if refusals[0].1.kind == OrderRefusalKind::InUse)
    );
    drop(taken);
    // A child process of another test may hold the socket until it executes its program.
    assert!(within(std::time::Duration::from_secs(60), || UdpSocket::bind(address).is_ok()));
    assert_eq!(run(&mut agents, address).unwrap().reports.len(), 2);
    agents.finish();
}

fn a_socket_in_use_and_an_invalid_spool_are_reported() {
    let place = AgentFolder::new("bind");
    let _first = place.agent("a");
    let agents = place.connect(&["a"]);
    let second = place.agent("a").output();
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8(second.stderr).unwrap();
    assert!(stderr.contains("a.sock: another process listens"), "{stderr}");
    agents.finish();

    let file = place.0.join("file");
    fs::write(&file, "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_netstage"))
        .args(["agent", "--socket"])
        .arg(place.socket("b"))
        .arg("--spool")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot open spool"));
}

fn a_terminated_agent_still_delivers_its_report() {
    let place = AgentFolder::new("terminated");
    let mut process = place.agent("a");
    let mut agents = place.connect(&["a"]);
    let (node, mut assignment) = assignment("a", FlowSide::Send, free_address());
    assignment.duration = Duration::from_secs(600);
    assignment.flows[0].stop = assignment.duration;
    agents.prepare(vec![(node, assignment)]).unwrap();
    agents.start(agents.earliest_start()).unwrap();
    let mut is_signaled = false;
    agents.watch(|overview| {
        if overview.sent.0 > 0 && !is_signaled {
            is_signaled = true;
            process.signal("-TERM");
        }
        ControlFlow::Continue(())
    });
    let collected = agents.collect();
    let [report] = &collected.reports[..] else { panic!("{collected:?}") };
    assert!(report.flows[0].bins.iter().any(|bin| bin.sent > 0));
    assert!(report.void[0].starts_with("agent a was interrupted during the run at "), "{:?}", report.void);
    assert_eq!(report.void.len(), 1);
    agents.finish();
    assert_eq!(process.output().status.code(), Some(0));
}

netstage_harness::tests![
    two_agents_send_real_packets,
    a_port_in_use_is_named_and_the_agents_remain_usable,
    a_socket_in_use_and_an_invalid_spool_are_reported,
    a_terminated_agent_still_delivers_its_report,
];
