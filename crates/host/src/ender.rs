//! What ends a daemon from outside.

use tokio::sync::watch;

/// Asks a daemon to end, from a signal handler's thread for example.
#[derive(Clone, Debug, Default)]
pub struct Ender(watch::Sender<bool>);

impl Ender {
    /// What is under way comes to its end; those it serves are let go.
    pub fn end(&self) {
        self.0.send_replace(true);
    }

    /// Becomes true when it is to end.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }

    /// Whether it is to end.
    pub fn has_ended(&self) -> bool {
        *self.0.borrow()
    }
}
