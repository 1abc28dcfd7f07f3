//! Longest-prefix lookup of a VPN's addresses.
//!
//! Two prefixes are nested or disjoint, so n prefixes divide the addresses into at most 2n + 1 ranges, each
//! with one longest prefix. A lookup is a binary search over the first addresses of the ranges, in
//! contiguous memory: a few comparisons for the handful of prefixes of most VPNs, 17 for fifty thousand
//! prefixes. A change rebuilds the table.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

/// An IP address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPrefix {
    address: IpAddr,
    length: u8,
}

/// Error for a prefix length beyond that of the address, or an address with nonzero host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPrefix;

impl IpPrefix {
    /// Creates a prefix of this length in bits; the host bits of the address must be zero.
    pub fn new(address: IpAddr, length: u8) -> Result<IpPrefix, InvalidPrefix> {
        let prefix = IpPrefix { address, length };
        let within = length <= prefix.width() && prefix.first() & prefix.host_bits() == 0;
        within.then_some(prefix).ok_or(InvalidPrefix)
    }

    /// Returns the prefix of this length that contains an address; the length is limited to that of the
    /// address.
    pub fn containing(address: IpAddr, length: u8) -> IpPrefix {
        let length = length.min(if address.is_ipv4() { 32 } else { 128 });
        let beyond = IpPrefix { address, length }.host_bits();
        let address = match address {
            IpAddr::V4(_) => IpAddr::V4(((bits(address) & !beyond) as u32).into()),
            IpAddr::V6(_) => IpAddr::V6((bits(address) & !beyond).into()),
        };
        IpPrefix { address, length }
    }

    /// Returns the prefix that contains only this address.
    pub fn host(address: IpAddr) -> IpPrefix {
        IpPrefix::containing(address, u8::MAX)
    }

    /// Returns the address, whose host bits are zero.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Returns whether the prefix contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && bits(address) & !self.host_bits() == self.first()
    }

    fn width(&self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    fn host_bits(&self) -> u128 {
        match self.width() - self.length {
            128 => u128::MAX,
            bits => (1 << bits) - 1,
        }
    }

    fn first(&self) -> u128 {
        bits(self.address)
    }

    fn last(&self) -> u128 {
        self.first() | self.host_bits()
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The routes of a VPN, from prefixes to targets of type `T`.
#[derive(Clone, Debug, PartialEq)]
pub struct VpnRoutes<T> {
    v4: Ranges<u32, T>,
    v6: Ranges<u128, T>,
}

/// Sorted ranges: the first address of each, and its target.
type Ranges<A, T> = Box<[(A, Option<T>)]>;

#[inline]
fn get<A: Ord + Copy, T: Copy>(ranges: &[(A, Option<T>)], address: A) -> Option<T> {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    ranges[after.checked_sub(1)?].1
}

impl<T: Copy + PartialEq> VpnRoutes<T> {
    /// Creates a table of routes. The error is a prefix that occurs twice.
    pub fn new(routes: &[(IpPrefix, T)]) -> Result<VpnRoutes<T>, IpPrefix> {
        let table_of = |is_v4| {
            let mut sorted: Vec<(IpPrefix, T)> =
                routes.iter().filter(|(prefix, _)| prefix.address.is_ipv4() == is_v4).copied().collect();
            // Of two prefixes with the same address, the shorter one contains the other and has to come first.
            sorted.sort_by_key(|(prefix, _)| (prefix.first(), prefix.length));
            match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                Some(pair) => Err(pair[0].0),
                None => Ok(ranges(&sorted)),
            }
        };
        let (v4, v6) = (table_of(true)?, table_of(false)?);
        Ok(VpnRoutes { v4: v4.into_iter().map(|(first, to)| (first as u32, to)).collect(), v6: v6.into() })
    }

    /// Loads the beginning of the table into the CPU cache.
    #[inline]
    pub fn load(&self) {
        core::hint::black_box((self.v4.first().map(|first| first.0), self.v6.first().map(|first| first.0)));
    }

    /// Returns the target of the longest prefix that contains the address.
    #[inline]
    pub fn get(&self, address: IpAddr) -> Option<T> {
        match address {
            IpAddr::V4(address) => get(&self.v4, address.into()),
            IpAddr::V6(address) => get(&self.v6, address.into()),
        }
    }
}

/// Computes the ranges of sorted prefixes, with a stack of the prefixes that contain the current address.
fn ranges<T: Copy + PartialEq>(sorted: &[(IpPrefix, T)]) -> Vec<(u128, Option<T>)> {
    let mut ranges: Vec<(u128, Option<T>)> = Vec::new();
    let mut open: Vec<(IpPrefix, T)> = Vec::new();
    let mut begin = |first: u128, to: Option<T>| {
        // Another range already begins here if a longer prefix has the same address or an earlier prefix
        // just ended.
        if ranges.last().is_some_and(|last| last.0 == first) {
            ranges.pop();
        }
        if ranges.last().map_or(to.is_some(), |last| last.1 != to) {
            ranges.push((first, to));
        }
    };
    let close =
        |open: &mut Vec<(IpPrefix, T)>, before: Option<u128>, begin: &mut dyn FnMut(u128, Option<T>)| {
            while let Some((prefix, _)) =
                open.last().filter(|(prefix, _)| before.is_none_or(|first| prefix.last() < first))
            {
                let end = prefix.last();
                let is_all = end == if prefix.width() == 32 { u128::from(u32::MAX) } else { u128::MAX };
                open.pop();
                if !is_all {
                    begin(end + 1, open.last().map(|(_, to)| *to));
                }
            }
        };
    for (prefix, to) in sorted {
        close(&mut open, Some(prefix.first()), &mut begin);
        begin(prefix.first(), Some(*to));
        open.push((*prefix, *to));
    }
    close(&mut open, None, &mut begin);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str) -> IpPrefix {
        let (address, length) = text.split_once('/').unwrap();
        IpPrefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
    }

    fn get(routes: &VpnRoutes<u32>, address: &str) -> Option<u32> {
        routes.get(address.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_wins() {
        let routes = VpnRoutes::new(&[
            (prefix("0.0.0.0/0"), 0),
            (prefix("10.0.0.0/8"), 1),
            (prefix("10.0.0.0/16"), 2),
            (prefix("10.0.0.1/32"), 3),
            (prefix("255.255.255.255/32"), 4),
            (prefix("2001:db8::/32"), 5),
        ])
        .unwrap();
        for (address, expected) in [
            ("9.255.255.255", Some(0)),
            ("10.0.0.0", Some(2)),
            ("10.0.0.1", Some(3)),
            ("10.0.0.2", Some(2)),
            ("10.1.0.0", Some(1)),
            ("11.0.0.0", Some(0)),
            ("255.255.255.255", Some(4)),
            ("2001:db8:ffff::1", Some(5)),
            ("2001:db9::", None),
            ("::", None),
        ] {
            assert_eq!(get(&routes, address), expected, "{address}");
        }
        let none = VpnRoutes::<u32>::new(&[]).unwrap();
        assert_eq!((get(&none, "10.0.0.1"), get(&none, "::1")), (None, None));
    }

    #[test]
    fn duplicate_and_invalid_prefixes_are_rejected() {
        let duplicates = [(prefix("10.0.0.0/8"), 1), (prefix("10.0.0.0/8"), 2)];
        assert_eq!(VpnRoutes::new(&duplicates), Err(prefix("10.0.0.0/8")));
        assert_eq!(IpPrefix::new([10, 0, 0, 1].into(), 8), Err(InvalidPrefix));
        assert_eq!(IpPrefix::new([10, 0, 0, 0].into(), 33), Err(InvalidPrefix));
        assert!(IpPrefix::new(IpAddr::from([0; 16]), 0).is_ok());
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_list_of_prefixes(
            mut list in prop::collection::vec((any::<bool>(), 0..8u128, 0..=8u8, 0..4u32), 0..30), address in 0..=255u8,
        ) {
            list.dedup();
            // Addresses vary only in a few bits at the top and the bottom, so that prefixes overlap.
            let routes: Vec<(IpPrefix, u32)> = list.iter().enumerate().map(|(number, &(is_v4, bits, cut, same))| {
                let width: u32 = if is_v4 { 32 } else { 128 };
                let length = if cut < 4 { u32::from(cut) } else { width - 8 + u32::from(cut) };
                let wide = (bits << (width - 3)) | (bits << 3);
                let host = if length == 0 { u128::MAX } else { (1u128 << (width - length)) - 1 };
                let address = wide & !host;
                let address = if is_v4 { IpAddr::from((address as u32).to_be_bytes()) } else { IpAddr::from(address.to_be_bytes()) };
                (IpPrefix::new(address, length as u8).unwrap(), if same == 0 { 0 } else { number as u32 })
            }).collect();
            let mut seen = alloc::collections::BTreeSet::new();
            let routes: Vec<_> = routes.into_iter().filter(|(prefix, _)| seen.insert(*prefix)).collect();
            let table = VpnRoutes::new(&routes).unwrap();
            let top = u128::from(address) << 120;
            for address in [
                IpAddr::from([address, 0, 0, address]), IpAddr::from([address, 0, 0, 0]), IpAddr::from([255, 255, 255, address]),
                IpAddr::from((top | u128::from(address)).to_be_bytes()), IpAddr::from((top | 255).to_be_bytes()),
            ] {
                let holding = routes.iter().filter(|(prefix, _)| prefix.contains(address));
                let expected = holding.max_by_key(|(prefix, _)| prefix.length).map(|(_, to)| *to);
                prop_assert_eq!(table.get(address), expected, "{}", address);
            }
        }
    }
}
