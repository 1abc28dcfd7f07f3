//! TCP connections of routing protocols: opening, protection (MD5, TTL), reading, writing and closing.

use netstage_host::ports::tcp_protection::{require_min_ttl, sign_with_md5};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// Time limit for sending the last message of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit on connections waiting to be accepted.
const BACKLOG: i32 = 16;
/// TTL of packets sent with GTSM (RFC 5082 section 3).
const HIGHEST_TTL: u8 = 255;

/// Protection of the connections to and from peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protection {
    /// Keys of the TCP MD5 signatures, by peer address (RFC 2385).
    pub md5_keys: Vec<(IpAddr, Vec<u8>)>,
    /// Maximum distance of peers in hops (GTSM, RFC 5082); `None` accepts any.
    pub security_hops: Option<u8>,
}

/// Opens a socket bound to a local address, in the network namespace of the calling thread.
pub(crate) fn bind(address: SocketAddr, protection: &Protection) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    for (peer, key) in &protection.md5_keys {
        sign_with_md5(socket.as_fd(), *peer, key)?;
    }
    if let Some(hops) = protection.security_hops {
        // Accepted connections inherit the option.
        let min_ttl = HIGHEST_TTL - hops.saturating_sub(1);
        require_min_ttl(socket.as_fd(), address.is_ipv4(), min_ttl)?;
        match address {
            SocketAddr::V4(_) => socket.set_ttl_v4(u32::from(HIGHEST_TTL))?,
            SocketAddr::V6(_) => socket.set_unicast_hops_v6(u32::from(HIGHEST_TTL))?,
        }
    }
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// Starts to listen for connections from peers.
pub(crate) fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Connects to a peer.
pub(crate) async fn connect(socket: Socket, peer: SocketAddr) -> io::Result<TcpStream> {
    TcpSocket::from_std_stream(socket.into()).connect(peer).await
}

/// Open connection with a send queue.
pub(crate) struct PeerConnection {
    stream: TcpStream,
    queue: Vec<u8>,
    written: usize,
}

impl PeerConnection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<PeerConnection> {
        stream.set_nodelay(true)?;
        Ok(PeerConnection { stream, queue: Vec::new(), written: 0 })
    }

    /// Completes when the connection is readable, or writable while the queue has data.
    pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.stream.poll_read_ready(context).is_ready() {
            return Poll::Ready(());
        }
        if !self.queue.is_empty() {
            return self.stream.poll_write_ready(context).map(|_| ());
        }
        Poll::Pending
    }

    /// Returns the send queue; callers only append to it.
    pub(crate) fn queue(&mut self) -> &mut Vec<u8> {
        &mut self.queue
    }

    /// Reads available bytes and returns their number: 0 at the end of the stream, `None` if no data is
    /// available.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        non_blocking_result(self.stream.try_read(buffer))
    }

    /// Writes queued bytes without blocking. Returns `true` if the queue is empty afterwards.
    pub(crate) fn write(&mut self) -> io::Result<bool> {
        while self.written < self.queue.len() {
            match non_blocking_result(self.stream.try_write(&self.queue[self.written..]))? {
                Some(length) => self.written += length,
                None => return Ok(false),
            }
        }
        self.queue.clear();
        self.written = 0;
        Ok(true)
    }

    /// Closes the connection with a reset.
    pub(crate) fn reset(self) {
        // If it fails, the connection is closed without a reset.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    /// Sends the rest of the queue and closes the connection. Data from the peer is read until the peer
    /// closes: closing a socket with unread data would send a reset, and the peer's system could discard our
    /// last message.
    pub(crate) async fn close(mut self) {
        let send_rest = async {
            self.stream.write_all(&self.queue[self.written..]).await?;
            self.stream.shutdown().await?;
            let mut rest = [0; 4096];
            while self.stream.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // A failure does not matter: the session has ended.
        let _ = timeout(CLOSE_TIMEOUT, send_rest).await;
    }
}

/// Converts the result of a non-blocking operation: `None` if it would block.
pub(crate) fn non_blocking_result<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
