//! Flows over the kernel's TCP: one connection per flow.

mod receive;
mod send;

pub use receive::TcpReceiver;
pub use send::TcpSender;

use super::error::FlowProblem;
use super::kernel::set_option;
use netstage_agent_api::task::TcpOptions;
use netstage_core::time::{Duration, Instant};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Maximum clock offset between both sides. Each side resets its connection at the flow's stop by its own clock.
const MAX_CLOCK_OFFSET: Duration = Duration::from_millis(20);

/// Returns whether a connection lost now has ended regularly.
fn is_end(now: Instant, stop: Instant) -> bool {
    now + MAX_CLOCK_OFFSET >= stop
}

/// Opens a non-blocking TCP socket with these options. The window must be set before the socket listens or connects,
/// because the handshake announces its scale.
fn open(address: SocketAddr, options: &TcpOptions) -> Result<Socket, FlowProblem> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
        .map_err(FlowProblem::system("opening a TCP socket"))?;
    socket.set_nonblocking(true).map_err(FlowProblem::system("configuring the socket"))?;
    socket.set_reuse_address(true).map_err(FlowProblem::system("configuring the socket"))?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(FlowProblem::system("configuring the socket"))?;
    }
    if let Some(name) = &options.congestion_control {
        socket.set_tcp_congestion(name.as_bytes()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FlowProblem::CongestionControl(name.clone()),
            io::ErrorKind::PermissionDenied => FlowProblem::Permission {
                what: "this congestion control",
                remedy: "list it in net.ipv4.tcp_allowed_congestion_control, or grant CAP_NET_ADMIN",
            },
            _ => FlowProblem::System { what: "choosing the congestion control", error },
        })?;
    }
    if let Some(size) = options.max_segment_size {
        socket.set_tcp_mss(size).map_err(FlowProblem::system("setting the segment size"))?;
    }
    if let Some(window) = options.window {
        limit_window(&socket, window).map_err(FlowProblem::system("setting the window"))?;
    }
    socket.set_tcp_nodelay(options.no_delay).map_err(FlowProblem::system("setting no-delay"))?;
    Ok(socket)
}

/// Opens a socket that can connect from an address.
pub(super) fn bound(source: SocketAddr, options: &TcpOptions) -> Result<Socket, FlowProblem> {
    let socket = open(source, options)?;
    socket.bind(&SockAddr::from(source)).map_err(|error| FlowProblem::binding(source, error))?;
    Ok(socket)
}

/// Opens a socket that listens on an address.
pub(super) fn listen(destination: SocketAddr, options: &TcpOptions) -> Result<Socket, FlowProblem> {
    let listener = bound(destination, options)?;
    listener.listen(128).map_err(|error| FlowProblem::binding(destination, error))?;
    Ok(listener)
}

/// Limits the advertised window. The buffer is larger than the window, so that only the clamp limits it; a fixed
/// buffer also disables the kernel's tuning.
fn limit_window(socket: &Socket, window: u64) -> io::Result<()> {
    let buffer = clamp(window).saturating_mul(2).max(128 << 10);
    if set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer).is_err() {
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, buffer)?;
    }
    set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, clamp(window))
}

/// Limits the window of a connection again. To be called after reading, because newer kernels raise the clamp to the
/// buffer's size when they update their estimate of packet overhead.
pub(super) fn hold_window(socket: &Socket, options: &TcpOptions) {
    if let Some(window) = options.window {
        // Fails only if the connection is closed.
        let _ = set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, clamp(window));
    }
}

fn clamp(window: u64) -> i32 {
    i32::try_from(window).unwrap_or(i32::MAX)
}

/// Returns whether an error means that the socket is not ready.
pub(super) fn is_wait(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
