//! The fabric's process, seen from the controller: started, told when the run begins,
//! asked for what the emulator saw. Messages are lines of JSON on its standard input and
//! output. When the controller is gone its input ends, and with the process go its agents,
//! namespaces and interfaces.

use super::services::Placed;
use super::services::frr::RoutingSpec;
use super::services::gateways::GatewaysSpec;
use super::spec::Spec;
use netstage_agent_api::results::{EndedWindow, Watched};
use netstage_agent_api::service::ServiceResult;
use netstage_agent_api::watch::WatchSpec;
use netstage_emulator as emulator;
use netstage_emulator::report::EndedBin;
use netstage_host::clock::Epoch;
use netstage_host::obstacle::Obstacle;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest a network may take to come up.
const BUILD_LIMIT: Duration = Duration::from_secs(60);
/// Longest the fabric may take, past the end of a run, to tell what it saw.
const FINISH_LIMIT: Duration = Duration::from_secs(20);

/// What the controller says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Build the network and start the agents.
    Build(Box<Build>),
    /// The run begins then.
    Run(Epoch),
    /// End it now.
    Stop,
}

/// A network and who is in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Build {
    /// The network.
    pub spec: Spec,
    /// What its links do.
    pub emulator: emulator::Config,
    /// The agents to start.
    pub agents: Vec<AgentSpec>,
    /// The services to run.
    pub services: Vec<Placed>,
    /// Routers that routing daemons drive.
    pub routing: Option<RoutingSpec>,
    /// Gateways and their tunnels.
    pub gateways: Option<GatewaysSpec>,
    /// TCP flows whose windows are watched, and indices of the nodes that send them.
    pub watch: Option<(WatchSpec, Vec<usize>)>,
    /// Whether to tell of bins while the run goes on.
    pub tell_bins: bool,
}

/// An agent to start in a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// Index of the node.
    pub node: usize,
    /// Socket it listens on.
    pub socket: PathBuf,
    /// Where it spools its results.
    pub spool: PathBuf,
    /// Where what it has to say to people goes.
    pub log: PathBuf,
}

/// What the fabric answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The network is there and the agents are started.
    Ready,
    /// A bin of the run has ended.
    Bin(EndedBin),
    /// A bin of a watched window has ended.
    Window(EndedWindow),
    /// The run is over.
    Finished(Box<Finished>),
    /// It cannot be done.
    Failed(Obstacle),
}

/// What the fabric saw of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Finished {
    /// What its emulator saw.
    pub emulator: emulator::Report,
    /// What came of the services, in their order.
    pub services: Vec<ServiceResult>,
    /// Routers, daemons and gateways that ended before the run did.
    pub ended: Vec<String>,
    /// What happened to the windows that are watched.
    pub watched: Watched,
}

/// A fabric that is there.
#[derive(Debug)]
pub struct Fabric {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<io::Result<Answer>>,
    /// An answer that came while bins were taken.
    early: Option<io::Result<Answer>>,
}

impl Fabric {
    /// Starts the fabric's process (`program` with the argument `fabric`) and has it build
    /// a network; `stop` is asked while that lasts.
    pub fn start(program: &Path, build: Build, stop: &dyn Fn() -> bool) -> Result<Fabric, Obstacle> {
        let mut child = Command::new(program)
            .arg("fabric")
            // An interrupt at the terminal is the controller's to act on.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Obstacle::broken(format!("cannot start {}: {e}", program.display())))?;
        let orders = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
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
        fabric.tell(&Order::Build(Box::new(build)))?;
        match fabric.answer(limit, stop)? {
            Some(Answer::Ready) => Ok(fabric),
            Some(Answer::Failed(failed)) => Err(failed),
            Some(Answer::Finished(_) | Answer::Bin(_) | Answer::Window(_)) => {
                Err(Obstacle::broken("the fabric answered out of turn"))
            }
            None => Err(Obstacle::broken("stopped while the network was built")),
        }
    }

    /// The run begins then.
    pub fn run(&mut self, epoch: Epoch) -> Result<(), Obstacle> {
        self.tell(&Order::Run(epoch))
    }

    /// Ends the run early.
    pub fn stop(&mut self) -> Result<(), Obstacle> {
        self.tell(&Order::Stop)
    }

    /// The bins of links and of watched windows that ended since they were taken before, where they are told.
    pub fn take_ended(&mut self) -> (Vec<EndedBin>, Vec<EndedWindow>) {
        let (mut bins, mut windows) = (Vec::new(), Vec::new());
        while self.early.is_none() {
            match self.answers.try_recv() {
                Ok(Ok(Answer::Bin(bin))) => bins.push(bin),
                Ok(Ok(Answer::Window(window))) => windows.push(window),
                Ok(other) => self.early = Some(other),
                Err(_) => break,
            }
        }
        (bins, windows)
    }

    /// What it saw, once the run is over.
    pub fn finish(mut self) -> Result<Finished, Obstacle> {
        match self.answer(Instant::now() + FINISH_LIMIT, &|| false)? {
            Some(Answer::Finished(finished)) => Ok(*finished),
            Some(Answer::Failed(failed)) => Err(failed),
            Some(Answer::Ready | Answer::Bin(_) | Answer::Window(_)) | None => {
                Err(Obstacle::broken("the fabric answered out of turn"))
            }
        }
    }

    /// Whether the process still is there.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn tell(&mut self, order: &Order) -> Result<(), Obstacle> {
        let orders = self.orders.as_mut().expect("open as long as the fabric");
        let mut line = serde_json::to_vec(order).expect("orders are text and numbers");
        line.push(b'\n');
        let written = orders.write_all(&line).and_then(|()| orders.flush());
        // A fabric that has failed says why in its answer.
        if written.is_err() && self.child.try_wait().is_err() {
            return Err(Obstacle::broken("the fabric is gone"));
        }
        Ok(())
    }

    /// The next answer; none where `stop` says so.
    fn answer(&mut self, limit: Instant, stop: &dyn Fn() -> bool) -> Result<Option<Answer>, Obstacle> {
        loop {
            let received = match self.early.take() {
                Some(early) => Ok(early),
                None => self.answers.recv_timeout(Duration::from_millis(50)),
            };
            match received {
                // Nobody asks for bins any more.
                Ok(Ok(Answer::Bin(_) | Answer::Window(_))) => {}
                Ok(Ok(answer)) => return Ok(Some(answer)),
                Ok(Err(error)) => {
                    return Err(Obstacle::broken(format!("the fabric cannot be understood: {error}")));
                }
                Err(RecvTimeoutError::Timeout) if stop() => return Ok(None),
                Err(RecvTimeoutError::Timeout) if Instant::now() < limit => {}
                Err(RecvTimeoutError::Timeout) => return Err(Obstacle::broken("the fabric does not answer")),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait().map_or("unknown".to_owned(), |s| s.to_string());
                    return Err(Obstacle::broken(format!("the fabric's process ended early: {status}")));
                }
            }
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // Its input ends, and so does it; what does not listen is killed.
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
