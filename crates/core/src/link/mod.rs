//! One direction of a link: a queue, a line that sends one packet at a time, and the way
//! to the far end. Queue disciplines are [`crate::queue`]'s.

mod flight;
mod impairment;

pub use impairment::{Fate, Impairment};

use crate::packet::Packet;
use crate::quantity::{BitRate, Capacity};
use crate::queue::{self, Queue};
use crate::rng::Stream;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use flight::Flight;
use serde::{Deserialize, Serialize};

/// One direction of a link, as a scenario gives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Rate at the IP layer plus `overhead` per packet.
    pub rate: BitRate,
    /// One-way propagation delay.
    pub delay: Duration,
    /// What may wait before the line.
    pub buffer: Capacity,
    /// Who waits and who is dropped.
    pub queue: queue::Config,
    /// Bytes of framing each packet adds on the line.
    pub overhead: u32,
    /// Probability that a packet is lost, each by itself.
    pub loss: f64,
    /// Probability that a bit is flipped; a packet with a flipped bit is lost to its receiver.
    pub bit_error_rate: f64,
    /// Random extra delay.
    pub jitter: Jitter,
    /// Probability that a packet is delivered twice.
    pub duplicate: f64,
    /// Changes over time, in order of time.
    pub schedule: Vec<(Instant, Change)>,
}

impl Config {
    /// A drop-tail line without framing, impairments or changes.
    pub fn plain(rate: BitRate, delay: Duration, buffer: Capacity) -> Config {
        Config {
            rate,
            delay,
            buffer,
            queue: queue::Config::DropTail,
            overhead: 0,
            loss: 0.0,
            bit_error_rate: 0.0,
            jitter: Jitter {
                amount: Duration::ZERO,
                distribution: JitterDistribution::Uniform,
                reorder: false,
            },
            duplicate: 0.0,
            schedule: Vec::new(),
        }
    }
}

/// Random extra delay of each packet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Jitter {
    /// Largest extra delay (uniform) or its mean (exponential).
    pub amount: Duration,
    /// How it is spread.
    pub distribution: JitterDistribution,
    /// Whether a packet may overtake an earlier one.
    pub reorder: bool,
}

/// How jitter is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JitterDistribution {
    /// Uniform in [0, amount].
    Uniform,
    /// Exponential with mean `amount`.
    Exponential,
}

/// A change of a link at a moment; what is `None` stays as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// New rate.
    pub rate: Option<BitRate>,
    /// New one-way delay.
    pub delay: Option<Duration>,
    /// New loss probability.
    pub loss: Option<f64>,
    /// New bit error rate.
    pub bit_error_rate: Option<f64>,
    /// False: the link fails, what is queued or on the line is lost. True: it returns.
    pub up: Option<bool>,
}

/// One direction of a link.
///
/// Give it packets with [`handle_packet`](Link::handle_packet), call
/// [`handle_timeout`](Link::handle_timeout) when [`poll_timeout`](Link::poll_timeout)
/// says so, and after either take what [`poll_arrival`](Link::poll_arrival) and
/// [`poll_loss`](Link::poll_loss) hold. Times must not go back. A late call changes
/// nothing but its own lateness: whatever was due before it happens at its own time.
///
/// **Line.** Store and forward: the line sends one packet at a time, each for
/// `rate.transmission_time(size + overhead)`; a packet arrives whole, `delay` after its
/// last bit was sent. The buffer does not count the packet being sent, and a packet that
/// meets a free line is sent whatever the buffer holds.
///
/// **Order at one instant.** Packets reach the far end, then the line falls free and takes
/// the next packet, then the link changes by its schedule, then a new packet is handled.
///
/// **Impairments** strike a packet when its last bit leaves the line, with the delay and
/// probabilities in force then ([`Impairment`]). Jitter keeps packets in order, by holding
/// back a packet until the one before it arrives, unless `reorder` is set; so does a delay
/// that becomes shorter. A duplicate arrives at the same instant as its original, bit
/// errors included.
///
/// **Changes.** A new rate applies to the bits that the packet on the line has still to
/// send. A new delay applies to packets that leave the line from then on. A failure loses
/// the packets waiting, on the line and under way to the far end, and every packet given
/// to the link until it returns.
///
/// **Random streams.** The impairments draw from the stream given; the queue draws from
/// its fork "queue".
#[derive(Clone, Debug)]
pub struct Link<P> {
    queue: Queue<P>,
    line: Option<Transmission<P>>,
    flight: Flight<P>,
    losses: VecDeque<(P, Loss)>,
    impairment: Impairment,
    rate: BitRate,
    delay: Duration,
    overhead: u32,
    up: bool,
    /// What is still to come, the next change last.
    schedule: Vec<(Instant, Change)>,
    /// When the line falls free or the schedule changes the link, whichever is first.
    next_step: Instant,
    busy: Duration,
}

/// A packet at the far end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival<P> {
    /// The packet, as it was sent.
    pub packet: P,
    /// When its last bit arrived.
    pub at: Instant,
    /// Bits flipped on the way: a driver with real frames flips that many, another takes
    /// the packet for lost to its receiver.
    pub bit_errors: u32,
}

/// Why a link lost a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Dropped by the queue.
    Queue,
    /// Lost on the line, by `loss`.
    Line,
    /// The link failed, or was down when the packet came.
    Down,
}

#[derive(Clone, Debug)]
struct Transmission<P> {
    packet: P,
    started: Instant,
    ends: Instant,
}

impl<P: Packet + Clone> Link<P> {
    /// A link that is up and empty.
    pub fn new(config: &Config, rng: Stream) -> Link<P> {
        let mut schedule = config.schedule.clone();
        schedule.sort_by_key(|&(time, _)| time);
        schedule.reverse();
        let mut link = Link {
            queue: Queue::new(&config.queue, config.buffer, rng.fork("queue")),
            line: None,
            flight: Flight::new(config.jitter.reorder),
            losses: VecDeque::new(),
            impairment: Impairment::new(config, rng),
            rate: config.rate,
            delay: config.delay,
            overhead: config.overhead,
            up: true,
            schedule,
            next_step: Instant::NEVER,
            busy: Duration::ZERO,
        };
        link.plan_step();
        link
    }

    /// A packet enters the link.
    #[inline]
    pub fn handle_packet(&mut self, now: Instant, packet: P) {
        self.handle_timeout(now);
        if !self.up {
            self.losses.push_back((packet, Loss::Down));
        } else if self.line.is_some() {
            let losses = &mut self.losses;
            self.queue.enqueue(now, packet, &mut |packet| losses.push_back((packet, Loss::Queue)));
        } else {
            let losses = &mut self.losses;
            let next = self.queue.pass(now, packet, &mut |packet| losses.push_back((packet, Loss::Queue)));
            self.send(now, next);
        }
    }

    /// The time is `now`: do what was due by then.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.next_step <= now && self.next_step != Instant::NEVER {
            let step = self.next_step;
            match self.line.take_if(|sending| sending.ends <= step) {
                Some(sent) => self.finish(sent),
                None => self.change(step),
            }
        }
    }

    /// When to call again: the line falls free, a packet arrives or the schedule changes
    /// the link; [`Instant::NEVER`] if nothing is to come.
    #[inline]
    pub fn poll_timeout(&self) -> Instant {
        self.next_step.min(self.flight.next_arrival())
    }

    /// When the line falls free or the schedule changes the link: the queue and what has
    /// been lost change at no other time but when a packet enters.
    #[inline]
    pub fn next_step(&self) -> Instant {
        self.next_step
    }

    /// The next packet that has reached the far end by `now`.
    #[inline]
    pub fn poll_arrival(&mut self, now: Instant) -> Option<Arrival<P>> {
        self.handle_timeout(now);
        self.flight.pop(now)
    }

    /// The next packet that was lost, in the order of losses.
    #[inline]
    pub fn poll_loss(&mut self) -> Option<(P, Loss)> {
        self.losses.pop_front()
    }

    /// Packets waiting, without the one being sent.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Bytes waiting, at the IP layer, without the packet being sent.
    pub fn queue_bytes(&self) -> u64 {
        self.queue.bytes()
    }

    /// Packets the queue has marked for congestion.
    pub fn marks(&self) -> u64 {
        self.queue.marks()
    }

    /// Packets being sent or under way to the far end; arrivals not yet taken are among them.
    pub fn in_flight(&self) -> usize {
        usize::from(self.line.is_some()) + self.flight.len()
    }

    /// How long the line has been sending, up to `now`.
    pub fn busy(&self, now: Instant) -> Duration {
        match &self.line {
            Some(sending) => self.busy + now.since(sending.started),
            None => self.busy,
        }
    }

    /// Whether the link is up.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// The present rate.
    pub fn rate(&self) -> BitRate {
        self.rate
    }

    /// The last bit of a packet has left the line.
    #[inline]
    fn finish(&mut self, sent: Transmission<P>) {
        let now = sent.ends;
        self.busy = self.busy + now.since(sent.started);
        let fate = self.impairment.next(sent.packet.size());
        if fate.lost {
            self.losses.push_back((sent.packet, Loss::Line));
        } else {
            let at = now + self.delay + fate.extra_delay;
            let copy = fate.duplicate.then(|| sent.packet.clone());
            self.flight.push(sent.packet, at, fate.bit_errors);
            if let Some(packet) = copy {
                self.flight.push(packet, at, fate.bit_errors);
            }
        }
        let losses = &mut self.losses;
        let next = self.queue.dequeue(now, &mut |packet| losses.push_back((packet, Loss::Queue)));
        self.send(now, next);
    }

    /// Put a packet on the free line, if there is one.
    #[inline]
    fn send(&mut self, now: Instant, packet: Option<P>) {
        self.line = packet.map(|packet| {
            let ends = now + self.rate.transmission_time(packet.size() + self.overhead);
            Transmission { packet, started: now, ends }
        });
        self.plan_step();
    }

    #[inline]
    fn plan_step(&mut self) {
        let free = self.line.as_ref().map_or(Instant::NEVER, |sending| sending.ends);
        let change = self.schedule.last().map_or(Instant::NEVER, |&(time, _)| time);
        self.next_step = free.min(change);
    }

    /// The next change of the schedule, which is due `now`.
    fn change(&mut self, now: Instant) {
        if let Some((_, change)) = self.schedule.pop() {
            if let Some(rate) = change.rate {
                self.change_rate(now, rate);
            }
            self.delay = change.delay.unwrap_or(self.delay);
            if let Some(loss) = change.loss {
                self.impairment.set_loss(loss);
            }
            if let Some(bit_error_rate) = change.bit_error_rate {
                self.impairment.set_bit_error_rate(bit_error_rate);
            }
            match change.up {
                Some(true) => self.up = true,
                Some(false) => self.fail(now),
                None => {}
            }
        }
        self.plan_step();
    }

    fn change_rate(&mut self, now: Instant, rate: BitRate) {
        if let Some(sending) = &mut self.line {
            let unsent = u128::from(sending.ends.since(now).0) * u128::from(self.rate.0);
            let left = unsent.div_ceil(u128::from(rate.0));
            sending.ends = now + Duration(u64::try_from(left).unwrap_or(u64::MAX));
        }
        self.rate = rate;
    }

    fn fail(&mut self, now: Instant) {
        self.up = false;
        let losses = &mut self.losses;
        let mut lose = |packet| losses.push_back((packet, Loss::Down));
        self.flight.fail(now, &mut lose);
        if let Some(sending) = self.line.take() {
            self.busy = self.busy + now.since(sending.started);
            lose(sending.packet);
        }
        self.queue.clear(now, &mut lose);
    }
}
