//! Queue disciplines: who waits, who is dropped, who is marked.
//!
//! A queue owns the waiting packets; the line behind it asks for the next one when it
//! is free. One file per discipline. Rates, delays and losses of the line are
//! [`crate::link`]'s.

pub mod classes;
pub mod codel;
pub mod drop_tail;
pub mod drr;
pub mod fq_codel;
pub mod red;
mod traffic_class;

use crate::packet::{Ecn, Packet};
use crate::quantity::Capacity;
use crate::rng::Stream;
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

/// A discipline and its parameters, as a scenario gives them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Config {
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
    /// A discipline for each packet class, by priority and weight. They stand in for the link's
    /// buffer, which a class could otherwise fill alone.
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
    /// Mark ECN-capable packets instead of dropping them.
    pub ecn: bool,
}

/// Parameters of CoDel (RFC 8289 section 4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodelConfig {
    /// Acceptable standing delay.
    pub target: Duration,
    /// Worst-case round trip the controller waits for.
    pub interval: Duration,
    /// Mark ECN-capable packets instead of dropping them.
    pub ecn: bool,
}

/// Parameters of FQ-CoDel (RFC 8290 section 5.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FqCodelConfig {
    /// The CoDel run on each flow's queue.
    pub codel: CodelConfig,
    /// Number of flow queues a packet's flow key is hashed into.
    pub flows: u32,
    /// Bytes a queue may send per turn.
    pub quantum: u32,
}

/// Parameters of deficit round robin: a class is a VPN's index, the last class is all else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrrConfig {
    /// Weight of each class, above zero.
    pub weights: Vec<f64>,
    /// Buffer of each class. It stands in for the link's buffer, which a class could
    /// otherwise fill alone.
    pub buffer_per_class: Capacity,
}

/// One of several classes of packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassConfig {
    /// Classes of a lower number send before those of a higher one.
    pub priority: u8,
    /// Share among classes of the same priority, above zero.
    pub weight: f64,
    /// How its packets wait.
    pub queue: Config,
    /// How much may wait.
    pub buffer: Capacity,
}

/// The waiting packets of one discipline.
///
/// A driver whose line is busy calls [`enqueue`](Queue::enqueue) for every arrival and
/// [`dequeue`](Queue::dequeue) whenever the line falls free. A driver whose line is free
/// calls [`pass`](Queue::pass), which lets the packet through whatever the buffer holds:
/// the packet being sent does not occupy the buffer, so a buffer of zero is a line that
/// loses what it cannot send at once. Where the buffer has room, `pass` is the same as
/// `enqueue` followed by `dequeue`.
///
/// Times must not go back from call to call. Every packet that is given to the queue is
/// either returned, handed to `dropped`, or still waiting.
#[derive(Clone, Debug)]
pub enum Queue<P> {
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
            Queue::DropTail($inner) => $body,
            Queue::Red($inner) => $body,
            Queue::Codel($inner) => $body,
            Queue::FqCodel($inner) => $body,
            Queue::DeficitRoundRobin($inner) => $body,
            Queue::Classes($inner) => $body,
        }
    };
}

impl<P: Packet> Queue<P> {
    /// An empty queue. `rng` serves RED's drops and FQ-CoDel's hash; the others draw nothing.
    pub fn new(config: &Config, buffer: Capacity, rng: Stream) -> Queue<P> {
        match config {
            Config::DropTail => Queue::DropTail(DropTail::new(buffer)),
            Config::Red(red) => Queue::Red(Red::new(red.clone(), buffer, rng)),
            Config::Codel(codel) => Queue::Codel(Codel::new(codel.clone(), buffer)),
            Config::FqCodel(fq_codel) => Queue::FqCodel(FqCodel::new(fq_codel.clone(), buffer, rng)),
            Config::DeficitRoundRobin(drr) => Queue::DeficitRoundRobin(DeficitRoundRobin::new(drr)),
            Config::Classes(classes) => Queue::Classes(Classes::new(classes, &rng)),
        }
    }

    /// A packet arrives. What is dropped for it (itself, or with FQ-CoDel packets of the
    /// fattest flow) goes to `dropped`.
    #[inline]
    pub fn enqueue(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) {
        each!(self, queue => queue.enqueue(now, packet, dropped));
    }

    /// The line is free: the next packet to send. CoDel drops here.
    #[inline]
    pub fn dequeue(&mut self, now: Instant, dropped: &mut impl FnMut(P)) -> Option<P> {
        each!(self, queue => queue.dequeue(now, dropped))
    }

    /// A packet arrives at an empty queue while the line is free.
    #[inline]
    pub fn pass(&mut self, now: Instant, packet: P, dropped: &mut impl FnMut(P)) -> Option<P> {
        debug_assert!(self.is_empty(), "a line is not free while packets wait for it");
        each!(self, queue => queue.pass(now, packet, dropped))
    }

    /// Hand over everything that waits, as when the line fails.
    pub fn clear(&mut self, now: Instant, dropped: &mut impl FnMut(P)) {
        each!(self, queue => queue.clear(now, dropped));
    }

    /// Packets waiting.
    #[inline]
    pub fn len(&self) -> usize {
        each!(self, queue => queue.len())
    }

    /// Whether no packet waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes waiting, at the IP layer.
    #[inline]
    pub fn bytes(&self) -> u64 {
        each!(self, queue => queue.bytes())
    }

    /// Packets marked "congestion experienced" since the start.
    pub fn marks(&self) -> u64 {
        match self {
            Queue::DropTail(_) | Queue::DeficitRoundRobin(_) => 0,
            Queue::Red(queue) => queue.marks(),
            Queue::Codel(queue) => queue.marks(),
            Queue::FqCodel(queue) => queue.marks(),
            Queue::Classes(queue) => queue.marks(),
        }
    }
}

/// Signal congestion on an ECN-capable packet; false where it has to be dropped instead.
/// A packet that an earlier queue marked already carries the signal and is not counted.
fn mark<P: Packet>(packet: &mut P, marks: &mut u64) -> bool {
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
    use crate::packet::{Ecn, Packet};

    /// A packet with a serial number.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Numbered {
        pub number: u64,
        pub size: u32,
        pub class: u16,
        pub flow: u64,
        pub ecn: Ecn,
    }

    impl Numbered {
        pub fn new(number: u64, size: u32) -> Numbered {
            Numbered { number, size, class: 0, flow: 0, ecn: Ecn::NotCapable }
        }
    }

    impl Packet for Numbered {
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
