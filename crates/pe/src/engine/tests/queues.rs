//! Sharing among the flows inside a VPN, behind one window or rate.

use super::*;
use netstage_core::quantity::BitRate;
use netstage_core::queue::{CodelConfig, FqCodelConfig, TrafficClass};

const SECONDS: u64 = 10;
/// Time until the queues are stable.
const SETTLED: u64 = 4;

fn class(codepoints: &[u8], priority: u8, weight: f64, fq_codel: bool) -> TrafficClass {
    let codel =
        CodelConfig { target: Duration::from_millis(5), interval: Duration::from_millis(100), ecn: true };
    TrafficClass {
        codepoints: codepoints.to_vec(),
        priority,
        weight,
        packets: 128,
        fq_codel: fq_codel.then_some(FqCodelConfig { codel, flows: 1024, quantum: 1514 }),
    }
}

/// Inner flow: packet length, traffic class and packet interval.
#[derive(Clone, Copy)]
struct Inner {
    size: usize,
    traffic_class: u8,
    every: Duration,
}

/// Result of an inner flow after the queues are stable: packets offered, delivered and marked, and the
/// longest delay.
#[derive(Debug, Default)]
struct InnerFlowResult {
    offered: u64,
    delivered: u64,
    marked: u64,
    longest: Duration,
}

/// Runs inner flows of a VPN limited to 8 Mbit/s.
fn outcomes(classes: Vec<TrafficClass>, flows: &[Inner]) -> (Vec<InnerFlowResult>, TwoRouters) {
    let mut near = config(0, CoreEncapsulation::Udp4, 1);
    near.settings(0).control = VpnControl::FixedRate { rate: BitRate(8_000_000), queue: 128 };
    near.settings(0).classes = classes;
    let mut world = TwoRouters::new([near, config(1, CoreEncapsulation::Udp4, 1)]);
    let mut outcomes: Vec<InnerFlowResult> = flows.iter().map(|_| InnerFlowResult::default()).collect();
    let end = Duration::from_secs(SECONDS).0;
    let mut next = vec![0; flows.len()];
    while let Some(flow) = (0..flows.len()).min_by_key(|flow| next[*flow]).filter(|flow| next[*flow] < end) {
        let now = Instant(next[flow]);
        let Inner { size, traffic_class, every } = flows[flow];
        next[flow] += every.0;
        world.run(now, &mut delay);
        let mut bytes = packet(false, 0, 0, now.0, size);
        bytes[15] = 1 + flow as u8;
        bytes[10..12].fill(0);
        let checksum = Sum::ZERO.bytes(&bytes[..20]).checksum();
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        v4::HeaderMut::new(&mut bytes).unwrap().set_traffic_class(traffic_class);
        world.routers[0].give(CUSTOMERS, now, &frame(100, &bytes));
        outcomes[flow].offered += u64::from(now >= Instant(SETTLED * 1_000_000_000));
        for frame in world.delivered[1].drain(..) {
            let (_, delivered) = opened(&frame);
            let (_, sent) = numbers(delivered);
            let outcome = &mut outcomes[usize::from(delivered[15]) - 1];
            if now >= Instant(SETTLED * 1_000_000_000) {
                outcome.delivered += 1;
                outcome.marked += u64::from(delivered[1] & 3 == 3);
                outcome.longest = outcome.longest.max(now.since(Instant(sent)));
            }
        }
    }
    (outcomes, world)
}

/// Returns Jain's fairness index of the delivered packets.
fn fairness(outcomes: &[InnerFlowResult]) -> f64 {
    let shares: Vec<f64> = outcomes.iter().map(|outcome| outcome.delivered as f64).collect();
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares)
}

const GREEDY: Inner = Inner { size: 1000, traffic_class: 0, every: Duration(517_000) };
const MODEST: Inner = Inner { every: Duration(3_100_000), ..GREEDY };

#[test]
fn inner_flows_share_the_rate_of_their_vpn() {
    // 15.5 Mbit/s and three times 2.6 Mbit/s are offered; 8 Mbit/s are sent.
    let flows = [GREEDY, MODEST, MODEST, MODEST];
    let (fifo, _) = outcomes(Vec::new(), &flows);
    let classes = vec![class(&[], 0, 1.0, true)];
    let (fq_codel_outcomes, world) = outcomes(classes, &flows);
    let (before, after) = (fairness(&fifo), fairness(&fq_codel_outcomes));
    println!("Jain's index {before:.3} with FIFO, {after:.3} with FQ-CoDel; {fq_codel_outcomes:?}");
    assert!(before < 0.75 && after > 0.99, "{before} {after}");
    let sent = |outcomes: &[InnerFlowResult]| outcomes.iter().map(|outcome| outcome.delivered).sum::<u64>();
    assert!(sent(&fq_codel_outcomes) >= sent(&fifo) - 100, "{} {}", sent(&fq_codel_outcomes), sent(&fifo));
    let count = |counter| world.routers[0].engine.flow(0).count(counter);
    assert!(count(Counter::QueueDropped) > 0 && count(Counter::QueueFull) == 0);
    let waiting: usize = world.routers[0].engine.flows().map(|flow| flow.queue_len()).sum();
    assert_eq!(world.routers[0].engine.free_buffers() + waiting, world.routers[0].buffers);
}

#[test]
fn a_sparse_inner_flow_does_not_wait_for_a_greedy_one() {
    let voice = Inner { size: 200, traffic_class: 46 << 2, every: Duration(20_100_000) };
    let classes = vec![class(&[46], 0, 1.0, false), class(&[], 1, 1.0, false)];
    let flows = vec![class(&[], 0, 1.0, true)];
    for (queue, min_delivered, longest) in [(Vec::new(), 0, 150), (classes, 298, 8), (flows, 298, 8)] {
        let (outcomes, _) = outcomes(queue.clone(), &[GREEDY, voice]);
        let InnerFlowResult { offered, delivered, longest: waited, .. } = outcomes[1];
        println!("{delivered} of {offered} delivered, the last after {waited:?}, {queue:?}");
        assert!(delivered >= min_delivered && waited <= Duration::from_millis(longest), "{outcomes:?}");
        // In a first-in, first-out queue it fares no better than the greedy flow.
        assert!(!queue.is_empty() || delivered < offered || waited >= Duration::from_millis(100));
    }
}

#[test]
fn weights_hold_between_classes() {
    let gold = Inner { traffic_class: 26 << 2, ..GREEDY };
    let classes = vec![class(&[26, 28], 0, 3.0, true), class(&[], 0, 1.0, false)];
    let (outcomes, _) = outcomes(classes, &[gold, GREEDY]);
    let ratio = outcomes[0].delivered as f64 / outcomes[1].delivered as f64;
    assert!((2.9..3.1).contains(&ratio), "{outcomes:?}");
}

#[test]
fn an_ecn_capable_flow_is_marked_and_its_marks_do_not_count_as_core_marks() {
    let capable = Inner { traffic_class: 2, every: Duration(900_000), ..GREEDY };
    let (outcomes, world) = outcomes(vec![class(&[], 0, 1.0, true)], &[capable]);
    assert!(outcomes[0].marked > 10, "{outcomes:?}");
    assert_eq!(world.routers[1].engine.flow(0).received().marked, 0);
}
