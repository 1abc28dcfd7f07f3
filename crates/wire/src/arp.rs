//! Address resolution for IPv4 on Ethernet (RFC 826, RFC 5227).

use crate::bytes::{put, u16_at};
use crate::ethernet::{Mac, ShortEthernetBuffer, ethertype};
use core::net::Ipv4Addr;

/// Length of a message in bytes, without the frame's padding.
pub const MESSAGE: usize = 28;

/// ARP hardware type of Ethernet (IANA).
const ETHERNET: u16 = 1;

/// Operation of an ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Query for the MAC address that belongs to an IPv4 address.
    Request,
    /// Answer to a request.
    Reply,
}

/// Reasons why bytes are not a valid ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpError {
    /// Fewer than [`MESSAGE`] bytes.
    Short,
    /// Hardware type other than Ethernet, or protocol type other than IPv4.
    OtherKind,
    /// Operation other than request and reply.
    Operation(u16),
    /// Sender MAC address that is a group address or zero.
    Sender,
}

/// ARP message for IPv4 on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpMessage {
    /// Operation code.
    pub operation: Operation,
    /// Sender's MAC address.
    pub sender_mac: Mac,
    /// Sender's IPv4 address; unspecified in an address probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// Target's MAC address; zero in a request.
    pub target_mac: Mac,
    /// Queried address in a request; address of the receiver in a reply.
    pub target: Ipv4Addr,
}

impl ArpMessage {
    /// Parses a message.
    pub fn read(bytes: &[u8]) -> Result<ArpMessage, ArpError> {
        let bytes = bytes.first_chunk::<MESSAGE>().ok_or(ArpError::Short)?;
        if u16_at(bytes, 0) != ETHERNET || u16_at(bytes, 2) != ethertype::IPV4 || bytes[4..6] != [6, 4] {
            return Err(ArpError::OtherKind);
        }
        let operation = match u16_at(bytes, 6) {
            1 => Operation::Request,
            2 => Operation::Reply,
            other => return Err(ArpError::Operation(other)),
        };
        let mac = |at: usize| -> Mac { core::array::from_fn(|byte| bytes[at + byte]) };
        let address = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let sender_mac = mac(8);
        if sender_mac[0] & 1 == 1 || sender_mac == [0; 6] {
            return Err(ArpError::Sender);
        }
        Ok(ArpMessage {
            operation,
            sender_mac,
            sender: address(14),
            target_mac: mac(18),
            target: address(24),
        })
    }

    /// Writes the message and returns its length.
    pub fn write(&self, bytes: &mut [u8]) -> Result<usize, ShortEthernetBuffer> {
        let bytes = bytes.get_mut(..MESSAGE).ok_or(ShortEthernetBuffer)?;
        put(bytes, 0, &ETHERNET.to_be_bytes());
        put(bytes, 2, &ethertype::IPV4.to_be_bytes());
        put(bytes, 4, &[6, 4]);
        let operation: u16 = if self.operation == Operation::Request { 1 } else { 2 };
        put(bytes, 6, &operation.to_be_bytes());
        put(bytes, 8, &self.sender_mac);
        put(bytes, 14, &self.sender.octets());
        put(bytes, 18, &self.target_mac);
        put(bytes, 24, &self.target.octets());
        Ok(MESSAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Request as sent by Linux.
    #[rustfmt::skip]
    const REQUEST: [u8; MESSAGE] = [
        0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 3, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 254,
    ];

    #[test]
    fn a_request_is_read_and_written() {
        let message = ArpMessage {
            operation: Operation::Request,
            sender_mac: [2, 0, 0, 0, 0, 3],
            sender: [10, 0, 0, 1].into(),
            target_mac: [0; 6],
            target: [10, 0, 0, 254].into(),
        };
        assert_eq!(ArpMessage::read(&REQUEST), Ok(message));
        let mut bytes = [0xee; MESSAGE];
        assert_eq!(message.write(&mut bytes), Ok(MESSAGE));
        assert_eq!(bytes, REQUEST);
        assert_eq!(message.write(&mut bytes[1..]), Err(ShortEthernetBuffer));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let with = |at: usize, byte: u8| {
            let mut bytes = REQUEST;
            bytes[at] = byte;
            ArpMessage::read(&bytes).unwrap_err()
        };
        assert_eq!(ArpMessage::read(&REQUEST[..27]), Err(ArpError::Short));
        for at in [1, 2, 4, 5] {
            assert_eq!(with(at, 9), ArpError::OtherKind);
        }
        assert_eq!((with(7, 3), with(8, 1)), (ArpError::Operation(3), ArpError::Sender));
    }

    proptest! {
        #[test]
        fn accepted_bytes_are_written_back_unchanged(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(message) = ArpMessage::read(&bytes) {
                let mut written = [0; MESSAGE];
                message.write(&mut written).unwrap();
                prop_assert_eq!(&written[..], &bytes[..MESSAGE]);
            }
        }
    }
}
