//! Routes by rule: successive prefixes, their next hops taken in turn or in blocks.

use super::{Refused, Table};
use crate::bgp::nlri::{Family, Nlri, Prefix, RouteDistinguisher};
use crate::bgp::path::{AsPath, Path};
use std::fmt;
use std::net::IpAddr;

/// How next hops are dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// To one prefix after the other in turn.
    InTurn,
    /// To blocks of successive prefixes, equal but for one prefix.
    InBlocks,
}

/// Successive prefixes of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The family; the prefixes are of its kind of address.
    pub family: Family,
    /// The first prefix.
    pub first: Prefix,
    /// How many.
    pub count: u32,
    /// Where they lead, at least one.
    pub next_hops: Vec<IpAddr>,
    /// Which prefix leads where.
    pub spread: Spread,
    /// The path behind the own autonomous system.
    pub as_path: AsPath,
    /// The first prefix's label, where the family has labels; the next one's is one more.
    pub first_label: Option<u32>,
    /// The VPN, for [`Family::Vpnv4`].
    pub distinguisher: Option<RouteDistinguisher>,
}

/// Why a pattern yields no routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// It has no next hops.
    NoNextHop,
    /// Prefix, label and distinguisher are not those of the family, the label's last one included.
    OtherFamily(Family),
    /// There are no more prefixes of this length.
    TooMany,
    /// The table refused a route.
    Refused(Refused),
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatternError::NoNextHop => f.write_str("a pattern needs a next hop"),
            PatternError::OtherFamily(family) => {
                write!(f, "prefix, labels (up to 1048575) and distinguisher must be those of {family}")
            }
            PatternError::TooMany => {
                f.write_str("the address family has fewer prefixes from the first one on")
            }
            PatternError::Refused(refused) => refused.fmt(f),
        }
    }
}

impl std::error::Error for PatternError {}

impl Pattern {
    /// Appends its routes to a table, all of them or none.
    pub fn append_to(&self, table: &mut Table) -> Result<(), PatternError> {
        let hops = u64::try_from(self.next_hops.len()).expect("a count");
        let (Some(last), Some(last_prefix)) = (hops.checked_sub(1), self.last_prefix()) else {
            let is_without = self.next_hops.is_empty();
            return Err(if is_without { PatternError::NoNextHop } else { PatternError::TooMany });
        };
        let label = |number: u32| self.first_label.and_then(|first| first.checked_add(number));
        let nlri = |prefix, number| Nlri {
            family: self.family,
            distinguisher: self.distinguisher,
            prefix,
            label: label(number),
        };
        let is_consistent = nlri(last_prefix, self.count.saturating_sub(1)).is_consistent()
            && self.family.is_labelled() == self.first_label.is_some()
            && label(self.count.saturating_sub(1)).is_some() == self.first_label.is_some();
        if !is_consistent {
            return Err(PatternError::OtherFamily(self.family));
        }
        let group = |hop: &IpAddr| table.group(self.family, Path::new(*hop, self.as_path.clone()));
        let groups: Vec<_> =
            self.next_hops.iter().map(group).collect::<Result<_, _>>().map_err(PatternError::Refused)?;
        for number in 0..self.count {
            let hop = match self.spread {
                Spread::InTurn => u64::from(number) % hops,
                Spread::InBlocks => (u64::from(number) * hops / u64::from(self.count)).min(last),
            };
            let prefix = self.first.further(number).expect("the last one is there");
            table.push(groups[hop as usize], &nlri(prefix, number));
        }
        Ok(())
    }

    fn last_prefix(&self) -> Option<Prefix> {
        self.first.further(self.count.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern() -> Pattern {
        Pattern {
            family: Family::Ipv4Unicast,
            first: "10.0.0.0/24".parse().unwrap(),
            count: 5,
            next_hops: vec!["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()],
            spread: Spread::InTurn,
            as_path: AsPath::default(),
            first_label: None,
            distinguisher: None,
        }
    }

    fn hops(pattern: &Pattern) -> String {
        let mut table = Table::new();
        pattern.append_to(&mut table).unwrap();
        table.iter().map(|(_, path)| path.next_hop.to_string().pop().unwrap()).collect()
    }

    #[test]
    fn next_hops_are_dealt_out_in_turn_or_in_blocks() {
        assert_eq!(hops(&pattern()), "12121");
        assert_eq!(hops(&Pattern { spread: Spread::InBlocks, ..pattern() }), "11122");
        assert_eq!(hops(&Pattern { count: 0, ..pattern() }), "");
    }

    #[test]
    fn labels_count_up_from_the_first_one() {
        let labelled = Pattern { family: Family::Ipv4Labelled, first_label: Some(1_048_571), ..pattern() };
        let mut table = Table::new();
        labelled.append_to(&mut table).unwrap();
        assert_eq!(table.iter().last().unwrap().0.label, Some(1_048_575));
        let refused = Pattern { first_label: Some(1_048_572), ..labelled }.append_to(&mut table);
        assert_eq!(refused, Err(PatternError::OtherFamily(Family::Ipv4Labelled)));
    }

    #[test]
    fn what_a_pattern_cannot_yield_is_refused() {
        let refused = |pattern: Pattern| {
            let mut table = Table::new();
            let error = pattern.append_to(&mut table).unwrap_err();
            assert!(table.is_empty());
            error
        };
        let first = "255.255.255.0/24".parse().unwrap();
        assert_eq!(refused(Pattern { first, ..pattern() }), PatternError::TooMany);
        assert_eq!(refused(Pattern { next_hops: vec![], ..pattern() }), PatternError::NoNextHop);
        let other = Pattern { first: "2001:db8::/48".parse().unwrap(), ..pattern() };
        assert_eq!(refused(other), PatternError::OtherFamily(Family::Ipv4Unicast));
        let vpn = Pattern { family: Family::Vpnv4, first_label: Some(16), ..pattern() };
        assert_eq!(refused(vpn), PatternError::OtherFamily(Family::Vpnv4));
    }
}
