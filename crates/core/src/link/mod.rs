//! One direction of a link: a queue, a line that sends one packet at a time, and the propagation to the far
//! end. Queue disciplines are in [`crate::queue`].

mod flight;
mod impairment;

pub use impairment::{Impairment, PacketImpairment};

use crate::packet::QueuePacket;
use crate::quantity::{BitRate, Capacity};
use crate::queue::{self, PacketQueue};
use crate::rng::RandomStream;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use flight::PropagationQueue;
use serde::{Deserialize, Serialize};

/// Configuration of one direction of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkDirectionConfig {
    /// Rate at the IP layer plus `overhead` per packet.
    pub rate: BitRate,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Capacity of the queue.
    pub buffer: Capacity,
    /// Queue discipline.
    pub queue: queue::QueueConfig,
    /// Framing overhead per packet on the line, bytes.
    pub overhead: u32,
    /// Probability that a packet is lost, independent of other packets.
    pub loss: f64,
    /// Probability that a bit is flipped; the receiver discards a packet with a flipped bit.
    pub bit_error_rate: f64,
    /// Random extra delay.
    pub jitter: Jitter,
    /// Probability that a packet is delivered twice.
    pub duplicate: f64,
    /// Scheduled changes.
    pub schedule: Vec<(Instant, LinkChange)>,
}

impl LinkDirectionConfig {
    /// Creates a drop-tail link without framing, impairments or changes.
    pub fn plain(rate: BitRate, delay: Duration, buffer: Capacity) -> LinkDirectionConfig {
        LinkDirectionConfig {
            rate,
            delay,
            buffer,
            queue: queue::QueueConfig::DropTail,
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

    /// Returns the time from which the link delivers no packet at all, if there is one: it has failed, or loses every
    /// packet.
    pub fn cut_from(&self) -> Option<Instant> {
        let (mut up, mut loss, mut bit_error_rate) = (true, self.loss, self.bit_error_rate);
        let is_cut = |up: bool, loss: f64, bit_error_rate: f64| !up || loss >= 1.0 || bit_error_rate >= 1.0;
        let mut from = is_cut(up, loss, bit_error_rate).then_some(Instant::ZERO);
        for (at, change) in &self.schedule {
            up = change.up.unwrap_or(up);
            loss = change.loss.unwrap_or(loss);
            bit_error_rate = change.bit_error_rate.unwrap_or(bit_error_rate);
            from = is_cut(up, loss, bit_error_rate).then_some(from.unwrap_or(*at));
        }
        from
    }
}

/// Random extra delay of each packet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Jitter {
    /// Maximum extra delay (uniform) or mean extra delay (exponential).
    pub amount: Duration,
    /// Distribution of the extra delay.
    pub distribution: JitterDistribution,
    /// Reordering: a packet may overtake an earlier one.
    pub reorder: bool,
}

/// Distribution of jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JitterDistribution {
    /// Uniform in [0, amount].
    Uniform,
    /// Exponential with mean `amount`.
    Exponential,
}

/// A scheduled change of a link; `None` leaves a value unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkChange {
    /// New rate.
    pub rate: Option<BitRate>,
    /// New one-way delay.
    pub delay: Option<Duration>,
    /// New loss probability.
    pub loss: Option<f64>,
    /// New bit error rate.
    pub bit_error_rate: Option<f64>,
    /// New state: `false` is a failure, which loses all packets of the link; `true` ends it.
    pub up: Option<bool>,
}

/// One direction of a link.
///
/// Pass packets to [`handle_packet`](LinkDirection::handle_packet), and call
/// [`handle_timeout`](LinkDirection::handle_timeout) at [`poll_timeout`](LinkDirection::poll_timeout). After each call, call
/// [`poll_arrival`](LinkDirection::poll_arrival) and [`poll_loss`](LinkDirection::poll_loss) until they return `None`. Times
/// must not decrease. A late call does not change the results: events that were due before it are processed
/// at their own times.
///
/// **Line.** Store and forward: the line sends one packet at a time, for
/// `rate.transmission_time(size + overhead)`; the packet arrives `delay` after its last bit was sent. The
/// buffer does not count the packet being sent, and a packet that finds the line idle is sent even if the
/// buffer has no room for it.
///
/// **Order at one instant.** First packets reach the far end, then the line becomes idle and takes the next
/// packet, then the scheduled change applies, then a new packet is handled.
///
/// **Impairments** apply when the last bit of a packet leaves the line, with the delay and probabilities in
/// effect at that time ([`Impairment`]). Unless `reorder` is set, packets stay in order in spite of jitter
/// and of a shorter delay: a packet is held until the one before it arrives. A duplicate arrives at the same
/// time as its original, with the same bit errors.
///
/// **Changes.** A new rate applies to the unsent bits of the packet on the line. A new delay applies to
/// packets that leave the line afterwards. A failure loses all packets in the queue, on the line and in
/// propagation, and those that enter until the link is up again.
///
/// **Random streams.** The impairments draw from the given stream, the queue from its fork "queue".
#[derive(Clone, Debug)]
pub struct LinkDirection<P> {
    queue: PacketQueue<P>,
    line: Option<Transmission<P>>,
    flight: PropagationQueue<P>,
    losses: VecDeque<(P, LinkLoss)>,
    impairment: Impairment,
    rate: BitRate,
    delay: Duration,
    overhead: u32,
    up: bool,
    /// Pending changes in reverse order.
    schedule: Vec<(Instant, LinkChange)>,
    /// Time at which the line becomes idle or the next change applies, whichever is earlier.
    next_step: Instant,
    busy: Duration,
    carried: CarriedBytes,
    duplicated: u64,
}

/// Bytes at the IP layer that a line has transmitted, including those of packets lost on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarriedBytes {
    /// All bytes.
    pub total: u64,
    /// Bytes of background load.
    pub background: u64,
}

/// A packet at the far end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkArrival<P> {
    /// The packet, unchanged.
    pub packet: P,
    /// Arrival time of its last bit.
    pub at: Instant,
    /// Number of flipped bits. A driver with real frames flips as many; other drivers count the packet as
    /// lost.
    pub bit_errors: u32,
}

/// Reason for the loss of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLoss {
    /// Dropped by the queue.
    Queue,
    /// Lost at random, with the probability `loss`.
    Line,
    /// The link failed, or was down when the packet entered.
    Down,
}

#[derive(Clone, Debug)]
struct Transmission<P> {
    packet: P,
    started: Instant,
    ends: Instant,
}

impl<P: QueuePacket + Clone> LinkDirection<P> {
    /// Creates a link that is up and empty.
    pub fn new(config: &LinkDirectionConfig, rng: RandomStream) -> LinkDirection<P> {
        let mut schedule = config.schedule.clone();
        schedule.sort_by_key(|&(time, _)| time);
        schedule.reverse();
        let mut link = LinkDirection {
            queue: PacketQueue::new(&config.queue, config.buffer, rng.fork("queue")),
            line: None,
            flight: PropagationQueue::new(config.jitter.reorder),
            losses: VecDeque::new(),
            impairment: Impairment::new(config, rng),
            rate: config.rate,
            delay: config.delay,
            overhead: config.overhead,
            up: true,
            schedule,
            next_step: Instant::NEVER,
            busy: Duration::ZERO,
            carried: CarriedBytes::default(),
            duplicated: 0,
        };
        link.plan_step();
        link
    }

    /// Handles a packet that enters the link.
    #[inline]
    pub fn handle_packet(&mut self, now: Instant, packet: P) {
        self.handle_timeout(now);
        if !self.up {
            self.losses.push_back((packet, LinkLoss::Down));
        } else if self.line.is_some() {
            let losses = &mut self.losses;
            self.queue.enqueue(now, packet, &mut |packet| losses.push_back((packet, LinkLoss::Queue)));
        } else {
            let losses = &mut self.losses;
            let next =
                self.queue.pass(now, packet, &mut |packet| losses.push_back((packet, LinkLoss::Queue)));
            self.send(now, next);
        }
    }

    /// Processes everything that is due by `now`.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.next_step <= now && self.next_step != Instant::NEVER {
            let step = self.next_step;
            match self.line.take_if(|sending| sending.ends <= step) {
                Some(sent) => self.finish(sent),
                None => self.apply_change(step),
            }
        }
    }

    /// Returns the time of the next arrival, end of a transmission or scheduled change; [`Instant::NEVER`]
    /// if none is pending.
    #[inline]
    pub fn poll_timeout(&self) -> Instant {
        self.next_step.min(self.flight.next_arrival())
    }

    /// Returns the time of the next end of a transmission or scheduled change. Except at this time, the queue
    /// and the losses change only when a packet enters.
    #[inline]
    pub fn next_step(&self) -> Instant {
        self.next_step
    }

    /// Returns the next packet that has reached the far end by `now`.
    #[inline]
    pub fn poll_arrival(&mut self, now: Instant) -> Option<LinkArrival<P>> {
        self.handle_timeout(now);
        self.flight.pop(now)
    }

    /// Returns the next lost packet, in the order of the losses.
    #[inline]
    pub fn poll_loss(&mut self) -> Option<(P, LinkLoss)> {
        self.losses.pop_front()
    }

    /// Returns the number of queued packets, without the one being sent.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of queued bytes at the IP layer, without the packet being sent.
    pub fn queue_bytes(&self) -> u64 {
        self.queue.bytes()
    }

    /// Returns the number of packets that the queue has marked for congestion.
    pub fn marks(&self) -> u64 {
        self.queue.marks()
    }

    /// Returns the number of packets on the line or in propagation, including arrivals not yet polled.
    pub fn in_flight(&self) -> usize {
        usize::from(self.line.is_some()) + self.flight.len()
    }

    /// Returns the total transmission time of the line up to `now`.
    pub fn busy(&self, now: Instant) -> Duration {
        match &self.line {
            Some(sending) => self.busy + now.since(sending.started),
            None => self.busy,
        }
    }

    /// Returns whether the link is up.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Returns the bytes of all packets transmitted so far, each counted at the end of its transmission.
    pub fn carried(&self) -> CarriedBytes {
        self.carried
    }

    /// Returns the number of packets delivered twice.
    pub fn duplicated(&self) -> u64 {
        self.duplicated
    }

    /// Returns the current rate.
    pub fn rate(&self) -> BitRate {
        self.rate
    }

    /// Handles the end of a transmission.
    #[inline]
    fn finish(&mut self, sent: Transmission<P>) {
        let now = sent.ends;
        self.busy = self.busy + now.since(sent.started);
        let size = u64::from(sent.packet.size());
        self.carried.total += size;
        self.carried.background += if sent.packet.is_background() { size } else { 0 };
        let fate = self.impairment.next(sent.packet.size());
        if fate.lost {
            self.losses.push_back((sent.packet, LinkLoss::Line));
        } else {
            let at = now + self.delay + fate.extra_delay;
            let copy = fate.duplicate.then(|| sent.packet.clone());
            self.flight.push(sent.packet, at, fate.bit_errors);
            if let Some(packet) = copy {
                self.duplicated += 1;
                self.flight.push(packet, at, fate.bit_errors);
            }
        }
        let losses = &mut self.losses;
        let next = self.queue.dequeue(now, &mut |packet| losses.push_back((packet, LinkLoss::Queue)));
        self.send(now, next);
    }

    /// Starts the transmission of a packet, if any, on the idle line.
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
        let idle = self.line.as_ref().map_or(Instant::NEVER, |sending| sending.ends);
        let change = self.schedule.last().map_or(Instant::NEVER, |&(time, _)| time);
        self.next_step = idle.min(change);
    }

    /// Applies the next scheduled change, which is due `now`.
    fn apply_change(&mut self, now: Instant) {
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
            let remaining = unsent.div_ceil(u128::from(rate.0));
            sending.ends = now + Duration(u64::try_from(remaining).unwrap_or(u64::MAX));
        }
        self.rate = rate;
    }

    fn fail(&mut self, now: Instant) {
        self.up = false;
        let losses = &mut self.losses;
        let mut lose = |packet| losses.push_back((packet, LinkLoss::Down));
        self.flight.fail(now, &mut lose);
        if let Some(sending) = self.line.take() {
            self.busy = self.busy + now.since(sending.started);
            lose(sending.packet);
        }
        self.queue.clear(now, &mut lose);
    }
}
