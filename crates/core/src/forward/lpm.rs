//! Longest-prefix match in a table that can be read while it changes.
//!
//! The first 16 or 24 bits of an address index a row of words, and each further eight bits index a row of
//! 256 words (Gupta, Lin and McKeown 1998 for IPv4, extended by as many levels of rows as IPv6 needs). A
//! word contains the value of the longest prefix or the number of a row on the next level. With 24 bits for
//! the first row, a lookup takes one memory access for most prefixes of IPv4 tables. A program in the
//! kernel can use the same memory.
//!
//! A prefix is stored in all words it covers, and the length of the prefix is stored for each word, as in
//! DPDK's rte_lpm. A change writes the words one by one, each atomically, and fills a row before the word
//! that refers to it, so a concurrent reader finds either the old or the new value.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Bound;
use core::sync::atomic::{AtomicU32, Ordering};

/// Number of bits that index a row below the first one.
const BELOW: u32 = 8;
/// Number of words in such a row.
const ROW: usize = 1 << BELOW;
/// Flag of a word that contains the number of a row instead of a value.
const LEADS_ON: u32 = 1 << 31;

/// Maximum value of a prefix; zero means no route.
pub const MAX_VALUE: u32 = LEADS_ON - 1;

/// Size of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LpmShape {
    /// Number of bits that index the first row.
    pub first: u32,
    /// Number of rows below the first one.
    pub rows: usize,
}

impl LpmShape {
    /// Returns the number of words of memory the table takes.
    pub fn words(self) -> usize {
        (1 << self.first) + self.rows * ROW
    }

    /// Returns the index of the first word of a row below the first one.
    fn row(self, number: u32) -> usize {
        (1 << self.first) + number as usize * ROW
    }
}

/// Words of memory that other readers may share.
pub trait LpmMemory {
    /// Returns the words: as many as the table's shape requires, initially zero.
    fn words(&self) -> &[AtomicU32];
}

/// Memory of the process.
impl LpmMemory for Vec<AtomicU32> {
    #[inline]
    fn words(&self) -> &[AtomicU32] {
        self
    }
}

/// Allocates zeroed memory for a table of this shape.
pub fn own_memory(shape: LpmShape) -> Vec<AtomicU32> {
    (0..shape.words()).map(|_| AtomicU32::new(0)).collect()
}

/// Error for a table without free rows; the table is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LpmFull;

impl fmt::Display for LpmFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the table has no free row for a prefix of this length")
    }
}

impl core::error::Error for LpmFull {}

/// Contents of a word: the value of the longest prefix, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaf {
    to: u32,
    length: u8,
}

/// The words of a row that a prefix covers.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    words: usize,
}

/// A table of prefixes of up to 128 bits, in the upper bits of a `u128`.
#[derive(Debug)]
pub struct Lpm<M> {
    shape: LpmShape,
    memory: M,
    /// Length of the prefix in each word; for a word that refers to a row, of the prefix that it would
    /// contain without the row.
    lengths: Vec<u8>,
    routes: BTreeMap<(u8, u128), u32>,
    /// Unused rows. Concurrent readers may still read them, so the one unused for the longest time is
    /// reused first, and only when no row is left that was never used.
    free: VecDeque<u32>,
    used: u32,
}

impl<M: LpmMemory> Lpm<M> {
    /// Creates an empty table.
    ///
    /// # Panics
    ///
    /// Panics if the size of the memory does not match the shape, or the first row has fewer than 8 or more
    /// than 24 bits.
    pub fn new(shape: LpmShape, memory: M) -> Lpm<M> {
        assert!((8..=24).contains(&shape.first) && shape.rows <= MAX_VALUE as usize, "{shape:?}");
        assert_eq!(memory.words().len(), shape.words(), "{shape:?}");
        let lengths = alloc::vec![0; shape.words()];
        Lpm { shape, memory, lengths, routes: BTreeMap::new(), free: VecDeque::new(), used: 0 }
    }

    /// Returns the number of prefixes.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Returns whether there are no prefixes.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Iterates over address, length and value of the prefixes, ordered by length and address.
    pub fn routes(&self) -> impl Iterator<Item = (u128, u8, u32)> {
        self.routes.iter().map(|(&(length, address), &to)| (address, length, to))
    }

    /// Iterates over the prefixes after the given one, which need not exist any more.
    pub fn routes_after(&self, address: u128, length: u8) -> impl Iterator<Item = (u128, u8, u32)> {
        let behind = (Bound::Excluded((length, address)), Bound::Unbounded);
        self.routes.range(behind).map(|(&(length, address), &to)| (address, length, to))
    }

    /// Returns the value of exactly this prefix.
    pub fn route(&self, address: u128, length: u8) -> Option<u32> {
        self.routes.get(&(length, address)).copied()
    }

    /// Returns the value of the longest prefix that contains an address; zero if there is none.
    #[inline]
    pub fn get(&self, address: u128) -> u32 {
        self.find(128, |shift| (address >> shift) as usize)
    }

    /// Returns the value of the longest prefix that contains an IPv4 address; zero if there is none.
    #[inline]
    pub fn get_v4(&self, address: u32) -> u32 {
        self.find(32, |shift| (address >> shift) as usize)
    }

    /// Looks up an address of `width` bits; `without_last` returns it shifted right by a number of bits.
    #[inline]
    fn find(&self, width: u32, without_last: impl Fn(u32) -> usize) -> u32 {
        let words = self.memory.words();
        let mut shift = width - self.shape.first;
        let mut word = words[without_last(shift)].load(Ordering::Acquire);
        while word & LEADS_ON != 0 {
            shift -= BELOW;
            let within = without_last(shift) & (ROW - 1);
            word = words[self.shape.row(word & MAX_VALUE) + within].load(Ordering::Acquire);
        }
        word
    }

    /// Sets the value of a prefix and returns its previous value.
    ///
    /// # Panics
    ///
    /// Panics if the value is zero or above [`MAX_VALUE`], the length is above 128, or the address has bits
    /// beyond the length.
    pub fn insert(&mut self, address: u128, length: u8, to: u32) -> Result<Option<u32>, LpmFull> {
        assert!(
            (1..=MAX_VALUE).contains(&to) && address & !mask(length) == 0,
            "{address:x}/{length} to {to}"
        );
        if self.rows_missing(address, length) > self.free.len() + self.shape.rows - self.used as usize {
            return Err(LpmFull);
        }
        let span = self.span(address, length);
        self.write(span, Leaf { to, length }, |before| before <= length);
        Ok(self.routes.insert((length, address), to))
    }

    /// Removes a prefix and returns its value.
    pub fn remove(&mut self, address: u128, length: u8) -> Option<u32> {
        let before = self.routes.remove(&(length, address))?;
        let below = (0..length).rev().find_map(|shorter| {
            let to = self.routes.get(&(shorter, address & mask(shorter)))?;
            Some(Leaf { to: *to, length: shorter })
        });
        let span = self.span(address, length);
        self.write(span, below.unwrap_or(Leaf { to: 0, length: 0 }), |before| before == length);
        self.prune(address, length);
        Some(before)
    }

    /// Iterates over the word indices on the path of an address, from the first row down to the last
    /// existing one.
    fn walk(&self, address: u128) -> impl Iterator<Item = usize> {
        let words = self.memory.words();
        let mut shift = 128 - self.shape.first;
        let mut next = Some((address >> shift) as usize);
        core::iter::from_fn(move || {
            let place = next?;
            let word = words[place].load(Ordering::Relaxed);
            next = (word & LEADS_ON != 0).then(|| {
                shift -= BELOW;
                self.shape.row(word & MAX_VALUE) + ((address >> shift) as usize & (ROW - 1))
            });
            Some(place)
        })
    }

    /// Returns the number of row levels below the first one that a prefix of this length needs.
    fn depth(&self, length: u8) -> usize {
        u32::from(length).saturating_sub(self.shape.first).div_ceil(BELOW) as usize
    }

    fn rows_missing(&self, address: u128, length: u8) -> usize {
        self.depth(length).saturating_sub(self.walk(address).count() - 1)
    }

    /// Returns the words that a prefix covers in its row, and creates missing rows.
    fn span(&mut self, address: u128, length: u8) -> Span {
        let mut shift = 128 - self.shape.first;
        let mut place = (address >> shift) as usize;
        for _ in 0..self.depth(length) {
            let row = self.row_below(place);
            shift -= BELOW;
            place = self.shape.row(row) + ((address >> shift) as usize & (ROW - 1));
        }
        let free_bits = 128 - u32::from(length);
        Span { start: place, words: 1 << (free_bits - shift) }
    }

    /// Returns the row to which a word refers. A new row is filled with the previous contents of the word.
    fn row_below(&mut self, place: usize) -> u32 {
        let word = self.memory.words()[place].load(Ordering::Relaxed);
        if word & LEADS_ON != 0 {
            return word & MAX_VALUE;
        }
        let row = match (self.used as usize) < self.shape.rows {
            true => {
                self.used += 1;
                self.used - 1
            }
            false => self.free.pop_front().expect("the caller checked the number of free rows"),
        };
        let leaf = Leaf { to: word, length: self.lengths[place] };
        let start = self.shape.row(row);
        (start..start + ROW).for_each(|place| self.set(place, leaf));
        self.memory.words()[place].store(LEADS_ON | row, Ordering::Release);
        row
    }

    /// Writes a leaf to all words of a span, and of the rows below, whose prefix length satisfies `is_due`.
    fn write(&mut self, span: Span, leaf: Leaf, is_due: impl Fn(u8) -> bool + Copy) {
        for place in span.start..span.start + span.words {
            let word = self.memory.words()[place].load(Ordering::Relaxed);
            if word & LEADS_ON != 0 {
                let start = self.shape.row(word & MAX_VALUE);
                self.write(Span { start, words: ROW }, leaf, is_due);
            }
            if is_due(self.lengths[place]) {
                match word & LEADS_ON {
                    0 => self.set(place, leaf),
                    _ => self.lengths[place] = leaf.length,
                }
            }
        }
    }

    fn set(&mut self, place: usize, leaf: Leaf) {
        self.lengths[place] = leaf.length;
        self.memory.words()[place].store(leaf.to, Ordering::Release);
    }

    /// Frees the rows on the path of an address whose contents the word above can represent.
    fn prune(&mut self, address: u128, length: u8) {
        for depth in (1..=self.depth(length)).rev() {
            let path: Vec<usize> = self.walk(address).take(depth + 1).collect();
            let &[.., above, within] = &path[..] else { continue };
            if path.len() <= depth {
                continue;
            }
            let start = within - (within - (1 << self.shape.first)) % ROW;
            let words = &self.memory.words()[start..start + ROW];
            let first = words[0].load(Ordering::Relaxed);
            let bits_above = self.shape.first as usize + BELOW as usize * (depth - 1);
            let is_uniform = first & LEADS_ON == 0
                && words.iter().all(|word| word.load(Ordering::Relaxed) == first)
                && self.lengths[start..start + ROW]
                    .iter()
                    .all(|length| usize::from(*length) <= bits_above && *length == self.lengths[start]);
            if !is_uniform {
                return;
            }
            let row = self.memory.words()[above].load(Ordering::Relaxed) & MAX_VALUE;
            self.set(above, Leaf { to: first, length: self.lengths[start] });
            self.free.push_back(row);
        }
    }
}

/// Returns the mask of the bits of a prefix of this length.
fn mask(length: u8) -> u128 {
    assert!(length <= 128, "a prefix has at most 128 bits");
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: LpmShape = LpmShape { first: 8, rows: 64 };

    fn table(shape: LpmShape) -> Lpm<Vec<AtomicU32>> {
        Lpm::new(shape, own_memory(shape))
    }

    fn v4(a: u8, b: u8, c: u8, d: u8) -> u128 {
        u128::from(u32::from_be_bytes([a, b, c, d])) << 96
    }

    #[test]
    fn the_longest_prefix_wins() {
        for first in [8, 16, 24] {
            let mut table = table(LpmShape { first, rows: 8 });
            for (address, length, to) in [
                (0, 0, 1),
                (v4(10, 0, 0, 0), 8, 2),
                (v4(10, 1, 0, 0), 16, 3),
                (v4(10, 1, 2, 0), 24, 4),
                (v4(10, 1, 2, 3), 32, 5),
                (v4(255, 255, 255, 254), 31, 6),
            ] {
                assert_eq!(table.insert(address, length, to), Ok(None));
            }
            let expected =
                [(v4(9, 9, 9, 9), 1), (v4(10, 0, 0, 1), 2), (v4(10, 1, 0, 1), 3), (v4(10, 1, 2, 4), 4)];
            let more = [(v4(10, 1, 2, 3), 5), (v4(255, 255, 255, 255), 6), (v4(255, 255, 255, 253), 1)];
            for (address, to) in expected.into_iter().chain(more) {
                assert_eq!((table.get(address), table.get_v4((address >> 96) as u32)), (to, to));
            }
            assert_eq!(table.insert(v4(10, 1, 0, 0), 16, 7), Ok(Some(3)));
            assert_eq!((table.get(v4(10, 1, 0, 1)), table.get(v4(10, 1, 2, 4))), (7, 4));
            assert_eq!(table.remove(v4(10, 1, 0, 0), 16), Some(7));
            assert_eq!((table.get(v4(10, 1, 0, 1)), table.remove(v4(10, 1, 0, 0), 16)), (2, None));
            assert_eq!(table.remove(0, 0), Some(1));
            assert_eq!((table.get(v4(9, 9, 9, 9)), table.len()), (0, 4));
        }
    }

    #[test]
    fn a_full_table_is_unchanged_and_freed_rows_are_reused() {
        let mut table = table(LpmShape { first: 16, rows: 2 });
        assert_eq!(table.insert(v4(10, 0, 0, 0), 16, 1), Ok(None));
        assert_eq!(table.insert(v4(10, 0, 0, 1), 32, 2), Ok(None));
        assert_eq!(table.insert(v4(10, 1, 0, 1), 32, 3), Err(LpmFull));
        assert_eq!((table.get(v4(10, 1, 0, 1)), table.len()), (0, 2));
        for _ in 0..10 {
            assert_eq!(table.remove(v4(10, 0, 0, 1), 32), Some(2));
            assert_eq!(table.get(v4(10, 0, 0, 1)), 1);
            assert_eq!(table.insert(v4(10, 1, 0, 1), 32, 3), Ok(None));
            assert_eq!(table.remove(v4(10, 1, 0, 1), 32), Some(3));
            assert_eq!(table.insert(v4(10, 0, 0, 1), 32, 2), Ok(None));
        }
        assert_eq!(table.get(v4(10, 0, 0, 1)), 2);
    }

    /// Prefixes of lengths and addresses that often nest.
    fn prefixes() -> impl Strategy<Value = (u128, u8)> {
        (prop_oneof![0u8..=33, 120u8..=128], any::<[u8; 5]>()).prop_map(|(length, bits)| {
            let [a, b, c, d, e] = bits.map(|byte| u128::from(byte & 0x83));
            let address = a << 120 | b << 112 | c << 104 | d << 96 | e;
            (address & mask(length), length)
        })
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_list_of_prefixes(
            steps in prop::collection::vec((prefixes(), any::<bool>(), 1u32..1000), 1..120),
            queries in prop::collection::vec(prefixes(), 20),
        ) {
            let mut table = table(LpmShape { first: SMALL.first, rows: 4_000 });
            let mut list: Vec<(u128, u8, u32)> = Vec::new();
            for ((address, length), is_removal, to) in steps {
                let known = list.iter().position(|route| (route.0, route.1) == (address, length));
                let before = known.map(|known| list.swap_remove(known).2);
                if is_removal {
                    prop_assert_eq!(table.remove(address, length), before);
                } else {
                    prop_assert_eq!(table.insert(address, length, to), Ok(before));
                    list.push((address, length, to));
                }
            }
            let around = list.iter().flat_map(|route| [route.0, route.0 | !mask(route.1), route.0.wrapping_sub(1)]);
            for address in around.clone().chain(queries.iter().map(|(address, _)| *address)) {
                let holding = list.iter().filter(|route| address & mask(route.1) == route.0);
                let longest = holding.max_by_key(|route| route.1).map_or(0, |route| route.2);
                prop_assert_eq!(table.get(address), longest, "{:x}", address);
            }
            for (address, length, _) in core::mem::take(&mut list) {
                table.remove(address, length);
            }
            prop_assert!(table.is_empty() && table.free.len() == table.used as usize, "all rows are freed");
            prop_assert!(table.memory.words()[..1 << 8].iter().all(|word| word.load(Ordering::Relaxed) == 0));
        }
    }
}
