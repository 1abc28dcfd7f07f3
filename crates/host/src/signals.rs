//! Signals handled by a daemon.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Signals handled by a daemon: SIGTERM and SIGINT end it, SIGHUP reloads the configuration. Block them before
/// any thread starts.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals for this thread and its descendants, and opens a descriptor for them.
    pub fn block() -> io::Result<Signals> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        signals.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for the next signal; returns whether it requests a reload.
    pub fn wait(&self) -> io::Result<bool> {
        loop {
            if let Some(signal) = self.0.read_signal()? {
                return Ok(signal.ssi_signo == Signal::SIGHUP as u32);
            }
        }
    }

    /// Returns a channel of the results of [`wait`](Signals::wait), which a separate thread sends until the
    /// process ends.
    pub fn into_channel(self) -> io::Result<UnboundedReceiver<bool>> {
        let (sender, receiver) = unbounded_channel();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            while let Ok(reload) = self.wait() {
                if sender.send(reload).is_err() {
                    return;
                }
            }
        })?;
        Ok(receiver)
    }
}

impl AsFd for Signals {
    /// Becomes readable when a signal is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
