//! Packets with wrong bits: a checksum has them thrown away, unless they are datagrams sent
//! without one and the headers are whole.

use super::World;
use crate::bins::{Bins, Grid};
use crate::packet::{Body, Packet};
use netstage_core::rng::Stream;
use netstage_core::time::Instant;
use netstage_scenario::plan::Plan;
use netstage_wire::probe;
use std::collections::BTreeMap;

/// Bits of a probe's payload that no receiver can compare: the time at the end of its header.
const UNKNOWN_BITS: std::ops::Range<u64> = (probe::HEADER as u64 - 8) * 8..probe::HEADER as u64 * 8;

/// What became of damaged datagrams.
#[derive(Debug)]
pub struct Damage {
    /// Tells which bits are wrong.
    stream: Stream,
    /// Of each UDP flow whose payloads are compared: packets with wrong bits, and these bits.
    found: BTreeMap<u32, [Bins; 2]>,
}

impl Damage {
    /// None yet. `groups` has the group of each UDP flow.
    pub fn new(plan: &Plan, seed: u64, grid: Grid, groups: &[u32]) -> Damage {
        let compared = |(flow, group): (usize, &u32)| {
            let compares = plan.flows[*group as usize].datagrams.compare;
            compares.then(|| (flow as u32, [Bins::new(grid), Bins::new(grid)]))
        };
        let found = groups.iter().enumerate().filter_map(compared).collect();
        Damage { stream: Stream::new(seed, "damage"), found }
    }

    /// A datagram has arrived with wrong bits in its payload.
    pub fn note(&mut self, now: Instant, flow: u32, bits: u32) {
        if let Some([packets, wrong]) = self.found.get_mut(&flow) {
            packets.add(now, 1);
            wrong.add(now, u64::from(bits));
        }
    }

    /// Packets with wrong bits, and these bits, per bin; none where nothing is compared.
    pub fn found(&self, flow: usize) -> Option<[Vec<f64>; 2]> {
        let found = self.found.get(&(flow as u32))?;
        Some(found.each_ref().map(|bins| bins.scaled(1.0)))
    }
}

impl World<'_> {
    /// Whether a packet goes on with so many wrong bits.
    #[cold]
    pub(super) fn survives(&mut self, packet: &mut Packet, errors: u32) -> bool {
        let Body::Datagram { wrong_bits, .. } = &mut packet.body else { return false };
        let group = self.hosts.udp[packet.flow as usize] as usize;
        if self.plan.flows[group].datagrams.checksum {
            return false;
        }
        let headers = u64::from(self.hosts.groups[group].header) * 8;
        for _ in 0..errors {
            let Some(place) = self.damage.stream.below(u64::from(packet.size) * 8).checked_sub(headers)
            else {
                return false;
            };
            *wrong_bits += u32::from(!UNKNOWN_BITS.contains(&place));
        }
        true
    }
}
