//! The processes of services: servers before the run, clients during it.

use super::site::{Program, Site};
use super::{ServiceSpec, find, ftp, iscsi};
use netstage_agent_api::service::{Role, ServiceResult, Task};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::obstacle::Obstacle;
use std::io::{self, Read as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Longest a server may take until it listens.
const LISTEN_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);
/// How often the end of something is looked for.
const LOOK: std::time::Duration = std::time::Duration::from_millis(5);
/// Bytes read from a client at once.
const READ: usize = 1 << 16;
/// Most that is kept of each log.
const LOG: usize = 1 << 16;

/// The server of a service, which listens. It ends with this value.
pub struct Server {
    spec: ServiceSpec,
    program: Program,
}

impl Server {
    /// The service it serves.
    pub fn spec(&self) -> &ServiceSpec {
        &self.spec
    }

    /// Starts it, and waits until it listens.
    pub fn start(spec: ServiceSpec, site: &Site) -> Result<Server, Obstacle> {
        let program = launch(site, Role::Server, &spec);
        let program = program
            .map_err(|e| Obstacle::broken(format!("service.{}: cannot start its server: {e}", spec.name)))?;
        let mut server = Server { spec, program };
        server.wait_until_it_listens(site)?;
        server.tell(site)?;
        Ok(server)
    }

    /// Tells it what it serves, where that is not said when it starts.
    fn tell(&self, site: &Site) -> Result<(), Obstacle> {
        let Task::Iscsi { .. } = self.spec.task else { return Ok(()) };
        let name = &self.spec.name;
        let cannot =
            |e: io::Error| Obstacle::broken(format!("service.{name}: cannot run {}: {e}", iscsi::TELLER));
        for order in iscsi::orders(&self.spec) {
            let program = located(iscsi::TELLER).map_err(cannot)?;
            let teller = site.start(&program, |command| iscsi::dress_teller(&self.spec, &order, command));
            let output = teller.and_then(Program::wait).map_err(cannot)?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                let words = said.trim();
                return Err(Obstacle::broken(format!(
                    "service.{name}: {} has failed: {words}",
                    iscsi::TELLER
                )));
            }
        }
        Ok(())
    }

    fn wait_until_it_listens(&mut self, site: &Site) -> Result<(), Obstacle> {
        let limit = std::time::Instant::now() + LISTEN_LIMIT;
        let address = self.spec.destination;
        loop {
            // It answers somebody; whether that is it, is seen by its still being there.
            let ended = self.ended();
            // From its own host, so that no link carries anything.
            if ended.is_none() && matches!(site.run(|| TcpStream::connect(address)), Ok(Ok(_))) {
                return Ok(());
            }
            if ended.is_some() || std::time::Instant::now() > limit {
                let what = if ended.is_some() { "ended at once" } else { "does not listen" };
                let words = ended.unwrap_or_else(|| last_words(&self.spec));
                return Err(Obstacle::broken(format!(
                    "service.{}: its server {what}: {words}",
                    self.spec.name
                )));
            }
            thread::sleep(LOOK);
        }
    }

    /// What it said last, if it has ended.
    pub fn ended(&mut self) -> Option<String> {
        matches!(self.program.ended(), Ok(Some(_))).then(|| last_words(&self.spec))
    }
}

fn launch(site: &Site, role: Role, spec: &ServiceSpec) -> io::Result<Program> {
    let (program, dress): (_, fn(&ServiceSpec, &mut Command) -> io::Result<()>) = match (spec.task, role) {
        (Task::Ftp { .. }, Role::Server) => (ftp::SERVER, ftp::dress_server),
        (Task::Ftp { .. }, Role::Client) => (ftp::CLIENT, ftp::dress_client),
        (Task::Iscsi { .. }, Role::Server) => (iscsi::SERVER, iscsi::dress_server),
        (Task::Iscsi { .. }, Role::Client) => (iscsi::CLIENT, iscsi::dress_client),
    };
    let mut dressed = Ok(());
    let started = site.start(&located(program)?, |command| dressed = dress(spec, command));
    dressed.and(started)
}

/// Where a program is.
fn located(name: &str) -> io::Result<PathBuf> {
    find(name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} is not there")))
}

/// A client from its start to its end.
pub fn attend(spec: &ServiceSpec, site: &Site, epoch: Epoch, stop: &AtomicBool) -> ServiceResult {
    let mut result = ServiceResult { name: spec.name.clone(), ..ServiceResult::default() };
    let over = || stop.load(Ordering::Relaxed) || epoch.now() >= Instant(spec.duration.0);
    // The run's own clock stands still before the run begins.
    let start = epoch.monotonic_ns(spec.start);
    while let left @ 1.. = start.saturating_sub(monotonic_ns()) {
        if over() {
            return result;
        }
        thread::sleep(LOOK.min(std::time::Duration::from_nanos(left)));
    }
    let mut program = match launch(site, Role::Client, spec) {
        Ok(program) => program,
        Err(error) => {
            return ServiceResult { error: Some(format!("cannot start its client: {error}")), ..result };
        }
    };
    let mut output = program.output().expect("it is piped");
    let (interval, bins) = (spec.interval, (spec.duration.0 / spec.interval.0) as usize);
    let task = spec.task;
    let reader = thread::spawn(move || {
        let (mut received, mut buffer) = (vec![0; bins], vec![0; READ]);
        let (mut reads, mut progress) = (Vec::new(), iscsi::Progress::default());
        if let Task::Iscsi { .. } = task {
            reads.resize(bins, (0, Duration::ZERO));
        }
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            let bin = (epoch.now().0 / interval.0) as usize;
            if bin >= bins {
                continue;
            }
            match task {
                Task::Ftp { .. } => received[bin] += count as u64,
                Task::Iscsi { block, queue_depth } => progress.take(&buffer[..count], |answered| {
                    received[bin] += answered * u64::from(block);
                    // As many are always under way: Little's law.
                    let took =
                        Duration::from_secs(u64::from(queue_depth).min(answered * u64::from(queue_depth)));
                    reads[bin] = (reads[bin].0 + answered, reads[bin].1 + took);
                }),
            }
        }
        (received, reads, epoch.now())
    });
    let status = loop {
        match program.ended() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if !over() => thread::sleep(LOOK),
            Ok(None) | Err(_) => break None,
        }
    };
    drop(program);
    let (received, reads, last) = reader.join().unwrap_or_default();
    (result.received, result.reads) = (received, reads);
    match (status, spec.task) {
        (Some(_), Task::Ftp { .. }) => match ftp::took(spec) {
            Ok(took) => result.finished = Some((last, took)),
            Err(error) => result.error = Some(error),
        },
        (Some(status), Task::Iscsi { .. }) => {
            result.error = Some(format!("{} has ended before the run: {status}", iscsi::CLIENT));
        }
        (None, _) => {}
    }
    result
}

/// The last line of what the programs of a service said.
fn last_words(spec: &ServiceSpec) -> String {
    let log = log(spec);
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or("it said nothing").trim().to_owned()
}

/// What the programs of a service said, one after the other.
pub fn log(spec: &ServiceSpec) -> String {
    let mut text = String::new();
    let logs = match spec.task {
        Task::Ftp { .. } => ftp::logs(spec),
        Task::Iscsi { .. } => iscsi::logs(spec),
    };
    for path in logs {
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let kept = &bytes[bytes.len().saturating_sub(LOG)..];
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        text.push_str(&format!("== {name}\n{}\n", String::from_utf8_lossy(kept).trim_end()));
    }
    text
}
