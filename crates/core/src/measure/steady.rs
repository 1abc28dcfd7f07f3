//! Search for the highest rate that a router carries steadily: no loss, and a mean delay per second that
//! neither grows nor exceeds a fixed multiple of the delay at a low rate. A search for loss alone would count
//! a standing queue as throughput. The MPLS-IX routers were compared with this criterion.
//!
//! Sans-IO as the other searches, except that a trial also reports the mean delay of each second.

use super::student_t_975;
use super::trial::{
    Admission, FaultTolerance, FrameSize, OfferedLoad, Pauses, Referee, TesterFault, Trial, TrialResult,
};
use crate::time::Duration;
use alloc::vec::Vec;

/// Factor of the mean delay at the low rate that, plus [`MAX_BURST_TIME`], no second's mean delay may exceed.
pub const MAX_DELAY_FACTOR: f64 = 10.0;
/// Maximum time's worth of packets that senders send back to back. Packets of a burst wait for each other,
/// and this wait is not a delay of the router.
pub const MAX_BURST_TIME: Duration = Duration(20_000);
/// Rise of the delay over a trial, as a share of the mean, up to which the delay counts as constant.
const MIN_RISE: f64 = 0.1;
/// Relative rounding error of the quotient of two rates.
const ROUNDING: f64 = 1e-9;
/// Minimum number of seconds needed to detect a trend.
const MIN_SECONDS: usize = 5;

/// Rates and durations of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyConfig {
    /// Frame size.
    pub frame: FrameSize,
    /// Low rate, at which delays are those of an unloaded router.
    pub low: OfferedLoad,
    /// Highest rate to try.
    pub maximum: OfferedLoad,
    /// Rate step; rates tried are whole multiples of it.
    pub step: OfferedLoad,
    /// Duration of the confirming trials.
    pub duration: Duration,
    /// Duration of the search trials, which choose the rate to confirm.
    pub search: Duration,
    /// Pauses after each trial.
    pub pauses: Pauses,
    /// Handling of tester faults.
    pub patience: FaultTolerance,
}

/// Classification of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SteadyVerdict {
    /// No loss and a steady delay.
    Steady,
    /// Number of packets lost.
    Lost(u64),
    /// A queue of the path absorbed a part of the load.
    Absorbed {
        /// Rate at which the packets arrived.
        arrived: OfferedLoad,
    },
    /// Mean delay of some second above the limit.
    Slow {
        /// Largest mean delay of a second, seconds.
        worst: f64,
        /// Mean delay at the low rate, seconds.
        low: f64,
    },
    /// Mean delay that grew over the trial.
    Growing {
        /// Growth from the first second to the last, as a share of the mean.
        share: f64,
    },
}

/// Result of the search.
#[derive(Clone, Debug, PartialEq)]
pub struct SteadyResult {
    /// Highest rate carried steadily in a confirming trial, but at most the rate at which its packets arrived; `None` if there
    /// was none.
    pub rate: Option<OfferedLoad>,
    /// Highest mean rate of any trial without loss and with a steady delay, also of those in which the tester offered less
    /// than requested, but at most the rate at which the packets arrived; `None` if there was none. A lower bound of the
    /// result.
    pub bound: Option<OfferedLoad>,
    /// Result of that trial.
    pub trial: Option<TrialResult>,
    /// Lowest rate that failed, and the classification of its trial.
    pub beyond: Option<(OfferedLoad, SteadyVerdict)>,
    /// Mean delay at the low rate, seconds.
    pub low_delay: Option<f64>,
    /// Rate above which the tester failed; the router may carry more.
    pub tester_limit: Option<OfferedLoad>,
    /// Number of valid trials.
    pub trials: u32,
    /// Tester faults; trials with faults are not counted.
    pub faults: Vec<TesterFault>,
}

/// Purpose of the next trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SteadyPhase {
    /// Measure the delay at the low rate.
    Low,
    /// Bisect with short trials.
    Search,
    /// Confirm with a full-length trial; the value is the number of steps to go down if it fails.
    Confirm(u64),
    Done,
}

/// A search that bisects with short trials, then confirms with full-length trials, going down from the rate
/// found until one succeeds.
#[derive(Clone, Debug)]
pub struct Steady {
    config: SteadyConfig,
    phase: SteadyPhase,
    /// Highest rate known to be carried, and lowest rate not carried or not tried, in steps.
    good: u64,
    bad: u64,
    low_delay: Option<f64>,
    found: Option<(u64, TrialResult)>,
    beyond: Option<(OfferedLoad, SteadyVerdict)>,
    tester_limit: Option<OfferedLoad>,
    /// Highest mean rate of a steady trial, packets per second; zero if there was none.
    bound: f64,
    trials: u32,
    validator: Referee,
}

impl Steady {
    /// Creates a search. Panics unless all rates are above zero.
    pub fn new(config: SteadyConfig) -> Steady {
        assert!(config.low.0 > 0.0 && config.step.0 > 0.0 && config.maximum.0 > 0.0, "{config:?}");
        Steady {
            phase: SteadyPhase::Low,
            good: 0,
            // The maximum may be a multiple of the step that rounding has made smaller.
            bad: libm::floor(config.maximum.0 / config.step.0 * (1.0 + ROUNDING)) as u64 + 1,
            low_delay: None,
            found: None,
            beyond: None,
            tester_limit: None,
            bound: 0.0,
            trials: 0,
            validator: Referee::new(config.patience),
            config,
        }
    }

    /// Returns the next trial, unchanged until its result is recorded; `None` at the end.
    pub fn next(&self) -> Option<Trial> {
        let (load, duration) = match self.phase {
            SteadyPhase::Low => (self.config.low, self.config.search),
            SteadyPhase::Search => (self.steps(self.tried()), self.config.search),
            SteadyPhase::Confirm(_) => (self.steps(self.tried()), self.config.duration),
            SteadyPhase::Done => return None,
        };
        Some(Trial::with_duration(duration, load, self.config.frame, self.config.pauses))
    }

    /// Records the result of the proposed trial and the mean delay of each of its seconds, in seconds. Panics
    /// if no trial was proposed.
    pub fn record(&mut self, result: &TrialResult, seconds: &[f64]) {
        let trial = self.next().expect("a result is recorded after a proposal");
        let fault = result.fault_of_delays(&trial, self.config.patience.tolerance);
        let is_short =
            matches!(fault, Some(TesterFault::GeneratorShort { .. } | TesterFault::GeneratorStopped { .. }));
        if is_short && result.lost() > result.late {
            // The packets that left kept their spacing: the router loses packets at the requested load, too.
            self.count_trial(&trial, result, seconds);
            return;
        }
        // A trial above the rate of the path may end before a queue overflows, unless it is long enough to show that the
        // delay grows.
        let is_long = seconds.len() >= MIN_SECONDS || matches!(self.phase, SteadyPhase::Confirm(_));
        if is_long
            && (fault.is_none() || is_short)
            && judge(None, result, seconds, self.low_delay) == SteadyVerdict::Steady
        {
            let mean = result.sent as f64 / trial.duration().as_secs_f64();
            // A queue of the path may absorb a part of the load.
            self.bound = self.bound.max(mean.min(trial.load.0).min(result.delivered().0));
        }
        match self.validator.decide(result, fault) {
            Admission::Counted => self.count_trial(&trial, result, seconds),
            Admission::Repeat => {}
            Admission::Lowered(load) if self.phase != SteadyPhase::Low => {
                let tried = self.tried();
                self.bad = (libm::floor(load.0 / self.config.step.0) as u64 + 1).min(tried);
                self.tester_limit = Some(load);
                match self.phase {
                    // The tester may be unable to repeat a rate it reached once.
                    SteadyPhase::Confirm(down) => self.go_down(self.bad.saturating_sub(1), down),
                    _ => {
                        self.good = self.good.min(self.bad.saturating_sub(1));
                        self.advance();
                    }
                }
            }
            Admission::Lowered(_) | Admission::Abandoned => self.phase = SteadyPhase::Done,
        }
    }

    /// Returns the result so far.
    pub fn result(&self) -> SteadyResult {
        SteadyResult {
            rate: self.found.map(|(steps, result)| result.carried(self.steps(steps))),
            bound: (self.bound > 0.0).then_some(OfferedLoad(self.bound)),
            trial: self.found.map(|(_, result)| result),
            beyond: self.beyond,
            low_delay: self.low_delay,
            tester_limit: self.tester_limit,
            trials: self.trials,
            faults: self.validator.faults().to_vec(),
        }
    }

    fn steps(&self, steps: u64) -> OfferedLoad {
        OfferedLoad(self.config.step.0 * steps as f64)
    }

    /// Returns the rate of the next trial in steps; the first is the highest.
    fn tried(&self) -> u64 {
        match self.phase {
            SteadyPhase::Confirm(_) => self.good,
            _ if self.beyond.is_none() && self.tester_limit.is_none() => self.bad - 1,
            _ => self.good.midpoint(self.bad),
        }
    }

    fn count_trial(&mut self, trial: &Trial, result: &TrialResult, seconds: &[f64]) {
        self.trials += 1;
        if self.phase == SteadyPhase::Low {
            let known = seconds.iter().copied().filter(|delay| delay.is_finite());
            let (count, sum) = known.fold((0_u32, 0.0), |(count, sum), delay| (count + 1, sum + delay));
            self.low_delay = (count > 0).then(|| sum / f64::from(count));
            if result.lost() > 0 {
                self.beyond = Some((trial.load, SteadyVerdict::Lost(result.lost())));
                self.phase = SteadyPhase::Done;
                return;
            }
            self.phase = SteadyPhase::Search;
            self.advance();
            return;
        }
        let (steps, verdict) = (self.tried(), judge(Some(trial), result, seconds, self.low_delay));
        match (verdict, self.phase) {
            (SteadyVerdict::Steady, SteadyPhase::Confirm(_)) => {
                self.found = Some((steps, *result));
                self.phase = SteadyPhase::Done;
                return;
            }
            (SteadyVerdict::Steady, _) => self.good = steps,
            (_, SteadyPhase::Confirm(down)) => {
                self.beyond = Some((trial.load, verdict));
                self.bad = steps;
                self.go_down(steps, down);
                return;
            }
            _ => {
                self.beyond = Some((trial.load, verdict));
                self.bad = steps;
            }
        }
        self.advance();
    }

    /// Proposes to confirm the rate `down` steps below `from`.
    fn go_down(&mut self, from: u64, down: u64) {
        self.good = from.saturating_sub(down);
        self.phase = if self.good == 0 { SteadyPhase::Done } else { SteadyPhase::Confirm(down * 2) };
    }

    /// Starts the confirming trials once no untried rate is left between the bounds.
    fn advance(&mut self) {
        if self.good + 1 >= self.bad && self.phase != SteadyPhase::Low {
            self.phase = if self.good == 0 { SteadyPhase::Done } else { SteadyPhase::Confirm(1) };
        }
    }
}

/// Classifies a trial by its loss, by its arrivals if its load is given, and by its delays relative to the mean delay at
/// the low rate.
pub fn judge(
    trial: Option<&Trial>,
    result: &TrialResult,
    seconds: &[f64],
    low: Option<f64>,
) -> SteadyVerdict {
    if result.lost() > 0 {
        return SteadyVerdict::Lost(result.lost());
    }
    let offered = |trial: &Trial| OfferedLoad(trial.load.0.min(result.offered().0));
    if let Some(arrived) = trial.and_then(|trial| result.absorbed(offered(trial), trial.duration())) {
        return SteadyVerdict::Absorbed { arrived };
    }
    let seconds: Vec<f64> = seconds.iter().copied().filter(|delay| delay.is_finite()).collect();
    let worst = seconds.iter().copied().fold(0.0, f64::max);
    if let Some(low) = low
        && worst > MAX_DELAY_FACTOR * low + MAX_BURST_TIME.as_secs_f64()
    {
        return SteadyVerdict::Slow { worst, low };
    }
    match growth(&seconds) {
        Some(share) if share > MIN_RISE => SteadyVerdict::Growing { share },
        _ => SteadyVerdict::Steady,
    }
}

/// Returns the growth of the values from first to last as a share of their mean, by least squares. Returns
/// `None` if the slope is not significant (one-sided 2.5 %).
fn growth(values: &[f64]) -> Option<f64> {
    if values.len() < MIN_SECONDS {
        return None;
    }
    let n = values.len() as f64;
    let (middle, mean) = ((n - 1.0) / 2.0, values.iter().sum::<f64>() / n);
    let (mut squares, mut products) = (0.0, 0.0);
    for (place, value) in values.iter().enumerate() {
        let from_middle = place as f64 - middle;
        squares += from_middle * from_middle;
        products += from_middle * (value - mean);
    }
    let slope = products / squares;
    let residue = |(place, value): (usize, &f64)| {
        let off = value - mean - slope * (place as f64 - middle);
        off * off
    };
    let residues: f64 = values.iter().enumerate().map(residue).sum();
    let error = libm::sqrt(residues / (n - 2.0) / squares);
    (slope > student_t_975(values.len() - 2) * error).then_some(slope * (n - 1.0) / mean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Arrivals;
    use crate::measure::trial::CountedLayer;
    use crate::quantity::BitRate;

    fn config(maximum: f64) -> SteadyConfig {
        SteadyConfig {
            frame: FrameSize::ethernet_udp(64),
            low: OfferedLoad(1000.0),
            maximum: OfferedLoad(maximum),
            step: OfferedLoad(2500.0),
            duration: Duration::from_secs(60),
            search: Duration::from_secs(2),
            pauses: Pauses::RFC2544,
            patience: FaultTolerance::default(),
        }
    }

    /// Runs the search against a router that loses packets above one rate and builds a queue above another.
    fn run(mut search: Steady, loses: f64, queues: f64, tester: f64) -> (SteadyResult, Vec<f64>) {
        let mut tried = Vec::new();
        while let Some(trial) = search.next() {
            tried.push(trial.load.0);
            let offered = trial.load.0.min(tester);
            let seconds = trial.duration().as_secs_f64();
            let sent = libm::round(offered * seconds) as u64;
            let lost = if offered > loses { 1 + sent / 100 } else { 0 };
            let result = TrialResult {
                sent,
                received: sent - lost,
                sending: trial.duration(),
                ..TrialResult::default()
            };
            let grows = if offered > queues { 1e-6 } else { 0.0 };
            let delays: Vec<f64> =
                (0..seconds as usize).map(|second| 10e-6 + grows * second as f64).collect();
            search.record(&result, &delays);
            assert!(tried.len() < 100);
        }
        (search.result(), tried)
    }

    #[test]
    fn highest_rate_without_loss_is_found_within_one_step() {
        let (found, tried) = run(Steady::new(config(1e6)), 333_333.0, f64::INFINITY, f64::INFINITY);
        assert_eq!(found.rate, Some(OfferedLoad(332_500.0)));
        assert_eq!(found.beyond.map(|(load, _)| load), Some(OfferedLoad(335_000.0)));
        assert_eq!(found.low_delay, Some(10e-6));
        assert!(tried.len() < 14, "{tried:?}");
    }

    #[test]
    fn router_at_line_rate_needs_one_full_length_trial() {
        let (found, tried) = run(Steady::new(config(1e6)), f64::INFINITY, f64::INFINITY, f64::INFINITY);
        assert_eq!((found.rate, found.beyond), (Some(OfferedLoad(1e6)), None));
        assert_eq!(tried, [1000.0, 1e6, 1e6]);
    }

    #[test]
    fn queue_growth_seen_only_in_a_long_trial_lowers_the_rate() {
        let (found, _) = run(Steady::new(config(1e6)), 333_333.0, 320_000.0, f64::INFINITY);
        let rate = found.rate.unwrap().0;
        assert!((310_000.0..=320_000.0).contains(&rate), "{rate}");
        assert!(
            matches!(found.beyond, Some((_, SteadyVerdict::Growing { share })) if share > 1.0),
            "{found:?}"
        );
    }

    #[test]
    fn tester_limit_is_reported_apart_from_the_router() {
        let (found, _) = run(Steady::new(config(1e6)), f64::INFINITY, f64::INFINITY, 500_100.0);
        assert_eq!(found.rate, Some(OfferedLoad(500_000.0)));
        assert_eq!((found.beyond, found.tester_limit), (None, Some(OfferedLoad(500_100.0))));
    }

    /// Draws routers, and testers that offer less than requested at random, stop early, or hold packets. The result is never
    /// above the capacity of the router, and never unknown if packets were sent without loss.
    #[test]
    fn results_of_a_tester_that_falls_short_are_lower_bounds() {
        let seed = netstage_harness::seed("short testers");
        let mut random = crate::rng::RandomStream::new(seed, "testers");
        let mut bounded = 0;
        for case in 0..500 {
            let mut search = Steady::new(config(1e6));
            let (capacity, tester) = (1e3 + random.uniform() * 2e6, 1e4 + random.uniform() * 1.5e6);
            let (is_busy, is_stopped) = (random.chance(0.5), random.chance(0.3));
            let (mut count, mut best) = (0, 0.0_f64);
            while let Some(trial) = search.next() {
                let busy = if is_busy { 0.2 + 0.8 * random.uniform() } else { 1.0 };
                let offered = trial.load.0.min(tester * busy);
                let sent = libm::floor(offered * trial.duration().as_secs_f64()) as u64;
                let lost = if offered > capacity { 1 + sent / 50 } else { 0 };
                let received = sent - lost;
                let sending = trial.duration();
                let is_held = is_stopped && random.chance(0.8);
                let held = Duration::from_millis(if is_held { 20 } else { 0 });
                let result = TrialResult { sent, received, sending, held, ..TrialResult::default() };
                if lost == 0 && !is_held {
                    best = best.max(offered);
                }
                search.record(&result, &[10e-6; 10]);
                count += 1;
                assert!(count < 500, "case {case}");
            }
            let found = search.result();
            let about = alloc::format!("case {case}: capacity {capacity}, tester {tester}, {found:?}");
            assert!(found.rate.is_none_or(|rate| rate.0 <= capacity), "{about}");
            assert!(found.bound.is_none_or(|bound| bound.0 <= capacity && bound.0 > best * 0.98), "{about}");
            assert!(found.bound.is_some() || best == 0.0, "{about}");
            assert!(found.beyond.is_none_or(|(load, _)| load.0 >= capacity), "{about}");
            bounded += usize::from(found.rate.is_none() && found.bound.is_some());
        }
        assert!(bounded > 5, "{bounded} results are only bounded");
    }

    #[test]
    fn maximum_that_is_a_multiple_of_the_step_is_tried() {
        for (size, steps) in
            [46, 66, 130, 258, 514, 1026, 1498].into_iter().zip(1..200).chain((1..300).map(|n| (46, n)))
        {
            let frame = FrameSize::ethernet_udp(size + 18);
            let rate = |megabits: u64| {
                OfferedLoad::from_bit_rate(BitRate(megabits * 1_000_000), CountedLayer::Ip, frame)
            };
            let config = SteadyConfig { frame, maximum: rate(steps), step: rate(1), ..config(1e6) };
            let (found, _) = run(Steady::new(config), f64::INFINITY, f64::INFINITY, f64::INFINITY);
            let found = found.rate.unwrap().0 / rate(1).0;
            assert!((found - steps as f64).abs() < 1e-6, "{size} B, {steps} steps: {found}");
        }
    }

    /// Draws lines with deep queues, and trials too short to overflow them or to show that the delay grows.
    #[test]
    fn short_trials_before_a_deep_queue_find_the_rate_of_the_line() {
        let mut random = crate::rng::RandomStream::new(netstage_harness::seed("deep queues"), "queues");
        for case in 0..200 {
            let line = 2e4 + random.uniform() * 8e5;
            let config = SteadyConfig {
                duration: Duration::from_secs(1),
                search: Duration::from_secs(1),
                ..config(1e6)
            };
            let mut search = Steady::new(config);
            while let Some(trial) = search.next() {
                let (sent, sending) = (trial.packets(), trial.duration());
                let packets = sent.min((line * sending.as_secs_f64()) as u64);
                let arrivals = Some(Arrivals { packets, span: sending });
                let result =
                    TrialResult { sent, received: sent, sending, arrivals, ..TrialResult::default() };
                search.record(&result, &[10e-6]);
            }
            let (found, step) = (search.result(), config.step.0);
            let rate = found.rate.map_or(0.0, |rate| rate.0);
            // The lateness of an emulated link is half a percent of a second.
            let range = line - 2.0 * step..line * 1.0051 + 1.0;
            assert!(range.contains(&rate), "case {case}: {rate} of {line}, {found:?}");
        }
    }

    #[test]
    fn load_that_a_queue_absorbs_is_no_lower_bound() {
        let mut search = Steady::new(config(1e6));
        let mut count = 0;
        // The tester offers at most 500,000 packets/s, and the path carries half of them and stores the rest.
        while let Some(trial) = search.next() {
            let sending = trial.duration();
            let sent = trial.packets().min((5e5 * sending.as_secs_f64()) as u64);
            let carried = sent.min((2.5e5 * sending.as_secs_f64()) as u64);
            let arrivals = Some(Arrivals { packets: carried, span: sending });
            let result = TrialResult { sent, received: sent, sending, arrivals, ..TrialResult::default() };
            search.record(&result, &[10e-6; 10]);
            count += 1;
            assert!(count < 100);
        }
        let found = search.result();
        let bound = found.bound.unwrap().0;
        assert!((249_000.0..=250_000.0).contains(&bound), "{found:?}");
    }

    #[test]
    fn router_that_loses_at_every_rate_has_no_result() {
        let (found, tried) = run(Steady::new(config(1e6)), 10.0, f64::INFINITY, f64::INFINITY);
        assert_eq!((found.rate, tried.len()), (None, 1));
        assert!(matches!(found.beyond, Some((OfferedLoad(1000.0), SteadyVerdict::Lost(_)))));
    }

    #[test]
    fn delays_are_classified_as_in_the_paper() {
        let result = TrialResult { sent: 100, received: 100, ..TrialResult::default() };
        let judge = |seconds: &[f64]| judge(None, &result, seconds, Some(10e-6));
        // The paper's example: 10 us at 1,000 packets per second and a steady 1,000 us at 2,000 packets per
        // second is a failure.
        assert!(matches!(judge(&[1000e-6; 10]), SteadyVerdict::Slow { .. }));
        assert_eq!(judge(&[90e-6; 10]), SteadyVerdict::Steady);
        let noisy: Vec<f64> =
            (0..60).map(|second| 20e-6 + 4e-6 * f64::from(second * 7919 % 13 - 6)).collect();
        assert_eq!(judge(&noisy), SteadyVerdict::Steady);
        let rising: Vec<f64> = (0..60).map(|second| 20e-6 + 0.5e-6 * f64::from(second)).collect();
        assert!(matches!(judge(&rising), SteadyVerdict::Growing { .. }));
    }
}
