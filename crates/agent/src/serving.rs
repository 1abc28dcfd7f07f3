//! Ends of services beside an agent's flows: programs of others, on a host that is not ours. Servers listen from
//! when the run is prepared; all of it ends with the run, and with the agent however that ends.

use super::engine::Engine;
use super::scratch::{Folder, Scratch};
use super::work::refusal;
use super::work::{Totals, Work, Worker, wait};
use crate::services::run::{Server, attend, log};
use crate::services::site::Site;
use crate::services::{ServiceSpec, missing_at};
use netstage_agent_api::protocol::{Refusal, RefusalKind};
use netstage_agent_api::results::Report;
use netstage_agent_api::service::{Role, ServiceResult, Task};
use netstage_agent_api::task::{Assignment, ServiceTask};
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::thread;

/// Ports below belong to the system's own services.
const FIRST_PORT: u16 = 1024;
/// Largest file, and largest read; a file is a hole and takes no room.
const MOST_BYTES: u64 = 1 << 40;
const MOST_BLOCK: u32 = 1 << 24;
/// Most reads under way.
const MOST_READS: u32 = 1024;
/// Most services at one agent.
const MOST_SERVICES: usize = 64;

/// The traffic engine, and services beside it.
pub struct Serving(Scratch);

impl Serving {
    /// Services have their files there.
    pub fn new(scratch: Scratch) -> Serving {
        Serving(scratch)
    }
}

impl Worker for Serving {
    fn prepare(&self, assignment: &Assignment) -> Result<Box<dyn Work>, Refusal> {
        let mut flows = assignment.clone();
        let tasks = std::mem::take(&mut flows.services);
        if tasks.is_empty() {
            return Engine.prepare(&flows);
        }
        if tasks.len() > MOST_SERVICES {
            let reason = format!("more than {MOST_SERVICES} services at one agent");
            return Err(Refusal::new(RefusalKind::Assignment, reason));
        }
        tasks.iter().try_for_each(|task| check(task).map_err(|refusal| refusal.service(&task.name)))?;
        let begin = |task: &ServiceTask| {
            End::begin(task, assignment, &self.0).map_err(|refusal| refusal.service(&task.name))
        };
        let ends = tasks.iter().map(begin).collect::<Result<_, _>>()?;
        Ok(Box::new(Beside { flows: Engine.prepare(&flows)?, ends, node: assignment.node.clone() }))
    }
}

/// Whether this host can be an end of the service at all.
fn check(task: &ServiceTask) -> Result<(), Refusal> {
    let refused = |reason: String| Err(Refusal::new(RefusalKind::Assignment, reason));
    match task.task {
        Task::Ftp { size } if size > MOST_BYTES => {
            return refused(format!("a file of {size} bytes; an agent serves {MOST_BYTES} at most"));
        }
        Task::Iscsi { block, queue_depth } if block > MOST_BLOCK || queue_depth > MOST_READS => {
            return refused(format!(
                "{queue_depth} reads of {block} bytes; an agent does {MOST_READS} of {MOST_BLOCK} at most"
            ));
        }
        Task::Ftp { .. } | Task::Iscsi { .. } => {}
    }
    if !(FIRST_PORT..u16::MAX).contains(&task.destination.port()) {
        return refused(format!("port {} belongs to the system", task.destination.port()));
    }
    if let Some((program, package)) = missing_at(task.role, task.task.program()) {
        return Err(Refusal::new(RefusalKind::Missing, format!("{program} is not installed"))
            .remedy(format!("there: apt-get install {package}")));
    }
    if task.role == Role::Server {
        for port in [task.destination.port(), task.data_port()] {
            let mut address = task.destination;
            address.set_port(port);
            TcpListener::bind(address).map_err(|error| {
                let kind = match error.kind() {
                    io::ErrorKind::AddrInUse => RefusalKind::InUse,
                    _ => RefusalKind::System,
                };
                Refusal::new(kind, format!("cannot listen at {address}: {error}"))
            })?;
        }
    }
    Ok(())
}

/// One end of a service.
struct End {
    spec: ServiceSpec,
    site: Site,
    /// Ends before its folder goes.
    server: Option<Server>,
    _folder: Folder,
}

impl End {
    fn begin(task: &ServiceTask, assignment: &Assignment, scratch: &Scratch) -> Result<End, Refusal> {
        let system = |error: io::Error| Refusal::new(RefusalKind::System, error.to_string());
        let name = if task.role == Role::Server { "server" } else { "client" };
        let folder = scratch.folder(&format!("{}-{name}", task.id)).map_err(system)?;
        let spec = ServiceSpec {
            name: task.name.clone(),
            task: task.task,
            source: task.source,
            destination: task.destination,
            start: task.start,
            duration: assignment.duration,
            interval: assignment.interval,
            folder: folder.path().to_owned(),
        };
        let site = Site::here().map_err(system)?;
        let server = match task.role {
            Role::Server => Some(Server::start(spec.clone(), &site).map_err(refusal)?),
            Role::Client => None,
        };
        Ok(End { spec, site, server, _folder: folder })
    }

    fn attend(&self, epoch: Epoch, stop: &AtomicBool) -> ServiceResult {
        let mut result = attend(&self.spec, &self.site, epoch, stop);
        if result.error.is_some() {
            result.log = log(&self.spec);
        }
        result
    }
}

/// Flows, and services beside them.
struct Beside {
    flows: Box<dyn Work>,
    ends: Vec<End>,
    node: String,
}

impl Work for Beside {
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        self.flows.receiving_ports()
    }

    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &Totals) -> Report {
        let Beside { flows, mut ends, node } = *self;
        let (servers, clients): (Vec<&mut End>, Vec<&mut End>) =
            ends.iter_mut().partition(|end| end.server.is_some());
        let mut report = thread::scope(|scope| {
            let attended: Vec<_> =
                clients.into_iter().map(|end| scope.spawn(|| end.attend(epoch, stop))).collect();
            let mut report = flows.run(epoch, stop, totals);
            // A server lasts as long as the run, whose flows may be over before.
            if let Some(end) = servers.first() {
                wait(epoch, Instant(end.spec.duration.0), stop);
            }
            report.services = attended.into_iter().filter_map(|thread| thread.join().ok()).collect();
            report
        });
        for end in servers {
            if let Some(words) = end.server.as_mut().and_then(Server::ended) {
                report.warnings.push(format!(
                    "node.{node}: the server of service.{} ended before the run: {words}",
                    end.spec.name
                ));
            }
        }
        report.node = node;
        report
    }
}
