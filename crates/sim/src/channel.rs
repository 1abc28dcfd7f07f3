//! One direction of a link in virtual time.
//!
//! A plain channel (drop-tail, no randomness, no schedule) computes the arrival of a packet when it enters.
//! All other channels run `core::link`. A test checks that both follow the same rules.

use crate::bins::{BinnedSum, Grid};
use crate::packet::SimulatedPacket;
use netstage_core::link::{self, LinkDirection};
use netstage_core::packet::FULL_PACKET;
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Implementation of a channel.
#[derive(Debug)]
pub enum ChannelKind {
    /// Channel that computes arrivals on entry.
    Plain(PlainChannel),
    /// Any other channel.
    Full(Box<LinkDirection<SimulatedPacket>>),
}

/// A channel and its counters.
#[derive(Debug)]
pub struct Channel {
    /// Implementation of the channel.
    pub kind: ChannelKind,
    /// Packets that need an event at the far end, sorted by arrival time. Used by plain channels only.
    pub line: VecDeque<(Instant, SimulatedPacket)>,
    /// Source that emits its next packet when one of its packets leaves the line.
    pub pull: Option<u32>,
    /// Counters of the channel.
    pub counts: ChannelCounters,
    /// Delay of a host before it sends into the channel.
    pub host: Option<Box<HostDelay>>,
}

/// Random delay of a host: uniform, up to the time of a full packet on its line. Without it, flows whose packets take
/// the same time remain in phase, and a full queue always drops those of the same flow (Floyd and Jacobson 1992,
/// "On traffic phase effects in packet-switched gateways").
#[derive(Debug)]
pub struct HostDelay {
    stream: RandomStream,
    limit: u64,
    /// Time at which the last delayed packet leaves. Later ones do not overtake it.
    pub last: Instant,
}

/// Counters of a channel, per bin.
#[derive(Debug)]
pub struct ChannelCounters {
    /// Sums updated by every packet. A full link counts its bytes and its transmission time itself.
    pub traffic: BinnedTraffic,
    /// Packets the queue dropped.
    pub drops: BinnedSum,
    /// Packets lost on the line.
    pub lost: BinnedSum,
    /// Time at which the queue length of a full link last changed.
    waiting_since: Instant,
}

/// Sums updated by every packet, kept together because they are accessed at every hop.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrafficSums {
    /// Bytes sent.
    pub bytes: u64,
    /// Bytes of background flows sent.
    pub background: u64,
    /// Transmission time, nanoseconds.
    pub busy: u64,
    /// Waiting time summed over packets, nanoseconds.
    pub waiting: u64,
}

/// [`TrafficSums`] per bin. Packets are added in chronological order.
#[derive(Debug)]
pub struct BinnedTraffic {
    bins: Vec<TrafficSums>,
    interval: u64,
    /// Bin of the last packet sent, and its start and end.
    at: usize,
    from: u64,
    to: u64,
}

/// A first-in first-out line with constant rate and delay.
#[derive(Debug)]
pub struct PlainChannel {
    rate: BitRate,
    delay: Duration,
    overhead: u32,
    buffer: Capacity,
    free_at: Instant,
    /// Start of transmission and size of each waiting packet.
    waiting: VecDeque<(Instant, u32)>,
    waiting_bytes: u64,
    /// Transmission times of the last two sizes, since most packets are full segments or bare headers.
    known_times: [(u32, Duration); 2],
}

impl PlainChannel {
    fn new(config: &link::LinkDirectionConfig) -> PlainChannel {
        PlainChannel {
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

    /// Returns whether the queue has no room for another packet of a host that asks before it sends.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.start_due_packets(now);
        match self.buffer {
            Capacity::Packets(max) => self.waiting.len() > max as usize,
            Capacity::Bytes(max) => self.waiting_bytes > max,
        }
    }

    /// Removes packets whose transmission has started from the queue.
    #[inline]
    fn start_due_packets(&mut self, now: Instant) {
        while let Some(&(begins, size)) = self.waiting.front() {
            if begins > now {
                break;
            }
            self.waiting.pop_front();
            self.waiting_bytes -= u64::from(size);
        }
    }

    /// Enqueues a packet at `now` and returns its arrival time, or `None` if the buffer is full. A packet
    /// that is `kept` waits at its origin and takes no buffer space.
    #[inline]
    pub fn enter(
        &mut self,
        counts: &mut ChannelCounters,
        now: Instant,
        packet: &SimulatedPacket,
        kept: bool,
    ) -> Option<Instant> {
        let mut start = now;
        if self.free_at > now {
            self.start_due_packets(now);
            if !kept && !self.buffer.admits(self.waiting.len(), self.waiting_bytes, packet.size) {
                counts.drops.add(now, 1);
                return None;
            }
            start = self.free_at;
            self.waiting.push_back((start, packet.size));
            self.waiting_bytes += u64::from(packet.size);
        } else if !self.waiting.is_empty() {
            self.waiting.clear();
            self.waiting_bytes = 0;
        }
        let end = start + self.transmission_time(packet.size);
        self.free_at = end;
        counts.traffic.add(now, start, end, packet);
        Some(end + self.delay)
    }
}

impl Channel {
    /// Creates an idle channel; `name` selects its random stream.
    pub fn new(
        config: &link::LinkDirectionConfig,
        plain: bool,
        seed: u64,
        name: &str,
        grid: Grid,
    ) -> Channel {
        let kind = if plain {
            ChannelKind::Plain(PlainChannel::new(config))
        } else {
            ChannelKind::Full(Box::new(LinkDirection::new(config, RandomStream::new(seed, name))))
        };
        Channel { kind, line: VecDeque::new(), pull: None, counts: ChannelCounters::new(grid), host: None }
    }

    /// Makes the host that sends into this channel delay its TCP segments by up to a packet's time on a line, if the
    /// channel is plain: all others process packets in the order of time.
    pub fn delay_at_host(&mut self, seed: u64, name: &str, line: &link::LinkDirectionConfig) {
        if let ChannelKind::Plain(_) = &self.kind {
            let limit = line.rate.transmission_time(FULL_PACKET + line.overhead).0.max(1);
            let stream = RandomStream::new(seed, &format!("host.{name}"));
            self.host = Some(Box::new(HostDelay { stream, limit, last: Instant::ZERO }));
        }
    }
}

impl HostDelay {
    /// Draws the delay of a packet that the host sends at `now`.
    #[inline]
    pub fn delay(&mut self, now: Instant) {
        self.last = self.last.max(now + Duration(self.stream.below(self.limit)));
    }
}

impl ChannelCounters {
    fn new(grid: Grid) -> ChannelCounters {
        ChannelCounters {
            traffic: BinnedTraffic::new(grid),
            drops: BinnedSum::new(grid),
            lost: BinnedSum::new(grid),
            waiting_since: Instant::ZERO,
        }
    }

    /// Adds the waiting time of a full link's queue at its current length. Must be called before the length
    /// changes.
    #[inline]
    pub fn account(&mut self, now: Instant, length: usize) {
        self.traffic.spread(self.waiting_since.0, now.0, |sums, span| sums.waiting += span * length as u64);
        self.waiting_since = now;
    }
}

impl BinnedTraffic {
    fn new(grid: Grid) -> BinnedTraffic {
        // One extra bin for values after the last whole bin.
        let bins = vec![TrafficSums::default(); grid.bins + 1];
        BinnedTraffic { bins, interval: grid.interval.0, at: 0, from: 0, to: grid.interval.0 }
    }

    /// Adds a packet that arrived at `now` and was sent from `start` to `end`.
    #[inline]
    fn add(&mut self, now: Instant, start: Instant, end: Instant, packet: &SimulatedPacket) {
        self.arrive(end, packet);
        if now.0 >= self.from && end.0 <= self.to {
            let sums = &mut self.bins[self.at];
            sums.busy += end.0 - start.0;
            sums.waiting += start.0 - now.0;
        } else {
            self.spread(start.0, end.0, |sums, span| sums.busy += span);
            self.spread(now.0, start.0, |sums, span| sums.waiting += span);
        }
    }

    /// Adds the bytes of a packet at `time`.
    #[inline]
    fn arrive(&mut self, time: Instant, packet: &SimulatedPacket) {
        while time.0 >= self.to && self.at + 1 < self.bins.len() {
            self.at += 1;
            self.from = self.to;
            self.to = if self.at + 1 == self.bins.len() { u64::MAX } else { self.to + self.interval };
        }
        let sums = &mut self.bins[self.at];
        let bytes = u64::from(packet.size);
        sums.bytes += bytes;
        sums.background += if packet.background { bytes } else { 0 };
    }

    /// Splits the span [from, to) at the boundaries of bins.
    fn spread(&mut self, from: u64, to: u64, add: impl Fn(&mut TrafficSums, u64)) {
        let last = self.bins.len() - 1;
        let mut start = from;
        while start < to {
            let bin = ((start / self.interval) as usize).min(last);
            let edge = if bin == last { u64::MAX } else { (bin as u64 + 1) * self.interval };
            let end = to.min(edge);
            add(&mut self.bins[bin], end - start);
            start = end;
        }
    }

    /// Returns one of the sums per whole bin, converted to a float and multiplied by `scale`.
    pub fn scaled(&self, pick: fn(&TrafficSums) -> u64, scale: f64) -> Vec<f64> {
        self.bins[..self.bins.len() - 1].iter().map(|sums| pick(sums) as f64 * scale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::PacketBody;
    use netstage_core::packet::Ecn;

    fn config(rate: u64, delay: u64, buffer: Capacity) -> link::LinkDirectionConfig {
        link::LinkDirectionConfig {
            overhead: 18,
            ..link::LinkDirectionConfig::plain(BitRate(rate), Duration(delay), buffer)
        }
    }

    #[test]
    fn spans_are_split_at_bin_boundaries() {
        let mut traffic = BinnedTraffic::new(Grid { interval: Duration(10), bins: 3 });
        for (from, to) in [(4, 25), (26, 28), (28, 99)] {
            traffic.spread(from, to, |sums, span| sums.busy += span);
        }
        assert_eq!(traffic.scaled(|sums| sums.busy, 1.0), [6.0, 10.0, 5.0 + 2.0 + 2.0]);
    }

    /// Sends the same arrivals through a plain channel and through the reference link.
    #[test]
    fn plain_channel_matches_the_core_link() {
        let grid = Grid { interval: Duration(1_000_000), bins: 50 };
        for case in 0..200 {
            let mut stream = RandomStream::new(case, "arrivals");
            let buffer = match case % 3 {
                0 => Capacity::Packets(stream.next_u64() as u32 % 20),
                1 => Capacity::Bytes(stream.next_u64() % 20_000),
                _ => Capacity::Packets(1_000),
            };
            let config =
                config(1_000_000 + stream.next_u64() % 100_000_000, stream.next_u64() % 5_000_000, buffer);
            let mut link: LinkDirection<SimulatedPacket> =
                LinkDirection::new(&config, RandomStream::new(case, "link"));
            let mut channel = Channel::new(&config, true, case, "channel", grid);
            let ChannelKind::Plain(plain) = &mut channel.kind else { unreachable!() };
            let (mut ours, mut reference, mut dropped) = (Vec::new(), Vec::new(), 0u64);
            let mut now = Instant::ZERO;
            for number in 0..500 {
                // Every tenth packet arrives together with the previous one, to test ties.
                if number % 10 != 0 {
                    now += Duration::from_secs_f64(stream.exponential(200e-6));
                }
                let size = 40 + stream.next_u64() as u32 % 1_460;
                let background = stream.chance(0.3);
                let packet = SimulatedPacket {
                    step: 0,
                    flow: number,
                    size,
                    class: 0,
                    ecn: Ecn::NotCapable,
                    background,
                    body: PacketBody::Datagram { sent: Instant::ZERO, number, wrong_bits: 0 },
                };
                if let Some(at) = plain.enter(&mut channel.counts, now, &packet, false) {
                    ours.push((at, number));
                }
                link.handle_timeout(now);
                link.handle_packet(now, packet);
                while link.poll_loss().is_some() {
                    dropped += 1;
                }
            }
            while let Some(arrival) = link.poll_arrival(Instant(u64::MAX - 1)) {
                reference.push((arrival.at, arrival.packet.flow));
            }
            assert_eq!(ours, reference, "case {case}");
            assert_eq!(dropped, 500 - ours.len() as u64);
            let busy: f64 = channel.counts.traffic.bins.iter().map(|sums| sums.busy as f64).sum();
            assert_eq!(busy, link.busy(Instant(u64::MAX - 1)).0 as f64, "case {case}");
        }
    }
}
