mod groups;
mod liars;
mod network;

use super::*;
use crate::fair::{Egress, Query, SilenceAction, SilencePolicy};
use crate::quantity::BitRate;
use crate::queue::testing::NumberedPacket;
use alloc::vec;
use proptest::prelude::*;

const I2VFC: fn() -> VpnControl = || VpnControl::I2vfc(I2vfcConfig::default());

fn add(
    edge: &mut ProviderEdge<NumberedPacket>,
    control: &VpnControl,
    minimum: Option<BitRate>,
    maximum: Option<BitRate>,
) -> usize {
    let settings =
        VpnFlowSettings { control: control.clone(), minimum, maximum, ..VpnFlowSettings::default() };
    edge.add(Instant::ZERO, &settings, RandomStream::new(1, "edge"))
}

fn edge(control: &VpnControl, flows: usize, maximum: Option<BitRate>) -> ProviderEdge<NumberedPacket> {
    let mut edge = ProviderEdge::new(TICK);
    for key in 0..flows {
        assert_eq!(add(&mut edge, control, None, maximum), key);
    }
    edge
}

/// Returns the packets sent at one point in time.
fn sent(
    edge: &mut ProviderEdge<NumberedPacket>,
    now: Instant,
) -> Vec<(usize, IngressTransmit<NumberedPacket>)> {
    edge.handle_timeout(now);
    core::iter::from_fn(|| edge.poll_transmit(now)).collect()
}

#[test]
fn an_idle_flow_costs_little() {
    // The timer and the entry in the list of ready flows are not included.
    assert!(size_of::<IngressFlow<NumberedPacket>>() <= 512, "{}", size_of::<IngressFlow<NumberedPacket>>());
}

#[test]
fn idle_flows_probe_rarely_and_at_different_times() {
    let mut edge = edge(&I2VFC(), 1000, None);
    let mut now = Instant::ZERO;
    let mut seconds = vec![0; 120];
    loop {
        now = edge.poll_timeout().max(now);
        if now.0 >= 120_000_000_000 {
            break;
        }
        for (_, transmit) in sent(&mut edge, now) {
            assert!(matches!(transmit, IngressTransmit::Query(_)));
            seconds[(now.0 / 1_000_000_000) as usize] += 1;
        }
    }
    let total: u32 = seconds.iter().sum();
    assert!((3000..=4100).contains(&total), "{total}");
    assert!(seconds.iter().all(|second| *second < 80), "{seconds:?}");
}

#[test]
fn an_idle_flow_backs_off_and_an_active_one_sends_at_once() {
    let mut edge = edge(&I2VFC(), 1, None);
    let egress = Egress { packets: 1, ..Egress::default() };
    let mut now = Instant(100_000_000_000);
    edge.handle_packet(now, 0, NumberedPacket::new(0, 100)).unwrap();
    let first = sent(&mut edge, now);
    assert!(
        matches!(first[..], [(0, IngressTransmit::Query(_)), (0, IngressTransmit::Data(_))]),
        "{first:?}"
    );
    let (mut probes, mut last) = (Vec::new(), now);
    while probes.len() < 9 {
        now = edge.poll_timeout().max(now);
        for (_, transmit) in sent(&mut edge, now) {
            let IngressTransmit::Query(query) = transmit else { panic!("no data is waiting") };
            edge.handle_reply(now, 0, &egress.handle_query(query, now));
            probes.push(now.since(last).0);
            last = now;
        }
    }
    // The first probe confirms the packet.
    let seconds: Vec<u64> = probes[1..].iter().map(|ns| (ns + 500_000_000) / 1_000_000_000).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30, 30]);
    edge.handle_packet(now, 0, NumberedPacket::new(1, 100)).unwrap();
    assert!(matches!(sent(&mut edge, now)[..], [(0, IngressTransmit::Data(_))]));
}

#[test]
fn flows_take_turns() {
    let mut edge = edge(&VpnControl::None, 3, None);
    for number in 0..100 {
        edge.handle_packet(Instant::ZERO, 0, NumberedPacket::new(number, 100)).unwrap();
    }
    for flow in [1, 2] {
        edge.handle_packet(Instant::ZERO, flow, NumberedPacket::new(0, 100)).unwrap();
    }
    let order: Vec<usize> = sent(&mut edge, Instant::ZERO).into_iter().map(|(flow, _)| flow).collect();
    assert_eq!(order[..19], [vec![0; 16], vec![1, 2, 0]].concat());
    assert_eq!((order.len(), edge.poll_timeout()), (102, Instant::NEVER));
    for number in 0..UNCONTROLLED {
        edge.handle_packet(Instant::ZERO, 0, NumberedPacket::new(number, 100)).unwrap();
    }
    assert_eq!(
        edge.handle_packet(Instant::ZERO, 0, NumberedPacket::new(9, 9)),
        Err(NumberedPacket::new(9, 9))
    );
}

const UNCONTROLLED: u64 = 128;

/// Returns the packets a greedy flow delivers in one second over a lossless path with a round trip of 10
/// ms, and its final window. The driver runs at the interval `every`.
fn delivered(control: &VpnControl, maximum: Option<BitRate>, every: Duration) -> (u64, f64) {
    let mut edge = edge(control, 1, maximum);
    let mut egress = Egress::default();
    let mut replies: VecDeque<(Instant, Query, Egress)> = VecDeque::new();
    let (mut now, mut number) = (Instant::ZERO, 0);
    while now < Instant(1_000_000_000) {
        while let Some((at, query, counted)) = replies.front().copied().filter(|(at, ..)| *at <= now) {
            edge.handle_reply(at, 0, &counted.handle_query(query, at));
            replies.pop_front();
        }
        while edge.handle_packet(now, 0, NumberedPacket::new(number, 1000)).is_ok() {
            number += 1;
        }
        for (_, transmit) in sent(&mut edge, now) {
            match transmit {
                IngressTransmit::Data(packet) => egress.handle_packet(packet.size, false),
                IngressTransmit::Query(query) => {
                    replies.push_back((now + Duration::from_millis(10), query, egress))
                }
            }
        }
        now += every;
    }
    (egress.packets, edge.window(0).map_or(0.0, Ingress::window))
}

#[test]
fn a_late_driver_does_not_slow_down_flows() {
    let rate = BitRate(40_000_000);
    for (control, maximum, packets) in [
        (VpnControl::FixedRate { rate, queue: 128 }, None, 5_000),
        (VpnControl::None, Some(rate), 5_000),
        (I2VFC(), Some(rate), 5_000),
    ] {
        for every in [10, 200, 900].map(Duration::from_micros) {
            let (delivered, _) = delivered(&control, maximum, every);
            assert!(delivered.abs_diff(packets) <= packets / 100, "{control:?} {every:?}: {delivered}");
        }
    }
    // A window that is never the limit does not grow, and a late driver must not cause that.
    let (exact, grown) = delivered(&I2VFC(), None, Duration::from_micros(10));
    let (late, late_grown) = delivered(&I2VFC(), None, Duration::from_micros(500));
    assert!(grown > 200.0 && late_grown > 200.0, "{grown} {late_grown}");
    assert!(late > exact / 3, "{exact} {late}");
}

#[test]
fn an_idle_flow_accumulates_no_credit() {
    let mut edge = edge(&VpnControl::FixedRate { rate: BitRate(8_000_000), queue: 128 }, 1, None);
    let now = Instant(5_000_000_000);
    for number in 0..10 {
        edge.handle_packet(now, 0, NumberedPacket::new(number, 1000)).unwrap();
    }
    assert_eq!(sent(&mut edge, now).len(), 1);
    assert_eq!(edge.poll_timeout(), now + Duration::from_millis(1));
}

/// Runs a greedy flow over a path with round trip `delay` that loses the packet numbers selected by `loses`
/// and answers no query between the two seconds of `silence`. Returns the data packets and the queries sent
/// in each second, and the time since which the peer was silent at its end.
fn seconds(
    control: &VpnControl,
    [minimum, maximum]: [Option<BitRate>; 2],
    delay: Duration,
    loses: impl Fn(u64) -> bool,
    silence: [u64; 2],
    count: usize,
) -> Vec<(u64, u64, Option<Instant>)> {
    let mut edge = ProviderEdge::new(TICK);
    add(&mut edge, control, minimum, maximum);
    let mut egress = Egress::default();
    let mut replies: VecDeque<(Instant, Query, Egress)> = VecDeque::new();
    let (mut now, mut number, mut seconds) = (Instant::ZERO, 0, Vec::new());
    for second in 0..count as u64 {
        let (mut data, mut queries) = (0, 0);
        while now < Instant((second + 1) * 1_000_000_000) {
            while let Some((at, query, counted)) = replies.front().copied().filter(|(at, ..)| *at <= now) {
                edge.handle_reply(at, 0, &counted.handle_query(query, at));
                replies.pop_front();
            }
            while edge.handle_packet(now, 0, NumberedPacket::new(number, 1000)).is_ok() {
                number += 1;
            }
            for (_, transmit) in sent(&mut edge, now) {
                match transmit {
                    IngressTransmit::Data(packet) => {
                        data += 1;
                        if !loses(packet.number) {
                            egress.handle_packet(packet.size, false);
                        }
                    }
                    IngressTransmit::Query(query) => {
                        queries += 1;
                        if !(silence[0]..silence[1]).contains(&second) {
                            replies.push_back((now + delay, query, egress));
                        }
                    }
                }
            }
            now += Duration::from_micros(200);
        }
        seconds.push((data, queries, edge.silent_since(0)));
    }
    seconds
}

#[test]
fn a_minimum_rate_holds_despite_losses() {
    let delay = Duration::from_millis(100);
    let minimum = Some(BitRate(4_000_000));
    let delivered = |minimum| {
        let rates = [minimum, Some(BitRate(40_000_000))];
        let seconds = seconds(&I2VFC(), rates, delay, |number| number % 7 == 0, [0, 0], 20);
        seconds[10..].iter().map(|(data, ..)| data).sum::<u64>() / 10
    };
    let (without, with) = (delivered(None), delivered(minimum));
    assert!(without < 100, "{without} packets per second");
    // 500 packets of 1,000 bytes.
    assert!((495..550).contains(&with), "{with} packets per second");
}

#[test]
fn congestion_marks_shrink_a_window_once_per_round_trip_if_configured() {
    for marks_count in [false, true] {
        let config =
            I2vfcConfig { marks_are_losses: marks_count, initial_window: 100.0, ..I2vfcConfig::default() };
        let mut edge = edge(&VpnControl::I2vfc(config), 1, None);
        let mut egress = Egress::default();
        let (mut queries, mut windows) = (Vec::new(), Vec::new());
        for number in 0..40 {
            edge.handle_packet(Instant(1), 0, NumberedPacket::new(number, 1000)).unwrap();
        }
        for (_, transmit) in sent(&mut edge, Instant(2)) {
            match transmit {
                IngressTransmit::Data(packet) => egress.handle_packet(packet.size, packet.number % 8 == 3),
                IngressTransmit::Query(query) => queries.push((query, egress)),
            }
        }
        for (number, (query, counted)) in queries.into_iter().enumerate() {
            let now = Instant(10_000_000 + number as u64);
            edge.handle_reply(now, 0, &counted.handle_query(query, now));
            windows.push(edge.window(0).unwrap().window());
        }
        assert!(egress.marked >= 4 && windows.len() >= 8, "{windows:?}");
        let smallest = windows.iter().copied().fold(f64::INFINITY, f64::min);
        // All packets were sent before the first decrease: one event, with the b of the nominal flow.
        assert_eq!(smallest, if marks_count { 90.0 } else { 100.0 }, "{windows:?}");
    }
}

#[test]
fn a_silent_peer_is_reported_and_the_flow_reacts_as_configured() {
    let delay = Duration::from_millis(10);
    let rates = [None, Some(BitRate(8_000_000))];
    for then in [SilenceAction::Shrink, SilenceAction::Open, SilenceAction::Closed] {
        let silence = SilencePolicy { after: Duration::from_secs(3), action: then };
        let control = VpnControl::I2vfc(I2vfcConfig { silence, ..I2vfcConfig::default() });
        let seconds = seconds(&control, rates, delay, |_| false, [5, 15], 20);
        let (before, silent, after) = (&seconds[1..5], &seconds[9..15], &seconds[16..]);
        for (data, queries, since) in before.iter().chain(after) {
            // A window that has shrunk grows slowly.
            let min_packets = [90, 990, 750][then as usize];
            assert!((min_packets..=1010).contains(data) && *queries >= 90, "{then:?} {seconds:?}");
            assert_eq!(*since, None);
        }
        for (data, queries, since) in silent {
            let expected = match then {
                SilenceAction::Shrink => 1..100,
                SilenceAction::Open => 990..1011,
                SilenceAction::Closed => 0..1,
            };
            assert!(expected.contains(data), "{then:?} {seconds:?}");
            assert!(*queries > 0, "{then:?} {seconds:?}");
            let since = since.unwrap();
            assert!((4_990_000_000..5_010_000_000).contains(&since.0), "{then:?} {since:?}");
        }
        assert_eq!(seconds[7].2, None);
    }
}

proptest! {
    /// Accepted packets leave exactly once and in order, for any sequence of operations.
    #[test]
    fn accepted_packets_leave_in_order(
        steps in prop::collection::vec((0..6u8, 0..4usize, 0..3_000_000u64), 1..200), limited: bool,
    ) {
        let mut edge: ProviderEdge<NumberedPacket> = ProviderEdge::new(TICK);
        let controls = [
            VpnControl::None, I2VFC(), VpnControl::FixedRate { rate: BitRate(10_000_000), queue: 20 },
            VpnControl::I2vfc(I2vfcConfig { initial_window: 2.0, queue: 8, pacing: false, ..I2vfcConfig::default() }),
        ];
        for control in &controls {
            let maximum = limited.then_some(BitRate(50_000_000));
            add(&mut edge, control, None, maximum);
        }
        let (mut accepted, mut sent_packets) = ([0; 4], [0; 4]);
        let mut egress = [Egress::default(); 4];
        let mut now = Instant::ZERO;
        let mut drain = |edge: &mut ProviderEdge<NumberedPacket>, now: Instant, replies: bool, limit: usize| {
            edge.handle_timeout(now);
            for _ in 0..limit {
                let Some((flow, transmit)) = edge.poll_transmit(now) else { break };
                match transmit {
                    IngressTransmit::Data(packet) => {
                        assert_eq!(packet.number, sent_packets[flow]);
                        sent_packets[flow] += 1;
                        egress[flow].handle_packet(packet.size, false);
                    }
                    IngressTransmit::Query(query) if replies => {
                        edge.handle_reply(now, flow, &egress[flow].handle_query(query, now));
                    }
                    IngressTransmit::Query(_) => {}
                }
            }
            sent_packets
        };
        for (step, flow, ahead) in steps {
            now += Duration(ahead);
            match step {
                0..=3 => for _ in 0..=step {
                    accepted[flow] += u64::from(edge.handle_packet(now, flow, NumberedPacket::new(accepted[flow], 500)).is_ok());
                },
                _ => { drain(&mut edge, now, step == 4, 10); }
            }
        }
        // Finally, timers alone must drain the queues.
        for _ in 0..100_000 {
            let sent_packets = drain(&mut edge, now, true, usize::MAX);
            if sent_packets == accepted {
                break;
            }
            prop_assert_ne!(edge.poll_timeout(), Instant::NEVER);
            now = edge.poll_timeout().max(now);
        }
        prop_assert_eq!(drain(&mut edge, now, true, usize::MAX), accepted);
        for (flow, accepted) in accepted.into_iter().enumerate() {
            prop_assert_eq!((edge.packets_sent(flow), edge.queue_len(flow)), (accepted, 0));
        }
    }
}
