//! The processes of services: servers before the run, clients during it.

use super::{ServiceResult, ServiceSpec, find, ftp};
use crate::clock::{Epoch, monotonic_ns};
use crate::fabric::process::Failed;
use crate::netns::Namespace;
use crate::netns::hold::spawn_held;
use netstage_core::time::Instant;
use netstage_scenario::plan::Program;
use std::io::{self, Read as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
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
        let server =
            launch(node(spec.server), netstage, spec.program, Role::Server, &spec).map_err(broken)?;
        let mut service = Service { spec, client, netstage: netstage.to_owned(), server, running: None };
        service.wait_until_it_listens(node(service.spec.server))?;
        Ok(service)
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

fn launch(
    namespace: &Namespace,
    netstage: &Path,
    program: Program,
    role: Role,
    spec: &ServiceSpec,
) -> io::Result<Child> {
    let Program::Ftp = program;
    let name = match role {
        Role::Server => ftp::SERVER,
        Role::Client => ftp::CLIENT,
    };
    let path =
        find(name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} is not there")))?;
    let mut dressed = Ok(());
    let child = spawn_held(namespace, netstage, &path, |command: &mut Command| {
        dressed = match role {
            Role::Server => ftp::dress_server(spec, command),
            Role::Client => ftp::dress_client(spec, command),
        };
    });
    dressed.and(child)
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
    let mut child = match launch(namespace, netstage, spec.program, Role::Client, spec) {
        Ok(child) => child,
        Err(error) => {
            return ServiceResult { error: Some(format!("cannot start its client: {error}")), ..result };
        }
    };
    let mut output = child.stdout.take().expect("it is piped");
    let (interval, bins) = (spec.interval, (spec.duration.0 / spec.interval.0) as usize);
    let reader = thread::spawn(move || {
        let (mut received, mut buffer) = (vec![0; bins], vec![0; READ]);
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            let bin = (epoch.now().0 / interval.0) as usize;
            if let Some(sum) = received.get_mut(bin) {
                *sum += count as u64;
            }
        }
        (received, epoch.now())
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
    let (received, last) = reader.join().unwrap_or_default();
    result.received = received;
    if status.is_some() {
        match ftp::took(spec) {
            Ok(took) => result.finished = Some((last, took)),
            Err(error) => result.error = Some(error),
        }
    }
    result
}

/// What the programs of a service said, one after the other.
fn log(spec: &ServiceSpec) -> String {
    let mut text = String::new();
    for path in ftp::logs(spec) {
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let kept = &bytes[bytes.len().saturating_sub(LOG)..];
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        text.push_str(&format!("== {name}\n{}\n", String::from_utf8_lossy(kept).trim_end()));
    }
    text
}
