//! Agent that serves controllers one at a time, over connections made by its caller. The run of a
//! controller is stopped before the next controller session begins; reports that it did not release are kept.

use super::agent::wait_until_over;
use super::end_reason::{EndReason, end};
use super::guard::RunGuard;
use super::service::{AgentService, AgentShared};
use super::spool::Spool;
use super::work::{PacketSums, TimeDistributions, Worker};
use netstage_agent_api::protocol::MAX_REQUEST_BYTES;
use netstage_agent_api::protocol::generated::Phase;
use netstage_agent_api::protocol::generated::agent_server::AgentServer;
use netstage_core::fleet::run_number;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{oneshot, watch};
use tokio_stream::StreamExt as _;
use tonic::transport::server::Connected;
use tower::Service as _;

/// Interval after which a silent connection is probed, and the time allowed for the answer. Heartbeats are more
/// frequent, so that only a dead connection is probed during a run, and replaced before its lease expires.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3));

/// Agent that serves controllers one at a time.
pub struct ExclusiveAgent {
    spool: Arc<Spool>,
    worker: Arc<dyn Worker>,
    guard: Arc<dyn RunGuard>,
    /// Totals of all runs, for any controller.
    sums: Arc<PacketSums>,
    present: Mutex<Arc<AgentShared>>,
}

/// State of an agent at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSnapshot {
    /// Set while a controller owns the agent.
    pub is_taken: bool,
    /// Number of the current run; zero for none.
    pub run: u64,
    /// Set while that run has a start time and is not over.
    pub is_running: bool,
    /// Packets sent, bytes sent, packets received, bytes received and packets lost in all runs since the
    /// agent started.
    pub totals: [u64; 5],
    /// Distributions of all finished runs since the agent started.
    pub times: TimeDistributions,
    /// Number of reports that no controller has released.
    pub stored_reports: usize,
}

impl ExclusiveAgent {
    /// Returns an agent with this spool. It accepts no run that is recorded in the spool.
    pub fn new(spool: Spool, worker: Arc<dyn Worker>, guard: Arc<dyn RunGuard>) -> ExclusiveAgent {
        let spool = Arc::new(spool);
        let sums = Arc::default();
        let present = Mutex::new(turn(&spool, &worker, &guard, &sums));
        ExclusiveAgent { spool, worker, guard, sums, present }
    }

    /// Returns the current state of the agent.
    pub fn snapshot(&self) -> AgentSnapshot {
        let (kept, present) = (self.spool.stored_reports().len(), self.present());
        let progress = present.progress();
        AgentSnapshot {
            is_taken: present.is_attended(),
            run: run_number(progress.run).into(),
            is_running: progress.phase() == Phase::Running,
            totals: self.sums.read(),
            times: self.sums.times(),
            stored_reports: kept,
        }
    }

    /// Runs controller sessions one after another until interrupted. Calls `report` with the reason why each
    /// ended.
    pub async fn serve_sessions(&self, mut interrupted: watch::Receiver<bool>, report: impl Fn(EndReason)) {
        loop {
            let shared = self.present();
            let reason = {
                let over = wait_until_over(&shared);
                tokio::pin!(over);
                tokio::select! {
                    reason = &mut over => reason,
                    _ = interrupted.wait_for(|interrupted| *interrupted) => {
                        end(&shared.end, EndReason::Interrupted);
                        over.await
                    }
                }
            };
            if shared.is_attended() {
                report(reason);
            }
            shared.closing.send_replace(true);
            if *interrupted.borrow() {
                return;
            }
            let next = turn(&self.spool, &self.worker, &self.guard, &self.sums);
            *self.present.lock().unwrap_or_else(PoisonError::into_inner) = next;
        }
    }

    /// Serves the client of a connection until the connection ends.
    pub async fn serve<S>(self: &Arc<Self>, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let turns = Arc::clone(self);
        let service = tower::service_fn(move |request: tonic::codegen::http::Request<tonic::body::Body>| {
            let service = AgentService(turns.present());
            let mut server = AgentServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
            async move { Ok::<_, Infallible>(server.call(request).await.unwrap_or_else(|never| match never {})) }
        });
        let (alive, gone) = oneshot::channel();
        let incoming = tokio_stream::once(Ok::<_, io::Error>(TrackedConnection { stream, _alive: alive }));
        let (interval, patience) = KEEPALIVE;
        tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(interval))
            .http2_keepalive_timeout(Some(patience))
            .serve_with_incoming_shutdown(service, incoming.chain(tokio_stream::pending()), async move {
                // Nothing is ever sent: the receiver resolves when the connection is dropped.
                let _: Result<(), _> = gone.await;
            })
            .await
            .map_err(io::Error::other)
    }

    /// Ends the current session as if its controller were gone. The run stops, and its report is kept.
    pub fn end_session(&self) {
        end(&self.present().end, EndReason::ControllerGone);
    }

    fn present(&self) -> Arc<AgentShared> {
        Arc::clone(&self.present.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn turn(
    spool: &Arc<Spool>,
    worker: &Arc<dyn Worker>,
    guard: &Arc<dyn RunGuard>,
    sums: &Arc<PacketSums>,
) -> Arc<AgentShared> {
    let end = watch::Sender::new(None);
    let guard = Some(Arc::clone(guard));
    Arc::new(AgentShared::new(Arc::clone(spool), Arc::clone(worker), end, guard, Arc::clone(sums)))
}

/// Connection whose end is detected by the drop of its sender.
struct TrackedConnection<S> {
    stream: S,
    _alive: oneshot::Sender<()>,
}

impl<S: Connected> Connected for TrackedConnection<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
