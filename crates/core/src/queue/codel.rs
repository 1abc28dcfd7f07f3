//! CoDel, controlled delay (RFC 8289): drops at the head once the delay has exceeded `target` for a whole
//! `interval`, then at an increasing rate until the delay is below the target.
//!
//! The code follows the pseudocode of RFC 8289 section 5 line by line, with the size of the largest packet
//! seen as the maximum packet size of the line. Section 5 does not specify marking: here a mark replaces the
//! drop that was due, and the packet is delivered.

use super::{CodelConfig, mark};
use crate::packet::QueuePacket;
use crate::quantity::Capacity;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;

/// A FIFO queue with CoDel; an arrival that does not fit the buffer is dropped.
#[derive(Clone, Debug)]
pub struct Codel<P> {
    config: CodelConfig,
    buffer: Capacity,
    waiting: TimestampedQueue<P>,
    controller: Controller,
    marks: u64,
}

impl<P: QueuePacket> Codel<P> {
    pub(super) fn new(config: CodelConfig, buffer: Capacity) -> Codel<P> {
        Codel {
            config,
            buffer,
            waiting: TimestampedQueue::default(),
            controller: Controller::default(),
            marks: 0,
        }
    }

    pub(super) fn enqueue(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) {
        if self.buffer.admits(self.len(), self.bytes(), packet.size()) {
            self.waiting.push(now, packet);
        } else {
            dropped(packet);
        }
    }

    pub(super) fn dequeue(&mut self, now: Instant, dropped: &mut impl FnMut(P)) -> Option<P> {
        self.controller.dequeue(&self.config, now, &mut self.waiting, &mut self.marks, dropped)
    }

    pub(super) fn pass(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) -> Option<P> {
        self.waiting.push(now, packet);
        self.dequeue(now, dropped)
    }

    pub(super) fn clear(&mut self, _now: Instant, dropped: &mut impl FnMut(P)) {
        self.waiting.clear(dropped);
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.packets.len()
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.waiting.bytes
    }

    pub(super) fn marks(&self) -> u64 {
        self.marks
    }
}

/// Packets with their enqueue times.
#[derive(Clone, Debug)]
pub(super) struct TimestampedQueue<P> {
    pub(super) packets: VecDeque<(Instant, P)>,
    pub(super) bytes: u64,
}

impl<P> Default for TimestampedQueue<P> {
    fn default() -> TimestampedQueue<P> {
        TimestampedQueue { packets: VecDeque::new(), bytes: 0 }
    }
}

impl<P: QueuePacket> TimestampedQueue<P> {
    pub(super) fn push(&mut self, now: Instant, packet: P) {
        self.bytes += u64::from(packet.size());
        self.packets.push_back((now, packet));
    }

    pub(super) fn pop(&mut self) -> Option<(Instant, P)> {
        let head = self.packets.pop_front()?;
        self.bytes -= u64::from(head.1.size());
        Some(head)
    }

    pub(super) fn clear(&mut self, dropped: &mut impl FnMut(P)) {
        self.bytes = 0;
        self.packets.drain(..).for_each(|(_, packet)| dropped(packet));
    }
}

/// State of `CoDelQueue` of RFC 8289, without the packets.
#[derive(Clone, Debug, Default)]
pub(super) struct Controller {
    first_above: Option<Instant>,
    drop_next: Instant,
    count: u32,
    last_count: u32,
    dropping: bool,
    largest_packet: u32,
}

impl Controller {
    /// Implements `deque` of RFC 8289 section 5.5.
    pub(super) fn dequeue<P: QueuePacket>(
        &mut self,
        config: &CodelConfig,
        now: Instant,
        waiting: &mut TimestampedQueue<P>,
        marks: &mut u64,
        dropped: &mut impl FnMut(P),
    ) -> Option<P> {
        let (mut packet, mut ok_to_drop) = self.take(config, now, waiting)?;
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                self.count += 1;
                if config.ecn && mark(&mut packet, marks) {
                    self.drop_next = control_law(config.interval, self.drop_next, self.count);
                    break;
                }
                dropped(packet);
                (packet, ok_to_drop) = self.take(config, now, waiting)?;
                if ok_to_drop {
                    self.drop_next = control_law(config.interval, self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            let marked = config.ecn && mark(&mut packet, marks);
            let mut next = Some(packet);
            if !marked {
                dropped(next.take()?);
                next = self.take(config, now, waiting).map(|(packet, _)| packet);
            }
            self.dropping = true;
            // If the last dropping state ended recently, its drop rate is resumed.
            let delta = self.count - self.last_count;
            let recent = now.since(self.drop_next) < config.interval * 16;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.last_count = self.count;
            self.drop_next = control_law(config.interval, now, self.count);
            return next;
        }
        Some(packet)
    }

    /// Implements `dodequeue` of section 5.6: returns the head, and whether the delay has been above the
    /// target long enough to drop it. An empty queue also ends the dropping state, which section 5.5 leaves
    /// to the caller.
    fn take<P: QueuePacket>(
        &mut self,
        config: &CodelConfig,
        now: Instant,
        waiting: &mut TimestampedQueue<P>,
    ) -> Option<(P, bool)> {
        let Some((queued, packet)) = waiting.pop() else {
            self.first_above = None;
            self.dropping = false;
            return None;
        };
        self.largest_packet = self.largest_packet.max(packet.size());
        let mut ok_to_drop = false;
        if now.since(queued) < config.target || waiting.bytes <= u64::from(self.largest_packet) {
            self.first_above = None;
        } else {
            match self.first_above {
                None => self.first_above = Some(now + config.interval),
                Some(time) => ok_to_drop = now >= time,
            }
        }
        Some((packet, ok_to_drop))
    }
}

/// Returns the time of the next drop (`control_law` of RFC 8289 section 5.4).
fn control_law(interval: Duration, time: Instant, count: u32) -> Instant {
    time + Duration((interval.0 as f64 / libm::sqrt(f64::from(count))) as u64)
}

#[cfg(test)]
mod tests {
    use super::super::testing::NumberedPacket;
    use super::*;
    use crate::packet::Ecn;
    use alloc::vec::Vec;

    const MS: u64 = 1_000_000;
    const INTERVAL: f64 = 100e6;
    /// Time between departures.
    const STEP: u64 = MS / 10;

    fn standing_queue(ecn: bool, packets: u64) -> Codel<NumberedPacket> {
        let config =
            CodelConfig { target: Duration::from_millis(5), interval: Duration::from_millis(100), ecn };
        let mut queue = Codel::new(config, Capacity::Packets(u32::MAX));
        let ecn = if ecn { Ecn::Capable } else { Ecn::NotCapable };
        for number in 0..packets {
            queue.enqueue(
                Instant(0),
                NumberedPacket { ecn, ..NumberedPacket::new(number, 1000) },
                &mut |_| panic!(),
            );
        }
        queue
    }

    /// Returns the times of the first drops or marks.
    fn signals(queue: &mut Codel<NumberedPacket>, from: u64, count: usize) -> Vec<u64> {
        let mut times = Vec::new();
        let mut now = from;
        while times.len() < count {
            let marks = queue.marks();
            let mut drops = 0;
            assert!(queue.dequeue(Instant(now), &mut |_| drops += 1).is_some());
            times.extend((0..drops + queue.marks() - marks).map(|_| now));
            now += STEP;
        }
        times
    }

    /// Returns the expected times: the first signal at `start`, the others by the control law from `count`,
    /// each at the next departure.
    fn control_law_times(start: u64, mut count: f64, signals: usize) -> Vec<u64> {
        let mut times = alloc::vec![start];
        let mut next = start as f64;
        while times.len() < signals {
            next += (INTERVAL / count.sqrt()).floor();
            times.push((next as u64).div_ceil(STEP) * STEP);
            count += 1.0;
        }
        times
    }

    #[test]
    fn drops_follow_the_control_law() {
        // The delay reaches the target at 5 ms; the first drop follows one interval later.
        let mut queue = standing_queue(false, 100_000);
        assert_eq!(signals(&mut queue, 0, 50), control_law_times(105 * MS, 1.0, 50));
    }

    #[test]
    fn marks_follow_the_control_law_and_drop_nothing() {
        let mut queue = standing_queue(true, 100_000);
        assert_eq!(signals(&mut queue, 0, 50), control_law_times(105 * MS, 1.0, 50));
        assert_eq!(queue.marks(), 50);
    }

    #[test]
    fn a_recent_dropping_state_is_resumed_at_its_rate() {
        let mut queue = standing_queue(false, 100_000);
        let last = *signals(&mut queue, 0, 20).last().unwrap();
        // A packet without delay ends the dropping state; a new standing queue starts another.
        queue.clear(Instant(last), &mut |_| ());
        assert!(queue.pass(Instant(last), NumberedPacket::new(0, 1000), &mut |_| panic!()).is_some());
        let begin = last.div_ceil(STEP) * STEP + STEP;
        for number in 0..50_000 {
            queue.enqueue(Instant(begin), NumberedPacket::new(number, 1000), &mut |_| panic!());
        }
        // 20 drops, less the one that was counted at the start of the first state.
        let first = begin + 105 * MS;
        assert_eq!(signals(&mut queue, begin, 10), control_law_times(first, 19.0, 10));

        // After a long time the rate starts from the beginning.
        queue.clear(Instant(last), &mut |_| ());
        let begin = begin + 10_000 * MS;
        assert!(queue.pass(Instant(begin), NumberedPacket::new(0, 1000), &mut |_| panic!()).is_some());
        for number in 0..50_000 {
            queue.enqueue(Instant(begin), NumberedPacket::new(number, 1000), &mut |_| panic!());
        }
        assert_eq!(signals(&mut queue, begin, 10), control_law_times(begin + 105 * MS, 1.0, 10));
    }

    #[test]
    fn a_single_queued_packet_is_never_dropped() {
        let mut queue = standing_queue(false, 0);
        queue.enqueue(Instant(0), NumberedPacket::new(0, 1000), &mut |_| panic!());
        for number in 1..1000 {
            queue.enqueue(Instant(number * 10 * MS), NumberedPacket::new(number, 1000), &mut |_| panic!());
            // The packet has waited 10 ms, twice the target, but leaves only one packet behind.
            assert!(queue.dequeue(Instant(number * 10 * MS), &mut |_| panic!("dropped")).is_some());
        }
    }
}
