//! What sources tell is what packets find, whatever was told before.

use super::*;
use crate::router::tables::Sizes;
use netstage_core::forward::lpm::Shape;
use netstage_core::forward::{Fault, Kind, Packet, Reason, Verdict};
use netstage_wire::ip::{protocol, v4};
use netstage_wire::mpls::Entry;
use proptest::prelude::*;
use std::net::Ipv4Addr;

const STATION: Mac = [2, 0, 0, 0, 9, 9];

fn setup(hops: usize, targets: usize) -> (Fib, Tables) {
    let interface = |last| Interface { mac: [2, 0, 0, 0, 0, last], mtu: 1500, table: 0, mpls: last < 2 };
    let interfaces: Vec<Interface> = (0..3).map(interface).collect();
    let shape = |rows| Shape { first: 16, rows };
    let tables = vec![(shape(64), shape(64)), (shape(4), shape(4))];
    let table = interfaces.iter().map(|interface| interface.table).collect();
    let tables = Tables::new(Sizes { tables, targets, hops }, table, 1, None);
    (Fib::new(interfaces, 2, Model::Uniform), tables)
}

fn label(number: u32) -> Label {
    Label::new(number).unwrap()
}

fn prefix(text: &str) -> Prefix {
    let (address, length) = text.split_once('/').unwrap();
    (0, (address.parse().unwrap(), length.parse().unwrap()))
}

fn path(interface: u32, via: Option<[u8; 4]>, labels: &[u32]) -> Path {
    Path { interface, via: via.map(IpAddr::from), labels: labels.iter().copied().map(label).collect() }
}

fn to(path: Path) -> Option<Destination> {
    Some(Destination::Paths(vec![path]))
}

/// The path of a packet to this address, with these labels, that came by an interface; or why it has none.
fn found(tables: &Tables, labels: &[u32], address: [u8; 4], interface: u32) -> Result<Path, Verdict> {
    const ROOM: usize = 16;
    let mut packet = vec![0; v4::HEADER];
    (packet[0], packet[3], packet[8], packet[9]) = (0x45, v4::HEADER as u8, 64, protocol::UDP);
    packet[16..20].copy_from_slice(&address);
    let checksum = netstage_wire::checksum::checksum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut bytes = vec![0; ROOM];
    for (depth, number) in labels.iter().enumerate() {
        let bottom = depth + 1 == labels.len();
        bytes.extend(Entry { label: label(*number), traffic_class: 0, bottom, ttl: 9 }.to_bytes());
    }
    bytes.extend(packet);
    let kind = if labels.is_empty() { Kind::V4 } else { Kind::Mpls };
    match tables.forward(&mut Packet { bytes: &mut bytes, start: ROOM, kind }, interface) {
        Verdict::Send { hop, .. } => {
            let (hop, next_hop) = tables.hop(hop);
            Ok(Path { interface: hop.interface, via: next_hop.via, labels: hop.labels().to_vec() })
        }
        verdict => Err(verdict),
    }
}

#[test]
fn routes_and_labels_lead_where_they_are_said_to() {
    let (mut fib, mut tables) = setup(8, 8);
    let first = path(1, Some([192, 0, 2, 1]), &[100]);
    fib.apply(&mut tables, &Change::Route(prefix("10.0.0.0/8"), to(first.clone()))).unwrap();
    assert_eq!(found(&tables, &[], [10, 1, 1, 1], 0), Ok(first.clone()));
    // Replaced without being gone between.
    let second = path(2, Some([192, 0, 2, 5]), &[]);
    fib.apply(&mut tables, &Change::Route(prefix("10.0.0.0/8"), to(second.clone()))).unwrap();
    assert_eq!(found(&tables, &[], [10, 1, 1, 1], 0), Ok(second.clone()));

    let swap = Meaning::Forward(to(first.clone()).unwrap());
    fib.apply(&mut tables, &Change::Label(label(300), Some(swap))).unwrap();
    assert_eq!(found(&tables, &[300], [10, 1, 1, 1], 0), Ok(first));
    assert_eq!(found(&tables, &[300], [10, 1, 1, 1], 2), Err(Verdict::Drop(Reason::Unexpected)));
    fib.apply(&mut tables, &Change::Label(label(300), Some(Meaning::Pop { table: 0 }))).unwrap();
    assert_eq!(found(&tables, &[300], [10, 1, 1, 1], 0), Ok(second));
    fib.apply(&mut tables, &Change::Label(label(300), None)).unwrap();
    assert_eq!(found(&tables, &[300], [10, 1, 1, 1], 0), Err(Verdict::Drop(Reason::UnknownLabel)));
    fib.apply(&mut tables, &Change::Route(prefix("10.0.0.0/8"), None)).unwrap();
    assert_eq!(found(&tables, &[], [10, 1, 1, 1], 0), Err(Verdict::Refuse(Fault::NoRoute)));
    assert!(fib.hops.numbers.is_empty() && fib.targets.numbers.is_empty());
}

#[test]
fn neighbours_are_found_by_address_and_on_their_link() {
    let (mut fib, mut tables) = setup(8, 8);
    let near = (1, IpAddr::from([192, 0, 2, 1]));
    fib.apply(&mut tables, &Change::Route(prefix("10.0.0.0/8"), to(path(1, Some([192, 0, 2, 1]), &[100]))))
        .unwrap();
    assert!(fib.neighbours().eq([(near, None)]));
    fib.set_neighbour(&mut tables, near, Some(STATION));
    let (_, next_hop) = tables.hop(0);
    assert_eq!(next_hop.stations, Some(Stations { to: STATION, from: [2, 0, 0, 0, 0, 1] }));
    // Its link's prefix comes later, and then it has a route of its own there.
    fib.apply(&mut tables, &Change::Route(prefix("192.0.2.0/24"), to(path(1, None, &[])))).unwrap();
    assert_eq!(found(&tables, &[], [192, 0, 2, 1], 0), Ok(path(1, Some([192, 0, 2, 1]), &[])));
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Ok(path(1, None, &[])));
    fib.set_neighbour(&mut tables, (1, [192, 0, 2, 7].into()), Some(STATION));
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Ok(path(1, Some([192, 0, 2, 7]), &[])));
    // What a source says of it counts more.
    let elsewhere = path(2, Some([203, 0, 113, 1]), &[]);
    fib.apply(&mut tables, &Change::Route(prefix("192.0.2.7/32"), to(elsewhere.clone()))).unwrap();
    fib.set_neighbour(&mut tables, (1, [192, 0, 2, 7].into()), None);
    fib.set_neighbour(&mut tables, (1, [192, 0, 2, 7].into()), Some(STATION));
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Ok(elsewhere));
    fib.apply(&mut tables, &Change::Route(prefix("192.0.2.7/32"), None)).unwrap();
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Ok(path(1, Some([192, 0, 2, 7]), &[])));
    // With the link's prefix its neighbours are gone.
    fib.apply(&mut tables, &Change::Route(prefix("192.0.2.0/24"), None)).unwrap();
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Err(Verdict::Refuse(Fault::NoRoute)));
    fib.set_neighbour(&mut tables, near, None);
    let (_, next_hop) = tables.hop(0);
    assert_eq!(next_hop.stations, None);
}

#[test]
fn what_is_refused_changes_nothing() {
    let (mut fib, mut tables) = setup(2, 2);
    let ways: Vec<Path> = (1..4).map(|last| path(1, Some([192, 0, 2, last]), &[])).collect();
    let mut apply = |tables: &mut Tables, change| fib.apply(tables, &change);
    apply(&mut tables, Change::Route(prefix("10.0.0.0/8"), to(ways[0].clone()))).unwrap();
    let all = Some(Destination::Paths(ways.clone()));
    let change = Change::Route(prefix("10.0.0.0/8"), all);
    assert_eq!(apply(&mut tables, change), Err(Refused::NoRoom));
    let change = Change::Route(prefix("10.0.0.0/8"), to(path(7, Some([192, 0, 2, 1]), &[])));
    assert_eq!(apply(&mut tables, change), Err(Refused::Unknown));
    let change = Change::Route(prefix("10.0.0.0/8"), to(path(1, None, &[100, 101, 102, 103])));
    assert_eq!(apply(&mut tables, change), Err(Refused::TooManyLabels));
    let change = Change::Label(label(3), Some(Meaning::Forward(Destination::Discard)));
    assert_eq!(apply(&mut tables, change), Err(Refused::Reserved));
    let change = Change::Label(label(300), Some(Meaning::Pop { table: 2 }));
    assert_eq!(apply(&mut tables, change), Err(Refused::Unknown));
    assert_eq!(found(&tables, &[], [10, 1, 1, 1], 0), Ok(ways[0].clone()));
    // Nothing was used up by it.
    apply(&mut tables, Change::Route(prefix("11.0.0.0/8"), to(ways[1].clone()))).unwrap();
    assert_eq!(found(&tables, &[], [11, 1, 1, 1], 0), Ok(ways[1].clone()));
}

fn destination() -> impl Strategy<Value = Destination> {
    let one = (0_u32..3, 1_u8..4, prop::collection::vec(100_u32..103, 0..3))
        .prop_map(|(interface, last, labels)| path(interface, Some([192, 0, 2, last]), &labels));
    prop_oneof![
        6 => one.clone().prop_map(|path| Destination::Paths(vec![path])),
        2 => prop::collection::vec(one, 1..4).prop_map(Destination::Paths),
        1 => Just(Destination::Local),
        1 => Just(Destination::Discard),
    ]
}

proptest! {
    #[test]
    fn after_any_changes_packets_find_what_was_said_last(
        changes in prop::collection::vec((0_u8..4, 8_u8..33, prop::option::of(destination())), 1..60),
        stations in prop::collection::vec((0_u32..3, 1_u8..4, any::<bool>()), 0..20),
    ) {
        let (mut fib, mut tables) = setup(200, 200);
        let mut told: BTreeMap<(u8, u32), Destination> = BTreeMap::new();
        let mut stations = stations.into_iter();
        for (place, length, destination) in changes {
            let bits = u32::from_be_bytes([10, place, place << 6, place]) & u32::MAX << (32 - length);
            let change = Change::Route((0, (Ipv4Addr::from(bits).into(), length)), destination.clone());
            prop_assert_eq!(fib.apply(&mut tables, &change), Ok(()));
            match destination {
                Some(destination) => told.insert((length, bits), destination),
                None => told.remove(&(length, bits)),
            };
            if let Some((interface, last, is_there)) = stations.next() {
                let neighbour = (interface, IpAddr::from([192, 0, 2, last]));
                fib.set_neighbour(&mut tables, neighbour, is_there.then_some(STATION));
            }
            for address in [[10, 0, 0, 0], [10, 1, 64, 1], [10, 2, 128, 2], [10, 3, 192, 3], [10, 3, 0, 0]] {
                let bits = u32::from_be_bytes(address);
                let longest = told.iter().rev().find(|((length, prefix), _)| prefix ^ (bits & u32::MAX << (32 - length)) == 0);
                match (found(&tables, &[], address, 0), longest.map(|(_, destination)| destination)) {
                    (Ok(path), Some(Destination::Paths(paths))) => prop_assert!(paths.contains(&path)),
                    (Err(Verdict::Local { .. }), Some(Destination::Local)) => {}
                    (Err(Verdict::Drop(Reason::Discarded)), Some(Destination::Discard)) => {}
                    (Err(Verdict::Refuse(Fault::NoRoute)), None) => {}
                    (got, expected) => prop_assert!(false, "{:?} instead of {:?}", got, expected),
                }
            }
            // Each thing is there once, as long as something leads to it.
            let mut destinations: Vec<&Destination> = told.values().collect();
            destinations.sort();
            destinations.dedup();
            prop_assert!(fib.targets.numbers.keys().eq(destinations.iter().copied()));
            let paths: BTreeSet<&Path> = destinations
                .iter()
                .filter_map(|destination| if let Destination::Paths(paths) = destination { Some(paths) } else { None })
                .flatten()
                .collect();
            prop_assert!(fib.hops.numbers.keys().eq(paths));
        }
    }
}
