//! LDP messages against bytes written by hand from the RFC, round trips, and malformed bytes.

use super::message::{Fec, FtSession, Hello, Initialization, LdpMessage, Notification, tlv};
use super::write::{Outgoing, OutgoingMapping, PduFull, Writer};
use super::*;
use crate::mpls::LabelValue;
use core::net::{IpAddr, Ipv6Addr};
use proptest::prelude::*;
use std::vec::Vec;
use std::{format, vec};

const SENDER: Identifier = Identifier { router: Ipv4Addr::new(10, 0, 0, 1), space: 0 };

fn written(messages: &[Outgoing<'_>]) -> Vec<u8> {
    let mut bytes = [0; MAX_PDU_LENGTH];
    let mut writer = Writer::new(&mut bytes, SENDER).unwrap();
    for (number, message) in messages.iter().enumerate() {
        writer.message(number as u32 + 1, message).unwrap();
    }
    writer.bytes().to_vec()
}

fn prefix(text: &str) -> Fec {
    let (address, length) = text.split_once('/').unwrap();
    Fec::Prefix { address: address.parse().unwrap(), length: length.parse().unwrap() }
}

/// Contents of a PDU as text that can be compared.
fn read(bytes: &[u8]) -> Result<Vec<std::string::String>, LdpStatus> {
    let pdu = Pdu::new(bytes, MAX_PDU_LENGTH)?;
    assert_eq!(pdu.sender, SENDER);
    let mut parsed = Vec::new();
    for raw in pdu.messages() {
        let raw = raw?;
        parsed.push(match LdpMessage::new(&raw)? {
            Some(LdpMessage::LabelMapping(m)) => {
                format!(
                    "{} map {:?} {:?} {:?} {:?} {:?}",
                    raw.id,
                    m.fecs.iter().collect::<Vec<_>>(),
                    m.label,
                    m.request_id,
                    m.hops,
                    m.path.iter().collect::<Vec<_>>()
                )
            }
            Some(LdpMessage::LabelWithdraw(m)) => {
                format!("{} withdraw {:?} {:?}", raw.id, m.fecs.iter().collect::<Vec<_>>(), m.label)
            }
            Some(LdpMessage::Address(list)) => {
                format!("{} addresses {:?}", raw.id, list.iter().collect::<Vec<_>>())
            }
            other => format!("{} {other:?}", raw.id),
        });
    }
    Ok(parsed)
}

#[test]
fn a_mapping_has_the_layout_of_the_rfc() {
    let label = LabelValue::new(0x12345).unwrap();
    let bytes = written(&[Outgoing::LabelMapping(OutgoingMapping::new(prefix("192.0.2.128/25"), label))]);
    let expected = [
        &[0, 1, 0, 34, 10, 0, 0, 1, 0, 0][..],
        &[4, 0, 0, 24, 0, 0, 0, 1],
        &[1, 0, 0, 8, 2, 0, 1, 25, 192, 0, 2, 128],
        &[2, 0, 0, 4, 0, 1, 0x23, 0x45],
    ];
    assert_eq!(bytes, expected.concat());
    assert_eq!(read(&bytes).unwrap().len(), 1);
}

#[test]
fn messages_round_trip() {
    let label = LabelValue::new(17).unwrap();
    let hello = Hello {
        hold_seconds: 15,
        is_targeted: true,
        requests_targeted: false,
        transport: Some(SENDER.router.into()),
        configuration: Some(9),
    };
    let initialization = Initialization {
        keepalive_seconds: 180,
        on_demand: false,
        detects_loops: true,
        path_limit: 32,
        max_pdu_length: 4096,
        receiver: Identifier { router: Ipv4Addr::new(10, 0, 0, 2), space: 3 },
        ft_session: None,
    };
    let notification =
        Notification { status: LdpStatus::SHUTDOWN, message_id: 5, message_kind: 0x400, request_id: None };
    let addresses: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.1.1".parse().unwrap()];
    let routers = [Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 8)];
    let six: [IpAddr; 1] = [Ipv6Addr::LOCALHOST.into()];
    let parsed = read(&written(&[
        Outgoing::Hello(hello),
        Outgoing::Initialization(initialization),
        Outgoing::KeepAlive,
        Outgoing::Notification(notification),
        Outgoing::Address(&addresses),
        Outgoing::Address(&six),
        Outgoing::LabelMapping(OutgoingMapping {
            request_id: Some(77),
            hops: Some(3),
            path: &routers,
            ..OutgoingMapping::new(prefix("0.0.0.0/0"), label)
        }),
        Outgoing::LabelWithdraw(Fec::Wildcard, None),
        Outgoing::LabelWithdraw(prefix("2001:db8::/33"), Some(label)),
        Outgoing::LabelRequest(prefix("10.0.0.1/32")),
        Outgoing::LabelAbortRequest(prefix("10.0.0.1/32"), 10),
        Outgoing::Notification(Notification {
            status: LdpStatus::REQUEST_ABORTED,
            request_id: Some(10),
            ..notification
        }),
    ]))
    .unwrap();
    assert_eq!(parsed[0], format!("1 {:?}", Some(LdpMessage::Hello(hello))));
    assert_eq!(parsed[1], format!("2 {:?}", Some(LdpMessage::Initialization(initialization))));
    assert_eq!(parsed[3], format!("4 {:?}", Some(LdpMessage::Notification(notification))));
    assert_eq!(parsed[4], format!("5 addresses {addresses:?}"));
    assert_eq!(parsed[5], format!("6 addresses {six:?}"));
    assert_eq!(
        parsed[6],
        format!("7 map {:?} {label:?} Some(77) Some(3) {routers:?}", [prefix("0.0.0.0/0")])
    );
    assert_eq!(parsed[7], "8 withdraw [Wildcard] None");
    assert_eq!(parsed[8], format!("9 withdraw {:?} {:?}", [prefix("2001:db8::/33")], Some(label)));
    assert!(parsed[2] == "3 Some(KeepAlive)" && parsed[9].starts_with("10 Some(LabelRequest("));
    assert!(parsed[10].starts_with("11 Some(LabelAbortRequest(") && parsed[10].contains("request_id: 10"));
    assert!(parsed[11].contains("Status(21)") && parsed[11].contains("request_id: Some(10)"));
    assert!(LdpStatus::SHUTDOWN.is_fatal() && !LdpStatus::NO_ROUTE.is_fatal());
}

#[test]
fn the_ft_session_tlv_has_the_layout_of_the_rfc() {
    let restart =
        FtSession { learns_from_network: true, reconnect_timeout_ms: 0x0001_d4c0, recovery_time_ms: 0xea60 };
    let initialization = Initialization {
        keepalive_seconds: 30,
        on_demand: false,
        detects_loops: false,
        path_limit: 0,
        max_pdu_length: 4096,
        receiver: Identifier { router: Ipv4Addr::new(10, 0, 0, 2), space: 0 },
        ft_session: Some(restart),
    };
    let bytes = written(&[Outgoing::Initialization(initialization)]);
    // The U bit is set, so that routers without graceful restart ignore the TLV.
    let expected = [0x85, 3, 0, 12, 0, 1, 0, 0, 0, 1, 0xd4, 0xc0, 0, 0, 0xea, 0x60];
    assert_eq!(bytes[36..], expected);
    assert_eq!(read(&bytes).unwrap(), [format!("1 {:?}", Some(LdpMessage::Initialization(initialization)))]);
    // Flags of RFC 3479 are ignored, and a TLV of another length is an error.
    let mut others = bytes.clone();
    (others[40], others[41]) = (0x80, 0x0e);
    let ft_session = Some(FtSession { learns_from_network: false, ..restart });
    let parsed = LdpMessage::Initialization(Initialization { ft_session, ..initialization });
    assert_eq!(read(&others).unwrap(), [format!("1 {:?}", Some(parsed))]);
    let mut short = bytes;
    (short[3], short[13], short[39]) = (short[3] - 4, short[13] - 4, 8);
    short.truncate(48);
    assert_eq!(read(&short), Err(LdpStatus::BAD_TLV_LENGTH));
}

#[test]
fn a_stream_is_split_into_pdus() {
    let two = [written(&[Outgoing::KeepAlive]), written(&[Outgoing::LabelRequest(Fec::Wildcard)])];
    let stream = two.concat();
    assert_eq!(Pdu::length(&stream[..3], MAX_PDU_LENGTH), Ok(None));
    assert_eq!(Pdu::length(&stream, MAX_PDU_LENGTH), Ok(Some(two[0].len())));
    assert_eq!(Pdu::length(&stream, two[0].len() - 1), Err(LdpStatus::BAD_PDU_LENGTH));
    assert_eq!(Pdu::length(&[0, 2, 0, 99], MAX_PDU_LENGTH), Err(LdpStatus::BAD_VERSION));
    assert_eq!(Pdu::length(&[0, 1, 0, 9], MAX_PDU_LENGTH), Err(LdpStatus::BAD_PDU_LENGTH));
}

#[test]
fn each_error_has_its_status() {
    let good = written(&[Outgoing::LabelMapping(OutgoingMapping::new(
        prefix("10.0.0.0/8"),
        LabelValue::new(99).unwrap(),
    ))]);
    let status = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        read(&bytes).unwrap_err()
    };
    let at = |place: usize, value: u8| move |bytes: &mut Vec<u8>| bytes[place] = value;
    // Offsets: message 10, FEC TLV 18, label TLV 27.
    for (change, expected) in [
        (&at(11, 0x99) as &dyn Fn(&mut Vec<u8>), LdpStatus::UNKNOWN_MESSAGE),
        (&at(13, 0xff), LdpStatus::BAD_MESSAGE_LENGTH),
        (&at(13, 2), LdpStatus::BAD_MESSAGE_LENGTH),
        (&at(19, 0x77), LdpStatus::UNKNOWN_TLV),
        (&at(21, 0xff), LdpStatus::BAD_TLV_LENGTH),
        (&at(22, 9), LdpStatus::UNKNOWN_FEC),
        (&at(24, 7), LdpStatus::UNSUPPORTED_FAMILY),
        (&at(25, 33), LdpStatus::MALFORMED_TLV),
        (&at(25, 16), LdpStatus::MALFORMED_TLV),
        (&at(32, 0x10), LdpStatus::MALFORMED_TLV),
    ] {
        assert_eq!(status(change), expected);
    }
    assert_eq!(status(&|bytes| bytes[4..8].fill(0)), LdpStatus::BAD_IDENTIFIER);
    // The wildcard must be the only FEC.
    let mut bytes = written(&[Outgoing::LabelWithdraw(prefix("1.0.0.0/8"), None)]);
    bytes[22] = 1;
    assert_eq!(read(&bytes), Err(LdpStatus::MALFORMED_TLV));
    // Unknown TLVs and unknown messages with the U bit are ignored.
    let mut bytes = good.clone();
    bytes[10] |= 0x80;
    bytes[11] = 0x99;
    assert_eq!(read(&bytes).unwrap(), ["1 None"]);
    let mut bytes = good;
    (bytes[27], bytes[28]) = (0x80 | (tlv::GENERIC_LABEL >> 8) as u8, 0x99);
    assert_eq!(read(&bytes), Err(LdpStatus::MISSING_PARAMETERS));
}

#[test]
fn a_message_that_does_not_fit_is_left_out_entirely() {
    let mut bytes = [0; 40];
    let mut writer = Writer::new(&mut bytes, SENDER).unwrap();
    assert!(writer.is_empty());
    writer.message(1, &Outgoing::KeepAlive).unwrap();
    let before = writer.bytes().to_vec();
    let long = vec![IpAddr::from([10, 0, 0, 1]); 10];
    assert_eq!(writer.message(2, &Outgoing::Address(&long)), Err(PduFull));
    assert_eq!(writer.bytes(), before);
    assert!(Writer::new(&mut [0; 9], SENDER).is_err());
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        kind in prop_oneof![Just(0x100u16), Just(0x200), 0x300u16..0x302, 0x400u16..0x405, any::<u16>()],
    ) {
        if bytes.len() > 20 {
            let length = (bytes.len() - 4) as u16;
            bytes[..4].copy_from_slice(&[0, 1, (length >> 8) as u8, length as u8]);
            bytes[10..12].copy_from_slice(&kind.to_be_bytes());
            bytes[12..14].copy_from_slice(&(length - 10).to_be_bytes());
        }
        if let Ok(pdu) = Pdu::new(&bytes, MAX_PDU_LENGTH) {
            for raw in pdu.messages().flatten() {
                if let Ok(Some(LdpMessage::LabelMapping(mapping))) = LdpMessage::new(&raw) {
                    prop_assert!(mapping.fecs.iter().count() > 0);
                }
            }
        }
    }

    #[test]
    fn initializations_round_trip(
        times in any::<(u16, u32, u32)>(),
        flags in any::<(bool, bool, bool, bool)>(),
        limits in any::<(u8, u16, u32, u16)>(),
    ) {
        let (keepalive_seconds, reconnect_timeout_ms, recovery_time_ms) = times;
        let (on_demand, detects_loops, learns_from_network, is_tolerant) = flags;
        let (path_limit, max_pdu_length, router, space) = limits;
        let restart = FtSession { learns_from_network, reconnect_timeout_ms, recovery_time_ms };
        let initialization = Initialization {
            keepalive_seconds,
            on_demand,
            detects_loops,
            path_limit,
            max_pdu_length,
            receiver: Identifier { router: router.into(), space },
            ft_session: is_tolerant.then_some(restart),
        };
        let parsed = read(&written(&[Outgoing::Initialization(initialization)])).unwrap();
        prop_assert_eq!(&parsed[0], &format!("1 {:?}", Some(LdpMessage::Initialization(initialization))));
    }

    #[test]
    fn prefixes_round_trip(bits in any::<u128>(), length in 0u8..=128, is_v4 in any::<bool>()) {
        let length = if is_v4 { length.min(32) } else { length };
        let width = if is_v4 { 32 } else { 128 };
        let address: IpAddr = if is_v4 {
            Ipv4Addr::from((bits as u32) & u32::MAX.checked_shl(width - u32::from(length)).unwrap_or(0)).into()
        } else {
            Ipv6Addr::from(bits & u128::MAX.checked_shl(width - u32::from(length)).unwrap_or(0)).into()
        };
        let fec = Fec::Prefix { address, length };
        prop_assert_eq!(Fec::prefix(address, length), Some(fec));
        prop_assert_eq!(Fec::prefix(address, if is_v4 { 33 } else { 129 }), None);
        let parsed = read(&written(&[Outgoing::LabelWithdraw(fec, None)])).unwrap();
        prop_assert_eq!(&parsed[0], &format!("1 withdraw {:?} None", [fec]));
    }
}
