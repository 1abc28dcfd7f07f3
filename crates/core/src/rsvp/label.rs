//! Labels of this router (per-platform label space).

use crate::rng::RandomStream;
use alloc::collections::BTreeSet;
use core::ops::RangeInclusive;
use netstage_wire::mpls::LabelValue;

/// Labels to be allocated, each used by one LSP at a time.
#[derive(Clone, Debug)]
pub(super) struct LabelPool {
    range: RangeInclusive<u32>,
    next: u32,
    used: BTreeSet<LabelValue>,
}

impl LabelPool {
    /// Creates a pool. Neighbors may still send with labels of a previous instance of this router, so that each
    /// instance begins at a random label.
    pub fn new(range: RangeInclusive<LabelValue>, instance: u32) -> LabelPool {
        let first = (*range.start()).max(LabelValue::FIRST_UNRESERVED);
        let range = first.number()..=range.end().number();
        let size = u64::from(range.end().saturating_sub(*range.start())) + 1;
        let offset = RandomStream::new(instance.into(), "rsvp labels").below(size);
        LabelPool { next: range.start() + offset as u32, range, used: BTreeSet::new() }
    }

    /// Returns whether all labels are in use.
    pub fn is_exhausted(&self) -> bool {
        self.used.len() >= self.range.clone().count()
    }

    /// Allocates the first free label after the last one allocated; `None` if all are in use.
    pub fn allocate(&mut self) -> Option<LabelValue> {
        if self.is_exhausted() {
            return None;
        }
        loop {
            let label = LabelValue::new(self.next)?;
            self.next = if self.next == *self.range.end() { *self.range.start() } else { self.next + 1 };
            if self.used.insert(label) {
                return Some(label);
            }
        }
    }

    pub fn release(&mut self, label: LabelValue) {
        self.used.remove(&label);
    }

    /// Number of labels in use or in quarantine.
    pub fn in_use(&self) -> usize {
        self.used.len()
    }
}
