//! Rate of AIMD against theory, and CPU time per ACK.
//!
//! The law x = (1/R) sqrt(a (2 - b) / (2 b p)) is that of a sawtooth whose loss events are all 1/p segments apart:
//! from (1 - b) W to W in b W / a round trips, 1/p segments in each tooth. It is compared with losses at exactly this
//! spacing.
//!
//! Independent losses of probability p leave geometric gaps instead. Between losses W^2 grows by 2a for each segment,
//! and a loss multiplies it by q = (1 - b)^2, so that just before a loss W^2 = (2a/p) S, where S is the sum of q^k
//! E_k over independent exponential E_k of mean 1. A loss hits any segment with equal probability, and a segment
//! takes 1/W of a round trip, hence x = (1/R) / E[1/W]. Ramanujan's beta integral gives E[S^(-1/2)] = sqrt(pi) times
//! the product over k >= 0 of (1 - q^(k + 1/2)) / (1 - q^(k + 1)), and so x = (1/R) 1.31 / sqrt(p) for (1, 1/2), as
//! Ott, Kemperman and Mathis found, 7 % above the sawtooth's 1.22. Independent losses are compared with this.
//!
//! Both laws are limits for large windows. A real flow stays below them: it does not grow in the round trip of a
//! recovery, and it sends whole segments only, which costs a share of the order of sqrt(p). p is the probability for
//! each new segment; retransmissions are not lost here.

use std::collections::VecDeque;
use std::f64::consts::PI;
use std::time;

use netstage_core::rng::RandomStream;
use netstage_core::tcp::{
    Ack, Algorithm, CongestionEvent, DataSegment, LossDetection, TcpConfig, TcpDataReceiver, TcpDataSender,
    WindowChangeCause,
};
use netstage_core::time::{Duration, Instant};
use netstage_harness::needs;

const ROUND_TRIP: Duration = Duration::from_millis(100);

struct FlowRates {
    /// Segments delivered per round trip.
    rate: f64,
    /// Reductions per new segment sent.
    events: f64,
    timeouts: u64,
}

/// Runs a bulk flow over a pipe without a bandwidth limit. `lost` decides for each new segment; retransmissions
/// arrive, so that one loss is one reduction.
fn run(algorithm: Algorithm, round_trips: u64, mut lost: impl FnMut() -> bool) -> FlowRates {
    run_with_detection(LossDetection::DuplicateAcks, algorithm, round_trips, |data| {
        !data.retransmission && lost()
    })
}

fn run_with_detection(
    loss_detection: LossDetection,
    algorithm: Algorithm,
    round_trips: u64,
    mut lost: impl FnMut(&DataSegment) -> bool,
) -> FlowRates {
    let config = TcpConfig {
        algorithm,
        loss_detection,
        sack: true,
        timestamps: true,
        max_segment_size: 1000,
        window: 1 << 30,
        ack_every: 1,
        handshake: false,
        ..TcpConfig::default()
    };
    let (mut sender, mut receiver) = (TcpDataSender::new(&config), TcpDataReceiver::new(&config));
    let mut now = Instant::ZERO;
    let mut in_flight: VecDeque<(Instant, Ack)> = VecDeque::new();
    let (mut sent, mut events, mut timeouts) = (0u64, 0u64, 0u64);
    let warm_up = Instant::ZERO + ROUND_TRIP * (round_trips / 20);
    let end = warm_up + ROUND_TRIP * round_trips;
    let mut start = None;
    sender.write(u64::MAX);
    while now < end {
        if now >= warm_up && start.is_none() {
            start = Some(receiver.delivered());
            (sent, events) = (0, 0);
        }
        while let Some(data) = sender.poll_transmit(&config, now) {
            sent += u64::from(!data.retransmission);
            if !lost(&data) {
                receiver.handle_data(&config, now, &data, false);
                in_flight.extend(receiver.poll_transmit(&config, now).map(|ack| (now + ROUND_TRIP, ack)));
            }
        }
        match sender.poll_event() {
            Some(CongestionEvent::Reduced(cause)) => {
                events += 1;
                timeouts += u64::from(cause == WindowChangeCause::Timeout);
            }
            Some(CongestionEvent::Recovered) | None => {}
        }
        match in_flight.pop_front() {
            Some((at, ack)) if at <= sender.poll_timeout() => {
                now = at;
                sender.handle_ack(&config, now, &ack);
            }
            other => {
                in_flight.extend(other);
                in_flight.rotate_right(usize::from(other.is_some()));
                now = sender.poll_timeout();
                sender.handle_timeout(&config, now);
            }
        }
    }
    let segments = (receiver.delivered() - start.unwrap()) as f64 / 1000.0;
    FlowRates { rate: segments / round_trips as f64, events: events as f64 / sent as f64, timeouts }
}

/// Increase and decrease: TCP's values, and milder and more aggressive ones.
const AIMD: [(f64, f64); 6] = [(1.0, 0.5), (0.5, 0.5), (2.0, 0.5), (1.0, 0.25), (0.31, 0.125), (0.2, 0.8)];

fn evenly_spaced_losses_follow_the_sawtooth_law() {
    let p = 2e-4;
    for (increase, decrease) in AIMD {
        let mut count = 0.0;
        let measured = run(Algorithm::Aimd { increase, decrease }, 20_000, || {
            count += p;
            let lost = count >= 1.0;
            count -= f64::from(u8::from(lost));
            lost
        });
        let law = (increase * (2.0 - decrease) / (2.0 * decrease * p)).sqrt();
        let error = measured.rate / law - 1.0;
        println!(
            "AIMD({increase}, {decrease}), p {p}: {:.2} against {law:.2}, {:+.1} %",
            measured.rate,
            error * 100.0
        );
        assert!(error.abs() < 0.05 && measured.timeouts == 0, "{error} {}", measured.timeouts);
        assert!((measured.events / p - 1.0).abs() < 0.01);
    }
}

fn independent_losses_follow_the_law_of_geometric_gaps() {
    needs::time(6);
    for p in [1e-3, 3e-4] {
        for (increase, decrease) in AIMD {
            let mut stream = RandomStream::new(1, "loss");
            let algorithm = Algorithm::Aimd { increase, decrease };
            let measured = run(algorithm, 100_000, || stream.chance(p));
            let q: f64 = (1.0 - decrease) * (1.0 - decrease);
            let term = |k: f64| (1.0 - q.powf(k + 0.5)) / (1.0 - q.powf(k + 1.0));
            let mean = PI.sqrt() * (0..2000).map(|k| term(f64::from(k))).product::<f64>();
            let law = (2.0 * increase / p).sqrt() / mean;
            let error = measured.rate / law - 1.0;
            println!(
                "AIMD({increase}, {decrease}), p {p}, {:.5} events: {:.2} against {law:.2}, {:+.1} %, {} timeouts",
                measured.events,
                measured.rate,
                error * 100.0,
                measured.timeouts
            );
            assert!(error.abs() < 0.05, "{error}");
        }
    }
}

/// Compares with the law of geometric gaps if retransmissions are lost as well and windows are small. With RACK-TLP
/// only whole segments and the recoveries keep a flow below it; with duplicate ACKs each lost retransmission costs a
/// timeout.
fn rack_follows_the_law_despite_lost_retransmissions() {
    for p in [1e-3, 3e-3, 1e-2, 3e-2] {
        let law = 1.31 / f64::sqrt(p);
        let [rack, duplicate_acks] = [LossDetection::Rack, LossDetection::DuplicateAcks].map(|detection| {
            let mut stream = RandomStream::new(1, "loss");
            run_with_detection(detection, Algorithm::NewReno, 30_000, |_| stream.chance(p))
        });
        println!(
            "p {p}: RACK {:.2} with {} timeouts, duplicate ACKs {:.2} with {}, law {law:.2}",
            rack.rate, rack.timeouts, duplicate_acks.rate, duplicate_acks.timeouts
        );
        let share = rack.rate / law;
        assert!(share > 0.8 && share < 1.03, "{share}");
        assert!(rack.timeouts * 10 <= duplicate_acks.timeouts);
        assert!(p < 1e-2 || rack.rate > duplicate_acks.rate);
    }
}

/// Tests small windows, the Reno-friendly region. Linux's CUBIC is as fast as AIMD(0.53, 0.3), which is as fast as
/// Reno by RFC 9438's equation 4. The RFC's variant switches to Reno's increase early and is faster.
fn linux_cubic_is_as_fast_as_reno_at_small_windows() {
    let alpha = 3.0 * 0.3 / 1.7;
    for p in [3e-3, 1e-2] {
        let [linux, standard, aimd] =
            [Algorithm::LinuxCubic, Algorithm::Cubic, Algorithm::Aimd { increase: alpha, decrease: 0.3 }]
                .map(|algorithm| {
                    let mut stream = RandomStream::new(1, "loss");
                    run(algorithm, 20_000, || stream.chance(p)).rate
                });
        println!("p {p}: Linux {linux:.2}, RFC 9438 {standard:.2}, AIMD {aimd:.2} segments per round trip");
        assert!((linux / aimd - 1.0).abs() < 0.08, "{}", linux / aimd);
        assert!(standard / linux > 1.08, "{}", standard / linux);
    }
}

/// Run with `--ignored --nocapture`: prints the nanoseconds per ACK, including the segments it releases.
fn measures_the_cpu_time_per_ack() {
    let aimd = Algorithm::Aimd { increase: 1.0, decrease: 0.5 };
    for (algorithm, timestamps) in
        [(Algorithm::NewReno, false), (Algorithm::NewReno, true), (aimd, true), (Algorithm::Cubic, true)]
    {
        let config = TcpConfig {
            algorithm,
            timestamps,
            window: 200_000,
            handshake: false,
            ack_every: 1,
            ..TcpConfig::default()
        };
        // Many flows in turn, as in a simulation, small enough for the cache.
        let mut flows: Vec<_> = (0..64)
            .map(|_| (TcpDataSender::new(&config), TcpDataReceiver::new(&config), VecDeque::new()))
            .collect();
        let mut now = Instant::ZERO;
        for (sender, _, in_flight) in &mut flows {
            sender.write(u64::MAX);
            while let Some(data) = sender.poll_transmit(&config, now) {
                in_flight.push_back(data);
            }
            // One early reduction leads to congestion avoidance.
            sender.handle_timeout(&config, sender.poll_timeout());
            while sender.poll_transmit(&config, now).is_some() {}
        }
        let rounds = 100_000;
        let begin = time::Instant::now();
        let mut segments = 0u64;
        for _ in 0..rounds {
            now += Duration::from_micros(100);
            for (sender, receiver, in_flight) in &mut flows {
                let data = in_flight.pop_front().unwrap();
                receiver.handle_data(&config, now, &data, false);
                let ack = receiver.poll_transmit(&config, now).unwrap();
                sender.handle_ack(&config, now, &ack);
                while let Some(data) = sender.poll_transmit(&config, now) {
                    in_flight.push_back(data);
                    segments += 1;
                }
            }
        }
        let each = begin.elapsed().as_nanos() as f64 / (64.0 * f64::from(rounds));
        println!(
            "{algorithm:?}, timestamps {timestamps}: {each:.1} ns for receiver, ACK and {:.2} segments",
            segments as f64 / (64.0 * f64::from(rounds))
        );
    }
}

netstage_harness::tests![
    evenly_spaced_losses_follow_the_sawtooth_law,
    independent_losses_follow_the_law_of_geometric_gaps,
    rack_follows_the_law_despite_lost_retransmissions,
    linux_cubic_is_as_fast_as_reno_at_small_windows,
    #[ignore = "a measurement"]
    measures_the_cpu_time_per_ack,
];
netstage_harness::main![self];
