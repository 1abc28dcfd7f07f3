//! Requests and responses: each request follows the previous response after a think time (closed loop), or
//! requests are independent of responses (open loop, Poisson).

use super::{
    ApplicationError, ApplicationMessage, Context, MAX_DATAGRAM_PAYLOAD, MessageContent, ModelEndpoint,
    Observation, SizeDistribution, TransportKind,
};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use serde::{Deserialize, Serialize};

/// Requests and responses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Size of a request.
    pub request: SizeDistribution,
    /// Size of a response.
    pub response: SizeDistribution,
    /// Timing of the requests.
    pub pace: Pace,
    /// Processing time of the server.
    pub server: Duration,
    /// Number of connections. An open loop uses them in turn; in a closed loop each has one pending request.
    pub connections: u32,
    /// Time after which a request fails.
    pub timeout: Duration,
}

/// Timing of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Closed loop with an exponential think time of this mean.
    Closed(Duration),
    /// Open loop with this mean number of requests per second, Poisson.
    Open(f64),
}

impl Exchange {
    pub(super) fn check(&self, carriage: TransportKind) -> Result<(), ApplicationError> {
        self.request.check()?;
        self.response.check()?;
        let largest = self.request.max.max(self.response.max);
        if carriage == TransportKind::Datagram && largest > f64::from(MAX_DATAGRAM_PAYLOAD) {
            return Err(ApplicationError::LargeDatagram);
        }
        if self.connections == 0 || (carriage == TransportKind::Datagram && self.connections > 1) {
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
pub(crate) struct ExchangeClient {
    model: Exchange,
    /// Pending requests by number: time and connection.
    pending: BTreeMap<u32, (Instant, u32)>,
    /// Times of the next request of the idle connections, in a closed loop.
    due: BTreeMap<u32, Instant>,
    /// Time of the next request, in an open loop.
    next: Instant,
    open: u32,
    turn: u32,
    number: u32,
}

impl ExchangeClient {
    pub fn new(model: Exchange) -> ExchangeClient {
        let (pending, due) = (BTreeMap::new(), BTreeMap::new());
        ExchangeClient { model, pending, due, next: Instant::NEVER, open: 0, turn: 0, number: 0 }
    }

    fn send_request(&mut self, context: &mut Context, connection: u32) {
        let (bytes, answer) = (self.model.request.draw(context.rng), self.model.response.draw(context.rng));
        self.number = self.number.wrapping_add(1);
        self.pending.insert(self.number, (context.now, connection));
        context.send(
            connection,
            bytes,
            self.number,
            MessageContent::Request { answer, after: self.model.server },
        );
    }

    /// Schedules the next request of a connection in a closed loop.
    fn schedule_next(&mut self, context: &mut Context, connection: u32) {
        if let Pace::Closed(think) = self.model.pace {
            self.due.insert(connection, context.now + context.exponential(think));
        }
    }

    /// Returns the number, time and connection of the oldest pending request.
    fn oldest(&self) -> Option<(u32, Instant, u32)> {
        self.pending.iter().next().map(|(number, (at, connection))| (*number, *at, *connection))
    }
}

impl ModelEndpoint for ExchangeClient {
    fn start(&mut self, context: &mut Context) {
        for connection in 0..self.model.connections {
            context.open(connection);
        }
    }

    fn connected(&mut self, context: &mut Context, connection: u32) {
        self.open += 1;
        match self.model.pace {
            Pace::Closed(_) => self.send_request(context, connection),
            // The first gap starts once all connections are open.
            Pace::Open(rate) if self.open == self.model.connections => {
                self.next = context.now + Duration::from_secs_f64(context.rng.exponential(1.0 / rate));
            }
            Pace::Open(_) => {}
        }
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        let before = self.pending.len();
        self.pending.retain(|_, (_, on)| *on != connection);
        for _ in self.pending.len()..before.max(1) {
            context.observe(Observation::Failure { at: context.now });
        }
        self.open = self.open.saturating_sub(1);
        self.due.remove(&connection);
        context.open(connection);
    }

    fn message(&mut self, context: &mut Context, connection: u32, message: &ApplicationMessage) {
        if let Some((at, _)) = self.pending.remove(&message.number) {
            context.observe(Observation::Transaction { at: context.now, took: context.now.since(at) });
            self.schedule_next(context, connection);
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        while let Some((number, at, connection)) = self.oldest() {
            if at + self.model.timeout > context.now {
                break;
            }
            self.pending.remove(&number);
            context.observe(Observation::Failure { at: context.now });
            self.schedule_next(context, connection);
        }
        while let Some((&connection, _)) = self.due.iter().find(|(_, at)| **at <= context.now) {
            self.due.remove(&connection);
            self.send_request(context, connection);
        }
        while let Pace::Open(rate) = self.model.pace
            && self.next <= context.now
        {
            let connection = self.turn % self.model.connections;
            self.turn = self.turn.wrapping_add(1);
            self.send_request(context, connection);
            self.next += Duration::from_secs_f64(context.rng.exponential(1.0 / rate));
        }
    }

    fn deadline(&self) -> Instant {
        let timeout = self.oldest().map_or(Instant::NEVER, |(_, at, _)| at + self.model.timeout);
        let due = self.due.values().min().copied().unwrap_or(Instant::NEVER);
        timeout.min(due).min(self.next)
    }
}
