//! The agent's process: joined once, it dials its controller for as long as it lives, and
//! serves whoever commands there, one after the other. It listens nowhere.

use super::authority::{Identity, read_certificate, request};
use super::consent::Signer;
use super::enrolment::generated::enrolment_client::EnrolmentClient;
use super::enrolment::generated::{JoinRequest, RenewRequest};
use super::folder::file_error;
use super::folder::now_s;
use super::metrics::{self, count};
use super::policy::PolicyGuard;
use super::private;
use super::tls::{self, Dialler};
use super::token::{Token, sha256};
use crate::controller::channel_over;
use crate::{EndReason, Guard, Spool, Turns, Worker};
use netstage_core::fleet::Policy;
use netstage_host::ender::Ender;
use netstage_host::keyed::Stream;
use netstage_host::lock::Lock;
use netstage_host::log::{Level, Log};
use netstage_host::obstacle::Obstacle;
use netstage_host::prometheus::{self, Source};
use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// How long dialling and the handshake may take.
const DIAL: Duration = Duration::from_secs(10);
/// Waits between attempts, the shortest and the longest.
const WAITS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// Whom a controller does not take, it lets go at once after the handshake, without a word on why.
const WELCOME: Duration = Duration::from_secs(1);
const TURNED_AWAY: &str = "it ends the connection at once: this agent was removed or replaced there, and has to join anew, or \
                           another one of its name is there, with a copy of its folder, or the controller had just begun \
                           to end";
const HAS_ENDED: &str = "this agent's certificate has ended, and it has to join anew: remove it there, and join with a new token \
                         and an empty folder here";
/// So many times in its life, and once a minute at least, a certificate is looked at: is it to be renewed?
const LOOKS: u64 = 24;
const LOOK: Duration = Duration::from_secs(60);

const MEMBERSHIP: &str = "membership.json";
const KEY: &str = "agent.key";
const CERTIFICATE: &str = "agent.pem";
const AUTHORITY: &str = "authority.pem";

/// What an agent knows of its fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Its own name.
    pub name: String,
    /// Its controller's.
    pub controller: String,
    /// Where that listens: host and port.
    pub address: String,
    /// When its certificate was given and when it ends, seconds since 1970.
    pub certificate_s: (u64, u64),
}

/// Joins the fleet of a controller, and keeps what it gave in this folder.
pub fn join(folder: &Path, address: &str, token: &Token) -> Result<Membership, Obstacle> {
    let error =
        |why: String, remedy: &str| Obstacle::new(format!("the controller at {address}: {why}"), remedy);
    let unreached = |why: String| {
        error(
            why,
            "see that `netstage fleet serve --listen` runs there, on this port, and that this host may reach it",
        )
    };
    let failed = |why: String| error(why, "ask there for a token: netstage fleet token NAME");
    if address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
        return Err(Obstacle::new(
            format!("`{address}` is not where a controller listens"),
            "name host and port, as in control.example.net:4700 or [2001:db8::1]:4700",
        ));
    }
    if folder.join(MEMBERSHIP).exists() {
        return Err(Obstacle::new(
            format!("{} is a fleet's agent already", folder.display()),
            "end the agent and empty the folder to join another, or name another with --state",
        ));
    }
    private::folder(folder).map_err(|error| file_error(folder, &error))?;
    let runtime = runtime().map_err(|error| failed(error.to_string()))?;
    runtime.block_on(async {
        let dialler = Dialler::joining(&token.authority).map_err(|error| failed(error.to_string()))?;
        let stream = dial(&dialler, address).await.map_err(|why| match why {
            Undialled::Nobody(why) => unreached(why),
            Undialled::NotOurs(why) => failed(why),
        })?;
        let authority = stream.shown().iter().find(|certificate| sha256(certificate) == token.authority);
        let authority = authority.cloned().ok_or_else(|| failed("it does not show its authority".into()))?;
        let (key, request) = request().map_err(|error| failed(error.to_string()))?;
        let channel = channel_over(stream, "controller", Instant::now() + DIAL).await.map_err(failed)?;
        let asked =
            JoinRequest { secret: token.secret().to_vec(), request, tool: env!("CARGO_PKG_VERSION").into() };
        let mut client = EnrolmentClient::new(channel);
        let reply =
            timeout(DIAL, client.join(asked)).await.map_err(|_| failed("it does not answer".into()))?;
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
        private::write(
            &folder.join(AUTHORITY),
            pem::encode(&pem::Pem::new("CERTIFICATE", authority.to_vec())).as_bytes(),
        )
        .map_err(file)?;
        keep(folder, &key, &reply.certificate, &membership).map_err(file)?;
        Ok(membership)
    })
}

/// Keeps an identity. The membership comes last: with it the folder is complete.
fn keep(folder: &Path, key: &KeyPair, certificate: &str, membership: &Membership) -> io::Result<()> {
    private::write(&folder.join(KEY), key.serialize_pem().as_bytes())?;
    private::write(&folder.join(CERTIFICATE), certificate.as_bytes())?;
    private::write_json(&folder.join(MEMBERSHIP), membership)
}

/// An agent of a fleet.
pub struct Member {
    folder: PathBuf,
    membership: Membership,
    authority: CertificateDer<'static>,
    guard: Arc<PolicyGuard>,
    spool: Spool,
    ender: Ender,
    metrics: Option<SocketAddr>,
    log: Log,
    /// Held as long as the agent.
    _lock: Lock,
}

impl Member {
    /// The agent whose membership is kept in this folder.
    pub fn open(folder: &Path, policy: Policy, log: Log) -> Result<Member, Obstacle> {
        let membership: Membership =
            private::read_json(&folder.join(MEMBERSHIP)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Obstacle::new(
                    format!("{} has joined no fleet", folder.display()),
                    "netstage fleet join ADDRESS TOKEN",
                ),
                _ => file_error(folder, &error),
            })?;
        let file = |error: io::Error| file_error(folder, &error);
        let authority = read_certificate(&folder.join(AUTHORITY)).map_err(file)?;
        let lock = Lock::take(&folder.join("agent.lock")).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Obstacle::new(
                format!("another agent is at work in {}", folder.display()),
                "end it first; a second agent of this host joins on its own, with another --state",
            ),
            _ => file(error),
        })?;
        let spool = Spool::lasting(&folder.join("spool")).map_err(file)?;
        let guard =
            Arc::new(PolicyGuard::new(policy, &membership.controller, authority.clone(), Arc::clone(&log)));
        let folder = folder.to_owned();
        Ok(Member {
            folder,
            membership,
            authority,
            guard,
            spool,
            ender: Ender::default(),
            metrics: None,
            log,
            _lock: lock,
        })
    }

    /// What it knows of its fleet.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// What ends it from outside: its traffic stops, and a controller that is there may still fetch
    /// the report.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Tells metrics there.
    pub fn tell_metrics(&mut self, address: SocketAddr) {
        self.metrics = Some(address);
    }

    /// Serves until it is ended, on this thread; runs have threads of their own.
    pub fn serve(self, worker: Arc<dyn Worker>) -> io::Result<()> {
        let runtime = runtime()?;
        let Member { folder, membership, authority, guard, spool, ender, metrics, log, _lock } = self;
        let turns = Arc::new(Turns::new(spool, worker, Arc::clone(&guard) as Arc<dyn Guard>));
        let over = Arc::clone(&log);
        let tell = move |reason| match reason {
            EndReason::Finished => over(Level::Note, "the controller is done with this agent"),
            EndReason::ControllerGone => {
                over(Level::Alarm, "the controller is gone: traffic has stopped, reports stay here")
            }
            EndReason::Interrupted => over(Level::Note, "told to end"),
        };
        let expires_s = Arc::new(AtomicU64::new(membership.certificate_s.1));
        let told = (Arc::clone(&turns), Arc::clone(&guard), Arc::clone(&expires_s), Instant::now());
        let page: Source = Arc::new(move || {
            let (turns, guard, expires_s, since) = &told;
            let expires_s = expires_s.load(Ordering::Relaxed);
            Some(metrics::of_agent(&guard.counts, &turns.snapshot(), expires_s, since.elapsed()))
        });
        let dialling =
            Dialling { folder, membership, expires_s, authority, guard, turns: Arc::clone(&turns), log };
        runtime.block_on(async {
            if let Some(address) = metrics {
                prometheus::listen(address, page, ender.subscribe()).await.map_err(io::Error::other)?;
            }
            let dialling = tokio::spawn(dialling.go_on());
            turns.go_round(ender.subscribe(), tell).await;
            dialling.abort();
            Ok::<_, io::Error>(())
        })?;
        // A worker that hangs must not keep the process.
        runtime.shutdown_background();
        Ok(())
    }
}

struct Dialling {
    folder: PathBuf,
    membership: Membership,
    /// When its certificate ends, for those who look.
    expires_s: Arc<AtomicU64>,
    authority: CertificateDer<'static>,
    guard: Arc<PolicyGuard>,
    turns: Arc<Turns>,
    log: Log,
}

impl Dialling {
    /// Dials again and again.
    async fn go_on(mut self) {
        let mut wait = WAITS.0;
        // Said once, not every few seconds.
        let mut told = String::new();
        let log = Arc::clone(&self.log);
        loop {
            if self.is_to_renew()
                && let Err(why) = self.renew().await
            {
                (self.log)(Level::Alarm, &format!("cannot renew the certificate: {why}"));
            }
            let began = Instant::now();
            let controller = format!("the controller at {}", self.membership.address);
            let why = match self.connect().await {
                Ok(stream) => {
                    count(&self.guard.counts.connections);
                    let serving = self.serve(stream);
                    tokio::pin!(serving);
                    match timeout(WELCOME, &mut serving).await {
                        Ok(()) => TURNED_AWAY.to_owned(),
                        Err(_) => {
                            log(Level::Note, &format!("connected to {controller}"));
                            serving.await;
                            log(Level::Note, &format!("the connection to {controller} has ended"));
                            String::new()
                        }
                    }
                }
                Err(why) => why,
            };
            if !why.is_empty() && why != told {
                log(Level::Alarm, &format!("no way to {controller}: {why}"));
            }
            told = why;
            if began.elapsed() > WAITS.1 * 2 {
                wait = WAITS.0;
            }
            // Not all of a thousand agents at once.
            let share = RandomState::new().hash_one(began) % 512 + 512;
            sleep(wait * share as u32 / 1024).await;
            wait = (wait * 2).min(WAITS.1);
        }
    }

    async fn connect(&self) -> Result<Stream, String> {
        let identity = self.identity()?;
        self.guard.sign_with(Signer::new(&identity));
        let dialler =
            Dialler::member(identity, &self.authority, tls::COMMANDS).map_err(|error| error.to_string())?;
        let has_ended = self.membership.certificate_s.1 <= now_s();
        dial(&dialler, &self.membership.address).await.map_err(|why| match why {
            Undialled::NotOurs(_) if has_ended => HAS_ENDED.into(),
            why => why.into(),
        })
    }

    /// Serves a connection until it ends. It stays good while the certificate is renewed beside it, run or no run.
    async fn serve(&mut self, stream: Stream) {
        let turns = Arc::clone(&self.turns);
        let serving = turns.serve(stream);
        tokio::pin!(serving);
        loop {
            tokio::select! {
                result = &mut serving => {
                    if let Err(error) = result {
                        (self.log)(Level::Note, &format!("the connection broke: {error}"));
                    }
                    return;
                }
                () = sleep(self.look()) => {
                    if self.is_to_renew()
                        && let Err(why) = self.renew().await
                    {
                        (self.log)(Level::Alarm, &format!("cannot renew the certificate: {why}"));
                    }
                }
            }
        }
    }

    fn look(&self) -> Duration {
        let (given, ends) = self.membership.certificate_s;
        Duration::from_millis(ends.saturating_sub(given) * 1000 / LOOKS).clamp(WAITS.0, LOOK)
    }

    /// In the last third of its certificate's life, before it ends.
    fn is_to_renew(&self) -> bool {
        let (given, ends) = self.membership.certificate_s;
        let now = now_s();
        now < ends && now > ends - (ends - given.min(ends)) / 3
    }

    async fn renew(&mut self) -> Result<(), String> {
        let identity = self.identity()?;
        let dialler =
            Dialler::member(identity, &self.authority, tls::ENROLMENT).map_err(|error| error.to_string())?;
        let stream = dial(&dialler, &self.membership.address).await?;
        let channel = channel_over(stream, "controller", Instant::now() + DIAL).await?;
        let (key, request) = request().map_err(|error| error.to_string())?;
        let mut client = EnrolmentClient::new(channel);
        let reply =
            timeout(DIAL, client.renew(RenewRequest { request })).await.map_err(|_| "it does not answer")?;
        let reply = reply.map_err(|status| status.message().to_owned())?.into_inner();
        if !reply.refusal.is_empty() {
            return Err(reply.refusal);
        }
        self.membership.certificate_s = (now_s(), reply.expires_s);
        self.expires_s.store(reply.expires_s, Ordering::Relaxed);
        keep(&self.folder, &key, &reply.certificate, &self.membership).map_err(|error| error.to_string())?;
        self.guard.sign_with(Signer::new(&self.identity()?));
        (self.log)(Level::Note, "has a new certificate");
        Ok(())
    }

    fn identity(&self) -> Result<Identity, String> {
        let certificate =
            read_certificate(&self.folder.join(CERTIFICATE)).map_err(|error| error.to_string())?;
        let key = std::fs::read(self.folder.join(KEY)).map_err(|error| error.to_string())?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| error.to_string())?;
        Ok(Identity { chain: vec![certificate], key })
    }
}

/// Why there is no connection.
enum Undialled {
    /// Nobody was reached who could have taken it.
    Nobody(String),
    /// Whoever was, is not the controller, or does not take this agent.
    NotOurs(String),
}

impl From<Undialled> for String {
    fn from(why: Undialled) -> String {
        let (Undialled::Nobody(why) | Undialled::NotOurs(why)) = why;
        why
    }
}

async fn dial(dialler: &Dialler, address: &str) -> Result<Stream, Undialled> {
    let nobody = |why: &str| Undialled::Nobody(why.to_owned());
    let connected = timeout(DIAL, TcpStream::connect(address)).await;
    let stream = connected
        .map_err(|_| nobody("no answer to the connection request"))?
        .map_err(|error| nobody(&format!("nobody listens ({error})")))?;
    let shaken =
        timeout(DIAL, dialler.dial(stream)).await.map_err(|_| nobody("it listens, but does not answer"))?;
    shaken.map_err(|error| Undialled::NotOurs(tls::describe(&error)))
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
