//! Control packets of Bidirectional Forwarding Detection (BFD, RFC 5880 section 4): fields and authentication
//! section.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |Vers |  Diag   |Sta|P|F|C|A|D|M|  Detect Mult  |    Length     |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                       My Discriminator                        |
//! |                      Your Discriminator                       |
//! |                    Desired Min TX Interval                    |
//! |                   Required Min RX Interval                    |
//! |                 Required Min Echo RX Interval                 |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |   Auth Type   |   Auth Len    |  Auth Key ID  | password, or  |
//! |                reserved, sequence number, digest              ~
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! The caller computes the digests: MD5 or SHA1 over the packet up to the digest, followed by the key, which is
//! padded with zeros to the length of the digest. Reading and writing never panic, whatever the bytes. The rules
//! of section 6.8.6 that depend on the session are those of the session's owner.

use crate::bytes::{put, u32_at};
use core::fmt;

/// UDP destination port of single-hop control packets (RFC 5881 section 4).
pub const CONTROL_PORT: u16 = 3784;
/// UDP destination port of echo packets (RFC 5881 section 4).
pub const ECHO_PORT: u16 = 3785;
/// UDP destination port of multihop control packets (RFC 5883 section 5).
pub const MULTIHOP_PORT: u16 = 4784;
/// Length of a packet without authentication, bytes.
pub const MANDATORY: usize = 24;
/// Maximum length of a packet, bytes.
pub const MAX_PACKET: usize = DIGEST_START + MAX_DIGEST;
/// Maximum length of a digest, bytes.
pub const MAX_DIGEST: usize = 20;
/// Maximum length of a password, bytes.
pub const MAX_PASSWORD: usize = 16;
/// Offset of the digest, bytes.
pub const DIGEST_START: usize = 32;

const VERSION: u8 = 1;
const PASSWORD_START: usize = MANDATORY + 3;
const POLL: u8 = 1 << 5;
const FINAL: u8 = 1 << 4;
const CONTROL_PLANE_INDEPENDENT: u8 = 1 << 3;
const AUTHENTICATION: u8 = 1 << 2;
const DEMAND: u8 = 1 << 1;
const MULTIPOINT: u8 = 1;

/// State of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BfdState {
    /// The session is disabled by its operator.
    AdminDown,
    /// The session is down.
    #[default]
    Down,
    /// The remote system sends packets, but does not yet receive ours.
    Init,
    /// Both systems receive packets.
    Up,
}

impl BfdState {
    /// Returns the code, 2 bits.
    pub const fn code(self) -> u8 {
        match self {
            BfdState::AdminDown => 0,
            BfdState::Down => 1,
            BfdState::Init => 2,
            BfdState::Up => 3,
        }
    }
}

/// Reason for the last change of a session's state, 5 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Diagnostic(u8);

impl Diagnostic {
    /// No diagnostic.
    pub const NONE: Diagnostic = Diagnostic(0);
    /// No control packet was received for the detection time.
    pub const CONTROL_DETECTION_TIME_EXPIRED: Diagnostic = Diagnostic(1);
    /// The echo function failed.
    pub const ECHO_FUNCTION_FAILED: Diagnostic = Diagnostic(2);
    /// The neighbor signaled that its session is down.
    pub const NEIGHBOR_SIGNALED_SESSION_DOWN: Diagnostic = Diagnostic(3);
    /// The forwarding plane was reset.
    pub const FORWARDING_PLANE_RESET: Diagnostic = Diagnostic(4);
    /// The path is down.
    pub const PATH_DOWN: Diagnostic = Diagnostic(5);
    /// A path that is concatenated with this one is down.
    pub const CONCATENATED_PATH_DOWN: Diagnostic = Diagnostic(6);
    /// The operator disabled the session.
    pub const ADMINISTRATIVELY_DOWN: Diagnostic = Diagnostic(7);
    /// The reverse direction of a concatenated path is down.
    pub const REVERSE_CONCATENATED_PATH_DOWN: Diagnostic = Diagnostic(8);

    /// Returns the diagnostic with this code; the upper 3 bits are ignored.
    pub const fn new(code: u8) -> Diagnostic {
        Diagnostic(code & 0x1f)
    }

    /// Returns the code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Diagnostic::NONE => "no diagnostic",
            Diagnostic::CONTROL_DETECTION_TIME_EXPIRED => "control detection time expired",
            Diagnostic::ECHO_FUNCTION_FAILED => "echo function failed",
            Diagnostic::NEIGHBOR_SIGNALED_SESSION_DOWN => "neighbor signaled session down",
            Diagnostic::FORWARDING_PLANE_RESET => "forwarding plane reset",
            Diagnostic::PATH_DOWN => "path down",
            Diagnostic::CONCATENATED_PATH_DOWN => "concatenated path down",
            Diagnostic::ADMINISTRATIVELY_DOWN => "administratively down",
            Diagnostic::REVERSE_CONCATENATED_PATH_DOWN => "reverse concatenated path down",
            Diagnostic(code) => return write!(f, "diagnostic {code}"),
        })
    }
}

/// Authentication type with a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DigestKind {
    /// Keyed MD5.
    Md5,
    /// Meticulous keyed MD5: the sequence number increases with each packet.
    MeticulousMd5,
    /// Keyed SHA1.
    Sha1,
    /// Meticulous keyed SHA1: the sequence number increases with each packet.
    MeticulousSha1,
}

impl DigestKind {
    const fn code(self) -> u8 {
        match self {
            DigestKind::Md5 => 2,
            DigestKind::MeticulousMd5 => 3,
            DigestKind::Sha1 => 4,
            DigestKind::MeticulousSha1 => 5,
        }
    }

    /// Returns the length of the digest, bytes.
    pub const fn length(self) -> usize {
        match self {
            DigestKind::Md5 | DigestKind::MeticulousMd5 => 16,
            DigestKind::Sha1 | DigestKind::MeticulousSha1 => MAX_DIGEST,
        }
    }

    /// Returns whether the sequence number increases with each packet.
    pub const fn is_meticulous(self) -> bool {
        matches!(self, DigestKind::MeticulousMd5 | DigestKind::MeticulousSha1)
    }
}

/// Authentication section of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BfdAuthentication<'a> {
    /// Simple password.
    Password {
        /// Key ID.
        key: u8,
        /// Password, 1 to 16 bytes.
        password: &'a [u8],
    },
    /// Digest with a sequence number.
    Digest {
        /// Type.
        kind: DigestKind,
        /// Key ID.
        key: u8,
        /// Sequence number.
        sequence: u32,
        /// Digest of [`DigestKind::length`] bytes.
        digest: &'a [u8],
    },
}

impl<'a> BfdAuthentication<'a> {
    /// Parses the section, which is the rest of the packet.
    fn read(section: &'a [u8]) -> Result<BfdAuthentication<'a>, BfdError> {
        let &[kind, length, key, ..] = section else { return Err(BfdError::AuthenticationLength) };
        let kind = match kind {
            1 => None,
            2 => Some(DigestKind::Md5),
            3 => Some(DigestKind::MeticulousMd5),
            4 => Some(DigestKind::Sha1),
            5 => Some(DigestKind::MeticulousSha1),
            other => return Err(BfdError::AuthenticationType(other)),
        };
        let expected = match kind {
            None => 4..=3 + MAX_PASSWORD,
            Some(kind) => 8 + kind.length()..=8 + kind.length(),
        };
        if usize::from(length) != section.len() || !expected.contains(&section.len()) {
            return Err(BfdError::AuthenticationLength);
        }
        Ok(match kind {
            None => BfdAuthentication::Password { key, password: &section[3..] },
            Some(kind) => {
                BfdAuthentication::Digest { kind, key, sequence: u32_at(section, 4), digest: &section[8..] }
            }
        })
    }

    fn length(&self) -> usize {
        match self {
            BfdAuthentication::Password { password, .. } => 3 + password.len(),
            BfdAuthentication::Digest { kind, .. } => 8 + kind.length(),
        }
    }
}

/// Control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdPacket<'a> {
    /// Reason for the last change of the sender's state.
    pub diagnostic: Diagnostic,
    /// State of the sender.
    pub state: BfdState,
    /// The sender requests a packet with the final bit.
    pub is_poll: bool,
    /// Response to a packet with the poll bit.
    pub is_final: bool,
    /// The sender's BFD does not depend on its control plane.
    pub is_control_plane_independent: bool,
    /// The sender requests not to receive periodic packets.
    pub is_demand: bool,
    /// Number of transmit intervals in the receiver's detection time, not zero.
    pub detect_multiplier: u8,
    /// Discriminator of the sender, not zero.
    pub my_discriminator: u32,
    /// Discriminator of the receiver; zero while the sender does not know it.
    pub your_discriminator: u32,
    /// Minimum interval at which the sender would like to transmit, microseconds.
    pub desired_min_tx_us: u32,
    /// Minimum interval at which the sender can receive, microseconds; zero to receive no periodic packets.
    pub required_min_rx_us: u32,
    /// Minimum interval at which the sender can receive echo packets, microseconds; zero for none.
    pub required_min_echo_rx_us: u32,
    /// Authentication section.
    pub authentication: Option<BfdAuthentication<'a>>,
}

/// Reason a control packet is discarded (RFC 5880 section 6.8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BfdError {
    /// The packet is shorter than its mandatory section.
    Short,
    /// Unknown version.
    Version(u8),
    /// The length is below the minimum, or above the number of bytes present.
    Length {
        /// Length field.
        claimed: u8,
        /// Bytes present.
        present: usize,
    },
    /// The detect multiplier is zero.
    DetectMultiplier,
    /// The multipoint bit is set.
    Multipoint,
    /// The sender's discriminator is zero.
    MyDiscriminator,
    /// Unknown authentication type.
    AuthenticationType(u8),
    /// The length of the authentication section does not match its type or the packet.
    AuthenticationLength,
}

/// Error for a buffer that is too short, or a password or digest of a wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdWriteError;

impl<'a> BfdPacket<'a> {
    /// Parses the packet at the start of a UDP payload. Later bytes are ignored.
    pub fn read(payload: &'a [u8]) -> Result<BfdPacket<'a>, BfdError> {
        let fields = payload.first_chunk::<MANDATORY>().ok_or(BfdError::Short)?;
        if fields[0] >> 5 != VERSION {
            return Err(BfdError::Version(fields[0] >> 5));
        }
        let (flags, claimed) = (fields[1], fields[3]);
        let has_authentication = flags & AUTHENTICATION != 0;
        let min = if has_authentication { MANDATORY + 2 } else { MANDATORY };
        if !(min..=payload.len()).contains(&usize::from(claimed)) {
            return Err(BfdError::Length { claimed, present: payload.len() });
        }
        if fields[2] == 0 {
            return Err(BfdError::DetectMultiplier);
        }
        if flags & MULTIPOINT != 0 {
            return Err(BfdError::Multipoint);
        }
        if u32_at(fields, 4) == 0 {
            return Err(BfdError::MyDiscriminator);
        }
        let section = &payload[MANDATORY..usize::from(claimed)];
        Ok(BfdPacket {
            diagnostic: Diagnostic::new(fields[0]),
            state: match flags >> 6 {
                0 => BfdState::AdminDown,
                1 => BfdState::Down,
                2 => BfdState::Init,
                _ => BfdState::Up,
            },
            is_poll: flags & POLL != 0,
            is_final: flags & FINAL != 0,
            is_control_plane_independent: flags & CONTROL_PLANE_INDEPENDENT != 0,
            is_demand: flags & DEMAND != 0,
            detect_multiplier: fields[2],
            my_discriminator: u32_at(fields, 4),
            your_discriminator: u32_at(fields, 8),
            desired_min_tx_us: u32_at(fields, 12),
            required_min_rx_us: u32_at(fields, 16),
            required_min_echo_rx_us: u32_at(fields, 20),
            authentication: has_authentication.then(|| BfdAuthentication::read(section)).transpose()?,
        })
    }

    /// Writes the packet to the start of a buffer and returns its length, bytes.
    pub fn write(&self, bytes: &mut [u8]) -> Result<usize, BfdWriteError> {
        let length = MANDATORY + self.authentication.map_or(0, |section| section.length());
        let packet = bytes.get_mut(..length).ok_or(BfdWriteError)?;
        let state = self.state.code();
        let flags = [
            (self.is_poll, POLL),
            (self.is_final, FINAL),
            (self.is_control_plane_independent, CONTROL_PLANE_INDEPENDENT),
            (self.authentication.is_some(), AUTHENTICATION),
            (self.is_demand, DEMAND),
        ];
        packet[0] = VERSION << 5 | self.diagnostic.code();
        packet[1] = flags.iter().filter(|(is_set, _)| *is_set).fold(state << 6, |sum, (_, flag)| sum | flag);
        packet[2] = self.detect_multiplier;
        packet[3] = u8::try_from(length).map_err(|_| BfdWriteError)?;
        for (at, field) in [
            (4, self.my_discriminator),
            (8, self.your_discriminator),
            (12, self.desired_min_tx_us),
            (16, self.required_min_rx_us),
            (20, self.required_min_echo_rx_us),
        ] {
            put(packet, at, &field.to_be_bytes());
        }
        let section = (length - MANDATORY) as u8;
        match self.authentication {
            Some(BfdAuthentication::Password { key, password }) => {
                if !(1..=MAX_PASSWORD).contains(&password.len()) {
                    return Err(BfdWriteError);
                }
                put(packet, MANDATORY, &[1, section, key]);
                put(packet, PASSWORD_START, password);
            }
            Some(BfdAuthentication::Digest { kind, key, sequence, digest }) => {
                if digest.len() != kind.length() {
                    return Err(BfdWriteError);
                }
                put(packet, MANDATORY, &[kind.code(), section, key, 0]);
                put(packet, MANDATORY + 4, &sequence.to_be_bytes());
                put(packet, DIGEST_START, digest);
            }
            None => {}
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString as _;
    use std::vec::Vec;

    const PACKET: BfdPacket<'static> = BfdPacket {
        diagnostic: Diagnostic::NEIGHBOR_SIGNALED_SESSION_DOWN,
        state: BfdState::Init,
        is_poll: true,
        is_final: false,
        is_control_plane_independent: true,
        is_demand: false,
        detect_multiplier: 5,
        my_discriminator: 0x0102_0304,
        your_discriminator: 0x1112_1314,
        desired_min_tx_us: 1_000_000,
        required_min_rx_us: 300_000,
        required_min_echo_rx_us: 50_000,
        authentication: None,
    };

    // RFC 5880 section 4.1: version 1, diagnostic 3; state 2, P, C; multiplier 5, length 24; 1,000,000 is 0xf4240.
    #[rustfmt::skip]
    const BYTES: [u8; MANDATORY] = [
        0x23, 0xa8, 5, 24, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0, 0x0f, 0x42, 0x40, 0, 0x04, 0x93, 0xe0, 0, 0,
        0xc3, 0x50,
    ];

    fn written(packet: &BfdPacket<'_>) -> Vec<u8> {
        let mut bytes = [0xee; MAX_PACKET];
        let length = packet.write(&mut bytes).unwrap();
        assert!(bytes[length..].iter().all(|byte| *byte == 0xee));
        bytes[..length].to_vec()
    }

    #[test]
    fn fields_are_at_the_offsets_of_the_rfc() {
        assert_eq!(written(&PACKET), BYTES);
        assert_eq!(BfdPacket::read(&BYTES), Ok(PACKET));
        let mut bytes = BYTES;
        bytes[0] = 0x27;
        bytes[1] = 0x12;
        let other = BfdPacket {
            diagnostic: Diagnostic::ADMINISTRATIVELY_DOWN,
            state: BfdState::AdminDown,
            is_poll: false,
            is_final: true,
            is_control_plane_independent: false,
            is_demand: true,
            ..PACKET
        };
        assert_eq!(BfdPacket::read(&bytes), Ok(other));
        assert_eq!(written(&other), bytes);
    }

    #[test]
    fn authentication_sections_have_the_layouts_of_the_rfc() {
        // RFC 5880 section 4.2: type, length, key ID, password.
        let password = BfdAuthentication::Password { key: 7, password: b"secret" };
        let packet = BfdPacket { authentication: Some(password), ..PACKET };
        let bytes = written(&packet);
        assert_eq!((bytes[1], bytes[3]), (0xac, 33));
        assert_eq!(bytes[MANDATORY..], *b"\x01\x09\x07secret");
        assert_eq!(BfdPacket::read(&bytes), Ok(packet));
        // Sections 4.3 and 4.4: type, length, key ID, reserved, sequence number, digest.
        for (kind, code, length, is_meticulous) in [
            (DigestKind::Md5, 2, 24_u8, false),
            (DigestKind::MeticulousMd5, 3, 24, true),
            (DigestKind::Sha1, 4, 28, false),
            (DigestKind::MeticulousSha1, 5, 28, true),
        ] {
            let digest = [0xdd; MAX_DIGEST];
            let digest = &digest[..kind.length()];
            let section = BfdAuthentication::Digest { kind, key: 9, sequence: 0x0a0b_0c0d, digest };
            let packet = BfdPacket { authentication: Some(section), ..PACKET };
            let bytes = written(&packet);
            assert_eq!((bytes[1], bytes[3]), (0xac, 24 + length));
            assert_eq!(bytes[MANDATORY..DIGEST_START], [code, length, 9, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
            assert_eq!(&bytes[DIGEST_START..], digest);
            assert_eq!(BfdPacket::read(&bytes), Ok(packet));
            assert_eq!(kind.is_meticulous(), is_meticulous);
        }
    }

    #[test]
    fn malformed_packets_are_rejected() {
        for length in 0..MANDATORY {
            assert_eq!(BfdPacket::read(&BYTES[..length]), Err(BfdError::Short));
        }
        let changed = |at: usize, byte| {
            let mut bytes = BYTES;
            bytes[at] = byte;
            BfdPacket::read(&bytes).map(|_| ())
        };
        assert_eq!(changed(0, 0x03), Err(BfdError::Version(0)));
        assert_eq!(changed(0, 0x43), Err(BfdError::Version(2)));
        assert_eq!(changed(3, 23), Err(BfdError::Length { claimed: 23, present: 24 }));
        assert_eq!(changed(3, 25), Err(BfdError::Length { claimed: 25, present: 24 }));
        assert_eq!(changed(2, 0), Err(BfdError::DetectMultiplier));
        assert_eq!(changed(1, 0xa9), Err(BfdError::Multipoint));
        assert_eq!(changed(4, 0), Ok(()));
        let mut bytes = BYTES;
        bytes[4..8].fill(0);
        assert_eq!(BfdPacket::read(&bytes), Err(BfdError::MyDiscriminator));
        let longer = [&BYTES[..], &[0; 20]].concat();
        assert_eq!(BfdPacket::read(&longer), Ok(PACKET), "bytes after the packet are ignored");
    }

    #[test]
    fn malformed_authentication_sections_are_rejected() {
        let read = |section: &[u8]| {
            let mut bytes = [&BYTES[..], section].concat();
            bytes[1] |= AUTHENTICATION;
            bytes[3] = bytes.len() as u8;
            BfdPacket::read(&bytes).map(|_| ())
        };
        assert_eq!(read(&[1]), Err(BfdError::Length { claimed: 25, present: 25 }));
        assert_eq!(read(&[1, 2]), Err(BfdError::AuthenticationLength));
        assert_eq!(read(&[1, 3, 0]), Err(BfdError::AuthenticationLength), "empty password");
        assert_eq!(read(&[1, 4, 0, b'x']), Ok(()));
        assert_eq!(read(&[1, 5, 0, b'x']), Err(BfdError::AuthenticationLength));
        assert_eq!(read(&[[1, 20, 0, 0], [0; 4], [0; 4], [0; 4], [0; 4]].concat()), read(&[1, 3, 0]));
        assert_eq!(read(&[0, 4, 0, 0]), Err(BfdError::AuthenticationType(0)));
        assert_eq!(read(&[6, 4, 0, 0]), Err(BfdError::AuthenticationType(6)));
        assert_eq!(read(&[&[2, 28, 0, 0][..], &[0; 24]].concat()), Err(BfdError::AuthenticationLength));
        assert_eq!(read(&[&[4, 28, 0, 0][..], &[0; 24]].concat()), Ok(()));
    }

    #[test]
    fn wrong_buffers_and_secrets_are_not_written() {
        assert_eq!(PACKET.write(&mut [0; MANDATORY - 1]), Err(BfdWriteError));
        for password in [&[0; 0][..], &[0; 17], &[0; 300]] {
            let section = BfdAuthentication::Password { key: 0, password };
            let packet = BfdPacket { authentication: Some(section), ..PACKET };
            assert_eq!(packet.write(&mut [0; 400]), Err(BfdWriteError));
        }
        let section =
            BfdAuthentication::Digest { kind: DigestKind::Md5, key: 0, sequence: 0, digest: &[0; 20] };
        let packet = BfdPacket { authentication: Some(section), ..PACKET };
        assert_eq!(packet.write(&mut [0; 400]), Err(BfdWriteError));
    }

    #[test]
    fn diagnostics_have_names() {
        assert_eq!(Diagnostic::new(0xe1), Diagnostic::CONTROL_DETECTION_TIME_EXPIRED);
        assert_eq!(Diagnostic::PATH_DOWN.to_string(), "path down");
        assert_eq!(Diagnostic::new(31).to_string(), "diagnostic 31");
    }

    proptest! {
        #[test]
        fn parsed_packets_round_trip(bytes in prop::collection::vec(any::<u8>(), MANDATORY..80), kind in 0..6_u8) {
            // Most packets are valid, so that the code behind the checks is reached.
            let mut bytes = bytes;
            bytes[0] = 0x20 | bytes[0] & 0x1f;
            bytes[1] = bytes[1] & !(MULTIPOINT | AUTHENTICATION) | if kind > 0 { AUTHENTICATION } else { 0 };
            let section = match kind {
                0 => 0,
                1 => 4 + usize::from(bytes[2] & 0xf),
                2 | 3 => 24,
                _ => 28,
            };
            bytes.resize(bytes.len().max(MANDATORY + section), 0);
            bytes[3] = (MANDATORY + section) as u8;
            if section > 0 {
                bytes[MANDATORY..MANDATORY + 2].copy_from_slice(&[kind, section as u8]);
            }
            if let Ok(packet) = BfdPacket::read(&bytes) {
                let mut again = [0; MAX_PACKET];
                let length = packet.write(&mut again).unwrap();
                prop_assert_eq!(BfdPacket::read(&again[..length]), Ok(packet));
                if kind > 1 {
                    bytes[MANDATORY + 3] = 0;
                }
                prop_assert_eq!(&again[..length], &bytes[..MANDATORY + section]);
            } else {
                prop_assert!(bytes[2] == 0 || bytes[4..8] == [0; 4]);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = BfdPacket::read(&bytes);
        }
    }
}
