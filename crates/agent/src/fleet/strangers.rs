//! Those who have connected, and not shown yet whom they are.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::task::AbortHandle;

/// So many strangers at a time: one too many, and the one who has been silent longest gives way.
///
/// Who means it, is through its handshake in milliseconds; who opens connections and says
/// nothing, pushes out those of his own kind.
pub struct Strangers {
    most: usize,
    tasks: Mutex<VecDeque<AbortHandle>>,
}

impl Strangers {
    /// So many at most.
    pub fn new(most: usize) -> Strangers {
        Strangers { most, tasks: Mutex::default() }
    }

    /// Another one, whom this task attends to.
    pub fn admit(&self, task: AbortHandle) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push_back(task);
        if tasks.len() > self.most {
            tasks.retain(|task| !task.is_finished());
        }
        while tasks.len() > self.most
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
    async fn the_oldest_silent_one_gives_way() {
        let strangers = Strangers::new(2);
        let silent = || tokio::spawn(pending::<()>());
        let first = silent();
        strangers.admit(first.abort_handle());
        let second = silent();
        strangers.admit(second.abort_handle());
        let through = tokio::spawn(ready(()));
        strangers.admit(through.abort_handle());
        // Either the third was through by then, or the first gave way to it.
        let last = silent();
        strangers.admit(last.abort_handle());
        strangers.admit(silent().abort_handle());
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(!last.is_finished());
    }
}
