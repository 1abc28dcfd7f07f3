//! Network layer reachability information: address families, prefixes, and how they stand in
//! an UPDATE message (RFC 4271 section 4.3, RFC 4760 section 5, RFC 8277 section 2, RFC 4364
//! section 4.3.4).
//!
//! One label belongs to a labelled prefix: the capability for more (RFC 8277 section 2.1) is
//! not offered.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Label and its lower nibble, in bytes.
const LABEL: usize = 3;
/// A route distinguisher, in bytes.
const DISTINGUISHER: usize = 8;
/// What stands in place of a label that is withdrawn (RFC 8277 section 2.4).
const WITHDRAWN_LABEL: [u8; LABEL] = [0x80, 0, 0];

/// The address families and what is told about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 unicast (AFI 1, SAFI 1).
    Ipv4Unicast,
    /// IPv6 unicast (AFI 2, SAFI 1).
    Ipv6Unicast,
    /// IPv4 with a label (AFI 1, SAFI 4).
    Ipv4Labelled,
    /// IPv6 with a label (AFI 2, SAFI 4).
    Ipv6Labelled,
    /// IPv4 within a VPN (AFI 1, SAFI 128).
    Vpnv4,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 5] =
        [Family::Ipv4Unicast, Family::Ipv6Unicast, Family::Ipv4Labelled, Family::Ipv6Labelled, Family::Vpnv4];

    /// AFI and SAFI.
    pub const fn codes(self) -> (u16, u8) {
        match self {
            Family::Ipv4Unicast => (1, 1),
            Family::Ipv6Unicast => (2, 1),
            Family::Ipv4Labelled => (1, 4),
            Family::Ipv6Labelled => (2, 4),
            Family::Vpnv4 => (1, 128),
        }
    }

    /// The family of an AFI and a SAFI, if it is one of these.
    pub fn from_codes(afi: u16, safi: u8) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.codes() == (afi, safi))
    }

    /// Whether its prefixes are of IPv4.
    pub const fn is_ipv4(self) -> bool {
        self.codes().0 == 1
    }

    /// Whether its prefixes have labels.
    pub const fn is_labelled(self) -> bool {
        matches!(self, Family::Ipv4Labelled | Family::Ipv6Labelled | Family::Vpnv4)
    }

    /// Bytes between the length and the prefix.
    const fn ahead(self) -> usize {
        match self {
            Family::Ipv4Unicast | Family::Ipv6Unicast => 0,
            Family::Ipv4Labelled | Family::Ipv6Labelled => LABEL,
            Family::Vpnv4 => LABEL + DISTINGUISHER,
        }
    }

    const fn width(self) -> usize {
        if self.is_ipv4() { 4 } else { 16 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4Unicast => "IPv4 unicast",
            Family::Ipv6Unicast => "IPv6 unicast",
            Family::Ipv4Labelled => "labelled IPv4",
            Family::Ipv6Labelled => "labelled IPv6",
            Family::Vpnv4 => "VPN-IPv4",
        })
    }
}

/// An address and how many of its bits count; the others are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// Clears the bits beyond `length`; none where that is more than the address has.
    pub fn new(address: IpAddr, length: u8) -> Option<Prefix> {
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
        Some(Prefix { address, length })
    }

    /// Its first address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// How many bits count.
    pub fn length(self) -> u8 {
        self.length
    }

    /// The prefix of the same length `steps` further on; none beyond the last one.
    pub fn further(self, steps: u32) -> Option<Prefix> {
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
        Some(Prefix { address, length: self.length })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// The text is not an address, a slash and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPrefix;

impl FromStr for Prefix {
    type Err = NotAPrefix;

    fn from_str(text: &str) -> Result<Prefix, NotAPrefix> {
        let (address, length) = text.split_once('/').ok_or(NotAPrefix)?;
        let address = address.parse().map_err(|_| NotAPrefix)?;
        Prefix::new(address, length.parse().map_err(|_| NotAPrefix)?).ok_or(NotAPrefix)
    }
}

/// What makes prefixes of different VPNs differ (RFC 4364 section 4.2).
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

/// One destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nlri {
    /// Of which family it is; the prefix is of its kind of address.
    pub family: Family,
    /// Whose VPN it belongs to; there for [`Family::Vpnv4`] and no other.
    pub distinguisher: Option<RouteDistinguisher>,
    /// Where to.
    pub prefix: Prefix,
    /// Its label, where the family has labels; none where it is withdrawn.
    pub label: Option<u32>,
}

impl Nlri {
    /// Of one of the two families without labels.
    pub fn unicast(prefix: Prefix) -> Nlri {
        let family = if prefix.address.is_ipv4() { Family::Ipv4Unicast } else { Family::Ipv6Unicast };
        Nlri { family, distinguisher: None, prefix, label: None }
    }

    /// Of one of the two families with labels and without VPNs.
    pub fn labelled(prefix: Prefix, label: u32) -> Nlri {
        let family = if prefix.address.is_ipv4() { Family::Ipv4Labelled } else { Family::Ipv6Labelled };
        Nlri { family, distinguisher: None, prefix, label: Some(label) }
    }

    /// Whether its parts are those its family has.
    pub fn is_consistent(&self) -> bool {
        self.prefix.address.is_ipv4() == self.family.is_ipv4()
            && self.distinguisher.is_some() == (self.family == Family::Vpnv4)
            && (self.family.is_labelled() || self.label.is_none())
            && self.label.is_none_or(|label| label < 1 << 20)
    }

    /// Appends it as it stands in a message; without a label, as what is withdrawn.
    pub fn write(&self, out: &mut Vec<u8>) {
        debug_assert!(self.is_consistent());
        let ahead = self.family.ahead();
        out.push(self.prefix.length + 8 * ahead as u8);
        if self.family.is_labelled() {
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

/// How many bytes the destination that starts `bytes` takes there.
pub(super) fn encoded_length(bytes: &[u8]) -> usize {
    1 + usize::from(bytes[0]).div_ceil(8)
}

/// How many destinations `bytes` are; none where they are malformed.
pub(super) fn count(family: Family, bytes: &[u8]) -> Option<usize> {
    let (least, most) = (8 * family.ahead(), 8 * (family.ahead() + family.width()));
    let (mut rest, mut count) = (bytes, 0);
    while let Some((&bits, after)) = rest.split_first() {
        let bits = usize::from(bits);
        if bits < least || bits > most {
            return None;
        }
        rest = after.get(bits.div_ceil(8)..)?;
        count += 1;
    }
    Some(count)
}

/// The destinations in bytes that [`count`] has found to be well formed.
#[derive(Clone, Debug)]
pub struct Destinations<'a> {
    family: Family,
    rest: &'a [u8],
}

impl<'a> Destinations<'a> {
    pub(super) fn new(family: Family, rest: &'a [u8]) -> Destinations<'a> {
        Destinations { family, rest }
    }

    /// Of which family they are.
    pub fn family(&self) -> Family {
        self.family
    }
}

impl Iterator for Destinations<'_> {
    type Item = Nlri;

    #[inline]
    fn next(&mut self) -> Option<Nlri> {
        let (&bits, after) = self.rest.split_first()?;
        let (here, rest) = after.split_at(usize::from(bits).div_ceil(8));
        self.rest = rest;
        let (ahead, prefix) = here.split_at(self.family.ahead());
        let length = bits - 8 * ahead.len() as u8;
        let (label, distinguisher) =
            if ahead.is_empty() { (&[][..], &[][..]) } else { ahead.split_at(LABEL) };
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
            prefix: Prefix::new(address, length).expect("the length was checked"),
            label,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_masked_and_stepped() {
        let prefix: Prefix = "192.0.2.77/26".parse().unwrap();
        assert_eq!(prefix.to_string(), "192.0.2.64/26");
        assert_eq!(prefix.further(3).unwrap().to_string(), "192.0.3.0/26");
        assert_eq!("255.255.255.0/24".parse::<Prefix>().unwrap().further(1), None);
        assert_eq!("0.0.0.0/0".parse::<Prefix>().unwrap().further(1), None);
        let prefix: Prefix = "2001:db8::/48".parse().unwrap();
        assert_eq!(prefix.further(65_536).unwrap().to_string(), "2001:db9::/48");
        assert_eq!("::/0".parse::<Prefix>().unwrap().further(1), None);
        for wrong in ["192.0.2.0", "192.0.2.0/33", "::/129", "x/3", "1.2.3.4/-1"] {
            assert_eq!(wrong.parse::<Prefix>(), Err(NotAPrefix), "{wrong}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let prefix = "10.1.0.0/17".parse().unwrap();
        let distinguisher = RouteDistinguisher([0, 0, 0xfd, 0xe9, 0, 0, 0, 7]);
        assert_eq!(distinguisher.to_string(), "65001:7");
        let distinguisher = Some(distinguisher);
        for nlri in [
            Nlri::unicast(prefix),
            Nlri::labelled(prefix, 1_048_575),
            Nlri { family: Family::Vpnv4, distinguisher, prefix, label: Some(16) },
            Nlri { family: Family::Vpnv4, distinguisher, prefix, label: None },
            Nlri::unicast("::/0".parse().unwrap()),
            Nlri::labelled("2001:db8::1/128".parse().unwrap(), 3),
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
    fn lengths_no_prefix_has_are_malformed() {
        assert_eq!(count(Family::Ipv4Unicast, &[33, 1, 2, 3, 4, 5]), None);
        assert_eq!(count(Family::Ipv4Labelled, &[23, 0, 0, 0]), None);
        assert_eq!(count(Family::Vpnv4, &[24, 0, 0, 1]), None);
        assert_eq!(count(Family::Ipv6Unicast, &[129; 18]), None);
        assert_eq!(count(Family::Ipv4Unicast, &[0, 8, 10]), Some(2));
    }
}
