//! Random early detection (Floyd and Jacobson, "Random Early Detection Gateways for
//! Congestion Avoidance", IEEE/ACM ToN 1(4), 1993), in the gentle variant (Floyd 2000).
//!
//! Thresholds and average are in packets. At each arrival the average moves by `weight`
//! towards the packets waiting; after an idle time it decays as if that many typical
//! packets had passed an empty queue. The time a typical packet takes is measured, as the
//! smoothed time between departures while packets wait; before the first such pair of
//! departures an arrival at an empty queue counts as one packet.
//!
//! Between the thresholds the drop probability p rises to `max_probability`, and each
//! packet since the last drop raises its own to p / (1 − count·p), which spreads drops
//! evenly. From there it rises to 1 at twice the upper threshold. ECN-capable
//! packets are marked instead below the upper threshold; above it they are dropped as the
//! others are (RFC 3168 section 7).

use super::{DropTail, RedConfig, mark};
use crate::packet::Packet;
use crate::quantity::Capacity;
use crate::rng::Stream;
use crate::time::{Duration, Instant};

/// A FIFO queue under RED; an arrival that does not fit the buffer is dropped.
#[derive(Clone, Debug)]
pub struct Red<P> {
    config: RedConfig,
    rng: Stream,
    waiting: DropTail<P>,
    marks: u64,
    average: f64,
    /// Packets since the last drop or mark; −1 while the average is below the threshold.
    count: i64,
    /// When the queue fell empty; meaningless while packets wait.
    empty_since: Instant,
    last_departure: Option<Instant>,
    /// Smoothed time between departures under backlog, nanoseconds; 0 before the first.
    packet_time: f64,
}

impl<P: Packet> Red<P> {
    pub(super) fn new(config: RedConfig, buffer: Capacity, rng: Stream) -> Red<P> {
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

    /// The average queue, packets, as of the last arrival.
    pub fn average(&self) -> f64 {
        self.average
    }

    /// Update the average and decide; an error holds a packet to drop early.
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
        let own = if spread > 0.0 { probability / spread } else { 1.0 };
        if !self.rng.chance(own) {
            return Ok(packet);
        }
        self.count = 0;
        let marked =
            self.config.ecn && self.average < self.config.max_threshold && mark(&mut packet, &mut self.marks);
        if marked { Ok(packet) } else { Err(packet) }
    }

    /// Drop probability at the present average, before spreading.
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

    /// A packet has just left the queue for the line.
    fn depart(&mut self, now: Instant) {
        if let Some(last) = self.last_departure {
            let Duration(gap) = now.since(last);
            if self.packet_time == 0.0 {
                self.packet_time = gap as f64;
            } else {
                self.packet_time += (gap as f64 - self.packet_time) / 8.0;
            }
        }
        // Only a departure that leaves others waiting starts a gap that is the line's own.
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
    use super::super::testing::Numbered;
    use super::*;
    use crate::packet::Ecn;

    const MS: u64 = 1_000_000;

    fn red(weight: f64, ecn: bool) -> Red<Numbered> {
        let config = RedConfig { min_threshold: 5.0, max_threshold: 15.0, max_probability: 0.1, weight, ecn };
        Red::new(config, Capacity::Packets(1000), Stream::new(1, "red"))
    }

    fn packet(ecn: Ecn) -> Numbered {
        Numbered { ecn, ..Numbered::new(0, 1000) }
    }

    /// With weight 1 the average is the queue itself: hold it at `waiting` packets.
    fn held_at(waiting: usize, ecn: bool) -> Red<Numbered> {
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
        // One departs every 10 ms, so 30 ms of an empty queue are three packets.
        for time in [10, 20, 30, 40] {
            assert!(queue.dequeue(Instant(time * MS), &mut none).is_some());
        }
        queue.enqueue(Instant(70 * MS), packet(Ecn::NotCapable), &mut none);
        assert_eq!(queue.average(), 2.125 / 8.0);
    }

    #[test]
    fn probability_rises_in_two_straight_lines() {
        let mut queue = red(0.5, false);
        let expected =
            [(4.9, 0.0), (5.0, 0.0), (10.0, 0.05), (15.0, 0.1), (22.5, 0.55), (30.0, 1.0), (50.0, 1.0)];
        for (average, probability) in expected {
            queue.average = average;
            assert!((queue.probability() - probability).abs() < 1e-12, "{average}");
        }
    }

    #[test]
    fn packets_between_drops_are_uniform() {
        // p = 0.05: the paper's count makes each spacing from 1 to 1/p - 1 equally likely.
        let mut queue = held_at(10, false);
        let (mut spacing, mut seen) = (0, [0_u32; 20]);
        while seen.iter().sum::<u32>() < 19_000 {
            let mut dropped = false;
            queue.enqueue(Instant(0), packet(Ecn::NotCapable), &mut |_| dropped = true);
            spacing += 1;
            if dropped {
                seen[spacing] += 1;
                spacing = 0;
            } else {
                queue.dequeue(Instant(0), &mut |_| ());
            }
        }
        let chi_square: f64 = seen[1..].iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi_square < 34.8, "99 % quantile of chi-square with 18 degrees: {chi_square}");
    }

    #[test]
    fn ecn_marks_below_the_upper_threshold_and_drops_above() {
        let mut marking = held_at(14, true);
        for _ in 0..1000 {
            marking.enqueue(Instant(0), packet(Ecn::Capable), &mut |_| panic!("marked instead"));
            marking.dequeue(Instant(0), &mut |_| ());
        }
        // p = 0.09: a mark every 1 to 10 packets.
        assert!((160..210).contains(&marking.marks()), "{}", marking.marks());

        let mut dropping = held_at(30, true);
        let mut dropped = 0;
        dropping.enqueue(Instant(0), packet(Ecn::Capable), &mut |_| dropped += 1);
        assert_eq!((dropped, dropping.marks()), (1, 0));
    }
}
