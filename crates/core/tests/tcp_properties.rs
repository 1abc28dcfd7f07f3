//! Properties of every configuration and path: all bytes arrive once and in order, the sender finishes and obeys its
//! windows, and no input causes a panic.

mod tcp_path;

use netstage_core::rng::RandomStream;
use netstage_core::tcp::{
    Ack, Algorithm, DataSegment, LossDetection, SlowStart, Stack, TcpConfig, TcpDataReceiver, TcpDataSender,
};
use netstage_core::time::{Duration, Instant};
use proptest::prelude::*;
use tcp_path::{TcpPath, TransmissionFate};

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::Reno),
        Just(Algorithm::NewReno),
        Just(Algorithm::Cubic),
        Just(Algorithm::LinuxCubic),
        (0.01..8.0, 0.05..0.95).prop_map(|(increase, decrease)| Algorithm::Aimd { increase, decrease }),
    ]
}

fn configs() -> impl Strategy<Value = TcpConfig> {
    let switches = any::<[bool; 8]>();
    let sizes = (1u32..3000, 1u64..200_000, 0u32..20, 0u32..6);
    (algorithms(), switches, sizes, 0u64..300, 0u64..1000).prop_map(
        |(algorithm, flags, sizes, delayed, rto)| TcpConfig {
            stack: if flags[6] { Stack::Linux } else { Stack::Rfc },
            algorithm,
            slow_start: if flags[7] { SlowStart::HyStartPlusPlus } else { SlowStart::Standard },
            sack: flags[0],
            loss_detection: if flags[5] { LossDetection::Rack } else { LossDetection::DuplicateAcks },
            ecn: flags[1],
            timestamps: flags[2],
            limited_transmit: flags[3],
            handshake: flags[4],
            max_segment_size: sizes.0,
            window: sizes.1,
            initial_window: sizes.2,
            ack_every: sizes.3,
            delayed_ack: Duration::from_millis(delayed),
            min_rto: Duration::from_millis(rto),
            initial_rto: Duration::from_secs(1),
        },
    )
}

/// Decides on loss, duplication, delay and marking, each by its probability.
fn fate(stream: &mut RandomStream, chances: [f64; 4]) -> TransmissionFate {
    match chances.map(|p| stream.chance(p)) {
        [true, ..] => TransmissionFate::Drop,
        [_, true, ..] => TransmissionFate::Duplicate,
        [_, _, true, _] => TransmissionFate::Delay(Duration::from_micros(stream.next_u64() % 300_000)),
        [_, _, _, true] => TransmissionFate::Mark,
        _ => TransmissionFate::Deliver,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once_and_in_order(
        config in configs(),
        seed in any::<u64>(),
        segments in 1u64..300,
        remainder in 0u64..3000,
        forward in [0.0..0.3, 0.0..0.1, 0.0..0.3, 0.0..0.1],
        backward in [0.0..0.3, 0.0..0.1, 0.0..0.3, 0.0..0.0001],
    ) {
        let mut path = TcpPath::new(config.clone(), Duration::from_millis(80));
        let bytes = segments * u64::from(config.max_segment_size) + remainder;
        path.sender.write(bytes);
        let mut data_stream = RandomStream::new(seed, "data");
        let mut ack_stream = RandomStream::new(seed, "acks");
        // New data is sent in order, and only data already sent is retransmitted.
        let mut highest = 0;
        let mut contiguous = true;
        let data_fate = |data: &DataSegment| {
            if !data.retransmission {
                contiguous &= data.seq == highest;
                highest = data.seq + u64::from(data.len);
            } else {
                contiguous &= data.seq + u64::from(data.len) <= highest;
            }
            fate(&mut data_stream, forward)
        };
        path.run_written(Instant(1_000_000_000_000_000), data_fate, |_| fate(&mut ack_stream, backward));
        prop_assert!(contiguous);
        prop_assert_eq!(highest, bytes);
        prop_assert!(path.sender.is_finished(), "{:?}", path.sender);
        prop_assert_eq!(path.receiver.delivered(), bytes);
        prop_assert_eq!(path.sender.bytes_in_flight(), 0);
        prop_assert_eq!(path.sender.poll_timeout(), Instant::NEVER);
    }

    #[test]
    fn new_data_obeys_both_windows(config in configs(), seed in any::<u64>(), loss in 0.0..0.1) {
        let mut sender = TcpDataSender::new(&config);
        let mut receiver = TcpDataReceiver::new(&config);
        let mut stream = RandomStream::new(seed, "loss");
        let segment = u64::from(config.max_segment_size);
        let mut now = Instant::ZERO;
        let mut in_flight: Vec<DataSegment> = Vec::new();
        sender.write(u64::MAX);
        for _ in 0..200 {
            let mut acks = Vec::new();
            for data in in_flight.drain(..) {
                if !stream.chance(loss) {
                    receiver.handle_data(&config, now, &data, stream.chance(0.01));
                    acks.extend(receiver.poll_transmit(&config, now));
                }
            }
            now += Duration::from_millis(20);
            receiver.handle_timeout(&config, now);
            acks.extend(receiver.poll_transmit(&config, now));
            sender.handle_timeout(&config, now);
            for ack in [None].into_iter().chain(acks.iter().map(Some)) {
                if let Some(ack) = ack {
                    sender.handle_ack(&config, now, ack);
                }
                while let Some(data) = sender.poll_transmit(&config, now) {
                    if !data.retransmission && !data.syn {
                        let end = data.seq + u64::from(data.len);
                        prop_assert!(end - sender.acknowledged() <= config.window);
                        // Limited transmit without SACK exceeds the window by up to two segments. A tail-loss probe,
                        // sent only by a timer, ignores the window.
                        let excess = if config.sack || !config.limited_transmit { 0 } else { 2 * segment };
                        let probe = ack.is_none() && config.loss_detection == LossDetection::Rack;
                        prop_assert!(probe || sender.bytes_in_flight() <= sender.congestion_window() + excess);
                    }
                    in_flight.push(data);
                }
            }
            prop_assert!(sender.congestion_window() >= segment);
        }
    }

    #[test]
    fn no_ack_makes_the_sender_panic(
        config in configs(),
        acks in prop::collection::vec(
            (0u64..400_000, any::<[u16; 6]>(), any::<[u32; 3]>(), any::<[bool; 6]>()), 1..300),
    ) {
        let mut sender = TcpDataSender::new(&config);
        sender.write(1_000_000);
        let mut now = Instant::ZERO;
        for (offset, blocks, arbitrary, flags) in acks {
            now += Duration::from_millis(u64::from(arbitrary[0] % 700));
            // Most numbers are near the outstanding data, to pass the checks; some are arbitrary.
            let base = sender.acknowledged();
            let number = if flags[0] { base + offset % 5000 } else { base };
            let block = |i: usize| {
                let (start, len) = (u32::from(blocks[2 * i]), u32::from(blocks[2 * i + 1]));
                if flags[1] {
                    (start % 9000, len % 3000)
                } else {
                    (start.wrapping_mul(arbitrary[1]), len.wrapping_mul(arbitrary[2]))
                }
            };
            let ack = Ack {
                ack: if flags[2] && flags[3] {
                    u64::from(arbitrary[1]) << 32 | u64::from(arbitrary[2])
                } else {
                    number
                },
                echo: if flags[3] { now } else { Instant(u64::from(arbitrary[2]) << 10) },
                window: if flags[4] { arbitrary[1] % 200_000 } else { 50_000 },
                sack: [block(0), block(1), block(2)],
                syn: flags[5] && flags[4] || !sender.is_established(),
                ece: flags[5],
            };
            sender.handle_ack(&config, now, &ack);
            if flags[5] {
                sender.handle_timeout(&config, now);
            }
            let mut burst = 0;
            while let Some(data) = sender.poll_transmit(&config, now) {
                prop_assert!(data.syn || data.len > 0);
                burst += 1;
                prop_assert!(burst < 2_000_000);
            }
            let _ = sender.poll_event();
            prop_assert!(sender.congestion_window() >= u64::from(config.max_segment_size));
            prop_assert!(sender.bytes_in_flight() <= 2_000_000);
        }
    }

    #[test]
    fn no_segment_makes_the_receiver_panic(
        config in configs(),
        segments in prop::collection::vec((any::<u64>(), any::<u32>(), any::<[bool; 5]>()), 1..300),
    ) {
        let mut receiver = TcpDataReceiver::new(&config);
        for (arbitrary, len, flags) in segments {
            let seq = if flags[0] { arbitrary } else { receiver.delivered().saturating_sub(500) + arbitrary % 2000 };
            let len = if flags[1] { len } else { len % 700 };
            let (syn, cwr, retransmission) = (flags[2] && flags[3], flags[3], flags[2]);
            let data = DataSegment { seq, sent: Instant(arbitrary), len, syn, cwr, retransmission };
            receiver.handle_data(&config, Instant(arbitrary), &data, flags[4]);
            let before = receiver.delivered();
            if let Some(ack) = receiver.poll_transmit(&config, Instant(arbitrary)) {
                prop_assert_eq!(ack.ack, before);
                let mut ended = false;
                for (start, len) in ack.sack {
                    prop_assert!(len == 0 || (start > 0 && !ended));
                    prop_assert!(u64::from(start) + u64::from(len) <= config.window);
                    ended |= len == 0;
                }
            }
        }
    }
}
