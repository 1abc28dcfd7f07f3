//! Log of a daemon, one line per event.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// Number of lines that a [`LimitedLog`] writes at once.
pub const MAX_BURST: u32 = 20;
/// Mean interval of further lines.
const INTERVAL: Duration = Duration::from_secs(5);

/// Log of events that any client can cause, such as rejected connections. The rate of its lines is limited, so that
/// they fill no disk and hide no other line.
pub struct LimitedLog {
    log: Log,
    state: Mutex<LimitedLogState>,
}

struct LimitedLogState {
    /// Number of lines that may be written now.
    lines: u32,
    /// Time of the last increase of `lines`.
    since: Instant,
    omitted: u64,
}

impl LimitedLog {
    /// Returns a log that writes to this one.
    pub fn new(log: Log) -> LimitedLog {
        let state = LimitedLogState { lines: MAX_BURST, since: Instant::now(), omitted: 0 };
        LimitedLog { log, state: Mutex::new(state) }
    }

    /// Writes a line, or omits it. The next line gives the number of omitted ones.
    pub fn write(&self, level: Level, line: &str) {
        self.write_at(level, line, Instant::now());
    }

    fn write_at(&self, level: Level, line: &str, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let intervals = now.duration_since(state.since).as_nanos() / INTERVAL.as_nanos();
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX);
        state.since += INTERVAL * intervals;
        state.lines = state.lines.saturating_add(intervals).min(MAX_BURST);
        let Some(left) = state.lines.checked_sub(1) else {
            state.omitted += 1;
            return;
        };
        state.lines = left;
        let omitted = std::mem::take(&mut state.omitted);
        drop(state);
        match omitted {
            0 => (self.log)(level, line),
            omitted => (self.log)(level, &format!("{line} ({omitted} similar lines omitted)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_limited_and_counted() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = LimitedLog::new({
            let lines = Arc::clone(&lines);
            Arc::new(move |_, line: &str| lines.lock().unwrap().push(line.to_owned()))
        });
        let start = Instant::now();
        for millisecond in 0..100_000 {
            log.write_at(Level::Alarm, "rejected", start + Duration::from_millis(millisecond));
        }
        let lines = lines.lock().unwrap();
        let bound = MAX_BURST as usize + 100 / INTERVAL.as_secs() as usize;
        assert!((bound - 1..=bound).contains(&lines.len()), "{}", lines.len());
        assert_eq!(lines[0], "rejected");
        assert_eq!(lines.last().unwrap(), "rejected (4999 similar lines omitted)");
    }
}
