use super::*;
use crate::fair::{Egress, Query};
use crate::packet::Ecn;
use alloc::vec;
use proptest::prelude::*;

/// Number and size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Numbered(u64, u32);

impl Packet for Numbered {
    fn size(&self) -> u32 {
        self.1
    }
    fn class(&self) -> u16 {
        0
    }
    fn ecn(&self) -> Ecn {
        Ecn::NotCapable
    }
    fn mark_congestion(&mut self) {}
    fn flow_key(&self) -> u64 {
        0
    }
}

const I2VFC: fn() -> Control = || Control::I2vfc(Config::default());

fn edge(control: &Control, flows: usize, maximum: Option<BitRate>) -> Edge<Numbered> {
    let mut edge = Edge::new();
    for key in 0..flows {
        assert_eq!(edge.add(Instant::ZERO, control, 1.0, maximum), key);
    }
    edge
}

/// What comes out at one moment.
fn sent(edge: &mut Edge<Numbered>, now: Instant) -> Vec<(usize, Transmit<Numbered>)> {
    edge.handle_timeout(now);
    core::iter::from_fn(|| edge.poll_transmit(now)).collect()
}

#[test]
fn an_idle_flow_costs_little() {
    // The wheel's timer and a place in the list of those ready come on top.
    assert!(size_of::<Flow<Numbered>>() <= 512, "{}", size_of::<Flow<Numbered>>());
}

#[test]
fn idle_flows_probe_rarely_and_not_together() {
    let mut edge = edge(&I2VFC(), 1000, None);
    let mut now = Instant::ZERO;
    let mut seconds = vec![0; 120];
    loop {
        now = edge.poll_timeout().max(now);
        if now.0 >= 120_000_000_000 {
            break;
        }
        for (_, transmit) in sent(&mut edge, now) {
            assert!(matches!(transmit, Transmit::Query(_)));
            seconds[(now.0 / 1_000_000_000) as usize] += 1;
        }
    }
    let total: u32 = seconds.iter().sum();
    assert!((3000..=4100).contains(&total), "{total}");
    assert!(seconds.iter().all(|second| *second < 80), "{seconds:?}");
}

#[test]
fn a_flow_that_falls_idle_backs_off_and_one_that_wakes_asks_at_once() {
    let mut edge = edge(&I2VFC(), 1, None);
    let egress = Egress { packets: 1, ..Egress::default() };
    let mut now = Instant(100_000_000_000);
    edge.handle_packet(now, 0, Numbered(0, 100)).unwrap();
    let first = sent(&mut edge, now);
    assert!(matches!(first[..], [(0, Transmit::Query(_)), (0, Transmit::Data(_))]), "{first:?}");
    let (mut probes, mut last) = (Vec::new(), now);
    while probes.len() < 9 {
        now = edge.poll_timeout().max(now);
        for (_, transmit) in sent(&mut edge, now) {
            let Transmit::Query(query) = transmit else { panic!("no data is left") };
            edge.handle_reply(now, 0, &egress.handle_query(query));
            probes.push(now.since(last).0);
            last = now;
        }
    }
    // The first confirms the packet.
    let seconds: Vec<u64> = probes[1..].iter().map(|ns| (ns + 500_000_000) / 1_000_000_000).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30, 30]);
    edge.handle_packet(now, 0, Numbered(1, 100)).unwrap();
    assert!(matches!(sent(&mut edge, now)[..], [(0, Transmit::Data(_))]));
}

#[test]
fn flows_take_turns() {
    let mut edge = edge(&Control::None, 3, None);
    for number in 0..100 {
        edge.handle_packet(Instant::ZERO, 0, Numbered(number, 100)).unwrap();
    }
    for flow in [1, 2] {
        edge.handle_packet(Instant::ZERO, flow, Numbered(0, 100)).unwrap();
    }
    let order: Vec<usize> = sent(&mut edge, Instant::ZERO).into_iter().map(|(flow, _)| flow).collect();
    assert_eq!(order[..19], [vec![0; 16], vec![1, 2, 0]].concat());
    assert_eq!((order.len(), edge.poll_timeout()), (102, Instant::NEVER));
    for number in 0..UNCONTROLLED {
        edge.handle_packet(Instant::ZERO, 0, Numbered(number, 100)).unwrap();
    }
    assert_eq!(edge.handle_packet(Instant::ZERO, 0, Numbered(9, 9)), Err(Numbered(9, 9)));
}

const UNCONTROLLED: u64 = 128;

/// Packets a greedy flow gets through in a second, its driver coming every so often, over a path
/// of 10 ms without loss.
fn carried(control: &Control, maximum: Option<BitRate>, every: Duration) -> (u64, f64) {
    let mut edge = edge(control, 1, maximum);
    let mut egress = Egress::default();
    let mut replies: VecDeque<(Instant, Query, Egress)> = VecDeque::new();
    let (mut now, mut number) = (Instant::ZERO, 0);
    while now < Instant(1_000_000_000) {
        while let Some((at, query, counted)) = replies.front().copied().filter(|(at, ..)| *at <= now) {
            edge.handle_reply(at, 0, &counted.handle_query(query));
            replies.pop_front();
        }
        while edge.handle_packet(now, 0, Numbered(number, 1000)).is_ok() {
            number += 1;
        }
        for (_, transmit) in sent(&mut edge, now) {
            match transmit {
                Transmit::Data(packet) => egress.handle_packet(packet.1, false),
                Transmit::Query(query) => replies.push_back((now + Duration::from_millis(10), query, egress)),
            }
        }
        now += every;
    }
    (egress.packets, edge.window(0).map_or(0.0, Ingress::window))
}

#[test]
fn a_driver_that_comes_late_slows_no_flow() {
    let rate = BitRate(40_000_000);
    for (control, maximum, packets) in [
        (Control::FixedRate { rate, queue: 128 }, None, 5_000),
        (Control::None, Some(rate), 5_000),
        (I2VFC(), Some(rate), 5_000),
    ] {
        for every in [10, 200, 900].map(Duration::from_micros) {
            let (carried, _) = carried(&control, maximum, every);
            assert!(carried.abs_diff(packets) <= packets / 100, "{control:?} {every:?}: {carried}");
        }
    }
    // A window that is never the limit does not grow: lateness must not make it so.
    let (exact, grown) = carried(&I2VFC(), None, Duration::from_micros(10));
    let (late, late_grown) = carried(&I2VFC(), None, Duration::from_micros(500));
    assert!(grown > 200.0 && late_grown > 200.0, "{grown} {late_grown}");
    assert!(late > exact / 3, "{exact} {late}");
}

#[test]
fn an_idle_flow_saves_up_nothing() {
    let mut edge = edge(&Control::FixedRate { rate: BitRate(8_000_000), queue: 128 }, 1, None);
    let now = Instant(5_000_000_000);
    for number in 0..10 {
        edge.handle_packet(now, 0, Numbered(number, 1000)).unwrap();
    }
    assert_eq!(sent(&mut edge, now).len(), 1);
    assert_eq!(edge.poll_timeout(), now + Duration::from_millis(1));
}

proptest! {
    /// Whatever happens, what was taken comes out once and in order, and nothing is forgotten.
    #[test]
    fn what_is_taken_comes_out_in_order(
        steps in prop::collection::vec((0..6u8, 0..4usize, 0..3_000_000u64), 1..200), limited: bool,
    ) {
        let mut edge: Edge<Numbered> = Edge::new();
        let controls = [
            Control::None, I2VFC(), Control::FixedRate { rate: BitRate(10_000_000), queue: 20 },
            Control::I2vfc(Config { initial_window: 2.0, queue: 8, pacing: false, ..Config::default() }),
        ];
        for control in &controls {
            edge.add(Instant::ZERO, control, 1.0, limited.then_some(BitRate(50_000_000)));
        }
        let (mut taken, mut given) = ([0; 4], [0; 4]);
        let mut egress = [Egress::default(); 4];
        let mut now = Instant::ZERO;
        let mut drain = |edge: &mut Edge<Numbered>, now: Instant, replies: bool, limit: usize| {
            edge.handle_timeout(now);
            for _ in 0..limit {
                let Some((flow, transmit)) = edge.poll_transmit(now) else { break };
                match transmit {
                    Transmit::Data(packet) => {
                        assert_eq!(packet.0, given[flow]);
                        given[flow] += 1;
                        egress[flow].handle_packet(packet.1, false);
                    }
                    Transmit::Query(query) if replies => {
                        edge.handle_reply(now, flow, &egress[flow].handle_query(query));
                    }
                    Transmit::Query(_) => {}
                }
            }
            given
        };
        for (step, flow, ahead) in steps {
            now += Duration(ahead);
            match step {
                0..=3 => for _ in 0..=step {
                    taken[flow] += u64::from(edge.handle_packet(now, flow, Numbered(taken[flow], 500)).is_ok());
                },
                _ => { drain(&mut edge, now, step == 4, 10); }
            }
        }
        // In the end all of it, with nothing but timers to go by.
        for _ in 0..100_000 {
            let given = drain(&mut edge, now, true, usize::MAX);
            if given == taken {
                break;
            }
            prop_assert_ne!(edge.poll_timeout(), Instant::NEVER);
            now = edge.poll_timeout().max(now);
        }
        prop_assert_eq!(drain(&mut edge, now, true, usize::MAX), taken);
        for (flow, taken) in taken.into_iter().enumerate() {
            prop_assert_eq!((edge.packets_sent(flow), edge.queue_len(flow)), (taken, 0));
        }
    }
}
