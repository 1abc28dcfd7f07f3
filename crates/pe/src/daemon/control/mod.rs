//! Control socket: gRPC over a Unix socket that only the router's user may open. Also handles signals and the
//! optional metrics endpoint. Requests are handled one at a time.

#[rustfmt::skip]
#[allow(missing_docs, clippy::all)]
pub mod generated;

use super::{PeDaemon, PeError, StartupError, metrics, snapshot};
use generated::pe_server::{Pe, PeServer};
use generated::{HelloReply, HelloRequest, ReloadReply, ReloadRequest, ShowReply, ShowRequest};
use netstage_host::prometheus;
use netstage_host::signals::Signals;
use netstage_host::socket::{BindError, ControlSocket};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// Protocol versions this program supports.
pub const VERSIONS: RangeInclusive<u32> = 1..=1;
/// Time limit for the last responses.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(200);
/// Interval of checks whether a forwarding thread has ended.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(500);

/// Reason for the end of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeEnd {
    /// Stopped by a signal.
    Requested,
    /// A forwarding thread ended unexpectedly.
    Broken,
}

impl PeDaemon {
    /// Serves on this thread until the end. `ready` is called once the control socket accepts connections.
    pub fn serve(self, signals: Signals, ready: impl FnOnce()) -> Result<(ServeEnd, PeDaemon), PeError> {
        let router = self.router();
        let socket = ControlSocket::bind(&router.control).map_err(|error| {
            let remedy = match error {
                BindError::InUse(_) => "stop it first, or set [pe] `control` to another path",
                _ => "set [pe] `control` to a path this user can write to",
            };
            StartupError::new(format!("control socket: {error}"), remedy)
        })?;
        let failed = |error: io::Error| PeError::Machine(StartupError::from_system("control socket", &error));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let daemon = Arc::new(self);
        let ended = runtime.block_on(serve(&daemon, socket, signals, router.metrics, ready));
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        let ended = ended?;
        let daemon = Arc::into_inner(daemon)
            .ok_or_else(|| StartupError::new("a control request is still in progress", "no action needed"))?;
        Ok((ended, daemon))
    }
}

async fn serve(
    daemon: &Arc<PeDaemon>,
    mut socket: ControlSocket,
    signals: Signals,
    metrics: Option<std::net::SocketAddr>,
    ready: impl FnOnce(),
) -> Result<ServeEnd, PeError> {
    let failed = |error: io::Error| PeError::Machine(StartupError::from_system("control socket", &error));
    let closing = watch::Sender::new(false);
    if let Some(address) = metrics {
        let source = Arc::clone(daemon);
        let source = Arc::new(move || source.show().map(|state| metrics::text(&state)));
        prometheus::listen(address, source, closing.subscribe()).await?;
    }
    let incoming = UnixListenerStream::new(socket.listener().map_err(failed)?);
    let mut closed = closing.subscribe();
    let server = tokio::spawn(tonic::transport::Server::builder().serve_with_incoming_shutdown(
        PeServer::new(ControlService(Arc::clone(daemon))),
        incoming,
        async move {
            let _ = closed.wait_for(|closing| *closing).await;
        },
    ));
    let mut signals = signals.into_channel().map_err(failed)?;
    ready();
    let ended = loop {
        match timeout(LIVENESS_INTERVAL, signals.recv()).await {
            Ok(Some(true)) => {
                let daemon = Arc::clone(daemon);
                // The result is logged.
                let _ = spawn_blocking(move || drop(daemon.reload())).await;
            }
            Ok(_) => break ServeEnd::Requested,
            Err(_) if daemon.is_over() => break ServeEnd::Broken,
            Err(_) => {}
        }
    };
    closing.send_replace(true);
    let _ = timeout(SHUTDOWN_TIMEOUT, server).await;
    Ok(ended)
}

struct ControlService(Arc<PeDaemon>);

impl ControlService {
    /// Runs a blocking task off the runtime's thread.
    async fn run_blocking<T: Send + 'static>(
        &self,
        task: impl FnOnce(&PeDaemon) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let daemon = Arc::clone(&self.0);
        let done = spawn_blocking(move || task(&daemon)).await;
        done.map_err(|error| Status::internal(format!("request failed: {error}")))
    }
}

#[tonic::async_trait]
impl Pe for ControlService {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply {
            oldest_version: *VERSIONS.start(),
            newest_version: *VERSIONS.end(),
            state_version: snapshot::VERSION,
            tool: env!("CARGO_PKG_VERSION").into(),
            process: std::process::id(),
            configuration: self.0.path().display().to_string(),
        }))
    }

    async fn show(&self, _: Request<ShowRequest>) -> Result<Response<ShowReply>, Status> {
        let state = self.run_blocking(PeDaemon::show).await?;
        let state = state.ok_or_else(|| Status::unavailable("the router is shutting down"))?;
        let state = serde_json::to_vec(&state).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(ShowReply { state_version: snapshot::VERSION, state }))
    }

    async fn reload(&self, _: Request<ReloadRequest>) -> Result<Response<ReloadReply>, Status> {
        let reply = match self.run_blocking(PeDaemon::reload).await? {
            Ok(changes) => ReloadReply { refusal: String::new(), changes },
            Err(error) => ReloadReply { refusal: error.to_string(), changes: Vec::new() },
        };
        Ok(Response::new(reply))
    }
}
