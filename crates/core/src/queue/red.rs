//! Random early detection (Floyd and Jacobson, "Random Early Detection Gateways for
//! Congestion Avoidance", IEEE/ACM ToN 1(4), 1993), in the gentle variant (Floyd 2000).
//!
//! Thresholds and average are in packets. Each arrival moves the average by `weight` toward the queue length.
//! After an idle time the average decays as if typical packets had arrived at an empty queue throughout. The
//! transmission time of a typical packet is measured as the smoothed time between departures under backlog.
//! Before the first measurement, an idle time counts as one packet.
//!
//! Between the thresholds the drop probability p rises to `max_probability`, and above the upper threshold to
//! 1 at twice that threshold. The probability of a packet is p / (1 − count·p), where `count` is the number of
//! packets since the last drop, which spaces drops evenly. Below the upper threshold, ECN-capable packets are
//! marked instead; above it they are dropped like others (RFC 3168 section 7).

use super::{DropTail, RedConfig, mark};
use crate::packet::QueuePacket;
use crate::quantity::Capacity;
use crate::rng::RandomStream;
use crate::time::{Duration, Instant};

/// A FIFO queue with RED; an arrival that does not fit the buffer is dropped.
#[derive(Clone, Debug)]
pub struct Red<P> {
    config: RedConfig,
    rng: RandomStream,
    waiting: DropTail<P>,
    marks: u64,
    average: f64,
    /// Packets since the last drop or mark; −1 while the average is below the threshold.
    count: i64,
    /// Time since which the queue is empty; invalid while packets wait.
    empty_since: Instant,
    last_departure: Option<Instant>,
    /// Smoothed time between departures under backlog, nanoseconds; 0 before the first measurement.
    packet_time: f64,
}

impl<P: QueuePacket> Red<P> {
    pub(super) fn new(config: RedConfig, buffer: Capacity, rng: RandomStream) -> Red<P> {
        Red {
            config,
            rng,
            waiting: DropTail::new(buffer),
            marks: 0,
            average: 0.0,
            count: -1,
            empty_since: Instant::ZERO,
            last_departure: None,
            packet_time: 0.0,
        }
    }

    pub(super) fn enqueue(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) {
        match self.arrive(now, packet) {
            Ok(packet) => self.waiting.enqueue(now, packet, dropped),
            Err(packet) => dropped(packet),
        }
    }

    pub(super) fn dequeue(&mut self, now: Instant, dropped: &mut impl FnMut(P)) -> Option<P> {
        let packet = self.waiting.dequeue(now, dropped)?;
        self.depart(now);
        Some(packet)
    }

    pub(super) fn pass(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) -> Option<P> {
        match self.arrive(now, packet) {
            Ok(packet) => {
                self.depart(now);
                Some(packet)
            }
            Err(packet) => {
                dropped(packet);
                None
            }
        }
    }

    pub(super) fn clear(&mut self, now: Instant, dropped: &mut impl FnMut(P)) {
        if self.waiting.len() > 0 {
            self.empty_since = now;
        }
        self.last_departure = None;
        self.waiting.clear(now, dropped);
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.waiting.bytes()
    }

    pub(super) fn marks(&self) -> u64 {
        self.marks
    }

    /// Returns the average queue length in packets, as of the last arrival.
    pub fn average(&self) -> f64 {
        self.average
    }

    /// Updates the average and decides; returns a packet to be dropped as the error.
    fn arrive(&mut self, now: Instant, mut packet: P) -> Result<P, P> {
        let weight = self.config.weight;
        if self.waiting.len() > 0 {
            self.average += weight * (self.waiting.len() as f64 - self.average);
        } else if self.average > 0.0 {
            let idle = now.since(self.empty_since).0 as f64;
            let passed = if self.packet_time > 0.0 { idle / self.packet_time } else { 1.0 };
            self.average *= libm::pow(1.0 - weight, passed);
        }

        let probability = self.probability();
        if probability <= 0.0 {
            self.count = -1;
            return Ok(packet);
        }
        self.count += 1;
        let spread = 1.0 - self.count as f64 * probability;
        let spaced_probability = if spread > 0.0 { probability / spread } else { 1.0 };
        if !self.rng.chance(spaced_probability) {
            return Ok(packet);
        }
        self.count = 0;
        let marked =
            self.config.ecn && self.average < self.config.max_threshold && mark(&mut packet, &mut self.marks);
        if marked { Ok(packet) } else { Err(packet) }
    }

    /// Returns the drop probability at the current average, before the correction by `count`.
    fn probability(&self) -> f64 {
        let RedConfig { min_threshold: min, max_threshold: max, max_probability, .. } = self.config;
        if self.average < min {
            0.0
        } else if self.average < max {
            max_probability * (self.average - min) / (max - min)
        } else {
            (max_probability + (1.0 - max_probability) * (self.average - max) / max).min(1.0)
        }
    }

    /// Updates the idle time and the packet time at a departure.
    fn depart(&mut self, now: Instant) {
        if let Some(last) = self.last_departure {
            let Duration(gap) = now.since(last);
            if self.packet_time == 0.0 {
                self.packet_time = gap as f64;
            } else {
                self.packet_time += (gap as f64 - self.packet_time) / 8.0;
            }
        }
        // The gap to the next departure is a transmission time only if packets are waiting.
        if self.waiting.len() == 0 {
            self.last_departure = None;
            self.empty_since = now;
        } else {
            self.last_departure = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::NumberedPacket;
    use super::*;
    use crate::packet::Ecn;

    const MS: u64 = 1_000_000;

    fn red(weight: f64, ecn: bool) -> Red<NumberedPacket> {
        let config = RedConfig { min_threshold: 5.0, max_threshold: 15.0, max_probability: 0.1, weight, ecn };
        Red::new(config, Capacity::Packets(1000), RandomStream::new(1, "red"))
    }

    fn packet(ecn: Ecn) -> NumberedPacket {
        NumberedPacket { ecn, ..NumberedPacket::new(0, 1000) }
    }

    /// Creates a queue of `waiting` packets; with weight 1 the average equals the queue length.
    fn queue_of(waiting: usize, ecn: bool) -> Red<NumberedPacket> {
        let mut queue = red(1.0, ecn);
        for _ in 0..waiting {
            queue.waiting.enqueue(Instant(0), packet(Ecn::NotCapable), &mut |_| panic!());
        }
        queue
    }

    #[test]
    fn average_follows_a_hand_computed_sequence() {
        let mut queue = red(0.5, false);
        let mut none = |_| panic!("nothing is dropped below the threshold");
        // Arrivals find 0, 1, 2, 3 packets waiting.
        for expected in [0.0, 0.5, 1.25, 2.125] {
            queue.enqueue(Instant(0), packet(Ecn::NotCapable), &mut none);
            assert_eq!(queue.average(), expected);
        }
        // With a departure every 10 ms, 30 ms of idle time count as three packets.
        for time in [10, 20, 30, 40] {
            assert!(queue.dequeue(Instant(time * MS), &mut none).is_some());
        }
        queue.enqueue(Instant(70 * MS), packet(Ecn::NotCapable), &mut none);
        assert_eq!(queue.average(), 2.125 / 8.0);
    }

    #[test]
    fn probability_is_piecewise_linear() {
        let mut queue = red(0.5, false);
        let expected =
            [(4.9, 0.0), (5.0, 0.0), (10.0, 0.05), (15.0, 0.1), (22.5, 0.55), (30.0, 1.0), (50.0, 1.0)];
        for (average, probability) in expected {
            queue.average = average;
            assert!((queue.probability() - probability).abs() < 1e-12, "{average}");
        }
    }

    #[test]
    fn intervals_between_drops_are_uniform() {
        // p = 0.05: intervals from 1 to 1/p - 1 are equally likely.
        let mut queue = queue_of(10, false);
        let (mut interval, mut counts) = (0, [0_u32; 20]);
        while counts.iter().sum::<u32>() < 19_000 {
            let mut dropped = false;
            queue.enqueue(Instant(0), packet(Ecn::NotCapable), &mut |_| dropped = true);
            interval += 1;
            if dropped {
                counts[interval] += 1;
                interval = 0;
            } else {
                queue.dequeue(Instant(0), &mut |_| ());
            }
        }
        let chi_square: f64 = counts[1..].iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi_square < 34.8, "99 % quantile of chi-square with 18 degrees: {chi_square}");
    }

    #[test]
    fn ecn_marks_below_the_upper_threshold_and_drops_above() {
        let mut marking = queue_of(14, true);
        for _ in 0..1000 {
            marking.enqueue(Instant(0), packet(Ecn::Capable), &mut |_| panic!("marked instead"));
            marking.dequeue(Instant(0), &mut |_| ());
        }
        // p = 0.09: a mark every 1 to 10 packets.
        assert!((160..210).contains(&marking.marks()), "{}", marking.marks());

        let mut dropping = queue_of(30, true);
        let mut dropped = 0;
        dropping.enqueue(Instant(0), packet(Ecn::Capable), &mut |_| dropped += 1);
        assert_eq!((dropped, dropping.marks()), (1, 0));
    }
}
