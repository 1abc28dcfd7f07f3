//! Multicast forwarding by the kernel of one namespace: static routes by source and group (multicast(7) of BSD,
//! linux/mroute.h and linux/mroute6.h). No routing protocol runs here and no querier is needed, because
//! forwarding does not depend on group membership.
//!
//! The kernel keeps the routes as long as the socket that added them is open.

use super::Namespace;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;

/// Maximum number of participating links per namespace (MAXVIFS and MAXMIFS).
pub const MAX_LINKS: usize = 32;

// Options of linux/mroute.h; those of linux/mroute6.h have the same numbers.
const INIT: libc::c_int = 200;
const ADD_LINK: libc::c_int = 202;
const ADD_ROUTE: libc::c_int = 204;
/// The link is identified by its index instead of its address.
const BY_INDEX: u8 = 8;
/// Packets with a TTL or hop limit above this are forwarded.
const THRESHOLD: u8 = 1;

/// Multicast routes of a namespace for one version of IP, deleted when this value is dropped.
#[derive(Debug)]
pub struct MulticastRoutes {
    socket: Socket,
    version: Version,
    /// Forwarding number of a link, by its index in the namespace.
    links: BTreeMap<u32, u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

impl MulticastRoutes {
    /// Enables forwarding for the IP version of `like`. Fails with ENOPROTOOPT if the kernel lacks support
    /// (CONFIG_IP_MROUTE, CONFIG_IPV6_MROUTE), and with EADDRINUSE if another process forwards already.
    pub fn open(namespace: &Namespace, like: IpAddr) -> io::Result<MulticastRoutes> {
        let (version, domain, protocol) = match like {
            IpAddr::V4(_) => (Version::V4, Domain::IPV4, Protocol::from(libc::IPPROTO_IGMP)),
            IpAddr::V6(_) => (Version::V6, Domain::IPV6, Protocol::ICMPV6),
        };
        let open = || Socket::new(domain, Type::RAW.cloexec(), Some(protocol));
        let socket = namespace.run(open)??;
        // Incoming membership reports are not read.
        socket.set_recv_buffer_size(0)?;
        let routes = MulticastRoutes { socket, version, links: BTreeMap::new() };
        routes.set_option(INIT, &1_i32)?;
        Ok(routes)
    }

    /// Adds a route: packets from `source` to `group` that arrive on link `from` leave by each link of `to`.
    /// Links are given by their indices in the namespace.
    pub fn add(&mut self, source: IpAddr, group: IpAddr, from: u32, to: &[u32]) -> io::Result<()> {
        let from = self.link(from)?;
        let to = to.iter().map(|link| self.link(*link)).collect::<io::Result<Vec<u16>>>()?;
        match (source, group, self.version) {
            (IpAddr::V4(source), IpAddr::V4(group), Version::V4) => {
                self.set_option(ADD_ROUTE, &Route4::new(source, group, from, &to))
            }
            (IpAddr::V6(source), IpAddr::V6(group), Version::V6) => {
                self.set_option(ADD_ROUTE, &Route6::new(source, group, from, &to))
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "source, group and routes have different IP versions",
            )),
        }
    }

    /// Returns the forwarding number of a link, adding the link if necessary.
    fn link(&mut self, index: u32) -> io::Result<u16> {
        if let Some(number) = self.links.get(&index) {
            return Ok(*number);
        }
        let number = self.links.len() as u16;
        if usize::from(number) == MAX_LINKS {
            let message =
                format!("the kernel forwards multicast between at most {MAX_LINKS} links per namespace");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        match self.version {
            Version::V4 => self.set_option(
                ADD_LINK,
                &Link4 {
                    number,
                    flags: BY_INDEX,
                    threshold: THRESHOLD,
                    rate_limit: 0,
                    index: index as i32,
                    remote: 0,
                },
            )?,
            Version::V6 => {
                let index = u16::try_from(index)
                    .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "link index is above 65535"))?;
                self.set_option(
                    ADD_LINK,
                    &Link6 { number, flags: 0, threshold: THRESHOLD, index, padding: 0, rate_limit: 0 },
                )?;
            }
        }
        self.links.insert(index, number);
        Ok(number)
    }

    fn set_option<T: MulticastOption>(&self, option: libc::c_int, value: &T) -> io::Result<()> {
        let level = match self.version {
            Version::V4 => libc::IPPROTO_IP,
            Version::V6 => libc::IPPROTO_IPV6,
        };
        let length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel reads `length` bytes of `value`, which is borrowed here and, by the contract of
        // `MulticastOption`, has the layout of the option.
        let answer = unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length)
        };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Value of a socket option: integers in the layout of the kernel's headers, without uninitialized bytes.
trait MulticastOption {}

impl MulticastOption for i32 {}
impl MulticastOption for Link4 {}
impl MulticastOption for Link6 {}
impl MulticastOption for Route4 {}
impl MulticastOption for Route6 {}

/// struct vifctl.
#[repr(C)]
struct Link4 {
    number: u16,
    flags: u8,
    threshold: u8,
    rate_limit: u32,
    index: i32,
    remote: u32,
}

/// struct mif6ctl.
#[repr(C)]
struct Link6 {
    number: u16,
    flags: u8,
    threshold: u8,
    index: u16,
    /// Unnamed in the kernel's headers.
    padding: u16,
    rate_limit: u32,
}

/// struct mfcctl.
#[repr(C)]
struct Route4 {
    source: [u8; 4],
    group: [u8; 4],
    from: u16,
    /// TTL above which a packet leaves by each link; 0 disables the link.
    thresholds: [u8; MAX_LINKS],
    padding: u16,
    counters: [u32; 3],
    expire: i32,
}

impl Route4 {
    fn new(source: Ipv4Addr, group: Ipv4Addr, from: u16, to: &[u16]) -> Route4 {
        let mut thresholds = [0; MAX_LINKS];
        to.iter().for_each(|link| thresholds[usize::from(*link)] = THRESHOLD);
        Route4 {
            source: source.octets(),
            group: group.octets(),
            from,
            thresholds,
            padding: 0,
            counters: [0; 3],
            expire: 0,
        }
    }
}

/// struct sockaddr_in6.
#[repr(C)]
struct Address6 {
    family: u16,
    port: u16,
    flow: u32,
    address: [u8; 16],
    scope: u32,
}

impl From<Ipv6Addr> for Address6 {
    fn from(address: Ipv6Addr) -> Address6 {
        Address6 { family: libc::AF_INET6 as u16, port: 0, flow: 0, address: address.octets(), scope: 0 }
    }
}

/// struct mf6cctl.
#[repr(C)]
struct Route6 {
    source: Address6,
    group: Address6,
    from: u16,
    padding: u16,
    /// Bit set of outgoing links.
    to: [u32; 8],
}

impl Route6 {
    fn new(source: Ipv6Addr, group: Ipv6Addr, from: u16, to: &[u16]) -> Route6 {
        let mut links = [0; 8];
        to.iter().for_each(|link| links[usize::from(*link) / 32] |= 1 << (link % 32));
        Route6 { source: source.into(), group: group.into(), from, padding: 0, to: links }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_match_the_kernel() {
        // Sizes checked by the kernel, and offsets chosen by its compiler.
        assert_eq!((size_of::<Link4>(), std::mem::offset_of!(Link4, index)), (16, 8));
        assert_eq!((size_of::<Link6>(), std::mem::offset_of!(Link6, rate_limit)), (12, 8));
        assert_eq!((size_of::<Route4>(), std::mem::offset_of!(Route4, counters)), (60, 44));
        assert_eq!((size_of::<Route6>(), std::mem::offset_of!(Route6, to)), (92, 60));
        assert_eq!(size_of::<Address6>(), size_of::<libc::sockaddr_in6>());
    }
}
