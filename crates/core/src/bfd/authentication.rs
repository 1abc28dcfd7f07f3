//! Authentication of control packets (RFC 5880 section 6.7).

use super::{BfdCounters, BfdPeer};
use crate::secret::equal;
use alloc::vec::Vec;
use netstage_wire::bfd::{
    BfdAuthentication, BfdPacket, BfdWriteError, DIGEST_START, DigestKind, MAX_DIGEST, MAX_PACKET,
};

/// Computes a digest: MD5 or SHA1 over these bytes, followed by the key with this ID, which is padded with zeros to
/// the length of the digest. Returns the digest in the first [`DigestKind::length`] bytes, or `None` if the key is
/// unknown.
pub type BfdDigestFunction<'a> = &'a dyn Fn(BfdPeer, DigestKind, u8, &[u8]) -> Option<[u8; MAX_DIGEST]>;

/// Authentication of a session; both systems use the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BfdAuthenticationConfig {
    /// No authentication.
    #[default]
    None,
    /// Simple password. It is sent as plain text.
    Password {
        /// Key ID.
        key: u8,
        /// Password, 1 to 16 bytes.
        password: Vec<u8>,
    },
    /// Digest of the caller's [`BfdDigestFunction`].
    Digest {
        /// Type.
        kind: DigestKind,
        /// Key ID of transmitted packets. Received packets may have any key ID the digest function knows.
        key: u8,
    },
}

/// Sequence numbers of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequences {
    /// Sequence number of the next transmitted packet: bfd.XmitAuthSeq.
    pub transmit: u32,
    /// Last received sequence number, bfd.RcvAuthSeq; `None` if bfd.AuthSeqKnown is 0.
    pub received: Option<u32>,
}

impl Sequences {
    /// Returns whether a received sequence number is in the window of RFC 5880 sections 6.7.3 and 6.7.4.
    fn accepts(&self, kind: DigestKind, sequence: u32, detect_multiplier: u8) -> bool {
        let first = u32::from(kind.is_meticulous());
        let window = first..=3 * u32::from(detect_multiplier);
        self.received.is_none_or(|received| window.contains(&sequence.wrapping_sub(received)))
    }
}

impl BfdAuthenticationConfig {
    /// Checks the authentication of a received packet, and counts a packet to be discarded. Unlike in RFC 5880, the
    /// first sequence number is taken only from a packet with a correct digest, because any host could set it.
    pub(super) fn verify(
        &self,
        peer: BfdPeer,
        (packet, bytes): (&BfdPacket<'_>, &[u8]),
        sequences: &mut Sequences,
        digests: Option<BfdDigestFunction<'_>>,
        counters: &mut BfdCounters,
    ) -> bool {
        match (self, packet.authentication) {
            (BfdAuthenticationConfig::None, None) => true,
            (
                BfdAuthenticationConfig::Password { key, password },
                Some(BfdAuthentication::Password { key: received_key, password: received }),
            ) => {
                let is_right = *key == received_key && equal(password, received);
                counters.wrong_secret += u64::from(!is_right);
                is_right
            }
            (
                BfdAuthenticationConfig::Digest { kind, .. },
                Some(BfdAuthentication::Digest { kind: received_kind, key, sequence, digest }),
            ) if *kind == received_kind => {
                let covered = bytes.get(..DIGEST_START).unwrap_or_default();
                let expected = digests.and_then(|digests| digests(peer, *kind, key, covered));
                if !expected.is_some_and(|expected| equal(&expected[..kind.length()], digest)) {
                    counters.wrong_secret += 1;
                    return false;
                }
                if !sequences.accepts(*kind, sequence, packet.detect_multiplier) {
                    counters.wrong_sequence += 1;
                    return false;
                }
                sequences.received = Some(sequence);
                true
            }
            _ => {
                counters.wrong_authentication_type += 1;
                false
            }
        }
    }

    /// Writes a packet with its authentication section. Fails if the key is unknown or the password has a wrong length.
    pub(super) fn write(
        &self,
        peer: BfdPeer,
        packet: BfdPacket<'_>,
        sequences: &mut Sequences,
        digests: Option<BfdDigestFunction<'_>>,
    ) -> Result<Vec<u8>, BfdWriteError> {
        let mut buffer = [0; MAX_PACKET];
        let authentication = match self {
            BfdAuthenticationConfig::None => None,
            BfdAuthenticationConfig::Password { key, password } => {
                Some(BfdAuthentication::Password { key: *key, password })
            }
            BfdAuthenticationConfig::Digest { kind, key } => Some(BfdAuthentication::Digest {
                kind: *kind,
                key: *key,
                sequence: sequences.transmit,
                digest: &[0; MAX_DIGEST][..kind.length()],
            }),
        };
        let length = BfdPacket { authentication, ..packet }.write(&mut buffer)?;
        if let BfdAuthenticationConfig::Digest { kind, key } = self {
            let digest = digests.and_then(|digests| digests(peer, *kind, *key, &buffer[..DIGEST_START]));
            let digest = digest.ok_or(BfdWriteError)?;
            buffer[DIGEST_START..length].copy_from_slice(&digest[..kind.length()]);
            // Keyed types may increase the number with each packet, too, which narrows the window for replays.
            sequences.transmit = sequences.transmit.wrapping_add(1);
        }
        Ok(buffer[..length].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_sequence_numbers_is_circular() {
        let accepts = |kind, received, sequence| {
            let sequences = Sequences { transmit: 0, received };
            sequences.accepts(kind, sequence, 3)
        };
        let last = Some(u32::MAX - 1);
        // Keyed: from the last number to that plus 9. Meticulous: without the last number.
        for (kind, repeated) in [
            (DigestKind::Md5, true),
            (DigestKind::Sha1, true),
            (DigestKind::MeticulousMd5, false),
            (DigestKind::MeticulousSha1, false),
        ] {
            assert_eq!(accepts(kind, last, u32::MAX - 1), repeated);
            assert!(accepts(kind, last, u32::MAX) && accepts(kind, last, 0) && accepts(kind, last, 7));
            assert!(!accepts(kind, last, 8) && !accepts(kind, last, u32::MAX - 2));
            assert!(accepts(kind, None, 123));
        }
    }

    #[test]
    fn secrets_are_equal_in_length_and_contents() {
        assert!(equal(b"", b"") && equal(b"secret", b"secret"));
        assert!(!equal(b"secret", b"secreT") && !equal(b"secret", b"secre") && !equal(b"", b"s"));
    }
}
