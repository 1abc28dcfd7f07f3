//! One direction of a link in virtual time.
//!
//! A plain channel (drop-tail, nothing random, nothing scheduled) computes a packet's
//! arrival when it enters; everything else runs `core::link`. Both obey the same rules,
//! which a test holds them to.

use crate::bins::{Bins, Grid};
use crate::packet::Packet;
use netstage_core::link::{self, Link};
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// How a channel carries packets.
#[derive(Debug)]
pub enum Kind {
    /// Arrivals are known on entry.
    Plain(Plain),
    /// Everything else.
    Full(Box<Link<Packet>>),
}

/// A channel and what it has counted.
#[derive(Debug)]
pub struct Channel {
    /// How it carries packets.
    pub kind: Kind,
    /// Packets that need an event at the far end, by arrival time. Only plain channels use it.
    pub line: VecDeque<(Instant, Packet)>,
    /// What it has counted.
    pub counts: Counts,
}

/// What a channel counts, per bin.
#[derive(Debug)]
pub struct Counts {
    /// Bytes sent.
    pub bytes: Bins,
    /// Bytes of background flows sent.
    pub background: Bins,
    /// Nanoseconds spent sending.
    pub busy: Bins,
    /// Nanoseconds packets spent waiting, summed over packets.
    pub waiting: Bins,
    /// Packets the queue dropped.
    pub drops: Bins,
    /// Packets lost on the line.
    pub lost: Bins,
    /// Since when a full link's queue has had its present length.
    waiting_since: Instant,
}

/// A first-in first-out line of constant rate and delay.
#[derive(Debug)]
pub struct Plain {
    rate: BitRate,
    delay: Duration,
    overhead: u32,
    buffer: Capacity,
    free_at: Instant,
    /// When each waiting packet starts to be sent, and its size.
    waiting: VecDeque<(Instant, u32)>,
    waiting_bytes: u64,
    /// Transmission times of the two sizes seen last: most packets are full or bare.
    known_times: [(u32, Duration); 2],
}

impl Plain {
    fn new(config: &link::Config) -> Plain {
        Plain {
            rate: config.rate,
            delay: config.delay,
            overhead: config.overhead,
            buffer: config.buffer,
            free_at: Instant::ZERO,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            known_times: [(0, Duration::ZERO); 2],
        }
    }

    #[inline]
    fn transmission_time(&mut self, size: u32) -> Duration {
        for (known, time) in self.known_times {
            if known == size {
                return time;
            }
        }
        let time = self.rate.transmission_time(size + self.overhead);
        self.known_times = [(size, time), self.known_times[0]];
        time
    }

    /// A packet enters at `now`; when it arrives, or `None` if it found no room.
    #[inline]
    pub fn enter(&mut self, counts: &mut Counts, now: Instant, packet: &Packet) -> Option<Instant> {
        let mut start = now;
        if self.free_at > now {
            while let Some(&(begins, size)) = self.waiting.front() {
                if begins > now {
                    break;
                }
                self.waiting.pop_front();
                self.waiting_bytes -= u64::from(size);
            }
            if !self.buffer.admits(self.waiting.len(), self.waiting_bytes, packet.size) {
                counts.drops.add(now, 1);
                return None;
            }
            start = self.free_at;
            self.waiting.push_back((start, packet.size));
            self.waiting_bytes += u64::from(packet.size);
            counts.waiting.spread(now, start);
        } else if !self.waiting.is_empty() {
            self.waiting.clear();
            self.waiting_bytes = 0;
        }
        let end = start + self.transmission_time(packet.size);
        self.free_at = end;
        counts.busy.spread(start, end);
        let bytes = u64::from(packet.size);
        counts.bytes.add(end, bytes);
        if packet.background {
            counts.background.add(end, bytes);
        }
        Some(end + self.delay)
    }
}

impl Channel {
    /// An idle channel; `name` selects its random stream.
    pub fn new(config: &link::Config, plain: bool, seed: u64, name: &str, grid: Grid) -> Channel {
        let kind = if plain {
            Kind::Plain(Plain::new(config))
        } else {
            Kind::Full(Box::new(Link::new(config, Stream::new(seed, name))))
        };
        Channel { kind, line: VecDeque::new(), counts: Counts::new(grid) }
    }
}

impl Counts {
    fn new(grid: Grid) -> Counts {
        let bins = || Bins::new(grid);
        Counts {
            bytes: bins(),
            background: bins(),
            busy: bins(),
            waiting: bins(),
            drops: bins(),
            lost: bins(),
            waiting_since: Instant::ZERO,
        }
    }

    /// Accounts for the time a full link's queue had its present length; call before it changes.
    #[inline]
    pub fn account(&mut self, now: Instant, length: usize) {
        let waited = now.since(self.waiting_since).0 * length as u64;
        if waited > 0 {
            self.waiting.add(self.waiting_since, waited);
        }
        self.waiting_since = now;
    }
}
