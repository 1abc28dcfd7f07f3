//! Where a forwarding plane manager connects: one session at a time, of which the last one counts.

use netstage_core::time::Instant;
use netstage_host::netns::Namespace;
use netstage_host::obstacle::Obstacle;
use netstage_routing::source::Ranked;
use netstage_routing::source::fpm::Manager;
use netstage_routing::source::path::Change;
use netstage_routing::source::route::Names;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};

/// Bytes read in one turn: so long a burst of routes keeps no packet waiting.
const MOST: usize = 1 << 16;

/// The socket, the session there is, and what was told.
#[derive(Debug)]
pub(super) struct Fpm {
    listener: TcpListener,
    session: Option<TcpStream>,
    manager: Manager,
}

impl Fpm {
    /// Listens in a namespace.
    pub fn listen(namespace: &Namespace, address: SocketAddr, names: Names) -> Result<Fpm, Obstacle> {
        let bound = namespace.run(|| TcpListener::bind(address)).and_then(|bound| bound);
        let bound = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        let listener = bound.map_err(|error| {
            Obstacle::new(format!("{address}: {error}"), "give [router] `fpm` another port, and FRR too")
        })?;
        Ok(Fpm { listener, session: None, manager: Manager::new(names) })
    }

    /// Readable when a session begins.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Readable when the session tells something.
    pub fn session(&self) -> Option<BorrowedFd<'_>> {
        self.session.as_ref().map(TcpStream::as_fd)
    }

    /// Takes a session that begins, in place of the one there is. Whether there is a new one.
    pub fn accept(&mut self, now: Instant) -> bool {
        let Ok((stream, _)) = self.listener.accept() else { return false };
        if stream.set_nonblocking(true).is_err() {
            return false;
        }
        self.session = Some(stream);
        self.manager.handle_connected(now);
        true
    }

    /// Reads what is there; why the session ends, if it does.
    pub fn read(&mut self, now: Instant) -> Option<String> {
        let stream = self.session.as_mut()?;
        let mut bytes = vec![0; MOST];
        let ended = match stream.read(&mut bytes) {
            Ok(0) => "it has ended".into(),
            Ok(length) => match self.manager.handle_bytes(now, &bytes[..length]) {
                Ok(()) => return None,
                Err(fault) => fault.to_string(),
            },
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return None;
            }
            Err(error) => error.to_string(),
        };
        self.session = None;
        self.manager.handle_closed(now);
        Some(ended)
    }

    /// What was told, and not taken back.
    pub fn ranked(&self) -> &Ranked {
        self.manager.ranked()
    }

    /// The kernel's numbers are these from now on.
    pub fn set_names(&mut self, names: Names) {
        self.manager.set_names(names);
    }

    /// What changes by all of it and the time there is.
    pub fn changes(&mut self, now: Instant) -> Vec<Change> {
        self.manager.handle_timeout(now);
        std::iter::from_fn(|| self.manager.poll_change()).collect()
    }

    /// When to ask for [`changes`](Fpm::changes).
    pub fn poll_timeout(&self) -> Instant {
        self.manager.poll_timeout()
    }
}
