//! Ethernet II headers with VLAN tags (IEEE 802.3, 802.1Q, 802.1ad).

use crate::bytes::{put, u16_at};

/// Length of an untagged header, bytes: both addresses and the EtherType.
pub const HEADER: usize = 14;
/// Length of a VLAN tag, bytes.
pub const TAG: usize = 4;
/// Limit on VLAN tags in a frame; more indicate a fault or an attack.
pub const MAX_TAGS: usize = 4;

/// MAC address.
pub type Mac = [u8; 6];

/// Broadcast address.
pub const BROADCAST: Mac = [0xff; 6];

/// EtherTypes. Smaller values than 0x0600 are lengths (IEEE 802.3).
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Customer VLAN tag (802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// MPLS (with a downstream-assigned label at the top, RFC 5332).
    pub const MPLS: u16 = 0x8847;
    /// Service VLAN tag (802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// Service VLAN tag as used before 802.1ad.
    pub const OLD_SERVICE_VLAN: u16 = 0x9100;
}

const fn is_tag(kind: u16) -> bool {
    matches!(kind, ethertype::VLAN | ethertype::SERVICE_VLAN | ethertype::OLD_SERVICE_VLAN)
}

/// Reasons why bytes are not a valid Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EthernetError {
    /// Bytes end within the header or a tag.
    Short,
    /// More than [`MAX_TAGS`] VLAN tags.
    TooManyTags,
}

/// Error for a buffer shorter than the bytes to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortEthernetBuffer;

/// VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Tag protocol identifier: [`ethertype::VLAN`] or [`ethertype::SERVICE_VLAN`].
    pub kind: u16,
    /// Priority code point, 3 bits.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
    /// VLAN ID, 12 bits; 0 in a priority tag.
    pub vlan: u16,
}

impl Tag {
    const fn from_control(kind: u16, control: u16) -> Tag {
        Tag {
            kind,
            priority: (control >> 13) as u8,
            drop_eligible: control & 0x1000 != 0,
            vlan: control & 0x0fff,
        }
    }

    const fn control(&self) -> u16 {
        ((self.priority & 7) as u16) << 13 | (self.drop_eligible as u16) << 12 | self.vlan & 0x0fff
    }
}

/// Ethernet frame with a complete header and complete tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    bytes: &'a [u8],
    payload: usize,
}

impl<'a> View<'a> {
    /// Parses the header and the tags.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<View<'a>, EthernetError> {
        let mut payload = HEADER;
        while payload <= HEADER + MAX_TAGS * TAG {
            if bytes.len() < payload {
                return Err(EthernetError::Short);
            }
            if !is_tag(u16_at(bytes, payload - 2)) {
                return Ok(View { bytes, payload });
            }
            payload += TAG;
        }
        Err(EthernetError::TooManyTags)
    }

    /// Returns the destination MAC address.
    pub fn destination(&self) -> Mac {
        self.bytes.first_chunk().copied().unwrap_or_default()
    }

    /// Returns the source MAC address.
    pub fn source(&self) -> Mac {
        self.bytes[6..].first_chunk().copied().unwrap_or_default()
    }

    /// Returns the VLAN tags, outermost first.
    #[inline]
    pub fn tags(&self) -> impl Iterator<Item = Tag> + 'a {
        let (tags, _) = self.bytes[HEADER - 2..self.payload - 2].as_chunks::<TAG>();
        tags.iter().map(|tag| Tag::from_control(u16_at(tag, 0), u16_at(tag, 2)))
    }

    /// Returns the EtherType of the payload, one of [`ethertype`].
    #[inline]
    pub fn kind(&self) -> u16 {
        u16_at(self.bytes, self.payload - 2)
    }

    /// Returns the offset of the payload in bytes.
    #[inline]
    pub fn payload_offset(&self) -> usize {
        self.payload
    }

    /// Returns the payload, including any padding of a short frame.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.payload..]
    }
}

/// Ethernet header to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Destination MAC address.
    pub destination: Mac,
    /// Source MAC address.
    pub source: Mac,
    /// VLAN tags, outermost first.
    pub tags: &'a [Tag],
    /// EtherType of the payload, one of [`ethertype`].
    pub kind: u16,
}

impl Header<'_> {
    /// Returns the length of the header with its tags, bytes.
    pub const fn length(&self) -> usize {
        HEADER + self.tags.len() * TAG
    }

    /// Writes the header and returns its length, which is the offset of the payload.
    pub fn write(&self, bytes: &mut [u8]) -> Result<usize, ShortEthernetBuffer> {
        let length = self.length();
        let bytes = bytes.get_mut(..length).ok_or(ShortEthernetBuffer)?;
        put(bytes, 0, &self.destination);
        put(bytes, 6, &self.source);
        for (tag, at) in self.tags.iter().zip((HEADER - 2..).step_by(TAG)) {
            put(bytes, at, &tag.kind.to_be_bytes());
            put(bytes, at + 2, &tag.control().to_be_bytes());
        }
        put(bytes, length - 2, &self.kind.to_be_bytes());
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const TAGS: [Tag; 2] = [
        Tag { kind: ethertype::SERVICE_VLAN, priority: 5, drop_eligible: true, vlan: 0xabc },
        Tag { kind: ethertype::VLAN, priority: 0, drop_eligible: false, vlan: 7 },
    ];

    #[test]
    fn tags_are_between_addresses_and_ethertype() {
        let header = Header { destination: [1; 6], source: [2; 6], tags: &TAGS, kind: ethertype::MPLS };
        let mut bytes = [0xee; 24];
        assert_eq!(header.write(&mut bytes), Ok(22));
        #[rustfmt::skip]
        let expected = [
            1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x88, 0xa8, 0xba, 0xbc, 0x81, 0x00, 0, 7, 0x88, 0x47, 0xee, 0xee,
        ];
        assert_eq!(bytes, expected);
        let view = View::new(&bytes).unwrap();
        assert_eq!((view.destination(), view.source()), ([1; 6], [2; 6]));
        assert_eq!(
            (view.kind(), view.payload_offset(), view.payload()),
            (ethertype::MPLS, 22, &[0xee; 2][..])
        );
        assert!(view.tags().eq(TAGS));
        assert_eq!(header.write(&mut bytes[..21]), Err(ShortEthernetBuffer));
        for length in 0..22 {
            assert_eq!(View::new(&bytes[..length]), Err(EthernetError::Short));
        }
        assert_eq!(View::new(&bytes[..22]).unwrap().payload(), []);
    }

    #[test]
    fn excessive_tags_are_rejected() {
        let bytes = [0x81, 0x00].repeat(40);
        assert_eq!(View::new(&bytes), Err(EthernetError::TooManyTags));
    }

    proptest! {
        #[test]
        fn headers_round_trip(
            destination: Mac, source: Mac, count in 0..=MAX_TAGS, control: [u16; MAX_TAGS], kind in 0x0600_u16..0x8000,
        ) {
            let tags: Vec<Tag> =
                control[..count].iter().map(|&control| Tag::from_control(ethertype::VLAN, control)).collect();
            let header = Header { destination, source, tags: &tags, kind };
            let mut bytes = [0; HEADER + MAX_TAGS * TAG];
            let length = header.write(&mut bytes).unwrap();
            let view = View::new(&bytes[..length]).unwrap();
            prop_assert!(view.tags().eq(tags.iter().copied()));
            prop_assert_eq!((view.destination(), view.source(), view.kind()), (destination, source, kind));
            prop_assert_eq!(view.payload_offset(), length);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(view) = View::new(&bytes) {
                prop_assert_eq!(view.payload_offset() + view.payload().len(), bytes.len());
                prop_assert_eq!(HEADER + view.tags().count() * TAG, view.payload_offset());
            }
        }
    }
}
