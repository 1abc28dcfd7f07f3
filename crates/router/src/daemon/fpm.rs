//! Listener for forwarding plane managers. There is one session at a time; a new one replaces it.

use netstage_core::time::Instant;
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use netstage_routing::source::RankedRoutes;
use netstage_routing::source::fpm::FpmRoutes;
use netstage_routing::source::path::SourceChange;
use netstage_routing::source::route::KernelIds;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};

/// Maximum number of bytes read in one turn, so that a burst of routes delays no packet.
const MAX_READ: usize = 1 << 16;

/// Listening socket, present session, and received routes.
#[derive(Debug)]
pub(super) struct Fpm {
    listener: TcpListener,
    session: Option<TcpStream>,
    manager: FpmRoutes,
}

impl Fpm {
    /// Starts to listen in a network namespace.
    pub fn listen(namespace: &Namespace, address: SocketAddr, names: KernelIds) -> Result<Fpm, StartupError> {
        let bound = namespace.run(|| TcpListener::bind(address)).and_then(|bound| bound);
        let bound = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        let listener = bound.map_err(|error| {
            StartupError::new(
                format!("{address}: {error}"),
                "set [router] `fpm` to another port, and FRR to the same",
            )
        })?;
        Ok(Fpm { listener, session: None, manager: FpmRoutes::new(names) })
    }

    /// Returns the listening socket, readable when a session is pending.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Returns the session's socket, readable when data is pending.
    pub fn session(&self) -> Option<BorrowedFd<'_>> {
        self.session.as_ref().map(TcpStream::as_fd)
    }

    /// Accepts a pending session, which replaces the present one. Returns whether there is a new session.
    pub fn accept(&mut self, now: Instant) -> bool {
        let Ok((stream, _)) = self.listener.accept() else { return false };
        if stream.set_nonblocking(true).is_err() {
            return false;
        }
        self.session = Some(stream);
        self.manager.handle_connected(now);
        true
    }

    /// Reads pending data. Returns the reason if the session ends.
    pub fn read(&mut self, now: Instant) -> Option<String> {
        let stream = self.session.as_mut()?;
        let mut bytes = vec![0; MAX_READ];
        let reason = match stream.read(&mut bytes) {
            Ok(0) => "connection closed by the peer".into(),
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
        Some(reason)
    }

    /// Returns the routes received and not withdrawn.
    pub fn ranked(&self) -> &RankedRoutes {
        self.manager.ranked()
    }

    /// Sets the mapping of kernel numbers.
    pub fn set_names(&mut self, names: KernelIds) {
        self.manager.set_names(names);
    }

    /// Returns the changes due to received data and expired timers.
    pub fn changes(&mut self, now: Instant) -> Vec<SourceChange> {
        self.manager.handle_timeout(now);
        std::iter::from_fn(|| self.manager.poll_change()).collect()
    }

    /// Returns the time of the next call of [`changes`](Fpm::changes).
    pub fn poll_timeout(&self) -> Instant {
        self.manager.poll_timeout()
    }
}
