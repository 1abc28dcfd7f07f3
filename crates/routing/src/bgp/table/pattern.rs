//! Generated routes: consecutive prefixes, with next hops assigned round-robin or in blocks.

use super::{BgpTable, BgpTableError};
use crate::bgp::nlri::{BgpFamily, Nlri, NlriPrefix, RouteDistinguisher};
use crate::bgp::path::{AsPath, PathAttributes};
use std::fmt;
use std::net::IpAddr;

/// Assignment of next hops to prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHopAssignment {
    /// Round-robin, one prefix after the other.
    InTurn,
    /// Blocks of consecutive prefixes, with sizes that differ by at most one.
    InBlocks,
}

/// Consecutive prefixes of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Address family of the prefixes.
    pub family: BgpFamily,
    /// First prefix.
    pub first: NlriPrefix,
    /// Number of prefixes.
    pub count: u32,
    /// Next hops, at least one.
    pub next_hops: Vec<IpAddr>,
    /// Assignment of next hops to prefixes.
    pub spread: NextHopAssignment,
    /// AS path behind the local AS.
    pub as_path: AsPath,
    /// Label of the first prefix, for families with labels; each further prefix has the next label.
    pub first_label: Option<u32>,
    /// Route distinguisher, for [`AddressFamily::Vpnv4`].
    pub distinguisher: Option<RouteDistinguisher>,
}

/// Reason why a pattern yields no routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// No next hops.
    NoNextHop,
    /// Prefix, labels (including the last one) or route distinguisher do not fit the family.
    OtherFamily(BgpFamily),
    /// Fewer prefixes of this length than requested.
    TooMany,
    /// Route that cannot be added to the table.
    Refused(BgpTableError),
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatternError::NoNextHop => f.write_str("no next hop; give at least one"),
            PatternError::OtherFamily(family) => {
                write!(f, "prefix, labels (up to 1048575) or route distinguisher do not fit {family}")
            }
            PatternError::TooMany => {
                f.write_str("too many prefixes: the last one lies beyond the address space")
            }
            PatternError::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PatternError {}

impl Pattern {
    /// Appends the routes to a table, all of them or none.
    pub fn append_to(&self, table: &mut BgpTable) -> Result<(), PatternError> {
        let hops = u64::try_from(self.next_hops.len()).expect("a length fits 64 bits");
        let (Some(last), Some(last_prefix)) = (hops.checked_sub(1), self.last_prefix()) else {
            let has_no_next_hop = self.next_hops.is_empty();
            return Err(if has_no_next_hop { PatternError::NoNextHop } else { PatternError::TooMany });
        };
        let label = |number: u32| self.first_label.and_then(|first| first.checked_add(number));
        let nlri = |prefix, number| Nlri {
            family: self.family,
            distinguisher: self.distinguisher,
            prefix,
            label: label(number),
        };
        let is_consistent = nlri(last_prefix, self.count.saturating_sub(1)).is_consistent()
            && self.family.is_labeled() == self.first_label.is_some()
            && label(self.count.saturating_sub(1)).is_some() == self.first_label.is_some();
        if !is_consistent {
            return Err(PatternError::OtherFamily(self.family));
        }
        let group = |hop: &IpAddr| table.group(self.family, PathAttributes::new(*hop, self.as_path.clone()));
        let groups: Vec<_> =
            self.next_hops.iter().map(group).collect::<Result<_, _>>().map_err(PatternError::Refused)?;
        for number in 0..self.count {
            let hop = match self.spread {
                NextHopAssignment::InTurn => u64::from(number) % hops,
                NextHopAssignment::InBlocks => (u64::from(number) * hops / u64::from(self.count)).min(last),
            };
            let prefix = self.first.successor(number).expect("the last prefix is valid");
            table.push(groups[hop as usize], &nlri(prefix, number));
        }
        Ok(())
    }

    fn last_prefix(&self) -> Option<NlriPrefix> {
        self.first.successor(self.count.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern() -> Pattern {
        Pattern {
            family: BgpFamily::Ipv4Unicast,
            first: "10.0.0.0/24".parse().unwrap(),
            count: 5,
            next_hops: vec!["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()],
            spread: NextHopAssignment::InTurn,
            as_path: AsPath::default(),
            first_label: None,
            distinguisher: None,
        }
    }

    fn hops(pattern: &Pattern) -> String {
        let mut table = BgpTable::new();
        pattern.append_to(&mut table).unwrap();
        table.iter().map(|(_, path)| path.next_hop.to_string().pop().unwrap()).collect()
    }

    #[test]
    fn next_hops_are_assigned_round_robin_or_in_blocks() {
        assert_eq!(hops(&pattern()), "12121");
        assert_eq!(hops(&Pattern { spread: NextHopAssignment::InBlocks, ..pattern() }), "11122");
        assert_eq!(hops(&Pattern { count: 0, ..pattern() }), "");
    }

    #[test]
    fn labels_increase_from_the_first_one() {
        let labeled = Pattern { family: BgpFamily::Ipv4Labeled, first_label: Some(1_048_571), ..pattern() };
        let mut table = BgpTable::new();
        labeled.append_to(&mut table).unwrap();
        assert_eq!(table.iter().last().unwrap().0.label, Some(1_048_575));
        let result = Pattern { first_label: Some(1_048_572), ..labeled }.append_to(&mut table);
        assert_eq!(result, Err(PatternError::OtherFamily(BgpFamily::Ipv4Labeled)));
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        let error_of = |pattern: Pattern| {
            let mut table = BgpTable::new();
            let error = pattern.append_to(&mut table).unwrap_err();
            assert!(table.is_empty());
            error
        };
        let first = "255.255.255.0/24".parse().unwrap();
        assert_eq!(error_of(Pattern { first, ..pattern() }), PatternError::TooMany);
        assert_eq!(error_of(Pattern { next_hops: vec![], ..pattern() }), PatternError::NoNextHop);
        let other = Pattern { first: "2001:db8::/48".parse().unwrap(), ..pattern() };
        assert_eq!(error_of(other), PatternError::OtherFamily(BgpFamily::Ipv4Unicast));
        let vpn = Pattern { family: BgpFamily::Vpnv4, first_label: Some(16), ..pattern() };
        assert_eq!(error_of(vpn), PatternError::OtherFamily(BgpFamily::Vpnv4));
    }
}
