//! The control socket: gRPC over a Unix socket that only the router's user may open, beside
//! signals and, where wanted, metrics. Requests are answered one after the other.

#[rustfmt::skip]
#[allow(missing_docs, clippy::all)]
pub mod generated;

use super::{Daemon, Error, Obstacle, metrics, snapshot};
use generated::pe_server::{Pe, PeServer};
use generated::{HelloReply, HelloRequest, ReloadReply, ReloadRequest, ShowReply, ShowRequest};
use netstage_host::prometheus;
use netstage_host::signals::Signals;
use netstage_host::socket::{BindError, Socket};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// Versions of the protocol this program speaks.
pub const VERSIONS: RangeInclusive<u32> = 1..=1;
/// How long the last answers may take to leave.
const FAREWELL: Duration = Duration::from_millis(200);
/// A forwarding thread that has ended is seen after so long at the latest.
const PULSE: Duration = Duration::from_millis(500);

/// Why serving has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By a signal.
    Asked,
    /// The forwarding thread has ended by itself.
    Broken,
}

impl Daemon {
    /// Serves until the end, on this thread. `ready` is called once the control socket answers.
    pub fn serve(self, signals: Signals, ready: impl FnOnce()) -> Result<(Ended, Daemon), Error> {
        let router = self.router();
        let socket = Socket::bind(&router.control).map_err(|error| {
            let remedy = match error {
                BindError::InUse(_) => "end it first, or give `control` another path",
                _ => "give [pe] `control` a path this user may write to",
            };
            Obstacle::new(format!("control socket: {error}"), remedy)
        })?;
        let failed = |error: io::Error| Error::Machine(Obstacle::system("the control socket fails", &error));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let daemon = Arc::new(self);
        let ended = runtime.block_on(serve(&daemon, socket, signals, router.metrics, ready));
        runtime.shutdown_timeout(FAREWELL);
        let ended = ended?;
        let daemon = Arc::into_inner(daemon)
            .ok_or_else(|| Obstacle::new("a request is still being answered", "nothing needs to be done"))?;
        Ok((ended, daemon))
    }
}

async fn serve(
    daemon: &Arc<Daemon>,
    mut socket: Socket,
    signals: Signals,
    metrics: Option<std::net::SocketAddr>,
    ready: impl FnOnce(),
) -> Result<Ended, Error> {
    let failed = |error: io::Error| Error::Machine(Obstacle::system("the control socket fails", &error));
    let closing = watch::Sender::new(false);
    if let Some(address) = metrics {
        let source = Arc::clone(daemon);
        let source = Arc::new(move || source.show().map(|state| metrics::text(&state)));
        prometheus::listen(address, source, closing.subscribe()).await?;
    }
    let incoming = UnixListenerStream::new(socket.listener().map_err(failed)?);
    let mut closed = closing.subscribe();
    let server = tokio::spawn(tonic::transport::Server::builder().serve_with_incoming_shutdown(
        PeServer::new(Service(Arc::clone(daemon))),
        incoming,
        async move {
            let _ = closed.wait_for(|closing| *closing).await;
        },
    ));
    let mut signals = signals.told().map_err(failed)?;
    ready();
    let ended = loop {
        match timeout(PULSE, signals.recv()).await {
            Ok(Some(true)) => {
                let daemon = Arc::clone(daemon);
                // What it says goes to the log.
                let _ = spawn_blocking(move || drop(daemon.reload())).await;
            }
            Ok(_) => break Ended::Asked,
            Err(_) if daemon.is_over() => break Ended::Broken,
            Err(_) => {}
        }
    };
    closing.send_replace(true);
    let _ = timeout(FAREWELL, server).await;
    Ok(ended)
}

struct Service(Arc<Daemon>);

impl Service {
    /// Does what may take a while where nobody waits for it.
    async fn apart<T: Send + 'static>(
        &self,
        task: impl FnOnce(&Daemon) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let daemon = Arc::clone(&self.0);
        let done = spawn_blocking(move || task(&daemon)).await;
        done.map_err(|error| Status::internal(format!("it failed: {error}")))
    }
}

#[tonic::async_trait]
impl Pe for Service {
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
        let state = self.apart(Daemon::show).await?;
        let state = state.ok_or_else(|| Status::unavailable("the router is ending"))?;
        let state = serde_json::to_vec(&state).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(ShowReply { state_version: snapshot::VERSION, state }))
    }

    async fn reload(&self, _: Request<ReloadRequest>) -> Result<Response<ReloadReply>, Status> {
        let reply = match self.apart(Daemon::reload).await? {
            Ok(changes) => ReloadReply { refusal: String::new(), changes },
            Err(error) => ReloadReply { refusal: error.to_string(), changes: Vec::new() },
        };
        Ok(Response::new(reply))
    }
}
