//! Shared key.

use crate::startup_error::StartupError;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::fmt;
use std::path::{Path, PathBuf};

/// Minimum length of a key: 128 bits, because any client sees a public key derived from it, and can test
/// guesses offline.
const MIN_BYTES: usize = 16;
/// Minimum number of distinct bytes in a random key.
const MIN_DISTINCT: usize = 8;

/// Key shared by two hosts, of at least 128 random bits, written in hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Vec<u8>);

/// Error of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// Character that is not a hexadecimal digit, or an odd number of digits.
    NotHexadecimal,
    /// Key shorter than 128 bits, with its length in bits.
    Short(usize),
    /// Repetitive bytes, hence not random.
    Weak,
    /// Unreadable file.
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        reason: String,
    },
    /// Failure of the system's random generator.
    NoRandom,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::NotHexadecimal => f.write_str("the key is not a sequence of hexadecimal digit pairs"),
            KeyError::Short(bits) => {
                write!(f, "the key has {bits} bits, fewer than 128, and can be guessed; use a longer key")
            }
            KeyError::Weak => f.write_str("the key is repetitive and can be guessed; use random digits"),
            KeyError::Unreadable { path, reason } => {
                write!(f, "cannot read key file {}: {reason}", path.display())
            }
            KeyError::NoRandom => f.write_str("the system's random generator failed"),
        }
    }
}

impl std::error::Error for KeyError {}

impl PresharedKey {
    /// Generates a random key of 128 bits.
    pub fn generate() -> Result<PresharedKey, KeyError> {
        let mut bytes = vec![0; MIN_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| KeyError::NoRandom)?;
        Ok(PresharedKey(bytes))
    }

    /// Parses hexadecimal digits; surrounding white space is ignored.
    pub fn parse(text: &str) -> Result<PresharedKey, KeyError> {
        let digits: Option<Vec<u8>> =
            text.trim().chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let digits = digits.filter(|digits| digits.len() % 2 == 0).ok_or(KeyError::NotHexadecimal)?;
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        if bytes.len() < MIN_BYTES {
            return Err(KeyError::Short(bytes.len() * 8));
        }
        let mut distinct = bytes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        // Sixteen random bytes have fewer than eight distinct values in one of 10¹³ keys.
        if distinct.len() < MIN_DISTINCT {
            return Err(KeyError::Weak);
        }
        Ok(PresharedKey(bytes))
    }

    /// Reads a key from a file.
    pub fn read(path: &Path) -> Result<PresharedKey, KeyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| KeyError::Unreadable { path: path.to_owned(), reason: error.to_string() })?;
        PresharedKey::parse(&text)
    }

    /// Returns the form that [`parse`](PresharedKey::parse) reads. Secret.
    pub fn to_hexadecimal(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the key itself, for protocols that need it. Secret.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Derives a key for a purpose (HKDF-SHA-256, RFC 5869). No derived key reveals another.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        let mut derived = [0; 32];
        Salt::new(HKDF_SHA256, b"netstage keyed connection 1")
            .extract(&self.0)
            .expand(&[purpose.as_bytes()], HKDF_SHA256)
            .and_then(|output| output.fill(&mut derived))
            .expect("32 bytes are within the limit");
        derived
    }
}

/// Reads the numbered keys that an owner, such as a peer, shares with this host from their files.
pub fn read_all(owner: &str, files: &[(u8, PathBuf)]) -> Result<Vec<(u8, Vec<u8>)>, StartupError> {
    let read = |(number, path): &(u8, PathBuf)| match PresharedKey::read(path) {
        Ok(key) => Ok((*number, key.0)),
        Err(error) => Err(StartupError::new(
            format!("{owner}: key {number}, {}: {error}", path.display()),
            "create a key with: openssl rand -hex 16; both routers need the same key",
        )),
    };
    files.iter().map(read).collect()
}

/// Hides the key.
impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bits)", self.0.len() * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_printing_and_parsing() {
        let key = PresharedKey::generate().unwrap();
        let text = key.to_hexadecimal();
        assert_eq!(text.len(), 32);
        assert_eq!(PresharedKey::parse(&format!(" {}\n", text.to_uppercase())), Ok(key.clone()));
        assert_ne!(PresharedKey::generate().unwrap(), key);
        assert!(!format!("{key:?}").contains(&text));
    }

    #[test]
    fn guessable_keys_are_rejected() {
        assert_eq!(PresharedKey::parse("0123456789abcdef"), Err(KeyError::Short(64)));
        assert_eq!(PresharedKey::parse(""), Err(KeyError::Short(0)));
        assert_eq!(PresharedKey::parse(&"00".repeat(32)), Err(KeyError::Weak));
        assert_eq!(PresharedKey::parse("correct horse battery staple"), Err(KeyError::NotHexadecimal));
        assert_eq!(PresharedKey::parse("0123456789abcdef0123456789abcdef0"), Err(KeyError::NotHexadecimal));
    }

    #[test]
    fn each_purpose_has_its_own_key() {
        let key = PresharedKey::parse("000102030405060708090a0b0c0d0e0f").unwrap();
        assert_eq!(key.derive("a"), key.clone().derive("a"));
        assert_ne!(key.derive("a"), key.derive("b"));
        assert_ne!(key.derive("a"), PresharedKey::generate().unwrap().derive("a"));
    }
}
