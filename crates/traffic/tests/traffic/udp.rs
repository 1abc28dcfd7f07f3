use super::*;
use netstage_agent_api::task::UdpOptions;
use netstage_harness::needs;
use netstage_traffic::FlowProblem;

fn udp() -> TaskTransport {
    TaskTransport::Udp(UdpOptions::default())
}

fn every_packet_of_a_constant_rate_is_sent_and_counted() {
    needs::time(3);
    for ip in ["127.0.0.1", "::1"] {
        let task = flow(7, udp(), CBR, free_port(ip));
        let (sent, received, report) = run_both(&[task]);
        let schedule = sent[0].schedule.unwrap();
        // One packet at the start, and one each millisecond before the end.
        assert_eq!(schedule.requested, 500, "{report:?}");
        assert_eq!(total(&sent[0], |counts| counts.offered_bytes), 50_000);
        assert_eq!(total(&sent[0], |counts| counts.sent), schedule.sent);
        assert_eq!(received[0].received(), schedule.sent);
        assert_eq!(received_bytes(&received[0]), schedule.sent * 100);
        assert_eq!(total(&received[0], |counts| counts.lost + counts.duplicated + counts.reordered), 0);
        assert_eq!(received[0].delay.0.iter().map(|bucket| bucket.1).sum::<u64>(), schedule.sent);
        assert_eq!(
            received[0].delay_variation.0.iter().map(|bucket| bucket.1).sum::<u64>(),
            schedule.sent - 1
        );
        assert_eq!(sent[0].bins.len(), 5);
        assert_eq!((&sent[0].error, &received[0].error), (&None, &None));
    }
}

fn a_port_in_use_is_named_with_its_remedy() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let task = flow(1, udp(), CBR, taken.local_addr().unwrap());
    let error = prepare(vec![receiving(&task)]).err().unwrap();
    assert!(
        matches!(error.problem, FlowProblem::PortInUse(address) if address == task.destination),
        "{error}"
    );
    assert!(error.to_string().starts_with("flow flow[1]: 127.0.0.1:"), "{error}");
}

netstage_harness::tests![
    every_packet_of_a_constant_rate_is_sent_and_counted,
    a_port_in_use_is_named_with_its_remedy,
];
