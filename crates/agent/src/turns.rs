//! An agent that serves one controller after the other over connections somebody else
//! makes. What a controller leaves behind is stopped before the next one's turn; reports it
//! did not release stay.

use super::agent::until_over;
use super::end::{EndReason, end};
use super::guard::Guard;
use super::service::{Service, Shared};
use super::spool::Spool;
use super::work::{Sums, Worker};
use netstage_agent_api::protocol::MAX_REQUEST_BYTES;
use netstage_agent_api::protocol::generated::Phase;
use netstage_agent_api::protocol::generated::agent_server::AgentServer;
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

/// How often a silent connection is asked whether it is still there, and how long it may take to answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// The agent.
pub struct Turns {
    spool: Arc<Spool>,
    worker: Arc<dyn Worker>,
    guard: Arc<dyn Guard>,
    /// What all its runs have counted, whichever controller had it.
    sums: Arc<Sums>,
    present: Mutex<Arc<Shared>>,
}

/// How an agent is at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// A controller has it.
    pub is_taken: bool,
    /// The run it is in; zero for none.
    pub run: u64,
    /// That run has a start, and is not over.
    pub is_running: bool,
    /// Packets and bytes sent, received, packets lost, in all runs since it began.
    pub totals: [u64; 5],
    /// Reports no controller has confirmed to have.
    pub kept: usize,
}

impl Turns {
    /// An agent that keeps reports in this spool. It takes no run up to the last the spool knows.
    pub fn new(spool: Spool, worker: Arc<dyn Worker>, guard: Arc<dyn Guard>) -> Turns {
        let spool = Arc::new(spool);
        let sums = Arc::default();
        let present = Mutex::new(turn(&spool, &worker, &guard, &sums));
        Turns { spool, worker, guard, sums, present }
    }

    /// How the agent is now.
    pub fn snapshot(&self) -> Snapshot {
        let (kept, present) = (self.spool.kept().len(), self.present());
        let progress = present.progress();
        Snapshot {
            is_taken: present.is_attended(),
            run: progress.run,
            is_running: progress.phase() == Phase::Running,
            totals: self.sums.read(),
            kept,
        }
    }

    /// Gives one controller its turn after the other, until interrupted; `tell` hears how each ended.
    pub async fn go_round(&self, mut interrupted: watch::Receiver<bool>, tell: impl Fn(EndReason)) {
        loop {
            let shared = self.present();
            let reason = {
                let over = until_over(&shared);
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
                tell(reason);
            }
            shared.closing.send_replace(true);
            if *interrupted.borrow() {
                return;
            }
            let next = turn(&self.spool, &self.worker, &self.guard, &self.sums);
            *self.present.lock().unwrap_or_else(PoisonError::into_inner) = next;
        }
    }

    /// Serves whoever is at the other end of a connection, until it ends.
    pub async fn serve<S>(self: &Arc<Self>, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let turns = Arc::clone(self);
        let service = tower::service_fn(move |request: tonic::codegen::http::Request<tonic::body::Body>| {
            let service = Service(turns.present());
            let mut server = AgentServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
            async move { Ok::<_, Infallible>(server.call(request).await.unwrap_or_else(|never| match never {})) }
        });
        let (alive, gone) = oneshot::channel();
        let incoming = tokio_stream::once(Ok::<_, io::Error>(Watched { stream, _alive: alive }));
        let (interval, patience) = KEEPALIVE;
        tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(interval))
            .http2_keepalive_timeout(Some(patience))
            .serve_with_incoming_shutdown(service, incoming.chain(tokio_stream::pending()), async move {
                // Nobody sends: it resolves when the connection is dropped.
                let _: Result<(), _> = gone.await;
            })
            .await
            .map_err(io::Error::other)
    }

    fn present(&self) -> Arc<Shared> {
        Arc::clone(&self.present.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn turn(
    spool: &Arc<Spool>,
    worker: &Arc<dyn Worker>,
    guard: &Arc<dyn Guard>,
    sums: &Arc<Sums>,
) -> Arc<Shared> {
    let end = watch::Sender::new(None);
    let guard = Some(Arc::clone(guard));
    Arc::new(Shared::new(Arc::clone(spool), Arc::clone(worker), end, guard, Arc::clone(sums)))
}

/// A connection whose end is noticed.
struct Watched<S> {
    stream: S,
    _alive: oneshot::Sender<()>,
}

impl<S: Connected> Connected for Watched<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
