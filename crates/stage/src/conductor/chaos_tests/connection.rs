//! TCP connection of a case: the kernels at both ends keep a window full, and their threads write and read when they run.

use super::network::{Packet, Path, Stalls};
use netstage_agent_api::results::{FlowResult, TcpSample};
use netstage_agent_api::task::{FlowTask, TcpOptions};
use netstage_core::time::Instant;
use netstage_scenario::plan::Plan;
use netstage_traffic::emissions::Emissions;
use netstage_traffic::records::FlowLedger;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Header bytes of a segment at the IP layer, which are all of an acknowledgment.
pub const HEADERS: u64 = 52;

/// Connection without loss, whose congestion window never limits it.
pub struct Connection<'a> {
    plan: &'a Plan,
    name: String,
    segment: u64,
    /// Segments of the receive window.
    window: u64,
    receiver: Stalls,
    /// Times at which the thread of the sender writes, each with the segments written until then.
    writes: VecDeque<(u64, u64)>,
    written: u64,
    /// Time of each segment sent.
    sent: Vec<u64>,
    /// Segments that may be sent.
    allowed: u64,
    arrived: u64,
    read: u64,
    /// Each acknowledgment: segment that it confirms, if it does, and segments allowed.
    acknowledgments: Vec<(Option<u64>, u64)>,
    ledger: FlowLedger,
    /// Round trip at the end of each bin.
    round_trips: Vec<u64>,
    reads: BinaryHeap<Reverse<u64>>,
}

impl Connection<'_> {
    /// Creates the connection of a flow. `threads` are the stalls of its sender and receiver.
    pub fn new<'a>(
        task: &FlowTask,
        options: &TcpOptions,
        (seed, plan): (u64, &'a Plan),
        [sender, receiver]: [Stalls; 2],
    ) -> Connection<'a> {
        let segment = options.max_segment_size.unwrap().into();
        let mut emissions = Emissions::new(task, seed, plan.duration).unwrap();
        let (mut writes, mut written) = (VecDeque::new(), 0_u64);
        while let Some((due, bytes)) = emissions.next_emission() {
            written = written.saturating_add(bytes.div_ceil(segment));
            writes.push_back((sender.runs_at(due.0), written));
        }
        Connection {
            plan,
            name: task.name.clone(),
            segment,
            window: (options.window.unwrap() / segment).max(1),
            receiver,
            writes,
            written: 0,
            sent: Vec::new(),
            allowed: (options.window.unwrap() / segment).max(1),
            arrived: 0,
            read: 0,
            acknowledgments: Vec::new(),
            ledger: FlowLedger::new(plan.measure.interval, plan.duration),
            round_trips: Vec::new(),
            reads: BinaryHeap::new(),
        }
    }

    /// Runs the connection. Returns the results of sender and receiver.
    pub fn run(mut self, path: &mut Path) -> [FlowResult; 2] {
        let end = self.plan.duration.0;
        loop {
            let write = self.writes.front().map_or(u64::MAX, |(at, _)| *at);
            let read = self.reads.peek().map_or(u64::MAX, |Reverse(at)| *at);
            if let Some((at, direction, id)) = path.poll(write.min(read).min(end)) {
                match direction {
                    0 => self.handle_segment(at, id, path),
                    _ => self.handle_acknowledgment(at, id as usize, path),
                }
            } else if write.min(read) >= end {
                break;
            } else if write <= read {
                self.written = self.writes.pop_front().unwrap().1;
                self.send(write, path);
            } else {
                self.reads.pop();
                self.read(read);
                self.acknowledge(read, None, path);
            }
        }
        let bins = self.plan.duration.0.div_ceil(self.plan.measure.interval.0) as usize;
        let last = self.round_trips.last().copied().unwrap_or(0);
        self.round_trips.resize(bins, last);
        let sample = |round_trip_ns| TcpSample { round_trip_ns, ..TcpSample::default() };
        let sender = FlowResult {
            name: self.name.clone(),
            sends: true,
            tcp: self.round_trips.into_iter().map(sample).collect(),
            ..FlowResult::default()
        };
        let receiver = FlowResult { name: self.name, bins: self.ledger.into_bins(), ..FlowResult::default() };
        [sender, receiver]
    }

    fn send(&mut self, now: u64, path: &mut Path) {
        while (self.sent.len() as u64) < self.written.min(self.allowed) {
            let bits = ((self.segment + HEADERS) * 8) as f64;
            path.send(now, Packet { id: self.sent.len() as u64, direction: 0, bits });
            self.sent.push(now);
        }
    }

    /// Handles a segment that arrived. The kernel acknowledges it; the thread reads it when it runs.
    fn handle_segment(&mut self, now: u64, number: u64, path: &mut Path) {
        self.arrived += 1;
        let read_at = self.receiver.runs_at(now);
        if read_at == now {
            self.read(now);
        } else {
            self.reads.push(Reverse(read_at));
        }
        self.acknowledge(now, Some(number), path);
    }

    fn read(&mut self, now: u64) {
        if now < self.plan.duration.0 {
            self.ledger.receive(Instant(now), 0, (self.arrived - self.read) * self.segment);
        }
        self.read = self.arrived;
    }

    fn acknowledge(&mut self, now: u64, segment: Option<u64>, path: &mut Path) {
        let packet =
            Packet { id: self.acknowledgments.len() as u64, direction: 1, bits: (HEADERS * 8) as f64 };
        self.acknowledgments.push((segment, self.read + self.window));
        path.send(now, packet);
    }

    fn handle_acknowledgment(&mut self, now: u64, index: usize, path: &mut Path) {
        let (segment, allowed) = self.acknowledgments[index];
        if let Some(segment) = segment {
            let bin = (now / self.plan.measure.interval.0) as usize;
            let before = self.round_trips.last().copied().unwrap_or(0);
            self.round_trips.resize(bin.max(self.round_trips.len()), before);
            self.round_trips.truncate(bin);
            self.round_trips.push(now - self.sent[segment as usize]);
        }
        self.allowed = self.allowed.max(allowed);
        self.send(now, path);
    }
}
