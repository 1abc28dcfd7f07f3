//! Application models: the messages between the two endpoints of a flow, and the quality that the user
//! observes. The client is at the flow's `from`, the server at its `to`.
//!
//! Each [`Endpoint`] is sans-IO. The client controls the exchange: its requests contain the size and the delay
//! of the response, so that the endpoints share only the settings of the model. A [`ApplicationMessage`] is a number of
//! bytes passed to the transport at once. It starts with a header of [`HEADER`](message::HEADER) bytes, so
//! that live and simulated flows carry the same bytes. docs/traffic.md lists the parameters of the models and
//! their sources.

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
pub use game::{Game, PacketTiming};
pub use learned::{
    CaptureModel, LearnedExchange, LearnedPackets, LearnedRequests, MAX_CONCURRENT_CONNECTIONS, Quantiles,
    RecordedConnection, RecordedTurn,
};
pub use message::{ApplicationMessage, HEADER, InvalidMessageHeader, MessageContent};
pub use quality::{Observation, Quality, QualityBins, QualityDistributions};
pub use spread::SizeDistribution;
pub use storage::BlockStorage;
pub use transfer::{TransferDirection, Transfers};
pub use voice::{Codec, Voice};
pub use web::{FetchMode, Web};

use crate::rng::RandomStream;
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
    /// File transfers, each over its own connection.
    Transfers(Transfers),
    /// Web pages with embedded objects.
    Web(Web),
    /// Segmented video with an adaptive bit rate.
    AdaptiveVideo(AdaptiveVideo),
    /// Video frames of variable size.
    FrameVideo(FrameVideo),
    /// A telephone call.
    Voice(Voice),
    /// Name lookups.
    Dns(Dns),
    /// A game: small packets in both directions.
    Game(Game),
    /// Requests and responses.
    Exchange(Exchange),
    /// Block reads and writes.
    BlockStorage(BlockStorage),
    /// A model learned from a capture.
    Learned {
        /// The model.
        model: Arc<CaptureModel>,
        /// Replay of the recorded messages instead of drawing from the distributions.
        replay: bool,
    },
}

/// Type of transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportKind {
    /// Reliable and in order, in connections: TCP or QUIC.
    Stream,
    /// Independent and unreliable: UDP. The only connection is 0.
    Datagram,
}

/// Role of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointRole {
    /// Opens connections and sends requests.
    Client,
    /// Sends responses.
    Server,
}

/// An action for the driver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EndpointAction {
    /// Open the connection with this number, which is closed; client only. Numbers are below
    /// [`Application::connections`] and are reused after a close.
    Open(u32),
    /// Send a message on a connection. A driver with a more accurate time of sending sets [`ApplicationMessage::sent`].
    Send(u32, ApplicationMessage),
    /// Close a connection; client only.
    Close(u32),
}

/// Error in the settings of an application.
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
    /// Bit rates are missing, zero or not in ascending order.
    Rates,
    /// A buffer is smaller than one segment, or than the reservoir and the cushion.
    Buffer,
    /// A share is not between 0 and 1.
    Share,
    /// The application requires connections (TCP or QUIC).
    NeedsStream,
    /// The application requires datagrams (UDP).
    NeedsDatagrams,
    /// A learned model is empty.
    EmptyModel,
}

impl fmt::Display for ApplicationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ApplicationError::SmallMessage => "a message must have at least 32 bytes, the size of its header",
            ApplicationError::LargeDatagram => "a message does not fit into a datagram of 65,507 bytes",
            ApplicationError::Size => "a size must be a number below 4 GiB",
            ApplicationError::ZeroCount => "a count is zero",
            ApplicationError::ZeroTime => "a time is zero",
            ApplicationError::Rates => "bit rates must be given in ascending order, each above zero",
            ApplicationError::Buffer => {
                "the buffer must hold a segment, and the reservoir together with the cushion"
            }
            ApplicationError::Share => "a share must be between 0 and 1",
            ApplicationError::NeedsStream => "it requires connections; use transport \"tcp\"",
            ApplicationError::NeedsDatagrams => "it requires datagrams; use transport \"udp\"",
            ApplicationError::EmptyModel => "the learned model is empty",
        })
    }
}

impl core::error::Error for ApplicationError {}

/// Largest payload of a UDP datagram over IPv4.
pub const MAX_DATAGRAM_PAYLOAD: u32 = 65_507;

impl Application {
    /// Checks the settings for a type of transport.
    pub fn check(&self, carriage: TransportKind) -> Result<(), ApplicationError> {
        match (self.carriage(), carriage) {
            (Some(TransportKind::Stream), TransportKind::Datagram) => {
                return Err(ApplicationError::NeedsStream);
            }
            (Some(TransportKind::Datagram), TransportKind::Stream) => {
                return Err(ApplicationError::NeedsDatagrams);
            }
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

    /// Returns the required type of transport, or `None` if the application runs over both.
    pub fn carriage(&self) -> Option<TransportKind> {
        match self {
            Application::Transfers(_)
            | Application::Web(_)
            | Application::AdaptiveVideo(_)
            | Application::BlockStorage(_) => Some(TransportKind::Stream),
            Application::Voice(_) | Application::Dns(_) | Application::Game(_) => {
                Some(TransportKind::Datagram)
            }
            Application::FrameVideo(_) | Application::Exchange(_) => None,
            Application::Learned { model, .. } => Some(model.carriage),
        }
    }

    /// Returns the maximum number of concurrent connections.
    pub fn connections(&self) -> u32 {
        match self {
            Application::Web(model) => model.connections(),
            Application::Exchange(model) => model.connections,
            Application::Learned { model, .. } => model.connections(),
            _ => 1,
        }
    }

    /// Returns the name of the application in scenarios.
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

    /// Returns the codec of a telephone call; `None` for other applications, which have no call metrics.
    pub fn codec(&self) -> Option<Codec> {
        match self {
            Application::Voice(voice) => Some(voice.codec),
            _ => None,
        }
    }
}

/// An endpoint of an application.
///
/// Call [`start`](Endpoint::start) once, then the `handle_…` function of each input,
/// [`handle_timeout`](Endpoint::handle_timeout) at [`poll_timeout`](Endpoint::poll_timeout) (earlier calls
/// have no effect), and [`stop`](Endpoint::stop) at the end. After each call, call
/// [`poll_action`](Endpoint::poll_action) and [`poll_observation`](Endpoint::poll_observation) until they
/// return `None`.
#[derive(Clone, Debug)]
pub struct Endpoint {
    model: Model,
    rng: RandomStream,
    actions: VecDeque<EndpointAction>,
    observations: VecDeque<Observation>,
    /// Failed connections and the times at which they are opened again.
    retries: VecDeque<(Instant, u32)>,
    stopped: bool,
}

/// Time after which a failed connection is opened again.
const RETRY: Duration = Duration::from_secs(1);

/// Inputs and outputs of a model, in addition to the event.
pub(crate) struct Context<'a> {
    pub now: Instant,
    pub rng: &'a mut RandomStream,
    actions: &'a mut VecDeque<EndpointAction>,
    observations: &'a mut VecDeque<Observation>,
}

impl Context<'_> {
    fn open(&mut self, connection: u32) {
        self.actions.push_back(EndpointAction::Open(connection));
    }

    fn close(&mut self, connection: u32) {
        self.actions.push_back(EndpointAction::Close(connection));
    }

    fn send(&mut self, connection: u32, bytes: u32, number: u32, content: MessageContent) {
        let message = ApplicationMessage { bytes: bytes.max(HEADER), number, content, sent: self.now };
        self.actions.push_back(EndpointAction::Send(connection, message));
    }

    fn observe(&mut self, observation: Observation) {
        self.observations.push_back(observation);
    }

    /// Draws an exponential time.
    fn exponential(&mut self, mean: Duration) -> Duration {
        Duration(self.rng.exponential(mean.0 as f64) as u64)
    }
}

/// Endpoint of a particular model.
pub(crate) trait ModelEndpoint {
    /// Handles the start of the flow.
    fn start(&mut self, _: &mut Context) {}
    /// Handles the success of [`EndpointAction::Open`].
    fn connected(&mut self, _: &mut Context, _connection: u32) {}
    /// Handles the failure of a connection, during or after its setup.
    fn failed(&mut self, _: &mut Context, _connection: u32) {}
    /// Handles a complete message.
    fn message(&mut self, context: &mut Context, connection: u32, message: &ApplicationMessage);
    /// Handles the expiry of [`deadline`](ModelEndpoint::deadline).
    fn timeout(&mut self, _: &mut Context) {}
    /// Returns the time of the next call of [`timeout`](ModelEndpoint::timeout).
    fn deadline(&self) -> Instant {
        Instant::NEVER
    }
    /// Handles the end of the flow and reports pending observations.
    fn stop(&mut self, _: &mut Context) {}
}

macro_rules! models {
    ($($variant:ident($machine:ty),)+) => {
        #[derive(Clone, Debug)]
        enum Model {
            $($variant($machine),)+
        }

        impl Model {
            fn machine(&mut self) -> &mut dyn ModelEndpoint {
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
    Transfers(transfer::TransferClient),
    Web(web::WebClient),
    AdaptiveVideo(adaptive::AdaptiveVideoPlayer),
    FrameSource(frames::FrameVideoServer),
    FrameSink(frames::FrameVideoClient),
    Voice(voice::VoiceEndpoint),
    Dns(dns::DnsClient),
    Game(game::GameEndpoint),
    Exchange(exchange::ExchangeClient),
    BlockStorage(storage::BlockStorageClient),
    LearnedClient(learned::LearnedModelClient),
    LearnedStream(learned::OneWayEndpoint),
}

impl Endpoint {
    /// Creates an endpoint with its own fork of the flow's random stream.
    pub fn new(
        application: &Application,
        role: EndpointRole,
        carriage: TransportKind,
        stream: &RandomStream,
    ) -> Endpoint {
        let (client, rng) = match role {
            EndpointRole::Client => (true, stream.fork("client")),
            EndpointRole::Server => (false, stream.fork("server")),
        };
        let model = match application {
            Application::Voice(voice) => Model::Voice(voice::VoiceEndpoint::new(voice, role)),
            Application::Game(game) => Model::Game(game::GameEndpoint::new(game, role)),
            Application::Learned { model, replay } => match &model.shape {
                LearnedExchange::Exchanges(_) if client => {
                    Model::LearnedClient(learned::LearnedModelClient::new(Arc::clone(model), *replay))
                }
                LearnedExchange::Exchanges(_) => Model::Responder(Responder::default()),
                LearnedExchange::OneWay { .. } => {
                    Model::LearnedStream(learned::OneWayEndpoint::new(Arc::clone(model), role, *replay))
                }
            },
            Application::FrameVideo(video) if client => {
                Model::FrameSink(frames::FrameVideoClient::new(video))
            }
            Application::FrameVideo(video) => {
                Model::FrameSource(frames::FrameVideoServer::new(video.clone(), carriage))
            }
            _ if !client => Model::Responder(Responder::default()),
            Application::Transfers(model) => Model::Transfers(transfer::TransferClient::new(model.clone())),
            Application::Web(model) => Model::Web(web::WebClient::new(model.clone())),
            Application::AdaptiveVideo(model) => {
                Model::AdaptiveVideo(adaptive::AdaptiveVideoPlayer::new(model.clone()))
            }
            Application::Dns(model) => Model::Dns(dns::DnsClient::new(model.clone())),
            Application::Exchange(model) => Model::Exchange(exchange::ExchangeClient::new(model.clone())),
            Application::BlockStorage(model) => {
                Model::BlockStorage(storage::BlockStorageClient::new(model.clone()))
            }
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

    fn dispatch(&mut self, now: Instant, event: impl FnOnce(&mut dyn ModelEndpoint, &mut Context)) {
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

    /// Starts the flow.
    pub fn start(&mut self, now: Instant) {
        self.dispatch(now, |machine, context| machine.start(context));
    }

    /// Handles the success of [`EndpointAction::Open`]: the client may send. Over UDP this is at once.
    pub fn handle_connected(&mut self, now: Instant, connection: u32) {
        self.dispatch(now, |machine, context| machine.connected(context, connection));
    }

    /// Handles the failure of a connection, during or after its setup. It counts as closed.
    pub fn handle_failure(&mut self, now: Instant, connection: u32) {
        let before = self.actions.len();
        self.dispatch(now, |machine, context| machine.failed(context, connection));
        for action in self.actions.split_off(before) {
            match action {
                EndpointAction::Open(connection) => self.retries.push_back((now + RETRY, connection)),
                other => self.actions.push_back(other),
            }
        }
    }

    /// Handles a complete message. Its `sent` must be a time of this endpoint's clock.
    pub fn handle_message(&mut self, now: Instant, connection: u32, message: &ApplicationMessage) {
        self.dispatch(now, |machine, context| machine.message(context, connection, message));
    }

    /// Handles the expiry of [`poll_timeout`](Endpoint::poll_timeout).
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, connection)) = self.retries.pop_front_if(|(at, _)| *at <= now) {
            self.actions.push_back(EndpointAction::Open(connection));
        }
        if self.model.deadline() <= now {
            self.dispatch(now, |machine, context| machine.timeout(context));
        }
    }

    /// Stops the flow. Only the last observations remain to be polled.
    pub fn stop(&mut self, now: Instant) {
        self.dispatch(now, |machine, context| machine.stop(context));
        self.stopped = true;
        self.actions.clear();
        self.retries.clear();
    }

    /// Returns the next action for the driver.
    pub fn poll_action(&mut self) -> Option<EndpointAction> {
        self.actions.pop_front()
    }

    /// Returns the next observation of the user.
    pub fn poll_observation(&mut self) -> Option<Observation> {
        self.observations.pop_front()
    }

    /// Returns the time of the next call of [`handle_timeout`](Endpoint::handle_timeout), or
    /// [`Instant::NEVER`].
    pub fn poll_timeout(&self) -> Instant {
        if self.stopped {
            return Instant::NEVER;
        }
        let retry = self.retries.front().map_or(Instant::NEVER, |(at, _)| *at);
        retry.min(self.model.deadline())
    }
}
