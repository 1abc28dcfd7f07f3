//! Processes of services: servers start before the run, clients during it.

use super::site::{ProgramSite, RunningProgram};
use super::{ServiceSpec, find, ftp, iscsi};
use netstage_agent_api::service::{ServiceResult, ServiceRole, ServiceWorkload};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::startup_error::StartupError;
use std::io::{self, Read as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Time limit for a server to start listening.
const LISTEN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// Interval at which the state of a program is polled.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);
/// Size of a read from a client's output, bytes.
const READ_BYTES: usize = 1 << 16;
/// Maximum part of each log that is returned, bytes.
const MAX_LOG_BYTES: usize = 1 << 16;

/// Listening server of a service. Dropping it ends the server.
pub struct ServiceServer {
    spec: ServiceSpec,
    program: RunningProgram,
}

impl ServiceServer {
    /// Returns the service it serves.
    pub fn spec(&self) -> &ServiceSpec {
        &self.spec
    }

    /// Starts the server, and waits until it listens.
    pub fn start(spec: ServiceSpec, site: &ProgramSite) -> Result<ServiceServer, StartupError> {
        let program = launch(site, ServiceRole::Server, &spec);
        let program = program.map_err(|e| {
            StartupError::without_remedy(format!("service.{}: cannot start the server: {e}", spec.name))
        })?;
        let mut server = ServiceServer { spec, program };
        server.wait_until_it_listens(site)?;
        server.configure(site)?;
        Ok(server)
    }

    /// Configures the server, where that takes commands to the running server.
    fn configure(&self, site: &ProgramSite) -> Result<(), StartupError> {
        let ServiceWorkload::Iscsi { .. } = self.spec.task else { return Ok(()) };
        let name = &self.spec.name;
        let cannot = |e: io::Error| {
            StartupError::without_remedy(format!("service.{name}: cannot run {}: {e}", iscsi::ADMINISTRATOR))
        };
        for order in iscsi::target_commands(&self.spec) {
            let program = locate(iscsi::ADMINISTRATOR).map_err(cannot)?;
            let process = site.start(&program, &self.spec.folder, |command| {
                iscsi::configure_administrator(&order, command);
            });
            let output = process.and_then(RunningProgram::wait).map_err(cannot)?;
            if !output.status.success() {
                let output_text = String::from_utf8_lossy(&output.stderr);
                let message = output_text.trim();
                return Err(StartupError::without_remedy(format!(
                    "service.{name}: {} failed: {message}",
                    iscsi::ADMINISTRATOR
                )));
            }
        }
        Ok(())
    }

    fn wait_until_it_listens(&mut self, site: &ProgramSite) -> Result<(), StartupError> {
        let limit = std::time::Instant::now() + LISTEN_TIMEOUT;
        let address = self.spec.destination;
        loop {
            // The listener might be another program; if so, this server ends, because it cannot bind.
            let ended = self.exit_message();
            // The connection comes from the server's own host, so that no link carries it.
            if ended.is_none() && matches!(site.run(|| TcpStream::connect(address)), Ok(Ok(_))) {
                return Ok(());
            }
            if ended.is_some() || std::time::Instant::now() > limit {
                let what = if ended.is_some() { "ended immediately" } else { "does not listen" };
                let message = ended.unwrap_or_else(|| last_line(&self.spec));
                return Err(StartupError::without_remedy(format!(
                    "service.{}: server {what}: {message}",
                    self.spec.name
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the last line of output if the server has ended.
    pub fn exit_message(&mut self) -> Option<String> {
        matches!(self.program.exit_status(), Ok(Some(_))).then(|| last_line(&self.spec))
    }
}

fn launch(site: &ProgramSite, role: ServiceRole, spec: &ServiceSpec) -> io::Result<RunningProgram> {
    let (program, dress): (_, fn(&ServiceSpec, &mut Command) -> io::Result<()>) = match (spec.task, role) {
        (ServiceWorkload::Ftp { .. }, ServiceRole::Server) => (ftp::SERVER, ftp::configure_server),
        (ServiceWorkload::Ftp { .. }, ServiceRole::Client) => (ftp::CLIENT, ftp::configure_client),
        (ServiceWorkload::Iscsi { .. }, ServiceRole::Server) => (iscsi::SERVER, iscsi::configure_server),
        (ServiceWorkload::Iscsi { .. }, ServiceRole::Client) => (iscsi::CLIENT, iscsi::configure_client),
    };
    let mut dressed = Ok(());
    let started = site.start(&locate(program)?, &spec.folder, |command| dressed = dress(spec, command));
    dressed.and(started)
}

/// Finds a program, or returns an error that names it.
fn locate(name: &str) -> io::Result<PathBuf> {
    find(name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} is not installed")))
}

/// Runs a client from its start to its end.
pub fn run_client(spec: &ServiceSpec, site: &ProgramSite, epoch: Epoch, stop: &AtomicBool) -> ServiceResult {
    let mut result = ServiceResult { name: spec.name.clone(), ..ServiceResult::default() };
    let over = || stop.load(Ordering::Relaxed) || epoch.now() >= Instant(spec.duration.0);
    // `Epoch::now` stays at zero until the run begins, so that the wait uses the monotonic clock.
    let start = epoch.monotonic_ns(spec.start);
    while let left @ 1.. = start.saturating_sub(monotonic_ns()) {
        if over() {
            return result;
        }
        thread::sleep(POLL_INTERVAL.min(std::time::Duration::from_nanos(left)));
    }
    let mut program = match launch(site, ServiceRole::Client, spec) {
        Ok(program) => program,
        Err(error) => {
            return ServiceResult { error: Some(format!("cannot start the client: {error}")), ..result };
        }
    };
    let mut output = program.output().expect("standard output is piped");
    let (interval, bins) = (spec.interval, (spec.duration.0 / spec.interval.0) as usize);
    let task = spec.task;
    let reader = thread::spawn(move || {
        let (mut received, mut buffer) = (vec![0; bins], vec![0; READ_BYTES]);
        let (mut reads, mut progress) = (Vec::new(), None);
        if let ServiceWorkload::Iscsi { block, .. } = task {
            reads.resize(bins, (0, Duration::ZERO));
            progress = Some(iscsi::ReadProgress::new(block));
        }
        let mut counted_until = epoch.now();
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            let now = epoch.now();
            let bin = (now.0 / interval.0) as usize;
            if bin >= bins {
                continue;
            }
            match task {
                ServiceWorkload::Ftp { .. } => received[bin] += count as u64,
                ServiceWorkload::Iscsi { block, queue_depth } => {
                    let Some(progress) = &mut progress else { continue };
                    progress.take(&buffer[..count], |answered| {
                        received[bin] += answered * u64::from(block);
                        if answered > 0 {
                            // The number of outstanding reads is constant: Little's law.
                            let took = now.since(counted_until) * u64::from(queue_depth);
                            reads[bin] = (reads[bin].0 + answered, reads[bin].1 + took);
                            counted_until = now;
                        }
                    })
                }
            }
        }
        (received, reads, epoch.now())
    });
    let status = loop {
        match program.exit_status() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if !over() => thread::sleep(POLL_INTERVAL),
            Ok(None) | Err(_) => break None,
        }
    };
    drop(program);
    let (received, reads, last) = reader.join().unwrap_or_default();
    (result.received, result.reads) = (received, reads);
    match (status, spec.task) {
        (Some(_), ServiceWorkload::Ftp { .. }) => match ftp::transfer_time(spec) {
            Ok(took) => result.finished = Some((last, took)),
            Err(error) => result.error = Some(error),
        },
        (Some(status), ServiceWorkload::Iscsi { .. }) => {
            result.error = Some(format!("{} ended before the end of the run: {status}", iscsi::CLIENT));
        }
        (None, _) => {}
    }
    result
}

/// Returns the last line of the programs' output.
fn last_line(spec: &ServiceSpec) -> String {
    let log = log(spec);
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or("no output").trim().to_owned()
}

/// Returns the output of all programs of a service, concatenated.
pub fn log(spec: &ServiceSpec) -> String {
    let mut text = String::new();
    let logs = match spec.task {
        ServiceWorkload::Ftp { .. } => ftp::logs(spec),
        ServiceWorkload::Iscsi { .. } => iscsi::logs(spec),
    };
    for path in logs {
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let kept = &bytes[bytes.len().saturating_sub(MAX_LOG_BYTES)..];
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        text.push_str(&format!("== {name}\n{}\n", String::from_utf8_lossy(kept).trim_end()));
    }
    text
}
