//! UDP socket that reports the interface, the IP header fields and the arrival time of each packet, and sends replies
//! from the address the packet was sent to.

use crate::clock::{ArrivalClock, realtime_ns};
use nix::cmsg_space;
use nix::sys::socket::sockopt::{
    IpRecvTos, Ipv4PacketInfo, Ipv4RecvTtl, Ipv6RecvHopLimit, Ipv6RecvPacketInfo, Ipv6RecvTClass,
    ReceiveTimestampns,
};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
};
use nix::sys::time::TimeSpec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

/// Size of the receive buffer in bytes.
const BUFFER: usize = 4 << 20;

/// Header fields and arrival time of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// Length in bytes.
    pub length: usize,
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address, if the system reports it.
    pub destination: Option<IpAddr>,
    /// Index of the interface at which it arrived; 0 if unknown.
    pub interface: u32,
    /// Arrival time in nanoseconds of the monotonic clock.
    pub monotonic_ns: u64,
    /// Arrival time in nanoseconds since 1970.
    pub unix_ns: u64,
    /// TTL or hop limit.
    pub ttl: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Number of packets dropped by the socket, if SO_RXQ_OVFL is set.
    pub drops: Option<u32>,
}

/// Bound socket.
#[derive(Debug)]
pub struct PacketSocket {
    socket: Socket,
    own: SocketAddr,
    clock: ArrivalClock,
}

impl PacketSocket {
    /// Binds to an address.
    pub fn bind(address: SocketAddr) -> io::Result<PacketSocket> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        socket.set_recv_buffer_size(BUFFER)?;
        setsockopt(&socket, ReceiveTimestampns, &true)?;
        if address.is_ipv4() {
            setsockopt(&socket, Ipv4PacketInfo, &true)?;
            setsockopt(&socket, Ipv4RecvTtl, &true)?;
            setsockopt(&socket, IpRecvTos, &true)?;
            socket.set_ttl_v4(255)?;
        } else {
            socket.set_only_v6(true)?;
            setsockopt(&socket, Ipv6RecvPacketInfo, &true)?;
            setsockopt(&socket, Ipv6RecvHopLimit, &true)?;
            setsockopt(&socket, Ipv6RecvTClass, &true)?;
            socket.set_unicast_hops_v6(255)?;
        }
        socket.bind(&SockAddr::from(address))?;
        let own = socket.local_addr()?.as_socket().expect("the address is an IP address");
        Ok(PacketSocket { socket, own, clock: ArrivalClock::new() })
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.own
    }

    /// Returns the underlying socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Connects to a peer: only its packets are received, and packets are sent to it by default.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(&SockAddr::from(peer))
    }

    /// Waits for a packet, at most for this time.
    pub fn wait(&self, limit: Duration) -> io::Result<()> {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives a packet into `bytes`. Returns `None` if none is available.
    pub fn receive(&mut self, bytes: &mut [u8]) -> io::Result<Option<ReceivedDatagram>> {
        let mut control = cmsg_space!(TimeSpec, libc::in6_pktinfo, i32, i32, u32);
        let mut pieces = [IoSliceMut::new(bytes)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let fd = self.socket.as_raw_fd();
        let message = match recvmsg::<SockaddrStorage>(fd, &mut pieces, Some(&mut control), flags) {
            Ok(message) => message,
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.clock.begin_batch();
        let Some(source) = message.address.and_then(address) else { return Ok(None) };
        let mut received = ReceivedDatagram {
            length: message.bytes,
            source,
            destination: None,
            interface: 0,
            monotonic_ns: 0,
            unix_ns: 0,
            ttl: 0,
            traffic_class: 0,
            drops: None,
        };
        let mut timestamp_ns = None;
        for part in message.cmsgs()? {
            match part {
                ControlMessageOwned::ScmTimestampns(at) => {
                    timestamp_ns = Some(at.tv_sec() as u64 * 1_000_000_000 + at.tv_nsec() as u64);
                }
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    received.destination = Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()));
                    received.interface = u32::try_from(info.ipi_ifindex).unwrap_or(0);
                }
                ControlMessageOwned::Ipv6PacketInfo(info) => {
                    received.destination = Some(IpAddr::from(info.ipi6_addr.s6_addr));
                    received.interface = info.ipi6_ifindex;
                }
                ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => {
                    received.ttl = ttl as u8;
                }
                ControlMessageOwned::Ipv4Tos(octet) => received.traffic_class = octet,
                ControlMessageOwned::Ipv6TClass(octet) => received.traffic_class = octet as u8,
                ControlMessageOwned::RxqOvfl(drops) => received.drops = Some(drops),
                _ => {}
            }
        }
        received.monotonic_ns = self.clock.at_ns(timestamp_ns);
        received.unix_ns = timestamp_ns.unwrap_or_else(realtime_ns);
        Ok(Some(received))
    }

    /// Sends a packet with this DSCP and ECN, from the given source address if known.
    pub fn send(
        &self,
        bytes: &[u8],
        from: Option<IpAddr>,
        to: Option<SocketAddr>,
        traffic_class: u8,
    ) -> io::Result<()> {
        let to = to.map(SockaddrStorage::from);
        let pieces = [IoSlice::new(bytes)];
        let (fd, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        if self.own.is_ipv4() {
            let class = ControlMessage::Ipv4Tos(&traffic_class);
            let Some(IpAddr::V4(from)) = from else {
                return done(sendmsg(fd, &pieces, &[class], flags, to.as_ref()));
            };
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            done(sendmsg(fd, &pieces, &[class, ControlMessage::Ipv4PacketInfo(&info)], flags, to.as_ref()))
        } else {
            let octet = i32::from(traffic_class);
            let class = ControlMessage::Ipv6TClass(&octet);
            let Some(IpAddr::V6(from)) = from else {
                return done(sendmsg(fd, &pieces, &[class], flags, to.as_ref()));
            };
            let info =
                libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: from.octets() }, ipi6_ifindex: 0 };
            done(sendmsg(fd, &pieces, &[class, ControlMessage::Ipv6PacketInfo(&info)], flags, to.as_ref()))
        }
    }
}

fn done(sent: nix::Result<usize>) -> io::Result<()> {
    sent.map(drop).map_err(io::Error::from)
}

fn address(storage: SockaddrStorage) -> Option<SocketAddr> {
    let ipv4 =
        storage.as_sockaddr_in().map(|address| SocketAddr::from(std::net::SocketAddrV4::from(*address)));
    ipv4.or_else(|| {
        storage.as_sockaddr_in6().map(|address| SocketAddr::from(std::net::SocketAddrV6::from(*address)))
    })
}
