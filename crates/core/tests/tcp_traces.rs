//! Packet traces of loss recovery, one line per instant: the time in milliseconds, the segments sent and the events
//! of the sender, then the window in segments. `r` marks a retransmission, `!` a loss and `*` a congestion mark. The
//! round trip is 100 ms, segments are numbered from 0, and ACKs are not delayed unless a test does so.

mod tcp_path;

use netstage_core::tcp::{Algorithm, DataSegment, TcpConfig};
use netstage_core::time::{Duration, Instant};
use tcp_path::{ROUND_TRIP, SEGMENT, TcpPath, TransmissionFate, assert_trace, deliver, drop_listed, trace};

fn config(algorithm: Algorithm, sack: bool) -> TcpConfig {
    TcpConfig {
        algorithm,
        sack,
        max_segment_size: SEGMENT as u32,
        initial_window: 10,
        ack_every: 1,
        handshake: false,
        min_rto: Duration::from_millis(300),
        ..TcpConfig::default()
    }
}

#[test]
fn reno_repairs_one_loss_in_a_round_trip() {
    // Two segments of limited transmit, then half of the flight of 14.
    assert_trace(
        &trace(&config(Algorithm::Reno, false), 30, &[4]),
        "
         0 0 1 2 3 4! 5 6 7 8 9 | 10.0
         100 10 11 12 13 14 15 16 17 18 19 [fast-retransmit] r4 | 12.0
         200 20 21 22 23 24 25 [recovered] 26 | 7.0
         300 27 28 29 | 7.9",
    );
}

#[test]
fn reno_halves_again_for_a_second_loss_in_the_window() {
    assert_trace(
        &trace(&config(Algorithm::Reno, false), 30, &[4, 6]),
        "
         0 0 1 2 3 4! 5 6! 7 8 9 | 10.0
         100 10 11 12 13 14 15 16 17 18 19 [fast-retransmit] r4 | 11.0
         200 20 21 22 23 24 [recovered] | 7.0
         300 [fast-retransmit] r6 | 8.5
         400 [recovered] 25 26 27 | 3.5
         500 28 29 | 4.3",
    );
}

#[test]
fn newreno_repairs_a_hole_for_each_partial_ack() {
    assert_trace(
        &trace(&config(Algorithm::NewReno, false), 30, &[2, 3, 5, 8]),
        "
         0 0 1 2! 3! 4 5! 6 7 8! 9 | 10.0
         100 10 11 12 13 14 15 [fast-retransmit] r2 | 10.0
         200 16 17 r3 18 | 16.0
         300 19 20 r5 21 22 | 18.0
         400 23 24 r8 25 26 27 | 20.0
         500 28 29 [recovered] | 6.5",
    );
}

#[test]
fn newreno_is_impatient() {
    // Only the first partial ACK restarts the timer, at 400 ms (RFC 6582 section 4).
    assert_trace(
        &trace(&config(Algorithm::NewReno, false), 20, &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
        "
         0 0 1! 2! 3! 4! 5! 6! 7! 8! 9! | 10.0
         100 10 11 | 11.0
         200 12 13 | 11.0
         300 [fast-retransmit] r1 | 9.5
         400 r2 | 9.5
         500 r3 | 9.5
         600 r4 | 9.5
         700 r5 [timeout] r5 | 1.0
         800 r6 r7 | 2.0
         900 r8 r9 r10 r11 | 4.0
         1000 r12 [recovered] 14 15 16 17 18 19 | 5.6",
    );
}

#[test]
fn newreno_waits_for_the_timer_after_a_lost_retransmission() {
    assert_trace(
        &trace(&config(Algorithm::NewReno, false), 30, &[4, 4]),
        "
         0 0 1 2 3 4! 5 6 7 8 9 | 10.0
         100 10 11 12 13 14 15 16 17 18 19 [fast-retransmit] r4! | 12.0
         200 20 21 22 23 24 25 | 22.0
         300 26 27 28 29 | 28.0
         400 [timeout] r4 | 1.0
         500 [recovered] | 2.0",
    );
}

#[test]
fn newreno_does_not_recover_from_losses_repaired_by_a_timeout() {
    // A delay causes a spurious timeout. The segments sent twice then cause duplicate ACKs, which must not begin a
    // recovery.
    let mut path = TcpPath::new(config(Algorithm::NewReno, false), ROUND_TRIP);
    let fate = |data: &DataSegment| match data.retransmission {
        false if data.seq < 10 * SEGMENT => TransmissionFate::Delay(Duration::from_secs(1)),
        _ => TransmissionFate::Deliver,
    };
    path.run(20, Instant::NEVER, fate, deliver);
    assert_trace(
        &path.trace,
        "
         0 0 1 2 3 4 5 6 7 8 9 | 10.0
         1000 [timeout] r0 | 1.0
         1100 r1 r2 r3 r4 r5 r6 r7 r8 r9 10 11 12 13 [recovered] 14 15 16 | 6.1
         1200 17 18 19 | 7.2",
    );
}

#[test]
fn sack_repairs_several_holes_in_a_round_trip() {
    assert_trace(
        &trace(&config(Algorithm::NewReno, true), 30, &[2, 3, 5, 8]),
        "
         0 0 1 2! 3! 4 5! 6 7 8! 9 | 10.0
         100 10 11 12 13 14 15 [fast-retransmit] r2 | 6.0
         200 r3 r5 r8 16 17 18 | 6.0
         300 19 20 [recovered] 21 22 23 24 | 6.5
         400 25 26 27 28 29 | 7.4",
    );
}

#[test]
fn sack_rescues_the_tail_once() {
    // No block shows that 8 and 9 are lost. Rule 4 sends the last segment, and its ACK leads to 8 by rule 3.
    assert_trace(
        &trace(&config(Algorithm::NewReno, true), 10, &[3, 8, 9]),
        "
         0 0 1 2 3! 4 5 6 7 8! 9! | 10.0
         100 [fast-retransmit] r3 | 3.5
         200 r9 | 3.5
         300 r8 | 3.5
         400 [recovered] | 3.5",
    );
}

#[test]
fn sack_waits_for_the_timer_after_a_lost_retransmission() {
    assert_trace(
        &trace(&config(Algorithm::NewReno, true), 30, &[4, 4]),
        "
         0 0 1 2 3 4! 5 6 7 8 9 | 10.0
         100 10 11 12 13 14 15 16 17 18 19 [fast-retransmit] r4! | 7.0
         200 20 21 22 23 24 25 | 7.0
         300 26 27 28 29 | 7.0
         400 [timeout] r4 | 1.0
         500 [recovered] | 2.0",
    );
}

#[test]
fn sack_information_outlives_a_timeout() {
    // Segments 1 to 3, 5 to 7 and 9 were received: after the timeout only 0, 4 and 8 are retransmitted.
    assert_trace(
        &trace(&config(Algorithm::NewReno, true), 10, &[0, 0, 4, 4, 8, 8]),
        "
         0 0! 1 2 3 4! 5 6 7 8! 9 | 10.0
         100 [fast-retransmit] r0! r4! r8! | 5.0
         1000 [timeout] r0 | 1.0
         1100 r4 r8 | 2.0
         1200 [recovered] | 3.3",
    );
}

#[test]
fn limited_transmit_saves_a_small_window_from_the_timer() {
    for sack in [false, true] {
        let small = TcpConfig { initial_window: 3, ..config(Algorithm::NewReno, sack) };
        let limited_transmit = trace(&small, 8, &[0]);
        let lines: Vec<_> = limited_transmit.lines().map(|l| l.split(" |").next().unwrap().trim()).collect();
        assert_eq!(lines, ["0 0! 1 2", "100 3 4", "200 [fast-retransmit] r0 5", "300 [recovered] 6 7"]);
        assert_trace(
            &trace(&TcpConfig { limited_transmit: false, ..small }, 8, &[0]),
            "
         0 0! 1 2 | 3.0
         1000 [timeout] r0 | 1.0
         1100 [recovered] 3 4 | 2.0
         1200 5 6 | 2.9
         1300 7 | 3.6",
        );
    }
}

#[test]
fn timeouts_back_off_and_a_segment_sent_twice_is_not_timed() {
    for (timestamps, timeout) in [(false, 16_000), (true, 300)] {
        let config = TcpConfig { timestamps, ..config(Algorithm::NewReno, false) };
        let mut path = TcpPath::new(config, ROUND_TRIP);
        path.run(4, Instant::NEVER, drop_listed(&[0, 0, 0, 0, 1, 2, 3], 1000), deliver);
        assert_trace(
            &path.trace,
            "
         0 0! 1! 2! 3! | 10.0
         1000 [timeout] r0! | 1.0
         3000 [timeout] r0! | 1.0
         7000 [timeout] r0! | 1.0
         15000 [timeout] r0 | 1.0
         15100 r1 r2 | 2.0
         15200 r3 | 2.9
         15300 [recovered] | 3.2",
        );
        // Karn's algorithm: the timeout stays backed off until a new segment is timed. With timestamps it is updated
        // at once.
        assert_eq!(path.sender.retransmission_timeout(), Duration::from_millis(timeout));
        assert_eq!(path.sender.smoothed_round_trip().is_some(), timestamps);
    }
}

#[test]
fn losses_do_not_disturb_the_round_trip_estimate() {
    for sack in [false, true] {
        for timestamps in [false, true] {
            let config = TcpConfig { timestamps, ..config(Algorithm::NewReno, sack) };
            let mut path = TcpPath::new(config, ROUND_TRIP);
            let drops = [0, 2, 3, 5, 8, 15, 30, 30, 31];
            path.run(60, Instant::NEVER, drop_listed(&drops, SEGMENT as u32), deliver);
            assert_eq!(path.sender.min_round_trip(), Some(ROUND_TRIP));
            assert_eq!(path.sender.smoothed_round_trip(), Some(ROUND_TRIP), "{}", path.trace);
        }
    }
}

#[test]
fn acks_are_delayed_until_the_second_segment_or_the_timer() {
    let config = TcpConfig { ack_every: 2, delayed_ack: ROUND_TRIP, ..config(Algorithm::NewReno, true) };
    let mut path = TcpPath::new(TcpConfig { initial_window: 3, ..config }, ROUND_TRIP);
    let mut acks = Vec::new();
    path.run(3, Instant::NEVER, deliver, |ack| {
        acks.push(ack.ack / SEGMENT);
        TransmissionFate::Deliver
    });
    assert_eq!(acks, [2, 3]);
    // 50 ms to the receiver, 100 ms of delay, 50 ms back.
    assert_eq!(path.now, Instant(200_000_000));
}

#[test]
fn mark_reduces_once_per_window_of_data() {
    let config = TcpConfig { ecn: true, initial_window: 4, ..config(Algorithm::NewReno, true) };
    let mut path = TcpPath::new(config, ROUND_TRIP);
    let fate = |data: &DataSegment| match data.seq / SEGMENT {
        5 | 6 | 9 | 11 | 24 => TransmissionFate::Mark,
        _ => TransmissionFate::Deliver,
    };
    path.run(40, Instant::NEVER, fate, deliver);
    assert_trace(
        &path.trace,
        "
         0 0 1 2 3 | 4.0
         100 4 5* 6* 7 8 9* 10 11* | 8.0
         200 12 13 [ecn] 14+cwr 15 | 4.5
         300 16 17 18 19 | 4.9
         400 20 21 22 23 24* | 5.7
         500 25 26 27 28 29 [ecn] | 3.0
         600 30+cwr 31 32 | 3.0
         700 33 34 35 | 3.9
         800 36 37 38 39 | 4.6",
    );
    assert_eq!(path.sender.retransmissions(), 0);
}

#[test]
fn loss_in_a_marked_window_does_not_reduce_again() {
    let config = TcpConfig { ecn: true, initial_window: 4, ..config(Algorithm::NewReno, true) };
    let mut path = TcpPath::new(config, ROUND_TRIP);
    let fate = |data: &DataSegment| match data.seq / SEGMENT {
        5 => TransmissionFate::Mark,
        8 if !data.retransmission => TransmissionFate::Drop,
        _ => TransmissionFate::Deliver,
    };
    path.run(20, Instant::NEVER, fate, deliver);
    assert_trace(
        &path.trace,
        "
         0 0 1 2 3 | 4.0
         100 4 5* 6 7 8! 9 10 11 | 8.0
         200 12 13 [ecn] [fast-retransmit] r8 14+cwr | 4.5
         300 15 16 [recovered] 17 18 | 4.7
         400 19 | 5.5",
    );
}

#[test]
fn advertised_window_limits_data_and_stops_growth() {
    let config = TcpConfig { window: 4_500, initial_window: 3, ..config(Algorithm::NewReno, true) };
    assert_trace(
        &trace(&config, 12, &[]),
        "
         0 0 1 2 | 3.0
         100 3 4 5 6 | 6.0
         200 7 8 9 10 | 8.0
         300 11 | 8.0",
    );
}

#[test]
fn lost_syn_reduces_the_initial_window() {
    let config = TcpConfig { handshake: true, ..config(Algorithm::NewReno, true) };
    let mut path = TcpPath::new(config, ROUND_TRIP);
    let mut syns = 0;
    let fate = |data: &DataSegment| {
        syns += u32::from(data.syn);
        if data.syn && syns <= 2 { TransmissionFate::Drop } else { TransmissionFate::Deliver }
    };
    path.run(5, Instant::NEVER, fate, deliver);
    assert_trace(
        &path.trace,
        "
         0 syn! | 10.0
         1000 rsyn! | 10.0
         3000 rsyn | 10.0
         3100 0 | 1.0
         3200 1 2 | 2.0
         3300 3 4 | 4.0",
    );
}

#[test]
fn idle_sender_returns_to_the_initial_window() {
    let mut path = TcpPath::new(config(Algorithm::NewReno, true), ROUND_TRIP);
    path.run(30, Instant(2_000_000_000), deliver, deliver);
    assert_eq!(path.sender.congestion_window(), 40 * SEGMENT);
    path.run(12, Instant::NEVER, deliver, deliver);
    assert!(path.trace.contains("2000 30 31 32 33 34 35 36 37 38 39 | 10.0"), "{}", path.trace);
}

/// Compares the window after one loss with W_cubic(t) of RFC 9438 equation 1.
#[test]
fn cubic_follows_its_curve() {
    let base = config(Algorithm::Cubic, true);
    let base = TcpConfig { window: 1 << 30, initial_window: 500, ..base };
    let mut path = TcpPath::new(base, ROUND_TRIP);
    path.sender.write(u64::MAX);
    let mut dropped = false;
    let mut fate = |data: &DataSegment| {
        let drop = !dropped && data.seq >= 1_200 * SEGMENT;
        dropped |= drop;
        if drop { TransmissionFate::Drop } else { TransmissionFate::Deliver }
    };
    let mut windows = Vec::new();
    for step in 0..300 {
        path.run_step(Instant(step * 100_000_000 + 50_000_000), &mut fate);
        let reduced = path.sender.slow_start_threshold() != u64::MAX;
        windows.push((reduced, path.sender.congestion_window() as f64 / SEGMENT as f64));
    }
    let begin = windows.iter().position(|w| w.0).unwrap();
    let (w_max, after) = (windows[begin].1 / 0.7, windows[begin].1);
    let k = ((w_max - after) / 0.4).cbrt();
    assert!(w_max > 500.0 && k > 5.0, "{w_max} {k}");
    // Congestion avoidance begins after one round trip of recovery.
    for (index, &(_, window)) in windows.iter().enumerate().skip(begin + 3) {
        let t = (index - begin - 1) as f64 * 0.1;
        let expected = 0.4 * (t - k).powi(3) + w_max;
        // The window grows in steps of a round trip, so it may be one step away from the curve.
        let slope = 1.2 * (t - k).powi(2) * 0.1;
        assert!(
            (window - expected).abs() <= slope + 0.01 * expected,
            "at {t} s: window {window}, expected {expected}"
        );
    }
}
