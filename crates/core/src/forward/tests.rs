//! Packets through a router with two interfaces, for every operation.

use super::lpm::{LpmShape, own_memory};
use super::*;
use alloc::vec;
use core::net::IpAddr;
use core::sync::atomic::AtomicU32;
use netstage_wire::ip::{View, v4, v6};
use netstage_wire::mpls::{ENTRY, LabelStackEntry, Stack};
use proptest::prelude::*;

const ROOM: usize = 32;
const SHAPE: LpmShape = LpmShape { first: 16, rows: 64 };

fn label(number: u32) -> LabelValue {
    LabelValue::new(number).unwrap()
}

fn table() -> RoutingTable<Vec<AtomicU32>> {
    let lpm = || Lpm::new(SHAPE, own_memory(SHAPE));
    RoutingTable { v4: lpm(), v6: lpm() }
}

fn v4_bits(address: [u8; 4]) -> u128 {
    u128::from(u32::from_be_bytes(address)) << 96
}

fn v4(to: [u8; 4], ttl: u8, port: u16) -> Vec<u8> {
    let header = v4::Header {
        protocol: 17,
        ttl,
        dscp: 46,
        dont_fragment: false,
        source: [192, 0, 2, 1].into(),
        destination: to.into(),
        ..v4::Header::default()
    };
    let mut bytes = vec![0; v4::HEADER + 100];
    bytes[v4::HEADER..v4::HEADER + 2].copy_from_slice(&port.to_be_bytes());
    header.write(&mut bytes, 100).unwrap();
    bytes
}

fn v6(to: [u16; 8], ttl: u8) -> Vec<u8> {
    let destination = to.into();
    let source = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 9].into();
    let header = v6::Header { hop_limit: ttl, source, destination, next_header: 59, ..v6::Header::default() };
    let mut bytes = vec![0; v6::HEADER + 60];
    header.write(&mut bytes, 60).unwrap();
    bytes
}

fn entry(number: u32, ttl: u8) -> LabelStackEntry {
    LabelStackEntry { label: label(number), traffic_class: 3, bottom: false, ttl }
}

fn labeled(entries: &[LabelStackEntry], beneath: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; entries.len() * ENTRY];
    netstage_wire::mpls::write_stack(entries, &mut bytes).unwrap();
    bytes.extend(beneath);
    bytes
}

fn interface(table: u32, mpls: bool) -> IncomingInterface {
    IncomingInterface { table, mpls, ..IncomingInterface::default() }
}

/// Networks 10.N.0.0/16 and 2001:db8:N::/48 have target N, and so have the labels 100 + N (uniform model)
/// and 200 + N (pipe model), which are swapped. Labels 300 (uniform) and 301 (pipe) are popped into table 0.
struct Setup {
    router: Forwarder<Vec<AtomicU32>>,
}

impl Setup {
    fn new(hops: &[&[u32]], model: TunnelModel) -> Setup {
        let mut router =
            Forwarder::new(vec![table(), table()], vec![interface(0, true), interface(1, true)], 7);
        for labels in hops.iter() {
            let labels: Vec<LabelValue> = labels.iter().map(|number| label(*number)).collect();
            let hop = router.add_hop(Hop::new(1, 1500, &labels, model).unwrap());
            let target = router.add_target(ForwardingTarget::Hops(vec![hop]));
            let to = target as u8;
            router.table_mut(0).v4.insert(v4_bits([10, to, 0, 0]), 16, target).unwrap();
            let network = 0x2001_0db8 << 96 | u128::from(to) << 80;
            router.table_mut(0).v6.insert(network, 48, target).unwrap();
            for (first, model) in [(100, TunnelModel::Uniform), (200, TunnelModel::Pipe)] {
                let incoming = IncomingLabel { action: LabelOperation::Swap { target }, model, expected: 1 };
                router.assign_label(label(first + target), incoming).unwrap();
            }
        }
        for (number, model) in [(300, TunnelModel::Uniform), (301, TunnelModel::Pipe)] {
            let incoming = IncomingLabel { action: LabelOperation::Pop { table: 0 }, model, expected: 1 };
            router.assign_label(label(number), incoming).unwrap();
        }
        Setup { router }
    }

    fn forward(&self, kind: PacketProtocol, bytes: &[u8]) -> (ForwardingVerdict, Vec<u8>) {
        let mut buffer = vec![0; ROOM];
        buffer.extend(bytes);
        let mut packet = BufferedPacket { bytes: &mut buffer, start: ROOM, kind };
        let verdict = self.router.forward(&mut packet, 0);
        let start = packet.start;
        if let ForwardingVerdict::Send { start: reported_start, kind, .. } = verdict {
            assert_eq!((reported_start, kind), (start, packet.kind));
        }
        (verdict, buffer.split_off(start))
    }

    /// Returns the hop, the protocol and the bytes of the packet that leaves.
    fn sent(&self, kind: PacketProtocol, bytes: &[u8]) -> (u32, PacketProtocol, Vec<u8>) {
        match self.forward(kind, bytes) {
            (ForwardingVerdict::Send { hop, kind, .. }, bytes) => (hop, kind, bytes),
            (verdict, _) => panic!("{verdict:?}"),
        }
    }
}

/// Returns the labels with their TTLs and traffic classes, and the packet below them.
fn read(bytes: &[u8]) -> (Vec<(u32, u8, u8)>, &[u8]) {
    let stack = Stack::new(bytes).unwrap();
    let entries = stack.entries().map(|entry| (entry.label.number(), entry.ttl, entry.traffic_class));
    (entries.collect(), &bytes[stack.payload_offset()..])
}

fn is_whole(bytes: &[u8], ttl: u8) {
    let view = View::new(bytes).unwrap();
    assert_eq!(view.ttl(), ttl);
    if let View::V4(view) = view {
        assert!(view.is_checksum_valid());
    }
}

#[test]
fn ip_is_routed() {
    let setup = Setup::new(&[&[], &[]], TunnelModel::Uniform);
    for (kind, bytes) in [
        (PacketProtocol::V4, v4([10, 2, 3, 4], 64, 1)),
        (PacketProtocol::V6, v6([0x2001, 0xdb8, 2, 0, 0, 0, 0, 1], 64)),
    ] {
        let (hop, left, bytes) = setup.sent(kind, &bytes);
        assert_eq!((hop, left), (1, kind));
        is_whole(&bytes, 63);
    }
    let refused = |bytes: &[u8]| setup.forward(PacketProtocol::V4, bytes);
    for (bytes, verdict) in [
        (v4([10, 2, 3, 4], 1, 1), ForwardingVerdict::Reject(ReportableError::TtlExceeded)),
        (v4([10, 9, 0, 0], 64, 1), ForwardingVerdict::Reject(ReportableError::NoRoute)),
    ] {
        assert_eq!(refused(&bytes), (verdict, bytes.clone()), "a rejected packet is unchanged");
    }
    let mut broken = v4([10, 2, 3, 4], 64, 1);
    broken[15] ^= 1;
    assert_eq!(refused(&broken).0, ForwardingVerdict::Drop(DropReason::Malformed));
}

#[test]
fn push_swap_and_pop_set_the_ttl_in_both_models() {
    for (model, outer) in [(TunnelModel::Uniform, 63), (TunnelModel::Pipe, 255)] {
        let setup = Setup::new(&[&[1001], &[1002, 1003, 1004], &[]], model);
        for (to, labels) in [(1, vec![1001]), (2, vec![1002, 1003, 1004])] {
            let (_, kind, bytes) = setup.sent(PacketProtocol::V4, &v4([10, to, 0, 1], 64, 1));
            let (entries, beneath) = read(&bytes);
            // DSCP 46 (EF) has class selector 5.
            assert_eq!(entries, labels.iter().map(|number| (*number, outer, 5)).collect::<Vec<_>>());
            assert_eq!(kind, PacketProtocol::Mpls);
            is_whole(beneath, 63);
        }
    }
    let setup = Setup::new(&[&[1001], &[1002, 1003], &[]], TunnelModel::Uniform);
    let inner = v4([10, 1, 0, 1], 64, 1);
    let (_, _, bytes) = setup.sent(PacketProtocol::Mpls, &labeled(&[entry(101, 40), entry(77, 50)], &inner));
    assert_eq!(read(&bytes), (vec![(1001, 39, 3), (77, 50, 3)], &inner[..]));
    let (_, _, bytes) = setup.sent(PacketProtocol::Mpls, &labeled(&[entry(102, 40)], &inner));
    assert_eq!(read(&bytes), (vec![(1002, 39, 3), (1003, 39, 3)], &inner[..]));
    // At the penultimate router the payload leaves, with TTL and class of the label only in the uniform model.
    for (number, ttl, dscp) in [(103, 39, 24), (203, 64, 46)] {
        let (_, kind, bytes) = setup.sent(PacketProtocol::Mpls, &labeled(&[entry(number, 40)], &inner));
        assert_eq!((kind, bytes[1] >> 2), (PacketProtocol::V4, dscp));
        is_whole(&bytes, ttl);
        let beneath = LabelStackEntry { traffic_class: 5, ..entry(77, 60) };
        let (_, kind, bytes) =
            setup.sent(PacketProtocol::Mpls, &labeled(&[entry(number, 40), beneath], &inner));
        let expected = if ttl == 64 { (77, 60, 5) } else { (77, 39, 3) };
        assert_eq!((kind, read(&bytes).0), (PacketProtocol::Mpls, vec![expected]));
    }
}

#[test]
fn the_payload_of_a_popped_label_is_forwarded() {
    let setup = Setup::new(&[&[], &[1002]], TunnelModel::Uniform);
    let inner = v4([10, 1, 0, 1], 64, 1);
    let classed = |class, number, ttl| LabelStackEntry { traffic_class: class, ..entry(number, ttl) };
    for (labels, ttl, dscp) in [
        (vec![entry(300, 40)], 39, 24),
        (vec![entry(301, 40)], 63, 46),
        // The label has the class of DSCP 46 (EF), which is kept.
        (vec![classed(5, 300, 40)], 39, 46),
        (vec![entry(0, 40)], 39, 24),
        (vec![entry(300, 40), entry(0, 70)], 39, 24),
        (vec![classed(1, 300, 40), classed(2, 300, 70)], 39, 8),
        // A pipe in a pipe, where the inner label has a higher TTL than the outer one.
        (vec![entry(301, 40), entry(301, 50)], 63, 46),
        (vec![classed(1, 301, 40), classed(2, 300, 50)], 49, 16),
        (vec![entry(7, 40), entry(99_999, 40), entry(300, 30)], 29, 24),
    ] {
        let (hop, kind, bytes) = setup.sent(PacketProtocol::Mpls, &labeled(&labels, &inner));
        assert_eq!((hop, kind, bytes[1] >> 2), (0, PacketProtocol::V4, dscp), "{labels:?}");
        is_whole(&bytes, ttl);
    }
    let six = v6([0x2001, 0xdb8, 2, 0, 0, 0, 0, 1], 64);
    let (hop, _, bytes) = setup.sent(PacketProtocol::Mpls, &labeled(&[entry(300, 40), entry(2, 50)], &six));
    assert_eq!((hop, read(&bytes).0), (1, vec![(1002, 39, 3)]));
    is_whole(read(&bytes).1, 39);
    // IPv6 without a separate label in an LSP that ends with the explicit null of IPv4; the reverse is an
    // error.
    let (hop, _, bytes) = setup.sent(PacketProtocol::Mpls, &labeled(&[entry(0, 50)], &six));
    assert_eq!((hop, read(&bytes).0), (1, vec![(1002, 49, 3)]));
    let (verdict, _) = setup.forward(PacketProtocol::Mpls, &labeled(&[entry(2, 40)], &inner));
    assert_eq!(verdict, ForwardingVerdict::Drop(DropReason::Malformed));
}

#[test]
fn discarded_packets_have_a_reason() {
    let setup = Setup::new(&[&[1001], &[]], TunnelModel::Uniform);
    let inner = v4([10, 1, 0, 1], 64, 1);
    for (labels, verdict) in [
        (vec![entry(5_000, 40)], ForwardingVerdict::Drop(DropReason::UnknownLabel)),
        (vec![entry(3, 40)], ForwardingVerdict::Drop(DropReason::Reserved)),
        (vec![entry(7, 40)], ForwardingVerdict::Drop(DropReason::Reserved)),
        (vec![entry(101, 1)], ForwardingVerdict::Reject(ReportableError::TtlExceeded)),
        (vec![entry(300, 40), entry(101, 1)], ForwardingVerdict::Reject(ReportableError::TtlExceeded)),
        (vec![entry(0, 40); 17], ForwardingVerdict::Drop(DropReason::TooDeep)),
    ] {
        let bytes = labeled(&labels, &inner);
        let (actual, after) = setup.forward(PacketProtocol::Mpls, &bytes);
        assert_eq!(actual, verdict, "{labels:?}");
        assert!(!matches!(actual, ForwardingVerdict::Reject(_)) || after == bytes);
    }
    // The label was not advertised on the other interface.
    let mut buffer = labeled(&[entry(101, 40)], &inner);
    let mut packet = BufferedPacket { bytes: &mut buffer, start: 0, kind: PacketProtocol::Mpls };
    assert_eq!(setup.router.forward(&mut packet, 1), ForwardingVerdict::Drop(DropReason::Unexpected));
    // Explicit null has no interface of its own: any that accepts labels.
    let plain = interface(0, false);
    let mut other = Setup::new(&[&[]], TunnelModel::Uniform);
    for (accepts, number) in [(true, 0), (false, 0), (false, 1)] {
        other.router.set_interface(number, if accepts { interface(0, true) } else { plain });
        for reserved in [0, 1, 14] {
            let mut buffer = labeled(&[entry(reserved, 40)], &inner);
            let mut packet = BufferedPacket { bytes: &mut buffer, start: 0, kind: PacketProtocol::Mpls };
            let verdict = other.router.forward(&mut packet, number);
            assert_eq!(verdict == ForwardingVerdict::Drop(DropReason::Unexpected), !accepts, "{reserved}");
        }
    }
    // Without room before the packet, no label is pushed.
    let mut buffer = inner.clone();
    let mut packet = BufferedPacket { bytes: &mut buffer, start: 0, kind: PacketProtocol::V4 };
    assert_eq!(setup.router.forward(&mut packet, 0), ForwardingVerdict::Drop(DropReason::NoRoom));
}

/// A Path message is addressed to the end of the LSP, and has the router alert option. Without it, a message is for its
/// destination only.
#[test]
fn rsvp_packets_with_an_option_are_for_this_router_on_its_interfaces_with_rsvp() {
    let mut setup = Setup::new(&[&[]], TunnelModel::Uniform);
    let mut path = v4([10, 1, 0, 1], 64, 0);
    path[9] = netstage_wire::rsvp::PROTOCOL;
    path[10..12].fill(0);
    let sum = |packet: &mut Vec<u8>| {
        let length = usize::from(packet[0] & 0xf) * 4;
        let checksum = netstage_wire::checksum::checksum(&packet[..length]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    };
    let mut unicast = path.clone();
    sum(&mut unicast);
    path.splice(v4::HEADER..v4::HEADER, [0x94, 4, 0, 0]);
    path[0] += 1;
    let length = path.len() as u16;
    path[2..4].copy_from_slice(&length.to_be_bytes());
    sum(&mut path);
    setup.sent(PacketProtocol::V4, &path);
    setup.router.set_interface(0, IncomingInterface { rsvp: true, ..interface(0, true) });
    let local = ForwardingVerdict::Local { start: ROOM, kind: PacketProtocol::V4 };
    assert_eq!(setup.forward(PacketProtocol::V4, &path).0, local);
    setup.sent(PacketProtocol::V4, &v4([10, 1, 0, 1], 64, 0));
    setup.sent(PacketProtocol::V4, &unicast);
    // In an LSP, it belongs to other routers.
    let (verdict, _) = setup.forward(PacketProtocol::Mpls, &labeled(&[entry(300, 64)], &path));
    assert!(matches!(verdict, ForwardingVerdict::Send { .. }), "{verdict:?}");
}

/// Packets from and to addresses of which no host may be served, and from and to their neighbors.
#[test]
fn martians_are_not_forwarded_and_not_answered() {
    let mut setup = Setup::new(&[&[]], TunnelModel::Uniform);
    let [good4, good6] = ["198.51.100.1", "2001:db8:ffff::1"].map(|text| text.parse::<IpAddr>().unwrap());
    let packet = |from: IpAddr, to: IpAddr| match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut bytes = vec![0; v4::HEADER + 8];
            let header = v4::Header { ttl: 1, source, destination, ..v4::Header::default() };
            header.write(&mut bytes, 8).unwrap();
            (PacketProtocol::V4, bytes)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut bytes = vec![0; v6::HEADER + 8];
            let header =
                v6::Header { hop_limit: 1, source, destination, next_header: 59, ..v6::Header::default() };
            header.write(&mut bytes, 8).unwrap();
            (PacketProtocol::V6, bytes)
        }
        _ => unreachable!("both have one version"),
    };
    let cases = [
        ("0.0.0.0 0.255.255.255 127.0.0.1 127.255.255.255 169.254.0.0 169.254.255.255", true),
        ("224.0.0.0 239.255.255.255 240.0.0.1 255.255.255.255", true),
        ("1.0.0.0 126.255.255.255 128.0.0.0 169.253.255.255 169.255.0.0 223.255.255.255", false),
        (":: ::1 ::ffff:0.0.0.0 ::ffff:192.0.2.1 fe80:: febf:ffff:: ff00:: ff02::1 ffff::", true),
        ("::2 ::1:0:0:0 ::1:ffff:0:0 2001:db8:: fe7f:ffff:: fec0:: feff:ffff::", false),
    ];
    // A route for everything, none, and one to this router.
    for (target, is_local) in [(Some(1), false), (None, false), (Some(2), true)] {
        if is_local {
            assert_eq!(setup.router.add_target(ForwardingTarget::Local), 2);
        }
        if let Some(target) = target {
            setup.router.table_mut(0).v4.insert(0, 0, target).unwrap();
            setup.router.table_mut(0).v6.insert(0, 0, target).unwrap();
        }
        for (addresses, is_martian) in cases {
            for address in addresses.split(' ').map(|text| text.parse::<IpAddr>().unwrap()) {
                let good = if address.is_ipv4() { good4 } else { good6 };
                for (from, to) in [(address, good), (good, address)] {
                    let (kind, bytes) = packet(from, to);
                    let verdict = setup.forward(kind, &bytes).0;
                    let expected = match (is_local, is_martian, target) {
                        (true, ..) => ForwardingVerdict::Local { start: ROOM, kind },
                        (_, true, _) => ForwardingVerdict::Drop(DropReason::Martian),
                        (.., None) => ForwardingVerdict::Reject(ReportableError::NoRoute),
                        (.., Some(_)) => ForwardingVerdict::Reject(ReportableError::TtlExceeded),
                    };
                    assert_eq!(verdict, expected, "{from} to {to}");
                }
            }
        }
        if target == Some(1) {
            setup.router.table_mut(0).v4.remove(0, 0);
            setup.router.table_mut(0).v6.remove(0, 0);
        }
    }
}

/// Targets of the source: a hop on another interface, one on each, none at present, this router, discard; and no route.
#[test]
fn a_source_needs_a_route_back() {
    use SourceCheck::{Loose, Off, Strict};
    let mut setup = Setup::new(&[&[]], TunnelModel::Uniform);
    let back = setup.router.add_hop(Hop::new(0, 1500, &[label(900)], TunnelModel::Uniform).unwrap());
    let targets = [
        (Some(ForwardingTarget::Hops(vec![0])), [Off, Loose].as_slice()),
        (Some(ForwardingTarget::Hops(vec![0, back])), &[Off, Loose, Strict]),
        (Some(ForwardingTarget::Hops(vec![])), &[Off, Loose]),
        (Some(ForwardingTarget::Local), &[Off]),
        (Some(ForwardingTarget::Discard), &[Off]),
        (None, &[Off]),
    ];
    let packets = [
        (PacketProtocol::V4, v4([10, 1, 0, 1], 64, 0)),
        (PacketProtocol::V6, v6([0x2001, 0xdb8, 1, 0, 0, 0, 0, 1], 64)),
    ];
    for (target, accepting) in targets {
        let number = target.map(|target| setup.router.add_target(target));
        let table = setup.router.table_mut(0);
        for (routes, source, length) in
            [(&mut table.v4, v4_bits([192, 0, 2, 1]), 32), (&mut table.v6, 0x2001_0db8 << 96 | 9, 128)]
        {
            routes.remove(source, length);
            if let Some(number) = number {
                routes.insert(source, length, number).unwrap();
            }
        }
        for source_check in [Off, Loose, Strict] {
            setup.router.set_interface(0, IncomingInterface { source_check, ..interface(0, true) });
            for (kind, packet) in &packets {
                let verdict = setup.forward(*kind, packet).0;
                let is_sent = matches!(verdict, ForwardingVerdict::Send { .. });
                assert_eq!(
                    is_sent,
                    accepting.contains(&source_check),
                    "{number:?} {source_check:?}: {verdict:?}"
                );
                assert!(is_sent || verdict == ForwardingVerdict::Drop(DropReason::Spoofed));
                // The ingress of an LSP has verified the source.
                let labeled = labeled(&[LabelStackEntry { bottom: true, ..entry(300, 64) }], packet);
                let verdict = setup.forward(PacketProtocol::Mpls, &labeled).0;
                assert!(matches!(verdict, ForwardingVerdict::Send { .. }), "{verdict:?}");
            }
        }
    }
    // The router's own packets have its addresses.
    let mut buffer = [&[0; ROOM][..], &packets[0].1].concat();
    let mut own = BufferedPacket { bytes: &mut buffer, start: ROOM, kind: PacketProtocol::V4 };
    assert!(matches!(setup.router.forward_own(&mut own, 0), ForwardingVerdict::Send { .. }));
    // Without a route to the destination, a spoofed source gets no answer.
    let lost = v4([172, 16, 0, 1], 64, 0);
    assert_eq!(setup.forward(PacketProtocol::V4, &lost).0, ForwardingVerdict::Drop(DropReason::Spoofed));
}

#[test]
fn packets_above_the_mtu_are_fragmented_or_rejected() {
    let mut setup = Setup::new(&[&[1001]], TunnelModel::Uniform);
    let hop = *setup.router.hop(0);
    setup.router.set_hop(0, Hop { mtu: 100, ..hop });
    let large = v4([10, 1, 0, 1], 64, 1);
    assert_eq!(
        setup.forward(PacketProtocol::V4, &large).0,
        ForwardingVerdict::Fragment { mtu: 96, start: ROOM }
    );
    let six = v6([0x2001, 0xdb8, 1, 0, 0, 0, 0, 1], 64);
    assert_eq!(
        setup.forward(PacketProtocol::V6, &six).0,
        ForwardingVerdict::Reject(ReportableError::TooBig(96))
    );
    let bytes = labeled(&[entry(101, 40), entry(77, 40)], &six);
    assert_eq!(
        setup.forward(PacketProtocol::Mpls, &bytes).0,
        ForwardingVerdict::Reject(ReportableError::TooBig(92))
    );
}

#[test]
fn each_flow_keeps_its_hop_and_flows_spread_over_all_hops() {
    let mut setup = Setup::new(&[&[], &[], &[]], TunnelModel::Uniform);
    let target = setup.router.add_target(ForwardingTarget::Hops(vec![0, 1, 2]));
    setup.router.table_mut(0).v4.insert(v4_bits([10, 99, 0, 0]), 16, target).unwrap();
    let incoming =
        IncomingLabel { action: LabelOperation::Swap { target }, model: TunnelModel::Uniform, expected: 1 };
    setup.router.assign_label(label(500), incoming).unwrap();
    let mut counts = [[0; 3]; 2];
    for port in 0..600 {
        let packet = v4([10, 99, 0, 1], 64, port);
        let hop = setup.sent(PacketProtocol::V4, &packet).0;
        assert_eq!(setup.sent(PacketProtocol::V4, &packet).0, hop);
        counts[0][hop as usize] += 1;
        let entropy = [entry(500, 40), entry(7, 0), entry(16 + u32::from(port), 0)];
        counts[1][setup.sent(PacketProtocol::Mpls, &labeled(&entropy, &[0x45; 40])).0 as usize] += 1;
    }
    assert!(counts.iter().flatten().all(|count| (140..260).contains(count)), "{counts:?}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        labels in prop::collection::vec((prop_oneof![0u32..16, 99u32..304, any::<u32>()], any::<u8>()), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..60),
        ip in any::<bool>(),
        kind in 0usize..3,
    ) {
        let setup = Setup::new(&[&[1001, 1002], &[]], TunnelModel::Uniform);
        let entries: Vec<LabelStackEntry> = labels.iter().map(|(number, ttl)| entry(number & 0xf_ffff, *ttl)).collect();
        let beneath = if ip { v4([10, 1, 0, 1], 64, 1) } else { tail };
        let bytes = labeled(&entries, &beneath);
        let (verdict, after) = setup.forward([PacketProtocol::V4, PacketProtocol::V6, PacketProtocol::Mpls][kind], &bytes);
        if let ForwardingVerdict::Reject(_) = verdict {
            prop_assert_eq!(after, bytes);
        }
    }
}
