//! The processes of services: servers before the run, clients during it.

use super::{ServiceResult, ServiceSpec, Task, find, ftp, iscsi};
use crate::clock::{Epoch, monotonic_ns};
use crate::fabric::process::Failed;
use crate::netns::Namespace;
use crate::netns::hold::{spawn_held, spawn_held_apart};
use netstage_core::time::{Duration, Instant};
use std::io::{self, Read as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Longest a server may take until it listens.
const LISTEN_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);
/// How often the end of something is looked for.
const LOOK: std::time::Duration = std::time::Duration::from_millis(5);
/// Bytes read from a client at once.
const READ: usize = 1 << 16;
/// Most that is kept of each log.
const LOG: usize = 1 << 16;

/// A service whose server listens.
pub struct Service {
    spec: ServiceSpec,
    client: Namespace,
    netstage: PathBuf,
    server: Child,
    running: Option<JoinHandle<ServiceResult>>,
}

impl Service {
    /// Starts its server, and waits until it listens. `nodes` are the network's namespaces.
    pub fn start(spec: ServiceSpec, nodes: &[Option<Namespace>], netstage: &Path) -> Result<Service, Failed> {
        let node = |index: usize| nodes[index].as_ref().expect("a node with a service is used");
        let broken =
            |e: io::Error| Failed::broken(format!("service.{}: cannot start its server: {e}", spec.name));
        let client = node(spec.client).try_clone().map_err(broken)?;
        let server = launch(node(spec.server), netstage, Role::Server, &spec).map_err(broken)?;
        let mut service = Service { spec, client, netstage: netstage.to_owned(), server, running: None };
        let namespace = node(service.spec.server);
        service.wait_until_it_listens(namespace)?;
        service.tell_server(namespace)?;
        Ok(service)
    }

    /// Tells the server what it serves, where that is not said when it starts.
    fn tell_server(&self, namespace: &Namespace) -> Result<(), Failed> {
        let Task::Iscsi { .. } = self.spec.task else { return Ok(()) };
        let name = &self.spec.name;
        let cannot =
            |e: io::Error| Failed::broken(format!("service.{name}: cannot run {}: {e}", iscsi::TELLER));
        for order in iscsi::orders(&self.spec) {
            let program = located(iscsi::TELLER).map_err(cannot)?;
            let run = iscsi::run_folder(&self.spec);
            let child = spawn_held_apart(namespace, &self.netstage, &program, &run, |command| {
                command.args(&order).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            });
            let output = child.and_then(Child::wait_with_output).map_err(cannot)?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                let words = said.trim();
                return Err(Failed::broken(format!("service.{name}: {} has failed: {words}", iscsi::TELLER)));
            }
        }
        Ok(())
    }

    fn wait_until_it_listens(&mut self, namespace: &Namespace) -> Result<(), Failed> {
        let limit = std::time::Instant::now() + LISTEN_LIMIT;
        let address = self.spec.destination;
        loop {
            // From its own host, so that no link carries anything.
            if matches!(namespace.run(|| TcpStream::connect(address)), Ok(Ok(_))) {
                return Ok(());
            }
            let ended = matches!(self.server.try_wait(), Ok(Some(_)));
            if ended || std::time::Instant::now() > limit {
                let log = log(&self.spec);
                let words =
                    log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
                let what = if ended { "ended at once" } else { "does not listen" };
                return Err(Failed::broken(format!(
                    "service.{}: its server {what}: {}",
                    self.spec.name,
                    words.trim()
                )));
            }
            thread::sleep(LOOK);
        }
    }

    /// Starts its client when its time comes. Everything of it ends with the run, or when `stop` is set.
    pub fn run(&mut self, epoch: Epoch, stop: &Arc<AtomicBool>) {
        let (spec, stop) = (self.spec.clone(), Arc::clone(stop));
        let netstage = self.netstage.clone();
        let Ok(namespace) = self.client.try_clone() else { return };
        self.running = Some(thread::spawn(move || attend(&spec, &namespace, &netstage, epoch, &stop)));
    }

    /// What came of it; waits for the end of the run.
    pub fn finish(mut self) -> ServiceResult {
        let name = self.spec.name.clone();
        let result = self.running.take().and_then(|running| running.join().ok());
        let mut result = result.unwrap_or_else(|| ServiceResult {
            name,
            error: Some("its client could not be watched".into()),
            ..ServiceResult::default()
        });
        if result.error.is_some() {
            result.log = log(&self.spec);
        }
        result
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[derive(Clone, Copy)]
enum Role {
    Server,
    Client,
}

fn launch(namespace: &Namespace, netstage: &Path, role: Role, spec: &ServiceSpec) -> io::Result<Child> {
    let mut dressed = Ok(());
    let child = match (spec.task, role) {
        (Task::Ftp { .. }, Role::Server) => {
            spawn_held(namespace, netstage, &located(ftp::SERVER)?, |command: &mut Command| {
                dressed = ftp::dress_server(spec, command);
            })
        }
        (Task::Ftp { .. }, Role::Client) => {
            spawn_held(namespace, netstage, &located(ftp::CLIENT)?, |command: &mut Command| {
                dressed = ftp::dress_client(spec, command);
            })
        }
        (Task::Iscsi { .. }, Role::Server) => {
            let (program, run) = (located(iscsi::SERVER)?, iscsi::run_folder(spec));
            spawn_held_apart(namespace, netstage, &program, &run, |command| {
                dressed = iscsi::dress_server(spec, command);
            })
        }
        (Task::Iscsi { .. }, Role::Client) => {
            spawn_held(namespace, netstage, &located(iscsi::CLIENT)?, |command: &mut Command| {
                dressed = iscsi::dress_client(spec, command);
            })
        }
    };
    dressed.and(child)
}

/// Where a program is.
fn located(name: &str) -> io::Result<PathBuf> {
    find(name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} is not there")))
}

/// A client from its start to its end.
fn attend(
    spec: &ServiceSpec,
    namespace: &Namespace,
    netstage: &Path,
    epoch: Epoch,
    stop: &AtomicBool,
) -> ServiceResult {
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
    let mut child = match launch(namespace, netstage, Role::Client, spec) {
        Ok(child) => child,
        Err(error) => {
            return ServiceResult { error: Some(format!("cannot start its client: {error}")), ..result };
        }
    };
    let mut output = child.stdout.take().expect("it is piped");
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
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if !over() => thread::sleep(LOOK),
            Ok(None) | Err(_) => break None,
        }
    };
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
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

/// What the programs of a service said, one after the other.
fn log(spec: &ServiceSpec) -> String {
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
