//! Tests of the FIB: packets follow the latest routes and labels, regardless of earlier ones.

use super::*;
use crate::tables::Sizes;
use netstage_core::forward::lpm::LpmShape;
use netstage_core::forward::{
    BufferedPacket, DropReason, ForwardingVerdict, PacketProtocol, ReportableError,
};
use netstage_wire::ip::{protocol, v4};
use netstage_wire::mpls::LabelStackEntry;
use proptest::prelude::*;
use std::net::Ipv4Addr;

const NEIGHBOR_MAC: Mac = [2, 0, 0, 0, 9, 9];

fn setup(hops: usize, targets: usize) -> (Fib, Tables) {
    let interface = |last| FibInterface {
        mac: [2, 0, 0, 0, 0, last],
        mtu: 1500,
        incoming: IncomingInterface { mpls: last < 2, ..IncomingInterface::default() },
    };
    let interfaces: Vec<FibInterface> = (0..3).map(interface).collect();
    let shape = |rows| LpmShape { first: 16, rows };
    let tables = vec![(shape(64), shape(64)), (shape(4), shape(4))];
    let incoming = interfaces.iter().map(|interface| interface.incoming).collect();
    let tables = Tables::new(Sizes { tables, targets, hops }, incoming, 1, None);
    (Fib::new(interfaces, 2, TunnelModel::Uniform), tables)
}

fn label(number: u32) -> LabelValue {
    LabelValue::new(number).unwrap()
}

fn prefix(text: &str) -> TablePrefix {
    let (address, length) = text.split_once('/').unwrap();
    (0, (address.parse().unwrap(), length.parse().unwrap()))
}

fn path(interface: u32, via: Option<[u8; 4]>, labels: &[u32]) -> RoutePath {
    RoutePath { interface, via: via.map(IpAddr::from), labels: labels.iter().copied().map(label).collect() }
}

fn to(path: RoutePath) -> Option<Destination> {
    Some(Destination::Paths(vec![path]))
}

/// Returns the path of a packet with this address and these labels, received on an interface, or its verdict.
fn found(
    tables: &Tables,
    labels: &[u32],
    address: [u8; 4],
    interface: u32,
) -> Result<RoutePath, ForwardingVerdict> {
    const ROOM: usize = 16;
    let mut packet = vec![0; v4::HEADER];
    (packet[0], packet[3], packet[8], packet[9]) = (0x45, v4::HEADER as u8, 64, protocol::UDP);
    packet[12..16].copy_from_slice(&[198, 51, 100, 1]);
    packet[16..20].copy_from_slice(&address);
    let checksum = netstage_wire::checksum::checksum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut bytes = vec![0; ROOM];
    for (depth, number) in labels.iter().enumerate() {
        let bottom = depth + 1 == labels.len();
        bytes.extend(LabelStackEntry { label: label(*number), traffic_class: 0, bottom, ttl: 9 }.to_bytes());
    }
    bytes.extend(packet);
    let kind = if labels.is_empty() { PacketProtocol::V4 } else { PacketProtocol::Mpls };
    match tables.forward(&mut BufferedPacket { bytes: &mut bytes, start: ROOM, kind }, interface) {
        ForwardingVerdict::Send { hop, .. } => {
            let (hop, next_hop) = tables.hop(hop);
            Ok(RoutePath { interface: hop.interface, via: next_hop.via, labels: hop.labels().to_vec() })
        }
        verdict => Err(verdict),
    }
}

#[test]
fn packets_follow_routes_and_labels() {
    let (mut fib, mut tables) = setup(8, 8);
    let first = path(1, Some([192, 0, 2, 1]), &[100]);
    fib.apply(&mut tables, &SourceChange::Route(prefix("10.0.0.0/8"), to(first.clone()))).unwrap();
    assert_eq!(found(&tables, &[], [10, 1, 1, 1], 0), Ok(first.clone()));
    // Replaces the route without a gap.
    let second = path(2, Some([192, 0, 2, 5]), &[]);
    fib.apply(&mut tables, &SourceChange::Route(prefix("10.0.0.0/8"), to(second.clone()))).unwrap();
    assert_eq!(found(&tables, &[], [10, 1, 1, 1], 0), Ok(second.clone()));

    let swap = LabelAction::Forward(to(first.clone()).unwrap());
    fib.apply(&mut tables, &SourceChange::Label(label(300), Some(swap))).unwrap();
    assert_eq!(found(&tables, &[300], [10, 1, 1, 1], 0), Ok(first));
    assert_eq!(
        found(&tables, &[300], [10, 1, 1, 1], 2),
        Err(ForwardingVerdict::Drop(DropReason::Unexpected))
    );
    fib.apply(&mut tables, &SourceChange::Label(label(300), Some(LabelAction::Pop { table: 0 }))).unwrap();
    assert_eq!(found(&tables, &[300], [10, 1, 1, 1], 0), Ok(second));
    fib.apply(&mut tables, &SourceChange::Label(label(300), None)).unwrap();
    assert_eq!(
        found(&tables, &[300], [10, 1, 1, 1], 0),
        Err(ForwardingVerdict::Drop(DropReason::UnknownLabel))
    );
    fib.apply(&mut tables, &SourceChange::Route(prefix("10.0.0.0/8"), None)).unwrap();
    assert_eq!(
        found(&tables, &[], [10, 1, 1, 1], 0),
        Err(ForwardingVerdict::Reject(ReportableError::NoRoute))
    );
    assert_eq!((fib.hops.all().count(), fib.targets.all().count()), (0, 0));
}

#[test]
fn neighbors_are_resolved_as_next_hops_and_on_their_link() {
    let (mut fib, mut tables) = setup(8, 8);
    let near = (1, IpAddr::from([192, 0, 2, 1]));
    fib.apply(
        &mut tables,
        &SourceChange::Route(prefix("10.0.0.0/8"), to(path(1, Some([192, 0, 2, 1]), &[100]))),
    )
    .unwrap();
    assert!(fib.neighbors().eq([(near, None)]));
    fib.set_neighbor(&mut tables, near, Some(NEIGHBOR_MAC));
    let (_, next_hop) = tables.hop(0);
    assert_eq!(next_hop.addresses, Some(HopAddresses { to: NEIGHBOR_MAC, from: [2, 0, 0, 0, 0, 1] }));
    // When the prefix of its link is added later, the neighbor gets a host route.
    fib.apply(&mut tables, &SourceChange::Route(prefix("192.0.2.0/24"), to(path(1, None, &[])))).unwrap();
    assert_eq!(found(&tables, &[], [192, 0, 2, 1], 0), Ok(path(1, Some([192, 0, 2, 1]), &[])));
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Ok(path(1, None, &[])));
    fib.set_neighbor(&mut tables, (1, [192, 0, 2, 7].into()), Some(NEIGHBOR_MAC));
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Ok(path(1, Some([192, 0, 2, 7]), &[])));
    // A route from a source overrides the host route.
    let elsewhere = path(2, Some([203, 0, 113, 1]), &[]);
    fib.apply(&mut tables, &SourceChange::Route(prefix("192.0.2.7/32"), to(elsewhere.clone()))).unwrap();
    fib.set_neighbor(&mut tables, (1, [192, 0, 2, 7].into()), None);
    fib.set_neighbor(&mut tables, (1, [192, 0, 2, 7].into()), Some(NEIGHBOR_MAC));
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Ok(elsewhere));
    fib.apply(&mut tables, &SourceChange::Route(prefix("192.0.2.7/32"), None)).unwrap();
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Ok(path(1, Some([192, 0, 2, 7]), &[])));
    // Removing the prefix of the link removes the host routes.
    fib.apply(&mut tables, &SourceChange::Route(prefix("192.0.2.0/24"), None)).unwrap();
    assert_eq!(
        found(&tables, &[], [192, 0, 2, 7], 0),
        Err(ForwardingVerdict::Reject(ReportableError::NoRoute))
    );
    fib.set_neighbor(&mut tables, near, None);
    let (_, next_hop) = tables.hop(0);
    assert_eq!(next_hop.addresses, None);
}

#[test]
fn paths_follow_interface_changes() {
    let (mut fib, mut tables) = setup(8, 8);
    let paths = [path(1, Some([192, 0, 2, 1]), &[]), path(2, Some([203, 0, 113, 1]), &[])];
    let both = Some(Destination::Paths(paths.to_vec()));
    fib.apply(&mut tables, &SourceChange::Route(prefix("10.0.0.0/8"), both)).unwrap();
    fib.apply(&mut tables, &SourceChange::Route(prefix("11.0.0.0/8"), to(paths[0].clone()))).unwrap();
    fib.apply(&mut tables, &SourceChange::Label(label(300), Some(LabelAction::Pop { table: 0 }))).unwrap();
    fib.set_neighbor(&mut tables, (1, [192, 0, 2, 1].into()), Some(NEIGHBOR_MAC));
    // Of two paths, the one over a link that is up is used; if both are down, both are used, and packets
    // wait.
    let mut interfaces_used = |fib: &mut Fib, changes: &[(u32, bool)]| -> BTreeSet<u32> {
        changes.iter().for_each(|(number, is_up)| fib.set_up(&mut tables, *number, *is_up));
        (0..64).map(|last| found(&tables, &[], [10, 1, last, 1], 0).unwrap().interface).collect()
    };
    assert_eq!(interfaces_used(&mut fib, &[]), BTreeSet::from([1, 2]));
    assert_eq!(interfaces_used(&mut fib, &[(1, false)]), BTreeSet::from([2]));
    assert_eq!(interfaces_used(&mut fib, &[(2, false)]), BTreeSet::from([1, 2]));
    assert_eq!(interfaces_used(&mut fib, &[(2, true), (1, true)]), BTreeSet::from([1, 2]));
    assert_eq!(found(&tables, &[], [11, 0, 0, 1], 0), Ok(paths[0].clone()));
    // The same holds for neighbors that have failed, and for both kinds of failure together.
    let mut used_with = |fib: &mut Fib, failed: bool, up: bool| -> BTreeSet<u32> {
        fib.set_failed(&mut tables, (1, [192, 0, 2, 1].into()), failed);
        fib.set_up(&mut tables, 2, up);
        (0..64).map(|last| found(&tables, &[], [10, 1, last, 1], 0).unwrap().interface).collect()
    };
    assert_eq!(used_with(&mut fib, true, true), BTreeSet::from([2]));
    assert_eq!(used_with(&mut fib, true, false), BTreeSet::from([1, 2]));
    assert_eq!(used_with(&mut fib, false, false), BTreeSet::from([1]));
    assert_eq!(used_with(&mut fib, false, true), BTreeSet::from([1, 2]));
    assert_eq!(found(&tables, &[], [11, 0, 0, 1], 0), Ok(paths[0].clone()));

    // The MTU, MAC address and table change, and labels are no longer accepted.
    let incoming = IncomingInterface { table: 1, ..IncomingInterface::default() };
    let changed = FibInterface { mac: [2, 0, 0, 0, 0, 77], mtu: 9000, incoming };
    assert_eq!(found(&tables, &[300], [11, 0, 0, 1], 1), Ok(paths[0].clone()));
    fib.set_interface(&mut tables, 1, changed);
    let (hop, next_hop) = tables.hop(0);
    assert_eq!(hop.mtu, 9000);
    assert_eq!(next_hop.addresses, Some(HopAddresses { to: NEIGHBOR_MAC, from: changed.mac }));
    assert_eq!(
        found(&tables, &[300], [11, 0, 0, 1], 1),
        Err(ForwardingVerdict::Drop(DropReason::Unexpected))
    );
    assert_eq!(
        found(&tables, &[], [11, 0, 0, 1], 1),
        Err(ForwardingVerdict::Reject(ReportableError::NoRoute))
    );
    // A new interface accepts labels at once.
    let incoming = IncomingInterface { mpls: true, ..IncomingInterface::default() };
    fib.set_interface(&mut tables, 3, FibInterface { incoming, ..changed });
    assert_eq!(found(&tables, &[300], [11, 0, 0, 1], 3), Ok(paths[0].clone()));
}

#[test]
fn packets_to_a_failed_neighbor_take_its_backup_path() {
    let (mut fib, mut tables) = setup(8, 8);
    let (near, other) = ((1, IpAddr::from([192, 0, 2, 1])), (2, IpAddr::from([203, 0, 113, 1])));
    let direct = |labels| path(1, Some([192, 0, 2, 1]), labels);
    let around = |labels| path(2, Some([203, 0, 113, 1]), labels);
    for (text, labels) in [("10.0.0.0/8", &[300][..]), ("11.0.0.0/8", &[]), ("12.0.0.0/8", &[1, 2, 3])] {
        fib.apply(&mut tables, &SourceChange::Route(prefix(text), to(direct(labels)))).unwrap();
    }
    let swap = LabelAction::Forward(to(direct(&[301])).unwrap());
    fib.apply(&mut tables, &SourceChange::Label(label(77), Some(swap))).unwrap();
    fib.set_backups(&mut tables, BTreeMap::from([(near, around(&[900]))]));
    assert!(fib.neighbors().any(|(neighbor, _)| neighbor == other), "it is resolved before the failure");

    // The paths of three routes and of a label, or those through the backup path.
    let paths = |tables: &Tables| {
        let routes = [10, 11, 12].map(|first| found(tables, &[], [first, 0, 0, 1], 0).unwrap());
        (routes, found(tables, &[77], [10, 0, 0, 1], 0).unwrap())
    };
    let working = ([direct(&[300]), direct(&[]), direct(&[1, 2, 3])], direct(&[301]));
    // A packet with three labels has no room for another one.
    let failed = ([around(&[900, 300]), around(&[900]), direct(&[1, 2, 3])], around(&[900, 301]));
    assert_eq!(paths(&tables), working);
    fib.set_failed(&mut tables, near, true);
    assert_eq!(paths(&tables), failed);
    // Changes of the other neighbor and of its interface apply to the backup path.
    fib.set_neighbor(&mut tables, other, Some(NEIGHBOR_MAC));
    let incoming = IncomingInterface { mpls: true, ..IncomingInterface::default() };
    fib.set_interface(&mut tables, 2, FibInterface { mac: [2, 0, 0, 0, 0, 77], mtu: 9000, incoming });
    let rewritten = (0..8).map(|hop| tables.hop(hop)).find(|(hop, _)| hop.labels() == [label(900)]).unwrap();
    assert_eq!(rewritten.0.mtu, 9000);
    let addresses = HopAddresses { to: NEIGHBOR_MAC, from: [2, 0, 0, 0, 0, 77] };
    assert_eq!(rewritten.1.addresses, Some(addresses));
    // A route that is added during the failure.
    fib.apply(&mut tables, &SourceChange::Route(prefix("13.0.0.0/8"), to(direct(&[302])))).unwrap();
    assert_eq!(found(&tables, &[], [13, 0, 0, 1], 0), Ok(around(&[900, 302])));
    fib.set_failed(&mut tables, near, false);
    assert_eq!(paths(&tables), working);

    // The link fails, then also that of the backup path, which is of no use then.
    fib.set_up(&mut tables, 1, false);
    assert_eq!(paths(&tables), failed);
    fib.set_up(&mut tables, 2, false);
    assert_eq!(paths(&tables), working);
    fib.set_up(&mut tables, 2, true);
    assert_eq!(paths(&tables), failed);
    // Another backup path, and none.
    fib.set_backups(&mut tables, BTreeMap::from([(near, around(&[901]))]));
    assert_eq!(found(&tables, &[], [11, 0, 0, 1], 0), Ok(around(&[901])));
    fib.set_backups(&mut tables, BTreeMap::new());
    assert_eq!(paths(&tables), working);
}

#[test]
fn packets_to_a_failed_neighbor_take_the_alternate_of_their_label() {
    let (mut fib, mut tables) = setup(8, 8);
    let near = (1, IpAddr::from([192, 0, 2, 1]));
    let (left, right) = ((0, IpAddr::from([198, 51, 100, 1])), (2, IpAddr::from([203, 0, 113, 1])));
    let direct = |labels| path(1, Some([192, 0, 2, 1]), labels);
    let over_left = |labels| path(0, Some([198, 51, 100, 1]), labels);
    let over_right = |labels| path(2, Some([203, 0, 113, 1]), labels);
    for (text, labels) in [("10.0.0.0/8", &[300, 16][..]), ("11.0.0.0/8", &[301]), ("12.0.0.0/8", &[])] {
        fib.apply(&mut tables, &SourceChange::Route(prefix(text), to(direct(labels)))).unwrap();
    }
    let swap = LabelAction::Forward(to(direct(&[300])).unwrap());
    fib.apply(&mut tables, &SourceChange::Label(label(77), Some(swap))).unwrap();
    let paths = |tables: &Tables| {
        let routes = [10, 11, 12].map(|first| found(tables, &[], [first, 0, 0, 1], 0).unwrap());
        (routes, found(tables, &[77], [10, 0, 0, 1], 0).unwrap())
    };
    let alternate = |to, labels: &[u32], protects_neighbor| {
        let labels = labels.iter().map(|number| label(*number)).collect();
        AlternatePath { to, labels, protects_neighbor }
    };
    let all = BTreeMap::from([
        ((near, Some(label(300))), alternate(left, &[400], true)),
        ((near, Some(label(301))), alternate(left, &[], false)),
    ]);
    let working = ([direct(&[300, 16]), direct(&[301]), direct(&[])], direct(&[300]));
    fib.set_alternates(&mut tables, all);
    assert_eq!((paths(&tables), fib.alternate_counts()), (working.clone(), (2, 1)));
    assert!(fib.neighbors().any(|(neighbor, _)| neighbor == left), "it is resolved before the failure");

    fib.set_failed(&mut tables, near, true);
    let labeled = |second, third| ([over_left(&[400, 16]), second, third], over_left(&[400]));
    assert_eq!(paths(&tables), labeled(over_left(&[]), direct(&[])));
    // A backup path is preferred to an alternate that does not avoid the neighbor, and serves packets without an alternate.
    fib.set_backups(&mut tables, BTreeMap::from([(near, over_right(&[900]))]));
    let by_backup = labeled(over_right(&[900, 301]), over_right(&[900]));
    assert_eq!(paths(&tables), by_backup);
    // Without the alternate's link, all packets take the backup path.
    fib.set_up(&mut tables, 0, false);
    let only_backup =
        ([over_right(&[900, 300, 16]), over_right(&[900, 301]), over_right(&[900])], over_right(&[900, 300]));
    assert_eq!(paths(&tables), only_backup);
    fib.set_up(&mut tables, 0, true);
    assert_eq!(paths(&tables), by_backup);
    // The neighbor of the alternate fails, too.
    fib.set_failed(&mut tables, left, true);
    assert_eq!(paths(&tables), only_backup);
    fib.set_failed(&mut tables, left, false);
    // Another alternate, through a tunnel. The failed neighbor keeps the alternates that are not replaced until it returns.
    fib.set_backups(&mut tables, BTreeMap::new());
    let other = BTreeMap::from([((near, Some(label(301))), alternate(right, &[500, 501], false))]);
    fib.set_alternates(&mut tables, other.clone());
    let second = labeled(over_right(&[500, 501]), direct(&[]));
    assert_eq!((paths(&tables), fib.alternate_counts()), (second, (2, 1)));
    fib.set_alternates(&mut tables, BTreeMap::new());
    assert_eq!(fib.alternate_counts(), (2, 1));
    fib.set_failed(&mut tables, near, false);
    assert_eq!(paths(&tables), working);
    fib.set_alternates(&mut tables, other);
    assert_eq!(fib.alternate_counts(), (1, 0));
}

#[test]
fn of_several_failed_paths_those_with_a_backup_path_are_used() {
    let (mut fib, mut tables) = setup(8, 8);
    let paths = [path(0, Some([192, 0, 2, 1]), &[]), path(1, Some([198, 51, 100, 1]), &[])];
    let both = Some(Destination::Paths(paths.to_vec()));
    fib.apply(&mut tables, &SourceChange::Route(prefix("10.0.0.0/8"), both)).unwrap();
    let backup = path(2, Some([203, 0, 113, 1]), &[900]);
    fib.set_backups(&mut tables, BTreeMap::from([((0, [192, 0, 2, 1].into()), backup)]));
    let used = |tables: &Tables| -> BTreeSet<u32> {
        (0..64).map(|last| found(tables, &[], [10, 1, last, 1], 2).unwrap().interface).collect()
    };
    assert_eq!(used(&tables), BTreeSet::from([0, 1]));
    fib.set_failed(&mut tables, (0, [192, 0, 2, 1].into()), true);
    assert_eq!(used(&tables), BTreeSet::from([1]));
    fib.set_up(&mut tables, 1, false);
    assert_eq!(used(&tables), BTreeSet::from([2]));
}

#[test]
fn counted_prefixes_have_separate_targets() {
    let (fib, mut tables) = setup(8, 8);
    let mut fib = fib.counting_prefixes();
    let destination = to(path(1, Some([192, 0, 2, 1]), &[]));
    let prefixes = ["10.0.0.0/8", "11.0.0.0/8"].map(prefix);
    for prefix in prefixes {
        fib.apply(&mut tables, &SourceChange::Route(prefix, destination.clone())).unwrap();
    }
    let targets = prefixes.map(|(table, prefix)| tables.route(table, prefix).unwrap());
    assert_ne!(targets[0], targets[1]);
    assert_eq!(fib.destination(targets[0]), fib.destination(targets[1]));
    for prefix in prefixes {
        fib.apply(&mut tables, &SourceChange::Route(prefix, None)).unwrap();
    }
    assert_eq!((fib.hops.all().count(), fib.targets.all().count()), (0, 0));
}

#[test]
fn a_replaced_link_prefix_has_no_host_routes() {
    let (mut fib, mut tables) = setup(8, 8);
    let apply = |fib: &mut Fib, tables: &mut Tables, text, to| {
        fib.apply(tables, &SourceChange::Route(prefix(text), to)).unwrap();
    };
    fib.set_neighbor(&mut tables, (1, [192, 0, 2, 7].into()), Some(NEIGHBOR_MAC));
    apply(&mut fib, &mut tables, "192.0.2.0/24", to(path(1, None, &[])));
    apply(&mut fib, &mut tables, "192.0.2.0/25", to(path(1, None, &[])));
    let near = Ok(path(1, Some([192, 0, 2, 7]), &[]));
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), near);
    // The neighbor stays on the link of the longer prefix until that is discarded, too.
    apply(&mut fib, &mut tables, "192.0.2.0/24", Some(Destination::Discard));
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), near);
    apply(&mut fib, &mut tables, "192.0.2.0/25", Some(Destination::Discard));
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Err(ForwardingVerdict::Drop(DropReason::Discarded)));
    // With the same address on two links, the remaining link is used.
    fib.set_neighbor(&mut tables, (2, [192, 0, 2, 7].into()), Some(NEIGHBOR_MAC));
    apply(&mut fib, &mut tables, "192.0.2.0/24", to(path(2, None, &[])));
    apply(&mut fib, &mut tables, "192.0.2.0/25", None);
    assert_eq!(found(&tables, &[], [192, 0, 2, 7], 0), Ok(path(2, Some([192, 0, 2, 7]), &[])));
    apply(&mut fib, &mut tables, "192.0.2.0/24", None);
    assert_eq!((fib.hops.all().count(), fib.targets.all().count()), (0, 0));
}

#[test]
fn a_rejected_change_has_no_effect() {
    let (mut fib, mut tables) = setup(2, 2);
    let paths: Vec<RoutePath> = (1..4).map(|last| path(1, Some([192, 0, 2, last]), &[])).collect();
    let mut apply = |tables: &mut Tables, change| fib.apply(tables, &change);
    apply(&mut tables, SourceChange::Route(prefix("10.0.0.0/8"), to(paths[0].clone()))).unwrap();
    let all = Some(Destination::Paths(paths.clone()));
    let change = SourceChange::Route(prefix("10.0.0.0/8"), all);
    assert_eq!(apply(&mut tables, change), Err(FibError::NoRoom));
    let change = SourceChange::Route(prefix("10.0.0.0/8"), to(path(7, Some([192, 0, 2, 1]), &[])));
    assert_eq!(apply(&mut tables, change), Err(FibError::Unknown));
    let change = SourceChange::Route(prefix("10.0.0.0/8"), to(path(1, None, &[100, 101, 102, 103])));
    assert_eq!(apply(&mut tables, change), Err(FibError::TooManyLabels));
    let change = SourceChange::Label(label(3), Some(LabelAction::Forward(Destination::Discard)));
    assert_eq!(apply(&mut tables, change), Err(FibError::Reserved));
    let change = SourceChange::Label(label(300), Some(LabelAction::Pop { table: 2 }));
    assert_eq!(apply(&mut tables, change), Err(FibError::Unknown));
    assert_eq!(found(&tables, &[], [10, 1, 1, 1], 0), Ok(paths[0].clone()));
    // The rejected changes used no entries.
    apply(&mut tables, SourceChange::Route(prefix("11.0.0.0/8"), to(paths[1].clone()))).unwrap();
    assert_eq!(found(&tables, &[], [11, 1, 1, 1], 0), Ok(paths[1].clone()));
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
    fn after_any_changes_packets_follow_the_latest_routes(
        changes in prop::collection::vec((0_u8..4, 8_u8..33, prop::option::of(destination())), 1..60),
        stations in prop::collection::vec((0_u32..3, 1_u8..4, any::<bool>()), 0..20),
    ) {
        let (mut fib, mut tables) = setup(200, 200);
        let mut expected_routes: BTreeMap<(u8, u32), Destination> = BTreeMap::new();
        let mut stations = stations.into_iter();
        for (place, length, destination) in changes {
            let bits = u32::from_be_bytes([10, place, place << 6, place]) & u32::MAX << (32 - length);
            let change = SourceChange::Route((0, (Ipv4Addr::from(bits).into(), length)), destination.clone());
            prop_assert_eq!(fib.apply(&mut tables, &change), Ok(()));
            match destination {
                Some(destination) => expected_routes.insert((length, bits), destination),
                None => expected_routes.remove(&(length, bits)),
            };
            if let Some((interface, last, is_there)) = stations.next() {
                let neighbor = (interface, IpAddr::from([192, 0, 2, last]));
                fib.set_neighbor(&mut tables, neighbor, is_there.then_some(NEIGHBOR_MAC));
            }
            for address in [[10, 0, 0, 0], [10, 1, 64, 1], [10, 2, 128, 2], [10, 3, 192, 3], [10, 3, 0, 0]] {
                let bits = u32::from_be_bytes(address);
                let longest = expected_routes.iter().rev().find(|((length, prefix), _)| prefix ^ (bits & u32::MAX << (32 - length)) == 0);
                match (found(&tables, &[], address, 0), longest.map(|(_, destination)| destination)) {
                    (Ok(path), Some(Destination::Paths(paths))) => prop_assert!(paths.contains(&path)),
                    (Err(ForwardingVerdict::Local { .. }), Some(Destination::Local)) => {}
                    (Err(ForwardingVerdict::Drop(DropReason::Discarded)), Some(Destination::Discard)) => {}
                    (Err(ForwardingVerdict::Reject(ReportableError::NoRoute)), None) => {}
                    (got, expected) => prop_assert!(false, "{:?} instead of {:?}", got, expected),
                }
            }
            // Each target and hop is stored once, as long as it is used.
            let mut destinations: Vec<&Destination> = expected_routes.values().collect();
            destinations.sort();
            destinations.dedup();
            prop_assert!(fib.targets.all().map(|((destination, _), _)| destination).eq(destinations.iter().copied()));
            let paths: BTreeSet<&RoutePath> = destinations
                .iter()
                .filter_map(|destination| if let Destination::Paths(paths) = destination { Some(paths) } else { None })
                .flatten()
                .collect();
            prop_assert!(fib.hops.all().map(|(path, _)| path).eq(paths));
        }
    }
}
