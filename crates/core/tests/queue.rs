//! Properties of all queue disciplines.

use netstage_core::packet::{Ecn, QueuePacket};
use netstage_core::quantity::Capacity;
use netstage_core::queue::{
    ClassConfig, CodelConfig, DrrConfig, FqCodelConfig, PacketQueue, QueueConfig, RedConfig,
};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_harness::needs;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq)]
struct ClassifiedPacket {
    number: u64,
    size: u32,
    class: u16,
    ecn: Ecn,
}

impl QueuePacket for ClassifiedPacket {
    fn size(&self) -> u32 {
        self.size
    }
    fn class(&self) -> u16 {
        self.class
    }
    fn ecn(&self) -> Ecn {
        self.ecn
    }
    fn mark_congestion(&mut self) {
        self.ecn = Ecn::CongestionExperienced;
    }
    fn flow_key(&self) -> u64 {
        self.class.into()
    }
}

/// One step of a driver.
#[derive(Clone, Debug)]
enum DriverStep {
    Wait { milliseconds: u64 },
    Enqueue { size: u32, class: u16, capable: bool },
    Dequeue,
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<DriverStep>> {
    let enqueue = (40..1500_u32, 0..6_u16, any::<bool>())
        .prop_map(|(size, class, capable)| DriverStep::Enqueue { size, class, capable });
    let step = prop_oneof![
        20 => (0..30_u64).prop_map(|milliseconds| DriverStep::Wait { milliseconds }),
        60 => enqueue,
        40 => Just(DriverStep::Dequeue),
        1 => Just(DriverStep::Clear),
    ];
    prop::collection::vec(step, 1..400)
}

fn disciplines() -> impl Strategy<Value = QueueConfig> {
    let codel =
        |ecn| CodelConfig { target: Duration::from_millis(5), interval: Duration::from_millis(40), ecn };
    let red = |(weight, ecn)| {
        QueueConfig::Red(RedConfig {
            min_threshold: 2.0,
            max_threshold: 6.0,
            max_probability: 0.2,
            weight,
            ecn,
        })
    };
    prop_oneof![
        Just(QueueConfig::DropTail),
        (0.002..1.0, any::<bool>()).prop_map(red),
        any::<bool>().prop_map(move |ecn| QueueConfig::Codel(codel(ecn))),
        (1..8_u32, 100..3000_u32, any::<bool>()).prop_map(move |(flows, quantum, ecn)| {
            QueueConfig::FqCodel(FqCodelConfig { codel: codel(ecn), flows, quantum })
        }),
        (prop::collection::vec(0.1..10.0_f64, 1..5), capacities()).prop_map(|(weights, buffer_per_class)| {
            QueueConfig::DeficitRoundRobin(DrrConfig { weights, buffer_per_class })
        }),
        prop::collection::vec((0..3_u8, 0.1..10.0_f64, any::<bool>(), capacities()), 1..5).prop_map(
            move |classes| {
                let class = |(priority, weight, is_managed, buffer)| ClassConfig {
                    priority,
                    weight,
                    queue: match is_managed {
                        true => {
                            QueueConfig::FqCodel(FqCodelConfig { codel: codel(true), flows: 4, quantum: 500 })
                        }
                        false => QueueConfig::DropTail,
                    },
                    buffer,
                };
                QueueConfig::Classes(classes.into_iter().map(class).collect())
            }
        ),
    ]
}

fn capacities() -> impl Strategy<Value = Capacity> {
    prop_oneof![(0..40_u32).prop_map(Capacity::Packets), (0..40_000_u64).prop_map(Capacity::Bytes),]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(needs::cases(1000)))]

    /// Packets and bytes in = out + dropped + waiting; no packet is duplicated; packets of a class, which is also
    /// a flow here, leave in order; the buffer is not exceeded.
    #[test]
    fn packets_are_conserved_and_in_order(config in disciplines(), buffer in capacities(), steps in steps()) {
        let mut queue = PacketQueue::new(&config, buffer, RandomStream::new(1, "queue"));
        let mut now = Instant::ZERO;
        let mut waiting = BTreeMap::new();
        let mut last_out = [None; 6];
        let (mut number, mut marks) = (0, 0);
        for step in steps {
            let mut dropped = Vec::new();
            let mut drop = |packet| dropped.push(packet);
            match step {
                DriverStep::Wait { milliseconds } => now += Duration::from_millis(milliseconds),
                DriverStep::Enqueue { size, class, capable } => {
                    number += 1;
                    let ecn = if capable { Ecn::Capable } else { Ecn::NotCapable };
                    waiting.insert(number, size);
                    queue.enqueue(now, ClassifiedPacket { number, size, class, ecn }, &mut drop);
                }
                DriverStep::Dequeue => {
                    let empty = queue.is_empty();
                    let next = queue.dequeue(now, &mut drop);
                    if let Some(packet) = next {
                        prop_assert_eq!(waiting.remove(&packet.number), Some(packet.size));
                        let last = &mut last_out[usize::from(packet.class)];
                        prop_assert!(*last < Some(packet.number));
                        *last = Some(packet.number);
                        marks += u64::from(packet.ecn == Ecn::CongestionExperienced);
                    }
                    prop_assert!(next.is_some() || dropped.len() + usize::from(empty) > 0);
                }
                DriverStep::Clear => {
                    queue.clear(now, &mut drop);
                    prop_assert!(queue.is_empty());
                }
            }
            for packet in dropped {
                prop_assert_eq!(waiting.remove(&packet.number), Some(packet.size));
                marks += u64::from(packet.ecn == Ecn::CongestionExperienced);
            }
            let bytes: u64 = waiting.values().map(|&size| u64::from(size)).sum();
            prop_assert_eq!((queue.len(), queue.bytes()), (waiting.len(), bytes));
            if !matches!(config, QueueConfig::DeficitRoundRobin(_) | QueueConfig::Classes(_)) {
                let within = match buffer {
                    Capacity::Packets(limit) => queue.len() <= limit as usize,
                    Capacity::Bytes(limit) => queue.bytes() <= limit,
                };
                prop_assert!(within);
            }
        }
        queue.clear(now, &mut |packet| marks += u64::from(packet.ecn == Ecn::CongestionExperienced));
        prop_assert_eq!(queue.marks(), marks);
    }

    /// `pass` is equivalent to `enqueue` followed by `dequeue` if the buffer has room.
    #[test]
    fn passing_is_enqueueing_and_dequeueing(config in disciplines(), steps in steps()) {
        let config = match config {
            QueueConfig::DeficitRoundRobin(drr) => {
                let buffer_per_class = Capacity::Packets(10);
                QueueConfig::DeficitRoundRobin(DrrConfig { buffer_per_class, ..drr })
            }
            QueueConfig::Classes(mut classes) => {
                classes.iter_mut().for_each(|class| class.buffer = Capacity::Packets(10));
                QueueConfig::Classes(classes)
            }
            other => other,
        };
        let mut passing = PacketQueue::new(&config, Capacity::Packets(10), RandomStream::new(1, "queue"));
        let mut enqueueing = passing.clone();
        let mut now = Instant::ZERO;
        for (number, step) in (0..).zip(steps) {
            let (mut passing_dropped, mut enqueueing_dropped) = (Vec::new(), Vec::new());
            match step {
                DriverStep::Wait { milliseconds } => now += Duration::from_millis(milliseconds),
                DriverStep::Enqueue { size, class, capable } => {
                    let ecn = if capable { Ecn::Capable } else { Ecn::NotCapable };
                    let packet = ClassifiedPacket { number, size, class, ecn };
                    if passing.is_empty() {
                        let passed = passing.pass(now, packet, &mut |packet| passing_dropped.push(packet));
                        enqueueing.enqueue(now, packet, &mut |packet| enqueueing_dropped.push(packet));
                        prop_assert_eq!(passed, enqueueing.dequeue(now, &mut |packet| enqueueing_dropped.push(packet)));
                        // Build a queue behind the packet on the line.
                        for extra in 0..3 {
                            let packet = ClassifiedPacket { number: 1_000_000 + 3 * number + extra, ..packet };
                            passing.enqueue(now, packet, &mut |packet| passing_dropped.push(packet));
                            enqueueing.enqueue(now, packet, &mut |packet| enqueueing_dropped.push(packet));
                        }
                    } else {
                        passing.enqueue(now, packet, &mut |packet| passing_dropped.push(packet));
                        enqueueing.enqueue(now, packet, &mut |packet| enqueueing_dropped.push(packet));
                    }
                }
                DriverStep::Dequeue | DriverStep::Clear => {
                    let next = passing.dequeue(now, &mut |packet| passing_dropped.push(packet));
                    prop_assert_eq!(next, enqueueing.dequeue(now, &mut |packet| enqueueing_dropped.push(packet)));
                }
            }
            prop_assert_eq!(passing_dropped, enqueueing_dropped);
            prop_assert_eq!((passing.len(), passing.bytes()), (enqueueing.len(), enqueueing.bytes()));
        }
    }

    /// Disciplines without classes, flows or delay-based drops are first in, first out.
    #[test]
    fn drop_tail_and_red_are_first_in_first_out(weight in 0.002..1.0_f64, steps in steps(), tail: bool) {
        let red = RedConfig { min_threshold: 2.0, max_threshold: 9.0, max_probability: 0.1, weight, ecn: false };
        let config = if tail { QueueConfig::DropTail } else { QueueConfig::Red(red) };
        let mut queue = PacketQueue::new(&config, Capacity::Packets(20), RandomStream::new(1, "queue"));
        let (mut number, mut last) = (0, 0);
        for step in steps {
            if let DriverStep::Enqueue { size, class, .. } = step {
                number += 1;
                queue.enqueue(Instant::ZERO, ClassifiedPacket { number, size, class, ecn: Ecn::NotCapable }, &mut |_| ());
            } else if let Some(packet) = queue.dequeue(Instant::ZERO, &mut |_| ()) {
                prop_assert!(packet.number > last);
                last = packet.number;
            }
        }
    }
}
