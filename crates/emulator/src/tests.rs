//! The emulator in virtual time: the driver's step told every time, over ports that a test
//! fills and empties.

use super::*;
use crate::classify::{Entry, Label};
use crate::config::{LinkConfig, POOL_BYTES, Tolerance};
use crate::report::DirectionReport;
use netstage_core::link::{Change, Jitter, JitterDistribution, Link, Loss};
use netstage_core::packet::{Ecn, Packet};
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::rng::Stream;
use netstage_core::{link, queue};
use netstage_host::ports::Received;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

/// One end of a link: what will come in, and what has left.
#[derive(Clone, Default)]
struct End(Rc<RefCell<Traffic>>);

#[derive(Default)]
struct Traffic {
    coming: VecDeque<(Instant, Vec<u8>)>,
    left: Vec<Vec<u8>>,
    missed: u64,
    room: Option<usize>,
    gone: bool,
}

impl Port for End {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let mut traffic = self.0.borrow_mut();
        if traffic.gone {
            return Err(io::Error::other("the device is gone"));
        }
        let count = limit.min(traffic.coming.len());
        for (at, frame) in traffic.coming.drain(..count) {
            each(Received { frame: &frame, at_ns: at.0 });
        }
        Ok(count)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        let mut traffic = self.0.borrow_mut();
        let room = traffic.room.is_none_or(|room| traffic.left.len() < room);
        if room {
            traffic.left.push(frame.into());
        }
        Ok(room)
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

/// An emulator of one link whose forward direction is under test.
struct Bench {
    emulator: Emulator<End>,
    near: End,
    far: End,
    /// When frames that are still to come will come.
    arrivals: VecDeque<(Instant, Vec<u8>)>,
    now: Instant,
}

const END: Instant = Instant(10_000_000_000);

fn perfect() -> link::Config {
    link::Config {
        overhead: 18,
        ..link::Config::plain(BitRate(10_000_000), Duration::from_millis(5), Capacity::Packets(10))
    }
}

fn config(direction: link::Config) -> Config {
    Config {
        seed: 7,
        duration: END.since(Instant::ZERO),
        interval: Duration::from_secs(1),
        links: vec![LinkConfig {
            name: "line".into(),
            directions: [direction.clone(), direction],
            delivers: [vec![0], vec![]],
        }],
        labels: vec![Entry {
            source: None,
            destination: Some([10, 0, 0, 2].into()),
            protocol: None,
            source_port: None,
            destination_port: None,
            label: Label { class: 0, flow: Some(5), background: false, connections: false },
        }],
        others: 1,
        pool_bytes: POOL_BYTES,
        tolerance: Tolerance::default(),
    }
}

impl Bench {
    fn new(config: Config, arrivals: Vec<(Instant, Vec<u8>)>) -> Bench {
        let (near, far) = (End::default(), End::default());
        let emulator = Emulator::new(config, vec![[near.clone(), far.clone()]]).unwrap();
        Bench { emulator, near, far, arrivals: arrivals.into(), now: Instant::ZERO }
    }

    /// One turn of the driver at `now`, in which it sees every frame that has come.
    fn turn(&mut self, now: Instant) {
        assert!(now >= self.now);
        self.now = now;
        while let Some(frame) = self.arrivals.pop_front_if(|(at, _)| *at <= now) {
            self.near.0.borrow_mut().coming.push_back(frame);
        }
        self.emulator.ready = vec![0];
        self.emulator.turn(now, &mut || now);
    }

    /// When a driver that is never late would have its next turn.
    fn next(&self) -> Instant {
        let coming = self.arrivals.front().map_or(Instant::NEVER, |(at, _)| *at);
        self.emulator.links.poll_timeout().min(coming)
    }

    /// Runs until `end`, never late.
    fn run(&mut self, end: Instant) {
        while self.next() <= end && self.next() < Instant::NEVER {
            self.turn(self.next());
        }
        self.now = end;
    }

    fn report(self) -> Report {
        self.emulator.finish(self.now, Grants::default(), Vec::new())
    }
}

/// An Ethernet frame with an IPv4 UDP packet of `size` bytes that says its number.
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

/// One's complement sum of 16-bit words: 0xffff over a header with a right checksum.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[42..46].try_into().unwrap())
}

fn numbers(end: &End) -> Vec<u32> {
    end.0.borrow().left.iter().map(|frame| number(frame)).collect()
}

/// The packet as the reference has it.
#[derive(Clone, Debug)]
struct Reference {
    number: u32,
    size: u32,
    ecn: Ecn,
}

impl Packet for Reference {
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

/// Bursts of random sizes, some ECN-capable.
fn bursts(seed: u64, packets: u32) -> Vec<(Instant, Vec<u8>)> {
    let mut rng = Stream::new(seed, "arrivals");
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

/// Every kind of link, one after the other.
fn variant(case: u64) -> link::Config {
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
        1 => link::Config { buffer: Capacity::Bytes(6000), loss: 0.1, ..perfect() },
        2 => link::Config { jitter: jitter(false), duplicate: 0.1, ..perfect() },
        3 => link::Config { jitter: jitter(true), loss: 0.05, duplicate: 0.2, ..perfect() },
        4 => link::Config { bit_error_rate: 1e-5, queue: queue::Config::Codel(codel), ..perfect() },
        5 => link::Config {
            queue: queue::Config::Red(queue::RedConfig {
                min_threshold: 1.0,
                max_threshold: 5.0,
                max_probability: 0.2,
                weight: 0.05,
                ecn: true,
            }),
            ..perfect()
        },
        6 => link::Config {
            queue: queue::Config::FqCodel(queue::FqCodelConfig { codel, flows: 16, quantum: 1514 }),
            ..perfect()
        },
        _ => link::Config {
            schedule: vec![
                change(100, Change { rate: Some(BitRate(2_000_000)), ..Change::default() }),
                change(300, Change { up: Some(false), ..Change::default() }),
                change(400, Change { up: Some(true), delay: Some(Duration(0)), ..Change::default() }),
                change(700, Change { loss: Some(0.5), bit_error_rate: Some(1e-5), ..Change::default() }),
            ],
            ..perfect()
        },
    }
}

/// What the link of `core` does with the arrivals.
struct Expected {
    /// In order of arrival, with the times and flipped bits.
    arrived: Vec<link::Arrival<Reference>>,
    dropped: u64,
    lost: u64,
}

fn reference(config: &link::Config, arrivals: &[(Instant, Vec<u8>)]) -> Expected {
    let mut link: Link<Reference> = Link::new(config, Stream::new(7, "link.line.forward"));
    for (at, frame) in arrivals {
        let size = u32::from(u16::from_be_bytes([frame[16], frame[17]]));
        link.handle_packet(*at, Reference { number: number(frame), size, ecn: ecn_of(frame) });
    }
    let mut expected = Expected { arrived: Vec::new(), dropped: 0, lost: 0 };
    expected.arrived.extend(std::iter::from_fn(|| link.poll_arrival(END)));
    while let Some((_, loss)) = link.poll_loss() {
        *if loss == Loss::Queue { &mut expected.dropped } else { &mut expected.lost } += 1;
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

/// The same arrivals through the link of `core` and through the emulator: the same packets
/// arrive in the same order, at the same time where the driver is never late, with the same
/// marks; the same number is dropped and lost. A driver that looks only now and then sends
/// late, and changes nothing else.
#[test]
fn the_emulator_is_the_link_of_core() {
    for case in 0..8 {
        let arrivals = bursts(case, 1500);
        let Expected { arrived, dropped, lost } = reference(&variant(case), &arrivals);
        for late in [false, true] {
            let mut bench = Bench::new(config(variant(case)), arrivals.clone());
            let mut rng = Stream::new(case, "late");
            let mut times = Vec::new();
            while bench.next() < Instant::NEVER {
                let lateness = if late { rng.exponential(20e-3) } else { 0.0 };
                let now = bench.next().max(bench.now) + Duration::from_secs_f64(lateness);
                bench.turn(now);
                times.resize(bench.far.0.borrow().left.len(), now);
            }
            bench.now = END;
            let left = bench.far.0.borrow().left.clone();
            assert_eq!(left.len(), arrived.len(), "case {case}");
            for ((frame, time), expected) in left.iter().zip(&times).zip(&arrived) {
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
            let struck = arrived.iter().filter(|arrival| arrival.bit_errors > 0).count() as u64;
            assert_eq!(totals.corrupted, struck, "case {case}");
            let marked = arrived.iter().filter(|arrival| arrival.packet.ecn == Ecn::CongestionExperienced);
            assert!(direction.marks.iter().sum::<u64>() >= marked.count() as u64);
            let flow_lost: u64 = report.flow_lost.values().flatten().sum();
            assert_eq!(flow_lost, dropped + lost + struck);
            assert!(report.flow_lost.keys().all(|flow| *flow == 5));
        }
    }
}

#[test]
fn struck_frames_differ_in_as_many_bits_as_core_drew_and_nowhere_else() {
    let direction =
        link::Config { bit_error_rate: 1e-4, duplicate: 0.3, buffer: Capacity::Packets(9999), ..perfect() };
    let mut arrivals = bursts(3, 500);
    for (_, frame) in &mut arrivals {
        // Padding does not count, and is not struck.
        frame.extend([0xee; 10]);
    }
    let mut bench = Bench::new(config(direction.clone()), arrivals.clone());
    bench.run(END);
    let left = bench.far.0.borrow().left.clone();
    let Expected { arrived, .. } = reference(&direction, &arrivals);
    assert_eq!(left.len(), arrived.len());
    let mut headers_struck = 0;
    for (frame, arrival) in left.iter().zip(&arrived) {
        let sent = &arrivals[arrival.packet.number as usize].1;
        let flipped: Vec<u32> = sent.iter().zip(frame).map(|(a, b)| (a ^ b).count_ones()).collect();
        assert_eq!(flipped.iter().sum::<u32>(), arrival.bit_errors);
        assert_eq!(flipped[..14].iter().sum::<u32>(), 0, "the Ethernet header is the emulator's own way");
        assert_eq!(frame[frame.len() - 10..], [0xee; 10]);
        headers_struck += flipped[14..42].iter().sum::<u32>();
    }
    assert!(headers_struck > 0, "headers are struck like the rest");
}

#[test]
fn without_reordering_jitter_keeps_the_order() {
    for reorder in [false, true] {
        let jitter =
            Jitter { amount: Duration::from_millis(20), distribution: JitterDistribution::Uniform, reorder };
        let mut bench = Bench::new(config(link::Config { jitter, ..perfect() }), bursts(1, 500));
        bench.run(END);
        assert_eq!(numbers(&bench.far).is_sorted(), !reorder);
    }
}

#[test]
fn what_serves_the_wire_passes_beside_the_link_while_that_is_there() {
    let mut request = vec![0xff; 12];
    request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.resize(60, 0);
    let down = Change { up: Some(false), ..Change::default() };
    let direction =
        link::Config { delay: Duration::from_secs(1), schedule: vec![(Instant(10), down)], ..perfect() };
    let arrivals = [5, 15].map(|at| [(Instant(at), request.clone()), (Instant(at), udp(100, 1, 0))]);
    let mut bench = Bench::new(config(direction), arrivals.concat());
    bench.turn(Instant(5));
    assert_eq!(bench.far.0.borrow().left, [request.clone()]);
    bench.turn(Instant(15));
    assert_eq!(bench.far.0.borrow().left, [request]);
    let direction = bench.report().links[0].directions[0].clone();
    assert_eq!((direction.totals.beside, direction.totals.entered, direction.totals.lost), (2, 2, 2));
    assert_eq!(direction.broadcast.iter().sum::<u64>(), 2);
}

#[test]
fn what_comes_before_the_start_passes_at_once() {
    let mut bench = Bench::new(config(perfect()), Vec::new());
    bench.emulator.epoch = Epoch(1000);
    bench.near.0.borrow_mut().coming.push_back((Instant(999), udp(100, 1, 0)));
    bench.turn(Instant::ZERO);
    assert_eq!(numbers(&bench.far), [1]);
    bench.near.0.borrow_mut().coming.push_back((Instant(1000), udp(100, 2, 0)));
    bench.turn(Instant::ZERO);
    assert_eq!(numbers(&bench.far), [1]);
    bench.run(END);
    assert_eq!(numbers(&bench.far), [1, 2]);
}

#[test]
fn the_end_of_the_run_ends_counting_not_carrying() {
    let arrivals: Vec<_> = (0..30).map(|i| (Instant(i * 1_000_000), udp(1000, i as u32, 0))).collect();
    let mut short = config(perfect());
    (short.duration, short.interval) = (Duration::from_millis(20), Duration::from_millis(10));
    let mut bench = Bench::new(short, arrivals);
    bench.run(Instant::ZERO + Duration::from_secs(1));
    assert_eq!(bench.far.0.borrow().left.len(), 30);
    let report = bench.report();
    let direction = &report.links[0].directions[0];
    // 1018 bytes take 0.8144 ms, then 5 ms: the packet of 14 ms arrives at 19.8 ms.
    let totals = direction.totals;
    assert_eq!((totals.entered, totals.delivered, totals.in_flight), (21, 15, 6));
    assert_eq!(direction.busy_ns, [8_144_000; 2]);
    // A plain line counts what it has sent, as the simulator does; what is delivered, as it arrives.
    assert_eq!((&direction.bytes, &direction.delivered[&0]), (&vec![10_000; 2], &vec![5_000, 10_000]));
    assert_eq!(report.void, Vec::<String>::new());
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
fn every_shortfall_is_said() {
    let shortfall = |change: &dyn Fn(&mut Config, &End, &End)| {
        let mut config = config(perfect());
        let (near, far) = (End::default(), End::default());
        change(&mut config, &near, &far);
        let (coming, room) = (near.0.take().coming, far.0.borrow().room);
        let gone = config.seed == 0;
        let mut bench = Bench::new(config, coming.into());
        bench.far.0.borrow_mut().room = room;
        if gone {
            bench.run(Instant(1));
            bench.near.0.borrow_mut().gone = true;
            bench.turn(Instant(2));
        }
        bench.run(END);
        bench.report().void.join("\n")
    };
    let frames = |near: &End, length: usize| {
        near.0.borrow_mut().coming.extend((0..3).map(|i| (Instant(i), udp(length, i as u32, 0))));
    };
    let exhausted = shortfall(&|config, near, _| {
        config.pool_bytes = 4096;
        frames(near, 1500);
    });
    assert!(exhausted.contains("1 packets could not be kept: the 0 MB"), "{exhausted}");
    let offload = shortfall(&|_, near, _| frames(near, 60_000));
    assert!(offload.contains("60014 bytes long. Switch segmentation offload"), "{offload}");
    let refused = shortfall(&|_, near, far| {
        frames(near, 1500);
        far.0.borrow_mut().room = Some(2);
    });
    assert!(refused.contains("refused to send 1 packets"), "{refused}");
    let gone = shortfall(&|config, _, _| config.seed = 0);
    assert!(
        gone.contains("link.line.forward: the interface its packets come from failed: the device is gone")
    );
}

#[test]
fn frames_the_port_missed_void_the_run() {
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
fn what_goes_wrong_after_the_run_harms_nothing() {
    let late = END + Duration(1);
    let frames = (0..3).map(|i| (late + Duration(i), udp(60_000, i as u32, 0)));
    let mut bench = Bench::new(config(perfect()), frames.collect());
    bench.run(late + Duration(10));
    bench.near.0.borrow_mut().missed = 3;
    bench.far.0.borrow_mut().gone = true;
    bench.emulator.ready = vec![1];
    bench.emulator.turn(bench.now, &mut || late);
    assert_eq!(bench.report().void, Vec::<String>::new());
}

#[test]
fn a_saturated_line_has_its_rate() {
    let arrivals: Vec<_> = (0..2000).map(|i| (Instant(i * 1_000_000), udp(1482, i as u32, 0))).collect();
    let mut bench = Bench::new(config(perfect()), arrivals);
    bench.run(END);
    let report = bench.report();
    let saturated = report.links[0].directions[0].saturated.unwrap();
    assert_eq!(saturated.error, 0.0);
    assert!(saturated.frames > 1600 && report.links[0].directions[1].saturated.is_none());
}
