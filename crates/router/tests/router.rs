//! Equivalence of XDP program and slow path: every decision of the program equals that of
//! [`netstage_core::forward`] to the last byte; the program passes on all other frames unchanged.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_core::forward::lpm::LpmShape;
use netstage_core::forward::{
    BufferedPacket, DropReason, ForwardingTarget, ForwardingVerdict, Hop, IncomingInterface, IncomingLabel,
    LabelOperation, PacketProtocol, SourceCheck, TunnelModel,
};
use netstage_core::time::{Duration, Instant};
use netstage_harness::skip;
use netstage_host::netns::Netlink;
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_host::ports::{FramePort as _, ring};
use netstage_router::counter::Counter;
use netstage_router::fast_path::{FastPath, TestRunResult, Total};
use netstage_router::fib::{self, Fib};
use netstage_router::slow_path::{SlowPath, SlowPathInterface};
use netstage_router::tables::{HopAddresses, NextHop, Sizes, Tables};
use netstage_routing::source::kernel::{KernelChanges, KernelRoutes};
use netstage_routing::source::route::KernelIds;
use netstage_wire::ethernet::ethertype;
use netstage_wire::ip::{Fragment, protocol, v4};
use netstage_wire::mpls::{LabelStackEntry, LabelValue};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pair::{LEFT_MAC, Pair, RIGHT_MAC};
use proptest::collection::vec;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;

const SEED: u64 = 0x5eed;
/// Every interface accepts labels.
const LABELED: IncomingInterface =
    IncomingInterface { table: 0, mpls: true, rsvp: false, source_check: SourceCheck::Off };
const RSVP: IncomingInterface = IncomingInterface { table: 1, rsvp: true, ..LABELED };
const ETHERNET: usize = 14;
const MAC_ADDRESSES: HopAddresses = HopAddresses { to: [2, 0, 0, 0, 1, 1], from: [2, 0, 0, 0, 1, 2] };

fn label(number: u32) -> LabelValue {
    LabelValue::new(number).unwrap()
}

const NEXT_HOP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));

fn next_hop(stations: Option<HopAddresses>) -> NextHop {
    NextHop { via: Some(NEXT_HOP), addresses: stations }
}

fn v4_prefix(text: &str) -> (IpAddr, u8) {
    let (address, length) = text.split_once('/').unwrap();
    (address.parse().unwrap(), length.parse().unwrap())
}

/// Builds tables with all kinds of entries.
fn tables(fast_path: Option<FastPath>) -> Tables {
    let mut tables = Tables::new(sizes(), vec![LABELED, RSVP], SEED, fast_path);
    let mut hop = |labels: &[u32], mtu: u16, model, stations| {
        let labels: Vec<LabelValue> = labels.iter().copied().map(label).collect();
        tables.add_hop(Hop::new(1, mtu, &labels, model).unwrap(), next_hop(stations)).unwrap()
    };
    let hops = [
        hop(&[], 1500, TunnelModel::Uniform, Some(MAC_ADDRESSES)),
        hop(&[100], 1500, TunnelModel::Uniform, Some(MAC_ADDRESSES)),
        hop(&[101, 102], 1500, TunnelModel::Pipe, Some(MAC_ADDRESSES)),
        hop(&[103, 104, 105], 1500, TunnelModel::Uniform, Some(MAC_ADDRESSES)),
        hop(&[106], 80, TunnelModel::Uniform, Some(MAC_ADDRESSES)),
        hop(&[0], 1500, TunnelModel::Uniform, Some(MAC_ADDRESSES)),
        hop(&[107], 1500, TunnelModel::Uniform, None),
    ];
    let mut targets: Vec<u32> =
        hops.iter().map(|hop| tables.add_target(ForwardingTarget::Hops(vec![*hop])).unwrap()).collect();
    for target in [
        ForwardingTarget::Hops(hops[..4].to_vec()),
        ForwardingTarget::Hops(vec![]),
        ForwardingTarget::Local,
        ForwardingTarget::Discard,
        ForwardingTarget::Hops(hops.iter().cycle().take(20).copied().collect()),
    ] {
        targets.push(tables.add_target(target).unwrap());
    }
    for (place, target) in targets.iter().enumerate() {
        let place = place as u8;
        for prefix in [
            (IpAddr::from([10, place, 0, 0]), 16),
            (IpAddr::from([10, 100, place, 0]), 24),
            (IpAddr::from([10, 101, 0, place << 4]), 28),
            (IpAddr::from([0x2001, 0xdb8, u16::from(place), 0, 0, 0, 0, 0]), 48),
            (IpAddr::from([0x2001, 0xdb8, 0xff, 0, 0, 0, 0, u16::from(place)]), 128),
        ] {
            tables.insert(0, prefix, *target).unwrap();
        }
        for (offset, model) in [(0, TunnelModel::Uniform), (20, TunnelModel::Pipe)] {
            let action = LabelOperation::Swap { target: *target };
            let incoming = IncomingLabel { action, model, expected: 0b01 | u64::from(place % 3) << 1 };
            tables.assign_label(label(200 + offset + u32::from(place)), incoming).unwrap();
        }
    }
    tables.insert(0, v4_prefix("10.102.0.0/15"), targets[7]).unwrap();
    tables.insert(1, v4_prefix("10.0.0.0/8"), targets[1]).unwrap();
    tables.insert(1, v4_prefix("2001:db8::/32"), targets[2]).unwrap();
    for (number, table, model) in [
        (300, 0, TunnelModel::Uniform),
        (301, 0, TunnelModel::Pipe),
        (302, 1, TunnelModel::Uniform),
        (303, 1, TunnelModel::Pipe),
    ] {
        let incoming = IncomingLabel { action: LabelOperation::Pop { table }, model, expected: 0b11 };
        tables.assign_label(label(number), incoming).unwrap();
    }
    let removed = IncomingLabel {
        action: LabelOperation::Pop { table: 0 },
        model: TunnelModel::Uniform,
        expected: 0b11,
    };
    tables.assign_label(label(304), removed).unwrap();
    tables.remove_label(label(304)).unwrap();
    tables
}

fn sizes() -> Sizes {
    let shape = |rows| LpmShape { first: 16, rows };
    Sizes { tables: vec![(shape(64), shape(512)), (shape(8), shape(64))], targets: 64, hops: 64 }
}

fn stack() -> impl Strategy<Value = Vec<u32>> {
    let number = prop_oneof![
        5 => 200_u32..212,
        3 => 220_u32..232,
        5 => 300_u32..304,
        1 => Just(304_u32),
        2 => Just(0_u32),
        2 => Just(2_u32),
        1 => 0_u32..16,
        1 => 16_u32..1 << 20,
    ];
    prop_oneof![2 => Just(vec![]), 5 => vec(number.clone(), 1), 3 => vec(number, 2..5)]
}

fn ttl() -> impl Strategy<Value = u8> {
    prop_oneof![1 => 0_u8..4, 3 => any::<u8>()]
}

fn protocols() -> impl Strategy<Value = u8> {
    prop_oneof![
        3 => Just(protocol::TCP),
        3 => Just(protocol::UDP),
        1 => Just(protocol::ICMP),
        1 => Just(58),
        1 => Just(netstage_wire::rsvp::PROTOCOL),
        1 => Just(0),
        1 => any::<u8>()
    ]
}

/// Addresses in the networks of the table.
fn address_v4() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![
        (0..14_u8, any::<[u8; 2]>()).prop_map(|(a, [b, c])| [10, a, b, c]),
        (100..104_u8, 0..14_u8, any::<u8>()).prop_map(|(a, b, c)| [10, a, b, c])
    ]
}

fn address_v6() -> impl Strategy<Value = [u8; 16]> {
    let group = prop_oneof![0..14_u16, Just(0xff)];
    (group, 0..14_u16)
        .prop_map(|(group, last)| Ipv6Addr::new(0x2001, 0xdb8, group, 0, 0, 0, 0, last).octets())
}

prop_compose! {
    fn packet_v4()(
        octets in address_v4(),
        source in prop_oneof![any::<[u8; 4]>(), address_v4()],
        class: u8,
        ttl in ttl(),
        protocol in protocols(),
        fragment in prop_oneof![4 => Just(0_u16), 1 => Just(0x4000), 1 => any::<u16>()],
        payload in vec(any::<u8>(), 0..120),
        spoil in prop_oneof![12 => Just(0_u8), 1 => Just(1), 1 => Just(2)],
    ) -> Vec<u8> {
        let mut packet = vec![0; v4::HEADER];
        (packet[0], packet[1], packet[8], packet[9]) = (0x45, class, ttl, protocol);
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[12..16].copy_from_slice(&source);
        packet[16..20].copy_from_slice(&octets);
        packet.extend(payload);
        let length = packet.len() as u16 + u16::from(spoil == 2) * 9;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        let checksum = netstage_wire::checksum::checksum(&packet[..v4::HEADER]);
        packet[10..12].copy_from_slice(&(checksum ^ u16::from(spoil == 1)).to_be_bytes());
        packet
    }
}

prop_compose! {
    fn packet_v6()(
        destination in address_v6(),
        source in prop_oneof![any::<[u8; 16]>(), address_v6()],
        head: u32,
        ttl in ttl(),
        protocol in protocols(),
        payload in vec(any::<u8>(), 0..120),
        missing in prop_oneof![12 => Just(0_u16), 1 => 1_u16..9],
    ) -> Vec<u8> {
        let mut packet = (head >> 4 | 0x6000_0000).to_be_bytes().to_vec();
        packet.extend((payload.len() as u16 + missing).to_be_bytes());
        packet.extend([protocol, ttl]);
        packet.extend(source);
        packet.extend(destination);
        packet.extend(payload);
        packet
    }
}

prop_compose! {
    fn frame()(
        labels in stack(),
        ttls in vec(ttl(), 5),
        classes in vec(0_u8..8, 5),
        packet in prop_oneof![3 => packet_v4(), 2 => packet_v6(), 1 => vec(any::<u8>(), 0..60)],
        padding in prop_oneof![3 => Just(0_usize), 1 => 0_usize..20],
        other in prop_oneof![20 => Just(None), 1 => any::<u16>().prop_map(Some)],
    ) -> Vec<u8> {
        let mut frame = [&RIGHT_MAC[..], &LEFT_MAC].concat();
        let kind = match (labels.len(), packet.first().map_or(0, |byte| byte >> 4)) {
            (1.., _) => ethertype::MPLS,
            (0, 6) => ethertype::IPV6,
            _ => ethertype::IPV4,
        };
        frame.extend(other.unwrap_or(kind).to_be_bytes());
        for (depth, number) in labels.iter().enumerate() {
            let bottom = depth + 1 == labels.len();
            frame.extend(LabelStackEntry { label: label(*number), traffic_class: classes[depth], bottom, ttl: ttls[depth] }.to_bytes());
        }
        frame.extend(packet);
        frame.resize(frame.len() + padding, 0);
        frame
    }
}

/// Returns the outcome for a fast path that decides everything like the slow path.
fn decided(tables: &Tables, frame: &[u8], interface: u32) -> TestRunResult {
    const ROOM: usize = 16;
    let kind = match u16::from_be_bytes([frame[12], frame[13]]) {
        ethertype::IPV4 => PacketProtocol::V4,
        ethertype::IPV6 => PacketProtocol::V6,
        ethertype::MPLS => PacketProtocol::Mpls,
        _ => return TestRunResult::Pass,
    };
    let mut bytes = [&[0; ROOM], &frame[ETHERNET..]].concat();
    match tables.forward(&mut BufferedPacket { bytes: &mut bytes, start: ROOM, kind }, interface) {
        ForwardingVerdict::Send { hop, start, kind } => {
            let (_, next_hop) = tables.hop(hop);
            let Some(HopAddresses { to, from }) = next_hop.addresses else { return TestRunResult::Pass };
            let kind = match kind {
                PacketProtocol::V4 => ethertype::IPV4,
                PacketProtocol::V6 => ethertype::IPV6,
                PacketProtocol::Mpls => ethertype::MPLS,
            };
            TestRunResult::Send([&to[..], &from, &kind.to_be_bytes(), &bytes[start..]].concat())
        }
        ForwardingVerdict::Drop(
            DropReason::Malformed
            | DropReason::UnknownLabel
            | DropReason::Unexpected
            | DropReason::Spoofed
            | DropReason::Discarded,
        ) => TestRunResult::Drop,
        // The slow path counts or fragments the packet, or sends an ICMP error.
        ForwardingVerdict::Drop(_)
        | ForwardingVerdict::Local { .. }
        | ForwardingVerdict::Fragment { .. }
        | ForwardingVerdict::Reject(_) => TestRunResult::Pass,
    }
}

/// Compares both paths for many frames with these verifications of sources. Returns the share of decidable frames that were
/// passed to the slow path.
fn compare(tables: &mut Tables, index: u32, cases: u32, checks: &'static [SourceCheck]) -> f64 {
    let (tables, decidable, passed) = (RefCell::new(tables), Cell::new(0), Cell::new(0));
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let check = prop::sample::select(checks);
    proptest!(config, |(frame in frame(), interface in 0_u32..2, source_check in check)| {
        let mut tables = tables.borrow_mut();
        let incoming = IncomingInterface { source_check, ..if interface == 0 { LABELED } else { RSVP } };
        tables.set_interface(interface, incoming);
        let expected = decided(&tables, &frame, interface);
        let fast_path = tables.fast_path_mut().unwrap();
        let got = fast_path.try_frame(&frame, interface, incoming, index, RIGHT_MAC).unwrap();
        let is_decidable = u32::from(expected != TestRunResult::Pass);
        decidable.set(decidable.get() + is_decidable);
        match got {
            TestRunResult::Pass => passed.set(passed.get() + is_decidable),
            got => prop_assert_eq!(got, expected, "frame {:02x?}", frame),
        }
    });
    assert!(decidable.get() > cases / 3, "{decidable:?} of {cases}");
    f64::from(passed.get()) / f64::from(decidable.get())
}

fn load_program() -> FastPath {
    FastPath::load(sizes().capacity(), SEED).unwrap_or_else(|error| skip(error.to_string()))
}

fn the_xdp_program_decides_like_the_slow_path() {
    let fast_path = load_program();
    let pair = Pair::new(Default::default());
    let index = Netlink::open(&pair.right).unwrap().link("right0").unwrap().index;
    let mut tables = tables(Some(fast_path));
    let share = pair.right.run(|| compare(&mut tables, index, 20_000, &[SourceCheck::Off])).unwrap();
    println!("{:.1} % of decidable frames passed to the slow path", 100.0 * share);
    // These frames are unusual far more often than real ones.
    assert!(share < 0.3, "{share}");

    // Redirects everything, and assigns the removed label again.
    let hop = Hop::new(0, 1400, &[label(900)], TunnelModel::Pipe).unwrap();
    tables.set_hop(0, hop, next_hop(Some(MAC_ADDRESSES)));
    tables.set_hop(3, hop, next_hop(None));
    tables.set_target(8, ForwardingTarget::Hops(vec![1, 0, 2]));
    tables.set_target(2, ForwardingTarget::Discard);
    tables.remove(0, v4_prefix("10.100.1.0/24")).unwrap();
    tables.insert(0, v4_prefix("10.100.0.0/20"), 1).unwrap();
    tables.remove(0, v4_prefix("10.101.0.32/28")).unwrap();
    tables.remove_label(label(201)).unwrap();
    let incoming =
        IncomingLabel { action: LabelOperation::Pop { table: 1 }, model: TunnelModel::Pipe, expected: 0b10 };
    tables.assign_label(label(304), incoming).unwrap();
    pair.right.run(|| compare(&mut tables, index, 10_000, &[SourceCheck::Off])).unwrap();
    // Spoofed packets without a route are left to the slow path, too.
    let checks = &[SourceCheck::Off, SourceCheck::Loose, SourceCheck::Strict];
    pair.right.run(|| compare(&mut tables, index, 20_000, checks)).unwrap();
}

fn the_xdp_program_counts_its_actions() {
    let fast_path = load_program();
    let pair = Pair::new(Default::default());
    let index = Netlink::open(&pair.right).unwrap().link("right0").unwrap().index;
    let mut tables = tables(Some(fast_path));
    let mut frame = [&RIGHT_MAC[..], &LEFT_MAC, &ethertype::MPLS.to_be_bytes()].concat();
    frame.extend(LabelStackEntry { label: label(201), traffic_class: 0, bottom: true, ttl: 9 }.to_bytes());
    frame.extend([0x45; 46]);
    let bytes = frame.len() as u64;
    let fast_path = tables.fast_path_mut().unwrap();
    for _ in 0..3 {
        let run = || fast_path.try_frame(&frame, 0, LABELED, index, RIGHT_MAC).unwrap();
        assert!(matches!(pair.right.run(run).unwrap(), TestRunResult::Send(_)));
    }
    let swapped = fast_path.total(Total::Swapped);
    assert_eq!((swapped.packets, swapped.bytes), (3, 3 * bytes));
    assert_eq!(fast_path.of_label(label(201)), Some(swapped));
    assert_eq!(fast_path.of_target(2), Some(swapped));
    assert_eq!(fast_path.total(Total::UnknownLabel).packets, 0);
    assert_eq!(fast_path.of_label(label(202)).unwrap().packets, 0);
    // Unassigned label.
    frame[ETHERNET..ETHERNET + 3].copy_from_slice(&[0xff, 0xff, 0xf1]);
    let run = || fast_path.try_frame(&frame, 0, LABELED, index, RIGHT_MAC).unwrap();
    assert_eq!(pair.right.run(run).unwrap(), TestRunResult::Drop);
    assert_eq!(fast_path.total(Total::UnknownLabel).packets, 1);
    // Explicit null on an interface without labels.
    frame[ETHERNET..ETHERNET + 3].copy_from_slice(&[0, 0, 1]);
    let run =
        || fast_path.try_frame(&frame, 0, IncomingInterface { mpls: false, ..LABELED }, index, RIGHT_MAC);
    assert_eq!(pair.right.run(run).unwrap().unwrap(), TestRunResult::Drop);
    assert_eq!(fast_path.total(Total::UnexpectedLabel).packets, 1);
}

fn tables_have_a_limited_size() {
    let sizes = Sizes { hops: 2, targets: 1, ..sizes() };
    let mut tables = Tables::new(sizes, vec![LABELED], SEED, None);
    let hop = Hop::new(0, 1500, &[], TunnelModel::Uniform).unwrap();
    let mut add = || tables.add_hop(hop, NextHop::default());
    assert_eq!((add(), add()), (Ok(0), Ok(1)));
    assert!(add().is_err());
    assert_eq!(tables.add_target(ForwardingTarget::Local), Ok(1));
    assert!(tables.add_target(ForwardingTarget::Discard).is_err());
    assert_eq!(tables.insert(0, (Ipv4Addr::LOCALHOST.into(), 32), 1), Ok(None));
    assert_eq!(tables.remove(0, (Ipv4Addr::LOCALHOST.into(), 32)), Some(1));
}

/// Returns a router without XDP program, and the far ends of its ports.
fn slow_path() -> (SlowPath<ring::RingPort>, Vec<ring::RingPort>) {
    let (ports, ends) = (0..2).map(|_| ring::pair(100).unwrap()).unzip();
    let interface = |last| SlowPathInterface {
        mac: if last == 1 { RIGHT_MAC } else { MAC_ADDRESSES.from },
        v4: Some(Ipv4Addr::new(10, 0, 0, last)),
        v6: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last))),
    };
    (SlowPath::new(ports, vec![interface(1), interface(2)], tables(None)), ends)
}

/// Builds an IPv4 packet of `length` bytes from a host behind 10.0.0.0/16.
fn packet_to(destination: [u8; 4], length: u16, ttl: u8) -> Vec<u8> {
    let mut packet = vec![0; v4::HEADER];
    (packet[0], packet[8], packet[9]) = (0x45, ttl, protocol::UDP);
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[12..16].copy_from_slice(&[10, 0, 3, 3]);
    packet[16..20].copy_from_slice(&destination);
    let checksum = netstage_wire::checksum::checksum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend((v4::HEADER as u16..length).map(|byte| byte as u8));
    packet
}

fn labeled(number: u32, ttl: u8, packet: &[u8]) -> Vec<u8> {
    let entry = LabelStackEntry { label: label(number), traffic_class: 5, bottom: true, ttl };
    [&entry.to_bytes()[..], packet].concat()
}

/// Sends a packet to interface 0 and returns EtherType and packet of the frames sent to interface 1.
fn exchange(
    router: &mut SlowPath<ring::RingPort>,
    ends: &mut [ring::RingPort],
    kind: u16,
    packet: &[u8],
) -> Vec<(u16, Vec<u8>)> {
    let frame = [&RIGHT_MAC[..], &LEFT_MAC, &kind.to_be_bytes(), packet].concat();
    assert!(ends[0].send(&frame).unwrap());
    ends[0].flush().unwrap();
    router.turn(Instant::ZERO);
    sent(&mut ends[1])
}

fn sent(end: &mut ring::RingPort) -> Vec<(u16, Vec<u8>)> {
    let mut frames = Vec::new();
    end.receive(100, &mut |received| {
        let (header, packet) = received.frame.split_at(ETHERNET);
        assert_eq!(header[..12], [&MAC_ADDRESSES.to[..], &MAC_ADDRESSES.from].concat());
        frames.push((u16::from_be_bytes([header[12], header[13]]), packet.to_vec()));
    })
    .unwrap();
    frames
}

fn the_slow_path_forwards() {
    let (mut router, mut ends) = slow_path();
    let packet = packet_to([10, 1, 0, 9], 100, 64);
    let left = exchange(&mut router, &mut ends, ethertype::IPV4, &packet);
    let mut lower = packet.clone();
    v4::HeaderMut::new(&mut lower).unwrap().decrement_ttl();
    let pushed = LabelStackEntry { label: label(100), traffic_class: 0, bottom: true, ttl: 63 };
    assert_eq!(left, [(ethertype::MPLS, [&pushed.to_bytes()[..], &lower].concat())]);
    assert_eq!(router.counters().get(Counter::Forwarded), 1);

    // Frames to other MAC addresses and of other protocols are ignored.
    let other = [&LEFT_MAC[..], &LEFT_MAC, &ethertype::IPV4.to_be_bytes(), &packet].concat();
    ends[0].send(&other).unwrap();
    assert_eq!(exchange(&mut router, &mut ends, 0x88b5, &packet), []);
    assert_eq!(router.counters().iter().map(|(_, count)| count).sum::<u64>(), 1);
}

fn oversized_packets_are_fragmented_beneath_their_labels() {
    let (mut router, mut ends) = slow_path();
    let packet = packet_to([10, 4, 0, 9], 180, 64);
    let left = exchange(&mut router, &mut ends, ethertype::MPLS, &labeled(300, 9, &packet));
    let mut payload: Vec<u8> = Vec::new();
    for (kind, bytes) in &left {
        assert_eq!((*kind, bytes.len() <= 80), (ethertype::MPLS, true));
        let entry = LabelStackEntry::read(bytes).unwrap();
        assert_eq!((entry.label, entry.ttl), (label(106), 8));
        let view = v4::View::new(&bytes[4..]).unwrap();
        assert!(view.is_checksum_valid() && view.ttl() == 8 && view.fragment() != Fragment::Whole);
        assert_eq!(view.fragment_offset(), payload.len());
        payload.extend(view.transport().payload);
    }
    assert_eq!(payload, packet[v4::HEADER..]);
    assert_eq!(router.counters().get(Counter::Divided), 1);
}

fn icmp_errors_are_sent_from_within_an_lsp() {
    let (mut router, mut ends) = slow_path();
    // The ICMP error takes the route to 10.0.0.0/16, over interface 1.
    let left = exchange(&mut router, &mut ends, ethertype::IPV4, &packet_to([10, 1, 0, 9], 100, 1));
    let [(ethertype::IPV4, answer)] = &left[..] else { panic!("{left:?}") };
    let view = v4::View::new(answer).unwrap();
    assert_eq!((view.source(), view.destination()), ([10, 0, 0, 1].into(), [10, 0, 3, 3].into()));
    assert_eq!(view.transport().payload[..2], [11, 0]);

    let received = labeled(201, 1, &packet_to([10, 1, 0, 9], 100, 64));
    let left = exchange(&mut router, &mut ends, ethertype::MPLS, &received);
    let [(ethertype::IPV4, answer)] = &left[..] else { panic!("{left:?}") };
    assert_eq!(answer[answer.len() - 4..], received[..4], "the label stack of the packet");

    // Without a route to the sender, the ICMP error continues in the LSP.
    router.tables_mut().remove(0, v4_prefix("10.0.0.0/16")).unwrap();
    let left = exchange(&mut router, &mut ends, ethertype::MPLS, &received);
    let [(ethertype::MPLS, answer)] = &left[..] else { panic!("{left:?}") };
    assert_eq!(LabelStackEntry::read(answer).unwrap().label, label(100));
    assert_eq!(LabelStackEntry::read(answer).unwrap().ttl, 254);
    assert_eq!(v4::View::new(&answer[4..]).unwrap().destination(), Ipv4Addr::new(10, 0, 3, 3));
    assert_eq!(router.counters().get(Counter::TtlExceeded), 3);

    // ICMP errors are rate-limited.
    for _ in 0..50 {
        exchange(&mut router, &mut ends, ethertype::MPLS, &received);
    }
    assert!(router.counters().get(Counter::NotAnswered) > 20);
}

fn packets_wait_for_the_mac_address_of_their_next_hop() {
    let (mut router, mut ends) = slow_path();
    let packet = packet_to([10, 6, 0, 9], 100, 64);
    assert_eq!(exchange(&mut router, &mut ends, ethertype::IPV4, &packet), []);
    assert!(router.unresolved().eq([(1, NEXT_HOP)]));
    router.resolve(Instant::ZERO, (1, NEXT_HOP), MAC_ADDRESSES.to);
    router.turn(Instant::ZERO);
    assert_eq!(sent(&mut ends[1]).len(), 1);
    assert_eq!(router.poll_timeout(), Instant::NEVER);
    let (hop, _) = router.tables().hop(6);
    let hop = *hop;
    router.tables_mut().set_hop(6, hop, next_hop(Some(MAC_ADDRESSES)));
    assert_eq!(exchange(&mut router, &mut ends, ethertype::IPV4, &packet).len(), 1);

    let (mut router, mut ends) = slow_path();
    for _ in 0..10 {
        exchange(&mut router, &mut ends, ethertype::IPV4, &packet);
    }
    assert_eq!(router.counters().get(Counter::Unresolved), 2, "the queue limit is exceeded");
    let due = router.poll_timeout();
    assert_eq!(due, Instant::ZERO + Duration::from_secs(3));
    router.turn(due);
    assert_eq!(router.counters().get(Counter::Unresolved), 10);
    assert_eq!((router.unresolved().count(), router.poll_timeout()), (0, Instant::NEVER));
}

fn packets_to_the_router_from_an_lsp_are_delivered() {
    let (mut router, mut ends) = slow_path();
    let packet = packet_to([10, 9, 0, 9], 100, 64);
    assert_eq!(exchange(&mut router, &mut ends, ethertype::MPLS, &labeled(300, 9, &packet)), []);
    assert_eq!(router.poll_delivered(), Some(packet.clone()));
    // The kernel receives packets without labels itself.
    assert_eq!(exchange(&mut router, &mut ends, ethertype::IPV4, &packet), []);
    assert_eq!(router.poll_delivered(), None);
    assert_eq!(router.counters().get(Counter::Local), 1);
    assert_eq!(router.counters().get(Counter::Delivered), 1);
}

/// Waits for route changes of the kernel.
fn news(kernel: &mut KernelRoutes) -> KernelChanges {
    let start = std::time::Instant::now();
    loop {
        assert!(start.elapsed().as_secs() < 20, "no route change reported");
        let fd = kernel.as_fd();
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::from(100_u8)).unwrap();
        let news = kernel.poll().unwrap();
        if !news.changes.is_empty() {
            return news;
        }
    }
}

fn kernel_routes_are_followed() {
    let pair = Pair::new(Default::default());
    let mut netlink = Netlink::open(&pair.left).unwrap();
    let index = netlink.link("left0").unwrap().index;
    let interface = fib::FibInterface { mac: LEFT_MAC, mtu: 1500, incoming: LABELED };
    let mut fib = Fib::new(vec![interface], 1, TunnelModel::Uniform);
    let sizes = Sizes { tables: sizes().tables[..1].to_vec(), ..sizes() };
    let mut tables = Tables::new(sizes, vec![LABELED], SEED, None);
    let mut kernel = KernelRoutes::open(&pair.left).unwrap();
    let names =
        KernelIds { interfaces: [(index, 0)].into(), loopback: Some(1), tables: [(254, 0), (255, 0)].into() };
    let mut apply = |tables: &mut Tables, news: KernelChanges| {
        for change in &news.changes {
            fib.apply(tables, change).unwrap();
        }
        for (neighbor, station) in news.neighbors {
            fib.set_neighbor(tables, neighbor, station);
        }
    };
    let packet = |tables: &Tables, destination: [u8; 4]| {
        let mut bytes = [&[0; 16], &packet_to(destination, 40, 64)[..]].concat();
        match tables
            .forward(&mut BufferedPacket { bytes: &mut bytes, start: 16, kind: PacketProtocol::V4 }, 0)
        {
            ForwardingVerdict::Send { hop, .. } => Some(tables.hop(hop).1),
            verdict => {
                assert!(
                    matches!(verdict, ForwardingVerdict::Reject(_) | ForwardingVerdict::Local { .. }),
                    "{verdict:?}"
                );
                None
            }
        }
    };
    apply(&mut tables, kernel.load(names).unwrap());
    let right = Some(NextHop {
        via: Some([10, 1, 0, 1].into()),
        addresses: Some(HopAddresses { to: RIGHT_MAC, from: LEFT_MAC }),
    });
    assert_eq!(packet(&tables, [10, 1, 0, 1]), right, "the neighbor is resolved");
    assert_eq!((packet(&tables, [10, 1, 0, 0]), packet(&tables, [10, 9, 0, 1])), (None, None));

    let route = StaticRoute {
        destination: ([10, 9, 0, 0].into(), 16),
        gateway: Some([10, 1, 0, 1].into()),
        link: "left0",
        preferred_source: None,
        metrics: Metrics::default(),
    };
    netlink.add_route(&route).unwrap();
    apply(&mut tables, news(&mut kernel));
    assert_eq!(packet(&tables, [10, 9, 0, 1]), right);
    netlink.set_down("left0").unwrap();
    while packet(&tables, [10, 9, 0, 1]).is_some() {
        apply(&mut tables, news(&mut kernel));
    }
}

netstage_harness::tests![
    the_xdp_program_decides_like_the_slow_path,
    the_xdp_program_counts_its_actions,
    tables_have_a_limited_size,
    the_slow_path_forwards,
    oversized_packets_are_fragmented_beneath_their_labels,
    icmp_errors_are_sent_from_within_an_lsp,
    packets_wait_for_the_mac_address_of_their_next_hop,
    packets_to_the_router_from_an_lsp_are_delivered,
    kernel_routes_are_followed,
];
netstage_harness::main![self];
