use super::*;
use netstage_harness::needs;
use netstage_traffic::FlowProblem;
use std::thread;

/// Returns a session of one packet per millisecond, 99 in total.
fn session(bytes: u32, reflector: SocketAddr) -> FlowTask {
    let interval = millis(1);
    let pattern = Pattern::Trace { packets: [(interval, bytes)].into(), repeat: true };
    // The rest of the run is left for the answers.
    FlowTask { stop: millis(100), ..flow(7, TaskTransport::Stamp { interval }, pattern, reflector) }
}

fn count(buckets: &netstage_agent_api::results::Buckets) -> u64 {
    buckets.0.iter().map(|bucket| bucket.1).sum()
}

fn every_packet_is_answered_and_timed_in_both_directions() {
    needs::time(2);
    for (ip, bytes) in [("127.0.0.1", 44), ("::1", 1200)] {
        let (sent, reflected, report) = run_both(&[session(bytes, free_port(ip))]);
        let (sender, reflector) = (&sent[0], &reflected[0]);
        assert_eq!(total(sender, |counts| counts.sent), 99, "{report:?}");
        assert_eq!(reflector.received(), 99, "{report:?}");
        assert_eq!(sender.received(), 99, "{report:?}");
        assert_eq!(received_bytes(sender), 99 * u64::from(bytes), "replies have the requested size");
        for buckets in [&sender.round_trip, &sender.delay, &sender.answer_delay] {
            assert_eq!(count(buckets), 99);
        }
        assert_eq!(sender.schedule.unwrap().requested, 99);
        assert!(sender.error.is_none() && reflector.error.is_none(), "{report:?}");
    }
}

/// Impairment of every tenth packet, by the last digit of its number.
const LOST_FORWARD: u32 = 3;
const LOST_BACKWARD: u32 = 7;
const DUPLICATED: u32 = 5;

/// Forwards packets in both directions until a timeout.
fn path(between: UdpSocket, reflector: SocketAddr) -> thread::JoinHandle<()> {
    between.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    thread::spawn(move || {
        let (mut buffer, mut sender) = ([0; 2048], None);
        while let Ok((length, from)) = between.recv_from(&mut buffer) {
            let packet = &buffer[..length];
            let number = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap()) % 10;
            // The sender's number is at byte 0, and at byte 24 of answers (RFC 8762 figures 2 and 5).
            if from == reflector {
                if number(24) != LOST_BACKWARD {
                    between.send_to(packet, sender.unwrap()).unwrap();
                }
                continue;
            }
            sender = Some(from);
            let copies = match number(0) {
                LOST_FORWARD => 0,
                DUPLICATED => 2,
                _ => 1,
            };
            for _ in 0..copies {
                between.send_to(packet, reflector).unwrap();
            }
        }
    })
}

fn losses_in_each_direction_are_counted_exactly() {
    needs::time(3);
    let between = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sending = session(100, between.local_addr().unwrap());
    let reflecting = FlowTask { destination: free_port("127.0.0.1"), ..receiving(&sending) };
    let path = path(between, reflecting.destination);
    let report = run(prepare(vec![sending, reflecting]).unwrap_or_else(|error| panic!("{error}")));
    path.join().unwrap();
    let [sender, reflector] = &report.flows[..] else { panic!("two sides") };
    // Of 99 numbers from zero, ten end with each of these digits.
    assert_eq!(total(sender, |counts| counts.sent), 99, "{report:?}");
    assert_eq!(reflector.received(), 89, "{report:?}");
    assert_eq!(total(reflector, |counts| counts.duplicated), 10, "{report:?}");
    assert_eq!(sender.received(), 79, "{report:?}");
    assert_eq!(total(sender, |counts| counts.duplicated), 10, "{report:?}");
    assert_eq!((count(&sender.delay), count(&sender.answer_delay)), (79, 79));
}

fn invalid_packet_sizes_and_intervals_are_errors() {
    for (bytes, interval) in [(45, millis(1)), (10_000, millis(1)), (44, Duration::ZERO)] {
        let task = session(bytes, free_port("127.0.0.1"));
        let refused = prepare(vec![FlowTask { transport: TaskTransport::Stamp { interval }, ..task }]);
        let problem = refused.err().unwrap().problem;
        assert!(
            matches!(problem, FlowProblem::InvalidTask(_) | FlowProblem::PacketSize { .. }),
            "{bytes}: {problem}"
        );
    }
}

netstage_harness::tests![
    every_packet_is_answered_and_timed_in_both_directions,
    losses_in_each_direction_are_counted_exactly,
    invalid_packet_sizes_and_intervals_are_errors,
];
