//! Discovery: hellos on interfaces (basic, RFC 5036 section 2.4.1) and to single routers (extended, section
//! 2.4.2), the discovered peers, and the connection, which the router with the higher transport address opens
//! (section 2.5.2).

use super::session::LdpPhase;
use super::{LdpAction, LdpConnection, LdpSessionEnd, LdpSpeaker};
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use netstage_wire::ldp::message::{FtSession, Hello, LdpMessage};
use netstage_wire::ldp::write::{Outgoing, Writer};
use netstage_wire::ldp::{Identifier, LdpStatus, MAX_PDU_LENGTH, Pdu};

/// Default hold times, which a hello with a hold time of zero requests (section 3.5.2).
const LINK_HOLD_SECONDS: u16 = 15;
const TARGETED_HOLD_SECONDS: u16 = 45;
/// Hold time of a hello that never expires.
const INFINITE: u16 = u16::MAX;
/// Number of hellos per hold time.
const HELLOS_PER_HOLD: u64 = 3;
/// Initial and maximum delay after a failure to establish a session; each failure doubles it (section 2.5.3).
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(120));
/// Delay after a failed connection attempt or a shutdown.
const RETRY_UNREACHABLE: Duration = Duration::from_secs(5);
/// Delay after the loss of an established session.
const RETRY_LOST: Duration = Duration::from_secs(1);
/// Maximum number of adjacencies; further hellos are ignored.
const MAX_ADJACENCIES: usize = 1024;

/// Scope of hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Interface with this index: all routers on its link.
    Link(usize),
    /// Router with this address, on any network.
    Targeted(Ipv4Addr),
}

/// Transmission of hellos in one scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct HelloTransmission {
    pub next: Instant,
    /// True if they only answer targeted hellos of a peer, and stop with them.
    is_answer: bool,
}

/// A discovered peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LdpNeighbor {
    /// The peer.
    pub peer: Identifier,
    /// Its transport address.
    pub transport: Ipv4Addr,
    /// Phase of the session; `None` without a connection.
    pub phase: Option<LdpPhase>,
    /// Number of label mappings that it has advertised.
    pub mappings: usize,
    /// Number of addresses that it has advertised.
    pub addresses: usize,
    /// FT Session TLV with which it supports graceful restart (RFC 3478).
    pub ft_session: Option<FtSession>,
}

/// A hello adjacency: a peer in one scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adjacency {
    transport: Ipv4Addr,
    /// Hold time: the minimum of both ends.
    hold: Duration,
    pub expires: Instant,
}

/// A peer with at least one adjacency.
#[derive(Clone, Copy, Debug)]
pub(super) struct LdpPeer {
    pub connection: Option<LdpConnection>,
    is_connecting: bool,
    /// Earliest time of the next connection attempt.
    retry_at: Instant,
    /// Delay after the next failure to establish a session.
    back_off: Duration,
}

impl LdpSpeaker {
    /// Starts discovery on an interface.
    pub fn add_interface(&mut self, now: Instant, interface: usize) {
        self.hellos
            .entry(Scope::Link(interface))
            .or_insert(HelloTransmission { next: now, is_answer: false });
    }

    /// Starts discovery of a remote router by the source address of its hellos.
    pub fn add_target(&mut self, now: Instant, address: Ipv4Addr) {
        let target = self.hellos.entry(Scope::Targeted(address));
        target.or_insert(HelloTransmission { next: now, is_answer: false }).is_answer = false;
    }

    /// Stops discovery of a remote router. The peer is lost unless it has another adjacency.
    pub fn remove_target(&mut self, now: Instant, address: Ipv4Addr) {
        let scope = Scope::Targeted(address);
        self.hellos.remove(&scope);
        for ((_, of_adjacency), adjacency) in &mut self.adjacencies {
            if *of_adjacency == scope {
                adjacency.expires = now;
            }
        }
        self.expire_adjacencies(now);
    }

    /// Handles a datagram to all routers at the discovery port. Invalid and unexpected hellos are ignored.
    pub fn handle_hello(&mut self, now: Instant, interface: usize, source: Ipv4Addr, bytes: &[u8]) {
        self.take_datagram(now, Scope::Link(interface), source, bytes);
    }

    /// Handles a datagram to the address of this router at the discovery port. Invalid and unexpected hellos
    /// are ignored.
    pub fn handle_targeted_hello(&mut self, now: Instant, source: Ipv4Addr, bytes: &[u8]) {
        self.take_datagram(now, Scope::Targeted(source), source, bytes);
    }

    fn take_datagram(&mut self, now: Instant, scope: Scope, source: Ipv4Addr, bytes: &[u8]) {
        let Ok(pdu) = Pdu::new(bytes, MAX_PDU_LENGTH) else { return };
        for raw in pdu.messages() {
            let Ok(raw) = raw else { return };
            if let Ok(Some(LdpMessage::Hello(hello))) = LdpMessage::new(&raw)
                && self.is_expected(scope, &hello)
            {
                self.take_hello(now, scope, source, pdu.sender, &hello);
            }
        }
    }

    /// Returns whether a hello is accepted (section 3.5.2.1).
    fn is_expected(&self, scope: Scope, hello: &Hello) -> bool {
        match scope {
            Scope::Link(_) => !hello.is_targeted && self.hellos.contains_key(&scope),
            Scope::Targeted(_) => {
                let is_answered = self.config.accepts_targeted && hello.requests_targeted;
                hello.is_targeted && (is_answered || self.hellos.contains_key(&scope))
            }
        }
    }

    fn take_hello(&mut self, now: Instant, scope: Scope, source: Ipv4Addr, peer: Identifier, hello: &Hello) {
        let transport = match hello.transport {
            None => source,
            Some(IpAddr::V4(transport)) => transport,
            Some(IpAddr::V6(_)) => return,
        };
        let is_unicast =
            !transport.is_unspecified() && !transport.is_multicast() && !transport.is_broadcast();
        let is_remote = peer.router != self.config.router && transport != self.config.transport;
        if !is_unicast || !is_remote {
            return;
        }
        let known = self.adjacencies.get(&(peer, scope));
        if known.is_none() && self.adjacencies.len() >= MAX_ADJACENCIES {
            return;
        }
        // The transport address cannot change during a session: the hello is from another router.
        let has_session = self.peers.get(&peer).is_some_and(|peer| peer.connection.is_some());
        if has_session && self.transport(peer).is_some_and(|known| known != transport) {
            return;
        }
        let hold = self.hold(scope).min(Duration::from_secs(match (hello.hold_seconds, scope) {
            (0, Scope::Link(_)) => LINK_HOLD_SECONDS.into(),
            (0, Scope::Targeted(_)) => TARGETED_HOLD_SECONDS.into(),
            (seconds, _) => seconds.into(),
        }));
        let is_new = known.is_none_or(|known| known.transport != transport || known.hold != hold);
        self.adjacencies.insert((peer, scope), Adjacency { transport, hold, expires: now + hold });
        self.peers.entry(peer).or_insert(LdpPeer {
            connection: None,
            is_connecting: false,
            retry_at: now,
            back_off: BACK_OFF.0,
        });
        if is_new {
            self.hellos.entry(scope).or_insert(HelloTransmission { next: now, is_answer: true });
            // The peer gets a hello at once, and connections that were accepted before this hello are
            // identified.
            self.send_hello(now, scope);
            self.identify_accepted(now, transport);
        }
        self.connect(now);
    }

    /// Returns the hold time of this router's hellos.
    fn hold(&self, scope: Scope) -> Duration {
        Duration::from_secs(self.hold_seconds(scope).into())
    }

    fn hold_seconds(&self, scope: Scope) -> u16 {
        let hold = match scope {
            Scope::Link(_) => self.config.link_hold,
            Scope::Targeted(_) => self.config.targeted_hold,
        };
        u16::try_from(hold.0 / Duration::from_secs(1).0).unwrap_or(u16::MAX).clamp(1, INFINITE - 1)
    }

    pub(super) fn send_hellos(&mut self, now: Instant) {
        let due: Vec<Scope> =
            self.hellos.iter().filter(|(_, sending)| sending.next <= now).map(|(scope, _)| *scope).collect();
        for scope in due {
            self.send_hello(now, scope);
        }
    }

    fn send_hello(&mut self, now: Instant, scope: Scope) {
        let is_targeted = matches!(scope, Scope::Targeted(_));
        let is_answer = self.hellos.get(&scope).is_some_and(|sending| sending.is_answer);
        let hello = Hello {
            hold_seconds: self.hold_seconds(scope),
            is_targeted,
            requests_targeted: is_targeted && !is_answer,
            transport: Some(self.config.transport.into()),
            configuration: None,
        };
        let bytes = self.encode_message(&Outgoing::Hello(hello));
        self.transmits.push_back(LdpAction::Discovery { scope, bytes });
        let in_scope = self.adjacencies.iter().filter(|((_, of_adjacency), _)| *of_adjacency == scope);
        let hold = in_scope.map(|(_, adjacency)| adjacency.hold).min().unwrap_or_else(|| self.hold(scope));
        self.hellos.insert(scope, HelloTransmission { next: now + hold / HELLOS_PER_HOLD, is_answer });
    }

    /// Encodes a PDU with one message.
    pub(super) fn encode_message(&mut self, message: &Outgoing<'_>) -> Vec<u8> {
        self.message_id = self.message_id.wrapping_add(1);
        let mut bytes = [0; 64];
        let mut writer = Writer::new(&mut bytes, self.identifier()).expect("64 bytes hold a PDU header");
        writer.message(self.message_id, message).expect("64 bytes hold a hello or a notification");
        writer.bytes().to_vec()
    }

    pub(super) fn expire_adjacencies(&mut self, now: Instant) {
        let mut expired = Vec::new();
        self.adjacencies.retain(|(peer, scope), adjacency| {
            let is_valid = adjacency.expires > now;
            if !is_valid {
                expired.push((*peer, *scope));
            }
            is_valid
        });
        for (peer, scope) in expired {
            if self.hellos.get(&scope).is_some_and(|sending| sending.is_answer)
                && !self.adjacencies.keys().any(|(_, of_adjacency)| *of_adjacency == scope)
            {
                self.hellos.remove(&scope);
            }
            if self.transport(peer).is_none()
                && let Some(known) = self.peers.remove(&peer)
                && let Some(connection) = known.connection
            {
                self.end(now, connection, LdpSessionEnd::Sent(LdpStatus::HOLD_TIMER_EXPIRED), (0, 0));
            }
        }
    }

    /// Iterates over the discovered peers.
    pub fn neighbors(&self) -> impl Iterator<Item = LdpNeighbor> + '_ {
        self.peers.iter().filter_map(|(peer, known)| {
            let session = known.connection.and_then(|connection| self.sessions.get(&connection));
            Some(LdpNeighbor {
                peer: *peer,
                transport: self.transport(*peer)?,
                phase: session.map(|session| session.phase),
                mappings: self.table.mappings_count(*peer),
                addresses: self.table.addresses_count(*peer),
                ft_session: session.and_then(|session| session.ft_session),
            })
        })
    }

    /// Returns the transport address of a peer.
    pub(super) fn transport(&self, peer: Identifier) -> Option<Ipv4Addr> {
        let last = Scope::Targeted(Ipv4Addr::BROADCAST);
        let of_peer = self.adjacencies.range((peer, Scope::Link(0))..=(peer, last));
        of_peer.map(|(_, adjacency)| adjacency.transport).next()
    }

    /// Returns the time of the next connection attempt to a peer, and its transport address; `None` if a
    /// connection exists or the peer is the active end.
    pub(super) fn connects_at(&self, peer: Identifier) -> Option<(Instant, Ipv4Addr)> {
        let known = self.peers.get(&peer)?;
        let transport = self.transport(peer)?;
        let is_due = known.connection.is_none() && !known.is_connecting;
        (is_due && self.is_active(transport)).then_some((known.retry_at, transport))
    }

    /// Returns whether this router opens the connection to a transport address.
    pub(super) fn is_active(&self, transport: Ipv4Addr) -> bool {
        self.config.transport > transport
    }

    pub(super) fn connect(&mut self, now: Instant) {
        let due: Vec<(Identifier, Ipv4Addr)> = self
            .peers
            .keys()
            .filter_map(|peer| self.connects_at(*peer).map(|(at, address)| (*peer, at, address)))
            .filter(|(_, at, _)| *at <= now)
            .map(|(peer, _, address)| (peer, address))
            .collect();
        for (peer, address) in due {
            self.peers.get_mut(&peer).expect("peers to connect to are known").is_connecting = true;
            self.transmits.push_back(LdpAction::Connect { peer, address });
        }
    }

    /// Handles a failed connection attempt to a peer.
    pub fn handle_connect_failed(&mut self, now: Instant, peer: Identifier) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.is_connecting = false;
            peer.retry_at = now + RETRY_UNREACHABLE;
        }
    }
}

impl LdpPeer {
    /// Sets the established connection; returns `false` if another one exists.
    pub fn attach(&mut self, connection: LdpConnection) -> bool {
        self.is_connecting = false;
        let is_first = self.connection.is_none();
        if is_first {
            self.connection = Some(connection);
        }
        is_first
    }

    /// Resets the back-off once a session is up.
    pub fn reset_back_off(&mut self) {
        self.back_off = BACK_OFF.0;
    }

    /// Removes the connection and schedules the next attempt.
    pub fn detach(&mut self, now: Instant, was_up: bool, why: LdpSessionEnd) {
        self.connection = None;
        let delay = match why {
            LdpSessionEnd::Lost => Some(RETRY_LOST),
            LdpSessionEnd::Sent(LdpStatus::KEEPALIVE_EXPIRED | LdpStatus::HOLD_TIMER_EXPIRED) => {
                Some(RETRY_LOST)
            }
            LdpSessionEnd::Received(LdpStatus::SHUTDOWN) => Some(RETRY_UNREACHABLE),
            LdpSessionEnd::Sent(_) | LdpSessionEnd::Received(_) => None,
        };
        if let (true, Some(delay)) = (was_up, delay) {
            self.retry_at = now + delay;
            return;
        }
        self.retry_at = now + self.back_off;
        self.back_off = (self.back_off * 2).min(BACK_OFF.1);
    }
}
