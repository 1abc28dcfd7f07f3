//! Wire formats of the protocols netstage sends and receives.
//!
//! Simulator and dataplane take their header sizes from this crate.
//!
//! ```
//! use netstage_wire::mpls::Stack;
//!
//! let stack = Stack::new(&[0, 0x12, 0xc1, 64]).unwrap();
//! let entry = stack.entries().next().unwrap();
//! assert_eq!((entry.label.number(), entry.bottom, entry.ttl), (300, true, 64));
//! assert_eq!(entry.to_bytes(), [0, 0x12, 0xc1, 64]);
//! ```
//!
//! Invariant: no I/O, no allocation, no unsafe code; parsing any bytes returns a value or an error and never
//! panics.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod arp;
pub mod bfd;
pub mod bfd_data_plane;
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
pub mod neighbor_discovery;
pub mod news;
pub mod probe;
mod protection;
pub mod reference;
pub mod rsvp;
pub mod segmentation;
pub mod stamp;
pub mod stun;
pub mod tcp;
mod timestamp;
pub mod udp;

pub use protection::{Cipher, Protection};

/// Length of the IPv4 header without options, bytes (RFC 791).
pub const IPV4_HEADER: u32 = 20;
/// Length of the IPv6 header, bytes (RFC 8200).
pub const IPV6_HEADER: u32 = 40;
/// Length of the UDP header, bytes (RFC 768).
pub const UDP_HEADER: u32 = 8;
/// Length of the TCP header without options, bytes (RFC 9293).
pub const TCP_HEADER: u32 = 20;
/// Length of the TCP timestamps option with padding, bytes (RFC 7323 appendix A).
pub const TCP_TIMESTAMPS: u32 = 12;
/// Length of the TCP SACK option without blocks, with padding, bytes (RFC 2018).
pub const TCP_SACK_BASE: u32 = 4;
/// Length of one block of the TCP SACK option, bytes (RFC 2018).
pub const TCP_SACK_BLOCK: u32 = 8;
/// Length of an MPLS label stack entry, bytes (RFC 3032).
pub const MPLS_LABEL: u32 = 4;
/// Length of the associated channel header, bytes (RFC 5586).
pub const ACH_HEADER: u32 = 4;
/// Length of the combined loss and delay measurement message without TLVs, bytes (RFC 6374).
pub const LOSS_DELAY_MESSAGE: u32 = 76;
/// Length of the TLV in management messages that reports congestion-marked packets, bytes.
pub const MARKS_TLV: u32 = loss_delay::tlv::MARKS as u32;
/// Length of a management packet from the VPN label on, bytes: label, GAL, channel header, message.
pub const MANAGEMENT_PACKET: u32 = 2 * MPLS_LABEL + ACH_HEADER + LOSS_DELAY_MESSAGE;

/// Encapsulation of VPN packets between two provider edge routers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// No overhead counted.
    #[default]
    None,
    /// Two MPLS labels: path and VPN.
    Mpls,
    /// VPN label in UDP over IPv4 (RFC 7510).
    MplsInUdp,
}

impl Encapsulation {
    /// Returns the bytes added to a customer packet.
    pub const fn overhead(self) -> u32 {
        match self {
            Encapsulation::None => 0,
            Encapsulation::Mpls => 2 * MPLS_LABEL,
            Encapsulation::MplsInUdp => IPV4_HEADER + UDP_HEADER + MPLS_LABEL,
        }
    }

    /// Returns the length of a management packet, bytes.
    pub const fn management_packet(self) -> u32 {
        match self {
            Encapsulation::None => MANAGEMENT_PACKET,
            Encapsulation::Mpls => MANAGEMENT_PACKET + MPLS_LABEL,
            // Its query also asks for the count of congestion-marked packets; MPLS labels carry no such
            // marks.
            Encapsulation::MplsInUdp => MANAGEMENT_PACKET + IPV4_HEADER + UDP_HEADER + MARKS_TLV,
        }
    }
}

// The codecs must agree with these sizes.
const _: () = {
    assert!(IPV4_HEADER == ip::v4::HEADER as u32 && IPV6_HEADER == ip::v6::HEADER as u32);
    assert!(UDP_HEADER == udp::HEADER as u32 && TCP_HEADER == tcp::HEADER as u32);
    assert!(MPLS_LABEL == mpls::ENTRY as u32 && ACH_HEADER == gach::HEADER as u32);
    assert!(LOSS_DELAY_MESSAGE == loss_delay::MESSAGE as u32);
    assert!(MANAGEMENT_PACKET == 88);
};
