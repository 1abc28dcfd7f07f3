//! Effects of interface changes on the FIB: MAC addresses and MTUs.

use super::{Fib, FibInterface, LabelTarget};
use crate::tables::Tables;
use netstage_core::forward::{IncomingLabel, LabelOperation};

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
        self.revise_hops_over(tables, number);
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
}
