//! Tests of the emulator in virtual time: each step of the driver is called with its time, on ports that the test fills
//! and reads.

use super::*;
use crate::classify::{ClassifierEntry, PacketLabel};
use crate::config::{LinkConfig, POOL_BYTES, Tolerance};
use crate::report::DirectionReport;
use netstage_core::link::{Jitter, JitterDistribution, LinkChange, LinkDirection, LinkLoss};
use netstage_core::packet::{Ecn, QueuePacket};
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::rng::RandomStream;
use netstage_core::{link, queue};
use netstage_host::ports::ReceivedFrame;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

/// Port at one end of a link.
#[derive(Clone, Default)]
struct TestPort(Rc<RefCell<PortTraffic>>);

#[derive(Default)]
struct PortTraffic {
    /// Frames to be received.
    received: VecDeque<(Instant, Vec<u8>)>,
    /// Frames that were sent.
    sent: Vec<Vec<u8>>,
    missed: u64,
    /// Maximum number of frames that can be sent.
    capacity: Option<usize>,
    has_failed: bool,
}

impl FramePort for TestPort {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        let mut traffic = self.0.borrow_mut();
        if traffic.has_failed {
            return Err(io::Error::other("the device is gone"));
        }
        let count = limit.min(traffic.received.len());
        for (at, frame) in traffic.received.drain(..count) {
            each(ReceivedFrame { frame: &frame, at_ns: at.0 });
        }
        Ok(count)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        let mut traffic = self.0.borrow_mut();
        let has_room = traffic.capacity.is_none_or(|capacity| traffic.sent.len() < capacity);
        if has_room {
            traffic.sent.push(frame.into());
        }
        Ok(has_room)
    }

    fn flush(&mut self) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn missed(&mut self) -> u64 {
        self.0.borrow().missed
    }
}

/// Emulator of one link, whose forward direction is tested.
struct Bench {
    emulator: Emulator<TestPort>,
    near: TestPort,
    far: TestPort,
    /// Future arrivals.
    arrivals: VecDeque<(Instant, Vec<u8>)>,
    now: Instant,
}

const END: Instant = Instant(10_000_000_000);

fn perfect() -> link::LinkDirectionConfig {
    link::LinkDirectionConfig {
        overhead: 18,
        ..link::LinkDirectionConfig::plain(
            BitRate(10_000_000),
            Duration::from_millis(5),
            Capacity::Packets(10),
        )
    }
}

fn config(direction: link::LinkDirectionConfig) -> EmulatorConfig {
    EmulatorConfig {
        seed: 7,
        duration: END.since(Instant::ZERO),
        interval: Duration::from_secs(1),
        links: vec![LinkConfig {
            name: "line".into(),
            directions: [direction.clone(), direction],
            delivers: [vec![0], vec![]],
        }],
        labels: vec![ClassifierEntry {
            source: None,
            destination: Some([10, 0, 0, 2].into()),
            protocol: None,
            source_port: None,
            destination_port: None,
            label: PacketLabel { class: 0, flow: Some(5), background: false, connections: false },
        }],
        default_class: 1,
        pool_bytes: POOL_BYTES,
        tolerance: Tolerance::default(),
    }
}

impl Bench {
    fn new(config: EmulatorConfig, arrivals: Vec<(Instant, Vec<u8>)>) -> Bench {
        let (near, far) = (TestPort::default(), TestPort::default());
        let emulator = Emulator::new(config, vec![[near.clone(), far.clone()]]).unwrap();
        Bench { emulator, near, far, arrivals: arrivals.into(), now: Instant::ZERO }
    }

    /// Runs one step of the driver at `now`, with all frames that have arrived.
    fn turn(&mut self, now: Instant) {
        assert!(now >= self.now);
        self.now = now;
        while let Some(frame) = self.arrivals.pop_front_if(|(at, _)| *at <= now) {
            self.near.0.borrow_mut().received.push_back(frame);
        }
        self.emulator.ready = vec![0];
        self.emulator.turn(now, &mut || now);
    }

    /// Returns the time of the next step of a driver that is never late.
    fn next(&self) -> Instant {
        let arrival = self.arrivals.front().map_or(Instant::NEVER, |(at, _)| *at);
        self.emulator.links.poll_timeout().min(arrival)
    }

    /// Runs until `end` without lateness.
    fn run(&mut self, end: Instant) {
        while self.next() <= end && self.next() < Instant::NEVER {
            self.turn(self.next());
        }
        self.now = end;
    }

    fn report(self) -> EmulatorReport {
        self.emulator.finish(self.now, Grants::default(), Vec::new())
    }
}

/// Returns an Ethernet frame with an IPv4 UDP packet of `size` bytes that contains its number.
fn udp(size: usize, number: u32, ecn: u8) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0]);
    let mut ip = vec![0; size];
    ip[..12].copy_from_slice(&[0x45, ecn, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip[2..4].copy_from_slice(&(size as u16).to_be_bytes());
    ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let checksum = !checksum(&ip[..20]);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    ip[20..28].copy_from_slice(&[1, 2, 3, 4, 0, 0, 0, 0]);
    ip[24..26].copy_from_slice(&(size as u16 - 20).to_be_bytes());
    ip[28..32].copy_from_slice(&number.to_be_bytes());
    frame.extend(ip);
    frame
}

/// Returns the one's complement sum of 16-bit words: 0xffff for a header with a correct checksum.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[42..46].try_into().unwrap())
}

fn numbers(port: &TestPort) -> Vec<u32> {
    port.0.borrow().sent.iter().map(|frame| number(frame)).collect()
}

/// Packet of the reference link.
#[derive(Clone, Debug)]
struct ReferencePacket {
    number: u32,
    size: u32,
    ecn: Ecn,
}

impl QueuePacket for ReferencePacket {
    fn size(&self) -> u32 {
        self.size
    }
    fn class(&self) -> u16 {
        0
    }
    fn ecn(&self) -> Ecn {
        self.ecn
    }
    fn mark_congestion(&mut self) {
        self.ecn = Ecn::CongestionExperienced;
    }
    fn flow_key(&self) -> u64 {
        5 << 1
    }
}

/// Returns bursts of packets of random sizes, some ECN-capable.
fn bursts(seed: u64, packets: u32) -> Vec<(Instant, Vec<u8>)> {
    let mut rng = RandomStream::new(seed, "arrivals");
    let mut at = Instant::ZERO;
    (0..packets)
        .map(|number| {
            if rng.chance(0.2) {
                at += Duration::from_secs_f64(rng.exponential(5e-3));
            }
            let size = 40 + rng.below(1461) as usize;
            (at, udp(size, number, if rng.chance(0.5) { 2 } else { 0 }))
        })
        .collect()
}

/// Returns the configuration of a test case.
fn variant(case: u64) -> link::LinkDirectionConfig {
    let jitter = |reorder| Jitter {
        amount: Duration::from_millis(3),
        distribution: JitterDistribution::Exponential,
        reorder,
    };
    let codel = queue::CodelConfig {
        target: Duration::from_millis(1),
        interval: Duration::from_millis(10),
        ecn: true,
    };
    let change = |millis, change| (Instant::ZERO + Duration::from_millis(millis), change);
    match case {
        0 => perfect(),
        1 => link::LinkDirectionConfig { buffer: Capacity::Bytes(6000), loss: 0.1, ..perfect() },
        2 => link::LinkDirectionConfig { jitter: jitter(false), duplicate: 0.1, ..perfect() },
        3 => link::LinkDirectionConfig { jitter: jitter(true), loss: 0.05, duplicate: 0.2, ..perfect() },
        4 => link::LinkDirectionConfig {
            bit_error_rate: 1e-5,
            queue: queue::QueueConfig::Codel(codel),
            ..perfect()
        },
        5 => link::LinkDirectionConfig {
            queue: queue::QueueConfig::Red(queue::RedConfig {
                min_threshold: 1.0,
                max_threshold: 5.0,
                max_probability: 0.2,
                weight: 0.05,
                ecn: true,
            }),
            ..perfect()
        },
        6 => link::LinkDirectionConfig {
            queue: queue::QueueConfig::FqCodel(queue::FqCodelConfig { codel, flows: 16, quantum: 1514 }),
            ..perfect()
        },
        _ => link::LinkDirectionConfig {
            schedule: vec![
                change(100, LinkChange { rate: Some(BitRate(2_000_000)), ..LinkChange::default() }),
                change(300, LinkChange { up: Some(false), ..LinkChange::default() }),
                change(400, LinkChange { up: Some(true), delay: Some(Duration(0)), ..LinkChange::default() }),
                change(
                    700,
                    LinkChange { loss: Some(0.5), bit_error_rate: Some(1e-5), ..LinkChange::default() },
                ),
            ],
            ..perfect()
        },
    }
}

/// Result of the link of `core`.
struct ReferenceResult {
    /// Packets in order of arrival, with times and flipped bits.
    arrived: Vec<link::LinkArrival<ReferencePacket>>,
    dropped: u64,
    lost: u64,
}

fn reference(config: &link::LinkDirectionConfig, arrivals: &[(Instant, Vec<u8>)]) -> ReferenceResult {
    let mut link: LinkDirection<ReferencePacket> =
        LinkDirection::new(config, RandomStream::new(7, "link.line.forward"));
    for (at, frame) in arrivals {
        let size = u32::from(u16::from_be_bytes([frame[16], frame[17]]));
        link.handle_packet(*at, ReferencePacket { number: number(frame), size, ecn: ecn_of(frame) });
    }
    let mut expected = ReferenceResult { arrived: Vec::new(), dropped: 0, lost: 0 };
    expected.arrived.extend(std::iter::from_fn(|| link.poll_arrival(END)));
    while let Some((_, loss)) = link.poll_loss() {
        *if loss == LinkLoss::Queue { &mut expected.dropped } else { &mut expected.lost } += 1;
    }
    expected
}

fn ecn_of(frame: &[u8]) -> Ecn {
    match frame[15] & 3 {
        0 => Ecn::NotCapable,
        3 => Ecn::CongestionExperienced,
        _ => Ecn::Capable,
    }
}

fn assert_conserved(direction: &DirectionReport) {
    let totals = direction.totals;
    let ended = totals.delivered + totals.corrupted + totals.dropped + totals.lost;
    assert_eq!(totals.entered + totals.duplicated, ended + totals.in_flight);
    assert_eq!(direction.packets.iter().sum::<u64>(), totals.delivered);
    assert_eq!(direction.drops.iter().sum::<u64>(), totals.dropped);
    assert_eq!(direction.lost.iter().sum::<u64>(), totals.lost + totals.corrupted);
}

/// Passes the same packets to the link of `core` and to the emulator. The arrivals, their order, marks, drops and
/// losses must be equal; the times, too, if the driver is never late.
#[test]
fn the_emulator_gives_the_results_of_the_link_of_core() {
    for case in 0..8 {
        let arrivals = bursts(case, 1500);
        let ReferenceResult { arrived, dropped, lost } = reference(&variant(case), &arrivals);
        for late in [false, true] {
            let mut bench = Bench::new(config(variant(case)), arrivals.clone());
            let mut rng = RandomStream::new(case, "late");
            let mut times = Vec::new();
            while bench.next() < Instant::NEVER {
                let lateness = if late { rng.exponential(20e-3) } else { 0.0 };
                let now = bench.next().max(bench.now) + Duration::from_secs_f64(lateness);
                bench.turn(now);
                times.resize(bench.far.0.borrow().sent.len(), now);
            }
            bench.now = END;
            let sent = bench.far.0.borrow().sent.clone();
            assert_eq!(sent.len(), arrived.len(), "case {case}");
            for ((frame, time), expected) in sent.iter().zip(&times).zip(&arrived) {
                assert!(*time >= expected.at && (late || *time == expected.at), "case {case}");
                if expected.bit_errors == 0 {
                    assert_eq!(number(frame), expected.packet.number, "case {case}");
                    assert_eq!(ecn_of(frame), expected.packet.ecn, "case {case}");
                    assert_eq!(checksum(&frame[14..34]), 0xffff, "case {case}");
                }
            }
            let report = bench.report();
            let direction = &report.links[0].directions[0];
            assert_conserved(direction);
            let totals = direction.totals;
            assert_eq!((totals.dropped, totals.lost, totals.in_flight), (dropped, lost, 0), "case {case}");
            let corrupted = arrived.iter().filter(|arrival| arrival.bit_errors > 0).count() as u64;
            assert_eq!(totals.corrupted, corrupted, "case {case}");
            let marked = arrived.iter().filter(|arrival| arrival.packet.ecn == Ecn::CongestionExperienced);
            assert!(direction.marks.iter().sum::<u64>() >= marked.count() as u64);
            let flow_lost: u64 = report.flow_lost.values().flatten().sum();
            assert_eq!(flow_lost, dropped + lost + corrupted);
            assert!(report.flow_lost.keys().all(|flow| *flow == 5));
        }
    }
}

#[test]
fn bit_errors_flip_the_number_of_bits_drawn_by_core_and_only_in_the_packet() {
    let direction = link::LinkDirectionConfig {
        bit_error_rate: 1e-4,
        duplicate: 0.3,
        buffer: Capacity::Packets(9999),
        ..perfect()
    };
    let mut arrivals = bursts(3, 500);
    for (_, frame) in &mut arrivals {
        // Padding does not count and has no bit errors.
        frame.extend([0xee; 10]);
    }
    let mut bench = Bench::new(config(direction.clone()), arrivals.clone());
    bench.run(END);
    let sent = bench.far.0.borrow().sent.clone();
    let ReferenceResult { arrived, .. } = reference(&direction, &arrivals);
    assert_eq!(sent.len(), arrived.len());
    let mut flipped_in_headers = 0;
    for (frame, arrival) in sent.iter().zip(&arrived) {
        let original = &arrivals[arrival.packet.number as usize].1;
        let flipped: Vec<u32> = original.iter().zip(frame).map(|(a, b)| (a ^ b).count_ones()).collect();
        assert_eq!(flipped.iter().sum::<u32>(), arrival.bit_errors);
        assert_eq!(flipped[..14].iter().sum::<u32>(), 0, "the Ethernet header has no bit errors");
        assert_eq!(frame[frame.len() - 10..], [0xee; 10]);
        flipped_in_headers += flipped[14..42].iter().sum::<u32>();
    }
    assert!(flipped_in_headers > 0, "headers have bit errors, too");
}

#[test]
fn jitter_keeps_the_order_unless_reordering_is_enabled() {
    for reorder in [false, true] {
        let jitter =
            Jitter { amount: Duration::from_millis(20), distribution: JitterDistribution::Uniform, reorder };
        let mut bench = Bench::new(config(link::LinkDirectionConfig { jitter, ..perfect() }), bursts(1, 500));
        bench.run(END);
        assert_eq!(numbers(&bench.far).is_sorted(), !reorder);
    }
}

#[test]
fn link_local_frames_bypass_the_link_while_it_is_up() {
    let mut request = vec![0xff; 12];
    request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.resize(60, 0);
    let down = LinkChange { up: Some(false), ..LinkChange::default() };
    let direction = link::LinkDirectionConfig {
        delay: Duration::from_secs(1),
        schedule: vec![(Instant(10), down)],
        ..perfect()
    };
    let arrivals = [5, 15].map(|at| [(Instant(at), request.clone()), (Instant(at), udp(100, 1, 0))]);
    let mut bench = Bench::new(config(direction), arrivals.concat());
    bench.turn(Instant(5));
    assert_eq!(bench.far.0.borrow().sent, [request.clone()]);
    bench.turn(Instant(15));
    assert_eq!(bench.far.0.borrow().sent, [request]);
    let direction = bench.report().links[0].directions[0].clone();
    assert_eq!((direction.totals.bypassed, direction.totals.entered, direction.totals.lost), (2, 2, 2));
    assert_eq!(direction.broadcast.iter().sum::<u64>(), 2);
}

#[test]
fn frames_before_the_start_bypass_the_link() {
    let mut bench = Bench::new(config(perfect()), Vec::new());
    bench.emulator.epoch = Epoch(1000);
    bench.near.0.borrow_mut().received.push_back((Instant(999), udp(100, 1, 0)));
    bench.turn(Instant::ZERO);
    assert_eq!(numbers(&bench.far), [1]);
    bench.near.0.borrow_mut().received.push_back((Instant(1000), udp(100, 2, 0)));
    bench.turn(Instant::ZERO);
    assert_eq!(numbers(&bench.far), [1]);
    bench.run(END);
    assert_eq!(numbers(&bench.far), [1, 2]);
}

#[test]
fn after_the_run_frames_are_forwarded_but_not_counted() {
    let arrivals: Vec<_> = (0..30).map(|i| (Instant(i * 1_000_000), udp(1000, i as u32, 0))).collect();
    let mut short = config(perfect());
    (short.duration, short.interval) = (Duration::from_millis(20), Duration::from_millis(10));
    let mut bench = Bench::new(short, arrivals);
    bench.run(Instant::ZERO + Duration::from_secs(1));
    assert_eq!(bench.far.0.borrow().sent.len(), 30);
    let report = bench.report();
    let direction = &report.links[0].directions[0];
    // 1018 bytes take 0.8144 ms, plus 5 ms of delay: the packet sent at 14 ms arrives at 19.8 ms.
    let totals = direction.totals;
    assert_eq!((totals.entered, totals.delivered, totals.in_flight), (21, 15, 6));
    assert_eq!(direction.busy_ns, [8_144_000; 2]);
    // As in the simulator, a plain line counts packets when they leave it, and deliveries on arrival.
    assert_eq!((&direction.bytes, &direction.delivered[&0]), (&vec![10_000; 2], &vec![5_000, 10_000]));
    assert_eq!(report.void, []);
}

#[test]
fn a_stalled_driver_voids_the_run() {
    let arrivals: Vec<_> = (0..100).map(|i| (Instant(i * 1_000_000), udp(100, i as u32, 0))).collect();
    let mut bench = Bench::new(config(perfect()), arrivals);
    bench.run(Instant::ZERO + Duration::from_millis(50));
    bench.turn(Instant::ZERO + Duration::from_millis(80));
    bench.run(END);
    let report = bench.report();
    assert_eq!(report.void.len(), 1, "{:?}", report.void);
    assert!(report.void[0].contains("link.line.forward: 29 of 100 packets left more than 1.0 ms late"));
    let direction = &report.links[0].directions[0];
    assert_eq!((direction.totals.delivered, direction.totals.dropped), (100, 0));
}

#[test]
fn each_fault_is_reported() {
    let fault = |change: &dyn Fn(&mut EmulatorConfig, &TestPort, &TestPort)| {
        let mut config = config(perfect());
        let (near, far) = (TestPort::default(), TestPort::default());
        change(&mut config, &near, &far);
        let (arrivals, capacity) = (near.0.take().received, far.0.borrow().capacity);
        let fails = config.seed == 0;
        let mut bench = Bench::new(config, arrivals.into());
        bench.far.0.borrow_mut().capacity = capacity;
        if fails {
            bench.run(Instant(1));
            bench.near.0.borrow_mut().has_failed = true;
            bench.turn(Instant(2));
        }
        bench.run(END);
        bench.report().void.iter().map(|reason| format!("{reason}\n")).collect::<String>()
    };
    let frames = |near: &TestPort, length: usize| {
        near.0.borrow_mut().received.extend((0..3).map(|i| (Instant(i), udp(length, i as u32, 0))));
    };
    let exhausted = fault(&|config, near, _| {
        config.pool_bytes = 4096;
        frames(near, 1500);
    });
    assert!(
        exhausted.contains(
            "1 packets could not be buffered (the buffers of 0 MB are exhausted) within the run of"
        ),
        "{exhausted}"
    );
    let offload = fault(&|_, near, _| frames(near, 60_000));
    assert!(offload.contains("60014 bytes long) within"), "{offload}");
    assert!(offload.contains("; disable segmentation offload"), "{offload}");
    let refused = fault(&|_, near, far| {
        frames(near, 1500);
        far.0.borrow_mut().capacity = Some(2);
    });
    assert!(refused.contains("refused to send 1 packets"), "{refused}");
    let failed = fault(&|config, _, _| config.seed = 0);
    let named = "link.line.forward: the input interface failed: the device is gone at 0.000 s";
    assert!(failed.contains(named), "{failed}");
}

#[test]
fn frames_missed_by_the_port_void_the_run() {
    let mut bench = Bench::new(config(perfect()), Vec::new());
    bench.run(END);
    bench.near.0.borrow_mut().missed = 3;
    let void = bench.report().void;
    assert!(
        void[0].contains("link.line.forward: 3 packets were lost before the emulator read them"),
        "{void:?}"
    );
}

#[test]
fn faults_after_the_run_do_not_void_it() {
    let late = END + Duration(1);
    let frames = (0..3).map(|i| (late + Duration(i), udp(60_000, i as u32, 0)));
    let mut bench = Bench::new(config(perfect()), frames.collect());
    bench.run(late + Duration(10));
    bench.near.0.borrow_mut().missed = 3;
    bench.far.0.borrow_mut().has_failed = true;
    bench.emulator.ready = vec![1];
    bench.emulator.turn(bench.now, &mut || late);
    assert_eq!(bench.report().void, []);
}

#[test]
fn a_saturated_line_achieves_its_rate() {
    let arrivals: Vec<_> = (0..2000).map(|i| (Instant(i * 1_000_000), udp(1482, i as u32, 0))).collect();
    let mut bench = Bench::new(config(perfect()), arrivals);
    bench.run(END);
    let report = bench.report();
    let saturated = report.links[0].directions[0].saturated.unwrap();
    assert_eq!(saturated.error, 0.0);
    assert!(saturated.frames > 1600 && report.links[0].directions[1].saturated.is_none());
}

#[test]
fn a_stall_of_the_emulator_voids_the_run() {
    let voids = |stall_ms: u64| {
        let at = |ms: u64| Instant(ms * 1_000_000);
        let arrivals = (0..100).map(|frame| (at(frame * 100), udp(1000, frame as u32, 0))).collect();
        let mut bench = Bench::new(config(perfect()), arrivals);
        bench.run(at(5_001));
        bench.turn(at(5_006 + stall_ms));
        bench.run(END);
        let report = bench.report();
        let lateness = report.links[0].directions[0].lateness;
        // The frame that arrived at 5 s was due after its transmission time of 0.8 ms and the delay of 5 ms.
        assert!((5_005_800_000..5_005_900_000).contains(&lateness.max_due_ns), "{lateness:?}");
        report.void
    };
    assert_eq!(voids(199), []);
    let void = voids(210);
    assert!(void[0].starts_with("the emulator did not run for 210 of 10000 ms"), "{void:?}");
}

#[test]
fn frames_of_the_run_that_passed_before_the_order_to_start_void_it() {
    for (arrival_ms, is_void) in [(40, true), (20, false)] {
        let at = Instant(arrival_ms * 1_000_000);
        let mut bench = Bench::new(config(perfect()), vec![(at, udp(1000, 1, 0))]);
        bench.emulator.await_start();
        bench.turn(at);
        assert_eq!(numbers(&bench.far), [1]);
        let void = bench.emulator.start(Epoch(30_000_000));
        assert_eq!(void.is_some(), is_void, "{void:?}");
    }
}

/// Returns frames like [`bursts`], all as long as `size`, of TCP from one of two hosts.
fn tcp_bursts(seed: u64, packets: u32, size: usize) -> Vec<(Instant, Vec<u8>)> {
    let mut rng = RandomStream::new(seed, "sources");
    let mut frames = bursts(seed, packets);
    for (number, (_, frame)) in frames.iter_mut().enumerate() {
        *frame = udp(size, number as u32, 0);
        let ip = &mut frame[14..];
        (ip[9], ip[15], ip[10], ip[11]) = (6, rng.below(2) as u8 + 3, 0, 0);
        let checksum = !checksum(&ip[..20]);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    frames
}

/// Returns the time and the frame of each departure.
fn departures(config: EmulatorConfig, arrivals: Vec<(Instant, Vec<u8>)>) -> Vec<(Instant, Vec<u8>)> {
    let mut bench = Bench::new(config, arrivals);
    let mut departures = Vec::new();
    while bench.next() <= END {
        bench.turn(bench.next());
        departures.extend(bench.far.0.borrow_mut().sent.drain(..).map(|frame| (bench.now, frame)));
    }
    departures
}

#[test]
fn phases_of_tcp_decide_who_finds_room_but_leave_no_line_idle() {
    let seed = netstage_harness::seed("phases");
    let line =
        |queue, buffer| link::LinkDirectionConfig { queue, buffer: Capacity::Packets(buffer), ..perfect() };
    let run =
        |line, run| departures(EmulatorConfig { seed: run, ..config(line) }, tcp_bursts(seed, 1_000, 1_000));
    let times = |departures: &[(Instant, Vec<u8>)]| departures.iter().map(|(at, _)| *at).collect::<Vec<_>>();
    let numbers_of = |departures: &[(Instant, Vec<u8>)], source: u8| {
        let own = departures.iter().filter(|(_, frame)| frame[29] == source);
        own.map(|(_, frame)| number(frame)).collect::<Vec<_>>()
    };
    // Without drops, packets leave at the same times as through a queue without phases, each flow in order.
    let buffer_per_class = Capacity::Packets(1_000);
    let one_queue = queue::DrrConfig { weights: vec![1.0; 2], buffer_per_class };
    let exact = run(line(queue::QueueConfig::DeficitRoundRobin(one_queue), 1_000), 1);
    assert_eq!(exact.len(), 1_000);
    let with_room = [1, 2].map(|number| run(line(queue::QueueConfig::DropTail, 1_000), number));
    for departures in &with_room {
        assert_eq!(times(departures), times(&exact));
        assert!([3, 4].iter().all(|source| numbers_of(departures, *source).is_sorted()));
    }
    assert_ne!(with_room[0], with_room[1], "each run draws its phases");
    // A short queue drops other packets of the flows in each run.
    let short = [1, 2].map(|number| run(line(queue::QueueConfig::DropTail, 5), number));
    assert!(short.iter().all(|departures| departures.len() < 1_000));
    assert_ne!(numbers_of(&short[0], 3), numbers_of(&short[1], 3));
}

#[test]
fn packets_with_labels_have_no_phase() {
    let mut arrivals = tcp_bursts(netstage_harness::seed("phases"), 1_000, 1_000);
    for (_, frame) in &mut arrivals {
        frame[12..14].copy_from_slice(&[0x88, 0x47]);
        frame.splice(14..14, [0, 1, 1, 64]);
    }
    let all: Vec<_> = arrivals.iter().map(|(_, frame)| frame.clone()).collect();
    let line = link::LinkDirectionConfig { buffer: Capacity::Packets(1_000), ..perfect() };
    let sent: Vec<_> = departures(config(line), arrivals).into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(sent, all);
}
