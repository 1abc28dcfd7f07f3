//! Web pages: a main object, then what it refers to. Browsers fetch over several
//! connections (HTTP/1.1, six to a host) or many requests at once over one (RFC 9113).

use super::{ApplicationError, Content, Context, Machine, Message, Observation, Spread};
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Pages of many objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Web {
    /// Size of the main object.
    pub main: Spread,
    /// Mean number of the objects it refers to, geometric; a whole number where `spread` is false.
    pub objects: f64,
    /// Draw the number of objects, in place of always `objects`.
    pub spread: bool,
    /// Size of these objects.
    pub object: Spread,
    /// Bytes of a request.
    pub request: u32,
    /// How objects are fetched.
    pub fetching: Fetching,
    /// Mean time to read the main object before the others are asked for, exponential.
    pub parse: Duration,
    /// Mean time between a page and the next, exponential.
    pub think: Duration,
    /// Time the server takes for each object.
    pub server: Duration,
}

/// How the objects of a page are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fetching {
    /// One after the other on each of so many connections.
    Parallel(u32),
    /// All at once on one connection.
    Multiplexed,
}

/// Most objects of a page.
const MOST_OBJECTS: f64 = 10_000.0;

impl Web {
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        self.main.check()?;
        self.object.check()?;
        Spread::constant(self.request).check()?;
        if !(0.0..=MOST_OBJECTS).contains(&self.objects) {
            return Err(ApplicationError::Size);
        }
        if self.connections() == 0 { Err(ApplicationError::ZeroCount) } else { Ok(()) }
    }

    pub(super) fn connections(&self) -> u32 {
        match self.fetching {
            Fetching::Parallel(connections) => connections,
            Fetching::Multiplexed => 1,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    model: Web,
    state: State,
    next: Instant,
    asked: Instant,
    /// Connections open or being opened.
    open: Vec<u32>,
    /// Objects of this page not asked for, and not there yet.
    unasked: u32,
    missing: u32,
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Main,
    Parsing,
    Objects,
}

impl Client {
    pub fn new(model: Web) -> Client {
        Client {
            model,
            state: State::Idle,
            next: Instant::NEVER,
            asked: Instant::ZERO,
            open: Vec::new(),
            unasked: 0,
            missing: 0,
            number: 0,
        }
    }

    fn ask(&mut self, context: &mut Context, connection: u32, answer: u32) {
        self.number = self.number.wrapping_add(1);
        let content = Content::Request { answer, after: self.model.server };
        context.send(connection, self.model.request, self.number, content);
    }

    fn ask_object(&mut self, context: &mut Context, connection: u32) {
        if self.unasked > 0 {
            self.unasked -= 1;
            let answer = self.model.object.draw(context.rng);
            self.ask(context, connection, answer);
        }
    }

    fn begin(&mut self, context: &mut Context) {
        self.next = Instant::NEVER;
        self.state = State::Main;
        self.asked = context.now;
        self.open.push(0);
        context.open(0);
    }

    fn begin_objects(&mut self, context: &mut Context) {
        self.next = Instant::NEVER;
        self.state = State::Objects;
        match self.model.fetching {
            Fetching::Multiplexed => {
                while self.unasked > 0 {
                    self.ask_object(context, 0);
                }
            }
            Fetching::Parallel(connections) => {
                for connection in 1..connections.min(self.unasked) {
                    self.open.push(connection);
                    context.open(connection);
                }
                self.ask_object(context, 0);
            }
        }
    }

    fn draw_objects(&self, context: &mut Context) -> u32 {
        if !self.model.spread || self.model.objects == 0.0 {
            return self.model.objects as u32;
        }
        let objects = context.rng.geometric(1.0 / (1.0 + self.model.objects));
        objects.min(MOST_OBJECTS as u64) as u32
    }

    fn finish(&mut self, context: &mut Context) {
        for connection in self.open.drain(..) {
            context.close(connection);
        }
        self.state = State::Idle;
        self.unasked = 0;
        self.next = context.now + context.exponential(self.model.think);
    }
}

impl Machine for Client {
    fn start(&mut self, context: &mut Context) {
        self.begin(context);
    }

    fn connected(&mut self, context: &mut Context, connection: u32) {
        match self.state {
            State::Main => {
                let answer = self.model.main.draw(context.rng);
                self.ask(context, connection, answer);
            }
            State::Objects => self.ask_object(context, connection),
            State::Idle | State::Parsing => {}
        }
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        self.open.retain(|open| *open != connection);
        context.observe(Observation::Failure { at: context.now });
        self.finish(context);
    }

    fn message(&mut self, context: &mut Context, connection: u32, _: &Message) {
        match self.state {
            State::Main => {
                self.unasked = self.draw_objects(context);
                self.missing = self.unasked;
                if self.missing > 0 {
                    self.state = State::Parsing;
                    self.next = context.now + context.exponential(self.model.parse);
                    return;
                }
            }
            State::Objects if self.missing > 1 => {
                self.missing -= 1;
                if let Fetching::Parallel(_) = self.model.fetching {
                    self.ask_object(context, connection);
                }
                return;
            }
            State::Objects => {}
            State::Idle | State::Parsing => return,
        }
        context.observe(Observation::Page { at: context.now, took: context.now.since(self.asked) });
        self.finish(context);
    }

    fn timeout(&mut self, context: &mut Context) {
        match self.state {
            State::Idle => self.begin(context),
            State::Parsing => self.begin_objects(context),
            State::Main | State::Objects => {}
        }
    }

    fn deadline(&self) -> Instant {
        self.next
    }
}
