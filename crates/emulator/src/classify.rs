//! Classifier: assigns a packet to a VPN and a flow by its addresses and ports.

use super::headers::Conversation;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// Classification of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketLabel {
    /// Class for schedulers: the index of the VPN, or the number of VPNs if the packet is in none.
    pub class: u16,
    /// Number of the flow, if there is one.
    pub flow: Option<u32>,
    /// True for background load.
    pub background: bool,
    /// Separate queues for the connections of the flow, such as those of an application.
    pub connections: bool,
}

/// Label of the packets between two endpoints. A field that is `None` matches any value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifierEntry {
    /// Source address.
    pub source: Option<IpAddr>,
    /// Destination address.
    pub destination: Option<IpAddr>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source port. For an ICMP echo, its identifier is both ports.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
    /// Label, also of packets in the opposite direction and of ICMP errors about these packets.
    pub label: PacketLabel,
}

/// Result of a classification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Label of the packet.
    pub label: PacketLabel,
    /// Whether the packet goes from the entry's destination to its source.
    pub reverse: bool,
}

/// Classifier of packets. If several entries match, the one with the most fields wins; among equals, the first.
#[derive(Clone, Debug)]
pub struct Classifier {
    /// Entries by the set of their fields, larger sets first.
    field_sets: Vec<(FieldSet, HashMap<EntryKey, Match>)>,
    default_class: PacketLabel,
}

/// Set of the fields that an entry matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FieldSet([bool; 5]);

type EntryKey = (Option<IpAddr>, Option<IpAddr>, Option<u8>, Option<u16>, Option<u16>);

impl FieldSet {
    fn new(key: &EntryKey) -> FieldSet {
        FieldSet([key.0.is_some(), key.1.is_some(), key.2.is_some(), key.3.is_some(), key.4.is_some()])
    }

    fn count(self) -> usize {
        self.0.iter().filter(|is_matched| **is_matched).count()
    }

    fn key(self, conversation: &Conversation) -> EntryKey {
        let [source, destination, protocol, source_port, destination_port] = self.0;
        let ports = conversation.ports;
        (
            source.then_some(conversation.source),
            destination.then_some(conversation.destination),
            protocol.then_some(conversation.protocol),
            ports.map(|ports| ports.0).filter(|_| source_port),
            ports.map(|ports| ports.1).filter(|_| destination_port),
        )
    }
}

impl Classifier {
    /// Creates a classifier. Packets without a matching entry have class `default_class` and no flow.
    pub fn new(entries: &[ClassifierEntry], default_class: u16) -> Classifier {
        let default_class =
            PacketLabel { class: default_class, flow: None, background: false, connections: false };
        let mut classifier = Classifier { field_sets: Vec::new(), default_class };
        for reverse in [false, true] {
            for entry in entries {
                let (mut ends, mut ports) =
                    ((entry.source, entry.destination), (entry.source_port, entry.destination_port));
                if reverse {
                    (ends, ports) = ((ends.1, ends.0), (ports.1, ports.0));
                }
                let key = (ends.0, ends.1, entry.protocol, ports.0, ports.1);
                classifier.add(key, Match { label: entry.label, reverse });
            }
        }
        classifier.field_sets.sort_by_key(|(fields, _)| std::cmp::Reverse(fields.count()));
        classifier
    }

    fn add(&mut self, key: EntryKey, found: Match) {
        let fields = FieldSet::new(&key);
        let index = self.field_sets.iter().position(|(other, _)| *other == fields).unwrap_or_else(|| {
            self.field_sets.push((fields, HashMap::new()));
            self.field_sets.len() - 1
        });
        self.field_sets[index].1.entry(key).or_insert(found);
    }

    /// Classifies a packet of this conversation.
    pub fn find(&self, conversation: Option<&Conversation>) -> Match {
        let default_class = Match { label: self.default_class, reverse: false };
        let Some(conversation) = conversation else { return default_class };
        let mut found = self.field_sets.iter().filter_map(|(fields, map)| map.get(&fields.key(conversation)));
        found.next().copied().unwrap_or(default_class)
    }
}

/// Returns a key that is equal for the packets of one direction of a flow, or of one of its connections. The key of a
/// numbered flow with one connection is the same as in the simulator.
pub fn flow_key(found: Match, conversation: Option<&Conversation>) -> u64 {
    match (found.label.flow, conversation) {
        (Some(flow), _) if !found.label.connections => u64::from(flow) << 1 | u64::from(found.reverse),
        (Some(flow), None) => u64::from(flow) << 1 | u64::from(found.reverse),
        (_, Some(conversation)) => {
            // The top bit distinguishes these from the keys of numbered flows.
            let mut hasher = DefaultHasher::new();
            conversation.hash(&mut hasher);
            hasher.finish() | 1 << 63
        }
        (None, None) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(flow: u32) -> PacketLabel {
        PacketLabel { class: 0, flow: Some(flow), background: false, connections: false }
    }

    fn entry(destination: u8, ports: (Option<u16>, Option<u16>), flow: u32) -> ClassifierEntry {
        ClassifierEntry {
            source: Some([10, 0, 0, 1].into()),
            destination: Some([10, 0, 0, destination].into()),
            protocol: None,
            source_port: ports.0,
            destination_port: ports.1,
            label: label(flow),
        }
    }

    fn conversation(destination: u8, ports: Option<(u16, u16)>) -> Conversation {
        let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, destination].into());
        Conversation { source, destination, protocol: 17, ports }
    }

    #[test]
    fn the_entry_with_the_most_fields_wins_in_both_directions() {
        let entries = [
            entry(2, (None, None), 1),
            entry(2, (None, Some(80)), 2),
            entry(2, (Some(9), Some(80)), 3),
            entry(2, (Some(9), Some(80)), 4),
        ];
        let classifier = Classifier::new(&entries, 7);
        for (ports, flow) in [(None, 1), (Some((1, 1)), 1), (Some((1, 80)), 2), (Some((9, 80)), 3)] {
            let forward = conversation(2, ports);
            let found = Match { label: label(flow), reverse: false };
            assert_eq!(classifier.find(Some(&forward)), found);
            let reverse = Match { reverse: true, ..found };
            assert_eq!(classifier.find(Some(&forward.reversed())), reverse);
            assert_eq!(flow_key(reverse, None), u64::from(flow) << 1 | 1);
        }
    }

    #[test]
    fn connections_of_an_application_have_separate_queues() {
        let plain = Match { label: label(3), reverse: false };
        let separate = Match { label: PacketLabel { connections: true, ..label(3) }, reverse: false };
        let key = |found, port| flow_key(found, Some(&conversation(2, Some((port, 80)))));
        assert_eq!((key(plain, 1), key(plain, 2)), (6, 6));
        assert_eq!(key(separate, 1), key(separate, 1));
        assert_ne!(key(separate, 1), key(separate, 2));
    }

    #[test]
    fn packets_without_a_matching_entry_have_the_default_class() {
        let classifier = Classifier::new(&[entry(2, (None, Some(80)), 1)], 7);
        for other in [None, Some(conversation(3, None)), Some(conversation(2, Some((80, 1))))] {
            let found = classifier.find(other.as_ref());
            assert_eq!((found.label.class, found.label.flow), (7, None));
        }
        let key = |port| {
            let conversation = conversation(3, Some((port, 1)));
            flow_key(classifier.find(Some(&conversation)), Some(&conversation))
        };
        assert_eq!((key(1), key(1) == key(2)), (key(1), false));
    }
}
