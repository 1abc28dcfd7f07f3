//! Connections authenticated by a shared key: TLS 1.3 in which each side proves possession of the key by a raw
//! public key (RFC 7250) derived from it. Without the key, a client learns nothing and is rejected;
//! certificates are not accepted.

mod key;
mod tls;

pub use key::{KeyError, PresharedKey, read_all};
pub use tls::{
    Acceptor, ConnectionAddresses, DialError, Dialer, TlsConnection, Trust, Verifier, rejection_reason,
};
