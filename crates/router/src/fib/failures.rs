//! Failures of links and neighbors: routes with several paths use the others, and packets to a neighbor take an alternate
//! or backup path. These are prepared per path, so that a failure costs the same however many routes there are.

use super::{Destination, Fib, RoutePath};
use crate::tables::Tables;
use netstage_core::forward::{ForwardingTarget, MAX_LABELS};
use netstage_routing::source::path::InterfaceNeighbor;
use netstage_wire::mpls::LabelValue;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Packets to a neighbor with an outermost label, or without labels.
pub type ProtectedPath = (InterfaceNeighbor, Option<LabelValue>);

/// Path of packets while their neighbor or the link to it has failed (loop-free alternate, RFC 5286).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// Another neighbor.
    pub to: InterfaceNeighbor,
    /// Labels in place of the outermost one, outermost first.
    pub labels: Vec<LabelValue>,
    /// The path avoids the neighbor, too. Otherwise, a backup path is preferred.
    pub protects_neighbor: bool,
}

impl Fib {
    /// Sets the link state of an interface.
    pub fn set_up(&mut self, tables: &mut Tables, number: u32, is_up: bool) {
        if self.is_up(number) == is_up {
            return;
        }
        self.down ^= 1 << (number & 63);
        self.revise_hops_over(tables, number);
        self.revise_targets(tables, |path| path.interface == number);
    }

    /// Sets whether a neighbor has failed.
    pub fn set_failed(&mut self, tables: &mut Tables, neighbor: InterfaceNeighbor, has_failed: bool) {
        let is_changed = match has_failed {
            true => self.failed.insert(neighbor),
            false => self.failed.remove(&neighbor),
        };
        if is_changed {
            self.revise_hops_to(tables, neighbor);
            self.revise_targets(tables, |path| is_to(path, neighbor));
        }
    }

    /// Sets the paths that packets to neighbors take while these or the links to them have failed. The labels of a packet
    /// stay below those of the backup path.
    pub fn set_backups(&mut self, tables: &mut Tables, backups: BTreeMap<InterfaceNeighbor, RoutePath>) {
        let before = std::mem::replace(&mut self.backups, backups);
        let changed = changed_keys(&before, &self.backups).copied().collect();
        self.revise_protected(tables, changed);
    }

    /// Sets the alternates of packets to neighbors. A neighbor that has failed keeps those it had: it has left the topology
    /// from which new ones are calculated, but routes may lead to it still.
    pub fn set_alternates(
        &mut self,
        tables: &mut Tables,
        alternates: BTreeMap<ProtectedPath, AlternatePath>,
    ) {
        let before = std::mem::replace(&mut self.alternates, alternates);
        for (protected, alternate) in &before {
            if !self.works(protected.0) {
                self.alternates.entry(*protected).or_insert_with(|| alternate.clone());
            }
        }
        let changed = changed_keys(&before, &self.alternates).map(|(neighbor, _)| *neighbor).collect();
        self.revise_protected(tables, changed);
    }

    /// Returns the number of paths with an alternate, and of those whose alternate avoids the neighbor.
    pub fn alternate_counts(&self) -> (usize, usize) {
        let avoiding = self.alternates.values().filter(|alternate| alternate.protects_neighbor);
        (self.alternates.len(), avoiding.count())
    }

    fn revise_protected(&self, tables: &mut Tables, changed: BTreeSet<InterfaceNeighbor>) {
        for neighbor in changed {
            self.revise_hops_to(tables, neighbor);
            self.revise_targets(tables, |path| is_to(path, neighbor));
        }
    }

    /// Updates the hops of paths over an interface, and of those protected by a path over it.
    pub(super) fn revise_hops_over(&self, tables: &mut Tables, interface: u32) {
        let first = RoutePath { interface, via: None, labels: Vec::new() };
        self.revise_hops(tables, &first, |path| path.interface == interface);
        self.revise_hops_protected_by(tables, |to| to.0 == interface);
    }

    /// Updates the hops of paths to a neighbor, and of those protected by a path to it.
    pub(super) fn revise_hops_to(&self, tables: &mut Tables, neighbor: InterfaceNeighbor) {
        self.revise_hops_exactly_to(tables, neighbor);
        self.revise_hops_protected_by(tables, |to| to == neighbor);
    }

    fn revise_hops_protected_by(&self, tables: &mut Tables, leads: impl Fn(InterfaceNeighbor) -> bool) {
        let is_backup = |backup: &RoutePath| backup.via.is_some_and(|via| leads((backup.interface, via)));
        let by_backup = self.backups.iter().filter(|(_, backup)| is_backup(backup));
        let by_alternate = self.alternates.iter().filter(|(_, alternate)| leads(alternate.to));
        let protected: BTreeSet<InterfaceNeighbor> = by_backup
            .map(|(neighbor, _)| *neighbor)
            .chain(by_alternate.map(|((neighbor, _), _)| *neighbor))
            .collect();
        protected.into_iter().for_each(|neighbor| self.revise_hops_exactly_to(tables, neighbor));
    }

    fn revise_hops_exactly_to(&self, tables: &mut Tables, neighbor: InterfaceNeighbor) {
        let first = RoutePath { interface: neighbor.0, via: Some(neighbor.1), labels: Vec::new() };
        self.revise_hops(tables, &first, |path| is_to(path, neighbor));
    }

    fn revise_hops(&self, tables: &mut Tables, first: &RoutePath, is_affected: impl Fn(&RoutePath) -> bool) {
        for (path, number) in self.hops.from(first).take_while(|(path, _)| is_affected(path)) {
            if let Ok((hop, next_hop)) = self.entry(path) {
                tables.set_hop(number, hop, next_hop);
            }
        }
    }

    /// Updates the targets that divide packets among several paths, at least one of which is affected.
    fn revise_targets(&self, tables: &mut Tables, is_affected: impl Fn(&RoutePath) -> bool) {
        for ((to, _), target) in self.targets.all() {
            if let Destination::Paths(paths) = to
                && paths.len() > 1
                && paths.iter().any(&is_affected)
            {
                tables.set_target(target, self.forwarding_target(to));
            }
        }
    }

    fn is_up(&self, number: u32) -> bool {
        self.down >> (number & 63) & 1 == 0
    }

    fn is_usable(&self, path: &RoutePath) -> bool {
        self.is_up(path.interface) && path.via.is_none_or(|address| self.works((path.interface, address)))
    }

    fn works(&self, neighbor: InterfaceNeighbor) -> bool {
        self.is_up(neighbor.0) && !self.failed.contains(&neighbor)
    }

    /// Returns the path that the packets of a path take now. If its link or neighbor has failed, this is the first usable
    /// one of an alternate that avoids the neighbor, the backup path, and another alternate.
    pub(super) fn current<'a>(&self, path: &'a RoutePath) -> Cow<'a, RoutePath> {
        let Some(via) = path.via.filter(|_| !self.is_usable(path)) else { return Cow::Borrowed(path) };
        let neighbor = (path.interface, via);
        let alternate = self.alternates.get(&(neighbor, path.labels.first().copied()));
        let over = |alternate: &AlternatePath| RoutePath {
            interface: alternate.to.0,
            via: Some(alternate.to.1),
            labels: alternate.labels.iter().chain(path.labels.iter().skip(1)).copied().collect(),
        };
        let into = |backup: &RoutePath| RoutePath {
            labels: backup.labels.iter().chain(&path.labels).copied().collect(),
            ..backup.clone()
        };
        let paths = [
            alternate.filter(|alternate| alternate.protects_neighbor).map(over),
            self.backups.get(&neighbor).map(into),
            alternate.map(over),
        ];
        let works = |path: &RoutePath| path.labels.len() <= MAX_LABELS && self.is_usable(path);
        paths.into_iter().flatten().find(works).map_or(Cow::Borrowed(path), Cow::Owned)
    }

    /// Returns the target of a destination whose paths have hops. Of several paths, those over links that are down and to
    /// neighbors that have failed are excluded. If no other path is left, those with an alternate or backup path are used, or
    /// else all.
    pub(super) fn forwarding_target(&self, to: &Destination) -> ForwardingTarget {
        let paths = match to {
            Destination::Local => return ForwardingTarget::Local,
            Destination::Discard => return ForwardingTarget::Discard,
            Destination::Paths(paths) => paths,
        };
        let hops = |counts: &dyn Fn(&RoutePath) -> bool| -> Vec<u32> {
            paths.iter().filter(|path| counts(path)).filter_map(|path| self.hops.number(path)).collect()
        };
        let best: [&dyn Fn(&RoutePath) -> bool; 2] =
            [&|path| self.is_usable(path), &|path| matches!(self.current(path), Cow::Owned(_))];
        let found = best.into_iter().map(hops).find(|hops| !hops.is_empty());
        ForwardingTarget::Hops(found.unwrap_or_else(|| hops(&|_| true)))
    }
}

fn is_to(path: &RoutePath, (interface, address): InterfaceNeighbor) -> bool {
    path.interface == interface && path.via == Some(address)
}

/// Returns the keys whose values differ.
fn changed_keys<'a, K: Ord, V: PartialEq>(
    before: &'a BTreeMap<K, V>,
    after: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = &'a K> {
    before.keys().chain(after.keys()).filter(|key| before.get(key) != after.get(key))
}
