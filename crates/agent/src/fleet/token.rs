//! What lets a host join: a secret, good once and for a while, and the fingerprint of the
//! controller's authority, by which the host knows the controller before it trusts anybody.

use netstage_host::keyed::Key;
use ring::digest::{SHA256, digest};
use std::fmt;
use std::str::FromStr;

/// A token as its holder has it. The controller keeps its [`id`](Token::id) alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: Key,
    /// SHA-256 of the authority's certificate.
    pub authority: String,
}

/// The text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAToken;

impl fmt::Display for NotAToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is no token: it has 32 and 64 hexadecimal digits with a dot between, as `netstage fleet token` prints them")
    }
}

impl std::error::Error for NotAToken {}

impl Token {
    /// A fresh one, for the authority of this fingerprint.
    pub fn generate(authority: &str) -> Result<Token, netstage_host::keyed::KeyError> {
        Ok(Token { secret: Key::generate()?, authority: authority.to_owned() })
    }

    /// The secret, as it travels to the controller.
    pub fn secret(&self) -> &[u8] {
        self.secret.bytes()
    }

    /// What the controller knows it by, which does not let anybody join.
    pub fn id(&self) -> String {
        id(self.secret())
    }
}

/// What the controller knows a token by, from its secret.
pub fn id(secret: &[u8]) -> String {
    sha256(secret)
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.secret.to_hexadecimal(), self.authority)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id())
    }
}

impl FromStr for Token {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Token, NotAToken> {
        let (secret, authority) = text.trim().split_once('.').ok_or(NotAToken)?;
        let is_fingerprint = authority.len() == 64 && authority.bytes().all(|b| b.is_ascii_hexdigit());
        match Key::parse(secret) {
            Ok(secret) if is_fingerprint && secret.bytes().len() == 16 => {
                Ok(Token { secret, authority: authority.to_ascii_lowercase() })
            }
            _ => Err(NotAToken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_printed() {
        let token = Token::generate(&sha256(b"authority")).unwrap();
        assert_eq!(token.to_string().parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains(&token.secret.to_hexadecimal()), "logs do not tell it");
        for text in ["", ".", "00.00", &token.to_string()[1..], &format!("{token}0")] {
            assert_eq!(text.parse::<Token>(), Err(NotAToken), "{text}");
        }
    }
}
