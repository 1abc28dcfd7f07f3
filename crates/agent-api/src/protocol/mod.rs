//! The agents' protocol: `proto/agent.proto` as Rust, what both sides must agree on beside
//! it, and the checks on what comes in. No transport, no state.
//!
//! Whatever the bytes, reading them gives a message or a reason, never a panic.

mod bins;
#[rustfmt::skip]
#[allow(missing_docs, clippy::all)]
pub mod generated;
mod refusal;

pub use netstage_core::fleet::{Refusal, RefusalKind};

use crate::results::Report;
use crate::task::{self, Assignment};
use netstage_core::fleet::Phase;
use netstage_core::time::Duration;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Versions of the protocol this program speaks.
pub const VERSIONS: RangeInclusive<u32> = 1..=1;
/// Largest message an agent reads: an assignment with long traces fits.
pub const MAX_REQUEST_BYTES: usize = 64 << 20;
/// Largest report a controller reads.
pub const MAX_REPORT_BYTES: u64 = 1 << 30;
/// Bytes of a report in one message.
pub const CHUNK_BYTES: usize = 256 << 10;
/// A controller gives a sign of life this often, and the agent answers it. Each costs an agent a tenth of a
/// millisecond of processor, of which a thousand on one machine have little.
pub const HEARTBEAT: std::time::Duration = std::time::Duration::from_millis(500);
/// An agent looks this often whether there was one.
pub const HEARTBEAT_LOOK: std::time::Duration = std::time::Duration::from_millis(250);
/// So many looks in a row without, and an agent takes its controller to be gone: within 2 s of its last.
pub const CONTROLLER_LOOKS: u32 = 7;
/// So many in a row missing, and a controller takes an agent to be gone (6 s).
pub const AGENT_BEATS: u32 = 12;

/// Most bins a run may have: a receiver keeps them all in memory.
const MAX_BINS: u64 = 10_000_000;
/// Longest run: a year.
const MAX_DURATION: Duration = Duration::from_secs(366 * 86_400);

impl From<Phase> for generated::Phase {
    fn from(phase: Phase) -> generated::Phase {
        match phase {
            Phase::Idle => generated::Phase::Idle,
            Phase::Preparing => generated::Phase::Preparing,
            Phase::Ready => generated::Phase::Ready,
            Phase::Running => generated::Phase::Running,
            Phase::Done => generated::Phase::Done,
        }
    }
}

impl From<generated::Phase> for Phase {
    fn from(phase: generated::Phase) -> Phase {
        match phase {
            generated::Phase::Preparing => Phase::Preparing,
            generated::Phase::Ready => Phase::Ready,
            generated::Phase::Running => Phase::Running,
            generated::Phase::Done => Phase::Done,
            // One this program does not know yet is none it waits for.
            generated::Phase::Idle | generated::Phase::Unknown => Phase::Idle,
        }
    }
}

/// The newest version both sides speak, given the other's oldest and newest.
pub fn common_version(oldest: u32, newest: u32) -> Option<u32> {
    let version = newest.min(*VERSIONS.end());
    (version >= oldest.max(*VERSIONS.start())).then_some(version)
}

/// Reads an assignment and checks what could harm whoever carries it out.
pub fn read_assignment(version: u32, bytes: &[u8]) -> Result<Assignment, Refusal> {
    if version != task::VERSION {
        return Err(Refusal::new(
            RefusalKind::Version,
            format!("the assignment has version {version}, this agent reads {}", task::VERSION),
        )
        .remedy("use the same netstage for agents and controller"));
    }
    let unreadable = |error: &dyn Display| {
        Refusal::new(RefusalKind::Assignment, format!("the assignment cannot be read: {error}"))
    };
    let assignment: Assignment = serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
    if assignment.interval.0 == 0 || assignment.duration.0 / assignment.interval.0 > MAX_BINS {
        return Err(unreadable(&format!("more than {MAX_BINS} intervals in the run")));
    }
    if assignment.duration > MAX_DURATION {
        return Err(unreadable(&"the run is longer than a year"));
    }
    for flow in &assignment.flows {
        if flow.start > MAX_DURATION || flow.stop > MAX_DURATION {
            return Err(unreadable(&"it starts or stops after more than a year").flow(&flow.name));
        }
    }
    Ok(assignment)
}

/// Longest text of the other side that is shown, characters.
const MOST_SHOWN: usize = 2000;

/// What the other side says, as it can be shown: a terminal obeys control characters.
pub fn plain(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control() || *c == '\n');
    shown.take(MOST_SHOWN).collect()
}

/// Reads a report.
pub fn read_report(version: u32, bytes: &[u8]) -> Result<Report, String> {
    if version != task::VERSION {
        return Err(format!("its report has version {version}, this program reads {}", task::VERSION));
    }
    serde_json::from_slice(bytes).map_err(|error| format!("its report cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> Assignment {
        Assignment::of_flows("a", Duration::from_secs(1), Duration::from_millis(100), Vec::new())
    }

    fn read(assignment: &Assignment) -> Result<Assignment, Refusal> {
        read_assignment(task::VERSION, &serde_json::to_vec(assignment).unwrap())
    }

    #[test]
    fn versions_meet_where_the_ranges_do() {
        assert_eq!(common_version(1, 1), Some(1));
        assert_eq!(common_version(0, 7), Some(1));
        assert_eq!(common_version(2, 7), None);
        assert_eq!(common_version(0, 0), None);
        assert_eq!(common_version(u32::MAX, 0), None);
    }

    #[test]
    fn what_is_shown_commands_no_terminal() {
        assert_eq!(plain("port 7\u{1b}[2J\r is\nin use"), "port 7[2J is\nin use");
        assert_eq!(plain(&"x".repeat(1 << 20)).len(), MOST_SHOWN);
    }

    #[test]
    fn an_assignment_is_read_as_it_was_written() {
        assert_eq!(read(&assignment()), Ok(assignment()));
    }

    #[test]
    fn what_would_exhaust_an_agent_is_refused() {
        let none = Assignment { interval: Duration(0), ..assignment() };
        let many = Assignment { interval: Duration(1), ..assignment() };
        let long = Assignment { duration: Duration(u64::MAX), interval: Duration(u64::MAX), ..assignment() };
        for bad in [none, many, long] {
            assert_eq!(read(&bad).unwrap_err().kind, RefusalKind::Assignment);
        }
        assert_eq!(read_assignment(task::VERSION, b"{").unwrap_err().kind, RefusalKind::Assignment);
        let newer = read_assignment(task::VERSION + 1, b"").unwrap_err();
        assert_eq!(newer.kind, RefusalKind::Version);
    }
}
