use super::*;
use netstage_harness::needs;

fn a_stream_arrives_completely() {
    for ip in ["127.0.0.1", "::1"] {
        let size = 500_000;
        let task = flow(1, TaskTransport::Quic, Pattern::Bulk { size: Some(size) }, free_port(ip));
        let (sent, received, report) = run_both(&[task]);
        assert_eq!(total(&sent[0], |counts| counts.sent_bytes), size, "{report:?}");
        assert_eq!(received_bytes(&received[0]), size, "{report:?}");
    }
}

fn a_missing_receiver_is_an_error_of_its_flow() {
    needs::time(3);
    let lonely = flow(1, TaskTransport::Quic, CBR, free_port("127.0.0.1"));
    let task = flow(2, TaskTransport::Quic, CBR, free_port("127.0.0.1"));
    let report =
        run(prepare(vec![lonely, task.clone(), receiving(&task)]).unwrap_or_else(|error| panic!("{error}")));
    assert!(report.flows[0].error.is_some(), "{report:?}");
    assert_eq!(report.flows[1].error, None);
    let received = received_bytes(&report.flows[2]);
    assert_eq!(received, total(&report.flows[1], |counts| counts.sent_bytes));
    assert!(received > 0);
}

netstage_harness::tests![a_stream_arrives_completely, a_missing_receiver_is_an_error_of_its_flow];
