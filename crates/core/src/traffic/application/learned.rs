//! A model learned from a capture: requests and responses, or packets each way, with the
//! distributions that were seen and, up to a bound, what was said itself.

use super::playout::Playout;
use super::{
    ApplicationError, Carriage, Content, Context, HEADER, LARGEST_DATAGRAM, Machine, Message, Observation,
    Role,
};
use crate::rng::Stream;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A request without its answer is given up after this; only datagrams get lost.
const GIVEN_UP: Duration = Duration::from_secs(5);
/// A client that waits for the first packet of a stream asks again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Most connections open at once.
pub const MOST_CONCURRENT: u32 = 64;

/// What was learned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    /// What carried it.
    pub carriage: Carriage,
    /// What it looks like.
    pub shape: Shape,
}

/// What a conversation looks like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One end asks, the other answers.
    Exchanges(Exchanges),
    /// Packets each way, none of which answers another.
    OneWay {
        /// From client to server.
        up: Option<OneWay>,
        /// From server to client.
        down: Option<OneWay>,
    },
}

/// Connections of turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchanges {
    /// Bytes of a request.
    pub request: Quantiles,
    /// Bytes of a response; 0 for none.
    pub response: Quantiles,
    /// Nanoseconds from the last response, or from the connection, to the request.
    pub think: Quantiles,
    /// Nanoseconds from the request to its response, as the server takes them.
    pub server: Quantiles,
    /// Turns of a connection.
    pub turns: Quantiles,
    /// Nanoseconds from the start of a connection to that of the next.
    pub starts: Quantiles,
    /// Most connections at once.
    pub concurrent: u32,
    /// What was said, as far as it was kept.
    pub recorded: Vec<Connection>,
}

/// A connection, as captured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Time from the start of the one before.
    pub after: Duration,
    /// What was said on it.
    pub turns: Vec<Turn>,
}

/// A request and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// Time from the last response, or from the connection, to the request.
    pub think: Duration,
    /// Bytes of the request.
    pub request: u32,
    /// Time the server takes.
    pub server: Duration,
    /// Bytes of the response; 0 for none.
    pub response: u32,
}

/// Packets one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneWay {
    /// Payload bytes of a packet.
    pub size: Quantiles,
    /// Nanoseconds from one packet to the next.
    pub gap: Quantiles,
    /// Gap before each packet, and its bytes, as far as they were kept.
    pub recorded: Vec<(Duration, u32)>,
}

/// A distribution as its quantiles: value k of n is that at k / (n - 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantiles(pub Vec<u64>);

impl Quantiles {
    /// Of samples, which it sorts: all of them, or evenly spread ones where there are more
    /// than `most`, which is at least 2.
    pub fn of(mut samples: Vec<u64>, most: usize) -> Quantiles {
        samples.sort_unstable();
        if samples.len() > most {
            let last = samples.len() - 1;
            samples = (0..most).map(|k| samples[k * last / (most - 1)]).collect();
        }
        Quantiles(samples)
    }

    /// A value, between the quantiles on a straight line.
    pub fn draw(&self, rng: &mut Stream) -> u64 {
        let Some(last) = self.0.len().checked_sub(1) else { return 0 };
        let place = rng.uniform() * last as f64;
        let below = (place as usize).min(last);
        let (low, high) = (self.0[below], self.0[(below + 1).min(last)]);
        low + (high.saturating_sub(low) as f64 * (place - below as f64)) as u64
    }

    fn ascends(&self) -> bool {
        !self.0.is_empty() && self.0.is_sorted()
    }

    fn largest(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }
}

/// A year: no captured time is longer.
const LONGEST: u64 = 366 * 86_400 * 1_000_000_000;

impl Learned {
    pub(super) fn check(&self, replay: bool) -> Result<(), ApplicationError> {
        if replay && !self.is_recorded() {
            return Err(ApplicationError::EmptyModel);
        }
        let most = match self.carriage {
            Carriage::Stream => u64::from(u32::MAX),
            Carriage::Datagram => u64::from(LARGEST_DATAGRAM),
        };
        match &self.shape {
            Shape::Exchanges(exchanges) => exchanges.check(most),
            Shape::OneWay { up: None, down: None } => Err(ApplicationError::EmptyModel),
            Shape::OneWay { up, down } => up.iter().chain(down).try_for_each(|way| way.check(most)),
        }
    }

    /// Whether anything was kept that could be replayed.
    pub fn is_recorded(&self) -> bool {
        match &self.shape {
            Shape::Exchanges(exchanges) => !exchanges.recorded.is_empty(),
            Shape::OneWay { up, down } => up.iter().chain(down).any(|way| !way.recorded.is_empty()),
        }
    }

    pub(super) fn connections(&self) -> u32 {
        match (&self.shape, self.carriage) {
            (Shape::Exchanges(exchanges), Carriage::Stream) => exchanges.concurrent,
            _ => 1,
        }
    }
}

impl Exchanges {
    fn check(&self, most: u64) -> Result<(), ApplicationError> {
        let sizes = [&self.request, &self.response];
        let times = [&self.think, &self.server, &self.starts];
        if !sizes.iter().chain(&times).chain(&[&self.turns]).all(|table| table.ascends()) {
            return Err(ApplicationError::EmptyModel);
        }
        let spoken = self.recorded.iter().flat_map(|connection| &connection.turns);
        let longest = spoken.clone().map(|turn| turn.think.0.max(turn.server.0)).max().unwrap_or(0);
        let largest = spoken.map(|turn| u64::from(turn.request.max(turn.response))).max().unwrap_or(0);
        let silent = self.recorded.iter().any(|connection| connection.turns.is_empty());
        let gap = self.recorded.iter().map(|connection| connection.after.0).max().unwrap_or(0);
        if sizes.iter().any(|table| table.largest() > most) || largest > most {
            return Err(ApplicationError::LargeDatagram);
        }
        if times.iter().any(|table| table.largest() > LONGEST) || longest.max(gap) > LONGEST {
            return Err(ApplicationError::Size);
        }
        if silent || self.turns.0[0] == 0 || !(1..=MOST_CONCURRENT).contains(&self.concurrent) {
            return Err(ApplicationError::ZeroCount);
        }
        // Connections that start without end at one instant would never let time go on.
        if self.starts.largest() == 0 && self.starts.0.len() > 1 {
            return Err(ApplicationError::ZeroTime);
        }
        Ok(())
    }
}

impl OneWay {
    fn check(&self, most: u64) -> Result<(), ApplicationError> {
        if !self.size.ascends() || !self.gap.ascends() {
            return Err(ApplicationError::EmptyModel);
        }
        let recorded = self.recorded.iter();
        let (longest, largest) = recorded.fold((0, 0), |(gap, size), (g, s)| (g.0.max(gap), (*s).max(size)));
        if self.size.largest() > most || u64::from(largest) > most {
            Err(ApplicationError::LargeDatagram)
        } else if self.gap.largest() > LONGEST || longest > LONGEST {
            Err(ApplicationError::Size)
        } else if self.gap.largest() == 0 {
            Err(ApplicationError::ZeroTime)
        } else {
            Ok(())
        }
    }
}

/// The client of [`Exchanges`].
#[derive(Clone, Debug)]
pub(crate) struct Client {
    model: Arc<Learned>,
    replay: bool,
    slots: Vec<Slot>,
    /// When the next connection starts; it waits for a slot to be free.
    next: Instant,
    begun: usize,
    number: u32,
    /// Requests under way, by number: the slot, and when they were made.
    asked: BTreeMap<u32, (usize, Instant)>,
}

/// A connection that is open, or a place for one.
#[derive(Clone, Debug)]
struct Slot {
    busy: bool,
    /// The recorded connection it replays.
    recorded: usize,
    said: usize,
    turns: usize,
    due: Instant,
}

impl Client {
    pub fn new(model: Arc<Learned>, replay: bool) -> Client {
        let concurrent = match &model.shape {
            Shape::Exchanges(exchanges) => exchanges.concurrent as usize,
            Shape::OneWay { .. } => 0,
        };
        let slot = Slot { busy: false, recorded: 0, said: 0, turns: 0, due: Instant::NEVER };
        Client {
            model,
            replay,
            slots: alloc::vec![slot; concurrent],
            next: Instant::NEVER,
            begun: 0,
            number: 0,
            asked: BTreeMap::new(),
        }
    }

    /// Starts the connections whose time has come, as far as there are slots.
    fn begin(&mut self, context: &mut Context) {
        let model = Arc::clone(&self.model);
        let Shape::Exchanges(exchanges) = &model.shape else { return };
        while self.next <= context.now {
            let Some(free) = self.slots.iter().position(|slot| !slot.busy) else { return };
            let recorded = self.begun;
            let turns = if self.replay {
                exchanges.recorded[recorded].turns.len()
            } else {
                exchanges.turns.draw(context.rng).max(1) as usize
            };
            self.slots[free] = Slot { busy: true, recorded, said: 0, turns, due: Instant::NEVER };
            self.begun += 1;
            self.next = if !self.replay {
                self.next + Duration(exchanges.starts.draw(context.rng))
            } else {
                exchanges.recorded.get(self.begun).map_or(Instant::NEVER, |next| self.next + next.after)
            };
            match model.carriage {
                Carriage::Stream => context.open(free as u32),
                Carriage::Datagram => self.think(context, free),
            }
        }
    }

    fn recorded(&self, slot: usize) -> Option<Turn> {
        let Shape::Exchanges(exchanges) = &self.model.shape else { return None };
        let slot = self.slots.get(slot).filter(|_| self.replay)?;
        exchanges.recorded.get(slot.recorded)?.turns.get(slot.said).copied()
    }

    /// The next turn of a slot is due after a while, or its connection has had its last.
    fn think(&mut self, context: &mut Context, index: usize) {
        if self.slots[index].said == self.slots[index].turns {
            self.free(context, index);
            return;
        }
        let think = match (self.recorded(index), &self.model.shape) {
            (Some(turn), _) => turn.think,
            (None, Shape::Exchanges(exchanges)) => Duration(exchanges.think.draw(context.rng)),
            (None, Shape::OneWay { .. }) => return,
        };
        self.slots[index].due = context.now + think;
    }

    fn free(&mut self, context: &mut Context, index: usize) {
        self.slots[index].busy = false;
        self.slots[index].due = Instant::NEVER;
        if self.model.carriage == Carriage::Stream {
            context.close(index as u32);
        }
        self.begin(context);
    }

    fn ask(&mut self, context: &mut Context, index: usize) {
        let turn = match (self.recorded(index), &self.model.shape) {
            (Some(turn), _) => turn,
            (None, Shape::Exchanges(exchanges)) => Turn {
                think: Duration::ZERO,
                request: exchanges.request.draw(context.rng) as u32,
                server: Duration(exchanges.server.draw(context.rng)),
                response: exchanges.response.draw(context.rng) as u32,
            },
            (None, Shape::OneWay { .. }) => return,
        };
        let connection = if self.model.carriage == Carriage::Stream { index as u32 } else { 0 };
        self.number = self.number.wrapping_add(1);
        self.slots[index].due = Instant::NEVER;
        self.slots[index].said += 1;
        let content = Content::Request { answer: turn.response, after: turn.server };
        context.send(connection, turn.request, self.number, content);
        if turn.response == 0 {
            self.think(context, index);
        } else {
            self.asked.insert(self.number, (index, context.now));
        }
    }

    /// When the oldest request is given up.
    fn given_up_at(&self) -> Instant {
        let lossy = self.model.carriage == Carriage::Datagram;
        let oldest = self.asked.values().next().filter(|_| lossy);
        oldest.map_or(Instant::NEVER, |(_, asked)| *asked + GIVEN_UP)
    }
}

impl Machine for Client {
    fn start(&mut self, context: &mut Context) {
        self.next = context.now;
        if self.model.carriage == Carriage::Datagram {
            context.open(0);
        } else {
            self.begin(context);
        }
    }

    fn connected(&mut self, context: &mut Context, connection: u32) {
        match self.model.carriage {
            Carriage::Datagram => self.begin(context),
            Carriage::Stream => self.think(context, connection as usize),
        }
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        context.observe(Observation::Failure { at: context.now });
        let index = connection as usize;
        self.asked.retain(|_, (slot, _)| *slot != index);
        self.slots[index].busy = false;
        self.slots[index].due = Instant::NEVER;
        self.begin(context);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &Message) {
        if let Some((index, asked)) = self.asked.remove(&message.number) {
            context.observe(Observation::Transaction { at: context.now, took: context.now.since(asked) });
            self.think(context, index);
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        while self.given_up_at() <= context.now {
            let Some((_, (index, _))) = self.asked.pop_first() else { break };
            context.observe(Observation::Failure { at: context.now });
            self.think(context, index);
        }
        while let Some(index) = self.slots.iter().position(|slot| slot.due <= context.now) {
            self.ask(context, index);
        }
        self.begin(context);
    }

    fn deadline(&self) -> Instant {
        let due = self.slots.iter().map(|slot| slot.due).min().unwrap_or(Instant::NEVER);
        // A start that waits for a slot comes with the end of another connection.
        let room = self.slots.iter().any(|slot| !slot.busy);
        let next = if room { self.next } else { Instant::NEVER };
        due.min(next).min(self.given_up_at())
    }
}

/// Either end of [`Shape::OneWay`].
#[derive(Clone, Debug)]
pub(crate) struct StreamEnd {
    model: Arc<Learned>,
    role: Role,
    replay: bool,
    /// When the next packet leaves.
    next: Instant,
    sent: usize,
    number: u32,
    /// When a client that sends nothing of its own asks again.
    ask: Instant,
    heard: Playout,
}

impl StreamEnd {
    pub fn new(model: Arc<Learned>, role: Role, replay: bool) -> StreamEnd {
        let (next, ask, heard) = (Instant::NEVER, Instant::NEVER, Playout::new(None));
        StreamEnd { model, role, replay, next, sent: 0, number: 0, ask, heard }
    }

    /// What this end sends.
    fn way(&self) -> Option<&OneWay> {
        match (&self.model.shape, self.role) {
            (Shape::OneWay { up, .. }, Role::Client) => up.as_ref(),
            (Shape::OneWay { down, .. }, Role::Server) => down.as_ref(),
            (Shape::Exchanges(_), _) => None,
        }
    }

    fn gap(&self, rng: &mut Stream) -> Option<Duration> {
        let way = self.way()?;
        if self.replay {
            return way.recorded.get(self.sent).map(|(gap, _)| *gap);
        }
        Some(Duration(way.gap.draw(rng)))
    }

    fn begin(&mut self, context: &mut Context) {
        self.next = self.gap(context.rng).map_or(Instant::NEVER, |gap| context.now + gap);
    }

    fn ask(&mut self, context: &mut Context) {
        context.send(0, HEADER, 0, Content::Request { answer: 0, after: Duration::ZERO });
        self.ask = context.now + ASK_AGAIN;
    }

    fn send(&mut self, context: &mut Context) {
        let Some(way) = self.way() else { return };
        let recorded = if self.replay { way.recorded.get(self.sent) } else { None };
        let bytes = recorded.map_or_else(|| way.size.draw(context.rng) as u32, |(_, bytes)| *bytes);
        context.send(0, bytes, self.number, Content::Data);
        self.number = self.number.wrapping_add(1);
        self.sent += 1;
        self.next = self.gap(context.rng).map_or(Instant::NEVER, |gap| self.next + gap);
    }
}

impl Machine for StreamEnd {
    fn start(&mut self, context: &mut Context) {
        if self.role == Role::Client {
            context.open(0);
        }
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        // The first packet tells the server that the client is there.
        self.ask(context);
        self.begin(context);
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        context.observe(Observation::Failure { at: context.now });
        context.open(connection);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &Message) {
        self.ask = Instant::NEVER;
        if self.role == Role::Server && self.next == Instant::NEVER && self.sent == 0 {
            self.begin(context);
        }
        if message.content == Content::Data {
            self.heard.arrive(context, message.number, context.now.since(message.sent));
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        while self.next <= context.now {
            self.send(context);
        }
        if self.ask <= context.now {
            self.ask(context);
        }
    }

    fn deadline(&self) -> Instant {
        self.next.min(self.ask)
    }
}
