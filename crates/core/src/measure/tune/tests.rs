use super::*;
use proptest::prelude::*;

const SEGMENT: u32 = 1_448;

/// A path with a knee: a rate, a base round trip, a buffer, and what overflowing it costs.
#[derive(Clone, Copy, Debug)]
struct Knee {
    rate: f64,
    round_trip: f64,
    /// Bytes.
    buffer: f64,
    /// Share of the rate that is lost by windows that overflow the buffer.
    cost: f64,
    /// Standard deviation of a transfer's goodput, as a share.
    noise: f64,
    /// Of what all transfers of the time have in common: a slow wave.
    drift: f64,
}

impl Knee {
    fn fills(&self) -> f64 {
        self.rate * self.round_trip / 8.0
    }

    /// Goodput without noise.
    fn goodput(&self, window: Option<u64>) -> f64 {
        let window = window.map_or(f64::INFINITY, |window| window as f64);
        let carried = (8.0 * window / self.round_trip).min(self.rate);
        if window > self.fills() + self.buffer { carried * (1.0 - self.cost) } else { carried }
    }

    fn best(&self) -> f64 {
        self.goodput(Some(self.fills() as u64 + 1)).max(self.goodput(None))
    }

    fn transfer(&self, setting: Setting, trial: usize, random: &mut Stream) -> Sample {
        let window = setting.window.map_or(f64::INFINITY, |window| window as f64);
        let wave = 1.0 + self.drift * libm::sin(trial as f64 / 7.0);
        let goodput = self.goodput(setting.window) * wave * (1.0 + self.noise * random.normal());
        let waits = (window - self.fills()).clamp(0.0, self.buffer) * 8.0 / self.rate;
        let overflows = window > self.fills() + self.buffer;
        Sample {
            goodput: goodput.max(1.0),
            least_round_trip: Duration::from_secs_f64(self.round_trip),
            mean_round_trip: Duration::from_secs_f64(
                self.round_trip + waits * if overflows { 0.7 } else { 1.0 },
            ),
            longest_round_trip: Duration::from_secs_f64(self.round_trip + waits),
            retransmissions: if overflows { 9 } else { 0 },
        }
    }

    fn tune(&self, config: Config, seed: u64) -> (Found, usize) {
        let mut tune = Tune::new(config, Stream::new(seed, "order"));
        let mut random = Stream::new(seed, "noise");
        while let Some(setting) = tune.next() {
            tune.record(self.transfer(setting, tune.trials(), &mut random));
        }
        (tune.result().unwrap(), tune.trials())
    }
}

fn config() -> Config {
    Config {
        controls: 1,
        segment: SEGMENT,
        largest: 64 << 20,
        delay_bound: None,
        tolerance: 0.015,
        trials: 40,
    }
}

/// The VPN paper's line: 28.5 Mbit/s, 20 ms, 68 packets, and a little less beyond.
const PAPER: Knee =
    Knee { rate: 28.5e6, round_trip: 0.02, buffer: 98_464.0, cost: 0.02, noise: 0.0, drift: 0.0 };

#[test]
fn without_noise_the_knee_is_found_in_a_few_transfers() {
    let (found, trials) = PAPER.tune(config(), 1);
    let window = found.best.unwrap().window.unwrap() as f64;
    // The smallest window with the best goodput.
    assert!((PAPER.fills()..PAPER.fills() * 1.2).contains(&window), "{window}: {found:?}");
    assert!(found.is_sure && trials <= 25, "{trials}: {found:?}");
    assert!((found.knee.unwrap() / PAPER.fills() - 0.97).abs() < 0.02, "{found:?}");
    let losses = found.losses_from.unwrap() as f64;
    assert!((PAPER.fills() + PAPER.buffer..300_000.0).contains(&losses), "{losses}");
    let path = found.path;
    assert!(
        (path.bottleneck - PAPER.rate).abs() < 1.0 && (path.buffer - PAPER.buffer).abs() < 1.0,
        "{path:?}"
    );
    assert!((path.bandwidth_delay_product - 71_250.0).abs() < 1.0, "{path:?}");
    // 1 / 0.98.
    assert!((found.gain.unwrap().mean - 0.0204).abs() < 1e-3, "{:?}", found.gain);
}

#[test]
fn a_bound_of_the_round_trip_is_kept() {
    let bound = Duration::from_millis(30);
    let (found, _) = PAPER.tune(Config { delay_bound: Some(bound), ..config() }, 2);
    let best = found.best.unwrap();
    let of_best = found.curve.iter().find(|of| of.setting == best).unwrap();
    assert!(of_best.round_trip.mean <= 0.03 && of_best.goodput.mean > 0.99 * PAPER.rate, "{of_best:?}");
    // A path that is longer than that has no such window.
    let short = Duration::from_millis(19);
    let (found, trials) = PAPER.tune(Config { delay_bound: Some(short), ..config() }, 2);
    assert_eq!(found.best, None);
    assert!(trials <= 40 && !found.curve.is_empty());
}

#[test]
fn a_path_that_a_segment_fills_has_a_window_all_the_same() {
    let short = Knee { rate: 18e6, round_trip: 0.0005, buffer: 300_000.0, cost: 0.0, ..PAPER };
    let (found, _) = short.tune(config(), 8);
    assert_eq!(found.best.unwrap().window, Some(4 * u64::from(SEGMENT)));
}

#[test]
fn the_better_congestion_control_is_chosen() {
    let poor = Knee { cost: 0.3, rate: PAPER.rate * 0.9, ..PAPER };
    let mut tune = Tune::new(Config { controls: 2, ..config() }, Stream::new(3, "order"));
    let mut random = Stream::new(3, "noise");
    while let Some(setting) = tune.next() {
        let path = if setting.control == 0 { poor } else { PAPER };
        tune.record(path.transfer(setting, tune.trials(), &mut random));
    }
    let found = tune.result().unwrap();
    assert_eq!(found.best.unwrap().control, 1);
    assert!(found.is_sure, "{found:?}");
}

#[test]
fn a_free_transfer_that_went_badly_misleads_not_for_long() {
    // It reached a tenth of what a window in bounds does.
    let path = Knee { cost: 0.9, buffer: 20_000.0, ..PAPER };
    let (found, trials) = path.tune(config(), 4);
    let goodput = path.goodput(found.best.unwrap().window);
    assert!(goodput > 0.97 * path.best() && trials <= 40, "{trials}: {found:?}");
    assert!(found.gain.unwrap().mean > 5.0);
}

#[test]
fn nothing_arrives_and_it_ends_all_the_same() {
    let dead = Knee { rate: 1e-9, ..PAPER };
    let (found, trials) = dead.tune(config(), 5);
    assert!(trials < 40 && found.path.bottleneck < 2.0, "{found:?}");
}

#[test]
fn a_noisy_path_is_said_to_be_unsure_when_the_transfers_are_used_up() {
    let noisy = Knee { noise: 0.1, ..PAPER };
    let runs: Vec<(Found, usize)> = (0..50).map(|seed| noisy.tune(config(), seed)).collect();
    let unsure = runs.iter().filter(|(found, _)| !found.is_sure);
    assert!(unsure.clone().all(|(found, trials)| found.best.is_some() && *trials == 40));
    assert!(unsure.count() > 25);
}

/// What is promised: within 3 % of the best, in a fifth of the time of 20 windows × 5 × 10 s: 40 transfers of 5 s.
#[test]
fn with_noise_it_is_within_three_percent_nearly_always() {
    let mut random = Stream::new(7, "paths");
    let (mut missed, mut sure, mut trials, runs) = (0, 0, 0, 400);
    for seed in 0..runs {
        let path = Knee {
            rate: 1e6 * libm::exp(random.uniform() * 6.0),
            round_trip: 0.002 * libm::exp(random.uniform() * 4.0),
            buffer: 0.0,
            cost: 0.3 * random.uniform(),
            noise: 0.02 * random.uniform(),
            drift: 0.1 * random.uniform(),
        };
        let path = Knee { buffer: path.fills() * (0.3 + 2.0 * random.uniform()), ..path };
        if path.fills() < 10.0 * f64::from(SEGMENT) {
            continue;
        }
        let (found, of_this) = path.tune(config(), seed);
        let reached = path.goodput(found.best.unwrap().window);
        missed += usize::from(reached < 0.97 * path.best());
        sure += usize::from(found.is_sure);
        trials += of_this;
        assert!(of_this <= 40);
    }
    // With a confidence of 95 %, 20 in 400 may miss; chance may add ten.
    assert!(missed <= 30, "{missed} of {runs} missed");
    assert!(sure > 200, "{sure} sure, {} transfers in the mean", trials as f64 / f64::from(runs as u32));
}

proptest! {
    #[test]
    fn it_ends_within_its_transfers_whatever_they_say(
        seed: u64,
        controls in 1_usize..4,
        trials in 1_usize..60,
        bound in proptest::option::of(1_u64..100),
        goodputs in proptest::collection::vec(0.0..1e9, 60),
    ) {
        let config = Config { controls, trials, delay_bound: bound.map(Duration::from_millis), ..config() };
        let largest = config.largest;
        let trip = |factor| Duration::from_millis(10 * factor);
        let ask = || {
            let mut tune = Tune::new(config.clone(), Stream::new(seed, "order"));
            let mut asked = Vec::new();
            while let Some(setting) = tune.next() {
                let count = asked.len();
                asked.push(setting);
                tune.record(Sample {
                    goodput: goodputs[count],
                    least_round_trip: trip(1),
                    mean_round_trip: trip(1 + count as u64 % 3),
                    longest_round_trip: trip(5),
                    retransmissions: count as u64 % 2,
                });
            }
            (asked, tune.result().unwrap())
        };
        let (asked, found) = ask();
        prop_assert!(asked.len() <= trials);
        for window in asked.iter().filter_map(|setting| setting.window) {
            prop_assert!((4 * u64::from(SEGMENT)..=largest).contains(&window) && window % u64::from(SEGMENT) == 0);
        }
        let tried: usize = found.curve.iter().map(|of| of.goodput.count).sum();
        prop_assert_eq!(tried, asked.len());
        // The same answers bring the same questions.
        prop_assert_eq!(ask().0, asked);
    }
}
