//! A session byte by byte, with the message formats of RFC 5036 sections 3.4 and 3.5.

use super::*;

/// Encodes messages as a PDU of a router.
fn framed(number: u8, messages: &[&[u8]]) -> Vec<u8> {
    let messages = messages.concat();
    let length = (messages.len() + 6) as u16;
    [&[0, 1][..], &length.to_be_bytes(), &[10, 0, 0, number, 0, 0], &messages].concat()
}

#[test]
fn a_session_from_the_first_hello_to_the_shutdown() {
    let mut speaker = LdpSpeaker::new(LdpConfig::new(router(2), router(2)));
    let now = Instant::ZERO;
    speaker.add_interface(now, 4);
    speaker.set_addresses([Ipv4Addr::new(192, 0, 2, 2).into()]);
    speaker.bind(prefix("10.0.0.2/32"), EGRESS).unwrap();
    speaker.bind(prefix("198.51.100.0/25"), transit(0x12345, 3)).unwrap();
    speaker.handle_timeout(now);
    // Hello: 15 seconds, link, transport address 10.0.0.2.
    let hello = framed(2, &[&[1, 0, 0, 20, 0, 0, 0, 1, 4, 0, 0, 4, 0, 15, 0, 0, 4, 1, 0, 4, 10, 0, 0, 2]]);
    let scope = Scope::Link(4);
    assert_eq!(speaker.poll_transmit(now), Some(LdpAction::Discovery { scope, bytes: hello }));
    assert_eq!(speaker.poll_transmit(now), None);

    // Hello of router 3: 45 seconds, with a configuration sequence number.
    let hello =
        [1, 0, 0, 28, 0, 0, 0, 9, 4, 0, 0, 4, 0, 45, 0, 0, 4, 1, 0, 4, 10, 0, 0, 3, 4, 2, 0, 4, 0, 0, 0, 1];
    speaker.handle_hello(now, 4, Ipv4Addr::new(192, 0, 2, 3), &framed(3, &[&hello]));
    assert!(matches!(speaker.poll_transmit(now), Some(LdpAction::Discovery { .. })));
    // Router 3 has the higher address and opens the connection.
    assert_eq!(speaker.poll_transmit(now), None);
    speaker.handle_accepted(now, CONNECTION, router(3));

    // Initialization: version 1, 60 seconds, unsolicited, no loop detection, 4096 bytes, for 10.0.0.2:0.
    let session = [5, 0, 0, 14, 0, 1, 0, 60, 0, 0, 0x10, 0, 10, 0, 0, 2, 0, 0];
    let initialization = [&[2, 0, 0, 22, 0, 0, 0, 10][..], &session].concat();
    speaker.handle_bytes(now, CONNECTION, &framed(3, &[&initialization]));
    let next = |speaker: &mut LdpSpeaker| match speaker.poll_transmit(now) {
        Some(LdpAction::Stream { connection: CONNECTION, bytes }) => bytes,
        other => panic!("{other:?}"),
    };
    let session = [5, 0, 0, 14, 0, 1, 0, 180, 0, 0, 0x10, 0, 10, 0, 0, 3, 0, 0];
    let initialization = [&[2, 0, 0, 22, 0, 0, 0, 3][..], &session].concat();
    assert_eq!(next(&mut speaker), framed(2, &[&initialization]));
    assert_eq!(next(&mut speaker), framed(2, &[&[2, 1, 0, 4, 0, 0, 0, 4]]));

    // The keepalive completes the session. Router 3 advertises its address and a label for 10.0.0.3/32.
    let keepalive = [2, 1, 0, 4, 0, 0, 0, 11];
    let addresses = [3, 0, 0, 14, 0, 0, 0, 12, 1, 1, 0, 6, 0, 1, 192, 0, 2, 3];
    let mapping =
        [&[4, 0, 0, 24, 0, 0, 0, 13][..], &[1, 0, 0, 8, 2, 0, 1, 32, 10, 0, 0, 3], &[2, 0, 0, 4, 0, 0, 0, 3]]
            .concat();
    speaker.handle_bytes(now, CONNECTION, &framed(3, &[&keepalive]));
    speaker.handle_bytes(now, CONNECTION, &framed(3, &[&addresses, &mapping]));
    let fec = prefix("10.0.0.3/32");
    let events: Vec<LdpEvent> = core::iter::from_fn(|| speaker.poll_event()).collect();
    let (peer, label) = (identifier(3), LabelValue::IMPLICIT_NULL);
    let address = Ipv4Addr::new(192, 0, 2, 3).into();
    let expected = [
        LdpEvent::Up { peer },
        LdpEvent::Address { peer, address, is_advertised: true },
        LdpEvent::Mapping { peer, fec, label },
    ];
    assert_eq!(events, expected);

    // This router advertises everything in one PDU: an address, implicit null, a label.
    let addresses = [3, 0, 0, 14, 0, 0, 0, 5, 1, 1, 0, 6, 0, 1, 192, 0, 2, 2];
    let egress = [4, 0, 0, 24, 0, 0, 0, 6, 1, 0, 0, 8, 2, 0, 1, 32, 10, 0, 0, 2, 2, 0, 0, 4, 0, 0, 0, 3];
    let transit =
        [4, 0, 0, 24, 0, 0, 0, 7, 1, 0, 0, 8, 2, 0, 1, 25, 198, 51, 100, 0, 2, 0, 0, 4, 0, 1, 0x23, 0x45];
    assert_eq!(next(&mut speaker), framed(2, &[&addresses, &egress, &transit]));

    // A withdrawal of the label is answered by a release.
    let removal = [1, 0, 0, 8, 2, 0, 1, 32, 10, 0, 0, 3, 2, 0, 0, 4, 0, 0, 0, 3];
    let withdraw = [&[4, 2, 0, 24, 0, 0, 0, 14][..], &removal].concat();
    speaker.handle_bytes(now, CONNECTION, &framed(3, &[&withdraw]));
    assert_eq!(next(&mut speaker), framed(2, &[&[&[4, 3, 0, 24, 0, 0, 0, 8][..], &removal].concat()]));

    // Three keepalives per 60 seconds, the lower keepalive time of both ends.
    let later = now + Duration::from_secs(20);
    assert_eq!(speaker.poll_timeout(), now + Duration::from_secs(5));
    speaker.handle_hello(later, 4, router(3), &framed(3, &[&hello]));
    speaker.handle_timeout(later);
    let sent: Vec<LdpAction> = core::iter::from_fn(|| speaker.poll_transmit(later)).collect();
    let keepalive = framed(2, &[&[2, 1, 0, 4, 0, 0, 0, 10]]);
    assert!(sent.contains(&LdpAction::Stream { connection: CONNECTION, bytes: keepalive }), "{sent:?}");

    // Shutdown: a fatal status that refers to no message.
    speaker.shut_down(later);
    let status = [3, 0, 0, 10, 0x80, 0, 0, 0x0a, 0, 0, 0, 0, 0, 0];
    let shutdown = framed(2, &[&[&[0, 1, 0, 18, 0, 0, 0, 11][..], &status].concat()]);
    let sent: Vec<LdpAction> = core::iter::from_fn(|| speaker.poll_transmit(later)).collect();
    let last = [
        LdpAction::Stream { connection: CONNECTION, bytes: shutdown },
        LdpAction::Close { connection: CONNECTION },
    ];
    assert_eq!(sent, last);
    assert_eq!(speaker.poll_timeout(), Instant::NEVER);
}
