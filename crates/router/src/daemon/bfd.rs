//! BFD: a speaker in a thread of its own, and the failures of neighbors that it reports.

use super::state::{BfdSessionState, CounterValue};
use crate::counter::Severity;
use netstage_host::log::{Level, Log};
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use netstage_routing::bfd::{
    BfdCommands, BfdCounters, BfdDriver, BfdNeighbor, BfdReport, BfdSessionConfig, BfdState, BfdStatus,
    Diagnostic,
};
use netstage_routing::source::path::InterfaceNeighbor;
use netstage_scenario::router::BfdSettings;
use nix::sys::eventfd::EventFd;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

/// Speaker of the router.
#[derive(Debug)]
pub(super) struct Bfd {
    commands: BfdCommands,
    notices: Receiver<Notice>,
    thread: Option<JoinHandle<()>>,
    neighbors: Vec<(u32, BfdNeighbor)>,
}

/// Notice of the speaker's thread.
#[derive(Debug)]
enum Notice {
    Report(BfdReport),
    /// The thread has ended because of an error.
    Ended(io::Error),
}

/// Sender of commands to the speaker, and its neighbors.
#[derive(Clone, Debug)]
pub(super) struct BfdQuery {
    commands: BfdCommands,
    neighbors: Vec<BfdNeighbor>,
}

impl Bfd {
    /// Starts sessions with neighbors, given with the numbers of their interfaces. The bell rings for each report.
    pub fn begin(
        settings: &BfdSettings,
        neighbors: Vec<(u32, BfdNeighbor)>,
        namespace: Namespace,
        bell: Arc<EventFd>,
    ) -> Result<Bfd, StartupError> {
        let session = BfdSessionConfig {
            desired_min_tx: settings.interval,
            required_min_rx: settings.interval,
            detect_multiplier: settings.multiplier,
            ..BfdSessionConfig::default()
        };
        let listed = neighbors.iter().map(|(_, neighbor)| neighbor.clone()).collect();
        let opened = BfdDriver::open(namespace, listed, &session, RandomState::new().hash_one(0));
        let (driver, commands) = opened.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => StartupError::new(
                "[bfd]: another program speaks BFD here",
                "stop it, such as FRR's bfdd, or remove [bfd] and let it detect failures",
            ),
            _ => StartupError::from_system("cannot start BFD", &error),
        })?;
        let (sender, notices) = channel();
        let speak = move || {
            let ring = |notice| {
                // The receiver may have ended.
                let _ = sender.send(notice);
                let _ = bell.write(1);
            };
            if let Err(error) = driver.run(|report| ring(Notice::Report(report))) {
                ring(Notice::Ended(error));
            }
        };
        let thread = std::thread::Builder::new().name("router-bfd".into()).spawn(speak);
        let thread = thread.map_err(|error| StartupError::from_system("cannot start BFD", &error))?;
        Ok(Bfd { commands, notices, thread: Some(thread), neighbors })
    }

    /// Returns what requests of the state need.
    pub fn query(&self) -> BfdQuery {
        let neighbors = self.neighbors.iter().map(|(_, neighbor)| neighbor.clone()).collect();
        BfdQuery { commands: self.commands.clone(), neighbors }
    }

    /// Handles the reports of the speaker. Returns the neighbors that have failed (`true`) or recovered.
    pub fn poll(&self, log: &Log) -> Vec<(InterfaceNeighbor, bool)> {
        let mut changes = Vec::new();
        while let Ok(notice) = self.notices.try_recv() {
            match notice {
                Notice::Report(report) => changes.extend(self.handle(report, log)),
                Notice::Ended(error) => {
                    let line = format!("BFD has ended, no failure is detected: {error}; restart the router");
                    log(Level::Alarm, &line);
                    changes.extend((0..self.neighbors.len()).map(|number| (self.neighbor(number), false)));
                }
            }
        }
        changes
    }

    fn handle(&self, report: BfdReport, log: &Log) -> Option<(InterfaceNeighbor, bool)> {
        let name = |number: usize| self.neighbors[number].1.to_string();
        match report {
            BfdReport::Up { neighbor } => {
                log(Level::Note, &format!("BFD: {} is up", name(neighbor)));
                Some((self.neighbor(neighbor), false))
            }
            BfdReport::Down { neighbor, is_disabled: true, .. } => {
                log(Level::Note, &format!("BFD: {} has disabled the session", name(neighbor)));
                Some((self.neighbor(neighbor), false))
            }
            BfdReport::Down { neighbor, diagnostic, .. } => {
                log(Level::Alarm, &format!("BFD: {} is down: {diagnostic}", name(neighbor)));
                Some((self.neighbor(neighbor), true))
            }
            BfdReport::Fault { neighbor, reason } => {
                log(Level::Alarm, &format!("BFD: no packets can be sent to {}: {reason}", name(neighbor)));
                None
            }
        }
    }

    fn neighbor(&self, number: usize) -> InterfaceNeighbor {
        let (interface, neighbor) = &self.neighbors[number];
        (*interface, neighbor.address)
    }
}

impl Drop for Bfd {
    fn drop(&mut self) {
        self.commands.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl BfdQuery {
    /// Returns the state of the sessions and the counters, or `None` after the speaker's end.
    pub fn ask(&self) -> Option<(Vec<BfdSessionState>, Vec<CounterValue>)> {
        let found = self.commands.snapshot()?;
        let sessions = self.neighbors.iter().zip(&found.sessions);
        Some((
            sessions.map(|(neighbor, status)| session(neighbor, status)).collect(),
            counters(&found.counters),
        ))
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
