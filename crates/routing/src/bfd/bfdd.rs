//! Connection to FRR's bfdd, whose sessions the driver runs (distributed BFD). bfdd listens with `--dplaneaddr unix:PATH`.
//!
//! ```text
//! bfdd ── sessions ──▶ BfddClient ── BfdCommands ──▶ BfdDriver
//!      ◀── states ──── BfddReporter ◀── BfdReport ──
//! ```
//! Sessions go on while bfdd restarts. Those that it does not add again are removed.

use super::{BfdChange, BfdCommands, BfdNeighbor, BfdReport, BfdSessionConfig};
use netstage_core::time::Duration as Interval;
use netstage_wire::bfd::{BfdState, Diagnostic, MANDATORY};
use netstage_wire::bfd_data_plane::{
    HEADER, MAX_MESSAGE, MAX_REPORT, PlaneHeader, PlaneReport, PlaneRequest, PlaneSession, PlaneState,
};
use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval between attempts to connect.
const RETRY: Duration = Duration::from_secs(1);
/// Time for which sessions are kept that a returned bfdd has not added again.
const RETENTION: Duration = Duration::from_secs(10);
/// Maximum time of a write: bfdd reads at once.
const WRITE_LIMIT: Duration = Duration::from_millis(100);

/// Sessions of bfdd, and the connection to it.
#[derive(Debug, Default)]
struct Connection {
    stream: Option<UnixStream>,
    /// Version of bfdd's messages.
    version: u8,
    /// Discriminators of bfdd, and when it added the session.
    sessions: BTreeMap<BfdNeighbor, (u32, Option<Instant>)>,
}

impl Connection {
    /// Sends a report. If it cannot be sent, the connection ends, and a new one learns all states.
    fn send(&mut self, report: &PlaneReport) {
        let mut bytes = [0; MAX_REPORT];
        let length = report.write(self.version, &mut bytes);
        let sent = self.stream.as_mut().map(|stream| stream.write_all(&bytes[..length]));
        if matches!(sent, Some(Err(_))) {
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    connection: Mutex<Connection>,
    is_stopping: AtomicBool,
}

impl Shared {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connection to bfdd. Dropping it ends the connection, and with it the sessions in the view of bfdd.
#[derive(Debug)]
pub struct BfddClient {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Sender of states to bfdd.
#[derive(Clone, Debug)]
pub struct BfddReporter {
    shared: Arc<Shared>,
}

impl BfddReporter {
    /// Reports a change to bfdd.
    pub fn report(&self, report: &BfdReport) {
        let state = match report.change {
            BfdChange::Up => BfdState::Up,
            BfdChange::Failed(_) | BfdChange::Disabled => BfdState::Down,
            BfdChange::Fault(_) => return,
        };
        let mut connection = self.shared.connection();
        let Some((discriminator, _)) = connection.sessions.get(&report.neighbor) else { return };
        let us = |interval: Interval| u32::try_from(interval.0 / 1_000).unwrap_or(u32::MAX);
        let status = report.status;
        let state = PlaneState {
            discriminator: *discriminator,
            state,
            remote_discriminator: status.map_or(0, |status| status.remote_discriminator),
            remote_desired_min_tx: status.map_or(0, |status| us(status.remote_desired_min_tx)),
            remote_required_min_rx: status.map_or(0, |status| us(status.remote_required_min_rx)),
            remote_diagnostic: status.map_or(Diagnostic::NONE, |status| status.remote_diagnostic),
            remote_detect_multiplier: status.map_or(0, |status| status.remote_detect_multiplier),
        };
        connection.send(&PlaneReport::State(state));
    }
}

impl BfddClient {
    /// Connects to bfdd as soon as it listens at `path`, and passes its sessions to a driver, whose reports belong to
    /// the reporter. `log` receives a line for each connection that begins or ends, and for sessions that cannot run.
    pub fn start(
        path: &Path,
        commands: BfdCommands,
        log: impl Fn(String) + Send + 'static,
    ) -> io::Result<(BfddClient, BfddReporter)> {
        let shared = Arc::new(Shared::default());
        let worker = Worker { path: path.into(), shared: Arc::clone(&shared), commands, log };
        let thread = thread::Builder::new().name("bfdd".into()).spawn(move || worker.run())?;
        let reporter = BfddReporter { shared: Arc::clone(&shared) };
        Ok((BfddClient { shared, thread: Some(thread) }, reporter))
    }
}

impl Drop for BfddClient {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.connection().close();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

struct Worker<L> {
    path: PathBuf,
    shared: Arc<Shared>,
    commands: BfdCommands,
    log: L,
}

impl<L: Fn(String)> Worker<L> {
    fn run(&self) {
        while !self.is_stopping() {
            if let Ok(stream) = UnixStream::connect(&self.path) {
                (self.log)(format!("connected to bfdd at {}", self.path.display()));
                let ended = self.serve(stream);
                self.shared.connection().close();
                if !self.is_stopping() {
                    let reason = ended.err().map_or("it has ended".into(), |error| error.to_string());
                    (self.log)(format!("the connection to bfdd has ended: {reason}"));
                }
            }
            thread::park_timeout(RETRY);
        }
    }

    fn is_stopping(&self) -> bool {
        self.shared.is_stopping.load(Ordering::Acquire)
    }

    /// Handles the requests of a connection until it ends.
    fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        stream.set_read_timeout(Some(RETRY))?;
        let since = Instant::now();
        {
            let mut connection = self.shared.connection();
            connection.stream = Some(stream.try_clone()?);
            connection.sessions.values_mut().for_each(|(_, added)| *added = None);
        }
        let mut bytes = Vec::new();
        while !self.is_stopping() {
            // One message at a time: bfdd sends few.
            let missing = match bytes.first_chunk::<HEADER>() {
                None => HEADER - bytes.len(),
                Some(header) => PlaneHeader::read(header).map_err(io::Error::other)?.length - bytes.len(),
            };
            if missing == 0 {
                let (header, request) = PlaneRequest::read(&bytes).map_err(io::Error::other)?;
                self.handle(header.version, request);
                bytes.clear();
                continue;
            }
            let mut part = [0; MAX_MESSAGE];
            match stream.read(&mut part[..missing]) {
                Ok(0) => return Ok(()),
                Ok(length) => bytes.extend_from_slice(&part[..length]),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
            if since.elapsed() > RETENTION {
                self.forget_old();
            }
        }
        Ok(())
    }

    fn handle(&self, version: u8, request: PlaneRequest<'_>) {
        let mut connection = self.shared.connection();
        connection.version = version;
        match request {
            PlaneRequest::Set(session) => match settings(&session) {
                Ok((neighbor, config)) => {
                    let entry = (session.discriminator, Some(Instant::now()));
                    connection.sessions.insert(neighbor.clone(), entry);
                    self.commands.set(neighbor, config);
                }
                Err(reason) => {
                    (self.log)(format!("bfdd's session with {} is not run: {reason}", session.neighbor));
                }
            },
            PlaneRequest::Delete(session) => {
                let neighbor = neighbor(&session);
                connection.sessions.remove(&neighbor);
                self.commands.remove(neighbor);
            }
            PlaneRequest::Counters { identification, discriminator } => {
                let found = connection.sessions.iter().find(|(_, (known, _))| *known == discriminator);
                let neighbor = found.map(|(neighbor, _)| neighbor.clone());
                // The driver may wait for the lock.
                drop(connection);
                let (received, sent) = self.counts(neighbor);
                let with_bytes = |packets: u64| [packets, packets * MANDATORY as u64];
                let (received, sent) = (with_bytes(received), with_bytes(sent));
                let report = PlaneReport::Counters { identification, discriminator, received, sent };
                self.shared.connection().send(&report);
            }
            PlaneRequest::Echo { identification, times } => {
                connection.send(&PlaneReport::Echo { identification, times });
            }
            PlaneRequest::Other(_) => {}
        }
    }

    /// Returns the packets received from and sent to a neighbor.
    fn counts(&self, neighbor: Option<BfdNeighbor>) -> (u64, u64) {
        let sessions = self.commands.snapshot().map(|snapshot| snapshot.sessions).unwrap_or_default();
        let found = sessions.iter().find(|(known, _)| Some(known) == neighbor.as_ref());
        found.map_or((0, 0), |(_, status)| (status.received, status.sent))
    }

    /// Removes the sessions that were not added again.
    fn forget_old(&self) {
        let old: Vec<BfdNeighbor> = {
            let sessions = &mut self.shared.connection().sessions;
            sessions.extract_if(.., |_, (_, added)| added.is_none()).map(|(neighbor, _)| neighbor).collect()
        };
        old.into_iter().for_each(|neighbor| self.commands.remove(neighbor));
    }
}

fn neighbor(session: &PlaneSession<'_>) -> BfdNeighbor {
    BfdNeighbor { interface: session.interface.into(), address: session.neighbor }
}

/// Returns the neighbor and settings of a session, or the reason why it cannot run.
fn settings(session: &PlaneSession<'_>) -> Result<(BfdNeighbor, BfdSessionConfig), &'static str> {
    if session.is_multihop {
        return Err("the neighbor is not on a link");
    }
    if session.interface.is_empty() {
        return Err("it names no interface");
    }
    if matches!(session.neighbor, IpAddr::V4(address) if address.is_unspecified()) {
        return Err("it has no address");
    }
    let interval = |us: u32| Interval::from_micros(us.into());
    let config = BfdSessionConfig {
        is_enabled: !session.is_disabled,
        desired_min_tx: interval(session.desired_min_tx),
        required_min_rx: interval(session.required_min_rx),
        detect_multiplier: session.detect_multiplier.max(1),
        ..BfdSessionConfig::default()
    };
    Ok((neighbor(session), config))
}
