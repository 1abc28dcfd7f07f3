//! TCP, as the kernel speaks it: one connection per flow.

mod receive;
mod send;

pub use receive::TcpReceiver;
pub use send::TcpSender;

use super::error::Problem;
use super::kernel::set_option;
use netstage_agent_api::task::TcpOptions;
use netstage_core::time::{Duration, Instant};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Either side resets its connection when the flow's time is up by its own clock, which may
/// run ahead of the other's by so much.
const CLOCKS_DIFFER: Duration = Duration::from_millis(20);

/// Whether a connection that breaks now has merely come to its end.
fn is_end(now: Instant, stop: Instant) -> bool {
    now + CLOCKS_DIFFER >= stop
}

/// A TCP socket that never blocks, set up as asked. A window must be set before the
/// socket listens or connects: that is when the peer learns its scale.
fn open(address: SocketAddr, options: &TcpOptions) -> Result<Socket, Problem> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
        .map_err(Problem::system("opening a TCP socket"))?;
    socket.set_nonblocking(true).map_err(Problem::system("setting the socket up"))?;
    socket.set_reuse_address(true).map_err(Problem::system("setting the socket up"))?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(Problem::system("setting the socket up"))?;
    }
    if let Some(name) = &options.congestion_control {
        socket.set_tcp_congestion(name.as_bytes()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Problem::CongestionControl(name.clone()),
            io::ErrorKind::PermissionDenied => Problem::Permission {
                what: "this congestion control",
                remedy: "list it in net.ipv4.tcp_allowed_congestion_control, or grant CAP_NET_ADMIN",
            },
            _ => Problem::System { what: "choosing the congestion control", error },
        })?;
    }
    if let Some(size) = options.max_segment_size {
        socket.set_tcp_mss(size).map_err(Problem::system("setting the segment size"))?;
    }
    if let Some(window) = options.window {
        limit_window(&socket, window).map_err(Problem::system("setting the window"))?;
    }
    socket.set_tcp_nodelay(options.no_delay).map_err(Problem::system("setting no-delay"))?;
    Ok(socket)
}

/// A socket that may connect from an address.
pub(super) fn bound(source: SocketAddr, options: &TcpOptions) -> Result<Socket, Problem> {
    let socket = open(source, options)?;
    socket.bind(&SockAddr::from(source)).map_err(|error| Problem::binding(source, error))?;
    Ok(socket)
}

/// A socket that takes connections to an address.
pub(super) fn listen(destination: SocketAddr, options: &TcpOptions) -> Result<Socket, Problem> {
    let listener = bound(destination, options)?;
    listener.listen(128).map_err(|error| Problem::binding(destination, error))?;
    Ok(listener)
}

/// Limits what the socket advertises. The buffer is larger than the window, so that the
/// clamp alone decides; fixing it also ends the kernel's own tuning.
fn limit_window(socket: &Socket, window: u64) -> io::Result<()> {
    let buffer = clamp(window).saturating_mul(2).max(128 << 10);
    if set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer).is_err() {
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, buffer)?;
    }
    set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, clamp(window))
}

/// Limits a connection again: newer kernels lift the clamp to the buffer's size whenever
/// they learn how much of it packets really fill. To be called after reading.
pub(super) fn hold_window(socket: &Socket, options: &TcpOptions) {
    if let Some(window) = options.window {
        // Refused only where the connection has gone.
        let _ = set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, clamp(window));
    }
}

fn clamp(window: u64) -> i32 {
    i32::try_from(window).unwrap_or(i32::MAX)
}

/// Whether to wait until the socket is ready, or at once try again.
pub(super) fn is_wait(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
