//! Address resolution for IPv4 (RFC 826, RFC 1122 section 2.3.2) and IPv6 (RFC 4861 section 7) as one state
//! machine for many links.
//!
//! An unresolved address is solicited three times, one second apart; meanwhile the latest packet waits. A
//! resolved address is valid for 30 seconds. If it was used during that time, it is then confirmed with
//! unicast solicitations. Packets continue to use the MAC address until that fails.
//!
//! Call [`lookup`](NeighborCache::lookup) for each packet, [`enqueue`](NeighborCache::enqueue) if it finds no MAC
//! address, and [`handle_announcement`](NeighborCache::handle_announcement) for the addresses that neighbors
//! announce. Then call [`poll`](NeighborCache::poll) until it returns `None`, and again at
//! [`poll_timeout`](NeighborCache::poll_timeout).

use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;
use netstage_wire::ethernet::Mac;

/// Time between two solicitations (RFC 4861 section 10, RETRANS_TIMER).
const RETRANSMIT: Duration = Duration::from_secs(1);
/// Solicitations before resolution fails (MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT).
const ATTEMPTS: u8 = 3;
/// Time for which a resolved address is valid without confirmation.
const VALIDITY: Duration = Duration::from_secs(30);
/// Limit on unresolved addresses per link, so that a host that sends to many absent addresses cannot fill
/// the link with solicitations.
const MAX_UNRESOLVED: u32 = 64;
/// Limit on entries per link.
const MAX_ENTRIES: u32 = 4096;

/// The neighbors on a set of links, and the packets `H` that wait for address resolution.
#[derive(Debug)]
pub struct NeighborCache<H> {
    entries: BTreeMap<NeighborKey, NeighborEntry<H>>,
    timers: BTreeSet<(Instant, NeighborKey)>,
    /// Number of unresolved addresses and of all entries, per link.
    counts: BTreeMap<u32, (u32, u32)>,
}

/// Link number and IP address.
type NeighborKey = (u32, IpAddr);

#[derive(Debug)]
struct NeighborEntry<H> {
    state: NeighborState<H>,
    due: Instant,
}

#[derive(Debug)]
enum NeighborState<H> {
    Incomplete { waiting: Option<H>, remaining: u8 },
    Reachable { mac: Mac, is_used: bool },
    Probe { mac: Mac, remaining: u8 },
}

impl<H> NeighborState<H> {
    fn mac(&self) -> Option<Mac> {
        match self {
            NeighborState::Incomplete { .. } => None,
            NeighborState::Reachable { mac, .. } | NeighborState::Probe { mac, .. } => Some(*mac),
        }
    }
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeighborAction<H> {
    /// Send a solicitation: to all hosts on the link, or only to the MAC address known so far.
    Solicit {
        /// The link.
        link: u32,
        /// The address.
        address: IpAddr,
        /// MAC address known so far; `None` for a multicast or broadcast solicitation.
        mac: Option<Mac>,
    },
    /// Report that the address could not be resolved and the packet is undeliverable.
    Unreachable {
        /// The link.
        link: u32,
        /// The address.
        address: IpAddr,
        /// The packet that waited for the address.
        waiting: Option<H>,
    },
}

impl<H> Default for NeighborCache<H> {
    fn default() -> NeighborCache<H> {
        NeighborCache::new()
    }
}

impl<H> NeighborCache<H> {
    /// Creates an empty table.
    pub fn new() -> NeighborCache<H> {
        NeighborCache { entries: BTreeMap::new(), timers: BTreeSet::new(), counts: BTreeMap::new() }
    }

    /// Returns the MAC address of a neighbor if it is resolved, and marks the entry as used.
    #[inline]
    pub fn lookup(&mut self, link: u32, address: IpAddr) -> Option<Mac> {
        match &mut self.entries.get_mut(&(link, address))?.state {
            NeighborState::Reachable { mac, is_used } => {
                *is_used = true;
                Some(*mac)
            }
            state => state.mac(),
        }
    }

    /// Holds a packet until its address is resolved. Returns the packet held before, or `packet` itself if
    /// the link has too many unresolved addresses.
    pub fn enqueue(&mut self, now: Instant, link: u32, address: IpAddr, packet: H) -> Option<H> {
        let key = (link, address);
        match self.entries.get_mut(&key) {
            Some(NeighborEntry { state: NeighborState::Incomplete { waiting, .. }, .. }) => {
                waiting.replace(packet)
            }
            Some(_) => Some(packet),
            None => {
                let (unresolved, total) = self.counts.get(&link).copied().unwrap_or_default();
                if unresolved >= MAX_UNRESOLVED || total >= MAX_ENTRIES {
                    return Some(packet);
                }
                self.put(key, NeighborState::Incomplete { waiting: Some(packet), remaining: ATTEMPTS }, now);
                None
            }
        }
    }

    /// Handles a neighbor's announcement of its own address. For an unknown address, an entry is created
    /// only if `is_wanted`, for example because the neighbor solicits this router's address. Returns the
    /// packet that waited.
    pub fn handle_announcement(
        &mut self,
        now: Instant,
        (link, address): (u32, IpAddr),
        mac: Mac,
        is_wanted: bool,
    ) -> Option<H> {
        let key = (link, address);
        let is_used = match self.entries.get(&key) {
            None if !is_wanted => return None,
            None => {
                let (_, total) = self.counts.get(&link).copied().unwrap_or_default();
                if total >= MAX_ENTRIES {
                    return None;
                }
                false
            }
            Some(entry) => {
                matches!(
                    entry.state,
                    NeighborState::Incomplete { .. } | NeighborState::Reachable { is_used: true, .. }
                )
            }
        };
        let before = self.remove(key);
        self.put(key, NeighborState::Reachable { mac, is_used }, now + VALIDITY);
        match before? {
            NeighborState::Incomplete { waiting, .. } => waiting,
            _ => None,
        }
    }

    /// Returns the next action that is due.
    pub fn poll(&mut self, now: Instant) -> Option<NeighborAction<H>> {
        loop {
            let (due, key) = *self.timers.first()?;
            if due > now {
                return None;
            }
            let (link, address) = key;
            let state = match self.remove(key)? {
                NeighborState::Incomplete { waiting, remaining: 0 } => {
                    return Some(NeighborAction::Unreachable { link, address, waiting });
                }
                // The next packet starts a new resolution, by multicast or broadcast.
                NeighborState::Probe { remaining: 0, .. }
                | NeighborState::Reachable { is_used: false, .. } => continue,
                NeighborState::Incomplete { waiting, remaining } => {
                    NeighborState::Incomplete { waiting, remaining: remaining - 1 }
                }
                NeighborState::Probe { mac, remaining } => {
                    NeighborState::Probe { mac, remaining: remaining - 1 }
                }
                NeighborState::Reachable { mac, is_used: true } => {
                    NeighborState::Probe { mac, remaining: ATTEMPTS - 1 }
                }
            };
            let mac = state.mac();
            self.put(key, state, now + RETRANSMIT);
            return Some(NeighborAction::Solicit { link, address, mac });
        }
    }

    /// Returns the time of the next call of [`poll`](NeighborCache::poll).
    pub fn poll_timeout(&self) -> Instant {
        self.timers.first().map_or(Instant::NEVER, |(due, _)| *due)
    }

    /// Iterates over all entries; the MAC address is `None` while an address is unresolved.
    pub fn iter(&self) -> impl Iterator<Item = (u32, IpAddr, Option<Mac>)> + '_ {
        self.entries.iter().map(|((link, address), entry)| (*link, *address, entry.state.mac()))
    }

    /// Removes all entries and returns the packets that waited.
    pub fn clear(&mut self) -> impl Iterator<Item = H> + use<H> {
        self.timers.clear();
        self.counts.clear();
        core::mem::take(&mut self.entries).into_values().filter_map(|entry| match entry.state {
            NeighborState::Incomplete { waiting, .. } => waiting,
            _ => None,
        })
    }

    /// Moves all entries of link `from` of another table to link `to` of this one.
    pub fn adopt(&mut self, other: &mut NeighborCache<H>, from: u32, to: u32) {
        let range = (from, IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED))
            ..=(from, IpAddr::V6(core::net::Ipv6Addr::from(u128::MAX)));
        let addresses: alloc::vec::Vec<NeighborKey> =
            other.entries.range(range).map(|(key, _)| *key).collect();
        for key in addresses {
            let Some(due) = other.entries.get(&key).map(|entry| entry.due) else { continue };
            if let Some(state) = other.remove(key) {
                self.put((to, key.1), state, due);
            }
        }
    }

    fn put(&mut self, key: NeighborKey, state: NeighborState<H>, due: Instant) {
        let (unresolved, total) = self.counts.entry(key.0).or_default();
        *unresolved += u32::from(state.mac().is_none());
        *total += 1;
        self.timers.insert((due, key));
        let before = self.entries.insert(key, NeighborEntry { state, due });
        debug_assert!(before.is_none(), "the caller removed the old entry");
    }

    fn remove(&mut self, key: NeighborKey) -> Option<NeighborState<H>> {
        let NeighborEntry { state, due } = self.entries.remove(&key)?;
        self.timers.remove(&(due, key));
        if let Some((unresolved, total)) = self.counts.get_mut(&key.0) {
            *unresolved -= u32::from(state.mac().is_none());
            *total -= 1;
        }
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 9];
    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn seconds(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    fn actions<H>(neighbors: &mut NeighborCache<H>, now: Instant) -> Vec<NeighborAction<H>> {
        core::iter::from_fn(|| neighbors.poll(now)).collect()
    }

    fn solicitation<H>(mac: Option<Mac>) -> NeighborAction<H> {
        NeighborAction::Solicit { link: 1, address: HOST, mac }
    }

    #[test]
    fn the_latest_packet_waits_for_resolution() {
        let mut neighbors = NeighborCache::new();
        assert_eq!((neighbors.lookup(1, HOST), neighbors.enqueue(seconds(5), 1, HOST, 'a')), (None, None));
        assert_eq!(neighbors.poll_timeout(), seconds(5));
        assert_eq!(actions(&mut neighbors, seconds(5)), [solicitation(None)]);
        assert_eq!(neighbors.enqueue(seconds(5), 1, HOST, 'b'), Some('a'));
        assert_eq!(actions(&mut neighbors, seconds(6)), [solicitation(None)]);
        // An announcement on one link does not resolve the address on another.
        assert_eq!(neighbors.handle_announcement(seconds(6), (2, HOST), MAC, false), None);
        assert_eq!(neighbors.handle_announcement(seconds(6), (1, HOST), MAC, false), Some('b'));
        assert_eq!((neighbors.lookup(1, HOST), neighbors.lookup(2, HOST)), (Some(MAC), None));
    }

    #[test]
    fn resolution_of_an_absent_address_fails_and_can_be_repeated() {
        let mut neighbors = NeighborCache::new();
        for start in [0, 100] {
            assert_eq!(neighbors.enqueue(seconds(start), 1, HOST, start), None);
            for second in 0..3 {
                assert_eq!(actions(&mut neighbors, seconds(start + second)), [solicitation(None)]);
            }
            let given_up = NeighborAction::Unreachable { link: 1, address: HOST, waiting: Some(start) };
            assert_eq!(actions(&mut neighbors, seconds(start + 3)), [given_up]);
            assert_eq!(neighbors.poll_timeout(), Instant::NEVER);
        }
    }

    #[test]
    fn used_entries_are_confirmed_and_unused_entries_expire() {
        let mut neighbors: NeighborCache<()> = NeighborCache::new();
        neighbors.handle_announcement(seconds(0), (1, HOST), MAC, true);
        assert_eq!(neighbors.lookup(1, HOST), Some(MAC));
        assert_eq!(neighbors.poll_timeout(), seconds(30));
        assert_eq!(actions(&mut neighbors, seconds(30)), [solicitation(Some(MAC))]);
        // Packets continue to flow during confirmation, also when the MAC address changes.
        assert_eq!(neighbors.lookup(1, HOST), Some(MAC));
        neighbors.handle_announcement(seconds(31), (1, HOST), [4; 6], false);
        assert_eq!(neighbors.lookup(1, HOST), Some([4; 6]));
        for second in 61..64 {
            assert_eq!(actions(&mut neighbors, seconds(second)), [solicitation(Some([4; 6]))]);
        }
        assert_eq!((actions(&mut neighbors, seconds(64)), neighbors.lookup(1, HOST)), (Vec::new(), None));
        neighbors.handle_announcement(seconds(70), (1, HOST), MAC, true);
        assert_eq!((actions(&mut neighbors, seconds(100)), neighbors.iter().count()), (Vec::new(), 0));
    }

    #[test]
    fn unresolved_addresses_are_limited_per_link() {
        let mut neighbors = NeighborCache::new();
        let host = |number: u32| IpAddr::V4(Ipv4Addr::from(number));
        for number in 0..MAX_UNRESOLVED {
            assert_eq!(neighbors.enqueue(seconds(0), 1, host(number), number), None);
        }
        assert_eq!(neighbors.enqueue(seconds(0), 1, host(99_999), 7), Some(7));
        assert_eq!(neighbors.enqueue(seconds(0), 2, host(99_999), 7), None);
        neighbors.handle_announcement(seconds(0), (1, host(0)), MAC, false);
        assert_eq!(neighbors.enqueue(seconds(0), 1, host(99_999), 7), None);
        assert_eq!(neighbors.clear().count(), 65);
    }

    #[test]
    fn entries_move_to_another_table_under_a_new_link_number() {
        let (mut old, mut new) = (NeighborCache::new(), NeighborCache::new());
        old.enqueue(seconds(0), 1, HOST, 'a');
        old.handle_announcement(seconds(0), (7, HOST), MAC, true);
        new.adopt(&mut old, 1, 3);
        assert_eq!((old.iter().count(), new.iter().count()), (1, 1));
        assert_eq!(new.handle_announcement(seconds(1), (3, HOST), MAC, false), Some('a'));
    }

    proptest! {
        /// Every packet leaves the table exactly once, and each entry has one timer.
        #[test]
        fn no_packet_is_lost_or_duplicated(
            steps in prop::collection::vec((0..4_u8, 0..3_u32, 0..4_u8, 0..3_000_u64), 1..200),
        ) {
            let mut neighbors = NeighborCache::new();
            let (mut now, mut out) = (Instant::ZERO, BTreeSet::new());
            let mut inside = 0_usize;
            for (number, (step, link, host, ahead)) in steps.into_iter().enumerate() {
                now += Duration::from_millis(ahead);
                let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, host));
                let released = match step {
                    0 | 1 => match neighbors.lookup(link, address) {
                        Some(_) => Vec::new(),
                        None => {
                            inside += 1;
                            neighbors.enqueue(now, link, address, number).into_iter().collect()
                        }
                    },
                    2 => neighbors.handle_announcement(now, (link, address), MAC, host == 0).into_iter().collect(),
                    _ => actions(&mut neighbors, now).into_iter().filter_map(|action| match action {
                        NeighborAction::Unreachable { waiting, .. } => waiting,
                        NeighborAction::Solicit { .. } => None,
                    }).collect(),
                };
                for packet in released {
                    prop_assert!(out.insert(packet));
                }
                prop_assert_eq!(neighbors.timers.len(), neighbors.entries.len());
            }
            out.extend(neighbors.clear());
            prop_assert_eq!(out.len(), inside);
        }
    }
}
