//! Assignment of labels, with one memory access per lookup.

use alloc::vec;
use alloc::vec::Vec;
use netstage_wire::mpls::Label;

/// A table of all possible labels: 4 MB, of which the operating system allocates only the pages written.
#[derive(Clone, Debug)]
pub struct Labels {
    /// Number each label is assigned to, plus one; zero if it is free.
    assigned: Vec<u32>,
}

/// Reason for refusing a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The label is below 16 and has a reserved meaning (RFC 7274).
    Reserved,
    /// The label is already assigned to this number.
    By(usize),
}

impl Default for Labels {
    fn default() -> Labels {
        Labels { assigned: vec![0; Label::MAX.number() as usize + 1] }
    }
}

impl Labels {
    /// Assigns a label to a number, exclusively.
    pub fn give(&mut self, label: Label, to: usize) -> Result<(), Taken> {
        if label.is_reserved() {
            return Err(Taken::Reserved);
        }
        let slot = &mut self.assigned[label.number() as usize];
        match *slot {
            0 => {
                *slot = to as u32 + 1;
                Ok(())
            }
            before => Err(Taken::By(before as usize - 1)),
        }
    }

    /// Releases a label and returns the number it was assigned to.
    pub fn take_back(&mut self, label: Label) -> Option<usize> {
        let before = core::mem::take(&mut self.assigned[label.number() as usize]);
        (before as usize).checked_sub(1)
    }

    /// Returns the number a label is assigned to.
    #[inline]
    pub fn get(&self, label: Label) -> Option<usize> {
        (self.assigned[label.number() as usize] as usize).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_assigned_once() {
        let label = |number| Label::new(number).unwrap();
        let mut labels = Labels::default();
        assert_eq!(labels.give(label(16), 7), Ok(()));
        assert_eq!(labels.give(Label::MAX, 0), Ok(()));
        assert_eq!(labels.give(label(16), 8), Err(Taken::By(7)));
        assert_eq!(labels.give(Label::GENERIC_CHANNEL, 8), Err(Taken::Reserved));
        assert_eq!(
            [16, 17, 13, 0xf_ffff].map(|number| labels.get(label(number))),
            [Some(7), None, None, Some(0)]
        );
        assert_eq!(labels.take_back(label(16)), Some(7));
        assert_eq!((labels.take_back(label(16)), labels.give(label(16), 8)), (None, Ok(())));
    }
}
