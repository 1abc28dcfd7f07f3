//! State machine of a session (RFC 4271 section 8), without sockets and clocks.
//!
//! While both peers connect to each other there may be two connections. The collision is resolved as soon as
//! both OPEN messages are known (section 6.8). DelayOpen, damping of oscillations and jitter are left out,
//! since a tester needs to know when a session comes up.

mod connection;
#[cfg(test)]
mod tests;

use super::message;
use super::nlri::BgpFamily;
use super::notification::{Notification, code, subcode};
use super::open::{NegotiatedParameters, OpenParameters};
use super::update::Update;
use connection::{BgpConnection, ConnectionPhase, MessageResult};
use netstage_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Opener of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionOpener {
    /// Connection opened by this end.
    Local,
    /// Connection opened by the peer.
    Peer,
}

impl ConnectionOpener {
    const BOTH: [ConnectionOpener; 2] = [ConnectionOpener::Local, ConnectionOpener::Peer];

    fn other(self) -> ConnectionOpener {
        ConnectionOpener::BOTH[1 - self as usize]
    }
}

/// States of RFC 4271 section 8.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BgpState {
    /// Not connecting, and rejecting connections.
    Idle,
    /// Connecting to the peer.
    Connect,
    /// Waiting for a connection from the peer, or for the next attempt.
    Active,
    /// Waiting for the peer's OPEN.
    OpenSent,
    /// Waiting for the KEEPALIVE that confirms the local OPEN.
    OpenConfirm,
    /// Exchanging routes.
    Established,
}

/// Configuration of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BgpSettings {
    /// Local parameters and expectations on the peer.
    pub identity: OpenParameters,
    /// Connects to the peer; otherwise the peer must connect.
    pub connects: bool,
    /// Time between connection attempts (ConnectRetryTime).
    pub connect_retry: Duration,
    /// Time until an ended session is started again (IdleHoldTime); `None` for never.
    pub restart: Option<Duration>,
}

/// Request to the driver of a session, to be executed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BgpTransmit {
    /// Connect to the peer; cancels a pending attempt.
    Connect,
    /// Cancel a pending connection attempt.
    Abandon,
    /// Send complete messages.
    Bytes(ConnectionOpener, Vec<u8>),
    /// Close after sending everything.
    Close(ConnectionOpener),
}

/// Event of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BgpEvent {
    /// The session is established.
    Established(NegotiatedParameters),
    /// The peer announces or withdraws routes.
    Update(Update),
    /// The peer has sent its initial routes of a family (RFC 4724 section 2).
    EndOfRib(BgpFamily),
    /// The peer requests the routes of a family again (RFC 2918 section 4).
    RefreshRequested(BgpFamily),
    /// The session ended or could not be established.
    Down(SessionEnd),
}

/// Reason for the end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Error found locally; NOTIFICATION sent.
    Sent(Notification),
    /// NOTIFICATION received from the peer.
    Received(Notification),
    /// Connection lost.
    Lost,
}

impl std::fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SessionEnd::Sent(notification) => write!(f, "sent: {notification}"),
            SessionEnd::Received(notification) => write!(f, "received: {notification}"),
            SessionEnd::Lost => f.write_str("connection lost"),
        }
    }
}

/// State of connecting, independent of existing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectState {
    Idle { restart_at: Instant },
    Connect { retry_at: Instant },
    Active { retry_at: Instant },
}

/// BGP session.
///
/// Call [`handle_start`](BgpSession::handle_start) first. After every `handle_…` call, drain
/// [`poll_transmit`](BgpSession::poll_transmit) and [`poll_event`](BgpSession::poll_event), and call
/// [`handle_timeout`](BgpSession::handle_timeout) at the time returned by
/// [`poll_timeout`](BgpSession::poll_timeout). In an established session the driver may send UPDATE messages
/// on the connection returned by [`established`](BgpSession::established), between the messages of the
/// session itself, and reports them with [`handle_sent`](BgpSession::handle_sent).
#[derive(Debug)]
pub struct BgpSession {
    settings: BgpSettings,
    base: ConnectState,
    connections: [Option<BgpConnection>; 2],
    transmits: VecDeque<BgpTransmit>,
    events: VecDeque<BgpEvent>,
}

impl BgpSession {
    /// Creates a session in [`BgpState::Idle`].
    pub fn new(settings: BgpSettings) -> BgpSession {
        let base = ConnectState::Idle { restart_at: Instant::NEVER };
        BgpSession {
            settings,
            base,
            connections: [None, None],
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Returns the state; of two connections, that of the more advanced one.
    pub fn state(&self) -> BgpState {
        let connections = self.connections.iter().flatten().map(BgpConnection::state).max();
        connections.unwrap_or(match self.base {
            ConnectState::Idle { .. } => BgpState::Idle,
            ConnectState::Connect { .. } => BgpState::Connect,
            ConnectState::Active { .. } => BgpState::Active,
        })
    }

    /// Returns the established connection and its negotiated parameters.
    pub fn established(&self) -> Option<(ConnectionOpener, &NegotiatedParameters)> {
        ConnectionOpener::BOTH.into_iter().find_map(|side| {
            match self.connections[side as usize].as_ref()?.phase() {
                ConnectionPhase::Established(negotiated) => Some((side, negotiated)),
                _ => None,
            }
        })
    }

    /// Starts to connect, or to wait for the peer (events 1 and 4).
    pub fn handle_start(&mut self, now: Instant) {
        if matches!(self.base, ConnectState::Idle { .. }) {
            self.open(now);
        }
    }

    /// Ends the session permanently and notifies the peer (event 2).
    pub fn handle_stop(&mut self) {
        let cease = Notification::new(code::CEASE, subcode::ADMINISTRATIVE_SHUTDOWN);
        if matches!(self.base, ConnectState::Connect { .. }) {
            self.transmits.push_back(BgpTransmit::Abandon);
        }
        self.base = ConnectState::Idle { restart_at: Instant::NEVER };
        let was_connected =
            ConnectionOpener::BOTH.map(|side| self.drop_connection(side, Some(&cease))).contains(&true);
        if was_connected {
            self.events.push_back(BgpEvent::Down(SessionEnd::Sent(cease)));
        }
    }

    /// Handles an open connection. Returns `false` if it is not wanted and must be closed.
    pub fn handle_connected(&mut self, now: Instant, side: ConnectionOpener) -> bool {
        let is_wanted = match (side, self.base) {
            (_, ConnectState::Idle { .. }) | (ConnectionOpener::Local, ConnectState::Active { .. }) => false,
            _ => self.connections[side as usize].is_none() && self.established().is_none(),
        };
        if !is_wanted {
            return false;
        }
        if side == ConnectionOpener::Local {
            self.base = ConnectState::Active { retry_at: Instant::NEVER };
        }
        let mut message = Vec::new();
        self.settings.identity.write(&mut message);
        self.transmits.push_back(BgpTransmit::Bytes(side, message));
        self.connections[side as usize] = Some(BgpConnection::new(now));
        true
    }

    /// Handles a failed connection attempt (event 18 in Connect).
    pub fn handle_connect_failed(&mut self, now: Instant) {
        if matches!(self.base, ConnectState::Connect { .. }) {
            self.base = ConnectState::Active { retry_at: now + self.settings.connect_retry };
        }
    }

    /// Handles a connection closed by the peer or lost (event 18).
    pub fn handle_closed(&mut self, now: Instant, side: ConnectionOpener) {
        let Some(connection) = self.connections[side as usize].take() else { return };
        if connection.state() == BgpState::OpenSent {
            // RFC 4271 section 8.2.2: back to Active; the session does not end.
            self.schedule_retry(now);
        } else {
            self.end_session(now, SessionEnd::Lost);
        }
    }

    /// Handles received bytes, with messages split at any point.
    pub fn handle_bytes(&mut self, now: Instant, side: ConnectionOpener, bytes: &[u8]) {
        let Some(connection) = &mut self.connections[side as usize] else { return };
        let input = connection.take_input(bytes);
        let mut offset = 0;
        loop {
            match message::first(&input[offset..]) {
                Ok(Some(frame)) => {
                    offset += frame.length();
                    self.handle_frame(now, side, frame);
                }
                Ok(None) => break,
                Err(notification) => self.fail(now, side, notification),
            }
            if self.connections[side as usize].is_none() {
                return;
            }
        }
        if let Some(connection) = &mut self.connections[side as usize] {
            connection.keep_input(input, offset);
        }
    }

    /// Notes that UPDATE messages were sent: they replace KEEPALIVEs (RFC 4271 section 4.4).
    pub fn handle_sent(&mut self, now: Instant) {
        self.connections.iter_mut().flatten().for_each(|connection| connection.handle_sent(now));
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        for side in ConnectionOpener::BOTH {
            let Some(connection) = &mut self.connections[side as usize] else { continue };
            if connection.hold_at() <= now {
                self.fail(now, side, Notification::new(code::HOLD_TIMER, 0));
            } else if let Some(message) = connection.keepalive(now) {
                self.transmits.push_back(BgpTransmit::Bytes(side, message));
            }
        }
        match self.base {
            ConnectState::Idle { restart_at } if restart_at <= now => self.open(now),
            ConnectState::Connect { retry_at } | ConnectState::Active { retry_at } if retry_at <= now => {
                self.connect(now)
            }
            _ => {}
        }
    }

    /// Requests the peer's routes of a family again. Returns `false` if the session is not established or
    /// the peer does not support ROUTE-REFRESH.
    pub fn refresh(&mut self, family: BgpFamily) -> bool {
        let Some((side, negotiated)) = self.established() else { return false };
        if !negotiated.route_refresh || !negotiated.families.contains(&family) {
            return false;
        }
        let mut message = Vec::new();
        message::write_route_refresh(family, &mut message);
        self.transmits.push_back(BgpTransmit::Bytes(side, message));
        true
    }

    /// Returns the next request to the driver.
    pub fn poll_transmit(&mut self) -> Option<BgpTransmit> {
        self.transmits.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<BgpEvent> {
        self.events.pop_front()
    }

    /// Returns `true` if no requests and events are pending.
    pub fn is_settled(&self) -> bool {
        self.transmits.is_empty() && self.events.is_empty()
    }

    /// Returns the time at which to call [`handle_timeout`](BgpSession::handle_timeout).
    pub fn poll_timeout(&self) -> Instant {
        let base = match self.base {
            ConnectState::Idle { restart_at } => restart_at,
            ConnectState::Connect { retry_at } | ConnectState::Active { retry_at } => retry_at,
        };
        self.connections.iter().flatten().map(BgpConnection::timeout).fold(base, Instant::min)
    }

    fn handle_frame(&mut self, now: Instant, side: ConnectionOpener, frame: message::MessageParts<'_>) {
        let Some(connection) = &mut self.connections[side as usize] else { return };
        match connection.handle_frame(now, frame, &self.settings.identity, &mut self.events) {
            MessageResult::Stay => {}
            MessageResult::Opened(negotiated) => self.handle_open(now, side, negotiated),
            MessageResult::Established(negotiated) => {
                let collision = Notification::new(code::CEASE, subcode::CONNECTION_COLLISION);
                self.drop_connection(side.other(), Some(&collision));
                self.give_up_connecting();
                self.events.push_back(BgpEvent::Established(negotiated));
            }
            MessageResult::Failed(notification) => self.fail(now, side, notification),
            MessageResult::Ended(notification) => {
                self.drop_connection(side, None);
                self.end_session(now, SessionEnd::Received(notification));
            }
        }
    }

    /// Resolves a collision (RFC 4271 section 6.8): the connection opened by the end with the higher
    /// identifier stays; with equal identifiers, the one with the higher AS number decides (RFC 6286 section
    /// 2.3).
    fn handle_open(&mut self, now: Instant, side: ConnectionOpener, negotiated: NegotiatedParameters) {
        let collision = Notification::new(code::CEASE, subcode::CONNECTION_COLLISION);
        let collides = self.connections[side.other() as usize]
            .as_ref()
            .is_some_and(|other| other.state() >= BgpState::OpenConfirm);
        if collides {
            let identity = &self.settings.identity;
            let ours = (identity.identifier, identity.local_as);
            let kept = if ours > (negotiated.peer_identifier, negotiated.peer_as) {
                ConnectionOpener::Local
            } else {
                ConnectionOpener::Peer
            };
            self.drop_connection(kept.other(), Some(&collision));
        }
        if let Some(connection) = &mut self.connections[side as usize] {
            let message = connection.confirm(now, negotiated);
            self.transmits.push_back(BgpTransmit::Bytes(side, message));
        }
    }

    /// Closes a connection because of a local error.
    fn fail(&mut self, now: Instant, side: ConnectionOpener, notification: Notification) {
        self.drop_connection(side, Some(&notification));
        self.end_session(now, SessionEnd::Sent(notification));
    }

    /// Closes a connection, if it exists. Returns `true` if it did.
    fn drop_connection(&mut self, side: ConnectionOpener, notification: Option<&Notification>) -> bool {
        if self.connections[side as usize].take().is_none() {
            return false;
        }
        if let Some(notification) = notification {
            let mut message = Vec::new();
            message::write_notification(notification, &mut message);
            self.transmits.push_back(BgpTransmit::Bytes(side, message));
        }
        self.transmits.push_back(BgpTransmit::Close(side));
        true
    }

    /// Ends the session after a connection has ended, unless another connection remains.
    fn end_session(&mut self, now: Instant, down: SessionEnd) {
        if self.connections.iter().any(Option::is_some) {
            return;
        }
        self.give_up_connecting();
        let restart_at = self.settings.restart.map_or(Instant::NEVER, |restart| now + restart);
        self.base = ConnectState::Idle { restart_at };
        self.events.push_back(BgpEvent::Down(down));
    }

    fn open(&mut self, now: Instant) {
        if self.settings.connects {
            self.connect(now);
        } else {
            self.base = ConnectState::Active { retry_at: Instant::NEVER };
        }
    }

    fn connect(&mut self, now: Instant) {
        self.base = ConnectState::Connect { retry_at: now + self.settings.connect_retry };
        self.transmits.push_back(BgpTransmit::Connect);
    }

    fn schedule_retry(&mut self, now: Instant) {
        if let ConnectState::Active { retry_at } = &mut self.base
            && self.settings.connects
            && self.connections.iter().all(Option::is_none)
        {
            *retry_at = now + self.settings.connect_retry;
        }
    }

    fn give_up_connecting(&mut self) {
        if matches!(self.base, ConnectState::Connect { .. }) {
            self.transmits.push_back(BgpTransmit::Abandon);
        }
        self.base = ConnectState::Active { retry_at: Instant::NEVER };
    }
}
