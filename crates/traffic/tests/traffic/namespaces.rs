//! Traffic engine between namespaces.

use super::pair::Pair;
use super::*;
use netstage_agent_api::task::{OneEnded, TcpOptions, UdpOptions};
use netstage_harness::needs;
use netstage_host::netns::netlink::VethOptions;
use std::thread;

const LEFT: &str = "10.1.0.0";
const RIGHT: &str = "10.1.0.1";

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Returns a flow from left to right.
fn crossing(id: u32, transport: TaskTransport, traffic: Pattern, from: &str, to: SocketAddr) -> FlowTask {
    FlowTask { source: at(from, 0), ..flow(id, transport, traffic, to) }
}

/// Runs senders on the left and receivers on the right, and returns both reports.
fn run_across(pair: &Pair, senders: Vec<FlowTask>, receivers: Vec<FlowTask>) -> (AgentReport, AgentReport) {
    let right = pair.right.run(|| prepare(receivers)).unwrap().unwrap_or_else(|error| panic!("{error}"));
    let left = pair.left.run(|| prepare(senders)).unwrap().unwrap_or_else(|error| panic!("{error}"));
    thread::scope(|scope| {
        let receivers = scope.spawn(|| pair.right.run(|| run(right)).unwrap());
        // TCP connects at the start of its flow, so the run must be inside the namespace, too.
        let senders = pair.left.run(|| run(left)).unwrap();
        (senders, receivers.join().unwrap())
    })
}

fn the_peer_sees_the_requested_window() {
    let pair = Pair::new(VethOptions::default());
    let options = TcpOptions { window: Some(60_000), max_segment_size: Some(1000), ..TcpOptions::default() };
    let task = crossing(1, TaskTransport::Tcp(options), Pattern::Bulk { size: None }, LEFT, at(RIGHT, 5001));
    let task = FlowTask { detail: true, ..task };
    let (sent, received) = run_across(&pair, vec![task.clone()], vec![receiving(&task)]);
    assert_eq!(sent.flows[0].tcp.len(), 5);
    // The window of the handshake may be larger, and is kept until data arrives. TCP does not shrink a window. A sample
    // is smaller while the receiver has data to read.
    let largest = sent.flows[0].tcp[1..].iter().map(|sample| sample.peer_window).max().unwrap();
    // The window is rounded to segments or to the window scale.
    assert!((50_000..=62_000).contains(&largest), "{sent:?}");
    assert!(received_bytes(&received.flows[0]) > 0);
}

fn a_silent_host_affects_only_its_own_flow() {
    let pair = Pair::new(VethOptions::default());
    // No host has this address: neighbor discovery fails, so the connection is not refused either.
    let silent = crossing(1, TaskTransport::Tcp(TcpOptions::default()), CBR, "fd00::", at("fd00::1", 9));
    pair.right.sysctl("net/ipv6/conf/right0/disable_ipv6", "1").unwrap();
    let task = crossing(2, TaskTransport::Udp(UdpOptions::default()), CBR, LEFT, at(RIGHT, 5002));
    let (sent, received) = run_across(&pair, vec![silent, task.clone()], vec![receiving(&task)]);
    let error = sent.flows[0].error.as_ref().unwrap();
    assert!(error.contains("no answer from [fd00::1]:9"), "{error}");
    assert_eq!(sent.flows[1].error, None);
    assert_eq!(received.flows[0].received(), total(&sent.flows[1], |counts| counts.sent));
}

fn every_receiver_of_a_group_gets_all_packets_of_its_source() {
    let pair = Pair::new(VethOptions::default());
    let transport = |source: Option<&str>| TaskTransport::Multicast {
        source: source.map(|ip| ip.parse().unwrap()),
        ttl: 4,
        receiver: None,
    };
    for (from, any, specific, other) in
        [(LEFT, "239.1.1.1", "232.1.1.1", RIGHT), ("fd00::", "ff15::1", "ff35::1", "fd00::1")]
    {
        let any = crossing(1, transport(None), CBR, from, at(any, 6001));
        let specific = crossing(2, transport(Some(from)), CBR, from, at(specific, 6002));
        let wrong = FlowTask { transport: transport(Some(other)), ..receiving(&specific) };
        let right = vec![receiving(&any), receiving(&specific)];
        let left = vec![any, specific, FlowTask { id: 3, ..wrong }];
        let (sent, received) = run_across(&pair, left, right);
        for index in 0..2 {
            let count = total(&sent.flows[index], |counts| counts.sent);
            assert!(count > 0, "{sent:?}");
            assert_eq!(received.flows[index].received(), count, "{received:?}");
        }
        assert_eq!(sent.flows[2].received(), 0, "packets of a source that does not send");
    }
}

fn two_receivers_share_a_group() {
    needs::time(2);
    let group = at("239.1.2.3", free_port("127.0.0.1").port());
    let transport = TaskTransport::Multicast { source: None, ttl: 1, receiver: None };
    let task = FlowTask { source: at("127.0.0.1", 0), ..flow(1, transport, CBR, group) };
    let report = |tasks| run(prepare(tasks).unwrap_or_else(|error| panic!("{error}")));
    let other = receiving(&task);
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| report(vec![other]));
        (report(vec![task.clone(), receiving(&task)]), second.join().unwrap())
    });
    let count = total(&first.flows[0], |counts| counts.sent);
    assert!(count > 0);
    assert_eq!(first.flows[1].received(), count, "{first:?}");
    assert!(
        second.flows[0].received() > 0,
        "the second receiver started with the sender, not before: {second:?}"
    );
}

fn every_probe_to_a_closed_port_is_answered_without_rate_limit() {
    let pair = Pair::new(VethOptions::default());
    // An empty mask exempts all kinds of ICMP errors from the rate limits.
    pair.right.sysctl("net/ipv4/icmp_ratemask", "0").unwrap();
    let task = crossing(1, TaskTransport::UdpUnreachable(OneEnded::default()), CBR, LEFT, at(RIGHT, 9));
    let (sent, _) = run_across(&pair, vec![task], vec![]);
    let result = &sent.flows[0];
    assert_eq!(result.received(), total(result, |counts| counts.sent), "{sent:?}");
    assert!(result.received() > 0);
}

fn a_limit_of_the_answers_is_reported() {
    let pair = Pair::new(VethOptions::default());
    // One answer per 20 ms after a burst.
    pair.right.sysctl("net/ipv4/icmp_ratelimit", "20").unwrap();
    let task = crossing(1, TaskTransport::UdpUnreachable(OneEnded::default()), CBR, LEFT, at(RIGHT, 9));
    let (sent, _) = run_across(&pair, vec![task], vec![]);
    let limit = sent.flows[0].answer_limit.unwrap_or_else(|| panic!("{sent:?}"));
    assert!((40.0..60.0).contains(&limit), "{limit}");
    assert!(
        sent.warnings.iter().any(|warning| warning.contains("the loss is unknown")),
        "{:?}",
        sent.warnings
    );
}

fn probes_are_sent_below_a_limit_of_the_answers() {
    needs::time(18);
    let pair = Pair::new(VethOptions::default());
    // One answer per 20 ms after a burst, to echo requests (bit 0) and to packets for closed ports (bit 3).
    for (name, value) in [("net/ipv4/icmp_ratelimit", "20"), ("net/ipv4/icmp_ratemask", "9")] {
        pair.right.sysctl(name, value).unwrap();
    }
    let traffic = Pattern::Cbr { rate: BitRate(160_000), packet: 100 };
    let probe = |transport| {
        let task = crossing(1, transport, traffic.clone(), LEFT, at(RIGHT, 9));
        let task = FlowTask { stop: millis(4_000), ..task };
        let assignment = Assignment::of_flows("host", millis(4_000), millis(100), vec![task]);
        pair.left.run(|| run(TrafficEngine::prepare(&assignment).unwrap())).unwrap()
    };
    for transport in [TaskTransport::UdpUnreachable, TaskTransport::IcmpEcho] {
        let sent = probe(transport(OneEnded::default()));
        let result = &sent.flows[0];
        let lowered = result.lowered.unwrap_or_else(|| panic!("{sent:?}"));
        assert!((25.0..50.0).contains(&lowered.rate), "{lowered:?}");
        assert!(lowered.sent > 25, "{lowered:?}");
        assert_eq!(lowered.lost(), 0, "the path loses nothing: {lowered:?}");
        let last = &result.bins[result.bins.len() - 4..];
        assert!(last.iter().all(|bin| bin.sent <= bin.received + 1), "{last:?}");
        // A trial keeps its load.
        let kept = probe(transport(OneEnded { keep_rate: true, ..OneEnded::default() }));
        let result = &kept.flows[0];
        assert_eq!((result.lowered, result.answer_limit.is_some()), (None, true), "{kept:?}");
        assert_eq!(total(result, |counts| counts.sent), 800);
    }
}

fn the_limit_of_all_icmp_errors_is_reported() {
    needs::time(4);
    let pair = Pair::new(VethOptions::default());
    // No limit per destination. That of all ICMP errors is 1,000/s with bursts of 50, and random in its tokens; namespaces have
    // their own since Linux 6.13.
    pair.right.sysctl("net/ipv4/icmp_ratelimit", "0").unwrap();
    for (name, value) in [("net/ipv4/icmp_msgs_per_sec", "1000"), ("net/ipv4/icmp_msgs_burst", "50")] {
        let _ = pair.right.sysctl(name, value);
    }
    for (rate, lowers) in [(1_400, true), (4_000, true), (4_000, false)] {
        let traffic = Pattern::Cbr { rate: BitRate(rate * 800), packet: 100 };
        let transport = TaskTransport::UdpUnreachable(OneEnded { keep_rate: !lowers, ..OneEnded::default() });
        let task = crossing(1, transport, traffic, LEFT, at(RIGHT, 9));
        let task = FlowTask { stop: millis(3_000), ..task };
        let assignment = Assignment::of_flows("host", millis(3_000), millis(100), vec![task]);
        let sent = pair.left.run(|| {
            let engine = TrafficEngine::prepare(&assignment).unwrap();
            let epoch = Epoch(monotonic_ns()).delayed_by(millis(10));
            engine.run(epoch, &AtomicBool::new(false), &mut |_| {})
        });
        let sent = sent.unwrap();
        let result = &sent.flows[0];
        let skipped = result.schedule.map_or(0, |schedule| schedule.skipped);
        // A few skipped probes hide no limit.
        if skipped * 50 > total(result, |counts| counts.sent) {
            netstage_harness::skip_busy(format!("the sender skipped {skipped} late packets"));
        }
        let limit = result.answer_limit.unwrap_or_else(|| panic!("{sent:?}"));
        assert!((750.0..1_250.0).contains(&limit), "{limit} at {rate}/s: {result:?}");
        let lowered = result.lowered.map(|lowered| (lowered.sent > 500, lowered.lost() * 50 <= lowered.sent));
        assert_eq!(lowered, lowers.then_some((true, true)), "{result:?}");
    }
}

netstage_harness::tests![
    the_limit_of_all_icmp_errors_is_reported,
    the_peer_sees_the_requested_window,
    a_silent_host_affects_only_its_own_flow,
    every_receiver_of_a_group_gets_all_packets_of_its_source,
    two_receivers_share_a_group,
    every_probe_to_a_closed_port_is_answered_without_rate_limit,
    a_limit_of_the_answers_is_reported,
    probes_are_sent_below_a_limit_of_the_answers,
];
