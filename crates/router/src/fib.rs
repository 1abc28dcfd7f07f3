//! Forwarding information base (FIB): routes and labels as their sources define them, with paths by interface
//! and address. It maintains the hops and targets of the forwarding tables, each stored once regardless of
//! the number of users.
//!
//! Freed numbers are reused, least recently freed first, so that a packet being processed with an old number
//! still finds the old entry.

mod failures;
mod interned;
mod links;
mod neighbors;

use super::tables::{HopAddresses, NextHop, TableFull, Tables};
pub use failures::{AlternatePath, ProtectedPath};
use interned::InternedValues;
pub(super) use neighbors::holds;
use neighbors::host;
use netstage_core::forward::lpm::LpmFull;
use netstage_core::forward::{
    Hop, IncomingInterface, IncomingLabel, LabelOperation, MAX_LABELS, ReservedLabelError, TunnelModel,
};
use netstage_host::ports::NO_MAC;
use netstage_routing::source::path::{
    Destination, InterfaceNeighbor, LabelAction, RoutePath, SourceChange, TablePrefix,
};
use netstage_wire::ethernet::Mac;
use netstage_wire::mpls::LabelValue;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// Reason to reject a change. The tables stay unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibError {
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

impl fmt::Display for FibError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FibError::Full => f.write_str("the table is full"),
            FibError::NoRoom => f.write_str("too many different next hops"),
            FibError::TooManyLabels => write!(f, "more than {MAX_LABELS} labels to push"),
            FibError::Reserved => f.write_str("the label is reserved"),
            FibError::Unknown => f.write_str("unknown table or interface"),
        }
    }
}

impl From<LpmFull> for FibError {
    fn from(_: LpmFull) -> FibError {
        FibError::Full
    }
}

impl From<TableFull> for FibError {
    fn from(_: TableFull) -> FibError {
        FibError::NoRoom
    }
}

impl From<ReservedLabelError> for FibError {
    fn from(_: ReservedLabelError) -> FibError {
        FibError::Reserved
    }
}

/// Interface of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FibInterface {
    /// MAC address, or [`NO_MAC`] on links without MAC addresses.
    pub mac: Mac,
    /// MTU of the link, bytes.
    pub mtu: u16,
    /// Routing table of its packets, and whether labels are accepted.
    pub incoming: IncomingInterface,
}

/// Meaning of a label: a target, or a lookup in a routing table.
#[derive(Clone, Copy, Debug)]
enum LabelTarget {
    To(u32),
    Into(u32),
}

/// Routes and labels of all sources, and the known neighbors.
#[derive(Debug)]
pub struct Fib {
    interfaces: Vec<FibInterface>,
    tables: u32,
    model: TunnelModel,
    /// Interfaces that accept labels, one bit each.
    expected: u64,
    hops: InternedValues<RoutePath>,
    /// Keyed by prefix, too, if prefixes are counted separately.
    targets: InternedValues<(Destination, Option<TablePrefix>)>,
    counts_prefixes: bool,
    /// Interfaces with a link that is down, one bit each. Targets with several paths exclude paths over them.
    down: u64,
    /// Neighbors that have failed. Targets with several paths exclude those to them, too.
    failed: BTreeSet<InterfaceNeighbor>,
    /// Paths that packets to neighbors take while these have failed.
    backups: BTreeMap<InterfaceNeighbor, RoutePath>,
    /// Alternates of packets to neighbors.
    alternates: BTreeMap<ProtectedPath, AlternatePath>,
    labels: BTreeMap<LabelValue, LabelTarget>,
    neighbors: BTreeMap<InterfaceNeighbor, Mac>,
    /// Prefixes of links, and routes to neighbors there that no source has defined.
    on_link: BTreeMap<TablePrefix, u32>,
    hosts: BTreeSet<TablePrefix>,
}

impl Fib {
    /// Creates an empty FIB. Labels pushed use the tunnel model `model`.
    pub fn new(interfaces: Vec<FibInterface>, tables: u32, model: TunnelModel) -> Fib {
        Fib {
            expected: links::expected(&interfaces),
            interfaces,
            tables,
            model,
            hops: InternedValues::new(),
            targets: InternedValues::new(),
            counts_prefixes: false,
            down: 0,
            failed: BTreeSet::new(),
            backups: BTreeMap::new(),
            alternates: BTreeMap::new(),
            labels: BTreeMap::new(),
            neighbors: BTreeMap::new(),
            on_link: BTreeMap::new(),
            hosts: BTreeSet::new(),
        }
    }

    /// Gives every prefix a target of its own, to be counted separately.
    pub fn counting_prefixes(self) -> Fib {
        Fib { counts_prefixes: true, ..self }
    }

    /// Applies a change to the tables.
    pub fn apply(&mut self, tables: &mut Tables, change: &SourceChange) -> Result<(), FibError> {
        match change {
            SourceChange::Route(prefix, Some(to)) => self.set_route(tables, *prefix, to),
            SourceChange::Route(prefix, None) => self.remove_route(tables, *prefix),
            SourceChange::Label(label, Some(meaning)) => self.set_label(tables, *label, meaning),
            SourceChange::Label(label, None) => {
                tables.remove_label(*label);
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
    pub fn labels_from(&self, first: LabelValue) -> impl Iterator<Item = (LabelValue, LabelAction)> {
        self.labels.range(first..).filter_map(|(label, leads)| {
            let meaning = match *leads {
                LabelTarget::To(target) => LabelAction::Forward(self.destination(target)?.clone()),
                LabelTarget::Into(table) => LabelAction::Pop { table },
            };
            Some((*label, meaning))
        })
    }

    /// Returns the number of labels.
    pub fn label_count(&self) -> usize {
        self.labels.len()
    }

    fn set_route(
        &mut self,
        tables: &mut Tables,
        prefix: TablePrefix,
        to: &Destination,
    ) -> Result<(), FibError> {
        self.insert(tables, prefix, to)?;
        self.hosts.remove(&prefix);
        let before = self.on_link.remove(&prefix);
        if let Destination::Paths(paths) = to
            && let [RoutePath { interface, via: None, labels }] = &paths[..]
            && labels.is_empty()
            && prefix.1 != host(prefix.1.0)
        {
            self.on_link.insert(prefix, *interface);
            let known = self.neighbors.keys().filter(|(link, _)| link == interface);
            let known: Vec<IpAddr> =
                known.map(|(_, address)| *address).filter(|address| holds(prefix.1, *address)).collect();
            known.into_iter().for_each(|address| self.revise_host(tables, (prefix.0, host(address))));
        }
        if before.is_some() {
            self.revise_hosts(tables, prefix);
        }
        Ok(())
    }

    fn remove_route(&mut self, tables: &mut Tables, prefix: TablePrefix) -> Result<(), FibError> {
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

    fn insert(&mut self, tables: &mut Tables, prefix: TablePrefix, to: &Destination) -> Result<(), FibError> {
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

    fn set_label(
        &mut self,
        tables: &mut Tables,
        label: LabelValue,
        meaning: &LabelAction,
    ) -> Result<(), FibError> {
        let (action, target) = match meaning {
            LabelAction::Pop { table } => {
                self.check(*table)?;
                (LabelOperation::Pop { table: *table }, None)
            }
            LabelAction::Forward(to) => {
                let target = self.target(tables, to, None)?;
                (LabelOperation::Swap { target }, Some(target))
            }
        };
        let incoming = IncomingLabel { action, model: self.model, expected: self.expected };
        if let Err(reserved) = tables.assign_label(label, incoming) {
            target.into_iter().for_each(|target| self.release_target(target));
            return Err(reserved.into());
        }
        self.forget_label(label);
        let leads = match action {
            LabelOperation::Swap { target } => LabelTarget::To(target),
            LabelOperation::Pop { table } => LabelTarget::Into(table),
        };
        self.labels.insert(label, leads);
        Ok(())
    }

    fn forget_label(&mut self, label: LabelValue) {
        if let Some(LabelTarget::To(target)) = self.labels.remove(&label) {
            self.release_target(target);
        }
    }

    fn check(&self, table: u32) -> Result<(), FibError> {
        if table < self.tables { Ok(()) } else { Err(FibError::Unknown) }
    }

    /// Returns the number of a target and adds one user.
    fn target(
        &mut self,
        tables: &mut Tables,
        to: &Destination,
        own: Option<TablePrefix>,
    ) -> Result<u32, FibError> {
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

    fn release_hops(&mut self, paths: &[RoutePath]) {
        for path in paths {
            if let Some(number) = self.hops.number(path) {
                self.hops.release(number);
            }
        }
    }

    /// Returns the number of a hop and adds one user.
    fn hop(&mut self, tables: &mut Tables, path: &RoutePath) -> Result<u32, FibError> {
        if let Some(number) = self.hops.find(path) {
            return Ok(number);
        }
        let (hop, next_hop) = self.entry(path)?;
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

    /// Returns the entry of the table of hops for a path, in the present state of links and neighbors.
    fn entry(&self, path: &RoutePath) -> Result<(Hop, NextHop), FibError> {
        let path = &*self.current(path);
        let interface = self.interfaces.get(path.interface as usize).ok_or(FibError::Unknown)?;
        let hop = Hop::new(path.interface, interface.mtu, &path.labels, self.model);
        Ok((hop.ok_or(FibError::TooManyLabels)?, self.next_hop(path)))
    }

    fn next_hop(&self, path: &RoutePath) -> NextHop {
        let station = path.via.and_then(|via| self.neighbors.get(&(path.interface, via)));
        let from = self.interfaces[path.interface as usize].mac;
        if from == NO_MAC {
            return NextHop { via: path.via, addresses: Some(HopAddresses { to: NO_MAC, from }) };
        }
        NextHop { via: path.via, addresses: station.map(|to| HopAddresses { to: *to, from }) }
    }
}

#[cfg(test)]
#[path = "fib_tests.rs"]
mod tests;
