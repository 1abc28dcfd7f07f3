//! Parser of captured frames: Ethernet with VLAN tags, Linux cooked captures, loopback and raw IP; MPLS labels;
//! IPv4 and IPv6 with extension headers; TCP and UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// TCP segment or UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedSegment {
    /// Source address.
    pub source: SocketAddr,
    /// Destination address.
    pub destination: SocketAddr,
    /// Transport protocol, with the fields of its header.
    pub transport: SegmentTransport,
    /// Number of payload bytes, captured or not.
    pub payload: u32,
}

/// Transport protocol of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentTransport {
    /// TCP.
    Tcp {
        /// Sequence number of the first byte.
        sequence: u32,
        /// SYN flag.
        syn: bool,
        /// ACK flag.
        ack: bool,
        /// FIN or RST flag.
        end: bool,
    },
    /// UDP.
    Udp,
}

/// Reason for which a frame is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Another protocol, or a fragment other than the first.
    Other,
    /// Truncated or contradictory headers.
    Malformed,
    /// Unsupported link type.
    UnknownLink(u16),
}

type Parsed<T> = Result<T, SkipReason>;

/// Parses the segment in a frame.
pub fn parse(link: u16, frame: &[u8]) -> Parsed<CapturedSegment> {
    match link {
        1 => ethernet(u16_at(frame, 12)?, rest(frame, 14)?),
        // BSD loopback: the address family has either byte order, so the IP version is used instead.
        0 | 108 => by_version(rest(frame, 4)?),
        12 | 14 | 101 | 228 | 229 => by_version(frame),
        113 => ethernet(u16_at(frame, 14)?, rest(frame, 16)?),
        276 => ethernet(u16_at(frame, 0)?, rest(frame, 20)?),
        other => Err(SkipReason::UnknownLink(other)),
    }
}

fn rest(bytes: &[u8], at: usize) -> Parsed<&[u8]> {
    bytes.get(at..).ok_or(SkipReason::Malformed)
}

fn u16_at(bytes: &[u8], at: usize) -> Parsed<u16> {
    let field = bytes.get(at..at + 2).ok_or(SkipReason::Malformed)?;
    Ok(u16::from_be_bytes([field[0], field[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Parsed<u32> {
    let field = bytes.get(at..at + 4).ok_or(SkipReason::Malformed)?;
    Ok(u32::from_be_bytes([field[0], field[1], field[2], field[3]]))
}

fn u8_at(bytes: &[u8], at: usize) -> Parsed<u8> {
    bytes.get(at).copied().ok_or(SkipReason::Malformed)
}

fn ethernet(mut kind: u16, mut payload: &[u8]) -> Parsed<CapturedSegment> {
    loop {
        match kind {
            // VLAN tags: IEEE 802.1Q, 802.1ad, and the older 0x9100.
            0x8100 | 0x88a8 | 0x9100 => {
                kind = u16_at(payload, 2)?;
                payload = rest(payload, 4)?;
            }
            0x8847 | 0x8848 => return labels(payload),
            0x0800 | 0x86dd => return by_version(payload),
            _ => return Err(SkipReason::Other),
        }
    }
}

/// Parses a packet with a label stack (RFC 3032).
fn labels(mut payload: &[u8]) -> Parsed<CapturedSegment> {
    loop {
        let entry = u32_at(payload, 0)?;
        payload = rest(payload, 4)?;
        if entry & 0x100 != 0 {
            return by_version(payload);
        }
    }
}

fn by_version(packet: &[u8]) -> Parsed<CapturedSegment> {
    match u8_at(packet, 0)? >> 4 {
        4 => ipv4(packet),
        6 => ipv6(packet),
        _ => Err(SkipReason::Other),
    }
}

fn ipv4(packet: &[u8]) -> Parsed<CapturedSegment> {
    let header = usize::from(u8_at(packet, 0)? & 0xf) * 4;
    let total = match usize::from(u16_at(packet, 2)?) {
        // A packet captured before segmentation by the network card has no length.
        0 => packet.len(),
        total => total,
    };
    if header < 20 || total < header {
        return Err(SkipReason::Malformed);
    }
    if u16_at(packet, 6)? & 0x1fff != 0 {
        return Err(SkipReason::Other);
    }
    let (source, destination) = (u32_at(packet, 12)?, u32_at(packet, 16)?);
    let address = |bits: u32| IpAddr::V4(Ipv4Addr::from(bits));
    let addresses = (address(source), address(destination));
    transport(u8_at(packet, 9)?, rest(packet, header)?, total - header, addresses)
}

fn ipv6(packet: &[u8]) -> Parsed<CapturedSegment> {
    let address = |at: usize| -> Parsed<IpAddr> {
        let field = packet.get(at..at + 16).ok_or(SkipReason::Malformed)?;
        let octets = <[u8; 16]>::try_from(field).map_err(|_| SkipReason::Malformed)?;
        Ok(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    let addresses = (address(8)?, address(24)?);
    let mut length = match usize::from(u16_at(packet, 4)?) {
        0 => packet.len().saturating_sub(40),
        length => length,
    };
    let mut kind = u8_at(packet, 6)?;
    let mut at = 40;
    loop {
        let size = match kind {
            // Hop-by-hop, routing and destination options (RFC 8200 section 4).
            0 | 43 | 60 => 8 + 8 * usize::from(u8_at(packet, at + 1)?),
            // Fragments after the first have no ports.
            44 if u16_at(packet, at + 2)? & 0xfff8 != 0 => return Err(SkipReason::Other),
            44 => 8,
            // Authentication (RFC 4302).
            51 => 8 + 4 * usize::from(u8_at(packet, at + 1)?),
            _ => return transport(kind, rest(packet, at)?, length, addresses),
        };
        kind = u8_at(packet, at)?;
        at += size;
        length = length.checked_sub(size).ok_or(SkipReason::Malformed)?;
    }
}

fn transport(kind: u8, packet: &[u8], length: usize, addresses: (IpAddr, IpAddr)) -> Parsed<CapturedSegment> {
    let (header, transport) = match kind {
        6 => {
            let header = usize::from(u8_at(packet, 12)? >> 4) * 4;
            let flags = u8_at(packet, 13)?;
            if header < 20 {
                return Err(SkipReason::Malformed);
            }
            let sequence = u32_at(packet, 4)?;
            let (syn, ack, end) = (flags & 2 != 0, flags & 16 != 0, flags & 5 != 0);
            (header, SegmentTransport::Tcp { sequence, syn, ack, end })
        }
        17 => {
            // The header must be captured completely.
            rest(packet, 8)?;
            (8, SegmentTransport::Udp)
        }
        _ => return Err(SkipReason::Other),
    };
    // A reset may carry text, which is no data of the stream (RFC 9293 section 3.5.3).
    let is_reset = kind == 6 && u8_at(packet, 13)? & 4 != 0;
    let length = if is_reset { header.min(length) } else { length };
    let payload = length.checked_sub(header).and_then(|payload| u32::try_from(payload).ok());
    Ok(CapturedSegment {
        source: SocketAddr::new(addresses.0, u16_at(packet, 0)?),
        destination: SocketAddr::new(addresses.1, u16_at(packet, 2)?),
        transport,
        payload: payload.ok_or(SkipReason::Malformed)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an IPv4 packet with a UDP datagram of 5 bytes.
    fn datagram() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 33, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([0x30, 0x39, 0, 53, 0, 13, 0, 0, 1, 2, 3, 4, 5]);
        packet
    }

    #[test]
    fn every_encapsulation_gives_the_same_datagram() {
        let plain = parse(101, &datagram()).unwrap();
        assert_eq!((plain.payload, plain.source.port(), plain.destination.port()), (5, 12_345, 53));
        let mac = [0; 12];
        let with = |link, header: &[u8]| parse(link, &[header, &datagram()].concat());
        assert_eq!(with(1, &[&mac[..], &[8, 0]].concat()), Ok(plain));
        assert_eq!(with(1, &[&mac[..], &[0x81, 0, 0, 7, 0x88, 0xa8, 0, 9, 8, 0]].concat()), Ok(plain));
        let labels = [0x88, 0x47, 0, 1, 0, 64, 0, 2, 1, 64];
        assert_eq!(with(1, &[&mac[..], &labels].concat()), Ok(plain));
        assert_eq!(with(0, &[2, 0, 0, 0]), Ok(plain));
        assert_eq!(with(113, &[&[0; 14][..], &[8, 0]].concat()), Ok(plain));
        assert_eq!(with(276, &[&[8, 0][..], &[0; 18]].concat()), Ok(plain));
        assert_eq!(with(147, &[]), Err(SkipReason::UnknownLink(147)));
    }

    #[test]
    fn ipv6_extension_headers_are_skipped() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 21, 0, 64];
        packet.extend([0xfd; 32]);
        packet.extend([17, 0, 1, 4, 0, 0, 0, 0]);
        packet.extend([0x30, 0x39, 0, 53, 0, 13, 0, 0, 1, 2, 3, 4, 5]);
        assert_eq!(parse(229, &packet).unwrap().payload, 5);
    }

    #[test]
    fn truncated_frames_are_errors() {
        let frame = [&[0; 12][..], &[8, 0], &datagram()].concat();
        for length in 0..42 {
            assert!(parse(1, &frame[..length]).is_err());
        }
        assert_eq!(parse(1, &[&[0; 12][..], &[8, 6]].concat()), Err(SkipReason::Other));
    }
}
