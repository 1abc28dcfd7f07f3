//! An agent that listens to other hosts: for whoever has its key, one controller after the
//! other. A second one is told that the agent is taken; one that vanishes leaves it free.

use super::agent::{pass_on, serve};
use super::end::EndReason;
use super::guard::Guard;
use super::limits::Limits;
use super::service::Shared;
use super::spool::Spool;
use super::work::Worker;
use netstage_agent_api::protocol::Refusal;
use netstage_agent_api::protocol::generated::Consent;
use netstage_agent_api::task::Assignment;
use netstage_host::ender::Ender;
use netstage_host::keyed::{Acceptor, Key, Peer, Stream, without_key};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes at a time; further ones wait. Each is somebody who has not shown a key yet.
const HANDSHAKES: usize = 16;
/// Connections that wait for the controller before to leave.
const WAITING: usize = 8;

/// What happens at a host's agent, for those who watch.
#[derive(Clone, Debug)]
pub enum Happening {
    /// Someone connected without the key, or spoke something else.
    TurnedAway {
        /// From where.
        from: SocketAddr,
        /// What went wrong.
        reason: String,
    },
    /// A controller has the agent now.
    Taken {
        /// Both ends of its connection.
        peer: Peer,
    },
    /// It has asked for this run, within the limits.
    Asked {
        /// Its part of the run.
        assignment: Assignment,
    },
    /// The controller is done or gone: the agent is free again.
    Free {
        /// How it ended.
        reason: EndReason,
    },
}

/// Told of what happens; called from any thread.
pub type Watcher = Arc<dyn Fn(Happening) + Send + Sync>;

/// An agent for other hosts that listens, but does not serve yet.
pub struct Host {
    listener: TcpListener,
    acceptor: Acceptor,
    limits: Limits,
    ender: Ender,
}

/// Keeps controllers within limits, and has them watched.
struct Limited {
    limits: Limits,
    watcher: Watcher,
}

impl Guard for Limited {
    fn taken(&self, peer: Peer) {
        (self.watcher)(Happening::Taken { peer });
    }

    fn prepare(
        &self,
        _run: u64,
        assignment: &mut Assignment,
        _consents: &[Consent],
        peer: Peer,
    ) -> Result<(), Refusal> {
        self.limits.apply(assignment, peer)?;
        (self.watcher)(Happening::Asked { assignment: assignment.clone() });
        Ok(())
    }
}

/// Where the acceptor puts connections: the present controller's time, or the next one's.
type Gate = Arc<Mutex<mpsc::Sender<io::Result<Stream>>>>;

impl Host {
    /// Listens for holders of the key.
    pub fn bind(address: SocketAddr, key: &Key, limits: Limits) -> io::Result<Host> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Host { listener, acceptor: Acceptor::new(key), limits, ender: Ender::default() })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What ends it from outside: a run under way stops, and its controller may still fetch the report.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Serves one controller after the other, or the first only, on this thread; runs have
    /// threads of their own. Returns how the last one's time ended.
    pub fn serve(self, worker: Arc<dyn Worker>, once: bool, watcher: Watcher) -> io::Result<EndReason> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let (first, mut incoming) = mpsc::channel(WAITING);
            let gate = Arc::new(Mutex::new(first));
            let accepting = accept(listener, self.acceptor, Arc::clone(&gate), Arc::clone(&watcher));
            let accepting = tokio::spawn(accepting);
            let guard = Arc::new(Limited { limits: self.limits, watcher: Arc::clone(&watcher) });
            loop {
                let shared = Arc::new(Shared::new(
                    Arc::new(Spool::none()),
                    Arc::clone(&worker),
                    watch::Sender::new(None),
                    Some(Arc::clone(&guard) as Arc<dyn Guard>),
                    Arc::default(),
                ));
                let next = next_turn(Arc::clone(&shared), Arc::clone(&gate));
                let stopper = tokio::spawn(pass_on(self.ender.subscribe(), Arc::clone(&shared)));
                let stream = ReceiverStream::new(incoming);
                let (reason, following) = tokio::join!(serve(stream, Arc::clone(&shared)), next);
                stopper.abort();
                let reason = reason?;
                if shared.is_attended() {
                    watcher(Happening::Free { reason });
                }
                if once || self.ender.has_ended() {
                    accepting.abort();
                    return Ok(reason);
                }
                incoming = following;
            }
        });
        // A worker that hangs must not keep the process.
        runtime.shutdown_background();
        ended
    }
}

/// When the present controller's time is over, those who connect wait for the next turn.
async fn next_turn(shared: Arc<Shared>, gate: Gate) -> mpsc::Receiver<io::Result<Stream>> {
    let mut end = shared.end.subscribe();
    // Its sender lives as long as `shared`.
    let _ = end.wait_for(Option::is_some).await;
    let (next, incoming) = mpsc::channel(WAITING);
    *gate.lock().unwrap_or_else(PoisonError::into_inner) = next;
    incoming
}

/// Takes connections, and passes on those of holders of the key.
async fn accept(listener: tokio::net::TcpListener, acceptor: Acceptor, gate: Gate, watcher: Watcher) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let turn = Arc::clone(&handshakes).acquire_owned().await.expect("never closed");
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors, mostly: others have to close theirs first.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let (acceptor, gate, watcher) = (acceptor.clone(), Arc::clone(&gate), Arc::clone(&watcher));
        tokio::spawn(async move {
            let shaken = timeout(HANDSHAKE, acceptor.accept(stream)).await;
            drop(turn);
            let turned_away = |reason| watcher(Happening::TurnedAway { from, reason });
            match shaken {
                Ok(Ok(stream)) => {
                    let gate = gate.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    // Full: so many wait already. Closed: the server is ending.
                    let _ = gate.try_send(Ok(stream));
                }
                Ok(Err(error)) => turned_away(without_key(&error)),
                Err(_) => turned_away(format!("no handshake within {HANDSHAKE:.0?}")),
            }
        });
    }
}
