//! Queue disciplines: order of packets, drops and marks.
//!
//! A queue owns the waiting packets; the driver takes the next one when its line is idle. One file per
//! discipline. Rate, delay and losses of the line are in [`crate::link`].

pub mod classes;
pub mod codel;
pub mod drop_tail;
pub mod drr;
pub mod fq_codel;
pub mod red;
mod traffic_class;

use crate::packet::{Ecn, QueuePacket};
use crate::quantity::Capacity;
use crate::rng::RandomStream;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use classes::Classes;
use codel::Codel;
use drop_tail::DropTail;
use drr::DeficitRoundRobin;
use fq_codel::FqCodel;
use red::Red;
use serde::{Deserialize, Serialize};

pub use traffic_class::TrafficClass;

/// A queue discipline and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueConfig {
    /// First in, first out; an arrival that does not fit is dropped.
    DropTail,
    /// Random early detection (Floyd and Jacobson 1993), gentle variant.
    Red(RedConfig),
    /// CoDel (RFC 8289).
    Codel(CodelConfig),
    /// FQ-CoDel (RFC 8290).
    FqCodel(FqCodelConfig),
    /// Deficit round robin over packet classes (Shreedhar and Varghese 1995).
    DeficitRoundRobin(DrrConfig),
    /// One queue per packet class, by priority and weight. Their buffers replace the link's buffer, which
    /// one class could otherwise fill.
    Classes(Vec<ClassConfig>),
}

/// Parameters of random early detection. Thresholds are in packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RedConfig {
    /// Average queue below which nothing is dropped.
    pub min_threshold: f64,
    /// Average queue at which `max_probability` is reached.
    pub max_threshold: f64,
    /// Drop probability at `max_threshold`; rises to 1 at twice the threshold.
    pub max_probability: f64,
    /// Weight of a new sample in the average queue.
    pub weight: f64,
    /// Marking of ECN-capable packets instead of dropping.
    pub ecn: bool,
}

/// Parameters of CoDel (RFC 8289 section 4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodelConfig {
    /// Acceptable standing delay.
    pub target: Duration,
    /// Time for which the delay must exceed the target before the first drop: the worst-case round trip.
    pub interval: Duration,
    /// Marking of ECN-capable packets instead of dropping.
    pub ecn: bool,
}

/// Parameters of FQ-CoDel (RFC 8290 section 5.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FqCodelConfig {
    /// Parameters of CoDel on each flow queue.
    pub codel: CodelConfig,
    /// Number of flow queues.
    pub flows: u32,
    /// Bytes a queue may send per turn.
    pub quantum: u32,
}

/// Parameters of deficit round robin: a class is the index of a VPN; the last class is for all other packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrrConfig {
    /// Weight of each class, above zero.
    pub weights: Vec<f64>,
    /// Buffer of each class. It replaces the link's buffer, which one class could otherwise fill.
    pub buffer_per_class: Capacity,
}

/// Configuration of a packet class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassConfig {
    /// Priority; lower numbers are sent first.
    pub priority: u8,
    /// Weight among classes of the same priority, above zero.
    pub weight: f64,
    /// Queue discipline.
    pub queue: QueueConfig,
    /// Capacity of the queue.
    pub buffer: Capacity,
}

/// A queue of packets.
///
/// A driver whose line is busy calls [`enqueue`](PacketQueue::enqueue) for every arrival, and
/// [`dequeue`](PacketQueue::dequeue) when the line becomes idle. A driver whose line is idle calls
/// [`pass`](PacketQueue::pass), which ignores the capacity of the buffer: the packet being sent does not occupy it,
/// so that a buffer of zero drops the packets that cannot be sent at once. If the buffer has room, `pass` is
/// equivalent to `enqueue` followed by `dequeue`.
///
/// Times must not decrease from call to call. Every packet passed to the queue is returned, passed to
/// `dropped`, or still waiting.
#[derive(Clone, Debug)]
pub enum PacketQueue<P> {
    /// First in, first out.
    DropTail(DropTail<P>),
    /// Random early detection.
    Red(Red<P>),
    /// CoDel.
    Codel(Codel<P>),
    /// FQ-CoDel.
    FqCodel(FqCodel<P>),
    /// Deficit round robin.
    DeficitRoundRobin(DeficitRoundRobin<P>),
    /// A queue per class.
    Classes(Classes<P>),
}

macro_rules! each {
    ($queue:expr, $inner:ident => $body:expr) => {
        match $queue {
            PacketQueue::DropTail($inner) => $body,
            PacketQueue::Red($inner) => $body,
            PacketQueue::Codel($inner) => $body,
            PacketQueue::FqCodel($inner) => $body,
            PacketQueue::DeficitRoundRobin($inner) => $body,
            PacketQueue::Classes($inner) => $body,
        }
    };
}

impl<P: QueuePacket> PacketQueue<P> {
    /// An empty queue. `rng` serves RED's drops and FQ-CoDel's hash; the others draw nothing.
    pub fn new(config: &QueueConfig, buffer: Capacity, rng: RandomStream) -> PacketQueue<P> {
        match config {
            QueueConfig::DropTail => PacketQueue::DropTail(DropTail::new(buffer)),
            QueueConfig::Red(red) => PacketQueue::Red(Red::new(red.clone(), buffer, rng)),
            QueueConfig::Codel(codel) => PacketQueue::Codel(Codel::new(codel.clone(), buffer)),
            QueueConfig::FqCodel(fq_codel) => {
                PacketQueue::FqCodel(FqCodel::new(fq_codel.clone(), buffer, rng))
            }
            QueueConfig::DeficitRoundRobin(drr) => {
                PacketQueue::DeficitRoundRobin(DeficitRoundRobin::new(drr))
            }
            QueueConfig::Classes(classes) => PacketQueue::Classes(Classes::new(classes, &rng)),
        }
    }

    /// Adds a packet. If the buffer is full, passes the packet to `dropped`; FQ-CoDel instead drops packets of
    /// the longest flow queue.
    #[inline]
    pub fn enqueue(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) {
        each!(self, queue => queue.enqueue(now, packet, dropped));
    }

    /// Removes and returns the next packet to send. CoDel drops packets here.
    #[inline]
    pub fn dequeue(&mut self, now: Instant, dropped: &mut impl FnMut(P)) -> Option<P> {
        each!(self, queue => queue.dequeue(now, dropped))
    }

    /// Returns a packet that arrives at an empty queue while the line is idle, unless it is dropped.
    #[inline]
    pub fn pass(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) -> Option<P> {
        debug_assert!(self.is_empty(), "a line with waiting packets is not idle");
        each!(self, queue => queue.pass(now, packet, dropped))
    }

    /// Passes all packets to `dropped`, as when the line fails.
    pub fn clear(&mut self, now: Instant, dropped: &mut impl FnMut(P)) {
        each!(self, queue => queue.clear(now, dropped));
    }

    /// Returns the number of waiting packets.
    #[inline]
    pub fn len(&self) -> usize {
        each!(self, queue => queue.len())
    }

    /// Returns whether no packet is waiting.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of waiting bytes at the IP layer.
    #[inline]
    pub fn bytes(&self) -> u64 {
        each!(self, queue => queue.bytes())
    }

    /// Returns the number of packets marked "congestion experienced".
    pub fn marks(&self) -> u64 {
        match self {
            PacketQueue::DropTail(_) | PacketQueue::DeficitRoundRobin(_) => 0,
            PacketQueue::Red(queue) => queue.marks(),
            PacketQueue::Codel(queue) => queue.marks(),
            PacketQueue::FqCodel(queue) => queue.marks(),
            PacketQueue::Classes(queue) => queue.marks(),
        }
    }
}

/// Marks an ECN-capable packet; returns `false` if it must be dropped instead. A packet that an earlier queue
/// has marked is not counted.
fn mark<P: QueuePacket>(packet: &mut P, marks: &mut u64) -> bool {
    match packet.ecn() {
        Ecn::NotCapable => false,
        Ecn::Capable => {
            packet.mark_congestion();
            *marks += 1;
            true
        }
        Ecn::CongestionExperienced => true,
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::packet::{Ecn, QueuePacket};

    /// A packet with a serial number.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct NumberedPacket {
        pub number: u64,
        pub size: u32,
        pub class: u16,
        pub flow: u64,
        pub ecn: Ecn,
    }

    impl NumberedPacket {
        pub fn new(number: u64, size: u32) -> NumberedPacket {
            NumberedPacket { number, size, class: 0, flow: 0, ecn: Ecn::NotCapable }
        }
    }

    impl QueuePacket for NumberedPacket {
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
            self.flow
        }
    }
}
