//! Resources held from start to end: the epoch, and sockets that keep the kernel from answering on the
//! router's behalf.

use netstage_host::clock::{self, Epoch, monotonic_ns};
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::{PeConfig, PeerConfig};
use netstage_wire::mpls_in_udp;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Zero of the router's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouterEpoch {
    pub epoch: Epoch,
    pub epoch_unix_ns: u64,
    pub session_seed: u32,
}

impl RouterEpoch {
    pub fn now() -> RouterEpoch {
        let epoch = Epoch(monotonic_ns());
        let unix = i128::from(epoch.0) + clock::realtime_offset_ns();
        let epoch_unix_ns = u64::try_from(unix).unwrap_or_default();
        // Any number will do that differs after a restart.
        let session_seed = (epoch_unix_ns >> 10) as u32 ^ std::process::id().rotate_left(16);
        RouterEpoch { epoch, epoch_unix_ns, session_seed }
    }
}

/// Binds the UDP ports of tunnels and discards what arrives there. The kernel, too, receives these packets, and
/// would answer with ICMP port unreachable.
#[derive(Debug)]
pub(super) struct PortGuard {
    _sockets: Vec<Socket>,
}

impl PortGuard {
    pub fn hold(router: &PeConfig) -> Result<PortGuard, StartupError> {
        let is_encrypted = router.peers.iter().any(PeerConfig::is_encrypted);
        let ports = [mpls_in_udp::PORT].into_iter().chain(is_encrypted.then_some(router.encryption_port));
        let addresses = ports.flat_map(|port| {
            [
                (Domain::IPV4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
                (Domain::IPV6, (Ipv6Addr::UNSPECIFIED, port).into()),
            ]
        });
        let mut sockets = Vec::new();
        for (domain, address) in addresses {
            let hold = || -> io::Result<Socket> {
                let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
                if domain == Domain::IPV6 {
                    socket.set_only_v6(true)?;
                }
                // "Return 0" drops every packet.
                socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)])?;
                socket.bind(&SockAddr::from(address))?;
                Ok(socket)
            };
            match hold() {
                Ok(socket) => sockets.push(socket),
                // Without IPv6 there is nothing to guard.
                Err(error)
                    if domain == Domain::IPV6
                        && matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    return Err(StartupError::new(
                        format!("UDP port {} is in use", address.port()),
                        "stop the other router or WireGuard interface in this network namespace (ss -lunp)",
                    ));
                }
                Err(error) => {
                    return Err(StartupError::from_system("cannot bind the UDP port of tunnels", &error));
                }
            }
        }
        Ok(PortGuard { _sockets: sockets })
    }
}
