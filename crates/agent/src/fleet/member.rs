//! Agent's process. Once it has joined a fleet, it dials its controller for as long as it runs, and serves
//! the controller's clients one at a time. It listens nowhere.

use super::authority::{TlsIdentity, read_certificate, request};
use super::consent::Signer;
use super::enrollment::generated::enrollment_client::EnrollmentClient;
use super::enrollment::generated::{JoinRequest, RenewRequest};
use super::folder::file_error;
use super::folder::now_s;
use super::known_controller::KnownController;
use super::metrics::{self, count};
use super::policy::PolicyGuard;
use super::private;
use super::tls::{self, FleetDialer};
use super::token::{Token, sha256};
use super::trust::TrustedAuthorities;
use crate::controller::channel_over;
use crate::{EndReason, ExclusiveAgent, RunGuard, Spool, Worker};
use netstage_core::fleet::Policy;
use netstage_host::lock::Lock;
use netstage_host::log::{Level, Log};
use netstage_host::prometheus::{self, MetricsSource};
use netstage_host::shared_key::TlsConnection;
use netstage_host::shutdown::DaemonShutdown;
use netstage_host::startup_error::StartupError;
use rcgen::KeyPair;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

/// Time limit of dialing, and of the handshake.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum and maximum wait between connection attempts.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// The same maximum, and the time limit of an attempt, while a run continues without its controller.
const RETURN_DELAYS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));
/// Consecutive rejections after which a run without its controller ends, because the agent was removed from the fleet.
const MAX_REJECTIONS: u32 = 3;
/// Time within which a controller that rejects this agent closes the connection. It does so after the
/// handshake, without giving a reason.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
const REJECTED: &str = "the controller closed the connection at once: this agent was removed or replaced there and has to \
                        join again, or another agent of its name, with a copy of its folder, is connected, or this agent \
                        refused the controller, or the controller was about to stop";
const EXPIRED: &str = "this agent's certificate has expired, so it has to join again: remove it at the controller, delete \
                       membership.json in its state folder, which keeps its reports, and join with a new token of its \
                       name";
/// Number of renewal checks during the life of a certificate, and the maximum time between two of them.
const RENEWAL_CHECKS: u64 = 24;
const MAX_RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(60);

const MEMBERSHIP: &str = "membership.json";
const KEY: &str = "agent.key";
const CERTIFICATE: &str = "agent.pem";

/// Membership of an agent in its fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Name of the agent.
    pub name: String,
    /// Name of the controller.
    pub controller: String,
    /// Host and port of the controller.
    pub address: String,
    /// Issue time and expiry of the agent's certificate, seconds since 1970.
    pub certificate_s: (u64, u64),
}

/// Joins the fleet of a controller, and stores the membership in this folder.
pub fn join(folder: &Path, address: &str, token: &Token) -> Result<Membership, StartupError> {
    let error =
        |why: String, remedy: &str| StartupError::new(format!("the controller at {address}: {why}"), remedy);
    let unreachable = |why: String| {
        error(
            why,
            "check that `netstage fleet serve --listen` runs there on this port, and that this host can reach it",
        )
    };
    let failed = |why: String| error(why, "create a token there: netstage fleet token NAME");
    if address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
        return Err(StartupError::new(
            format!("`{address}` is not the address of a controller"),
            "give host and port, as in control.example.net:4700 or [2001:db8::1]:4700",
        ));
    }
    if folder.join(MEMBERSHIP).exists() {
        return Err(StartupError::new(
            format!("{} already belongs to an agent of a fleet", folder.display()),
            "to join another fleet, stop the agent and empty the folder, or give another folder with --state",
        ));
    }
    private::folder(folder).map_err(|error| file_error(folder, &error))?;
    let runtime = runtime().map_err(|error| failed(error.to_string()))?;
    runtime.block_on(async {
        let dialler =
            FleetDialer::for_joining(&token.authority).map_err(|error| failed(error.to_string()))?;
        let stream = dial(&dialler, address).await.map_err(|why| match why {
            DialFailure::NoAnswer(why) => unreachable(why),
            DialFailure::ForeignController(why) => failed(why),
        })?;
        let authority =
            stream.peer_certificates().iter().find(|certificate| sha256(certificate) == token.authority);
        let authority = authority
            .cloned()
            .ok_or_else(|| failed("it does not present its certificate authority".into()))?;
        let (key, request) = request().map_err(|error| failed(error.to_string()))?;
        let channel =
            channel_over(stream, "controller", Instant::now() + DIAL_TIMEOUT).await.map_err(failed)?;
        let request =
            JoinRequest { secret: token.secret().to_vec(), request, tool: env!("CARGO_PKG_VERSION").into() };
        let mut client = EnrollmentClient::new(channel);
        let reply =
            timeout(DIAL_TIMEOUT, client.join(request)).await.map_err(|_| failed("no answer".into()))?;
        let reply = reply.map_err(|status| failed(status.message().to_owned()))?.into_inner();
        if !reply.refusal.is_empty() {
            return Err(failed(reply.refusal));
        }
        let membership = Membership {
            name: reply.name,
            controller: reply.controller,
            address: address.to_owned(),
            certificate_s: (now_s(), reply.expires_s),
        };
        let file = |error: io::Error| file_error(folder, &error);
        // An older controller announces no authorities.
        let authorities = match reply.authorities {
            Some(message) => {
                TrustedAuthorities::from_message(message).map_err(|error| failed(error.to_string()))?
            }
            None => TrustedAuthorities::one(authority),
        };
        authorities.write(folder).map_err(file)?;
        keep(folder, &key, &reply.certificate, &membership).map_err(file)?;
        Ok(membership)
    })
}

/// Stores an identity. The membership is written last: its presence means that the folder is complete.
fn keep(folder: &Path, key: &KeyPair, certificate: &str, membership: &Membership) -> io::Result<()> {
    private::write(&folder.join(KEY), key.serialize_pem().as_bytes())?;
    private::write(&folder.join(CERTIFICATE), certificate.as_bytes())?;
    private::write_json(&folder.join(MEMBERSHIP), membership)
}

/// Agent of a fleet.
pub struct FleetAgent {
    folder: PathBuf,
    membership: Membership,
    known: Arc<KnownController>,
    guard: Arc<PolicyGuard>,
    spool: Spool,
    ender: DaemonShutdown,
    metrics: Option<SocketAddr>,
    log: Log,
    /// Held during the lifetime of the agent.
    _lock: Lock,
}

impl FleetAgent {
    /// Opens the agent whose membership is stored in this folder, in a process without other threads.
    pub fn open(folder: &Path, policy: Policy, log: Log) -> Result<FleetAgent, StartupError> {
        let membership: Membership =
            private::read_json(&folder.join(MEMBERSHIP)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => StartupError::new(
                    format!("{}: the agent has not joined a fleet", folder.display()),
                    "join a fleet: netstage fleet join ADDRESS TOKEN",
                ),
                _ => file_error(folder, &error),
            })?;
        let file = |error: io::Error| file_error(folder, &error);
        let known = Arc::new(KnownController::open(folder, Arc::clone(&log)).map_err(file)?);
        let lock = Lock::take(&folder.join("agent.lock")).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => StartupError::new(
                format!("another agent uses {}", folder.display()),
                "stop it first; a second agent on this host has to join with another --state",
            ),
            _ => file(error),
        })?;
        let spool = Spool::open_persistent(&folder.join("spool")).map_err(file)?;
        let controller = &membership.controller;
        let guard = PolicyGuard::new(policy, controller, Arc::clone(&known), folder, Arc::clone(&log));
        let guard = Arc::new(guard.map_err(file)?);
        let folder = folder.to_owned();
        Ok(FleetAgent {
            folder,
            membership,
            known,
            guard,
            spool,
            ender: DaemonShutdown::default(),
            metrics: None,
            log,
            _lock: lock,
        })
    }

    /// Returns the agent's membership.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Returns the handle that stops the agent: traffic stops, and a connected controller may still fetch the
    /// report.
    pub fn shutdown_handle(&self) -> DaemonShutdown {
        self.ender.clone()
    }

    /// Serves metrics at this address.
    pub fn serve_metrics(&mut self, address: SocketAddr) {
        self.metrics = Some(address);
    }

    /// Serves on this thread until the agent is stopped. Runs have threads of their own.
    pub fn serve(self, worker: Arc<dyn Worker>) -> io::Result<()> {
        let runtime = runtime()?;
        let FleetAgent { folder, membership, known, guard, spool, ender, metrics, log, _lock } = self;
        let ending = Arc::clone(&guard);
        let turns = Arc::new(ExclusiveAgent::new(spool, worker, Arc::clone(&guard) as Arc<dyn RunGuard>));
        let session_log = Arc::clone(&log);
        let report = move |reason| match reason {
            EndReason::Finished => session_log(Level::Note, "the controller released this agent"),
            EndReason::ControllerGone => {
                session_log(Level::Alarm, "lost the controller; traffic stopped, reports are kept")
            }
            EndReason::Interrupted => session_log(Level::Note, "interrupted"),
        };
        let expires_s = Arc::new(AtomicU64::new(membership.certificate_s.1));
        let sources = (Arc::clone(&turns), Arc::clone(&guard), Arc::clone(&expires_s), Instant::now());
        let page: MetricsSource = Arc::new(move || {
            let (turns, guard, expires_s, since) = &sources;
            let expires_s = expires_s.load(Ordering::Relaxed);
            Some(metrics::agent_page(&guard.counts, &turns.snapshot(), expires_s, since.elapsed()))
        });
        let dialling =
            ControllerDialer { folder, membership, expires_s, known, guard, turns: Arc::clone(&turns), log };
        runtime.block_on(async {
            if let Some(address) = metrics {
                prometheus::listen(address, page, ender.subscribe()).await.map_err(io::Error::other)?;
            }
            let dialling = tokio::spawn(dialling.keep_connected());
            turns.serve_sessions(ender.subscribe(), report).await;
            dialling.abort();
            Ok::<_, io::Error>(())
        })?;
        // A worker that hangs must not keep the process from ending.
        runtime.shutdown_background();
        ending.end();
        Ok(())
    }
}

struct ControllerDialer {
    folder: PathBuf,
    membership: Membership,
    /// Expiry of the certificate, for the metrics.
    expires_s: Arc<AtomicU64>,
    known: Arc<KnownController>,
    guard: Arc<PolicyGuard>,
    turns: Arc<ExclusiveAgent>,
    log: Log,
}

impl ControllerDialer {
    /// Connects to the controller again and again.
    async fn keep_connected(mut self) {
        let mut wait = RETRY_DELAYS.0;
        // A repeated failure is logged once, instead of every few seconds.
        let mut logged = String::new();
        let mut rejections = 0;
        let log = Arc::clone(&self.log);
        loop {
            self.renew_if_needed().await;
            let began = Instant::now();
            let controller = format!("the controller at {}", self.membership.address);
            let limit = if self.is_left_alone() { RETURN_DELAYS.1 } else { DIAL_TIMEOUT * 3 };
            let connected = timeout(limit, self.connect()).await;
            let why = match connected.unwrap_or_else(|_| Err("no answer".into())) {
                Ok(stream) => {
                    count(&self.guard.counts.connections);
                    let rejection = if self.has_expired() { EXPIRED } else { REJECTED };
                    let (guard, peer) = (Arc::clone(&self.guard), stream.peer().remote.ip());
                    let _ = spawn_blocking(move || guard.learn_mappings(peer)).await;
                    let serving = self.serve(stream);
                    tokio::pin!(serving);
                    match timeout(REJECTION_TIMEOUT, &mut serving).await {
                        Ok(()) => rejection.to_owned(),
                        Err(_) => {
                            log(Level::Note, &format!("connected to {controller}"));
                            serving.await;
                            log(Level::Note, &format!("connection to {controller} ended"));
                            String::new()
                        }
                    }
                }
                Err(why) => why,
            };
            rejections = if why == REJECTED { rejections + 1 } else { 0 };
            if rejections == MAX_REJECTIONS {
                self.turns.end_session();
            }
            if !why.is_empty() && why != logged {
                log(Level::Alarm, &format!("cannot connect to {controller}: {why}"));
            }
            logged = why;
            if began.elapsed() > RETRY_DELAYS.1 * 2 {
                wait = RETRY_DELAYS.0;
            }
            // A random part keeps a thousand agents from dialing at once.
            let share = RandomState::new().hash_one(began) % 512 + 512;
            sleep(wait * share as u32 / 1024).await;
            wait = (wait * 2).min(if self.is_left_alone() { RETURN_DELAYS.0 } else { RETRY_DELAYS.1 });
        }
    }

    /// Reports whether a run continues without its controller. It ends unless the connection is restored soon.
    fn is_left_alone(&self) -> bool {
        self.turns.snapshot().is_taken
    }

    async fn connect(&self) -> Result<TlsConnection, String> {
        let identity = self.identity()?;
        self.guard.sign_with(Signer::new(&identity));
        let dialler = FleetDialer::for_member(identity, &self.known.trusted(), tls::COMMANDS)
            .map_err(|error| error.to_string())?;
        dial(&dialler, &self.membership.address).await.map_err(|why| match why {
            DialFailure::ForeignController(_) if self.has_expired() => EXPIRED.into(),
            why => why.into(),
        })
    }

    /// Serves a connection until it ends. The connection stays valid while the certificate is renewed, also
    /// during a run.
    async fn serve(&mut self, stream: TlsConnection) {
        let (turns, known) = (Arc::clone(&self.turns), Arc::clone(&self.known));
        let serving = turns.serve(stream);
        tokio::pin!(serving);
        loop {
            tokio::select! {
                result = &mut serving => {
                    if let Err(error) = result {
                        (self.log)(Level::Note, &format!("connection broke: {error}"));
                    }
                    return;
                }
                () = sleep(self.renewal_check_interval()) => self.renew_if_needed().await,
                () = known.wait_for_announcement() => self.renew_if_needed().await,
            }
        }
    }

    fn renewal_check_interval(&self) -> Duration {
        let (given, ends) = self.membership.certificate_s;
        Duration::from_millis(ends.saturating_sub(given) * 1000 / RENEWAL_CHECKS)
            .clamp(RETRY_DELAYS.0, MAX_RENEWAL_CHECK_INTERVAL)
    }

    fn has_expired(&self) -> bool {
        self.membership.certificate_s.1 <= now_s()
    }

    /// Reports whether the certificate is in the last third of its validity, or the authority was replaced.
    fn needs_renewal(&self) -> bool {
        let (given, ends) = self.membership.certificate_s;
        let now = now_s();
        now < ends && (now > ends - (ends - given.min(ends)) / 3 || self.known.has_new_authority())
    }

    async fn renew_if_needed(&mut self) {
        if self.needs_renewal()
            && let Err(why) = self.renew().await
        {
            (self.log)(Level::Alarm, &format!("cannot renew the certificate: {why}"));
        }
    }

    async fn renew(&mut self) -> Result<(), String> {
        let identity = self.identity()?;
        let dialler = FleetDialer::for_member(identity, &self.known.trusted(), tls::ENROLLMENT)
            .map_err(|error| error.to_string())?;
        let stream = dial(&dialler, &self.membership.address).await?;
        let channel = channel_over(stream, "controller", Instant::now() + DIAL_TIMEOUT).await?;
        let (key, request) = request().map_err(|error| error.to_string())?;
        let mut client = EnrollmentClient::new(channel);
        let reply =
            timeout(DIAL_TIMEOUT, client.renew(RenewRequest { request })).await.map_err(|_| "no answer")?;
        let reply = reply.map_err(|status| status.message().to_owned())?.into_inner();
        if !reply.refusal.is_empty() {
            return Err(reply.refusal);
        }
        if let Some(message) = reply.authorities {
            let trusted = TrustedAuthorities::from_message(message);
            trusted.and_then(|trusted| self.known.trust(trusted)).map_err(|error| error.to_string())?;
        }
        self.membership.certificate_s = (now_s(), reply.expires_s);
        self.expires_s.store(reply.expires_s, Ordering::Relaxed);
        keep(&self.folder, &key, &reply.certificate, &self.membership).map_err(|error| error.to_string())?;
        self.guard.sign_with(Signer::new(&self.identity()?));
        (self.log)(Level::Note, "certificate renewed");
        Ok(())
    }

    fn identity(&self) -> Result<TlsIdentity, String> {
        let certificate =
            read_certificate(&self.folder.join(CERTIFICATE)).map_err(|error| error.to_string())?;
        let key = std::fs::read(self.folder.join(KEY)).map_err(|error| error.to_string())?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| error.to_string())?;
        Ok(TlsIdentity { chain: vec![certificate], key })
    }
}

/// Reason why there is no connection to the controller.
enum DialFailure {
    /// No host answered that could be the controller.
    NoAnswer(String),
    /// The host that answered is not the controller, or rejected this agent.
    ForeignController(String),
}

impl From<DialFailure> for String {
    fn from(why: DialFailure) -> String {
        let (DialFailure::NoAnswer(why) | DialFailure::ForeignController(why)) = why;
        why
    }
}

async fn dial(dialler: &FleetDialer, address: &str) -> Result<TlsConnection, DialFailure> {
    let unreachable = |why: &str| DialFailure::NoAnswer(why.to_owned());
    let connected = timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await;
    let stream = connected
        .map_err(|_| unreachable("no answer to the connection request"))?
        .map_err(|error| unreachable(&format!("no controller listens ({error})")))?;
    let handshake = timeout(DIAL_TIMEOUT, dialler.dial(stream))
        .await
        .map_err(|_| unreachable("connected, but no answer"))?;
    handshake.map_err(|error| DialFailure::ForeignController(tls::describe(&error)))
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
