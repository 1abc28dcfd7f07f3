//! Links compared with queueing theory, exact arithmetic and their documented rules.

use netstage_core::link::{
    Jitter, JitterDistribution, LinkArrival, LinkChange, LinkDirection, LinkDirectionConfig, LinkLoss,
};
use netstage_core::packet::{Ecn, QueuePacket};
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::queue::{self, CodelConfig, RedConfig};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::{Pattern, PatternSource};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
struct TimedPacket {
    number: u64,
    entered: Instant,
    size: u32,
}

impl QueuePacket for TimedPacket {
    fn size(&self) -> u32 {
        self.size
    }
    fn class(&self) -> u16 {
        0
    }
    fn ecn(&self) -> Ecn {
        Ecn::NotCapable
    }
    fn mark_congestion(&mut self) {}
    fn flow_key(&self) -> u64 {
        0
    }
}

fn packet(number: u64, entered: Instant, size: u32) -> TimedPacket {
    TimedPacket { number, entered, size }
}

const NO_JITTER: Jitter =
    Jitter { amount: Duration::ZERO, distribution: JitterDistribution::Uniform, reorder: false };

/// Returns a link with 10 Mbit/s, 5 ms and an unlimited queue; 1250 bytes take 1 ms.
fn config() -> LinkDirectionConfig {
    LinkDirectionConfig::plain(BitRate(10_000_000), Duration::from_millis(5), Capacity::Packets(u32::MAX))
}

fn link(config: &LinkDirectionConfig) -> LinkDirection<TimedPacket> {
    LinkDirection::new(config, RandomStream::new(1, "link"))
}

/// Runs a link until it is empty and calls `each` for every arrival.
fn drain(link: &mut LinkDirection<TimedPacket>, mut each: impl FnMut(LinkArrival<TimedPacket>)) {
    while link.poll_timeout() != Instant::NEVER {
        let now = link.poll_timeout();
        link.handle_timeout(now);
        while let Some(arrival) = link.poll_arrival(now) {
            each(arrival);
        }
    }
}

/// Returns number and time in milliseconds of all further arrivals.
fn arrivals_ms(link: &mut LinkDirection<TimedPacket>) -> Vec<(u64, f64)> {
    let mut arrivals = Vec::new();
    drain(link, |arrival| arrivals.push((arrival.packet.number, arrival.at.0 as f64 / MS as f64)));
    arrivals
}

fn losses(link: &mut LinkDirection<TimedPacket>) -> Vec<(u64, LinkLoss)> {
    std::iter::from_fn(|| link.poll_loss()).map(|(packet, loss)| (packet.number, loss)).collect()
}

#[test]
fn the_mean_wait_is_that_of_an_m_d_1_queue() {
    // Pollaczek-Khinchine formula for constant service time s: W = ρ s / (2 (1 − ρ)).
    for (load_percent, packets) in [(50, 4_000_000_u64), (80, 10_000_000)] {
        let rate = BitRate(10_000_000 * load_percent / 100);
        let mut source =
            PatternSource::new(&Pattern::Poisson { rate, packet: 1250 }, RandomStream::new(1, "poisson"));
        let mut link = link(&config());
        let fixed = Duration::from_millis(6);
        let (mut now, mut waited, mut arrived) = (Instant::ZERO, 0, 0);
        let mut add = |arrival: LinkArrival<TimedPacket>| {
            waited += (arrival.at.since(arrival.packet.entered) - fixed).0;
            arrived += 1;
        };
        for number in 0..packets {
            now += source.next().unwrap().gap;
            link.handle_packet(now, packet(number, now, 1250));
            while let Some(arrival) = link.poll_arrival(now) {
                add(arrival);
            }
        }
        drain(&mut link, add);
        assert_eq!(arrived, packets);
        let load = load_percent as f64 / 100.0;
        let expected = load * 1e6 / (2.0 * (1.0 - load));
        let mean = waited as f64 / packets as f64;
        assert!((mean / expected - 1.0).abs() < 0.01, "load {load}: {mean} ns, expected {expected} ns");
        let utilization = link.busy(now).as_secs_f64() / now.as_secs_f64();
        assert!((utilization / load - 1.0).abs() < 0.002, "{utilization}");
    }
}

#[test]
fn the_rate_is_exact_over_a_million_packets() {
    // 1538 bytes on the line at 1 Gbit/s are 12,304 ns.
    let config =
        LinkDirectionConfig { rate: BitRate(1_000_000_000), overhead: 38, delay: Duration(7), ..config() };
    let mut link = link(&config);
    for number in 0..1_000_000 {
        link.handle_packet(Instant(100), packet(number, Instant(100), 1500));
    }
    assert_eq!((link.queue_len(), link.queue_bytes()), (999_999, 999_999 * 1500));
    let mut count = 0;
    drain(&mut link, |arrival| {
        assert_eq!(arrival.packet.number, count);
        count += 1;
        assert_eq!(arrival.at, Instant(100 + count * 12_304 + 7));
    });
    assert_eq!(count, 1_000_000);
    assert_eq!(link.busy(Instant::NEVER), Duration(12_304_000_000));
}

#[test]
fn the_buffer_does_not_count_the_packet_being_sent() {
    for (buffer, waiting) in [
        (Capacity::Packets(0), 0),
        (Capacity::Packets(3), 3),
        (Capacity::Bytes(1249), 0),
        (Capacity::Bytes(2500), 2),
    ] {
        let mut link = link(&LinkDirectionConfig { buffer, ..config() });
        for number in 0..10 {
            link.handle_packet(Instant(0), packet(number, Instant(0), 1250));
        }
        assert_eq!((link.queue_len(), link.in_flight()), (waiting, 1));
        let lost: Vec<u64> = losses(&mut link).into_iter().map(|(number, _)| number).collect();
        assert_eq!(lost, (1 + waiting as u64..10).collect::<Vec<_>>());
        // When the line becomes idle, the buffer has room for one more packet.
        link.handle_packet(Instant(MS), packet(10, Instant(MS), 1250));
        assert_eq!(losses(&mut link), []);
        assert_eq!(arrivals_ms(&mut link).len(), waiting + 2);
    }
}

#[test]
fn losses_are_binomial() {
    let (packets, loss) = (1_000_000_u64, 0.01);
    let mut link = link(&LinkDirectionConfig { loss, ..config() });
    for number in 0..packets {
        link.handle_packet(Instant(number * MS), packet(number, Instant(0), 1250));
    }
    drain(&mut link, |_| ());
    let lost = losses(&mut link);
    assert!(lost.iter().all(|&(_, why)| why == LinkLoss::Line));
    // 99.9 % interval: 3.29 standard deviations.
    let (mean, deviation) = (packets as f64 * loss, (packets as f64 * loss * (1.0 - loss)).sqrt());
    assert!((lost.len() as f64 - mean).abs() < 3.29 * deviation, "{}", lost.len());
    // Losses are independent: the frequency of pairs is the square of the loss.
    let pairs = lost.windows(2).filter(|pair| pair[1].0 == pair[0].0 + 1).count() as f64;
    assert!((pairs - mean * loss).abs() < 3.29 * (mean * loss).sqrt(), "{pairs}");
}

#[test]
fn bit_errors_are_binomial() {
    for (bit_error_rate, packets) in [(1e-6, 1_000_000_u64), (1e-4, 200_000), (0.01, 10_000)] {
        let mut link = link(&LinkDirectionConfig { bit_error_rate, ..config() });
        for number in 0..packets {
            link.handle_packet(Instant(number * MS), packet(number, Instant(0), 1250));
        }
        let (mut errors, mut squares, mut damaged, mut arrived) = (0.0, 0.0, 0.0, 0.0);
        drain(&mut link, |arrival| {
            let flipped = f64::from(arrival.bit_errors);
            errors += flipped;
            squares += flipped * flipped;
            damaged += f64::from(u8::from(flipped > 0.0));
            arrived += 1.0;
        });
        assert_eq!(arrived, packets as f64);
        let bits = 10_000.0;
        let (mean, variance) = (bits * bit_error_rate, bits * bit_error_rate * (1.0 - bit_error_rate));
        assert!((errors / arrived - mean).abs() < 3.29 * (variance / arrived).sqrt(), "{errors}");
        let measured = squares / arrived - (errors / arrived).powi(2);
        assert!((measured / variance - 1.0).abs() < 0.06, "{bit_error_rate}: {measured} {variance}");
        let share = 1.0 - (1.0 - bit_error_rate).powf(bits);
        let deviation = (share * (1.0 - share) / arrived).sqrt();
        assert!((damaged / arrived - share).abs() <= 3.29 * deviation, "{damaged}");
    }
}

#[test]
fn duplicates_follow_their_originals() {
    let mut link = link(&LinkDirectionConfig { duplicate: 0.25, ..config() });
    for number in 0..10_000 {
        link.handle_packet(Instant(number * MS), packet(number, Instant(0), 1250));
    }
    let arrivals = arrivals_ms(&mut link);
    let copies = arrivals.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(arrivals.len(), 10_000 + copies);
    assert!((2357..2643).contains(&copies), "{copies}");
}

#[test]
fn jitter_preserves_order_unless_reordering_is_enabled() {
    for distribution in [JitterDistribution::Uniform, JitterDistribution::Exponential] {
        for reorder in [false, true] {
            let jitter = Jitter { amount: Duration::from_millis(10), distribution, reorder };
            let mut link = link(&LinkDirectionConfig { jitter, ..config() });
            for number in 0..100_000 {
                link.handle_packet(Instant(number * MS), packet(number, Instant(number * MS), 125));
            }
            let (mut last, mut overtaken, mut extra) = ((Instant::ZERO, 0), 0, 0.0);
            drain(&mut link, |arrival| {
                assert!(arrival.at >= last.0);
                overtaken += u32::from(arrival.packet.number < last.1);
                last = (arrival.at, arrival.packet.number);
                let delay = arrival.at.since(arrival.packet.entered);
                extra += (delay - Duration(5 * MS + MS / 10)).as_secs_f64() * 1e3 / 1e5;
            });
            assert_eq!(overtaken > 10_000, reorder, "{overtaken}");
            if reorder {
                let mean = if distribution == JitterDistribution::Uniform { 5.0 } else { 10.0 };
                assert!((extra / mean - 1.0).abs() < 0.015, "{extra}");
            }
        }
    }
}

fn change(change: LinkChange, milliseconds: f64) -> (Instant, LinkChange) {
    (Instant((milliseconds * MS as f64) as u64), change)
}

#[test]
fn a_new_rate_applies_to_the_unsent_bits() {
    let halved = LinkChange { rate: Some(BitRate(5_000_000)), ..LinkChange::default() };
    let doubled = LinkChange { rate: Some(BitRate(20_000_000)), ..LinkChange::default() };
    let mut link =
        link(&LinkDirectionConfig { schedule: vec![change(halved, 0.4), change(doubled, 3.0)], ..config() });
    for number in 0..4 {
        link.handle_packet(Instant(0), packet(number, Instant(0), 1250));
    }
    // Packet 0 takes 0.4 ms at the initial rate and 1.2 ms at half the rate, until 1.6 ms. Packet 1 takes 1.4 of
    // 2 ms at half the rate and the remaining 0.15 ms at double the rate. Then packets take 0.5 ms each. The
    // delay adds 5 ms.
    assert_eq!(arrivals_ms(&mut link), [(0, 6.6), (1, 8.15), (2, 8.65), (3, 9.15)]);
    assert_eq!(link.busy(Instant(100 * MS)), Duration(MS * 415 / 100));
}

#[test]
fn a_shorter_delay_does_not_let_packets_overtake() {
    let shorter = LinkChange { delay: Some(Duration::from_millis(1)), ..LinkChange::default() };
    let mut link = link(&LinkDirectionConfig { schedule: vec![change(shorter, 1.5)], ..config() });
    for number in 0..6 {
        link.handle_packet(Instant(0), packet(number, Instant(0), 1250));
    }
    assert_eq!(arrivals_ms(&mut link), [(0, 6.0), (1, 6.0), (2, 6.0), (3, 6.0), (4, 6.0), (5, 7.0)]);
}

#[test]
fn loss_and_bit_errors_change_on_time() {
    let lossy = LinkChange { loss: Some(1.0), ..LinkChange::default() };
    let noisy = LinkChange { loss: Some(0.0), bit_error_rate: Some(1.0), ..LinkChange::default() };
    let clean = LinkChange { bit_error_rate: Some(0.0), ..LinkChange::default() };
    let schedule = vec![change(lossy, 1.5), change(noisy, 3.5), change(clean, 5.5)];
    let mut link = link(&LinkDirectionConfig { schedule, ..config() });
    for number in 0..7 {
        link.handle_packet(Instant(0), packet(number, Instant(0), 1250));
    }
    let mut arrived = Vec::new();
    drain(&mut link, |arrival| arrived.push((arrival.packet.number, arrival.bit_errors)));
    assert_eq!(arrived, [(0, 0), (3, 10_000), (4, 10_000), (5, 0), (6, 0)]);
    assert_eq!(losses(&mut link), [(1, LinkLoss::Line), (2, LinkLoss::Line)]);
}

#[test]
fn a_failure_loses_queued_transmitted_and_propagating_packets() {
    let fails = LinkChange { up: Some(false), ..LinkChange::default() };
    let returns = LinkChange { up: Some(true), ..LinkChange::default() };
    for reorder in [false, true] {
        let schedule = vec![change(fails, 7.5), change(returns, 20.0)];
        let jitter = Jitter { reorder, ..NO_JITTER };
        let mut link = link(&LinkDirectionConfig { schedule, jitter, ..config() });
        for number in 0..10 {
            link.handle_packet(Instant(0), packet(number, Instant(0), 1250));
        }
        assert!(link.is_up());
        // The failure is processed late: packets that arrived before it are not lost.
        link.handle_packet(Instant(10 * MS), packet(10, Instant(0), 1250));
        assert!(!link.is_up());
        assert_eq!((link.queue_len(), link.in_flight()), (0, 2));
        link.handle_packet(Instant(20 * MS), packet(11, Instant(0), 1250));
        assert!(link.is_up());
        assert_eq!(arrivals_ms(&mut link), [(0, 6.0), (1, 7.0), (11, 26.0)]);
        let lost: Vec<(u64, LinkLoss)> = (2..11).map(|number| (number, LinkLoss::Down)).collect();
        assert_eq!(losses(&mut link), lost);
        // Half of packet 7 was sent.
        assert_eq!(link.busy(Instant(100 * MS)), Duration(8 * MS + MS / 2));
    }
}

#[test]
fn packets_are_not_delayed_by_packets_lost_in_a_failure() {
    let fails =
        LinkChange { up: Some(false), delay: Some(Duration::from_millis(1)), ..LinkChange::default() };
    let returns = LinkChange { up: Some(true), ..LinkChange::default() };
    let mut link =
        link(&LinkDirectionConfig { schedule: vec![change(fails, 1.5), change(returns, 1.5)], ..config() });
    link.handle_packet(Instant(0), packet(0, Instant(0), 1250));
    link.handle_packet(Instant(2 * MS), packet(1, Instant(0), 1250));
    assert_eq!(losses(&mut link), [(0, LinkLoss::Down)]);
    assert_eq!(arrivals_ms(&mut link), [(1, 4.0)]);
}

#[test]
fn at_one_instant_the_order_is_arrival_line_change_packet() {
    // At 6 ms, packet 0 arrives, packet 5 leaves the line, the link fails, and packet 6 enters.
    let fails = LinkChange { up: Some(false), ..LinkChange::default() };
    let mut link = link(&LinkDirectionConfig { schedule: vec![change(fails, 6.0)], ..config() });
    for number in 0..6 {
        link.handle_packet(Instant(0), packet(number, Instant(0), 1250));
    }
    link.handle_packet(Instant(6 * MS), packet(6, Instant(0), 1250));
    assert_eq!(arrivals_ms(&mut link), [(0, 6.0)]);
    assert_eq!(losses(&mut link), (1..7).map(|number| (number, LinkLoss::Down)).collect::<Vec<_>>());
    assert_eq!(link.busy(Instant(6 * MS)), Duration(6 * MS));
}

#[test]
fn poll_timeout_is_the_next_event() {
    let slower = LinkChange { rate: Some(BitRate(5_000_000)), ..LinkChange::default() };
    let mut link = link(&LinkDirectionConfig { schedule: vec![change(slower, 3.0)], ..config() });
    assert_eq!(link.poll_timeout(), Instant(3 * MS));
    link.handle_packet(Instant(0), packet(0, Instant(0), 1250));
    assert_eq!(link.poll_timeout(), Instant(MS));
    link.handle_timeout(Instant(MS));
    assert_eq!(link.poll_timeout(), Instant(3 * MS));
    link.handle_timeout(Instant(3 * MS));
    assert_eq!(link.poll_timeout(), Instant(6 * MS));
    assert_eq!(link.poll_arrival(Instant(6 * MS - 1)), None);
    assert!(link.poll_arrival(Instant(6 * MS)).is_some());
    assert_eq!(link.poll_timeout(), Instant::NEVER);
}

fn configs() -> impl Strategy<Value = LinkDirectionConfig> {
    let disciplines = prop_oneof![
        Just(queue::QueueConfig::DropTail),
        Just(queue::QueueConfig::Red(RedConfig {
            min_threshold: 2.0,
            max_threshold: 6.0,
            max_probability: 0.2,
            weight: 0.1,
            ecn: false,
        })),
        Just(queue::QueueConfig::Codel(CodelConfig {
            target: Duration::from_millis(2),
            interval: Duration::from_millis(10),
            ecn: false,
        })),
    ];
    let changes = prop::collection::vec(
        (
            0..60 * MS,
            prop::option::of(1_000_000..50_000_000_u64),
            prop::option::of(0..9 * MS),
            any::<Option<bool>>(),
        )
            .prop_map(|(time, rate, delay, up)| {
                let (rate, delay) = (rate.map(BitRate), delay.map(Duration));
                (Instant(time), LinkChange { rate, delay, up, ..LinkChange::default() })
            }),
        0..5,
    );
    let impairments = (0.0..0.2_f64, 0.0..1e-4_f64, 0..3 * MS, any::<bool>(), any::<bool>());
    (disciplines, changes, impairments, 0..20_u32).prop_map(|(queue, mut schedule, impairments, buffer)| {
        let (loss, bit_error_rate, jitter, reorder, exponential) = impairments;
        schedule.sort_by_key(|&(time, _)| time);
        let distribution =
            if exponential { JitterDistribution::Exponential } else { JitterDistribution::Uniform };
        let jitter = Jitter { amount: Duration(jitter), distribution, reorder };
        let buffer = Capacity::Packets(buffer);
        LinkDirectionConfig { queue, schedule, loss, bit_error_rate, jitter, buffer, ..config() }
    })
}

fn offered() -> impl Strategy<Value = Vec<(u64, u32)>> {
    prop::collection::vec((0..2 * MS, 40..1500_u32), 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Packets entered = arrived + lost + queued + in flight, at any time.
    #[test]
    fn packets_are_conserved(config in configs(), offered in offered()) {
        let mut link = link(&config);
        let (mut now, mut arrived, mut lost) = (Instant::ZERO, 0, 0);
        for (number, (gap, size)) in (1..).zip(offered) {
            now += Duration(gap);
            link.handle_packet(now, packet(number, now, size));
            while link.poll_arrival(now).is_some() {
                arrived += 1;
            }
            lost += losses(&mut link).len();
            prop_assert_eq!(number as usize, arrived + lost + link.queue_len() + link.in_flight());
            prop_assert!(link.busy(now) <= now.since(Instant::ZERO));
            prop_assert!(link.poll_timeout() > now);
        }
    }

    /// A driver that wakes at every timeout and one that only adds packets get the same results.
    #[test]
    fn a_late_driver_changes_nothing(config in configs(), offered in offered()) {
        let (mut punctual, mut late) = (link(&config), link(&config));
        let (mut punctual_arrivals, mut late_arrivals) = (Vec::new(), Vec::new());
        let mut now = Instant::ZERO;
        for (number, (gap, size)) in (1..).zip(offered) {
            now += Duration(gap);
            while punctual.poll_timeout() <= now {
                let wake = punctual.poll_timeout();
                punctual.handle_timeout(wake);
                punctual_arrivals.extend(std::iter::from_fn(|| punctual.poll_arrival(wake)));
            }
            punctual.handle_packet(now, packet(number, now, size));
            late.handle_packet(now, packet(number, now, size));
        }
        drain(&mut punctual, |arrival| punctual_arrivals.push(arrival));
        drain(&mut late, |arrival| late_arrivals.push(arrival));
        prop_assert_eq!(punctual_arrivals, late_arrivals);
        prop_assert_eq!(losses(&mut punctual), losses(&mut late));
    }
}
