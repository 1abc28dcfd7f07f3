//! Agent protocol: Rust generated from `proto/agent.proto`, the constants both sides share, and the
//! validation of
//! received messages. No transport, no state.
//!
//! Decoding any bytes yields a message or an error, never a panic.

mod bins;
#[rustfmt::skip]
#[allow(missing_docs, clippy::all)]
pub mod generated;
mod refusal;

pub use netstage_core::fleet::{OrderRefusal, OrderRefusalKind};

use crate::results::AgentReport;
use crate::task::{self, Assignment};
use netstage_core::fleet::RunPhase;
use netstage_core::time::Duration;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Protocol versions this program supports.
pub const VERSIONS: RangeInclusive<u32> = 1..=1;
/// Maximum size of a message to an agent, bytes. An assignment with long traces fits.
pub const MAX_REQUEST_BYTES: usize = 64 << 20;
/// Maximum size of a report that a controller accepts, bytes.
pub const MAX_REPORT_BYTES: u64 = 1 << 30;
/// Bytes of a report in one message.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Interval between a controller's heartbeats, each of which the agent answers. A heartbeat costs an agent
/// 0.1 ms of CPU time, which matters with a thousand agents on one machine.
pub const HEARTBEAT: std::time::Duration = std::time::Duration::from_millis(500);
/// Interval at which an agent checks for heartbeats, counted from the last one: longer than that of heartbeats, so that an
/// agent wakes up for missing ones only.
pub const HEARTBEAT_CHECK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(650);
/// Consecutive checks without a heartbeat that an agent accepts. With the next one, it considers its controller gone.
pub const MAX_MISSED_CHECKS: u32 = 2;
/// Time without heartbeats after which an agent considers its controller gone: within 2 s.
pub const MAX_SILENCE: std::time::Duration = HEARTBEAT_CHECK_INTERVAL.saturating_mul(MAX_MISSED_CHECKS + 1);
/// Consecutive unanswered heartbeats after which a controller considers an agent lost (6 s).
pub const MAX_UNANSWERED_HEARTBEATS: u32 = 12;

/// Maximum number of bins in a run. A receiver keeps all of them in memory.
const MAX_BINS: u64 = 10_000_000;
/// Maximum length of a run: one year.
const MAX_DURATION: Duration = Duration::from_secs(366 * 86_400);

impl From<RunPhase> for generated::Phase {
    fn from(phase: RunPhase) -> generated::Phase {
        match phase {
            RunPhase::Idle => generated::Phase::Idle,
            RunPhase::Preparing => generated::Phase::Preparing,
            RunPhase::Ready => generated::Phase::Ready,
            RunPhase::Running => generated::Phase::Running,
            RunPhase::Done => generated::Phase::Done,
        }
    }
}

impl From<generated::Phase> for RunPhase {
    fn from(phase: generated::Phase) -> RunPhase {
        match phase {
            generated::Phase::Preparing => RunPhase::Preparing,
            generated::Phase::Ready => RunPhase::Ready,
            generated::Phase::Running => RunPhase::Running,
            generated::Phase::Done => RunPhase::Done,
            // The controller does not wait for a phase it does not know.
            generated::Phase::Idle | generated::Phase::Unknown => RunPhase::Idle,
        }
    }
}

/// Returns the newest version both sides support, given the oldest and newest version of the other side.
pub fn common_version(oldest: u32, newest: u32) -> Option<u32> {
    let version = newest.min(*VERSIONS.end());
    (version >= oldest.max(*VERSIONS.start())).then_some(version)
}

/// Decodes an assignment and rejects values that could exhaust the agent.
pub fn read_assignment(version: u32, bytes: &[u8]) -> Result<Assignment, OrderRefusal> {
    if version != task::VERSION {
        return Err(OrderRefusal::new(
            OrderRefusalKind::Version,
            format!("assignment has version {version}, this agent supports {}", task::VERSION),
        )
        .remedy("run the same netstage version on agents and controller"));
    }
    let unreadable = |error: &dyn Display| {
        OrderRefusal::new(OrderRefusalKind::Assignment, format!("invalid assignment: {error}"))
    };
    let assignment: Assignment = serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
    if assignment.interval.0 == 0 || assignment.duration.0 / assignment.interval.0 > MAX_BINS {
        return Err(unreadable(&format!("more than {MAX_BINS} intervals")));
    }
    if assignment.duration.max(assignment.lease.unwrap_or_default()) > MAX_DURATION {
        return Err(unreadable(&"the run or its lease is longer than one year"));
    }
    for flow in &assignment.flows {
        if flow.start > MAX_DURATION || flow.stop > MAX_DURATION {
            return Err(unreadable(&"start or stop is more than one year after the start of the run")
                .flow(&flow.name));
        }
    }
    Ok(assignment)
}

/// Maximum length of displayed text from the other side, characters.
const MAX_DISPLAYED: usize = 2000;

/// Returns text from the other side in displayable form: truncated, and without control characters, which a
/// terminal would interpret.
pub fn displayable(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control() || *c == '\n');
    shown.take(MAX_DISPLAYED).collect()
}

/// Decodes a report.
pub fn read_report(version: u32, bytes: &[u8]) -> Result<AgentReport, String> {
    if version != task::VERSION {
        return Err(format!("report has version {version}, this program supports {}", task::VERSION));
    }
    serde_json::from_slice(bytes).map_err(|error| format!("invalid report: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> Assignment {
        Assignment::of_flows("a", Duration::from_secs(1), Duration::from_millis(100), Vec::new())
    }

    fn read(assignment: &Assignment) -> Result<Assignment, OrderRefusal> {
        read_assignment(task::VERSION, &serde_json::to_vec(assignment).unwrap())
    }

    #[test]
    fn common_version_is_the_newest_in_both_ranges() {
        assert_eq!(common_version(1, 1), Some(1));
        assert_eq!(common_version(0, 7), Some(1));
        assert_eq!(common_version(2, 7), None);
        assert_eq!(common_version(0, 0), None);
        assert_eq!(common_version(u32::MAX, 0), None);
    }

    #[test]
    fn displayed_text_has_no_control_characters() {
        assert_eq!(displayable("port 7\u{1b}[2J\r is\nin use"), "port 7[2J is\nin use");
        assert_eq!(displayable(&"x".repeat(1 << 20)).len(), MAX_DISPLAYED);
    }

    #[test]
    fn an_assignment_survives_a_json_round_trip() {
        assert_eq!(read(&assignment()), Ok(assignment()));
    }

    #[test]
    fn an_assignment_that_would_exhaust_an_agent_is_refused() {
        let none = Assignment { interval: Duration(0), ..assignment() };
        let many = Assignment { interval: Duration(1), ..assignment() };
        let long = Assignment { duration: Duration(u64::MAX), interval: Duration(u64::MAX), ..assignment() };
        let endless = Assignment { lease: Some(Duration(u64::MAX)), ..assignment() };
        for bad in [none, many, long, endless] {
            assert_eq!(read(&bad).unwrap_err().kind, OrderRefusalKind::Assignment);
        }
        assert_eq!(read_assignment(task::VERSION, b"{").unwrap_err().kind, OrderRefusalKind::Assignment);
        let newer = read_assignment(task::VERSION + 1, b"").unwrap_err();
        assert_eq!(newer.kind, OrderRefusalKind::Version);
    }
}
