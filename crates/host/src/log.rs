//! What a daemon tells of while it runs, one line at a time.

use std::sync::Arc;

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Belongs to normal operation.
    Note,
    /// Somebody should look.
    Alarm,
}

/// Where lines of the log go, from any thread.
pub type Log = Arc<dyn Fn(Level, &str) + Send + Sync>;
