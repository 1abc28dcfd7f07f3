//! A speaker of the Label Distribution Protocol (RFC 5036): discovery of peers on links and of remote
//! peers, sessions with them, and the exchange of labels.
//!
//! The label space is per platform, labels are advertised without request (downstream unsolicited), and all
//! received labels are kept (liberal retention). The caller binds labels to prefixes and learns the
//! bindings of peers; allocation of labels and forwarding are its responsibility.
//!
//! - `discovery`: hellos, and the time at which to connect to a peer.
//! - `session`: a session from connection to end.
//! - `receive`: decoding of a session's bytes, and error handling.
//! - `labels`: received addresses and labels, and their consequences.
//! - `distribution`: pending advertisements to each peer, packed into PDUs.
//! - `table`: the bindings of this router and its peers.
//! - `restart`: graceful restart of peers (RFC 3478).

mod discovery;
mod distribution;
mod labels;
mod receive;
mod restart;
mod session;
mod table;

use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr};
use discovery::{Adjacency, HelloTransmission, LdpPeer};
use netstage_wire::ldp::message::Fec;
use netstage_wire::ldp::{Identifier, LdpStatus};
use netstage_wire::mpls::LabelValue;
use restart::RestartingPeer;
use session::LdpSession;
use table::LabelInformationBase;

pub use discovery::{LdpNeighbor, Scope};
pub use netstage_wire::ldp::message::FtSession;
pub use restart::GracefulRestart;
pub use session::LdpPhase;

/// Longest path vector that fits into the shortest PDU, of 256 bytes.
const MAX_HOPS: u8 = 32;

/// Number of a TCP connection, assigned by the driver and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LdpConnection(pub u64);

/// Time at which a label is advertised to peers (section 2.6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelControl {
    /// As soon as the label is bound.
    #[default]
    Independent,
    /// After the next hop has advertised a label; at once at the end of the LSP.
    Ordered,
}

/// Advertisement for a prefix whose LSP ends here without a label of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NullLabel {
    /// Implicit null: the previous router pops the label (penultimate-hop popping, RFC 3031 section 3.16).
    #[default]
    Implicit,
    /// Explicit null of the address family, which preserves the traffic class up to this router.
    Explicit,
}

/// Configuration of a speaker.
#[derive(Clone, Debug)]
pub struct LdpConfig {
    /// Router ID.
    pub router: Ipv4Addr,
    /// Transport address: the local address of the sessions.
    pub transport: Ipv4Addr,
    /// Hold time of link hellos in whole seconds. The lower value of both ends applies, and three hellos
    /// are sent in that time (section 3.5.2).
    pub link_hold: Duration,
    /// Hold time of targeted hellos in whole seconds.
    pub targeted_hold: Duration,
    /// Whether targeted hellos of routers that are not configured as targets are answered (section 2.4.2).
    pub accepts_targeted: bool,
    /// Keepalive time in whole seconds: silence after which a session ends. The lower value of both ends
    /// applies.
    pub keepalive: Duration,
    /// Time at which labels are advertised to peers.
    pub control: LabelControl,
    /// Advertisement at the end of an LSP.
    pub null: NullLabel,
    /// Maximum number of hops of an LSP if loop detection by hop counts and path vectors is enabled
    /// (section 2.8); at most 32, so that a path vector fits into the shortest PDU.
    pub loop_detection: Option<u8>,
    /// Maximum number of mappings kept per peer; further ones are released at once.
    pub max_bindings: usize,
    /// Graceful restart; `None` if this router does not support it.
    pub restart: Option<GracefulRestart>,
}

impl LdpConfig {
    /// Creates the default configuration for a router ID and a transport address.
    pub fn new(router: Ipv4Addr, transport: Ipv4Addr) -> LdpConfig {
        LdpConfig {
            router,
            transport,
            link_hold: Duration::from_secs(15),
            targeted_hold: Duration::from_secs(45),
            accepts_targeted: false,
            keepalive: Duration::from_secs(180),
            control: LabelControl::default(),
            null: NullLabel::default(),
            loop_detection: None,
            max_bindings: 1 << 20,
            restart: None,
        }
    }
}

/// Binding of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The LSP ends at this router.
    Egress {
        /// Label of incoming packets; `None` for the null label of [`LdpConfig::null`].
        label: Option<LabelValue>,
    },
    /// Packets arrive with a label and are forwarded.
    Transit {
        /// Label of incoming packets.
        label: LabelValue,
        /// Addresses of the next hops, all of equal cost.
        next_hops: Vec<IpAddr>,
    },
}

/// A next hop of a bound prefix whose peer has advertised a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Address of the next hop in the binding.
    pub address: IpAddr,
    /// The peer that has this address.
    pub peer: Identifier,
    /// The label advertised by the peer.
    pub label: LabelValue,
}

impl Binding {
    /// Returns the label allocated for the binding.
    pub fn label(&self) -> Option<LabelValue> {
        match self {
            Binding::Egress { label } => *label,
            Binding::Transit { label, .. } => Some(*label),
        }
    }
}

/// Reason for rejecting a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingError {
    /// The FEC is the wildcard, or its prefix length is invalid for the address family.
    NotAPrefix,
    /// The label is below 16 and has a reserved meaning (RFC 7274).
    ReservedLabel,
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdpAction {
    /// Send a datagram between the discovery ports: from an interface to
    /// [`ALL_ROUTERS`](netstage_wire::ldp::ALL_ROUTERS), or from the local transport address to a router.
    Discovery {
        /// The interface or the router.
        scope: Scope,
        /// The datagram.
        bytes: Vec<u8>,
    },
    /// Send bytes on a connection.
    Stream {
        /// The connection.
        connection: LdpConnection,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Connect to a peer from the local transport address, and report the result with
    /// [`LdpSpeaker::handle_connected`] or [`LdpSpeaker::handle_connect_failed`].
    Connect {
        /// The peer.
        peer: Identifier,
        /// The transport address of the peer.
        address: Ipv4Addr,
    },
    /// Close a connection after sending the pending bytes.
    Close {
        /// The connection.
        connection: LdpConnection,
    },
}

/// Reason for the end of a session, or for the failure to establish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LdpSessionEnd {
    /// This router sent this fatal notification.
    Sent(LdpStatus),
    /// The peer sent this fatal notification.
    Received(LdpStatus),
    /// The connection was lost.
    Lost,
}

impl fmt::Display for LdpSessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LdpSessionEnd::Sent(status) => write!(f, "notification sent: {status}"),
            LdpSessionEnd::Received(status) => write!(f, "notification received: {status}"),
            LdpSessionEnd::Lost => f.write_str("connection lost"),
        }
    }
}

/// An event for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdpEvent {
    /// A session is operational.
    Up {
        /// The peer.
        peer: Identifier,
    },
    /// A session has ended, and everything received in it is void.
    Down {
        /// The peer.
        peer: Identifier,
        /// The reason.
        reason: LdpSessionEnd,
    },
    /// A session was lost, and everything received in it stays valid (RFC 3478): until a new session confirms or
    /// replaces it, or until [`LdpEvent::Down`] at the latest.
    Restarting {
        /// The peer.
        peer: Identifier,
        /// The reason.
        reason: LdpSessionEnd,
        /// Time of [`LdpEvent::Down`] if there is no new session by then.
        expires: Instant,
    },
    /// A session could not be established; it is retried after increasing delays.
    SetupFailed {
        /// The peer.
        peer: Identifier,
        /// The reason.
        reason: LdpSessionEnd,
    },
    /// A peer has advertised a label.
    Mapping {
        /// The peer.
        peer: Identifier,
        /// The prefix.
        fec: Fec,
        /// The label.
        label: LabelValue,
    },
    /// A peer has withdrawn a label.
    Withdrawn {
        /// The peer.
        peer: Identifier,
        /// The prefix.
        fec: Fec,
        /// The label.
        label: LabelValue,
    },
    /// A peer has released a label that this router had withdrawn.
    Released {
        /// The peer.
        peer: Identifier,
        /// The prefix.
        fec: Fec,
        /// The label.
        label: LabelValue,
    },
    /// A peer has advertised or withdrawn an address.
    Address {
        /// The peer.
        peer: Identifier,
        /// The address.
        address: IpAddr,
        /// Whether the address was advertised.
        is_advertised: bool,
    },
    /// The outgoing labels of a bound prefix have changed; the label table has to be updated.
    Outgoing {
        /// The prefix.
        fec: Fec,
        /// The next hops whose peers have advertised a label, in the order of the binding; may be empty.
        to: Vec<NextHop>,
    },
    /// No peer uses a label any more that is not bound to a prefix: it may be bound again.
    Free {
        /// The label.
        label: LabelValue,
    },
    /// A peer has exceeded [`LdpConfig::max_bindings`] or the limit on addresses, and some of its
    /// advertisements are not kept.
    Full {
        /// The peer.
        peer: Identifier,
    },
    /// A peer sent a notification that does not end the session.
    Notified {
        /// The peer.
        peer: Identifier,
        /// The status.
        status: LdpStatus,
    },
}

/// An LDP speaker.
///
/// Call [`handle_hello`](LdpSpeaker::handle_hello), [`handle_bytes`](LdpSpeaker::handle_bytes) and the
/// other handlers for each input, and [`handle_timeout`](LdpSpeaker::handle_timeout) at
/// [`poll_timeout`](LdpSpeaker::poll_timeout). After each call, call
/// [`poll_transmit`](LdpSpeaker::poll_transmit) and [`poll_event`](LdpSpeaker::poll_event) until they
/// return `None`.
#[derive(Debug)]
pub struct LdpSpeaker {
    config: LdpConfig,
    hellos: BTreeMap<Scope, HelloTransmission>,
    adjacencies: BTreeMap<(Identifier, Scope), Adjacency>,
    peers: BTreeMap<Identifier, LdpPeer>,
    sessions: BTreeMap<LdpConnection, LdpSession>,
    addresses: BTreeSet<IpAddr>,
    table: LabelInformationBase,
    /// Peers whose labels are stale after the loss of a session.
    restarting: BTreeMap<Identifier, RestartingPeer>,
    /// ID of the last message sent.
    message_id: u32,
    transmits: VecDeque<LdpAction>,
    events: VecDeque<LdpEvent>,
}

impl LdpSpeaker {
    /// Creates a speaker without interfaces, addresses and bindings.
    pub fn new(config: LdpConfig) -> LdpSpeaker {
        let loop_detection = config.loop_detection.map(|hops| hops.clamp(1, MAX_HOPS));
        LdpSpeaker {
            config: LdpConfig { loop_detection, ..config },
            hellos: BTreeMap::new(),
            adjacencies: BTreeMap::new(),
            peers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            addresses: BTreeSet::new(),
            table: LabelInformationBase::default(),
            restarting: BTreeMap::new(),
            message_id: 0,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Returns the LDP identifier of this router.
    pub fn identifier(&self) -> Identifier {
        Identifier { router: self.config.router, space: 0 }
    }

    /// Sets the addresses of this router, which are advertised so that peers recognize it as a next hop.
    pub fn set_addresses(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.addresses = addresses.into_iter().collect();
        for session in self.sessions.values_mut().filter(|session| session.is_up()) {
            session.upstream.has_new_addresses = true;
        }
    }

    /// Sets the graceful restart that this router offers in later sessions.
    pub fn set_restart(&mut self, restart: Option<GracefulRestart>) {
        self.config.restart = restart;
    }

    /// Binds a prefix and replaces its previous binding. A label that is no longer bound must not be reused
    /// before [`LdpEvent::Free`].
    pub fn bind(&mut self, fec: Fec, binding: Binding) -> Result<(), BindingError> {
        let fec = match fec {
            Fec::Prefix { address, length } => {
                Fec::prefix(address, length).ok_or(BindingError::NotAPrefix)?
            }
            Fec::Wildcard => fec,
        };
        let freed = self.table.bind(fec, binding)?;
        self.events.extend(freed.map(|label| LdpEvent::Free { label }));
        self.refresh(fec);
        Ok(())
    }

    /// Removes the binding of a prefix.
    pub fn unbind(&mut self, fec: Fec) {
        let Some((freed, outgoing)) = self.table.unbind(fec) else { return };
        self.events.extend(freed.map(|label| LdpEvent::Free { label }));
        self.events.extend((!outgoing.is_empty()).then(|| LdpEvent::Outgoing { fec, to: Vec::new() }));
        self.answer_requests(fec, LdpStatus::NO_ROUTE);
        self.refresh(fec);
    }

    /// Updates the outgoing labels of a prefix and schedules the advertisements that follow from them.
    fn refresh(&mut self, fec: Fec) {
        self.events.extend(self.table.refresh(fec).map(|to| LdpEvent::Outgoing { fec, to }));
        for session in self.sessions.values_mut().filter(|session| session.is_up()) {
            session.upstream.dirty.insert(fec);
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<LdpEvent> {
        self.events.pop_front()
    }

    /// Returns the next action for the driver. Bytes for a connection that is not
    /// [writable](LdpSpeaker::set_writable) stay pending.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<LdpAction> {
        if let Some(transmit) = self.transmits.pop_front() {
            return Some(transmit);
        }
        let sender = self.identifier();
        let LdpSpeaker { config, sessions, table, addresses, message_id, .. } = self;
        sessions.iter_mut().find_map(|(connection, session)| {
            let bytes = session.next_pdu(now, config, (sender, message_id), addresses, table)?;
            Some(LdpAction::Stream { connection: *connection, bytes })
        })
    }

    /// Returns the time of the next call of [`handle_timeout`](LdpSpeaker::handle_timeout).
    pub fn poll_timeout(&self) -> Instant {
        let hellos = self.hellos.values().map(|sending| sending.next);
        let adjacencies = self.adjacencies.values().map(|adjacency| adjacency.expires);
        let sessions = self.sessions.values().map(LdpSession::next_timeout);
        let attempts = self.peers.keys().filter_map(|peer| self.connects_at(*peer)).map(|(at, _)| at);
        let restarts = self.restarting.values().map(|restarting| restarting.expires);
        let all = hellos.chain(adjacencies).chain(sessions).chain(attempts).chain(restarts);
        all.min().unwrap_or(Instant::NEVER)
    }

    /// Handles the expiry of [`poll_timeout`](LdpSpeaker::poll_timeout); calling it at any other time has
    /// no effect.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.expire_adjacencies(now);
        self.expire_sessions(now);
        self.expire_restarts(now);
        self.send_hellos(now);
        self.connect(now);
    }

    /// Iterates over the peers with an operational session.
    pub fn peers(&self) -> impl Iterator<Item = Identifier> + '_ {
        self.sessions.values().filter(|session| session.is_up()).filter_map(|session| session.peer)
    }

    /// Returns the binding of a prefix.
    pub fn binding(&self, fec: Fec) -> Option<&Binding> {
        self.table.binding(fec)
    }

    /// Returns the next hops of a bound prefix and their labels.
    pub fn outgoing(&self, fec: Fec) -> &[NextHop] {
        self.table.outgoing(fec)
    }

    /// Iterates over the labels that peers have advertised for a prefix.
    pub fn mappings_for(&self, fec: Fec) -> impl Iterator<Item = (Identifier, LabelValue)> + '_ {
        self.table.mappings_for(fec)
    }

    /// Iterates over the mappings that a peer has advertised.
    pub fn mappings_of(&self, peer: Identifier) -> impl Iterator<Item = (Fec, LabelValue)> + '_ {
        self.table.mappings_of(peer)
    }

    /// Returns the peer that has an address.
    pub fn owner(&self, address: IpAddr) -> Option<Identifier> {
        self.table.owner(address)
    }
}

#[cfg(test)]
mod tests;
