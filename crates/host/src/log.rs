//! Log of a daemon, one line per event.

use std::sync::Arc;

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Normal operation.
    Note,
    /// Needs the operator's attention.
    Alarm,
}

/// Destination of log lines, usable from any thread.
pub type Log = Arc<dyn Fn(Level, &str) + Send + Sync>;
