//! Assignment of labels, with one memory access per lookup.

use alloc::vec;
use alloc::vec::Vec;
use netstage_wire::mpls::LabelValue;

/// A table of all possible labels: 4 MB, of which the operating system allocates only the pages written.
#[derive(Clone, Debug)]
pub struct LabelTable {
    /// Number each label is assigned to, plus one; zero if it is free.
    assigned: Vec<u32>,
}

/// Reason for refusing a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelUnavailable {
    /// The label is below 16 and has a reserved meaning (RFC 7274).
    Reserved,
    /// The label is already assigned to this number.
    InUse(usize),
}

impl Default for LabelTable {
    fn default() -> LabelTable {
        LabelTable { assigned: vec![0; LabelValue::MAX.number() as usize + 1] }
    }
}

impl LabelTable {
    /// Assigns a label to a number, exclusively.
    pub fn assign(&mut self, label: LabelValue, to: usize) -> Result<(), LabelUnavailable> {
        if label.is_reserved() {
            return Err(LabelUnavailable::Reserved);
        }
        let slot = &mut self.assigned[label.number() as usize];
        match *slot {
            0 => {
                *slot = to as u32 + 1;
                Ok(())
            }
            before => Err(LabelUnavailable::InUse(before as usize - 1)),
        }
    }

    /// Releases a label and returns the number it was assigned to.
    pub fn release(&mut self, label: LabelValue) -> Option<usize> {
        let before = core::mem::take(&mut self.assigned[label.number() as usize]);
        (before as usize).checked_sub(1)
    }

    /// Returns the number a label is assigned to.
    #[inline]
    pub fn get(&self, label: LabelValue) -> Option<usize> {
        (self.assigned[label.number() as usize] as usize).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_assigned_once() {
        let label = |number| LabelValue::new(number).unwrap();
        let mut labels = LabelTable::default();
        assert_eq!(labels.assign(label(16), 7), Ok(()));
        assert_eq!(labels.assign(LabelValue::MAX, 0), Ok(()));
        assert_eq!(labels.assign(label(16), 8), Err(LabelUnavailable::InUse(7)));
        assert_eq!(labels.assign(LabelValue::GENERIC_CHANNEL, 8), Err(LabelUnavailable::Reserved));
        assert_eq!(
            [16, 17, 13, 0xf_ffff].map(|number| labels.get(label(number))),
            [Some(7), None, None, Some(0)]
        );
        assert_eq!(labels.release(label(16)), Some(7));
        assert_eq!((labels.release(label(16)), labels.assign(label(16), 8)), (None, Ok(())));
    }
}
