//! The shared key.

use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::fmt;
use std::path::{Path, PathBuf};

/// Least length of a key: 128 bits, since a public key derived from it can be seen by
/// anybody who connects, and tried against guesses at leisure.
const LEAST_BYTES: usize = 16;
/// So few different bytes are no random key.
const LEAST_DIFFERENT: usize = 8;

/// A key that two sides share, of at least 128 random bits. Written as hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// It has a character that is no hexadecimal digit, or an odd number of them.
    NotHexadecimal,
    /// It has fewer than 128 bits; so many bits it has.
    Short(usize),
    /// It repeats itself: nobody drew it at random.
    Weak,
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The system gives no random numbers.
    NoRandom,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::NotHexadecimal => f.write_str("the key is not written in pairs of hexadecimal digits"),
            KeyError::Short(bits) => {
                write!(f, "the key has {bits} bits, fewer than 128: it could be guessed")
            }
            KeyError::Weak => f.write_str("the key repeats itself, so it could be guessed"),
            KeyError::Unreadable { path, reason } => {
                write!(f, "the key file {} cannot be read: {reason}", path.display())
            }
            KeyError::NoRandom => f.write_str("the system gives no random numbers for a key"),
        }
    }
}

impl std::error::Error for KeyError {}

impl Key {
    /// A fresh key of 128 bits.
    pub fn generate() -> Result<Key, KeyError> {
        let mut bytes = vec![0; LEAST_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| KeyError::NoRandom)?;
        Ok(Key(bytes))
    }

    /// Reads hexadecimal digits; white space around them does not count.
    pub fn parse(text: &str) -> Result<Key, KeyError> {
        let digits: Option<Vec<u8>> =
            text.trim().chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let digits = digits.filter(|digits| digits.len() % 2 == 0).ok_or(KeyError::NotHexadecimal)?;
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        if bytes.len() < LEAST_BYTES {
            return Err(KeyError::Short(bytes.len() * 8));
        }
        let mut different = bytes.clone();
        different.sort_unstable();
        different.dedup();
        // Sixteen random bytes have fewer than eight different ones once in 10¹³ keys.
        if different.len() < LEAST_DIFFERENT {
            return Err(KeyError::Weak);
        }
        Ok(Key(bytes))
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Key, KeyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| KeyError::Unreadable { path: path.to_owned(), reason: error.to_string() })?;
        Key::parse(&text)
    }

    /// As [`parse`](Key::parse) reads it. A secret.
    pub fn to_hexadecimal(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key itself, for protocols that are given it as it is. A secret.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A key of its own for each purpose (HKDF-SHA-256, RFC 5869); none tells of another.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        let mut derived = [0; 32];
        Salt::new(HKDF_SHA256, b"netstage keyed connection 1")
            .extract(&self.0)
            .expand(&[purpose.as_bytes()], HKDF_SHA256)
            .and_then(|output| output.fill(&mut derived))
            .expect("32 bytes are allowed");
        derived
    }
}

/// Does not show it.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bits)", self.0.len() * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = Key::generate().unwrap();
        let text = key.to_hexadecimal();
        assert_eq!(text.len(), 32);
        assert_eq!(Key::parse(&format!(" {}\n", text.to_uppercase())), Ok(key.clone()));
        assert_ne!(Key::generate().unwrap(), key);
        assert!(!format!("{key:?}").contains(&text));
    }

    #[test]
    fn what_could_be_guessed_is_refused() {
        assert_eq!(Key::parse("0123456789abcdef"), Err(KeyError::Short(64)));
        assert_eq!(Key::parse(""), Err(KeyError::Short(0)));
        assert_eq!(Key::parse(&"00".repeat(32)), Err(KeyError::Weak));
        assert_eq!(Key::parse("correct horse battery staple"), Err(KeyError::NotHexadecimal));
        assert_eq!(Key::parse("0123456789abcdef0123456789abcdef0"), Err(KeyError::NotHexadecimal));
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own() {
        let key = Key::parse("000102030405060708090a0b0c0d0e0f").unwrap();
        assert_eq!(key.derive("a"), key.clone().derive("a"));
        assert_ne!(key.derive("a"), key.derive("b"));
        assert_ne!(key.derive("a"), Key::generate().unwrap().derive("a"));
    }
}
