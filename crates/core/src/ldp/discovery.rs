//! Basic discovery (RFC 5036 section 2.4.1): hellos on each interface, the peers heard there, and when the
//! one of both with the higher transport address connects (section 2.5.2).
//!
//! Hellos to one router alone (extended discovery) are not sent and not answered.

use super::{Connection, End, Speaker, Transmit};
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use netstage_wire::ldp::message::{Hello, Message};
use netstage_wire::ldp::write::{Outgoing, Writer};
use netstage_wire::ldp::{Identifier, MOST_BYTES, Pdu, Status};

/// What hellos say of how long they hold (section 3.5.2); three are sent in that time.
const HOLD_SECONDS: u16 = 15;
/// After a session that was refused another is tried so much later, twice as late each time, and at most so
/// late (section 2.5.3).
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(120));
/// How soon another connection is tried after one that could not be made or was shut down, and after one
/// that was lost.
const UNREACHABLE: Duration = Duration::from_secs(5);
const LOST: Duration = Duration::from_secs(1);
/// Peers on interfaces, together; others are not heard.
const MOST_ADJACENCIES: usize = 1024;

/// A peer that was heard on an interface.
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
        self.interfaces.entry(interface).or_insert(now);
    }

    /// Looks for none there any more. Those that are on no other interface are lost.
    pub fn remove_interface(&mut self, now: Instant, interface: usize) {
        self.interfaces.remove(&interface);
        for ((_, on), adjacency) in &mut self.adjacencies {
            if *on == interface {
                adjacency.expires = now;
            }
        }
        self.expire_adjacencies(now);
    }

    /// A datagram to all routers arrived at the port of discovery. One that is no hello, or nobody's,
    /// is ignored.
    pub fn handle_hello(&mut self, now: Instant, interface: usize, source: Ipv4Addr, bytes: &[u8]) {
        if !self.interfaces.contains_key(&interface) {
            return;
        }
        let Ok(pdu) = Pdu::new(bytes, MOST_BYTES) else { return };
        for raw in pdu.messages() {
            let Ok(raw) = raw else { return };
            if let Ok(Some(Message::Hello(hello))) = Message::new(&raw) {
                self.take_hello(now, interface, source, pdu.sender, &hello);
            }
        }
    }

    fn take_hello(
        &mut self,
        now: Instant,
        interface: usize,
        source: Ipv4Addr,
        peer: Identifier,
        hello: &Hello,
    ) {
        let transport = match hello.transport {
            None => source,
            Some(IpAddr::V4(transport)) => transport,
            Some(IpAddr::V6(_)) => return,
        };
        let is_somewhere =
            !transport.is_unspecified() && !transport.is_multicast() && !transport.is_broadcast();
        let is_another = peer.router != self.config.router && transport != self.config.transport;
        if hello.is_targeted || !is_somewhere || !is_another {
            return;
        }
        let known = self.adjacencies.get(&(peer, interface));
        if known.is_none() && self.adjacencies.len() >= MOST_ADJACENCIES {
            return;
        }
        // While there is a session its peer has not moved: it is somebody else who says so.
        let has_session = self.peers.get(&peer).is_some_and(|peer| peer.connection.is_some());
        if has_session && self.transport(peer).is_some_and(|known| known != transport) {
            return;
        }
        let seconds =
            if hello.hold_seconds == 0 { HOLD_SECONDS } else { hello.hold_seconds.min(HOLD_SECONDS) };
        let hold = Duration::from_secs(seconds.into());
        let is_new = known.is_none_or(|known| known.transport != transport || known.hold != hold);
        self.adjacencies.insert((peer, interface), Adjacency { transport, hold, expires: now + hold });
        self.peers.entry(peer).or_insert(Peer {
            connection: None,
            is_connecting: false,
            retry_at: now,
            back_off: BACK_OFF.0,
        });
        if is_new {
            // It need not wait for the next one, and nor need a connection that came before the hello.
            self.send_hello(now, interface);
            self.identify_accepted(now, transport);
        }
        self.connect(now);
    }

    pub(super) fn send_hellos(&mut self, now: Instant) {
        let due: Vec<usize> =
            self.interfaces.iter().filter(|(_, at)| **at <= now).map(|(interface, _)| *interface).collect();
        for interface in due {
            self.send_hello(now, interface);
        }
    }

    fn send_hello(&mut self, now: Instant, interface: usize) {
        let hello = Hello {
            hold_seconds: HOLD_SECONDS,
            is_targeted: false,
            asks_for_targeted: false,
            transport: Some(self.config.transport.into()),
            configuration: None,
        };
        let bytes = self.single(&Outgoing::Hello(hello));
        self.transmits.push_back(Transmit::Discovery { interface, bytes });
        let on_interface = self.adjacencies.iter().filter(|((_, on), _)| *on == interface);
        let hold = on_interface.map(|(_, adjacency)| adjacency.hold).min();
        let hold = hold.unwrap_or(Duration::from_secs(HOLD_SECONDS.into()));
        self.interfaces.insert(interface, now + hold / 3);
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
        self.adjacencies.retain(|(peer, _), adjacency| {
            let stays = adjacency.expires > now;
            if !stays {
                gone.push(*peer);
            }
            stays
        });
        for peer in gone {
            if self.transport(peer).is_none()
                && let Some(known) = self.peers.remove(&peer)
                && let Some(connection) = known.connection
            {
                self.end(now, connection, End::Sent(Status::HOLD_TIMER_EXPIRED), (0, 0));
            }
        }
    }

    /// Where a peer's sessions are.
    pub(super) fn transport(&self, peer: Identifier) -> Option<Ipv4Addr> {
        let of_peer = self.adjacencies.range((peer, 0)..=(peer, usize::MAX));
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
