//! Neighbor Discovery for IPv6: neighbor solicitations and advertisements (RFC 4861 sections 4.3, 4.4 and
//! 7). Router messages and redirects are not supported.

use crate::bytes::put;
use crate::ethernet::Mac;
use crate::ip::{self, Fragment, protocol, pseudo_header, v6};
use core::net::Ipv6Addr;

/// Length of a solicitation or advertisement with its option and IPv6 header, bytes.
pub const PACKET: usize = v6::HEADER + MESSAGE;

const MESSAGE: usize = 24 + 8;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Option types with a link-layer address.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// Hop limit of every message; a lower one means that a router forwarded the packet.
const HOP_LIMIT: u8 = 255;

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Neighbor Discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighborDiscoveryMessage {
    /// Query for the MAC address that belongs to an IPv6 address.
    Solicitation {
        /// Queried address.
        target: Ipv6Addr,
        /// MAC address of the sender.
        link: Option<Mac>,
    },
    /// Announcement of the MAC address of an IPv6 address.
    Advertisement {
        /// Announced address.
        target: Ipv6Addr,
        /// MAC address of the target; may be missing in the answer to a unicast solicitation.
        link: Option<Mac>,
        /// S flag: answer to a solicitation.
        is_solicited: bool,
        /// O flag: replaces an existing cache entry.
        overrides: bool,
    },
}

/// Reasons why a packet is not a valid neighbor message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighborDiscoveryError {
    /// Malformed IPv6 packet.
    Malformed(ip::IpError),
    /// Different kind of packet.
    Other,
    /// Message to be ignored (RFC 4861 section 7.1): forwarded by a router, invalid checksum or option, or
    /// contradictory fields.
    Invalid,
}

/// Returns `true` if the packet may be one of these messages. Cheap check before [`read`].
#[inline]
pub fn may_be(packet: &v6::View<'_>) -> bool {
    packet.next_header() == protocol::ICMPV6
        && matches!(packet.packet().get(v6::HEADER), Some(&(SOLICITATION | ADVERTISEMENT)))
}

/// Parses a message and returns it with its source address.
pub fn read(packet: &[u8]) -> Result<(Ipv6Addr, NeighborDiscoveryMessage), NeighborDiscoveryError> {
    let view = v6::View::new(packet).map_err(NeighborDiscoveryError::Malformed)?;
    let transport = view.transport().map_err(NeighborDiscoveryError::Malformed)?;
    let bytes = transport.payload;
    if transport.protocol != protocol::ICMPV6 || transport.fragment != Fragment::Whole {
        return Err(NeighborDiscoveryError::Other);
    }
    let kind = *bytes.first().ok_or(NeighborDiscoveryError::Other)?;
    if !matches!(kind, SOLICITATION | ADVERTISEMENT) {
        return Err(NeighborDiscoveryError::Other);
    }
    let (source, destination) = (view.source(), view.destination());
    let sum = pseudo_header(source.into(), destination.into(), protocol::ICMPV6, bytes.len() as u32);
    let fixed = bytes.first_chunk::<24>().ok_or(NeighborDiscoveryError::Invalid)?;
    let target = Ipv6Addr::from(*fixed.last_chunk::<16>().ok_or(NeighborDiscoveryError::Invalid)?);
    let is_right = view.hop_limit() == HOP_LIMIT && sum.bytes(bytes).folded() == 0xffff && fixed[1] == 0;
    if !is_right || target.is_multicast() || source.is_multicast() {
        return Err(NeighborDiscoveryError::Invalid);
    }
    let wanted = if kind == SOLICITATION { SOURCE_LINK } else { TARGET_LINK };
    let link = option(&bytes[24..], wanted)?;
    let message = if kind == SOLICITATION {
        // The sender has no address yet and checks whether the target is in use (duplicate address
        // detection).
        let is_duplicate_detection = source.is_unspecified();
        if is_duplicate_detection && (link.is_some() || destination != solicited_node(target)) {
            return Err(NeighborDiscoveryError::Invalid);
        }
        NeighborDiscoveryMessage::Solicitation { target, link }
    } else {
        let is_solicited = fixed[4] & SOLICITED != 0;
        if is_solicited && destination.is_multicast() {
            return Err(NeighborDiscoveryError::Invalid);
        }
        NeighborDiscoveryMessage::Advertisement {
            target,
            link,
            is_solicited,
            overrides: fixed[4] & OVERRIDE != 0,
        }
    };
    Ok((source, message))
}

/// Returns the link-layer address in the last option of a type, or `None` without such an option.
fn option(mut options: &[u8], wanted: u8) -> Result<Option<Mac>, NeighborDiscoveryError> {
    let mut found = None;
    while let [kind, length, rest @ ..] = options {
        let length = usize::from(*length) * 8;
        if length == 0 || options.len() < length {
            return Err(NeighborDiscoveryError::Invalid);
        }
        if *kind == wanted && length == 8 {
            found = rest.first_chunk::<6>().copied();
        }
        options = &options[length..];
    }
    if options.is_empty() {
        Ok(found.filter(|mac| mac[0] & 1 == 0))
    } else {
        Err(NeighborDiscoveryError::Invalid)
    }
}

/// Writes a solicitation to the target's solicited-node group, or to the target itself.
pub fn write_solicitation(
    source: Ipv6Addr,
    link: Mac,
    target: Ipv6Addr,
    to_group: bool,
    bytes: &mut [u8; PACKET],
) {
    let destination = if to_group { solicited_node(target) } else { target };
    write(source, destination, [SOLICITATION, 0], target, (SOURCE_LINK, link), bytes);
}

/// Writes the router's advertisement in answer to a solicitation from `asked_by`. If that is unspecified,
/// the advertisement is sent to all nodes (RFC 4861 section 7.2.4).
pub fn write_advertisement(solicitor: Ipv6Addr, target: Ipv6Addr, link: Mac, bytes: &mut [u8; PACKET]) {
    let is_anonymous = solicitor.is_unspecified();
    let destination = if is_anonymous { ALL_NODES } else { solicitor };
    let flags = ROUTER | OVERRIDE | if is_anonymous { 0 } else { SOLICITED };
    write(target, destination, [ADVERTISEMENT, flags], target, (TARGET_LINK, link), bytes);
}

fn write(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    [kind, flags]: [u8; 2],
    target: Ipv6Addr,
    (option, link): (u8, Mac),
    bytes: &mut [u8; PACKET],
) {
    bytes.fill(0);
    let header = v6::Header {
        next_header: protocol::ICMPV6,
        hop_limit: HOP_LIMIT,
        source,
        destination,
        ..v6::Header::default()
    };
    let written = header.write(bytes, MESSAGE);
    debug_assert!(written.is_ok(), "the buffer has the length of the packet");
    let message = &mut bytes[v6::HEADER..];
    put(message, 0, &[kind, 0, 0, 0, flags]);
    put(message, 8, &target.octets());
    put(message, 24, &[option, 1]);
    put(message, 26, &link);
    let sum = pseudo_header(source.into(), destination.into(), protocol::ICMPV6, MESSAGE as u32);
    let sum = sum.bytes(message).checksum();
    put(message, 2, &sum.to_be_bytes());
}

/// All-nodes multicast address of a link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the solicited-node multicast address of an address (RFC 4291 section 2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let segments = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | segments[6] & 0xff, segments[7])
}

/// Returns the Ethernet address of an IPv6 multicast group (RFC 2464 section 7).
pub const fn group_mac(group: Ipv6Addr) -> Mac {
    let octets = group.octets();
    [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROUTER_ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x12, 0x34fe);
    const HOST: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    #[test]
    fn group_addresses_match_the_rfc_examples() {
        // RFC 4291 section 2.7.1.
        let address = "4037::1:800:200e:8c6c".parse().unwrap();
        assert_eq!(solicited_node(address), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(solicited_node(address)), [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
    }

    #[test]
    fn messages_round_trip() {
        let mut bytes = [0xee; PACKET];
        for to_group in [true, false] {
            write_solicitation(ROUTER_ADDRESS, MAC, HOST, to_group, &mut bytes);
            assert_eq!(
                read(&bytes),
                Ok((
                    ROUTER_ADDRESS,
                    NeighborDiscoveryMessage::Solicitation { target: HOST, link: Some(MAC) }
                ))
            );
            assert!(may_be(&v6::View::new(&bytes).unwrap()));
        }
        write_advertisement(HOST, ROUTER_ADDRESS, MAC, &mut bytes);
        let advertisement = NeighborDiscoveryMessage::Advertisement {
            target: ROUTER_ADDRESS,
            link: Some(MAC),
            is_solicited: true,
            overrides: true,
        };
        assert_eq!(read(&bytes), Ok((ROUTER_ADDRESS, advertisement)));
        write_advertisement(Ipv6Addr::UNSPECIFIED, ROUTER_ADDRESS, MAC, &mut bytes);
        assert_eq!(v6::View::new(&bytes).unwrap().destination(), ALL_NODES);
        assert!(matches!(
            read(&bytes),
            Ok((_, NeighborDiscoveryMessage::Advertisement { is_solicited: false, .. }))
        ));
    }

    #[test]
    fn invalid_messages_are_ignored() {
        let mut good = [0; PACKET];
        write_solicitation(ROUTER_ADDRESS, MAC, HOST, true, &mut good);
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            read(&bytes)
        };
        for (at, byte) in [(7, 254), (42, 9), (65, 0), (65, 2), (41, 1)] {
            assert_eq!(with(at, byte), Err(NeighborDiscoveryError::Invalid), "{at}");
        }
        assert_eq!(with(40, 128), Err(NeighborDiscoveryError::Other));
        // A source link-layer address although the source is unspecified.
        write_solicitation(Ipv6Addr::UNSPECIFIED, MAC, HOST, true, &mut good);
        assert_eq!(read(&good), Err(NeighborDiscoveryError::Invalid));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(at in 0..PACKET, byte: u8, length in 0..PACKET) {
            let mut bytes = [0; PACKET];
            write_advertisement(HOST, ROUTER_ADDRESS, MAC, &mut bytes);
            bytes[at] = byte;
            let _ = read(&bytes[..length]);
            let _ = read(&bytes);
        }
    }
}
