//! A speaker of the label distribution protocol (RFC 5036): whom it finds on its links or afar, the sessions it
//! has with them, and the labels that both ends tell each other of.
//!
//! Labels are of the whole router, told without being asked for (downstream unsolicited), and kept whoever
//! tells them (liberal retention). Which labels there are, where packets go and what they become is the
//! caller's: it binds prefixes, and hears what peers have bound.
//!
//! - `discovery`: hellos, who may be connected to and when.
//! - `session`: from a connection to a session that is up, and its end.
//! - `receive`: what a session's bytes are, and what is wrong with them.
//! - `labels`: what a peer tells of addresses and labels, and what follows.
//! - `distribution`: what each peer is yet to be told, packed into PDUs.
//! - `table`: what is bound to what.

mod discovery;
mod distribution;
mod labels;
mod receive;
mod session;
mod table;

use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr};
use discovery::{Adjacency, Peer, Sending};
use netstage_wire::ldp::message::Fec;
use netstage_wire::ldp::{Identifier, Status};
use netstage_wire::mpls::Label;
use session::Session;
use table::Table;

pub use discovery::{Neighbour, Scope};
pub use session::Phase;

/// Longest path vector that fits into the shortest PDU, of 256 bytes.
const MOST_HOPS: u8 = 32;

/// A TCP connection, as the driver numbers them; numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// When peers are told of a label (section 2.6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// As soon as it is bound.
    #[default]
    Independent,
    /// Once the next hop has told of one, or at the end of the LSP.
    Ordered,
}

/// What peers are told where an LSP ends here and has no label of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Null {
    /// To pop the label (penultimate-hop popping, RFC 3031 section 3.16).
    #[default]
    Implicit,
    /// To send the null label of the address family, whose traffic class arrives.
    Explicit,
}

/// How a speaker is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// The router it speaks for.
    pub router: Ipv4Addr,
    /// Where its sessions are.
    pub transport: Ipv4Addr,
    /// How long its hellos on interfaces hold, in whole seconds; three are sent in that time, and the lesser of
    /// both ends' counts (section 3.5.2).
    pub link_hold: Duration,
    /// The same of hellos to single routers.
    pub targeted_hold: Duration,
    /// Whether it answers the targeted hellos of routers it does not look for itself (section 2.4.2).
    pub accepts_targeted: bool,
    /// Silence that ends a session, in whole seconds; the lesser of both ends' counts.
    pub keepalive: Duration,
    /// When peers are told of a label.
    pub control: Control,
    /// What they are told at the end of an LSP.
    pub null: Null,
    /// Most hops of an LSP where loops are looked for by hop counts and path vectors (section 2.8); up to
    /// 32, so that a path fits into the shortest PDU.
    pub loop_detection: Option<u8>,
    /// Bindings kept of one peer; what it tells beyond is released at once.
    pub most_bindings: usize,
}

impl Config {
    /// The defaults for a router whose sessions are at an address.
    pub fn new(router: Ipv4Addr, transport: Ipv4Addr) -> Config {
        Config {
            router,
            transport,
            link_hold: Duration::from_secs(15),
            targeted_hold: Duration::from_secs(45),
            accepts_targeted: false,
            keepalive: Duration::from_secs(180),
            control: Control::default(),
            null: Null::default(),
            loop_detection: None,
            most_bindings: 1 << 20,
        }
    }
}

/// What a prefix is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The LSP ends here.
    Egress {
        /// What packets are to come with; none is [`Config::null`].
        label: Option<Label>,
    },
    /// Packets come with a label and go on.
    Transit {
        /// The label.
        label: Label,
        /// To these addresses of neighbours, each as good as the others.
        next_hops: Vec<IpAddr>,
    },
}

/// Where packets of a bound prefix go: to a peer, with the label it has told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The next hop of the binding.
    pub address: IpAddr,
    /// The peer that has this address.
    pub peer: Identifier,
    /// Its label.
    pub label: Label,
}

impl Binding {
    /// The label that was allocated for it.
    pub fn label(&self) -> Option<Label> {
        match self {
            Binding::Egress { label } => *label,
            Binding::Transit { label, .. } => Some(*label),
        }
    }
}

/// Why something cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is everything, or a length that addresses do not have.
    NotAPrefix,
    /// Labels below 16 have meanings of their own (RFC 7274).
    ReservedLabel,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// Send a datagram from the port of discovery to the same port: from an interface to
    /// [`ALL_ROUTERS`](netstage_wire::ldp::ALL_ROUTERS), or from the own transport address to a router.
    Discovery {
        /// The interface, or the router.
        scope: Scope,
        /// The datagram.
        bytes: Vec<u8>,
    },
    /// Send bytes by a connection.
    Stream {
        /// The connection.
        connection: Connection,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Connect to a peer from the own transport address, and tell by [`Speaker::handle_connected`] or
    /// [`Speaker::handle_refused`].
    Connect {
        /// The peer.
        peer: Identifier,
        /// Its transport address.
        address: Ipv4Addr,
    },
    /// Close a connection, once what was sent before has left.
    Close {
        /// The connection.
        connection: Connection,
    },
}

/// Why a session ended, or never was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer was told this.
    Sent(Status),
    /// The peer told this.
    Received(Status),
    /// The connection is lost.
    Lost,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Sent(status) => write!(f, "the peer was told: {status}"),
            End::Received(status) => write!(f, "the peer says: {status}"),
            End::Lost => f.write_str("the connection is lost"),
        }
    }
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session is up.
    Up {
        /// With whom.
        peer: Identifier,
    },
    /// A session is no more, and nothing that was told in it counts any longer.
    Down {
        /// With whom.
        peer: Identifier,
        /// Why.
        why: End,
    },
    /// A session has not come up; it is tried again later and later.
    Refused {
        /// With whom.
        peer: Identifier,
        /// Why.
        why: End,
    },
    /// A peer has bound a label.
    Mapping {
        /// The peer.
        peer: Identifier,
        /// For what.
        fec: Fec,
        /// The label.
        label: Label,
    },
    /// A peer has withdrawn it.
    Withdrawn {
        /// The peer.
        peer: Identifier,
        /// For what.
        fec: Fec,
        /// The label.
        label: Label,
    },
    /// An address is a peer's, or is no more.
    Address {
        /// The peer.
        peer: Identifier,
        /// The address.
        address: IpAddr,
        /// It is.
        is_there: bool,
    },
    /// Packets of a bound prefix go elsewhere from now on: what an entry of a label table is made of.
    Outgoing {
        /// The prefix.
        fec: Fec,
        /// Those of its next hops that have told of a label, in their order; none: nobody has.
        to: Vec<NextHop>,
    },
    /// No peer uses a label any more that is bound to nothing: it may be bound again.
    Free {
        /// The label.
        label: Label,
    },
    /// A peer has told of more than [`Config::most_bindings`] or more addresses than anybody has, and some
    /// of it is not kept.
    Full {
        /// The peer.
        peer: Identifier,
    },
    /// A peer told something that ends no session.
    Notified {
        /// The peer.
        peer: Identifier,
        /// What.
        status: Status,
    },
}

/// A speaker.
///
/// Call [`handle_hello`](Speaker::handle_hello), [`handle_bytes`](Speaker::handle_bytes) and the others as
/// things happen and [`handle_timeout`](Speaker::handle_timeout) at
/// [`poll_timeout`](Speaker::poll_timeout); after each, [`poll_transmit`](Speaker::poll_transmit) and
/// [`poll_event`](Speaker::poll_event) until they return `None`.
#[derive(Debug)]
pub struct Speaker {
    config: Config,
    hellos: BTreeMap<Scope, Sending>,
    adjacencies: BTreeMap<(Identifier, Scope), Adjacency>,
    peers: BTreeMap<Identifier, Peer>,
    sessions: BTreeMap<Connection, Session>,
    addresses: BTreeSet<IpAddr>,
    table: Table,
    /// What the last message of this speaker was numbered.
    message_id: u32,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl Speaker {
    /// A speaker that has no interface, address or binding yet.
    pub fn new(config: Config) -> Speaker {
        let loop_detection = config.loop_detection.map(|hops| hops.clamp(1, MOST_HOPS));
        Speaker {
            config: Config { loop_detection, ..config },
            hellos: BTreeMap::new(),
            adjacencies: BTreeMap::new(),
            peers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            addresses: BTreeSet::new(),
            table: Table::default(),
            message_id: 0,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Who it is.
    pub fn identifier(&self) -> Identifier {
        Identifier { router: self.config.router, space: 0 }
    }

    /// Says which addresses are this router's, so that peers find it as a next hop.
    pub fn set_addresses(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.addresses = addresses.into_iter().collect();
        for session in self.sessions.values_mut().filter(|session| session.is_up()) {
            session.upstream.has_new_addresses = true;
        }
    }

    /// Binds a prefix, in place of what it was bound to. A label that it no longer has is not to be used for
    /// anything else before [`Event::Free`].
    pub fn bind(&mut self, fec: Fec, binding: Binding) -> Result<(), Refused> {
        let fec = match fec {
            Fec::Prefix { address, length } => Fec::prefix(address, length).ok_or(Refused::NotAPrefix)?,
            Fec::Wildcard => fec,
        };
        let freed = self.table.bind(fec, binding)?;
        self.events.extend(freed.map(|label| Event::Free { label }));
        self.refresh(fec);
        Ok(())
    }

    /// Binds a prefix to nothing.
    pub fn unbind(&mut self, fec: Fec) {
        let Some((freed, outgoing)) = self.table.unbind(fec) else { return };
        self.events.extend(freed.map(|label| Event::Free { label }));
        self.events.extend((!outgoing.is_empty()).then(|| Event::Outgoing { fec, to: Vec::new() }));
        self.answer_requests(fec, Status::NO_ROUTE);
        self.refresh(fec);
    }

    /// Looks up where a prefix's packets go, and sees to it that peers are told what follows.
    fn refresh(&mut self, fec: Fec) {
        self.events.extend(self.table.refresh(fec).map(|to| Event::Outgoing { fec, to }));
        for session in self.sessions.values_mut().filter(|session| session.is_up()) {
            session.upstream.dirty.insert(fec);
        }
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What the driver is to do. What a connection is to carry waits here while it is not
    /// [writable](Speaker::set_writable).
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if let Some(transmit) = self.transmits.pop_front() {
            return Some(transmit);
        }
        let sender = self.identifier();
        let Speaker { config, sessions, table, addresses, message_id, .. } = self;
        sessions.iter_mut().find_map(|(connection, session)| {
            let bytes = session.next_pdu(now, config, (sender, message_id), addresses, table)?;
            Some(Transmit::Stream { connection: *connection, bytes })
        })
    }

    /// When to call [`handle_timeout`](Speaker::handle_timeout).
    pub fn poll_timeout(&self) -> Instant {
        let hellos = self.hellos.values().map(|sending| sending.next);
        let adjacencies = self.adjacencies.values().map(|adjacency| adjacency.expires);
        let sessions = self.sessions.values().map(Session::due);
        let attempts = self.peers.keys().filter_map(|peer| self.connects_at(*peer)).map(|(at, _)| at);
        hellos.chain(adjacencies).chain(sessions).chain(attempts).min().unwrap_or(Instant::NEVER)
    }

    /// The time of [`poll_timeout`](Speaker::poll_timeout) has come; harmless at any other.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.expire_adjacencies(now);
        self.expire_sessions(now);
        self.send_hellos(now);
        self.connect(now);
    }

    /// Peers with which a session is up.
    pub fn peers(&self) -> impl Iterator<Item = Identifier> + '_ {
        self.sessions.values().filter(|session| session.is_up()).filter_map(|session| session.peer)
    }

    /// What a prefix is bound to.
    pub fn binding(&self, fec: Fec) -> Option<&Binding> {
        self.table.binding(fec)
    }

    /// To whom packets of a bound prefix go, and with which labels.
    pub fn outgoing(&self, fec: Fec) -> &[NextHop] {
        self.table.outgoing(fec)
    }

    /// All labels that peers have told of for a prefix.
    pub fn mappings_for(&self, fec: Fec) -> impl Iterator<Item = (Identifier, Label)> + '_ {
        self.table.mappings_for(fec)
    }

    /// All that a peer has told of.
    pub fn mappings_of(&self, peer: Identifier) -> impl Iterator<Item = (Fec, Label)> + '_ {
        self.table.mappings_of(peer)
    }

    /// The peer that has an address.
    pub fn owner(&self, address: IpAddr) -> Option<Identifier> {
        self.table.owner(address)
    }
}

#[cfg(test)]
mod tests;
