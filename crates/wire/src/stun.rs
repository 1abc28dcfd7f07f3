//! STUN binding messages (RFC 8489): requests for the own address as others see it, checks of a path as in ICE (RFC
//! 8445), and indications that keep the mapping of a NAT. Comprehends the attributes that these need; others are
//! ignored. The caller computes and compares the keyed hash of MESSAGE-INTEGRITY-SHA256.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Length of a message without attributes, bytes.
pub const HEADER: usize = 20;
/// Maximum length of a written message, bytes.
pub const MAX_MESSAGE: usize = 128;
/// Length of the keyed hash (HMAC-SHA-256), bytes.
pub const HASH: usize = 32;

const COOKIE: [u8; 4] = 0x2112_a442_u32.to_be_bytes();
const ATTRIBUTE_HEADER: usize = 4;
const USERNAME: u16 = 0x0006;
const MESSAGE_INTEGRITY_SHA256: u16 = 0x001c;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const USE_CANDIDATE: u16 = 0x0025;

/// Random identifier by which a response refers to its request.
pub type TransactionId = [u8; 12];

/// Returns whether the beginning of a datagram is that of a STUN message.
pub fn is_message(bytes: &[u8]) -> bool {
    bytes.get(4..8) == Some(&COOKIE) && bytes[0] < 4
}

/// Class of a binding message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageClass {
    /// Request, which is answered.
    Request,
    /// Indication, which is not answered.
    Indication,
    /// Success response.
    Success,
}

impl MessageClass {
    /// Returns the message type: the method Binding, and the bits of the class.
    fn message_type(self) -> u16 {
        match self {
            MessageClass::Request => 0x0001,
            MessageClass::Indication => 0x0011,
            MessageClass::Success => 0x0101,
        }
    }
}

/// Received binding message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Class of the message.
    pub class: MessageClass,
    /// Identifier of the transaction.
    pub transaction: TransactionId,
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// Parses a datagram that consists of one binding message.
    pub fn read(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (header, attributes) = bytes.split_first_chunk::<HEADER>()?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if length != attributes.len() || header[4..8] != COOKIE {
            return None;
        }
        let kind = u16::from_be_bytes([header[0], header[1]]);
        let classes = [MessageClass::Request, MessageClass::Indication, MessageClass::Success];
        let class = classes.into_iter().find(|class| class.message_type() == kind)?;
        Some(Message { class, transaction: *header[8..].first_chunk()?, bytes })
    }

    /// Returns the value of the first attribute of a type, and the offset at which the attribute begins.
    fn attribute(&self, wanted: u16) -> Option<(&'a [u8], usize)> {
        let mut offset = HEADER;
        loop {
            let header = self.bytes.get(offset..)?.first_chunk::<ATTRIBUTE_HEADER>()?;
            let (kind, length) =
                (u16::from_be_bytes([header[0], header[1]]), u16::from_be_bytes([header[2], header[3]]));
            let begin = offset + ATTRIBUTE_HEADER;
            let value = self.bytes.get(begin..begin + usize::from(length))?;
            if kind == wanted {
                return Some((value, offset));
            }
            offset = begin + usize::from(length).next_multiple_of(4);
        }
    }

    /// Returns the address from which the request arrived at the responder (XOR-MAPPED-ADDRESS).
    pub fn mapped_address(&self) -> Option<SocketAddr> {
        let (value, _) = self.attribute(XOR_MAPPED_ADDRESS)?;
        let (&[_, family, port_high, port_low], address) = value.split_first_chunk::<4>()?;
        let port = u16::from_be_bytes([port_high ^ COOKIE[0], port_low ^ COOKIE[1]]);
        let mask = address_mask(&self.transaction);
        let ip = match family {
            1 => IpAddr::from(unmasked::<4>(address, &mask)?),
            2 => IpAddr::from(unmasked::<16>(address, &mask)?),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }

    /// Returns the user name.
    pub fn username(&self) -> Option<&'a [u8]> {
        self.attribute(USERNAME).map(|(value, _)| value)
    }

    /// Returns whether the sender has selected the path on which the request arrived (USE-CANDIDATE).
    pub fn uses_candidate(&self) -> bool {
        self.attribute(USE_CANDIDATE).is_some()
    }

    /// Returns the bytes over which MESSAGE-INTEGRITY-SHA256 was computed, and its value. The attribute has to be the
    /// last one, so that it covers all others.
    pub fn integrity(&self) -> Option<(&'a [u8], &'a [u8; HASH])> {
        let (value, offset) = self.attribute(MESSAGE_INTEGRITY_SHA256)?;
        let is_last = offset + ATTRIBUTE_HEADER + HASH == self.bytes.len();
        Some((&self.bytes[..offset], value.try_into().ok().filter(|_| is_last)?))
    }
}

/// Returns what is combined with the bytes of a mapped address by exclusive or.
fn address_mask(transaction: &TransactionId) -> [u8; 16] {
    let mut mask = [0; 16];
    mask[..4].copy_from_slice(&COOKIE);
    mask[4..].copy_from_slice(transaction);
    mask
}

fn unmasked<const LENGTH: usize>(bytes: &[u8], mask: &[u8; 16]) -> Option<[u8; LENGTH]> {
    let mut address: [u8; LENGTH] = bytes.try_into().ok()?;
    address.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    Some(address)
}

/// Binding message that is being written. Attributes that would exceed [`MAX_MESSAGE`] are a programming error.
#[derive(Clone, Debug)]
pub struct MessageWriter {
    bytes: [u8; MAX_MESSAGE],
    length: usize,
}

impl MessageWriter {
    /// Begins a message without attributes.
    pub fn new(class: MessageClass, transaction: TransactionId) -> MessageWriter {
        let mut bytes = [0; MAX_MESSAGE];
        bytes[..2].copy_from_slice(&class.message_type().to_be_bytes());
        bytes[4..8].copy_from_slice(&COOKIE);
        bytes[8..HEADER].copy_from_slice(&transaction);
        MessageWriter { bytes, length: HEADER }
    }

    /// Adds the user name.
    ///
    /// # Panics
    ///
    /// Panics if the message becomes longer than [`MAX_MESSAGE`], like the other methods that add attributes.
    pub fn username(mut self, name: &[u8]) -> MessageWriter {
        self.add(USERNAME, name);
        self
    }

    /// Adds the mark that the sender has selected this path.
    pub fn use_candidate(mut self) -> MessageWriter {
        self.add(USE_CANDIDATE, &[]);
        self
    }

    /// Adds the address from which a request arrived.
    pub fn mapped_address(mut self, address: SocketAddr) -> MessageWriter {
        let transaction = self.bytes[8..HEADER].try_into().expect("the header contains the identifier");
        let mask = address_mask(&transaction);
        let mut value = [0; 20];
        let port = address.port().to_be_bytes();
        (value[2], value[3]) = (port[0] ^ mask[0], port[1] ^ mask[1]);
        let mut write = |family: u8, octets: &[u8]| {
            value[1] = family;
            value[4..].iter_mut().zip(octets).zip(mask).for_each(|((to, byte), mask)| *to = byte ^ mask);
            4 + octets.len()
        };
        let length = match address.ip() {
            IpAddr::V4(address) => write(1, &Ipv4Addr::octets(&address)),
            IpAddr::V6(address) => write(2, &Ipv6Addr::octets(&address)),
        };
        self.add(XOR_MAPPED_ADDRESS, &value[..length]);
        self
    }

    /// Adds the keyed hash of the bytes so far, with which the message ends.
    pub fn integrity(mut self, hash: impl FnOnce(&[u8]) -> [u8; HASH]) -> MessageWriter {
        // The hash covers a header whose length includes the hash (RFC 8489 section 14.6).
        let covered = self.length;
        self.add(MESSAGE_INTEGRITY_SHA256, &[0; HASH]);
        let value = hash(&self.bytes[..covered]);
        self.bytes[covered + ATTRIBUTE_HEADER..self.length].copy_from_slice(&value);
        self
    }

    /// Returns the bytes of the message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn add(&mut self, kind: u16, value: &[u8]) {
        let begin = self.length + ATTRIBUTE_HEADER;
        self.bytes[self.length..][..2].copy_from_slice(&kind.to_be_bytes());
        self.bytes[self.length + 2..][..2].copy_from_slice(&(value.len() as u16).to_be_bytes());
        self.bytes[begin..][..value.len()].copy_from_slice(value);
        self.length = begin + value.len().next_multiple_of(4);
        let attributes = (self.length - HEADER) as u16;
        self.bytes[2..4].copy_from_slice(&attributes.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const TRANSACTION: TransactionId =
        [0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa, 0x87, 0xdf, 0xae];

    #[test]
    fn mapped_addresses_are_those_of_rfc_5769() {
        // The addresses of the sample responses, sections 2.2 and 2.3.
        for (address, encoded) in [
            ("192.0.2.1:32853", "0001a147e112a643"),
            ("[2001:db8:1234:5678:11:2233:4455:6677]:32853", "0002a1470113a9faa5d3f179bc25f4b5bed2b9d9"),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            let writer = MessageWriter::new(MessageClass::Success, TRANSACTION).mapped_address(address);
            let hexadecimal = |bytes: &[u8]| -> Vec<u8> {
                bytes
                    .iter()
                    .flat_map(|byte| [byte >> 4, byte & 15])
                    .map(|digit| b"0123456789abcdef"[usize::from(digit)])
                    .collect()
            };
            assert_eq!(hexadecimal(&writer.as_bytes()[HEADER + ATTRIBUTE_HEADER..]), encoded.as_bytes());
            let message = Message::read(writer.as_bytes()).unwrap();
            assert_eq!((message.class, message.mapped_address()), (MessageClass::Success, Some(address)));
        }
    }

    #[test]
    fn a_check_contains_its_attributes_and_covers_them() {
        let writer =
            MessageWriter::new(MessageClass::Request, TRANSACTION).username(b"7/12/s").use_candidate();
        let covered = writer.as_bytes().len();
        let writer = writer.integrity(|bytes| [bytes.len() as u8; HASH]);
        let message = Message::read(writer.as_bytes()).unwrap();
        assert_eq!(message.username(), Some(&b"7/12/s"[..]));
        assert!(message.uses_candidate() && message.mapped_address().is_none());
        let (bytes, hash) = message.integrity().unwrap();
        assert_eq!((bytes.len(), hash), (covered, &[covered as u8; HASH]));
        // An attribute after the hash is not covered.
        let mut longer = writer.as_bytes().to_vec();
        longer.extend([0x80, 0x28, 0, 0]);
        longer[3] += 4;
        assert!(Message::read(&longer).unwrap().integrity().is_none());
    }

    #[test]
    fn incomplete_messages_are_rejected() {
        let writer = MessageWriter::new(MessageClass::Request, TRANSACTION).username(b"name");
        let bytes = writer.as_bytes();
        for length in 0..bytes.len() {
            assert!(Message::read(&bytes[..length]).is_none(), "{length}");
        }
        for position in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[position] ^= 0xff;
            // Any result is fine, as long as reading ends.
            if let Some(message) = Message::read(&changed) {
                let _ = (message.username(), message.integrity(), message.mapped_address());
            }
        }
    }
}
