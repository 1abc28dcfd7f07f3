//! Controller's process. Agents dial it and stay connected. Commands arrive on a socket in the fleet's
//! folder. They use the agent protocol, with the agent's name as the HTTP/2 authority, and are forwarded
//! unchanged. An agent is locked until its client closes the connection.
//!
//! Every connection is checked once a second: an agent that was removed, or whose certificate has expired, is
//! disconnected at once, even during a run.

use super::authority::{Authorities, agent_name_of};
use super::enrollment::EnrollmentService as Enrollment;
use super::enrollment::generated::enrollment_server::EnrollmentServer;
use super::folder::file_error;
use super::folder::{FleetFolder, now_ns, now_s};
use super::metrics::{self, HubCounts, count};
use super::starts::{ChangeCounter, ControllerStart};
use super::status::{AgentAvailability, AgentStatus};
use super::stun;
use super::tls::{self, Acceptor};
use super::token::sha256;
use crate::controller::{channel_over, exchange_clocks, greet, greeting, query_identity};
use netstage_agent_api::path::NatMapping;
use netstage_agent_api::protocol::generated::agent_client::AgentClient;
use netstage_agent_api::protocol::generated::{HelloReply, HelloRequest};
use netstage_agent_api::protocol::{common_version, displayable};
use netstage_core::measure::{ClockOffset, OffsetEstimator};
use netstage_host::clock;
use netstage_host::descriptors;
use netstage_host::lock::Lock;
use netstage_host::log::{Level, LimitedLog, Log};
use netstage_host::pending_connections::{Identified, PendingConnections};
use netstage_host::prometheus::{self, MetricsSource};
use netstage_host::realtime::raise_priority;
use netstage_host::shared_key::{ConnectionAddresses, TlsConnection};
use netstage_host::shutdown::DaemonShutdown;
use netstage_host::socket::ControlSocket;
use netstage_host::startup_error::StartupError;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::http;
use tonic::transport::Channel;
use tower::Service as _;

/// Time limit of a handshake, and of joining after it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections whose client is not identified yet. A fleet of a thousand agents may dial at once.
const MAX_PENDING_CONNECTIONS: usize = 2048;
/// Maximum size of an enrollment message, bytes: a token and a certificate request.
const MAX_ENROLLMENT_BYTES: usize = 16 << 10;
/// Maximum displayed length of an agent's host name and version, characters.
const MAX_TEXT_CHARACTERS: usize = 64;
/// Maximum number of displayed capabilities of an agent.
const MAX_CAPABILITIES: usize = 64;
/// Maximum number of addresses of an agent, and of those with their mappings.
const MAX_ADDRESSES: usize = 64;
const MAX_MAPPINGS: usize = 16;
/// Interval at which an agent is polled, and the time it may take to answer.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Number of agents above which each is polled less often, so that the load of polling stays constant.
const UNTHROTTLED_AGENTS: usize = 200;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// Number of polls from which the best clock exchange is selected. They cover a minute, or a few minutes in a
/// large fleet, so that the offset follows the drift.
const POLLS_PER_CLOCK_WINDOW: usize = 30;
/// Time limit for an agent to show that it is still connected, when another one presents its name.
const PRESENCE_TIMEOUT: Duration = Duration::from_secs(1);

/// Hub that listens but does not serve yet.
pub struct Hub {
    fleet: FleetFolder,
    trust: HubTrust,
    /// Last starts, this one last.
    starts: Vec<ControllerStart>,
    listener: TcpListener,
    commands: ControlSocket,
    /// Sockets that answer STUN requests.
    stun: Vec<UdpSocket>,
    ender: DaemonShutdown,
    metrics: Option<SocketAddr>,
    log: Log,
    /// Last status of each agent.
    seen: BTreeMap<String, AgentStatus>,
    /// Held during the lifetime of the hub.
    _lock: Lock,
}

/// State shared by the hub's tasks.
struct HubShared {
    fleet: FleetFolder,
    trust: Mutex<HubTrust>,
    /// Last starts according to the folder, with the changes since each.
    starts: Mutex<Vec<ControllerStart>>,
    changes: Mutex<ChangeCounter>,
    log: Log,
    /// Log of clients that are rejected or not identified yet.
    rejections: Arc<LimitedLog>,
    counts: Arc<HubCounts>,
    since: Instant,
    state: Mutex<ConnectedAgents>,
}

/// Certificate authorities, and the acceptor of connections under them.
#[derive(Clone)]
struct HubTrust {
    authorities: Arc<Authorities>,
    acceptor: Acceptor,
}

impl HubTrust {
    fn new(fleet: &FleetFolder) -> Result<HubTrust, StartupError> {
        let authorities = fleet.authorities()?;
        let identity = authorities.presented().controller();
        let identity = identity.map_err(|error| file_error(fleet.folder(), &error))?;
        let acceptor = Acceptor::new(identity, &authorities.trusted()).map_err(|error| {
            StartupError::new(format!("certificate authority of the fleet: {error}"), "create another fleet")
        })?;
        Ok(HubTrust { authorities: Arc::new(authorities), acceptor })
    }
}

#[derive(Default)]
struct ConnectedAgents {
    /// Agent name and expiry of each certificate, by its fingerprint.
    certificates: BTreeMap<String, (String, u64)>,
    read_at: Option<SystemTime>,
    /// Connected agents.
    agents: BTreeMap<String, ConnectedAgent>,
    /// Names for which the rejection of a second agent has been logged.
    duplicates: BTreeSet<String>,
    /// Last status of each agent.
    seen: BTreeMap<String, AgentStatus>,
}

/// Connected agent.
struct ConnectedAgent {
    channel: Channel,
    certificate: String,
    connection: Arc<std::net::TcpStream>,
}

impl Hub {
    /// Listens for the agents of a fleet, and for commands.
    pub fn bind(fleet: FleetFolder, address: SocketAddr, log: Log) -> Result<Hub, StartupError> {
        let lock = fleet.lock()?;
        let trust = HubTrust::new(&fleet)?;
        let starts = fleet.record_start()?;
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|error| {
            StartupError::new(format!("cannot listen at {address}: {error}"), "choose another --listen")
        })?;
        let commands = ControlSocket::bind(&fleet.socket()).map_err(|error| {
            StartupError::new(error.to_string(), "give a folder with a shorter path with --fleet")
        })?;
        let stun = stun::PORTS.iter().filter_map(|port| stun_socket(address.ip(), *port, &log)).collect();
        // The status of a killed hub may still show agents as connected.
        let mut seen = fleet.last_status();
        seen.iter_mut().for_each(|agent| agent.state = AgentAvailability::Offline);
        fleet.write_status(seen.clone())?;
        Ok(Hub {
            fleet,
            trust,
            starts,
            listener,
            commands,
            stun,
            ender: DaemonShutdown::default(),
            metrics: None,
            log,
            seen: seen.into_iter().map(|agent| (agent.name.clone(), agent)).collect(),
            _lock: lock,
        })
    }

    /// Returns the address at which the hub listens for agents.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the handle that stops the hub: it disconnects all agents.
    pub fn shutdown_handle(&self) -> DaemonShutdown {
        self.ender.clone()
    }

    /// Serves metrics at this address.
    pub fn serve_metrics(&mut self, address: SocketAddr) {
        self.metrics = Some(address);
    }

    /// Serves until the hub is stopped.
    pub fn serve(self) -> io::Result<()> {
        // Each agent takes two descriptors, and each client that commands it takes one.
        descriptors::raise_limit();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.on_thread_start(|| _ = raise_priority()).enable_all().build()?;
        let mut ended = self.ender.subscribe();
        let shared = Arc::new(HubShared {
            changes: Mutex::new(self.fleet.change_counter(&self.starts)),
            fleet: self.fleet,
            trust: Mutex::new(self.trust),
            starts: Mutex::new(self.starts),
            rejections: Arc::new(LimitedLog::new(Arc::clone(&self.log))),
            log: self.log,
            counts: Arc::default(),
            since: Instant::now(),
            state: Mutex::new(ConnectedAgents { seen: self.seen, ..ConnectedAgents::default() }),
        });
        shared.read_registry();
        let mut commands = self.commands;
        let result = runtime.block_on(async {
            if let Some(address) = self.metrics {
                let shared = Arc::clone(&shared);
                let page: MetricsSource = Arc::new(move || {
                    Some(metrics::hub_page(&shared.counts, &shared.statuses(false), shared.since.elapsed()))
                });
                prometheus::listen(address, page, self.ender.subscribe()).await.map_err(io::Error::other)?;
            }
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            tokio::spawn(accept(listener, Arc::clone(&shared)));
            tokio::spawn(maintain(Arc::clone(&shared)));
            for socket in self.stun {
                tokio::spawn(stun::answer_requests(tokio::net::UdpSocket::from_std(socket)?));
            }
            let incoming = UnixListenerStream::new(commands.listener()?);
            let until = async move {
                let _ = ended.wait_for(|ended| *ended).await;
            };
            forward_requests(incoming, Arc::clone(&shared), until).await
        });
        runtime.shutdown_background();
        let _ = shared.fleet.write_status(shared.statuses(true));
        result
    }
}

impl HubShared {
    fn state(&self) -> MutexGuard<'_, ConnectedAgents> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trust(&self) -> HubTrust {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the greeting of this controller, with its last starts.
    fn greeting(&self, max_starts: usize) -> HelloRequest {
        let authority = self.trust().authorities.current.fingerprint();
        let all = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &all[all.len().saturating_sub(max_starts)..];
        let starts = last.iter().map(|start| start.name.clone()).collect();
        let changes = last.iter().map(|start| start.changes).collect();
        HelloRequest { authority, starts, changes, ..greeting() }
    }

    /// Reads and writes the files of the fleet. Returns the problems.
    fn maintain(&self) -> Vec<String> {
        self.read_registry();
        self.disconnect_invalid();
        let counted = self.count_changes();
        let counted = counted.map_err(|error| format!("cannot count the changes of the folder: {error}"));
        let followed = self.follow_rotation().map_err(|error| format!("cannot read the authority: {error}"));
        let written = self.fleet.write_status(self.statuses(false));
        let written = written.map_err(|error| format!("cannot write the status of the agents: {error}"));
        [counted, followed, written].into_iter().filter_map(Result::err).collect()
    }

    /// Counts the changes of the folder, for the greetings that follow.
    fn count_changes(&self) -> Result<(), StartupError> {
        let counted = self.changes.lock().unwrap_or_else(PoisonError::into_inner).follow();
        let starts = counted.map_err(|error| file_error(self.fleet.folder(), &error))?;
        *self.starts.lock().unwrap_or_else(PoisonError::into_inner) = starts;
        Ok(())
    }

    /// Follows a rotation of the authority, and the end of its transition.
    fn follow_rotation(&self) -> Result<(), StartupError> {
        let (known, found) = (self.trust().authorities, self.fleet.authorities()?);
        if known.trusted() == found.trusted() {
            return Ok(());
        }
        *self.trust.lock().unwrap_or_else(PoisonError::into_inner) = HubTrust::new(&self.fleet)?;
        if found.previous.is_some() {
            (self.log)(Level::Note, "the authority was rotated; connected agents renew their certificates");
            return Ok(());
        }
        (self.log)(Level::Note, "the previous authority is no longer trusted");
        let authority = found.current.fingerprint();
        for (name, agent) in &self.state().agents {
            if self.fleet.registered(name).is_some_and(|registered| registered.authority != authority) {
                count(&self.counts.aborted);
                let what =
                    format!("disconnecting agent {name}: its certificate is of the previous authority");
                (self.log)(Level::Note, &what);
                let _ = agent.connection.shutdown(Shutdown::Both);
            }
        }
        Ok(())
    }

    /// Reads the registered agents if they have changed.
    fn read_registry(&self) {
        let changed_at = self.fleet.changed_at();
        if self.state().read_at == changed_at && changed_at.is_some() {
            return;
        }
        let Ok(registered) = self.fleet.all_registered() else { return };
        let certificates = registered.into_iter().flat_map(|(name, agent)| {
            agent.certificates.into_iter().map(move |(print, expires_s)| (print, (name.clone(), expires_s)))
        });
        let mut state = self.state();
        state.certificates = certificates.collect();
        state.read_at = changed_at;
    }

    /// Identifies the agent of a connection. Its file has to contain the fingerprint of the presented
    /// certificate. Returns the agent's name and this fingerprint.
    fn agent_of(&self, stream: &TlsConnection) -> Option<(String, String)> {
        let certificate = stream.peer_certificates().first()?;
        let name = agent_name_of(certificate)?;
        let print = sha256(certificate);
        let expires_s = self.fleet.admit(&name, &print).filter(|expires_s| *expires_s > now_s())?;
        self.state().certificates.insert(print.clone(), (name.clone(), expires_s));
        Some((name, print))
    }

    /// Returns the expiry of an agent's certificate, or `None` if the certificate is not that of the agent.
    fn certificate_of(&self, name: &str, print: &str) -> Option<u64> {
        let certificates = self.fleet.registered(name)?.certificates;
        certificates.into_iter().find(|(one, _)| one == print).map(|(_, expires_s)| expires_s)
    }

    /// Disconnects agents that are no longer valid. An agent that has renewed its certificate stays connected
    /// as the holder of the new one.
    fn disconnect_invalid(&self) {
        let now = now_s();
        let mut state = self.state();
        let ConnectedAgents { certificates, agents, .. } = &mut *state;
        let mut latest: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
        for (print, (name, expires_s)) in &*certificates {
            let one = latest.entry(name).or_default();
            *one = (*expires_s, print.as_str()).max(*one);
        }
        for (name, agent) in agents {
            let known = certificates.contains_key(&agent.certificate);
            let expires_s = match latest.get(name.as_str()).filter(|_| known) {
                Some((expires_s, print)) => {
                    agent.certificate = (*print).to_owned();
                    Some(*expires_s)
                }
                // An agent that has just joined may be missing from the table.
                None => self.certificate_of(name, &agent.certificate),
            };
            let reason = match expires_s {
                Some(expires_s) if expires_s > now => continue,
                Some(_) => "its certificate has expired",
                None => "it was removed, or its certificate was replaced",
            };
            count(&self.counts.aborted);
            (self.log)(Level::Note, &format!("disconnecting agent {name}: {reason}"));
            let _ = agent.connection.shutdown(Shutdown::Both);
        }
    }

    /// Reports whether an agent of this name is connected and answers.
    async fn is_answering(&self, name: &str) -> bool {
        let Some(channel) = self.state().agents.get(name).map(|agent| agent.channel.clone()) else {
            return false;
        };
        timeout(PRESENCE_TIMEOUT, query_identity(&mut AgentClient::new(channel)))
            .await
            .is_ok_and(|hello| hello.is_ok())
    }

    /// Returns the status of every agent that has ever connected.
    fn statuses(&self, ending: bool) -> Vec<AgentStatus> {
        let state = self.state();
        let status = |seen: &AgentStatus| {
            let mut status = seen.clone();
            if ending || !state.agents.contains_key(&status.name) {
                status.state = AgentAvailability::Offline;
            }
            status
        };
        state.seen.values().map(status).collect()
    }
}

/// Opens a port that answers STUN requests of agents. Without it, agents behind NAT cannot send to each other.
fn stun_socket(address: IpAddr, port: u16, log: &Log) -> Option<UdpSocket> {
    let open = || {
        let socket = UdpSocket::bind((address, port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let failed = |error: &io::Error| {
        let what = format!(
            "cannot open UDP port {port} at {address} ({error}); flows between agents behind NAT are refused"
        );
        log(Level::Alarm, &what);
    };
    open().inspect_err(failed).ok()
}

/// Accepts connections of agents, and of hosts that join.
async fn accept(listener: tokio::net::TcpListener, shared: Arc<HubShared>) {
    let strangers = PendingConnections::new(MAX_PENDING_CONNECTIONS);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Usually out of file descriptors: other connections have to close first.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        count(&shared.counts.connections);
        // The task ends when the client is identified.
        let task = tokio::spawn(identify_client(stream, from, Arc::clone(&shared)));
        strangers.admit(task.abort_handle(), Identified::default());
    }
}

/// Performs the handshake, identifies the client, and serves the application protocol it requests.
async fn identify_client(stream: tokio::net::TcpStream, from: SocketAddr, shared: Arc<HubShared>) {
    let acceptor = shared.trust().acceptor;
    let handshake = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let reject = |why: &str| {
        count(&shared.counts.rejected);
        shared.rejections.write(Level::Alarm, &format!("{from} rejected: {why}"));
    };
    let stream = match handshake {
        Err(_) => return reject("no handshake before the timeout"),
        Ok(Err(error)) => return reject(&tls::describe(&error)),
        Ok(Ok(stream)) => stream,
    };
    let agent = shared.agent_of(&stream);
    match (stream.application_protocol(), agent, stream.peer_certificates().is_empty()) {
        (_, None, false) => reject("unknown certificate: the agent was removed, or its certificate replaced"),
        (Some(tls::COMMANDS), Some((name, print)), _) => {
            identify_agent(shared, stream, name, print).await;
        }
        (Some(tls::ENROLLMENT), agent, _) => enrol(shared, stream, agent.map(|(name, _)| name)).await,
        (Some(tls::COMMANDS), None, true) => reject("no client certificate"),
        _ => reject("no application protocol"),
    }
}

/// Serves a host that joins, or an agent that renews its certificate.
async fn enrol(shared: Arc<HubShared>, stream: TlsConnection, agent: Option<String>) {
    let from = stream.peer().remote;
    let service = Enrollment {
        fleet: shared.fleet.clone(),
        authorities: shared.trust().authorities,
        agent,
        from,
        counts: Arc::clone(&shared.counts),
        log: Arc::clone(&shared.log),
        rejections: Arc::clone(&shared.rejections),
    };
    let incoming = tokio_stream::once(Ok::<_, io::Error>(stream)).chain(tokio_stream::pending());
    let service = EnrollmentServer::new(service).max_decoding_message_size(MAX_ENROLLMENT_BYTES);
    let server = tonic::transport::Server::builder().serve_with_incoming(service, incoming);
    // A client that takes longer has to start again.
    let _ = timeout(HANDSHAKE_TIMEOUT, server).await;
}

/// Asks an agent for its identity, and keeps its connection in a task of its own.
async fn identify_agent(shared: Arc<HubShared>, stream: TlsConnection, name: String, certificate: String) {
    let peer = stream.peer();
    let disconnected =
        |why: &str| shared.rejections.write(Level::Note, &disconnection(&name, peer.remote, why));
    let connection = stream.socket().as_fd().try_clone_to_owned().map(std::net::TcpStream::from);
    let Ok(connection) = connection.map(Arc::new) else { return disconnected("no more file descriptors") };
    // Two copies of an agent would take turns at ending each other's runs.
    if shared.is_answering(&name).await {
        if shared.state().duplicates.insert(name.clone()) {
            let what = format!(
                "second agent {name} at {} rejected: the first one is connected; was its folder copied?",
                peer.remote
            );
            shared.rejections.write(Level::Alarm, &what);
        }
        return;
    }
    let channel = match channel_over(stream, &name, Instant::now() + HANDSHAKE_TIMEOUT).await {
        Ok(channel) => channel,
        Err(why) => return disconnected(&why),
    };
    let mut client = AgentClient::new(channel.clone());
    let introduction = shared.greeting(usize::MAX);
    let hello = match timeout(ANSWER_TIMEOUT, greet(&mut client, introduction)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(status)) => return disconnected(&displayable(status.message())),
        Err(_) => return disconnected("no answer"),
    };
    let status = describe(&shared, &name, peer, &hello);
    if common_version(hello.oldest_version, hello.newest_version).is_none() {
        shared.state().seen.insert(name.clone(), status);
        let why = format!(
            "its netstage {} supports agent protocol versions {} to {}, which this program does not support",
            display_text(&hello.tool),
            hello.oldest_version,
            hello.newest_version
        );
        return disconnected(&why);
    }
    let agent = ConnectedAgent { channel, certificate, connection: Arc::clone(&connection) };
    let before = shared.state().agents.insert(name.clone(), agent);
    if let Some(before) = before {
        // The agent dialed again after losing the previous connection.
        let _ = before.connection.shutdown(Shutdown::Both);
    }
    shared.state().seen.insert(name.clone(), status.clone());
    (shared.log)(Level::Note, &format!("agent {name} connected from {}", peer.remote));
    tokio::spawn(async move {
        let mut status = status;
        let why = poll_agent(&shared, &mut client, &hello, &mut status).await;
        let mut state = shared.state();
        if state.agents.get(&name).is_some_and(|agent| Arc::ptr_eq(&agent.connection, &connection)) {
            state.agents.remove(&name);
            state.duplicates.remove(&name);
        }
        drop(state);
        (shared.log)(Level::Note, &disconnection(&name, peer.remote, &why));
    });
}

fn disconnection(name: &str, from: SocketAddr, why: &str) -> String {
    format!("agent {name} at {from} disconnected: {why}")
}

/// Polls an agent until it does not answer. Returns the reason.
async fn poll_agent(
    shared: &HubShared,
    client: &mut AgentClient<Channel>,
    hello: &HelloReply,
    status: &mut AgentStatus,
) -> String {
    let same = clock::is_own_clock(&hello.clock);
    let mut best = [None::<ClockOffset>; 2];
    for poll in 0.. {
        let mut estimator = OffsetEstimator::default();
        let asked = async {
            let hello = greet(client, shared.greeting(1)).await?;
            let state = exchange_clocks(client, &mut estimator).await?;
            Ok::<_, tonic::Status>((hello, state))
        };
        let (hello, state) = match timeout(ANSWER_TIMEOUT, asked).await {
            Err(_) => return "no answer".into(),
            Ok(Err(error)) => return displayable(error.message()),
            Ok(Ok(answer)) => answer,
        };
        if poll % POLLS_PER_CLOCK_WINDOW == 0 {
            best = [None, best[0]];
        }
        if let Some(offset) = estimator.offset() {
            best[0] = best[0].filter(|best| best.error_ns <= offset.error_ns).or(Some(offset));
        }
        let offset = best.into_iter().flatten().min_by_key(|offset| offset.error_ns);
        let is_one = same && offset.is_some_and(ClockOffset::may_be_zero);
        status.clock = if is_one { Some(ClockOffset::SAME_CLOCK) } else { offset };
        status.wall_clock = state.map(|state| (state.synchronized, state.error_ns));
        status.state = if hello.taken { AgentAvailability::Taken } else { AgentAvailability::Idle };
        status.capabilities = capabilities(&hello);
        status.addresses = addresses(&hello);
        status.mappings = mappings(&hello);
        status.last_seen_ns = Some(now_ns());
        let agents = {
            let mut state = shared.state();
            state.seen.insert(status.name.clone(), status.clone());
            state.agents.len()
        };
        sleep(POLL_INTERVAL * agents.div_ceil(UNTHROTTLED_AGENTS).max(1) as u32).await;
    }
    unreachable!("the loop has no end")
}

/// Returns the first line of a text from the other side, truncated and without control characters, for
/// display in a table.
fn display_text(text: &str) -> String {
    displayable(text).lines().next().unwrap_or_default().chars().take(MAX_TEXT_CHARACTERS).collect()
}

fn capabilities(hello: &HelloReply) -> Vec<String> {
    hello.capabilities.iter().take(MAX_CAPABILITIES).map(|one| display_text(one)).collect()
}

fn addresses(hello: &HelloReply) -> Vec<IpAddr> {
    hello.addresses.iter().take(MAX_ADDRESSES).filter_map(|address| address.parse().ok()).collect()
}

fn mappings(hello: &HelloReply) -> Vec<NatMapping> {
    hello.mappings.iter().take(MAX_MAPPINGS).filter_map(|mapping| mapping.try_into().ok()).collect()
}

fn describe(shared: &HubShared, name: &str, peer: ConnectionAddresses, hello: &HelloReply) -> AgentStatus {
    let registered = shared.fleet.registered(name);
    AgentStatus {
        name: name.into(),
        labels: registered.as_ref().map(|agent| agent.labels.clone()).unwrap_or_default(),
        address: Some(peer.remote),
        host: display_text(&hello.host),
        version: display_text(&hello.tool),
        state: if hello.taken { AgentAvailability::Taken } else { AgentAvailability::Idle },
        last_seen_ns: Some(now_ns()),
        clock: None,
        wall_clock: None,
        capabilities: capabilities(hello),
        addresses: addresses(hello),
        mappings: mappings(hello),
        certificate_expires_s: registered
            .and_then(|agent| agent.certificates.last().map(|last| last.1))
            .unwrap_or(0),
    }
}

/// Updates the registered agents, disconnects invalid ones and writes the status, once a second. A problem is logged when
/// it begins.
async fn maintain(shared: Arc<HubShared>) {
    let mut second = interval(Duration::from_secs(1));
    let mut known = Vec::new();
    loop {
        second.tick().await;
        let maintained = Arc::clone(&shared);
        // Reading the files of a thousand agents takes time, during which heartbeats have to continue.
        let problems = spawn_blocking(move || maintained.maintain()).await.unwrap_or_default();
        for problem in problems.iter().filter(|problem| !known.contains(*problem)) {
            (shared.log)(Level::Alarm, problem);
        }
        known = problems;
    }
}

/// Forwards commands to the agents they address.
async fn forward_requests(
    incoming: UnixListenerStream,
    shared: Arc<HubShared>,
    until: impl Future<Output = ()>,
) -> io::Result<()> {
    let service = tower::service_fn(move |request: http::Request<tonic::body::Body>| {
        let name = request.uri().host().unwrap_or_default().to_owned();
        count(&shared.counts.requests);
        let channel = shared.state().agents.get(&name).map(|agent| agent.channel.clone());
        async move {
            let absent = |why: String| tonic::Status::unavailable(why).into_http::<tonic::body::Body>();
            let Some(mut channel) = channel else {
                return Ok::<_, Infallible>(absent(format!("agent {name} is not connected")));
            };
            let ready = std::future::poll_fn(|cx| channel.poll_ready(cx)).await;
            let answer = match ready {
                Ok(()) => channel.call(request).await,
                Err(error) => Err(error),
            };
            Ok(answer
                .unwrap_or_else(|error| absent(format!("the connection to agent {name} broke ({error})"))))
        }
    });
    let server = tonic::transport::Server::builder().serve_with_incoming(service, incoming);
    tokio::select! {
        result = server => result.map_err(io::Error::other),
        () = until => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::folder::RegisteredAgent;
    use super::super::private;
    use super::*;

    #[test]
    fn agents_are_offline_until_they_connect_to_this_hub() {
        let temporary = netstage_harness::TemporaryFolder::new("hub");
        let folder = temporary.join("fleet");
        let fleet = FleetFolder::create(&folder, "lab").unwrap();
        let expires_s = now_s() + 3600;
        let site = RegisteredAgent {
            labels: Vec::new(),
            lasting_s: 3600,
            certificates: vec![("00".into(), expires_s)],
            authority: String::new(),
            adopts_next: false,
        };
        private::write_json(&folder.join("agents/site.json"), &site).unwrap();
        // State left behind by a hub that is killed while the agent is connected.
        let mut seen = fleet.agents().unwrap();
        seen[0].state = AgentAvailability::Idle;
        fleet.write_status(seen).unwrap();
        assert_eq!(fleet.agents().unwrap()[0].state, AgentAvailability::Idle);
        let _hub = Hub::bind(fleet.clone(), "127.0.0.1:0".parse().unwrap(), Arc::new(|_, _| {})).unwrap();
        assert_eq!(fleet.agents().unwrap()[0].state, AgentAvailability::Offline);
    }
}
