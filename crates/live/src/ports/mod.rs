//! Ports: where frames enter and leave. One file per kind; a user is generic over [`Port`].

use std::io;
use std::os::fd::BorrowedFd;

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
/// Nothing here blocks. A user waits on [`fd`](Port::fd) until frames may be there, calls
/// [`receive`](Port::receive), hands over frames with [`send`](Port::send) and lets them go
/// with [`flush`](Port::flush).
pub trait Port {
    /// Gives frames that have arrived to `each`, oldest first, up to `limit`; returns how many.
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize>;

    /// Takes a frame to send. False where there is no room: flush, and try again.
    fn send(&mut self, frame: &[u8]) -> io::Result<bool>;

    /// Lets everything taken go; returns how many frames the system refused.
    fn flush(&mut self) -> io::Result<usize>;

    /// Becomes readable when frames arrive; none where the port has to be polled.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Frames lost since the port was opened because nobody took them in time.
    fn missed(&mut self) -> u64;
}
