//! Shutdown request of a daemon.

use tokio::sync::watch;

/// Handle that requests the shutdown of a daemon, for example from a signal handler's thread.
#[derive(Clone, Debug, Default)]
pub struct DaemonShutdown(watch::Sender<bool>);

impl DaemonShutdown {
    /// Requests the shutdown. Work in progress is completed; clients are disconnected.
    pub fn request(&self) {
        self.0.send_replace(true);
    }

    /// Returns a receiver that becomes true on shutdown.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }

    /// Returns whether shutdown was requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }
}
