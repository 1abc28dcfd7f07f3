//! Applications, probes and IPv6 in the simulator, compared with hand calculations.

mod support;

use netstage_core::measure::Histogram;
use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_core::traffic::application::*;
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::plan::*;
use netstage_sim::{EventLoopOptions, run, run_with, unsupported_feature};
use support::*;

/// Returns two hosts at the ends of a line with a router in the middle.
fn line(rate: u64, delay_ms: u64, seconds: u64) -> (Plan, Vec<usize>) {
    let mut plan = empty("applications", Duration::from_secs(seconds));
    plan.measure.flow_detail = true;
    let client = plan.node("client", NodeKind::Host);
    let router = plan.node("router", NodeKind::Router);
    let server = plan.node("server", NodeKind::Host);
    let config = plain_link(rate, Duration::from_millis(delay_ms), 200);
    let a = plan.link("a", [client, router], config.clone());
    let b = plan.link("b", [router, server], config);
    (plan, vec![a, b])
}

fn add(plan: &mut Plan, links: &[usize], name: &str, transport: FlowTransport, application: Application) {
    plan.flow(name, transport, Pattern::Bulk { size: None }, links);
    let seconds = plan.duration;
    let flow = plan.flows.last_mut().unwrap();
    flow.traffic = application.into();
    flow.stop = Instant::ZERO + seconds;
}

fn tcp() -> FlowTransport {
    FlowTransport::Tcp(tcp_config())
}

fn simulate(plan: &Plan) -> RunOutcome {
    run(plan, 1, &|| false).unwrap()
}

fn values<'a>(outcome: &'a RunOutcome, metric: Metric, subject: &str) -> &'a [f64] {
    &outcome.get(metric, subject).unwrap_or_else(|| panic!("{metric:?} of {subject}")).values
}

fn mean(outcome: &RunOutcome, metric: Metric, subject: &str) -> f64 {
    let values: Vec<f64> = values(outcome, metric, subject).iter().copied().filter(|v| !v.is_nan()).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

fn sum(outcome: &RunOutcome, metric: Metric, subject: &str) -> f64 {
    values(outcome, metric, subject).iter().sum()
}

fn exchange(connections: u32) -> Application {
    Application::Exchange(Exchange {
        request: SizeDistribution::constant(100),
        response: SizeDistribution::constant(1_000),
        pace: Pace::Closed(Duration::ZERO),
        server: Duration::from_millis(3),
        connections,
        timeout: Duration::from_secs(5),
    })
}

fn call() -> Application {
    Application::Voice(Voice {
        codec: Codec::G711,
        rate: Codec::G711.rate(),
        packet: Duration::from_millis(20),
        spurts: None,
        jitter_buffer: Duration::from_millis(60),
    })
}

fn pages(fetching: FetchMode) -> Application {
    Application::Web(Web {
        main: SizeDistribution::constant(20_000),
        objects: 20.0,
        spread: false,
        object: SizeDistribution::constant(30_000),
        request: 350,
        fetching,
        parse: Duration::ZERO,
        think: Duration::from_millis(500),
        server: Duration::ZERO,
    })
}

#[test]
fn transaction_takes_a_round_trip_and_the_service_time() {
    let (mut plan, links) = line(1_000_000_000, 10, 20);
    add(&mut plan, &links, "tcp", tcp(), exchange(1));
    add(&mut plan, &links, "udp", FlowTransport::Udp, exchange(1));
    let outcome = simulate(&plan);
    for flow in ["tcp", "udp"] {
        // 40 ms round trip, 3 ms of the server, and microseconds on the line.
        let time = mean(&outcome, Metric::AppTransactionTime, flow);
        assert!((0.043..0.0432).contains(&time), "{flow}: {time}");
        let transactions = sum(&outcome, Metric::AppTransactions, flow);
        assert!((462.0..=466.0).contains(&transactions), "{flow}: {transactions}");
        assert_eq!(sum(&outcome, Metric::AppFailures, flow), 0.0);
        // Throughput counts the payload in both directions.
        let bytes = sum(&outcome, Metric::FlowThroughput, flow) / 8.0;
        assert!((bytes - transactions * 1_100.0).abs() <= 1_100.0, "{flow}: {bytes}");
    }
}

#[test]
fn every_new_connection_begins_with_slow_start() {
    let (mut plan, links) = line(1_000_000_000, 10, 30);
    // 14,480 B fit the initial window: one round trip after that of the handshake. Ten times as much takes
    // windows of 10, 20, 40 and 45 segments; the last one is limited by the window of 64 KiB.
    for (name, segments) in [("small", 10), ("large", 100)] {
        let transfers = Transfers {
            size: SizeDistribution::constant(segments * 1_448),
            think: Duration::from_millis(300),
            direction: TransferDirection::Download,
            files: None,
        };
        add(&mut plan, &links, name, tcp(), Application::Transfers(transfers));
    }
    let outcome = simulate(&plan);
    let small = mean(&outcome, Metric::AppTransactionTime, "small");
    assert!((0.080..0.083).contains(&small), "{small}");
    let large = mean(&outcome, Metric::AppTransactionTime, "large");
    assert!((0.180..0.23).contains(&large), "{large}");
    assert!(sum(&outcome, Metric::AppTransactions, "small") > 60.0);
}

#[test]
fn pages_load_faster_over_several_connections_or_multiplexed() {
    let load = |fetching| {
        let (mut plan, links) = line(20_000_000, 10, 60);
        add(&mut plan, &links, "web", tcp(), pages(fetching));
        let outcome = simulate(&plan);
        assert_eq!(sum(&outcome, Metric::AppFailures, "web"), 0.0);
        assert!(sum(&outcome, Metric::AppTransactions, "web") > 20.0);
        mean(&outcome, Metric::AppPageLoadTime, "web")
    };
    let (multiplexed, six, one) =
        (load(FetchMode::Multiplexed), load(FetchMode::Parallel(6)), load(FetchMode::Parallel(1)));
    assert!(multiplexed < one && six < one, "{multiplexed} {six} {one}");
    // 620 kB at 20 Mbit/s take 0.25 s, a lower bound of the load time.
    assert!(multiplexed > 0.26 && multiplexed < 0.8, "{multiplexed}");
}

#[test]
fn full_queue_degrades_a_call() {
    let score = |load: u64| {
        let (mut plan, links) = line(2_000_000, 10, 30);
        add(&mut plan, &links, "call", FlowTransport::Udp, call());
        plan.flow("load", FlowTransport::Udp, Pattern::Cbr { rate: BitRate(load), packet: 1_000 }, &links);
        let outcome = simulate(&plan);
        let delay = mean(&outcome, Metric::AppDelay, "call");
        (mean(&outcome, Metric::AppMos, "call"), mean(&outcome, Metric::AppLoss, "call"), delay)
    };
    let (good, lost, delay) = score(100_000);
    assert!(good > 4.3 && lost == 0.0 && delay < 0.03, "{good} {lost} {delay}");
    let (bad, lost, _) = score(3_000_000);
    assert!(bad < 2.5 && lost > 0.15, "{bad} {lost}");
}

#[test]
fn video_adapts_to_the_line_or_stalls() {
    let play = |rate: u64, adaptation| {
        let (mut plan, links) = line(rate, 10, 200);
        let rates = [500, 1_000, 2_000, 4_000, 8_000].map(|rate| BitRate(rate * 1_000)).to_vec();
        let seconds = Duration::from_secs;
        let (segment, buffer, startup) = (seconds(4), seconds(30), seconds(4));
        let video = AdaptiveVideo { rates, segment, buffer, startup, adaptation, request: 300 };
        add(&mut plan, &links, "video", tcp(), Application::AdaptiveVideo(video));
        let outcome = simulate(&plan);
        (mean(&outcome, Metric::AppStallRatio, "video"), mean(&outcome, Metric::AppBitRate, "video"))
    };
    let throughput = Adaptation::Throughput { share: 0.85, window: 20 };
    let (stalled, rate) = play(6_000_000, throughput);
    assert!(stalled == 0.0 && (3e6..5e6).contains(&rate), "{stalled} {rate}");
    let (stalled, rate) = play(3_000_000, Adaptation::Fixed);
    // The payload rate of a 3 Mbit/s line plays video of 8 Mbit/s for 36 % of the time.
    assert!((stalled - 0.64).abs() < 0.05 && (rate - 8e6).abs() < 1e3, "{stalled} {rate}");
}

#[test]
fn every_model_runs_and_equal_seeds_give_identical_results() {
    let (mut plan, links) = line(10_000_000, 5, 20);
    let ticks = PacketTiming {
        gap: Duration::from_millis(40),
        gap_scale: Duration::ZERO,
        size: 80.0,
        size_scale: 5.7,
    };
    let frames = FrameVideo {
        rate: BitRate(1_000_000),
        frames_per_second: 25.0,
        group: 12,
        b_frames: 2,
        sizes: [5.0, 3.0, 1.0],
        variation: 0.3,
        playout_delay: Duration::from_millis(200),
    };
    let storage = BlockStorage {
        block: 4_096,
        reads: 0.7,
        queue_depth: 8,
        server: Duration::from_micros(100),
        follow_window: false,
    };
    let dns = Dns {
        query: 45,
        answer: SizeDistribution::constant(160),
        interval: Duration::from_millis(100),
        timeout: Duration::from_secs(1),
        attempts: 2,
        server: Duration::ZERO,
    };
    add(
        &mut plan,
        &links,
        "game",
        FlowTransport::Udp,
        Application::Game(Game { client: ticks, server: ticks }),
    );
    add(&mut plan, &links, "frames", FlowTransport::Udp, Application::FrameVideo(frames.clone()));
    add(&mut plan, &links, "frames-tcp", tcp(), Application::FrameVideo(frames));
    add(&mut plan, &links, "storage", tcp(), Application::BlockStorage(storage));
    add(&mut plan, &links, "dns", FlowTransport::Udp, Application::Dns(dns));
    add(&mut plan, &links, "web", tcp(), pages(FetchMode::Parallel(6)));
    add(&mut plan, &links, "call", FlowTransport::Udp, call());
    plan.flows[0].count = 3;
    plan.flows[5].count = 2;
    for direction in 0..2 {
        plan.links[1].directions[direction].loss = 0.01;
    }
    let first = simulate(&plan);
    assert_eq!(format!("{first:?}"), format!("{:?}", simulate(&plan)));
    let plain = run_with(&plan, 1, EventLoopOptions { merge: false }, &|| false).unwrap();
    for (one, other) in first.series.iter().zip(&plain.series) {
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }
    assert_ne!(format!("{:?}", first.series), format!("{:?}", run(&plan, 2, &|| false).unwrap().series));
    assert!(sum(&first, Metric::AppTransactions, "storage") > 100.0);
    assert!(sum(&first, Metric::AppTransactions, "dns") > 100.0);
    assert!(mean(&first, Metric::AppLoss, "game[2]") > 0.0);
    assert!(mean(&first, Metric::AppBitRate, "frames-tcp") > 5e5);
    assert!(sum(&first, Metric::FlowLost, "call") > 5.0);
    let totals = first.totals;
    assert_eq!(totals.sent, totals.delivered + totals.lost + totals.in_flight);
}

#[test]
fn probes_are_answered_and_measure_the_round_trip() {
    let (mut plan, links) = line(100_000_000, 10, 10);
    let pattern = Pattern::Cbr { rate: BitRate(800_000), packet: 1_000 };
    plan.flow("ping", FlowTransport::IcmpEcho, pattern.clone(), &links);
    plan.flow("closed", FlowTransport::UdpUnreachable, pattern.clone(), &links);
    let outcome = simulate(&plan);
    for flow in ["ping", "closed"] {
        let rate = mean(&outcome, Metric::FlowThroughput, flow);
        assert!((rate / 800_000.0 - 1.0).abs() < 0.01, "{flow}: {rate}");
        let round_trip = mean(&outcome, Metric::FlowRoundTrip, flow);
        assert!((0.0401..0.0407).contains(&round_trip), "{flow}: {round_trip}");
    }
    // 1,028 B in each direction for the echo; 1,028 B forward and 576 B back for the ICMP error.
    let back = mean(&outcome, Metric::LinkThroughput, "a.reverse") / 8.0 / 100.0;
    assert!((back / f64::from(1_028 + 576) - 1.0).abs() < 0.01, "{back}");
    let totals = outcome.totals;
    assert_eq!(totals.sent, totals.delivered + totals.lost + totals.in_flight);
}

#[test]
fn stamp_measures_loss_and_delay_per_direction() {
    let (mut plan, links) = line(100_000_000, 10, 12);
    let interval = Duration::from_millis(10);
    let pattern = Pattern::Trace { packets: [(interval, 44)].into(), repeat: true };
    plan.flow("sla", FlowTransport::Stamp { interval }, pattern, &links);
    plan.flows[0].stop = Instant::ZERO + interval * 1000 + Duration::from_millis(5);
    plan.measure.delay = true;
    let [forward, reverse] = &mut plan.links[0].directions;
    (forward.loss, reverse.loss, reverse.delay) = (0.1, 0.02, Duration::from_millis(3));
    // Duplicates are made behind the lossy line. They count once, and each is answered.
    plan.links[1].directions[0].duplicate = 0.2;
    let outcome = simulate(&plan);
    let packets = |metric| sum(&outcome, metric, "sla") / 8.0 / 44.0;
    let [forward, backward] =
        ["sla[forward]", "sla[backward]"].map(|way| sum(&outcome, Metric::FlowLost, way));
    let (sent, answered) = (packets(Metric::FlowOffered), packets(Metric::FlowThroughput));
    assert_eq!((sent.round(), answered.round()), (1000.0, 1000.0 - forward - backward));
    assert_eq!(forward, sum(&outcome, Metric::LinkLost, "a.forward"));
    // A packet counts as lost only if the replies to it and to its duplicate are both lost, which is rarer.
    let lost_back = sum(&outcome, Metric::LinkLost, "a.reverse");
    assert!(0.0 < backward && backward < lost_back, "{backward} of {lost_back}");
    // Tolerance: five standard deviations for 1,000 packets.
    assert!((53.0..147.0).contains(&forward) && backward < 42.0, "{forward} and {backward}");
    // 72 B at the IP layer take 5.76 us at 100 Mbit/s on each link.
    let delays = |metric, subject: &str| {
        let found = outcome.distributions.iter().find(|d| d.metric == metric && d.subject == subject);
        found.unwrap_or_else(|| panic!("{metric:?} of {subject}")).buckets.clone()
    };
    for (metric, subject, nanoseconds) in [
        (Metric::FlowDelay, "sla[forward]", 20_011_520_u64),
        (Metric::FlowDelay, "sla[backward]", 13_011_520),
        (Metric::FlowRoundTrip, "sla", 33_023_040),
    ] {
        let buckets = delays(metric, subject);
        assert_eq!(buckets.iter().map(|bucket| bucket.1).sum::<u64>() as f64, answered.round());
        let min = buckets[0].0;
        assert!(min.abs_diff(nanoseconds) <= nanoseconds >> 11, "{subject}: {min}");
    }
    let unmerged = run_with(&plan, 1, EventLoopOptions { merge: false }, &|| false).unwrap();
    assert_eq!(format!("{:?}", unmerged.series), format!("{:?}", outcome.series));
    assert_eq!(unmerged.distributions, outcome.distributions);
}

#[test]
fn ipv6_adds_twenty_bytes_per_packet() {
    let (mut plan, links) = line(100_000_000, 10, 10);
    plan.flow("six", FlowTransport::Udp, Pattern::Cbr { rate: BitRate(800_000), packet: 1_000 }, &links);
    plan.flows[0].family = IpVersion::V6;
    let outcome = simulate(&plan);
    let packets = sum(&outcome, Metric::FlowThroughput, "six") / 8_000.0;
    let bytes = sum(&outcome, Metric::LinkThroughput, "a.forward") / 8.0;
    assert!((bytes / packets - 1_048.0).abs() < 3.0, "{}", bytes / packets);
}

#[test]
fn unsupported_transport_is_rejected_by_name() {
    let (mut plan, links) = line(100_000_000, 10, 10);
    plan.flow("six", FlowTransport::Udp, Pattern::Cbr { rate: BitRate(800_000), packet: 1_000 }, &links);
    assert_eq!(unsupported_feature(&plan), None);
    plan.flows[0].transport = FlowTransport::Quic;
    assert_eq!(
        unsupported_feature(&plan).unwrap(),
        "flow.six: transport \"quic\" is not simulated; run it with --on emu"
    );
}

/// Returns the buckets of a distribution.
fn buckets<'a>(outcome: &'a RunOutcome, metric: Metric, subject: &str) -> &'a [(u64, u64)] {
    let found = outcome.distributions.iter().find(|d| d.metric == metric && d.subject == subject);
    &found.unwrap_or_else(|| panic!("{metric:?} of {subject}")).buckets
}

/// Draws transfers of random sizes on random lines. Bins are so short that each contains at most one transaction, so the
/// series has the exact times.
#[test]
fn distributions_contain_every_transaction_and_score() {
    for seed in 0..8 {
        let mut stream = RandomStream::new(seed, "transactions");
        let (mut plan, links) = line(2_000_000 << stream.below(6), 1 + stream.below(40), 20);
        plan.measure.interval = Duration::from_millis(2);
        let transfers = Transfers {
            size: SizeDistribution::lognormal(30e3, 60e3, 1e6),
            think: Duration::from_millis(20 + stream.below(200)),
            direction: TransferDirection::Download,
            files: None,
        };
        add(&mut plan, &links, "files", tcp(), Application::Transfers(transfers));
        add(&mut plan, &links, "call", FlowTransport::Udp, call());
        let outcome = simulate(&plan);
        assert!(values(&outcome, Metric::AppTransactions, "files").iter().all(|count| *count <= 1.0));
        for (metric, subject) in [(Metric::AppTransactionTime, "files"), (Metric::AppMos, "call")] {
            let known = values(&outcome, metric, subject).iter().filter(|value| !value.is_nan());
            let mut exact: Vec<u64> = known.map(|value| (value * 1e9).round() as u64).collect();
            exact.sort_unstable();
            let mut histogram = Histogram::default();
            histogram.add(buckets(&outcome, metric, subject));
            assert!(exact.len() >= 20 && histogram.count() == exact.len() as u64, "seed {seed}: {exact:?}");
            for share in [0.05, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0] {
                let rank = (share * exact.len() as f64).ceil() as usize;
                let (value, exact) = (histogram.quantile(share).unwrap(), exact[rank - 1]);
                // Half a bucket, which is 0.05 % of the value.
                assert!(value.abs_diff(exact) <= exact >> 11, "seed {seed}, {metric:?}: {value} for {exact}");
            }
        }
        // 160 B of speech and 12 B of RTP per packet. The first packet of each direction has no variation.
        let bytes = sum(&outcome, Metric::FlowThroughput, "call") * 2e-3 / 8.0;
        for (metric, missing) in [(Metric::AppDelay, 0), (Metric::AppDelayVariation, 2)] {
            let count: u64 = buckets(&outcome, metric, "call").iter().map(|bucket| bucket.1).sum();
            assert_eq!(count + missing, (bytes / 172.0).round() as u64, "seed {seed}, {metric:?}");
        }
    }
}

/// Draws bulk transfers of random sizes. The completion time is known to a bin from the last bin with throughput.
#[test]
fn completion_time_ends_with_the_last_byte() {
    for seed in 0..8 {
        let mut stream = RandomStream::new(seed, "completion");
        let (mut plan, links) = line(10_000_000, 1 + stream.below(30), 20);
        plan.measure.interval = Duration::from_millis(1);
        let size = 1 + stream.below(3_000_000);
        plan.flow("bulk", tcp(), Pattern::Bulk { size: Some(size) }, &links);
        let flow = plan.flows.last_mut().unwrap();
        (flow.count, flow.stagger) = (5, Duration::from_millis(stream.below(2_000)));
        flow.start = Instant::ZERO + Duration::from_millis(stream.below(1_000));
        let (start, stagger) = (flow.start, flow.stagger);
        // The last one never completes.
        plan.flow("endless", tcp(), Pattern::Bulk { size: Some(u64::MAX) }, &links);
        let outcome = simulate(&plan);
        for member in 0..5_u64 {
            let subject = format!("bulk[{member}]");
            let rates = values(&outcome, Metric::FlowThroughput, &subject);
            let received = rates.iter().sum::<f64>() * 1e-3 / 8.0;
            let is_complete = (received - size as f64).abs() < 0.5;
            let found = outcome.get(Metric::FlowCompletionTime, &subject);
            assert_eq!(found.is_some(), is_complete, "seed {seed}, {subject}: {received} of {size} B");
            let Some(found) = found else { continue };
            let last = rates.iter().rposition(|rate| *rate > 0.0).unwrap();
            let took = found.values[last];
            let end = (start + stagger * member + Duration::from_secs_f64(took)).0;
            assert!((last as u64..=last as u64 + 1).contains(&(end / 1_000_000)), "seed {seed}, {subject}");
            assert_eq!(found.values.iter().filter(|value| !value.is_nan()).count(), 1);
            let [(value, 1)] = buckets(&outcome, Metric::FlowCompletionTime, &subject) else {
                panic!("one value")
            };
            assert!((*value as f64 / 1e9 / took - 1.0).abs() < 5e-4, "seed {seed}, {subject}");
        }
        assert!(outcome.get(Metric::FlowCompletionTime, "endless").is_none());
    }
}
