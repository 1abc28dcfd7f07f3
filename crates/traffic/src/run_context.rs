//! Context shared by all members of a run: its times, its bins, the drain time of receivers, and the polling of
//! sockets.

use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

pub use netstage_agent_api::results::MAX_DRAIN;
/// Time without packets after the end of its flow at which a receiver is done.
pub const QUIET_TIME: Duration = Duration::from_millis(500);

/// Registration of a member's sockets for polling.
#[derive(Clone, Copy)]
pub struct SocketWatch<'a> {
    epoll: &'a Epoll,
    member: usize,
}

impl<'a> SocketWatch<'a> {
    /// Creates the registration of the member with this number.
    pub fn new(epoll: &'a Epoll, member: usize) -> SocketWatch<'a> {
        SocketWatch { epoll, member }
    }

    /// Calls the member while the socket is readable.
    pub fn add_level_triggered(self, socket: impl AsFd) -> io::Result<()> {
        self.add(socket, EpollFlags::EPOLLIN)
    }

    /// Calls the member whenever the socket becomes readable or writable.
    pub fn add_edge_triggered(self, socket: impl AsFd) -> io::Result<()> {
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.add(socket, edges)
    }

    fn add(self, socket: impl AsFd, flags: EpollFlags) -> io::Result<()> {
        Ok(self.epoll.add(socket, EpollEvent::new(flags, self.member as u64))?)
    }
}

/// Times of a run, shared by all members.
#[derive(Clone, Copy)]
pub struct RunTimes<'a> {
    /// Start of the run.
    pub epoch: Epoch,
    /// Duration of the run.
    pub duration: Duration,
    /// Width of a bin.
    pub interval: Duration,
    /// Set to end the run at once.
    pub stop: &'a AtomicBool,
}

/// End times of the bins of a run.
pub struct BinClock {
    /// End of the current bin, or [`Instant::NEVER`] after the last.
    pub next: Instant,
    interval: Duration,
    end: Instant,
}

impl BinClock {
    /// Starts with the first bin of a run.
    pub fn new(interval: Duration, duration: Duration) -> BinClock {
        let end = Instant(duration.0);
        let interval = if interval == Duration::ZERO { duration } else { interval };
        BinClock { next: (Instant::ZERO + interval).min(end), interval, end }
    }

    /// Advances to the next bin.
    pub fn advance(&mut self) {
        self.next =
            if self.next >= self.end { Instant::NEVER } else { (self.next + self.interval).min(self.end) };
    }
}
