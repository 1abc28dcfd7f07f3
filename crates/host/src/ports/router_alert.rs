//! Packets with the IP router alert option (RFC 2113).

use super::kernel::set_option;
use std::io;
use std::os::fd::BorrowedFd;

/// Passes packets of the socket's protocol with the option to this raw socket. The kernel does not forward them.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, IP_ROUTER_ALERT, &1)
}

/// `IP_ROUTER_ALERT` of linux/in.h.
const IP_ROUTER_ALERT: libc::c_int = 5;
