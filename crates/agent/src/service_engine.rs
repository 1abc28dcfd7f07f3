//! Service programs that run next to an agent's flows: third-party programs on a host that netstage does not
//! own. Servers listen from the preparation of the run on. All programs end with the run, and with the agent,
//! however it ends.

use super::engine::AssignmentEngine;
use super::scratch::{Scratch, ScratchFolder};
use super::work::refusal;
use super::work::{PreparedWork, RunningTotals, Worker, wait};
use crate::services::run::{ServiceServer, log, run_client};
use crate::services::site::ProgramSite;
use crate::services::{ServiceSpec, missing_program};
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::results::AgentReport;
use netstage_agent_api::service::{ServiceResult, ServiceRole, ServiceWorkload};
use netstage_agent_api::task::{Assignment, ServiceTask};
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::thread;

/// First port that services may use; lower ones are reserved for the system.
const FIRST_PORT: u16 = 1024;
/// Maximum size of a file, and of a read, bytes. A file is sparse and takes no disk space.
const MAX_FILE_BYTES: u64 = 1 << 40;
const MAX_READ_BYTES: u32 = 1 << 24;
/// Maximum number of outstanding reads.
const MAX_OUTSTANDING_READS: u32 = 1024;
/// Maximum number of services at one agent.
const MAX_SERVICES: usize = 64;

/// Traffic engine with services.
pub struct ServiceEngine(Scratch);

impl ServiceEngine {
    /// Returns a worker whose services keep their files in `scratch`.
    pub fn new(scratch: Scratch) -> ServiceEngine {
        ServiceEngine(scratch)
    }
}

impl Worker for ServiceEngine {
    fn prepare(&self, assignment: &Assignment) -> Result<Box<dyn PreparedWork>, OrderRefusal> {
        let mut flows = assignment.clone();
        let tasks = std::mem::take(&mut flows.services);
        if tasks.is_empty() {
            return AssignmentEngine.prepare(&flows);
        }
        if tasks.len() > MAX_SERVICES {
            let reason = format!("more than {MAX_SERVICES} services at one agent");
            return Err(OrderRefusal::new(OrderRefusalKind::Assignment, reason));
        }
        tasks.iter().try_for_each(|task| check(task).map_err(|refusal| refusal.service(&task.name)))?;
        let begin = |task: &ServiceTask| {
            ServiceEnd::begin(task, assignment, &self.0).map_err(|refusal| refusal.service(&task.name))
        };
        let ends = tasks.iter().map(begin).collect::<Result<_, _>>()?;
        Ok(Box::new(TrafficWithServices {
            flows: AssignmentEngine.prepare(&flows)?,
            ends,
            node: assignment.node.clone(),
        }))
    }
}

/// Checks whether this host can run this end of the service.
fn check(task: &ServiceTask) -> Result<(), OrderRefusal> {
    let refused = |reason: String| Err(OrderRefusal::new(OrderRefusalKind::Assignment, reason));
    match task.task {
        ServiceWorkload::Ftp { size } if size > MAX_FILE_BYTES => {
            return refused(format!("file size {size} bytes exceeds the limit of {MAX_FILE_BYTES}"));
        }
        ServiceWorkload::Iscsi { block, queue_depth }
            if block > MAX_READ_BYTES || queue_depth > MAX_OUTSTANDING_READS =>
        {
            return refused(format!(
                "{queue_depth} reads of {block} bytes exceed the limit of {MAX_OUTSTANDING_READS} reads of {MAX_READ_BYTES} bytes"
            ));
        }
        ServiceWorkload::Ftp { .. } | ServiceWorkload::Iscsi { .. } => {}
    }
    if !(FIRST_PORT..u16::MAX).contains(&task.destination.port()) {
        return refused(format!("port {} is reserved for the system", task.destination.port()));
    }
    if let Some((program, package)) = missing_program(task.role, task.task.program()) {
        return Err(OrderRefusal::new(OrderRefusalKind::Missing, format!("{program} is not installed"))
            .remedy(format!("on that host: apt-get install {package}")));
    }
    if task.role == ServiceRole::Server {
        for port in [task.destination.port(), task.data_port()] {
            let mut address = task.destination;
            address.set_port(port);
            TcpListener::bind(address).map_err(|error| {
                let kind = match error.kind() {
                    io::ErrorKind::AddrInUse => OrderRefusalKind::InUse,
                    _ => OrderRefusalKind::System,
                };
                OrderRefusal::new(kind, format!("cannot listen at {address}: {error}"))
            })?;
        }
    }
    Ok(())
}

/// One end of a service.
struct ServiceEnd {
    spec: ServiceSpec,
    site: ProgramSite,
    /// Declared before the folder, so that the server ends before its folder is removed.
    server: Option<ServiceServer>,
    _folder: ScratchFolder,
}

impl ServiceEnd {
    fn begin(
        task: &ServiceTask,
        assignment: &Assignment,
        scratch: &Scratch,
    ) -> Result<ServiceEnd, OrderRefusal> {
        let system = |error: io::Error| OrderRefusal::new(OrderRefusalKind::System, error.to_string());
        let name = if task.role == ServiceRole::Server { "server" } else { "client" };
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
        let site = ProgramSite::current().map_err(system)?;
        let server = match task.role {
            ServiceRole::Server => Some(ServiceServer::start(spec.clone(), &site).map_err(refusal)?),
            ServiceRole::Client => None,
        };
        Ok(ServiceEnd { spec, site, server, _folder: folder })
    }

    fn attend(&self, epoch: Epoch, stop: &AtomicBool) -> ServiceResult {
        let mut result = run_client(&self.spec, &self.site, epoch, stop);
        if result.error.is_some() {
            result.log = log(&self.spec);
        }
        result
    }
}

/// Flows together with services.
struct TrafficWithServices {
    flows: Box<dyn PreparedWork>,
    ends: Vec<ServiceEnd>,
    node: String,
}

impl PreparedWork for TrafficWithServices {
    fn receiving_ports(&self) -> Vec<(u32, u16)> {
        self.flows.receiving_ports()
    }

    fn run(self: Box<Self>, epoch: Epoch, stop: &AtomicBool, totals: &RunningTotals) -> AgentReport {
        let TrafficWithServices { flows, mut ends, node } = *self;
        let (servers, clients): (Vec<&mut ServiceEnd>, Vec<&mut ServiceEnd>) =
            ends.iter_mut().partition(|end| end.server.is_some());
        let mut report = thread::scope(|scope| {
            let clients: Vec<_> =
                clients.into_iter().map(|end| scope.spawn(|| end.attend(epoch, stop))).collect();
            let mut report = flows.run(epoch, stop, totals);
            // A server lasts until the end of the run, even if the flows are over earlier.
            if let Some(end) = servers.first() {
                wait(epoch, Instant(end.spec.duration.0), stop);
            }
            report.services = clients.into_iter().filter_map(|thread| thread.join().ok()).collect();
            report
        });
        for end in servers {
            if let Some(message) = end.server.as_mut().and_then(ServiceServer::exit_message) {
                report.warnings.push(format!(
                    "node.{node}: the server of service.{} ended before the end of the run: {message}",
                    end.spec.name
                ));
            }
        }
        report.node = node;
        report
    }
}
