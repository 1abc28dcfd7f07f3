//! What holds for every configuration and every path: all bytes arrive once and in order, the
//! sender ends and keeps to its windows, and nothing it is told makes it panic.

mod tcp_path;

use netstage_core::rng::Stream;
use netstage_core::tcp::{Ack, Algorithm, Config, Data, LossDetection, Receiver, Sender};
use netstage_core::time::{Duration, Instant};
use proptest::prelude::*;
use tcp_path::{Fate, Path};

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::Reno),
        Just(Algorithm::NewReno),
        Just(Algorithm::Cubic),
        Just(Algorithm::LinuxCubic),
        (0.01..8.0, 0.05..0.95).prop_map(|(increase, decrease)| Algorithm::Aimd { increase, decrease }),
    ]
}

fn configs() -> impl Strategy<Value = Config> {
    let switches = any::<[bool; 6]>();
    let sizes = (1u32..3000, 1u64..200_000, 0u32..20, 0u32..6);
    (algorithms(), switches, sizes, 0u64..300, 0u64..1000).prop_map(|(algorithm, on, sizes, delayed, rto)| {
        Config {
            algorithm,
            sack: on[0],
            loss_detection: if on[5] { LossDetection::Rack } else { LossDetection::DuplicateAcks },
            ecn: on[1],
            timestamps: on[2],
            limited_transmit: on[3],
            handshake: on[4],
            max_segment_size: sizes.0,
            window: sizes.1,
            initial_window: sizes.2,
            ack_every: sizes.3,
            delayed_ack: Duration::from_millis(delayed),
            min_rto: Duration::from_millis(rto),
            initial_rto: Duration::from_secs(1),
        }
    })
}

/// Loss, duplication, delay and marking, each by its probability.
fn fate(stream: &mut Stream, chances: [f64; 4]) -> Fate {
    match chances.map(|p| stream.chance(p)) {
        [true, ..] => Fate::Drop,
        [_, true, ..] => Fate::Duplicate,
        [_, _, true, _] => Fate::Delay(Duration::from_micros(stream.next_u64() % 300_000)),
        [_, _, _, true] => Fate::Mark,
        _ => Fate::Deliver,
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
        let mut path = Path::new(config.clone(), Duration::from_millis(80));
        let bytes = segments * u64::from(config.max_segment_size) + remainder;
        path.sender.write(bytes);
        let mut data_stream = Stream::new(seed, "data");
        let mut ack_stream = Stream::new(seed, "acks");
        // New data leaves in order, and only what has left is sent again.
        let mut highest = 0;
        let mut contiguous = true;
        let data_fate = |data: &Data| {
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
    fn new_data_keeps_to_both_windows(config in configs(), seed in any::<u64>(), loss in 0.0..0.1) {
        let mut sender = Sender::new(&config);
        let mut receiver = Receiver::new(&config);
        let mut stream = Stream::new(seed, "loss");
        let segment = u64::from(config.max_segment_size);
        let mut now = Instant::ZERO;
        let mut flying: Vec<Data> = Vec::new();
        sender.write(u64::MAX);
        for _ in 0..200 {
            let mut acks = Vec::new();
            for data in flying.drain(..) {
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
                        // Limited transmit without SACK goes up to two segments beyond; a tail-loss
                        // probe, which only a timer lets go, goes whatever the window.
                        let beyond = if config.sack || !config.limited_transmit { 0 } else { 2 * segment };
                        let probe = ack.is_none() && config.loss_detection == LossDetection::Rack;
                        prop_assert!(probe || sender.bytes_in_flight() <= sender.congestion_window() + beyond);
                    }
                    flying.push(data);
                }
            }
            prop_assert!(sender.congestion_window() >= segment);
        }
    }

    #[test]
    fn no_acknowledgement_makes_it_panic(
        config in configs(),
        acks in prop::collection::vec(
            (0u64..400_000, any::<[u16; 6]>(), any::<[u32; 3]>(), any::<[bool; 6]>()), 1..300),
    ) {
        let mut sender = Sender::new(&config);
        sender.write(1_000_000);
        let mut now = Instant::ZERO;
        for (offset, blocks, wild, on) in acks {
            now += Duration::from_millis(u64::from(wild[0] % 700));
            // Mostly near what is outstanding, so that checks are passed; sometimes anything.
            let base = sender.acknowledged();
            let number = if on[0] { base + offset % 5000 } else { base };
            let block = |i: usize| {
                let (start, len) = (u32::from(blocks[2 * i]), u32::from(blocks[2 * i + 1]));
                if on[1] { (start % 9000, len % 3000) } else { (start.wrapping_mul(wild[1]), len.wrapping_mul(wild[2])) }
            };
            let ack = Ack {
                ack: if on[2] && on[3] { u64::from(wild[1]) << 32 | u64::from(wild[2]) } else { number },
                echo: if on[3] { now } else { Instant(u64::from(wild[2]) << 10) },
                window: if on[4] { wild[1] % 200_000 } else { 50_000 },
                sack: [block(0), block(1), block(2)],
                syn: on[5] && on[4] || !sender.is_established(),
                ece: on[5],
            };
            sender.handle_ack(&config, now, &ack);
            if on[5] {
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
        let mut receiver = Receiver::new(&config);
        for (wild, len, on) in segments {
            let seq = if on[0] { wild } else { receiver.delivered().saturating_sub(500) + wild % 2000 };
            let len = if on[1] { len } else { len % 700 };
            let data = Data { seq, sent: Instant(wild), len, syn: on[2] && on[3], cwr: on[3], retransmission: on[2] };
            receiver.handle_data(&config, Instant(wild), &data, on[4]);
            let before = receiver.delivered();
            if let Some(ack) = receiver.poll_transmit(&config, Instant(wild)) {
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
