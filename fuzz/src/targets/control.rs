//! Messages between agents and controllers from arbitrary bytes: every message is read or rejected, and for any
//! order of requests, an agent stays with its controller.

use netstage_agent::Limits;
use netstage_agent::measure::Timeline;
use netstage_agent_api::protocol::generated::{
    CollectRequest, FinishedBin, Heartbeat, HelloReply, HelloRequest, PrepareRequest, Progress,
    ReadClockReply, ReportChunk, StartRequest, report_chunk::Content,
};
use netstage_agent_api::protocol::{OrderRefusal, common_version, read_assignment, read_report};
use netstage_agent_api::task;
use netstage_core::fleet::{AgentSession, RunPhase};
use netstage_core::time::{Duration, Instant};
use netstage_host::shared_key::ConnectionAddresses;
use prost::Message as _;

pub fn run(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind {
        b'h' => drop(HelloRequest::decode(bytes)),
        b'H' => {
            if let Ok(hello) = HelloReply::decode(bytes) {
                common_version(hello.oldest_version, hello.newest_version);
            }
        }
        b'c' => drop(ReadClockReply::decode(bytes)),
        b'b' => drop(Heartbeat::decode(bytes)),
        b'g' => {
            if let Ok(Progress { refusal, bins, .. }) = Progress::decode(bytes) {
                let _ = refusal.map(|refusal| OrderRefusal::from(refusal).to_string());
                timeline(bins);
            }
        }
        b'p' => {
            if let Ok(prepare) = PrepareRequest::decode(bytes) {
                let _ = read_assignment(prepare.task_version, &prepare.assignment);
            }
        }
        b's' => drop(StartRequest::decode(bytes)),
        b'C' => drop(CollectRequest::decode(bytes)),
        b'r' => {
            if let Ok(ReportChunk { content: Some(Content::Bytes(bytes)) }) = ReportChunk::decode(bytes) {
                let _ = read_report(task::VERSION, &bytes);
            }
        }
        b'{' => assignment(bytes),
        b'o' => requests(bytes),
        _ => {}
    }
}

/// Only bins within the run are kept, whatever the other host reports.
fn timeline(bins: Vec<FinishedBin>) {
    let (second, end) = (Duration::from_secs(1), Duration::from_secs(10));
    let mut timeline = Timeline::new(second, second, end, [1, 2], false);
    bins.into_iter().for_each(|bin| timeline.push(bin.into()));
    assert!(timeline.reported().count() <= 10);
    while timeline.pop(end + end).is_some() {}
}

/// A message that was read is written and read back unchanged.
fn assignment(bytes: &[u8]) {
    let Ok(read) = read_assignment(task::VERSION, bytes) else { return };
    let written = serde_json::to_vec(&read).expect("a message that was read can be written");
    assert_eq!(read_assignment(task::VERSION, &written), Ok(read.clone()));
    // After limits for foreign hosts were applied, flows are between the two hosts only.
    let peer = ConnectionAddresses {
        remote: "192.0.2.7:40000".parse().unwrap(),
        local: "192.0.2.1:5201".parse().unwrap(),
    };
    let mut allowed = read;
    if Limits::default().apply(&mut allowed, peer).is_ok() {
        for flow in &allowed.flows {
            let mut ends = [flow.source.ip(), flow.destination.ip()];
            ends.sort();
            assert_eq!(ends, [peer.local.ip(), peer.remote.ip()]);
        }
    }
}

/// Requests in any order, from two controllers; the first to attend owns the agent.
fn requests(bytes: &[u8]) {
    let mut session = AgentSession::default();
    let mut owner = None;
    for step in bytes.chunks_exact(2) {
        let (controller, run) = (u64::from(step[0] >> 4) % 3, u64::from(step[1]));
        let accepted = match step[0] % 8 {
            0 => {
                let accepted = session.attend(controller, Instant::ZERO).is_ok();
                if accepted {
                    let before = owner.replace(controller);
                    assert!(before.is_none_or(|before| before == controller), "only one controller attends");
                }
                accepted
            }
            1 => {
                let lease = (run % 2 == 0).then(|| Duration::from_secs(run));
                session.prepare(controller, run, lease).is_ok()
            }
            2 => session.start(controller, run, run, 100).is_ok(),
            3 => session.stop(controller, run).is_ok(),
            4 => session.collect(controller, run).is_ok(),
            5 => session.release(controller, run).is_ok(),
            6 => session.finish(controller).is_ok(),
            // Transitions made by the agent itself.
            _ => {
                match session.phase() {
                    RunPhase::Preparing => session.finish_preparing(session.run(), run % 2 == 0),
                    RunPhase::Running => session.finish_run(),
                    _ => drop(session.forget()),
                }
                false
            }
        };
        assert!(!accepted || owner == Some(controller), "only the owner's requests are accepted");
    }
}
