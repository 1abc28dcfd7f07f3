//! IPv4 fragmentation (RFC 791 section 3.2, RFC 1812 section 4.2.2.7).

use super::v4::{self, DONT_FRAGMENT, MORE_FRAGMENTS};
use crate::bytes::{put, u16_at};
use crate::checksum::checksum;

/// Minimum MTU of an IPv4 link, bytes (RFC 791).
pub const MIN_MTU: u16 = 68;
/// Longest IPv4 header with options, bytes.
const LONGEST_HEADER: usize = 60;

/// Reasons why a packet is not fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentationError {
    /// The packet has the Don't Fragment bit.
    DontFragment,
    /// The MTU is below [`MIN_MTU`].
    MtuTooSmall,
}

/// Iterator over the fragments of a packet.
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    packet: v4::View<'a>,
    mtu: usize,
    /// Payload bytes already written.
    done: usize,
    /// Header of every fragment but the first, without the options that are not copied.
    later: [u8; LONGEST_HEADER],
    later_length: usize,
}

impl<'a> Fragments<'a> {
    /// Starts to fragment `packet` into fragments of at most `mtu` bytes. A packet that fits yields one
    /// fragment.
    pub fn new(packet: v4::View<'a>, mtu: u16) -> Result<Fragments<'a>, FragmentationError> {
        if packet.dont_fragment() {
            return Err(FragmentationError::DontFragment);
        }
        if mtu < MIN_MTU {
            return Err(FragmentationError::MtuTooSmall);
        }
        let mut later = [0; LONGEST_HEADER];
        put(&mut later, 0, &packet.packet()[..v4::HEADER]);
        let mut length = v4::HEADER;
        for option in copied_options(packet.options()) {
            put(&mut later, length, option);
            length += option.len();
        }
        // Zeros after the last option act as "end of options".
        let later_length = length.next_multiple_of(4);
        later[0] = 0x40 | (later_length / 4) as u8;
        Ok(Fragments { packet, mtu: mtu.into(), done: 0, later, later_length })
    }

    /// Writes the next fragment to the start of `buffer` and returns its length. Returns `None` after the
    /// last fragment, or if the buffer is shorter than `mtu`.
    pub fn write(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let payload = &self.packet.packet()[self.packet.header_length()..];
        if self.done >= payload.len() || buffer.len() < self.mtu {
            return None;
        }
        let header = match self.done {
            0 => &self.packet.packet()[..self.packet.header_length()],
            _ => &self.later[..self.later_length],
        };
        let room = self.mtu - header.len();
        let left = payload.len() - self.done;
        // All fragments but the last carry a multiple of eight bytes.
        let part_length = if left > room { room & !7 } else { left };
        let length = header.len() + part_length;
        let is_last = part_length == left;
        let flags = u16_at(self.packet.packet(), 6);
        let offset = (flags & 0x1fff) + (self.done / 8) as u16;
        let more = if is_last { flags & MORE_FRAGMENTS } else { MORE_FRAGMENTS };
        put(buffer, 0, header);
        put(buffer, header.len(), &payload[self.done..self.done + part_length]);
        put(buffer, 2, &(length as u16).to_be_bytes());
        put(buffer, 6, &(flags & !(DONT_FRAGMENT | MORE_FRAGMENTS | 0x1fff) | more | offset).to_be_bytes());
        put(buffer, 10, &[0, 0]);
        let sum = checksum(&buffer[..header.len()]);
        put(buffer, 10, &sum.to_be_bytes());
        self.done += part_length;
        Some(length)
    }
}

/// Options copied into every fragment: those with the top bit of their type set.
fn copied_options(options: &[u8]) -> impl Iterator<Item = &[u8]> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const COPIED: u8 = 0x80;
    let mut rest = options;
    core::iter::from_fn(move || {
        loop {
            let length = match *rest.first()? {
                END => return None,
                NO_OPERATION => 1,
                _ => usize::from(*rest.get(1)?).max(2),
            };
            let (option, after) = rest.split_at_checked(length)?;
            rest = after;
            if option[0] & COPIED != 0 {
                return Some(option);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn packet(options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = std::vec![0; v4::HEADER];
        let header = v4::Header { dont_fragment: false, identification: 0x1234, ..v4::Header::default() };
        header.write(&mut bytes, options.len() + payload.len()).unwrap();
        bytes[0] = 0x40 | (5 + options.len() / 4) as u8;
        bytes.extend(options);
        bytes[10..12].fill(0);
        let sum = checksum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn fragments(packet: &[u8], mtu: u16) -> Vec<Vec<u8>> {
        let mut fragments = Fragments::new(v4::View::new(packet).unwrap(), mtu).unwrap();
        core::iter::from_fn(|| {
            let mut buffer = std::vec![0xee; usize::from(mtu)];
            let length = fragments.write(&mut buffer)?;
            buffer.truncate(length);
            Some(buffer)
        })
        .collect()
    }

    #[test]
    fn dont_fragment_is_obeyed() {
        let mut bytes = packet(&[], &[0; 100]);
        assert_eq!(
            Fragments::new(v4::View::new(&bytes).unwrap(), 67).unwrap_err(),
            FragmentationError::MtuTooSmall
        );
        bytes[6] |= 0x40;
        assert_eq!(
            Fragments::new(v4::View::new(&bytes).unwrap(), 68).unwrap_err(),
            FragmentationError::DontFragment
        );
    }

    #[test]
    fn options_are_copied_by_their_copied_flag() {
        // Record route stays in the first fragment; source route and router alert are copied.
        let options = [1, 7, 7, 4, 0, 0, 0, 0, 131, 3, 4, 148, 4, 0, 0, 0];
        let all = fragments(&packet(&options, &[5; 60]), 68);
        let headers: Vec<&[u8]> =
            all.iter().map(|fragment| v4::View::new(fragment).unwrap().options()).collect();
        let later = &[131, 3, 4, 148, 4, 0, 0, 0][..];
        assert_eq!(headers, [&options[..], later]);
        // Truncated options are not read past their end.
        assert_eq!(copied_options(&[131, 9, 4, 0]).count(), 0);
        assert_eq!(copied_options(&[0, 0, 131, 3]).count(), 0);
    }

    #[test]
    fn a_fragment_is_fragmented_again() {
        let whole: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let first = fragments(&packet(&[], &whole), 1500);
        let again: Vec<Vec<u8>> = first.iter().flat_map(|fragment| fragments(fragment, 576)).collect();
        assert!(again.len() > first.len());
        assert_eq!(reassembled(&again), whole);
    }

    /// Payload of the fragments, which must be contiguous and in order.
    fn reassembled(fragments: &[Vec<u8>]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (number, fragment) in fragments.iter().enumerate() {
            let view = v4::View::new(fragment).unwrap();
            assert!(view.is_checksum_valid() && view.identification() == 0x1234);
            assert_eq!((view.fragment_offset(), view.packet().len()), (payload.len(), fragment.len()));
            let is_last = number + 1 == fragments.len();
            assert_eq!(u16_at(fragment, 6) & MORE_FRAGMENTS == 0, is_last);
            payload.extend(view.transport().payload);
        }
        payload
    }

    proptest! {
        #[test]
        fn fragments_fit_the_mtu_and_cover_the_payload(
            payload in prop::collection::vec(any::<u8>(), 1..4000),
            options in prop::collection::vec(any::<u8>(), 0..=10),
            mtu in MIN_MTU..1500,
        ) {
            let options: Vec<u8> = options.into_iter().flat_map(|byte| [byte, 4, byte, byte]).collect();
            let divided = fragments(&packet(&options, &payload), mtu);
            prop_assert!(divided.iter().all(|fragment| fragment.len() <= usize::from(mtu)));
            prop_assert_eq!(reassembled(&divided), payload);
        }
    }
}
