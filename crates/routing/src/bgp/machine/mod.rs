//! One session with a peer as RFC 4271 section 8 describes it, without sockets and clocks.
//!
//! While both sides connect to each other there may be two connections, one opened by each; which
//! is kept is settled as soon as both peers are known (section 6.8). DelayOpen, damping of
//! oscillation and jitter are left out: a tester wants to know when a session comes up.

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

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// We connected.
    Ours,
    /// The peer connected.
    Theirs,
}

impl Side {
    const BOTH: [Side; 2] = [Side::Ours, Side::Theirs];

    fn other(self) -> Side {
        Side::BOTH[1 - self as usize]
    }
}

/// The states of RFC 4271 section 8.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Nothing is tried, and no connection taken.
    Idle,
    /// Our connection is on its way.
    Connect,
    /// Waiting for the peer to connect, or for the time to try again.
    Active,
    /// Waiting for the peer's OPEN.
    OpenSent,
    /// Waiting for the KEEPALIVE that confirms ours.
    OpenConfirm,
    /// Routes may be told.
    Established,
}

/// How a session behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who we are, and what we offer.
    pub identity: Identity,
    /// Whether we connect; otherwise the peer has to.
    pub connects: bool,
    /// After what time without success we connect again: ConnectRetryTime.
    pub connect_retry: Duration,
    /// After what time a session that ended is started again: IdleHoldTime; none for never.
    pub restart: Option<Duration>,
}

/// What the driver has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// To connect, giving up an attempt that is still on its way.
    Connect,
    /// To give up an attempt that is still on its way.
    Abandon,
    /// To send whole messages.
    Bytes(Side, Vec<u8>),
    /// To close once everything is sent.
    Close(Side),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The session is up.
    Established(Negotiated),
    /// The peer announces and withdraws routes.
    Update(Update),
    /// The peer has announced its initial routes of a family (RFC 4724 section 2).
    EndOfRib(Family),
    /// The peer wants our routes of a family again (RFC 2918 section 4).
    RefreshAsked(Family),
    /// The session ended, or did not come up.
    Down(Down),
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Down {
    /// We found an error, and said so.
    Sent(Notification),
    /// The peer did.
    Received(Notification),
    /// The connection was lost.
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

/// What goes on beside the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Idle { restart_at: Instant },
    Connect { retry_at: Instant },
    Active { retry_at: Instant },
}

/// A session.
///
/// Call [`handle_start`](Machine::handle_start) first. After every `handle_…` take what
/// [`poll_transmit`](Machine::poll_transmit) and [`poll_event`](Machine::poll_event) have, and
/// call [`handle_timeout`](Machine::handle_timeout) when [`poll_timeout`](Machine::poll_timeout)
/// has come. Once established, UPDATE messages may be sent on the connection of
/// [`established`](Machine::established) between the machine's own; tell of them by
/// [`handle_sent`](Machine::handle_sent).
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    base: Base,
    connections: [Option<Connection>; 2],
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl Machine {
    /// In [`State::Idle`].
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

    /// The state, of the connection that has come further.
    pub fn state(&self) -> State {
        let connections = self.connections.iter().flatten().map(Connection::state).max();
        connections.unwrap_or(match self.base {
            Base::Idle { .. } => State::Idle,
            Base::Connect { .. } => State::Connect,
            Base::Active { .. } => State::Active,
        })
    }

    /// The connection that is established, and what was agreed on.
    pub fn established(&self) -> Option<(Side, &Negotiated)> {
        Side::BOTH.into_iter().find_map(|side| match self.connections[side as usize].as_ref()?.phase() {
            Phase::Established(negotiated) => Some((side, negotiated)),
            _ => None,
        })
    }

    /// Begins to connect, or to wait for the peer (events 1 and 4).
    pub fn handle_start(&mut self, now: Instant) {
        if matches!(self.base, Base::Idle { .. }) {
            self.open(now);
        }
    }

    /// Ends the session for good, telling the peer (event 2).
    pub fn handle_stop(&mut self) {
        let cease = Notification::new(code::CEASE, subcode::ADMINISTRATIVE_SHUTDOWN);
        if matches!(self.base, Base::Connect { .. }) {
            self.transmits.push_back(Transmit::Abandon);
        }
        self.base = Base::Idle { restart_at: Instant::NEVER };
        let had = Side::BOTH.map(|side| self.drop_connection(side, Some(&cease))).contains(&true);
        if had {
            self.events.push_back(Event::Down(Down::Sent(cease)));
        }
    }

    /// A connection is open. False where none is wanted: it has to be closed at once.
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

    /// Our connection did not come about (event 18 in Connect).
    pub fn handle_connect_failed(&mut self, now: Instant) {
        if matches!(self.base, Base::Connect { .. }) {
            self.base = Base::Active { retry_at: now + self.settings.connect_retry };
        }
    }

    /// A connection was closed by the peer or lost (event 18).
    pub fn handle_closed(&mut self, now: Instant, side: Side) {
        let Some(connection) = self.connections[side as usize].take() else { return };
        if connection.state() == State::OpenSent {
            // RFC 4271 section 8.2.2: back to Active, without giving up.
            self.wait(now);
        } else {
            self.ended(now, Down::Lost);
        }
    }

    /// Bytes arrived, cut anywhere.
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

    /// UPDATE messages were sent: they count as signs of life (RFC 4271 section 4.4).
    pub fn handle_sent(&mut self, now: Instant) {
        self.connections.iter_mut().flatten().for_each(|connection| connection.handle_sent(now));
    }

    /// The time of [`poll_timeout`](Machine::poll_timeout) has come.
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

    /// Asks the peer for its routes of a family again. False where the session is not up, or the
    /// peer knows no ROUTE-REFRESH.
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

    /// What to do next.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether there is nothing to do and nothing to tell.
    pub fn is_settled(&self) -> bool {
        self.transmits.is_empty() && self.events.is_empty()
    }

    /// When [`handle_timeout`](Machine::handle_timeout) is due.
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
                self.ended(now, Down::Received(notification));
            }
        }
    }

    /// RFC 4271 section 6.8: of two connections, the one opened by the higher identifier stays;
    /// with equal ones, by the higher AS number (RFC 6286 section 2.3).
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

    /// Closes a connection over an error found here.
    fn fail(&mut self, now: Instant, side: Side, notification: Notification) {
        self.drop_connection(side, Some(&notification));
        self.ended(now, Down::Sent(notification));
    }

    /// Whether there was such a connection.
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

    /// A connection has ended: the session has, unless another one is left.
    fn ended(&mut self, now: Instant, down: Down) {
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

    fn wait(&mut self, now: Instant) {
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
