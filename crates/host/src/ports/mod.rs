//! Ports: where frames enter and leave. One file per kind; a user is generic over [`Port`].
//!
//! - [`af_packet`]: any interface, without root in a user namespace.
//! - [`af_xdp`]: an interface taken over from the kernel, as root; the fastest.
//! - [`tun`]: an interface whose other end is the port itself.
//! - [`ring`]: memory, for tests.
//! - [`pcapng`]: records what passes a port, and replays a capture.
#![allow(unsafe_code)]

pub mod af_packet;
pub mod af_xdp;
pub mod kernel;
pub mod pcapng;
pub mod ring;
pub mod tcp_protection;
pub mod tun;

use netstage_wire::ethernet::{HEADER, Mac};
use std::io;
use std::os::fd::BorrowedFd;

/// Both addresses in the header a port puts before packets of an interface that has none (a TUN interface):
/// from there on they are frames as all others are.
pub const NO_STATION: Mac = [0; 6];

/// Such a header, before packets of this type.
pub fn bare_header(ethertype: u16) -> [u8; HEADER] {
    let [first, second] = ethertype.to_be_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, first, second]
}

/// A frame as it came in.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The frame from its Ethernet header on, without frame check sequence.
    pub frame: &'a [u8],
    /// When it arrived, in nanoseconds of the monotonic clock: the kernel's own timestamp
    /// where the port has one, else when it was read.
    pub at_ns: u64,
}

/// Where frames enter and leave.
///
/// Nothing here blocks, and an error is for good as long as the interface is down or gone
/// ([`io::ErrorKind::NetworkDown`], [`io::ErrorKind::NotFound`]). A user waits on [`fd`](Port::fd) until frames may be there, calls
/// [`receive`](Port::receive), hands over frames with [`send`](Port::send) and lets them go
/// with [`flush`](Port::flush).
pub trait Port {
    /// Gives frames that have arrived to `each`, oldest first, up to `limit`; returns how many. A
    /// super-packet counts as the frames it is cut into, and is not left half read.
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize>;

    /// Takes a frame to send. False where there is no room: flush, and try again.
    fn send(&mut self, frame: &[u8]) -> io::Result<bool>;

    /// Lets everything taken go; returns how many frames the system refused.
    fn flush(&mut self) -> io::Result<usize>;

    /// Becomes readable when frames arrive; none where the port has to be polled. Wait with a
    /// timeout: not every kind wakes its user when the interface goes.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Frames lost since the port was opened because nobody took them in time.
    fn missed(&mut self) -> u64;
}

/// Arrival times as a port gives them: a frame did not arrive before one ahead of it.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    latest_ns: u64,
}

impl Arrivals {
    /// The time given for a frame that is said to have arrived `at_ns`.
    fn at(&mut self, at_ns: u64) -> u64 {
        self.latest_ns = self.latest_ns.max(at_ns);
        self.latest_ns
    }
}
