//! RSVP messages against bytes written by hand from the RFCs, round trips, and malformed bytes.

use super::message::RsvpMessage;
use super::object::*;
use super::route::{Route, RouteHop};
use super::write::{DIGEST_OFFSET, RsvpWriter, insert_integrity};
use super::*;
use crate::mpls::LabelValue;
use core::net::Ipv4Addr;
use proptest::prelude::*;
use std::vec::Vec;

const INGRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const EGRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SESSION: Session = Session { endpoint: EGRESS, tunnel: 7, extended: 0x0a00_0001 };
const SENDER: Sender = Sender { address: INGRESS, lsp: 9 };
const HOP_OBJECT: Object<'_> = Object::Hop(Hop { address: INGRESS, interface: 5 });
const BUCKET: TokenBucket =
    TokenBucket { rate: 1000.0, size: 1000.0, peak: f32::INFINITY, min_policed: 64, max_packet: 1500 };

fn written(kind: u8, objects: &[Object<'_>]) -> Vec<u8> {
    let mut bytes = [0; 1500];
    let mut writer = RsvpWriter::new(&mut bytes, kind, REFRESH_REDUCTION, 63).unwrap();
    objects.iter().for_each(|object| writer.object(object).unwrap());
    writer.finish().to_vec()
}

fn path() -> Vec<u8> {
    written(
        kind::PATH,
        &[
            Object::Session(SESSION),
            HOP_OBJECT,
            Object::TimeValues(30_000),
            Object::LabelRequest(0x800),
            Object::SenderTemplate(SENDER),
            Object::SenderTspec(BUCKET),
        ],
    )
}

fn parse(bytes: &[u8]) -> Result<RsvpMessage<'_>, RsvpError> {
    RsvpMessage::new(&RsvpPacket::new(bytes)?)
}

#[test]
fn a_path_message_has_the_layout_of_the_rfcs() {
    let mut bytes = path();
    assert_eq!(crate::checksum::checksum(&bytes), 0);
    bytes[2..4].fill(0);
    let expected = [
        &[0x11, 1, 0, 0, 63, 0, 0, 100][..],
        &[0, 16, 1, 7, 10, 0, 0, 2, 0, 0, 0, 7, 10, 0, 0, 1],
        &[0, 12, 3, 1, 10, 0, 0, 1, 0, 0, 0, 5],
        &[0, 8, 5, 1, 0, 0, 0x75, 0x30],
        &[0, 8, 19, 1, 0, 0, 8, 0],
        &[0, 12, 11, 7, 10, 0, 0, 1, 0, 0, 0, 9],
        &[0, 36, 12, 2, 0, 0, 0, 7, 1, 0, 0, 6, 127, 0, 0, 5],
        &[0x44, 0x7a, 0, 0, 0x44, 0x7a, 0, 0, 0x7f, 0x80, 0, 0, 0, 0, 0, 64, 0, 0, 5, 0xdc],
    ];
    assert_eq!(bytes, expected.concat());
}

#[test]
fn each_error_is_named() {
    // Offsets: session 8, hop 24, time 36, label request 44, sender 52, traffic 64.
    for (at, value, expected) in [
        (0, 0x21, RsvpError::Version(2)),
        (7, 98, RsvpError::Length),
        (7, 104, RsvpError::Short),
        (9, 0xf0, RsvpError::ObjectLength),
        (9, 13, RsvpError::ObjectLength),
        (10, 2, RsvpError::UnknownClass(2, 7)),
        (11, 1, RsvpError::UnknownType(1, 1)),
        (10, 0x82, RsvpError::Missing(class::SESSION)),
        (38, 0xc2, RsvpError::Missing(class::TIME_VALUES)),
        (46, 0xc2, RsvpError::Missing(class::LABEL_REQUEST)),
        (72, 5, RsvpError::Malformed(class::SENDER_TSPEC)),
        (80, 0xc4, RsvpError::Malformed(class::SENDER_TSPEC)),
        (1, 99, RsvpError::Kind(99)),
    ] {
        let mut bytes = path();
        bytes[2..4].fill(0);
        bytes[at] = value;
        assert_eq!(parse(&bytes).unwrap_err(), expected, "{at}");
    }
    let mut bytes = path();
    bytes[40] ^= 1;
    assert_eq!(parse(&bytes).unwrap_err(), RsvpError::Checksum);
    assert_eq!(RsvpError::UnknownClass(2, 7).report(), Some((13, 0x207)));
    assert_eq!(RsvpError::UnknownType(1, 1).report(), Some((14, 0x101)));
    assert_eq!(RsvpError::Short.report(), None);
}

#[test]
fn senders_of_a_shared_reservation_have_their_labels() {
    let label = |number| LabelValue::new(number).unwrap();
    let hops = RouteHop::strict(EGRESS).to_bytes().unwrap();
    let route = Route::new(&hops, class::RECORD_ROUTE).unwrap();
    let second = Sender { lsp: 10, ..SENDER };
    let head = [Object::Session(SESSION), HOP_OBJECT, Object::TimeValues(1)];
    let style = [Object::Style(Style::SharedExplicit), Object::Flowspec(BUCKET)];
    let flows = [
        Object::FilterSpec(SENDER),
        Object::Label(label(300)),
        Object::RecordRoute(route),
        Object::FilterSpec(second),
        Object::Label(label(301)),
    ];
    let bytes = written(kind::RESV, &[&head[..], &style, &flows].concat());
    let message = parse(&bytes).unwrap();
    let found: Vec<_> =
        message.flows().map(|flow| (flow.sender.lsp, flow.label, flow.record_route.is_some())).collect();
    assert_eq!(found, [(9, Some(label(300)), true), (10, Some(label(301)), false)]);
    assert_eq!(route.hops().collect::<Vec<_>>(), [RouteHop::strict(EGRESS)]);
    for (count, expected) in [
        (0, RsvpError::Missing(class::FILTER_SPEC)),
        (1, RsvpError::Missing(class::LABEL)),
        (4, RsvpError::Missing(class::LABEL)),
    ] {
        let bytes = written(kind::RESV, &[&head[..], &style, &flows[..count]].concat());
        assert_eq!(parse(&bytes).unwrap_err(), expected);
    }
    let bytes = written(kind::RESV, &[&head[..], &style, &flows[1..2], &flows[..1]].concat());
    assert_eq!(parse(&bytes).unwrap_err(), RsvpError::Malformed(class::LABEL));
    // A flowspec between a sender and its label would separate them.
    let separated = [&head[..], &style, &flows[..1], &style[1..], &flows[1..2]].concat();
    assert_eq!(parse(&written(kind::RESV, &separated)).unwrap_err(), RsvpError::Malformed(class::FLOWSPEC));
    let bytes = written(kind::RESV, &[&head[..], &style[..1], &flows].concat());
    assert_eq!(parse(&bytes).unwrap_err(), RsvpError::Malformed(class::FILTER_SPEC));
}

#[test]
fn a_bundle_contains_messages() {
    let hello = Object::Hello(Hello { is_request: true, source: 1, destination: 2 });
    let inner = [path(), written(kind::HELLO, &[hello])];
    let mut bundle = [&[0x10, kind::BUNDLE, 0, 0, 1, 0, 0, 0][..], &inner.concat()].concat();
    let length = bundle.len() as u16;
    bundle[6..8].copy_from_slice(&length.to_be_bytes());
    let kinds = |bytes: &[u8]| -> Vec<_> {
        RsvpPacket::new(bytes).unwrap().messages().map(|found| found.map(|packet| packet.kind)).collect()
    };
    assert_eq!(kinds(&bundle), [Ok(kind::PATH), Ok(kind::HELLO)]);
    assert_eq!(kinds(&inner[1]), [Ok(kind::HELLO)]);
    bundle[9] = kind::BUNDLE;
    bundle[10..12].fill(0);
    assert_eq!(kinds(&bundle), [Err(RsvpError::Kind(kind::BUNDLE))]);
}

#[test]
fn integrity_precedes_the_other_objects() {
    let message = path();
    let mut bytes = [0; 200];
    bytes[..message.len()].copy_from_slice(&message);
    let integrity = Integrity { flags: 0, key: 0x0102_0304_0506, sequence: 77, digest: [0; DIGEST] };
    let length = insert_integrity(&mut bytes, message.len(), &integrity).unwrap();
    bytes[DIGEST_OFFSET..][..DIGEST].fill(0xab);
    let parsed = parse(&bytes[..length]).unwrap();
    assert_eq!(parsed.integrity, Some(Integrity { digest: [0xab; DIGEST], ..integrity }));
    assert_eq!((parsed.session, parsed.sender), (Some(SESSION), Some(SENDER)));
    assert!(insert_integrity(&mut [0; 120], 100, &integrity).is_err());
}

fn objects() -> impl Strategy<Value = (u8, u8, Vec<u8>)> {
    let known = prop::sample::select(std::vec![
        (1, 7, 12),
        (3, 1, 8),
        (4, 1, 32),
        (5, 1, 4),
        (6, 1, 8),
        (10, 7, 8),
        (11, 7, 8),
        (13, 2, 44),
        (15, 1, 4),
        (16, 1, 4),
        (19, 1, 4),
        (22, 1, 8),
        (22, 2, 8),
        (23, 1, 8),
        (24, 1, 8),
        (24, 2, 8),
        (25, 1, 16),
        (63, 7, 16),
        (64, 1, 24),
        (205, 1, 20),
        (207, 7, 12),
        (207, 1, 24),
        (20, 1, 16),
        (21, 1, 16),
    ]);
    known.prop_flat_map(|(class, c_type, length)| {
        (Just(class), Just(c_type), prop::collection::vec(any::<u8>(), length))
    })
}

proptest! {
    #[test]
    fn objects_round_trip((class, c_type, value) in objects()) {
        let Ok(object) = Object::new(&RawObject { class, c_type, value: &value }) else { return Ok(()) };
        let bytes = written(kind::ACK, &[object]);
        let raw = RsvpPacket::new(&bytes).unwrap().objects().next().unwrap().unwrap();
        prop_assert_eq!((raw.class, raw.c_type), (class, c_type));
        prop_assert_eq!(Object::new(&raw), Ok(object));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 8..160),
        parts in prop::collection::vec(objects(), 0..6),
    ) {
        for (class, c_type, value) in parts {
            bytes.extend([0, 4 + value.len() as u8, class, c_type]);
            bytes.extend(value);
        }
        let start = bytes.len() % 4;
        let message = &mut bytes[start..];
        let length = message.len() as u16;
        message[0] = 0x10;
        message[2..4].fill(0);
        message[6..8].copy_from_slice(&length.to_be_bytes());
        for packet in RsvpPacket::new(message).unwrap().messages().flatten() {
            if let Ok(message) = RsvpMessage::new(&packet) {
                prop_assert!(message.kind != kind::RESV || message.flows().all(|flow| flow.label.is_some()));
                prop_assert!(message.forwarded().all(|raw| raw.class >= 0xc0));
            }
        }
    }
}
