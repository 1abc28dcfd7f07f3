//! The controller's process: agents dial it, and stay. Commands come by a socket in the
//! fleet's folder, as the agents' protocol with the agent's name for an authority, and are
//! passed on as they are; so whoever commands, has the agent until his connection ends.
//!
//! Every connection is looked at once a second: an agent that was removed, or whose
//! certificate has ended, is cut off at once, whatever it is doing.

use super::authority::{Authority, name_in};
use super::enrolment::Service as Enrolment;
use super::enrolment::generated::enrolment_server::EnrolmentServer;
use super::folder::file_error;
use super::folder::{Fleet, now_ns, now_s};
use super::metrics::{self, HubCounts, count};
use super::status::{AgentStatus, State};
use super::strangers::Strangers;
use super::tls::{self, Acceptor};
use super::token::sha256;
use crate::controller::{channel_over, exchange_clocks, greet};
use netstage_agent_api::protocol::generated::HelloReply;
use netstage_agent_api::protocol::generated::agent_client::AgentClient;
use netstage_agent_api::protocol::{common_version, plain};
use netstage_core::measure::{ClockOffset, OffsetEstimator};
use netstage_host::clock;
use netstage_host::descriptors;
use netstage_host::ender::Ender;
use netstage_host::keyed::{Peer, Stream};
use netstage_host::lock::Lock;
use netstage_host::log::{Level, Log};
use netstage_host::obstacle::Obstacle;
use netstage_host::prometheus::{self, Source};
use netstage_host::realtime::go_ahead;
use netstage_host::socket::Socket;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
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

/// How long a handshake may take, and joining after it.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Strangers at a time: a fleet of a thousand may dial at once.
const STRANGERS: usize = 2048;
/// Longest message of one who joins: a token and the request for a certificate.
const MOST_ASKED: usize = 16 << 10;
/// Letters of an agent's host and version that are shown.
const MOST_LETTERS: usize = 64;
/// Most capabilities of an agent that are shown.
const MOST_CAPABILITIES: usize = 64;
/// How often an agent is asked how it is, and how long it may take to answer.
const LOOK: Duration = Duration::from_secs(2);
/// Of more agents than this, each is asked less often, so that looking takes no more of the machine.
const LOOKED_AT: usize = 200;
const PATIENCE: Duration = Duration::from_secs(6);
/// Looks from which the best tells the clock: a minute of them or a few, so that drift shows.
const CLOCK_LOOKS: usize = 30;
/// How long an agent that is there may take to show it where another comes by its name.
const STILL_THERE: Duration = Duration::from_secs(1);

/// A hub that listens, but does not serve yet.
pub struct Hub {
    fleet: Fleet,
    authority: Authority,
    acceptor: Acceptor,
    listener: TcpListener,
    commands: Socket,
    ender: Ender,
    metrics: Option<SocketAddr>,
    log: Log,
    /// How agents were when last seen.
    seen: BTreeMap<String, AgentStatus>,
    /// Held as long as the hub.
    _lock: Lock,
}

/// What its tasks share.
struct Shared {
    fleet: Fleet,
    authority: Arc<Authority>,
    log: Log,
    counts: Arc<HubCounts>,
    since: Instant,
    state: Mutex<Present>,
}

#[derive(Default)]
struct Present {
    /// Whose a certificate is, by its fingerprint, and when it ends.
    certificates: BTreeMap<String, (String, u64)>,
    read_at: Option<SystemTime>,
    /// Agents that are there.
    agents: BTreeMap<String, Agent>,
    /// Those of which there is a second one, which has been told once.
    doubled: BTreeSet<String>,
    /// How agents were when last seen.
    seen: BTreeMap<String, AgentStatus>,
}

/// An agent that is there.
struct Agent {
    channel: Channel,
    certificate: String,
    connection: Arc<std::net::TcpStream>,
}

impl Hub {
    /// Listens for the agents of a fleet, and for commands.
    pub fn bind(fleet: Fleet, address: SocketAddr, log: Log) -> Result<Hub, Obstacle> {
        let lock = fleet.lock()?;
        let authority = fleet.authority()?;
        let system = |error: io::Error| file_error(fleet.folder(), &error);
        let identity = authority.controller().map_err(system)?;
        let acceptor = Acceptor::new(identity, authority.certificate()).map_err(|error| {
            Obstacle::new(format!("the fleet's authority: {error}"), "make another fleet")
        })?;
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|error| {
            Obstacle::new(format!("cannot listen at {address}: {error}"), "choose another --listen")
        })?;
        let commands = Socket::bind(&fleet.socket())
            .map_err(|error| Obstacle::new(error.to_string(), "name a shorter folder with --fleet"))?;
        // A hub that was killed a moment ago left word of agents that are not there any more.
        let mut seen = fleet.last_status();
        seen.iter_mut().for_each(|agent| agent.state = State::Offline);
        fleet.write_status(seen.clone()).map_err(system)?;
        Ok(Hub {
            fleet,
            authority,
            acceptor,
            listener,
            commands,
            ender: Ender::default(),
            metrics: None,
            log,
            seen: seen.into_iter().map(|agent| (agent.name.clone(), agent)).collect(),
            _lock: lock,
        })
    }

    /// Where it listens for agents.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What ends it from outside: every agent is let go.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Tells metrics there.
    pub fn tell_metrics(&mut self, address: SocketAddr) {
        self.metrics = Some(address);
    }

    /// Serves until it is ended.
    pub fn serve(self) -> io::Result<()> {
        // An agent takes two, and who commands it one.
        descriptors::allow_many();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.on_thread_start(|| _ = go_ahead()).enable_all().build()?;
        let mut ended = self.ender.subscribe();
        let shared = Arc::new(Shared {
            fleet: self.fleet,
            authority: Arc::new(self.authority),
            log: self.log,
            counts: Arc::default(),
            since: Instant::now(),
            state: Mutex::new(Present { seen: self.seen, ..Present::default() }),
        });
        shared.read_registry();
        let mut commands = self.commands;
        let result = runtime.block_on(async {
            if let Some(address) = self.metrics {
                let shared = Arc::clone(&shared);
                let page: Source = Arc::new(move || {
                    Some(metrics::of_hub(&shared.counts, &shared.statuses(false), shared.since.elapsed()))
                });
                prometheus::listen(address, page, self.ender.subscribe()).await.map_err(io::Error::other)?;
            }
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            tokio::spawn(accept(listener, self.acceptor, Arc::clone(&shared)));
            tokio::spawn(look_after(Arc::clone(&shared)));
            let incoming = UnixListenerStream::new(commands.listener()?);
            let until = async move {
                let _ = ended.wait_for(|ended| *ended).await;
            };
            pass_on(incoming, Arc::clone(&shared), until).await
        });
        runtime.shutdown_background();
        let _ = shared.fleet.write_status(shared.statuses(true));
        result
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Present> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads who is an agent, where that has changed.
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

    /// Whose connection this is: who is an agent, has a file that names its certificate.
    fn agent_of(&self, stream: &Stream) -> Option<(String, String)> {
        let certificate = stream.shown().first()?;
        let name = name_in(certificate)?;
        let print = sha256(certificate);
        let expires_s = self.certificate_of(&name, &print).filter(|expires_s| *expires_s > now_s())?;
        self.state().certificates.insert(print.clone(), (name.clone(), expires_s));
        Some((name, print))
    }

    /// When this certificate of an agent ends; none where it is not its.
    fn certificate_of(&self, name: &str, print: &str) -> Option<u64> {
        let certificates = self.fleet.registered(name)?.certificates;
        certificates.into_iter().find(|(one, _)| one == print).map(|(_, expires_s)| expires_s)
    }

    /// Cuts off whoever is no agent any more. One that has renewed its certificate goes on as its holder.
    fn cut_off(&self) {
        let now = now_s();
        let mut state = self.state();
        let Present { certificates, agents, .. } = &mut *state;
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
                // One that joined a moment ago may be missing there.
                None => self.certificate_of(name, &agent.certificate),
            };
            let reason = match expires_s {
                Some(expires_s) if expires_s > now => continue,
                Some(_) => "its certificate has ended",
                None => "it was removed, or has another certificate now",
            };
            count(&self.counts.cut_off);
            (self.log)(Level::Note, &format!("agent {name} is cut off: {reason}"));
            let _ = agent.connection.shutdown(Shutdown::Both);
        }
    }

    /// Whether an agent of this name is there and answers.
    async fn is_answering(&self, name: &str) -> bool {
        let Some(channel) = self.state().agents.get(name).map(|agent| agent.channel.clone()) else {
            return false;
        };
        timeout(STILL_THERE, greet(&mut AgentClient::new(channel))).await.is_ok_and(|hello| hello.is_ok())
    }

    /// How every agent is that was ever seen.
    fn statuses(&self, ending: bool) -> Vec<AgentStatus> {
        let state = self.state();
        let status = |seen: &AgentStatus| {
            let mut status = seen.clone();
            if ending || !state.agents.contains_key(&status.name) {
                status.state = State::Offline;
            }
            status
        };
        state.seen.values().map(status).collect()
    }
}

/// Takes connections of agents, and of hosts that join.
async fn accept(listener: tokio::net::TcpListener, acceptor: Acceptor, shared: Arc<Shared>) {
    let strangers = Strangers::new(STRANGERS);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors, mostly: others have to close theirs first.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        count(&shared.counts.connections);
        let task = tokio::spawn(meet(acceptor.clone(), stream, from, Arc::clone(&shared)));
        strangers.admit(task.abort_handle());
    }
}

/// Finds out who has connected, and what he wants.
async fn meet(acceptor: Acceptor, stream: tokio::net::TcpStream, from: SocketAddr, shared: Arc<Shared>) {
    let shaken = timeout(HANDSHAKE, acceptor.accept(stream)).await;
    let turned_away = |why: &str| {
        count(&shared.counts.turned_away);
        (shared.log)(Level::Alarm, &format!("{from} is turned away: {why}"));
    };
    let stream = match shaken {
        Err(_) => return turned_away("it does not speak"),
        Ok(Err(error)) => return turned_away(&tls::describe(&error)),
        Ok(Ok(stream)) => stream,
    };
    let who = shared.agent_of(&stream);
    match (stream.application(), who, stream.shown().is_empty()) {
        (_, None, false) => turned_away("its certificate is no agent's: it was removed, or replaced"),
        // No stranger any more: whom it is, does not give way to others.
        (Some(tls::COMMANDS), Some((name, print)), _) => {
            drop(tokio::spawn(attend(shared, stream, name, print)))
        }
        (Some(tls::ENROLMENT), who, _) => enrol(shared, stream, who.map(|(name, _)| name)).await,
        (Some(tls::COMMANDS), None, true) => turned_away("it shows no certificate"),
        _ => turned_away("it does not say what it wants"),
    }
}

/// Lets a host join, or an agent renew its certificate.
async fn enrol(shared: Arc<Shared>, stream: Stream, agent: Option<String>) {
    let from = stream.peer().remote;
    let service = Enrolment {
        fleet: shared.fleet.clone(),
        authority: Arc::clone(&shared.authority),
        agent,
        from,
        counts: Arc::clone(&shared.counts),
        log: Arc::clone(&shared.log),
    };
    let incoming = tokio_stream::once(Ok::<_, io::Error>(stream)).chain(tokio_stream::pending());
    let service = EnrolmentServer::new(service).max_decoding_message_size(MOST_ASKED);
    let server = tonic::transport::Server::builder().serve_with_incoming(service, incoming);
    // Who is slower, starts again.
    let _ = timeout(HANDSHAKE, server).await;
}

/// Keeps an agent's connection, and asks every now and then how it is.
async fn attend(shared: Arc<Shared>, stream: Stream, name: String, certificate: String) {
    let peer = stream.peer();
    let gone =
        |why: &str| (shared.log)(Level::Note, &format!("agent {name} at {} is gone: {why}", peer.remote));
    let connection = stream.socket().as_fd().try_clone_to_owned().map(std::net::TcpStream::from);
    let Ok(connection) = connection.map(Arc::new) else { return gone("no more file descriptors") };
    // A copy of an agent would end the other's run, again and again.
    if shared.is_answering(&name).await {
        if shared.state().doubled.insert(name.clone()) {
            let what = format!(
                "a second agent {name}, at {}, is turned away: the first is there; was its folder copied?",
                peer.remote
            );
            (shared.log)(Level::Alarm, &what);
        }
        return;
    }
    let channel = match channel_over(stream, &name, Instant::now() + HANDSHAKE).await {
        Ok(channel) => channel,
        Err(why) => return gone(&why),
    };
    let mut client = AgentClient::new(channel.clone());
    let hello = match timeout(PATIENCE, greet(&mut client)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(status)) => return gone(&plain(status.message())),
        Err(_) => return gone("it does not answer"),
    };
    let mut status = describe(&shared, &name, peer, &hello);
    if common_version(hello.oldest_version, hello.newest_version).is_none() {
        shared.state().seen.insert(name.clone(), status);
        let why = format!(
            "netstage {} there speaks versions {} to {} of the agents' protocol, which this one does not",
            word(&hello.tool),
            hello.oldest_version,
            hello.newest_version
        );
        return gone(&why);
    }
    let agent = Agent { channel, certificate, connection: Arc::clone(&connection) };
    let before = shared.state().agents.insert(name.clone(), agent);
    if let Some(before) = before {
        // It dialled again, and has lost that one.
        let _ = before.connection.shutdown(Shutdown::Both);
    }
    shared.state().seen.insert(name.clone(), status.clone());
    (shared.log)(Level::Note, &format!("agent {name} is there, from {}", peer.remote));
    let why = look_at(&shared, &mut client, &hello, &mut status).await;
    let mut state = shared.state();
    if state.agents.get(&name).is_some_and(|agent| Arc::ptr_eq(&agent.connection, &connection)) {
        state.agents.remove(&name);
        state.doubled.remove(&name);
    }
    drop(state);
    gone(&why);
}

/// Asks an agent how it is until it does not answer; returns why.
async fn look_at(
    shared: &Shared,
    client: &mut AgentClient<Channel>,
    hello: &HelloReply,
    status: &mut AgentStatus,
) -> String {
    let same = clock::is_ours(&hello.clock);
    let mut best = [None::<ClockOffset>; 2];
    for look in 0.. {
        let mut estimator = OffsetEstimator::default();
        let asked = async {
            let hello = greet(client).await?;
            let state = exchange_clocks(client, &mut estimator).await?;
            Ok::<_, tonic::Status>((hello, state))
        };
        let (hello, state) = match timeout(PATIENCE, asked).await {
            Err(_) => return "it does not answer".into(),
            Ok(Err(error)) => return plain(error.message()),
            Ok(Ok(answer)) => answer,
        };
        if look % CLOCK_LOOKS == 0 {
            best = [None, best[0]];
        }
        if let Some(offset) = estimator.offset() {
            best[0] = best[0].filter(|best| best.error_ns <= offset.error_ns).or(Some(offset));
        }
        let offset = best.into_iter().flatten().min_by_key(|offset| offset.error_ns);
        let is_one = same && offset.is_some_and(ClockOffset::may_be_none);
        status.clock = if is_one { Some(ClockOffset::SAME_CLOCK) } else { offset };
        status.wall_clock = state.map(|state| (state.synchronized, state.error_ns));
        status.state = if hello.taken { State::Taken } else { State::Idle };
        status.capabilities = capabilities(&hello);
        status.last_seen_ns = Some(now_ns());
        let agents = {
            let mut state = shared.state();
            state.seen.insert(status.name.clone(), status.clone());
            state.agents.len()
        };
        sleep(LOOK * agents.div_ceil(LOOKED_AT).max(1) as u32).await;
    }
    unreachable!("it looks for ever")
}

/// A word of the other side's, as it can be shown in a table.
fn word(text: &str) -> String {
    plain(text).lines().next().unwrap_or_default().chars().take(MOST_LETTERS).collect()
}

fn capabilities(hello: &HelloReply) -> Vec<String> {
    hello.capabilities.iter().take(MOST_CAPABILITIES).map(|one| word(one)).collect()
}

fn describe(shared: &Shared, name: &str, peer: Peer, hello: &HelloReply) -> AgentStatus {
    let registered = shared.fleet.registered(name);
    AgentStatus {
        name: name.into(),
        labels: registered.as_ref().map(|agent| agent.labels.clone()).unwrap_or_default(),
        address: Some(peer.remote),
        host: word(&hello.host),
        version: word(&hello.tool),
        state: if hello.taken { State::Taken } else { State::Idle },
        last_seen_ns: Some(now_ns()),
        clock: None,
        wall_clock: None,
        capabilities: capabilities(hello),
        certificate_expires_s: registered
            .and_then(|agent| agent.certificates.last().map(|last| last.1))
            .unwrap_or(0),
    }
}

/// Once a second: who is an agent still, and how all are.
async fn look_after(shared: Arc<Shared>) {
    let mut second = interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        let shared = Arc::clone(&shared);
        // The files of a thousand agents take their time, which others' signs of life do not have.
        let looked = spawn_blocking(move || {
            shared.read_registry();
            shared.cut_off();
            if let Err(error) = shared.fleet.write_status(shared.statuses(false)) {
                (shared.log)(Level::Alarm, &format!("cannot write down how the agents are: {error}"));
            }
        });
        let _ = looked.await;
    }
}

/// Passes commands on to the agents they name.
async fn pass_on(
    incoming: UnixListenerStream,
    shared: Arc<Shared>,
    until: impl Future<Output = ()>,
) -> io::Result<()> {
    let service = tower::service_fn(move |request: http::Request<tonic::body::Body>| {
        let name = request.uri().host().unwrap_or_default().to_owned();
        count(&shared.counts.requests);
        let channel = shared.state().agents.get(&name).map(|agent| agent.channel.clone());
        async move {
            let absent = |why: String| tonic::Status::unavailable(why).into_http::<tonic::body::Body>();
            let Some(mut channel) = channel else {
                return Ok::<_, Infallible>(absent(format!("agent {name} is not there")));
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
    use super::super::folder::Registered;
    use super::super::private;
    use super::*;

    #[test]
    fn nobody_is_there_before_he_has_dialled_this_hub() {
        let above = netstage_harness::Folder::new("hub");
        let folder = above.join("fleet");
        let fleet = Fleet::create(&folder, "lab").unwrap();
        let expires_s = now_s() + 3600;
        let site =
            Registered { labels: Vec::new(), lasting_s: 3600, certificates: vec![("00".into(), expires_s)] };
        private::write_json(&folder.join("agents/site.json"), &site).unwrap();
        // As a hub leaves it that is killed while the agent is there.
        let mut seen = fleet.agents().unwrap();
        seen[0].state = State::Idle;
        fleet.write_status(seen).unwrap();
        assert_eq!(fleet.agents().unwrap()[0].state, State::Idle);
        let _hub = Hub::bind(fleet.clone(), "127.0.0.1:0".parse().unwrap(), Arc::new(|_, _| {})).unwrap();
        assert_eq!(fleet.agents().unwrap()[0].state, State::Offline);
    }
}
