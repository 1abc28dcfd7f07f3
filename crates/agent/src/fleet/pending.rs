//! Connections whose client has not been identified yet.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::task::AbortHandle;

/// Limited set of pending connections. One connection too many aborts the oldest one.
///
/// A legitimate client completes its handshake within milliseconds. Idle connections of an attacker therefore
/// mostly displace one another.
pub struct PendingConnections {
    max: usize,
    tasks: Mutex<VecDeque<AbortHandle>>,
}

impl PendingConnections {
    /// Creates a set with at most `max` connections.
    pub fn new(max: usize) -> PendingConnections {
        PendingConnections { max, tasks: Mutex::default() }
    }

    /// Adds the connection served by this task.
    pub fn admit(&self, task: AbortHandle) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push_back(task);
        if tasks.len() > self.max {
            tasks.retain(|task| !task.is_finished());
        }
        while tasks.len() > self.max
            && let Some(oldest) = tasks.pop_front()
        {
            oldest.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test]
    async fn the_oldest_pending_connection_is_aborted() {
        let strangers = PendingConnections::new(2);
        let silent = || tokio::spawn(pending::<()>());
        let first = silent();
        strangers.admit(first.abort_handle());
        let second = silent();
        strangers.admit(second.abort_handle());
        let through = tokio::spawn(ready(()));
        strangers.admit(through.abort_handle());
        // Either the third task had finished by then, or the first one was aborted for it.
        let last = silent();
        strangers.admit(last.abort_handle());
        strangers.admit(silent().abort_handle());
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(!last.is_finished());
    }
}
