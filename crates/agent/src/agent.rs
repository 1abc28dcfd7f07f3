//! An agent that serves one controller of this machine, by a socket or a pair of sockets.
//!
//! It ends when it is told to, when its controller is gone, or when its process is asked to; what it measured is then in its spool.

use super::end::{EndReason, end};
use super::{Spool, Worker};
use crate::service::{Service, Shared};
use netstage_agent_api::protocol::MAX_REQUEST_BYTES;
use netstage_agent_api::protocol::generated::agent_server::AgentServer;
use netstage_host::ender::Ender;
use netstage_host::socket::{BindError, Socket};
use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::server::Connected;

/// How long a run that was told to stop may take to do so, and a controller to fetch what
/// an interrupted agent found.
const DRAIN: Duration = Duration::from_secs(5);
/// How long the last answers may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// An agent that listens, but does not serve yet.
pub struct Agent {
    listener: Listener,
    spool: Spool,
    ender: Ender,
}

/// Why an agent cannot start.
#[derive(Debug, PartialEq, Eq)]
pub enum StartError {
    /// It cannot listen.
    Socket(BindError),
    /// Its spool cannot be opened.
    Spool {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Socket(error) => error.fmt(f),
            StartError::Spool { path, reason } => write!(f, "cannot open spool {}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for StartError {}

/// Where a controller comes from.
enum Listener {
    /// A socket in the file system.
    Socket(Socket),
    /// The other end of a pair.
    Pair(UnixStream),
}

/// How an agent ended.
#[derive(Debug)]
pub struct Ended {
    /// Why.
    pub reason: EndReason,
    /// Reports no controller has confirmed to have.
    pub kept: Vec<PathBuf>,
    /// What went wrong at the end, such as a report that could not be written.
    pub problems: Vec<String>,
}

impl Agent {
    /// Listens on `socket`, which is made, and removed at the end; only this user may
    /// connect. Reports are kept in the folder `spool`.
    pub fn bind(socket: &Path, spool: &Path) -> Result<Agent, StartError> {
        let spool = Spool::open(spool)
            .map_err(|error| StartError::Spool { path: spool.to_owned(), reason: error.to_string() })?;
        let listener = Listener::Socket(Socket::bind(socket).map_err(StartError::Socket)?);
        Ok(Agent { listener, spool, ender: Ender::default() })
    }

    /// An agent within the controller's own process, and the controller's end of the
    /// connection. Its reports are not kept.
    pub fn pair() -> io::Result<(Agent, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let listener = Listener::Pair(ours);
        Ok((Agent { listener, spool: Spool::none(), ender: Ender::default() }, theirs))
    }

    /// What ends it from outside: the traffic stops, and a controller that is there may still fetch the report.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Serves until the end, on this thread; runs have threads of their own.
    pub fn serve(self, worker: impl Worker) -> io::Result<Ended> {
        let Agent { listener, spool, ender } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let end = watch::Sender::new(None);
        let shared = Arc::new(Shared::new(Arc::new(spool), Arc::new(worker), end, None, Arc::default()));
        let reason = runtime.block_on(async {
            tokio::spawn(pass_on(ender.subscribe(), Arc::clone(&shared)));
            match listener {
                Listener::Socket(mut socket) => {
                    let incoming = UnixListenerStream::new(socket.listener()?);
                    serve(incoming, Arc::clone(&shared)).await
                }
                Listener::Pair(stream) => {
                    stream.set_nonblocking(true)?;
                    let stream = tokio::net::UnixStream::from_std(stream)?;
                    // After it nobody comes, and the agent waits for its end.
                    let incoming = tokio_stream::once(Ok(stream)).chain(tokio_stream::pending());
                    serve(incoming, Arc::clone(&shared)).await
                }
            }
        });
        // A worker that hangs must not keep the agent.
        runtime.shutdown_background();
        let (kept, problems) = shared.leftovers();
        reason.map(|reason| Ended { reason, kept, problems })
    }
}

/// Tells a controller's time that its agent is asked to end.
pub async fn pass_on(mut interrupted: watch::Receiver<bool>, shared: Arc<Shared>) {
    if interrupted.wait_for(|interrupted| *interrupted).await.is_ok() {
        end(&shared.end, EndReason::Interrupted);
    }
}

pub async fn serve<S>(
    incoming: impl Stream<Item = io::Result<S>> + Send + 'static,
    shared: Arc<Shared>,
) -> io::Result<EndReason>
where
    S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let service = AgentServer::new(Service(Arc::clone(&shared))).max_decoding_message_size(MAX_REQUEST_BYTES);
    let mut closing = shared.closing.subscribe();
    let server = tokio::spawn(tonic::transport::Server::builder().serve_with_incoming_shutdown(
        service,
        incoming,
        async move {
            let _ = closing.wait_for(|closing| *closing).await;
        },
    ));
    let reason = until_over(&shared).await;
    shared.closing.send_replace(true);
    match timeout(FAREWELL, server).await {
        Ok(Ok(Err(error))) => Err(io::Error::other(error)),
        _ => Ok(reason),
    }
}

/// Waits until a controller's time is over and its run has stopped.
pub async fn until_over(shared: &Shared) -> EndReason {
    let mut end = shared.end.subscribe();
    let reason = awaited(&mut end, |reason| reason.is_some()).await;
    shared.stop();
    let _ = timeout(DRAIN, shared.idle()).await;
    if reason == EndReason::Interrupted && shared.is_attended() {
        let last = awaited(&mut end, |reason| reason != Some(EndReason::Interrupted));
        return timeout(DRAIN, last).await.unwrap_or(reason);
    }
    reason
}

async fn awaited(
    end: &mut watch::Receiver<Option<EndReason>>,
    enough: impl Fn(Option<EndReason>) -> bool,
) -> EndReason {
    let reason = end.wait_for(|reason| enough(*reason)).await.expect("its sender lives as long");
    reason.expect("waited for")
}
