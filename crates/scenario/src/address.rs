//! Addresses of all kinds, and labels, as configurations have them.

use crate::error::Problems;
use crate::scalar::Count;
use crate::table::{Decode, Kind, mismatch};
use crate::tree::Node;
use netstage_core::edge::Prefix;
use std::net::{IpAddr, SocketAddr};

/// A label that may be given to something: from 16 on.
pub(crate) type LabelNumber = Count<16, 1_048_575>;

/// Declares a text that is parsed.
macro_rules! parsed {
    ($($(#[doc = $doc:literal])+ $name:ident($of:ty) = $holds:literal, $parse:expr;)+) => {
        $($(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub $of);

        impl Decode for $name {
            fn kind() -> Kind {
                Kind::Text($holds)
            }
            fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
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
    /// The address of one host.
    Address(IpAddr) = "an address such as \"192.0.2.1\" or \"2001:db8::1\"",
        |text| text.parse().ok().filter(is_of_one_host);
    /// A station.
    StationText([u8; 6]) = "an Ethernet address such as \"02:00:00:00:00:01\"", station;
    /// Where to listen.
    Listen(SocketAddr) = "address and port such as \"127.0.0.1:9635\"", |text| text.parse().ok();
    /// Where only this machine can reach it.
    Loopback(SocketAddr) = "a loopback address and a port, such as \"127.0.0.1:2620\"",
        |text| text.parse().ok().filter(|address: &SocketAddr| address.ip().is_loopback());
    /// A prefix.
    PrefixText(Prefix) = "a prefix without bits beyond its length, such as \"10.0.2.0/24\" or \"fd00:2::/64\"",
        |text| {
            let (address, length) = cut(text)?;
            Prefix::new(address, length).ok()
        };
    /// An address with the length of its link's prefix.
    LinkAddress((IpAddr, u8)) = "an address with the length of its link's prefix, such as \"10.0.1.1/24\"",
        |text| cut(text).filter(|(address, length)| {
            is_of_one_host(address) && (1..=if address.is_ipv4() { 32 } else { 128 }).contains(length)
        });
}

fn station(text: &str) -> Option<[u8; 6]> {
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2));
    let station =
        [bytes.next()??, bytes.next()??, bytes.next()??, bytes.next()??, bytes.next()??, bytes.next()??];
    (bytes.next().is_none() && station[0] & 1 == 0).then_some(station)
}

fn cut(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    Some((address.parse().ok()?, length.parse().ok()?))
}

fn is_of_one_host(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_multicast() || address.is_unspecified() || is_broadcast)
}
