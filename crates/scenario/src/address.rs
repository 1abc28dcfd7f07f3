//! Addresses, prefixes and labels in configuration files.

use crate::error::Problems;
use crate::key::parse_key;
use crate::scalar::BoundedCount;
use crate::table::{Decode, ValueKind, mismatch};
use crate::tree::TomlNode;
use netstage_core::edge::IpPrefix;
use netstage_wire::rsvp::route::RouteHop;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Unreserved MPLS label, from 16 (RFC 3032 section 2.1).
pub(crate) type LabelNumber = BoundedCount<16, 1_048_575>;

/// Declares a type parsed from a string.
macro_rules! parsed {
    ($($(#[doc = $doc:literal])* $name:ident($of:ty) = $holds:literal, $parse:expr;)+) => {
        $($(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub $of);

        impl Decode for $name {
            fn kind() -> ValueKind {
                ValueKind::Text($holds)
            }
            fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
                let parse: fn(&str) -> Option<$of> = $parse;
                match node.text().and_then(parse) {
                    Some(value) => Some($name(value)),
                    None => mismatch(node, &Self::kind(), problems),
                }
            }
        })+
    };
}

parsed! {
    Address(IpAddr) = "an address such as \"192.0.2.1\" or \"2001:db8::1\"",
        |text| text.parse().ok().filter(is_unicast);
    V4Address(Ipv4Addr) = "an IPv4 address such as \"192.0.2.1\"",
        |text| text.parse().ok().filter(|address: &Ipv4Addr| is_unicast(&(*address).into()));
    /// Hop of an explicit route.
    HopText(RouteHop) = "an IPv4 address such as \"192.0.2.1\" or, for a loose hop, \"192.0.2.1 loose\"",
        |text| {
            let (address, is_loose) = text.strip_suffix(" loose").map_or((text, false), |text| (text, true));
            let address = address.parse().ok().filter(|address: &Ipv4Addr| is_unicast(&(*address).into()))?;
            Some(RouteHop::Ipv4 { address, length: 32, is_loose, flags: 0 })
        };
    StationText([u8; 6]) = "a unicast MAC address such as \"02:00:00:00:00:01\"", parse_mac;
    PublicKeyText([u8; 32]) = "a public key of 44 characters, as printed by `netstage pe key`", parse_key;
    Listen(SocketAddr) = "an address and port such as \"127.0.0.1:9635\"", |text| text.parse().ok();
    /// Loopback address and port, reachable from this host only.
    Loopback(SocketAddr) = "a loopback address and port such as \"127.0.0.1:2620\"",
        |text| text.parse().ok().filter(|address: &SocketAddr| address.ip().is_loopback());
    PrefixText(IpPrefix) = "a prefix without host bits such as \"10.0.2.0/24\" or \"fd00:2::/64\"",
        |text| {
            let (address, length) = split_prefix(text)?;
            IpPrefix::new(address, length).ok()
        };
    LinkAddress((IpAddr, u8)) = "an interface address with prefix length such as \"10.0.1.1/24\"",
        |text| split_prefix(text).filter(|(address, length)| {
            is_unicast(address) && (1..=if address.is_ipv4() { 32 } else { 128 }).contains(length)
        });
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2));
    let address =
        [bytes.next()??, bytes.next()??, bytes.next()??, bytes.next()??, bytes.next()??, bytes.next()??];
    (bytes.next().is_none() && address[0] & 1 == 0).then_some(address)
}

fn split_prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    Some((address.parse().ok()?, length.parse().ok()?))
}

fn is_unicast(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    // "::ffff:192.0.2.1" is another notation of 192.0.2.1, and no address of packets.
    let is_mapped = address.to_canonical() != *address;
    !(address.is_multicast() || address.is_unspecified() || is_broadcast || is_mapped)
}
