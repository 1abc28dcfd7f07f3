//! Services between two namespaces of an emulated network.

use super::PlacedService;
use netstage_agent::services::run::{ServiceServer, log, run_client};
use netstage_agent::services::site::ProgramSite;
use netstage_agent_api::service::ServiceResult;
use netstage_host::clock::Epoch;
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

/// Service between two namespaces with a listening server.
pub struct RunningService {
    server: ServiceServer,
    client: Option<ProgramSite>,
    running: Option<JoinHandle<ServiceResult>>,
}

impl RunningService {
    /// Starts the server and waits until it listens. `nodes` are the namespaces of the network.
    pub fn start(
        placed: PlacedService,
        nodes: &[Option<Namespace>],
        netstage: &Path,
    ) -> Result<RunningService, StartupError> {
        let PlacedService { spec, client, server } = placed;
        let broken = |e: io::Error| {
            StartupError::without_remedy(format!("service.{}: cannot start the server: {e}", spec.name))
        };
        let site = |index: usize| {
            let node = nodes[index].as_ref().expect("a node with a service is used");
            ProgramSite::in_namespace(node, netstage).map_err(broken)
        };
        let (client, server) = (site(client)?, site(server)?);
        Ok(RunningService {
            server: ServiceServer::start(spec, &server)?,
            client: Some(client),
            running: None,
        })
    }

    /// Starts the client at its start time. The client ends with the run, or when `stop` is set.
    pub fn run(&mut self, epoch: Epoch, stop: &Arc<AtomicBool>) {
        let (spec, stop) = (self.server.spec().clone(), Arc::clone(stop));
        let Some(client) = self.client.take() else { return };
        self.running = Some(thread::spawn(move || run_client(&spec, &client, epoch, &stop)));
    }

    /// Waits for the end of the run and returns the result.
    pub fn finish(mut self) -> ServiceResult {
        let spec = self.server.spec();
        let result = self.running.take().and_then(|running| running.join().ok());
        let mut result = result.unwrap_or_else(|| ServiceResult {
            name: spec.name.clone(),
            error: Some("the thread of the client has failed".into()),
            ..ServiceResult::default()
        });
        if result.error.is_some() {
            result.log = log(spec);
        }
        result
    }
}
