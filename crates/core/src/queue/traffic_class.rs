//! Classes of packets by DSCP (RFC 2474), as they are configured.

use super::{ClassConfig, Config, FqCodelConfig};
use crate::quantity::Capacity;
use alloc::vec::Vec;

/// Packets of a VPN flow, or of a port, that wait together.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficClass {
    /// The DSCPs (6 bits) of its packets; the first class that has one counts, and what is in no
    /// list belongs to the last class.
    pub codepoints: Vec<u8>,
    /// Classes of a lower number send before those of a higher one.
    pub priority: u8,
    /// Share among classes of one priority, above zero.
    pub weight: f64,
    /// Packets that may wait.
    pub packets: u32,
    /// Keep the flows inside apart (RFC 8290); else first in, first out.
    pub fq_codel: Option<FqCodelConfig>,
}

impl TrafficClass {
    /// The class of each DSCP.
    pub fn table(classes: &[TrafficClass]) -> [u8; 64] {
        let mut table = [classes.len().saturating_sub(1) as u8; 64];
        for (number, class) in classes.iter().enumerate().rev() {
            class.codepoints.iter().for_each(|codepoint| table[usize::from(*codepoint)] = number as u8);
        }
        table
    }

    /// The discipline that keeps them apart. Classes have buffers of their own, which stand in for
    /// that of the whole.
    pub fn discipline(classes: &[TrafficClass]) -> Config {
        let class = |class: &TrafficClass| ClassConfig {
            priority: class.priority,
            weight: class.weight,
            queue: class.fq_codel.clone().map_or(Config::DropTail, Config::FqCodel),
            buffer: Capacity::Packets(class.packets),
        };
        Config::Classes(classes.iter().map(class).collect())
    }
}
