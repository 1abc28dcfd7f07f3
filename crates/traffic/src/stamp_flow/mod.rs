//! STAMP flows of an assignment: the session-sender on one side, the session-reflector on the other. Runs the
//! sessions of [`crate::stamp`] on the run's schedule, and counts their packets in its bins.

mod reflector;
mod sender;

pub use reflector::StampReflector;
pub use sender::StampSender;

use super::error::Problem;
use super::kernel::set_option;
use super::udp::{Drops, enlarge};
use socket2::Socket;
use std::os::fd::AsFd;

/// Enlarges a socket's buffers and enables the counting of dropped packets.
fn watch(socket: &Socket, ipv6: bool) -> Result<Drops, Problem> {
    enlarge(socket).map_err(Problem::system("enlarging the socket's buffers"))?;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)
        .map_err(Problem::system("enabling the socket's drop counter"))?;
    Ok(Drops::watch(ipv6))
}
