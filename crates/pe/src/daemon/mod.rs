//! The router as a daemon: an engine on this machine's interfaces, which follows the kernel's
//! routes and neighbours, takes another configuration while it runs, and tells how it stands.
//!
//! - [`session`], [`host`], [`port`]: what it needs of the machine; [`machine`]: what the engine
//!   needs to know of it.
//! - [`forward`]: a thread that forwards; [`crew`]: all of them, one on each core;
//!   [`placement`]: which has which VPN; [`steering`]: how their frames reach them.
//! - [`follow`]: the thread that follows the kernel.
//! - [`reload`]: another configuration; [`recorder`]: a trace of what is decided.
//! - [`control`]: the control socket; [`metrics`]: for Prometheus; [`snapshot`]: what both tell.

pub mod client;
mod control;
mod crew;
mod follow;
mod forward;
mod host;
mod machine;
mod metrics;
mod placement;
mod port;
mod recorder;
mod reload;
mod session;
pub mod snapshot;
mod steering;

pub use control::Ended;
pub use forward::Event;
pub use netstage_host::log::{Level, Log};
pub use netstage_host::obstacle::Obstacle;
pub use netstage_host::signals::Signals;
pub use snapshot::Snapshot;

use crew::{Board, Crew, Shares};
use follow::Follower;
use forward::Forwarding;
use host::{Host, Way};
use netstage_core::fair::REFERENCE_AGE;
use netstage_host::memory;
use netstage_host::obstacle;
use netstage_scenario::Errors;
use netstage_scenario::pe::{self, PortKind, Router};
use placement::Placement;
use port::AnyPort;
use recorder::Recorder;
use reload::Loaded;
use session::{Beginning, Guard};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use steering::Program;

/// Why the daemon does not start, or refuses a configuration.
pub type Error = obstacle::Error<Errors>;

/// A router that runs.
pub struct Daemon {
    crew: Crew,
    follower: Follower,
    loaded: Loaded,
    _guard: Guard,
}

impl Daemon {
    /// Begins to forward as a file says. What is opened for it is closed when it ends. What its VPN
    /// flows decide is written to the file `trace`, if one is named.
    pub fn begin(path: &Path, trace: Option<&Path>, log: Log) -> Result<Daemon, Error> {
        Daemon::with(&pe::read(path).map_err(Error::Configuration)?, path, trace, log)
    }

    /// The same, as the text of a file says; there is nothing to read again.
    pub fn begin_text(text: &str, log: Log) -> Result<Daemon, Error> {
        Daemon::with(text, Path::new("pe.toml"), None, log)
    }

    fn with(text: &str, path: &Path, trace: Option<&Path>, log: Log) -> Result<Daemon, Error> {
        let router = Arc::new(pe::parse(&path.display().to_string(), text).map_err(Error::Configuration)?);
        let mut host = Host::here()?;
        let (beginning, guard) = (Beginning::now(), Guard::hold()?);
        for name in router.customer_interfaces() {
            host.take_over(name)?.iter().for_each(|told| log(Level::Note, told));
        }
        let placement = Placement::new(&router, &Placement::default())?;
        let shares = Shares::new(&router, placement, &mut host, &beginning)?;
        let mut engines = Vec::with_capacity(router.cores);
        for core in 0..router.cores {
            engines.push(shares.engine(core, &host, &router, &log)?);
        }
        let Beginning { epoch, epoch_unix_ns, session_seed } = beginning;
        let recorder = trace.map(|trace| match router.cores {
            1 => Recorder::begin(trace, epoch_unix_ns, session_seed, text),
            _ => Err(Obstacle::new("a trace is of one core", "give [pe] `cores = 1`, or leave --trace out")),
        });
        let mut recorder = recorder.transpose()?;
        let told = Arc::new(Told::default());
        let board = Board::new(&router);
        let mut cores = Vec::with_capacity(router.cores);
        for engine in engines {
            let (log, told) = (Arc::clone(&log), Arc::clone(&told));
            let tell = move |event| told.tell(&log, &event);
            let board = Arc::clone(&board);
            let core = Forwarding::begin(engine, epoch, recorder.take(), router.moderation, board, tell)
                .map_err(|error| Obstacle::system("a forwarding thread cannot begin", &error))?;
            cores.push(core);
        }
        let crew = Crew::new(cores);
        let ways = Arc::clone(&log);
        let tell = move |peer: &str, way: &Result<Way, String>| tell_way(&ways, peer, way);
        let follower = Follower::begin(host, Arc::clone(&router), crew.orders(), Box::new(tell))?;
        let loaded = Loaded::new(path.to_owned(), beginning, shares.into_placement(), log);
        // Of a file with thousands of VPNs much more is read than kept.
        memory::give_back();
        Ok(Daemon { crew, follower, loaded, _guard: guard })
    }

    /// How it stands; none if the forwarding thread has ended.
    pub fn show(&self) -> Option<Snapshot> {
        let mut snapshot = self.crew.orders().show()?;
        self.complete(&mut snapshot);
        Some(snapshot)
    }

    /// Reads the file again and takes what it says, or keeps what it has and tells why.
    /// Gives what has changed, in words.
    pub fn reload(&self) -> Result<Vec<String>, Error> {
        let taken = self.loaded.reload(&self.follower, &self.crew.orders());
        memory::give_back();
        taken
    }

    /// The file it was configured by.
    pub fn path(&self) -> &PathBuf {
        &self.loaded.path
    }

    /// The configuration it has.
    pub fn router(&self) -> Arc<Router> {
        self.follower.ways().0
    }

    /// Whether it still forwards.
    pub fn is_over(&self) -> bool {
        self.crew.is_over()
    }

    /// Ends it, and tells how it stood.
    pub fn end(self) -> Option<Snapshot> {
        let last = self.show();
        self.crew.end();
        last
    }
}

fn open(
    host: &Host,
    name: &str,
    router: &Router,
    filter: Option<&Program>,
    log: &Log,
) -> Result<AnyPort, Obstacle> {
    let is_core = router.core.iter().any(|core| core == name);
    // AF_XDP takes an interface from the kernel, which keeps those of the core.
    let kind = if is_core { PortKind::AfPacket } else { router.ports };
    let (port, why) = AnyPort::open(&host.namespace, name, kind, filter)?;
    let of = if is_core { "the core" } else { "customers" };
    let why = why.map_or(String::new(), |why| format!("; not by af_xdp: {why}"));
    log(Level::Note, &format!("{name} leads to {of}, by {}{why}", port.kind()));
    Ok(port)
}

fn tell_way(log: &Log, peer: &str, way: &Result<Way, String>) {
    match way {
        Ok(Way { interface, next_hop, mac, mtu }) => {
            let station = snapshot::spelled(*mac);
            log(Level::Note, &format!("peer {peer}: by {interface} to {next_hop} ({station}), {mtu} B"));
        }
        Err(why) => log(Level::Alarm, &format!("peer {peer} cannot be reached: {why}")),
    }
}

/// What was last told of each subject, so that what several cores notice is told once.
#[derive(Default)]
struct Told(Mutex<HashMap<String, String>>);

impl Told {
    fn tell(&self, log: &Log, event: &Event) {
        let (subject, level, line) = described(event);
        let before = {
            let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            told.insert(subject, line.clone())
        };
        if before.as_ref() != Some(&line) {
            log(level, &line);
        }
    }
}

/// Of what an event is, how much it matters, and what it says.
fn described(event: &Event) -> (String, Level, String) {
    match event {
        Event::Silent { vpn, peer, is_silent } => {
            let (level, what) = match is_silent {
                true => (Level::Alarm, "does not answer"),
                false => (Level::Note, "answers again"),
            };
            (format!("flow {vpn} {peer}"), level, format!("VPN {vpn}: peer {peer} {what}"))
        }
        Event::Reference { name, from, is_old: true } => {
            let who = match from {
                Some(peer) => format!("peer {peer} has told nothing of it"),
                None => "its VPN flow has measured nothing".into(),
            };
            let line = format!(
                "reference {name}: {who} for more than {} s; flows that follow it take the nominal flow instead",
                REFERENCE_AGE.0 / 1_000_000_000
            );
            (format!("reference {name}"), Level::Alarm, line)
        }
        Event::Reference { name, is_old: false, .. } => {
            let line = format!("reference {name}: known, and followed");
            (format!("reference {name}"), Level::Note, line)
        }
        Event::Port { interface, failure: Some(why) } => {
            (format!("port {interface}"), Level::Alarm, format!("{interface} is of no use: {why}"))
        }
        Event::Port { interface, failure: None } => {
            (format!("port {interface}"), Level::Note, format!("{interface} works again"))
        }
        Event::Trace { why } => ("trace".into(), Level::Alarm, why.clone()),
    }
}
