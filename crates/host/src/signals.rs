//! Signals a daemon listens to.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Signals a daemon listens to: end, end, and read the configuration again. Block them before
/// any thread begins.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks them for this thread and those it begins, and listens.
    pub fn block() -> io::Result<Signals> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        signals.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for the next one; whether it asks for the configuration to be read again.
    pub fn wait(&self) -> io::Result<bool> {
        loop {
            if let Some(signal) = self.0.read_signal()? {
                return Ok(signal.ssi_signo == Signal::SIGHUP as u32);
            }
        }
    }

    /// The same of all that come. A thread of its own waits for them, until the process ends.
    pub fn told(self) -> io::Result<UnboundedReceiver<bool>> {
        let (sender, told) = unbounded_channel();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            while let Ok(reload) = self.wait() {
                if sender.send(reload).is_err() {
                    return;
                }
            }
        })?;
        Ok(told)
    }
}

impl AsFd for Signals {
    /// Readable when one has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
