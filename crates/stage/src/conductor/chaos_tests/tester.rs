//! Tester of a case in virtual time: departures, reflections, packet counts and outcome are those of a run with real
//! packets. Threads stall, and run at the times that their stalls leave.

use super::super::outcome::{Findings, outcome};
use super::connection::Connection;
use super::network::{Device, Packet, Path, Stalls, length};
use crate::topology::assignments::{assignments, members_at};
use netstage_agent_api::results::{AgentReport, FlowResult, WatchedWindows};
use netstage_agent_api::task::{FlowSide, FlowTask, TaskTransport, TcpOptions};
use netstage_core::measure::VoidReason;
use netstage_core::measure::stamp::{
    ClockReading, ReceivedPacketInfo, ReflectorConfig, SenderConfig, SessionReflector, SessionSender,
};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_emulator::EmulatorReport;
use netstage_host::clock::Epoch;
use netstage_scenario::outcome::RunOutcome;
use netstage_scenario::plan::Plan;
use netstage_traffic::departures::Departures;
use netstage_traffic::emissions::Emissions;
use netstage_traffic::records::FlowLedger;
use netstage_traffic::stalls::{StallObserver, TICK};
use netstage_traffic::stamp::{PacketDeparture, StampSessionResult};
use netstage_traffic::stamp_flow::records::{ReflectorRecords, SenderRecords};
use netstage_traffic::{FlowPacket, PacketTracker};
use netstage_wire::probe::HEADER;
use netstage_wire::stamp::{Mode, SenderPacket};
use netstage_wire::{IPV4_HEADER, UDP_HEADER};
use std::collections::{BTreeMap, VecDeque};

/// Wall clock at the start of a run.
const WALL: u64 = 1_700_000_000_000_000_000;
/// Time after the end of a run in which packets are received.
const AFTER_END: u64 = 2_000_000_000;

/// True counts of one flow in one trial.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrialTruth {
    pub sent: u64,
    /// Packets that the device would drop if all that were sent had left on time.
    pub dropped: u64,
    /// Replies that the device would drop.
    pub dropped_replies: u64,
    /// Packets compared by the receiver, and wrong bits in them.
    pub compared: u64,
    pub wrong_bits: u64,
}

/// Conditions of a trial.
#[derive(Clone, Copy)]
pub struct Conditions {
    pub device: Device,
    /// Whether the emulator is the device.
    pub is_emulated: bool,
    /// Probability of stalls of each thread.
    pub chance: f64,
    /// Whether the tester observes its own lateness. Otherwise it takes all packets as punctual, and sends the backlog of a
    /// stall in a burst.
    pub has_envelope: bool,
}

/// Threads of a trial.
struct Threads {
    sender: Stalls,
    receiver: Stalls,
    /// A thread can also stop between the timestamp of a packet and its departure: number of the packet, and time.
    held: [Option<(u64, u64)>; 2],
}

/// Time for which a packet is held on its way to the system without a stall.
const CALL: u64 = 2_000;

impl Threads {
    fn hold(&self, side: usize, number: u64) -> u64 {
        self.held[side].filter(|&(held, _)| held == number).map_or(CALL, |(_, time)| time)
    }
}

/// Runs the flows of a trial. Returns its outcome, and the truth of each flow.
pub fn run(plan: &Plan, seed: u64, conditions: Conditions) -> (RunOutcome, Vec<TrialTruth>) {
    let mut random = RandomStream::new(seed, "chaos");
    let Conditions { device, is_emulated, chance, has_envelope } = conditions;
    let members = members_at(plan, |_| ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())).unwrap();
    let tasks: Vec<FlowTask> =
        assignments(plan, &members, seed).into_values().flat_map(|assignment| assignment.flows).collect();
    let mut stalls = || Stalls::draw(&mut random, plan.duration, chance);
    let (sender, receiver) = (stalls(), stalls());
    let emulator = is_emulated.then(stalls);
    let mut held = || random.chance(chance / 8.0).then(|| (random.next_u64() % 2_000, length(&mut random)));
    let threads = Threads { sender, receiver, held: [held(), held()] };
    let emulator = emulator.map(|stalls| {
        let start = if random.chance(chance / 16.0) { length(&mut random) } else { 0 };
        (stalls, start)
    });
    let mut trial = Trial {
        plan,
        seed,
        device,
        has_envelope,
        threads,
        path: Path::new(device, seed, plan, emulator),
        random,
        truths: Vec::new(),
        senders: Vec::new(),
        receivers: Vec::new(),
        void: [Vec::new(), Vec::new()],
    };
    let pairs: Vec<(&FlowTask, &FlowTask)> = tasks
        .iter()
        .filter(|task| task.side == FlowSide::Send)
        .map(|task| {
            let is_other = |other: &&FlowTask| other.id == task.id && other.side == FlowSide::Receive;
            (task, tasks.iter().find(is_other).unwrap())
        })
        .collect();
    match &pairs[0].0.transport {
        TaskTransport::Stamp { interval } => trial.stamp(pairs[0].0, *interval),
        TaskTransport::Tcp(options) => trial.stream(pairs[0].0, options),
        _ => trial.datagrams(&pairs),
    }
    // The order to stop can be late, too.
    let end = plan.duration.0
        + AFTER_END
        + if trial.random.chance(chance / 16.0) { length(&mut trial.random) } else { 0 };
    let mut emulator = trial.path.finish(end);
    if !has_envelope {
        let punctual = |mut link: netstage_emulator::report::LinkReport| {
            for direction in &mut link.directions {
                direction.lateness = Default::default();
                direction.lateness_distribution = Default::default();
            }
            link
        };
        let links = emulator.links.into_iter().map(punctual).collect();
        emulator = EmulatorReport { links, void: Vec::new(), ..emulator };
    }
    let report =
        |node: &str, flows, void| AgentReport { node: node.into(), flows, void, ..AgentReport::default() };
    let [at_sender, at_receiver] = trial.void;
    let outcome = outcome(&Findings {
        plan,
        members: &members,
        reports: &[report("a", trial.senders, at_sender), report("b", trial.receivers, at_receiver)],
        emulator: &emulator,
        is_real: !is_emulated,
        clock_error: &|_, _| 0,
        route_server: None,
        services: &[],
        watched: &WatchedWindows::default(),
    });
    (outcome, trial.truths)
}

struct Trial<'a> {
    plan: &'a Plan,
    seed: u64,
    device: Device,
    has_envelope: bool,
    threads: Threads,
    path: Path,
    random: RandomStream,
    truths: Vec<TrialTruth>,
    senders: Vec<FlowResult>,
    receivers: Vec<FlowResult>,
    /// Reasons of sender and receiver why the run is void.
    void: [Vec<VoidReason>; 2],
}

/// Packet of a trial, times in nanoseconds.
struct SentPacket {
    flow: usize,
    number: u64,
    due: u64,
    /// Timestamp in the packet.
    stamped: u64,
    left: u64,
}

impl SentPacket {
    fn packet(&self, bits: f64) -> Packet {
        Packet { id: (self.flow as u64) << 32 | self.number, direction: 0, bits }
    }
}

impl Trial<'_> {
    fn ledger(&self) -> FlowLedger {
        FlowLedger::new(self.plan.measure.interval, self.plan.duration)
    }

    /// Sends UDP flows, and receives them.
    fn datagrams(&mut self, pairs: &[(&FlowTask, &FlowTask)]) {
        let (mut sent, mut payloads) = (Vec::new(), Vec::new());
        for (flow, (task, _)) in pairs.iter().enumerate() {
            let emissions = Emissions::new(task, self.seed, self.plan.duration).unwrap();
            payloads.push(emissions.largest_packet().unwrap());
            let departures = Departures::new(emissions, 1, HEADER, self.ledger());
            let result = self.depart(flow, departures, &mut sent);
            self.senders.push(FlowResult { name: task.name.clone(), ..result });
        }
        let bits = |packet: &SentPacket| bits_at_ip(payloads[packet.flow]);
        let mut dues: Vec<(u64, Packet)> =
            sent.iter().map(|sent| (sent.due, sent.packet(bits(sent)))).collect();
        dues.sort_by_key(|&(due, packet)| (due, packet.id));
        let on_time = self.device.forward(self.seed, &dues);
        sent.sort_by_key(|packet| (packet.left, packet.flow));
        for packet in &sent {
            self.path.send(packet.left, packet.packet(bits(packet)));
        }
        let stamps: BTreeMap<u64, u64> =
            sent.iter().map(|sent| (sent.packet(0.0).id, sent.stamped)).collect();
        let mut arrivals: Vec<Vec<FlowPacket>> = pairs.iter().map(|_| Vec::new()).collect();
        while let Some((at_ns, _, id)) = self.path.poll(u64::MAX) {
            let flow = (id >> 32) as usize;
            arrivals[flow].push(FlowPacket {
                number: id & 0xffff_ffff,
                bytes: payloads[flow],
                at_ns,
                sent_ns: Some(stamps[&id]),
                bit_errors: self.device.bit_errors(self.seed, id),
            });
        }
        let capacity = 20 + self.random.next_u64() % 2000;
        for (flow, ((_, task), packets)) in pairs.iter().zip(arrivals).enumerate() {
            let is_dropped = |((_, packet), arrival): &(&(u64, Packet), &Option<u64>)| {
                (packet.id >> 32) as usize == flow && arrival.is_none()
            };
            let mut truth = TrialTruth {
                sent: sent.iter().filter(|packet| packet.flow == flow).count() as u64,
                dropped: dues.iter().zip(&on_time).filter(is_dropped).count() as u64,
                ..TrialTruth::default()
            };
            let result = self.receive(task, packets, capacity, &mut truth);
            self.receivers.push(result);
            self.truths.push(truth);
        }
    }

    /// Sends the packets of a flow when its thread runs.
    fn depart(&mut self, flow: usize, mut departures: Departures, sent: &mut Vec<SentPacket>) -> FlowResult {
        let (mut taken, mut clock) = (VecDeque::new(), 0);
        while departures.due() != Instant::NEVER {
            let jitter = self.random.next_u64() % 40_000;
            clock = self.threads.sender.runs_at(departures.due().0.max(clock) + jitter);
            let now = if self.has_envelope { Instant(clock) } else { departures.due() };
            if now >= departures.stop() {
                departures.discard_rest(now);
                break;
            }
            while departures.take(now, &mut taken) > 0 {}
            for packet in taken.drain(..) {
                clock += self.threads.hold(0, packet.number);
                departures.record_sent(&packet, now, if self.has_envelope { Instant(clock) } else { now });
                let (number, due) = (packet.number, packet.due.0);
                sent.push(SentPacket { flow, number, due, stamped: now.0, left: clock });
            }
        }
        let (_, schedule, gaps, bins) = departures.finish();
        FlowResult { sends: true, gaps, schedule: Some(schedule), bins, ..FlowResult::default() }
    }

    /// Receives packets through a socket buffer, which overflows during a long stall.
    fn receive(
        &self,
        task: &FlowTask,
        packets: Vec<FlowPacket>,
        capacity: u64,
        truth: &mut TrialTruth,
    ) -> FlowResult {
        let mut tracker = PacketTracker::new(task, self.ledger());
        let (mut waiting, mut read_at, mut drops) = (0, 0, 0);
        for packet in packets {
            if packet.at_ns >= read_at {
                (waiting, read_at) = (0, self.threads.receiver.runs_at(packet.at_ns));
            }
            waiting += 1;
            if waiting > capacity {
                drops += 1;
                continue;
            }
            truth.compared += 1;
            truth.wrong_bits += packet.bit_errors;
            tracker.handle_packet(Epoch(0), packet);
        }
        let result = tracker.finish(&task.name, &mut Vec::new());
        FlowResult { name: task.name.clone(), socket_drops: drops, ..result }
    }

    /// Sends a TCP flow.
    fn stream(&mut self, task: &FlowTask, options: &TcpOptions) {
        let (sender, receiver) = (self.threads.sender.clone(), self.threads.receiver.clone());
        let connection = Connection::new(task, options, (self.seed, self.plan), [sender, receiver]);
        let [sending, receiving] = connection.run(&mut self.path);
        self.truths.push(TrialTruth::default());
        for (side, stalls) in [&self.threads.sender, &self.threads.receiver].into_iter().enumerate() {
            let reason = self.void_reason(stalls);
            self.void[side].extend(reason);
        }
        self.senders.push(sending);
        self.receivers.push(receiving);
    }

    /// Returns the reason why the run is void because of the stalls of a thread without a schedule, if it is.
    fn void_reason(&self, stalls: &Stalls) -> Option<VoidReason> {
        let (mut now, end) = (Instant::ZERO, self.plan.duration);
        let mut observer = StallObserver::new(now, end);
        while now.0 < end.0 {
            now = Instant(stalls.runs_at((now + TICK).0));
            observer.observe(now);
        }
        observer.void_reason("the thread of its TCP flows and replies").filter(|_| self.has_envelope)
    }

    /// Sends a STAMP session, and reflects it.
    fn stamp(&mut self, task: &FlowTask, interval: Duration) {
        let mut emissions = Emissions::new(task, self.seed, self.plan.duration).unwrap();
        let bytes = emissions.largest_packet().unwrap();
        let start = emissions.next_emission().unwrap().0;
        let (stop, end) = (emissions.stop(), Instant(self.plan.duration.0));
        let config = SenderConfig {
            session: 1,
            interval,
            count: stop.since(start).0.div_ceil(interval.0) as u32,
            timeout: end.since(stop).max(interval),
            clock_error: (0, true),
            padding: bytes.checked_sub(48).map(|padding| padding as u16),
            ..SenderConfig::default()
        };
        let calls = self.session_calls(SessionSender::new(config, start), config.count);
        let sent: Vec<&StampDeparture> = calls.iter().filter_map(|call| call.sent.as_ref()).collect();
        let packet = |id: usize, direction| Packet { id: id as u64, direction, bits: bits_at_ip(bytes) };
        let dues: Vec<(u64, Packet)> =
            sent.iter().enumerate().map(|(id, sent)| (sent.due, packet(id, 0))).collect();
        let on_time = self.device.forward(self.seed, &dues);
        sent.iter().enumerate().for_each(|(id, sent)| self.path.send(sent.left, packet(id, 0)));
        let mut reflector = Reflections::new(self, interval);
        let (mut arrivals, mut replies, mut free_at) = (Vec::new(), BTreeMap::new(), 0);
        // The reflector ends with the run. A thread that was stopped then reads once more.
        let last_read = self.threads.receiver.runs_at(end.0);
        while let Some((at, direction, id)) = self.path.poll(u64::MAX) {
            if direction == 1 {
                arrivals.push((at, id));
            } else if at <= last_read {
                let now = self.threads.receiver.runs_at(at).max(free_at);
                let times = (now, now + self.threads.hold(1, id));
                replies.insert(id, reflector.reflect(&sent[id as usize].bytes, at, times, self.has_envelope));
                free_at = times.1;
                self.path.send(free_at, packet(id as usize, 1));
            }
        }
        let back = dues
            .iter()
            .zip(&on_time)
            .filter_map(|(&(_, sent), arrival)| Some(((*arrival)?, Packet { direction: 1, ..sent })));
        let lost =
            |arrivals: &[Option<u64>]| arrivals.iter().filter(|arrival| arrival.is_none()).count() as u64;
        self.truths.push(TrialTruth {
            sent: sent.len() as u64,
            dropped: lost(&on_time),
            dropped_replies: lost(&self.device.forward(self.seed, &back.collect::<Vec<_>>())),
            ..TrialTruth::default()
        });
        let records = SenderRecords::new(bytes, interval, self.ledger());
        let result =
            self.session(SessionSender::new(config, start), records, (bytes, &calls), &arrivals, &replies);
        let reason = self.void_reason(&self.threads.receiver);
        self.void[1].extend(reason);
        self.senders.push(FlowResult { name: task.name.clone(), ..result });
        self.receivers.push(reflector.records.finish(task.name.clone()));
    }

    /// Returns the calls of a session until its last packet. They do not depend on the replies.
    fn session_calls(&mut self, mut session: SessionSender, count: u32) -> Vec<SessionCall> {
        let (mut calls, mut clock, mut bytes, mut number) = (Vec::new(), 0, Vec::new(), 0);
        while session.result().sent + session.result().skipped < count {
            let due = session.poll_timeout().unwrap();
            let jitter = self.random.next_u64() % 40_000;
            clock = self.threads.sender.runs_at(due.0.max(clock) + jitter);
            let (woken, now) = (clock, if self.has_envelope { clock } else { due.0 });
            let is_sent = session.poll_transmit(reading(now), None, &mut bytes);
            let sent = is_sent.then(|| {
                clock += self.threads.hold(0, number);
                number += 1;
                StampDeparture { due: session.schedule().1.0, left: clock, bytes: bytes.clone() }
            });
            calls.push(SessionCall { woken, now, sent });
        }
        calls
    }

    /// Runs a session with the replies that arrived.
    fn session(
        &self,
        mut session: SessionSender,
        mut records: SenderRecords,
        (bytes, calls): (u64, &[SessionCall]),
        arrivals: &[(u64, u64)],
        replies: &BTreeMap<u64, Vec<u8>>,
    ) -> FlowResult {
        let (mut result, mut arrivals) = (StampSessionResult::default(), arrivals.iter().peekable());
        // The thread reads what has arrived before it handles a timeout.
        let mut read = |session: &mut SessionSender, records: &mut SenderRecords, now| {
            while let Some(&(at, id)) = arrivals.next_if(|(at, _)| *at <= now) {
                let sample = session.handle_packet(&replies[&id], reading(at), None);
                sample.iter().for_each(|sample| result.record(sample));
                records.record_reply(Instant(at), bytes, &sample);
            }
        };
        let mut packet = Vec::new();
        for call in calls {
            read(&mut session, &mut records, call.woken);
            session.poll_transmit(reading(call.now), None, &mut packet);
            let departure = call.sent.as_ref().map(|sent| PacketDeparture {
                due: Instant(sent.due),
                stamped: Instant(call.now),
                left: Some(Instant(if self.has_envelope { sent.left } else { call.now })),
            });
            records.record_departure(session.schedule(), departure, Instant(call.now));
        }
        while let Some(due) = session.poll_timeout() {
            let now = self.threads.sender.runs_at(due.0);
            read(&mut session, &mut records, now);
            session.poll_transmit(reading(now), None, &mut packet);
        }
        result.counts = session.result();
        records.finish(String::new(), &result, Instant(self.plan.duration.0), &mut Vec::new())
    }
}

/// Call of a STAMP session.
struct SessionCall {
    /// Time at which the thread ran.
    woken: u64,
    /// Time passed to the session, which is the timestamp of the packet.
    now: u64,
    sent: Option<StampDeparture>,
}

/// Packet of a STAMP session.
struct StampDeparture {
    due: u64,
    left: u64,
    bytes: Vec<u8>,
}

/// Returns the reading of both clocks of the host at `at`.
fn reading(at: u64) -> ClockReading {
    ClockReading { instant: Instant(at), unix: WALL + at }
}

/// Session-reflector of a trial.
struct Reflections {
    reflector: SessionReflector,
    records: ReflectorRecords,
}

impl Reflections {
    fn new(trial: &Trial, interval: Duration) -> Reflections {
        let config = ReflectorConfig { clock_error: (0, true), ..ReflectorConfig::default() };
        Reflections {
            reflector: SessionReflector::new(config),
            records: ReflectorRecords::new(interval, trial.ledger()),
        }
    }

    /// Returns the answer to a packet that arrived at `at`. Its timestamp is the first of these times; it leaves at the
    /// second.
    fn reflect(
        &mut self,
        packet: &[u8],
        at: u64,
        (stamped, left): (u64, u64),
        has_envelope: bool,
    ) -> Vec<u8> {
        let arrival = ReceivedPacketInfo {
            instant: Instant(at),
            unix: WALL + at,
            source: "10.0.0.1:9".parse().unwrap(),
            destination: "10.0.0.2:862".parse().unwrap(),
            ttl: 64,
            dscp: 0,
            ecn: 0,
        };
        let mut reply = Vec::new();
        self.reflector.reflect(packet, &arrival, None, || WALL + stamped, &mut reply).unwrap();
        let number = SenderPacket::read(packet, Mode::Unauthenticated).unwrap().sequence;
        let times = if has_envelope { (Instant(stamped), Instant(left)) } else { (Instant(at), Instant(at)) };
        self.records.record(number.into(), packet.len() as u64, Instant(at), times);
        reply
    }
}

fn bits_at_ip(payload: u64) -> f64 {
    (payload as f64 + f64::from(IPV4_HEADER + UDP_HEADER)) * 8.0
}
