//! Neighbours: whose station is known, and the routes that those on a link have of their own, so that the
//! tables lead to each by its station.

use super::{Destination, Fib, Path, Prefix};
use crate::tables::Tables;
use netstage_core::edge;
use netstage_routing::source::path::Neighbour;
use netstage_wire::ethernet::Mac;
use std::collections::BTreeSet;
use std::net::IpAddr;

impl Fib {
    /// A neighbour's station is known from now on, or is not any more.
    pub fn set_neighbour(&mut self, tables: &mut Tables, neighbour: Neighbour, station: Option<Mac>) {
        let before = match station {
            Some(mac) => self.neighbours.insert(neighbour, mac),
            None => self.neighbours.remove(&neighbour),
        };
        if before == station {
            return;
        }
        let (interface, address) = neighbour;
        let first = Path { interface, via: Some(address), labels: Vec::new() };
        let same = |path: &Path| path.interface == interface && path.via == Some(address);
        for (path, number) in self.hops.from(&first).take_while(|(path, _)| same(path)) {
            let (hop, _) = tables.hop(number);
            tables.set_hop(number, *hop, self.next_hop(path));
        }
        let links =
            self.on_link.iter().filter(|(prefix, link)| **link == interface && holds(prefix.1, address));
        let homes: Vec<u32> = links.map(|((table, _), _)| *table).collect();
        for table in homes {
            self.revise_host(tables, (table, host(address)));
        }
    }

    /// Which neighbours are next routers, or are known.
    pub fn neighbours(&self) -> impl Iterator<Item = (Neighbour, Option<Mac>)> {
        let wanted = self.hops.all().filter_map(|(path, _)| Some((path.interface, path.via?)));
        let all: BTreeSet<Neighbour> = wanted.chain(self.neighbours.keys().copied()).collect();
        all.into_iter().map(|neighbour| (neighbour, self.neighbours.get(&neighbour).copied()))
    }

    /// Neighbours within a prefix that may be on a link no more.
    pub(super) fn revise_hosts(&mut self, tables: &mut Tables, (table, within): Prefix) {
        let hosts =
            self.hosts.iter().filter(|(home, (address, _))| *home == table && holds(within, *address));
        for host in hosts.copied().collect::<Vec<_>>() {
            self.revise_host(tables, host);
        }
    }

    /// A neighbour that is known on a link has a route of its own, unless a source has told one.
    pub(super) fn revise_host(&mut self, tables: &mut Tables, prefix: Prefix) {
        let (table, (address, _)) = prefix;
        let current = tables.route(table, prefix.1);
        if current.is_some() && !self.hosts.contains(&prefix) {
            return;
        }
        let links = self.on_link.iter().filter(|((home, link), _)| *home == table && holds(*link, address));
        let mut links = links.map(|(_, interface)| *interface);
        let home = links.find(|interface| self.neighbours.contains_key(&(*interface, address)));
        if let Some(interface) = home {
            let to = Destination::Paths(vec![Path { interface, via: Some(address), labels: Vec::new() }]);
            if current.and_then(|target| self.destination(target)) == Some(&to) {
                return;
            }
            // Without room for it the slow path finds the station each time.
            if self.insert(tables, prefix, &to).is_ok() {
                self.hosts.insert(prefix);
                return;
            }
        }
        if self.hosts.remove(&prefix)
            && let Some(target) = tables.remove(table, prefix.1)
        {
            self.release_target(target);
        }
    }
}

/// The prefix of an address alone.
pub(super) fn host(address: IpAddr) -> (IpAddr, u8) {
    (address, if address.is_ipv4() { 32 } else { 128 })
}

pub(crate) fn holds((prefix, length): (IpAddr, u8), address: IpAddr) -> bool {
    edge::Prefix::around(prefix, length).holds(address)
}
