//! Next hops by IPv4 prefix. Routers announce prefixes mostly in order, so those of one length
//! that are neighbours share a cell of 16, and a million of them few cache lines.

use super::Folded;
use crate::bgp::nlri::Prefix;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, Ipv4Addr};

/// Prefixes of a cell, as bits.
const CELL_BITS: u32 = 4;
/// No route; next hops count from one on.
const NONE: u32 = 0;

/// A number for each of some prefixes.
#[derive(Clone, Debug, Default)]
pub(super) struct Ipv4Routes {
    /// By the bits of the prefix without the lowest four, and its length.
    cells: HashMap<u64, [u32; 1 << CELL_BITS], BuildHasherDefault<Folded>>,
    count: usize,
}

/// The cell of a prefix, and its place there.
#[inline]
fn place(address: Ipv4Addr, length: u8) -> (u64, usize) {
    let bits = u32::from(address).checked_shr(32 - u32::from(length)).unwrap_or(0);
    (u64::from(bits >> CELL_BITS) << 8 | u64::from(length), bits as usize % (1 << CELL_BITS))
}

impl Ipv4Routes {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, address: Ipv4Addr, length: u8) -> Option<u32> {
        let (cell, slot) = place(address, length);
        self.cells.get(&cell)?[slot].checked_sub(1)
    }

    /// Whether it was not there.
    #[inline]
    pub(super) fn insert(&mut self, address: Ipv4Addr, length: u8, number: u32) -> bool {
        let (cell, slot) = place(address, length);
        let slot = &mut self.cells.entry(cell).or_default()[slot];
        let is_new = *slot == NONE;
        *slot = number + 1;
        self.count += usize::from(is_new);
        is_new
    }

    /// Whether it was there.
    #[inline]
    pub(super) fn remove(&mut self, address: Ipv4Addr, length: u8) -> bool {
        let (cell, slot) = place(address, length);
        let Some(slot) = self.cells.get_mut(&cell).map(|cell| &mut cell[slot]) else { return false };
        let was = std::mem::replace(slot, NONE) != NONE;
        self.count -= usize::from(was);
        was
    }

    /// All, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Prefix, u32)> {
        self.cells.iter().flat_map(|(&cell, slots)| {
            let (high, length) = ((cell >> 8) as u32, cell as u8);
            slots.iter().enumerate().filter(|(_, number)| **number != NONE).map(move |(slot, number)| {
                let bits = high << CELL_BITS | slot as u32;
                let address = Ipv4Addr::from(bits.checked_shl(32 - u32::from(length)).unwrap_or(0));
                (Prefix::new(IpAddr::V4(address), length).expect("it came from a prefix"), number - 1)
            })
        })
    }
}
