//! No input makes a packet reach another VPN.

use super::*;
use netstage_wire::mpls::{self, LabelStackEntry};
use proptest::prelude::*;

const VPNS: u16 = 40;

/// Assigned labels, and labels near them.
fn some_label() -> impl Strategy<Value = u32> {
    prop_oneof![0..20_u32, 490..510_u32, 995..1050_u32, 1995..2050_u32, 0..1_u32 << 20]
}

fn some_stack() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(some_label(), 1..4)
}

pub(super) fn with_labels(stack: &[u32], payload: &[u8]) -> Vec<u8> {
    let entries: Vec<LabelStackEntry> = stack
        .iter()
        .map(|number| LabelStackEntry { label: label(*number), traffic_class: 0, bottom: false, ttl: 64 })
        .collect();
    let mut bytes = vec![0; entries.len() * mpls::ENTRY];
    mpls::write_stack(&entries, &mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

/// Builds a frame from the core in the given encapsulation.
pub(super) fn from_core(way: CoreEncapsulation, from: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&CORE_PORT[..], &CORE_PORT].concat();
    match way {
        CoreEncapsulation::Mpls | CoreEncapsulation::MplsNextHop => {
            frame.extend(ethertype::MPLS.to_be_bytes());
            frame.extend(payload);
        }
        CoreEncapsulation::Udp4 | CoreEncapsulation::Udp6 => {
            let outer = netstage_wire::mpls_in_udp::TunnelHeader {
                source: tunnel_address(way, from),
                destination: tunnel_address(way, 2),
                source_port: 50_000,
                dscp: 0,
                ecn: Ecn::NotCapable,
                ttl: 9,
                has_checksum: true,
            };
            let kind = if way == CoreEncapsulation::Udp4 { ethertype::IPV4 } else { ethertype::IPV6 };
            frame.extend(kind.to_be_bytes());
            let mut packet = vec![0; outer.length()];
            packet.extend(payload);
            outer.write(&mut packet).unwrap();
            frame.extend(packet);
        }
    }
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The VPN label alone selects the VPN, and is valid only by the path it was assigned for.
    #[test]
    fn a_label_selects_only_its_own_vpn(
        frames in prop::collection::vec((some_stack(), 0..4_usize, 1..4_u8, any::<bool>()), 1..30), way in 0..4_usize,
    ) {
        let way = WAYS[way];
        let mut router = router(&config(1, way, VPNS));
        for (number, (stack, by, from, is_v6)) in frames.into_iter().enumerate() {
            // The payload names a VPN, which the router must ignore.
            let inner = packet(is_v6, 0, 0xffff, number as u64, 80);
            let by = WAYS[by];
            let [delivered, _] = router.pass(CORE, Instant(1), &from_core(by, from, &with_labels(&stack, &inner)));
            let bottom = *stack.last().unwrap();
            let vpn = bottom.checked_sub(2000).filter(|vpn| *vpn < VPNS.into());
            let is_right_path = match (way, by) {
                (CoreEncapsulation::Mpls | CoreEncapsulation::MplsNextHop, CoreEncapsulation::Mpls | CoreEncapsulation::MplsNextHop) => true,
                _ => way == by && from == 1,
            };
            let mut above = stack[..stack.len() - 1].iter();
            let may_be_above = match way {
                CoreEncapsulation::Mpls => above.all(|label| matches!(label, 0 | 2 | 501)),
                CoreEncapsulation::MplsNextHop => above.all(|label| matches!(label, 0 | 2)),
                _ => stack.len() == 1,
            };
            match vpn.filter(|_| is_right_path && may_be_above) {
                Some(vpn) => {
                    prop_assert_eq!(delivered.len(), 1, "{:?}", stack);
                    let (vlan, packet) = opened(&delivered[0]);
                    prop_assert_eq!(u32::from(vlan), 100 + vpn);
                    prop_assert_eq!(packet, after_hops(&inner, 1));
                }
                None => prop_assert_eq!(delivered.len(), 0, "{:?} {:?} {} {:?}", way, by, from, stack),
            }
        }
    }

    /// Sends packets end to end in many VPNs with equal addresses, while the core flips bits in labels. A
    /// packet delivered on a circuit was sent in its VPN, or had its label flipped to that of the VPN.
    #[test]
    fn packets_stay_in_their_vpn(
        sent in prop::collection::vec((0..VPNS, 0..2_u8, any::<bool>()), 1..60), flips in prop::collection::vec(0..200_usize, 0..60),
    ) {
        let way = CoreEncapsulation::Udp4;
        let mut world = TwoRouters::new([config(0, way, VPNS), config(1, way, VPNS)]);
        for (number, (vpn, from, is_v6)) in sent.iter().enumerate() {
            let bytes = packet(*is_v6, *from, *vpn, number as u64, 80);
            world.routers[usize::from(*from)].give(CUSTOMERS, Instant::ZERO, &frame(100 + vpn, &bytes));
        }
        let mut moved = BTreeMap::new();
        let mut flips = flips.into_iter();
        let mut flipping = |now: Instant, from: usize, frame: &mut Vec<u8>| {
            if let Some(bit) = flips.next().filter(|bit| *bit < 20) {
                frame[42 + bit / 8] ^= 0x80 >> (bit % 8);
            }
            if !is_management(frame) {
                let label = u32::from_be_bytes(*frame[42..].first_chunk().unwrap()) >> 12;
                moved.insert((from, numbers(&frame[46..]).1), label);
            }
            Some(now + DELAY)
        };
        world.run(Instant(900_000_000), &mut flipping);
        let mut arrived = 0;
        for side in 0..2 {
            for frame in &world.delivered[side] {
                let (vlan, packet) = opened(frame);
                let (vpn, number) = numbers(packet);
                let label = moved[&(1 - side, number)];
                prop_assert_eq!(label, 1000 * (1 + side as u32) + u32::from(vlan) - 100);
                arrived += 1;
                if label == 1000 * (1 + side as u32) + u32::from(vpn) {
                    prop_assert_eq!((vpn, 1 - side as u8), (sent[number as usize].0, sent[number as usize].1));
                }
            }
        }
        let unmoved = moved.iter().filter(|((from, number), label)| {
            **label == 1000 * (2 - *from as u32) + u32::from(sent[*number as usize].0)
        });
        prop_assert!(arrived >= unmoved.count());
    }

    /// Arbitrary bytes on both sides cause no panic and leak no buffer.
    #[test]
    fn arbitrary_bytes_do_no_harm(
        frames in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..160), 0..6_u8), 1..30),
    ) {
        let mut router = router(&config(1, CoreEncapsulation::Udp4, 2));
        for (number, (is_core, mut bytes, shape)) in frames.into_iter().enumerate() {
            let now = Instant(number as u64 * 1_000_000);
            // Without a valid start, all frames would fail the first check.
            let head: Vec<u8> = match (is_core, shape) {
                (_, 0) => vec![],
                (false, _) => frame(100, &[0x45])[..18].to_vec(),
                (true, 1..=3) => [&CORE_PORT[..], &CORE_PORT, &ethertype::MPLS.to_be_bytes()].concat(),
                (true, _) => {
                    let stack = if shape == 4 { vec![2000] } else { vec![2000, 13] };
                    bytes = from_core(CoreEncapsulation::Udp4, 1, &with_labels(&stack, &bytes));
                    vec![]
                }
            };
            bytes.splice(0..0, head);
            router.pass(if is_core { CORE } else { CUSTOMERS }, now, &bytes);
        }
        router.turn(Instant(3_600_000_000_000));
        prop_assert_eq!(router.engine.free_buffers(), router.buffers);
    }
}
