//! Dividing an IPv4 packet that the way ahead does not carry whole (RFC 791 section 3.2,
//! RFC 1812 section 4.2.2.7). Its receiver puts it together again.

use super::v4::{self, DONT_FRAGMENT, MORE_FRAGMENTS};
use crate::bytes::{put, u16_at};
use crate::checksum::checksum;

/// What IPv4 asks of every link.
pub const LEAST_MTU: u16 = 68;
/// Bytes of a header with all the options it can have.
const LONGEST_HEADER: usize = 60;

/// Why a packet is not divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its sender forbids it.
    DontFragment,
    /// The link carries less than IP asks of every link.
    MtuTooSmall,
}

/// The fragments of a packet, one after the other.
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    packet: v4::View<'a>,
    mtu: usize,
    /// How much of the payload is in fragments already.
    done: usize,
    /// Header of all but the first: options that are not to be copied are left out.
    later: [u8; LONGEST_HEADER],
    later_length: usize,
}

impl<'a> Fragments<'a> {
    /// Fragments of at most `mtu` bytes. A packet that fits is one of them.
    pub fn new(packet: v4::View<'a>, mtu: u16) -> Result<Fragments<'a>, Refused> {
        if packet.dont_fragment() {
            return Err(Refused::DontFragment);
        }
        if mtu < LEAST_MTU {
            return Err(Refused::MtuTooSmall);
        }
        let mut later = [0; LONGEST_HEADER];
        put(&mut later, 0, &packet.packet()[..v4::HEADER]);
        let mut length = v4::HEADER;
        for option in copied_options(packet.options()) {
            put(&mut later, length, option);
            length += option.len();
        }
        // Zeros behind the last option are its end.
        let later_length = length.next_multiple_of(4);
        later[0] = 0x40 | (later_length / 4) as u8;
        Ok(Fragments { packet, mtu: mtu.into(), done: 0, later, later_length })
    }

    /// Writes the next fragment at the beginning of a buffer, and gives its length; `None` after
    /// the last one, and where the buffer holds no `mtu` bytes.
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
        // All but the last are whole units of eight bytes.
        let taken = if left > room { room & !7 } else { left };
        let length = header.len() + taken;
        let is_last = taken == left;
        let flags = u16_at(self.packet.packet(), 6);
        let offset = (flags & 0x1fff) + (self.done / 8) as u16;
        let more = if is_last { flags & MORE_FRAGMENTS } else { MORE_FRAGMENTS };
        put(buffer, 0, header);
        put(buffer, header.len(), &payload[self.done..self.done + taken]);
        put(buffer, 2, &(length as u16).to_be_bytes());
        put(buffer, 6, &(flags & !(DONT_FRAGMENT | MORE_FRAGMENTS | 0x1fff) | more | offset).to_be_bytes());
        put(buffer, 10, &[0, 0]);
        let sum = checksum(&buffer[..header.len()]);
        put(buffer, 10, &sum.to_be_bytes());
        self.done += taken;
        Some(length)
    }
}

/// The options every fragment has to have: those with the first bit of their type set.
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
    fn who_forbids_it_is_obeyed() {
        let mut bytes = packet(&[], &[0; 100]);
        assert_eq!(Fragments::new(v4::View::new(&bytes).unwrap(), 67).unwrap_err(), Refused::MtuTooSmall);
        bytes[6] |= 0x40;
        assert_eq!(Fragments::new(v4::View::new(&bytes).unwrap(), 68).unwrap_err(), Refused::DontFragment);
    }

    #[test]
    fn options_are_copied_as_their_types_ask() {
        // A record of the route stays with the first; a source route and a router alert go along.
        let options = [1, 7, 7, 4, 0, 0, 0, 0, 131, 3, 4, 148, 4, 0, 0, 0];
        let all = fragments(&packet(&options, &[5; 60]), 68);
        let headers: Vec<&[u8]> =
            all.iter().map(|fragment| v4::View::new(fragment).unwrap().options()).collect();
        let later = &[131, 3, 4, 148, 4, 0, 0, 0][..];
        assert_eq!(headers, [&options[..], later]);
        // Options that end early are not read beyond their end.
        assert_eq!(copied_options(&[131, 9, 4, 0]).count(), 0);
        assert_eq!(copied_options(&[0, 0, 131, 3]).count(), 0);
    }

    #[test]
    fn a_fragment_is_divided_again() {
        let whole: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let first = fragments(&packet(&[], &whole), 1500);
        let again: Vec<Vec<u8>> = first.iter().flat_map(|fragment| fragments(fragment, 576)).collect();
        assert!(again.len() > first.len());
        assert_eq!(reassembled(&again), whole);
    }

    /// The payload, which the fragments must cover once, in order.
    fn reassembled(fragments: &[Vec<u8>]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (number, fragment) in fragments.iter().enumerate() {
            let view = v4::View::new(fragment).unwrap();
            assert!(view.checksum_is_right() && view.identification() == 0x1234);
            assert_eq!((view.fragment_offset(), view.packet().len()), (payload.len(), fragment.len()));
            let is_last = number + 1 == fragments.len();
            assert_eq!(u16_at(fragment, 6) & MORE_FRAGMENTS == 0, is_last);
            payload.extend(view.transport().payload);
        }
        payload
    }

    proptest! {
        #[test]
        fn fragments_fit_and_hold_all_of_it(
            payload in prop::collection::vec(any::<u8>(), 1..4000),
            options in prop::collection::vec(any::<u8>(), 0..=10),
            mtu in LEAST_MTU..1500,
        ) {
            let options: Vec<u8> = options.into_iter().flat_map(|byte| [byte, 4, byte, byte]).collect();
            let divided = fragments(&packet(&options, &payload), mtu);
            prop_assert!(divided.iter().all(|fragment| fragment.len() <= usize::from(mtu)));
            prop_assert_eq!(reassembled(&divided), payload);
        }
    }
}
