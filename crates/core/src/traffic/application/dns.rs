//! Name lookups over UDP: a query, its response, and retries if the response is missing. Scenarios default to
//! the timeout and the attempts of resolv.conf(5).

use super::{
    ApplicationError, ApplicationMessage, Context, MAX_DATAGRAM_PAYLOAD, MessageContent, ModelEndpoint,
    Observation, SizeDistribution,
};
use crate::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Name lookups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dns {
    /// Payload of a query, bytes.
    pub query: u32,
    /// Payload of a response.
    pub answer: SizeDistribution,
    /// Mean time between lookups, exponential; a lookup starts after the end of the previous one.
    pub interval: Duration,
    /// Time after which a query is repeated.
    pub timeout: Duration,
    /// Maximum number of queries per lookup.
    pub attempts: u32,
    /// Processing time of the server.
    pub server: Duration,
}

impl Dns {
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        SizeDistribution::constant(self.query).check()?;
        self.answer.check()?;
        if self.query > MAX_DATAGRAM_PAYLOAD || self.answer.max > f64::from(MAX_DATAGRAM_PAYLOAD) {
            return Err(ApplicationError::LargeDatagram);
        }
        if self.timeout.0 == 0 || self.interval.0 == 0 {
            return Err(ApplicationError::ZeroTime);
        }
        if self.attempts == 0 { Err(ApplicationError::ZeroCount) } else { Ok(()) }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct DnsClient {
    model: Dns,
    started_at: Instant,
    next: Instant,
    /// Time of the next lookup, unless the current one takes longer.
    next_lookup: Instant,
    attempts_left: u32,
    answer: u32,
    number: u32,
    waiting: bool,
}

impl DnsClient {
    pub fn new(model: Dns) -> DnsClient {
        let (started_at, next, next_lookup) = (Instant::ZERO, Instant::NEVER, Instant::ZERO);
        DnsClient {
            model,
            started_at,
            next,
            next_lookup,
            attempts_left: 0,
            answer: 0,
            number: 0,
            waiting: false,
        }
    }

    fn begin(&mut self, context: &mut Context) {
        self.next_lookup = context.now + context.exponential(self.model.interval);
        self.started_at = context.now;
        self.answer = self.model.answer.draw(context.rng);
        self.attempts_left = self.model.attempts;
        self.waiting = true;
        self.number = self.number.wrapping_add(1);
        self.send_query(context);
    }

    fn send_query(&mut self, context: &mut Context) {
        self.attempts_left -= 1;
        let content = MessageContent::Request { answer: self.answer, after: self.model.server };
        context.send(0, self.model.query, self.number, content);
        self.next = context.now + self.model.timeout;
    }

    fn finish(&mut self, context: &mut Context) {
        self.waiting = false;
        self.next = self.next_lookup.max(context.now);
    }
}

impl ModelEndpoint for DnsClient {
    fn start(&mut self, context: &mut Context) {
        context.open(0);
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        self.begin(context);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &ApplicationMessage) {
        if self.waiting && message.number == self.number {
            let took = context.now.since(self.started_at);
            context.observe(Observation::Transaction { at: context.now, took });
            self.finish(context);
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        if !self.waiting {
            self.begin(context);
        } else if self.attempts_left > 0 {
            self.send_query(context);
        } else {
            context.observe(Observation::Failure { at: context.now });
            self.finish(context);
        }
    }

    fn deadline(&self) -> Instant {
        self.next
    }
}
