//! Failures of links and neighbors: routes with several paths use the others, and packets to a neighbor with a backup
//! path take it. Both are prepared per path, so that a failure costs the same however many routes there are.

use super::{Destination, Fib, RoutePath};
use crate::tables::Tables;
use netstage_core::forward::{ForwardingTarget, MAX_LABELS};
use netstage_routing::source::path::InterfaceNeighbor;
use std::borrow::Cow;
use std::collections::BTreeMap;

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
        let all = before.keys().chain(self.backups.keys()).copied();
        let changed: Vec<InterfaceNeighbor> =
            all.filter(|neighbor| before.get(neighbor) != self.backups.get(neighbor)).collect();
        for neighbor in changed {
            self.revise_hops_to(tables, neighbor);
            self.revise_targets(tables, |path| is_to(path, neighbor));
        }
    }

    /// Updates the hops of paths over an interface, and of those with a backup path over it.
    pub(super) fn revise_hops_over(&self, tables: &mut Tables, interface: u32) {
        let first = RoutePath { interface, via: None, labels: Vec::new() };
        self.revise_hops(tables, &first, |path| path.interface == interface);
        let protected = self.backups.iter().filter(|(_, backup)| backup.interface == interface);
        protected.for_each(|(neighbor, _)| self.revise_hops_exactly_to(tables, *neighbor));
    }

    /// Updates the hops of paths to a neighbor, and of those with a backup path to it.
    pub(super) fn revise_hops_to(&self, tables: &mut Tables, neighbor: InterfaceNeighbor) {
        self.revise_hops_exactly_to(tables, neighbor);
        let protected = self.backups.iter().filter(|(_, backup)| is_to(backup, neighbor));
        protected.for_each(|(neighbor, _)| self.revise_hops_exactly_to(tables, *neighbor));
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
        let has_failed = |address| self.failed.contains(&(path.interface, address));
        self.is_up(path.interface) && !path.via.is_some_and(has_failed)
    }

    /// Returns the path that the packets of a path take now: through the backup path of its neighbor if that has failed.
    pub(super) fn current<'a>(&self, path: &'a RoutePath) -> Cow<'a, RoutePath> {
        let backup = path.via.and_then(|via| self.backups.get(&(path.interface, via)));
        let is_short = |backup: &RoutePath| backup.labels.len() + path.labels.len() <= MAX_LABELS;
        match backup.filter(|backup| is_short(backup) && self.is_usable(backup)) {
            Some(backup) if !self.is_usable(path) => {
                let labels = backup.labels.iter().chain(&path.labels).copied().collect();
                Cow::Owned(RoutePath { interface: backup.interface, via: backup.via, labels })
            }
            _ => Cow::Borrowed(path),
        }
    }

    /// Returns the target of a destination whose paths have hops. Of several paths, those over links that are down and to
    /// neighbors that have failed are excluded. If no other path is left, those with a backup path are used, or else all.
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
