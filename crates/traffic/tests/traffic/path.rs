//! Exact counts of the impairments of a path: a proxy drops, duplicates, reorders and damages a known set of packets.

use super::*;
use netstage_agent_api::task::UdpOptions;
use netstage_harness::{needs, skip_busy};
use std::thread;
use std::time::Duration as StdDuration;

/// Impairment of every tenth packet, by the last digit of its number.
const LOST: u64 = 3;
const DUPLICATED: u64 = 5;
const DELAYED: u64 = 7;
const DAMAGED: u64 = 1;

/// Forwards packets until a timeout.
fn proxy(socket: UdpSocket, to: SocketAddr) -> thread::JoinHandle<()> {
    socket.set_read_timeout(Some(StdDuration::from_secs(3))).unwrap();
    thread::spawn(move || {
        let mut held: Option<Vec<u8>> = None;
        let mut buffer = [0; 2048];
        while let Ok(length) = socket.recv(&mut buffer) {
            let packet = &mut buffer[..length];
            // The layout of netstage_wire::probe: number in bytes 4 to 9, fill from 18 on.
            let number = packet[4..10].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            match number % 10 {
                LOST => continue,
                DELAYED => {
                    held = Some(packet.to_vec());
                    continue;
                }
                // Flips two bits of the fill.
                DAMAGED => packet[40] ^= 0b1000_0001,
                _ => {}
            }
            socket.send_to(packet, to).unwrap();
            if number % 10 == DUPLICATED {
                socket.send_to(packet, to).unwrap();
            }
            if let Some(late) = held.take() {
                socket.send_to(&late, to).unwrap();
            }
        }
    })
}

/// Returns the number of packets below `sent` whose number ends with this digit.
fn ending(digit: u64, sent: u64) -> u64 {
    (0..sent).filter(|number| number % 10 == digit).count() as u64
}

fn losses_duplicates_reordering_and_bit_errors_are_counted_exactly() {
    needs::time(4);
    let between = UdpSocket::bind("127.0.0.1:0").unwrap();
    let options = UdpOptions { compare_payload: true, ..UdpOptions::default() };
    let task = flow(9, TaskTransport::Udp(options), CBR, between.local_addr().unwrap());
    let receiver = FlowTask { destination: free_port("127.0.0.1"), ..receiving(&task) };
    let proxy = proxy(between, receiver.destination);
    let report = run(prepare(vec![task, receiver]).unwrap_or_else(|error| panic!("{error}")));
    proxy.join().unwrap();

    let [sender, receiver] = &report.flows[..] else { panic!("two sides") };
    let sent = total(sender, |counts| counts.sent);
    assert!(sent > 20, "{report:?}");
    // Loss or reordering is detected only by a later packet, so up to two of the last packets do not count.
    let undetected = [LOST, DELAYED].into_iter().filter(|digit| (sent - 1) % 10 == *digit).count() as u64;
    let detectable = sent - undetected;
    assert_eq!(total(receiver, |counts| counts.lost), ending(LOST, detectable), "{report:?}");
    assert_eq!(total(receiver, |counts| counts.duplicated), ending(DUPLICATED, detectable));
    assert_eq!(total(receiver, |counts| counts.reordered), ending(DELAYED, detectable));
    assert_eq!(total(receiver, |counts| counts.corrupted), ending(DAMAGED, detectable));
    assert_eq!(total(receiver, |counts| counts.bit_errors), 2 * ending(DAMAGED, detectable));
    assert_eq!(receiver.received(), detectable - ending(LOST, detectable));
    assert_eq!(receiver.socket_drops, 0);
}

/// Compares the gaps with the exponential distribution: Kolmogorov-Smirnov at 1 %.
fn gaps_of_a_poisson_flow_are_exponential() {
    needs::time(2);
    let pattern = Pattern::Poisson { rate: BitRate(1_600_000), packet: 100 };
    let task = flow(1, TaskTransport::Udp(UdpOptions::default()), pattern, free_port("127.0.0.1"));
    let (sent, received, report) = run_both(&[task]);
    let schedule = sent[0].schedule.unwrap();
    assert_eq!(received[0].received(), schedule.sent, "{report:?}");
    // 2000 per second for half a second; within five standard deviations.
    assert!((840..1160).contains(&schedule.requested), "{schedule:?}");
    let gaps = &sent[0].gaps.0;
    let count: u64 = gaps.iter().map(|bucket| bucket.1).sum();
    assert_eq!(count, schedule.sent - 1);
    let mut below = 0;
    let mut distance: f64 = 0.0;
    for &(gap, times) in gaps {
        let expected = 1.0 - (-(gap as f64) / 500_000.0).exp();
        below += times;
        distance = distance.max((below as f64 / count as f64 - expected).abs());
    }
    let late_ns = schedule.late_ns.1.unwrap();
    if late_ns > 250_000 {
        skip_busy(format!("it delayed the sender by at least {late_ns} ns"));
    }
    // The limit at 1 % is 1.63 / sqrt(n); it is doubled, because some packets may be late by part of a gap.
    assert!(distance < 3.26 / (count as f64).sqrt(), "{distance}");
}

fn kernel_batches_arrive_as_single_packets() {
    needs::time(2);
    let options = UdpOptions { batch: 16, ..UdpOptions::default() };
    let task = flow(1, TaskTransport::Udp(options), CBR, free_port("127.0.0.1"));
    let (sent, received, report) = run_both(&[task]);
    let count = total(&sent[0], |counts| counts.sent);
    assert!(count > 0, "{report:?}");
    assert_eq!(received[0].received(), count);
    assert_eq!(received_bytes(&received[0]), count * 100);
    assert!(
        report.warnings.iter().any(|warning| warning.contains("without timing per packet")),
        "{report:?}"
    );
}

netstage_harness::tests![
    losses_duplicates_reordering_and_bit_errors_are_counted_exactly,
    gaps_of_a_poisson_flow_are_exponential,
    kernel_batches_arrive_as_single_packets,
];
