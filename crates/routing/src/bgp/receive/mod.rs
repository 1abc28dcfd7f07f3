//! Routes received from a peer and not withdrawn, in compact form, and their differences from the expected
//! routes.

mod ipv4;

use super::nlri::{BgpFamily, Nlri, NlriPrefix, RouteDistinguisher};
use super::table::BgpTable;
use super::update::Update;
use ipv4::Ipv4Routes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::{IpAddr, Ipv4Addr};

/// Destination outside IPv4 unicast, without its label.
type DestinationKey = (BgpFamily, Option<RouteDistinguisher>, NlriPrefix);

fn key(nlri: &Nlri) -> DestinationKey {
    (nlri.family, nlri.distinguisher, nlri.prefix)
}

/// Returns the address of an IPv4 unicast destination. IPv4 tables are the largest and have their own data
/// structure.
#[inline]
fn ipv4(nlri: &Nlri) -> Option<Ipv4Addr> {
    match (nlri.family, nlri.prefix.address()) {
        (BgpFamily::Ipv4Unicast, IpAddr::V4(address)) => Some(address),
        _ => None,
    }
}

/// Hasher that multiplies and folds. It does not resist deliberate collisions, which a device under test
/// does not produce.
#[derive(Clone, Copy, Debug, Default)]
struct FoldingHasher(u64);

impl Hasher for FoldingHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy, Debug)]
struct ReceivedRoute {
    next_hop: u32,
    label: Option<u32>,
}

/// Routes received from a peer.
#[derive(Clone, Debug, Default)]
pub struct ReceivedRoutes {
    ipv4: Ipv4Routes,
    others: HashMap<DestinationKey, ReceivedRoute, BuildHasherDefault<FoldingHasher>>,
    next_hops: Vec<IpAddr>,
    next_hop_index: HashMap<IpAddr, u32>,
    by_family: BTreeMap<BgpFamily, usize>,
    tally: UpdateCounters,
}

/// Counters of received UPDATE messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateCounters {
    /// UPDATE messages.
    pub updates: u64,
    /// Announced destinations, including repetitions.
    pub announced: u64,
    /// Withdrawn destinations, including unknown ones.
    pub withdrawn: u64,
    /// Messages whose routes were treated as withdrawn (RFC 7606).
    pub malformed: u64,
}

/// Next hop expected in received routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedNextHop {
    /// Next hop of the table, for a route server or route reflector.
    AsListed,
    /// This next hop, for a router that sets next-hop-self.
    Itself(IpAddr),
    /// Any next hop.
    Any,
}

/// Differences between received routes and a table; at most [`RouteDifferences::MAX_LISTED`] of each kind are
/// listed, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteDifferences {
    /// Routes in the table that were not received.
    pub missing: Vec<Nlri>,
    /// Received routes that are not in the table, in the families of the table.
    pub unexpected: Vec<Nlri>,
    /// Received routes with a different next hop.
    pub next_hop: Vec<(Nlri, IpAddr)>,
    /// Total numbers of missing routes, unexpected routes, and routes with a different next hop.
    pub counts: [usize; 3],
}

impl RouteDifferences {
    /// Maximum number of listed routes of each kind.
    pub const MAX_LISTED: usize = 20;

    /// Returns `true` if there are no differences.
    pub fn is_empty(&self) -> bool {
        self.counts == [0; 3]
    }
}

impl ReceivedRoutes {
    /// Creates an empty set of routes.
    pub fn new() -> ReceivedRoutes {
        ReceivedRoutes::default()
    }

    /// Applies an UPDATE message.
    pub fn take(&mut self, update: &Update) {
        self.tally.updates += 1;
        self.tally.malformed += u64::from(update.malformed().is_some());
        for destinations in update.unreachable() {
            for nlri in destinations {
                self.tally.withdrawn += 1;
                let was_present = match ipv4(&nlri) {
                    Some(address) => self.ipv4.remove(address, nlri.prefix.length()),
                    None => self.others.remove(&key(&nlri)).is_some(),
                };
                if was_present {
                    *self.by_family.entry(nlri.family).or_default() -= 1;
                }
            }
        }
        for (next_hop, destinations) in update.reachable() {
            let next_hop = self.index_of(next_hop);
            let (family, mut announced, mut new) = (destinations.family(), 0, 0);
            for nlri in destinations {
                announced += 1;
                let is_new = match ipv4(&nlri) {
                    Some(address) => self.ipv4.insert(address, nlri.prefix.length(), next_hop),
                    None => {
                        let entry = ReceivedRoute { next_hop, label: nlri.label };
                        self.others.insert(key(&nlri), entry).is_none()
                    }
                };
                new += usize::from(is_new);
            }
            self.tally.announced += announced;
            *self.by_family.entry(family).or_default() += new;
        }
    }

    fn index_of(&mut self, next_hop: IpAddr) -> u32 {
        *self.next_hop_index.entry(next_hop).or_insert_with(|| {
            self.next_hops.push(next_hop);
            u32::try_from(self.next_hops.len() - 1).expect("fewer than 2^32 next hops")
        })
    }

    /// Removes all routes, as at the end of a session.
    pub fn clear(&mut self) {
        *self = ReceivedRoutes::default();
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.ipv4.len() + self.others.len()
    }

    /// Returns `true` if there are no routes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of routes of a family.
    pub fn count(&self, family: BgpFamily) -> usize {
        self.by_family.get(&family).copied().unwrap_or(0)
    }

    /// Returns the counters of UPDATE messages.
    pub fn update_counters(&self) -> UpdateCounters {
        self.tally
    }

    /// Returns the next hop and label of a destination. The label of `nlri` is ignored.
    pub fn find(&self, nlri: &Nlri) -> Option<(IpAddr, Option<u32>)> {
        let (next_hop, label) = match ipv4(nlri) {
            Some(address) => (self.ipv4.get(address, nlri.prefix.length())?, None),
            None => self.others.get(&key(nlri)).map(|entry| (entry.next_hop, entry.label))?,
        };
        Some((self.next_hops[next_hop as usize], label))
    }

    /// Iterates over all routes and their next-hop indexes, in no particular order.
    fn all(&self) -> impl Iterator<Item = (Nlri, u32)> {
        let others = self.others.iter().map(|(&(family, distinguisher, prefix), entry)| {
            (Nlri { family, distinguisher, prefix, label: entry.label }, entry.next_hop)
        });
        self.ipv4.iter().map(|(prefix, next_hop)| (Nlri::unicast(prefix), next_hop)).chain(others)
    }

    /// Returns all routes with their next hops, sorted by family, VPN and prefix.
    pub fn routes(&self) -> Vec<(Nlri, IpAddr)> {
        let mut all: Vec<_> =
            self.all().map(|(nlri, next_hop)| (nlri, self.next_hops[next_hop as usize])).collect();
        all.sort_unstable();
        all
    }

    /// Returns the number of routes of each next hop.
    pub fn next_hops(&self) -> BTreeMap<IpAddr, usize> {
        let mut counts = vec![0; self.next_hops.len()];
        self.all().for_each(|(_, next_hop)| counts[next_hop as usize] += 1);
        self.next_hops.iter().copied().zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// Compares the routes of these families with a table. Labels are not compared: a router that sets
    /// next-hop-self assigns its own.
    pub fn differences(
        &self,
        table: &BgpTable,
        families: &[BgpFamily],
        next_hop: ExpectedNextHop,
    ) -> RouteDifferences {
        let mut found = RouteDifferences::default();
        let mut listed = Ipv4Routes::default();
        let mut listed_others: HashSet<DestinationKey, BuildHasherDefault<FoldingHasher>> =
            HashSet::default();
        for (nlri, path) in table.iter().filter(|(nlri, _)| families.contains(&nlri.family)) {
            let is_new = match ipv4(&nlri) {
                Some(address) => listed.insert(address, nlri.prefix.length(), 0),
                None => listed_others.insert(key(&nlri)),
            };
            if !is_new {
                continue;
            }
            let expected = match next_hop {
                ExpectedNextHop::AsListed => Some(path.next_hop),
                ExpectedNextHop::Itself(next_hop) => Some(next_hop),
                ExpectedNextHop::Any => None,
            };
            match self.find(&nlri).map(|(hop, _)| hop) {
                None => add_difference(&mut found.missing, &mut found.counts[0], nlri),
                Some(hop) if expected.is_some_and(|expected| expected != hop) => {
                    add_difference(&mut found.next_hop, &mut found.counts[2], (nlri, hop))
                }
                Some(_) => {}
            }
        }
        let is_listed = |nlri: &Nlri| match ipv4(nlri) {
            Some(address) => listed.get(address, nlri.prefix.length()).is_some(),
            None => listed_others.contains(&key(nlri)),
        };
        let in_families = self.all().map(|(nlri, _)| nlri).filter(|nlri| families.contains(&nlri.family));
        let mut unexpected: Vec<Nlri> = in_families.filter(|nlri| !is_listed(nlri)).collect();
        unexpected.sort_unstable();
        for nlri in unexpected {
            add_difference(&mut found.unexpected, &mut found.counts[1], nlri);
        }
        found
    }
}

fn add_difference<T>(shown: &mut Vec<T>, count: &mut usize, item: T) {
    *count += 1;
    if shown.len() < RouteDifferences::MAX_LISTED {
        shown.push(item);
    }
}
