//! Back-end with netem, the link emulator of the kernel (tc-netem(8), net/sched/sch_netem.c): the links that it
//! emulates exactly, its configuration, and its availability.
//!
//! A netem counts packets in transit toward its limit, and drops lost packets before their transmission. So each link
//! has two netems in series: the line, then the propagation. A netem nested in another one would still count toward the
//! limit of the outer one.
//!
//! - [`chain`]: the interfaces of a link.
//! - [`count`], [`watch`]: the counters.

pub mod chain;
mod count;
mod watch;

pub use watch::{KernelLink, NetemMonitor, NetemReport, READ_INTERVAL};

use netstage_core::link::{JitterDistribution, LinkDirectionConfig};
use netstage_core::quantity::Capacity;
use netstage_core::queue;
use netstage_core::time::Duration;
use netstage_host::netns::{Namespace, Netlink};
use serde::{Deserialize, Serialize};
use std::io;

/// Bytes of the Ethernet header, which netem counts and a link does not.
const ETHERNET: i32 = 14;
/// Maximum jitter; netem draws a 32-bit number of nanoseconds.
const MAX_JITTER: Duration = Duration(u32::MAX as u64);

/// Attributes of netem's options (linux/pkt_sched.h).
const TCA_NETEM_RATE: u16 = 6;
const TCA_NETEM_RATE64: u16 = 8;
const TCA_NETEM_LATENCY64: u16 = 10;
const TCA_NETEM_JITTER64: u16 = 11;

/// Configuration of one netem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Netem {
    /// Rate in bytes per second; 0 is unlimited.
    pub rate: u64,
    /// Bytes added to the frame size of each packet.
    pub overhead: i32,
    /// Maximum number of packets held, including the one being transmitted and those in transit.
    pub limit: u32,
    /// Mean delay in nanoseconds.
    pub latency_ns: i64,
    /// Half the width of the jitter in nanoseconds.
    pub jitter_ns: i64,
    /// Probability of loss.
    pub loss: f64,
    /// Probability of duplication.
    pub duplicate: f64,
}

/// Two netems that emulate one direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetemStages {
    /// Rate and buffer, at the near end.
    pub line: Netem,
    /// Delay and impairments after the line.
    pub way: Netem,
}

/// Returns the netems that emulate this link exactly, or the properties of the link that netem lacks.
pub fn stages(config: &LinkDirectionConfig) -> Result<NetemStages, Vec<&'static str>> {
    let limit = match config.buffer {
        Capacity::Packets(packets) => packets.saturating_add(1),
        Capacity::Bytes(_) => 0,
    };
    let jitter = config.jitter;
    let has_jitter = jitter.amount > Duration::ZERO;
    let differences = [
        (limit == 0, "a buffer in bytes"),
        (config.queue != queue::QueueConfig::DropTail, "a queue other than drop-tail"),
        (!config.rate.0.is_multiple_of(8), "a rate that is not a whole number of bytes per second"),
        (config.bit_error_rate > 0.0, "a bit error rate (netem flips one bit per damaged packet)"),
        (has_jitter && jitter.distribution != JitterDistribution::Uniform, "exponential jitter"),
        (has_jitter && !jitter.reorder, "jitter that keeps packets in order"),
        (jitter.amount > MAX_JITTER, "jitter over 4 s"),
        (has_jitter && config.duplicate > 0.0, "duplicates that have the jitter of their original"),
        (config.loss > 0.0 && config.duplicate > 0.0, "duplicates that are lost with their original"),
        (!config.schedule.is_empty(), "a schedule"),
    ];
    let found: Vec<_> =
        differences.iter().filter(|(differs, _)| *differs).map(|(_, property)| *property).collect();
    if !found.is_empty() {
        return Err(found);
    }
    let line = Netem {
        rate: config.rate.0 / 8,
        overhead: config.overhead as i32 - ETHERNET,
        limit,
        ..Netem::default()
    };
    // A link adds jitter between 0 and its amount; netem's jitter is symmetric around the latency.
    let way = Netem {
        limit: u32::MAX,
        latency_ns: (config.delay.0 + jitter.amount.0 / 2) as i64,
        jitter_ns: (jitter.amount.0 / 2) as i64,
        loss: config.loss,
        duplicate: config.duplicate,
        ..Netem::default()
    };
    Ok(NetemStages { line, way })
}

impl Netem {
    /// Encodes the options for netlink: `struct tc_netem_qopt`, then attributes.
    pub fn options(&self) -> Vec<u8> {
        let probability = |p: f64| (p * f64::from(u32::MAX)).round() as u32;
        // Latency and jitter are attributes in nanoseconds.
        let fixed = [0, self.limit, probability(self.loss), 0, probability(self.duplicate), 0];
        let mut options: Vec<u8> = fixed.into_iter().flat_map(u32::to_ne_bytes).collect();
        attribute(&mut options, TCA_NETEM_LATENCY64, &self.latency_ns.to_ne_bytes());
        attribute(&mut options, TCA_NETEM_JITTER64, &self.jitter_ns.to_ne_bytes());
        if self.rate > 0 {
            let low = u32::try_from(self.rate).unwrap_or(u32::MAX);
            let cells = [0; 8];
            let rate = [&low.to_ne_bytes()[..], &self.overhead.to_ne_bytes(), &cells].concat();
            attribute(&mut options, TCA_NETEM_RATE64, &self.rate.to_ne_bytes());
            attribute(&mut options, TCA_NETEM_RATE, &rate);
        }
        options
    }
}

/// Appends an attribute, whose length must be a multiple of four.
fn attribute(options: &mut Vec<u8>, kind: u16, value: &[u8]) {
    options.extend((4 + value.len() as u16).to_ne_bytes());
    options.extend(kind.to_ne_bytes());
    options.extend(value);
}

/// Returns whether this kernel has netem, by a test in a namespace of its own.
pub fn is_available() -> io::Result<bool> {
    let scratch = Namespace::new()?;
    let netem = Netem { limit: 1, ..Netem::default() };
    match Netlink::open(&scratch)?.set_queue_discipline("lo", "netem", netem.options()) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.source.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP)) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::link::Jitter;
    use netstage_core::quantity::BitRate;

    pub(super) fn config() -> LinkDirectionConfig {
        LinkDirectionConfig {
            overhead: 18,
            loss: 0.25,
            jitter: Jitter {
                amount: Duration::from_millis(2),
                distribution: JitterDistribution::Uniform,
                reorder: true,
            },
            ..LinkDirectionConfig::plain(BitRate(10_000_000), Duration::from_millis(5), Capacity::Packets(10))
        }
    }

    #[test]
    fn a_link_has_a_netem_for_the_line_and_one_for_the_propagation() {
        let NetemStages { line, way } = stages(&config()).unwrap();
        let expected = Netem { rate: 1_250_000, overhead: 4, limit: 11, ..Netem::default() };
        assert_eq!(line, expected);
        assert_eq!((way.latency_ns, way.jitter_ns, way.loss), (6_000_000, 1_000_000, 0.25));
    }

    #[test]
    fn properties_that_netem_lacks_are_returned_as_errors() {
        let other = LinkDirectionConfig {
            buffer: Capacity::Bytes(1),
            duplicate: 0.1,
            bit_error_rate: 1e-6,
            ..config()
        };
        assert_eq!(stages(&other).unwrap_err().len(), 4);
    }

    #[test]
    fn options_have_the_layout_of_the_kernel() {
        let options = stages(&config()).unwrap().line.options();
        let word = |at: usize| u32::from_ne_bytes(options[at..at + 4].try_into().unwrap());
        assert_eq!((word(4), options.len()), (11, 24 + 12 + 12 + 12 + 20));
        let (mut at, mut kinds) = (24, Vec::new());
        while at < options.len() {
            kinds.push((word(at) >> 16) as u16);
            at += (word(at) & 0xffff) as usize;
        }
        assert_eq!((at, kinds), (options.len(), vec![10, 11, 8, 6]));
        assert_eq!((word(64), word(68)), (1_250_000, 4));
        assert_eq!(stages(&config()).unwrap().way.options()[8..12], 0x4000_0000_u32.to_ne_bytes());
    }
}
