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

/// Returns a flow whose sender spins.
fn spinning() -> FlowTask {
    let options = UdpOptions { spin: true, ..UdpOptions::default() };
    flow(1, TaskTransport::Udp(options), CBR, free_port("127.0.0.1"))
}

/// Prepares senders that spin until no CPU is left. Returns them and the error of the next.
fn reserve_all_cpus() -> (Vec<TrafficEngine>, PrepareError) {
    let mut engines = Vec::new();
    loop {
        match prepare(vec![spinning()]) {
            Ok(engine) => engines.push(engine),
            Err(error) => return (engines, error),
        }
    }
}

fn only_a_sender_that_spins_reports_it() {
    needs::time(3);
    let task = spinning();
    let Ok(sender) = prepare(vec![task.clone(), receiving(&task)]) else {
        netstage_harness::skip_busy("no CPU is free for a sender that spins");
    };
    let report = run(sender);
    let sent = report.flows.iter().find(|flow| flow.sends).unwrap();
    let schedule = sent.schedule.unwrap();
    assert_eq!(schedule.requested, 500);
    let spun = schedule.spun.expect("the sender spun");
    assert!((0.0..=0.95).contains(&spun), "{spun}");
    let (sent, ..) = run_both(&[flow(7, udp(), CBR, free_port("127.0.0.1"))]);
    assert_eq!(sent[0].schedule.unwrap().spun, None);
}

fn senders_that_spin_leave_one_cpu_free() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let (engines, error) = reserve_all_cpus();
    assert!(engines.len() < cpus, "{} senders on {cpus} CPUs", engines.len());
    assert!(matches!(error.problem, FlowProblem::NoCpu(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("pacing = \"spin\" needs a CPU") && text.contains("pacing = \"sleep\""), "{text}");
    // A receiver does not spin.
    prepare(vec![receiving(&spinning())]).unwrap_or_else(|error| panic!("{error}"));
}

netstage_harness::tests![
    every_packet_of_a_constant_rate_is_sent_and_counted,
    a_port_in_use_is_named_with_its_remedy,
    only_a_sender_that_spins_reports_it,
    senders_that_spin_leave_one_cpu_free,
];
