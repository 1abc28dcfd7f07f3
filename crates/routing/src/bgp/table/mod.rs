//! Routes to announce, in order, in little more memory than they take in messages.
//!
//! Routes with equal attributes form a group, whose destinations stand as they do in an UPDATE;
//! the order over all groups is kept in runs. Tables come from [`Pattern`]s, from text
//! ([`read_text`]) and from MRT files ([`read_mrt`]).

mod mrt;
mod pattern;
mod text;

pub use mrt::{Dump, MrtError, read_mrt};
pub use pattern::{Pattern, PatternError, Spread};
pub use text::{TextError, read_text};

use super::nlri::{Destinations, Family, Nlri, encoded_length};
use super::path::Path;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// A group of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupId(u32);

/// Routes of one family with equal attributes.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub family: Family,
    pub path: Path,
    /// The destinations as in a message.
    pub nlri: Vec<u8>,
    pub count: usize,
    /// Bytes of each destination, where all take the same.
    pub stride: Option<usize>,
}

/// Successive routes of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub group: u32,
    pub count: u32,
}

/// Why a route cannot be in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The next hop is of the other kind of address than the family's.
    NextHop(Family, IpAddr),
    /// Attributes alone would fill a message.
    TooLong,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NextHop(family, next_hop) => write!(f, "{next_hop} is no next hop for {family}"),
            Refused::TooLong => f.write_str("the attributes do not fit into a message"),
        }
    }
}

impl std::error::Error for Refused {}

/// Routes, in order.
#[derive(Clone, Default)]
pub struct Table {
    groups: Vec<Group>,
    runs: Vec<Run>,
    index: HashMap<(Family, Path), u32>,
    count: usize,
}

/// What attributes may take, so that a destination of any family fits beside them.
const LONGEST_ATTRIBUTES: usize = 3800;

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} routes in {} groups", self.count, self.groups.len())
    }
}

impl Table {
    /// Without routes.
    pub fn new() -> Table {
        Table::default()
    }

    /// How many routes it has.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The families it has routes of.
    pub fn families(&self) -> Vec<Family> {
        Family::ALL
            .into_iter()
            .filter(|family| self.groups.iter().any(|group| group.family == *family))
            .collect()
    }

    /// The group of routes with this path, to [`push`](Table::push) to.
    pub fn group(&mut self, family: Family, path: Path) -> Result<GroupId, Refused> {
        if family.is_ipv4() != path.next_hop.is_ipv4() {
            return Err(Refused::NextHop(family, path.next_hop));
        }
        let attributes: usize = path.others.iter().map(|raw| raw.value.len() + 4).sum();
        let numbers: usize = path.as_path.segments.iter().map(|segment| 2 + 4 * segment.numbers.len()).sum();
        // The path may be written in both forms (RFC 6793 section 4.2.2).
        if attributes + 2 * numbers > LONGEST_ATTRIBUTES {
            return Err(Refused::TooLong);
        }
        let key = (family, path);
        if let Some(&group) = self.index.get(&key) {
            return Ok(GroupId(group));
        }
        let group = u32::try_from(self.groups.len()).expect("more groups than memory holds");
        let path = key.1.clone();
        self.groups.push(Group { family, path, nlri: Vec::new(), count: 0, stride: None });
        self.index.insert(key, group);
        Ok(GroupId(group))
    }

    /// Appends a route.
    ///
    /// Panics where the destination is of another family than the group.
    #[inline]
    pub fn push(&mut self, GroupId(id): GroupId, nlri: &Nlri) {
        let group = &mut self.groups[id as usize];
        assert!(group.family == nlri.family && nlri.is_consistent(), "{nlri:?} in {:?}", group.family);
        let start = group.nlri.len();
        nlri.write(&mut group.nlri);
        let length = group.nlri.len() - start;
        group.stride =
            if group.count == 0 { Some(length) } else { group.stride.filter(|&all| all == length) };
        group.count += 1;
        self.count += 1;
        match self.runs.last_mut() {
            Some(run) if run.group == id => run.count += 1,
            _ => self.runs.push(Run { group: id, count: 1 }),
        }
    }

    /// All routes in their order.
    pub fn iter(&self) -> impl Iterator<Item = (Nlri, &Path)> {
        let mut places = vec![0; self.groups.len()];
        self.runs.iter().flat_map(move |run| {
            let group = &self.groups[run.group as usize];
            let place = &mut places[run.group as usize];
            let start = *place;
            *place = group.after(start, run.count as usize);
            Destinations::new(group.family, &group.nlri[start..*place]).map(|nlri| (nlri, &group.path))
        })
    }

    pub(super) fn all_groups(&self) -> &[Group] {
        &self.groups
    }

    pub(super) fn all_runs(&self) -> &[Run] {
        &self.runs
    }
}

impl Group {
    /// Where the `count` destinations from `start` on end.
    pub(super) fn after(&self, start: usize, count: usize) -> usize {
        match self.stride {
            Some(stride) => start + stride * count,
            None => (0..count).fold(start, |place, _| place + encoded_length(&self.nlri[place..])),
        }
    }

    /// Where those of the destinations in `start..end` end that fit into `room` bytes.
    pub(super) fn fitting(&self, start: usize, end: usize, room: usize) -> usize {
        let limit = end.min(start + room);
        match self.stride {
            Some(stride) => start + (limit - start) / stride * stride,
            None => {
                let mut place = start;
                while place < limit && place + encoded_length(&self.nlri[place..]) <= limit {
                    place += encoded_length(&self.nlri[place..]);
                }
                place
            }
        }
    }

    /// How many destinations `start..end` are.
    pub(super) fn count_in(&self, start: usize, end: usize) -> usize {
        match self.stride {
            Some(stride) => (end - start) / stride,
            None => {
                let (mut place, mut count) = (start, 0);
                while place < end {
                    place += encoded_length(&self.nlri[place..]);
                    count += 1;
                }
                count
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bgp::path::AsPath;

    #[test]
    fn the_order_holds_over_groups() {
        let mut table = Table::new();
        let hops = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|hop| hop.parse::<IpAddr>().unwrap());
        let expected: Vec<(Nlri, IpAddr)> = (0..1000_u32)
            .map(|number| {
                let prefix = format!("10.{}.{}.0/{}", number / 256, number % 256, 24 - number % 3);
                (Nlri::unicast(prefix.parse().unwrap()), hops[(number as usize * 7 / 5) % 3])
            })
            .collect();
        for (nlri, hop) in &expected {
            let path = Path::new(*hop, AsPath::sequence(&[65_000]));
            let group = table.group(Family::Ipv4Unicast, path).unwrap();
            table.push(group, nlri);
        }
        assert_eq!((table.len(), table.groups.len()), (1000, 3));
        let found: Vec<_> = table.iter().map(|(nlri, path)| (nlri, path.next_hop)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_next_hop_fits_its_family_and_attributes_a_message() {
        let mut table = Table::new();
        let path = Path::new("2001:db8::1".parse().unwrap(), AsPath::default());
        let refused = table.group(Family::Ipv4Unicast, path.clone()).unwrap_err();
        assert_eq!(refused.to_string(), "2001:db8::1 is no next hop for IPv4 unicast");
        let long = Path { as_path: AsPath::sequence(&[1; 600]), ..path };
        assert_eq!(table.group(Family::Ipv6Unicast, long), Err(Refused::TooLong));
    }
}
