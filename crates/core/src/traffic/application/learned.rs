//! A model learned from a capture: requests and responses, or one-way packets, with the observed
//! distributions and a limited number of recorded messages.

use super::playout::Playout;
use super::{
    ApplicationError, ApplicationMessage, Context, EndpointRole, HEADER, MAX_DATAGRAM_PAYLOAD,
    MessageContent, ModelEndpoint, Observation, TransportKind,
};
use crate::rng::RandomStream;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Time after which a request over datagrams fails.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the client's requests until it receives the first packet.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of concurrent connections.
pub const MAX_CONCURRENT_CONNECTIONS: u32 = 64;

/// A learned model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureModel {
    /// Type of transport.
    pub carriage: TransportKind,
    /// Type of the exchange.
    pub shape: LearnedExchange,
}

/// Type of a learned exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LearnedExchange {
    /// Requests and responses.
    Exchanges(LearnedRequests),
    /// Independent packets in one or both directions.
    OneWay {
        /// Packets from client to server.
        up: Option<LearnedPackets>,
        /// Packets from server to client.
        down: Option<LearnedPackets>,
    },
}

/// Requests and responses on connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedRequests {
    /// Sizes of requests, bytes.
    pub request: Quantiles,
    /// Sizes of responses, bytes; 0 for no response.
    pub response: Quantiles,
    /// Think times from the last response, or from the connection setup, to the request, nanoseconds.
    pub think: Quantiles,
    /// Processing times of the server, nanoseconds.
    pub server: Quantiles,
    /// Numbers of turns per connection.
    pub turns: Quantiles,
    /// Times between the starts of successive connections, nanoseconds.
    pub starts: Quantiles,
    /// Maximum number of concurrent connections.
    pub concurrent: u32,
    /// Recorded connections.
    pub recorded: Vec<RecordedConnection>,
}

/// A captured connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedConnection {
    /// Time from the start of the previous connection.
    pub after: Duration,
    /// Requests and responses on the connection.
    pub turns: Vec<RecordedTurn>,
}

/// A request and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedTurn {
    /// Time from the last response, or from the connection setup, to the request.
    pub think: Duration,
    /// Size of the request, bytes.
    pub request: u32,
    /// Processing time of the server.
    pub server: Duration,
    /// Size of the response, bytes; 0 for no response.
    pub response: u32,
}

/// Packets in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedPackets {
    /// Payload bytes of a packet.
    pub size: Quantiles,
    /// Gaps between packets, nanoseconds.
    pub gap: Quantiles,
    /// Recorded packets: the gap before each packet, and its payload bytes.
    pub recorded: Vec<(Duration, u32)>,
}

/// A distribution by its quantiles: value k of n is the quantile at k / (n - 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantiles(pub Vec<u64>);

impl Quantiles {
    /// Creates the distribution of samples in any order. If there are more than `max`, which is at least 2,
    /// evenly spaced ones are kept.
    pub fn from_samples(mut samples: Vec<u64>, max: usize) -> Quantiles {
        samples.sort_unstable();
        if samples.len() > max {
            let last = samples.len() - 1;
            samples = (0..max).map(|k| samples[k * last / (max - 1)]).collect();
        }
        Quantiles(samples)
    }

    /// Draws a value, with linear interpolation between the quantiles.
    pub fn draw(&self, rng: &mut RandomStream) -> u64 {
        let Some(last) = self.0.len().checked_sub(1) else { return 0 };
        let position = rng.uniform() * last as f64;
        let below = (position as usize).min(last);
        let (low, high) = (self.0[below], self.0[(below + 1).min(last)]);
        low + (high.saturating_sub(low) as f64 * (position - below as f64)) as u64
    }

    /// Returns the probability that [`Quantiles::draw`] returns at most this value; 0 for an empty distribution.
    pub fn cumulative(&self, value: u64) -> f64 {
        let known = self.0.partition_point(|quantile| *quantile <= value);
        let Some(below) = known.checked_sub(1) else { return 0.0 };
        let Some(above) = self.0.get(known) else { return 1.0 };
        // Draws are rounded down.
        let share = (value - self.0[below] + 1) as f64 / (above - self.0[below]) as f64;
        (below as f64 + share) / (self.0.len() - 1) as f64
    }

    fn is_valid(&self) -> bool {
        !self.0.is_empty() && self.0.is_sorted()
    }

    fn max(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }
}

/// Maximum captured time: a leap year, nanoseconds.
const MAX_TIME: u64 = 366 * 86_400 * 1_000_000_000;

impl CaptureModel {
    pub(super) fn check(&self, replay: bool) -> Result<(), ApplicationError> {
        if replay && !self.is_recorded() {
            return Err(ApplicationError::EmptyModel);
        }
        let max_size = match self.carriage {
            TransportKind::Stream => u64::from(u32::MAX),
            TransportKind::Datagram => u64::from(MAX_DATAGRAM_PAYLOAD),
        };
        match &self.shape {
            LearnedExchange::Exchanges(exchanges) => exchanges.check(max_size),
            LearnedExchange::OneWay { up: None, down: None } => Err(ApplicationError::EmptyModel),
            LearnedExchange::OneWay { up, down } => {
                up.iter().chain(down).try_for_each(|direction| direction.check(max_size))
            }
        }
    }

    /// Returns whether the model has recorded messages, which can be replayed.
    pub fn is_recorded(&self) -> bool {
        match &self.shape {
            LearnedExchange::Exchanges(exchanges) => !exchanges.recorded.is_empty(),
            LearnedExchange::OneWay { up, down } => {
                up.iter().chain(down).any(|direction| !direction.recorded.is_empty())
            }
        }
    }

    pub(super) fn connections(&self) -> u32 {
        match (&self.shape, self.carriage) {
            (LearnedExchange::Exchanges(exchanges), TransportKind::Stream) => exchanges.concurrent,
            _ => 1,
        }
    }
}

impl LearnedRequests {
    fn check(&self, max_size: u64) -> Result<(), ApplicationError> {
        let sizes = [&self.request, &self.response];
        let times = [&self.think, &self.server, &self.starts];
        if !sizes.iter().chain(&times).chain(&[&self.turns]).all(|table| table.is_valid()) {
            return Err(ApplicationError::EmptyModel);
        }
        let turns = self.recorded.iter().flat_map(|connection| &connection.turns);
        let longest = turns.clone().map(|turn| turn.think.0.max(turn.server.0)).max().unwrap_or(0);
        let largest = turns.map(|turn| u64::from(turn.request.max(turn.response))).max().unwrap_or(0);
        let has_empty = self.recorded.iter().any(|connection| connection.turns.is_empty());
        let gap = self.recorded.iter().map(|connection| connection.after.0).max().unwrap_or(0);
        if sizes.iter().any(|table| table.max() > max_size) || largest > max_size {
            return Err(ApplicationError::LargeDatagram);
        }
        if times.iter().any(|table| table.max() > MAX_TIME) || longest.max(gap) > MAX_TIME {
            return Err(ApplicationError::Size);
        }
        if has_empty || self.turns.0[0] == 0 || !(1..=MAX_CONCURRENT_CONNECTIONS).contains(&self.concurrent) {
            return Err(ApplicationError::ZeroCount);
        }
        // Otherwise connections would start endlessly at one instant, and time would not advance.
        if self.starts.max() == 0 && self.starts.0.len() > 1 {
            return Err(ApplicationError::ZeroTime);
        }
        Ok(())
    }
}

impl LearnedPackets {
    fn check(&self, max_size: u64) -> Result<(), ApplicationError> {
        if !self.size.is_valid() || !self.gap.is_valid() {
            return Err(ApplicationError::EmptyModel);
        }
        let recorded = self.recorded.iter();
        let (longest, largest) = recorded.fold((0, 0), |(gap, size), (g, s)| (g.0.max(gap), (*s).max(size)));
        if self.size.max() > max_size || u64::from(largest) > max_size {
            Err(ApplicationError::LargeDatagram)
        } else if self.gap.max() > MAX_TIME || longest > MAX_TIME {
            Err(ApplicationError::Size)
        } else if self.gap.max() == 0 {
            Err(ApplicationError::ZeroTime)
        } else {
            Ok(())
        }
    }
}

/// Client of [`LearnedRequests`].
#[derive(Clone, Debug)]
pub(crate) struct LearnedModelClient {
    model: Arc<CaptureModel>,
    replay: bool,
    slots: Vec<Slot>,
    /// Time of the next start of a connection, which also needs a free slot.
    next: Instant,
    connections_started: usize,
    number: u32,
    /// Pending requests by number: slot and time.
    pending: BTreeMap<u32, (usize, Instant)>,
}

/// State of an open connection, or a free slot.
#[derive(Clone, Debug)]
struct Slot {
    busy: bool,
    /// Index of the recorded connection.
    recorded: usize,
    turns_started: usize,
    turns: usize,
    due: Instant,
}

impl LearnedModelClient {
    pub fn new(model: Arc<CaptureModel>, replay: bool) -> LearnedModelClient {
        let concurrent = match &model.shape {
            LearnedExchange::Exchanges(exchanges) => exchanges.concurrent as usize,
            LearnedExchange::OneWay { .. } => 0,
        };
        let slot = Slot { busy: false, recorded: 0, turns_started: 0, turns: 0, due: Instant::NEVER };
        LearnedModelClient {
            model,
            replay,
            slots: alloc::vec![slot; concurrent],
            next: Instant::NEVER,
            connections_started: 0,
            number: 0,
            pending: BTreeMap::new(),
        }
    }

    /// Starts the connections that are due, as far as slots are free.
    fn begin(&mut self, context: &mut Context) {
        let model = Arc::clone(&self.model);
        let LearnedExchange::Exchanges(exchanges) = &model.shape else { return };
        while self.next <= context.now {
            let Some(free) = self.slots.iter().position(|slot| !slot.busy) else { return };
            let recorded = self.connections_started;
            let turns = if self.replay {
                exchanges.recorded[recorded].turns.len()
            } else {
                exchanges.turns.draw(context.rng).max(1) as usize
            };
            self.slots[free] = Slot { busy: true, recorded, turns_started: 0, turns, due: Instant::NEVER };
            self.connections_started += 1;
            self.next = if !self.replay {
                self.next + Duration(exchanges.starts.draw(context.rng))
            } else {
                exchanges
                    .recorded
                    .get(self.connections_started)
                    .map_or(Instant::NEVER, |next| self.next + next.after)
            };
            match model.carriage {
                TransportKind::Stream => context.open(free as u32),
                TransportKind::Datagram => self.think(context, free),
            }
        }
    }

    fn recorded(&self, slot: usize) -> Option<RecordedTurn> {
        let LearnedExchange::Exchanges(exchanges) = &self.model.shape else { return None };
        let slot = self.slots.get(slot).filter(|_| self.replay)?;
        exchanges.recorded.get(slot.recorded)?.turns.get(slot.turns_started).copied()
    }

    /// Schedules the next turn of a slot, or frees the slot after the last turn.
    fn think(&mut self, context: &mut Context, index: usize) {
        if self.slots[index].turns_started == self.slots[index].turns {
            self.free(context, index);
            return;
        }
        let think = match (self.recorded(index), &self.model.shape) {
            (Some(turn), _) => turn.think,
            (None, LearnedExchange::Exchanges(exchanges)) => Duration(exchanges.think.draw(context.rng)),
            (None, LearnedExchange::OneWay { .. }) => return,
        };
        self.slots[index].due = context.now + think;
    }

    fn free(&mut self, context: &mut Context, index: usize) {
        self.slots[index].busy = false;
        self.slots[index].due = Instant::NEVER;
        if self.model.carriage == TransportKind::Stream {
            context.close(index as u32);
        }
        self.begin(context);
    }

    fn send_request(&mut self, context: &mut Context, index: usize) {
        let turn = match (self.recorded(index), &self.model.shape) {
            (Some(turn), _) => turn,
            (None, LearnedExchange::Exchanges(exchanges)) => RecordedTurn {
                think: Duration::ZERO,
                request: exchanges.request.draw(context.rng) as u32,
                server: Duration(exchanges.server.draw(context.rng)),
                response: exchanges.response.draw(context.rng) as u32,
            },
            (None, LearnedExchange::OneWay { .. }) => return,
        };
        let connection = if self.model.carriage == TransportKind::Stream { index as u32 } else { 0 };
        self.number = self.number.wrapping_add(1);
        self.slots[index].due = Instant::NEVER;
        self.slots[index].turns_started += 1;
        let content = MessageContent::Request { answer: turn.response, after: turn.server };
        context.send(connection, turn.request, self.number, content);
        if turn.response == 0 {
            self.think(context, index);
        } else {
            self.pending.insert(self.number, (index, context.now));
        }
    }

    /// Returns the time at which the oldest request fails.
    fn expires_at(&self) -> Instant {
        let is_lossy = self.model.carriage == TransportKind::Datagram;
        let oldest = self.pending.values().next().filter(|_| is_lossy);
        oldest.map_or(Instant::NEVER, |(_, at)| *at + REQUEST_TIMEOUT)
    }
}

impl ModelEndpoint for LearnedModelClient {
    fn start(&mut self, context: &mut Context) {
        self.next = context.now;
        if self.model.carriage == TransportKind::Datagram {
            context.open(0);
        } else {
            self.begin(context);
        }
    }

    fn connected(&mut self, context: &mut Context, connection: u32) {
        match self.model.carriage {
            TransportKind::Datagram => self.begin(context),
            TransportKind::Stream => self.think(context, connection as usize),
        }
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        context.observe(Observation::Failure { at: context.now });
        let index = connection as usize;
        self.pending.retain(|_, (slot, _)| *slot != index);
        self.slots[index].busy = false;
        self.slots[index].due = Instant::NEVER;
        self.begin(context);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &ApplicationMessage) {
        if let Some((index, at)) = self.pending.remove(&message.number) {
            context.observe(Observation::Transaction { at: context.now, took: context.now.since(at) });
            self.think(context, index);
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        while self.expires_at() <= context.now {
            let Some((_, (index, _))) = self.pending.pop_first() else { break };
            context.observe(Observation::Failure { at: context.now });
            self.think(context, index);
        }
        while let Some(index) = self.slots.iter().position(|slot| slot.due <= context.now) {
            self.send_request(context, index);
        }
        self.begin(context);
    }

    fn deadline(&self) -> Instant {
        let due = self.slots.iter().map(|slot| slot.due).min().unwrap_or(Instant::NEVER);
        // A start that waits for a slot follows the end of another connection.
        let has_free_slot = self.slots.iter().any(|slot| !slot.busy);
        let next = if has_free_slot { self.next } else { Instant::NEVER };
        due.min(next).min(self.expires_at())
    }
}

/// Either endpoint of [`LearnedExchange::LearnedPackets`].
#[derive(Clone, Debug)]
pub(crate) struct OneWayEndpoint {
    model: Arc<CaptureModel>,
    role: EndpointRole,
    replay: bool,
    /// Departure time of the next packet.
    next: Instant,
    sent: usize,
    number: u32,
    /// Time of the client's next request, until it receives a packet.
    next_request: Instant,
    playout: Playout,
}

impl OneWayEndpoint {
    pub fn new(model: Arc<CaptureModel>, role: EndpointRole, replay: bool) -> OneWayEndpoint {
        let (next, next_request, playout) = (Instant::NEVER, Instant::NEVER, Playout::new(None));
        OneWayEndpoint { model, role, replay, next, sent: 0, number: 0, next_request, playout }
    }

    /// Returns the packets that this endpoint sends.
    fn outgoing(&self) -> Option<&LearnedPackets> {
        match (&self.model.shape, self.role) {
            (LearnedExchange::OneWay { up, .. }, EndpointRole::Client) => up.as_ref(),
            (LearnedExchange::OneWay { down, .. }, EndpointRole::Server) => down.as_ref(),
            (LearnedExchange::Exchanges(_), _) => None,
        }
    }

    fn gap(&self, rng: &mut RandomStream) -> Option<Duration> {
        let outgoing = self.outgoing()?;
        if self.replay {
            return outgoing.recorded.get(self.sent).map(|(gap, _)| *gap);
        }
        Some(Duration(outgoing.gap.draw(rng)))
    }

    fn begin(&mut self, context: &mut Context) {
        self.next = self.gap(context.rng).map_or(Instant::NEVER, |gap| context.now + gap);
    }

    fn send_request(&mut self, context: &mut Context) {
        context.send(0, HEADER, 0, MessageContent::Request { answer: 0, after: Duration::ZERO });
        self.next_request = context.now + REQUEST_INTERVAL;
    }

    fn send(&mut self, context: &mut Context) {
        let Some(outgoing) = self.outgoing() else { return };
        let recorded = if self.replay { outgoing.recorded.get(self.sent) } else { None };
        let bytes = recorded.map_or_else(|| outgoing.size.draw(context.rng) as u32, |(_, bytes)| *bytes);
        context.send(0, bytes, self.number, MessageContent::Data);
        self.number = self.number.wrapping_add(1);
        self.sent += 1;
        self.next = self.gap(context.rng).map_or(Instant::NEVER, |gap| self.next + gap);
    }
}

impl ModelEndpoint for OneWayEndpoint {
    fn start(&mut self, context: &mut Context) {
        if self.role == EndpointRole::Client {
            context.open(0);
        }
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        // The server starts to send when it receives the request.
        self.send_request(context);
        self.begin(context);
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        context.observe(Observation::Failure { at: context.now });
        context.open(connection);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &ApplicationMessage) {
        self.next_request = Instant::NEVER;
        if self.role == EndpointRole::Server && self.next == Instant::NEVER && self.sent == 0 {
            self.begin(context);
        }
        if message.content == MessageContent::Data {
            self.playout.arrive(context, message.number, context.now.since(message.sent));
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        while self.next <= context.now {
            self.send(context);
        }
        if self.next_request <= context.now {
            self.send_request(context);
        }
    }

    fn deadline(&self) -> Instant {
        self.next.min(self.next_request)
    }
}
