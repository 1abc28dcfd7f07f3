//! Routes to announce, in order, stored nearly as compactly as in messages.
//!
//! Routes with equal attributes form a group, which stores its destinations as encoded in UPDATE messages.
//! Runs record the order across groups. Tables are filled from [`RoutePattern`]s, from text ([`read_text`])
//! and from MRT files ([`read_mrt`]).

mod mrt;
mod pattern;
mod text;

pub use mrt::{MrtError, MrtStatistics, read_mrt};
pub use pattern::{NextHopAssignment, Pattern, PatternError};
pub use text::{TextError, read_text};

use super::nlri::{BgpFamily, Destinations, Nlri, encoded_length};
use super::path::PathAttributes;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// Identifier of a group in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupId(u32);

/// Routes of one family with equal attributes.
#[derive(Clone, Debug)]
pub(super) struct RouteGroup {
    pub family: BgpFamily,
    pub path: PathAttributes,
    /// Destinations as encoded in a message.
    pub nlri: Vec<u8>,
    pub count: usize,
    /// Encoded length of each destination in bytes, if all are equally long.
    pub stride: Option<usize>,
}

/// Consecutive routes of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteRun {
    pub group: u32,
    pub count: u32,
}

/// Reason why a route cannot be added to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BgpTableError {
    /// Next hop of the wrong IP version for the family.
    NextHop(BgpFamily, IpAddr),
    /// Attributes too long for a message with a destination.
    TooLong,
}

impl fmt::Display for BgpTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BgpTableError::NextHop(family, next_hop) => {
                write!(f, "{next_hop} is not a valid next hop for {family}")
            }
            BgpTableError::TooLong => f.write_str("attributes too long for an UPDATE message"),
        }
    }
}

impl std::error::Error for BgpTableError {}

/// Routes to announce, in order.
#[derive(Clone, Default)]
pub struct BgpTable {
    groups: Vec<RouteGroup>,
    runs: Vec<RouteRun>,
    index: HashMap<(BgpFamily, PathAttributes), u32>,
    count: usize,
}

/// Maximum length of the attributes, bytes; leaves room for a destination of any family.
const LONGEST_ATTRIBUTES: usize = 3800;

impl fmt::Debug for BgpTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} routes in {} groups", self.count, self.groups.len())
    }
}

impl BgpTable {
    /// Creates an empty table.
    pub fn new() -> BgpTable {
        BgpTable::default()
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if there are no routes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the address families of the routes.
    pub fn families(&self) -> Vec<BgpFamily> {
        BgpFamily::ALL
            .into_iter()
            .filter(|family| self.groups.iter().any(|group| group.family == *family))
            .collect()
    }

    /// Returns the group for routes with these attributes, to be passed to [`push`](BgpTable::push).
    pub fn group(&mut self, family: BgpFamily, path: PathAttributes) -> Result<GroupId, BgpTableError> {
        if family.is_ipv4() != path.next_hop.is_ipv4() {
            return Err(BgpTableError::NextHop(family, path.next_hop));
        }
        let attributes: usize = path.others.iter().map(|raw| raw.value.len() + 4).sum();
        let numbers: usize = path.as_path.segments.iter().map(|segment| 2 + 4 * segment.numbers.len()).sum();
        // The AS path may be written as both AS_PATH and AS4_PATH (RFC 6793 section 4.2.2).
        if attributes + 2 * numbers > LONGEST_ATTRIBUTES {
            return Err(BgpTableError::TooLong);
        }
        let key = (family, path);
        if let Some(&group) = self.index.get(&key) {
            return Ok(GroupId(group));
        }
        let group = u32::try_from(self.groups.len()).expect("fewer than 2^32 groups");
        let path = key.1.clone();
        self.groups.push(RouteGroup { family, path, nlri: Vec::new(), count: 0, stride: None });
        self.index.insert(key, group);
        Ok(GroupId(group))
    }

    /// Appends a route.
    ///
    /// Panics if the destination is of a different family than the group.
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
            _ => self.runs.push(RouteRun { group: id, count: 1 }),
        }
    }

    /// Iterates over all routes in order.
    pub fn iter(&self) -> impl Iterator<Item = (Nlri, &PathAttributes)> {
        let mut offsets = vec![0; self.groups.len()];
        self.runs.iter().flat_map(move |run| {
            let group = &self.groups[run.group as usize];
            let offset = &mut offsets[run.group as usize];
            let start = *offset;
            *offset = group.after(start, run.count as usize);
            Destinations::new(group.family, &group.nlri[start..*offset]).map(|nlri| (nlri, &group.path))
        })
    }

    pub(super) fn all_groups(&self) -> &[RouteGroup] {
        &self.groups
    }

    pub(super) fn all_runs(&self) -> &[RouteRun] {
        &self.runs
    }
}

impl RouteGroup {
    /// Returns the end of the `count` destinations that start at `start`.
    pub(super) fn after(&self, start: usize, count: usize) -> usize {
        match self.stride {
            Some(stride) => start + stride * count,
            None => (0..count).fold(start, |offset, _| offset + encoded_length(&self.nlri[offset..])),
        }
    }

    /// Returns the end of the destinations in `start..end` that fit into `room` bytes.
    pub(super) fn fitting(&self, start: usize, end: usize, room: usize) -> usize {
        let limit = end.min(start + room);
        match self.stride {
            Some(stride) => start + (limit - start) / stride * stride,
            None => {
                let mut offset = start;
                while offset < limit && offset + encoded_length(&self.nlri[offset..]) <= limit {
                    offset += encoded_length(&self.nlri[offset..]);
                }
                offset
            }
        }
    }

    /// Returns the number of destinations in `start..end`.
    pub(super) fn count_in(&self, start: usize, end: usize) -> usize {
        match self.stride {
            Some(stride) => (end - start) / stride,
            None => {
                let (mut offset, mut count) = (start, 0);
                while offset < end {
                    offset += encoded_length(&self.nlri[offset..]);
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
    fn the_order_is_kept_across_groups() {
        let mut table = BgpTable::new();
        let hops = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|hop| hop.parse::<IpAddr>().unwrap());
        let expected: Vec<(Nlri, IpAddr)> = (0..1000_u32)
            .map(|number| {
                let prefix = format!("10.{}.{}.0/{}", number / 256, number % 256, 24 - number % 3);
                (Nlri::unicast(prefix.parse().unwrap()), hops[(number as usize * 7 / 5) % 3])
            })
            .collect();
        for (nlri, hop) in &expected {
            let path = PathAttributes::new(*hop, AsPath::sequence(&[65_000]));
            let group = table.group(BgpFamily::Ipv4Unicast, path).unwrap();
            table.push(group, nlri);
        }
        assert_eq!((table.len(), table.groups.len()), (1000, 3));
        let found: Vec<_> = table.iter().map(|(nlri, path)| (nlri, path.next_hop)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn next_hops_and_attribute_lengths_are_checked() {
        let mut table = BgpTable::new();
        let path = PathAttributes::new("2001:db8::1".parse().unwrap(), AsPath::default());
        let error = table.group(BgpFamily::Ipv4Unicast, path.clone()).unwrap_err();
        assert_eq!(error.to_string(), "2001:db8::1 is not a valid next hop for IPv4 unicast");
        let long = PathAttributes { as_path: AsPath::sequence(&[1; 600]), ..path };
        assert_eq!(table.group(BgpFamily::Ipv6Unicast, long), Err(BgpTableError::TooLong));
    }
}
