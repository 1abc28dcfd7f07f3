//! RSVP-TE (RFC 3209) over the interfaces of a namespace. One task drives one
//! [`RsvpSpeaker`](netstage_core::rsvp::RsvpSpeaker).
//!
//! ```text
//! owner ── Command ──▶ run ◀──▶ IP protocol 46 on the interfaces of one namespace
//!       ◀── Report ───
//! ```
//! Path messages are addressed to the egress. They are received at the link layer, whatever the kernel does with packets
//! to other hosts; a raw socket with the router alert option (RFC 2113) prevents the kernel from forwarding them. Packets
//! to other hosts without this option are left to the host.
//!
//! The protocol is implemented by the speaker; this module provides sockets and timers.

mod driver;
mod interface;

pub use netstage_core::rsvp::{
    LspStatus, RsvpAuthenticationCounters, RsvpBypass, RsvpConfig, RsvpCounters, RsvpEvent, RsvpKey,
    RsvpNeighbor, RsvpNextHop, TunnelRequest,
};
pub use netstage_wire::rsvp::route::RouteHop;

use netstage_core::quantity::BitRate;
use netstage_core::time::Instant;
use netstage_host::netns::Namespace;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

/// Interfaces of a speaker.
#[derive(Debug)]
pub struct RsvpSockets {
    /// Network namespace of the interfaces.
    pub namespace: Namespace,
    /// Interfaces, numbered from 1 in this order in [`RsvpNeighbor::interface`].
    pub interfaces: Vec<RsvpPlace>,
}

/// Interface with RSVP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RsvpPlace {
    /// Name.
    pub name: String,
    /// Address of this router on the interface.
    pub address: Ipv4Addr,
    /// Prefix length of its subnet, bits.
    pub length: u8,
    /// Bandwidth for reservations of sent traffic; `None` for no limit.
    pub bandwidth: Option<BitRate>,
    /// Keys of the authentication (RFC 2747), without which messages are neither signed nor checked. The first one signs.
    pub keys: Vec<RsvpKey>,
}

/// Command to a speaker.
#[derive(Debug)]
pub enum RsvpCommand {
    /// Sets up or changes a tunnel.
    SetTunnel(u16, TunnelRequest),
    /// Removes a tunnel.
    RemoveTunnel(u16),
    /// Sets or removes the next hop of a prefix (network and length), for loose hops of explicit routes.
    SetRoute(Ipv4Addr, u8, Option<RsvpNeighbor>),
    /// Reports the failure of a neighbor that another protocol has detected.
    FailNeighbor(RsvpNeighbor),
    /// Sets the bypass LSP that packets to a neighbor take while it or the link to it has failed.
    SetBypass(Ipv4Addr, Option<RsvpBypass>),
    /// Requests the state of the speaker.
    Show(oneshot::Sender<RsvpSnapshot>),
    /// Tears down all tunnels and ends the task.
    Stop,
}

/// Report from a speaker.
#[derive(Clone, Debug, PartialEq)]
pub enum RsvpReport {
    /// Event of tunnels, labels and neighbors.
    Event(RsvpEvent),
    /// Problem with an interface.
    Fault(RsvpFault),
}

/// Problem of an interface; reported once until it is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RsvpFault {
    /// Name of the interface.
    pub interface: String,
    /// Reason.
    pub reason: String,
}

impl fmt::Display for RsvpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; LSPs over the interface are removed until it works", self.interface, self.reason)
    }
}

/// State of a speaker.
#[derive(Clone, Debug, PartialEq)]
pub struct RsvpSnapshot {
    /// LSPs that begin, end or pass here.
    pub lsps: Vec<LspStatus>,
    /// Counters of the speaker.
    pub counters: RsvpCounters,
    /// Counters of its authentication.
    pub authentication: RsvpAuthenticationCounters,
}

/// Returns a number for [`RsvpConfig::instance`], which differs after each restart.
pub fn new_instance() -> u32 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (time.as_millis() / 8) as u32
}

/// Requests the state of a speaker and waits for it, outside of async code. Returns `None` after the speaker's end.
pub fn snapshot(commands: &UnboundedSender<RsvpCommand>) -> Option<RsvpSnapshot> {
    let (sender, receiver) = oneshot::channel();
    commands.send(RsvpCommand::Show(sender)).ok()?;
    receiver.blocking_recv().ok()
}

/// Runs a speaker until it is stopped or the command channel is closed, then tears down its tunnels. `handle` is called
/// with the time since `epoch` and the reports of that time. It returns when they are applied: the messages that
/// advertise the labels are sent afterwards.
///
/// Fails if an interface cannot be opened at the start; the error names it. An interface that fails later is opened
/// again when it is up.
pub async fn run(
    config: RsvpConfig,
    place: RsvpSockets,
    epoch: std::time::Instant,
    commands: UnboundedReceiver<RsvpCommand>,
    handle: impl FnMut(Instant, Vec<RsvpReport>),
) -> io::Result<()> {
    driver::Driver::new(config, place, epoch, handle)?.run(commands).await
}
