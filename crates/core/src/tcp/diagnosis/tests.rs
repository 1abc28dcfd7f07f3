use super::*;
use crate::tcp::event::tests::SNAPSHOT;
use crate::tcp::event::{CongestionState, FlowEvent, FlowEventKind, FlowSnapshot, WindowChangeCause};
use crate::time::Instant;
use alloc::vec::Vec;
use proptest::prelude::*;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn at(milliseconds: u64) -> Instant {
    Instant::ZERO + ms(milliseconds)
}

/// Flow whose events the test writes: the base round trip is 20 ms.
struct Script {
    account: FlowAccount,
    now: u64,
    snapshot: FlowSnapshot,
}

impl Script {
    fn new(snapshot: FlowSnapshot) -> Script {
        let snapshot =
            FlowSnapshot { smoothed_round_trip: Some(ms(20)), min_round_trip: Some(ms(20)), ..snapshot };
        let mut script = Script { account: FlowAccount::default(), now: 0, snapshot };
        script.report(FlowEventKind::Began);
        script
    }

    fn report(&mut self, kind: FlowEventKind) {
        self.account.handle(&FlowEvent { time: at(self.now), kind, snapshot: self.snapshot });
    }

    /// Reports an acknowledgment every 10 ms, each of two segments.
    fn acknowledge(&mut self, milliseconds: u64) -> &mut Script {
        for _ in 0..milliseconds / 10 {
            self.now += 10;
            self.snapshot.acknowledged += 2_000;
            // A window that grows is not clamped.
            self.snapshot.cwnd += 1;
            self.report(FlowEventKind::Acknowledged);
        }
        self
    }

    /// Reports acknowledgments in a window of 8,000 B, of which each with a multiple of this number leaves data unread.
    fn read_slowly(&mut self, milliseconds: u64, every: u64) -> &mut Script {
        for number in 0..milliseconds / 10 {
            self.snapshot.peer_window = if number % every == 0 { 6_000 } else { 8_000 };
            self.acknowledge(10);
        }
        self
    }

    fn change(&mut self, cause: WindowChangeCause) -> &mut Script {
        self.report(FlowEventKind::Window(cause));
        self
    }

    fn with_round_trip(&mut self, milliseconds: u64) -> &mut Script {
        self.snapshot.smoothed_round_trip = Some(ms(milliseconds));
        self
    }

    fn diagnose(&self) -> Diagnosis {
        self.account.diagnose(at(self.now))
    }
}

fn certain(bottleneck: Bottleneck) -> Verdict {
    Verdict::Certain { bottleneck }
}

#[test]
fn the_queue_distinguishes_a_full_path_from_slow_start_and_bufferbloat() {
    let mut script = Script::new(SNAPSHOT);
    script.acknowledge(1_000);
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::SlowStart));
    script.with_round_trip(30).acknowledge(4_000);
    let diagnosis = script.diagnose();
    assert_eq!(diagnosis.verdict, certain(Bottleneck::PathFull));
    // A queue shows after a round trip.
    assert_eq!((diagnosis.percent(Bottleneck::PathFull), diagnosis.percent(Bottleneck::SlowStart)), (79, 21));
    // Two segments of 1,000 B every 10 ms.
    assert_eq!(diagnosis.path_rate, Some(BitRate(1_600_000)));
    assert_eq!(diagnosis.queue, Some(ms(10)));
    assert_eq!(diagnosis.round_trip, Some(RoundTrips { now: ms(30), min: ms(20), max: ms(30) }));
    let mut script = Script::new(SNAPSHOT);
    script.with_round_trip(320).acknowledge(3_000);
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::Bufferbloat));
    let mut script = Script::new(SNAPSHOT);
    script.with_round_trip(65).acknowledge(3_000);
    let both = Verdict::Unsure { bottleneck: Bottleneck::PathFull, alternative: Bottleneck::Bufferbloat };
    assert_eq!(script.diagnose().verdict, both);
}

#[test]
fn losses_count_as_a_full_path_only_with_a_queue() {
    let mut script = Script::new(SNAPSHOT);
    for _ in 0..3 {
        script.acknowledge(500).change(WindowChangeCause::FastRetransmit).acknowledge(500);
    }
    let both = Verdict::Unsure { bottleneck: Bottleneck::Loss, alternative: Bottleneck::Policer };
    assert_eq!(script.diagnose().verdict, both, "three losses do not decide");
    let mut script = Script::new(SNAPSHOT);
    for _ in 0..3 {
        script.with_round_trip(40).acknowledge(500).change(WindowChangeCause::FastRetransmit);
        script.with_round_trip(20).acknowledge(500);
    }
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::PathFull));
}

#[test]
fn a_queue_that_fills_within_a_round_trip_explains_a_loss() {
    let mut script = Script::new(SNAPSHOT);
    for _ in 0..5 {
        script.snapshot.latest_round_trip = Some(ms(20));
        script.acknowledge(500);
        // Three duplicate acknowledgments.
        script.snapshot.latest_round_trip = Some(ms(35));
        script.acknowledge(30).change(WindowChangeCause::FastRetransmit);
    }
    script.snapshot.latest_round_trip = Some(ms(20));
    assert_eq!(script.acknowledge(3_000).diagnose().verdict, certain(Bottleneck::PathFull));
}

#[test]
fn losses_cost_nothing_while_the_reader_has_unread_data() {
    let mut script = Script::new(FlowSnapshot { peer_window: 60_000, ..SNAPSHOT });
    script.acknowledge(100).change(WindowChangeCause::FastRetransmit);
    script.snapshot.peer_window = 20_000;
    assert_eq!(script.acknowledge(3_000).diagnose().verdict, certain(Bottleneck::SlowReader));
}

#[test]
fn a_mark_without_a_queue_is_a_cause_of_its_own() {
    let mut script = Script::new(SNAPSHOT);
    script.acknowledge(100).change(WindowChangeCause::Ecn).acknowledge(2_000);
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::Ecn));
    script.change(WindowChangeCause::LocalDevice).with_round_trip(40).acknowledge(8_000);
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::LocalDevice));
}

#[test]
fn two_timeouts_without_an_acknowledgment_are_an_outage_if_segments_passed_before() {
    let stall = |script: &mut Script| {
        for _ in 0..2 {
            script.now += 1_000;
            script.snapshot.state = CongestionState::Loss;
            script.change(WindowChangeCause::Timeout);
            script.report(FlowEventKind::Retransmitted);
        }
    };
    let mut script = Script::new(SNAPSHOT);
    script.acknowledge(500);
    stall(&mut script);
    script.now += 500;
    let lasting = Verdict::Unsure { bottleneck: Bottleneck::Outage, alternative: Bottleneck::PathMtu };
    assert_eq!(script.diagnose().verdict, lasting, "a path that begins to drop large packets looks the same");
    script.snapshot.state = CongestionState::Open;
    script.acknowledge(500);
    let diagnosis = script.diagnose();
    assert_eq!(diagnosis.verdict, certain(Bottleneck::Outage));
    assert_eq!((diagnosis.timeouts, diagnosis.longest_stall), (2, ms(2_510)));

    let mut script = Script::new(SNAPSHOT);
    stall(&mut script);
    let first = Verdict::Unsure { bottleneck: Bottleneck::PathMtu, alternative: Bottleneck::Outage };
    assert_eq!(script.diagnose().verdict, first);
    script.snapshot = FlowSnapshot { state: CongestionState::Open, segment: 500, ..script.snapshot };
    script.acknowledge(100);
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::PathMtu));
}

#[test]
fn the_peer_window_distinguishes_a_small_buffer_from_a_slow_or_stopped_reader() {
    let full = FlowSnapshot { in_flight: 8_000, outstanding: 8_000, peer_window: 8_000, ..SNAPSHOT };
    let mut script = Script::new(full);
    assert_eq!(script.acknowledge(1_000).diagnose().verdict, certain(Bottleneck::ReceiveBuffer));
    // The window was open before, and every 20th acknowledgment waits for the reader.
    script.snapshot.peer_window = 64_000;
    script.acknowledge(10);
    assert_eq!(script.read_slowly(9_000, 20).diagnose().verdict, certain(Bottleneck::SlowReader));
    let both = Verdict::Unsure { bottleneck: Bottleneck::ReceiveBuffer, alternative: Bottleneck::SlowReader };
    let mut joined = Script::new(full);
    assert_eq!(
        joined.read_slowly(9_000, 20).diagnose().verdict,
        both,
        "the window may never have been larger"
    );
    assert_eq!(joined.read_slowly(90_000, 2).diagnose().verdict, certain(Bottleneck::SlowReader));
    script.snapshot = FlowSnapshot { in_flight: 0, outstanding: 0, peer_window: 0, ..script.snapshot };
    let diagnosis = script.acknowledge(30_000).diagnose();
    assert_eq!(diagnosis.verdict, certain(Bottleneck::ZeroWindow));
    assert_eq!(diagnosis.percent(Bottleneck::ZeroWindow), 75);
}

#[test]
fn time_without_data_is_the_applications_unless_the_send_buffer_is_full() {
    let idle = FlowSnapshot { unsent: 0, in_flight: 1_000, outstanding: 1_000, ..SNAPSHOT };
    let mut script = Script::new(idle);
    for _ in 0..5 {
        // The data is acknowledged, then follows a pause and the next request.
        script.acknowledge(20);
        script.now += 960;
        script.snapshot.unsent = 5_000;
        script.change(WindowChangeCause::IdleRestart).acknowledge(20);
        script.snapshot.unsent = 0;
    }
    let diagnosis = script.diagnose();
    assert_eq!(diagnosis.verdict, certain(Bottleneck::Application));
    assert!(diagnosis.percent(Bottleneck::Application) >= 95, "{diagnosis:?}");
    let mut script = Script::new(FlowSnapshot { send_buffer_full: true, ..idle });
    assert_eq!(script.acknowledge(1_000).diagnose().verdict, certain(Bottleneck::SendBuffer));
}

#[test]
fn a_buffer_larger_than_the_path_is_not_the_limit() {
    let full = FlowSnapshot { unsent: 0, send_buffer_full: true, ..SNAPSHOT };
    let mut script = Script::new(full);
    script.with_round_trip(25).acknowledge(1_000);
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::SendBuffer));
    let mut script = Script::new(full);
    let both = Verdict::Unsure { bottleneck: Bottleneck::SendBuffer, alternative: Bottleneck::PathFull };
    assert_eq!(script.with_round_trip(45).acknowledge(1_000).diagnose().verdict, both);
    for limited in [full, FlowSnapshot { cwnd: 20_000, peer_window: 10_500, ..SNAPSHOT }] {
        let mut script = Script::new(limited);
        let diagnosis = script.with_round_trip(320).acknowledge(3_000).diagnose();
        assert_eq!(diagnosis.verdict, certain(Bottleneck::Bufferbloat));
        assert_eq!(diagnosis.path_rate, Some(BitRate(1_600_000)));
        // 300 ms, and none in the first round trip.
        let queue = diagnosis.queue.unwrap();
        assert!(queue > ms(260) && queue < ms(300), "{queue:?}");
    }
}

#[test]
fn delayed_acknowledgments_are_not_a_queue() {
    let mut script = Script::new(SNAPSHOT);
    script.change(WindowChangeCause::Ecn).with_round_trip(45);
    for number in 0..200 {
        script.snapshot.latest_round_trip = Some(ms(if number % 3 == 0 { 60 } else { 20 }));
        script.acknowledge(10);
    }
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::Ecn));
}

#[test]
fn a_reduction_before_the_observation_is_said_to_be_unknown() {
    let mut script = Script::new(FlowSnapshot { ssthresh: Some(5_000), ..SNAPSHOT });
    assert_eq!(script.acknowledge(2_000).diagnose().verdict, certain(Bottleneck::EarlierReduction));
}

#[test]
fn a_window_that_stops_growing_is_clamped() {
    let mut script = Script::new(SNAPSHOT);
    for _ in 0..1_000 {
        script.now += 20;
        script.snapshot.acknowledged += 10_000;
        script.report(FlowEventKind::Acknowledged);
    }
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::WindowClamp));
}

#[test]
fn a_model_based_control_is_not_limited_by_its_window() {
    let paced = FlowSnapshot {
        model_based: true,
        in_flight: 10_000,
        cwnd: 30_000,
        delivery_rate: Some(BitRate(1_600_000)),
        ..SNAPSHOT
    };
    let mut script = Script::new(paced);
    script.acknowledge(5_000);
    assert_eq!(script.diagnose().verdict, certain(Bottleneck::PathFull));
    script.snapshot.cwnd = 3_900;
    script.acknowledge(200);
    assert_eq!(script.diagnose().shares[1].bottleneck, Bottleneck::ProbeRoundTrip);
    // Losses without a queue do not slow it down.
    script.snapshot = FlowSnapshot { cwnd: 30_000, retransmissions: 100, ..script.snapshot };
    script.acknowledge(1_000);
    let both = Verdict::Unsure { bottleneck: Bottleneck::PathFull, alternative: Bottleneck::Policer };
    assert_eq!(script.diagnose().verdict, both);
}

#[test]
fn a_brief_observation_gives_no_verdict() {
    assert_eq!(FlowAccount::default().diagnose(at(1_000)).verdict, Verdict::TooShort);
    let mut script = Script::new(SNAPSHOT);
    assert_eq!(script.acknowledge(100).diagnose().verdict, Verdict::TooShort);
}

fn any_snapshot() -> impl Strategy<Value = FlowSnapshot> {
    let sizes = (0..3_000_u32, any::<u32>(), prop::option::of(any::<u32>()), any::<[u64; 5]>());
    let times =
        prop::option::of((any::<u64>(), prop::option::of(any::<u64>()), prop::option::of(any::<u64>())));
    let flags = (0..5_usize, any::<bool>(), any::<bool>());
    (sizes, times, flags).prop_map(|((segment, cwnd, ssthresh, [a, b, c, d, e]), times, flags)| {
        let (state, send_buffer_full, model_based) = flags;
        let states = [
            CongestionState::Open,
            CongestionState::Disorder,
            CongestionState::Reducing,
            CongestionState::Recovery,
            CongestionState::Loss,
        ];
        // Most values are plausible sizes, some are not.
        let size = |value: u64| if value.is_multiple_of(7) { value >> 1 } else { value >> 44 };
        FlowSnapshot {
            state: states[state],
            segment,
            cwnd: u64::from(cwnd),
            ssthresh: ssthresh.map(u64::from),
            in_flight: size(a) >> 1,
            outstanding: size(b) >> 1,
            unsent: size(c),
            peer_window: size(d),
            smoothed_round_trip: times.map(|(now, _, _)| Duration(now >> 30)),
            min_round_trip: times.and_then(|(_, min, _)| min.map(|min| Duration(min >> 30))),
            latest_round_trip: None,
            pacing_rate: None,
            delivery_rate: times.and_then(|(_, _, rate)| rate.map(BitRate)),
            acknowledged: e >> 2,
            retransmissions: a >> 40,
            send_buffer_full,
            model_based,
        }
    })
}

fn any_event() -> impl Strategy<Value = FlowEvent> {
    let kinds = WindowChangeCause::ALL.map(FlowEventKind::Window);
    let kinds: Vec<FlowEventKind> = kinds
        .into_iter()
        .chain([FlowEventKind::Acknowledged; 9])
        .chain([FlowEventKind::Began, FlowEventKind::Retransmitted, FlowEventKind::Recovered])
        .collect();
    (0..20_000_000_000_u64, prop::sample::select(kinds), any_snapshot())
        .prop_map(|(time, kind, snapshot)| FlowEvent { time: Instant(time), kind, snapshot })
}

proptest! {
    #[test]
    fn shares_of_any_events_add_up_to_the_observed_time(
        mut events in prop::collection::vec(any_event(), 0..60),
        is_sorted in any::<bool>(),
        ends in any::<bool>(),
    ) {
        if is_sorted {
            events.sort_by_key(|event| event.time);
        }
        let mut account = FlowAccount::default();
        for event in &events {
            account.handle(event);
        }
        let end = events.iter().map(|event| event.time).max().unwrap_or(Instant::ZERO);
        if let (true, Some(last)) = (ends, events.last()) {
            account.handle(&FlowEvent { time: end, kind: FlowEventKind::Ended, ..*last });
        }
        let diagnosis = account.diagnose(end);
        let total = diagnosis.shares.iter().fold(Duration::ZERO, |sum, share| sum + share.time);
        prop_assert_eq!(total, diagnosis.time);
        let first = events.first().map_or(Instant::ZERO, |event| event.time);
        prop_assert_eq!(diagnosis.time, end.since(first));
        let percent: u32 = diagnosis.shares.iter().map(|share| u32::from(share.percent)).sum();
        prop_assert_eq!(percent, if diagnosis.shares.is_empty() { 0 } else { 100 });
        let mut named: Vec<Bottleneck> = diagnosis.shares.iter().map(|share| share.bottleneck).collect();
        named.sort_unstable();
        named.dedup();
        prop_assert_eq!(named.len(), diagnosis.shares.len());
    }

    #[test]
    fn percentages_add_up_to_a_hundred(times in prop::collection::vec(0..1_000_000_u64, Bottleneck::ALL.len())) {
        let shares = shares(Bottleneck::ALL.into_iter().zip(times.into_iter().map(Duration)));
        let percent: u32 = shares.iter().map(|share| u32::from(share.percent)).sum();
        prop_assert_eq!(percent, if shares.is_empty() { 0 } else { 100 });
        prop_assert!(shares.is_sorted_by(|one, next| one.time >= next.time));
    }
}

#[test]
fn all_bottlenecks_are_listed_in_order_with_names_of_their_own() {
    assert!(Bottleneck::ALL.into_iter().map(|bottleneck| bottleneck as usize).eq(0..Bottleneck::ALL.len()));
    let mut names = Bottleneck::ALL.map(Bottleneck::name);
    names.sort_unstable();
    assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
}
