//! Connections between two sides that share a key: TLS 1.3 in which each side proves, by a
//! raw public key (RFC 7250) derived from the shared one, that it has it. Whoever lacks the
//! key learns nothing and gets nowhere; nobody else's certificate counts.

mod key;
mod tls;

pub use key::{Key, KeyError};
pub use tls::{Acceptor, DialError, Dialler, Peer, Stream, Trust, Verifier, without_key};
