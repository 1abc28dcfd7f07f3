//! Keys: shared ones in files, and those of encrypted tunnels in the text form of WireGuard: 32 bytes in base64 (RFC 4648
//! section 4), 44 characters.

use crate::error::Problems;
use crate::scalar::{BoundedCount, FilePath};
use crate::table::{Located, table};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeSet;
use std::path::PathBuf;

table! {
    /// Key shared with other routers.
    pub(crate) struct SharedKey "a key" {
        /// Key number, the same on all routers.
        number: BoundedCount<0, 255>,
        /// Key file, relative to this file, with at least 32 hexadecimal digits, as printed by `openssl rand -hex 16`.
        file: FilePath,
    }
}

/// Returns the numbers and files of keys.
pub(crate) fn shared_keys(keys: &[Located<SharedKey>], problems: &mut Problems) -> Vec<(u8, PathBuf)> {
    let mut numbers = BTreeSet::new();
    for key in keys.iter().filter(|key| !numbers.insert(key.value.number.0)) {
        let message = format!("two keys have the number {}", key.value.number.0);
        problems.push_help(key.place, message, "messages identify keys by number: change one");
    }
    keys.iter().map(|key| (key.value.number.0 as u8, key.value.file.0.clone().into())).collect()
}

/// Parses a key of a tunnel. Returns `None` unless the text is the one form of 32 bytes.
pub fn parse_key(text: &str) -> Option<[u8; 32]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

/// Returns the text of a key.
pub fn format_key(key: &[u8; 32]) -> String {
    STANDARD.encode(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::RandomStream;

    #[test]
    fn keys_have_the_text_of_wireguard() {
        // Private and public key of Alice in RFC 7748 section 6.1, encoded by `base64`.
        let alice = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let key = parse_key(alice).unwrap();
        assert_eq!(key[..4], [0x77, 0x07, 0x6d, 0x0a]);
        assert_eq!(key[28..], [0x1d, 0xb9, 0x2c, 0x2a]);
        assert_eq!(format_key(&key), alice);
        let mut random = RandomStream::new(3, "keys");
        for _ in 0..100 {
            let key: [u8; 32] = std::array::from_fn(|_| (random.uniform() * 256.0) as u8);
            assert_eq!(parse_key(&format_key(&key)), Some(key));
        }
        for wrong in ["", "=", &alice[..43], &alice[1..], "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCp=", "é"]
        {
            assert_eq!(parse_key(wrong), None, "{wrong}");
        }
    }
}
