//! Controller's side of the fabric process. Messages are lines of JSON on the standard input and output of the process.
//! If the controller exits, that input ends, and the process exits with its agents, namespaces and interfaces.

use super::services::PlacedService;
use super::services::frr::RoutingSpec;
use super::services::gateways::GatewaysSpec;
use super::services::route_server::{RouteServerReport, RouteServerSpec};
use super::spec::Spec;
use netstage_agent_api::results::{CompletedWindow, WatchedWindows};
use netstage_agent_api::service::ServiceResult;
use netstage_agent_api::watch::WatchSpec;
use netstage_emulator as emulator;
use netstage_emulator::report::BinReport;
use netstage_host::clock::Epoch;
use netstage_host::startup_error::StartupError;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Maximum time to build a network.
const BUILD_LIMIT: Duration = Duration::from_secs(60);
/// Maximum time after the end of a run until the fabric reports its results.
const FINISH_LIMIT: Duration = Duration::from_secs(20);

/// Request of the controller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricRequest {
    /// Build the network and start the agents.
    Build(Box<Build>),
    /// Run at this time.
    Run(Epoch),
    /// End the run now.
    Stop,
}

/// Network with its agents and services.
#[derive(Debug, Serialize, Deserialize)]
pub struct Build {
    /// Network to build.
    pub spec: Spec,
    /// Configuration of its links.
    pub emulator: emulator::EmulatorConfig,
    /// Agents to start.
    pub agents: Vec<AgentSpec>,
    /// Services to run.
    pub services: Vec<PlacedService>,
    /// Routers with routing daemons.
    pub routing: Option<RoutingSpec>,
    /// Gateways and their tunnels.
    pub gateways: Option<GatewaysSpec>,
    /// Route server with its members.
    pub route_server: Option<RouteServerSpec>,
    /// TCP flows whose windows are watched, with the indices of their sending nodes.
    pub watch: Option<(WatchSpec, Vec<usize>)>,
    /// Reports bins during the run.
    pub report_bins: bool,
}

/// Agent to start in a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// Index of the node.
    pub node: usize,
    /// Path of its socket.
    pub socket: PathBuf,
    /// Path of the spool for its results.
    pub spool: PathBuf,
    /// Path of its log.
    pub log: PathBuf,
}

/// Response of the fabric.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricResponse {
    /// The network is built and the agents are started.
    Ready,
    /// A bin of the run has ended.
    Bin(BinReport),
    /// A bin of a watched window has ended.
    Window(CompletedWindow),
    /// The run is over.
    Finished(Box<FabricResults>),
    /// The request failed.
    Failed(StartupError),
}

/// Results of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct FabricResults {
    /// Report of the emulator.
    pub emulator: emulator::EmulatorReport,
    /// Results of the services, in their order.
    pub services: Vec<ServiceResult>,
    /// Results of the route server.
    pub route_server: Option<RouteServerReport>,
    /// Messages about routers, daemons and gateways that exited before the end of the run.
    pub ended: Vec<String>,
    /// Samples of the watched windows.
    pub watched: WatchedWindows,
}

/// Running fabric process.
#[derive(Debug)]
pub struct Fabric {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<io::Result<FabricResponse>>,
    /// Response that arrived while bins were taken.
    early: Option<io::Result<FabricResponse>>,
}

impl Fabric {
    /// Starts the fabric process (`program` with the argument `fabric`) and builds a network. Polls `stop` meanwhile.
    pub fn start(program: &Path, build: Build, stop: &dyn Fn() -> bool) -> Result<Fabric, StartupError> {
        let mut child = Command::new(program)
            .arg("fabric")
            // An interrupt at the terminal must only reach the controller.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| StartupError::without_remedy(format!("cannot start {}: {e}", program.display())))?;
        let orders = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("the output is piped"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let answer = line.and_then(|line| Ok(serde_json::from_str(&line)?));
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        let patience = build.routing.as_ref().map_or(0, |routing| routing.patience.0);
        let limit = Instant::now() + BUILD_LIMIT + Duration::from_nanos(patience);
        let mut fabric = Fabric { child, orders, answers, early: None };
        fabric.send(&FabricRequest::Build(Box::new(build)))?;
        match fabric.answer(limit, stop)? {
            Some(FabricResponse::Ready) => Ok(fabric),
            Some(FabricResponse::Failed(failed)) => Err(failed),
            Some(FabricResponse::Finished(_) | FabricResponse::Bin(_) | FabricResponse::Window(_)) => {
                Err(StartupError::without_remedy("unexpected response of the fabric process"))
            }
            None => Err(StartupError::without_remedy("interrupted while the network was built")),
        }
    }

    /// Starts the run at `epoch`.
    pub fn run(&mut self, epoch: Epoch) -> Result<(), StartupError> {
        self.send(&FabricRequest::Run(epoch))
    }

    /// Ends the run early.
    pub fn stop(&mut self) -> Result<(), StartupError> {
        self.send(&FabricRequest::Stop)
    }

    /// Returns the bins of links and watched windows that were reported since the last call.
    pub fn take_bins(&mut self) -> (Vec<BinReport>, Vec<CompletedWindow>) {
        let (mut bins, mut windows) = (Vec::new(), Vec::new());
        while self.early.is_none() {
            match self.answers.try_recv() {
                Ok(Ok(FabricResponse::Bin(bin))) => bins.push(bin),
                Ok(Ok(FabricResponse::Window(window))) => windows.push(window),
                Ok(other) => self.early = Some(other),
                Err(_) => break,
            }
        }
        (bins, windows)
    }

    /// Waits for the results of the run.
    pub fn finish(mut self) -> Result<FabricResults, StartupError> {
        match self.answer(Instant::now() + FINISH_LIMIT, &|| false)? {
            Some(FabricResponse::Finished(finished)) => Ok(*finished),
            Some(FabricResponse::Failed(failed)) => Err(failed),
            Some(FabricResponse::Ready | FabricResponse::Bin(_) | FabricResponse::Window(_)) | None => {
                Err(StartupError::without_remedy("unexpected response of the fabric process"))
            }
        }
    }

    /// Returns whether the process is running.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn send(&mut self, order: &FabricRequest) -> Result<(), StartupError> {
        let orders = self.orders.as_mut().expect("the input is open until the fabric is dropped");
        let mut line = serde_json::to_vec(order).expect("requests can be serialized");
        line.push(b'\n');
        let written = orders.write_all(&line).and_then(|()| orders.flush());
        // A fabric that has failed reports the reason in its response.
        if written.is_err() && self.child.try_wait().is_err() {
            return Err(StartupError::without_remedy("the fabric process has exited"));
        }
        Ok(())
    }

    /// Waits for the next response; returns `None` if `stop` returns true.
    fn answer(
        &mut self,
        limit: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<FabricResponse>, StartupError> {
        loop {
            let received = match self.early.take() {
                Some(early) => Ok(early),
                None => self.answers.recv_timeout(Duration::from_millis(50)),
            };
            match received {
                // Bins are no longer needed.
                Ok(Ok(FabricResponse::Bin(_) | FabricResponse::Window(_))) => {}
                Ok(Ok(answer)) => return Ok(Some(answer)),
                Ok(Err(error)) => {
                    return Err(StartupError::without_remedy(format!(
                        "cannot read the response of the fabric process: {error}"
                    )));
                }
                Err(RecvTimeoutError::Timeout) if stop() => return Ok(None),
                Err(RecvTimeoutError::Timeout) if Instant::now() < limit => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(StartupError::without_remedy("the fabric process does not respond"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait().map_or("unknown status".to_owned(), |s| s.to_string());
                    return Err(StartupError::without_remedy(format!(
                        "the fabric process exited early: {status}"
                    )));
                }
            }
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // The process exits when its input ends. If it does not, it is killed.
        self.orders = None;
        let limit = Instant::now() + Duration::from_secs(3);
        while Instant::now() < limit {
            if !self.is_alive() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
