//! Application models over a simulated path with a fixed rate and delay, and with loss of datagrams.

use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An event at an endpoint.
#[derive(Clone, Copy, Debug)]
enum EndpointEvent {
    Connected(u32),
    Message(u32, ApplicationMessage),
    Refused(u32),
}

/// Two endpoints connected by a path.
struct ApplicationPath {
    ends: [Endpoint; 2],
    /// Endpoint and event by time and order.
    events: BTreeMap<(Instant, u64), (usize, EndpointEvent)>,
    order: u64,
    delay: Duration,
    rate: BitRate,
    free_at: [Instant; 2],
    loss: f64,
    refuse: bool,
    rng: RandomStream,
    carriage: TransportKind,
    /// All messages sent, with the sending endpoint and the time.
    sent: Vec<(usize, Instant, ApplicationMessage)>,
    observed: [Vec<Observation>; 2],
    opened: Vec<u32>,
}

impl ApplicationPath {
    fn new(application: &Application, carriage: TransportKind, seed: u64) -> ApplicationPath {
        application.check(carriage).unwrap();
        let stream = RandomStream::new(seed, "flow.app");
        let end = |role| Endpoint::new(application, role, carriage, &stream);
        ApplicationPath {
            ends: [end(EndpointRole::Client), end(EndpointRole::Server)],
            events: BTreeMap::new(),
            order: 0,
            delay: Duration::from_millis(20),
            rate: BitRate(10_000_000),
            free_at: [Instant::ZERO; 2],
            loss: 0.0,
            refuse: false,
            rng: RandomStream::new(seed, "path"),
            carriage,
            sent: Vec::new(),
            observed: Default::default(),
            opened: Vec::new(),
        }
    }

    fn at(&mut self, at: Instant, end: usize, event: EndpointEvent) {
        self.order += 1;
        self.events.insert((at, self.order), (end, event));
    }

    fn drain(&mut self, now: Instant) {
        for end in 0..2 {
            while let Some(action) = self.ends[end].poll_action() {
                match action {
                    EndpointAction::Open(connection) => {
                        assert_eq!(end, 0, "only clients open connections");
                        assert!(!self.opened.contains(&connection), "{connection} is open");
                        let setup = if self.carriage == TransportKind::Stream {
                            self.delay * 2
                        } else {
                            Duration::ZERO
                        };
                        let event = if self.refuse {
                            EndpointEvent::Refused(connection)
                        } else {
                            EndpointEvent::Connected(connection)
                        };
                        self.opened.push(connection);
                        self.at(now + setup, 0, event);
                    }
                    EndpointAction::Close(connection) => self.opened.retain(|open| *open != connection),
                    EndpointAction::Send(connection, message) => {
                        assert!(message.bytes >= HEADER);
                        self.sent.push((end, now, message));
                        let free = self.free_at[end].max(now)
                            + self.rate.transmission_time(message.bytes.min(1 << 28));
                        self.free_at[end] = free;
                        let lost = self.carriage == TransportKind::Datagram && self.rng.chance(self.loss);
                        if !lost {
                            self.at(free + self.delay, 1 - end, EndpointEvent::Message(connection, message));
                        }
                    }
                }
            }
            while let Some(observation) = self.ends[end].poll_observation() {
                self.observed[end].push(observation);
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        let until = Instant::ZERO + Duration::from_secs(seconds);
        self.ends.iter_mut().for_each(|end| end.start(Instant::ZERO));
        self.drain(Instant::ZERO);
        for _ in 0..2_000_000 {
            let event = self.events.first_key_value().map_or(Instant::NEVER, |((at, _), _)| *at);
            let timers = [self.ends[0].poll_timeout(), self.ends[1].poll_timeout()];
            let now = event.min(timers[0]).min(timers[1]);
            if now >= until {
                self.ends.iter_mut().for_each(|end| end.stop(until));
                self.drain(until);
                assert!(self.ends.iter().all(|end| end.poll_timeout() == Instant::NEVER));
                return;
            }
            if event == now {
                let (_, (end, event)) = self.events.pop_first().unwrap();
                match event {
                    EndpointEvent::Connected(connection) => self.ends[end].handle_connected(now, connection),
                    EndpointEvent::Refused(connection) => {
                        self.opened.retain(|open| *open != connection);
                        self.ends[end].handle_failure(now, connection);
                    }
                    EndpointEvent::Message(connection, message) => {
                        self.ends[end].handle_message(now, connection, &message);
                    }
                }
            }
            self.ends.iter_mut().for_each(|end| end.handle_timeout(now));
            self.drain(now);
        }
        panic!("the simulated time does not advance");
    }

    fn quality(&self, end: usize, seconds: u64) -> Quality {
        let mut bins = QualityBins::new(Duration::from_secs(seconds), 1);
        self.observed[end].iter().for_each(|observation| bins.add(*observation));
        bins.bins()[0]
    }
}

fn run(application: &Application, carriage: TransportKind, seconds: u64) -> ApplicationPath {
    let mut path = ApplicationPath::new(application, carriage, 1);
    path.run(seconds);
    path
}

fn transfers() -> Transfers {
    Transfers {
        size: SizeDistribution::constant(1_250_000),
        think: Duration::ZERO,
        direction: TransferDirection::Download,
        files: None,
    }
}

fn web(fetching: FetchMode) -> Web {
    Web {
        main: SizeDistribution::constant(12_500),
        objects: 12.0,
        spread: false,
        object: SizeDistribution::constant(12_500),
        request: 350,
        fetching,
        parse: Duration::ZERO,
        think: Duration::from_secs(1_000),
        server: Duration::ZERO,
    }
}

fn video(adaptation: Adaptation) -> AdaptiveVideo {
    AdaptiveVideo {
        rates: [1, 2, 4, 8, 16].map(|rate| BitRate(rate * 1_000_000)).to_vec(),
        segment: Duration::from_secs(4),
        buffer: Duration::from_secs(32),
        startup: Duration::from_secs(4),
        adaptation,
        request: 300,
    }
}

fn voice(codec: Codec) -> Voice {
    Voice {
        codec,
        rate: codec.rate(),
        packet: Duration::from_millis(20),
        spurts: None,
        jitter_buffer: Duration::from_millis(60),
    }
}

fn dns() -> Dns {
    Dns {
        query: 40,
        answer: SizeDistribution::constant(120),
        interval: Duration::from_millis(100),
        timeout: Duration::from_secs(5),
        attempts: 2,
        server: Duration::ZERO,
    }
}

fn exchange(pace: Pace, connections: u32) -> Exchange {
    Exchange {
        request: SizeDistribution::constant(100),
        response: SizeDistribution::constant(1_000),
        pace,
        server: Duration::from_millis(5),
        connections,
        timeout: Duration::from_secs(5),
    }
}

fn frames() -> FrameVideo {
    FrameVideo {
        rate: BitRate(4_000_000),
        frames_per_second: 25.0,
        group: 12,
        b_frames: 2,
        sizes: [5.0, 3.0, 1.0],
        variation: 0.3,
        playout_delay: Duration::from_millis(200),
    }
}

#[test]
fn a_transfer_takes_setup_request_and_transmission_time() {
    let path = run(&Application::Transfers(transfers()), TransportKind::Stream, 20);
    // 40 ms to connect, 40 ms for request and response, 26 µs to send the request, 1 s to send 1.25 MB at
    // 10 Mbit/s.
    let Observation::Transaction { took, .. } = path.observed[0][0] else { panic!() };
    assert_eq!(took, Duration(40_000_000 + 40_000_000 + 25_600 + 1_000_000_000));
    assert_eq!(path.observed[0].len(), 18);
    let upload = Transfers { direction: TransferDirection::Upload, files: Some(3), ..transfers() };
    let path = run(&Application::Transfers(upload), TransportKind::Stream, 20);
    assert_eq!(path.observed[0].len(), 3);
    assert_eq!(path.sent[0].2.bytes, 1_250_000);
}

#[test]
fn multiplexed_pages_load_fastest_and_serial_ones_slowest() {
    let load = |fetching| {
        let path = run(&Application::Web(web(fetching)), TransportKind::Stream, 10);
        let Observation::Page { took, .. } = path.observed[0][0] else { panic!() };
        assert_eq!(path.sent.len(), 26, "13 requests and 13 responses");
        took
    };
    let (multiplexed, parallel, serial) =
        (load(FetchMode::Multiplexed), load(FetchMode::Parallel(6)), load(FetchMode::Parallel(1)));
    assert!(multiplexed < parallel && parallel < serial, "{multiplexed:?} {parallel:?} {serial:?}");
    // 13 objects of 10 ms each, and three round trips: connect, main object, embedded objects.
    assert!((multiplexed.as_secs_f64() - 0.25).abs() < 0.01, "{multiplexed:?}");
}

#[test]
fn adaptive_video_selects_the_rate_of_the_path() {
    let throughput = Adaptation::Throughput { share: 0.85, window: 20 };
    let cushion = Adaptation::Buffer { reservoir: Duration::from_secs(12), cushion: Duration::from_secs(16) };
    for adaptation in [throughput, cushion] {
        let path = run(&Application::AdaptiveVideo(video(adaptation)), TransportKind::Stream, 300);
        let quality = path.quality(0, 300);
        assert_eq!((quality.startups, quality.stalled_ns), (1, 0), "{adaptation:?}");
        assert!(quality.startup_ns < 1_000_000_000);
        let played = quality.played_bits as f64 / (quality.playing_ns as f64 / 1e9);
        assert!((5e6..10e6).contains(&played), "{adaptation:?}: {played}");
        assert!((quality.playing_ns as f64 / 1e9) > 298.0, "playout starts within 2 s and never stops");
    }
}

#[test]
fn video_above_the_rate_of_the_path_stalls() {
    let path = run(&Application::AdaptiveVideo(video(Adaptation::Fixed)), TransportKind::Stream, 400);
    let quality = path.quality(0, 400);
    // At 10 Mbit/s, video of 16 Mbit/s plays for 10 s out of 16 s.
    let share = quality.stalled_ns as f64 / (quality.stalled_ns + quality.playing_ns) as f64;
    assert!((share - 0.375).abs() < 0.02, "{share}");
    assert_eq!(quality.switches, 0);
}

#[test]
fn calls_send_at_the_rate_of_the_codec_and_play_received_packets() {
    for (codec, payload) in [(Codec::G711, 172), (Codec::G729, 32), (Codec::Opus, 92)] {
        let application = Application::Voice(voice(codec));
        let mut path = ApplicationPath::new(&application, TransportKind::Datagram, 1);
        path.loss = 0.1;
        path.run(100);
        assert!(path.sent.iter().all(|(_, _, message)| message.bytes == payload), "{codec:?}");
        for end in 0..2 {
            let sent = path.sent.iter().filter(|(from, ..)| *from == end).count();
            assert!((4_990..=5_000).contains(&sent), "50 packets a second: {sent}");
            let quality = path.quality(end, 100);
            let played = quality.played as f64 / quality.expected as f64;
            assert!((played - 0.9).abs() < 0.03, "{played}");
        }
    }
}

#[test]
fn an_outage_of_a_call_counts_as_loss() {
    let (call, stream) = (Application::Voice(voice(Codec::G711)), RandomStream::new(1, "flow.app"));
    let mut listener = Endpoint::new(&call, EndpointRole::Client, TransportKind::Datagram, &stream);
    listener.start(Instant::ZERO);
    listener.handle_connected(Instant::ZERO, 0);
    let message =
        ApplicationMessage { bytes: 172, number: 0, content: MessageContent::Data, sent: Instant::ZERO };
    listener.handle_message(Instant(30_000_000), 0, &message);
    let mut bins = QualityBins::new(Duration::from_secs(1), 4);
    while listener.poll_timeout() < Instant(4_000_000_000) {
        let now = listener.poll_timeout();
        listener.handle_timeout(now);
        while listener.poll_action().is_some() {}
        while let Some(observation) = listener.poll_observation() {
            bins.add(observation);
        }
    }
    let counts: Vec<(u64, u64)> = bins.bins().iter().map(|bin| (bin.expected, bin.played)).collect();
    assert_eq!(counts, [(1, 1), (50, 0), (50, 0), (50, 0)]);
}

#[test]
fn talk_spurts_have_their_share_of_time() {
    let spurts = Some((Duration::from_millis(1_004), Duration::from_millis(1_587)));
    let path =
        run(&Application::Voice(Voice { spurts, ..voice(Codec::G711) }), TransportKind::Datagram, 2_000);
    let share = path.sent.len() as f64 / (2.0 * 50.0 * 2_000.0);
    assert!((share - 1_004.0 / 2_591.0).abs() < 0.03, "{share}");
}

#[test]
fn lookups_are_retried_and_then_fail() {
    let mut path = ApplicationPath::new(&Application::Dns(dns()), TransportKind::Datagram, 1);
    path.loss = 0.3;
    path.run(3_000);
    let quality = path.quality(0, 3_000);
    let lookups = quality.transactions + quality.failures;
    // An attempt fails with probability 1 - 0.7² = 0.51, a lookup of two attempts with 0.26.
    let failed = quality.failures as f64 / lookups as f64;
    assert!(lookups > 500 && (failed - 0.26).abs() < 0.06, "{failed} of {lookups}");
    let Some(late) = path.observed[0].iter().find_map(|observation| match observation {
        Observation::Transaction { took, .. } if *took > Duration::from_secs(5) => Some(*took),
        _ => None,
    }) else {
        panic!("no second attempt has succeeded")
    };
    assert!(late < Duration::from_secs(6));
}

#[test]
fn closed_loops_wait_for_responses_and_open_loops_do_not() {
    let closed = exchange(Pace::Closed(Duration::ZERO), 1);
    let path = run(&Application::Exchange(closed), TransportKind::Stream, 10);
    // Per request: a round trip of 40 ms, 5 ms at the server, 0.9 ms of transmission.
    assert_eq!(path.quality(0, 10).transactions, 217);
    let open = exchange(Pace::Open(200.0), 4);
    let path = run(&Application::Exchange(open), TransportKind::Stream, 100);
    let transactions = path.quality(0, 100).transactions;
    assert!((19_000..21_000).contains(&transactions), "{transactions}");
    let mut path = ApplicationPath::new(
        &Application::Exchange(exchange(Pace::Open(50.0), 1)),
        TransportKind::Datagram,
        3,
    );
    path.loss = 0.1;
    path.run(100);
    let quality = path.quality(0, 100);
    let failed = quality.failures as f64 / (quality.failures + quality.transactions) as f64;
    assert!((failed - 0.19).abs() < 0.03, "{failed}");
}

#[test]
fn block_storage_keeps_its_queue_full() {
    let storage = BlockStorage {
        block: 4_096,
        reads: 0.7,
        queue_depth: 8,
        server: Duration::from_micros(100),
        follow_window: false,
    };
    let path = run(&Application::BlockStorage(storage), TransportKind::Stream, 10);
    let quality = path.quality(0, 10);
    // Eight commands per round trip of 40 ms plus the transmission time.
    assert!((1_700..2_000).contains(&quality.transactions), "{}", quality.transactions);
    let commands: Vec<u32> = path.sent.iter().filter(|s| s.0 == 0).map(|s| s.2.bytes).collect();
    let reads = commands.iter().filter(|bytes| **bytes == 48).count() as f64 / commands.len() as f64;
    assert!((reads - 0.7).abs() < 0.04, "{reads}");
}

#[test]
fn reads_follow_the_window_of_the_server() {
    let storage = BlockStorage {
        block: 100_000,
        reads: 1.0,
        queue_depth: 2,
        server: Duration::from_micros(100),
        follow_window: true,
    };
    let mut client = Endpoint::new(
        &Application::BlockStorage(storage),
        EndpointRole::Client,
        TransportKind::Stream,
        &RandomStream::new(1, "disk"),
    );
    client.start(Instant::ZERO);
    client.handle_connected(Instant::ZERO, 0);
    let mut requests = Vec::new();
    let mut take = |client: &mut Endpoint| {
        while let Some(action) = client.poll_action() {
            if let EndpointAction::Send(_, message) = action {
                let MessageContent::WindowRequest { answer, .. } = message.content else {
                    panic!("{message:?}")
                };
                requests.push((message.number, answer - 48));
            }
        }
        requests.clone()
    };
    // Before the first report, reads have the smallest size. Then they are half of the window, in whole sectors.
    assert_eq!(take(&mut client), [(1, 4_096), (2, 4_096)]);
    for (number, window) in [(1, 30_000), (2, 1_000), (3, 1 << 30)] {
        let content = MessageContent::Window(window);
        let message = ApplicationMessage { bytes: 4_144, number, content, sent: Instant::ZERO };
        client.handle_message(Instant(u64::from(number)), 0, &message);
    }
    assert_eq!(take(&mut client)[2..], [(3, 14_848), (4, 4_096), (5, 100_000)]);
}

#[test]
fn games_send_in_both_directions() {
    let ticks = |gap, gap_scale, size, size_scale| PacketTiming {
        gap: Duration::from_millis(gap),
        gap_scale: Duration::from_millis(gap_scale),
        size,
        size_scale,
    };
    let game = Game { client: ticks(40, 0, 80.0, 5.7), server: ticks(55, 6, 120.0, 36.0) };
    let path = run(&Application::Game(game), TransportKind::Datagram, 100);
    let sent_by = |end| path.sent.iter().filter(move |sent| sent.0 == end);
    assert_eq!(sent_by(0).count(), 2_500);
    // The mean of the extreme value distribution is 0.577 scales above its mode.
    let server = sent_by(1).count() as f64;
    assert!((server - 100.0 / 0.05846).abs() < 40.0, "{server}");
    let size = sent_by(1).map(|sent| f64::from(sent.2.bytes)).sum::<f64>() / server;
    assert!((size - 140.8).abs() < 5.0, "{size}");
    assert_eq!(path.quality(0, 100).expected, path.quality(0, 100).played);
}

#[test]
fn frames_have_the_configured_rate_and_are_lost_with_any_part() {
    let mut path = ApplicationPath::new(&Application::FrameVideo(frames()), TransportKind::Datagram, 1);
    path.loss = 0.01;
    path.run(200);
    let bytes: u64 = path.sent.iter().filter(|s| s.0 == 1).map(|s| u64::from(s.2.bytes)).sum();
    let rate = bytes as f64 * 8.0 / 200.0;
    assert!((rate / 4e6 - 1.0).abs() < 0.05, "{rate}");
    let quality = path.quality(0, 200);
    let lost = 1.0 - quality.played as f64 / quality.expected as f64;
    // A frame has 14.8 packets on average, so the loss of frames is a multiple of the packet loss of 1 %.
    assert!((0.08..0.2).contains(&lost), "{lost}");
    let path = run(&Application::FrameVideo(frames()), TransportKind::Stream, 20);
    assert!(path.quality(0, 20).played > 480);
}

fn learned(shape: LearnedExchange, carriage: TransportKind, replay: bool) -> Application {
    Application::Learned { model: Arc::new(CaptureModel { carriage, shape }), replay }
}

fn exchanges() -> LearnedRequests {
    let turn = |think, request, server, response| RecordedTurn {
        think: Duration::from_millis(think),
        request,
        server: Duration::from_millis(server),
        response,
    };
    LearnedRequests {
        request: Quantiles(vec![100, 200]),
        response: Quantiles(vec![1_000, 3_000]),
        think: Quantiles(vec![10_000_000]),
        server: Quantiles(vec![5_000_000]),
        turns: Quantiles(vec![2]),
        starts: Quantiles(vec![1_000_000_000]),
        concurrent: 2,
        recorded: vec![
            RecordedConnection {
                after: Duration::ZERO,
                turns: vec![turn(1, 100, 2, 1_000), turn(3, 200, 4, 0), turn(5, 300, 6, 3_000)],
            },
            RecordedConnection { after: Duration::from_millis(50), turns: vec![turn(0, 40, 0, 50)] },
        ],
    }
}

#[test]
fn a_recording_is_replayed_exactly() {
    for carriage in [TransportKind::Stream, TransportKind::Datagram] {
        let path = run(&learned(LearnedExchange::Exchanges(exchanges()), carriage, true), carriage, 10);
        let sizes =
            |end| -> Vec<u32> { path.sent.iter().filter(|s| s.0 == end).map(|s| s.2.bytes).collect() };
        let (mut requests, mut responses) = (sizes(0), sizes(1));
        requests.sort_unstable();
        responses.sort_unstable();
        assert_eq!((requests, responses), (vec![40, 100, 200, 300], vec![50, 1_000, 3_000]));
    }
}

#[test]
fn a_learned_model_draws_from_its_distributions() {
    let path = run(
        &learned(LearnedExchange::Exchanges(exchanges()), TransportKind::Stream, false),
        TransportKind::Stream,
        500,
    );
    let requests: Vec<f64> = path.sent.iter().filter(|s| s.0 == 0).map(|s| f64::from(s.2.bytes)).collect();
    assert!((990..=1_000).contains(&requests.len()), "two turns per second: {}", requests.len());
    let mean = requests.iter().sum::<f64>() / requests.len() as f64;
    assert!((mean - 150.0).abs() < 3.0, "{mean}");
    let packets = LearnedPackets {
        size: Quantiles(vec![100, 100, 300]),
        gap: Quantiles(vec![0, 20_000_000]),
        recorded: vec![(Duration::ZERO, 77); 5],
    };
    let shape = LearnedExchange::OneWay { up: None, down: Some(packets) };
    let path = run(&learned(shape.clone(), TransportKind::Datagram, false), TransportKind::Datagram, 100);
    let down = path.sent.iter().filter(|s| s.0 == 1).count();
    assert!((9_500..10_500).contains(&down), "{down}");
    let path = run(&learned(shape, TransportKind::Datagram, true), TransportKind::Datagram, 100);
    assert_eq!(path.sent.iter().filter(|s| s.0 == 1).count(), 5);
}

#[test]
fn refused_connections_are_retried_with_a_delay() {
    let applications = [
        Application::Transfers(Transfers { think: Duration::from_secs(1), ..transfers() }),
        Application::AdaptiveVideo(video(Adaptation::Fixed)),
        Application::Exchange(exchange(Pace::Closed(Duration::ZERO), 2)),
        Application::BlockStorage(BlockStorage {
            block: 4_096,
            reads: 0.5,
            queue_depth: 4,
            server: Duration::ZERO,
            follow_window: false,
        }),
        Application::Web(Web { think: Duration::from_secs(1), ..web(FetchMode::Parallel(6)) }),
        learned(LearnedExchange::Exchanges(exchanges()), TransportKind::Stream, false),
    ];
    for application in applications {
        let mut path = ApplicationPath::new(&application, TransportKind::Stream, 1);
        path.refuse = true;
        path.run(30);
        let failures = path.quality(0, 30).failures;
        assert!((10..=70).contains(&failures), "{}: {failures}", application.name());
    }
}

#[test]
fn equal_seeds_send_equal_messages() {
    let applications = [
        (
            Application::Web(Web {
                spread: true,
                think: Duration::from_secs(1),
                ..web(FetchMode::Parallel(6))
            }),
            TransportKind::Stream,
        ),
        (Application::FrameVideo(frames()), TransportKind::Datagram),
        (
            learned(LearnedExchange::Exchanges(exchanges()), TransportKind::Stream, false),
            TransportKind::Stream,
        ),
    ];
    for (application, carriage) in applications {
        let sent = |seed| {
            let mut path = ApplicationPath::new(&application, carriage, seed);
            path.run(20);
            path.sent
        };
        assert_eq!(sent(1), sent(1));
        assert_ne!(sent(1), sent(2));
    }
}

#[test]
fn invalid_applications_are_rejected() {
    let rejected = |application: Application, carriage, error| {
        assert_eq!(application.check(carriage), Err(error), "{application:?}");
    };
    use ApplicationError::*;
    use TransportKind::{Datagram, Stream};
    rejected(Application::Web(web(FetchMode::Multiplexed)), Datagram, NeedsStream);
    rejected(Application::Voice(voice(Codec::G711)), Stream, NeedsDatagrams);
    rejected(Application::Web(web(FetchMode::Parallel(0))), Stream, ZeroCount);
    let short = Voice { packet: Duration::from_millis(10), ..voice(Codec::G729) };
    rejected(Application::Voice(short), Datagram, SmallMessage);
    rejected(Application::Dns(Dns { query: 20, ..dns() }), Datagram, SmallMessage);
    rejected(Application::Dns(Dns { attempts: 0, ..dns() }), Datagram, ZeroCount);
    let mut falling = video(Adaptation::Fixed);
    falling.rates.reverse();
    rejected(Application::AdaptiveVideo(falling), Stream, Rates);
    let deep =
        video(Adaptation::Buffer { reservoir: Duration::from_secs(30), cushion: Duration::from_secs(30) });
    rejected(Application::AdaptiveVideo(deep), Stream, Buffer);
    let large = Exchange {
        response: SizeDistribution::constant(70_000),
        ..exchange(Pace::Closed(Duration::ZERO), 1)
    };
    rejected(Application::Exchange(large), Datagram, LargeDatagram);
    let nan = Transfers {
        size: SizeDistribution { mean: f64::NAN, ..SizeDistribution::constant(100) },
        ..transfers()
    };
    rejected(Application::Transfers(nan), Stream, Size);
    rejected(
        learned(LearnedExchange::OneWay { up: None, down: None }, Datagram, false),
        Datagram,
        EmptyModel,
    );
    let unrecorded = LearnedRequests { recorded: Vec::new(), ..exchanges() };
    rejected(learned(LearnedExchange::Exchanges(unrecorded), Stream, true), Stream, EmptyModel);
    let instant = LearnedRequests { starts: Quantiles(vec![0, 0]), ..exchanges() };
    rejected(learned(LearnedExchange::Exchanges(instant), Stream, false), Stream, ZeroTime);
}
