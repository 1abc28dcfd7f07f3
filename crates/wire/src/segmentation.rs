//! Segmentation and checksum offload: super-packets that a host passes to its interface as one, to be cut
//! into packets for the wire, and checksums that the host leaves unfinished.
//!
//! The header before each frame is that of the virtio network device (Virtual I/O Device version 1.2,
//! section 5.1.6). The kernel's packet sockets and TAP devices use it too.

use crate::bytes::{put, u16_at, u32_at};
use crate::checksum::Sum;
use crate::ethernet::{self, ethertype};
use crate::ip::{self, Fragment, protocol, pseudo_header, v4, v6};
use crate::tcp::{self, flag};
use core::net::IpAddr;

/// Length of the header, bytes.
pub const HEADER: usize = 10;

/// Flag: the checksum is unfinished.
const NEEDS_CHECKSUM: u8 = 1;
/// Segmentation types, and a flag that may accompany them.
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
const ECN: u8 = 0x80;

/// Work left to be done for a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Unfinished checksum.
    pub checksum: Option<Checksum>,
    /// Segment size for a super-packet: payload bytes of each packet.
    pub segment: Option<u16>,
}

/// Unfinished checksum: its field contains the sum over the pseudo-header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Offset of the covered bytes in the frame.
    pub start: u16,
    /// Offset of the checksum field from `start`.
    pub offset: u16,
}

/// Error for an unsupported offload, or for a frame that does not match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedOffload;

impl Offload {
    /// Decodes a header with fields in native byte order.
    #[inline]
    pub fn from_bytes(bytes: [u8; HEADER]) -> Result<Offload, UnsupportedOffload> {
        let [flags, kind, _, _, s0, s1, c0, c1, o0, o1] = bytes;
        let checksum = (flags & NEEDS_CHECKSUM != 0)
            .then(|| Checksum { start: u16::from_ne_bytes([c0, c1]), offset: u16::from_ne_bytes([o0, o1]) });
        let segment = match kind & !ECN {
            0 => None,
            TCP_V4 | TCP_V6 | UDP => Some(u16::from_ne_bytes([s0, s1])),
            _ => return Err(UnsupportedOffload),
        };
        Ok(Offload { checksum, segment })
    }
}

impl Checksum {
    /// Computes the checksum and writes it into the frame. `moved` is the number of bytes inserted before
    /// `start` since the header was written, such as a VLAN tag.
    pub fn finish(self, frame: &mut [u8], moved: usize) -> Result<(), UnsupportedOffload> {
        let start = usize::from(self.start) + moved;
        let field = start + usize::from(self.offset);
        if field + 2 > frame.len() {
            return Err(UnsupportedOffload);
        }
        let checksum = Sum::ZERO.bytes(&frame[start..]).checksum();
        // In UDP, zero means "no checksum" (RFC 768); in TCP both values are equivalent.
        put(frame, field, &if checksum == 0 { 0xffff } else { checksum }.to_be_bytes());
        Ok(())
    }
}

/// Iterator over the packets of a super-packet with TCP or UDP.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    frame: &'a [u8],
    /// Offsets of the IP packet, the transport header and the payload in the frame.
    network: usize,
    transport: usize,
    payload: usize,
    is_tcp: bool,
    addresses: (IpAddr, IpAddr),
    /// Payload bytes of each packet.
    size: usize,
    /// Payload bytes and packets already written.
    done: usize,
    count: u16,
}

impl<'a> Segments<'a> {
    /// Starts to cut a frame with TCP or UDP over IP into packets with `size` bytes of payload each.
    pub fn new(frame: &'a [u8], size: u16) -> Result<Segments<'a>, UnsupportedOffload> {
        let ethernet = ethernet::View::new(frame).map_err(|_| UnsupportedOffload)?;
        let packet = match ethernet.kind() {
            ethertype::IPV4 | ethertype::IPV6 => {
                ip::View::new(ethernet.payload()).map_err(|_| UnsupportedOffload)?
            }
            _ => return Err(UnsupportedOffload),
        };
        let transport = packet.transport().map_err(|_| UnsupportedOffload)?;
        let header = match transport.protocol {
            protocol::TCP => {
                tcp::View::new(transport.payload).map_err(|_| UnsupportedOffload)?.header_length()
            }
            protocol::UDP if transport.payload.len() >= UDP_HEADER => UDP_HEADER,
            _ => return Err(UnsupportedOffload),
        };
        if size == 0 || transport.fragment != Fragment::Whole {
            return Err(UnsupportedOffload);
        }
        let network = ethernet.payload_offset();
        Ok(Segments {
            frame: &frame[..network + packet.packet().len()],
            network,
            transport: network + transport.offset,
            payload: network + transport.offset + header,
            is_tcp: transport.protocol == protocol::TCP,
            addresses: (packet.source(), packet.destination()),
            size: size.into(),
            done: 0,
            count: 0,
        })
    }

    /// Returns the length of the longest frame, bytes.
    pub fn max_frame_length(&self) -> usize {
        (self.payload + self.size).min(self.frame.len())
    }

    /// Writes the next frame to the start of `buffer` and returns its length. Returns `None` after the last
    /// frame, or if the buffer is shorter than [`max_frame_length`](Segments::max_frame_length).
    pub fn write(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let left = &self.frame[self.payload + self.done..];
        if left.is_empty() && self.count > 0 || buffer.len() < self.max_frame_length() {
            return None;
        }
        let (is_first, is_last) = (self.count == 0, left.len() <= self.size);
        let part = &left[..left.len().min(self.size)];
        let bytes = &mut buffer[..self.payload + part.len()];
        put(bytes, 0, &self.frame[..self.payload]);
        put(bytes, self.payload, part);
        self.write_network(&mut bytes[self.network..]);
        let segment = &mut bytes[self.transport..];
        if self.is_tcp {
            let sequence = u32_at(segment, 4).wrapping_add(self.done as u32);
            put(segment, 4, &sequence.to_be_bytes());
            // Only the first segment keeps CWR, only the last keeps FIN and PSH.
            let first_only = if is_first { 0 } else { flag::CWR };
            let last_only = if is_last { 0 } else { flag::FIN | flag::PSH };
            segment[13] &= !(first_only | last_only);
        } else {
            let length = segment.len() as u16;
            put(segment, 4, &length.to_be_bytes());
        }
        self.write_checksum(segment);
        self.done += part.len();
        self.count += 1;
        Some(bytes.len())
    }

    fn write_network(&self, packet: &mut [u8]) {
        if packet[0] >> 4 == 6 {
            let length = (packet.len() - v6::HEADER) as u16;
            put(packet, 4, &length.to_be_bytes());
            return;
        }
        let (length, number) = (packet.len() as u16, u16_at(packet, 4).wrapping_add(self.count));
        put(packet, 2, &length.to_be_bytes());
        put(packet, 4, &number.to_be_bytes());
        put(packet, 10, &[0, 0]);
        let header = usize::from(packet[0] & 0xf) * 4;
        let checksum = Sum::ZERO.bytes(&packet[..header]).checksum();
        put(packet, 10, &checksum.to_be_bytes());
        debug_assert!(header >= v4::HEADER, "the header length was checked");
    }

    fn write_checksum(&self, segment: &mut [u8]) {
        let (field, protocol) = if self.is_tcp { (16, protocol::TCP) } else { (6, protocol::UDP) };
        put(segment, field, &[0, 0]);
        let (source, destination) = self.addresses;
        let sum = pseudo_header(source, destination, protocol, segment.len() as u32);
        let checksum = sum.bytes(segment).checksum();
        put(segment, field, &if checksum == 0 { 0xffff } else { checksum }.to_be_bytes());
    }
}

const UDP_HEADER: usize = crate::UDP_HEADER as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::{self, ZeroChecksum};
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// Frame with `tags` VLAN tags and TCP or UDP over IPv4 or IPv6.
    fn frame(tags: usize, is_v6: bool, is_tcp: bool, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut transport = if is_tcp {
            let mut header =
                vec![0x12, 0x34, 0, 80, 0xff, 0xff, 0xff, 0x00, 0, 0, 0, 2, 0x80, flags, 1, 0, 0, 0, 0, 0];
            header.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
            header
        } else {
            vec![0x12, 0x34, 0, 53, 0, 0, 0, 0]
        };
        transport.extend(payload);
        let protocol = if is_tcp { protocol::TCP } else { protocol::UDP };
        let mut packet = if is_v6 {
            let mut header = vec![0; v6::HEADER];
            (header[0], header[6], header[7]) = (0x60, protocol, 64);
            header[4..6].copy_from_slice(&(transport.len() as u16).to_be_bytes());
            (header[23], header[39]) = (1, 2);
            header
        } else {
            let mut header = vec![0; v4::HEADER];
            (header[0], header[8], header[9]) = (0x45, 64, protocol);
            header[2..4].copy_from_slice(&((v4::HEADER + transport.len()) as u16).to_be_bytes());
            header[4..6].copy_from_slice(&[0xff, 0xff]);
            header[12..16].copy_from_slice(&[192, 0, 2, 1]);
            header[16..20].copy_from_slice(&[192, 0, 2, 2]);
            header
        };
        packet.extend(transport);
        let mut frame = vec![2; 12];
        for _ in 0..tags {
            frame.extend([0x81, 0x00, 0, 7]);
        }
        frame.extend(if is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        frame.extend(packet);
        frame
    }

    fn cut(frame: &[u8], size: u16) -> Vec<Vec<u8>> {
        let mut segments = Segments::new(frame, size).unwrap();
        let mut buffer = vec![0xaa; segments.max_frame_length()];
        core::iter::from_fn(|| segments.write(&mut buffer).map(|length| buffer[..length].to_vec())).collect()
    }

    proptest! {
        #[test]
        fn segments_are_valid_and_carry_the_payload_in_order(
            tags in 0_usize..3,
            is_v6: bool,
            is_tcp: bool,
            payload in proptest::collection::vec(any::<u8>(), 1..6000),
            size in 1_u16..2000,
        ) {
            let whole = frame(tags, is_v6, is_tcp, flag::ACK | flag::PSH | flag::FIN | flag::CWR, &payload);
            let cut = cut(&whole, size);
            prop_assert_eq!(cut.len(), payload.len().div_ceil(size.into()));
            let mut joined: Vec<u8> = Vec::new();
            for (number, segment) in cut.iter().enumerate() {
                let view = ethernet::View::new(segment).unwrap();
                prop_assert_eq!(view.tags().count(), tags);
                let packet = ip::View::new(view.payload()).unwrap();
                prop_assert_eq!(packet.packet().len(), view.payload().len());
                if let ip::View::V4(view) = packet {
                    prop_assert!(view.is_checksum_valid());
                    prop_assert_eq!(view.identification(), 0xffff_u16.wrapping_add(number as u16));
                }
                let transport = packet.transport().unwrap();
                let length = transport.payload.len() as u32;
                let sum = pseudo_header(packet.source(), packet.destination(), transport.protocol, length);
                prop_assert_eq!(sum.bytes(transport.payload).folded(), 0xffff);
                if is_tcp {
                    let tcp = tcp::View::new(transport.payload).unwrap();
                    prop_assert_eq!(tcp.sequence(), 0xffff_ff00_u32.wrapping_add(joined.len() as u32));
                    prop_assert_eq!(tcp.flags() & flag::CWR != 0, number == 0);
                    prop_assert_eq!(tcp.flags() & flag::FIN != 0, number == cut.len() - 1);
                    prop_assert_eq!(tcp.flags() & flag::PSH != 0, number == cut.len() - 1);
                    prop_assert_eq!(tcp.flags() & flag::ACK, flag::ACK);
                    joined.extend(tcp.payload());
                } else {
                    let udp = udp::View::new(transport.payload).unwrap();
                    prop_assert!(udp.is_checksum_valid(sum, ZeroChecksum::Rejected));
                    joined.extend(udp.payload());
                }
            }
            prop_assert_eq!(joined, payload);
        }

        #[test]
        fn arbitrary_input_never_panics(bytes: Vec<u8>, header: [u8; HEADER], size: u16, moved in 0_usize..9) {
            if let Ok(offload) = Offload::from_bytes(header)
                && let Some(checksum) = offload.checksum
            {
                let _ = checksum.finish(&mut bytes.clone(), moved);
            }
            let mut frame = frame(0, false, true, 0, &bytes);
            for (at, byte) in bytes.iter().take(40).enumerate() {
                frame[14 + at] ^= byte & byte.rotate_left(3);
            }
            if let Ok(mut segments) = Segments::new(&frame, size.max(1000)) {
                let mut buffer = vec![0; segments.max_frame_length()];
                while segments.write(&mut buffer).is_some() {}
            }
        }
    }

    #[test]
    fn an_unfinished_checksum_is_completed() {
        for (is_v6, is_tcp, moved) in [(false, true, 0), (true, false, 4)] {
            let mut frame = frame(moved / 4, is_v6, is_tcp, flag::SYN, b"odd");
            let start = 14 + if is_v6 { v6::HEADER } else { v4::HEADER };
            let offset = if is_tcp { 16 } else { 6 };
            let view = ethernet::View::new(&frame).unwrap();
            let packet = ip::View::new(view.payload()).unwrap();
            let transport = packet.transport().unwrap();
            let length = transport.payload.len() as u32;
            let sum = pseudo_header(packet.source(), packet.destination(), transport.protocol, length);
            put(&mut frame, start + moved + offset, &sum.folded().to_be_bytes());
            let checksum = Checksum { start: start as u16, offset: offset as u16 };
            checksum.finish(&mut frame, moved).unwrap();
            assert_eq!(sum.bytes(&frame[start + moved..]).folded(), 0xffff);
            assert_eq!(checksum.finish(&mut frame[..start], moved), Err(UnsupportedOffload));
        }
    }

    #[test]
    fn the_header_matches_the_kernel() {
        let mut bytes = [0; HEADER];
        assert_eq!(Offload::from_bytes(bytes), Ok(Offload::default()));
        (bytes[0], bytes[1]) = (NEEDS_CHECKSUM, TCP_V4 | ECN);
        bytes[4..6].copy_from_slice(&1448_u16.to_ne_bytes());
        bytes[6..8].copy_from_slice(&34_u16.to_ne_bytes());
        bytes[8..10].copy_from_slice(&16_u16.to_ne_bytes());
        let expected = Offload { checksum: Some(Checksum { start: 34, offset: 16 }), segment: Some(1448) };
        assert_eq!(Offload::from_bytes(bytes), Ok(expected));
        bytes[1] = 3;
        assert_eq!(
            Offload::from_bytes(bytes),
            Err(UnsupportedOffload),
            "UDP fragmentation offload is obsolete"
        );
    }
}
