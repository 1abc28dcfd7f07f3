//! Generic associated channel header (RFC 5586): what follows the label stack of a packet that
//! is about the path instead of travelling it.

/// Bytes of the header.
pub const HEADER: usize = 4;

/// Channel types, of the IANA registry "MPLS Generalized Associated Channel (G-ACh) Types".
pub mod channel {
    /// Delay measurement (RFC 6374).
    pub const DELAY: u16 = 0x000c;
    /// Direct loss and delay measurement (RFC 6374).
    pub const DIRECT_LOSS_DELAY: u16 = 0x000d;
    /// A reference flow between provider edge routers ([`crate::reference`]): one of the types
    /// 0x7ff8 to 0x7fff, which are for experiments (RFC 5586 section 10).
    pub const REFERENCE: u16 = 0x7ffa;
}

/// Why bytes are no channel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// They end within it.
    Short,
    /// The first nibble is not 1, so this is a packet (RFC 4928) or a pseudowire's word.
    NotAChannel(u8),
    /// The version is not 0.
    Version(u8),
}

/// The channel a message belongs to, of [`channel`]. The reserved byte is ignored, as
/// RFC 4385 section 5 asks.
#[inline]
pub const fn read(bytes: &[u8]) -> Result<u16, Error> {
    let Some(&[first, _, high, low]) = bytes.first_chunk() else {
        return Err(Error::Short);
    };
    match (first >> 4, first & 0xf) {
        (1, 0) => Ok(u16::from_be_bytes([high, low])),
        (1, version) => Err(Error::Version(version)),
        (nibble, _) => Err(Error::NotAChannel(nibble)),
    }
}

/// The header of a channel.
#[inline]
pub const fn header(channel: u16) -> [u8; HEADER] {
    let [high, low] = channel.to_be_bytes();
    [0x10, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_rfc_draws_them() {
        assert_eq!(header(channel::DIRECT_LOSS_DELAY), [0x10, 0, 0, 0x0d]);
        assert_eq!(read(&[0x10, 0xff, 0x12, 0x34, 9]), Ok(0x1234));
        assert_eq!(read(&[0x10, 0, 0]), Err(Error::Short));
        assert_eq!(read(&[0x11, 0, 0, 0]), Err(Error::Version(1)));
        assert_eq!(read(&[0x45, 0, 0, 0]), Err(Error::NotAChannel(4)));
        for channel in [0, 1, 0x7fff, 0xffff] {
            assert_eq!(read(&header(channel)), Ok(channel));
        }
    }
}
