//! Address resolution for IPv4 on Ethernet (RFC 826, RFC 5227).

use crate::bytes::{put, u16_at};
use crate::ethernet::{Mac, Short, ethertype};
use core::net::Ipv4Addr;

/// A message; what pads the frame follows.
pub const MESSAGE: usize = 28;

/// Ethernet (IANA, ARP hardware types).
const ETHERNET: u16 = 1;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Asks who has an address.
    Request,
    /// Tells.
    Reply,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// They end early.
    Short,
    /// Of other hardware or protocols than Ethernet and IPv4.
    OtherKind,
    /// Neither request nor reply.
    Operation(u16),
    /// The sender's address is a group's, or zero.
    Sender,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is for.
    pub operation: Operation,
    /// The sender's station.
    pub sender_mac: Mac,
    /// The sender's address; unspecified where it only asks whether one is free (RFC 5227).
    pub sender: Ipv4Addr,
    /// The station it is for; nothing in a request.
    pub target_mac: Mac,
    /// The address asked for, or that of the station it is for.
    pub target: Ipv4Addr,
}

impl Message {
    /// Reads a message.
    pub fn read(bytes: &[u8]) -> Result<Message, Error> {
        let bytes = bytes.first_chunk::<MESSAGE>().ok_or(Error::Short)?;
        if u16_at(bytes, 0) != ETHERNET || u16_at(bytes, 2) != ethertype::IPV4 || bytes[4..6] != [6, 4] {
            return Err(Error::OtherKind);
        }
        let operation = match u16_at(bytes, 6) {
            1 => Operation::Request,
            2 => Operation::Reply,
            other => return Err(Error::Operation(other)),
        };
        let mac = |at: usize| -> Mac { core::array::from_fn(|byte| bytes[at + byte]) };
        let address = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let sender_mac = mac(8);
        if sender_mac[0] & 1 == 1 || sender_mac == [0; 6] {
            return Err(Error::Sender);
        }
        Ok(Message { operation, sender_mac, sender: address(14), target_mac: mac(18), target: address(24) })
    }

    /// Writes it, and gives its length.
    pub fn write(&self, bytes: &mut [u8]) -> Result<usize, Short> {
        let bytes = bytes.get_mut(..MESSAGE).ok_or(Short)?;
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

    /// A request as Linux sends it.
    #[rustfmt::skip]
    const REQUEST: [u8; MESSAGE] = [
        0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 3, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 254,
    ];

    #[test]
    fn a_request_is_read_and_written() {
        let message = Message {
            operation: Operation::Request,
            sender_mac: [2, 0, 0, 0, 0, 3],
            sender: [10, 0, 0, 1].into(),
            target_mac: [0; 6],
            target: [10, 0, 0, 254].into(),
        };
        assert_eq!(Message::read(&REQUEST), Ok(message));
        let mut bytes = [0xee; MESSAGE];
        assert_eq!(message.write(&mut bytes), Ok(MESSAGE));
        assert_eq!(bytes, REQUEST);
        assert_eq!(message.write(&mut bytes[1..]), Err(Short));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = REQUEST;
            bytes[at] = byte;
            Message::read(&bytes).unwrap_err()
        };
        assert_eq!(Message::read(&REQUEST[..27]), Err(Error::Short));
        for at in [1, 2, 4, 5] {
            assert_eq!(with(at, 9), Error::OtherKind);
        }
        assert_eq!((with(7, 3), with(8, 1)), (Error::Operation(3), Error::Sender));
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_read_as_they_are_written(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(message) = Message::read(&bytes) {
                let mut written = [0; MESSAGE];
                message.write(&mut written).unwrap();
                prop_assert_eq!(&written[..], &bytes[..MESSAGE]);
            }
        }
    }
}
