//! The router as a daemon: an engine on the interfaces of this host. It follows the kernel's routes and
//! neighbors, applies new configurations while it runs, and reports its state.
//!
//! - [`session`], [`host`], [`port`]: resources of the host; [`machine`]: host properties for the engine.
//! - [`forward`]: one forwarding thread; [`threads`]: all of them, one per core; [`placement`]: assignment of
//!   VPNs to cores; [`steering`]: frame filters that deliver the frames of a VPN to its core.
//! - [`peer_routes`]: thread that follows the kernel's routes.
//! - [`reload`]: configuration changes; [`recorder`]: trace of decisions.
//! - [`control`]: control socket; [`metrics`]: Prometheus metrics; [`snapshot`]: state reported by both.

pub mod client;
mod control;
mod forward;
mod host;
mod machine;
mod metrics;
mod peer_routes;
mod placement;
mod port;
mod recorder;
mod reload;
mod session;
pub mod snapshot;
mod steering;
mod threads;

pub use control::ServeEnd;
pub use forward::PeEvent;
pub use netstage_host::log::{Level, Log};
pub use netstage_host::signals::Signals;
pub use netstage_host::startup_error::StartupError;
pub use snapshot::PeSnapshot;

use crate::engine::PathMtuView;
use forward::PeForwardingThread;
use host::{Host, PeerRoute};
use netstage_core::fair::REFERENCE_AGE;
use netstage_host::memory;
use netstage_host::startup_error;
use netstage_scenario::Errors;
use netstage_scenario::pe::{self, PeConfig, PortKind};
use peer_routes::RouteFollower;
use placement::VpnPlacement;
use port::AnyPort;
use recorder::Recorder;
use reload::PeConfigurationFile;
use session::{PortGuard, RouterEpoch};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use steering::FilterProgram;
use threads::{CoreConfigurations, CoreExchange, ForwardingThreads};

/// Error on start or reload of the daemon.
pub type PeError = startup_error::DaemonError<Errors>;

/// Running router.
pub struct PeDaemon {
    crew: ForwardingThreads,
    follower: RouteFollower,
    loaded: Arc<PeConfigurationFile>,
    _guard: PortGuard,
}

impl PeDaemon {
    /// Starts a router configured by a file. Everything opened for the router is closed when it ends.
    /// Decisions of its VPN flows are written to the file `trace`, if given.
    pub fn begin(path: &Path, trace: Option<&Path>, log: Log) -> Result<PeDaemon, PeError> {
        PeDaemon::with(&pe::read(path).map_err(PeError::Configuration)?, path, trace, log)
    }

    /// Starts a router configured by the text of a file. It cannot reload.
    pub fn begin_text(text: &str, log: Log) -> Result<PeDaemon, PeError> {
        PeDaemon::with(text, Path::new("pe.toml"), None, log)
    }

    fn with(text: &str, path: &Path, trace: Option<&Path>, log: Log) -> Result<PeDaemon, PeError> {
        let router = Arc::new(pe::parse(&path.display().to_string(), text).map_err(PeError::Configuration)?);
        let mut host = Host::current()?;
        let (beginning, guard) = (RouterEpoch::now(), PortGuard::hold(&router)?);
        router.warnings().iter().for_each(|warning| log(Level::Note, warning));
        for name in router.customer_interfaces() {
            host.take_over(name)?.iter().for_each(|warning| log(Level::Note, warning));
        }
        let placement = VpnPlacement::new(&router, &VpnPlacement::default())?;
        let shares = CoreConfigurations::new(&router, placement, &mut host, &beginning)?;
        let mut engines = Vec::with_capacity(router.cores);
        for core in 0..router.cores {
            engines.push(shares.engine(core, &host, &router, &log)?);
        }
        let RouterEpoch { epoch, epoch_unix_ns, session_seed } = beginning;
        let recorder = trace.map(|trace| match router.cores {
            1 => Recorder::begin(trace, epoch_unix_ns, session_seed, text),
            _ => Err(StartupError::new(
                "a trace can record only one core",
                "set [pe] `cores = 1`, or omit --trace",
            )),
        });
        let mut recorder = recorder.transpose()?;
        let logged = Arc::new(LoggedEvents::default());
        let mut cores = Vec::with_capacity(router.cores);
        for (engine, exchange) in engines.into_iter().zip(CoreExchange::all(&router)) {
            let (log, logged) = (Arc::clone(&log), Arc::clone(&logged));
            let report = move |event| logged.tell(&log, &event);
            let core = PeForwardingThread::begin(
                engine,
                epoch,
                recorder.take(),
                router.moderation,
                exchange,
                report,
            )
            .map_err(|error| StartupError::from_system("cannot start a forwarding thread", &error))?;
            cores.push(core);
        }
        let crew = ForwardingThreads::new(cores);
        let route_log = Arc::clone(&log);
        let report = move |peer: &str, way: &Result<PeerRoute, String>| log_route(&route_log, peer, way);
        let traced_text = trace.map(|_| text);
        let placement = shares.into_placement();
        let loaded = PeConfigurationFile::new(path.to_owned(), traced_text, beginning, placement, log);
        let loaded = Arc::new(loaded);
        let reopen = {
            let (loaded, orders) = (Arc::clone(&loaded), crew.orders());
            move |host: &mut Host, router: &PeConfig, interfaces: &BTreeSet<String>| {
                loaded.reopen(host, router, interfaces, &orders)
            }
        };
        let (report, reopen) = (Box::new(report), Box::new(reopen));
        let follower = RouteFollower::begin(host, Arc::clone(&router), crew.orders(), report, reopen)?;
        // Reading a file with thousands of VPNs allocates much more memory than is kept.
        memory::release_unused();
        Ok(PeDaemon { crew, follower, loaded, _guard: guard })
    }

    /// Returns the state, or `None` if a forwarding thread has ended.
    pub fn show(&self) -> Option<PeSnapshot> {
        let mut snapshot = self.crew.orders().show()?;
        self.complete(&mut snapshot);
        Some(snapshot)
    }

    /// Rereads the file and applies it, or keeps the present configuration and returns the error. Returns a
    /// description of each change.
    pub fn reload(&self) -> Result<Vec<String>, PeError> {
        let taken = self.loaded.reload(&self.follower, &self.crew.orders());
        memory::release_unused();
        taken
    }

    /// Returns the path of the configuration file.
    pub fn path(&self) -> &PathBuf {
        &self.loaded.path
    }

    /// Returns the present configuration.
    pub fn router(&self) -> Arc<PeConfig> {
        self.follower.peer_routes().0
    }

    /// Returns whether a forwarding thread has ended.
    pub fn is_over(&self) -> bool {
        self.crew.is_over()
    }

    /// Stops the router and returns its last state.
    pub fn end(self) -> Option<PeSnapshot> {
        let last = self.show();
        self.crew.end();
        last
    }
}

fn open(
    host: &Host,
    name: &str,
    router: &PeConfig,
    filter: Option<&FilterProgram>,
    log: &Log,
) -> Result<AnyPort, StartupError> {
    let is_core = router.core.iter().any(|core| core == name);
    // AF_XDP takes an interface away from the kernel, which still needs the core interfaces.
    let kind = if is_core { PortKind::AfPacket } else { router.ports };
    let (port, why) = AnyPort::open(&host.namespace, name, kind, filter)?;
    let side = if is_core { "core" } else { "customer" };
    let why = why.map_or(String::new(), |why| format!("; af_xdp not used: {why}"));
    log(Level::Note, &format!("{name}: {side} interface, using {}{why}", port.kind()));
    Ok(port)
}

fn log_route(log: &Log, peer: &str, way: &Result<PeerRoute, String>) {
    match way {
        Ok(PeerRoute { interface, next_hop, mac, mtu }) => {
            let mac = snapshot::format_mac(*mac);
            log(Level::Note, &format!("peer {peer}: via {next_hop} ({mac}) on {interface}, MTU {mtu} B"));
        }
        Err(why) => log(Level::Alarm, &format!("peer {peer} is unreachable: {why}")),
    }
}

/// Last event logged of each subject, so that an event noticed by several cores is logged once.
#[derive(Default)]
struct LoggedEvents(Mutex<HashMap<String, String>>);

impl LoggedEvents {
    fn tell(&self, log: &Log, event: &PeEvent) {
        let (subject, level, line) = described(event);
        let before = {
            let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            logged.insert(subject, line.clone())
        };
        if before.as_ref() != Some(&line) {
            log(level, &line);
        }
    }
}

/// Returns the subject, level and text of an event.
fn described(event: &PeEvent) -> (String, Level, String) {
    match event {
        PeEvent::Silent { vpn, peer, is_silent } => {
            let (level, what) = match is_silent {
                true => (Level::Alarm, "does not answer"),
                false => (Level::Note, "answers again"),
            };
            (format!("flow {vpn} {peer}"), level, format!("VPN {vpn}: peer {peer} {what}"))
        }
        PeEvent::Reference { name, from, is_old: true } => {
            let cause = match from {
                Some(peer) => format!("no update from peer {peer}"),
                None => "no measurement by its VPN flow".into(),
            };
            let line = format!(
                "reference {name}: {cause} for more than {} s; its followers use the nominal flow",
                REFERENCE_AGE.0 / 1_000_000_000
            );
            (format!("reference {name}"), Level::Alarm, line)
        }
        PeEvent::Reference { name, is_old: false, .. } => {
            let line = format!("reference {name}: up to date again");
            (format!("reference {name}"), Level::Note, line)
        }
        PeEvent::Alarm { name, description, is_raised } => {
            let (level, what) = match is_raised {
                true => (Level::Alarm, "; see docs/pe.md, Attacks"),
                false => (Level::Note, ": none for a minute"),
            };
            (format!("alarm {name}"), level, format!("{name}: {description}{what}"))
        }
        PeEvent::PathMtu { peer, found } => path_mtu_line(peer, found),
        PeEvent::Port { interface, failure: Some(why) } => {
            (format!("port {interface}"), Level::Alarm, format!("{interface} failed: {why}"))
        }
        PeEvent::Port { interface, failure: None } => {
            (format!("port {interface}"), Level::Note, format!("{interface} works again"))
        }
        PeEvent::Trace { why } => ("trace".into(), Level::Alarm, why.clone()),
    }
}

/// Returns the subject, level and text of a change of a path's MTU.
fn path_mtu_line(peer: &str, found: &PathMtuView) -> (String, Level, String) {
    let PathMtuView { mtu, largest, is_too_small } = found;
    let (level, line) = match (is_too_small, mtu < largest) {
        (true, _) => (
            Level::Alarm,
            format!("peer {peer}: the path drops customer packets of {mtu} B, the minimum MTU of IPv6"),
        ),
        (false, true) => (
            Level::Alarm,
            format!(
                "peer {peer}: the path drops customer packets larger than {mtu} B; its first link carries {largest} B"
            ),
        ),
        (false, false) => (Level::Note, format!("peer {peer}: the path carries customer packets of {mtu} B")),
    };
    (format!("path {peer}"), level, line)
}
