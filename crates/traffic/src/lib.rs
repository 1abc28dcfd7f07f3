//! The traffic engine: sends and receives the flows of an assignment and reports what
//! became of them.
//!
//! [`Engine::prepare`] opens, binds and listens, so that a run either starts as a whole or
//! says what is in the way; [`Engine::run`] blocks until it is over. Patterns are those of
//! `netstage_core::traffic`, drawn from the same random streams as in the simulator.
//!
//! One thread sends what has a schedule, and spins briefly before each packet so that it leaves on time. A second
//! one receives, and sends what has no schedule (bulk); it sleeps until the kernel has something for it. A third one
//! carries the flows over QUIC.
//!
//! - [`stamp`]: STAMP sessions between any two hosts; [`learn`]: application models from captures.
//!
//! ```
//! use netstage_traffic::{PrepareError, Problem};
//!
//! let error = PrepareError { flow: "bulk".into(), problem: Problem::PortInUse(([10, 0, 0, 1], 5001).into()) };
//! assert!(error.to_string().contains("bulk"));
//! ```
//!
//! Invariant: a run starts as a whole or not at all; what was not sent on time is said.

mod dialogue;
mod emissions;
mod error;
mod frame;
pub mod kernel;
mod lane;
pub mod learn;
mod ledger;
mod one_ended;
pub mod pace;
mod quic;
mod schedule;
pub mod stamp;
mod stamp_flow;
mod tcp;
mod travel;
mod udp;

pub use error::{PrepareError, Problem};

use dialogue::{DatagramDialogue, StreamDialogue};
use emissions::Emissions;
use frame::Frame;
use lane::{Lane, Member};
use ledger::Ledger;
use netstage_agent_api::results::{Buckets, Counts, FlowResult, Report, TcpSample, Travel};
use netstage_agent_api::task::{Assignment, FlowTask, Side, Transport};
use netstage_core::time::Duration;
use netstage_host::clock::Epoch;
use netstage_host::realtime::{Awake, Grants, Rank};
use netstage_wire::probe;
use quic::QuicFlow;
use socket2::Socket;
use stamp_flow::{StampReflector, StampSender};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

/// Packets per second up to which the pacing thread runs before all others: with more it
/// would leave them nothing.
const REALTIME_PACKET_RATE: f64 = 20_000.0;

/// Flows ready to run.
pub struct Engine {
    node: String,
    duration: Duration,
    interval: Duration,
    /// Names and sides of the flows, in the order of the assignment.
    flows: Vec<(String, bool)>,
    /// What has a schedule.
    paced: Vec<(usize, Member)>,
    /// What has none.
    unpaced: Vec<(usize, Member)>,
    quic: Vec<(usize, QuicFlow)>,
    packet_rate: f64,
    /// Numbers and sides of the flows, in the order of the assignment.
    ids: Vec<(u32, Side)>,
    ports: Vec<(u32, u16)>,
}

/// A bin has ended for one side of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The flow's place in the assignment.
    pub flow: usize,
    /// The bin's number.
    pub bin: usize,
    /// What was counted in it so far; packets on their way may still be added.
    pub counts: Counts,
    /// The sender's TCP at its end, where asked for.
    pub tcp: Option<TcpSample>,
    /// Travel times of its packets, where this side sees them.
    pub travel: Option<Travel>,
}

impl Engine {
    /// Opens and binds all sockets. Receivers' sockets take packets and connections from
    /// now on.
    pub fn prepare(assignment: &Assignment) -> Result<Engine, PrepareError> {
        let mut engine = Engine {
            node: assignment.node.clone(),
            duration: assignment.duration,
            interval: assignment.interval,
            flows: Vec::new(),
            paced: Vec::new(),
            unpaced: Vec::new(),
            quic: Vec::new(),
            packet_rate: 0.0,
            ids: Vec::new(),
            ports: Vec::new(),
        };
        let mut ids = BTreeSet::new();
        for (index, task) in assignment.flows.iter().enumerate() {
            let named = |problem| PrepareError { flow: task.name.clone(), problem };
            if task.id >= probe::FLOW_LIMIT || !ids.insert((task.id, task.side as u8)) {
                return Err(named(Problem::Refused("its number is taken, or above 2^24")));
            }
            engine.add(index, task, assignment).map_err(named)?;
            engine.ids.push((task.id, task.side));
        }
        Ok(engine)
    }

    /// Number and port of each flow that is received over TCP, UDP, QUIC or by STAMP: what port 0
    /// has become.
    pub fn receiving_ports(&self) -> &[(u32, u16)] {
        &self.ports
    }

    /// Numbers and sides of the flows, in the order of the assignment.
    pub fn flows(&self) -> &[(u32, Side)] {
        &self.ids
    }

    /// Runs the flows: begins at `epoch`, ends when all is received that will be, at the
    /// latest a little after the run's duration, or soon after `stop` is set. `progress` is
    /// called from this thread whenever a bin has ended.
    pub fn run(self, epoch: Epoch, stop: &AtomicBool, progress: &mut dyn FnMut(Progress)) -> Report {
        self.run_when(&mut || Some(epoch), stop, progress).expect("it has a start")
    }

    /// As [`run`](Engine::run), from the moment that `start` gives, which blocks until then or shortly before: its
    /// threads are there and have what the kernel grants them. None where there is no start.
    pub fn run_when(
        mut self,
        start: &mut dyn FnMut() -> Option<Epoch>,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress),
    ) -> Option<Report> {
        let realtime = self.packet_rate <= REALTIME_PACKET_RATE;
        let (duration, interval) = (self.duration, self.interval);
        let awake = Awake::request();
        let lanes = [(std::mem::take(&mut self.paced), true), (std::mem::take(&mut self.unpaced), false)];
        let mut report = Report { node: self.node.clone(), flows: self.blank_results(), ..Report::default() };
        let begun = thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let mut threads = Vec::new();
            for (members, exact) in lanes {
                if members.is_empty() {
                    continue;
                }
                let lane = match Lane::new(members, exact) {
                    Ok(lane) => lane,
                    Err(error) => {
                        report.void.push(format!("{}: watching sockets: {error}", self.node));
                        continue;
                    }
                };
                let sender = sender.clone();
                let (tell, told) = mpsc::channel();
                let thread = scope.spawn(move || {
                    let mut warnings = Vec::new();
                    if exact && realtime {
                        warnings.extend(Grants::request(Rank::Traffic).advice());
                    }
                    let Ok(epoch) = told.recv() else { return (Vec::new(), warnings) };
                    let frame = Frame { epoch, duration, interval, stop };
                    (lane.run(frame, &sender, &mut warnings), warnings)
                });
                threads.push((tell, thread));
            }
            let quic = std::mem::take(&mut self.quic);
            if !quic.is_empty() {
                let sender = sender.clone();
                let (tell, told) = mpsc::channel();
                let thread = scope.spawn(move || {
                    let Ok(epoch) = told.recv() else { return (Vec::new(), Vec::new()) };
                    match quic::run(quic, Frame { epoch, duration, interval, stop }, &sender) {
                        Ok(found) => (found, Vec::new()),
                        Err(error) => (Vec::new(), vec![format!("QUIC could not run: {error}")]),
                    }
                });
                threads.push((tell, thread));
            }
            // Without a start the threads end when nobody can tell them of one any more.
            let epoch = start()?;
            let tell = |(tell, thread): (mpsc::Sender<Epoch>, _)| {
                let _ = tell.send(epoch);
                thread
            };
            let threads: Vec<_> = threads.into_iter().map(tell).collect();
            drop(sender);
            while let Ok(event) = receiver.recv() {
                progress(event);
            }
            for thread in threads {
                match thread.join() {
                    Ok(found) => add(&mut report, found),
                    Err(_) => report.void.push(format!("{}: the traffic engine failed", self.node)),
                }
            }
            Some(())
        });
        drop(awake);
        begun?;
        if stop.load(Ordering::Relaxed) {
            report.warnings.push(format!("{}: stopped before its end", self.node));
            report.stopped = true;
        }
        Some(report)
    }

    fn add(&mut self, index: usize, task: &FlowTask, assignment: &Assignment) -> Result<(), Problem> {
        let duration = assignment.duration;
        if task.source.is_ipv4() != task.destination.is_ipv4() {
            return Err(Problem::Refused("its source and destination are of different address families"));
        }
        let ledger = || Ledger::new(assignment.interval, duration);
        self.flows.push((task.name.clone(), task.side == Side::Send));
        let interval = assignment.interval;
        let (member, paced) = match (&task.transport, task.side) {
            (Transport::Tcp(options), _) if task.traffic.application().is_some() => {
                let talk = StreamDialogue::prepare(task, options, assignment.seed, interval, duration)?;
                (Member::Streams(talk), false)
            }
            (Transport::Udp(_), _) if task.traffic.application().is_some() => {
                let talk = DatagramDialogue::prepare(task, assignment.seed, interval, duration)?;
                (Member::Datagrams(talk), true)
            }
            (Transport::Tcp(options), Side::Receive) => {
                let receiver = tcp::TcpReceiver::prepare(task, options, duration, ledger())?;
                self.ports.extend(receiver.listener().map(|socket| (task.id, port_of(socket))));
                (Member::TcpReceiver(receiver), false)
            }
            (Transport::Udp(_) | Transport::Multicast { .. }, Side::Receive) => {
                let receiver = udp::UdpReceiver::prepare(task, duration, ledger())?;
                self.ports.push((task.id, port_of(receiver.socket())));
                (Member::UdpReceiver(receiver), false)
            }
            (Transport::Stamp { .. }, Side::Receive) => {
                let reflector = StampReflector::prepare(task, duration, ledger())?;
                self.ports.push((task.id, port_of(reflector.socket())));
                (Member::StampReflector(reflector), false)
            }
            (Transport::Quic, _) => {
                let flow = QuicFlow::prepare(task, assignment.seed, duration, ledger())?;
                if task.side == Side::Receive {
                    self.ports.push((task.id, flow.port()));
                }
                self.quic.push((index, flow));
                return Ok(());
            }
            (transport, Side::Send) => {
                let emissions = Emissions::new(task, assignment.seed, duration)?;
                self.packet_rate += emissions.packet_rate().unwrap_or(0.0);
                match transport {
                    Transport::Tcp(options) => {
                        let sender = tcp::TcpSender::prepare(task, options, emissions, ledger())?;
                        let paced = !sender.is_bulk();
                        (Member::TcpSender(sender), paced)
                    }
                    Transport::Udp(_) | Transport::Multicast { .. } => {
                        (Member::UdpSender(udp::UdpSender::prepare(task, emissions, ledger())?), true)
                    }
                    &Transport::Stamp { interval } => {
                        let sender = StampSender::prepare(task, interval, emissions, duration, ledger())?;
                        (Member::StampSender(Box::new(sender)), true)
                    }
                    _ => {
                        let (prober, reflections) = one_ended::prepare(task, emissions, ledger)?;
                        self.unpaced.push((index, Member::Reflections(reflections)));
                        (Member::Prober(prober), true)
                    }
                }
            }
            (_, Side::Receive) => {
                return Err(Problem::Refused("it is one-ended and has no receiving side"));
            }
        };
        let lane = if paced { &mut self.paced } else { &mut self.unpaced };
        lane.push((index, member));
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

/// Adds what a thread found of flows, and its warnings.
fn add(report: &mut Report, (found, warnings): (Vec<(usize, FlowResult)>, Vec<String>)) {
    found.into_iter().for_each(|(flow, result)| merge(&mut report.flows[flow], result));
    report.warnings.extend(warnings);
}

/// Adds what one member found to its flow's result: a one-ended flow has two members.
fn merge(result: &mut FlowResult, found: FlowResult) {
    if result.bins.len() < found.bins.len() {
        result.bins.resize(found.bins.len(), Counts::default());
    }
    for (counts, more) in result.bins.iter_mut().zip(&found.bins) {
        counts.sent += more.sent;
        counts.sent_bytes += more.sent_bytes;
        counts.offered_bytes += more.offered_bytes;
        counts.received += more.received;
        counts.received_bytes += more.received_bytes;
        counts.lost += more.lost;
        counts.duplicated += more.duplicated;
        counts.reordered += more.reordered;
        counts.corrupted += more.corrupted;
        counts.bit_errors += more.bit_errors;
    }
    let fill = |place: &mut Buckets, buckets: Buckets| {
        if place.0.is_empty() {
            *place = buckets;
        }
    };
    fill(&mut result.delay, found.delay);
    fill(&mut result.answer_delay, found.answer_delay);
    fill(&mut result.delay_variation, found.delay_variation);
    fill(&mut result.round_trip, found.round_trip);
    fill(&mut result.gaps, found.gaps);
    if result.tcp.is_empty() {
        result.tcp = found.tcp;
    }
    if result.travel.is_empty() {
        result.travel = found.travel;
    }
    result.last_bytes_ns = result.last_bytes_ns.max(found.last_bytes_ns);
    if result.quality.is_empty() {
        result.quality = found.quality;
    }
    result.schedule = result.schedule.or(found.schedule);
    result.socket_drops += found.socket_drops;
    result.error = result.error.take().or(found.error);
}
