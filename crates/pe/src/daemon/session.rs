//! What lasts from start to end: where time counts from, and the sockets that keep the kernel
//! from answering for us.

use netstage_host::clock::{self, Epoch, monotonic_ns};
use netstage_host::obstacle::Obstacle;
use netstage_wire::mpls_in_udp;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where time counts from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beginning {
    pub epoch: Epoch,
    pub epoch_unix_ns: u64,
    pub session_seed: u32,
}

impl Beginning {
    pub fn now() -> Beginning {
        let epoch = Epoch(monotonic_ns());
        let unix = i128::from(epoch.0) + clock::realtime_ahead_ns();
        let epoch_unix_ns = u64::try_from(unix).unwrap_or_default();
        // Any number does that is another one after a restart.
        let session_seed = (epoch_unix_ns >> 10) as u32 ^ std::process::id().rotate_left(16);
        Beginning { epoch, epoch_unix_ns, session_seed }
    }
}

/// Holds the port of MPLS in UDP, and takes nothing: the kernel sees these packets beside us,
/// and would tell their senders that nobody is there.
#[derive(Debug)]
pub(super) struct Guard {
    _sockets: Vec<Socket>,
}

impl Guard {
    pub fn hold() -> Result<Guard, Obstacle> {
        let addresses: [(Domain, SocketAddr); 2] = [
            (Domain::IPV4, (Ipv4Addr::UNSPECIFIED, mpls_in_udp::PORT).into()),
            (Domain::IPV6, (Ipv6Addr::UNSPECIFIED, mpls_in_udp::PORT).into()),
        ];
        let mut sockets = Vec::new();
        for (domain, address) in addresses {
            let hold = || -> io::Result<Socket> {
                let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
                if domain == Domain::IPV6 {
                    socket.set_only_v6(true)?;
                }
                // "Return 0": of every packet nothing is kept.
                socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)])?;
                socket.bind(&SockAddr::from(address))?;
                Ok(socket)
            };
            match hold() {
                Ok(socket) => sockets.push(socket),
                // A machine without IPv6 has nobody to tell.
                Err(error)
                    if domain == Domain::IPV6
                        && matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    return Err(Obstacle::new(
                        format!("UDP port {} is in use", mpls_in_udp::PORT),
                        "end the other provider edge router of this network namespace (ss -lunp)",
                    ));
                }
                Err(error) => return Err(Obstacle::system("MPLS in UDP cannot be held", &error)),
            }
        }
        Ok(Guard { _sockets: sockets })
    }
}
