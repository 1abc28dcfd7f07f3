//! Reasons why results are void: the tester itself fell short.

use crate::time::{Duration, Instant};
use alloc::format;
use alloc::string::String;
use core::fmt::{self, Display};
use core::ops::Deref;
use serde::{Deserialize, Serialize};

/// Reason why the results of a run are void. It can only be created with a party, a time and the extent of the fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VoidReason(String);

/// Time of a fault in the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultTime {
    /// Before the start of the run.
    BeforeStart,
    /// At this time.
    At(Instant),
    /// From the start of the run to this time.
    Until(Instant),
    /// From this time on.
    From(Instant),
    /// At an unknown time, or several times, within a run of this duration.
    Within(Duration),
}

impl VoidReason {
    /// Creates a reason, which is a sentence of these parts. `party` is the host, process, thread, link or flow that fell
    /// short; `fault` states how, with its extent or error.
    pub fn new(party: impl Display, fault: impl Display, time: FaultTime) -> VoidReason {
        VoidReason(format!("{party} {fault} {time}"))
    }

    /// Adds what to do.
    pub fn advise(self, advice: impl Display) -> VoidReason {
        VoidReason(format!("{}; {advice}", self.0))
    }
}

impl Display for FaultTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultTime::BeforeStart => f.write_str("before the start"),
            FaultTime::At(at) => write!(f, "at {:.3} s", at.as_secs_f64()),
            FaultTime::Until(end) => write!(f, "until {:.3} s", end.as_secs_f64()),
            FaultTime::From(start) => write!(f, "from {:.3} s on", start.as_secs_f64()),
            FaultTime::Within(run) => write!(f, "within the run of {:.3} s", run.as_secs_f64()),
        }
    }
}

impl Display for VoidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Deref for VoidReason {
    type Target = String;
    fn deref(&self) -> &String {
        &self.0
    }
}

impl From<VoidReason> for String {
    fn from(reason: VoidReason) -> String {
        reason.0
    }
}
