//! Queue disciplines: who waits, who is dropped, who is marked.
//!
//! A queue owns the waiting packets; the line behind it asks for the next one when it
//! is free. One file per discipline.

use crate::quantity::Capacity;
use crate::time::Duration;
use alloc::vec::Vec;

/// A discipline and its parameters, as a scenario gives them.
#[derive(Clone, Debug, PartialEq)]
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
}

/// Parameters of random early detection. Thresholds are in packets.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct CodelConfig {
    /// Acceptable standing delay.
    pub target: Duration,
    /// Worst-case round trip the controller waits for.
    pub interval: Duration,
    /// Mark ECN-capable packets instead of dropping them.
    pub ecn: bool,
}

/// Parameters of FQ-CoDel (RFC 8290 section 5.2).
#[derive(Clone, Debug, PartialEq)]
pub struct FqCodelConfig {
    /// The CoDel run on each flow's queue.
    pub codel: CodelConfig,
    /// Number of flow queues a packet's flow key is hashed into.
    pub flows: u32,
    /// Bytes a queue may send per turn.
    pub quantum: u32,
}

/// Parameters of deficit round robin: a class is a VPN's index, the last class is all else.
#[derive(Clone, Debug, PartialEq)]
pub struct DrrConfig {
    /// Weight of each class.
    pub weights: Vec<f64>,
    /// Buffer of each class.
    pub buffer_per_class: Capacity,
}
