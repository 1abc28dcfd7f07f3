//! Web pages: a main object and its embedded objects, fetched over several connections (HTTP/1.1, six per
//! host) or over one connection with concurrent requests (RFC 9113).

use super::{
    ApplicationError, ApplicationMessage, Context, MessageContent, ModelEndpoint, Observation,
    SizeDistribution,
};
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Web pages with embedded objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Web {
    /// Size of the main object.
    pub main: SizeDistribution,
    /// Mean number of embedded objects, geometric; a whole number if `spread` is false.
    pub objects: f64,
    /// Random number of embedded objects; otherwise it is always `objects`.
    pub spread: bool,
    /// Size of an embedded object.
    pub object: SizeDistribution,
    /// Size of a request, bytes.
    pub request: u32,
    /// Connections and concurrency of the requests.
    pub fetching: FetchMode,
    /// Mean time to parse the main object before the others are requested, exponential.
    pub parse: Duration,
    /// Mean think time between pages, exponential.
    pub think: Duration,
    /// Processing time of the server per object.
    pub server: Duration,
}

/// Connections and concurrency of the requests for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FetchMode {
    /// This number of connections, each with one request at a time.
    Parallel(u32),
    /// Concurrent requests on one connection.
    Multiplexed,
}

/// Maximum number of objects of a page.
const MAX_OBJECTS: f64 = 10_000.0;

impl Web {
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        self.main.check()?;
        self.object.check()?;
        SizeDistribution::constant(self.request).check()?;
        if !(0.0..=MAX_OBJECTS).contains(&self.objects) {
            return Err(ApplicationError::Size);
        }
        if self.connections() == 0 { Err(ApplicationError::ZeroCount) } else { Ok(()) }
    }

    pub(super) fn connections(&self) -> u32 {
        match self.fetching {
            FetchMode::Parallel(connections) => connections,
            FetchMode::Multiplexed => 1,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct WebClient {
    model: Web,
    state: PageState,
    next: Instant,
    started_at: Instant,
    /// Connections open or being opened.
    open: Vec<u32>,
    /// Objects of the page not yet requested, and not yet received.
    unrequested: u32,
    missing: u32,
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Idle,
    Main,
    Parsing,
    Objects,
}

impl WebClient {
    pub fn new(model: Web) -> WebClient {
        WebClient {
            model,
            state: PageState::Idle,
            next: Instant::NEVER,
            started_at: Instant::ZERO,
            open: Vec::new(),
            unrequested: 0,
            missing: 0,
            number: 0,
        }
    }

    fn send_request(&mut self, context: &mut Context, connection: u32, answer: u32) {
        self.number = self.number.wrapping_add(1);
        let content = MessageContent::Request { answer, after: self.model.server };
        context.send(connection, self.model.request, self.number, content);
    }

    fn request_object(&mut self, context: &mut Context, connection: u32) {
        if self.unrequested > 0 {
            self.unrequested -= 1;
            let answer = self.model.object.draw(context.rng);
            self.send_request(context, connection, answer);
        }
    }

    fn begin(&mut self, context: &mut Context) {
        self.next = Instant::NEVER;
        self.state = PageState::Main;
        self.started_at = context.now;
        self.open.push(0);
        context.open(0);
    }

    fn begin_objects(&mut self, context: &mut Context) {
        self.next = Instant::NEVER;
        self.state = PageState::Objects;
        match self.model.fetching {
            FetchMode::Multiplexed => {
                while self.unrequested > 0 {
                    self.request_object(context, 0);
                }
            }
            FetchMode::Parallel(connections) => {
                for connection in 1..connections.min(self.unrequested) {
                    self.open.push(connection);
                    context.open(connection);
                }
                self.request_object(context, 0);
            }
        }
    }

    fn draw_objects(&self, context: &mut Context) -> u32 {
        if !self.model.spread || self.model.objects == 0.0 {
            return self.model.objects as u32;
        }
        let objects = context.rng.geometric(1.0 / (1.0 + self.model.objects));
        objects.min(MAX_OBJECTS as u64) as u32
    }

    fn finish(&mut self, context: &mut Context) {
        for connection in self.open.drain(..) {
            context.close(connection);
        }
        self.state = PageState::Idle;
        self.unrequested = 0;
        self.next = context.now + context.exponential(self.model.think);
    }
}

impl ModelEndpoint for WebClient {
    fn start(&mut self, context: &mut Context) {
        self.begin(context);
    }

    fn connected(&mut self, context: &mut Context, connection: u32) {
        match self.state {
            PageState::Main => {
                let answer = self.model.main.draw(context.rng);
                self.send_request(context, connection, answer);
            }
            PageState::Objects => self.request_object(context, connection),
            PageState::Idle | PageState::Parsing => {}
        }
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        self.open.retain(|open| *open != connection);
        context.observe(Observation::Failure { at: context.now });
        self.finish(context);
    }

    fn message(&mut self, context: &mut Context, connection: u32, _: &ApplicationMessage) {
        match self.state {
            PageState::Main => {
                self.unrequested = self.draw_objects(context);
                self.missing = self.unrequested;
                if self.missing > 0 {
                    self.state = PageState::Parsing;
                    self.next = context.now + context.exponential(self.model.parse);
                    return;
                }
            }
            PageState::Objects if self.missing > 1 => {
                self.missing -= 1;
                if let FetchMode::Parallel(_) = self.model.fetching {
                    self.request_object(context, connection);
                }
                return;
            }
            PageState::Objects => {}
            PageState::Idle | PageState::Parsing => return,
        }
        context.observe(Observation::Page { at: context.now, took: context.now.since(self.started_at) });
        self.finish(context);
    }

    fn timeout(&mut self, context: &mut Context) {
        match self.state {
            PageState::Idle => self.begin(context),
            PageState::Parsing => self.begin_objects(context),
            PageState::Main | PageState::Objects => {}
        }
    }

    fn deadline(&self) -> Instant {
        self.next
    }
}
