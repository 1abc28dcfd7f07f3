//! Token with which a host joins a fleet: a secret, valid once and for a limited time, and the fingerprint of
//! the controller's authority, by which the host verifies the controller before it has a certificate.

use netstage_host::shared_key::PresharedKey;
use ring::digest::{SHA256, digest};
use std::fmt;
use std::str::FromStr;

/// Token of a joining host. The controller stores only its [`id`](Token::id).
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: PresharedKey,
    /// SHA-256 fingerprint of the authority's certificate.
    pub authority: String,
}

/// Error of a text that is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidToken;

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid token: expected 32 and 64 hexadecimal digits separated by a dot, as printed by `netstage fleet token`")
    }
}

impl std::error::Error for InvalidToken {}

impl Token {
    /// Generates a token for the authority with this fingerprint.
    pub fn generate(authority: &str) -> Result<Token, netstage_host::shared_key::KeyError> {
        Ok(Token { secret: PresharedKey::generate()?, authority: authority.to_owned() })
    }

    /// Returns the secret part, which is sent to the controller.
    pub fn secret(&self) -> &[u8] {
        self.secret.bytes()
    }

    /// Returns the identifier under which the controller stores the token. It does not suffice to join.
    pub fn id(&self) -> String {
        id(self.secret())
    }
}

/// Returns the identifier of the token with this secret.
pub fn id(secret: &[u8]) -> String {
    sha256(secret)
}

/// Returns the SHA-256 digest as hexadecimal digits.
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
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Token, InvalidToken> {
        let (secret, authority) = text.trim().split_once('.').ok_or(InvalidToken)?;
        let is_fingerprint = authority.len() == 64 && authority.bytes().all(|b| b.is_ascii_hexdigit());
        match PresharedKey::parse(secret) {
            Ok(secret) if is_fingerprint && secret.bytes().len() == 16 => {
                Ok(Token { secret, authority: authority.to_ascii_lowercase() })
            }
            _ => Err(InvalidToken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_printing_and_parsing() {
        let token = Token::generate(&sha256(b"authority")).unwrap();
        assert_eq!(token.to_string().parse(), Ok(token.clone()));
        assert!(
            !format!("{token:?}").contains(&token.secret.to_hexadecimal()),
            "the debug output does not contain the secret"
        );
        for text in ["", ".", "00.00", &token.to_string()[1..], &format!("{token}0")] {
            assert_eq!(text.parse::<Token>(), Err(InvalidToken), "{text}");
        }
    }
}
