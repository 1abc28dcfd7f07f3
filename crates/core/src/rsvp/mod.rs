//! A speaker of RSVP-TE (RFC 2205, 3209): sets up label switched paths (LSPs) along explicit routes, as ingress, transit
//! and egress router, with bandwidth admission, refresh reduction (RFC 2961) and hellos (RFC 3209 section 5).
//!
//! The caller passes in the received messages, the interfaces and the routes, and applies the events to its label
//! table. All state is soft: it is refreshed, and removed when refreshes are missing.
//!
//! - `path`: path state, from Path and PathTear messages.
//! - `reservation`: reservation state and labels, from Resv and ResvTear messages.
//! - `error`: PathErr and ResvErr messages.
//! - `tunnel`: LSPs that begin at this router, and their replacement (make before break).
//! - `route`: explicit routes.
//! - `admission`: bandwidth of the links.
//! - `label`: the labels of this router.
//! - `neighbor`: transmission to neighbors, acknowledgments, summary refreshes, limits.
//! - `hello`: detection of failed and restarted neighbors.
//! - `authentication`: authentication of messages between neighbors.
//! - `repair`: LSPs whose next hop has failed, and whose packets take a bypass LSP (point of local repair).
//! - `merge`: LSPs whose previous hop signals them through a bypass LSP (merge point).
//! - `agenda`: timers.
//! - `state`: the state of an LSP.
//!
//! A reservation has one Resv message per sender. Policing and preemption are not part of it; messages with DETOUR objects
//! are rejected.

mod admission;
mod agenda;
mod authentication;
mod error;
mod hello;
mod label;
mod merge;
mod neighbor;
mod path;
mod receive;
mod repair;
mod reservation;
mod route;
mod state;
mod tunnel;

use crate::quantity::BitRate;
use crate::rng::RandomStream;
use crate::time::{Duration, Instant};
use admission::LinkAdmission;
use agenda::{Agenda, Timer};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::ops::RangeInclusive;
use label::LabelPool;
use neighbor::Neighbor;
use netstage_wire::mpls::LabelValue;
use netstage_wire::rsvp::object::{ErrorSpec, Sender, Session};
use state::LspState;
use tunnel::Tunnel;

pub use authentication::{
    RsvpAuthentication, RsvpAuthenticationCounters, RsvpDigest, RsvpKey, RsvpReception,
};
pub use tunnel::TunnelRequest;

/// An LSP: a sender of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsp {
    /// Tunnel.
    pub session: Session,
    /// LSP of the tunnel.
    pub sender: Sender,
}

/// A neighbor on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RsvpNeighbor {
    /// Number of the interface, from 1.
    pub interface: u32,
    /// Address of the neighbor on the interface's subnet.
    pub address: Ipv4Addr,
}

impl RsvpNeighbor {
    /// Returns the router at the other end of a bypass LSP, which is on no interface. It is known by its router ID.
    fn remote(router: Ipv4Addr) -> RsvpNeighbor {
        RsvpNeighbor { interface: 0, address: router }
    }

    fn is_remote(self) -> bool {
        self.interface == 0
    }
}

/// Bypass LSP to a neighbor around the link to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RsvpBypass {
    /// Router ID of the neighbor, at which the bypass LSP ends.
    pub merge_point: Ipv4Addr,
    /// First router on the way.
    pub next_hop: RsvpNeighbor,
}

/// Next hop of labeled packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RsvpNextHop {
    /// Next router.
    pub neighbor: RsvpNeighbor,
    /// Label of the next router; implicit null to send the packet without the label.
    pub label: LabelValue,
}

/// An interface with RSVP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RsvpInterface {
    /// Address.
    pub address: Ipv4Addr,
    /// Prefix length of the subnet, bits.
    pub length: u8,
    /// Bandwidth available to reservations of outgoing traffic; `None` for no admission control.
    pub bandwidth: Option<BitRate>,
}

/// Configuration of a speaker.
#[derive(Clone, Debug)]
pub struct RsvpConfig {
    /// Router ID: address of this router as ingress and egress.
    pub router: Ipv4Addr,
    /// Number that differs after each restart, not zero: the instance of hellos (RFC 3209 section 5.2), and in its
    /// lower 24 bits the epoch of message IDs (RFC 2961 section 4).
    pub instance: u32,
    /// Refresh period R; a refresh is sent after 0.5 R to 1.5 R (RFC 2205 section 3.7).
    pub refresh: Duration,
    /// Labels to allocate.
    pub labels: RangeInclusive<LabelValue>,
    /// Label of LSPs that end at the router ID or an interface.
    pub egress: EgressLabel,
    /// Further addresses at which LSPs end, with the label of these LSPs.
    pub endpoints: BTreeMap<Ipv4Addr, EgressLabel>,
    /// Reduce refreshes with neighbors that do the same (RFC 2961).
    pub reduces_refreshes: bool,
    /// Interval of hellos; `None` to send none.
    pub hello: Option<Duration>,
    /// Maximum number of LSPs from one previous hop, including those whose label is still in quarantine.
    pub max_paths: usize,
    /// Maximum number of previous hops per interface.
    pub max_neighbors: usize,
    /// Time without a reservation after which path state is reported as [`RsvpEvent::Unreserved`].
    pub setup_timeout: Duration,
    /// Seed of the refresh times.
    pub seed: u64,
}

impl RsvpConfig {
    /// Creates the default configuration for a router ID and an instance.
    pub fn new(router: Ipv4Addr, instance: u32) -> RsvpConfig {
        RsvpConfig {
            router,
            instance: instance.max(1),
            refresh: Duration::from_secs(30),
            labels: LabelValue::FIRST_UNRESERVED..=LabelValue::MAX,
            egress: EgressLabel::default(),
            endpoints: BTreeMap::new(),
            reduces_refreshes: true,
            hello: Some(Duration::from_secs(3)),
            max_paths: 10_000,
            max_neighbors: 256,
            setup_timeout: Duration::from_secs(30),
            seed: instance.into(),
        }
    }
}

/// Label of an LSP that ends at this router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EgressLabel {
    /// Implicit null: the router before pops the label (penultimate-hop popping, RFC 3031 section 3.16).
    #[default]
    ImplicitNull,
    /// Explicit null, which preserves the traffic class up to this router.
    ExplicitNull,
    /// A label of the LSP's own ([`RsvpEvent::Pop`]).
    Own,
}

/// A message to be sent in an IP packet with protocol 46.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RsvpTransmit {
    /// The neighbor that receives the packet.
    pub to: RsvpNeighbor,
    /// IP source address.
    pub source: Ipv4Addr,
    /// IP destination address: the egress of the LSP for Path and PathTear messages; another router than `to` for messages
    /// about a repaired LSP, which are forwarded like any packet.
    pub destination: Ipv4Addr,
    /// IP time to live.
    pub ttl: u8,
    /// The packet has the router alert option (RFC 2113).
    pub has_router_alert: bool,
    /// RSVP message.
    pub bytes: Vec<u8>,
}

/// An event for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum RsvpEvent {
    /// An LSP of a tunnel of this router is established, or its next hop has changed. The tunnel uses it from now on.
    Up {
        /// Tunnel ID.
        tunnel: u16,
        /// The LSP.
        lsp: Lsp,
        /// Label and next hop.
        to: RsvpNextHop,
    },
    /// An LSP of a tunnel of this router has failed or was removed.
    Down {
        /// Tunnel ID.
        tunnel: u16,
        /// The LSP.
        lsp: Lsp,
    },
    /// A router has repaired the LSP in use of a tunnel of this router. It stays in use until another one is established.
    Repaired {
        /// Tunnel ID.
        tunnel: u16,
        /// The router.
        node: Ipv4Addr,
    },
    /// A tunnel of this router could not be set up, or a router has reported an error for its LSP. Setup is retried.
    Failed {
        /// Tunnel ID.
        tunnel: u16,
        /// The error.
        error: ErrorSpec,
    },
    /// Packets with an incoming label are to be forwarded; replaces the previous entry of the label.
    Forward {
        /// The incoming label.
        label: LabelValue,
        /// Label and next hop.
        to: RsvpNextHop,
    },
    /// Packets with an incoming label are for this router: the label is to be popped.
    Pop {
        /// The incoming label.
        label: LabelValue,
    },
    /// Packets with an incoming label are to be dropped.
    Discard {
        /// The incoming label.
        label: LabelValue,
    },
    /// The downstream router has not reserved an LSP within [`RsvpConfig::setup_timeout`].
    Unreserved {
        /// The LSP.
        lsp: Lsp,
        /// Router that requests the LSP; `None` at the ingress.
        upstream: Option<RsvpNeighbor>,
        /// Router that does not reserve it.
        downstream: RsvpNeighbor,
    },
    /// A neighbor answers hellos.
    NeighborUp {
        /// The neighbor.
        neighbor: RsvpNeighbor,
    },
    /// A neighbor no longer answers hellos, or has restarted. Its state was removed.
    NeighborDown {
        /// The neighbor.
        neighbor: RsvpNeighbor,
    },
    /// A previous hop has exceeded [`RsvpConfig::max_paths`] or [`RsvpConfig::max_neighbors`]. Reported once per
    /// neighbor, until it is below the limit again.
    Limited {
        /// The neighbor.
        neighbor: RsvpNeighbor,
    },
}

/// Numbers of messages and of reasons for dropping or refusing them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RsvpCounters {
    /// Received messages.
    pub received: u64,
    /// Sent messages, including retransmissions.
    pub sent: u64,
    /// Retransmissions of unacknowledged messages.
    pub retransmitted: u64,
    /// Messages that could not be decoded.
    pub malformed: u64,
    /// Messages on an interface without RSVP.
    pub wrong_interface: u64,
    /// Messages whose previous or next hop is not on the subnet, or is not the hop of the LSP.
    pub wrong_hop: u64,
    /// Path messages of routers on no link, about no LSP that the previous hop may have repaired.
    pub wrong_backup: u64,
    /// Messages that are older than the last one (RFC 2961 section 4.5).
    pub stale: u64,
    /// Messages for an LSP that does not exist.
    pub unknown_lsp: u64,
    /// Path messages refused because of a loop.
    pub loops: u64,
    /// Path messages refused because their route leads nowhere.
    pub no_route: u64,
    /// Path messages whose time to live ended.
    pub ttl_exceeded: u64,
    /// Path messages refused by the limits per neighbor and interface.
    pub limited: u64,
    /// Paths and reservations refused because of bandwidth.
    pub no_bandwidth: u64,
    /// Reservations refused because no label was free.
    pub no_label: u64,
    /// Path states removed because of missing refreshes.
    pub path_timeouts: u64,
    /// Reservations removed because of missing refreshes.
    pub reservation_timeouts: u64,
    /// LSPs not reserved within the setup timeout.
    pub unreserved: u64,
    /// Messages not sent because they exceed the maximum length.
    pub too_long: u64,
}

/// An RSVP-TE speaker.
///
/// Set the interfaces and routes, then call [`handle_packet`](RsvpSpeaker::handle_packet) for each message and
/// [`handle_timeout`](RsvpSpeaker::handle_timeout) at [`poll_timeout`](RsvpSpeaker::poll_timeout). After each call, call
/// [`poll_transmit`](RsvpSpeaker::poll_transmit) and [`poll_event`](RsvpSpeaker::poll_event) until they return `None`.
#[derive(Clone, Debug)]
pub struct RsvpSpeaker {
    config: RsvpConfig,
    interfaces: BTreeMap<u32, RsvpInterface>,
    /// Next hops by prefix length and network.
    routes: BTreeMap<(u8, Ipv4Addr), RsvpNeighbor>,
    links: BTreeMap<u32, LinkAdmission>,
    neighbors: BTreeMap<RsvpNeighbor, Neighbor>,
    /// Established bypass LSPs by the neighbor's address.
    bypasses: BTreeMap<Ipv4Addr, RsvpBypass>,
    lsps: BTreeMap<Lsp, LspState>,
    tunnels: BTreeMap<u16, Tunnel>,
    labels: LabelPool,
    /// Previous hop of each label in quarantine.
    quarantine: BTreeMap<LabelValue, RsvpNeighbor>,
    agenda: Agenda,
    random: RandomStream,
    message_id: u32,
    /// ID of the last LSP of a tunnel of this router.
    lsp_id: u16,
    counters: RsvpCounters,
    transmits: VecDeque<RsvpTransmit>,
    events: VecDeque<RsvpEvent>,
}

impl RsvpSpeaker {
    /// Creates a speaker without interfaces, routes and tunnels.
    pub fn new(config: RsvpConfig) -> RsvpSpeaker {
        RsvpSpeaker {
            interfaces: BTreeMap::new(),
            routes: BTreeMap::new(),
            links: BTreeMap::new(),
            neighbors: BTreeMap::new(),
            bypasses: BTreeMap::new(),
            lsps: BTreeMap::new(),
            tunnels: BTreeMap::new(),
            labels: LabelPool::new(config.labels.clone(), config.instance),
            quarantine: BTreeMap::new(),
            agenda: Agenda::default(),
            random: RandomStream::new(config.seed, "rsvp"),
            message_id: 0,
            // LSPs of a previous instance may still exist in the network.
            lsp_id: config.instance as u16,
            counters: RsvpCounters::default(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            config,
        }
    }

    /// Adds or changes an interface. A change of its address removes the LSPs that use it.
    pub fn set_interface(&mut self, now: Instant, number: u32, interface: RsvpInterface) {
        let previous = self.interfaces.get(&number);
        let is_moved = previous.is_some_and(|previous| {
            (previous.address, previous.length) != (interface.address, interface.length)
        });
        if is_moved {
            self.close_interface(now, number, false);
        }
        let capacity = interface.bandwidth.map(|rate| rate.0);
        let is_new = self.interfaces.insert(number, interface).is_none();
        self.links.entry(number).or_default().set_capacity(capacity);
        if is_new {
            self.resume_paths(now, |neighbor| neighbor.interface == number);
        }
        self.retry_tunnels(now);
    }

    /// Removes an interface, or marks it as down, and removes the LSPs that use it, except those with a bypass.
    pub fn remove_interface(&mut self, now: Instant, number: u32) {
        self.close_interface(now, number, true);
    }

    fn close_interface(&mut self, now: Instant, number: u32, repairs: bool) {
        if self.interfaces.remove(&number).is_none() {
            return;
        }
        let neighbors: Vec<RsvpNeighbor> =
            self.neighbors.keys().filter(|neighbor| neighbor.interface == number).copied().collect();
        for neighbor in neighbors {
            self.remove_paths_through(now, neighbor, repairs);
        }
        self.retry_tunnels(now);
    }

    /// Sets the next hop of a prefix, for loose hops of explicit routes; `None` removes it. Existing LSPs keep their
    /// routes. Tunnels that lacked the route are signaled soon.
    pub fn set_route(&mut self, now: Instant, network: Ipv4Addr, length: u8, next_hop: Option<RsvpNeighbor>) {
        match next_hop {
            Some(next_hop) => {
                self.routes.insert((length, network), next_hop);
                self.retry_tunnels_to(now, network, length);
            }
            None => drop(self.routes.remove(&(length, network))),
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<RsvpEvent> {
        self.events.pop_front()
    }

    /// Returns the next message to be sent.
    pub fn poll_transmit(&mut self) -> Option<RsvpTransmit> {
        loop {
            let transmit = self.transmits.pop_front()?;
            if let Some(transmit) = self.routed(transmit) {
                self.counters.sent += 1;
                return Some(transmit);
            }
        }
    }

    /// Returns the time of the next call of [`handle_timeout`](RsvpSpeaker::handle_timeout).
    pub fn poll_timeout(&self) -> Instant {
        self.agenda.next()
    }

    /// Handles the expiry of [`poll_timeout`](RsvpSpeaker::poll_timeout); calling it at any other time has no effect.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.agenda.expired(now) {
            match timer {
                Timer::PathRefresh(lsp) => self.refresh_path(now, lsp),
                Timer::PathCleanup(lsp) => self.path_timeout(now, lsp),
                Timer::ResvRefresh(lsp) => self.refresh_reservation(now, lsp),
                Timer::ResvCleanup(lsp) => self.reservation_timeout(now, lsp),
                Timer::Setup(lsp) => self.setup_timeout(lsp),
                Timer::Label(label) => self.end_quarantine(label),
                Timer::Tunnel(tunnel) => self.signal(now, tunnel),
                Timer::Replaced(tunnel) => self.remove_replaced(now, tunnel),
                Timer::Retransmission(neighbor, id) => self.retransmit(now, neighbor, id),
                Timer::SummaryRefresh(neighbor) => self.send_summary_refresh(neighbor),
                Timer::Hello(neighbor) => self.send_hello(now, neighbor),
                Timer::HelloTimeout(neighbor) => self.hello_timeout(now, neighbor),
            }
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> RsvpCounters {
        self.counters
    }

    /// Iterates over the LSPs.
    pub fn lsps(&self) -> impl Iterator<Item = LspStatus> + '_ {
        self.lsps.iter().map(|(lsp, state)| state.status(*lsp))
    }

    /// Returns the number of LSPs.
    pub fn count(&self) -> usize {
        self.lsps.len()
    }

    /// Returns the reserved bandwidth and the number of reservations of an interface.
    pub fn reserved(&self, interface: u32) -> (BitRate, usize) {
        let link = self.links.get(&interface);
        link.map_or((BitRate(0), 0), |link| (BitRate(link.reserved_bps()), link.reservations()))
    }

    /// Returns the number of labels in use, and of those in quarantine.
    pub fn labels(&self) -> (usize, usize) {
        (self.labels.in_use() - self.quarantine.len(), self.quarantine.len())
    }

    /// Returns the number of neighbors with state.
    pub fn neighbors(&self) -> usize {
        self.neighbors.len()
    }
}

/// State of an LSP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LspStatus {
    /// The LSP.
    pub lsp: Lsp,
    /// Previous hop; `None` at the ingress.
    pub upstream: Option<RsvpNeighbor>,
    /// Next hop; `None` at the egress.
    pub downstream: Option<RsvpNeighbor>,
    /// The LSP is reserved from here to the egress.
    pub is_reserved: bool,
    /// The next hop has failed, and packets take the bypass LSP to it.
    pub is_repaired: bool,
    /// Reserved, or before the reservation requested bandwidth.
    pub bandwidth: BitRate,
    /// Label advertised to the previous hop.
    pub incoming: Option<LabelValue>,
    /// Label advertised by the next hop.
    pub outgoing: Option<LabelValue>,
}
