//! Agent that serves controllers of other hosts that have its key, one at a time. A second controller
//! is refused as busy; the loss of a controller releases the agent.

use super::agent::{end_session_on_interrupt, serve};
use super::end_reason::EndReason;
use super::guard::RunGuard;
use super::limits::Limits;
use super::service::AgentShared;
use super::spool::Spool;
use super::work::Worker;
use netstage_agent_api::protocol::OrderRefusal;
use netstage_agent_api::protocol::generated::Consent;
use netstage_agent_api::task::Assignment;
use netstage_host::shared_key::{
    Acceptor, ConnectionAddresses, PresharedKey, TlsConnection, rejection_reason,
};
use netstage_host::shutdown::DaemonShutdown;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent handshakes, all with peers that are not authenticated yet. Further
/// connections wait.
const MAX_HANDSHAKES: usize = 16;
/// Maximum number of connections that wait until the current controller is done.
const MAX_WAITING: usize = 8;

/// Event at an agent that serves other hosts.
#[derive(Clone, Debug)]
pub enum HostEvent {
    /// A connection was rejected: wrong key, or another protocol.
    TurnedAway {
        /// Remote address.
        from: SocketAddr,
        /// Reason of the rejection.
        reason: String,
    },
    /// A controller now owns the agent.
    Taken {
        /// Both ends of its connection.
        peer: ConnectionAddresses,
    },
    /// The controller has requested a run, which is within the limits.
    Requested {
        /// Assignment of the agent.
        assignment: Assignment,
    },
    /// The controller is done or gone, and the agent is free again.
    Free {
        /// Reason why the controller session ended.
        reason: EndReason,
    },
}

/// Event handler, called from any thread.
pub type HostEventHandler = Arc<dyn Fn(HostEvent) + Send + Sync>;

/// Agent for controllers of other hosts that listens but does not serve yet.
pub struct HostAgent {
    listener: TcpListener,
    acceptor: Acceptor,
    limits: Limits,
    ender: DaemonShutdown,
}

/// Admission control that enforces limits and reports events.
struct LimitingGuard {
    limits: Limits,
    watcher: HostEventHandler,
}

impl RunGuard for LimitingGuard {
    fn taken(&self, peer: ConnectionAddresses) {
        (self.watcher)(HostEvent::Taken { peer });
    }

    fn prepare(
        &self,
        _run: u64,
        assignment: &mut Assignment,
        _consents: &[Consent],
        peer: ConnectionAddresses,
    ) -> Result<(), OrderRefusal> {
        self.limits.apply(assignment, peer)?;
        (self.watcher)(HostEvent::Requested { assignment: assignment.clone() });
        Ok(())
    }
}

/// Sender to which the acceptor passes connections: that of the current controller session or of the next
/// one.
type ConnectionGate = Arc<Mutex<mpsc::Sender<io::Result<TlsConnection>>>>;

impl HostAgent {
    /// Listens for holders of the key.
    pub fn bind(address: SocketAddr, key: &PresharedKey, limits: Limits) -> io::Result<HostAgent> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(HostAgent { listener, acceptor: Acceptor::new(key), limits, ender: DaemonShutdown::default() })
    }

    /// Returns the address at which the agent listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the handle that interrupts the agent: a run in progress stops, and its controller may still
    /// fetch the report.
    pub fn shutdown_handle(&self) -> DaemonShutdown {
        self.ender.clone()
    }

    /// Serves controllers one at a time on this thread, or only the first one if `once` is set. Runs have
    /// threads of their own. Returns the reason why the last controller session ended.
    pub fn serve(
        self,
        worker: Arc<dyn Worker>,
        once: bool,
        watcher: HostEventHandler,
    ) -> io::Result<EndReason> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let (first, mut incoming) = mpsc::channel(MAX_WAITING);
            let gate = Arc::new(Mutex::new(first));
            let accepting = accept(listener, self.acceptor, Arc::clone(&gate), Arc::clone(&watcher));
            let accepting = tokio::spawn(accepting);
            let guard = Arc::new(LimitingGuard { limits: self.limits, watcher: Arc::clone(&watcher) });
            loop {
                let shared = Arc::new(AgentShared::new(
                    Arc::new(Spool::disabled()),
                    Arc::clone(&worker),
                    watch::Sender::new(None),
                    Some(Arc::clone(&guard) as Arc<dyn RunGuard>),
                    Arc::default(),
                ));
                let next = next_turn(Arc::clone(&shared), Arc::clone(&gate));
                let stopper =
                    tokio::spawn(end_session_on_interrupt(self.ender.subscribe(), Arc::clone(&shared)));
                let stream = ReceiverStream::new(incoming);
                let (reason, next) = tokio::join!(serve(stream, Arc::clone(&shared)), next);
                stopper.abort();
                let reason = reason?;
                if shared.is_attended() {
                    watcher(HostEvent::Free { reason });
                }
                if once || self.ender.is_requested() {
                    accepting.abort();
                    return Ok(reason);
                }
                incoming = next;
            }
        });
        // A worker that hangs must not keep the process from ending.
        runtime.shutdown_background();
        ended
    }
}

/// Diverts new connections to the next controller session once the current one ends.
async fn next_turn(
    shared: Arc<AgentShared>,
    gate: ConnectionGate,
) -> mpsc::Receiver<io::Result<TlsConnection>> {
    let mut end = shared.end.subscribe();
    // The sender lives as long as `shared`.
    let _ = end.wait_for(Option::is_some).await;
    let (next, incoming) = mpsc::channel(MAX_WAITING);
    *gate.lock().unwrap_or_else(PoisonError::into_inner) = next;
    incoming
}

/// Accepts connections, and passes on those of holders of the key.
async fn accept(
    listener: tokio::net::TcpListener,
    acceptor: Acceptor,
    gate: ConnectionGate,
    watcher: HostEventHandler,
) {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    loop {
        let permit = Arc::clone(&handshakes).acquire_owned().await.expect("never closed");
        let Ok((stream, from)) = listener.accept().await else {
            // Usually out of file descriptors: other connections have to close first.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let (acceptor, gate, watcher) = (acceptor.clone(), Arc::clone(&gate), Arc::clone(&watcher));
        tokio::spawn(async move {
            let handshake = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
            drop(permit);
            let reject = |reason| watcher(HostEvent::TurnedAway { from, reason });
            match handshake {
                Ok(Ok(stream)) => {
                    let gate = gate.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    // Full: the maximum number of connections waits already. Closed: the server is ending.
                    let _ = gate.try_send(Ok(stream));
                }
                Ok(Err(error)) => reject(rejection_reason(&error)),
                Err(_) => reject(format!("no handshake within {HANDSHAKE_TIMEOUT:.0?}")),
            }
        });
    }
}
