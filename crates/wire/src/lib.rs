//! Byte layouts that cross a process, kernel or machine.
//!
//! Also the one place for header sizes: simulator and dataplane count with these.
//!
//! ```
//! use netstage_wire::mpls::Entry;
//!
//! let entry = Entry::from_bytes([0, 0x12, 0xc1, 64]);
//! assert_eq!((entry.label.number(), entry.bottom, entry.ttl), (300, true, 64));
//! assert_eq!(entry.to_bytes(), [0, 0x12, 0xc1, 64]);
//! ```
//!
//! Invariant: no I/O, no allocation, no unsafe code; whatever the bytes, reading them gives a value or `None`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod arp;
mod bytes;
pub mod checksum;
pub mod ethernet;
pub mod gach;
pub mod icmp;
pub mod ip;
pub mod ldp;
pub mod loss_delay;
pub mod mpls;
pub mod mpls_in_udp;
pub mod neighbour_discovery;
pub mod probe;
mod protection;
pub mod reference;
pub mod segmentation;
pub mod stamp;
pub mod tcp;
mod timestamp;
pub mod udp;

pub use protection::{Cipher, Protection};

/// IPv4 header without options (RFC 791).
pub const IPV4_HEADER: u32 = 20;
/// IPv6 header (RFC 8200).
pub const IPV6_HEADER: u32 = 40;
/// UDP header (RFC 768).
pub const UDP_HEADER: u32 = 8;
/// TCP header without options (RFC 9293).
pub const TCP_HEADER: u32 = 20;
/// TCP timestamps option with its padding (RFC 7323 appendix A).
pub const TCP_TIMESTAMPS: u32 = 12;
/// TCP SACK option of `n` blocks with its padding is this plus 8 per block (RFC 2018).
pub const TCP_SACK_BASE: u32 = 4;
/// One block of a TCP SACK option (RFC 2018).
pub const TCP_SACK_BLOCK: u32 = 8;
/// MPLS label stack entry (RFC 3032).
pub const MPLS_LABEL: u32 = 4;
/// Associated channel header (RFC 5586).
pub const ACH_HEADER: u32 = 4;
/// RFC 6374 combined loss and delay measurement message, without TLVs.
pub const LOSS_DELAY_MESSAGE: u32 = 76;
/// The TLV of a management message that tells how many packets came with a congestion mark.
pub const MARKS_TLV: u32 = loss_delay::tlv::MARKS as u32;
/// A management packet from the VPN label down: label, GAL, channel header, message.
pub const MANAGEMENT_PACKET: u32 = 2 * MPLS_LABEL + ACH_HEADER + LOSS_DELAY_MESSAGE;

/// What a VPN's packet has around it between two provider edge routers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// Nothing that counts.
    #[default]
    None,
    /// A label for the path and one for the VPN.
    Mpls,
    /// The VPN's label in UDP over IPv4 (RFC 7510).
    MplsInUdp,
}

impl Encapsulation {
    /// Bytes around a customer's packet.
    pub const fn overhead(self) -> u32 {
        match self {
            Encapsulation::None => 0,
            Encapsulation::Mpls => 2 * MPLS_LABEL,
            Encapsulation::MplsInUdp => IPV4_HEADER + UDP_HEADER + MPLS_LABEL,
        }
    }

    /// Bytes of a management packet.
    pub const fn management_packet(self) -> u32 {
        match self {
            Encapsulation::None => MANAGEMENT_PACKET,
            Encapsulation::Mpls => MANAGEMENT_PACKET + MPLS_LABEL,
            // It also asks how many packets came with a congestion mark, which labels do not carry.
            Encapsulation::MplsInUdp => MANAGEMENT_PACKET + IPV4_HEADER + UDP_HEADER + MARKS_TLV,
        }
    }
}

// The codecs know the same sizes.
const _: () = {
    assert!(IPV4_HEADER == ip::v4::HEADER as u32 && IPV6_HEADER == ip::v6::HEADER as u32);
    assert!(UDP_HEADER == udp::HEADER as u32 && TCP_HEADER == tcp::HEADER as u32);
    assert!(MPLS_LABEL == mpls::ENTRY as u32 && ACH_HEADER == gach::HEADER as u32);
    assert!(LOSS_DELAY_MESSAGE == loss_delay::MESSAGE as u32);
    assert!(MANAGEMENT_PACKET == 88);
};
