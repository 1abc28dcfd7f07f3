//! Protection of TCP connections between routers: MD5 signatures (RFC 2385), and the generalized TTL security
//! mechanism (RFC 5082).

use super::kernel::set_option;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// Maximum key length of Linux in bytes.
const MAX_KEY: usize = 80;
/// Size of `struct tcp_md5sig` of linux/tcp.h, which `libc` lacks: an address of 128 bytes, flags, prefix
/// length, key length, interface and key.
pub(super) const SIGNATURE: usize = 128 + 8 + MAX_KEY;

/// Signs segments to an address, and drops unsigned segments from it. Call it on a listener before the peer
/// connects.
pub fn sign_with_md5(socket: BorrowedFd<'_>, peer: IpAddr, key: &[u8]) -> io::Result<()> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "invalid MD5 key: give 1 to 80 bytes"));
    }
    let mut option = [0; SIGNATURE];
    let (family, offset, octets) = match peer {
        IpAddr::V4(address) => (libc::AF_INET, 4, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, 8, address.octets().to_vec()),
    };
    option[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    option[offset..offset + octets.len()].copy_from_slice(&octets);
    option[130..132].copy_from_slice(&(key.len() as u16).to_ne_bytes());
    option[136..136 + key.len()].copy_from_slice(key);
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_MD5SIG, &option)
}

/// Drops received packets whose TTL or hop limit is below `minimum`.
pub fn require_min_ttl(socket: BorrowedFd<'_>, is_ipv4: bool, minimum: u8) -> io::Result<()> {
    let (level, option) = if is_ipv4 {
        (libc::IPPROTO_IP, libc::IP_MINTTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT)
    };
    set_option(socket, level, option, &libc::c_int::from(minimum))
}
