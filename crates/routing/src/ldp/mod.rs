//! LDP sessions (RFC 5036) over sockets. One task drives one [`Speaker`](netstage_core::ldp::Speaker):
//! hellos over UDP, on interfaces of a namespace and to single routers (targeted), and sessions over TCP
//! that either end may open.
//!
//! ```text
//! owner ── Command ──▶ run ◀──▶ UDP 646, TCP 646 of one namespace
//!       ◀── Report ───
//! ```
//! Many speakers can run in one process, in one namespace and on one interface. Each has its own transport
//! address, and its own address on the interface as the source of its hellos. They do not receive each
//! other's hellos there.
//!
//! The protocol is implemented by the speaker; this module provides sockets and timers.

pub mod counter;
mod discovery;
mod driver;
mod fault;
mod signatures;

pub use fault::LdpFault;
/// Prefixes and labels in commands and reports.
pub use netstage_wire::{ldp::message::Fec, mpls::LabelValue};
pub use signatures::Signatures;

use counter::Counters;
use netstage_core::ldp::{Binding, GracefulRestart, LdpConfig, LdpEvent, LdpNeighbor};
use netstage_core::time::{Duration, Instant};
use netstage_host::netns::Namespace;
use netstage_wire::ldp::Identifier;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

/// Sockets and peers of a speaker. Its transport address, [`LdpConfig::transport`], must be an address of the namespace.
#[derive(Debug)]
pub struct LdpSockets {
    /// Network namespace for its sockets.
    pub namespace: Namespace,
    /// Interfaces for link hellos.
    pub interfaces: Vec<LdpInterface>,
    /// Routers to send targeted hellos to, by the source addresses of their hellos (section 2.4.2).
    pub targets: Vec<Ipv4Addr>,
    /// Keys of the TCP MD5 signatures, by the peers' transport addresses (RFC 2385).
    pub md5_keys: Vec<(Ipv4Addr, Vec<u8>)>,
}

/// Interface with link hellos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdpInterface {
    /// Name.
    pub name: String,
    /// Source address of the hellos, an address of the interface.
    pub address: Ipv4Addr,
}

/// Command to a speaker.
#[derive(Debug)]
pub enum LdpCommand {
    /// Replaces the interface addresses that the router advertises.
    SetAddresses(Vec<IpAddr>),
    /// Binds prefixes, replacing earlier bindings, and advertises them to all peers.
    Bind(Vec<(Fec, Binding)>),
    /// Removes the bindings of prefixes.
    Unbind(Vec<Fec>),
    /// Sets the graceful restart that the speaker offers in later sessions.
    SetRestart(Option<GracefulRestart>),
    /// Ends all sessions and stops discovery; bindings are kept. Connections of peers are reset.
    Suspend {
        /// End of the sessions.
        ending: SessionEnding,
        /// Time after which discovery starts again; `None`: with [`LdpCommand::Resume`].
        resume_after: Option<Duration>,
    },
    /// Starts discovery again after [`LdpCommand::Suspend`].
    Resume,
    /// Requests the state of the speaker.
    Show(oneshot::Sender<LdpSnapshot>),
    /// Closes all sessions and ends the task.
    Stop,
}

/// Way in which a speaker ends its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnding {
    /// With a reset of the connection and without notification, as when the process of a router fails.
    Reset,
    /// With a notification of the shutdown (RFC 5036 section 2.5.4).
    Shutdown,
}

/// Report from a speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdpReport {
    /// Event of sessions, labels and addresses.
    Event(LdpEvent),
    /// Problem that prevents a session or the execution of a command.
    Fault(LdpFault),
}

/// State of a speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdpSnapshot {
    /// LDP identifier of the speaker.
    pub identifier: Identifier,
    /// Neighbors whose hellos are received, with the states of their sessions.
    pub neighbors: Vec<LdpNeighbor>,
    /// Counters of the speaker.
    pub counters: Counters,
}

/// Requests the state of a running speaker; `None` if it has ended. Blocks the calling thread.
pub fn snapshot(commands: &UnboundedSender<LdpCommand>) -> Option<LdpSnapshot> {
    let (answer, received) = oneshot::channel();
    commands.send(LdpCommand::Show(answer)).ok()?;
    received.blocking_recv().ok()
}

/// Runs a speaker until it is stopped or the command channel is closed, then closes its sessions. `handle`
/// is called for each report with the time since `epoch`, and must not block: it runs in the speaker's task.
///
/// Fails if a socket cannot be opened; the error names the interface or address.
pub async fn run(
    config: LdpConfig,
    place: LdpSockets,
    epoch: std::time::Instant,
    commands: UnboundedReceiver<LdpCommand>,
    handle: impl FnMut(Instant, LdpReport),
) -> io::Result<()> {
    driver::Driver::new(config, place, epoch, handle)?.run(commands).await
}
