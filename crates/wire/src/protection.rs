//! What gateways put around a packet to protect it on its way through a network that is not theirs: sizes only,
//! since other people's programs do it.

use crate::{IPV4_HEADER, UDP_HEADER};

/// How a tunnel protects packets. All of it travels in UDP over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// ESP in tunnel mode (RFC 4303) in UDP (RFC 3948).
    Esp(Cipher),
    /// WireGuard's transport data message.
    WireGuard,
    /// OpenVPN's data packet, version 2.
    OpenVpn(Cipher),
}

/// What encrypts and authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-GCM with a key of 128 bits (RFC 4106).
    Aes128Gcm,
    /// AES-GCM with a key of 256 bits (RFC 4106).
    Aes256Gcm,
    /// ChaCha20 and Poly1305 (RFC 7634).
    ChaCha20Poly1305,
    /// Triple DES in CBC mode (RFC 2451) and HMAC-SHA-1-96 (RFC 2404).
    TripleDesSha1,
}

/// Security parameters index and sequence number, and behind the payload the length of the padding and the
/// next header.
const ESP: u32 = 8 + 2;
/// Type, receiver and counter.
const WIREGUARD: u32 = 16;
/// Operation code with the peer's number, and the packet's.
const OPENVPN: u32 = 4 + 4;
/// Tag of GCM and Poly1305.
const TAG: u32 = 16;

impl Protection {
    /// Bytes around a packet of so many, the padding that one of this size needs included.
    pub const fn overhead(self, packet: u32) -> u32 {
        let protected = match self {
            Protection::Esp(Cipher::TripleDesSha1) => ESP + padding(packet + 2, 8) + 8 + 12,
            Protection::Esp(_) => ESP + padding(packet + 2, 4) + 8 + TAG,
            Protection::WireGuard => WIREGUARD + padding(packet, 16) + TAG,
            Protection::OpenVpn(_) => OPENVPN + TAG,
        };
        IPV4_HEADER + UDP_HEADER + protected
    }
}

/// Up to the next whole block.
const fn padding(bytes: u32, block: u32) -> u32 {
    bytes.next_multiple_of(block) - bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_packets_on_the_wire() {
        // By hand: 20 + 8, SPI and number 8, vector 8, trailer 2, tag 16; 1402 + 2 bytes fill blocks of four.
        assert_eq!(Protection::Esp(Cipher::Aes128Gcm).overhead(1402), 62);
        assert_eq!(Protection::Esp(Cipher::Aes256Gcm).overhead(1400), 64);
        assert_eq!(Protection::Esp(Cipher::TripleDesSha1).overhead(1400), 64);
        assert_eq!(Protection::WireGuard.overhead(1408), 60);
        assert_eq!(Protection::OpenVpn(Cipher::Aes128Gcm).overhead(1400), 52);
    }
}
