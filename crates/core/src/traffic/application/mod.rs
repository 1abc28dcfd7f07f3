//! Application models: what the two ends of a flow say to each other, and how well the user
//! is served. The client is at the flow's `from`, the server at its `to`.
//!
//! Each end is an [`Endpoint`], sans-IO. The client decides; its messages tell the server
//! what to answer, so the ends need nothing in common but the model's settings. A
//! [`Message`] is a number of bytes handed to the transport at once; the first
//! [`HEADER`](message::HEADER) of them say what it is, so that live and simulated flows
//! carry the same bytes. docs/traffic.md gives the models' parameters and their sources.

mod adaptive;
mod dns;
mod exchange;
mod frames;
mod game;
mod learned;
mod message;
mod playout;
mod quality;
mod responder;
mod spread;
mod storage;
mod transfer;
mod voice;
mod web;

pub use adaptive::{Adaptation, AdaptiveVideo};
pub use dns::Dns;
pub use exchange::{Exchange, Pace};
pub use frames::FrameVideo;
pub use game::{Game, Ticks};
pub use learned::{Connection, Exchanges, Learned, MOST_CONCURRENT, OneWay, Quantiles, Shape, Turn};
pub use message::{Content, HEADER, Malformed, Message};
pub use quality::{Observation, Quality, QualityBins};
pub use spread::Spread;
pub use storage::BlockStorage;
pub use transfer::{Transfers, Way};
pub use voice::{Codec, Voice};
pub use web::{Fetching, Web};

use crate::rng::Stream;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt;
use responder::Responder;
use serde::{Deserialize, Serialize};

/// An application and its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// File transfers, each over a connection of its own.
    Transfers(Transfers),
    /// Pages of many objects.
    Web(Web),
    /// Video in segments, whose bit rate adapts.
    AdaptiveVideo(AdaptiveVideo),
    /// Video in frames of varying size.
    FrameVideo(FrameVideo),
    /// A telephone call.
    Voice(Voice),
    /// Name lookups.
    Dns(Dns),
    /// A game: small packets both ways.
    Game(Game),
    /// Requests and responses.
    Exchange(Exchange),
    /// Blocks read and written.
    BlockStorage(BlockStorage),
    /// What was learned from a capture.
    Learned {
        /// The model.
        model: Arc<Learned>,
        /// Say exactly what was captured, in place of drawing from its distributions.
        replay: bool,
    },
}

/// How a transport carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carriage {
    /// In order and complete, in connections: TCP, QUIC.
    Stream,
    /// Each by itself, if at all: UDP. There is one connection, 0.
    Datagram,
}

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Opens connections and asks.
    Client,
    /// Answers.
    Server,
}

/// What a driver is asked to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Open connection number so-and-so, which is closed; client only. Numbers are below
    /// [`Application::connections`] and come again after a close.
    Open(u32),
    /// Send a message on a connection. A driver that knows the moment of sending better
    /// than the message says sets [`Message::sent`] anew.
    Send(u32, Message),
    /// Close a connection; client only.
    Close(u32),
}

/// Why an application cannot run as it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplicationError {
    /// A message would be smaller than its header.
    SmallMessage,
    /// A message does not fit into a datagram.
    LargeDatagram,
    /// A size is above 4 GiB, or not a number.
    Size,
    /// A count that must be positive is zero.
    ZeroCount,
    /// A time that must be positive is zero.
    ZeroTime,
    /// Bit rates are missing, zero or do not ascend.
    Rates,
    /// A buffer holds less than one segment, or its parts exceed it.
    Buffer,
    /// A share is not between 0 and 1.
    Share,
    /// This application needs connections (TCP or QUIC).
    NeedsStream,
    /// This application needs datagrams (UDP).
    NeedsDatagrams,
    /// A learned model holds nothing that could be said.
    EmptyModel,
}

impl fmt::Display for ApplicationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ApplicationError::SmallMessage => "a message is at least 32 bytes, which say what it is",
            ApplicationError::LargeDatagram => "a message does not fit into a datagram of 65,507 bytes",
            ApplicationError::Size => "a size must be a number below 4 GiB",
            ApplicationError::ZeroCount => "a count is zero",
            ApplicationError::ZeroTime => "a time is zero",
            ApplicationError::Rates => "bit rates must be given in ascending order, each above zero",
            ApplicationError::Buffer => "the buffer must hold a segment, and its reservoir and cushion",
            ApplicationError::Share => "a share must be between 0 and 1",
            ApplicationError::NeedsStream => "it needs connections: transport \"tcp\"",
            ApplicationError::NeedsDatagrams => "it needs datagrams: transport \"udp\"",
            ApplicationError::EmptyModel => "the learned model is empty",
        })
    }
}

impl core::error::Error for ApplicationError {}

/// Largest payload of a UDP datagram over IPv4.
pub const LARGEST_DATAGRAM: u32 = 65_507;

impl Application {
    /// Whether it can run over such a transport as it is set.
    pub fn check(&self, carriage: Carriage) -> Result<(), ApplicationError> {
        match (self.carriage(), carriage) {
            (Some(Carriage::Stream), Carriage::Datagram) => return Err(ApplicationError::NeedsStream),
            (Some(Carriage::Datagram), Carriage::Stream) => return Err(ApplicationError::NeedsDatagrams),
            _ => {}
        }
        match self {
            Application::Transfers(model) => model.check(),
            Application::Web(model) => model.check(),
            Application::AdaptiveVideo(model) => model.check(),
            Application::FrameVideo(model) => model.check(),
            Application::Voice(model) => model.check(),
            Application::Dns(model) => model.check(),
            Application::Game(model) => model.check(),
            Application::Exchange(model) => model.check(carriage),
            Application::BlockStorage(model) => model.check(),
            Application::Learned { model, replay } => model.check(*replay),
        }
    }

    /// The transport it needs, where it does not run over both.
    pub fn carriage(&self) -> Option<Carriage> {
        match self {
            Application::Transfers(_)
            | Application::Web(_)
            | Application::AdaptiveVideo(_)
            | Application::BlockStorage(_) => Some(Carriage::Stream),
            Application::Voice(_) | Application::Dns(_) | Application::Game(_) => Some(Carriage::Datagram),
            Application::FrameVideo(_) | Application::Exchange(_) => None,
            Application::Learned { model, .. } => Some(model.carriage),
        }
    }

    /// Most connections open at once.
    pub fn connections(&self) -> u32 {
        match self {
            Application::Web(model) => model.connections(),
            Application::Exchange(model) => model.connections,
            Application::Learned { model, .. } => model.connections(),
            _ => 1,
        }
    }

    /// Its name in scenarios.
    pub fn name(&self) -> &'static str {
        match self {
            Application::Transfers(_) => "ftp",
            Application::Web(_) => "web",
            Application::AdaptiveVideo(_) => "video",
            Application::FrameVideo(_) => "video-frames",
            Application::Voice(_) => "voip",
            Application::Dns(_) => "dns",
            Application::Game(_) => "gaming",
            Application::Exchange(_) => "request-response",
            Application::BlockStorage(_) => "block-storage",
            Application::Learned { .. } => "learned",
        }
    }

    /// Whether the metrics of a call apply, and for which codec.
    pub fn codec(&self) -> Option<Codec> {
        match self {
            Application::Voice(voice) => Some(voice.codec),
            _ => None,
        }
    }
}

/// One end of an application.
///
/// Call [`start`](Endpoint::start) once, then each `handle_…` when it happens,
/// [`handle_timeout`](Endpoint::handle_timeout) when [`poll_timeout`](Endpoint::poll_timeout)
/// is due (earlier calls do nothing), and [`stop`](Endpoint::stop) at the end. After each of
/// them take [`poll_action`](Endpoint::poll_action) and
/// [`poll_observation`](Endpoint::poll_observation) until they give `None`.
#[derive(Clone, Debug)]
pub struct Endpoint {
    model: Model,
    rng: Stream,
    actions: VecDeque<Action>,
    observations: VecDeque<Observation>,
    /// Connections to be opened again after a failure, and when.
    retries: VecDeque<(Instant, u32)>,
    stopped: bool,
}

/// A connection that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(1);

/// What a model is told beside the event, and where its answers go.
pub(crate) struct Context<'a> {
    pub now: Instant,
    pub rng: &'a mut Stream,
    actions: &'a mut VecDeque<Action>,
    observations: &'a mut VecDeque<Observation>,
}

impl Context<'_> {
    fn open(&mut self, connection: u32) {
        self.actions.push_back(Action::Open(connection));
    }

    fn close(&mut self, connection: u32) {
        self.actions.push_back(Action::Close(connection));
    }

    fn send(&mut self, connection: u32, bytes: u32, number: u32, content: Content) {
        let message = Message { bytes: bytes.max(HEADER), number, content, sent: self.now };
        self.actions.push_back(Action::Send(connection, message));
    }

    fn observe(&mut self, observation: Observation) {
        self.observations.push_back(observation);
    }

    /// An exponential time.
    fn exponential(&mut self, mean: Duration) -> Duration {
        Duration(self.rng.exponential(mean.0 as f64) as u64)
    }
}

/// One end of one model.
pub(crate) trait Machine {
    /// The flow starts.
    fn start(&mut self, _: &mut Context) {}
    /// A connection the client opened is there.
    fn connected(&mut self, _: &mut Context, _connection: u32) {}
    /// A connection could not be opened, or broke.
    fn failed(&mut self, _: &mut Context, _connection: u32) {}
    /// A whole message has arrived.
    fn message(&mut self, context: &mut Context, connection: u32, message: &Message);
    /// The time of [`deadline`](Machine::deadline) has come.
    fn timeout(&mut self, _: &mut Context) {}
    /// When to be called.
    fn deadline(&self) -> Instant {
        Instant::NEVER
    }
    /// The flow stops: tell what is under way.
    fn stop(&mut self, _: &mut Context) {}
}

macro_rules! models {
    ($($variant:ident($machine:ty),)+) => {
        #[derive(Clone, Debug)]
        enum Model {
            $($variant($machine),)+
        }

        impl Model {
            fn machine(&mut self) -> &mut dyn Machine {
                match self {
                    $(Model::$variant(machine) => machine,)+
                }
            }

            fn deadline(&self) -> Instant {
                match self {
                    $(Model::$variant(machine) => machine.deadline(),)+
                }
            }
        }
    };
}

models! {
    Responder(Responder),
    Transfers(transfer::Client),
    Web(web::Client),
    AdaptiveVideo(adaptive::Player),
    FrameSource(frames::Source),
    FrameSink(frames::Sink),
    Voice(voice::Talker),
    Dns(dns::Client),
    Game(game::Peer),
    Exchange(exchange::Client),
    BlockStorage(storage::Client),
    LearnedClient(learned::Client),
    LearnedStream(learned::StreamEnd),
}

impl Endpoint {
    /// One end of a flow. `stream` is the flow's own; each end draws from a part of it.
    pub fn new(application: &Application, role: Role, carriage: Carriage, stream: &Stream) -> Endpoint {
        let (client, rng) = match role {
            Role::Client => (true, stream.fork("client")),
            Role::Server => (false, stream.fork("server")),
        };
        let model = match application {
            Application::Voice(voice) => Model::Voice(voice::Talker::new(voice, role)),
            Application::Game(game) => Model::Game(game::Peer::new(game, role)),
            Application::Learned { model, replay } => match &model.shape {
                Shape::Exchanges(_) if client => {
                    Model::LearnedClient(learned::Client::new(Arc::clone(model), *replay))
                }
                Shape::Exchanges(_) => Model::Responder(Responder::default()),
                Shape::OneWay { .. } => {
                    Model::LearnedStream(learned::StreamEnd::new(Arc::clone(model), role, *replay))
                }
            },
            Application::FrameVideo(video) if client => Model::FrameSink(frames::Sink::new(video)),
            Application::FrameVideo(video) => {
                Model::FrameSource(frames::Source::new(video.clone(), carriage))
            }
            _ if !client => Model::Responder(Responder::default()),
            Application::Transfers(model) => Model::Transfers(transfer::Client::new(model.clone())),
            Application::Web(model) => Model::Web(web::Client::new(model.clone())),
            Application::AdaptiveVideo(model) => Model::AdaptiveVideo(adaptive::Player::new(model.clone())),
            Application::Dns(model) => Model::Dns(dns::Client::new(model.clone())),
            Application::Exchange(model) => Model::Exchange(exchange::Client::new(model.clone())),
            Application::BlockStorage(model) => Model::BlockStorage(storage::Client::new(model.clone())),
        };
        Endpoint {
            model,
            rng,
            actions: VecDeque::new(),
            observations: VecDeque::new(),
            retries: VecDeque::new(),
            stopped: false,
        }
    }

    fn tell(&mut self, now: Instant, event: impl FnOnce(&mut dyn Machine, &mut Context)) {
        if self.stopped {
            return;
        }
        let mut context = Context {
            now,
            rng: &mut self.rng,
            actions: &mut self.actions,
            observations: &mut self.observations,
        };
        event(self.model.machine(), &mut context);
    }

    /// The flow starts.
    pub fn start(&mut self, now: Instant) {
        self.tell(now, |machine, context| machine.start(context));
    }

    /// A connection is open: at the client when it may send, which over UDP is at once.
    pub fn handle_connected(&mut self, now: Instant, connection: u32) {
        self.tell(now, |machine, context| machine.connected(context, connection));
    }

    /// A connection could not be opened, or broke. It counts as closed.
    pub fn handle_failure(&mut self, now: Instant, connection: u32) {
        let before = self.actions.len();
        self.tell(now, |machine, context| machine.failed(context, connection));
        for action in self.actions.split_off(before) {
            match action {
                Action::Open(connection) => self.retries.push_back((now + RETRY, connection)),
                other => self.actions.push_back(other),
            }
        }
    }

    /// A whole message has arrived. Its `sent` must be told by this end's clock.
    pub fn handle_message(&mut self, now: Instant, connection: u32, message: &Message) {
        self.tell(now, |machine, context| machine.message(context, connection, message));
    }

    /// The time of [`poll_timeout`](Endpoint::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, connection)) = self.retries.pop_front_if(|(at, _)| *at <= now) {
            self.actions.push_back(Action::Open(connection));
        }
        if self.model.deadline() <= now {
            self.tell(now, |machine, context| machine.timeout(context));
        }
    }

    /// The flow stops: there is nothing more to do but to take the last observations.
    pub fn stop(&mut self, now: Instant) {
        self.tell(now, |machine, context| machine.stop(context));
        self.stopped = true;
        self.actions.clear();
        self.retries.clear();
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What the user noticed.
    pub fn poll_observation(&mut self) -> Option<Observation> {
        self.observations.pop_front()
    }

    /// When to call [`handle_timeout`](Endpoint::handle_timeout); [`Instant::NEVER`] if never.
    pub fn poll_timeout(&self) -> Instant {
        if self.stopped {
            return Instant::NEVER;
        }
        let retry = self.retries.front().map_or(Instant::NEVER, |(at, _)| *at);
        retry.min(self.model.deadline())
    }
}
