//! The I2VFC window over a path with delay, loss and forged replies.

use netstage_core::fair::{
    Decrease, Egress, I2vfcConfig, Ingress, IngressTransmit, NominalReference, Query, Reply, WeightReference,
    WeightRule,
};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use proptest::prelude::*;
use std::collections::VecDeque;

/// A path with a fixed round trip that drops data and management packets at random.
struct ControlledPath {
    config: I2vfcConfig,
    ingress: Ingress<u64>,
    egress: Egress,
    now: Instant,
    one_way: Duration,
    data_loss: f64,
    management_loss: f64,
    stream: RandomStream,
    to_egress: VecDeque<(Instant, IngressTransmit<u64>)>,
    to_ingress: VecDeque<(Instant, Reply)>,
    offered: u64,
    /// Packets that the customer keeps queued at the ingress PE; 0 for an idle customer.
    backlog: usize,
    /// Maximum number of packets in flight to the egress PE.
    capacity: usize,
}

impl ControlledPath {
    fn new(config: I2vfcConfig, round_trip_ms: u64) -> ControlledPath {
        let ingress = Ingress::new(&config, 1.0);
        ControlledPath {
            config,
            ingress,
            egress: Egress::default(),
            now: Instant::ZERO,
            one_way: Duration::from_micros(round_trip_ms * 500),
            data_loss: 0.0,
            management_loss: 0.0,
            stream: RandomStream::new(1, "path"),
            to_egress: VecDeque::new(),
            to_ingress: VecDeque::new(),
            offered: 0,
            backlog: 100,
            capacity: 1_000,
        }
    }

    fn pump(&mut self) {
        loop {
            while self.ingress.queue_len() < self.backlog {
                self.offered += 1;
                self.ingress.handle_packet(&self.config, self.offered).expect("the ingress queue has room");
            }
            let Some(transmit) = self.ingress.poll_transmit(&self.config, self.now) else { return };
            let loss = match transmit {
                IngressTransmit::Data(_) => self.data_loss,
                IngressTransmit::Query(_) => self.management_loss,
            };
            if self.to_egress.len() < self.capacity && !self.stream.chance(loss) {
                self.to_egress.push_back((self.now + self.one_way, transmit));
            }
        }
    }

    fn run(&mut self, length: Duration) {
        let end = self.now + length;
        self.pump();
        loop {
            let arrival = self.to_egress.front().map_or(Instant::NEVER, |(at, _)| *at);
            let reply = self.to_ingress.front().map_or(Instant::NEVER, |(at, _)| *at);
            let timer = self.ingress.poll_timeout(&self.config);
            let next = arrival.min(reply).min(timer);
            if next > end {
                self.now = end;
                return;
            }
            assert!(next >= self.now, "time runs backwards");
            self.now = next;
            if arrival == next {
                match self.to_egress.pop_front().unwrap().1 {
                    IngressTransmit::Data(_) => self.egress.handle_packet(1500, false),
                    IngressTransmit::Query(query) => {
                        if !self.stream.chance(self.management_loss) {
                            let reply = self.egress.handle_query(query, self.now);
                            self.to_ingress.push_back((self.now + self.one_way, reply));
                        }
                    }
                }
            } else if reply == next {
                let reply = self.to_ingress.pop_front().unwrap().1;
                self.ingress.handle_reply(&self.config, None, self.now, &reply);
            } else {
                self.ingress.handle_timeout(&self.config, self.now);
            }
            self.pump();
        }
    }
}

fn config(increase: f64, decrease: f64, window: f64) -> I2vfcConfig {
    I2vfcConfig {
        increase,
        decrease: Decrease::Fixed(decrease),
        initial_window: window,
        pacing: false,
        ..I2vfcConfig::default()
    }
}

#[test]
fn a_window_smaller_than_the_report_interval_never_stalls() {
    for window in [1.0, 2.0, 3.0, 10.0] {
        let mut path = ControlledPath::new(config(0.0, 0.5, window), 100);
        // Losses reduce the window to one packet.
        path.data_loss = 0.2;
        path.run(Duration::from_secs(10));
        let before = path.ingress.counters().sent;
        assert_eq!(path.ingress.window(), 1.0);
        path.run(Duration::from_secs(10));
        let sent = path.ingress.counters().sent - before;
        assert!((95..=101).contains(&sent), "started at {window}: {sent} packets in 100 round trips");
    }
}

#[test]
fn counters_cover_lost_management_packets() {
    let mut lossless = ControlledPath::new(config(0.1, 0.1, 20.0), 100);
    lossless.data_loss = 0.002;
    lossless.run(Duration::from_secs(60));
    let mut lossy = ControlledPath::new(config(0.1, 0.1, 20.0), 100);
    lossy.data_loss = 0.002;
    lossy.management_loss = 0.3; // Half of the exchanges fail, because a loss in either direction suffices.
    lossy.run(Duration::from_secs(60));
    let ratio = lossy.egress.packets as f64 / lossless.egress.packets as f64;
    assert!(ratio > 0.8, "losing half of the reports reduces the rate by {:.0} %", (1.0 - ratio) * 100.0);
    let counters = lossy.ingress.counters();
    assert!(counters.received + counters.lost <= counters.sent);
    assert!(counters.received <= lossy.egress.packets);
}

#[test]
fn a_silent_egress_slows_but_never_stops_the_flow() {
    let mut path = ControlledPath::new(config(0.1, 0.5, 64.0), 100);
    path.data_loss = 0.01;
    path.run(Duration::from_secs(5));
    let before = path.ingress.counters().sent;
    path.management_loss = 1.0;
    path.run(Duration::from_secs(20));
    let counters = path.ingress.counters();
    assert!(path.ingress.window() < 2.0, "the window stayed at {}", path.ingress.window());
    assert!(counters.silences >= 10, "{} silences", counters.silences);
    assert!(counters.sent > before + 20, "the flow stopped");
    path.management_loss = 0.0;
    path.data_loss = 0.0;
    path.run(Duration::from_secs(5));
    assert!(path.ingress.counters().sent > counters.sent + 50, "the flow did not recover");
}

#[test]
fn a_failed_and_restored_path_costs_one_decrease() {
    for is_congested in [false, true] {
        let mut path = ControlledPath::new(config(0.1, 0.5, 64.0), 100);
        path.data_loss = 0.02;
        path.run(Duration::from_secs(1));
        path.data_loss = 0.0;
        path.run(Duration::from_secs(30));
        let before = path.ingress.window();
        (path.data_loss, path.management_loss) = (1.0, 1.0);
        path.run(Duration::from_secs(5));
        let during = path.ingress.window();
        assert!(during < before / 8.0, "window {before} before and {during} during the failure");
        path.management_loss = 0.0;
        // If the restored path has less capacity, the window grows as usual.
        path.data_loss = if is_congested { 0.2 } else { 0.0 };
        path.run(Duration::from_secs(2));
        path.data_loss = 0.0;
        path.run(Duration::from_secs(2));
        let after = path.ingress.window();
        let regained = before * 0.5..before * 0.5 + 5.0;
        assert_eq!(regained.contains(&after), !is_congested, "window {before}, {during}, then {after}");
    }
}

#[test]
fn one_decrease_per_round_trip_regardless_of_the_losses() {
    let mut path = ControlledPath::new(config(0.0, 0.5, 64.0), 100);
    path.run(Duration::from_millis(99));
    let before = path.ingress.window();
    path.data_loss = 0.5;
    // Losses of the packets sent in the next round trip are reported in the one after.
    path.run(Duration::from_millis(100));
    path.data_loss = 0.0;
    path.run(Duration::from_millis(101));
    let after = path.ingress.window();
    assert!(after >= before * 1.4 * 0.5 && after <= before * 1.6 * 0.51, "window {before}, then {after}");
}

#[test]
fn an_unused_window_does_not_grow() {
    let mut path = ControlledPath::new(config(1.0, 0.5, 50.0), 100);
    path.backlog = 0;
    for _ in 0..500 {
        // Two packets per round trip: far from the window.
        path.ingress.handle_packet(&path.config, 0).unwrap();
        path.run(Duration::from_millis(50));
    }
    assert_eq!(path.ingress.window(), 50.0);
}

/// AIMD(a, b) with random loss sends √(a(2 − b)/(2bp))/R packets/s. With independent losses, the mean of the
/// window over its geometric intervals is higher by a factor of up to 1.31/1.22 (see the TCP law tests). The
/// decrease takes effect after a round trip.
#[test]
fn the_rate_follows_the_aimd_law() {
    for (a, b, p) in [(0.1, 0.1, 1e-3), (0.5, 0.25, 1e-3), (1.0, 0.5, 5e-4), (0.1, 0.05, 5e-4)] {
        let mut path = ControlledPath::new(config(a, b, 20.0), 50);
        path.data_loss = p;
        path.run(Duration::from_secs(50));
        let from = path.egress.packets;
        let seconds = 2_000;
        path.run(Duration::from_secs(seconds));
        let rate = (path.egress.packets - from) as f64 / seconds as f64;
        let law = libm::sqrt(a * (2.0 - b) / (2.0 * b * p)) / 0.05;
        let ratio = rate / law;
        assert!((0.93..1.09).contains(&ratio), "a {a} b {b} p {p}: {rate:.1}, expected {law:.1}: {ratio:.3}");
    }
}

#[test]
fn weights_hold_between_flows_of_different_round_trips() {
    // Each flow is alone on a path with the same loss: the shares follow from the law only.
    let rate = |weight: f64, round_trip_ms: u64, decrease| {
        let nominal = NominalReference { weight: 1.0, decrease: 0.1, round_trip: Duration::from_millis(100) };
        let config = I2vfcConfig {
            increase: 0.5,
            decrease,
            reference: WeightReference::Nominal(nominal),
            rule: WeightRule::DecreaseThenIncrease,
            pacing: false,
            ..I2vfcConfig::default()
        };
        let mut path = ControlledPath::new(config.clone(), round_trip_ms);
        path.ingress = Ingress::new(&config, weight);
        path.data_loss = 5e-4;
        path.run(Duration::from_secs(100));
        let from = path.egress.packets;
        path.run(Duration::from_secs(1_500));
        (path.egress.packets - from) as f64 / 1_500.0
    };
    let reference = rate(1.0, 100, Decrease::Fixed(0.1));
    for (weight, round_trip) in [(2.0, 50), (2.0, 150), (3.0, 100), (4.0, 50), (0.5, 200)] {
        let share = rate(weight, round_trip, Decrease::FromWeight) / reference;
        assert!((share / weight - 1.0).abs() < 0.1, "weight {weight}, {round_trip} ms: share {share:.2}");
    }
}

#[test]
fn replayed_and_impossible_replies_are_counted_and_ignored() {
    let mut path = ControlledPath::new(config(0.1, 0.1, 10.0), 100);
    path.run(Duration::from_secs(1));
    let (window, counters) = (path.ingress.window(), path.ingress.counters());
    let valid =
        Query { sequence: counters.queries as u32 - 1, sent_at: path.now, packets_sent: counters.sent };
    let reply = |query, packets_received| Reply {
        query,
        packets_received,
        packets_marked: 0,
        residence_time: Duration::ZERO,
        transit: 0,
    };
    let forged = [
        reply(Query { sequence: 0, ..valid }, counters.sent),
        reply(Query { sequence: valid.sequence + 1, ..valid }, counters.sent),
        reply(Query { sent_at: path.now + Duration(1), ..valid }, counters.sent),
        reply(Query { packets_sent: counters.sent + 1, ..valid }, counters.sent),
        reply(valid, counters.sent + 1),
        reply(valid, 0),
    ];
    for reply in &forged {
        path.ingress.handle_reply(&path.config, None, path.now, reply);
    }
    assert_eq!(path.ingress.window(), window);
    assert_eq!(path.ingress.counters().bad_replies, forged.len() as u64);
    path.run(Duration::from_secs(1));
    assert!(path.ingress.counters().sent > counters.sent + 50);
}

#[test]
fn a_restarted_egress_pe_is_recognized() {
    let mut path = ControlledPath::new(config(0.1, 0.1, 20.0), 100);
    path.data_loss = 0.001;
    path.run(Duration::from_secs(60));
    let steady = path.ingress.counters();
    path.run(Duration::from_secs(20));
    let before = path.ingress.counters();
    path.egress = Egress::default();
    path.run(Duration::from_secs(20));
    let after = path.ingress.counters();
    assert!(after.bad_replies <= before.bad_replies + 3);
    assert_eq!(after.silences, 0);
    assert!(after.sent - before.sent > (before.sent - steady.sent) / 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// With any replies, the window remains finite and at least 1, and the flow continues.
    #[test]
    fn no_reply_breaks_the_window(
        replies in proptest::collection::vec(
            (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()), 1..60),
        window in 1.0f64..500.0,
        pacing in any::<bool>(),
    ) {
        let mut path = ControlledPath::new(I2vfcConfig { pacing, ..config(1.0, 0.5, window) }, 20);
        for (sequence, sent_at, sent, received, held, plausible) in replies {
            path.run(Duration::from_millis(7));
            let counters = path.ingress.counters();
            let near = |value: u64, around: u64| if plausible { around.saturating_sub(value % 8) } else { value };
            let query = Query {
                sequence: near(u64::from(sequence), counters.queries) as u32,
                sent_at: Instant(near(sent_at, path.now.0)),
                packets_sent: near(sent, counters.sent),
            };
            let reply = Reply {
                query,
                packets_received: near(received, counters.sent),
                packets_marked: 0,
                residence_time: Duration(near(held, 0)),
                transit: held as i64,
            };
            path.ingress.handle_reply(&path.config, None, path.now, &reply);
            prop_assert!(path.ingress.window().is_finite() && path.ingress.window() >= 1.0);
            prop_assert!(path.ingress.in_flight() <= path.ingress.counters().sent);
        }
        let sent = path.ingress.counters().sent;
        path.run(Duration::from_secs(3));
        prop_assert!(path.ingress.counters().sent > sent, "{:?}", path.ingress);
    }
}
