//! Network layer reachability information (NLRI): address families, prefixes, and their encoding in UPDATE
//! messages (RFC 4271 section 4.3, RFC 4760 section 5, RFC 8277 section 2, RFC 4364 section 4.3.4).
//!
//! A labeled prefix has one label: the capability for multiple labels (RFC 8277 section 2.1) is not offered.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Length of a label field, bytes.
const LABEL: usize = 3;
/// Length of a route distinguisher, bytes.
const DISTINGUISHER: usize = 8;
/// Label field of a withdrawn prefix (RFC 8277 section 2.4).
const WITHDRAWN_LABEL: [u8; LABEL] = [0x80, 0, 0];

/// Address family with its subsequent address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BgpFamily {
    /// IPv4 unicast (AFI 1, SAFI 1).
    Ipv4Unicast,
    /// IPv6 unicast (AFI 2, SAFI 1).
    Ipv6Unicast,
    /// Labeled IPv4 unicast (AFI 1, SAFI 4).
    Ipv4Labeled,
    /// Labeled IPv6 unicast (AFI 2, SAFI 4).
    Ipv6Labeled,
    /// VPN-IPv4 (AFI 1, SAFI 128).
    Vpnv4,
}

impl BgpFamily {
    /// All families.
    pub const ALL: [BgpFamily; 5] = [
        BgpFamily::Ipv4Unicast,
        BgpFamily::Ipv6Unicast,
        BgpFamily::Ipv4Labeled,
        BgpFamily::Ipv6Labeled,
        BgpFamily::Vpnv4,
    ];

    /// Returns the AFI and SAFI.
    pub const fn codes(self) -> (u16, u8) {
        match self {
            BgpFamily::Ipv4Unicast => (1, 1),
            BgpFamily::Ipv6Unicast => (2, 1),
            BgpFamily::Ipv4Labeled => (1, 4),
            BgpFamily::Ipv6Labeled => (2, 4),
            BgpFamily::Vpnv4 => (1, 128),
        }
    }

    /// Returns the family of an AFI and SAFI, or `None` if it is not supported.
    pub fn from_codes(afi: u16, safi: u8) -> Option<BgpFamily> {
        BgpFamily::ALL.into_iter().find(|family| family.codes() == (afi, safi))
    }

    /// Returns `true` for families with IPv4 prefixes.
    pub const fn is_ipv4(self) -> bool {
        self.codes().0 == 1
    }

    /// Returns `true` for families with labels.
    pub const fn is_labeled(self) -> bool {
        matches!(self, BgpFamily::Ipv4Labeled | BgpFamily::Ipv6Labeled | BgpFamily::Vpnv4)
    }

    /// Returns the length of the fields between length and prefix, bytes.
    const fn overhead(self) -> usize {
        match self {
            BgpFamily::Ipv4Unicast | BgpFamily::Ipv6Unicast => 0,
            BgpFamily::Ipv4Labeled | BgpFamily::Ipv6Labeled => LABEL,
            BgpFamily::Vpnv4 => LABEL + DISTINGUISHER,
        }
    }

    const fn width(self) -> usize {
        if self.is_ipv4() { 4 } else { 16 }
    }
}

impl fmt::Display for BgpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BgpFamily::Ipv4Unicast => "IPv4 unicast",
            BgpFamily::Ipv6Unicast => "IPv6 unicast",
            BgpFamily::Ipv4Labeled => "labeled IPv4",
            BgpFamily::Ipv6Labeled => "labeled IPv6",
            BgpFamily::Vpnv4 => "VPN-IPv4",
        })
    }
}

/// IP prefix; the address bits beyond the length are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NlriPrefix {
    address: IpAddr,
    length: u8,
}

impl NlriPrefix {
    /// Creates a prefix and clears the bits beyond `length`. Returns `None` if `length` exceeds the address
    /// length.
    pub fn new(address: IpAddr, length: u8) -> Option<NlriPrefix> {
        let address = match address {
            IpAddr::V4(address) if length <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                Ipv4Addr::from(u32::from(address) & mask).into()
            }
            IpAddr::V6(address) if length <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                Ipv6Addr::from(u128::from(address) & mask).into()
            }
            _ => return None,
        };
        Some(NlriPrefix { address, length })
    }

    /// Returns the first address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Returns the prefix length, bits.
    pub fn length(self) -> u8 {
        self.length
    }

    /// Returns the prefix `steps` positions further on, of the same length, or `None` beyond the last
    /// address.
    pub fn successor(self, steps: u32) -> Option<NlriPrefix> {
        let steps = u128::from(steps);
        let address = match self.address {
            IpAddr::V4(address) => {
                let step = 1_u128.checked_shl(32 - u32::from(self.length))?;
                let moved = u128::from(u32::from(address)).checked_add(steps.checked_mul(step)?)?;
                Ipv4Addr::from(u32::try_from(moved).ok()?).into()
            }
            IpAddr::V6(_) if self.length == 0 => return (steps == 0).then_some(self),
            IpAddr::V6(address) => {
                let step = 1_u128 << (128 - u32::from(self.length));
                Ipv6Addr::from(u128::from(address).checked_add(steps.checked_mul(step)?)?).into()
            }
        };
        Some(NlriPrefix { address, length: self.length })
    }
}

impl fmt::Display for NlriPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Error for a text that is not an address, a slash and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPrefix;

impl FromStr for NlriPrefix {
    type Err = NotAPrefix;

    fn from_str(text: &str) -> Result<NlriPrefix, NotAPrefix> {
        let (address, length) = text.split_once('/').ok_or(NotAPrefix)?;
        let address = address.parse().map_err(|_| NotAPrefix)?;
        NlriPrefix::new(address, length.parse().map_err(|_| NotAPrefix)?).ok_or(NotAPrefix)
    }
}

/// Route distinguisher: makes prefixes of different VPNs unique (RFC 4364 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteDistinguisher(pub [u8; DISTINGUISHER]);

impl fmt::Display for RouteDistinguisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, a, b, c, d, e, g] = self.0;
        match u16::from_be_bytes([self.0[0], self.0[1]]) {
            0 => write!(f, "{}:{}", u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, g])),
            1 => write!(f, "{}:{}", Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([e, g])),
            2 => write!(f, "{}:{}", u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, g])),
            kind => write!(f, "{kind}:{:012x}", u64::from_be_bytes(self.0) & 0xffff_ffff_ffff),
        }
    }
}

/// Destination in an UPDATE message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nlri {
    /// Address family.
    pub family: BgpFamily,
    /// Route distinguisher; present only for [`AddressFamily::Vpnv4`].
    pub distinguisher: Option<RouteDistinguisher>,
    /// Destination prefix.
    pub prefix: NlriPrefix,
    /// Label, for families with labels; `None` if withdrawn.
    pub label: Option<u32>,
}

impl Nlri {
    /// Creates an IPv4 or IPv6 unicast destination.
    pub fn unicast(prefix: NlriPrefix) -> Nlri {
        let family = if prefix.address.is_ipv4() { BgpFamily::Ipv4Unicast } else { BgpFamily::Ipv6Unicast };
        Nlri { family, distinguisher: None, prefix, label: None }
    }

    /// Creates a labeled IPv4 or IPv6 unicast destination.
    pub fn labeled(prefix: NlriPrefix, label: u32) -> Nlri {
        let family = if prefix.address.is_ipv4() { BgpFamily::Ipv4Labeled } else { BgpFamily::Ipv6Labeled };
        Nlri { family, distinguisher: None, prefix, label: Some(label) }
    }

    /// Returns `true` if address, route distinguisher and label match the family.
    pub fn is_consistent(&self) -> bool {
        self.prefix.address.is_ipv4() == self.family.is_ipv4()
            && self.distinguisher.is_some() == (self.family == BgpFamily::Vpnv4)
            && (self.family.is_labeled() || self.label.is_none())
            && self.label.is_none_or(|label| label < 1 << 20)
    }

    /// Appends the encoded destination; a missing label is encoded as withdrawn.
    pub fn write(&self, out: &mut Vec<u8>) {
        debug_assert!(self.is_consistent());
        let overhead = self.family.overhead();
        out.push(self.prefix.length + 8 * overhead as u8);
        if self.family.is_labeled() {
            match self.label {
                Some(label) => out.extend_from_slice(&(label << 4 | 1).to_be_bytes()[1..]),
                None => out.extend_from_slice(&WITHDRAWN_LABEL),
            }
        }
        if let Some(distinguisher) = self.distinguisher {
            out.extend_from_slice(&distinguisher.0);
        }
        let bytes = usize::from(self.prefix.length).div_ceil(8);
        match self.prefix.address {
            IpAddr::V4(address) => out.extend_from_slice(&address.octets()[..bytes]),
            IpAddr::V6(address) => out.extend_from_slice(&address.octets()[..bytes]),
        }
    }
}

/// Returns the encoded length of the first destination in `bytes`.
pub(super) fn encoded_length(bytes: &[u8]) -> usize {
    1 + usize::from(bytes[0]).div_ceil(8)
}

/// Returns the number of destinations in `bytes`, or `None` if they are malformed.
pub(super) fn count(family: BgpFamily, bytes: &[u8]) -> Option<usize> {
    let (min_bits, max_bits) = (8 * family.overhead(), 8 * (family.overhead() + family.width()));
    let (mut rest, mut count) = (bytes, 0);
    while let Some((&bits, after)) = rest.split_first() {
        let bits = usize::from(bits);
        if bits < min_bits || bits > max_bits {
            return None;
        }
        rest = after.get(bits.div_ceil(8)..)?;
        count += 1;
    }
    Some(count)
}

/// Iterator over destinations validated by [`count`].
#[derive(Clone, Debug)]
pub struct Destinations<'a> {
    family: BgpFamily,
    rest: &'a [u8],
}

impl<'a> Destinations<'a> {
    pub(super) fn new(family: BgpFamily, rest: &'a [u8]) -> Destinations<'a> {
        Destinations { family, rest }
    }

    /// Returns the address family.
    pub fn family(&self) -> BgpFamily {
        self.family
    }
}

impl Iterator for Destinations<'_> {
    type Item = Nlri;

    #[inline]
    fn next(&mut self) -> Option<Nlri> {
        let (&bits, after) = self.rest.split_first()?;
        let (encoded, rest) = after.split_at(usize::from(bits).div_ceil(8));
        self.rest = rest;
        let (fields, prefix) = encoded.split_at(self.family.overhead());
        let length = bits - 8 * fields.len() as u8;
        let (label, distinguisher) =
            if fields.is_empty() { (&[][..], &[][..]) } else { fields.split_at(LABEL) };
        let label = match *label {
            [a, b, c] if label != WITHDRAWN_LABEL => Some(u32::from_be_bytes([0, a, b, c]) >> 4),
            _ => None,
        };
        let address = if self.family.is_ipv4() {
            let mut octets = [0; 4];
            octets[..prefix.len()].copy_from_slice(prefix);
            IpAddr::from(octets)
        } else {
            let mut octets = [0; 16];
            octets[..prefix.len()].copy_from_slice(prefix);
            IpAddr::from(octets)
        };
        Some(Nlri {
            family: self.family,
            distinguisher: distinguisher.first_chunk().map(|bytes| RouteDistinguisher(*bytes)),
            prefix: NlriPrefix::new(address, length).expect("the length was validated"),
            label,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_parsed_masked_and_stepped() {
        let prefix: NlriPrefix = "192.0.2.77/26".parse().unwrap();
        assert_eq!(prefix.to_string(), "192.0.2.64/26");
        assert_eq!(prefix.successor(3).unwrap().to_string(), "192.0.3.0/26");
        assert_eq!("255.255.255.0/24".parse::<NlriPrefix>().unwrap().successor(1), None);
        assert_eq!("0.0.0.0/0".parse::<NlriPrefix>().unwrap().successor(1), None);
        let prefix: NlriPrefix = "2001:db8::/48".parse().unwrap();
        assert_eq!(prefix.successor(65_536).unwrap().to_string(), "2001:db9::/48");
        assert_eq!("::/0".parse::<NlriPrefix>().unwrap().successor(1), None);
        for wrong in ["192.0.2.0", "192.0.2.0/33", "::/129", "x/3", "1.2.3.4/-1"] {
            assert_eq!(wrong.parse::<NlriPrefix>(), Err(NotAPrefix), "{wrong}");
        }
    }

    #[test]
    fn destinations_round_trip() {
        let prefix = "10.1.0.0/17".parse().unwrap();
        let distinguisher = RouteDistinguisher([0, 0, 0xfd, 0xe9, 0, 0, 0, 7]);
        assert_eq!(distinguisher.to_string(), "65001:7");
        let distinguisher = Some(distinguisher);
        for nlri in [
            Nlri::unicast(prefix),
            Nlri::labeled(prefix, 1_048_575),
            Nlri { family: BgpFamily::Vpnv4, distinguisher, prefix, label: Some(16) },
            Nlri { family: BgpFamily::Vpnv4, distinguisher, prefix, label: None },
            Nlri::unicast("::/0".parse().unwrap()),
            Nlri::labeled("2001:db8::1/128".parse().unwrap(), 3),
        ] {
            let mut bytes = Vec::new();
            nlri.write(&mut bytes);
            assert_eq!(encoded_length(&bytes), bytes.len());
            assert_eq!(count(nlri.family, &bytes), Some(1));
            assert_eq!(Destinations::new(nlri.family, &bytes).collect::<Vec<_>>(), [nlri]);
            assert_eq!(
                count(nlri.family, &bytes[..bytes.len() - 1]),
                None.or((bytes.len() == 1).then_some(0))
            );
        }
    }

    #[test]
    fn invalid_prefix_lengths_are_malformed() {
        assert_eq!(count(BgpFamily::Ipv4Unicast, &[33, 1, 2, 3, 4, 5]), None);
        assert_eq!(count(BgpFamily::Ipv4Labeled, &[23, 0, 0, 0]), None);
        assert_eq!(count(BgpFamily::Vpnv4, &[24, 0, 0, 1]), None);
        assert_eq!(count(BgpFamily::Ipv6Unicast, &[129; 18]), None);
        assert_eq!(count(BgpFamily::Ipv4Unicast, &[0, 8, 10]), Some(2));
    }
}
