//! Faults of the packets of a trial by kind and network, as in records.

use super::fault_kind::FaultKind;
use super::program::{FaultCount, ReceiverTally};
use netstage_scenario::outcome::finding::PacketFault;
use netstage_scenario::tester::Tester;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Maximum number of networks listed for a kind of fault.
const MAX_NETWORKS: usize = 8;

/// Name of packets that did not come back.
const LOST: &str = "lost";
/// Name of networks without a correct packet before the trials.
const MISSING: &str = "not forwarded";

/// Packets sent and correct packets received of a direction, by network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Number of packets sent.
    pub sent: Vec<u64>,
    /// Number of correct packets received.
    pub received: Vec<u64>,
    /// Number of packets received with wrong contents or at a wrong port.
    pub wrong: Vec<u64>,
    /// Number of duplicates.
    pub duplicates: Vec<u64>,
}

impl NetworkCounts {
    /// Returns the counts of a direction whose streams sent these numbers of packets to the networks in turn.
    pub fn new(networks: u32, sent: impl Iterator<Item = u64>) -> NetworkCounts {
        let networks = u64::from(networks);
        let mut counts = vec![0; networks as usize];
        for sent in sent {
            for (network, count) in (0..).zip(&mut counts) {
                *count += sent / networks + u64::from(network < sent % networks);
            }
        }
        let none = vec![0; networks as usize];
        NetworkCounts { sent: counts, received: none.clone(), wrong: none.clone(), duplicates: none }
    }

    /// Returns whether all packets to a network came back correctly, and there was at least one.
    pub fn is_right(&self, network: usize) -> bool {
        let is_complete = self.sent[network] > 0 && self.received[network] == self.sent[network];
        is_complete && self.wrong[network] == 0 && self.duplicates[network] == 0
    }
}

/// Returns the direction of each stream.
pub fn directions_of_streams(tester: &Tester) -> Vec<usize> {
    let directions = tester.directions.iter().enumerate();
    directions.flat_map(|(number, direction)| std::iter::repeat_n(number, direction.from.len())).collect()
}

/// Adds the counts of a receiver to those of the directions. `direction` is that of the port.
pub fn count_networks(
    counts: &mut [NetworkCounts],
    tester: &Tester,
    direction: usize,
    tally: &ReceiverTally,
) {
    let streams = directions_of_streams(tester);
    for (count, received) in counts[direction].received.iter_mut().zip(&tally.networks) {
        *count += received;
    }
    for fault in &tally.faults {
        let counts = streams.get(usize::from(fault.stream)).and_then(|direction| counts.get_mut(*direction));
        let Some(counts) = counts else { continue };
        let counts = match fault.kind {
            // Packets with several differences count once.
            None | Some(FaultKind::Stray | FaultKind::Returned) => &mut counts.wrong,
            Some(FaultKind::Duplicate) => &mut counts.duplicates,
            Some(_) => continue,
        };
        if let Some(count) = counts.get_mut(fault.network as usize) {
            *count += fault.packets;
        }
    }
}

/// Returns the faults of a trial that began at `start_ns`. `examples` are the descriptions of the samples of `tally`.
pub fn faults(
    tester: &Tester,
    tally: &ReceiverTally,
    counts: &[NetworkCounts],
    examples: &[String],
    start_ns: u64,
) -> Vec<PacketFault> {
    let streams = directions_of_streams(tester);
    let mut found: Vec<PacketFault> = Vec::new();
    for kind in FaultKind::ALL {
        let packets = tally.kinds[kind as usize];
        if packets == 0 {
            continue;
        }
        let of_kind = |count: &&FaultCount| count.kind == Some(kind);
        let mut networks: BTreeMap<(usize, u32), u64> = BTreeMap::new();
        for count in tally.faults.iter().filter(of_kind) {
            let direction = streams.get(usize::from(count.stream)).copied().unwrap_or(0);
            *networks.entry((direction, count.network)).or_default() += count.packets;
        }
        let samples = tally.samples.iter().zip(examples).filter(|(sample, _)| sample.kind == kind);
        let first = samples.min_by_key(|(sample, _)| sample.at_ns);
        let mut fault = fault(tester, kind.name(), packets, networks);
        if let Some((sample, example)) = first {
            fault.example.clone_from(example);
            fault.bytes = hexadecimal(&sample.bytes);
            fault.first_ns = sample.at_ns.saturating_sub(start_ns);
        }
        found.push(fault);
    }
    let lost = lost_by_network(counts);
    let packets = lost.values().sum();
    if packets > 0 {
        found.push(fault(tester, LOST, packets, lost));
    }
    found
}

/// Returns the fault of networks to which no packet came back correctly, with the packets sent to each.
pub fn missing_networks(tester: &Tester, networks: BTreeMap<(usize, u32), u64>) -> PacketFault {
    let packets = networks.values().sum();
    fault(tester, MISSING, packets, networks)
}

/// Returns whether a fault is the loss of packets.
pub fn is_loss(fault: &PacketFault) -> bool {
    fault.kind == LOST
}

fn lost_by_network(counts: &[NetworkCounts]) -> BTreeMap<(usize, u32), u64> {
    let mut lost = BTreeMap::new();
    for (direction, counts) in counts.iter().enumerate() {
        for (network, sent) in counts.sent.iter().enumerate() {
            let count = sent.saturating_sub(counts.received[network] + counts.wrong[network]);
            if count > 0 {
                lost.insert((direction, network as u32), count);
            }
        }
    }
    lost
}

fn fault(tester: &Tester, kind: &str, packets: u64, networks: BTreeMap<(usize, u32), u64>) -> PacketFault {
    let count = networks.len() as u64;
    let mut most: Vec<((usize, u32), u64)> = networks.into_iter().collect();
    most.sort_by_key(|(network, packets)| (std::cmp::Reverse(*packets), *network));
    most.truncate(MAX_NETWORKS);
    let most = most.into_iter().map(|((direction, network), packets)| {
        let (address, length) = tester.directions[direction].network(network);
        (format!("{address}/{length}"), packets)
    });
    PacketFault {
        kind: kind.to_owned(),
        packets,
        networks: count,
        most: most.collect(),
        ..PacketFault::default()
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_network_in_turn() {
        let counts = NetworkCounts::new(4, [6, 1].into_iter());
        assert_eq!(counts.sent, [3, 2, 1, 1]);
        let counts = NetworkCounts { received: vec![3, 1, 1, 0], wrong: vec![0, 1, 1, 0], ..counts };
        assert_eq!([0, 1, 2, 3].map(|network| counts.is_right(network)), [true, false, false, false]);
        assert_eq!(lost_by_network(&[counts]), BTreeMap::from([((0, 3), 1)]));
    }
}
