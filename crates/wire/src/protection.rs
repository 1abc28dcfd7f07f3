//! Per-packet overhead of the VPN protocols used between gateways across a foreign network. Encryption
//! itself is done by other programs.

use crate::{IPV4_HEADER, UDP_HEADER};

/// Tunnel protocol that protects packets. All run over UDP and IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// ESP in tunnel mode (RFC 4303) in UDP (RFC 3948).
    Esp(Cipher),
    /// WireGuard transport data message.
    WireGuard,
    /// OpenVPN data packet, version 2.
    OpenVpn(Cipher),
}

/// Cipher and authentication algorithm.
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

/// ESP fields of fixed size: SPI and sequence number before the payload, pad length and next header after
/// it.
const ESP: u32 = 8 + 2;
/// WireGuard message header: type, receiver index and counter.
const WIREGUARD: u32 = 16;
/// OpenVPN data header: opcode with peer ID, and packet ID.
const OPENVPN: u32 = 4 + 4;
/// Authentication tag of AES-GCM and Poly1305.
const TAG: u32 = 16;

impl Protection {
    /// Returns the bytes added to a packet of `packet` bytes, including its padding.
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

/// Returns the bytes that pad `bytes` to a multiple of `block`.
const fn padding(bytes: u32, block: u32) -> u32 {
    bytes.next_multiple_of(block) - bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_matches_packets_on_the_wire() {
        // Calculated by hand: 20 + 8, SPI and sequence number 8, IV 8, trailer 2, tag 16; 1402 + 2 bytes are
        // a multiple of four.
        assert_eq!(Protection::Esp(Cipher::Aes128Gcm).overhead(1402), 62);
        assert_eq!(Protection::Esp(Cipher::Aes256Gcm).overhead(1400), 64);
        assert_eq!(Protection::Esp(Cipher::TripleDesSha1).overhead(1400), 64);
        assert_eq!(Protection::WireGuard.overhead(1408), 60);
        assert_eq!(Protection::OpenVpn(Cipher::Aes128Gcm).overhead(1400), 52);
    }
}
