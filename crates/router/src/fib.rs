//! Forwarding information base (FIB): routes and labels as their sources define them, with paths by interface
//! and address. It maintains the hops and targets of the forwarding tables, each stored once regardless of
//! the number of users.
//!
//! Freed numbers are reused, least recently freed first, so that a packet being processed with an old number
//! still finds the old entry.

mod interned;
mod links;
mod neighbours;

use super::tables::{NextHop, NoRoom, Stations, Tables};
use interned::Interned;
pub(super) use neighbours::holds;
use neighbours::host;
use netstage_core::forward::lpm::Full;
use netstage_core::forward::{Action, Hop, Incoming, MOST_LABELS, Model, Reserved};
use netstage_host::ports::NO_STATION;
use netstage_routing::source::path::{Change, Destination, Meaning, Neighbour, Path, Prefix};
use netstage_wire::ethernet::Mac;
use netstage_wire::mpls::Label;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// Reason to reject a change. The tables stay unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The routing table is full.
    Full,
    /// The table of next hops or of targets is full.
    NoRoom,
    /// More labels than a hop can push.
    TooManyLabels,
    /// The label is reserved.
    Reserved,
    /// The routing table or interface does not exist.
    Unknown,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Full => f.write_str("the table is full"),
            Refused::NoRoom => f.write_str("too many different next hops"),
            Refused::TooManyLabels => write!(f, "more than {MOST_LABELS} labels to push"),
            Refused::Reserved => f.write_str("the label is reserved"),
            Refused::Unknown => f.write_str("unknown table or interface"),
        }
    }
}

impl From<Full> for Refused {
    fn from(_: Full) -> Refused {
        Refused::Full
    }
}

impl From<NoRoom> for Refused {
    fn from(_: NoRoom) -> Refused {
        Refused::NoRoom
    }
}

impl From<Reserved> for Refused {
    fn from(_: Reserved) -> Refused {
        Refused::Reserved
    }
}

/// Interface of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// MAC address, or [`NO_STATION`] on links without MAC addresses.
    pub mac: Mac,
    /// MTU of the link, bytes.
    pub mtu: u16,
    /// Routing table of packets from the interface.
    pub table: u32,
    /// Labels are accepted from the interface.
    pub mpls: bool,
}

/// Meaning of a label: a target, or a lookup in a routing table.
#[derive(Clone, Copy, Debug)]
enum Leads {
    To(u32),
    Into(u32),
}

/// Routes and labels of all sources, and the known neighbors.
#[derive(Debug)]
pub struct Fib {
    interfaces: Vec<Interface>,
    tables: u32,
    model: Model,
    /// Interfaces that accept labels, one bit each.
    expected: u64,
    hops: Interned<Path>,
    /// Keyed by prefix, too, if prefixes are counted separately.
    targets: Interned<(Destination, Option<Prefix>)>,
    counts_prefixes: bool,
    /// Interfaces with a link that is down, one bit each. Targets with several paths exclude paths over them.
    down: u64,
    labels: BTreeMap<Label, Leads>,
    neighbours: BTreeMap<Neighbour, Mac>,
    /// Prefixes of links, and routes to neighbors there that no source has defined.
    on_link: BTreeMap<Prefix, u32>,
    hosts: BTreeSet<Prefix>,
}

impl Fib {
    /// Creates an empty FIB. Labels pushed use the tunnel model `model`.
    pub fn new(interfaces: Vec<Interface>, tables: u32, model: Model) -> Fib {
        Fib {
            expected: links::expected(&interfaces),
            interfaces,
            tables,
            model,
            hops: Interned::new(),
            targets: Interned::new(),
            counts_prefixes: false,
            down: 0,
            labels: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            on_link: BTreeMap::new(),
            hosts: BTreeSet::new(),
        }
    }

    /// Gives every prefix a target of its own, to be counted separately.
    pub fn counting_prefixes(self) -> Fib {
        Fib { counts_prefixes: true, ..self }
    }

    /// Applies a change to the tables.
    pub fn apply(&mut self, tables: &mut Tables, change: &Change) -> Result<(), Refused> {
        match change {
            Change::Route(prefix, Some(to)) => self.set_route(tables, *prefix, to),
            Change::Route(prefix, None) => self.remove_route(tables, *prefix),
            Change::Label(label, Some(meaning)) => self.set_label(tables, *label, meaning),
            Change::Label(label, None) => {
                tables.take_back(*label);
                self.forget_label(*label);
                Ok(())
            }
        }
    }

    /// Returns the destination of a target.
    pub fn destination(&self, target: u32) -> Option<&Destination> {
        self.targets.get(target).map(|(destination, _)| destination)
    }

    /// Returns the labels from `first` on, and their meanings.
    pub fn labels_from(&self, first: Label) -> impl Iterator<Item = (Label, Meaning)> {
        self.labels.range(first..).filter_map(|(label, leads)| {
            let meaning = match *leads {
                Leads::To(target) => Meaning::Forward(self.destination(target)?.clone()),
                Leads::Into(table) => Meaning::Pop { table },
            };
            Some((*label, meaning))
        })
    }

    /// Returns the number of labels.
    pub fn label_count(&self) -> usize {
        self.labels.len()
    }

    fn set_route(&mut self, tables: &mut Tables, prefix: Prefix, to: &Destination) -> Result<(), Refused> {
        self.insert(tables, prefix, to)?;
        self.hosts.remove(&prefix);
        let before = self.on_link.remove(&prefix);
        if let Destination::Paths(paths) = to
            && let [Path { interface, via: None, labels }] = &paths[..]
            && labels.is_empty()
            && prefix.1 != host(prefix.1.0)
        {
            self.on_link.insert(prefix, *interface);
            let known = self.neighbours.keys().filter(|(link, _)| link == interface);
            let known: Vec<IpAddr> =
                known.map(|(_, address)| *address).filter(|address| holds(prefix.1, *address)).collect();
            known.into_iter().for_each(|address| self.revise_host(tables, (prefix.0, host(address))));
        }
        if before.is_some() {
            self.revise_hosts(tables, prefix);
        }
        Ok(())
    }

    fn remove_route(&mut self, tables: &mut Tables, prefix: Prefix) -> Result<(), Refused> {
        self.check(prefix.0)?;
        let was_link = self.on_link.remove(&prefix).is_some();
        self.hosts.remove(&prefix);
        if let Some(target) = tables.remove(prefix.0, prefix.1) {
            self.release_target(target);
        }
        if was_link {
            self.revise_hosts(tables, prefix);
        }
        // Without a route from a source, a known neighbor gets a route of its own.
        if prefix.1 == host(prefix.1.0) {
            self.revise_host(tables, prefix);
        }
        Ok(())
    }

    fn insert(&mut self, tables: &mut Tables, prefix: Prefix, to: &Destination) -> Result<(), Refused> {
        self.check(prefix.0)?;
        let own = self.counts_prefixes.then_some(prefix);
        let target = self.target(tables, to, own)?;
        match tables.insert(prefix.0, prefix.1, target) {
            Ok(before) => {
                if let Some(before) = before {
                    self.release_target(before);
                }
                Ok(())
            }
            Err(full) => {
                self.release_target(target);
                Err(full.into())
            }
        }
    }

    fn set_label(&mut self, tables: &mut Tables, label: Label, meaning: &Meaning) -> Result<(), Refused> {
        let (action, target) = match meaning {
            Meaning::Pop { table } => {
                self.check(*table)?;
                (Action::Pop { table: *table }, None)
            }
            Meaning::Forward(to) => {
                let target = self.target(tables, to, None)?;
                (Action::Swap { target }, Some(target))
            }
        };
        let incoming = Incoming { action, model: self.model, expected: self.expected };
        if let Err(reserved) = tables.give(label, incoming) {
            target.into_iter().for_each(|target| self.release_target(target));
            return Err(reserved.into());
        }
        self.forget_label(label);
        let leads = match action {
            Action::Swap { target } => Leads::To(target),
            Action::Pop { table } => Leads::Into(table),
        };
        self.labels.insert(label, leads);
        Ok(())
    }

    fn forget_label(&mut self, label: Label) {
        if let Some(Leads::To(target)) = self.labels.remove(&label) {
            self.release_target(target);
        }
    }

    fn check(&self, table: u32) -> Result<(), Refused> {
        if table < self.tables { Ok(()) } else { Err(Refused::Unknown) }
    }

    /// Returns the number of a target and adds one user.
    fn target(&mut self, tables: &mut Tables, to: &Destination, own: Option<Prefix>) -> Result<u32, Refused> {
        let key = (to.clone(), own);
        if let Some(number) = self.targets.find(&key) {
            return Ok(number);
        }
        if let Destination::Paths(paths) = to {
            for (place, path) in paths.iter().enumerate() {
                if let Err(refused) = self.hop(tables, path) {
                    self.release_hops(&paths[..place]);
                    return Err(refused);
                }
            }
        }
        let target = self.forwarding_target(to);
        let number = match self.targets.free() {
            Some(number) => {
                tables.set_target(number, target);
                number
            }
            None => match tables.add_target(target) {
                Ok(number) => number,
                Err(no_room) => {
                    self.release_paths(to);
                    return Err(no_room.into());
                }
            },
        };
        self.targets.add(&key, number);
        Ok(number)
    }

    fn release_target(&mut self, number: u32) {
        if let Some((destination, _)) = self.targets.release(number) {
            self.release_paths(&destination);
        }
    }

    fn release_paths(&mut self, destination: &Destination) {
        if let Destination::Paths(paths) = destination {
            self.release_hops(paths);
        }
    }

    fn release_hops(&mut self, paths: &[Path]) {
        for path in paths {
            if let Some(number) = self.hops.number(path) {
                self.hops.release(number);
            }
        }
    }

    /// Returns the number of a hop and adds one user.
    fn hop(&mut self, tables: &mut Tables, path: &Path) -> Result<u32, Refused> {
        if let Some(number) = self.hops.find(path) {
            return Ok(number);
        }
        let interface = self.interfaces.get(path.interface as usize).ok_or(Refused::Unknown)?;
        let hop = Hop::new(path.interface, interface.mtu, &path.labels, self.model)
            .ok_or(Refused::TooManyLabels)?;
        let next_hop = self.next_hop(path);
        let number = match self.hops.free() {
            Some(number) => {
                tables.set_hop(number, hop, next_hop);
                number
            }
            None => tables.add_hop(hop, next_hop)?,
        };
        self.hops.add(path, number);
        Ok(number)
    }

    fn next_hop(&self, path: &Path) -> NextHop {
        let station = path.via.and_then(|via| self.neighbours.get(&(path.interface, via)));
        let from = self.interfaces[path.interface as usize].mac;
        if from == NO_STATION {
            return NextHop { via: path.via, stations: Some(Stations { to: NO_STATION, from }) };
        }
        NextHop { via: path.via, stations: station.map(|to| Stations { to: *to, from }) }
    }
}

#[cfg(test)]
#[path = "fib_tests.rs"]
mod tests;
