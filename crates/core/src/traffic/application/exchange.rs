//! Requests and responses: the next one a while after the last was answered (closed loop),
//! or whenever its time has come (open loop, Poisson).

use super::{
    ApplicationError, Carriage, Content, Context, LARGEST_DATAGRAM, Machine, Message, Observation, Spread,
};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use serde::{Deserialize, Serialize};

/// Requests and responses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Size of a request.
    pub request: Spread,
    /// Size of a response.
    pub response: Spread,
    /// When requests are made.
    pub pace: Pace,
    /// Time the server takes.
    pub server: Duration,
    /// Connections, used in turn; with a closed loop each has a request under way.
    pub connections: u32,
    /// When a request is given up.
    pub timeout: Duration,
}

/// When requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// A time to think after each response; exponential with this mean.
    Closed(Duration),
    /// So many requests per second, Poisson, answered or not.
    Open(f64),
}

impl Exchange {
    pub(super) fn check(&self, carriage: Carriage) -> Result<(), ApplicationError> {
        self.request.check()?;
        self.response.check()?;
        let largest = self.request.most.max(self.response.most);
        if carriage == Carriage::Datagram && largest > f64::from(LARGEST_DATAGRAM) {
            return Err(ApplicationError::LargeDatagram);
        }
        if self.connections == 0 || (carriage == Carriage::Datagram && self.connections > 1) {
            return Err(ApplicationError::ZeroCount);
        }
        match self.pace {
            _ if self.timeout.0 == 0 => Err(ApplicationError::ZeroTime),
            Pace::Open(rate) if !(rate > 0.0 && rate <= 1e9) => Err(ApplicationError::ZeroTime),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    model: Exchange,
    /// Requests under way by number: when asked, and on which connection.
    asked: BTreeMap<u32, (Instant, u32)>,
    /// When each connection asks next, in a closed loop; [`Instant::NEVER`] while it waits.
    due: BTreeMap<u32, Instant>,
    /// When the next request is made, in an open loop.
    next: Instant,
    open: u32,
    turn: u32,
    number: u32,
}

impl Client {
    pub fn new(model: Exchange) -> Client {
        let (asked, due) = (BTreeMap::new(), BTreeMap::new());
        Client { model, asked, due, next: Instant::NEVER, open: 0, turn: 0, number: 0 }
    }

    fn ask(&mut self, context: &mut Context, connection: u32) {
        let (bytes, answer) = (self.model.request.draw(context.rng), self.model.response.draw(context.rng));
        self.number = self.number.wrapping_add(1);
        self.asked.insert(self.number, (context.now, connection));
        context.send(connection, bytes, self.number, Content::Request { answer, after: self.model.server });
    }

    /// A request on this connection has come to its end.
    fn rest(&mut self, context: &mut Context, connection: u32) {
        if let Pace::Closed(think) = self.model.pace {
            self.due.insert(connection, context.now + context.exponential(think));
        }
    }

    /// The oldest request, which is the first to be given up.
    fn oldest(&self) -> Option<(u32, Instant, u32)> {
        self.asked.iter().next().map(|(number, (at, connection))| (*number, *at, *connection))
    }
}

impl Machine for Client {
    fn start(&mut self, context: &mut Context) {
        for connection in 0..self.model.connections {
            context.open(connection);
        }
    }

    fn connected(&mut self, context: &mut Context, connection: u32) {
        self.open += 1;
        match self.model.pace {
            Pace::Closed(_) => self.ask(context, connection),
            // The first gap is exponential too, from when all connections are there.
            Pace::Open(rate) if self.open == self.model.connections => {
                self.next = context.now + Duration::from_secs_f64(context.rng.exponential(1.0 / rate));
            }
            Pace::Open(_) => {}
        }
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        let before = self.asked.len();
        self.asked.retain(|_, (_, on)| *on != connection);
        for _ in self.asked.len()..before.max(1) {
            context.observe(Observation::Failure { at: context.now });
        }
        self.open = self.open.saturating_sub(1);
        self.due.remove(&connection);
        context.open(connection);
    }

    fn message(&mut self, context: &mut Context, connection: u32, message: &Message) {
        if let Some((asked, _)) = self.asked.remove(&message.number) {
            context.observe(Observation::Transaction { at: context.now, took: context.now.since(asked) });
            self.rest(context, connection);
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        while let Some((number, at, connection)) = self.oldest() {
            if at + self.model.timeout > context.now {
                break;
            }
            self.asked.remove(&number);
            context.observe(Observation::Failure { at: context.now });
            self.rest(context, connection);
        }
        while let Some((&connection, _)) = self.due.iter().find(|(_, at)| **at <= context.now) {
            self.due.remove(&connection);
            self.ask(context, connection);
        }
        while let Pace::Open(rate) = self.model.pace
            && self.next <= context.now
        {
            let connection = self.turn % self.model.connections;
            self.turn = self.turn.wrapping_add(1);
            self.ask(context, connection);
            self.next += Duration::from_secs_f64(context.rng.exponential(1.0 / rate));
        }
    }

    fn deadline(&self) -> Instant {
        let given_up = self.oldest().map_or(Instant::NEVER, |(_, at, _)| at + self.model.timeout);
        let due = self.due.values().min().copied().unwrap_or(Instant::NEVER);
        given_up.min(due).min(self.next)
    }
}
