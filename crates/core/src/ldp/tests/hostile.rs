//! Input from a faulty or malicious peer: nothing panics, memory is bounded, and errors end the session with
//! the status of RFC 5036 section 3.5.1.

use super::*;
use netstage_wire::ldp::message::{Hello, Notification, tlv};
use netstage_wire::ldp::write::OutgoingMapping;
use proptest::prelude::*;

/// Generates messages of a session.
fn outgoing() -> impl Strategy<Value = Outgoing<'static>> {
    const ADDRESSES: &[IpAddr] =
        &[IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9))];
    const PATH: &[Ipv4Addr] = &[Ipv4Addr::new(10, 0, 0, 7), Ipv4Addr::new(10, 0, 0, 2)];
    let fec = (0..4_u8, any::<bool>()).prop_map(|(net, is_long)| {
        Fec::prefix(Ipv4Addr::new(10, net, 0, 0).into(), if is_long { 32 } else { 16 }).unwrap()
    });
    let removed = prop_oneof![3 => fec.clone(), 1 => Just(Fec::Wildcard)];
    let optional = prop::option::of(prop_oneof![Just(3), 16..20_u32].prop_map(label));
    let mapping = (fec.clone(), prop_oneof![Just(3), 16..20_u32], prop::option::of(0..40_u8), 0..=2_usize);
    prop_oneof![
        4 => mapping.prop_map(|(fec, number, hops, path)| {
            let path = &PATH[..path];
            Outgoing::LabelMapping(OutgoingMapping { hops, path, ..OutgoingMapping::new(fec, label(number)) })
        }),
        2 => (removed.clone(), optional.clone()).prop_map(|(fec, label)| Outgoing::LabelWithdraw(fec, label)),
        2 => (removed, optional).prop_map(|(fec, label)| Outgoing::LabelRelease(fec, label)),
        1 => fec.clone().prop_map(Outgoing::LabelRequest),
        1 => (fec, 0..9_u32).prop_map(|(fec, id)| Outgoing::LabelAbortRequest(fec, id)),
        1 => (0..=2_usize).prop_map(|count| Outgoing::Address(&ADDRESSES[..count])),
        1 => (0..=2_usize).prop_map(|count| Outgoing::AddressWithdraw(&ADDRESSES[..count])),
        1 => Just(Outgoing::KeepAlive),
    ]
}

/// Creates a speaker with bindings and with an accepted connection that has carried no bytes.
fn prepared(loop_detection: Option<u8>, control: LabelControl) -> SpeakerTest {
    let mut test = SpeakerTest::new(|config| {
        config.max_bindings = 5;
        config.loop_detection = loop_detection;
        config.control = control;
    });
    for net in 0..4_u8 {
        let fec = Fec::prefix(Ipv4Addr::new(10, net, 0, 0).into(), 16).unwrap();
        test.speaker.bind(fec, transit(100 + u32::from(net), if net < 2 { PEER } else { 9 })).unwrap();
    }
    test.speaker.set_addresses([address(2)]);
    test.hello(PEER, 15);
    test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
    test
}

/// Passes a stream in pieces to the speaker; returns its replies and events.
fn feed(test: &mut SpeakerTest, stream: &[u8], pieces: &[usize]) -> (Vec<String>, Vec<LdpEvent>) {
    let mut rest = stream;
    for piece in pieces.iter().cycle() {
        let (head, tail) = rest.split_at((*piece).clamp(1, rest.len().max(1)).min(rest.len()));
        test.speaker.handle_bytes(test.now, CONNECTION, head);
        rest = tail;
        for session in test.speaker.sessions.values() {
            assert!(session.input.len() < MAX_PDU_LENGTH);
            assert!(session.upstream.requests.len() <= 4);
        }
        assert!(test.speaker.mappings_of(identifier(PEER)).count() <= 5);
        if rest.is_empty() {
            break;
        }
    }
    // Polled at the end, the replies do not depend on the pieces.
    let replies = test.replies();
    (replies, test.events())
}

/// Checks the invariants of a speaker's replies and events.
fn check(test: &mut SpeakerTest, (replies, events): &(Vec<String>, Vec<LdpEvent>)) {
    let ends = events.iter().filter_map(|event| match event {
        LdpEvent::Down { reason: why, .. } | LdpEvent::SetupFailed { reason: why, .. } => Some(*why),
        _ => None,
    });
    let ends: Vec<LdpSessionEnd> = ends.collect();
    assert!(ends.len() <= 1, "{ends:?}");
    let closes = replies.iter().filter(|reply| *reply == "close").count();
    match ends.first() {
        Some(LdpSessionEnd::Sent(status)) => {
            let notification = format!("notify {:#x} ", status.0);
            let has_notified = replies.iter().any(|reply| reply.starts_with(&notification));
            assert!(closes == 1 && has_notified, "{replies:?}");
        }
        Some(_) => assert_eq!(closes, 1),
        None => assert!(closes <= 1),
    }
    // Each label is reported free exactly once, when it has no holder.
    test.speaker.handle_closed(test.now, CONNECTION);
    for net in 0..4_u8 {
        test.speaker.unbind(Fec::prefix(Ipv4Addr::new(10, net, 0, 0).into(), 16).unwrap());
    }
    let events = test.events();
    let mut free: Vec<u32> = events
        .iter()
        .filter_map(|event| match event {
            LdpEvent::Free { label } => Some(label.number()),
            _ => None,
        })
        .collect();
    free.sort();
    assert_eq!(free, [100, 101, 102, 103]);
    assert!(test.speaker.sessions.is_empty());
}

fn stream(is_up: bool, pdus: &[Vec<Outgoing<'_>>]) -> Vec<u8> {
    let mut stream = Vec::new();
    if is_up {
        stream.extend(pdu(
            PEER,
            &[Outgoing::Initialization(SpeakerTest::initialization()), Outgoing::KeepAlive],
        ));
    }
    for messages in pdus {
        stream.extend(pdu(PEER, messages));
    }
    stream
}

proptest! {
    #[test]
    fn random_bytes_keep_the_invariants(
        is_up in any::<bool>(),
        random in prop::collection::vec(any::<u8>(), 0..300),
        pieces in prop::collection::vec(1..50_usize, 1..5),
    ) {
        let mut test = prepared(None, LabelControl::Independent);
        let mut bytes = stream(is_up, &[]);
        bytes.extend(random);
        let result = feed(&mut test, &bytes, &pieces);
        check(&mut test, &result);
    }

    #[test]
    fn damaged_streams_keep_the_invariants(
        is_up in prop::bool::weighted(0.9),
        pdus in prop::collection::vec(prop::collection::vec(outgoing(), 1..6), 0..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        pieces in prop::collection::vec(1..200_usize, 1..5),
        loop_detection in prop::option::of(1..40_u8),
        is_ordered in any::<bool>(),
    ) {
        let control = if is_ordered { LabelControl::Ordered } else { LabelControl::Independent };
        let mut bytes = stream(is_up, &pdus);
        for (index, value) in damage {
            if !bytes.is_empty() {
                let offset = index.index(bytes.len());
                bytes[offset] = value;
            }
        }
        let mut test = prepared(loop_detection, control);
        let result = feed(&mut test, &bytes, &pieces);
        check(&mut test, &result);
        // The result does not depend on the division into pieces.
        let mut undivided = prepared(loop_detection, control);
        prop_assert_eq!(feed(&mut undivided, &bytes, &[usize::MAX]), result);
    }

    #[test]
    fn arbitrary_hellos_leave_no_state(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..5),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        source in any::<u32>(),
    ) {
        let mut test = SpeakerTest::new(|_| ());
        let hello = Hello {
            hold_seconds: 15,
            is_targeted: false,
            requests_targeted: false,
            transport: Some(router(PEER).into()),
            configuration: Some(1),
        };
        let mut valid = pdu(PEER, &[Outgoing::Hello(hello)]);
        for (index, value) in damage {
            let offset = index.index(valid.len());
            valid[offset] = value;
        }
        for datagram in datagrams.iter().chain([&valid]) {
            test.speaker.handle_hello(test.now, 0, source.into(), datagram);
        }
        test.replies();
        for _ in 0..20 {
            test.advance(1);
            test.replies();
        }
        prop_assert!(test.speaker.peers.is_empty() && test.speaker.adjacencies.is_empty());
    }
}

#[test]
fn the_number_of_adjacencies_is_limited() {
    let mut test = SpeakerTest::new(|_| ());
    for number in 1..3000_u32 {
        let peer = Identifier { router: Ipv4Addr::from(0xc000_0000 + number), space: 0 };
        let hello = Hello {
            hold_seconds: 15,
            is_targeted: false,
            requests_targeted: false,
            transport: None,
            configuration: None,
        };
        let mut bytes = [0; 64];
        let mut writer = Writer::new(&mut bytes, peer).unwrap();
        writer.message(1, &Outgoing::Hello(hello)).unwrap();
        test.speaker.handle_hello(test.now, 0, peer.router, writer.bytes());
    }
    assert_eq!((test.speaker.adjacencies.len(), test.speaker.peers.len()), (1024, 1024));
}

#[test]
fn errors_are_reported_with_the_status_of_section_3_5_1() {
    let mapping = || {
        let mapping = OutgoingMapping::new(prefix("10.0.0.0/8"), label(99));
        pdu(PEER, &[Outgoing::LabelMapping(mapping), Outgoing::KeepAlive])
    };
    // The PDU header has 10 bytes and the message header 8; the FEC TLV starts at 18, the label TLV at 27.
    let at = |offset: usize, value: u8| {
        let mut bytes = mapping();
        bytes[offset] = value;
        bytes
    };
    for (bytes, status) in [
        (at(1, 2), LdpStatus::BAD_VERSION),
        (at(2, 0x20), LdpStatus::BAD_PDU_LENGTH),
        (at(3, 4), LdpStatus::BAD_PDU_LENGTH),
        (at(7, 9), LdpStatus::BAD_IDENTIFIER),
        (at(9, 1), LdpStatus::BAD_IDENTIFIER),
        (at(12, 1), LdpStatus::BAD_MESSAGE_LENGTH),
        (at(21, 0xff), LdpStatus::BAD_TLV_LENGTH),
        (at(25, 33), LdpStatus::MALFORMED_TLV),
        (at(32, 0xff), LdpStatus::MALFORMED_TLV),
        // A reserved label.
        (
            {
                let mut bytes = mapping();
                bytes[31..35].copy_from_slice(&[0, 0, 0, 13]);
                bytes
            },
            LdpStatus::MALFORMED_TLV,
        ),
        (pdu(PEER, &[Outgoing::Initialization(SpeakerTest::initialization())]), LdpStatus::SHUTDOWN),
    ] {
        let mut test = SpeakerTest::up(|_| ());
        test.speaker.handle_bytes(test.now, CONNECTION, &bytes);
        let reason = LdpSessionEnd::Sent(status);
        assert_eq!(test.events(), [LdpEvent::Down { peer: identifier(PEER), reason }]);
        assert_eq!(test.replies().last().unwrap(), "close");
        // Later bytes are ignored.
        test.speaker.handle_bytes(test.now, CONNECTION, &mapping());
        assert_eq!((test.replies().len(), test.events().len()), (0, 0));
    }
    for (bytes, status) in [
        (at(11, 0x99), LdpStatus::UNKNOWN_MESSAGE),
        (at(28, 0x99), LdpStatus::UNKNOWN_TLV),
        (at(22, 0x99), LdpStatus::UNKNOWN_FEC),
        (at(24, 0x99), LdpStatus::UNSUPPORTED_FAMILY),
        (at(28, 1), LdpStatus::UNKNOWN_TLV),
    ] {
        let mut test = SpeakerTest::up(|_| ());
        test.speaker.handle_bytes(test.now, CONNECTION, &bytes);
        assert_eq!(test.replies(), [format!("notify {:#x} 1 None", status.0)]);
        assert_eq!(test.events(), []);
    }
    // Unknown messages and TLVs with the U bit are ignored, but not the rest of the PDU.
    for offset in [10, 27] {
        let mut bytes = mapping();
        bytes[offset] |= 0x80;
        bytes[offset + 1] = 0x77;
        let mut test = SpeakerTest::up(|_| ());
        test.speaker.handle_bytes(test.now, CONNECTION, &bytes);
        let without_label = format!("notify {:#x} 1 None", LdpStatus::MISSING_PARAMETERS.0);
        let replies = if offset == 27 { Vec::from([without_label]) } else { Vec::new() };
        assert_eq!((test.replies(), test.events()), (replies, Vec::new()));
    }
    // An invalid notification is not answered.
    let mut test = SpeakerTest::up(|_| ());
    let status = LdpStatus::NO_ROUTE;
    let notification = Notification { status, message_id: 0, message_kind: 0, request_id: None };
    let mut bytes = pdu(PEER, &[Outgoing::Notification(notification)]);
    bytes[18..20].copy_from_slice(&tlv::REQUEST_ID.to_be_bytes());
    test.speaker.handle_bytes(test.now, CONNECTION, &bytes);
    assert_eq!((test.replies().len(), test.events().len()), (0, 0));
    test.receive(&[Outgoing::Notification(notification)]);
    assert_eq!(test.events(), [LdpEvent::Notified { peer: identifier(PEER), status }]);
}

#[test]
fn unknown_capabilities_are_ignored() {
    // An initialization with a capability (RFC 5561) and the U bit.
    let mut bytes = pdu(PEER, &[Outgoing::Initialization(SpeakerTest::initialization())]);
    bytes.extend([0x85, 0x06, 0, 1, 0x80]);
    let (pdu_length, message_length) = (bytes.len() - 4, bytes.len() - 14);
    bytes[2..4].copy_from_slice(&(pdu_length as u16).to_be_bytes());
    bytes[12..14].copy_from_slice(&(message_length as u16).to_be_bytes());
    let mut test = SpeakerTest::new(|_| ());
    test.hello(PEER, 15);
    test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
    test.speaker.handle_bytes(test.now, CONNECTION, &bytes);
    assert_eq!(test.replies(), ["initialization", "keepalive"]);
}
