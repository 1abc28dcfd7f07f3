//! Header fields of a frame that an emulated link needs: the offset of the network layer, the size that counts and
//! the conversation. Reads Ethernet II with VLAN tags, MPLS (RFC 3032), IPv4 (RFC 791), IPv6 with extension headers
//! (RFC 8200) and the addresses inside ICMP errors. Each length field is checked against the length of the frame.

use netstage_core::packet::Ecn;
use netstage_wire::mpls_in_udp;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERNET: usize = 14;
const MPLS_LABEL: usize = 4;
const UDP_HEADER: usize = 8;
const ICMP: u8 = 1;
const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Header fields of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Offset of the network layer, including the label stack if there is one.
    pub network: usize,
    /// Bytes that count on the link: from the network layer to the end of the packet, without Ethernet padding.
    pub size: u32,
    /// Version of the IP header at `network`; 0 for labeled packets and other protocols.
    pub version: u8,
    /// ECN codepoint of that header.
    pub ecn: Ecn,
    /// Traffic class of the outermost label (RFC 5462); without a label, the upper three bits of the DSCP.
    pub traffic_class: u8,
    /// Bytes of the packet without labels and tunnel headers; 0 for a management message.
    pub customer: u32,
    /// Endpoints of the packet inside labels and tunnel.
    pub conversation: Option<Conversation>,
}

/// Endpoints and protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conversation {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port; for an ICMP echo, its identifier twice. `None` in later fragments and for
    /// protocols without ports.
    pub ports: Option<(u16, u16)>,
}

impl Conversation {
    /// Returns the conversation in the opposite direction.
    pub fn reversed(self) -> Conversation {
        Conversation {
            source: self.destination,
            destination: self.source,
            ports: self.ports.map(|(source, destination)| (destination, source)),
            ..self
        }
    }
}

/// Reads the headers of a frame. Returns `None` for link-local frames (address resolution, neighbor discovery, group
/// membership) and for frames too short for a packet; no simulated link has these.
pub fn read(frame: &[u8]) -> Option<Headers> {
    let mut network = ETHERNET;
    let mut kind = word(frame, network - 2)?;
    while matches!(kind, 0x8100 | 0x88a8) {
        kind = word(frame, network + 2)?;
        network += 4;
    }
    let labeled = matches!(kind, 0x8847 | 0x8848);
    let mut at = network;
    if labeled {
        at += label_stack_length(frame.get(at..)?)?;
    }
    let inner = frame.get(at..)?;
    let first = *inner.first()?;
    let label_class = if labeled { Some(frame.get(network + 2)? >> 1 & 7) } else { None };
    let expected = match kind {
        0x0800 => Some(4),
        0x86dd => Some(6),
        _ if labeled => Some(first >> 4),
        0x0806 | 0x88cc => return None,
        _ => None,
    };
    let packet = match expected {
        Some(4) => ipv4(inner),
        Some(6) => ipv6(inner),
        _ => None,
    };
    let Some(packet) = packet else {
        let size = (frame.len() - network) as u32;
        let customer = if labeled { 0 } else { size };
        return Some(Headers {
            network,
            size,
            version: 0,
            ecn: Ecn::NotCapable,
            traffic_class: label_class.unwrap_or(0),
            customer,
            conversation: None,
        });
    };
    if packet.link_local {
        return None;
    }
    let mut customer = packet.length as u32;
    let mut conversation = packet.conversation;
    if let Some(payload) = packet.labeled {
        let inner = tunneled(inner.get(payload..)?);
        customer = inner.as_ref().map_or(0, |inner| inner.length as u32);
        conversation = inner.map_or(conversation, |inner| inner.conversation);
    }
    Some(Headers {
        network,
        customer,
        size: (at - network + packet.length) as u32,
        version: if labeled { 0 } else { first >> 4 },
        ecn: if labeled { Ecn::NotCapable } else { packet.ecn },
        traffic_class: label_class.unwrap_or(packet.traffic_class),
        conversation: Some(conversation),
    })
}

/// Returns the length of a label stack in bytes.
fn label_stack_length(bytes: &[u8]) -> Option<usize> {
    let mut length = MPLS_LABEL;
    while bytes.get(length - 2)? & 1 == 0 {
        length += MPLS_LABEL;
    }
    Some(length)
}

/// Returns the customer packet behind the labels in a datagram; `None` if it is not an IP packet.
fn tunneled(bytes: &[u8]) -> Option<IpPacket> {
    let inner = bytes.get(label_stack_length(bytes)?..)?;
    match inner.first()? >> 4 {
        4 => ipv4(inner),
        6 => ipv6(inner),
        _ => None,
    }
}

/// Header fields of an IP packet.
struct IpPacket {
    length: usize,
    /// Offset of the label stack in a packet of MPLS in UDP (RFC 7510).
    labeled: Option<usize>,
    ecn: Ecn,
    traffic_class: u8,
    conversation: Conversation,
    link_local: bool,
}

fn ipv4(bytes: &[u8]) -> Option<IpPacket> {
    let header = usize::from(bytes.first()? & 0x0f) * 4;
    if bytes[0] >> 4 != 4 || header < 20 || bytes.len() < header {
        return None;
    }
    let length = usize::from(word(bytes, 2)?);
    let protocol = bytes[9];
    let later_fragment = word(bytes, 6)? & 0x1fff != 0;
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(octets).into())
    };
    let mut conversation =
        Conversation { source: address(12)?, destination: address(16)?, protocol, ports: None };
    if !later_fragment {
        conversation = transport(conversation, &bytes[header..]);
    }
    let is_labeled = is_mpls_in_udp(&conversation);
    Some(IpPacket {
        labeled: is_labeled.then_some(header + UDP_HEADER),
        length: if (header..=bytes.len()).contains(&length) { length } else { bytes.len() },
        ecn: codepoint(bytes[1]),
        traffic_class: bytes[1] >> 5,
        conversation,
        link_local: protocol == IGMP,
    })
}

fn ipv6(bytes: &[u8]) -> Option<IpPacket> {
    if bytes.len() < 40 || bytes[0] >> 4 != 6 {
        return None;
    }
    let length = 40 + usize::from(word(bytes, 4)?);
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(octets).into())
    };
    let (source, destination) = (address(8)?, address(24)?);
    let (protocol, payload) = skip_extensions(bytes[6], &bytes[40..]);
    let mut conversation = Conversation { source, destination, protocol, ports: None };
    if let Some(payload) = payload {
        conversation = transport(conversation, payload);
    }
    // Neighbor discovery (RFC 4861) and multicast listener discovery (RFC 2710, RFC 3810).
    let kind = payload.and_then(|payload| payload.first());
    let link_local = protocol == ICMPV6 && matches!(kind, Some(130..=137 | 143));
    let is_labeled = is_mpls_in_udp(&conversation);
    let headers_length = bytes.len() - payload.map_or(0, <[u8]>::len);
    Some(IpPacket {
        labeled: is_labeled.then_some(headers_length + UDP_HEADER),
        length: if length > 40 && length <= bytes.len() { length } else { bytes.len() },
        ecn: codepoint(bytes[0] << 4 | bytes[1] >> 4),
        traffic_class: (bytes[0] << 4 | bytes[1] >> 4) >> 5,
        conversation,
        link_local,
    })
}

fn is_mpls_in_udp(conversation: &Conversation) -> bool {
    conversation.protocol == UDP && conversation.ports.is_some_and(|ports| ports.1 == mpls_in_udp::PORT)
}

/// Returns the protocol after the IPv6 extension headers, and its bytes unless the packet is a later fragment.
fn skip_extensions(mut next: u8, mut bytes: &[u8]) -> (u8, Option<&[u8]>) {
    const FRAGMENT: u8 = 44;
    while matches!(next, 0 | 43 | FRAGMENT | 60) {
        let (Some(&[following, length]), Some(fragment)) =
            (bytes.get(..2).map(|head| head.as_array().expect("two bytes")), word(bytes, 2))
        else {
            return (next, None);
        };
        if next == FRAGMENT && fragment & !7 != 0 {
            return (following, None);
        }
        let length = if next == FRAGMENT { 8 } else { 8 + usize::from(length) * 8 };
        let Some(rest) = bytes.get(length..) else { return (following, None) };
        (next, bytes) = (following, rest);
    }
    (next, Some(bytes))
}

/// Adds the ports to a conversation. For an ICMP error, returns the reversed conversation of the original packet.
fn transport(conversation: Conversation, payload: &[u8]) -> Conversation {
    let kind = payload.first().copied();
    let (echo, error) = match (conversation.protocol, kind) {
        (ICMP, Some(kind)) => (matches!(kind, 0 | 8), matches!(kind, 3 | 11 | 12)),
        (ICMPV6, Some(kind)) => (matches!(kind, 128 | 129), kind < 128),
        _ => (false, false),
    };
    if error {
        let original = payload.get(8..).unwrap_or_default();
        let original = if conversation.protocol == ICMP { ipv4(original) } else { ipv6(original) };
        // No ICMP error is sent about another one, so one level suffices.
        return original.map_or(conversation, |original| original.conversation.reversed());
    }
    let ports = match conversation.protocol {
        TCP | UDP => word(payload, 0).zip(word(payload, 2)),
        ICMP | ICMPV6 if echo => word(payload, 4).map(|identifier| (identifier, identifier)),
        _ => None,
    };
    Conversation { ports, ..conversation }
}

fn codepoint(traffic_class: u8) -> Ecn {
    match traffic_class & 3 {
        0 => Ecn::NotCapable,
        3 => Ecn::CongestionExperienced,
        _ => Ecn::Capable,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

/// Sets "congestion experienced" (RFC 3168 section 5) in the IP header at the start of `packet`, and updates the IPv4
/// checksum (RFC 1624 equation 3).
pub fn mark_congestion(packet: &mut [u8], version: u8) {
    match version {
        4 => {
            let before = word(packet, 0).expect("the packet has an IPv4 header");
            packet[1] |= 3;
            let after = word(packet, 0).expect("the packet has an IPv4 header");
            let checksum = word(packet, 10).expect("the packet has an IPv4 header");
            let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
            let folded = (sum & 0xffff) + (sum >> 16);
            let folded = ((folded & 0xffff) + (folded >> 16)) as u16;
            packet[10..12].copy_from_slice(&(!folded).to_be_bytes());
        }
        6 => packet[1] |= 3 << 4,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ethernet(kind: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(kind.to_be_bytes());
        frame.extend(packet);
        frame
    }

    fn ipv4_packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 2, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend(payload);
        let length = packet.len() as u16;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet
    }

    fn ipv6_packet(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0x30, 0, 0];
        packet.extend((payload.len() as u16).to_be_bytes());
        packet.extend([next, 64]);
        packet.extend([0xfd; 16]);
        packet.extend([0xfc; 16]);
        packet.extend(payload);
        packet
    }

    fn ports(frame: &[u8]) -> Option<(u16, u16)> {
        read(frame).unwrap().conversation.unwrap().ports
    }

    const DATAGRAM: [u8; 8] = [0, 1, 0, 2, 0, 8, 0, 0];

    #[test]
    fn the_traffic_class_is_read_from_the_outermost_label_or_the_dscp() {
        let mut packet = ipv4_packet(UDP, &DATAGRAM);
        let class = |kind, bytes: &[u8]| read(&ethernet(kind, bytes)).unwrap().traffic_class;
        assert_eq!(class(0x0800, &packet), 0);
        packet[1] = 46 << 2;
        assert_eq!(class(0x0800, &packet), 5);
        let under = |classes: [u8; 2]| {
            let labels = [[0, 1, classes[0] << 1, 64], [0, 0, 0x20 | classes[1] << 1 | 1, 64]].concat();
            class(0x8847, &[&labels[..], &packet].concat())
        };
        assert_eq!((under([6, 0]), under([0, 6])), (6, 0));
        let mut six = [0; 48];
        (six[0], six[1], six[5], six[6]) = (0x6b, 0x80, 8, UDP);
        assert_eq!(class(0x86dd, &six), 5);
    }

    #[test]
    fn padding_is_ignored_and_tags_and_labels_are_skipped() {
        let packet = ipv4_packet(UDP, &DATAGRAM);
        let mut padded = ethernet(0x0800, &packet);
        padded.resize(60, 0);
        let headers = read(&padded).unwrap();
        assert_eq!((headers.network, headers.size, headers.version), (14, 28, 4));
        assert_eq!((headers.ecn, ports(&padded)), (Ecn::Capable, Some((1, 2))));

        let tagged = [&padded[..12], &[0x81, 0, 0, 5], &padded[12..]].concat();
        assert_eq!(read(&tagged), Some(Headers { network: 18, ..headers }));

        let labels = [[0, 0, 0x10, 64], [0, 0, 0x21, 64]].concat();
        let labeled = ethernet(0x8847, &[&labels[..], &packet, &[0; 20]].concat());
        let labeled = read(&labeled).unwrap();
        assert_eq!((labeled.size, labeled.version, labeled.ecn), (36, 0, Ecn::NotCapable));
        assert_eq!(labeled.conversation, headers.conversation);
    }

    #[test]
    fn the_conversation_and_the_size_are_those_of_the_tunneled_packet() {
        let packet = ipv4_packet(UDP, &DATAGRAM);
        let plain = read(&ethernet(0x0800, &packet)).unwrap();
        assert_eq!(plain.customer, 28);
        let tunnel = [0xc0, 0, 0x19, 0xeb, 0, 0, 0, 0];
        let payload = [&tunnel[..], &[0, 0, 0x10, 64, 0, 0, 0x21, 64], &packet].concat();
        for tunneled in [
            ethernet(0x0800, &ipv4_packet(UDP, &payload)),
            ethernet(0x86dd, &ipv6_packet(60, &[&[UDP, 0, 0, 0, 0, 0, 0, 0], &payload[..]].concat())),
        ] {
            let headers = read(&tunneled).unwrap();
            assert_eq!((headers.customer, headers.conversation), (28, plain.conversation));
            assert_eq!(headers.size as usize, tunneled.len() - 14);
        }
        // A management message has no customer packet; its endpoints are those of the tunnel.
        let message = [&tunnel[..], &[0, 0x1f, 0x40, 64, 0, 0, 0xd1, 64, 0x10, 0, 0, 0x0d, 0, 0]].concat();
        let headers = read(&ethernet(0x0800, &ipv4_packet(UDP, &message))).unwrap();
        assert_eq!((headers.customer, headers.size), (0, 42));
        assert_eq!(headers.conversation.unwrap().ports, Some((0xc000, 6635)));
    }

    #[test]
    fn ports_are_read_after_extension_headers_and_in_first_fragments_only() {
        let options = [UDP, 0, 0, 0, 0, 0, 0, 0];
        let behind = ethernet(0x86dd, &ipv6_packet(60, &[&options[..], &DATAGRAM].concat()));
        assert_eq!((ports(&behind), read(&behind).unwrap().ecn), (Some((1, 2)), Ecn::CongestionExperienced));
        for (offset, expected) in [(0, Some((1, 2))), (8, None)] {
            let fragment = [UDP, 0, 0, offset | 1, 0, 0, 0, 9];
            let frame = ethernet(0x86dd, &ipv6_packet(44, &[&fragment[..], &DATAGRAM].concat()));
            assert_eq!(ports(&frame), expected);
        }
        let mut later = ipv4_packet(UDP, &DATAGRAM);
        later[7] = 1;
        assert_eq!(ports(&ethernet(0x0800, &later)), None);
    }

    #[test]
    fn an_icmp_error_has_the_reversed_conversation_of_the_original_packet() {
        let original = ipv4_packet(UDP, &DATAGRAM);
        let unreachable = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &original].concat();
        let error = read(&ethernet(0x0800, &ipv4_packet(ICMP, &unreachable))).unwrap();
        let packet = read(&ethernet(0x0800, &original)).unwrap();
        assert_eq!(error.conversation, packet.conversation.map(Conversation::reversed));
        let echo = ethernet(0x0800, &ipv4_packet(ICMP, &[8, 0, 0, 0, 0, 7, 0, 1]));
        assert_eq!(ports(&echo), Some((7, 7)));
    }

    #[test]
    fn link_local_and_short_frames_are_ignored() {
        assert_eq!(read(&ethernet(0x0806, &[0; 46])), None);
        assert_eq!(read(&ethernet(0x0800, &ipv4_packet(IGMP, &[0x16; 8]))), None);
        assert_eq!(read(&ethernet(0x86dd, &ipv6_packet(ICMPV6, &[135; 24]))), None);
        let listener = [ICMPV6, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0];
        assert_eq!(read(&ethernet(0x86dd, &ipv6_packet(0, &listener))), None);
        assert!(read(&ethernet(0x86dd, &ipv6_packet(ICMPV6, &[128; 8]))).is_some());
        assert_eq!(read(&[0; 13]), None);
    }

    /// Returns the one's complement sum of the header's words (RFC 1071): 0xffff if the checksum is correct.
    fn sum(header: &[u8]) -> u16 {
        let words = (0..header.len()).step_by(2).map(|at| u32::from(word(header, at).unwrap()));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        ((folded & 0xffff) + (folded >> 16)) as u16
    }

    proptest! {
        #[test]
        fn a_congestion_mark_updates_the_ipv4_checksum(mut header: [u8; 20]) {
            (header[0], header[10], header[11]) = (0x45, 0, 0);
            let checksum = !sum(&header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            let before = header;
            mark_congestion(&mut header, 4);
            prop_assert_eq!(header[1], before[1] | 3);
            prop_assert_eq!(sum(&header), 0xffff);
            prop_assert_eq!((&header[2..10], &header[12..]), (&before[2..10], &before[12..]));
        }

        #[test]
        fn a_congestion_mark_changes_two_bits_of_ipv6(mut header: [u8; 40]) {
            let before = header;
            mark_congestion(&mut header, 6);
            prop_assert_eq!(codepoint(header[0] << 4 | header[1] >> 4), Ecn::CongestionExperienced);
            header[1] = header[1] & !0x30 | before[1] & 0x30;
            prop_assert_eq!(header, before);
        }

        #[test]
        fn arbitrary_bytes_are_read_within_their_bounds(
            kind in prop::sample::select(vec![0x0800_u16, 0x86dd, 0x8847, 0x8100, 0x1234]),
            first: u8,
            mut rest in prop::collection::vec(any::<u8>(), 1..200),
        ) {
            rest[0] = if first.is_multiple_of(4) { first } else { 0x45 + first % 2 * 0x1b };
            let frame = ethernet(kind, &rest);
            if let Some(headers) = read(&frame) {
                prop_assert!(headers.network + headers.size as usize <= frame.len());
                prop_assert!(headers.version == 0 || headers.size >= 20);
            }
        }
    }
}
