//! One direction of a link: what it does to a packet, apart from its queue.

use crate::quantity::{BitRate, Capacity};
use crate::queue;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;

/// One direction of a link, as a scenario gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rate at the IP layer plus `overhead` per packet.
    pub rate: BitRate,
    /// One-way propagation delay.
    pub delay: Duration,
    /// What may wait before the line.
    pub buffer: Capacity,
    /// Who waits and who is dropped.
    pub queue: queue::Config,
    /// Bytes of framing each packet adds on the line.
    pub overhead: u32,
    /// Probability that a packet is lost, each by itself.
    pub loss: f64,
    /// Probability that a bit is flipped; a packet with a flipped bit is lost to its receiver.
    pub bit_error_rate: f64,
    /// Random extra delay.
    pub jitter: Jitter,
    /// Probability that a packet is delivered twice.
    pub duplicate: f64,
    /// Changes over time, in order of time.
    pub schedule: Vec<(Instant, Change)>,
}

/// Random extra delay of each packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter {
    /// Largest extra delay (uniform) or its mean (exponential).
    pub amount: Duration,
    /// How it is spread.
    pub distribution: JitterDistribution,
    /// Whether a packet may overtake an earlier one.
    pub reorder: bool,
}

/// How jitter is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JitterDistribution {
    /// Uniform in [0, amount].
    Uniform,
    /// Exponential with mean `amount`.
    Exponential,
}

/// A change of a link at a moment; what is `None` stays as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// New rate.
    pub rate: Option<BitRate>,
    /// New one-way delay.
    pub delay: Option<Duration>,
    /// New loss probability.
    pub loss: Option<f64>,
    /// New bit error rate.
    pub bit_error_rate: Option<f64>,
    /// False: the link fails, what is queued or on the line is lost. True: it returns.
    pub up: Option<bool>,
}
