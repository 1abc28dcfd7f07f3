//! What keeps sessions from coming up and commands from being carried out, in words.

use super::Signatures;
use netstage_core::ldp::Refused;
use netstage_wire::ldp::message::Fec;
use netstage_wire::ldp::{Identifier, PORT};
use std::fmt;
use std::io;
use std::net::Ipv4Addr;

/// What is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A peer whose hellos arrive cannot be connected to; it is tried again.
    Connect {
        /// The peer.
        peer: Identifier,
        /// Its transport address.
        address: Ipv4Addr,
        /// Why.
        why: io::ErrorKind,
    },
    /// Segments are dropped for their signatures, while these peers are heard and have no session.
    Signatures {
        /// How many, since this was told last.
        dropped: Signatures,
        /// The peers.
        peers: Vec<Identifier>,
    },
    /// Hellos cannot be sent; told once until they can be again.
    Hello {
        /// The interface's name, or the router's address.
        to: String,
        /// Why.
        why: io::ErrorKind,
    },
    /// Something cannot be bound.
    Binding {
        /// What.
        fec: Fec,
        /// Why.
        why: Refused,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Connect { peer, address, why: io::ErrorKind::TimedOut } => write!(
                f,
                "{}: hellos arrive, but {address} does not answer at TCP port {PORT}: its MD5 key must be the same as \
                 here, or none at both ends, and {address} reachable",
                peer.router
            ),
            Fault::Connect { peer, address, why } => {
                write!(
                    f,
                    "{}: hellos arrive, but {address} at TCP port {PORT} cannot be connected to: {why}",
                    peer.router
                )
            }
            Fault::Signatures { dropped, peers } => {
                let peers: Vec<String> = peers.iter().map(|peer| peer.router.to_string()).collect();
                write!(f, "no session with {}:", peers.join(", "))?;
                let Signatures { missing, unexpected, wrong } = dropped;
                for (count, what) in [
                    (wrong, "signed with another MD5 key than here"),
                    (missing, "not signed, though here is an MD5 key"),
                    (unexpected, "signed, though here is no MD5 key"),
                ] {
                    if *count > 0 {
                        write!(f, " {count} TCP segments {what};")?;
                    }
                }
                write!(f, " both ends must have the same key")
            }
            Fault::Hello { to, why } => {
                write!(f, "{to}: hellos cannot be sent: {why}; is the interface up, and is there a route?")
            }
            Fault::Binding { fec, why } => {
                let why = match why {
                    Refused::NotAPrefix => "a prefix is an address and a length that it may have",
                    Refused::ReservedLabel => "labels below 16 have meanings of their own (RFC 7274)",
                };
                match fec {
                    Fec::Wildcard => write!(f, "everything cannot be bound: {why}"),
                    Fec::Prefix { address, length } => write!(f, "{address}/{length} cannot be bound: {why}"),
                }
            }
        }
    }
}
