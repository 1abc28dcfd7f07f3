use super::*;
use netstage_agent_api::task::OneEnded;
use netstage_harness::{needs, skip};
use netstage_traffic::FlowProblem;

fn every_echo_request_is_answered_by_the_kernel() {
    needs::time(3);
    for ip in ["127.0.0.1", "::1"] {
        let host = SocketAddr::new(ip.parse().unwrap(), 0);
        let task = flow(3, TaskTransport::IcmpEcho(OneEnded::default()), CBR, host);
        let engine = match prepare(vec![task]) {
            Ok(engine) => engine,
            Err(PrepareError { problem: FlowProblem::Permission { .. }, .. }) => {
                skip("no permission for ICMP echo")
            }
            Err(error) => panic!("{error}"),
        };
        let report = run(engine);
        let result = &report.flows[0];
        let sent = total(result, |counts| counts.sent);
        assert!(sent > 0, "{report:?}");
        assert_eq!(result.received(), sent, "{report:?}");
        assert_eq!(received_bytes(result), sent * 100);
        assert_eq!(result.round_trip.0.iter().map(|bucket| bucket.1).sum::<u64>(), sent);
        assert!(result.delay.0.is_empty() && result.sends && result.error.is_none(), "{report:?}");
    }
}

// The kernel limits the number of answers (net.ipv4.icmp_ratelimit). None is duplicated.
fn closed_ports_answer_with_errors_that_are_matched() {
    needs::time(3);
    for ip in ["127.0.0.1", "::1"] {
        let task = flow(4, TaskTransport::UdpUnreachable(OneEnded::default()), CBR, free_port(ip));
        let report = run(prepare(vec![task]).unwrap_or_else(|error| panic!("{error}")));
        let result = &report.flows[0];
        let received = result.received();
        assert!(received > 0, "{report:?}");
        assert!(received <= total(result, |counts| counts.sent));
        assert_eq!(received_bytes(result), received * 100);
        assert_eq!(result.round_trip.0.iter().map(|bucket| bucket.1).sum::<u64>(), received);
        assert_eq!(total(result, |counts| counts.duplicated), 0);
    }
}

fn the_rate_to_a_host_without_an_agent_is_limited() {
    let host = "127.0.0.1:9".parse().unwrap();
    let fast = Pattern::Cbr { rate: BitRate(10_000_001), packet: 100 };
    let refused =
        prepare(vec![flow(1, TaskTransport::UdpUnreachable(OneEnded::default()), fast.clone(), host)]);
    assert!(matches!(refused.err().unwrap().problem, FlowProblem::AboveLimit { limit_bps: 10_000_000, .. }));
    let raised = OneEnded { limit: Some(BitRate(20_000_000)), ..OneEnded::default() };
    assert!(prepare(vec![flow(1, TaskTransport::UdpUnreachable(raised), fast, host)]).is_ok());
}

netstage_harness::tests![
    every_echo_request_is_answered_by_the_kernel,
    closed_ports_answer_with_errors_that_are_matched,
    the_rate_to_a_host_without_an_agent_is_limited,
];
