//! Sessions (RFC 5036 sections 2.5.3 to 2.5.6): initialization, negotiation of parameters, keepalives and
//! termination.

use super::distribution::Upstream;
use super::receive::notification_about;
use super::{LdpAction, LdpConfig, LdpConnection, LdpEvent, LdpSessionEnd, LdpSpeaker};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::ldp::message::{FtSession, Initialization};
use netstage_wire::ldp::write::Outgoing;
use netstage_wire::ldp::{Identifier, LdpStatus, MAX_PDU_LENGTH};

/// Maximum time for establishing a session.
const SETUP_TIME: Duration = Duration::from_secs(15);
/// Maximum number of connections from unidentified peers.
const MAX_UNIDENTIFIED: usize = 64;
/// Maximum PDU length up to this requests the default (section 3.5.3).
const DEFAULT_BELOW: u16 = 255;

/// Phase of a session (section 2.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LdpPhase {
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
pub(super) struct LdpSession {
    pub peer: Option<Identifier>,
    pub phase: LdpPhase,
    /// Remote address of the connection.
    pub remote: Ipv4Addr,
    /// Received bytes of an incomplete PDU.
    pub input: Vec<u8>,
    /// Maximum PDU length.
    pub max_pdu_length: usize,
    keepalive: Duration,
    expires: Instant,
    next_keepalive: Instant,
    pub is_writable: bool,
    /// Pending messages, sent before addresses and labels.
    pub replies: VecDeque<Outgoing<'static>>,
    pub upstream: Upstream,
    /// True if [`LdpEvent::Full`] has been reported.
    pub is_full: bool,
    /// FT Session TLV of the peer.
    pub ft_session: Option<FtSession>,
}

impl LdpSession {
    fn new(now: Instant, peer: Option<Identifier>, remote: Ipv4Addr, phase: LdpPhase) -> LdpSession {
        LdpSession {
            peer,
            phase,
            remote,
            input: Vec::new(),
            max_pdu_length: MAX_PDU_LENGTH,
            keepalive: SETUP_TIME,
            expires: now + SETUP_TIME,
            next_keepalive: Instant::NEVER,
            is_writable: true,
            replies: VecDeque::new(),
            upstream: Upstream::default(),
            is_full: false,
            ft_session: None,
        }
    }

    pub fn is_up(&self) -> bool {
        self.phase == LdpPhase::Operational
    }

    /// Returns the time of the next keepalive or of the expiry.
    pub fn next_timeout(&self) -> Instant {
        self.expires.min(self.next_keepalive)
    }

    /// Restarts the keepalive timer after a received PDU.
    pub fn restart_keepalive_timer(&mut self, now: Instant) {
        if self.is_up() {
            self.expires = now + self.keepalive;
        }
    }

    /// Schedules the next keepalive after a sent PDU.
    pub fn schedule_keepalive(&mut self, now: Instant) {
        if self.next_keepalive != Instant::NEVER {
            self.next_keepalive = now + self.keepalive / 3;
        }
    }

    /// Negotiates the parameters of the session (section 3.5.3); returns the status of a failure.
    fn negotiate(
        &mut self,
        now: Instant,
        config: &LdpConfig,
        theirs: &Initialization,
    ) -> Result<(), LdpStatus> {
        if theirs.receiver != (Identifier { router: config.router, space: 0 }) {
            return Err(LdpStatus::NO_HELLO);
        }
        if theirs.keepalive_seconds == 0 {
            return Err(LdpStatus::BAD_KEEPALIVE);
        }
        // If the peer proposes downstream on demand, downstream unsolicited applies according to the section.
        self.max_pdu_length = match theirs.max_pdu_length {
            ..=DEFAULT_BELOW => MAX_PDU_LENGTH,
            max => MAX_PDU_LENGTH.min(max.into()),
        };
        let seconds = keepalive_seconds(config).min(theirs.keepalive_seconds);
        self.keepalive = Duration::from_secs(seconds.into());
        self.next_keepalive = now + self.keepalive / 3;
        self.ft_session = theirs.ft_session;
        Ok(())
    }
}

fn keepalive_seconds(config: &LdpConfig) -> u16 {
    u16::try_from(config.keepalive.0 / Duration::from_secs(1).0).unwrap_or(u16::MAX).max(1)
}

fn initialization(config: &LdpConfig, receiver: Identifier) -> Outgoing<'static> {
    Outgoing::Initialization(Initialization {
        keepalive_seconds: keepalive_seconds(config),
        on_demand: false,
        detects_loops: config.loop_detection.is_some(),
        path_limit: config.loop_detection.unwrap_or(0),
        max_pdu_length: MAX_PDU_LENGTH as u16,
        receiver,
        ft_session: config.restart.map(|restart| restart.ft_session()),
    })
}

impl LdpSpeaker {
    /// Handles the success of [`LdpAction::Connect`].
    pub fn handle_connected(&mut self, now: Instant, peer: Identifier, connection: LdpConnection) {
        let transport = self.transport(peer);
        let known = self.peers.get_mut(&peer);
        let (Some(remote), Some(known)) = (transport, known) else {
            self.transmits.push_back(LdpAction::Close { connection });
            return;
        };
        if !known.attach(connection) {
            self.transmits.push_back(LdpAction::Close { connection });
            return;
        }
        let mut session = LdpSession::new(now, Some(peer), remote, LdpPhase::OpenSent);
        session.replies.push_back(initialization(&self.config, peer));
        self.sessions.insert(connection, session);
    }

    /// Handles a connection accepted at the local transport address.
    pub fn handle_accepted(&mut self, now: Instant, connection: LdpConnection, remote: Ipv4Addr) {
        let unidentified = self.sessions.values().filter(|session| session.peer.is_none()).count();
        if unidentified >= MAX_UNIDENTIFIED {
            self.transmits.push_back(LdpAction::Close { connection });
            return;
        }
        self.sessions.insert(connection, LdpSession::new(now, None, remote, LdpPhase::Initialized));
    }

    /// Handles the loss of a connection, or its closing by the peer.
    pub fn handle_closed(&mut self, now: Instant, connection: LdpConnection) {
        self.end(now, connection, LdpSessionEnd::Lost, (0, 0));
    }

    /// Sets whether a connection accepts more bytes, initially true. While it does not, messages stay pending,
    /// and several changes of a prefix are advertised as one.
    pub fn set_writable(&mut self, connection: LdpConnection, is_writable: bool) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.is_writable = is_writable;
        }
    }

    /// Ends all sessions with a notification, and stops discovery.
    pub fn shut_down(&mut self, now: Instant) {
        self.hellos.clear();
        let connections: Vec<LdpConnection> = self.sessions.keys().copied().collect();
        for connection in connections {
            self.end(now, connection, LdpSessionEnd::Sent(LdpStatus::SHUTDOWN), (0, 0));
        }
        self.adjacencies.clear();
        self.peers.clear();
        while let Some(peer) = self.restarting.keys().next().copied() {
            self.end_restart(peer);
        }
    }

    /// Continues the connections from an address after the hello of its router.
    pub(super) fn identify_accepted(&mut self, now: Instant, remote: Ipv4Addr) {
        let unidentified = self.sessions.iter().filter(|(_, session)| session.peer.is_none());
        let from_remote = unidentified.filter(|(_, session)| session.remote == remote);
        let connections: Vec<LdpConnection> = from_remote.map(|(connection, _)| *connection).collect();
        for connection in connections {
            self.handle_bytes(now, connection, &[]);
        }
    }

    /// Assigns an accepted connection to the sender of its first PDU. The new connection shows that the peer
    /// has given up an earlier one.
    pub(super) fn identify(
        &mut self,
        now: Instant,
        connection: LdpConnection,
        peer: Identifier,
    ) -> Result<(), LdpStatus> {
        let transport = self.transport(peer).ok_or(LdpStatus::NO_HELLO)?;
        if self.is_active(transport) {
            return Err(LdpStatus::SHUTDOWN);
        }
        if let Some(previous) = self.peers.get(&peer).and_then(|known| known.connection) {
            let session = self.sessions.get(&previous);
            // A peer that restarts gracefully cannot close its earlier connection.
            if session.is_some_and(|session| self.retention(session, LdpSessionEnd::Lost).is_some()) {
                self.transmits.push_back(LdpAction::Close { connection: previous });
                self.end(now, previous, LdpSessionEnd::Lost, (0, 0));
            } else {
                self.end(now, previous, LdpSessionEnd::Sent(LdpStatus::SHUTDOWN), (0, 0));
            }
        }
        self.peers.get_mut(&peer).ok_or(LdpStatus::NO_HELLO)?.attach(connection);
        self.sessions.get_mut(&connection).ok_or(LdpStatus::INTERNAL_ERROR)?.peer = Some(peer);
        Ok(())
    }

    pub(super) fn take_initialization(
        &mut self,
        now: Instant,
        connection: LdpConnection,
        theirs: &Initialization,
    ) -> Result<(), LdpStatus> {
        let Some(session) = self.sessions.get_mut(&connection) else { return Ok(()) };
        let is_first = match session.phase {
            LdpPhase::Initialized => true,
            LdpPhase::OpenSent => false,
            LdpPhase::OpenReceived | LdpPhase::Operational => return Err(LdpStatus::SHUTDOWN),
        };
        session.negotiate(now, &self.config, theirs)?;
        if let (true, Some(peer)) = (is_first, session.peer) {
            session.replies.push_back(initialization(&self.config, peer));
        }
        session.replies.push_back(Outgoing::KeepAlive);
        session.phase = LdpPhase::OpenReceived;
        Ok(())
    }

    pub(super) fn take_keepalive(
        &mut self,
        now: Instant,
        connection: LdpConnection,
    ) -> Result<(), LdpStatus> {
        let Some(session) = self.sessions.get_mut(&connection) else { return Ok(()) };
        let Some(peer) = session.peer else { return Err(LdpStatus::SHUTDOWN) };
        match session.phase {
            LdpPhase::Operational => return Ok(()),
            LdpPhase::OpenReceived => {}
            LdpPhase::Initialized | LdpPhase::OpenSent => return Err(LdpStatus::SHUTDOWN),
        }
        session.phase = LdpPhase::Operational;
        session.restart_keepalive_timer(now);
        session.upstream.has_new_addresses = true;
        session.upstream.dirty.extend(self.table.bound_prefixes());
        let ft_session = session.ft_session;
        if let Some(known) = self.peers.get_mut(&peer) {
            known.reset_back_off();
        }
        self.events.push_back(LdpEvent::Up { peer });
        self.resume(now, peer, ft_session);
        Ok(())
    }

    pub(super) fn expire_sessions(&mut self, now: Instant) {
        let due = self.sessions.iter().filter(|(_, session)| session.next_timeout() <= now);
        let due: Vec<LdpConnection> = due.map(|(connection, _)| *connection).collect();
        for connection in due {
            let Some(session) = self.sessions.get_mut(&connection) else { continue };
            if session.expires <= now {
                let is_unidentified = session.peer.is_none() && !session.input.is_empty();
                let status = if is_unidentified { LdpStatus::NO_HELLO } else { LdpStatus::KEEPALIVE_EXPIRED };
                self.end(now, connection, LdpSessionEnd::Sent(status), (0, 0));
                continue;
            }
            // A pending keepalive is sufficient.
            if session.replies.back() != Some(&Outgoing::KeepAlive) {
                session.replies.push_back(Outgoing::KeepAlive);
            }
            session.schedule_keepalive(now);
        }
    }

    /// Ends a session, with the ID and the type of the message that caused it.
    pub(super) fn end(
        &mut self,
        now: Instant,
        connection: LdpConnection,
        why: LdpSessionEnd,
        (message_id, message_kind): (u32, u16),
    ) {
        let Some(session) = self.sessions.remove(&connection) else { return };
        let status = match why {
            LdpSessionEnd::Sent(status) => Some(status),
            // A shutdown is answered by one (section 2.5.4).
            LdpSessionEnd::Received(LdpStatus::SHUTDOWN) => Some(LdpStatus::SHUTDOWN),
            LdpSessionEnd::Received(_) | LdpSessionEnd::Lost => None,
        };
        if let Some(status) = status {
            let notification = notification_about(status, message_id, message_kind);
            let bytes = self.encode_message(&Outgoing::Notification(notification));
            self.transmits.push_back(LdpAction::Stream { connection, bytes });
        }
        if why != LdpSessionEnd::Lost {
            self.transmits.push_back(LdpAction::Close { connection });
        }
        let Some(peer) = session.peer else { return };
        let was_up = session.is_up();
        if let Some(known) = self.peers.get_mut(&peer) {
            known.detach(now, was_up, why);
        }
        if !was_up {
            self.events.push_back(LdpEvent::SetupFailed { peer, reason: why });
            return;
        }
        if let Some(retention) = self.retention(&session, why) {
            return self.begin_restart((now, retention), peer, why, session.upstream.into_held());
        }
        // Stale labels of an earlier session end with this one.
        let earlier = self.restarting.remove(&peer).into_iter().flat_map(|restarting| restarting.held);
        for label in session.upstream.into_held().chain(earlier) {
            self.events.extend(self.table.release(label).map(|label| LdpEvent::Free { label }));
        }
        self.events.push_back(LdpEvent::Down { peer, reason: why });
        for fec in self.table.remove_peer(peer) {
            self.refresh(fec);
        }
    }
}
