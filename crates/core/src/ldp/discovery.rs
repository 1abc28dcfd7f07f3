//! Discovery: hellos on each interface (basic, RFC 5036 section 2.4.1) and to single routers (extended,
//! section 2.4.2), the peers heard by them, and when the one of both with the higher transport address
//! connects (section 2.5.2).

use super::session::Phase;
use super::{Connection, End, Speaker, Transmit};
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use netstage_wire::ldp::message::{Hello, Message};
use netstage_wire::ldp::write::{Outgoing, Writer};
use netstage_wire::ldp::{Identifier, MOST_BYTES, Pdu, Status};

/// How long hellos hold that say it is as usual (section 3.5.2).
const LINK_HOLD_SECONDS: u16 = 15;
const TARGETED_HOLD_SECONDS: u16 = 45;
/// What stands for ever.
const FOR_EVER: u16 = u16::MAX;
/// Hellos that are sent while one holds.
const HELLOS_A_HOLD: u64 = 3;
/// After a session that was refused another is tried so much later, twice as late each time, and at most so
/// late (section 2.5.3).
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(120));
/// How soon another connection is tried after one that could not be made or was shut down, and after one
/// that was lost.
const UNREACHABLE: Duration = Duration::from_secs(5);
const LOST: Duration = Duration::from_secs(1);
/// Peers on interfaces, together; others are not heard.
const MOST_ADJACENCIES: usize = 1024;

/// By what hellos are sent and heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// An interface, with all routers on its link.
    Link(usize),
    /// One router, wherever it is.
    Targeted(Ipv4Addr),
}

/// Hellos that are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub next: Instant,
    /// They answer those of another, and end with them.
    is_answer: bool,
}

/// A peer that is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The peer.
    pub peer: Identifier,
    /// Where its sessions are.
    pub transport: Ipv4Addr,
    /// How far the session is; none: there is no connection.
    pub phase: Option<Phase>,
    /// Labels that it has told of.
    pub mappings: usize,
    /// Addresses that it has told of.
    pub addresses: usize,
}

/// A peer that was heard on an interface, or from afar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adjacency {
    transport: Ipv4Addr,
    /// The lesser of what both ends' hellos say.
    hold: Duration,
    pub expires: Instant,
}

/// A peer that was heard anywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub connection: Option<Connection>,
    is_connecting: bool,
    /// Not to be connected to before.
    retry_at: Instant,
    /// How long the next refusal counts.
    back_off: Duration,
}

impl Speaker {
    /// Looks for peers on an interface from now on.
    pub fn add_interface(&mut self, now: Instant, interface: usize) {
        self.hellos.entry(Scope::Link(interface)).or_insert(Sending { next: now, is_answer: false });
    }

    /// Looks for a router that need not be on any link, at the address its hellos come from.
    pub fn add_target(&mut self, now: Instant, address: Ipv4Addr) {
        let target = self.hellos.entry(Scope::Targeted(address));
        target.or_insert(Sending { next: now, is_answer: false }).is_answer = false;
    }

    /// Looks for it no more. If it is heard nowhere else it is lost.
    pub fn remove_target(&mut self, now: Instant, address: Ipv4Addr) {
        let scope = Scope::Targeted(address);
        self.hellos.remove(&scope);
        for ((_, by), adjacency) in &mut self.adjacencies {
            if *by == scope {
                adjacency.expires = now;
            }
        }
        self.expire_adjacencies(now);
    }

    /// A datagram to all routers arrived at the port of discovery. One that is no hello, or nobody's,
    /// is ignored.
    pub fn handle_hello(&mut self, now: Instant, interface: usize, source: Ipv4Addr, bytes: &[u8]) {
        self.take_datagram(now, Scope::Link(interface), source, bytes);
    }

    /// A datagram to this router alone arrived at the port of discovery; as
    /// [`handle_hello`](Speaker::handle_hello).
    pub fn handle_targeted_hello(&mut self, now: Instant, source: Ipv4Addr, bytes: &[u8]) {
        self.take_datagram(now, Scope::Targeted(source), source, bytes);
    }

    fn take_datagram(&mut self, now: Instant, scope: Scope, source: Ipv4Addr, bytes: &[u8]) {
        let Ok(pdu) = Pdu::new(bytes, MOST_BYTES) else { return };
        for raw in pdu.messages() {
            let Ok(raw) = raw else { return };
            if let Ok(Some(Message::Hello(hello))) = Message::new(&raw)
                && self.is_expected(scope, &hello)
            {
                self.take_hello(now, scope, source, pdu.sender, &hello);
            }
        }
    }

    /// Whether hellos like this are listened to (section 3.5.2.1).
    fn is_expected(&self, scope: Scope, hello: &Hello) -> bool {
        match scope {
            Scope::Link(_) => !hello.is_targeted && self.hellos.contains_key(&scope),
            Scope::Targeted(_) => {
                let is_answered = self.config.accepts_targeted && hello.asks_for_targeted;
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
        let is_somewhere =
            !transport.is_unspecified() && !transport.is_multicast() && !transport.is_broadcast();
        let is_another = peer.router != self.config.router && transport != self.config.transport;
        if !is_somewhere || !is_another {
            return;
        }
        let known = self.adjacencies.get(&(peer, scope));
        if known.is_none() && self.adjacencies.len() >= MOST_ADJACENCIES {
            return;
        }
        // While there is a session its peer has not moved: it is somebody else who says so.
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
        self.peers.entry(peer).or_insert(Peer {
            connection: None,
            is_connecting: false,
            retry_at: now,
            back_off: BACK_OFF.0,
        });
        if is_new {
            self.hellos.entry(scope).or_insert(Sending { next: now, is_answer: true });
            // It need not wait for the next one, and nor need a connection that came before the hello.
            self.send_hello(now, scope);
            self.identify_accepted(now, transport);
        }
        self.connect(now);
    }

    /// What this end says of how long its hellos hold.
    fn hold(&self, scope: Scope) -> Duration {
        Duration::from_secs(self.hold_seconds(scope).into())
    }

    fn hold_seconds(&self, scope: Scope) -> u16 {
        let hold = match scope {
            Scope::Link(_) => self.config.link_hold,
            Scope::Targeted(_) => self.config.targeted_hold,
        };
        u16::try_from(hold.0 / Duration::from_secs(1).0).unwrap_or(u16::MAX).clamp(1, FOR_EVER - 1)
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
            asks_for_targeted: is_targeted && !is_answer,
            transport: Some(self.config.transport.into()),
            configuration: None,
        };
        let bytes = self.single(&Outgoing::Hello(hello));
        self.transmits.push_back(Transmit::Discovery { scope, bytes });
        let heard = self.adjacencies.iter().filter(|((_, by), _)| *by == scope);
        let hold = heard.map(|(_, adjacency)| adjacency.hold).min().unwrap_or_else(|| self.hold(scope));
        self.hellos.insert(scope, Sending { next: now + hold / HELLOS_A_HOLD, is_answer });
    }

    /// A PDU of one message.
    pub(super) fn single(&mut self, message: &Outgoing<'_>) -> Vec<u8> {
        self.message_id = self.message_id.wrapping_add(1);
        let mut bytes = [0; 64];
        let mut writer = Writer::new(&mut bytes, self.identifier()).expect("a header fits");
        writer.message(self.message_id, message).expect("hellos and notifications are short");
        writer.bytes().to_vec()
    }

    pub(super) fn expire_adjacencies(&mut self, now: Instant) {
        let mut gone = Vec::new();
        self.adjacencies.retain(|(peer, scope), adjacency| {
            let stays = adjacency.expires > now;
            if !stays {
                gone.push((*peer, *scope));
            }
            stays
        });
        for (peer, scope) in gone {
            if self.hellos.get(&scope).is_some_and(|sending| sending.is_answer)
                && !self.adjacencies.keys().any(|(_, by)| *by == scope)
            {
                self.hellos.remove(&scope);
            }
            if self.transport(peer).is_none()
                && let Some(known) = self.peers.remove(&peer)
                && let Some(connection) = known.connection
            {
                self.end(now, connection, End::Sent(Status::HOLD_TIMER_EXPIRED), (0, 0));
            }
        }
    }

    /// All peers that are heard.
    pub fn neighbours(&self) -> impl Iterator<Item = Neighbour> + '_ {
        self.peers.iter().filter_map(|(peer, known)| {
            let session = known.connection.and_then(|connection| self.sessions.get(&connection));
            Some(Neighbour {
                peer: *peer,
                transport: self.transport(*peer)?,
                phase: session.map(|session| session.phase),
                mappings: self.table.mappings_count(*peer),
                addresses: self.table.addresses_count(*peer),
            })
        })
    }

    /// Where a peer's sessions are.
    pub(super) fn transport(&self, peer: Identifier) -> Option<Ipv4Addr> {
        let last = Scope::Targeted(Ipv4Addr::BROADCAST);
        let of_peer = self.adjacencies.range((peer, Scope::Link(0))..=(peer, last));
        of_peer.map(|(_, adjacency)| adjacency.transport).next()
    }

    /// When a peer is to be connected to, and where; never while there is a connection or it is the one
    /// who connects.
    pub(super) fn connects_at(&self, peer: Identifier) -> Option<(Instant, Ipv4Addr)> {
        let known = self.peers.get(&peer)?;
        let transport = self.transport(peer)?;
        let is_due = known.connection.is_none() && !known.is_connecting;
        (is_due && self.is_active(transport)).then_some((known.retry_at, transport))
    }

    /// Whether it is this end that connects.
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
            self.peers.get_mut(&peer).expect("it is due").is_connecting = true;
            self.transmits.push_back(Transmit::Connect { peer, address });
        }
    }

    /// A peer that was to be connected to cannot be reached.
    pub fn handle_refused(&mut self, now: Instant, peer: Identifier) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.is_connecting = false;
            peer.retry_at = now + UNREACHABLE;
        }
    }
}

impl Peer {
    /// The connection that was asked for is there; tells whether it is still wanted.
    pub fn attach(&mut self, connection: Connection) -> bool {
        self.is_connecting = false;
        let is_wanted = self.connection.is_none();
        if is_wanted {
            self.connection = Some(connection);
        }
        is_wanted
    }

    /// A session is up.
    pub fn succeed(&mut self) {
        self.back_off = BACK_OFF.0;
    }

    /// A session is no more; it was up or it never was.
    pub fn detach(&mut self, now: Instant, was_up: bool, why: End) {
        self.connection = None;
        let soon = match why {
            End::Lost => Some(LOST),
            End::Sent(Status::KEEPALIVE_EXPIRED | Status::HOLD_TIMER_EXPIRED) => Some(LOST),
            End::Received(Status::SHUTDOWN) => Some(UNREACHABLE),
            End::Sent(_) | End::Received(_) => None,
        };
        if let (true, Some(soon)) = (was_up, soon) {
            self.retry_at = now + soon;
            return;
        }
        self.retry_at = now + self.back_off;
        self.back_off = (self.back_off * 2).min(BACK_OFF.1);
    }
}
