//! Connections whose client has not been identified yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::AbortHandle;

/// Limited set of pending connections. One connection too many aborts the oldest one.
///
/// A legitimate client is identified within milliseconds. Idle connections of an attacker therefore mostly
/// displace one another.
#[derive(Debug)]
pub struct PendingConnections {
    max: usize,
    tasks: Mutex<VecDeque<(AbortHandle, Identified)>>,
}

/// Mark of a connection whose client has been identified, and which is no longer pending.
#[derive(Clone, Debug, Default)]
pub struct Identified(Arc<AtomicBool>);

impl Identified {
    /// Marks the connection.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl PendingConnections {
    /// Creates a set with at most `max` connections.
    pub fn new(max: usize) -> PendingConnections {
        PendingConnections { max, tasks: Mutex::default() }
    }

    /// Adds the connection served by this task, which is pending until the task ends or sets the mark.
    pub fn admit(&self, task: AbortHandle, identified: Identified) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push_back((task, identified));
        if tasks.len() > self.max {
            tasks.retain(|(task, identified)| !task.is_finished() && !identified.is_set());
        }
        while tasks.len() > self.max
            && let Some((oldest, identified)) = tasks.pop_front()
        {
            if !identified.is_set() {
                oldest.abort();
            }
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
        let member = (silent(), Identified::default());
        strangers.admit(member.0.abort_handle(), member.1.clone());
        member.1.set();
        let first = silent();
        strangers.admit(first.abort_handle(), Identified::default());
        let second = silent();
        strangers.admit(second.abort_handle(), Identified::default());
        let through = tokio::spawn(ready(()));
        strangers.admit(through.abort_handle(), Identified::default());
        // Either the last but two had finished by then, or the first one was aborted for it.
        let last = silent();
        strangers.admit(last.abort_handle(), Identified::default());
        strangers.admit(silent().abort_handle(), Identified::default());
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(!last.is_finished() && !member.0.is_finished());
    }
}
