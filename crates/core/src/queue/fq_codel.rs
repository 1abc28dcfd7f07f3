//! FQ-CoDel (RFC 8290): flows hashed to queues, deficit round robin between the queues with priority for new
//! flows, and CoDel on each queue.
//!
//! The salt of the hash is drawn from the queue's random stream (section 4.1). When the buffer overflows,
//! half the packets of the queue with the most bytes, at most 64, are dropped from its head (section 4.1). A
//! queue without positive credits moves to the old queues with a new quantum (section 4.2, and the Linux
//! implementation). CoDel compares the backlog of the flow's own queue with the maximum packet size, as in
//! RFC 8289.

use super::codel::{Controller, TimestampedQueue};
use super::{CodelConfig, FqCodelConfig};
use crate::packet::QueuePacket;
use crate::quantity::Capacity;
use crate::rng::RandomStream;
use crate::time::Instant;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Maximum number of packets dropped from the longest queue at a time (RFC 8290 section 4.1).
const DROP_BATCH: usize = 64;

/// Flow queues with CoDel and a shared buffer.
#[derive(Clone, Debug)]
pub struct FqCodel<P> {
    codel: CodelConfig,
    quantum: i64,
    buffer: Capacity,
    salt: u64,
    flows: Vec<FlowQueue<P>>,
    new_flows: VecDeque<u32>,
    old_flows: VecDeque<u32>,
    len: usize,
    bytes: u64,
    marks: u64,
}

#[derive(Clone, Debug)]
struct FlowQueue<P> {
    waiting: TimestampedQueue<P>,
    controller: Controller,
    credits: i64,
    active: bool,
}

impl<P: QueuePacket> FqCodel<P> {
    pub(super) fn new(config: FqCodelConfig, buffer: Capacity, mut rng: RandomStream) -> FqCodel<P> {
        let flow = || FlowQueue {
            waiting: TimestampedQueue::default(),
            controller: Controller::default(),
            credits: 0,
            active: false,
        };
        FqCodel {
            codel: config.codel,
            quantum: i64::from(config.quantum.max(1)),
            buffer,
            salt: rng.next_u64(),
            flows: (0..config.flows.max(1)).map(|_| flow()).collect(),
            new_flows: VecDeque::new(),
            old_flows: VecDeque::new(),
            len: 0,
            bytes: 0,
            marks: 0,
        }
    }

    pub(super) fn enqueue(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) {
        self.push(now, packet);
        while !self.within_buffer() {
            self.drop_from_longest(dropped);
        }
    }

    pub(super) fn dequeue(&mut self, now: Instant, dropped: &mut impl FnMut(P)) -> Option<P> {
        loop {
            let is_new = !self.new_flows.is_empty();
            let list = if is_new { &mut self.new_flows } else { &mut self.old_flows };
            let index = *list.front()?;
            let flow = &mut self.flows[index as usize];
            if flow.credits <= 0 {
                flow.credits += self.quantum;
                list.pop_front();
                self.old_flows.push_back(index);
                continue;
            }
            let (before, before_bytes) = (flow.waiting.packets.len(), flow.waiting.bytes);
            let packet =
                flow.controller.dequeue(&self.codel, now, &mut flow.waiting, &mut self.marks, dropped);
            self.len -= before - flow.waiting.packets.len();
            self.bytes -= before_bytes - flow.waiting.bytes;
            if let Some(packet) = packet {
                flow.credits -= i64::from(packet.size());
                return Some(packet);
            }
            // An emptied new queue spends one round among the old ones, so that it cannot become new again at
            // once and starve them.
            list.pop_front();
            if is_new {
                self.old_flows.push_back(index);
            } else {
                flow.active = false;
            }
        }
    }

    pub(super) fn pass(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) -> Option<P> {
        self.push(now, packet);
        self.dequeue(now, dropped)
    }

    pub(super) fn clear(&mut self, _now: Instant, dropped: &mut impl FnMut(P)) {
        for flow in &mut self.flows {
            flow.waiting.clear(dropped);
        }
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

    pub(super) fn marks(&self) -> u64 {
        self.marks
    }

    fn push(&mut self, now: Instant, packet: P) {
        let index = self.index_of(packet.flow_key());
        self.len += 1;
        self.bytes += u64::from(packet.size());
        let flow = &mut self.flows[index as usize];
        flow.waiting.push(now, packet);
        if !flow.active {
            flow.active = true;
            flow.credits = self.quantum;
            self.new_flows.push_back(index);
        }
    }

    /// Returns the flow queue of a key: a salted multiplicative hash, scaled to the number of queues.
    fn index_of(&self, key: u64) -> u32 {
        let mut hash = (key ^ self.salt).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(hash) * self.flows.len() as u128) >> 64) as u32
    }

    fn within_buffer(&self) -> bool {
        match self.buffer {
            Capacity::Packets(limit) => self.len <= limit as usize,
            Capacity::Bytes(limit) => self.bytes <= limit,
        }
    }

    fn drop_from_longest(&mut self, dropped: &mut impl FnMut(P)) {
        let mut longest = 0;
        for (index, flow) in self.flows.iter().enumerate() {
            if flow.waiting.bytes > self.flows[longest].waiting.bytes {
                longest = index;
            }
        }
        let flow = &mut self.flows[longest];
        let batch = flow.waiting.packets.len().div_ceil(2).min(DROP_BATCH);
        for _ in 0..batch {
            if let Some((_, packet)) = flow.waiting.pop() {
                self.len -= 1;
                self.bytes -= u64::from(packet.size());
                dropped(packet);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::NumberedPacket;
    use super::*;
    use crate::time::Duration;
    use alloc::vec::Vec;

    fn fq_codel(limit: u32) -> FqCodel<NumberedPacket> {
        let codel = CodelConfig {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn: false,
        };
        let config = FqCodelConfig { codel, flows: 1024, quantum: 1514 };
        FqCodel::new(config, Capacity::Packets(limit), RandomStream::new(1, "fq_codel"))
    }

    fn packet(flow: u64, number: u64, size: u32) -> NumberedPacket {
        NumberedPacket { flow, ..NumberedPacket::new(number, size) }
    }

    #[test]
    fn a_sparse_flow_never_waits_behind_a_heavy_one() {
        let mut queue = fq_codel(10_000);
        let mut none = |_: NumberedPacket| ();
        for number in 0..500 {
            queue.enqueue(Instant(0), packet(1, number, 1500), &mut none);
        }
        for turn in 1..400_u64 {
            let now = Instant(turn * 1_000_000);
            queue.enqueue(now, packet(1, 0, 1500), &mut none);
            if turn % 10 == 0 {
                queue.enqueue(now, packet(2, turn, 100), &mut none);
                let next = queue.dequeue(now, &mut none).unwrap();
                assert_eq!((next.flow, next.number), (2, turn));
            }
            assert_eq!(queue.dequeue(now, &mut none).unwrap().flow, 1);
        }
    }

    #[test]
    fn flows_share_bytes_at_any_packet_size() {
        let mut queue = fq_codel(u32::MAX);
        for number in 0..30_000 {
            queue.enqueue(Instant(0), packet(1, number, 1500), &mut |_| ());
            queue.enqueue(Instant(0), packet(2, number, 300), &mut |_| ());
        }
        let mut sent = [0_i64; 3];
        for _ in 0..12_000 {
            // No time passes, so CoDel drops nothing.
            let next = queue.dequeue(Instant(0), &mut |_| panic!()).unwrap();
            sent[next.flow as usize] += i64::from(next.size);
            assert!((sent[1] - sent[2]).abs() <= 1514 + 1500, "{sent:?}");
        }
    }

    #[test]
    fn flows_that_repeatedly_become_new_starve_no_other() {
        // Flows 2 and 3 have one packet at a time. The next one arrives one dequeue after the departure, when
        // the queue has been found empty.
        let mut queue = fq_codel(10_000);
        for number in 0..3000 {
            queue.enqueue(Instant(0), packet(1, number, 1500), &mut |_| panic!());
        }
        let (mut heavy, mut before) = (0, 2);
        queue.enqueue(Instant(0), packet(3, 0, 1500), &mut |_| panic!());
        for number in 0..3000 {
            let next = queue.dequeue(Instant(0), &mut |_| panic!()).unwrap();
            heavy += u32::from(next.flow == 1);
            if before != 1 {
                queue.enqueue(Instant(0), packet(before, number, 1500), &mut |_| panic!());
            }
            before = next.flow;
        }
        assert!(heavy >= 1000, "{heavy}");
    }

    #[test]
    fn overflow_drops_from_the_head_of_the_longest_queue() {
        let mut queue = fq_codel(100);
        for number in 0..90 {
            queue.enqueue(Instant(0), packet(1, number, 1000), &mut |_| panic!());
        }
        for number in 0..10 {
            queue.enqueue(Instant(0), packet(2, number, 1000), &mut |_| panic!());
        }
        // The packet of the sparse flow overflows the buffer, and the heavy flow loses half its packets.
        let mut dropped = Vec::new();
        queue.enqueue(Instant(0), packet(2, 10, 1000), &mut |packet| {
            dropped.push((packet.flow, packet.number))
        });
        assert_eq!(dropped, (0..45).map(|number| (1, number)).collect::<Vec<_>>());
        assert_eq!((queue.len(), queue.bytes()), (56, 56_000));
    }

    #[test]
    fn at_most_one_batch_is_dropped_per_overflow() {
        let mut queue = fq_codel(1000);
        let mut dropped = 0;
        for number in 0..1001 {
            queue.enqueue(Instant(0), packet(1, number, 1000), &mut |_| dropped += 1);
        }
        assert_eq!((dropped, queue.len()), (64, 937));
    }
}
