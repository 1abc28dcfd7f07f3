//! Written and parsed UPDATE messages, compared with netgauze's parser.

use super::attributes::AttributeContext;
use super::inject::{Injection, InjectionAction, SendOrder, WriteCounts};
use super::message;
use super::nlri::{BgpFamily, Nlri, NlriPrefix, RouteDistinguisher};
use super::path::{AsPath, Encoding, Origin, PathAttributes, RawAttribute};
use super::receive::{ExpectedNextHop, ReceivedRoutes};
use super::table::{BgpTable, NextHopAssignment, Pattern};
use super::update::Update;
use netgauze_bgp_pkt::BgpMessage;
use netgauze_bgp_pkt::path_attribute::{self, MpReach, MpUnreach, PathAttributeValue};
use netgauze_bgp_pkt::wire::deserializer::BgpParsingContext;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithOneInput;
use netstage_harness::needs;
use proptest::prelude::*;
use std::net::IpAddr;

fn family() -> impl Strategy<Value = BgpFamily> {
    prop::sample::select(&BgpFamily::ALL[..])
}

/// Destinations with unicast addresses, since netgauze rejects others.
fn nlri(family: BgpFamily) -> impl Strategy<Value = Nlri> {
    (any::<u128>(), any::<u8>(), 0..1_048_576_u32, any::<[u8; 6]>()).prop_map(
        move |(bits, length, label, rd)| {
            let (address, length): (IpAddr, u8) = if family.is_ipv4() {
                (std::net::Ipv4Addr::from(bits as u32 & 0x5fff_ffff).into(), length % 33)
            } else {
                (std::net::Ipv6Addr::from(bits >> 3).into(), length % 129)
            };
            let [a, b, c, d, e, f] = rd;
            Nlri {
                family,
                distinguisher: (family == BgpFamily::Vpnv4)
                    .then_some(RouteDistinguisher([0, 0, a, b, c, d, e, f])),
                prefix: NlriPrefix::new(address, length).expect("within the address"),
                label: family.is_labeled().then_some(label),
            }
        },
    )
}

fn path(family: BgpFamily) -> impl Strategy<Value = PathAttributes> {
    let path = (
        0..3_u8,
        prop::collection::vec(1..=u32::MAX, 0..600),
        any::<[Option<u32>; 2]>(),
        0..4_u32,
        0..40_usize,
    );
    path.prop_map(move |(origin, numbers, [metric, preference], hop, communities)| {
        let next_hop = if family.is_ipv4() {
            std::net::Ipv4Addr::from(0xc000_0201 + hop).into()
        } else {
            std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(hop)).into()
        };
        let list = RawAttribute { flags: 0xc0, code: 8, value: vec![1; 4 * communities] };
        PathAttributes {
            origin: [Origin::Igp, Origin::Egp, Origin::Incomplete][usize::from(origin)],
            multi_exit_discriminator: metric,
            local_preference: preference,
            others: if communities > 0 { vec![list] } else { vec![] },
            ..PathAttributes::new(next_hop, AsPath::sequence(&numbers[..numbers.len().min(400)]))
        }
    })
}

fn table() -> impl Strategy<Value = BgpTable> {
    let group = family().prop_flat_map(|family| (path(family), prop::collection::vec(nlri(family), 1..800)));
    (prop::collection::vec(group, 1..4), any::<u64>()).prop_map(|(groups, order)| {
        let mut table = BgpTable::new();
        let mut sources: Vec<_> = groups
            .into_iter()
            .filter_map(|(path, nlri)| {
                Some((table.group(nlri[0].family, path).ok()?, nlri.into_iter().peekable()))
            })
            .collect();
        // Groups alternate with varying numbers of routes.
        let mut turn = order;
        while sources.iter_mut().any(|(_, rest)| rest.peek().is_some()) {
            turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let index = (turn >> 33) as usize % sources.len();
            let (group, rest) = &mut sources[index];
            rest.take((turn >> 40) as usize % 90).for_each(|nlri| table.push(*group, &nlri));
        }
        table
    })
}

/// Returns all messages, written in steps of `step` bytes.
fn inject(
    table: &BgpTable,
    action: InjectionAction,
    order: SendOrder,
    encoding: &Encoding,
    step: usize,
) -> (Vec<u8>, WriteCounts) {
    let mut injection = Injection::new(table, action, order, &BgpFamily::ALL);
    let (mut bytes, mut total) = (Vec::new(), WriteCounts::default());
    loop {
        let mut buffer = Vec::new();
        let written = injection.fill(table, encoding, step, &mut buffer);
        if written == WriteCounts::default() {
            return (bytes, total);
        }
        bytes.extend(buffer);
        total.messages += written.messages;
        total.routes += written.routes;
    }
}

fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while let Some(frame) = message::first(bytes).expect("well formed") {
        all.push(&bytes[..frame.length()]);
        bytes = &bytes[frame.length()..];
    }
    assert!(bytes.is_empty());
    all
}

/// Destination as text, and its label.
type RouteText = (String, Option<u32>);

/// Destinations and AS path as parsed by netgauze.
fn parsed_by_netgauze(message: &[u8], four_octet_as: bool) -> (Vec<RouteText>, Option<Vec<u32>>) {
    let mut context = BgpParsingContext::default();
    context.set_asn4(four_octet_as);
    let parsed = BgpMessage::parse(&mut SliceReader::new(message), &mut context).expect("netgauze parses it");
    let BgpMessage::Update(update) = parsed else { panic!("no UPDATE") };
    let label = |stack: &[netgauze_bgp_pkt::nlri::MplsLabel]| {
        let [a, b, c] = *stack[0].value();
        (u32::from_be_bytes([0, a, b, c]) != 0x80_0000).then(|| u32::from_be_bytes([0, a, b, c]) >> 4)
    };
    let mut found = Vec::new();
    let mut as_path = None;
    for net in update.withdraw_routes().iter().chain(update.nlri()) {
        found.push((net.network().to_string(), None));
    }
    macro_rules! take {
        ($nlri:expr) => {
            $nlri.iter().for_each(|nlri| found.push((nlri.network().to_string(), None)))
        };
        (labels $nlri:expr) => {
            $nlri.iter().for_each(|nlri| found.push((nlri.prefix().to_string(), label(nlri.labels()))))
        };
        (vpn $nlri:expr) => {
            $nlri.iter().for_each(|nlri| found.push((nlri.network().to_string(), label(nlri.label_stack()))))
        };
    }
    for attribute in update.path_attributes() {
        match attribute.value() {
            PathAttributeValue::AsPath(path) => as_path = Some(Vec::from(path.clone())),
            PathAttributeValue::MpReach(reach) => match reach {
                MpReach::Ipv6Unicast { nlri, .. } => take!(nlri),
                MpReach::Ipv4NlriMplsLabels { nlri, .. } => take!(labels nlri),
                MpReach::Ipv6NlriMplsLabels { nlri, .. } => take!(labels nlri),
                MpReach::Ipv4MplsVpnUnicast { nlri, .. } => take!(vpn nlri),
                other => panic!("{other:?}"),
            },
            PathAttributeValue::MpUnreach(unreach) => match unreach {
                MpUnreach::Ipv6Unicast { nlri } => take!(nlri),
                MpUnreach::Ipv4NlriMplsLabels { nlri } => take!(labels nlri),
                MpUnreach::Ipv6NlriMplsLabels { nlri } => take!(labels nlri),
                MpUnreach::Ipv4MplsVpnUnicast { nlri } => take!(vpn nlri),
                other => panic!("{other:?}"),
            },
            PathAttributeValue::Origin(path_attribute::Origin::IGP)
            | PathAttributeValue::NextHop(_)
            | PathAttributeValue::Communities(_) => {}
            PathAttributeValue::UnknownAttribute(unknown) => panic!("{unknown:?}"),
            _ => {}
        }
    }
    (found, as_path)
}

const EXTERNAL: Encoding = Encoding { four_octet_as: true, prepend: Some(65_001), local_preference: None };
const INTERNAL: Encoding = Encoding { four_octet_as: true, prepend: None, local_preference: Some(100) };
const TWO_OCTET: Encoding = Encoding { four_octet_as: false, prepend: Some(65_001), local_preference: None };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(needs::cases(64)))]

    #[test]
    fn injected_messages_match_the_table(
        table in table(),
        encoding in prop::sample::select(&[EXTERNAL, INTERNAL, TWO_OCTET][..]),
        order in prop::sample::select(&[SendOrder::Packed, SendOrder::AsListed][..]),
        action in prop::sample::select(&[InjectionAction::Announce, InjectionAction::Withdraw][..]),
        step in 1..20_000_usize,
    ) {
        let (bytes, written) = inject(&table, action, order, &encoding, step);
        let frames = frames(&bytes);
        prop_assert_eq!(written, WriteCounts { messages: frames.len(), routes: table.len() });
        let source = AttributeContext {
            four_octet_as: encoding.four_octet_as,
            is_internal: encoding.prepend.is_none(),
            dump: None,
        };
        let mut ours = Vec::new();
        for frame in frames {
            prop_assert!(frame.len() <= message::MAX_LENGTH);
            let update = Update::read(&frame[message::HEADER..], source, |_| true).unwrap();
            prop_assert_eq!(update.malformed(), None);
            let (expected, as_path) = parsed_by_netgauze(frame, encoding.four_octet_as);
            let mut found = Vec::new();
            for (next_hop, destinations) in update.reachable() {
                let mut path = update.path(next_hop);
                if encoding.four_octet_as {
                    let flat = path.as_path.segments.iter().flat_map(|segment| &segment.numbers);
                    prop_assert_eq!(flat.copied().collect::<Vec<_>>(), as_path.clone().unwrap());
                }
                if let Some(own) = encoding.prepend {
                    prop_assert_eq!(path.as_path.segments[0].numbers.remove(0), own);
                    path.as_path.segments.retain(|segment| !segment.numbers.is_empty());
                }
                found.extend(destinations.map(|nlri| (nlri, Some(path.clone()))));
            }
            for destinations in update.unreachable() {
                found.extend(destinations.map(|nlri| (nlri, None)));
            }
            let texts = found.iter().map(|(nlri, _)| (nlri.prefix.to_string(), nlri.label));
            prop_assert_eq!(texts.collect::<Vec<_>>(), expected);
            ours.extend(found);
        }
        let sent = |nlri: Nlri, path: &PathAttributes| {
            let nlri = if action == InjectionAction::Withdraw { Nlri { label: None, ..nlri } } else { nlri };
            let mut path = path.clone();
            path.local_preference = encoding.local_preference.map(|default| path.local_preference.unwrap_or(default));
            (nlri, (action == InjectionAction::Announce).then_some(path))
        };
        let mut listed: Vec<_> = table.iter().map(|(nlri, path)| sent(nlri, path)).collect();
        if order == SendOrder::Packed {
            listed.sort();
            ours.sort();
        }
        // AS paths may be split into segments differently and still be equal.
        let flat = |(nlri, path): (Nlri, Option<PathAttributes>)| {
            (nlri, path.map(|path| (path.as_path.to_string(), PathAttributes { as_path: AsPath::default(), ..path })))
        };
        let (mut ours, mut listed): (Vec<_>, Vec<_>) =
            (ours.into_iter().map(flat).collect(), listed.into_iter().map(flat).collect());
        if order == SendOrder::Packed {
            ours.sort();
            listed.sort();
        }
        prop_assert_eq!(ours, listed);
    }

    #[test]
    fn received_routes_match_the_table(table in table()) {
        let (bytes, _) = inject(&table, InjectionAction::Announce, SendOrder::AsListed, &INTERNAL, 100_000);
        let source = AttributeContext { four_octet_as: true, is_internal: true, dump: None };
        let mut received = ReceivedRoutes::new();
        let take = |received: &mut ReceivedRoutes, bytes: &[u8]| {
            for frame in frames(bytes) {
                received.take(&Update::read(&frame[message::HEADER..], source, |_| true).unwrap());
            }
        };
        take(&mut received, &bytes);
        let expected: std::collections::BTreeMap<_, _> = table
            .iter()
            .map(|(nlri, path)| ((nlri.family, nlri.distinguisher, nlri.prefix), (path.next_hop, nlri.label)))
            .collect();
        prop_assert_eq!(received.len(), expected.len());
        for (nlri, next_hop) in received.routes() {
            let key = (nlri.family, nlri.distinguisher, nlri.prefix);
            prop_assert_eq!(expected.get(&key), Some(&(next_hop, nlri.label)));
        }
        let differences = received.differences(&table, &BgpFamily::ALL, ExpectedNextHop::Any);
        prop_assert!(differences.is_empty());
        let (bytes, _) = inject(&table, InjectionAction::Withdraw, SendOrder::Packed, &INTERNAL, 100_000);
        take(&mut received, &bytes);
        prop_assert!(received.is_empty());
        prop_assert!(BgpFamily::ALL.iter().all(|family| received.count(*family) == 0));
    }

    #[test]
    fn arbitrary_bodies_never_panic(body in prop::collection::vec(any::<u8>(), 0..300), four_octet_as: bool) {
        let source = AttributeContext { four_octet_as, is_internal: true, dump: None };
        if let Ok(update) = Update::read(&body, source, |_| true) {
            prop_assert!(update.unreachable().all(|destinations| destinations.count() > 0));
            for (next_hop, destinations) in update.reachable() {
                prop_assert!(destinations.count() > 0);
                update.path(next_hop);
            }
        }
    }
}

#[test]
fn differences_are_listed_by_kind() {
    let pattern = |first: &str, count, hop: &str| Pattern {
        family: BgpFamily::Ipv4Unicast,
        first: first.parse().unwrap(),
        count,
        next_hops: vec![hop.parse().unwrap()],
        spread: NextHopAssignment::InTurn,
        as_path: AsPath::default(),
        first_label: None,
        distinguisher: None,
    };
    let (mut sent, mut expected) = (BgpTable::new(), BgpTable::new());
    pattern("10.0.0.0/24", 100, "192.0.2.1").append_to(&mut sent).unwrap();
    pattern("10.0.50.0/24", 100, "192.0.2.1").append_to(&mut expected).unwrap();
    let (bytes, written) = inject(&sent, InjectionAction::Announce, SendOrder::Packed, &EXTERNAL, 100_000);
    assert_eq!(written, WriteCounts { messages: 1, routes: 100 });
    let source = AttributeContext { four_octet_as: true, is_internal: false, dump: None };
    let mut received = ReceivedRoutes::new();
    received.take(&Update::read(&bytes[19..], source, |_| true).unwrap());
    let families = [BgpFamily::Ipv4Unicast];
    let found = received.differences(&expected, &families, ExpectedNextHop::AsListed);
    assert_eq!(found.counts, [50, 50, 0]);
    assert_eq!(found.missing[0].prefix.to_string(), "10.0.100.0/24");
    assert_eq!(found.unexpected[19].prefix.to_string(), "10.0.19.0/24");
    let other = ExpectedNextHop::Itself("192.0.2.2".parse().unwrap());
    assert_eq!(received.differences(&sent, &families, other).counts, [0, 0, 100]);
    assert_eq!(received.next_hops(), [("192.0.2.1".parse().unwrap(), 100)].into());
}
