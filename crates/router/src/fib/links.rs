//! Effects of interface changes on the FIB: MAC addresses, MTUs, and link state.

use super::{Destination, Fib, FibInterface, LabelTarget, RoutePath};
use crate::tables::Tables;
use netstage_core::forward::{ForwardingTarget, Hop, IncomingLabel, LabelOperation};
use netstage_routing::source::path::InterfaceNeighbor;

/// Returns one bit for each interface that accepts labels.
pub(super) fn expected(interfaces: &[FibInterface]) -> u64 {
    let bits = interfaces.iter().enumerate().filter(|(_, interface)| interface.incoming.mpls);
    bits.fold(0, |bits, (number, _)| bits | 1 << number.min(63))
}

impl Fib {
    /// Returns the interfaces.
    pub fn interfaces(&self) -> &[FibInterface] {
        &self.interfaces
    }

    /// Updates an interface. The next unused number adds an interface.
    ///
    /// # Panics
    ///
    /// Panics if the number is greater than that.
    pub fn set_interface(&mut self, tables: &mut Tables, number: u32, interface: FibInterface) {
        match self.interfaces.get_mut(number as usize) {
            Some(known) if *known == interface => return,
            Some(known) => *known = interface,
            None => {
                assert_eq!(number as usize, self.interfaces.len(), "interfaces are added in order");
                self.interfaces.push(interface);
            }
        }
        tables.set_interface(number, interface.incoming);
        let first = RoutePath { interface: number, via: None, labels: Vec::new() };
        for (path, hop) in self.hops.from(&first).take_while(|(path, _)| path.interface == number) {
            let mut changed: Hop = *tables.hop(hop).0;
            changed.mtu = interface.mtu;
            tables.set_hop(hop, changed, self.next_hop(path));
        }
        let expected = expected(&self.interfaces);
        if expected != self.expected {
            self.expected = expected;
            for (label, leads) in &self.labels {
                let action = match *leads {
                    LabelTarget::To(target) => LabelOperation::Swap { target },
                    LabelTarget::Into(table) => LabelOperation::Pop { table },
                };
                let given =
                    tables.assign_label(*label, IncomingLabel { action, model: self.model, expected });
                debug_assert!(given.is_ok(), "the label is not reserved");
            }
        }
    }

    /// Sets the link state of an interface.
    pub fn set_up(&mut self, tables: &mut Tables, number: u32, is_up: bool) {
        if self.is_up(number) == is_up {
            return;
        }
        self.down ^= 1 << (number & 63);
        self.revise_targets(tables, |path| path.interface == number);
    }

    /// Sets whether a neighbor has failed.
    pub fn set_failed(&mut self, tables: &mut Tables, neighbor: InterfaceNeighbor, has_failed: bool) {
        let is_changed = match has_failed {
            true => self.failed.insert(neighbor),
            false => self.failed.remove(&neighbor),
        };
        if is_changed {
            let (interface, address) = neighbor;
            self.revise_targets(tables, |path| path.interface == interface && path.via == Some(address));
        }
    }

    /// Updates the targets with several paths that contain such a path.
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

    /// Returns the target of a destination whose paths have hops. Paths over links that are down and to neighbors that
    /// have failed are excluded, unless no other path is left.
    pub(super) fn forwarding_target(&self, to: &Destination) -> ForwardingTarget {
        let paths = match to {
            Destination::Local => return ForwardingTarget::Local,
            Destination::Discard => return ForwardingTarget::Discard,
            Destination::Paths(paths) => paths,
        };
        let hops = |counts: &dyn Fn(&RoutePath) -> bool| -> Vec<u32> {
            paths.iter().filter(|path| counts(path)).filter_map(|path| self.hops.number(path)).collect()
        };
        let usable = hops(&|path| self.is_usable(path));
        ForwardingTarget::Hops(if usable.is_empty() { hops(&|_| true) } else { usable })
    }
}
