//! STAMP (RFC 8762, RFC 8972) on UDP sockets: the session-sender and the session-reflector of
//! `netstage_core::measure::stamp` in real time, with the kernel's arrival timestamps.

mod clock;
mod reflector;
mod sender;

pub use clock::WallClock;
pub use reflector::{Reflector, ReplyTimes};
pub use sender::{
    DelayHistogram, PacketDeparture, StampSenderSession, StampSessionConfig, StampSessionResult, run,
};

use netstage_core::measure::stamp::DigestFunction;
use netstage_host::clock::{monotonic_ns, realtime_ns};
use netstage_host::packet_socket::ReceivedDatagram;
use netstage_wire::stamp::{DIGEST, Mode};
use ring::hmac::{self, HMAC_SHA256};

/// Maximum length of a packet: that of a jumbo frame.
pub const MAX_PACKET_BYTES: usize = 9216;
/// Maximum number of packets received before other sockets are served.
const PACKETS_PER_CALL: usize = 512;

/// Clock of the timestamps in packets. Both ends must use the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timescale {
    /// Wall clock, as in RFC 8762.
    #[default]
    Wall,
    /// Monotonic clock of the kernel, which is never set, sent as a time since 1970. For use between Netstage programs.
    Monotonic,
}

impl Timescale {
    fn now_ns(self) -> u64 {
        match self {
            Timescale::Wall => realtime_ns(),
            Timescale::Monotonic => monotonic_ns(),
        }
    }

    fn arrival_ns(self, received: &ReceivedDatagram) -> u64 {
        match self {
            Timescale::Wall => received.unix_ns,
            Timescale::Monotonic => received.monotonic_ns,
        }
    }
}

/// Key of authenticated mode. Used without derivation, for interoperability with other implementations.
#[derive(Clone)]
pub struct HmacKey(hmac::Key);

impl HmacKey {
    /// Creates a key from bytes.
    pub fn new(bytes: &[u8]) -> HmacKey {
        HmacKey(hmac::Key::new(HMAC_SHA256, bytes))
    }

    /// Returns the HMAC-SHA-256 of the concatenated parts, truncated to 16 bytes (RFC 8762 section 4.4).
    fn digest(&self, parts: &[&[u8]]) -> [u8; DIGEST] {
        let mut context = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| context.update(part));
        *context.sign().as_ref().first_chunk().expect("a SHA-256 digest has 32 bytes")
    }
}

/// Returns the mode of sessions with or without a key.
fn mode(key: Option<&HmacKey>) -> Mode {
    if key.is_some() { Mode::Authenticated } else { Mode::Unauthenticated }
}

/// Calls `call` with the digest function, or with `None` if there is no key.
fn with_mac<T>(key: Option<&HmacKey>, call: impl FnOnce(Option<DigestFunction<'_>>) -> T) -> T {
    match key {
        Some(key) => call(Some(&|parts: &[&[u8]]| key.digest(parts))),
        None => call(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_truncated_hmac_sha_256() {
        // RFC 4231 section 4.2.
        let key = HmacKey::new(&[0x0b; 20]);
        let expected =
            [0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53, 0x5c, 0xa8, 0xaf, 0xce, 0xaf, 0x0b, 0xf1, 0x2b];
        assert_eq!(key.digest(&[b"Hi There"]), expected);
        assert_eq!(key.digest(&[b"Hi ", b"", b"There"]), expected);
    }
}
