//! The router's own interfaces in what routes and labels lead to: stations and MTUs change, links go down
//! and come up, and what leads by them does at once.

use super::{Destination, Fib, Interface, Leads, Path};
use crate::tables::Tables;
use netstage_core::forward::{Action, Hop, Incoming, Target};

/// A bit for each interface from which labels are taken.
pub(super) fn expected(interfaces: &[Interface]) -> u64 {
    let bits = interfaces.iter().enumerate().filter(|(_, interface)| interface.mpls);
    bits.fold(0, |bits, (number, _)| bits | 1 << number.min(63))
}

impl Fib {
    /// Its interfaces.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// An interface is so from now on. One more than there are is a new one.
    ///
    /// Panics if it is further beyond.
    pub fn set_interface(&mut self, tables: &mut Tables, number: u32, interface: Interface) {
        match self.interfaces.get_mut(number as usize) {
            Some(place) if *place == interface => return,
            Some(place) => *place = interface,
            None => {
                assert_eq!(number as usize, self.interfaces.len(), "it is the next one");
                self.interfaces.push(interface);
            }
        }
        tables.set_interface(number, interface.table);
        let first = Path { interface: number, via: None, labels: Vec::new() };
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
                    Leads::To(target) => Action::Swap { target },
                    Leads::Into(table) => Action::Pop { table },
                };
                let given = tables.give(*label, Incoming { action, model: self.model, expected });
                debug_assert!(given.is_ok(), "it was given before");
            }
        }
    }

    /// An interface's link is up or down from now on.
    pub fn set_up(&mut self, tables: &mut Tables, number: u32, is_up: bool) {
        if self.is_up(number) == is_up {
            return;
        }
        self.down ^= 1 << (number & 63);
        for ((to, _), target) in self.targets.all() {
            if let Destination::Paths(paths) = to
                && paths.len() > 1
                && paths.iter().any(|path| path.interface == number)
            {
                tables.set_target(target, self.meant(to));
            }
        }
    }

    fn is_up(&self, number: u32) -> bool {
        self.down >> (number & 63) & 1 == 0
    }

    /// A destination whose paths all have a number: of several, those count whose link is up, if any is.
    pub(super) fn meant(&self, to: &Destination) -> Target {
        let paths = match to {
            Destination::Local => return Target::Local,
            Destination::Discard => return Target::Discard,
            Destination::Paths(paths) => paths,
        };
        let hops = |counts: &dyn Fn(&Path) -> bool| -> Vec<u32> {
            paths.iter().filter(|path| counts(path)).filter_map(|path| self.hops.number(path)).collect()
        };
        let up = hops(&|path| self.is_up(path.interface));
        Target::Hops(if up.is_empty() { hops(&|_| true) } else { up })
    }
}
