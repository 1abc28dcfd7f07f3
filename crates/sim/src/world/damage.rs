//! Packets with bit errors. A checksum causes them to be discarded, except datagrams sent without a checksum
//! whose headers are intact.

use super::Simulation;
use crate::bins::{BinnedSum, Grid};
use crate::packet::{PacketBody, SimulatedPacket};
use netstage_core::rng::RandomStream;
use netstage_core::time::Instant;
use netstage_scenario::plan::Plan;
use netstage_wire::probe;
use std::collections::BTreeMap;

/// Bits of a probe's payload that no receiver can compare: the timestamp at the end of its header.
const UNKNOWN_BITS: std::ops::Range<u64> = (probe::HEADER as u64 - 8) * 8..probe::HEADER as u64 * 8;

/// Counters of damaged datagrams.
#[derive(Debug)]
pub struct Damage {
    /// Random stream that selects the damaged bits.
    stream: RandomStream,
    /// Packets with bit errors and number of these bits, per UDP flow whose payloads are compared.
    found: BTreeMap<u32, [BinnedSum; 2]>,
}

impl Damage {
    /// Creates empty counters. `groups` holds the group of each UDP flow.
    pub fn new(plan: &Plan, seed: u64, grid: Grid, groups: &[u32]) -> Damage {
        let compared = |(flow, group): (usize, &u32)| {
            let compares = plan.flows[*group as usize].datagrams.compare;
            compares.then(|| (flow as u32, [BinnedSum::new(grid), BinnedSum::new(grid)]))
        };
        let found = groups.iter().enumerate().filter_map(compared).collect();
        Damage { stream: RandomStream::new(seed, "damage"), found }
    }

    /// Records a datagram that arrived with bit errors in its payload.
    pub fn record(&mut self, now: Instant, flow: u32, bits: u32) {
        if let Some([packets, wrong]) = self.found.get_mut(&flow) {
            packets.add(now, 1);
            wrong.add(now, u64::from(bits));
        }
    }

    /// Returns packets with bit errors and number of these bits, per bin; `None` if payloads are not
    /// compared.
    pub fn counts_of(&self, flow: usize) -> Option<[Vec<f64>; 2]> {
        let found = self.found.get(&(flow as u32))?;
        Some(found.each_ref().map(|bins| bins.scaled(1.0)))
    }
}

impl Simulation<'_> {
    /// Returns whether a packet with `errors` bit errors is forwarded.
    #[cold]
    pub(super) fn survives(&mut self, packet: &mut SimulatedPacket, errors: u32) -> bool {
        let PacketBody::Datagram { wrong_bits, .. } = &mut packet.body else { return false };
        let group = self.hosts.udp[packet.flow as usize] as usize;
        if self.plan.flows[group].datagrams.checksum {
            return false;
        }
        let headers = u64::from(self.hosts.groups[group].header) * 8;
        for _ in 0..errors {
            let Some(bit) = self.damage.stream.below(u64::from(packet.size) * 8).checked_sub(headers) else {
                return false;
            };
            *wrong_bits += u32::from(!UNKNOWN_BITS.contains(&bit));
        }
        true
    }
}
