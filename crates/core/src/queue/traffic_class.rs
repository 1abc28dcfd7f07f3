//! Configured packet classes by DSCP (RFC 2474).

use super::{ClassConfig, FqCodelConfig, QueueConfig};
use crate::quantity::Capacity;
use alloc::vec::Vec;

/// A traffic class of a VPN flow or of a port.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficClass {
    /// DSCPs (6 bits) of its packets. The first class that lists a DSCP applies; an unlisted DSCP belongs to
    /// the last class.
    pub codepoints: Vec<u8>,
    /// Priority; lower numbers are sent first.
    pub priority: u8,
    /// Weight among classes of the same priority, above zero.
    pub weight: f64,
    /// Capacity of the queue in packets.
    pub packets: u32,
    /// Parameters of FQ-CoDel (RFC 8290) within the class; `None` for first in, first out.
    pub fq_codel: Option<FqCodelConfig>,
}

impl TrafficClass {
    /// Returns the class of each DSCP.
    pub fn table(classes: &[TrafficClass]) -> [u8; 64] {
        let mut table = [classes.len().saturating_sub(1) as u8; 64];
        for (number, class) in classes.iter().enumerate().rev() {
            class.codepoints.iter().for_each(|codepoint| table[usize::from(*codepoint)] = number as u8);
        }
        table
    }

    /// Returns the queue discipline for these classes. Their buffers replace the buffer of the queue.
    pub fn discipline(classes: &[TrafficClass]) -> QueueConfig {
        let class = |class: &TrafficClass| ClassConfig {
            priority: class.priority,
            weight: class.weight,
            queue: class.fq_codel.clone().map_or(QueueConfig::DropTail, QueueConfig::FqCodel),
            buffer: Capacity::Packets(class.packets),
        };
        QueueConfig::Classes(classes.iter().map(class).collect())
    }
}
