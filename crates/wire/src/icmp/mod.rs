//! ICMP errors a router sends, and the cases in which it must not send one (RFC 1122 section 3.2.2, RFC 1812
//! section 4.3.2, RFC 4443 section 2.4 e):
//!
//! - "fragmentation needed" (RFC 792, RFC 1191) and "packet too big" (RFC 4443, RFC 8201) for a packet above
//!   the MTU of the next hop,
//! - "time exceeded" for a packet that has run out of hops,
//! - "destination unreachable" for a packet without a route.
//!
//! The caller must not answer frames received as link-layer broadcasts, and it limits the rate of errors.
//!
//! - [`extension`]: label stack of the packet an error refers to.

pub mod extension;

use crate::bytes::put;
use crate::checksum::{Sum, checksum};
use crate::ip::{self, Fragment, protocol, pseudo_header, v4, v6};
use core::net::{Ipv4Addr, Ipv6Addr};

/// Length of the ICMP header, bytes: type, code, checksum, and four bytes that depend on the type.
pub const HEADER: usize = 8;
/// Longest ICMPv4 error, bytes (RFC 1812 section 4.3.2.3).
pub const MAX_V4: usize = 576;
/// Longest ICMPv6 error, bytes: the minimum IPv6 MTU (RFC 4443 section 2.4 c).
pub const MAX_V6: usize = 1280;

/// Internetwork control (class selector 6), as recommended by RFC 1812 section 4.3.2.5.
const DSCP: u8 = 48;

/// Reasons why no error is sent for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpSuppression {
    /// Malformed packet.
    Malformed(ip::IpError),
    /// ICMP error, or a packet that may be one.
    IcmpError,
    /// Fragment other than the first.
    LaterFragment,
    /// Multicast or broadcast destination.
    ManyReceivers,
    /// Source address that does not identify a single host.
    NoSingleSource,
    /// Packet that may be fragmented instead.
    MayFragment,
    /// MTU of the next hop below the minimum (68 bytes for IPv4, 1280 for IPv6): a tunnel with such an MTU
    /// must fragment and reassemble by itself.
    MtuTooSmall,
    /// Buffer too short for the error; [`MAX_V4`] or [`MAX_V6`] bytes are enough.
    Buffer,
}

/// Writes "fragmentation needed" for an IPv4 packet larger than the next hop's `mtu` and returns its length.
/// `source` is the router's address.
pub fn fragmentation_needed(
    offending: &[u8],
    source: Ipv4Addr,
    mtu: u16,
    answer: &mut [u8],
) -> Result<usize, IcmpSuppression> {
    let view = v4::View::new(offending).map_err(IcmpSuppression::Malformed)?;
    if !view.dont_fragment() {
        return Err(IcmpSuppression::MayFragment);
    }
    let [high, low] = mtu.to_be_bytes();
    let precondition = if mtu < 68 { Err(IcmpSuppression::MtuTooSmall) } else { Ok(()) };
    answer_v4(&view, source, [3, 4, 0, 0, 0, 0, high, low], precondition, answer)
}

/// Writes "time exceeded" for an IPv4 packet whose TTL expired and returns its length. `source` is the
/// router's address.
pub fn time_exceeded_v4(
    offending: &[u8],
    source: Ipv4Addr,
    answer: &mut [u8],
) -> Result<usize, IcmpSuppression> {
    let view = v4::View::new(offending).map_err(IcmpSuppression::Malformed)?;
    answer_v4(&view, source, [11, 0, 0, 0, 0, 0, 0, 0], Ok(()), answer)
}

/// Writes "net unreachable" for an IPv4 packet without a route (RFC 1812 section 5.2.7.1) and returns its
/// length. `source` is the router's address.
pub fn no_route_v4(offending: &[u8], source: Ipv4Addr, answer: &mut [u8]) -> Result<usize, IcmpSuppression> {
    let view = v4::View::new(offending).map_err(IcmpSuppression::Malformed)?;
    answer_v4(&view, source, [3, 0, 0, 0, 0, 0, 0, 0], Ok(()), answer)
}

/// Writes an error with this header if the packet may be answered and `precondition` is `Ok`. Its error is
/// reported only if no other reason applies.
fn answer_v4(
    view: &v4::View<'_>,
    source: Ipv4Addr,
    message_header: [u8; HEADER],
    precondition: Result<(), IcmpSuppression>,
    answer: &mut [u8],
) -> Result<usize, IcmpSuppression> {
    if view.fragment() == Fragment::Later {
        return Err(IcmpSuppression::LaterFragment);
    }
    if view.destination().is_multicast() || view.destination().is_broadcast() {
        return Err(IcmpSuppression::ManyReceivers);
    }
    if !is_one_host_v4(view.source()) {
        return Err(IcmpSuppression::NoSingleSource);
    }
    let transport = view.transport();
    if transport.protocol == protocol::ICMP && !is_query_v4(transport.payload) {
        return Err(IcmpSuppression::IcmpError);
    }
    precondition?;
    let quoted = view.packet().len().min(MAX_V4 - v4::HEADER - HEADER);
    let length = v4::HEADER + HEADER + quoted;
    let answer = answer.get_mut(..length).ok_or(IcmpSuppression::Buffer)?;
    let header = v4::Header {
        dscp: DSCP,
        protocol: protocol::ICMP,
        source,
        destination: view.source(),
        ..v4::Header::default()
    };
    header.write(answer, HEADER + quoted).map_err(|_| IcmpSuppression::Buffer)?;
    let message = &mut answer[v4::HEADER..];
    put(message, 0, &message_header);
    put(message, HEADER, &view.packet()[..quoted]);
    let sum = checksum(message);
    put(message, 2, &sum.to_be_bytes());
    Ok(length)
}

/// Writes "packet too big" for an IPv6 packet larger than the next hop's `mtu` and returns its length.
/// `source` is the router's address. Multicast packets are answered too, for path MTU discovery (RFC 4443
/// section 2.4 e.3).
pub fn packet_too_big(
    offending: &[u8],
    source: Ipv6Addr,
    mtu: u32,
    answer: &mut [u8],
) -> Result<usize, IcmpSuppression> {
    let view = v6::View::new(offending).map_err(IcmpSuppression::Malformed)?;
    let [a, b, c, d] = mtu.to_be_bytes();
    let precondition = if mtu < MAX_V6 as u32 { Err(IcmpSuppression::MtuTooSmall) } else { Ok(()) };
    answer_v6(&view, source, [2, 0, 0, 0, a, b, c, d], precondition, answer)
}

/// Writes "time exceeded" for an IPv6 packet whose hop limit expired and returns its length. `source` is the
/// router's address.
pub fn time_exceeded_v6(
    offending: &[u8],
    source: Ipv6Addr,
    answer: &mut [u8],
) -> Result<usize, IcmpSuppression> {
    answer_v6_to_one(offending, source, [3, 0, 0, 0, 0, 0, 0, 0], answer)
}

/// Writes "no route to destination" for an IPv6 packet (RFC 4443 section 3.1) and returns its length.
/// `source` is the router's address.
pub fn no_route_v6(offending: &[u8], source: Ipv6Addr, answer: &mut [u8]) -> Result<usize, IcmpSuppression> {
    answer_v6_to_one(offending, source, [1, 0, 0, 0, 0, 0, 0, 0], answer)
}

/// Writes an error other than "packet too big", which must not answer a multicast packet.
fn answer_v6_to_one(
    offending: &[u8],
    source: Ipv6Addr,
    message_header: [u8; HEADER],
    answer: &mut [u8],
) -> Result<usize, IcmpSuppression> {
    let view = v6::View::new(offending).map_err(IcmpSuppression::Malformed)?;
    let precondition =
        if view.destination().is_multicast() { Err(IcmpSuppression::ManyReceivers) } else { Ok(()) };
    answer_v6(&view, source, message_header, precondition, answer)
}

fn answer_v6(
    view: &v6::View<'_>,
    source: Ipv6Addr,
    message_header: [u8; HEADER],
    precondition: Result<(), IcmpSuppression>,
    answer: &mut [u8],
) -> Result<usize, IcmpSuppression> {
    if view.source().is_unspecified() || view.source().is_multicast() {
        return Err(IcmpSuppression::NoSingleSource);
    }
    let transport = view.transport().map_err(IcmpSuppression::Malformed)?;
    if transport.protocol == protocol::ICMPV6 && !is_informational_v6(&transport) {
        return Err(IcmpSuppression::IcmpError);
    }
    precondition?;
    let quoted = view.packet().len().min(MAX_V6 - v6::HEADER - HEADER);
    let length = v6::HEADER + HEADER + quoted;
    let answer = answer.get_mut(..length).ok_or(IcmpSuppression::Buffer)?;
    let header = v6::Header {
        dscp: DSCP,
        next_header: protocol::ICMPV6,
        source,
        destination: view.source(),
        ..v6::Header::default()
    };
    header.write(answer, HEADER + quoted).map_err(|_| IcmpSuppression::Buffer)?;
    let message = &mut answer[v6::HEADER..];
    put(message, 0, &message_header);
    put(message, HEADER, &view.packet()[..quoted]);
    let pseudo: Sum =
        pseudo_header(source.into(), view.source().into(), protocol::ICMPV6, message.len() as u32);
    let sum = pseudo.bytes(message).checksum();
    put(message, 2, &sum.to_be_bytes());
    Ok(length)
}

/// RFC 1122 section 3.2.2: not zero, loopback, broadcast, multicast or class E.
fn is_one_host_v4(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// Known query types; an unknown type may be an error.
fn is_query_v4(message: &[u8]) -> bool {
    matches!(message.first(), Some(0 | 8..=10 | 13..=18 | 42 | 43))
}

/// Types from 128 on are informational, except redirects. The type in a later fragment is unknown.
fn is_informational_v6(transport: &ip::TransportPayload) -> bool {
    const REDIRECT: u8 = 137;
    transport.fragment != Fragment::Later
        && transport.payload.first().is_some_and(|&kind| kind >= 128 && kind != REDIRECT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

    fn packet_v4(source: [u8; 4], destination: [u8; 4], kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = std::vec![0; 20];
        let header = v4::Header {
            protocol: kind,
            source: source.into(),
            destination: destination.into(),
            ..v4::Header::default()
        };
        header.write(&mut bytes, payload.len()).unwrap();
        bytes.extend(payload);
        bytes
    }

    fn packet_v6(source: u16, destination: u16, kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = std::vec![0; 40];
        let address = |first| Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, u16::from(first > 0));
        let header = v6::Header {
            next_header: kind,
            source: address(source),
            destination: address(destination),
            ..v6::Header::default()
        };
        header.write(&mut bytes, payload.len()).unwrap();
        bytes.extend(payload);
        bytes
    }

    fn answer_v4(offending: &[u8]) -> Result<Vec<u8>, IcmpSuppression> {
        let mut answer = std::vec![0xee; MAX_V4];
        let length = fragmentation_needed(offending, ROUTER_V4, 1400, &mut answer)?;
        answer.truncate(length);
        Ok(answer)
    }

    fn answer_v6(offending: &[u8]) -> Result<Vec<u8>, IcmpSuppression> {
        let mut answer = std::vec![0xee; MAX_V6];
        let length = packet_too_big(offending, ROUTER_V6, 1400, &mut answer)?;
        answer.truncate(length);
        Ok(answer)
    }

    const HOST: [u8; 4] = [10, 0, 0, 1];
    const OTHER: [u8; 4] = [10, 0, 0, 2];

    #[test]
    fn an_error_carries_the_mtu_and_quotes_what_fits() {
        for (size, expected) in [(8, 20 + 8 + 28), (1480, MAX_V4)] {
            let offending = packet_v4(HOST, OTHER, protocol::UDP, &std::vec![7; size]);
            let answer = answer_v4(&offending).unwrap();
            assert_eq!(answer.len(), expected);
            let view = v4::View::new(&answer).unwrap();
            assert!(view.is_checksum_valid());
            assert_eq!((view.source(), view.destination()), (ROUTER_V4, HOST.into()));
            let message = view.transport().payload;
            assert_eq!(
                (message[..2].to_vec(), &message[4..8]),
                ([3, 4].to_vec(), &1400_u32.to_be_bytes()[..])
            );
            assert_eq!(checksum(message), 0);
            assert_eq!(message[8..], offending[..message.len() - 8]);
            // An ICMP error is not answered with another.
            assert_eq!(answer_v4(&answer), Err(IcmpSuppression::IcmpError));
            assert_eq!(
                fragmentation_needed(&offending, ROUTER_V4, 1400, &mut std::vec![0; expected - 1]),
                Err(IcmpSuppression::Buffer)
            );
        }
        for (size, expected) in [(8, 40 + 8 + 48), (1480, MAX_V6)] {
            let offending = packet_v6(0xfd00, 0xfd01, protocol::UDP, &std::vec![7; size]);
            let answer = answer_v6(&offending).unwrap();
            assert_eq!(answer.len(), expected);
            let view = v6::View::new(&answer).unwrap();
            assert_eq!(view.source(), ROUTER_V6);
            let message = view.transport().unwrap().payload;
            assert_eq!(
                (message[..2].to_vec(), &message[4..8]),
                ([2, 0].to_vec(), &1400_u32.to_be_bytes()[..])
            );
            let pseudo = pseudo_header(
                view.source().into(),
                view.destination().into(),
                protocol::ICMPV6,
                message.len() as u32,
            );
            assert_eq!(pseudo.bytes(message).folded(), 0xffff);
            assert_eq!(message[8..], offending[..message.len() - 8]);
            assert_eq!(answer_v6(&answer), Err(IcmpSuppression::IcmpError));
            let mut short = std::vec![0; expected - 1];
            assert_eq!(packet_too_big(&offending, ROUTER_V6, 1400, &mut short), Err(IcmpSuppression::Buffer));
        }
    }

    #[test]
    fn packets_that_must_not_be_answered_are_not() {
        let udp = |source, destination| packet_v4(source, destination, protocol::UDP, &[0; 8]);
        for (source, destination, reason) in [
            (HOST, [224, 0, 0, 1], IcmpSuppression::ManyReceivers),
            (HOST, [255; 4], IcmpSuppression::ManyReceivers),
            ([0; 4], OTHER, IcmpSuppression::NoSingleSource),
            ([127, 0, 0, 1], OTHER, IcmpSuppression::NoSingleSource),
            ([224, 0, 0, 1], OTHER, IcmpSuppression::NoSingleSource),
            ([255; 4], OTHER, IcmpSuppression::NoSingleSource),
        ] {
            assert_eq!(answer_v4(&udp(source, destination)), Err(reason));
        }
        let mut later = udp(HOST, OTHER);
        later[7] = 1;
        assert_eq!(answer_v4(&later), Err(IcmpSuppression::LaterFragment));
        later[6] = 0;
        assert_eq!(answer_v4(&later), Err(IcmpSuppression::MayFragment));
        for (kind, expected) in [(8, None), (0, None), (3, Some(())), (11, Some(())), (200, Some(()))] {
            let answer = answer_v4(&packet_v4(HOST, OTHER, protocol::ICMP, &[kind, 0, 0, 0, 0, 0, 0, 0]));
            assert_eq!(answer.err(), expected.map(|()| IcmpSuppression::IcmpError), "type {kind}");
        }
        let small = fragmentation_needed(&udp(HOST, OTHER), ROUTER_V4, 67, &mut [0; MAX_V4]);
        assert_eq!(small, Err(IcmpSuppression::MtuTooSmall));
        assert_eq!(answer_v4(&[0x45; 10]), Err(IcmpSuppression::Malformed(ip::IpError::Short)));
    }

    #[test]
    fn ipv6_packets_that_must_not_be_answered_are_not() {
        let udp = |source, destination| packet_v6(source, destination, protocol::UDP, &[0; 8]);
        // Multicast is answered: an exception by RFC 4443 section 2.4 e.3.
        assert!(answer_v6(&udp(0xfd00, 0xff0e)).is_ok());
        assert_eq!(answer_v6(&udp(0xff0e, 0xfd00)), Err(IcmpSuppression::NoSingleSource));
        assert_eq!(answer_v6(&udp(0, 0xfd00)), Err(IcmpSuppression::NoSingleSource));
        let icmp = |payload: &[u8]| answer_v6(&packet_v6(0xfd00, 0xfd01, protocol::ICMPV6, payload));
        assert!(icmp(&[128; 8]).is_ok());
        for kind in [1, 2, 3, 4, 127, 137] {
            assert_eq!(icmp(&[kind; 8]), Err(IcmpSuppression::IcmpError));
        }
        assert_eq!(icmp(&[]), Err(IcmpSuppression::IcmpError));
        let fragment = |kind, offset| {
            let payload = [kind, 0, 0, offset, 0, 0, 0, 1, 128, 0, 0, 0];
            answer_v6(&packet_v6(0xfd00, 0xfd01, protocol::FRAGMENT, &payload))
        };
        assert!(fragment(protocol::UDP, 9).is_ok());
        assert!(fragment(protocol::ICMPV6, 1).is_ok());
        assert_eq!(fragment(protocol::ICMPV6, 9), Err(IcmpSuppression::IcmpError));
        let small = packet_too_big(&udp(0xfd00, 0xfd01), ROUTER_V6, 1279, &mut [0; MAX_V6]);
        assert_eq!(small, Err(IcmpSuppression::MtuTooSmall));
    }

    type WriteError<A> = fn(&[u8], A, &mut [u8]) -> Result<usize, IcmpSuppression>;

    #[test]
    fn time_exceeded_and_no_route_carry_no_mtu() {
        let mut answer = [0xee; MAX_V6];
        let cases: [(WriteError<Ipv4Addr>, u8); 2] = [(time_exceeded_v4, 11), (no_route_v4, 3)];
        for (write_error, kind) in cases {
            // Answered although it may be fragmented.
            let mut offending = packet_v4(HOST, OTHER, protocol::UDP, &[7; 8]);
            offending[6] = 0;
            let length = write_error(&offending, ROUTER_V4, &mut answer).unwrap();
            let view = v4::View::new(&answer[..length]).unwrap();
            assert!(view.is_checksum_valid());
            let message = view.transport().payload;
            assert_eq!((message[..2].to_vec(), &message[4..8]), ([kind, 0].to_vec(), &[0; 4][..]));
            assert_eq!((checksum(message), &message[8..]), (0, &offending[..]));
            assert_eq!(
                write_error(view.packet(), ROUTER_V4, &mut [0; MAX_V4]),
                Err(IcmpSuppression::IcmpError)
            );
            let to_group = packet_v4(HOST, [224, 0, 0, 1], protocol::UDP, &[7; 8]);
            assert_eq!(write_error(&to_group, ROUTER_V4, &mut answer), Err(IcmpSuppression::ManyReceivers));
        }
        let cases: [(WriteError<Ipv6Addr>, u8); 2] = [(time_exceeded_v6, 3), (no_route_v6, 1)];
        for (write_error, kind) in cases {
            let offending = packet_v6(0xfd00, 0xfd01, protocol::UDP, &[7; 8]);
            let length = write_error(&offending, ROUTER_V6, &mut answer).unwrap();
            let view = v6::View::new(&answer[..length]).unwrap();
            let message = view.transport().unwrap().payload;
            assert_eq!((message[..2].to_vec(), &message[4..8]), ([kind, 0].to_vec(), &[0; 4][..]));
            let (source, destination) = (view.source().into(), view.destination().into());
            let pseudo = pseudo_header(source, destination, protocol::ICMPV6, message.len() as u32);
            assert_eq!((pseudo.bytes(message).folded(), &message[8..]), (0xffff, &offending[..]));
            let to_group = packet_v6(0xfd00, 0xff0e, protocol::UDP, &[7; 8]);
            assert_eq!(write_error(&to_group, ROUTER_V6, &mut answer), Err(IcmpSuppression::ManyReceivers));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..100), first: bool, mtu: u16, room in 0..MAX_V6,
        ) {
            let mut bytes = bytes;
            if let Some(byte) = bytes.first_mut() {
                *byte = if first { 0x45 } else { 0x60 };
            }
            let mut answer = std::vec![0; room];
            for length in [
                fragmentation_needed(&bytes, ROUTER_V4, mtu, &mut answer),
                packet_too_big(&bytes, ROUTER_V6, u32::from(mtu), &mut answer),
                time_exceeded_v4(&bytes, ROUTER_V4, &mut answer),
                time_exceeded_v6(&bytes, ROUTER_V6, &mut answer),
            ].into_iter().flatten() {
                prop_assert!(length <= room);
            }
        }
    }
}
