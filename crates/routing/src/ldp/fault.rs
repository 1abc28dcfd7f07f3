//! Problems that prevent sessions and commands, with their messages.

use super::Signatures;
use netstage_core::ldp::BindingError;
use netstage_wire::ldp::message::Fec;
use netstage_wire::ldp::{Identifier, PORT};
use std::fmt;
use std::io;
use std::net::Ipv4Addr;

/// Problem reported by a speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdpFault {
    /// Connection to a peer whose hellos are received failed; the speaker tries again.
    Connect {
        /// Identifier of the peer.
        peer: Identifier,
        /// Transport address of the peer.
        address: Ipv4Addr,
        /// Reason for the failure.
        why: io::ErrorKind,
    },
    /// Segments with wrong MD5 signatures were dropped while peers had no session.
    Signatures {
        /// Segments dropped since the last report.
        dropped: Signatures,
        /// Peers without a session.
        peers: Vec<Identifier>,
    },
    /// Hellos cannot be sent; reported once until a hello is sent again.
    Hello {
        /// Name of the interface, or address of the router.
        to: String,
        /// Reason for the failure.
        why: io::ErrorKind,
    },
    /// A FEC cannot be bound.
    Binding {
        /// FEC of the binding.
        fec: Fec,
        /// Reason for the refusal.
        why: BindingError,
    },
}

impl fmt::Display for LdpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LdpFault::Connect { peer, address, why: io::ErrorKind::TimedOut } => write!(
                f,
                "{}: hellos received, but {address} does not answer on TCP port {PORT}; check that both ends have \
                 the same MD5 key, or none, and that {address} is reachable",
                peer.router
            ),
            LdpFault::Connect { peer, address, why: error } => {
                write!(
                    f,
                    "{}: hellos received, but cannot connect to {address}, TCP port {PORT}: {error}",
                    peer.router
                )
            }
            LdpFault::Signatures { dropped, peers } => {
                let peers: Vec<String> = peers.iter().map(|peer| peer.router.to_string()).collect();
                write!(f, "no session with {}:", peers.join(", "))?;
                let Signatures { missing, unexpected, wrong } = dropped;
                for (count, what) in [
                    (wrong, "signed with a different MD5 key"),
                    (missing, "not signed, although an MD5 key is configured here"),
                    (unexpected, "signed, although no MD5 key is configured here"),
                ] {
                    if *count > 0 {
                        write!(f, " {count} TCP segments {what};")?;
                    }
                }
                write!(f, " configure the same MD5 key at both ends")
            }
            LdpFault::Hello { to, why: error } => {
                write!(f, "{to}: cannot send hellos: {error}; check that the interface is up and has a route")
            }
            LdpFault::Binding { fec, why: error } => {
                let reason = match error {
                    BindingError::NotAPrefix => "not a valid prefix",
                    BindingError::ReservedLabel => "labels below 16 are reserved (RFC 7274)",
                };
                match fec {
                    Fec::Wildcard => write!(f, "cannot bind the wildcard FEC: {reason}"),
                    Fec::Prefix { address, length } => write!(f, "cannot bind {address}/{length}: {reason}"),
                }
            }
        }
    }
}
