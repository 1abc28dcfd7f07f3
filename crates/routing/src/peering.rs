//! TCP connections between routers, for the protocols that have sessions over them: how sockets are opened
//! and protected, read, written and closed.

use netstage_host::ports::tcp_protection::{require_ttl, sign_with_md5};
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

/// What protects connections to and from peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protection {
    /// The keys by which we and these peers sign (RFC 2385).
    pub md5_keys: Vec<(IpAddr, Vec<u8>)>,
    /// How many hops away peers may be (RFC 5082).
    pub security_hops: Option<u8>,
}

/// A socket at an address of ours, in the namespace of the calling thread.
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
        // Connections that are accepted inherit it.
        let least = HIGHEST_TTL - hops.saturating_sub(1);
        require_ttl(socket.as_fd(), address.is_ipv4(), least)?;
        match address {
            SocketAddr::V4(_) => socket.set_ttl_v4(u32::from(HIGHEST_TTL))?,
            SocketAddr::V6(_) => socket.set_unicast_hops_v6(u32::from(HIGHEST_TTL))?,
        }
    }
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// Where peers may connect to.
pub(crate) fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Connects to a peer.
pub(crate) async fn connect(socket: Socket, peer: SocketAddr) -> io::Result<TcpStream> {
    TcpSocket::from_std_stream(socket.into()).connect(peer).await
}

/// An open connection, and what is to be written to it.
pub(crate) struct Connection {
    stream: TcpStream,
    queue: Vec<u8>,
    written: usize,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        Ok(Connection { stream, queue: Vec::new(), written: 0 })
    }

    /// Whether it can be read, or written where there is something to write.
    pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.stream.poll_read_ready(context).is_ready() {
            return Poll::Ready(());
        }
        if !self.queue.is_empty() {
            return self.stream.poll_write_ready(context).map(|_| ());
        }
        Poll::Pending
    }

    /// What is to be written; only appended to.
    pub(crate) fn queue(&mut self) -> &mut Vec<u8> {
        &mut self.queue
    }

    /// How many bytes were read: zero at the end, none where nothing is there.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        taken(self.stream.try_read(buffer))
    }

    /// Writes as much as goes. Whether all went.
    pub(crate) fn write(&mut self) -> io::Result<bool> {
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
    pub(crate) async fn close(mut self) {
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

/// What came of an attempt that does not wait: none where it would have to.
pub(crate) fn taken<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
