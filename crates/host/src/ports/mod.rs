//! Ports that receive and send frames. One module per kind; users are generic over [`FramePort`].
//!
//! - [`af_packet`]: any interface, without root in a user namespace.
//! - [`af_xdp`]: an interface taken over from the kernel, as root; the fastest.
//! - [`tun`]: an interface whose other end is the port itself.
//! - [`ring`]: memory, for tests.
//! - [`pcapng`]: recording of another port, and replay of a capture.
#![allow(unsafe_code)]

pub mod af_packet;
pub mod af_xdp;
pub mod kernel;
pub mod pcapng;
pub mod readiness;
pub mod ring;
pub mod router_alert;
pub mod tcp_protection;
pub mod tun;

use netstage_wire::ethernet::{HEADER, Mac};
use std::io;
use std::os::fd::BorrowedFd;

/// Source and destination address in the header that a port adds to packets of an interface without link-layer
/// header (TUN).
pub const NO_MAC: Mac = [0; 6];

/// Returns the header added to packets of this ethertype.
pub fn synthetic_header(ethertype: u16) -> [u8; HEADER] {
    let [first, second] = ethertype.to_be_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, first, second]
}

/// Received frame.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedFrame<'a> {
    /// Frame from its Ethernet header on, without frame check sequence.
    pub frame: &'a [u8],
    /// Arrival time in monotonic nanoseconds: the kernel's timestamp if the port has one, otherwise the time of
    /// reading.
    pub at_ns: u64,
}

/// Port that receives and sends frames.
///
/// No method blocks. An error persists as long as the interface is down ([`io::ErrorKind::NetworkDown`]) or
/// gone ([`io::ErrorKind::NotFound`]). A user waits on [`fd`](FramePort::fd), calls [`receive`](FramePort::receive),
/// queues frames with [`send`](FramePort::send) and transmits them with [`flush`](FramePort::flush).
pub trait FramePort {
    /// Passes up to `limit` arrived frames to `each`, oldest first; returns their number. A super-packet counts
    /// as its segments, and may exceed the limit.
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize>;

    /// Queues a frame. Returns false if the queue is full: flush, and try again.
    fn send(&mut self, frame: &[u8]) -> io::Result<bool>;

    /// Transmits all queued frames; returns the number refused by the system.
    fn flush(&mut self) -> io::Result<usize>;

    /// Returns a descriptor that becomes readable when frames arrive, or `None` if the port must be polled.
    /// Wait with a timeout: not every kind wakes its user when the interface is removed.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the number of frames lost because they were not received in time.
    fn missed(&mut self) -> u64;
}

/// Monotonic arrival times: no frame arrives before its predecessor.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    latest_ns: u64,
}

impl Arrivals {
    /// Returns the arrival time of a frame timestamped `at_ns`.
    fn at(&mut self, at_ns: u64) -> u64 {
        self.latest_ns = self.latest_ns.max(at_ns);
        self.latest_ns
    }
}
