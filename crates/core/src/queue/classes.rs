//! Packet classes with a queue each: strict priority between levels, and shares by weight within a level.
//!
//! Classes of a level take turns by credits like the flows of FQ-CoDel (RFC 8290 section 4.2). The size of
//! the next packet of a queue that drops from its head is not known in advance, so a class may send while
//! its credits are positive, and they may become negative. A packet of a class beyond the list belongs to
//! the last class.

use super::{ClassConfig, PacketQueue};
use crate::packet::QueuePacket;
use crate::rng::RandomStream;
use crate::time::Instant;
use alloc::format;
use alloc::vec::Vec;

/// Quantum of the class with the minimum weight, bytes.
const MIN_QUANTUM: f64 = 1500.0;

/// One queue per class.
#[derive(Clone, Debug)]
pub struct Classes<P> {
    classes: Vec<PriorityClassQueue<P>>,
    /// The class whose turn it is; the other classes of its level follow in the order of the list.
    turn: usize,
}

#[derive(Clone, Debug)]
struct PriorityClassQueue<P> {
    queue: PacketQueue<P>,
    priority: u8,
    quantum: i64,
    credits: i64,
}

impl<P: QueuePacket> Classes<P> {
    /// # Panics
    ///
    /// Panics if there is no class, or if a weight is not above zero.
    pub(super) fn new(configs: &[ClassConfig], rng: &RandomStream) -> Classes<P> {
        assert!(!configs.is_empty() && configs.iter().all(|config| config.weight > 0.0), "{configs:?}");
        let min_weight = configs.iter().map(|config| config.weight).fold(f64::INFINITY, f64::min);
        let class = |(number, config): (usize, &ClassConfig)| PriorityClassQueue {
            queue: PacketQueue::new(&config.queue, config.buffer, rng.fork(&format!("class {number}"))),
            priority: config.priority,
            quantum: (config.weight / min_weight * MIN_QUANTUM) as i64,
            credits: 0,
        };
        Classes { classes: configs.iter().enumerate().map(class).collect(), turn: 0 }
    }

    pub(super) fn enqueue(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) {
        let index = usize::from(packet.class()).min(self.classes.len() - 1);
        self.classes[index].queue.enqueue(now, packet, dropped);
    }

    pub(super) fn dequeue(&mut self, now: Instant, dropped: &mut impl FnMut(P)) -> Option<P> {
        loop {
            let waiting = self.classes.iter().filter(|class| !class.queue.is_empty());
            let level = waiting.map(|class| class.priority).min()?;
            let index = self.next_class(level);
            let class = &mut self.classes[index];
            self.turn = index;
            match class.queue.dequeue(now, dropped) {
                Some(packet) => {
                    class.credits -= i64::from(packet.size());
                    if class.queue.is_empty() {
                        // An idle class keeps its debt, but not its credits.
                        class.credits = class.credits.min(0);
                    }
                    return Some(packet);
                }
                // The class dropped all its packets.
                None => class.credits = class.credits.min(0),
            }
        }
    }

    /// Returns the class of a level that sends next. While no class has credits, all classes with packets
    /// receive a quantum.
    fn next_class(&mut self, level: u8) -> usize {
        let count = self.classes.len();
        loop {
            for step in 0..count {
                let index = (self.turn + step) % count;
                let class = &self.classes[index];
                if class.priority == level && class.credits > 0 && !class.queue.is_empty() {
                    return index;
                }
            }
            for class in self.classes.iter_mut() {
                if class.priority == level && !class.queue.is_empty() {
                    class.credits += class.quantum;
                }
            }
        }
    }

    pub(super) fn pass(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) -> Option<P> {
        self.turn = usize::from(packet.class()).min(self.classes.len() - 1);
        let class = &mut self.classes[self.turn];
        while class.credits <= 0 {
            class.credits += class.quantum;
        }
        let passed = class.queue.pass(now, packet, dropped)?;
        class.credits = (class.credits - i64::from(passed.size())).min(0);
        Some(passed)
    }

    pub(super) fn clear(&mut self, now: Instant, dropped: &mut impl FnMut(P)) {
        for class in &mut self.classes {
            class.queue.clear(now, dropped);
            class.credits = 0;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.classes.iter().map(|class| class.queue.len()).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.queue.bytes()).sum()
    }

    pub(super) fn marks(&self) -> u64 {
        self.classes.iter().map(|class| class.queue.marks()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::NumberedPacket;
    use super::super::{CodelConfig, FqCodelConfig, QueueConfig};
    use super::*;
    use crate::quantity::Capacity;
    use crate::time::Duration;
    use alloc::vec;

    fn class(priority: u8, weight: f64) -> ClassConfig {
        ClassConfig { priority, weight, queue: QueueConfig::DropTail, buffer: Capacity::Packets(100) }
    }

    fn classes(configs: &[ClassConfig]) -> Classes<NumberedPacket> {
        Classes::new(configs, &RandomStream::new(1, "classes"))
    }

    fn packet(class: u16, number: u64, size: u32) -> NumberedPacket {
        NumberedPacket { class, flow: number, ..NumberedPacket::new(number, size) }
    }

    #[test]
    fn priority_is_strict_and_unknown_classes_map_to_the_last() {
        let mut queue = classes(&[class(0, 1.0), class(1, 1.0), class(1, 1.0)]);
        for (number, class) in [9, 1, 0, 2, 0].into_iter().enumerate() {
            queue.enqueue(Instant(0), packet(class, number as u64, 1000), &mut |_| panic!());
        }
        let order = core::iter::from_fn(|| queue.dequeue(Instant(0), &mut |_| panic!()));
        let order: Vec<u64> = order.map(|packet| packet.number).collect();
        assert_eq!(order[..2], [2, 4]);
        assert_eq!(order.len(), 5);
        assert_eq!((queue.len(), queue.bytes()), (0, 0));
    }

    #[test]
    fn classes_of_a_level_share_by_weight_at_any_packet_size() {
        let weights = [1.0, 2.5, 4.0];
        let mut queue = classes(&weights.map(|weight| class(3, weight)));
        let sizes = [1500, 64, 700];
        let mut sent = [0_u64; 3];
        for class in 0..3 {
            for number in 0..100 {
                queue.enqueue(
                    Instant(0),
                    packet(class, number, sizes[usize::from(class)]),
                    &mut |_| panic!(),
                );
            }
        }
        for _ in 0..50_000 {
            let next = queue.dequeue(Instant(0), &mut |_| panic!()).unwrap();
            sent[usize::from(next.class)] += u64::from(next.size);
            queue.enqueue(Instant(0), next, &mut |_| panic!());
        }
        let shares = [0, 1, 2].map(|class| sent[class] as f64 / weights[class]);
        for share in shares {
            assert!((share / shares[0] - 1.0).abs() < 0.01, "{shares:?}");
        }
    }

    #[test]
    fn an_overflowing_class_does_not_use_the_buffer_of_another() {
        let mut queue = classes(&[class(0, 1.0), class(0, 1.0)]);
        let mut dropped = 0;
        for number in 0..150 {
            queue.enqueue(Instant(0), packet(0, number, 1000), &mut |_| dropped += 1);
        }
        queue.enqueue(Instant(0), packet(1, 0, 1000), &mut |_| panic!());
        assert_eq!((dropped, queue.len()), (50, 101));
    }

    #[test]
    fn a_class_that_drops_all_its_packets_does_not_block_the_others() {
        let codel = CodelConfig {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn: false,
        };
        let fq_codel = QueueConfig::FqCodel(FqCodelConfig { codel, flows: 16, quantum: 1514 });
        let managed = |weight| ClassConfig { queue: fq_codel.clone(), ..class(0, weight) };
        let mut queue = classes(&[managed(1.0), managed(5.0)]);
        let (mut now, mut out, mut dropped, mut offered) = (Instant(0), 0, 0, 0);
        for round in 0..3000_u64 {
            now += Duration::from_millis(1);
            for (class, flow) in [(0, 1), (0, 2), (1, round % 7)] {
                offered += 1;
                queue.enqueue(now, NumberedPacket { flow, ..packet(class, round, 1000) }, &mut |_| {
                    dropped += 1
                });
            }
            out += usize::from(queue.dequeue(now, &mut |_| dropped += 1).is_some());
        }
        while queue.dequeue(now, &mut |_| dropped += 1).is_some() {
            out += 1;
        }
        assert!(dropped > 1000 && out >= 3000, "{dropped} {out}");
        assert_eq!((out + dropped, queue.len()), (offered, 0));
        queue.clear(now, &mut |_| panic!());
        assert_eq!(vec![queue.bytes(), queue.marks()], [0, 0]);
    }
}
