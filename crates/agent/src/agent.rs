//! Agent that serves one controller of this machine through a socket or a socket pair.
//!
//! It ends when the controller finishes it, when the controller is gone, or when its process is interrupted.
//! Its reports are then in its spool.

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

/// Time a stopped run may take to end, and a controller to fetch the report of an interrupted agent.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time allowed for sending the last replies.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Agent that listens but does not serve yet.
pub struct Agent {
    listener: Listener,
    spool: Spool,
    ender: Ender,
}

/// Error that prevents an agent from starting.
#[derive(Debug, PartialEq, Eq)]
pub enum StartError {
    /// The agent cannot listen.
    Socket(BindError),
    /// The spool cannot be opened.
    Spool {
        /// Folder of the spool.
        path: PathBuf,
        /// Error of the system.
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

/// Source of the controller's connection.
enum Listener {
    /// Socket in the file system.
    Socket(Socket),
    /// Agent's end of a socket pair.
    Pair(UnixStream),
}

/// Result of an agent's lifetime.
#[derive(Debug)]
pub struct Ended {
    /// Reason why it ended.
    pub reason: EndReason,
    /// Reports that no controller has released.
    pub kept: Vec<PathBuf>,
    /// Problems at the end, such as a report that could not be written.
    pub problems: Vec<String>,
}

impl Agent {
    /// Listens on `socket`, which is created here and removed at the end. Only this user may connect. Reports
    /// are stored in the folder `spool`.
    pub fn bind(socket: &Path, spool: &Path) -> Result<Agent, StartError> {
        let spool = Spool::open(spool)
            .map_err(|error| StartError::Spool { path: spool.to_owned(), reason: error.to_string() })?;
        let listener = Listener::Socket(Socket::bind(socket).map_err(StartError::Socket)?);
        Ok(Agent { listener, spool, ender: Ender::default() })
    }

    /// Returns an agent within the controller's own process, and the controller's end of the connection. Its
    /// reports are not spooled.
    pub fn pair() -> io::Result<(Agent, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let listener = Listener::Pair(ours);
        Ok((Agent { listener, spool: Spool::none(), ender: Ender::default() }, theirs))
    }

    /// Returns the handle that interrupts the agent: traffic stops, and a connected controller may still
    /// fetch the report.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Serves on this thread until the agent ends. Runs have threads of their own.
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
                    // No other connection can follow: the agent then waits until it ends.
                    let incoming = tokio_stream::once(Ok(stream)).chain(tokio_stream::pending());
                    serve(incoming, Arc::clone(&shared)).await
                }
            }
        });
        // A worker that hangs must not keep the agent from ending.
        runtime.shutdown_background();
        let (kept, problems) = shared.leftovers();
        reason.map(|reason| Ended { reason, kept, problems })
    }
}

/// Ends a controller session when the agent is interrupted.
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
    match timeout(FLUSH_TIMEOUT, server).await {
        Ok(Ok(Err(error))) => Err(io::Error::other(error)),
        _ => Ok(reason),
    }
}

/// Waits until a controller session is over and its run has stopped.
pub async fn until_over(shared: &Shared) -> EndReason {
    let mut end = shared.end.subscribe();
    let reason = wait_for_reason(&mut end, |reason| reason.is_some()).await;
    shared.stop();
    let _ = timeout(DRAIN_TIMEOUT, shared.idle()).await;
    if reason == EndReason::Interrupted && shared.is_attended() {
        let last = wait_for_reason(&mut end, |reason| reason != Some(EndReason::Interrupted));
        return timeout(DRAIN_TIMEOUT, last).await.unwrap_or(reason);
    }
    reason
}

async fn wait_for_reason(
    end: &mut watch::Receiver<Option<EndReason>>,
    enough: impl Fn(Option<EndReason>) -> bool,
) -> EndReason {
    let reason =
        end.wait_for(|reason| enough(*reason)).await.expect("the sender lives as long as the receiver");
    reason.expect("the condition implies a reason")
}
