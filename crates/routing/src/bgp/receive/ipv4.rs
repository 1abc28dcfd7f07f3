//! Next hops by IPv4 prefix. Routers announce prefixes mostly in order. Therefore 16 adjacent prefixes of a
//! length share a cell, and a million of them touch few cache lines.

use super::FoldingHasher;
use crate::bgp::nlri::NlriPrefix;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, Ipv4Addr};

/// Binary logarithm of the number of prefixes in a cell.
const CELL_BITS: u32 = 4;
/// Value of an unused slot; used slots contain the next-hop index plus one.
const NONE: u32 = 0;

/// Next-hop index for each prefix.
#[derive(Clone, Debug, Default)]
pub(super) struct Ipv4Routes {
    /// Cells by prefix bits without the lowest four, and prefix length.
    cells: HashMap<u64, [u32; 1 << CELL_BITS], BuildHasherDefault<FoldingHasher>>,
    count: usize,
}

/// Returns the cell key of a prefix and its slot in the cell.
#[inline]
fn position(address: Ipv4Addr, length: u8) -> (u64, usize) {
    let bits = u32::from(address).checked_shr(32 - u32::from(length)).unwrap_or(0);
    (u64::from(bits >> CELL_BITS) << 8 | u64::from(length), bits as usize % (1 << CELL_BITS))
}

impl Ipv4Routes {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, address: Ipv4Addr, length: u8) -> Option<u32> {
        let (cell, slot) = position(address, length);
        self.cells.get(&cell)?[slot].checked_sub(1)
    }

    /// Sets the next-hop index of a prefix. Returns `true` if the prefix is new.
    #[inline]
    pub(super) fn insert(&mut self, address: Ipv4Addr, length: u8, number: u32) -> bool {
        let (cell, slot) = position(address, length);
        let slot = &mut self.cells.entry(cell).or_default()[slot];
        let is_new = *slot == NONE;
        *slot = number + 1;
        self.count += usize::from(is_new);
        is_new
    }

    /// Removes a prefix. Returns `true` if it was present.
    #[inline]
    pub(super) fn remove(&mut self, address: Ipv4Addr, length: u8) -> bool {
        let (cell, slot) = position(address, length);
        let Some(slot) = self.cells.get_mut(&cell).map(|cell| &mut cell[slot]) else { return false };
        let was_present = std::mem::replace(slot, NONE) != NONE;
        self.count -= usize::from(was_present);
        was_present
    }

    /// Iterates over all prefixes, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NlriPrefix, u32)> {
        self.cells.iter().flat_map(|(&cell, slots)| {
            let (high, length) = ((cell >> 8) as u32, cell as u8);
            slots.iter().enumerate().filter(|(_, number)| **number != NONE).map(move |(slot, number)| {
                let bits = high << CELL_BITS | slot as u32;
                let address = Ipv4Addr::from(bits.checked_shl(32 - u32::from(length)).unwrap_or(0));
                (
                    NlriPrefix::new(IpAddr::V4(address), length).expect("the key was built from a prefix"),
                    number - 1,
                )
            })
        })
    }
}
