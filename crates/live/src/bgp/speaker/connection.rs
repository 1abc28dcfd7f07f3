//! TCP sockets of a session: how they are opened, read, written and closed.

use super::Endpoint;
use crate::ports::tcp_protection::{require_ttl, sign_with_md5};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// How long a peer has to take the last message.
const FAREWELL: Duration = Duration::from_secs(2);
/// Connections that wait to be taken.
const BACKLOG: i32 = 16;
/// What a packet starts with where distance counts (RFC 5082 section 3).
const HIGHEST_TTL: u8 = 255;

/// A socket with what protects the session.
fn protected(endpoint: &Endpoint, port: u16) -> io::Result<Socket> {
    let address = SocketAddr::new(endpoint.local, port);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if endpoint.local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if let Some(key) = &endpoint.md5_key {
        sign_with_md5(socket.as_fd(), endpoint.peer, key)?;
    }
    if let Some(hops) = endpoint.security_hops {
        // Connections that are accepted inherit it.
        let least = HIGHEST_TTL - hops.saturating_sub(1);
        require_ttl(socket.as_fd(), endpoint.local.is_ipv4(), least)?;
        match endpoint.local {
            IpAddr::V4(_) => socket.set_ttl_v4(u32::from(HIGHEST_TTL))?,
            IpAddr::V6(_) => socket.set_unicast_hops_v6(u32::from(HIGHEST_TTL))?,
        }
    }
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// Where the peer may connect to, if it may.
pub(super) fn listen(endpoint: &Endpoint) -> io::Result<Option<TcpListener>> {
    let Some(port) = endpoint.listen_port else { return Ok(None) };
    let socket = protected(endpoint, port)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into()).map(Some)
}

/// Connects to the peer.
pub(super) async fn connect(endpoint: Endpoint) -> io::Result<TcpStream> {
    let socket = protected(&endpoint, 0)?;
    let peer = SocketAddr::new(endpoint.peer, endpoint.peer_port);
    TcpSocket::from_std_stream(socket.into()).connect(peer).await
}

/// An open connection, and what is to be written to it.
pub(super) struct Connection {
    stream: TcpStream,
    queue: Vec<u8>,
    written: usize,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        Ok(Connection { stream, queue: Vec::new(), written: 0 })
    }

    /// Whether it can be read, or written where there is something to write.
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.stream.poll_read_ready(context).is_ready() {
            return Poll::Ready(());
        }
        if !self.queue.is_empty() {
            return self.stream.poll_write_ready(context).map(|_| ());
        }
        Poll::Pending
    }

    /// What is to be written; only appended to.
    pub(super) fn queue(&mut self) -> &mut Vec<u8> {
        &mut self.queue
    }

    /// How many bytes were read: zero at the end, none where nothing is there.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        taken(self.stream.try_read(buffer))
    }

    /// Writes as much as goes. Whether all went.
    pub(super) fn write(&mut self) -> io::Result<bool> {
        while self.written < self.queue.len() {
            match taken(self.stream.try_write(&self.queue[self.written..]))? {
                Some(length) => self.written += length,
                None => return Ok(false),
            }
        }
        self.queue.clear();
        self.written = 0;
        Ok(true)
    }

    /// Sends what is left and closes. What the peer still says is read: a socket closed before
    /// would make its system throw away our last message.
    pub(super) async fn close(mut self) {
        let farewell = async {
            self.stream.write_all(&self.queue[self.written..]).await?;
            self.stream.shutdown().await?;
            let mut rest = [0; 4096];
            while self.stream.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // The session has ended, however this goes.
        let _ = timeout(FAREWELL, farewell).await;
    }
}

fn taken(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
