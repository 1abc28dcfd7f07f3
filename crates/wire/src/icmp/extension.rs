//! ICMP extension with the MPLS label stack of the packet an error refers to (RFC 4884, RFC 4950).

use super::HEADER;
use crate::bytes::put;
use crate::checksum::checksum;
use crate::ip::{self, View, protocol, pseudo_header, v4, v6};
use crate::mpls::ENTRY;

/// Length of the quoted packet when an extension follows, in bytes (RFC 4884 section 4).
const QUOTED: usize = 128;
/// Sizes of the extension header (version, checksum) and the object header (length, class, type).
const STRUCTURE: usize = 4;
const OBJECT: usize = 4;
const VERSION: u8 = 2 << 4;
const LABEL_STACK: [u8; 2] = [1, 1];

/// Reasons why an extension cannot be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpExtensionError {
    /// Not a destination unreachable or time exceeded message (the only types that take the extension), or a
    /// malformed stack.
    NoPlace,
    /// Buffer too short.
    Buffer,
}

/// Appends a label stack to the ICMP message of `length` bytes in `answer` and returns its new length.
pub fn append_label_stack(
    answer: &mut [u8],
    length: usize,
    stack: &[u8],
) -> Result<usize, IcmpExtensionError> {
    let view = ip::View::new(answer.get(..length).ok_or(IcmpExtensionError::Buffer)?)
        .map_err(|_| IcmpExtensionError::NoPlace)?;
    let is_v6 = matches!(view, View::V6(_));
    let header = if is_v6 { v6::HEADER } else { v4::HEADER };
    let (source, destination) = (view.source(), view.destination());
    let has_place = match view.transport().map(|transport| (transport.protocol, transport.payload.first())) {
        Ok((protocol::ICMP, Some(kind))) => !is_v6 && matches!(kind, 3 | 11),
        Ok((protocol::ICMPV6, Some(kind))) => is_v6 && matches!(kind, 1 | 3),
        _ => false,
    };
    if !has_place || stack.is_empty() || !stack.len().is_multiple_of(ENTRY) {
        return Err(IcmpExtensionError::NoPlace);
    }
    let quote = header + HEADER;
    let end = quote + QUOTED + STRUCTURE + OBJECT + stack.len();
    let answer = answer.get_mut(..end).ok_or(IcmpExtensionError::Buffer)?;
    answer[length.min(quote + QUOTED)..].fill(0);
    let message = &mut answer[header..];
    // Length of the quoted packet: 32-bit words in ICMPv4, 64-bit words in ICMPv6 (RFC 4884 section 4).
    if is_v6 {
        message[4] = (QUOTED / 8) as u8;
    } else {
        message[5] = (QUOTED / 4) as u8;
    }
    let structure = &mut message[HEADER + QUOTED..];
    structure[0] = VERSION;
    put(structure, STRUCTURE, &((OBJECT + stack.len()) as u16).to_be_bytes());
    put(structure, STRUCTURE + 2, &LABEL_STACK);
    put(structure, STRUCTURE + OBJECT, stack);
    let sum = checksum(structure);
    put(structure, 2, &sum.to_be_bytes());

    put(message, 2, &[0, 0]);
    let sum = if is_v6 {
        pseudo_header(source, destination, protocol::ICMPV6, message.len() as u32).bytes(message).checksum()
    } else {
        checksum(message)
    };
    put(message, 2, &sum.to_be_bytes());
    if is_v6 {
        put(answer, 4, &((end - header) as u16).to_be_bytes());
    } else {
        put(answer, 2, &(end as u16).to_be_bytes());
        put(answer, 10, &[0, 0]);
        let sum = checksum(&answer[..header]);
        put(answer, 10, &sum.to_be_bytes());
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icmp;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use std::vec;

    const STACK: [u8; 8] = [0, 1, 0x40, 7, 0, 1, 0x51, 1];

    #[test]
    fn an_icmpv4_error_carries_the_label_stack() {
        let mut packet = vec![0; 60];
        (packet[0], packet[3], packet[8], packet[9]) = (0x45, 60, 1, protocol::UDP);
        packet[12..16].copy_from_slice(&[192, 0, 2, 1]);
        packet[16..20].copy_from_slice(&[198, 51, 100, 1]);
        let mut answer = vec![0xee; icmp::MAX_V4];
        let length = icmp::time_exceeded_v4(&packet, Ipv4Addr::new(203, 0, 113, 1), &mut answer).unwrap();
        let longer = append_label_stack(&mut answer, length, &STACK).unwrap();
        assert_eq!(longer, 20 + 8 + 128 + 8 + 8);
        let view = v4::View::new(&answer[..longer]).unwrap();
        assert!(view.is_checksum_valid());
        assert_eq!(view.packet().len(), longer);
        let message = view.transport().payload;
        assert_eq!(checksum(message), 0, "checksum over a valid message");
        assert_eq!(message[5], 32, "quoted 32-bit words");
        assert_eq!(message[8..68], packet);
        assert!(message[68..136].iter().all(|byte| *byte == 0));
        assert_eq!(checksum(&message[136..]), 0);
        assert_eq!(message[136], 0x20);
        assert_eq!(message[140..144], [0, 12, 1, 1]);
        assert_eq!(message[144..], STACK);
    }

    #[test]
    fn a_longer_quote_over_icmpv6_is_cut_to_128_bytes() {
        let mut packet = vec![7; 400];
        packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 1, 0x68, protocol::UDP, 1]);
        packet[8..40].fill(0);
        (packet[8], packet[9], packet[23], packet[24], packet[39]) = (0x20, 1, 1, 0x20, 2);
        let mut answer = vec![0xee; icmp::MAX_V6];
        let source = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
        let length = icmp::time_exceeded_v6(&packet, source, &mut answer).unwrap();
        let shorter = append_label_stack(&mut answer, length, &STACK).unwrap();
        assert_eq!(shorter, 40 + 8 + 128 + 8 + 8);
        let view = v6::View::new(&answer[..shorter]).unwrap();
        assert_eq!(view.packet().len(), shorter);
        let message = view.transport().unwrap().payload;
        let sum = pseudo_header(view.source().into(), view.destination().into(), 58, message.len() as u32);
        assert_eq!(sum.bytes(message).folded(), 0xffff);
        assert_eq!(message[4], 16, "quoted 64-bit words");
        assert_eq!(message[8..136], packet[..128]);
        assert_eq!(message[144..], STACK);
    }

    #[test]
    fn other_messages_take_no_extension() {
        let mut answer = vec![0; 600];
        assert_eq!(append_label_stack(&mut answer, 100, &STACK), Err(IcmpExtensionError::NoPlace));
        (answer[0], answer[3], answer[9], answer[20]) = (0x45, 100, protocol::ICMP, 8);
        assert_eq!(append_label_stack(&mut answer, 100, &STACK), Err(IcmpExtensionError::NoPlace));
        answer[20] = 11;
        assert_eq!(append_label_stack(&mut answer, 100, &STACK[..3]), Err(IcmpExtensionError::NoPlace));
        assert_eq!(append_label_stack(&mut answer[..150], 100, &STACK), Err(IcmpExtensionError::Buffer));
        assert_eq!(append_label_stack(&mut answer, 700, &STACK), Err(IcmpExtensionError::Buffer));
        assert!(append_label_stack(&mut answer, 100, &STACK).is_ok());
    }
}
