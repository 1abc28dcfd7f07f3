//! Deficit round robin over packet classes (Shreedhar and Varghese, "Efficient Fair
//! Queueing using Deficit Round Robin", SIGCOMM 1995).
//!
//! Classes with packets take turns in a ring. A turn adds the quantum of the class to its deficit, and sends
//! while the head fits. Quanta are proportional to the weights. The minimum is one full Ethernet packet, so
//! that every turn sends at least one packet; a larger packet is sent after several turns. A packet of a
//! class beyond the list belongs to the last class.

use super::DrrConfig;
use crate::packet::QueuePacket;
use crate::quantity::Capacity;
use crate::time::Instant;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Quantum of the class with the minimum weight, bytes.
const MIN_QUANTUM: u32 = 1500;

/// One FIFO queue per class.
#[derive(Clone, Debug)]
pub struct DeficitRoundRobin<P> {
    classes: Vec<DrrClass<P>>,
    buffer_per_class: Capacity,
    /// Classes with packets; it is the turn of the front one.
    ring: VecDeque<u16>,
    /// True if the front class has received its quantum for this turn.
    in_turn: bool,
    len: usize,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct DrrClass<P> {
    waiting: VecDeque<P>,
    bytes: u64,
    quantum: u64,
    deficit: u64,
}

impl<P: QueuePacket> DeficitRoundRobin<P> {
    pub(super) fn new(config: &DrrConfig) -> DeficitRoundRobin<P> {
        let class = |quantum| DrrClass { waiting: VecDeque::new(), bytes: 0, quantum, deficit: 0 };
        let positive = config.weights.iter().copied().filter(|&weight| weight > 0.0);
        let min_weight = positive.fold(f64::INFINITY, f64::min);
        // A weight of zero, which scenarios reject, gets a quantum of one byte.
        let quantum = |weight: f64| libm::round(weight / min_weight * f64::from(MIN_QUANTUM)) as u64;
        let mut classes: Vec<DrrClass<P>> = config
            .weights
            .iter()
            .map(|&weight| class(quantum(weight).clamp(1, u64::from(u32::MAX))))
            .collect();
        if classes.is_empty() {
            classes.push(class(u64::from(MIN_QUANTUM)));
        }
        DeficitRoundRobin {
            classes,
            buffer_per_class: config.buffer_per_class,
            ring: VecDeque::new(),
            in_turn: false,
            len: 0,
            bytes: 0,
        }
    }

    pub(super) fn enqueue(&mut self, _now: Instant, packet: P, dropped: &mut impl FnMut(P)) {
        let index = usize::from(packet.class()).min(self.classes.len() - 1);
        let class = &mut self.classes[index];
        let size = packet.size();
        if !self.buffer_per_class.admits(class.waiting.len(), class.bytes, size) {
            dropped(packet);
            return;
        }
        if class.waiting.is_empty() {
            self.ring.push_back(index as u16);
        }
        class.bytes += u64::from(size);
        class.waiting.push_back(packet);
        self.bytes += u64::from(size);
        self.len += 1;
    }

    pub(super) fn dequeue(&mut self, _now: Instant, _dropped: &mut impl FnMut(P)) -> Option<P> {
        loop {
            let index = *self.ring.front()?;
            let class = &mut self.classes[usize::from(index)];
            if !self.in_turn {
                self.in_turn = true;
                class.deficit += class.quantum;
            }
            let size = u64::from(class.waiting.front()?.size());
            if size > class.deficit {
                self.ring.rotate_left(1);
                self.in_turn = false;
                continue;
            }
            let packet = class.waiting.pop_front()?;
            class.deficit -= size;
            class.bytes -= size;
            self.bytes -= size;
            self.len -= 1;
            if class.waiting.is_empty() {
                class.deficit = 0;
                self.ring.pop_front();
                self.in_turn = false;
            }
            return Some(packet);
        }
    }

    /// Returns the packet. An empty queue has no deficit to update.
    pub(super) fn pass(&mut self, _now: Instant, packet: P, _dropped: &mut impl FnMut(P)) -> Option<P> {
        Some(packet)
    }

    pub(super) fn clear(&mut self, _now: Instant, dropped: &mut impl FnMut(P)) {
        for class in &mut self.classes {
            (class.bytes, class.deficit) = (0, 0);
            class.waiting.drain(..).for_each(&mut *dropped);
        }
        self.ring.clear();
        self.in_turn = false;
        (self.len, self.bytes) = (0, 0);
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::NumberedPacket;
    use super::*;
    use crate::rng::RandomStream;

    fn drr(weights: &[f64]) -> DeficitRoundRobin<NumberedPacket> {
        let config = DrrConfig { weights: weights.to_vec(), buffer_per_class: Capacity::Packets(u32::MAX) };
        DeficitRoundRobin::new(&config)
    }

    #[test]
    fn quanta_are_proportional_to_the_weights() {
        let quanta: Vec<u64> = drr(&[2.0, 0.5, 1.0]).classes.iter().map(|class| class.quantum).collect();
        assert_eq!(quanta, [6000, 1500, 3000]);
        let mut weightless = drr(&[0.0, 0.0]);
        weightless.enqueue(Instant(0), NumberedPacket::new(7, 1500), &mut |_| panic!());
        assert_eq!(weightless.dequeue(Instant(0), &mut |_| panic!()).unwrap().number, 7);
    }

    #[test]
    fn backlogged_classes_are_within_a_packet_of_their_weights() {
        let weights = [1.0, 2.0, 3.5, 7.0];
        let mut queue = drr(&weights);
        let mut rng = RandomStream::new(1, "sizes");
        let mut packet = |class| {
            let size = 40 + rng.below(1461) as u32;
            NumberedPacket { class, ..NumberedPacket::new(0, size) }
        };
        let mut sent = [0_u64; 4];
        for class in 0..4 {
            for _ in 0..100 {
                queue.enqueue(Instant(0), packet(class), &mut |_| panic!());
            }
        }
        for _ in 0..100_000 {
            let next = queue.dequeue(Instant(0), &mut |_| panic!()).unwrap();
            sent[usize::from(next.class)] += u64::from(next.size);
            queue.enqueue(Instant(0), packet(next.class), &mut |_| panic!());
            // The deficit of a class is less than a packet, except during its turn, and no class is more than
            // one turn ahead of another.
            let mut turns = [0; 4];
            for (index, class) in queue.classes.iter().enumerate() {
                assert_eq!((sent[index] + class.deficit) % class.quantum, 0);
                turns[index] = (sent[index] + class.deficit) / class.quantum;
                assert!(class.deficit < 1500 || queue.ring[0] as usize == index);
            }
            assert!(turns.iter().max().unwrap() - turns.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn an_unknown_class_maps_to_the_last() {
        let mut queue = drr(&[1.0, 1.0]);
        queue.enqueue(
            Instant(0),
            NumberedPacket { class: u16::MAX, ..NumberedPacket::new(0, 100) },
            &mut |_| panic!(),
        );
        assert_eq!(queue.classes[1].waiting.len(), 1);
    }

    #[test]
    fn a_packet_larger_than_the_quantum_is_sent() {
        let mut queue = drr(&[1.0, 1.0]);
        queue.enqueue(Instant(0), NumberedPacket::new(7, 9000), &mut |_| panic!());
        assert_eq!(queue.dequeue(Instant(0), &mut |_| panic!()).unwrap().number, 7);
    }
}
