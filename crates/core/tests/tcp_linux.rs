//! Packet traces of a sender with the choices of Linux, in the format of `tcp_traces.rs`.

mod tcp_path;

use netstage_core::tcp::{DataSegment, TcpConfig};
use netstage_core::time::Instant;
use tcp_path::{ROUND_TRIP, SEGMENT, TcpPath, TransmissionFate, assert_trace, deliver, trace};

fn config(sack: bool) -> TcpConfig {
    let config = TcpConfig { sack, max_segment_size: SEGMENT as u32, ..TcpConfig::default() };
    TcpConfig { handshake: false, ..config.like_linux() }
}

#[test]
fn segments_leave_in_pairs() {
    // The window is 14 at the loss, so the threshold is 7. After the recovery, each ACK of two segments releases two,
    // and the odd segment of a grown window waits, until an ACK comes more than a millisecond after the last segment.
    assert_trace(
        &trace(&config(true), 40, &[4]),
        "
         0 0 1 2 3 4! 5 6 7 8 9 | 10.0
         100 10 11 12 13 14 15 16 17 18 19 [fast-retransmit] r4 20 | 12.0
         200 21 22 23 24 25 [recovered] | 7.1
         240 26 27 | 7.3
         300 28 29 30 31 | 7.9
         340 32 33 | 8.1
         380 34 35 | 8.3
         400 36 37 38 39 | 8.8",
    );
}

#[test]
fn a_recovery_without_sack_repairs_a_hole_for_each_partial_ack() {
    assert_trace(
        &trace(&config(false), 30, &[2, 3, 5, 8]),
        "
         0 0 1 2! 3! 4 5! 6 7 8! 9 | 10.0
         100 10 11 12 13 14 15 [fast-retransmit] r2 | 10.0
         200 16 17 18 r3 | 6.0
         300 19 20 21 r5 22 | 6.0
         400 23 24 25 r8 26 27 | 6.0
         500 28 29 [recovered] | 6.3",
    );
}

#[test]
fn every_partial_ack_restarts_the_timer() {
    // The timer of 300 ms would expire in the recovery if it had been started by the first of them only.
    assert_trace(
        &trace(&config(false), 20, &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
        "
         0 0 1! 2! 3! 4! 5! 6! 7! 8! 9! | 10.0
         100 10 11 | 11.0
         200 12 | 11.0
         300 [fast-retransmit] r1 | 9.0
         400 r2 | 7.0
         500 r3 | 6.0
         600 r4 | 5.0
         700 r5 | 5.0
         800 r6 | 4.0
         900 r7 | 3.0
         1000 r8 | 2.0
         1100 r9 | 1.0
         1200 13 14 | 2.0
         1300 [recovered] 15 16 17 18 19 | 5.2",
    );
}

/// Returns the trace of a sender with a window of three segments, on a path with a fate for each transmission.
fn small_window(timestamps: bool, fate: impl FnMut(&DataSegment) -> TransmissionFate) -> String {
    let config = TcpConfig { initial_window: 3, timestamps, ..config(true) };
    let mut path = TcpPath::new(config, ROUND_TRIP);
    path.run(30, Instant::NEVER, fate, deliver);
    path.trace
}

#[test]
fn new_data_tells_whether_a_timeout_was_in_time() {
    // All of the first window and the probe are lost. The ACK of the retransmission releases new data, and only its
    // duplicate ACKs the rest of the lost data (RFC 5682 section 3.1 step 3a).
    let mut transmissions = 0;
    let trace = small_window(false, |_| {
        transmissions += 1;
        if transmissions <= 4 { TransmissionFate::Drop } else { TransmissionFate::Deliver }
    });
    assert_trace(
        &trace,
        "
         0 0! 1! 2! | 3.0
         1000 3! | 3.0
         2000 [timeout] r0 | 1.0
         2100 4 5 | 2.0
         2200 r1 r2 | 2.0
         2300 r3 6 7 | 3.0
         2400 [recovered] 8 9 10 11 | 4.5
         2500 12 13 14 15 16 | 5.4
         2600 17 18 19 20 21 | 6.2
         2640 22 | 6.3
         2700 23 24 25 26 | 7.0
         2740 27 28 29 | 7.3",
    );
}

#[test]
fn a_timeout_before_the_ack_is_undone() {
    // The path holds what is sent from 150 to 900 ms, and delivers it in order. The timer retransmits the first segment
    // of it. The ACKs of the first transmissions restore the window, by their timestamps (RFC 3522) or by F-RTO (RFC
    // 5682 section 3.1 step 3b). RACK takes the ACK of segment 9 as that of its retransmission, and so segment 10 as
    // lost, until the next ACK.
    let (from, to) = (Instant(150_000_000), Instant(900_000_000));
    let by_timestamps = "1000 [fast-retransmit] r10 [recovered] 22 23 24 25 26 27 28 29 | 25.0";
    let by_new_data = "1000 22 23 [recovered] 24 25 26 27 28 29 | 24.0";
    for (timestamps, undone) in [(true, by_timestamps), (false, by_new_data)] {
        let trace = small_window(timestamps, |data| match data.sent {
            sent if (from..to).contains(&sent) => TransmissionFate::Delay(to.since(sent)),
            _ => TransmissionFate::Deliver,
        });
        let expected = format!(
            "
             0 0 1 2 | 3.0
             100 3 4 5 6 7 8 | 6.0
             200 9 10 11 12 13 14 15 16 17 18 19 20 | 12.0
             400 21 | 12.0
             700 [timeout] r9 | 1.0
             {undone}"
        );
        assert_trace(&trace, &expected);
    }
}
