//! Multicast forwarding by the kernel of one namespace: which packets of which source and group
//! go on by which links, as a routing daemon tells it (multicast(7) of BSD, linux/mroute.h and
//! linux/mroute6.h). Routes are fixed; nothing here speaks a routing protocol, and no querier is
//! needed, since what is forwarded does not depend on who has joined.
//!
//! The kernel keeps the routes as long as the socket they were told by is open.

use super::Namespace;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;

/// Most links of one namespace that take part (MAXVIFS and MAXMIFS).
pub const MOST_LINKS: usize = 32;

// Options of linux/mroute.h; those of linux/mroute6.h have the same numbers.
const INIT: libc::c_int = 200;
const ADD_LINK: libc::c_int = 202;
const ADD_ROUTE: libc::c_int = 204;
/// The link is told by its number, not by its address.
const BY_INDEX: u8 = 8;
/// Packets that may live for more hops than this are forwarded.
const THRESHOLD: u8 = 1;

/// The multicast routes of a namespace for one version of IP. They go with this value.
#[derive(Debug)]
pub struct MulticastRoutes {
    socket: Socket,
    version: Version,
    /// Number under which forwarding knows a link, by the link's number in its namespace.
    links: BTreeMap<u32, u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

impl MulticastRoutes {
    /// Begins to forward; `like` is an address of the version of IP that is meant. Fails with
    /// ENOPROTOOPT where the kernel cannot (CONFIG_IP_MROUTE, CONFIG_IPV6_MROUTE), and with
    /// EADDRINUSE where somebody forwards already.
    pub fn open(namespace: &Namespace, like: IpAddr) -> io::Result<MulticastRoutes> {
        let (version, domain, protocol) = match like {
            IpAddr::V4(_) => (Version::V4, Domain::IPV4, Protocol::from(libc::IPPROTO_IGMP)),
            IpAddr::V6(_) => (Version::V6, Domain::IPV6, Protocol::ICMPV6),
        };
        let open = || Socket::new(domain, Type::RAW.cloexec(), Some(protocol));
        let socket = namespace.run(open)??;
        // Nobody reads the membership reports that come here.
        socket.set_recv_buffer_size(0)?;
        let routes = MulticastRoutes { socket, version, links: BTreeMap::new() };
        routes.tell(INIT, &1_i32)?;
        Ok(routes)
    }

    /// Packets from `source` to `group` that come by link `from` leave by each of `to`. Links are
    /// told by their numbers in the namespace.
    pub fn add(&mut self, source: IpAddr, group: IpAddr, from: u32, to: &[u32]) -> io::Result<()> {
        let from = self.link(from)?;
        let to = to.iter().map(|link| self.link(*link)).collect::<io::Result<Vec<u16>>>()?;
        match (source, group, self.version) {
            (IpAddr::V4(source), IpAddr::V4(group), Version::V4) => {
                self.tell(ADD_ROUTE, &Route4::new(source, group, from, &to))
            }
            (IpAddr::V6(source), IpAddr::V6(group), Version::V6) => {
                self.tell(ADD_ROUTE, &Route6::new(source, group, from, &to))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "addresses of different versions of IP")),
        }
    }

    /// Has a link take part.
    fn link(&mut self, index: u32) -> io::Result<u16> {
        if let Some(known) = self.links.get(&index) {
            return Ok(*known);
        }
        let number = self.links.len() as u16;
        if usize::from(number) == MOST_LINKS {
            let message = format!("the kernel forwards multicast between at most {MOST_LINKS} links");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        match self.version {
            Version::V4 => self.tell(
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
                let index = u16::try_from(index).map_err(|_| {
                    io::Error::new(io::ErrorKind::InvalidInput, "a link's number is above 65535")
                })?;
                self.tell(
                    ADD_LINK,
                    &Link6 { number, flags: 0, threshold: THRESHOLD, index, padding: 0, rate_limit: 0 },
                )?;
            }
        }
        self.links.insert(index, number);
        Ok(number)
    }

    fn tell<T: Told>(&self, option: libc::c_int, value: &T) -> io::Result<()> {
        let level = match self.version {
            Version::V4 => libc::IPPROTO_IP,
            Version::V6 => libc::IPPROTO_IPV6,
        };
        let length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel reads `length` bytes of `value`, which is borrowed here and, by the
        // contract of `Told`, of the layout the option has.
        let answer = unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length)
        };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// What options take: plain numbers, laid out as the kernel's headers say, without bytes left unset.
trait Told {}

impl Told for i32 {}
impl Told for Link4 {}
impl Told for Link6 {}
impl Told for Route4 {}
impl Told for Route6 {}

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
    /// The kernel's headers leave it unnamed.
    padding: u16,
    rate_limit: u32,
}

/// struct mfcctl.
#[repr(C)]
struct Route4 {
    source: [u8; 4],
    group: [u8; 4],
    from: u16,
    /// How many hops a packet must live for more than, to leave by each link; 0: it does not.
    thresholds: [u8; MOST_LINKS],
    padding: u16,
    counters: [u32; 3],
    expire: i32,
}

impl Route4 {
    fn new(source: Ipv4Addr, group: Ipv4Addr, from: u16, to: &[u16]) -> Route4 {
        let mut thresholds = [0; MOST_LINKS];
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
    /// A bit for each link.
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
    fn layouts_are_those_of_the_kernel() {
        // As its own compiler lays them out: sizes the kernel checks, and offsets.
        assert_eq!((size_of::<Link4>(), std::mem::offset_of!(Link4, index)), (16, 8));
        assert_eq!((size_of::<Link6>(), std::mem::offset_of!(Link6, rate_limit)), (12, 8));
        assert_eq!((size_of::<Route4>(), std::mem::offset_of!(Route4, counters)), (60, 44));
        assert_eq!((size_of::<Route6>(), std::mem::offset_of!(Route6, to)), (92, 60));
        assert_eq!(size_of::<Address6>(), size_of::<libc::sockaddr_in6>());
    }
}
