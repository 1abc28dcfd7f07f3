//! The highest rate a router carries steadily: nothing is lost, and from second to second the mean delay
//! neither grows nor leaves the order of magnitude it has at a low rate. (This is how the MPLS-IX routers
//! were compared; a search for loss alone would take a standing queue for throughput.)
//!
//! Sans-IO as the other searches, but that a trial tells the mean delay of each second too.

use super::student_t_975;
use super::trial::{Admission, Fault, FrameSize, Load, Patience, Pauses, Referee, Trial, TrialResult};
use crate::time::Duration;
use alloc::vec::Vec;

/// A mean delay beyond so many times that at a low rate, and [`BURST`] more, is of another order.
pub const ANOTHER_ORDER: f64 = 10.0;
/// Senders send back to back, at most, what is due in this time. Packets of a burst wait for each other, which
/// is no router's delay.
pub const BURST: Duration = Duration(20_000);
/// A rise over a trial by less than this share of the mean is none.
const LEAST_RISE: f64 = 0.1;
/// Fewer seconds tell no trend.
const LEAST_SECONDS: usize = 5;

/// What to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyConfig {
    /// Size of every frame.
    pub frame: FrameSize,
    /// The low rate, at which delays are as they are without load.
    pub low: Load,
    /// The highest rate tried.
    pub maximum: Load,
    /// Rates are whole multiples of this.
    pub step: Load,
    /// Length of the trial that decides.
    pub duration: Duration,
    /// Length of those that look for the rate at which it is worth while.
    pub search: Duration,
    /// Pauses after each.
    pub pauses: Pauses,
    /// How much to bear from the tester.
    pub patience: Patience,
}

/// What a trial showed of its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It is carried steadily.
    Steady,
    /// Packets were lost.
    Lost(u64),
    /// The mean delay of some second was of another order than at the low rate.
    Slow {
        /// The largest mean of a second, in seconds.
        worst: f64,
        /// The mean at the low rate.
        low: f64,
    },
    /// The mean delay grew from second to second.
    Growing {
        /// From the first second to the last, as a share of the mean.
        share: f64,
    },
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct SteadyResult {
    /// The highest rate carried steadily in a trial of full length; none if none was.
    pub rate: Option<Load>,
    /// What came of that trial.
    pub trial: Option<TrialResult>,
    /// The lowest rate that was not, and why.
    pub beyond: Option<(Load, Verdict)>,
    /// The mean delay at the low rate, in seconds.
    pub low_delay: Option<f64>,
    /// The rate above which the tester itself failed: the router may carry more.
    pub tester_limit: Option<Load>,
    /// Trials that counted.
    pub trials: u32,
    /// Faults of the tester; their trials did not count.
    pub faults: Vec<Fault>,
}

/// What the next trial is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The delay at the low rate.
    Low,
    /// Halving, in short trials.
    Search,
    /// A trial of full length; how many steps down the next is if this one fails.
    Confirm(u64),
    Done,
}

/// The search: by halves in short trials, then a trial of full length, and down from there until one is
/// carried.
#[derive(Clone, Debug)]
pub struct Steady {
    config: SteadyConfig,
    phase: Phase,
    /// In steps: carried as far as is known, and not carried (or beyond all that is tried).
    good: u64,
    bad: u64,
    low_delay: Option<f64>,
    found: Option<(u64, TrialResult)>,
    beyond: Option<(Load, Verdict)>,
    tester_limit: Option<Load>,
    trials: u32,
    referee: Referee,
}

impl Steady {
    /// A new search. Panics unless all rates are above zero.
    pub fn new(config: SteadyConfig) -> Steady {
        assert!(config.low.0 > 0.0 && config.step.0 > 0.0 && config.maximum.0 > 0.0, "{config:?}");
        Steady {
            phase: Phase::Low,
            good: 0,
            bad: libm::floor(config.maximum.0 / config.step.0) as u64 + 1,
            low_delay: None,
            found: None,
            beyond: None,
            tester_limit: None,
            trials: 0,
            referee: Referee::new(config.patience),
            config,
        }
    }

    /// The next trial; the same again until its result is recorded, none at the end.
    pub fn next(&self) -> Option<Trial> {
        let (load, duration) = match self.phase {
            Phase::Low => (self.config.low, self.config.search),
            Phase::Search => (self.steps(self.tried()), self.config.search),
            Phase::Confirm(_) => (self.steps(self.tried()), self.config.duration),
            Phase::Done => return None,
        };
        Some(Trial::lasting(duration, load, self.config.frame, self.config.pauses))
    }

    /// The result of that trial, and the mean delay of each of its seconds, in seconds. Panics if none was
    /// proposed.
    pub fn record(&mut self, result: &TrialResult, seconds: &[f64]) {
        let trial = self.next().expect("a result answers a proposal");
        match self.referee.admit(&trial, result) {
            Admission::Counted => self.counted(&trial, result, seconds),
            Admission::Repeat => {}
            Admission::Lowered(load) if self.phase != Phase::Low => {
                let tried = self.tried();
                self.bad = (libm::floor(load.0 / self.config.step.0) as u64 + 1).min(tried);
                self.tester_limit = Some(load);
                match self.phase {
                    // What the tester sent for once it may not send again.
                    Phase::Confirm(down) => self.go_down(self.bad.saturating_sub(1), down),
                    _ => {
                        self.good = self.good.min(self.bad.saturating_sub(1));
                        self.go_on();
                    }
                }
            }
            Admission::Lowered(_) | Admission::Abandoned => self.phase = Phase::Done,
        }
    }

    /// What is known so far.
    pub fn result(&self) -> SteadyResult {
        SteadyResult {
            rate: self.found.map(|(steps, _)| self.steps(steps)),
            trial: self.found.map(|(_, result)| result),
            beyond: self.beyond,
            low_delay: self.low_delay,
            tester_limit: self.tester_limit,
            trials: self.trials,
            faults: self.referee.faults().to_vec(),
        }
    }

    fn steps(&self, steps: u64) -> Load {
        Load(self.config.step.0 * steps as f64)
    }

    /// The rate of the next trial, in steps: the highest first.
    fn tried(&self) -> u64 {
        match self.phase {
            Phase::Confirm(_) => self.good,
            _ if self.beyond.is_none() && self.tester_limit.is_none() => self.bad - 1,
            _ => self.good.midpoint(self.bad),
        }
    }

    fn counted(&mut self, trial: &Trial, result: &TrialResult, seconds: &[f64]) {
        self.trials += 1;
        if self.phase == Phase::Low {
            let known = seconds.iter().copied().filter(|delay| delay.is_finite());
            let (count, sum) = known.fold((0_u32, 0.0), |(count, sum), delay| (count + 1, sum + delay));
            self.low_delay = (count > 0).then(|| sum / f64::from(count));
            if result.lost() > 0 {
                self.beyond = Some((trial.load, Verdict::Lost(result.lost())));
                self.phase = Phase::Done;
                return;
            }
            self.phase = Phase::Search;
            self.go_on();
            return;
        }
        let (steps, verdict) = (self.tried(), judge(result, seconds, self.low_delay));
        match (verdict, self.phase) {
            (Verdict::Steady, Phase::Confirm(_)) => {
                self.found = Some((steps, *result));
                self.phase = Phase::Done;
                return;
            }
            (Verdict::Steady, _) => self.good = steps,
            (_, Phase::Confirm(down)) => {
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
        self.go_on();
    }

    /// Confirms next what is so many steps below.
    fn go_down(&mut self, from: u64, down: u64) {
        self.good = from.saturating_sub(down);
        self.phase = if self.good == 0 { Phase::Done } else { Phase::Confirm(down * 2) };
    }

    /// Once nothing lies between, the trial of full length decides.
    fn go_on(&mut self) {
        if self.good + 1 >= self.bad && self.phase != Phase::Low {
            self.phase = if self.good == 0 { Phase::Done } else { Phase::Confirm(1) };
        }
    }
}

/// What a trial shows of its rate, beside the mean delay at a low one.
pub fn judge(result: &TrialResult, seconds: &[f64], low: Option<f64>) -> Verdict {
    if result.lost() > 0 {
        return Verdict::Lost(result.lost());
    }
    let seconds: Vec<f64> = seconds.iter().copied().filter(|delay| delay.is_finite()).collect();
    let worst = seconds.iter().copied().fold(0.0, f64::max);
    if let Some(low) = low
        && worst > ANOTHER_ORDER * low + BURST.as_secs_f64()
    {
        return Verdict::Slow { worst, low };
    }
    match growth(&seconds) {
        Some(share) if share > LEAST_RISE => Verdict::Growing { share },
        _ => Verdict::Steady,
    }
}

/// By which share of their mean the values grow from the first to the last, by a straight line of least
/// squares; none where its slope may be chance (one-sided 2.5 %).
fn growth(values: &[f64]) -> Option<f64> {
    if values.len() < LEAST_SECONDS {
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

    fn config(maximum: f64) -> SteadyConfig {
        SteadyConfig {
            frame: FrameSize::ethernet_udp(64),
            low: Load(1000.0),
            maximum: Load(maximum),
            step: Load(2500.0),
            duration: Duration::from_secs(60),
            search: Duration::from_secs(2),
            pauses: Pauses::RFC2544,
            patience: Patience::default(),
        }
    }

    /// A router that loses packets above one rate, and queues more and more above another.
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
    fn the_highest_rate_without_loss_is_found_to_the_step() {
        let (found, tried) = run(Steady::new(config(1e6)), 333_333.0, f64::INFINITY, f64::INFINITY);
        assert_eq!(found.rate, Some(Load(332_500.0)));
        assert_eq!(found.beyond.map(|(load, _)| load), Some(Load(335_000.0)));
        assert_eq!(found.low_delay, Some(10e-6));
        assert!(tried.len() < 14, "{tried:?}");
    }

    #[test]
    fn a_router_that_carries_all_is_asked_once_in_full() {
        let (found, tried) = run(Steady::new(config(1e6)), f64::INFINITY, f64::INFINITY, f64::INFINITY);
        assert_eq!((found.rate, found.beyond), (Some(Load(1e6)), None));
        assert_eq!(tried, [1000.0, 1e6, 1e6]);
    }

    #[test]
    fn what_only_a_long_trial_shows_takes_the_rate_down() {
        let (found, _) = run(Steady::new(config(1e6)), 333_333.0, 320_000.0, f64::INFINITY);
        let rate = found.rate.unwrap().0;
        assert!((310_000.0..=320_000.0).contains(&rate), "{rate}");
        assert!(matches!(found.beyond, Some((_, Verdict::Growing { share })) if share > 1.0), "{found:?}");
    }

    #[test]
    fn the_testers_limit_is_not_the_routers() {
        let (found, _) = run(Steady::new(config(1e6)), f64::INFINITY, f64::INFINITY, 500_100.0);
        assert_eq!(found.rate, Some(Load(500_000.0)));
        assert_eq!((found.beyond, found.tester_limit), (None, Some(Load(500_100.0))));
    }

    #[test]
    fn a_router_that_loses_at_any_rate_carries_none() {
        let (found, tried) = run(Steady::new(config(1e6)), 10.0, f64::INFINITY, f64::INFINITY);
        assert_eq!((found.rate, tried.len()), (None, 1));
        assert!(matches!(found.beyond, Some((Load(1000.0), Verdict::Lost(_)))));
    }

    #[test]
    fn delays_are_judged_as_the_paper_does() {
        let result = TrialResult { sent: 100, received: 100, ..TrialResult::default() };
        let judge = |seconds: &[f64]| judge(&result, seconds, Some(10e-6));
        // 10 us at 1,000 packets a second, and a steady 1,000 us at 2,000: not counted.
        assert!(matches!(judge(&[1000e-6; 10]), Verdict::Slow { .. }));
        assert_eq!(judge(&[90e-6; 10]), Verdict::Steady);
        let noisy: Vec<f64> =
            (0..60).map(|second| 20e-6 + 4e-6 * f64::from(second * 7919 % 13 - 6)).collect();
        assert_eq!(judge(&noisy), Verdict::Steady);
        let rising: Vec<f64> = (0..60).map(|second| 20e-6 + 0.5e-6 * f64::from(second)).collect();
        assert!(matches!(judge(&rising), Verdict::Growing { .. }));
    }
}
