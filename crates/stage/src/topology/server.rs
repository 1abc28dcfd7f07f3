//! Fabric process: holds the namespaces, runs the emulator and is the parent of the agents. It exits when its standard
//! input ends, and the network is removed with it.

use super::links::Links;
use super::network::EmulatedNetwork;
use super::process::{AgentSpec, Build, FabricRequest, FabricResponse, FabricResults};
use super::services::frr::run::RoutingProcesses;
use super::services::gateways::run::Gateways;
use super::services::route_server::run::RunningRouteServer;
use super::services::run::RunningService;
use netstage_agent_api::results::{CompletedWindow, WatchedWindows};
use netstage_emulator::EmulatorReport;
use netstage_emulator::report::BinReport;
use netstage_host::clock::Epoch;
use netstage_host::netns::{spawn_in, user};
use netstage_host::startup_error::StartupError;
use netstage_tcp_watch::watch::WindowWatch;
use nix::sys::{prctl, signal::Signal};
use std::fs::File;
use std::io::{self, BufRead as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Event of the fabric's main loop.
enum FabricEvent {
    Order(FabricRequest),
    /// The input has ended or is invalid.
    End,
    /// A bin of the run has ended.
    Bin(BinReport),
    /// A bin of a watched window has ended.
    Window(Box<CompletedWindow>),
    /// The run is over.
    Finished(Box<EmulatorReport>),
}

/// Serves a controller on standard input and output. Must be called before any thread is started.
pub fn serve() {
    // The end of the input only stops a process that still reads it.
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    let (events, received) = channel();
    let privileged = user::become_privileged();
    let orders = events.clone();
    std::thread::spawn(move || read_orders(&orders));
    let mut stage = match (privileged, received.recv()) {
        (Err(forbidden), Ok(FabricEvent::Order(FabricRequest::Build(_)))) => {
            let remedy = forbidden.remedies.join("; or ");
            return answer(&FabricResponse::Failed(StartupError::missing_feature(
                forbidden.to_string(),
                remedy,
            )));
        }
        (Ok(()), Ok(FabricEvent::Order(FabricRequest::Build(build)))) => {
            match RunningNetwork::build(*build) {
                Ok(stage) => stage,
                Err(failed) => return answer(&FabricResponse::Failed(failed)),
            }
        }
        _ => return,
    };
    answer(&FabricResponse::Ready);
    stage.serve(&received, &events);
}

fn read_orders(orders: &Sender<FabricEvent>) {
    for line in io::stdin().lock().lines() {
        let order = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        let Some(order) = order else { break };
        if orders.send(FabricEvent::Order(order)).is_err() {
            return;
        }
    }
    let _ = orders.send(FabricEvent::End);
}

fn answer(answer: &FabricResponse) {
    let mut line = serde_json::to_vec(answer).expect("responses can be serialized");
    line.push(b'\n');
    let mut output = io::stdout().lock();
    // A controller that has exited needs no response.
    let _ = output.write_all(&line).and_then(|()| output.flush());
}

/// Network with its emulator, agents and services.
struct RunningNetwork {
    network: EmulatedNetwork,
    links: Option<Links>,
    agents: Vec<Child>,
    services: Vec<RunningService>,
    routing: Option<RoutingProcesses>,
    gateways: Option<Gateways>,
    route_server: Option<RunningRouteServer>,
    watch: Option<WindowWatch>,
    watching: Option<JoinHandle<WatchedWindows>>,
    report_bins: bool,
    /// Forwards frames before the run, if routers must find each other first.
    pre_run: Option<PreRunForwarding>,
    stop: Arc<AtomicBool>,
    running: Option<JoinHandle<()>>,
    /// Messages about failures since the start of the run.
    failures: Vec<String>,
}

/// Thread that forwards frames without emulation until the run begins.
struct PreRunForwarding {
    stop: Arc<AtomicBool>,
    links: JoinHandle<Links>,
}

impl PreRunForwarding {
    fn begin(mut links: Links) -> PreRunForwarding {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_flag = Arc::clone(&stop);
        let carry = move || {
            links.forward_before_run(&stop_flag);
            links
        };
        PreRunForwarding { stop, links: std::thread::spawn(carry) }
    }

    fn end(self) -> Option<Links> {
        self.stop.store(true, Ordering::Relaxed);
        self.links.join().ok()
    }
}

impl RunningNetwork {
    fn build(build: Build) -> Result<RunningNetwork, StartupError> {
        let mut network = EmulatedNetwork::build(&build.spec)?;
        let links = Links::new(&build.spec, build.emulator, &mut network)?;
        let program = std::env::current_exe()
            .map_err(|e| StartupError::without_remedy(format!("cannot find the netstage executable: {e}")))?;
        let mut stage = RunningNetwork {
            links: Some(links),
            agents: Vec::new(),
            services: Vec::new(),
            routing: None,
            gateways: None,
            route_server: None,
            watch: None,
            watching: None,
            report_bins: build.report_bins,
            pre_run: None,
            stop: Arc::new(AtomicBool::new(false)),
            running: None,
            failures: Vec::new(),
            network,
        };
        if build.routing.is_some() || build.gateways.is_some() {
            stage.pre_run = stage.links.take().map(PreRunForwarding::begin);
        }
        if let Some(spec) = build.routing {
            let nodes = &stage.network.nodes;
            stage.routing = Some(RoutingProcesses::start(spec, nodes, &program)?);
        }
        if let Some(spec) = build.gateways {
            stage.gateways = Some(Gateways::start(spec, &stage.network.nodes, &program)?);
        }
        if let Some(spec) = build.route_server {
            stage.route_server = Some(RunningRouteServer::start(spec, &stage.network.nodes)?);
        }
        if let Some((spec, senders)) = build.watch {
            let namespaces = stage.network.numbers(&senders)?;
            stage.watch = Some(WindowWatch::start(spec, namespaces)?);
        }
        for agent in &build.agents {
            stage.start_agent(&program, agent)?;
        }
        for service in build.services {
            stage.services.push(RunningService::start(service, &stage.network.nodes, &program)?);
        }
        Ok(stage)
    }

    fn start_agent(&mut self, program: &Path, agent: &AgentSpec) -> Result<(), StartupError> {
        let cannot = |e| StartupError::without_remedy(format!("cannot start an agent: {e}"));
        let namespace = self.network.nodes[agent.node].as_ref().expect("a node with flows is used");
        let mut command = Command::new(program);
        command.arg("agent").arg("--socket").arg(&agent.socket).arg("--spool").arg(&agent.spool);
        let log = File::create(&agent.log).map_err(cannot)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agents.push(spawn_in(namespace, command).map_err(cannot)?);
        Ok(())
    }

    /// Handles events until the controller exits.
    fn serve(&mut self, events: &Receiver<FabricEvent>, sender: &Sender<FabricEvent>) {
        while let Ok(event) = events.recv() {
            match event {
                FabricEvent::Order(FabricRequest::Run(epoch)) => self.run(epoch, sender),
                FabricEvent::Order(FabricRequest::Stop) => self.stop.store(true, Ordering::Relaxed),
                FabricEvent::Bin(bin) => answer(&FabricResponse::Bin(bin)),
                FabricEvent::Window(window) => answer(&FabricResponse::Window(*window)),
                FabricEvent::Finished(emulator) => {
                    let services = self.services.drain(..).map(RunningService::finish).collect();
                    let mut ended = self.routing.as_mut().map_or(Vec::new(), RoutingProcesses::ended);
                    ended.extend(self.gateways.as_mut().map_or(Vec::new(), Gateways::ended));
                    ended.extend(self.route_server.as_mut().map_or(Vec::new(), RunningRouteServer::ended));
                    ended.append(&mut self.failures);
                    self.stop.store(true, Ordering::Relaxed);
                    let route_server = self.route_server.take().map(RunningRouteServer::finish);
                    let watched = self.watching.take().and_then(|watching| watching.join().ok());
                    let watched = watched.unwrap_or_default();
                    let emulator = *emulator;
                    answer(&FabricResponse::Finished(Box::new(FabricResults {
                        emulator,
                        services,
                        route_server,
                        ended,
                        watched,
                    })));
                }
                FabricEvent::Order(FabricRequest::Build(_)) | FabricEvent::End => break,
            }
        }
        self.stop.store(true, Ordering::Relaxed);
        if let Some(running) = self.running.take() {
            let _ = running.join();
        }
        self.pre_run.take().and_then(PreRunForwarding::end);
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    fn run(&mut self, epoch: Epoch, sender: &Sender<FabricEvent>) {
        let links = self.links.take().or_else(|| self.pre_run.take().and_then(PreRunForwarding::end));
        let Some(mut links) = links else { return };
        if self.report_bins {
            links.report_bins(forward_bins(sender.clone()));
        }
        if let Some(watch) = self.watch.take() {
            let (stop, events) = (Arc::clone(&self.stop), self.report_bins.then(|| sender.clone()));
            let report = move |window| {
                if let Some(events) = &events {
                    // A main loop that has ended needs no bins.
                    let _ = events.send(FabricEvent::Window(Box::new(window)));
                }
            };
            self.watching = Some(std::thread::spawn(move || watch.run(epoch, &stop, report)));
        }
        let (stop, sender) = (Arc::clone(&self.stop), sender.clone());
        let work = move || {
            let report = links.run(epoch, &stop);
            let _ = sender.send(FabricEvent::Finished(Box::new(report)));
        };
        self.running = Some(std::thread::spawn(work));
        for service in &mut self.services {
            service.run(epoch, &self.stop);
        }
        if let Some(server) = &mut self.route_server
            && let Err(error) = server.run(epoch, &self.network.nodes, &self.stop)
        {
            self.failures.push(format!("cannot start the members of the route server: {error}"));
        }
    }
}

/// Returns a sender for the bins of links, whose receiving thread forwards them to the main loop.
fn forward_bins(events: Sender<FabricEvent>) -> Sender<BinReport> {
    let (sender, bins) = channel();
    std::thread::spawn(move || bins.into_iter().try_for_each(|bin| events.send(FabricEvent::Bin(bin))));
    sender
}
