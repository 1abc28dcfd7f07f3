//! STAMP flows of an assignment: the session-sender on one side, the session-reflector on the other. Runs the
//! sessions of [`crate::stamp`] on the run's schedule, and counts their packets in its bins.

pub mod records;
mod reflector;
mod sender;

pub use reflector::StampReflector;
pub use sender::StampSender;

use super::error::FlowProblem;
use super::kernel::set_option;
use super::udp::{Drops, enlarge};
use socket2::Socket;
use std::os::fd::AsFd;

/// Enlarges a socket's buffers and enables the counting of dropped packets.
fn prepare_socket(socket: &Socket, ipv6: bool) -> Result<Drops, FlowProblem> {
    enlarge(socket).map_err(FlowProblem::system("enlarging the socket's buffers"))?;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)
        .map_err(FlowProblem::system("enabling the socket's drop counter"))?;
    Ok(Drops::start(ipv6))
}
