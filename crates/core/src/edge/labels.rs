//! Which label was given to what: one load per packet.

use alloc::vec;
use alloc::vec::Vec;
use netstage_wire::mpls::Label;

/// A table of all labels there are: 4 MB, which the system only hands out as it is written.
#[derive(Clone, Debug)]
pub struct Labels {
    /// What each was given to, plus one; zero is nothing.
    given: Vec<u32>,
}

/// Why a label cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is below 16, and has a meaning of its own (RFC 7274).
    Reserved,
    /// It was given to this before.
    By(usize),
}

impl Default for Labels {
    fn default() -> Labels {
        Labels { given: vec![0; Label::MAX.number() as usize + 1] }
    }
}

impl Labels {
    /// Gives a label, to be taken by no other.
    pub fn give(&mut self, label: Label, to: usize) -> Result<(), Taken> {
        if label.is_reserved() {
            return Err(Taken::Reserved);
        }
        let place = &mut self.given[label.number() as usize];
        match *place {
            0 => {
                *place = to as u32 + 1;
                Ok(())
            }
            before => Err(Taken::By(before as usize - 1)),
        }
    }

    /// Takes a label back, and tells what had it.
    pub fn take_back(&mut self, label: Label) -> Option<usize> {
        let before = core::mem::take(&mut self.given[label.number() as usize]);
        (before as usize).checked_sub(1)
    }

    /// What a label was given to.
    #[inline]
    pub fn get(&self, label: Label) -> Option<usize> {
        (self.given[label.number() as usize] as usize).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_one_holder() {
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
