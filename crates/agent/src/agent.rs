//! Agent that serves one controller of this machine through a socket or a socket pair.
//!
//! It ends when the controller finishes it, when the controller is gone, or when its process is interrupted.
//! Its reports are then in its spool.

use super::end_reason::{EndReason, end};
use super::{Spool, Worker};
use crate::service::{AgentService, AgentShared};
use netstage_agent_api::protocol::MAX_REQUEST_BYTES;
use netstage_agent_api::protocol::generated::agent_server::AgentServer;
use netstage_host::shutdown::DaemonShutdown;
use netstage_host::socket::{BindError, ControlSocket};
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
pub struct LocalAgent {
    listener: ConnectionSource,
    spool: Spool,
    ender: DaemonShutdown,
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
enum ConnectionSource {
    /// Socket in the file system.
    Socket(ControlSocket),
    /// Agent's end of a socket pair.
    Pair(UnixStream),
}

/// Result of an agent's lifetime.
#[derive(Debug)]
pub struct AgentEnd {
    /// Reason why it ended.
    pub reason: EndReason,
    /// Reports that no controller has released.
    pub stored_reports: Vec<PathBuf>,
    /// Problems at the end, such as a report that could not be written.
    pub problems: Vec<String>,
}

impl LocalAgent {
    /// Listens on `socket`, which is created here and removed at the end. Only this user may connect. Reports
    /// are stored in the folder `spool`.
    pub fn bind(socket: &Path, spool: &Path) -> Result<LocalAgent, StartError> {
        let spool = Spool::open(spool)
            .map_err(|error| StartError::Spool { path: spool.to_owned(), reason: error.to_string() })?;
        let listener = ConnectionSource::Socket(ControlSocket::bind(socket).map_err(StartError::Socket)?);
        Ok(LocalAgent { listener, spool, ender: DaemonShutdown::default() })
    }

    /// Returns an agent within the controller's own process, and the controller's end of the connection. Its
    /// reports are not spooled.
    pub fn pair() -> io::Result<(LocalAgent, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let listener = ConnectionSource::Pair(ours);
        Ok((LocalAgent { listener, spool: Spool::disabled(), ender: DaemonShutdown::default() }, theirs))
    }

    /// Returns the handle that interrupts the agent: traffic stops, and a connected controller may still
    /// fetch the report.
    pub fn shutdown_handle(&self) -> DaemonShutdown {
        self.ender.clone()
    }

    /// Serves on this thread until the agent ends. Runs have threads of their own.
    pub fn serve(self, worker: impl Worker) -> io::Result<AgentEnd> {
        let LocalAgent { listener, spool, ender } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let end = watch::Sender::new(None);
        let shared = Arc::new(AgentShared::new(Arc::new(spool), Arc::new(worker), end, None, Arc::default()));
        let reason = runtime.block_on(async {
            tokio::spawn(end_session_on_interrupt(ender.subscribe(), Arc::clone(&shared)));
            match listener {
                ConnectionSource::Socket(mut socket) => {
                    let incoming = UnixListenerStream::new(socket.listener()?);
                    serve(incoming, Arc::clone(&shared)).await
                }
                ConnectionSource::Pair(stream) => {
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
        let (kept, problems) = shared.unreleased_reports();
        reason.map(|reason| AgentEnd { reason, stored_reports: kept, problems })
    }
}

/// Ends a controller session when the agent is interrupted.
pub async fn end_session_on_interrupt(mut interrupted: watch::Receiver<bool>, shared: Arc<AgentShared>) {
    if interrupted.wait_for(|interrupted| *interrupted).await.is_ok() {
        end(&shared.end, EndReason::Interrupted);
    }
}

pub async fn serve<S>(
    incoming: impl Stream<Item = io::Result<S>> + Send + 'static,
    shared: Arc<AgentShared>,
) -> io::Result<EndReason>
where
    S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let service =
        AgentServer::new(AgentService(Arc::clone(&shared))).max_decoding_message_size(MAX_REQUEST_BYTES);
    let mut closing = shared.closing.subscribe();
    let server = tokio::spawn(tonic::transport::Server::builder().serve_with_incoming_shutdown(
        service,
        incoming,
        async move {
            let _ = closing.wait_for(|closing| *closing).await;
        },
    ));
    let reason = wait_until_over(&shared).await;
    shared.closing.send_replace(true);
    match timeout(FLUSH_TIMEOUT, server).await {
        Ok(Ok(Err(error))) => Err(io::Error::other(error)),
        _ => Ok(reason),
    }
}

/// Waits until a controller session is over and its run has stopped.
pub async fn wait_until_over(shared: &AgentShared) -> EndReason {
    let mut end = shared.end.subscribe();
    let reason = wait_for_reason(&mut end, |reason| reason.is_some()).await;
    shared.stop();
    let _ = timeout(DRAIN_TIMEOUT, shared.wait_until_idle()).await;
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
