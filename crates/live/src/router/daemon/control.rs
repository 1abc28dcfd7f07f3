//! The control socket: who connects is told how the router stands, as JSON, and that is all.

use super::forward::Forwarding;
use super::state::State;
use crate::agent::Socket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Who does not read for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// The signals that end a router. They are blocked for this thread and those it begins, so this comes
/// first.
pub fn signals() -> io::Result<SignalFd> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?)
}

/// Serves until a signal comes, or forwarding ends by itself.
pub(super) fn serve(socket: &mut Socket, signals: &SignalFd, forwarding: &Forwarding) -> io::Result<()> {
    let listener = socket.std_listener()?;
    listener.set_nonblocking(true)?;
    loop {
        let mut fds = [signals.as_fd(), listener.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        poll(&mut fds, PollTimeout::from(500_u16))?;
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        if is_ready(&fds[0]) {
            return Ok(());
        }
        if forwarding.is_over() {
            return Err(io::Error::other("forwarding has ended by itself"));
        }
        if !is_ready(&fds[1]) {
            continue;
        }
        if let Ok((stream, _)) = listener.accept()
            && let Some(state) = forwarding.show()
        {
            // Who has gone meanwhile needs no answer.
            let _ = tell(stream, &state);
        }
    }
}

fn tell(mut stream: UnixStream, state: &State) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&serde_json::to_vec(state).map_err(io::Error::other)?)
}

/// Asks a router how it stands.
pub fn ask(socket: &Path) -> io::Result<State> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE * 5))?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}
