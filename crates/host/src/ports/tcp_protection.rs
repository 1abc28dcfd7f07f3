//! What protects TCP connections between routers: signatures by MD5 (RFC 2385), and packets that
//! can only come from near (RFC 5082).

use super::kernel::set_option;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// The longest key Linux takes.
const LONGEST_KEY: usize = 80;
/// `struct tcp_md5sig` of linux/tcp.h, which `libc` does not have: an address of 128 bytes,
/// flags, length of a prefix, length of the key, an interface, and the key.
pub(super) const SIGNATURE: usize = 128 + 8 + LONGEST_KEY;

/// Signs what goes to an address, and refuses what comes from there unsigned. Of a listener,
/// before the peer connects.
pub fn sign_with_md5(socket: BorrowedFd<'_>, peer: IpAddr, key: &[u8]) -> io::Result<()> {
    if key.is_empty() || key.len() > LONGEST_KEY {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an MD5 key has 1 to 80 bytes"));
    }
    let mut option = [0; SIGNATURE];
    let (family, at, octets) = match peer {
        IpAddr::V4(address) => (libc::AF_INET, 4, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, 8, address.octets().to_vec()),
    };
    option[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    option[at..at + octets.len()].copy_from_slice(&octets);
    option[130..132].copy_from_slice(&(key.len() as u16).to_ne_bytes());
    option[136..136 + key.len()].copy_from_slice(key);
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_MD5SIG, &option)
}

/// Drops packets whose TTL or hop limit is below `least` when they arrive.
pub fn require_ttl(socket: BorrowedFd<'_>, is_ipv4: bool, least: u8) -> io::Result<()> {
    let (level, option) = if is_ipv4 {
        (libc::IPPROTO_IP, libc::IP_MINTTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT)
    };
    set_option(socket, level, option, &libc::c_int::from(least))
}
