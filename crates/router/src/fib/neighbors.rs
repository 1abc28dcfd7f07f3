//! Neighbors: their MAC addresses, and host routes to neighbors on a link, so that the tables contain their
//! MAC addresses.

use super::{Destination, Fib, RoutePath, TablePrefix};
use crate::tables::Tables;
use netstage_core::edge;
use netstage_routing::source::path::InterfaceNeighbor;
use netstage_wire::ethernet::Mac;
use std::collections::BTreeSet;
use std::net::IpAddr;

impl Fib {
    /// Sets or removes the MAC address of a neighbor.
    pub fn set_neighbor(&mut self, tables: &mut Tables, neighbor: InterfaceNeighbor, station: Option<Mac>) {
        let before = match station {
            Some(mac) => self.neighbors.insert(neighbor, mac),
            None => self.neighbors.remove(&neighbor),
        };
        if before == station {
            return;
        }
        self.revise_hops_to(tables, neighbor);
        let (interface, address) = neighbor;
        let links =
            self.on_link.iter().filter(|(prefix, link)| **link == interface && holds(prefix.1, address));
        let table_numbers: Vec<u32> = links.map(|((table, _), _)| *table).collect();
        for table in table_numbers {
            self.revise_host(tables, (table, host(address)));
        }
    }

    /// Returns the neighbors that are next hops, also of backup and alternate paths, or have a known MAC address.
    pub fn neighbors(&self) -> impl Iterator<Item = (InterfaceNeighbor, Option<Mac>)> {
        let paths = self.hops.all().map(|(path, _)| path).chain(self.backups.values());
        let alternates = self.alternates.values().map(|alternate| alternate.to);
        let wanted = paths.filter_map(|path| Some((path.interface, path.via?))).chain(alternates);
        let all: BTreeSet<InterfaceNeighbor> = wanted.chain(self.neighbors.keys().copied()).collect();
        all.into_iter().map(|neighbor| (neighbor, self.neighbors.get(&neighbor).copied()))
    }

    /// Updates the host routes within a prefix that may have left a link.
    pub(super) fn revise_hosts(&mut self, tables: &mut Tables, (table, within): TablePrefix) {
        let hosts =
            self.hosts.iter().filter(|(number, (address, _))| *number == table && holds(within, *address));
        for host in hosts.copied().collect::<Vec<_>>() {
            self.revise_host(tables, host);
        }
    }

    /// Adds or removes the host route of a neighbor. A known neighbor on a link has one, unless a source
    /// defines a route to the address.
    pub(super) fn revise_host(&mut self, tables: &mut Tables, prefix: TablePrefix) {
        let (table, (address, _)) = prefix;
        let current = tables.route(table, prefix.1);
        if current.is_some() && !self.hosts.contains(&prefix) {
            return;
        }
        let links =
            self.on_link.iter().filter(|((number, link), _)| *number == table && holds(*link, address));
        let mut links = links.map(|(_, interface)| *interface);
        let link = links.find(|interface| self.neighbors.contains_key(&(*interface, address)));
        if let Some(interface) = link {
            let to =
                Destination::Paths(vec![RoutePath { interface, via: Some(address), labels: Vec::new() }]);
            if current.and_then(|target| self.destination(target)) == Some(&to) {
                return;
            }
            // If the table is full, the slow path resolves the neighbor for each packet.
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

/// Returns the host prefix of an address.
pub(super) fn host(address: IpAddr) -> (IpAddr, u8) {
    (address, if address.is_ipv4() { 32 } else { 128 })
}

pub(crate) fn holds((prefix, length): (IpAddr, u8), address: IpAddr) -> bool {
    edge::IpPrefix::containing(prefix, length).contains(address)
}
