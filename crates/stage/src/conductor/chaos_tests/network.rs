//! Network of a case: a device whose truth is known, or the same line in the emulator, whose thread stalls.

use netstage_core::measure::VoidReason;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_emulator::{Emulator, EmulatorConfig, EmulatorReport};
use netstage_host::clock::Epoch;
use netstage_host::ports::{FramePort, ReceivedFrame};
use netstage_scenario::plan::Plan;
use netstage_wire::checksum::checksum;
use netstage_wire::ethernet::HEADER;
use netstage_wire::{IPV4_HEADER, UDP_HEADER};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

/// Device under test: a line with a drop-tail queue and random loss in each direction.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Rate at the IP layer, bits per second.
    pub rate: f64,
    /// Packets in the queue, including the one in transmission.
    pub buffer: u64,
    pub loss: f64,
    /// Propagation delay, nanoseconds.
    pub delay: u64,
    /// Share of packets that arrive with one wrong bit.
    pub damage: f64,
}

impl Device {
    /// Returns the transmission time of a packet of these bits, nanoseconds.
    pub fn service(&self, bits: f64) -> f64 {
        bits / self.rate * 1e9
    }

    /// Queues a packet that arrives at `at`. Returns the time at which it leaves, or `None` if it is dropped. `free_at` is
    /// the time at which the line is idle.
    fn enqueue(&self, at: u64, bits: f64, free_at: &mut f64) -> Option<u64> {
        let (at, service) = (at as f64, self.service(bits));
        if (*free_at - at) / service >= self.buffer as f64 {
            return None;
        }
        *free_at = free_at.max(at) + service;
        Some(*free_at as u64 + self.delay)
    }

    /// Returns whether the line loses this packet.
    fn loses(&self, seed: u64, packet: Packet) -> bool {
        let stream = format!("loss.{}.{}", packet.direction, packet.id);
        self.loss > 0.0 && RandomStream::new(seed, &stream).uniform() < self.loss
    }

    /// Returns the arrival of each packet, `None` if it is lost, when all leave at these times, the earliest first.
    pub fn forward(&self, seed: u64, departures: &[(u64, Packet)]) -> Vec<Option<u64>> {
        let mut free_at = [0.0; 2];
        let arrivals = departures.iter().map(|&(at, packet)| {
            let arrival = self.enqueue(at, packet.bits, &mut free_at[packet.direction]);
            arrival.filter(|_| !self.loses(seed, packet))
        });
        arrivals.collect()
    }

    /// Returns the wrong bits of a packet.
    pub fn bit_errors(&self, seed: u64, id: u64) -> u64 {
        let is_damaged =
            self.damage > 0.0 && RandomStream::new(seed, &format!("damage.{id}")).uniform() < self.damage;
        u64::from(is_damaged)
    }

    /// Returns the longest burst at this load, in packets per second, that a queue of this length absorbs.
    pub fn burst(&self, bits: f64, load: f64, buffer: f64, max: u64) -> u64 {
        let (service, gap) = (self.service(bits), 1e9 / load);
        let mut free_at = 0.0_f64;
        for packet in 0..max {
            let at = packet as f64 * gap;
            if (free_at - at) / service >= buffer {
                return packet;
            }
            free_at = free_at.max(at) + service;
        }
        max
    }
}

/// Periods in which a thread does not run.
#[derive(Clone, Default)]
pub struct Stalls(Vec<(u64, u64)>);

impl Stalls {
    /// Draws up to four stalls of 5 to 500 ms in a trial, or with a probability of `1 - chance` none. A late order of the
    /// controller is a stall at the start.
    pub fn draw(random: &mut RandomStream, duration: Duration, chance: f64) -> Stalls {
        let count = if random.chance(chance) { random.next_u64() % 5 } else { 0 };
        let mut stalls: Vec<(u64, u64)> = (0..count)
            .map(|_| {
                let start = random.next_u64() % duration.0;
                (start, start + length(random))
            })
            .collect();
        if random.chance(chance / 16.0) {
            stalls.push((0, length(random)));
        }
        stalls.sort_unstable();
        Stalls(stalls)
    }

    /// Returns the time at which a thread that is due at `at` runs.
    pub fn runs_at(&self, at: u64) -> u64 {
        self.0.iter().fold(at, |at, &(start, end)| if (start..end).contains(&at) { end } else { at })
    }
}

/// Draws the length of a stall.
pub fn length(random: &mut RandomStream) -> u64 {
    5_000_000 + random.next_u64() % 495_000_000
}

/// Packet on the path.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub id: u64,
    /// 0 from `a` to `b`, 1 back.
    pub direction: usize,
    /// Bits at the IP layer.
    pub bits: f64,
}

/// Arrival of a packet at its host: time, direction and identifier.
pub type Delivery = (u64, usize, u64);

/// Path between the hosts.
pub struct Path {
    device: Device,
    seed: u64,
    free_at: [f64; 2],
    emulated: Option<EmulatedPath>,
    deliveries: BinaryHeap<Reverse<Delivery>>,
}

impl Path {
    /// Creates the path through a device or, with stalls of its thread and the delay of its start, through the emulator.
    pub fn new(device: Device, seed: u64, plan: &Plan, emulator: Option<(Stalls, u64)>) -> Path {
        let emulated = emulator.map(|(stalls, start)| EmulatedPath::new(plan, seed, stalls, start));
        Path { device, seed, free_at: [0.0; 2], emulated, deliveries: BinaryHeap::new() }
    }

    /// Sends a packet at `at`, which must not be before the last packet of its direction.
    pub fn send(&mut self, at: u64, packet: Packet) {
        if self.device.loses(self.seed, packet) {
            // It takes its place in the queue.
            self.pass(at, Packet { id: LOST, ..packet });
        } else {
            self.pass(at, packet);
        }
    }

    fn pass(&mut self, at: u64, packet: Packet) {
        match &mut self.emulated {
            Some(emulated) => {
                let Packet { id, direction, bits } = packet;
                emulated.entered += 1;
                let packet = PendingPacket { at, order: emulated.entered, direction, id, bits: bits as u64 };
                emulated.pending.push(Reverse(packet));
            }
            None => {
                let arrival = self.device.enqueue(at, packet.bits, &mut self.free_at[packet.direction]);
                let delivery = arrival.map(|at| Reverse((at, packet.direction, packet.id)));
                self.deliveries.extend(delivery);
            }
        }
    }

    /// Returns the next arrival until `until`.
    pub fn poll(&mut self, until: u64) -> Option<Delivery> {
        loop {
            let arrival = self.deliveries.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            match &mut self.emulated {
                Some(emulated)
                    if emulated.next_turn() <= arrival.min(until) && emulated.next_turn() < u64::MAX =>
                {
                    self.deliveries.extend(emulated.turn().into_iter().map(Reverse));
                }
                _ if arrival > until || arrival == u64::MAX => return None,
                _ => {
                    let Reverse(delivery) = self.deliveries.pop().expect("an arrival");
                    if delivery.2 != LOST {
                        return Some(delivery);
                    }
                }
            }
        }
    }

    /// Returns the report of the emulator.
    pub fn finish(self, end: u64) -> EmulatorReport {
        self.emulated.map_or(EmulatorReport::default(), |emulated| emulated.finish(end))
    }
}

/// Time after which the emulator reads a packet.
const WAKE_UP: u64 = 50_000;
/// Identifier of a packet that the line loses.
const LOST: u64 = u64::MAX;

/// Packet on its way to the emulator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PendingPacket {
    at: u64,
    order: u64,
    direction: usize,
    id: u64,
    bits: u64,
}

/// Emulator of two links, an access link and the line, with a router between them that forwards at once.
struct EmulatedPath {
    emulator: Emulator<TestPort>,
    ports: Vec<TestPort>,
    stalls: Stalls,
    /// Time at which the order to start arrives, until it is handled.
    start: Option<u64>,
    /// Fault of a late start.
    fault: Option<VoidReason>,
    /// Packets sent and not read yet.
    pending: BinaryHeap<Reverse<PendingPacket>>,
    entered: u64,
    due: u64,
}

impl EmulatedPath {
    fn new(plan: &Plan, seed: u64, stalls: Stalls, start: u64) -> EmulatedPath {
        let ports: Vec<TestPort> =
            plan.links.iter().flat_map(|_| [(); 2].map(|()| TestPort::default())).collect();
        let pairs = ports.chunks(2).map(|pair| [pair[0].clone(), pair[1].clone()]).collect();
        let mut emulator = Emulator::new(EmulatorConfig::from_plan(plan, seed), pairs).unwrap();
        emulator.await_start();
        EmulatedPath {
            emulator,
            ports,
            stalls,
            start: Some(start),
            fault: None,
            pending: BinaryHeap::new(),
            entered: 0,
            due: u64::MAX,
        }
    }

    fn next_turn(&self) -> u64 {
        let arrival = self.pending.peek().map_or(u64::MAX, |Reverse(packet)| packet.at + WAKE_UP);
        let due = arrival.min(self.due);
        self.stalls.runs_at(due)
    }

    /// Runs the turns of the next time at which the emulator runs. Returns the arrivals at the hosts.
    fn turn(&mut self) -> Vec<Delivery> {
        let now = self.next_turn();
        if let Some(start) = self.start
            && now >= start
        {
            self.start = None;
            self.fault = self.emulator.start(Epoch(0));
        }
        let last = self.ports.len() - 1;
        while let Some(&Reverse(PendingPacket { at, direction, id, bits, .. })) = self.pending.peek()
            && at <= now
        {
            self.pending.pop();
            let port = &self.ports[if direction == 0 { 0 } else { last }];
            port.0.borrow_mut().received.push_back((at, frame(id, bits as usize / 8)));
        }
        let mut arrivals = Vec::new();
        loop {
            self.due = self.emulator.handle_timeout(Instant(now)).0;
            let mut is_forwarded = false;
            for (index, port) in self.ports.iter().enumerate() {
                for frame in std::mem::take(&mut port.0.borrow_mut().sent) {
                    if index == 0 || index == last {
                        arrivals.push((now, usize::from(index == 0), id(&frame)));
                    } else {
                        // The other port of the router.
                        let other = if index % 2 == 0 { index - 1 } else { index + 1 };
                        self.ports[other].0.borrow_mut().received.push_back((now, frame));
                        is_forwarded = true;
                    }
                }
            }
            if !is_forwarded && self.due > now {
                return arrivals;
            }
        }
    }

    fn finish(mut self, end: u64) -> EmulatorReport {
        if self.start.is_some() {
            self.fault = self.emulator.start(Epoch(0));
        }
        let mut report = self.emulator.into_report(Instant(end));
        report.void.extend(self.fault);
        report
    }
}

/// Returns the frame of a packet of `size` bytes at the IP layer, which contains its identifier.
fn frame(id: u64, size: usize) -> Vec<u8> {
    let mut frame = vec![0; HEADER + size];
    frame[12..14].copy_from_slice(&[8, 0]);
    let (ip, udp) = (HEADER, HEADER + IPV4_HEADER as usize);
    let length = (size as u16).to_be_bytes();
    frame[ip..ip + 12].copy_from_slice(&[0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame[ip + 12..udp].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = checksum(&frame[ip..udp]);
    frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    frame[udp + 4..udp + 6].copy_from_slice(&(size as u16 - IPV4_HEADER as u16).to_be_bytes());
    frame[ID..ID + 8].copy_from_slice(&id.to_be_bytes());
    frame
}

/// Offset of the identifier in a frame.
const ID: usize = HEADER + (IPV4_HEADER + UDP_HEADER) as usize;

fn id(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[ID..ID + 8].try_into().unwrap())
}

/// Port at one end of a link.
#[derive(Clone, Default)]
struct TestPort(Rc<RefCell<PortTraffic>>);

#[derive(Default)]
struct PortTraffic {
    received: VecDeque<(u64, Vec<u8>)>,
    sent: Vec<Vec<u8>>,
}

impl FramePort for TestPort {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        let mut traffic = self.0.borrow_mut();
        let count = limit.min(traffic.received.len());
        for (at_ns, frame) in traffic.received.drain(..count) {
            each(ReceivedFrame { frame: &frame, at_ns });
        }
        Ok(count)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.0.borrow_mut().sent.push(frame.into());
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn missed(&mut self) -> u64 {
        0
    }
}
