//! Repeats of a run whose start failed because the machine of an agent was busy for a moment.

use netstage_agent::controller::ControllerError;
use netstage_scenario::outcome::RunFailure;

/// Number of attempts to start a run.
const START_ATTEMPTS: u32 = 3;

/// Failure of an attempt to run a plan.
pub enum AttemptFailure {
    /// An agent received the start order after the start.
    LateStart(ControllerError),
    /// Any other failure.
    Run(RunFailure),
}

impl From<RunFailure> for AttemptFailure {
    fn from(failure: RunFailure) -> AttemptFailure {
        AttemptFailure::Run(failure)
    }
}

impl From<ControllerError> for AttemptFailure {
    fn from(error: ControllerError) -> AttemptFailure {
        match error.is_late_start() {
            true => AttemptFailure::LateStart(error),
            false => AttemptFailure::Run(error.into()),
        }
    }
}

/// Attempts a run until no agent is late for its start. The last failure counts.
pub fn until_in_time<T>(mut attempt: impl FnMut() -> Result<T, AttemptFailure>) -> Result<T, RunFailure> {
    for _ in 1..START_ATTEMPTS {
        match attempt() {
            Err(AttemptFailure::LateStart(_)) => {}
            Err(AttemptFailure::Run(failure)) => return Err(failure),
            Ok(outcome) => return Ok(outcome),
        }
    }
    attempt().map_err(|failure| match failure {
        AttemptFailure::LateStart(error) => error.into(),
        AttemptFailure::Run(failure) => failure,
    })
}
