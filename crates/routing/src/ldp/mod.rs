//! Label distribution (RFC 5036) over sockets: one task drives one
//! [`Speaker`](netstage_core::ldp::Speaker), with hellos over UDP on interfaces of a namespace and to single
//! routers, and sessions over TCP which either end opens.
//!
//! ```text
//! owner ── Command ──▶ run ◀──▶ UDP 646, TCP 646 of one namespace
//!       ◀── Report ───
//! ```
//! Many speakers may run in one process, in one namespace and on one interface: each has a transport address of
//! its own, and an address on the interface from which its hellos come. They do not hear each other there.
//!
//! What peers are told and what their labels mean is the speaker's to decide; here are sockets and time.

pub mod counter;
mod discovery;
mod driver;
mod fault;
mod signatures;

pub use fault::Fault;
/// What owners say of prefixes and labels.
pub use netstage_wire::{ldp::message::Fec, mpls::Label};
pub use signatures::Signatures;

use counter::Counters;
use netstage_core::ldp::{Binding, Config, Event, Neighbour};
use netstage_core::time::Instant;
use netstage_host::netns::Namespace;
use netstage_wire::ldp::Identifier;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

/// Where a speaker is. Its sessions are at [`Config::transport`], which is an address of this namespace.
#[derive(Debug)]
pub struct Place {
    /// The namespace its sockets are opened in.
    pub namespace: Namespace,
    /// Where it looks for peers on the link.
    pub interfaces: Vec<Interface>,
    /// Routers it looks for wherever they are, by the addresses their hellos come from (section 2.4.2).
    pub targets: Vec<Ipv4Addr>,
    /// The keys by which sessions with the peers at these transport addresses are signed (RFC 2385).
    pub md5_keys: Vec<(Ipv4Addr, Vec<u8>)>,
}

/// An interface with hellos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The address on it from which hellos come.
    pub address: Ipv4Addr,
}

/// What a speaker is asked to do.
#[derive(Debug)]
pub enum Command {
    /// To say which addresses are its router's, in place of those it said before.
    SetAddresses(Vec<IpAddr>),
    /// To bind prefixes, in place of what they were bound to, and tell all peers.
    Bind(Vec<(Fec, Binding)>),
    /// To bind prefixes to nothing.
    Unbind(Vec<Fec>),
    /// To show how it is.
    Show(oneshot::Sender<Snapshot>),
    /// To end its sessions, and with them the task.
    Stop,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// To sessions, labels and addresses.
    Event(Event),
    /// Something that keeps a session from coming up, or a command from being carried out.
    Fault(Fault),
}

/// How a speaker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Who it is.
    pub identifier: Identifier,
    /// Peers that it hears, and how far their sessions are.
    pub neighbours: Vec<Neighbour>,
    /// What it has counted.
    pub counters: Counters,
}

/// Runs a speaker until it is told to stop, or nobody is left to tell; then its sessions are shut down. `handle`
/// is given what happens with its time since `epoch`; while it runs nothing else is read.
///
/// Fails where a socket cannot be opened, and says which.
pub async fn run(
    config: Config,
    place: Place,
    epoch: std::time::Instant,
    commands: UnboundedReceiver<Command>,
    handle: impl FnMut(Instant, Report),
) -> io::Result<()> {
    driver::Driver::new(config, place, epoch, handle)?.run(commands).await
}
