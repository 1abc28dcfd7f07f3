//! BFD: a speaker in a thread of its own, and the failures of neighbors that it reports.

use super::state::{BfdSessionState, CounterValue};
use crate::counter::Severity;
use netstage_host::log::{Level, Log};
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use netstage_routing::bfd::{
    BfdChange, BfdCommands, BfdCounters, BfdDriver, BfdNeighbor, BfdReport, BfdSessionConfig, BfdState,
    BfdStatus, BfddClient, Diagnostic,
};
use netstage_routing::source::path::InterfaceNeighbor;
use netstage_scenario::router::BfdSettings;
use nix::sys::eventfd::EventFd;
use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Speaker of the router.
#[derive(Debug)]
pub(super) struct Bfd {
    commands: BfdCommands,
    notices: Receiver<Notice>,
    thread: Option<JoinHandle<()>>,
    bfdd: Option<BfddClient>,
    /// Names of the router's interfaces, by number.
    interfaces: Vec<String>,
    failed: BTreeSet<BfdNeighbor>,
}

/// Notice of another thread.
#[derive(Debug)]
enum Notice {
    Report(BfdReport),
    /// A line for the log.
    Note(String),
    /// The speaker's thread has ended because of an error.
    Ended(io::Error),
}

/// Sender of notices, which rings the bell for each.
#[derive(Clone)]
struct Notifier {
    notices: Sender<Notice>,
    bell: Arc<EventFd>,
}

impl Notifier {
    fn send(&self, notice: Notice) {
        // The receiver may have ended.
        let _ = self.notices.send(notice);
        let _ = self.bell.write(1);
    }
}

/// Sender of commands to the speaker.
#[derive(Clone, Debug)]
pub(super) struct BfdQuery {
    commands: BfdCommands,
}

impl Bfd {
    /// Starts sessions with neighbors, or with those of bfdd. `interfaces` are the names of the router's interfaces by
    /// number. The bell rings for each report.
    pub fn begin(
        settings: &BfdSettings,
        neighbors: Vec<BfdNeighbor>,
        interfaces: Vec<String>,
        namespace: Namespace,
        bell: Arc<EventFd>,
    ) -> Result<Bfd, StartupError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => StartupError::new(
                "[bfd]: another program speaks BFD here",
                "stop it, or if it is FRR's bfdd, run its sessions: set `bfdd` instead of `neighbors`",
            ),
            _ => StartupError::from_system("cannot start BFD", &error),
        };
        let session = BfdSessionConfig {
            desired_min_tx: settings.interval,
            required_min_rx: settings.interval,
            detect_multiplier: settings.multiplier,
            ..BfdSessionConfig::default()
        };
        let (mut driver, commands) =
            BfdDriver::new(namespace, RandomState::new().hash_one(0)).map_err(failed)?;
        for neighbor in neighbors {
            driver.set(neighbor, session.clone()).map_err(failed)?;
        }
        let (sender, notices) = channel();
        let notifier = Notifier { notices: sender, bell };
        let noting = notifier.clone();
        let note = move |line| noting.send(Notice::Note(line));
        let start = |path| BfddClient::start(path, commands.clone(), note);
        let (bfdd, reporter) = settings.bfdd.as_deref().map(start).transpose().map_err(failed)?.unzip();
        let speak = move || {
            let report = |report: BfdReport| {
                if let Some(reporter) = &reporter {
                    reporter.report(&report);
                }
                notifier.send(Notice::Report(report));
            };
            if let Err(error) = driver.run(report) {
                notifier.send(Notice::Ended(error));
            }
        };
        let thread = std::thread::Builder::new().name("router-bfd".into()).spawn(speak).map_err(failed)?;
        Ok(Bfd { commands, notices, thread: Some(thread), bfdd, interfaces, failed: BTreeSet::new() })
    }

    /// Returns what requests of the state need.
    pub fn query(&self) -> BfdQuery {
        BfdQuery { commands: self.commands.clone() }
    }

    /// Handles the reports of the speaker. Returns the neighbors that have failed (`true`) or recovered.
    pub fn poll(&mut self, log: &Log) -> Vec<(InterfaceNeighbor, bool)> {
        let mut changes = Vec::new();
        while let Ok(notice) = self.notices.try_recv() {
            match notice {
                Notice::Report(report) => changes.extend(self.handle(report, log)),
                Notice::Note(line) => log(Level::Note, &format!("BFD: {line}")),
                Notice::Ended(error) => {
                    let line = format!("BFD has ended, no failure is detected: {error}; restart the router");
                    log(Level::Alarm, &line);
                    let failed = std::mem::take(&mut self.failed);
                    changes
                        .extend(failed.iter().filter_map(|neighbor| Some((self.number(neighbor)?, false))));
                }
            }
        }
        changes
    }

    fn handle(&mut self, report: BfdReport, log: &Log) -> Option<(InterfaceNeighbor, bool)> {
        let BfdReport { neighbor, change, .. } = report;
        let (level, line, has_failed) = match change {
            BfdChange::Up => (Level::Note, format!("{neighbor} is up"), false),
            BfdChange::Disabled => (Level::Note, format!("the session with {neighbor} was disabled"), false),
            BfdChange::Failed(reason) => (Level::Alarm, format!("{neighbor} is down: {reason}"), true),
            BfdChange::Fault(reason) => {
                log(Level::Alarm, &format!("BFD: no packets can be sent to {neighbor}: {reason}"));
                return None;
            }
        };
        log(level, &format!("BFD: {line}"));
        let number = self.number(&neighbor);
        match has_failed {
            true => self.failed.insert(neighbor),
            false => self.failed.remove(&neighbor),
        };
        Some((number?, has_failed))
    }

    /// Returns a neighbor with the number of its interface, if that is one of the router's.
    fn number(&self, neighbor: &BfdNeighbor) -> Option<InterfaceNeighbor> {
        let number = self.interfaces.iter().position(|name| *name == neighbor.interface)?;
        Some((number as u32, neighbor.address))
    }
}

impl Drop for Bfd {
    fn drop(&mut self) {
        self.bfdd = None;
        self.commands.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl BfdQuery {
    /// Returns the state of the sessions and the counters, or `None` after the speaker's end.
    pub fn ask(&self) -> Option<(Vec<BfdSessionState>, Vec<CounterValue>)> {
        let found = self.commands.snapshot()?;
        let sessions = found.sessions.iter().map(|(neighbor, status)| session(neighbor, status));
        Some((sessions.collect(), counters(&found.counters)))
    }
}

fn session(neighbor: &BfdNeighbor, status: &BfdStatus) -> BfdSessionState {
    let state = match status.state {
        BfdState::AdminDown => "disabled",
        BfdState::Down => "down",
        BfdState::Init => "init",
        BfdState::Up => "up",
    };
    BfdSessionState {
        interface: neighbor.interface.clone(),
        neighbor: neighbor.address.to_string(),
        state: state.into(),
        reason: (status.diagnostic != Diagnostic::NONE).then(|| status.diagnostic.to_string()),
        interval_us: status.transmit_interval.map(|interval| interval.0 / 1_000),
        detection_us: status.detection_time.map(|time| time.0 / 1_000),
    }
}

fn counters(counters: &BfdCounters) -> Vec<CounterValue> {
    use Severity::{Error, Info, Warning};
    let c = counters;
    let all = [
        ("received", Info, c.received, "BFD packet received."),
        ("sent", Info, c.sent, "BFD packet sent."),
        ("detection_timeouts", Warning, c.detection_timeouts, "Neighbor silent for the detection time."),
        ("wrong_ttl", Error, c.wrong_ttl, "BFD packet that was forwarded: its TTL is not 255."),
        ("malformed", Error, malformed(c), "BFD packet that RFC 5880 requires to discard."),
        ("unknown_session", Warning, c.unknown_session, "BFD packet of no session."),
        (
            "wrong_authentication",
            Error,
            c.malformed_authentication + c.wrong_authentication_type,
            "BFD packet with authentication, which the router does not use.",
        ),
    ];
    let value = |(name, severity, packets, meaning): (&str, Severity, u64, &str)| {
        CounterValue::new("bfd", name, severity.name(), meaning, packets)
    };
    all.into_iter().map(value).collect()
}

fn malformed(c: &BfdCounters) -> u64 {
    c.wrong_version
        + c.wrong_length
        + c.zero_detect_multiplier
        + c.multipoint
        + c.zero_discriminator
        + c.missing_discriminator
}
