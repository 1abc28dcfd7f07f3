//! Sessions (RFC 5036 sections 2.5.3 to 2.5.6): initialization, negotiation of parameters, keepalives and
//! termination.

use super::distribution::Upstream;
use super::receive::about;
use super::{Config, Connection, End, Event, Speaker, Transmit};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::ldp::message::Initialization;
use netstage_wire::ldp::write::Outgoing;
use netstage_wire::ldp::{Identifier, MOST_BYTES, Status};

/// Maximum time for establishing a session.
const SETUP_TIME: Duration = Duration::from_secs(15);
/// Maximum number of connections from unidentified peers.
const MAX_UNIDENTIFIED: usize = 64;
/// Maximum PDU length up to this requests the default (section 3.5.3).
const DEFAULT_BELOW: u16 = 255;

/// Phase of a session (section 2.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connection accepted; the initialization of the peer is pending.
    Initialized,
    /// Connected, and initialization sent.
    OpenSent,
    /// Both initializations exchanged; the keepalive of the peer is pending.
    OpenReceived,
    /// Session up.
    Operational,
}

#[derive(Debug)]
pub(super) struct Session {
    pub peer: Option<Identifier>,
    pub phase: Phase,
    /// Remote address of the connection.
    pub remote: Ipv4Addr,
    /// Received bytes of an incomplete PDU.
    pub input: Vec<u8>,
    /// Maximum PDU length.
    pub most_bytes: usize,
    keepalive: Duration,
    expires: Instant,
    next_keepalive: Instant,
    pub is_writable: bool,
    /// Pending messages, sent before addresses and labels.
    pub replies: VecDeque<Outgoing<'static>>,
    pub upstream: Upstream,
    /// True if [`LdpEvent::Full`] has been reported.
    pub is_full: bool,
}

impl Session {
    fn new(now: Instant, peer: Option<Identifier>, remote: Ipv4Addr, phase: Phase) -> Session {
        Session {
            peer,
            phase,
            remote,
            input: Vec::new(),
            most_bytes: MOST_BYTES,
            keepalive: SETUP_TIME,
            expires: now + SETUP_TIME,
            next_keepalive: Instant::NEVER,
            is_writable: true,
            replies: VecDeque::new(),
            upstream: Upstream::default(),
            is_full: false,
        }
    }

    pub fn is_up(&self) -> bool {
        self.phase == Phase::Operational
    }

    /// Returns the time of the next keepalive or of the expiry.
    pub fn due(&self) -> Instant {
        self.expires.min(self.next_keepalive)
    }

    /// Restarts the keepalive timer after a received PDU.
    pub fn heard(&mut self, now: Instant) {
        if self.is_up() {
            self.expires = now + self.keepalive;
        }
    }

    /// Schedules the next keepalive after a sent PDU.
    pub fn sent(&mut self, now: Instant) {
        if self.next_keepalive != Instant::NEVER {
            self.next_keepalive = now + self.keepalive / 3;
        }
    }

    /// Negotiates the parameters of the session (section 3.5.3); returns the status of a failure.
    fn negotiate(&mut self, now: Instant, config: &Config, theirs: &Initialization) -> Result<(), Status> {
        if theirs.receiver != (Identifier { router: config.router, space: 0 }) {
            return Err(Status::NO_HELLO);
        }
        if theirs.keepalive_seconds == 0 {
            return Err(Status::BAD_KEEPALIVE);
        }
        // If the peer proposes downstream on demand, downstream unsolicited applies according to the section.
        self.most_bytes = match theirs.most_bytes {
            ..=DEFAULT_BELOW => MOST_BYTES,
            max => MOST_BYTES.min(max.into()),
        };
        let seconds = keepalive_seconds(config).min(theirs.keepalive_seconds);
        self.keepalive = Duration::from_secs(seconds.into());
        self.next_keepalive = now + self.keepalive / 3;
        Ok(())
    }
}

fn keepalive_seconds(config: &Config) -> u16 {
    u16::try_from(config.keepalive.0 / Duration::from_secs(1).0).unwrap_or(u16::MAX).max(1)
}

fn initialization(config: &Config, receiver: Identifier) -> Outgoing<'static> {
    Outgoing::Initialization(Initialization {
        keepalive_seconds: keepalive_seconds(config),
        on_demand: false,
        detects_loops: config.loop_detection.is_some(),
        path_limit: config.loop_detection.unwrap_or(0),
        most_bytes: MOST_BYTES as u16,
        receiver,
    })
}

impl Speaker {
    /// Handles the success of [`Transmit::Connect`].
    pub fn handle_connected(&mut self, now: Instant, peer: Identifier, connection: Connection) {
        let transport = self.transport(peer);
        let known = self.peers.get_mut(&peer);
        let (Some(remote), Some(known)) = (transport, known) else {
            self.transmits.push_back(Transmit::Close { connection });
            return;
        };
        if !known.attach(connection) {
            self.transmits.push_back(Transmit::Close { connection });
            return;
        }
        let mut session = Session::new(now, Some(peer), remote, Phase::OpenSent);
        session.replies.push_back(initialization(&self.config, peer));
        self.sessions.insert(connection, session);
    }

    /// Handles a connection accepted at the local transport address.
    pub fn handle_accepted(&mut self, now: Instant, connection: Connection, remote: Ipv4Addr) {
        let unidentified = self.sessions.values().filter(|session| session.peer.is_none()).count();
        if unidentified >= MAX_UNIDENTIFIED {
            self.transmits.push_back(Transmit::Close { connection });
            return;
        }
        self.sessions.insert(connection, Session::new(now, None, remote, Phase::Initialized));
    }

    /// Handles the loss of a connection, or its closing by the peer.
    pub fn handle_closed(&mut self, now: Instant, connection: Connection) {
        self.end(now, connection, End::Lost, (0, 0));
    }

    /// Sets whether a connection accepts more bytes, initially true. While it does not, messages stay pending,
    /// and several changes of a prefix are advertised as one.
    pub fn set_writable(&mut self, connection: Connection, is_writable: bool) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.is_writable = is_writable;
        }
    }

    /// Ends all sessions with a notification, and stops discovery.
    pub fn shut_down(&mut self, now: Instant) {
        self.hellos.clear();
        let connections: Vec<Connection> = self.sessions.keys().copied().collect();
        for connection in connections {
            self.end(now, connection, End::Sent(Status::SHUTDOWN), (0, 0));
        }
        self.adjacencies.clear();
        self.peers.clear();
    }

    /// Continues the connections from an address after the hello of its router.
    pub(super) fn identify_accepted(&mut self, now: Instant, remote: Ipv4Addr) {
        let unidentified = self.sessions.iter().filter(|(_, session)| session.peer.is_none());
        let from_remote = unidentified.filter(|(_, session)| session.remote == remote);
        let connections: Vec<Connection> = from_remote.map(|(connection, _)| *connection).collect();
        for connection in connections {
            self.handle_bytes(now, connection, &[]);
        }
    }

    /// Assigns an accepted connection to the sender of its first PDU. The new connection shows that the peer
    /// has given up an earlier one.
    pub(super) fn identify(
        &mut self,
        now: Instant,
        connection: Connection,
        peer: Identifier,
    ) -> Result<(), Status> {
        let transport = self.transport(peer).ok_or(Status::NO_HELLO)?;
        if self.is_active(transport) {
            return Err(Status::SHUTDOWN);
        }
        if let Some(previous) = self.peers.get(&peer).and_then(|known| known.connection) {
            self.end(now, previous, End::Sent(Status::SHUTDOWN), (0, 0));
        }
        self.peers.get_mut(&peer).ok_or(Status::NO_HELLO)?.attach(connection);
        self.sessions.get_mut(&connection).ok_or(Status::INTERNAL_ERROR)?.peer = Some(peer);
        Ok(())
    }

    pub(super) fn take_initialization(
        &mut self,
        now: Instant,
        connection: Connection,
        theirs: &Initialization,
    ) -> Result<(), Status> {
        let Some(session) = self.sessions.get_mut(&connection) else { return Ok(()) };
        let is_first = match session.phase {
            Phase::Initialized => true,
            Phase::OpenSent => false,
            Phase::OpenReceived | Phase::Operational => return Err(Status::SHUTDOWN),
        };
        session.negotiate(now, &self.config, theirs)?;
        if let (true, Some(peer)) = (is_first, session.peer) {
            session.replies.push_back(initialization(&self.config, peer));
        }
        session.replies.push_back(Outgoing::KeepAlive);
        session.phase = Phase::OpenReceived;
        Ok(())
    }

    pub(super) fn take_keepalive(&mut self, now: Instant, connection: Connection) -> Result<(), Status> {
        let Some(session) = self.sessions.get_mut(&connection) else { return Ok(()) };
        let Some(peer) = session.peer else { return Err(Status::SHUTDOWN) };
        match session.phase {
            Phase::Operational => return Ok(()),
            Phase::OpenReceived => {}
            Phase::Initialized | Phase::OpenSent => return Err(Status::SHUTDOWN),
        }
        session.phase = Phase::Operational;
        session.heard(now);
        session.upstream.has_new_addresses = true;
        session.upstream.dirty.extend(self.table.own());
        if let Some(known) = self.peers.get_mut(&peer) {
            known.succeed();
        }
        self.events.push_back(Event::Up { peer });
        Ok(())
    }

    pub(super) fn expire_sessions(&mut self, now: Instant) {
        let due = self.sessions.iter().filter(|(_, session)| session.due() <= now);
        let due: Vec<Connection> = due.map(|(connection, _)| *connection).collect();
        for connection in due {
            let Some(session) = self.sessions.get_mut(&connection) else { continue };
            if session.expires <= now {
                let is_unidentified = session.peer.is_none() && !session.input.is_empty();
                let status = if is_unidentified { Status::NO_HELLO } else { Status::KEEPALIVE_EXPIRED };
                self.end(now, connection, End::Sent(status), (0, 0));
                continue;
            }
            // A pending keepalive is sufficient.
            if session.replies.back() != Some(&Outgoing::KeepAlive) {
                session.replies.push_back(Outgoing::KeepAlive);
            }
            session.sent(now);
        }
    }

    /// Ends a session, with the ID and the type of the message that caused it.
    pub(super) fn end(
        &mut self,
        now: Instant,
        connection: Connection,
        why: End,
        (message_id, message_kind): (u32, u16),
    ) {
        let Some(session) = self.sessions.remove(&connection) else { return };
        let status = match why {
            End::Sent(status) => Some(status),
            // A shutdown is answered by one (section 2.5.4).
            End::Received(Status::SHUTDOWN) => Some(Status::SHUTDOWN),
            End::Received(_) | End::Lost => None,
        };
        if let Some(status) = status {
            let notification = about(status, message_id, message_kind);
            let bytes = self.single(&Outgoing::Notification(notification));
            self.transmits.push_back(Transmit::Stream { connection, bytes });
        }
        if why != End::Lost {
            self.transmits.push_back(Transmit::Close { connection });
        }
        let Some(peer) = session.peer else { return };
        let was_up = session.is_up();
        if let Some(known) = self.peers.get_mut(&peer) {
            known.detach(now, was_up, why);
        }
        if !was_up {
            self.events.push_back(Event::Refused { peer, why });
            return;
        }
        for label in session.upstream.into_held() {
            self.events.extend(self.table.let_go(label).map(|label| Event::Free { label }));
        }
        self.events.push_back(Event::Down { peer, why });
        for fec in self.table.forget(peer) {
            self.refresh(fec);
        }
    }
}
