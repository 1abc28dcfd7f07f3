//! State machine of a session (RFC 4271 section 8), without sockets and clocks.
//!
//! While both peers connect to each other there may be two connections. The collision is resolved as soon as
//! both OPEN messages are known (section 6.8). DelayOpen, damping of oscillations and jitter are left out,
//! since a tester needs to know when a session comes up.

mod connection;
#[cfg(test)]
mod tests;

use super::message;
use super::nlri::Family;
use super::notification::{Notification, code, subcode};
use super::open::{Identity, Negotiated};
use super::update::Update;
use connection::{Connection, Phase, Step};
use netstage_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Opener of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Connection opened by this end.
    Ours,
    /// Connection opened by the peer.
    Theirs,
}

impl Side {
    const BOTH: [Side; 2] = [Side::Ours, Side::Theirs];

    fn other(self) -> Side {
        Side::BOTH[1 - self as usize]
    }
}

/// States of RFC 4271 section 8.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
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
pub struct Settings {
    /// Local parameters and expectations on the peer.
    pub identity: Identity,
    /// Connects to the peer; otherwise the peer must connect.
    pub connects: bool,
    /// Time between connection attempts (ConnectRetryTime).
    pub connect_retry: Duration,
    /// Time until an ended session is started again (IdleHoldTime); `None` for never.
    pub restart: Option<Duration>,
}

/// Request to the driver of a session, to be executed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// Connect to the peer; cancels a pending attempt.
    Connect,
    /// Cancel a pending connection attempt.
    Abandon,
    /// Send complete messages.
    Bytes(Side, Vec<u8>),
    /// Close after sending everything.
    Close(Side),
}

/// Event of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The session is established.
    Established(Negotiated),
    /// The peer announces or withdraws routes.
    Update(Update),
    /// The peer has sent its initial routes of a family (RFC 4724 section 2).
    EndOfRib(Family),
    /// The peer requests the routes of a family again (RFC 2918 section 4).
    RefreshAsked(Family),
    /// The session ended or could not be established.
    Down(Down),
}

/// Reason for the end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Down {
    /// Error found locally; NOTIFICATION sent.
    Sent(Notification),
    /// NOTIFICATION received from the peer.
    Received(Notification),
    /// Connection lost.
    Lost,
}

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Down::Sent(notification) => write!(f, "sent: {notification}"),
            Down::Received(notification) => write!(f, "received: {notification}"),
            Down::Lost => f.write_str("connection lost"),
        }
    }
}

/// State of connecting, independent of existing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
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
pub struct Machine {
    settings: Settings,
    base: Base,
    connections: [Option<Connection>; 2],
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl Machine {
    /// Creates a session in [`BgpState::Idle`].
    pub fn new(settings: Settings) -> Machine {
        let base = Base::Idle { restart_at: Instant::NEVER };
        Machine {
            settings,
            base,
            connections: [None, None],
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Returns the state; of two connections, that of the more advanced one.
    pub fn state(&self) -> State {
        let connections = self.connections.iter().flatten().map(Connection::state).max();
        connections.unwrap_or(match self.base {
            Base::Idle { .. } => State::Idle,
            Base::Connect { .. } => State::Connect,
            Base::Active { .. } => State::Active,
        })
    }

    /// Returns the established connection and its negotiated parameters.
    pub fn established(&self) -> Option<(Side, &Negotiated)> {
        Side::BOTH.into_iter().find_map(|side| match self.connections[side as usize].as_ref()?.phase() {
            Phase::Established(negotiated) => Some((side, negotiated)),
            _ => None,
        })
    }

    /// Starts to connect, or to wait for the peer (events 1 and 4).
    pub fn handle_start(&mut self, now: Instant) {
        if matches!(self.base, Base::Idle { .. }) {
            self.open(now);
        }
    }

    /// Ends the session permanently and notifies the peer (event 2).
    pub fn handle_stop(&mut self) {
        let cease = Notification::new(code::CEASE, subcode::ADMINISTRATIVE_SHUTDOWN);
        if matches!(self.base, Base::Connect { .. }) {
            self.transmits.push_back(Transmit::Abandon);
        }
        self.base = Base::Idle { restart_at: Instant::NEVER };
        let was_connected = Side::BOTH.map(|side| self.drop_connection(side, Some(&cease))).contains(&true);
        if was_connected {
            self.events.push_back(Event::Down(Down::Sent(cease)));
        }
    }

    /// Handles an open connection. Returns `false` if it is not wanted and must be closed.
    pub fn handle_connected(&mut self, now: Instant, side: Side) -> bool {
        let is_wanted = match (side, self.base) {
            (_, Base::Idle { .. }) | (Side::Ours, Base::Active { .. }) => false,
            _ => self.connections[side as usize].is_none() && self.established().is_none(),
        };
        if !is_wanted {
            return false;
        }
        if side == Side::Ours {
            self.base = Base::Active { retry_at: Instant::NEVER };
        }
        let mut message = Vec::new();
        self.settings.identity.write(&mut message);
        self.transmits.push_back(Transmit::Bytes(side, message));
        self.connections[side as usize] = Some(Connection::new(now));
        true
    }

    /// Handles a failed connection attempt (event 18 in Connect).
    pub fn handle_connect_failed(&mut self, now: Instant) {
        if matches!(self.base, Base::Connect { .. }) {
            self.base = Base::Active { retry_at: now + self.settings.connect_retry };
        }
    }

    /// Handles a connection closed by the peer or lost (event 18).
    pub fn handle_closed(&mut self, now: Instant, side: Side) {
        let Some(connection) = self.connections[side as usize].take() else { return };
        if connection.state() == State::OpenSent {
            // RFC 4271 section 8.2.2: back to Active; the session does not end.
            self.schedule_retry(now);
        } else {
            self.end_session(now, Down::Lost);
        }
    }

    /// Handles received bytes, with messages split at any point.
    pub fn handle_bytes(&mut self, now: Instant, side: Side, bytes: &[u8]) {
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
        for side in Side::BOTH {
            let Some(connection) = &mut self.connections[side as usize] else { continue };
            if connection.hold_at() <= now {
                self.fail(now, side, Notification::new(code::HOLD_TIMER, 0));
            } else if let Some(message) = connection.keepalive(now) {
                self.transmits.push_back(Transmit::Bytes(side, message));
            }
        }
        match self.base {
            Base::Idle { restart_at } if restart_at <= now => self.open(now),
            Base::Connect { retry_at } | Base::Active { retry_at } if retry_at <= now => self.connect(now),
            _ => {}
        }
    }

    /// Requests the peer's routes of a family again. Returns `false` if the session is not established or
    /// the peer does not support ROUTE-REFRESH.
    pub fn refresh(&mut self, family: Family) -> bool {
        let Some((side, negotiated)) = self.established() else { return false };
        if !negotiated.route_refresh || !negotiated.families.contains(&family) {
            return false;
        }
        let mut message = Vec::new();
        message::write_route_refresh(family, &mut message);
        self.transmits.push_back(Transmit::Bytes(side, message));
        true
    }

    /// Returns the next request to the driver.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns `true` if no requests and events are pending.
    pub fn is_settled(&self) -> bool {
        self.transmits.is_empty() && self.events.is_empty()
    }

    /// Returns the time at which to call [`handle_timeout`](BgpSession::handle_timeout).
    pub fn poll_timeout(&self) -> Instant {
        let base = match self.base {
            Base::Idle { restart_at } => restart_at,
            Base::Connect { retry_at } | Base::Active { retry_at } => retry_at,
        };
        self.connections.iter().flatten().map(Connection::timeout).fold(base, Instant::min)
    }

    fn handle_frame(&mut self, now: Instant, side: Side, frame: message::Frame<'_>) {
        let Some(connection) = &mut self.connections[side as usize] else { return };
        match connection.handle_frame(now, frame, &self.settings.identity, &mut self.events) {
            Step::Stay => {}
            Step::Opened(negotiated) => self.handle_open(now, side, negotiated),
            Step::Established(negotiated) => {
                let collision = Notification::new(code::CEASE, subcode::CONNECTION_COLLISION);
                self.drop_connection(side.other(), Some(&collision));
                self.give_up_connecting();
                self.events.push_back(Event::Established(negotiated));
            }
            Step::Failed(notification) => self.fail(now, side, notification),
            Step::Ended(notification) => {
                self.drop_connection(side, None);
                self.end_session(now, Down::Received(notification));
            }
        }
    }

    /// Resolves a collision (RFC 4271 section 6.8): the connection opened by the end with the higher
    /// identifier stays; with equal identifiers, the one with the higher AS number decides (RFC 6286 section
    /// 2.3).
    fn handle_open(&mut self, now: Instant, side: Side, negotiated: Negotiated) {
        let collision = Notification::new(code::CEASE, subcode::CONNECTION_COLLISION);
        let collides = self.connections[side.other() as usize]
            .as_ref()
            .is_some_and(|other| other.state() >= State::OpenConfirm);
        if collides {
            let identity = &self.settings.identity;
            let ours = (identity.identifier, identity.local_as);
            let kept = if ours > (negotiated.peer_identifier, negotiated.peer_as) {
                Side::Ours
            } else {
                Side::Theirs
            };
            self.drop_connection(kept.other(), Some(&collision));
        }
        if let Some(connection) = &mut self.connections[side as usize] {
            let message = connection.confirm(now, negotiated);
            self.transmits.push_back(Transmit::Bytes(side, message));
        }
    }

    /// Closes a connection because of a local error.
    fn fail(&mut self, now: Instant, side: Side, notification: Notification) {
        self.drop_connection(side, Some(&notification));
        self.end_session(now, Down::Sent(notification));
    }

    /// Closes a connection, if it exists. Returns `true` if it did.
    fn drop_connection(&mut self, side: Side, notification: Option<&Notification>) -> bool {
        if self.connections[side as usize].take().is_none() {
            return false;
        }
        if let Some(notification) = notification {
            let mut message = Vec::new();
            message::write_notification(notification, &mut message);
            self.transmits.push_back(Transmit::Bytes(side, message));
        }
        self.transmits.push_back(Transmit::Close(side));
        true
    }

    /// Ends the session after a connection has ended, unless another connection remains.
    fn end_session(&mut self, now: Instant, down: Down) {
        if self.connections.iter().any(Option::is_some) {
            return;
        }
        self.give_up_connecting();
        let restart_at = self.settings.restart.map_or(Instant::NEVER, |restart| now + restart);
        self.base = Base::Idle { restart_at };
        self.events.push_back(Event::Down(down));
    }

    fn open(&mut self, now: Instant) {
        if self.settings.connects {
            self.connect(now);
        } else {
            self.base = Base::Active { retry_at: Instant::NEVER };
        }
    }

    fn connect(&mut self, now: Instant) {
        self.base = Base::Connect { retry_at: now + self.settings.connect_retry };
        self.transmits.push_back(Transmit::Connect);
    }

    fn schedule_retry(&mut self, now: Instant) {
        if let Base::Active { retry_at } = &mut self.base
            && self.settings.connects
            && self.connections.iter().all(Option::is_none)
        {
            *retry_at = now + self.settings.connect_retry;
        }
    }

    fn give_up_connecting(&mut self) {
        if matches!(self.base, Base::Connect { .. }) {
            self.transmits.push_back(Transmit::Abandon);
        }
        self.base = Base::Active { retry_at: Instant::NEVER };
    }
}
