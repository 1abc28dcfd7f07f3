//! Generic associated channel header (RFC 5586). It follows the label stack in packets that manage an MPLS
//! path rather than carry its traffic.

/// Length of the header, bytes.
pub const HEADER: usize = 4;

/// Channel types of the IANA registry "MPLS Generalized Associated Channel (G-ACh) Types".
pub mod channel {
    /// Delay measurement (RFC 6374).
    pub const DELAY: u16 = 0x000c;
    /// Direct loss and delay measurement (RFC 6374).
    pub const DIRECT_LOSS_DELAY: u16 = 0x000d;
    /// Reference flow between provider edge routers ([`crate::reference`]): an experimental type, 0x7ff8 to
    /// 0x7fff (RFC 5586 section 10).
    pub const REFERENCE: u16 = 0x7ffa;
    /// State of VPN flows under rate consensus ([`crate::news`]), of the same range.
    pub const NEWS: u16 = 0x7ffb;
}

/// Reasons why bytes are not a channel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AchError {
    /// Bytes end within the header.
    Short,
    /// First nibble other than 1: an IP packet (RFC 4928) or a pseudowire control word.
    NotAChannel(u8),
    /// Version other than 0.
    Version(u8),
}

/// Parses the header and returns the channel type, one of [`channel`]. The reserved byte is ignored, as
/// required by RFC 4385 section 5.
#[inline]
pub const fn read(bytes: &[u8]) -> Result<u16, AchError> {
    let Some(&[first, _, high, low]) = bytes.first_chunk() else {
        return Err(AchError::Short);
    };
    match (first >> 4, first & 0xf) {
        (1, 0) => Ok(u16::from_be_bytes([high, low])),
        (1, version) => Err(AchError::Version(version)),
        (nibble, _) => Err(AchError::NotAChannel(nibble)),
    }
}

/// Returns the header of a channel type.
#[inline]
pub const fn header(channel: u16) -> [u8; HEADER] {
    let [high, low] = channel.to_be_bytes();
    [0x10, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_at_the_offsets_of_the_rfc() {
        assert_eq!(header(channel::DIRECT_LOSS_DELAY), [0x10, 0, 0, 0x0d]);
        assert_eq!(read(&[0x10, 0xff, 0x12, 0x34, 9]), Ok(0x1234));
        assert_eq!(read(&[0x10, 0, 0]), Err(AchError::Short));
        assert_eq!(read(&[0x11, 0, 0, 0]), Err(AchError::Version(1)));
        assert_eq!(read(&[0x45, 0, 0, 0]), Err(AchError::NotAChannel(4)));
        for channel in [0, 1, 0x7fff, 0xffff] {
            assert_eq!(read(&header(channel)), Ok(channel));
        }
    }
}
