//! Packet traces of RACK-TLP's loss detection (RFC 8985), in the format of `tcp_traces.rs`.

mod tcp_path;

use netstage_core::tcp::{Algorithm, DataSegment, LossDetection, TcpConfig};
use netstage_core::time::{Duration, Instant};
use tcp_path::{ROUND_TRIP, SEGMENT, TcpPath, TransmissionFate, assert_trace, deliver, trace};

fn config() -> TcpConfig {
    TcpConfig {
        algorithm: Algorithm::NewReno,
        loss_detection: LossDetection::Rack,
        timestamps: true,
        max_segment_size: SEGMENT as u32,
        initial_window: 10,
        ack_every: 1,
        delayed_ack: Duration::from_millis(50),
        ..TcpConfig::default()
    }
}

#[test]
fn probe_reveals_the_lost_tail() {
    // RFC 8985 section 3.4: two round trips after the last ACK the last segment is retransmitted, and its ACK shows
    // that 7 and 8, sent before, are lost.
    assert_trace(
        &trace(&config(), 10, &[7, 8, 9]),
        "
         0 syn | 10.0
         100 0 1 2 3 4 5 6 7! 8! 9! | 10.0
         400 r9 | 17.0
         500 [fast-retransmit] r7 | 1.0
         600 r8 | 2.0
         700 [recovered] | 2.5",
    );
}

#[test]
fn probe_is_new_data_if_available() {
    // The probe exceeds the congestion window.
    assert_trace(
        &trace(&TcpConfig { initial_window: 3, ..config() }, 6, &[0, 1, 2]),
        "
         0 syn | 3.0
         100 0! 1! 2! | 3.0
         300 3 | 3.0
         400 [fast-retransmit] r0 | 1.0
         500 r1 r2 | 2.0
         600 4 [recovered] 5 | 2.5",
    );
}

#[test]
fn probe_for_one_segment_waits_for_a_delayed_ack() {
    assert_trace(
        &trace(&config(), 1, &[0]),
        "
         0 syn | 10.0
         100 0! | 10.0
         350 r0 | 10.0",
    );
}

#[test]
fn lost_probe_leaves_recovery_to_the_timer() {
    assert_trace(
        &trace(&config(), 10, &[9, 9]),
        "
         0 syn | 10.0
         100 0 1 2 3 4 5 6 7 8 9! | 10.0
         450 r9! | 19.0
         1450 [timeout] r9 | 1.0
         1550 [recovered] | 2.0",
    );
}

/// Returns the trace of a transfer whose last segment, 9, is probed before more data follows.
fn probe_trace(fate: impl Fn(&DataSegment) -> TransmissionFate) -> String {
    let mut path = TcpPath::new(config(), ROUND_TRIP);
    path.run(10, Instant(1_200_000_000), &fate, deliver);
    path.run(2, Instant::NEVER, &fate, deliver);
    path.trace
}

#[test]
fn loss_repaired_by_a_probe_reduces_the_window() {
    // An ACK beyond the probe shows the repair (RFC 8985 section 7.4).
    let fate = |data: &DataSegment| match data.seq / SEGMENT {
        9 if !data.retransmission => TransmissionFate::Drop,
        _ => TransmissionFate::Deliver,
    };
    assert_trace(
        &probe_trace(fate),
        "
         0 syn | 10.0
         100 0 1 2 3 4 5 6 7 8 9! | 10.0
         450 r9 | 19.0
         1200 10 11 | 20.0
         1300 [tail-loss-probe] | 10.0",
    );
}

#[test]
fn needless_probe_reduces_nothing() {
    // Segment 9 is only late; its second copy to arrive causes a plain duplicate ACK.
    let fate = |data: &DataSegment| match data.seq / SEGMENT {
        9 if !data.retransmission => TransmissionFate::Delay(Duration::from_millis(500)),
        _ => TransmissionFate::Deliver,
    };
    assert_trace(
        &probe_trace(fate),
        "
         0 syn | 10.0
         100 0 1 2 3 4 5 6 7 8 9 | 10.0
         450 r9 | 19.0
         1200 10 11 | 20.0",
    );
}

#[test]
fn lost_retransmission_is_detected_by_later_segments() {
    // Two retransmissions are lost; RFC 6675 would wait for the timer. The window is reduced once.
    assert_trace(
        &trace(&config(), 30, &[4, 4, 4]),
        "
         0 syn | 10.0
         100 0 1 2 3 4! 5 6 7 8 9 | 10.0
         200 10 11 12 13 14 15 16 17 18 19 [fast-retransmit] r4! 20 | 12.0
         300 21 22 23 24 25 r4! 26 | 7.0
         400 27 28 29 r4 | 7.0
         500 [recovered] | 7.1",
    );
}

#[test]
fn loss_after_the_reduction_reduces_again() {
    // Segment 20 is sent and detected as lost during the recovery.
    assert_trace(
        &trace(&config(), 32, &[4, 4, 20]),
        "
         0 syn | 10.0
         100 0 1 2 3 4! 5 6 7 8 9 | 10.0
         200 10 11 12 13 14 15 16 17 18 19 [fast-retransmit] r4! 20! | 12.0
         300 21 22 23 24 25 | 7.0
         400 r4 r20 26 27 28 29 30 | 7.0
         500 [fast-retransmit] 31 [recovered] | 3.9",
    );
}

#[test]
fn small_window_needs_no_duplicate_acks() {
    // One segment received above the hole and a quarter of a round trip suffice.
    assert_trace(
        &trace(&config(), 2, &[0]),
        "
         0 syn | 10.0
         100 0! 1 | 10.0
         225 [fast-retransmit] r0 | 1.0
         325 [recovered] | 2.0",
    );
}

#[test]
fn several_losses_are_repaired_in_a_round_trip() {
    assert_trace(
        &trace(&config(), 30, &[2, 3, 5, 8]),
        "
         0 syn | 10.0
         100 0 1 2! 3! 4 5! 6 7 8! 9 | 10.0
         200 10 11 12 13 14 15 [fast-retransmit] r2 | 7.0
         300 r3 r5 r8 16 17 18 | 6.0
         400 19 20 [recovered] 21 22 23 24 | 6.6
         500 25 26 27 28 29 | 7.5",
    );
}

#[test]
fn timeout_marks_everything_sent_before_it_as_lost() {
    // RFC 8985 section 6.3. The probe is lost as well.
    let drops: Vec<u64> = (0..10).chain([9]).collect();
    assert_trace(
        &trace(&config(), 10, &drops),
        "
         0 syn | 10.0
         100 0! 1! 2! 3! 4! 5! 6! 7! 8! 9! | 10.0
         300 r9! | 10.0
         1300 [timeout] r0 | 1.0
         1400 r1 r2 | 2.0
         1500 r3 r4 r5 r6 | 4.0
         1600 r7 r8 r9 | 5.6
         1700 [recovered] | 6.1",
    );
}

/// Returns the trace of a transfer whose segments 8 and 12 are this late, so that one and seven segments overtake
/// them.
fn reordering_trace(late: Duration) -> String {
    let mut path = TcpPath::new(config(), ROUND_TRIP);
    let fate = |data: &DataSegment| match data.seq / SEGMENT {
        8 | 12 if !data.retransmission => TransmissionFate::Delay(late),
        _ => TransmissionFate::Deliver,
    };
    path.run(20, Instant::NEVER, fate, deliver);
    path.trace
}

#[test]
fn reordering_is_not_mistaken_for_loss() {
    // A delay within a quarter of a round trip is not a loss. Seven segments overtake the second late one, but
    // reordering was seen before.
    assert_trace(
        &reordering_trace(Duration::from_millis(20)),
        "
         0 syn | 10.0
         100 0 1 2 3 4 5 6 7 8 9 | 10.0
         200 10 11 12 13 14 15 16 17 18 19 | 18.0",
    );
    // A longer delay is taken for a loss.
    assert!(reordering_trace(Duration::from_millis(30)).contains("225 [fast-retransmit] r8"));
}
