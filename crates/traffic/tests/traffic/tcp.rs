use super::*;
use netstage_agent_api::task::TcpOptions;

fn tcp() -> TaskTransport {
    TaskTransport::Tcp(TcpOptions::default())
}

fn a_transfer_arrives_completely_and_ends_the_run() {
    for ip in ["127.0.0.1", "::1"] {
        let size = 3_000_000;
        let task = flow(1, tcp(), Pattern::Bulk { size: Some(size) }, free_port(ip));
        let (sent, received, report) = run_both(&[task]);
        assert_eq!(total(&sent[0], |counts| counts.sent_bytes), size, "{report:?}");
        assert_eq!(received_bytes(&received[0]), size);
    }
}

fn sixty_connections_share_two_threads() {
    let tasks: Vec<FlowTask> = (0..60)
        .map(|id| flow(id, tcp(), Pattern::Bulk { size: Some(100_000) }, free_port("127.0.0.1")))
        .collect();
    let (sent, received, report) = run_both(&tasks);
    for (sent, received) in sent.iter().zip(&received) {
        assert_eq!(total(sent, |counts| counts.sent_bytes), 100_000, "{report:?}");
        assert_eq!(received_bytes(received), 100_000, "{report:?}");
    }
}

fn a_paced_flow_follows_its_pattern() {
    let (sent, received, report) = run_both(&[flow(1, tcp(), CBR, free_port("127.0.0.1"))]);
    assert_eq!(sent[0].schedule.unwrap().requested, 500, "{report:?}");
    let sent = total(&sent[0], |counts| counts.sent_bytes);
    assert!(sent > 0 && received_bytes(&received[0]) <= sent);
}

fn a_refused_connection_is_an_error_of_its_flow() {
    let report =
        run(prepare(vec![flow(1, tcp(), CBR, free_port("127.0.0.1"))]).unwrap_or_else(|e| panic!("{e}")));
    let error = report.flows[0].error.as_ref().unwrap();
    assert!(error.contains("refused"), "{error}");
}

fn an_unknown_congestion_control_is_named() {
    let options = TcpOptions { congestion_control: Some("teleport".into()), ..TcpOptions::default() };
    let task = flow(1, TaskTransport::Tcp(options), CBR, free_port("127.0.0.1"));
    let error = prepare(vec![task]).err().unwrap().to_string();
    assert!(error.contains("congestion control teleport is not available"), "{error}");
}

netstage_harness::tests![
    a_transfer_arrives_completely_and_ends_the_run,
    sixty_connections_share_two_threads,
    a_paced_flow_follows_its_pattern,
    a_refused_connection_is_an_error_of_its_flow,
    an_unknown_congestion_control_is_named,
];
