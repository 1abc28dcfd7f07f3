//! Traffic engine: sends and receives the flows of an assignment and reports the results.
//!
//! [`TrafficEngine::prepare`] opens and binds the sockets, so that every error of the preparation is reported before the
//! run. [`TrafficEngine::run`] blocks until the run ends. Patterns are those of `netstage_core::traffic`, drawn from the
//! same random streams as in the simulator.
//!
//! One thread sends scheduled packets and spins briefly before each, so that it leaves on time. If a flow requests a CPU
//! for it ([`UdpOptions::spin`](netstage_agent_api::task::UdpOptions::spin)), it spins longer. A second thread
//! receives and sends bulk traffic, and sleeps until a socket is ready. A third thread runs the flows over QUIC.
//!
//! - [`stamp`]: STAMP sessions between any two hosts; [`learn`]: application models from captures.
//!
//! ```
//! use netstage_traffic::{PrepareError, FlowProblem};
//!
//! let error = PrepareError { flow: "bulk".into(), problem: FlowProblem::PortInUse(([10, 0, 0, 1], 5001).into()) };
//! assert!(error.to_string().contains("bulk"));
//! ```
//!
//! Invariant: a run starts as a whole or not at all, and packets not sent on time are reported.

pub mod departures;
mod dialogue;
pub mod emissions;
mod error;
mod event_loop;
mod keep_alive;
pub mod kernel;
pub mod learn;
mod one_ended;
pub mod pacing;
mod quic;
pub mod records;
mod run_context;
mod schedule;
pub mod stalls;
pub mod stamp;
pub mod stamp_flow;
mod tcp;
mod travel;
mod udp;

pub use error::{FlowProblem, PrepareError};
pub use udp::{FlowPacket, PacketTracker};

use dialogue::{DatagramDialogue, StreamDialogue};
use emissions::Emissions;
use event_loop::{EventLoop, FlowMember};
use keep_alive::KeepAlive;
use netstage_agent_api::results::{AgentReport, BinCounts, Buckets, FlowResult, TcpSample, Travel};
use netstage_agent_api::task::{Assignment, FlowSide, FlowTask, TaskTransport};
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::time::Duration;
use netstage_host::clock::Epoch;
use netstage_host::realtime::{Grants, IdleStatePrevention, Rank};
use netstage_host::reserved_cpu::ReservedCpu;
use netstage_wire::probe;
use quic::QuicFlow;
use records::FlowLedger;
use run_context::RunTimes;
use socket2::Socket;
use stamp_flow::{StampReflector, StampSender};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

/// Maximum packet rate at which the pacing thread has real-time priority. Beyond it, other threads would starve.
const REALTIME_PACKET_RATE: f64 = 20_000.0;

/// Flows ready to run.
pub struct TrafficEngine {
    node: String,
    duration: Duration,
    interval: Duration,
    /// Names and sides of the flows, in the order of the assignment.
    flows: Vec<(String, bool)>,
    /// Scheduled members.
    paced: Vec<(usize, FlowMember)>,
    /// Members without a schedule.
    unpaced: Vec<(usize, FlowMember)>,
    quic: Vec<(usize, QuicFlow)>,
    packet_rate: f64,
    /// CPU of the thread that sends scheduled members, if a flow requests one.
    cpu: Option<ReservedCpu>,
    /// Numbers and sides of the flows, in the order of the assignment.
    ids: Vec<(u32, FlowSide)>,
    ports: Vec<(u32, u16)>,
    /// Sockets of flows through NATs, each with the address of the other end.
    translated: Vec<(Socket, SocketAddr)>,
    keep_alive: Option<KeepAlive>,
}

/// Counts of one side of a flow at the end of a bin.
#[derive(Clone, Copy, Debug)]
pub struct FlowProgress {
    /// Index of the flow in the assignment.
    pub flow: usize,
    /// Number of the bin.
    pub bin: usize,
    /// Counts of the bin, to which packets in flight may still be added.
    pub counts: BinCounts,
    /// TCP state of the sender at the end of the bin, if requested.
    pub tcp: Option<TcpSample>,
    /// Travel times of the packets, if this side measures them.
    pub travel: Option<Travel>,
}

impl TrafficEngine {
    /// Opens and binds all sockets. From now on, receivers' sockets accept packets and connections.
    pub fn prepare(assignment: &Assignment) -> Result<TrafficEngine, PrepareError> {
        let mut engine = TrafficEngine {
            node: assignment.node.clone(),
            duration: assignment.duration,
            interval: assignment.interval,
            flows: Vec::new(),
            paced: Vec::new(),
            unpaced: Vec::new(),
            quic: Vec::new(),
            packet_rate: 0.0,
            cpu: None,
            ids: Vec::new(),
            ports: Vec::new(),
            translated: Vec::new(),
            keep_alive: None,
        };
        let mut ids = BTreeSet::new();
        for (index, task) in assignment.flows.iter().enumerate() {
            let in_flow = |problem| PrepareError { flow: task.name.clone(), problem };
            if task.id >= probe::FLOW_LIMIT || !ids.insert((task.id, task.side as u8)) {
                return Err(in_flow(FlowProblem::InvalidTask(
                    "the flow's number is a duplicate, or not below 2^24",
                )));
            }
            engine.add(index, task, assignment).map_err(in_flow)?;
            if task.spins() && engine.cpu.is_none() {
                let cpu = ReservedCpu::reserve().map_err(|error| in_flow(FlowProblem::NoCpu(error)))?;
                engine.cpu = Some(cpu);
            }
            engine.ids.push((task.id, task.side));
        }
        engine.keep_mappings(assignment)?;
        Ok(engine)
    }

    /// Returns the number and the bound port of each flow that is received over TCP, UDP, QUIC or STAMP.
    pub fn receiving_ports(&self) -> &[(u32, u16)] {
        &self.ports
    }

    /// Returns the numbers and sides of the flows, in the order of the assignment.
    pub fn flows(&self) -> &[(u32, FlowSide)] {
        &self.ids
    }

    /// Runs the flows from `epoch` until all receivers are done, at the latest a short time after the run's
    /// duration, or soon after `stop` is set. `progress` is called from this thread at the end of each bin.
    pub fn run(self, epoch: Epoch, stop: &AtomicBool, progress: &mut dyn FnMut(FlowProgress)) -> AgentReport {
        self.run_when(&mut || Some(epoch), stop, progress).expect("the start time is given")
    }

    /// Runs the flows like [`run`](TrafficEngine::run), from the time that `start` returns. `start` may block until
    /// shortly before it; the threads are then already running. Returns `None` if `start` does.
    pub fn run_when(
        mut self,
        start: &mut dyn FnMut() -> Option<Epoch>,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(FlowProgress),
    ) -> Option<AgentReport> {
        let realtime = self.packet_rate <= REALTIME_PACKET_RATE;
        let (duration, interval) = (self.duration, self.interval);
        let awake = IdleStatePrevention::request();
        let mut report =
            AgentReport { node: self.node.clone(), flows: self.blank_results(), ..AgentReport::default() };
        let lanes = self.event_loops(&mut report);
        let started = thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let mut threads = Vec::new();
            for (lane, name) in lanes {
                let sender = sender.clone();
                let (epoch_sender, epoch_receiver) = mpsc::channel();
                let thread = scope.spawn(move || {
                    let mut remarks = ThreadRemarks::default();
                    if realtime && name == SCHEDULED_THREAD {
                        remarks.warnings.extend(Grants::request(Rank::Traffic).advice());
                    }
                    let Ok(epoch) = epoch_receiver.recv() else { return (Vec::new(), remarks) };
                    let frame = RunTimes { epoch, duration, interval, stop };
                    (lane.run(frame, &sender, &mut remarks), remarks)
                });
                threads.push((epoch_sender, (name, thread)));
            }
            let quic = std::mem::take(&mut self.quic);
            if !quic.is_empty() {
                let sender = sender.clone();
                let (epoch_sender, epoch_receiver) = mpsc::channel();
                let thread = scope.spawn(move || {
                    let Ok(epoch) = epoch_receiver.recv() else { return Default::default() };
                    let times = RunTimes { epoch, duration, interval, stop };
                    quic::run(quic, times, &sender).unwrap_or_else(|error| {
                        let fault = format!("stopped ({error})");
                        let reason = VoidReason::new(QUIC_THREAD, fault, FaultTime::At(epoch.now()));
                        (Vec::new(), ThreadRemarks::void(reason))
                    })
                });
                threads.push((epoch_sender, (QUIC_THREAD, thread)));
            }
            // Without a start the channels close, which ends the threads.
            let epoch = start()?;
            let send_epoch = |(epoch_sender, thread): (mpsc::Sender<Epoch>, _)| {
                let _ = epoch_sender.send(epoch);
                thread
            };
            let threads: Vec<_> = threads.into_iter().map(send_epoch).collect();
            drop(sender);
            while let Ok(event) = receiver.recv() {
                progress(event);
            }
            for (name, thread) in threads {
                match thread.join() {
                    Ok(results) => add(&mut report, results),
                    Err(_) => {
                        report.void.push(VoidReason::new(name, "panicked", FaultTime::Within(duration)))
                    }
                }
            }
            Some(())
        });
        drop(awake);
        started?;
        if stop.load(Ordering::Relaxed) {
            report.warnings.push(format!("{}: stopped before its end", self.node));
            report.stopped = true;
        }
        Some(report)
    }

    /// Creates the loops of the flows with and without a schedule, each with the name of its thread.
    fn event_loops(&mut self, report: &mut AgentReport) -> Vec<(EventLoop, &'static str)> {
        let mut loops = Vec::new();
        let scheduled = (std::mem::take(&mut self.paced), SCHEDULED_THREAD, self.cpu.take());
        let unscheduled = (std::mem::take(&mut self.unpaced), UNSCHEDULED_THREAD, None);
        for (members, name, cpu) in [scheduled, unscheduled] {
            if members.is_empty() {
                continue;
            }
            match EventLoop::new(members, name == SCHEDULED_THREAD, cpu) {
                Ok(lane) => loops.push((lane, name)),
                Err(error) => {
                    let fault = format!("could not poll sockets ({error})");
                    report.void.push(VoidReason::new(name, fault, FaultTime::BeforeStart));
                }
            }
        }
        loops
    }

    fn add(&mut self, index: usize, task: &FlowTask, assignment: &Assignment) -> Result<(), FlowProblem> {
        let duration = assignment.duration;
        if task.source.is_ipv4() != task.destination.is_ipv4() {
            return Err(FlowProblem::InvalidTask("source and destination have different address families"));
        }
        let ledger = || FlowLedger::new(assignment.interval, duration);
        self.flows.push((task.name.clone(), task.side == FlowSide::Send));
        let interval = assignment.interval;
        let (member, paced) = match (&task.transport, task.side) {
            (TaskTransport::Tcp(options), _) if task.traffic.application().is_some() => {
                let dialogue = StreamDialogue::prepare(task, options, assignment.seed, interval, duration)?;
                (FlowMember::Streams(dialogue), false)
            }
            (TaskTransport::Udp(_), _) if task.traffic.application().is_some() => {
                let dialogue = DatagramDialogue::prepare(task, assignment.seed, interval, duration)?;
                (FlowMember::Datagrams(dialogue), true)
            }
            (TaskTransport::Tcp(options), FlowSide::Receive) => {
                let receiver = tcp::TcpReceiver::prepare(task, options, duration, ledger())?;
                self.ports.extend(receiver.listener().map(|socket| (task.id, port_of(socket))));
                (FlowMember::TcpReceiver(receiver), false)
            }
            (TaskTransport::Udp(_) | TaskTransport::Multicast { .. }, FlowSide::Receive) => {
                let receiver = udp::UdpReceiver::prepare(task, duration, ledger())?;
                self.ports.push((task.id, port_of(receiver.socket())));
                (FlowMember::UdpReceiver(receiver), false)
            }
            (&TaskTransport::Stamp { interval }, FlowSide::Receive) => {
                let reflector = StampReflector::prepare(task, interval, duration, ledger())?;
                self.ports.push((task.id, port_of(reflector.socket())));
                (FlowMember::StampReflector(reflector), false)
            }
            (TaskTransport::Quic, _) => {
                let flow = QuicFlow::prepare(task, assignment.seed, duration, ledger())?;
                if task.side == FlowSide::Receive {
                    self.ports.push((task.id, flow.port()));
                }
                if task.nat.is_some() {
                    let socket =
                        flow.socket().try_clone().map_err(FlowProblem::system("copying a socket"))?;
                    self.translated.push((socket.into(), task.local_and_remote().1));
                }
                self.quic.push((index, flow));
                return Ok(());
            }
            (transport, FlowSide::Send) => {
                let emissions = Emissions::new(task, assignment.seed, duration)?;
                self.packet_rate += emissions.packet_rate().unwrap_or(0.0);
                match transport {
                    TaskTransport::Tcp(options) => {
                        let sender = tcp::TcpSender::prepare(task, options, emissions, ledger())?;
                        let paced = !sender.is_bulk();
                        (FlowMember::TcpSender(sender), paced)
                    }
                    TaskTransport::Udp(_) | TaskTransport::Multicast { .. } => {
                        (FlowMember::UdpSender(udp::UdpSender::prepare(task, emissions, ledger())?), true)
                    }
                    &TaskTransport::Stamp { interval } => {
                        let sender = StampSender::prepare(task, interval, emissions, duration, ledger())?;
                        (FlowMember::StampSender(Box::new(sender)), true)
                    }
                    _ => {
                        let (prober, reflections) = one_ended::prepare(task, emissions, ledger)?;
                        self.unpaced.push((index, FlowMember::Reflections(reflections)));
                        (FlowMember::Prober(prober), true)
                    }
                }
            }
            (_, FlowSide::Receive) => {
                return Err(FlowProblem::InvalidTask("a one-ended flow has no receiving side"));
            }
        };
        if let Some(socket) = member.udp_socket().filter(|_| task.nat.is_some()) {
            let socket = socket.try_clone().map_err(FlowProblem::system("copying a socket"))?;
            self.translated.push((socket, task.local_and_remote().1));
        }
        let lane = if paced { &mut self.paced } else { &mut self.unpaced };
        lane.push((index, member));
        Ok(())
    }

    /// Starts the keep-alives of flows through NATs.
    fn keep_mappings(&mut self, assignment: &Assignment) -> Result<(), PrepareError> {
        let Some(first) = assignment.flows.iter().find(|flow| flow.nat.is_some()) else { return Ok(()) };
        let started = KeepAlive::start(std::mem::take(&mut self.translated));
        let started = started.map_err(FlowProblem::system("starting a thread"));
        self.keep_alive =
            Some(started.map_err(|problem| PrepareError { flow: first.name.clone(), problem })?);
        Ok(())
    }

    fn blank_results(&self) -> Vec<FlowResult> {
        let blank = |(name, sends): &(String, bool)| FlowResult {
            name: name.clone(),
            sends: *sends,
            ..FlowResult::default()
        };
        self.flows.iter().map(blank).collect()
    }
}

fn port_of(socket: &Socket) -> u16 {
    socket.local_addr().ok().and_then(|address| address.as_socket()).map_or(0, |address| address.port())
}

/// Threads, in reasons why results are void.
const SCHEDULED_THREAD: &str = "the thread of scheduled flows";
const UNSCHEDULED_THREAD: &str = "the thread of its TCP flows and replies";
const QUIC_THREAD: &str = "the thread of QUIC flows";

/// Remarks of a thread about its results.
#[derive(Default)]
struct ThreadRemarks {
    warnings: Vec<String>,
    /// Reasons why the results are void.
    void: Vec<VoidReason>,
}

impl ThreadRemarks {
    fn void(reason: VoidReason) -> ThreadRemarks {
        ThreadRemarks { void: vec![reason], ..ThreadRemarks::default() }
    }
}

/// Adds the results and remarks of a thread to the report.
fn add(report: &mut AgentReport, (results, remarks): (Vec<(usize, FlowResult)>, ThreadRemarks)) {
    results.into_iter().for_each(|(flow, result)| merge(&mut report.flows[flow], result));
    report.warnings.extend(remarks.warnings);
    report.void.extend(remarks.void);
}

/// Adds the result of a member to that of its flow. A one-ended flow has two members.
fn merge(result: &mut FlowResult, other: FlowResult) {
    if result.bins.len() < other.bins.len() {
        result.bins.resize(other.bins.len(), BinCounts::default());
    }
    result.bins.iter_mut().zip(&other.bins).for_each(|(counts, more)| counts.add(more));
    result.drained.add(&other.drained);
    result.arrivals = result.arrivals.or(other.arrivals);
    let fill = |target: &mut Buckets, buckets: Buckets| {
        if target.0.is_empty() {
            *target = buckets;
        }
    };
    fill(&mut result.delay, other.delay);
    fill(&mut result.answer_delay, other.answer_delay);
    fill(&mut result.delay_variation, other.delay_variation);
    fill(&mut result.round_trip, other.round_trip);
    fill(&mut result.gaps, other.gaps);
    if result.tcp.is_empty() {
        result.tcp = other.tcp;
    }
    if result.travel.is_empty() {
        result.travel = other.travel;
    }
    result.last_bytes_ns = result.last_bytes_ns.max(other.last_bytes_ns);
    if result.quality.is_empty() {
        (result.quality, result.quality_distributions) = (other.quality, other.quality_distributions);
    }
    result.schedule = result.schedule.or(other.schedule);
    result.socket_drops += other.socket_drops;
    result.answer_limit = result.answer_limit.or(other.answer_limit);
    result.lowered = result.lowered.or(other.lowered);
    result.error = result.error.take().or(other.error);
}
