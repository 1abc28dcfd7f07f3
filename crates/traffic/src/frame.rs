//! What all members of a run share: when it starts and ends, its bins, how long receivers listen on, and where
//! sockets are watched.

use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

/// Longest a receiver listens after its flow's end. RFC 2544 section 23 waits as long.
pub const LONGEST_DRAIN: Duration = Duration::from_secs(2);
/// A receiver that hears nothing for this long after its flow's end has heard all.
pub const QUIET: Duration = Duration::from_millis(500);

/// Where a member has its sockets watched.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    epoll: &'a Epoll,
    member: usize,
}

impl<'a> Watch<'a> {
    /// Where a member of this number has them watched.
    pub fn new(epoll: &'a Epoll, member: usize) -> Watch<'a> {
        Watch { epoll, member }
    }

    /// Calls the member for as long as the socket is readable.
    pub fn level(self, socket: impl AsFd) -> io::Result<()> {
        self.add(socket, EpollFlags::EPOLLIN)
    }

    /// Calls the member whenever the socket becomes readable or writable.
    pub fn edges(self, socket: impl AsFd) -> io::Result<()> {
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.add(socket, edges)
    }

    fn add(self, socket: impl AsFd, flags: EpollFlags) -> io::Result<()> {
        Ok(self.epoll.add(socket, EpollEvent::new(flags, self.member as u64))?)
    }
}

/// What holds for all members.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Start of the run.
    pub epoch: Epoch,
    /// Its length.
    pub duration: Duration,
    /// Width of a bin.
    pub interval: Duration,
    /// Set when the run is to end at once.
    pub stop: &'a AtomicBool,
}

/// When bins end.
pub struct Bins {
    /// When the next one does.
    pub next: Instant,
    interval: Duration,
    end: Instant,
}

impl Bins {
    /// The bins of a run.
    pub fn new(interval: Duration, duration: Duration) -> Bins {
        let end = Instant(duration.0);
        let interval = if interval == Duration::ZERO { duration } else { interval };
        Bins { next: (Instant::ZERO + interval).min(end), interval, end }
    }

    /// Goes on to the next.
    pub fn advance(&mut self) {
        self.next =
            if self.next >= self.end { Instant::NEVER } else { (self.next + self.interval).min(self.end) };
    }
}
