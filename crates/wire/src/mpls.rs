//! MPLS label stacks (RFC 3032). The traffic class was called EXP before RFC 5462.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                Label                  |  TC |S|      TTL      |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```

/// Length of a label stack entry, bytes.
pub const ENTRY: usize = 4;
/// Limit on entries in a stack; more indicate a fault or an attack.
pub const MAX_DEPTH: usize = 16;

/// MPLS label, 20 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelValue(u32);

impl LabelValue {
    /// Highest label.
    pub const MAX: LabelValue = LabelValue(0xf_ffff);
    /// Lowest label outside the special-purpose range.
    pub const FIRST_UNRESERVED: LabelValue = LabelValue(16);

    /// IPv4 explicit null: the payload is IPv4 (RFC 3032; not only at the bottom since RFC 4182).
    pub const IPV4_EXPLICIT_NULL: LabelValue = LabelValue(0);
    /// Router alert: every router on the path examines the packet (RFC 3032).
    pub const ROUTER_ALERT: LabelValue = LabelValue(1);
    /// IPv6 explicit null: the payload is IPv6 (RFC 3032; not only at the bottom since RFC 4182).
    pub const IPV6_EXPLICIT_NULL: LabelValue = LabelValue(2);
    /// Implicit null: request to the neighbor to pop the label; never in a packet (RFC 3032).
    pub const IMPLICIT_NULL: LabelValue = LabelValue(3);
    /// Entropy label indicator: the next label is an entropy label (RFC 6790).
    pub const ENTROPY_INDICATOR: LabelValue = LabelValue(7);
    /// Generic associated channel label (GAL): a channel header follows (RFC 5586).
    pub const GENERIC_CHANNEL: LabelValue = LabelValue(13);
    /// Operation and maintenance alert (RFC 3429).
    pub const OAM_ALERT: LabelValue = LabelValue(14);

    /// Returns the label with this number, or `None` above 20 bits.
    #[inline]
    pub const fn new(number: u32) -> Option<LabelValue> {
        if number <= LabelValue::MAX.0 { Some(LabelValue(number)) } else { None }
    }

    /// Returns the label's number.
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns `true` for special-purpose labels, below 16 (RFC 7274).
    #[inline]
    pub const fn is_reserved(self) -> bool {
        self.0 < LabelValue::FIRST_UNRESERVED.0
    }
}

/// MPLS label stack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelStackEntry {
    /// Label.
    pub label: LabelValue,
    /// Traffic class, 3 bits.
    pub traffic_class: u8,
    /// Bottom-of-stack flag.
    pub bottom: bool,
    /// Time to live.
    pub ttl: u8,
}

impl LabelStackEntry {
    /// Decodes an entry; every value is valid.
    #[inline]
    pub const fn from_bytes(bytes: [u8; ENTRY]) -> LabelStackEntry {
        let bits = u32::from_be_bytes(bytes);
        LabelStackEntry {
            label: LabelValue(bits >> 12),
            traffic_class: (bits >> 9 & 7) as u8,
            bottom: bits & 0x100 != 0,
            ttl: bits as u8,
        }
    }

    /// Encodes the entry; excess bits of the traffic class are dropped.
    #[inline]
    pub const fn to_bytes(self) -> [u8; ENTRY] {
        let class = (self.traffic_class & 7) as u32;
        (self.label.0 << 12 | class << 9 | (self.bottom as u32) << 8 | self.ttl as u32).to_be_bytes()
    }

    /// Decodes the entry at the start of `bytes`, or returns `None` for fewer than four bytes. Label
    /// swapping reads no other entry.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<LabelStackEntry> {
        bytes.first_chunk().map(|bytes| LabelStackEntry::from_bytes(*bytes))
    }

    /// Writes the entry to the start of `bytes`.
    #[inline]
    pub fn write(self, bytes: &mut [u8]) -> Result<(), ShortLabelBuffer> {
        *bytes.first_chunk_mut().ok_or(ShortLabelBuffer)? = self.to_bytes();
        Ok(())
    }
}

/// Error for a buffer shorter than the entries to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortLabelBuffer;

/// Reasons why bytes are not a valid label stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelStackError {
    /// No entry with the bottom-of-stack flag.
    NoBottom,
    /// More than [`MAX_DEPTH`] entries.
    TooDeep,
    /// Special-purpose label at a position where it is not allowed, or without a defined meaning.
    Reserved {
        /// The label.
        label: LabelValue,
        /// Number of entries above it.
        depth: usize,
    },
}

/// Label stack with a bottom, at most [`MAX_DEPTH`] entries, and special-purpose labels only at allowed
/// positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack<'a> {
    entries: &'a [[u8; ENTRY]],
}

impl<'a> Stack<'a> {
    /// Parses the stack at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Stack<'a>, LabelStackError> {
        let (entries, _) = bytes.as_chunks::<ENTRY>();
        let mut above = None;
        for (depth, entry) in entries.iter().enumerate() {
            if depth == MAX_DEPTH {
                return Err(LabelStackError::TooDeep);
            }
            let entry = LabelStackEntry::from_bytes(*entry);
            if !is_allowed(entry, above) {
                return Err(LabelStackError::Reserved { label: entry.label, depth });
            }
            if entry.bottom {
                return Ok(Stack { entries: &entries[..=depth] });
            }
            above = Some(entry.label);
        }
        Err(LabelStackError::NoBottom)
    }

    /// Iterates over the entries from the top.
    #[inline]
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = LabelStackEntry> + ExactSizeIterator + 'a {
        self.entries.iter().map(|entry| LabelStackEntry::from_bytes(*entry))
    }

    /// Returns the number of entries, at least one.
    pub fn depth(&self) -> usize {
        self.entries.len()
    }

    /// Returns the offset of the payload, bytes.
    #[inline]
    pub fn payload_offset(&self) -> usize {
        self.entries.len() * ENTRY
    }

    /// Returns `true` if a generic associated channel header follows instead of a customer's packet.
    #[inline]
    pub fn carries_generic_channel(&self) -> bool {
        self.entries().next_back().is_some_and(|entry| entry.label == LabelValue::GENERIC_CHANNEL)
    }
}

fn is_allowed(entry: LabelStackEntry, above: Option<LabelValue>) -> bool {
    if above == Some(LabelValue::ENTROPY_INDICATOR) {
        // RFC 6790 section 3: an entropy label is not a special-purpose label.
        return !entry.label.is_reserved();
    }
    match entry.label {
        label if !label.is_reserved() => true,
        LabelValue::IPV4_EXPLICIT_NULL | LabelValue::IPV6_EXPLICIT_NULL | LabelValue::OAM_ALERT => true,
        // These labels require another label below them.
        LabelValue::ROUTER_ALERT | LabelValue::ENTROPY_INDICATOR => !entry.bottom,
        // RFC 5586 section 4.2. RFC 6423 allows flow labels below the GAL only for pseudowires.
        LabelValue::GENERIC_CHANNEL => entry.bottom,
        _ => false,
    }
}

/// Writes a stack from the top and returns its length, which is the offset of the payload. Only the last
/// entry gets the bottom-of-stack flag.
#[inline]
pub fn write_stack(entries: &[LabelStackEntry], bytes: &mut [u8]) -> Result<usize, ShortLabelBuffer> {
    let length = entries.len() * ENTRY;
    let (chunks, _) = bytes.get_mut(..length).ok_or(ShortLabelBuffer)?.as_chunks_mut::<ENTRY>();
    for (number, (chunk, entry)) in chunks.iter_mut().zip(entries).enumerate() {
        *chunk = LabelStackEntry { bottom: number + 1 == entries.len(), ..*entry }.to_bytes();
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn entry(label: LabelValue, bottom: bool) -> LabelStackEntry {
        LabelStackEntry { label, traffic_class: 0, bottom, ttl: 64 }
    }

    fn stack(labels: &[u32]) -> Vec<u8> {
        let entries: Vec<LabelStackEntry> =
            labels.iter().map(|&label| entry(LabelValue::new(label).unwrap(), false)).collect();
        let mut bytes = std::vec![0; entries.len() * ENTRY];
        write_stack(&entries, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn fields_are_at_the_offsets_of_the_rfc() {
        let entry = LabelStackEntry {
            label: LabelValue::new(0x12345).unwrap(),
            traffic_class: 5,
            bottom: true,
            ttl: 0xfe,
        };
        assert_eq!(entry.to_bytes(), [0x12, 0x34, 0x5b, 0xfe]);
        assert_eq!(LabelStackEntry::from_bytes([0x12, 0x34, 0x5b, 0xfe]), entry);
        assert_eq!(LabelStackEntry::from_bytes([0xff, 0xff, 0xf4, 0]).label, LabelValue::MAX);
        assert_eq!((LabelValue::new(1 << 20), LabelStackEntry::read(&[0; 3])), (None, None));
    }

    #[test]
    fn a_stack_ends_at_its_bottom() {
        let mut bytes = stack(&[16, 17, 0xf_ffff]);
        bytes.extend([0x45; 20]);
        let found = Stack::new(&bytes).unwrap();
        assert_eq!((found.depth(), found.payload_offset()), (3, 12));
        assert!(found.entries().map(|entry| entry.label.number()).eq([16, 17, 0xf_ffff]));
        assert!(found.entries().map(|entry| entry.bottom).eq([false, false, true]));
        assert!(!found.carries_generic_channel());
        for length in 0..12 {
            assert_eq!(Stack::new(&bytes[..length]), Err(LabelStackError::NoBottom));
        }
        assert_eq!(write_stack(&[entry(LabelValue::MAX, true); 2], &mut [0; 7]), Err(ShortLabelBuffer));
        assert_eq!(entry(LabelValue::MAX, true).write(&mut [0; 3]), Err(ShortLabelBuffer));
    }

    #[test]
    fn depth_is_limited() {
        assert_eq!(Stack::new(&stack(&[16; MAX_DEPTH])).unwrap().depth(), MAX_DEPTH);
        assert_eq!(Stack::new(&stack(&[16; MAX_DEPTH + 1])), Err(LabelStackError::TooDeep));
    }

    #[test]
    fn reserved_labels_are_accepted_only_where_allowed() {
        for labels in [&[100, 13][..], &[0], &[2], &[0, 100], &[1, 100], &[7, 100], &[100, 7, 16, 17], &[14]]
        {
            assert!(Stack::new(&stack(labels)).is_ok(), "{labels:?}");
        }
        assert!(Stack::new(&stack(&[100, 13])).unwrap().carries_generic_channel());
        let rejected: [(&[u32], usize); 10] = [
            (&[3], 0),
            (&[100, 3], 1),
            (&[100, 1], 1),
            (&[7], 0),
            (&[7, 13], 1),
            (&[13, 100], 0),
            (&[4], 0),
            (&[12, 100], 0),
            (&[15, 16], 0),
            (&[100, 7, 0], 2),
        ];
        for (labels, depth) in rejected {
            let label = LabelValue::new(labels[depth]).unwrap();
            assert_eq!(
                Stack::new(&stack(labels)),
                Err(LabelStackError::Reserved { label, depth }),
                "{labels:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn entries_round_trip(bytes: [u8; ENTRY]) {
            prop_assert_eq!(LabelStackEntry::from_bytes(bytes).to_bytes(), bytes);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(stack) = Stack::new(&bytes) {
                prop_assert!(stack.payload_offset() <= bytes.len());
                let bottoms: Vec<usize> =
                    stack.entries().enumerate().filter(|(_, entry)| entry.bottom).map(|(at, _)| at).collect();
                prop_assert_eq!(bottoms, [stack.depth() - 1]);
            }
        }
    }
}
