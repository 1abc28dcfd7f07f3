//! To whom a packet belongs: the VPN, the flow and whether it is background load, looked up
//! by its addresses and ports.

use super::headers::Conversation;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// To whom a packet belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// Class for schedulers: the index of its VPN, or the number of VPNs.
    pub class: u16,
    /// Number of its flow, where it has one.
    pub flow: Option<u32>,
    /// Background load.
    pub background: bool,
    /// Its connections are queued apart, as those of an application are.
    pub connections: bool,
}

/// Packets that go between two ends, and their label. What is left out is any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Sender's address.
    pub source: Option<IpAddr>,
    /// Receiver's address.
    pub destination: Option<IpAddr>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Sender's port; an ICMP echo has its identifier in both.
    pub source_port: Option<u16>,
    /// Receiver's port.
    pub destination_port: Option<u16>,
    /// What they are. Packets the other way, and ICMP errors about these, get it too.
    pub label: Label,
}

/// A label, and whether the packet goes against its entry's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// To whom the packet belongs.
    pub label: Label,
    /// From the entry's destination to its source.
    pub reverse: bool,
}

/// Finds labels. Of several entries that match, the one with the most fields given wins, and
/// of these the first.
#[derive(Clone, Debug)]
pub struct Classifier {
    /// For each set of given fields, most fields first: what they select.
    shapes: Vec<(Shape, HashMap<Key, Match>)>,
    others: Label,
}

/// Which fields are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape([bool; 5]);

type Key = (Option<IpAddr>, Option<IpAddr>, Option<u8>, Option<u16>, Option<u16>);

impl Shape {
    fn of(key: &Key) -> Shape {
        Shape([key.0.is_some(), key.1.is_some(), key.2.is_some(), key.3.is_some(), key.4.is_some()])
    }

    fn given(self) -> usize {
        self.0.iter().filter(|given| **given).count()
    }

    fn key(self, conversation: &Conversation) -> Key {
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
    /// A classifier; what no entry matches is of class `others`, of no flow.
    pub fn new(entries: &[Entry], others: u16) -> Classifier {
        let others = Label { class: others, flow: None, background: false, connections: false };
        let mut classifier = Classifier { shapes: Vec::new(), others };
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
        classifier.shapes.sort_by_key(|(shape, _)| std::cmp::Reverse(shape.given()));
        classifier
    }

    fn add(&mut self, key: Key, found: Match) {
        let shape = Shape::of(&key);
        let place = self.shapes.iter().position(|(known, _)| *known == shape).unwrap_or_else(|| {
            self.shapes.push((shape, HashMap::new()));
            self.shapes.len() - 1
        });
        self.shapes[place].1.entry(key).or_insert(found);
    }

    /// To whom a packet of this conversation belongs.
    pub fn find(&self, conversation: Option<&Conversation>) -> Match {
        let others = Match { label: self.others, reverse: false };
        let Some(conversation) = conversation else { return others };
        let mut found = self.shapes.iter().filter_map(|(shape, map)| map.get(&shape.key(conversation)));
        found.next().copied().unwrap_or(others)
    }
}

/// Equal for packets of one flow in one direction, or of one of its connections. That of a flow
/// with a number and one connection is the simulator's.
pub fn flow_key(found: Match, conversation: Option<&Conversation>) -> u64 {
    match (found.label.flow, conversation) {
        (Some(flow), _) if !found.label.connections => u64::from(flow) << 1 | u64::from(found.reverse),
        (Some(flow), None) => u64::from(flow) << 1 | u64::from(found.reverse),
        (_, Some(conversation)) => {
            // The top bit keeps these apart from flows that have a number.
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

    fn label(flow: u32) -> Label {
        Label { class: 0, flow: Some(flow), background: false, connections: false }
    }

    fn entry(destination: u8, ports: (Option<u16>, Option<u16>), flow: u32) -> Entry {
        Entry {
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
    fn the_entry_with_most_fields_wins_in_either_direction() {
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
            let back = Match { reverse: true, ..found };
            assert_eq!(classifier.find(Some(&forward.reversed())), back);
            assert_eq!(flow_key(back, None), u64::from(flow) << 1 | 1);
        }
    }

    #[test]
    fn connections_of_an_application_are_queued_apart() {
        let plain = Match { label: label(3), reverse: false };
        let apart = Match { label: Label { connections: true, ..label(3) }, reverse: false };
        let key = |found, port| flow_key(found, Some(&conversation(2, Some((port, 80)))));
        assert_eq!((key(plain, 1), key(plain, 2)), (6, 6));
        assert_eq!(key(apart, 1), key(apart, 1));
        assert_ne!(key(apart, 1), key(apart, 2));
    }

    #[test]
    fn what_nothing_matches_is_of_the_others() {
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
