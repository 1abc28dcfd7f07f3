//! Neighbour discovery for IPv6: solicitations and advertisements of neighbours (RFC 4861
//! sections 4.3, 4.4 and 7). Routers' and redirects are not read here.

use crate::bytes::put;
use crate::ethernet::Mac;
use crate::ip::{Error as IpError, Fragment, protocol, pseudo_header, v6};
use core::net::Ipv6Addr;

/// A solicitation or advertisement with its option and IPv6 header.
pub const PACKET: usize = v6::HEADER + MESSAGE;

const MESSAGE: usize = 24 + 8;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options with a link-layer address.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// Of no less has a packet come that passed no router.
const HOP_LIMIT: u8 = 255;

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// What a neighbour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks who has an address.
    Solicitation {
        /// The address.
        target: Ipv6Addr,
        /// Who asks.
        link: Option<Mac>,
    },
    /// Tells.
    Advertisement {
        /// The address.
        target: Ipv6Addr,
        /// Who has it; may be left out in an answer to one station.
        link: Option<Mac>,
        /// It answers a solicitation.
        is_solicited: bool,
        /// It replaces what was known.
        overrides: bool,
    },
}

/// Why a packet holds none of these messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The packet is none.
    Malformed(IpError),
    /// It is something else.
    Other,
    /// It passed a router, its checksum or an option is wrong, or it contradicts itself: to be
    /// ignored (RFC 4861 section 7.1).
    Invalid,
}

/// Whether it may be one of these messages at all, at little cost.
#[inline]
pub fn may_be(packet: &v6::View<'_>) -> bool {
    packet.next_header() == protocol::ICMPV6
        && matches!(packet.packet().get(v6::HEADER), Some(&(SOLICITATION | ADVERTISEMENT)))
}

/// Reads a message, and who sent it.
pub fn read(packet: &[u8]) -> Result<(Ipv6Addr, Message), Error> {
    let view = v6::View::new(packet).map_err(Error::Malformed)?;
    let transport = view.transport().map_err(Error::Malformed)?;
    let bytes = transport.payload;
    if transport.protocol != protocol::ICMPV6 || transport.fragment != Fragment::Whole {
        return Err(Error::Other);
    }
    let kind = *bytes.first().ok_or(Error::Other)?;
    if !matches!(kind, SOLICITATION | ADVERTISEMENT) {
        return Err(Error::Other);
    }
    let (source, destination) = (view.source(), view.destination());
    let sum = pseudo_header(source.into(), destination.into(), protocol::ICMPV6, bytes.len() as u32);
    let fixed = bytes.first_chunk::<24>().ok_or(Error::Invalid)?;
    let target = Ipv6Addr::from(*fixed.last_chunk::<16>().ok_or(Error::Invalid)?);
    let is_right = view.hop_limit() == HOP_LIMIT && sum.bytes(bytes).folded() == 0xffff && fixed[1] == 0;
    if !is_right || target.is_multicast() || source.is_multicast() {
        return Err(Error::Invalid);
    }
    let wanted = if kind == SOLICITATION { SOURCE_LINK } else { TARGET_LINK };
    let link = option(&bytes[24..], wanted)?;
    let message = if kind == SOLICITATION {
        // One who has no address yet only asks whether this one is free.
        let asks_if_free = source.is_unspecified();
        if asks_if_free && (link.is_some() || destination != solicited_node(target)) {
            return Err(Error::Invalid);
        }
        Message::Solicitation { target, link }
    } else {
        let is_solicited = fixed[4] & SOLICITED != 0;
        if is_solicited && destination.is_multicast() {
            return Err(Error::Invalid);
        }
        Message::Advertisement { target, link, is_solicited, overrides: fixed[4] & OVERRIDE != 0 }
    };
    Ok((source, message))
}

/// The link-layer address in an option of this type, if there is one.
fn option(mut options: &[u8], wanted: u8) -> Result<Option<Mac>, Error> {
    let mut found = None;
    while let [kind, length, rest @ ..] = options {
        let length = usize::from(*length) * 8;
        if length == 0 || options.len() < length {
            return Err(Error::Invalid);
        }
        if *kind == wanted && length == 8 {
            found = rest.first_chunk::<6>().copied();
        }
        options = &options[length..];
    }
    if options.is_empty() { Ok(found.filter(|mac| mac[0] & 1 == 0)) } else { Err(Error::Invalid) }
}

/// Writes the question who has an address, to its group, or to one station's own address.
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

/// Writes the answer to somebody who asked for the address of this router. One who has no
/// address yet is answered before all (RFC 4861 section 7.2.4).
pub fn write_advertisement(asked_by: Ipv6Addr, target: Ipv6Addr, link: Mac, bytes: &mut [u8; PACKET]) {
    let is_anonymous = asked_by.is_unspecified();
    let destination = if is_anonymous { ALL_NODES } else { asked_by };
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
    debug_assert!(written.is_ok(), "the buffer is of its size");
    let message = &mut bytes[v6::HEADER..];
    put(message, 0, &[kind, 0, 0, 0, flags]);
    put(message, 8, &target.octets());
    put(message, 24, &[option, 1]);
    put(message, 26, &link);
    let sum = pseudo_header(source.into(), destination.into(), protocol::ICMPV6, MESSAGE as u32);
    let sum = sum.bytes(message).checksum();
    put(message, 2, &sum.to_be_bytes());
}

/// All stations of a link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The group in which the holder of an address listens (RFC 4291 section 2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let segments = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | segments[6] & 0xff, segments[7])
}

/// The Ethernet address of an IPv6 group (RFC 2464 section 7).
pub const fn group_mac(group: Ipv6Addr) -> Mac {
    let octets = group.octets();
    [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x12, 0x34fe);
    const HOST: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    #[test]
    fn groups_are_those_of_the_rfcs() {
        // RFC 4291 section 2.7.1.
        let address = "4037::1:800:200e:8c6c".parse().unwrap();
        assert_eq!(solicited_node(address), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(solicited_node(address)), [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
    }

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = [0xee; PACKET];
        for to_group in [true, false] {
            write_solicitation(US, MAC, HOST, to_group, &mut bytes);
            assert_eq!(read(&bytes), Ok((US, Message::Solicitation { target: HOST, link: Some(MAC) })));
            assert!(may_be(&v6::View::new(&bytes).unwrap()));
        }
        write_advertisement(HOST, US, MAC, &mut bytes);
        let told =
            Message::Advertisement { target: US, link: Some(MAC), is_solicited: true, overrides: true };
        assert_eq!(read(&bytes), Ok((US, told)));
        write_advertisement(Ipv6Addr::UNSPECIFIED, US, MAC, &mut bytes);
        assert_eq!(v6::View::new(&bytes).unwrap().destination(), ALL_NODES);
        assert!(matches!(read(&bytes), Ok((_, Message::Advertisement { is_solicited: false, .. }))));
    }

    #[test]
    fn what_may_come_from_beyond_the_link_is_ignored() {
        let mut good = [0; PACKET];
        write_solicitation(US, MAC, HOST, true, &mut good);
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            read(&bytes)
        };
        for (at, byte) in [(7, 254), (42, 9), (65, 0), (65, 2), (41, 1)] {
            assert_eq!(with(at, byte), Err(Error::Invalid), "{at}");
        }
        assert_eq!(with(40, 128), Err(Error::Other));
        // Without an address, and yet with a station.
        write_solicitation(Ipv6Addr::UNSPECIFIED, MAC, HOST, true, &mut good);
        assert_eq!(read(&good), Err(Error::Invalid));
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(at in 0..PACKET, byte: u8, length in 0..PACKET) {
            let mut bytes = [0; PACKET];
            write_advertisement(HOST, US, MAC, &mut bytes);
            bytes[at] = byte;
            let _ = read(&bytes[..length]);
            let _ = read(&bytes);
        }
    }
}
