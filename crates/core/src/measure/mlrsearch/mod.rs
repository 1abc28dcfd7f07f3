//! MLRsearch (RFC 9971): several throughputs in one search, each for its own loss ratio,
//! that come out the same again where the device is noisy.
//!
//! A load is judged by all its trials, not by one: it is a lower bound of a goal if the
//! share of time with too much loss stays within the goal's exceed ratio, an upper bound if
//! it cannot. [`classification`] holds that logic as the RFC gives it. Which load to try
//! next the RFC leaves open; here each goal is approached in phases, from short trials and a
//! wide interval to its final duration and width, halving the interval in each.

mod classification;

pub use classification::{Class, Measured, classify};

use super::trial::{
    Admission, Fault, FrameSize, Load, Patience, Pauses, Referee, Search, Trial, TrialResult,
};
use crate::time::Duration;
use alloc::vec::Vec;
use classification::forwarding_ratio;
use serde::{Deserialize, Serialize};

/// What to search for: the highest load that keeps to these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// Goal Loss Ratio: a trial that loses more is a high-loss trial.
    pub loss_ratio: f64,
    /// Goal Exceed Ratio: the share of time that may be high-loss at a lower bound.
    pub exceed_ratio: f64,
    /// Goal Initial Trial Duration: the shortest trial for this goal.
    pub initial_trial_duration: Duration,
    /// Goal Final Trial Duration: the shortest trial that makes a lower bound.
    pub final_trial_duration: Duration,
    /// Goal Duration Sum: how long a load is measured in all, at most, if others do not.
    pub duration_sum: Duration,
    /// Goal Width: the search ends when (upper − lower) / upper is at most this.
    pub width: f64,
}

impl Goal {
    /// The goal whose result is unconditionally an RFC 2544 throughput (RFC 9971, "MLRsearch
    /// Compliant with RFC 2544").
    pub fn rfc2544(width: f64) -> Goal {
        let minute = Duration::from_secs(60);
        Goal {
            loss_ratio: 0.0,
            exceed_ratio: 0.0,
            initial_trial_duration: Duration::from_secs(1),
            final_trial_duration: minute,
            duration_sum: minute,
            width,
        }
    }

    /// Half of `trials` trials of this length may lose more than the ratio: repeatable on
    /// noisy devices (an exceed ratio of 50 %, as RFC 9971 recommends). With two
    /// trials of 60 s and a loss ratio of zero: ETSI GS NFV-TST 009's search with loss verification.
    pub fn majority(loss_ratio: f64, trial: Duration, trials: u64, width: f64) -> Goal {
        Goal {
            loss_ratio,
            exceed_ratio: 0.5,
            initial_trial_duration: trial,
            final_trial_duration: trial,
            duration_sum: trial * trials,
            width,
        }
    }

    /// The goal as approached in a phase: shorter trials, wider interval.
    fn in_phase(&self, phase: u32) -> Goal {
        let (remaining, first) = (PHASES - 1 - phase, self.initial_trial_duration.as_secs_f64());
        let ratio = self.final_trial_duration.as_secs_f64() / first;
        let progress = f64::from(phase) / f64::from(PHASES - 1);
        let duration = Duration::from_secs_f64(first * libm::pow(ratio, progress));
        let duration = if remaining == 0 { self.final_trial_duration } else { duration };
        let sum = Duration(self.duration_sum.0 >> remaining).0.max(duration.0);
        Goal {
            final_trial_duration: duration,
            duration_sum: Duration(sum),
            width: (self.width * f64::from(1 << remaining)).min(0.5),
            ..*self
        }
    }
}

/// Phases in which a goal is approached.
const PHASES: u32 = 4;

/// What to search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlrConfig {
    /// The goals, in the order they are approached.
    pub goals: Vec<Goal>,
    /// Size of every frame.
    pub frame: FrameSize,
    /// Min Load: at least one packet in the shortest trial.
    pub minimum: Load,
    /// Max Load: the line's rate, or what the tester can send.
    pub maximum: Load,
    /// Pauses after each trial.
    pub pauses: Pauses,
    /// How much to bear from the tester.
    pub patience: Patience,
}

/// Why a result is irregular.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Irregular {
    /// The device upholds the goal at Max Load: `lower` is an effective bound only.
    AtMaximum,
    /// The device fails the goal at Min Load.
    AtMinimum,
    /// The tester cannot offer, or not receive, what the search needs.
    TesterLimit,
    /// The search has not ended.
    Unfinished,
}

/// What was found for a goal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoalResult {
    /// The goal.
    pub goal: Goal,
    /// Relevant Lower Bound: the largest load below `upper` that upholds the goal.
    pub lower: Option<Load>,
    /// Relevant Upper Bound: the smallest load that fails the goal.
    pub upper: Option<Load>,
    /// Conditional Throughput: the forwarding rate to expect at the lower bound.
    pub conditional_throughput: Option<Load>,
    /// `None` for a Regular Goal Result.
    pub irregular: Option<Irregular>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlrResult {
    /// One result per goal, in the goals' order.
    pub goals: Vec<GoalResult>,
    /// Trials that counted.
    pub trials: u32,
    /// Traffic time of all trials that counted.
    pub traffic_time: Duration,
    /// The load above which the tester itself failed.
    pub tester_limit: Option<Load>,
    /// Faults of the tester; their trials did not count.
    pub faults: Vec<Fault>,
}

/// The search.
#[derive(Clone, Debug)]
pub struct MlrSearch {
    config: MlrConfig,
    /// All trials, by rising load.
    loads: Vec<LoadStat>,
    progress: Vec<Progress>,
    maximum: f64,
    proposal: Option<Trial>,
    trials: u32,
    abandoned: bool,
    referee: Referee,
}

/// All that was measured at one load.
#[derive(Clone, Debug)]
struct LoadStat {
    load: f64,
    trials: Vec<Measured>,
}

/// How far a goal has come.
#[derive(Clone, Copy, Debug)]
struct Progress {
    phase: u32,
    /// The load being measured until it is decided.
    candidate: Option<f64>,
    /// How far the next bound is sought from the one that is known, in widths.
    reach: f64,
    ended: Option<Irregular>,
}

impl Progress {
    fn phase(phase: u32) -> Progress {
        Progress { phase, candidate: None, reach: 1.0, ended: None }
    }
}

/// The tightest bounds of a goal among what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounds {
    lower: Option<f64>,
    upper: Option<f64>,
}

impl Bounds {
    fn within(self, width: f64) -> bool {
        matches!((self.lower, self.upper), (Some(lower), Some(upper)) if upper - lower <= width * upper)
    }
}

impl MlrSearch {
    /// A new search. Panics unless there are goals, loss and exceed ratios lie in [0, 1), widths
    /// are a millionth or more, durations above zero, and 0 < minimum < maximum.
    pub fn new(config: MlrConfig) -> MlrSearch {
        assert!(!config.goals.is_empty() && config.minimum.0 > 0.0 && config.minimum < config.maximum);
        for goal in &config.goals {
            let ratios = [goal.loss_ratio, goal.exceed_ratio];
            assert!(ratios.iter().all(|ratio| (0.0..1.0).contains(ratio)), "{goal:?}");
            let durations = goal.initial_trial_duration.0.min(goal.duration_sum.0);
            assert!(goal.width >= 1e-6 && durations > 0, "{goal:?}");
            assert!(goal.initial_trial_duration <= goal.final_trial_duration, "{goal:?}");
        }
        let mut search = MlrSearch {
            loads: Vec::new(),
            progress: config.goals.iter().map(|_| Progress::phase(0)).collect(),
            maximum: config.maximum.0,
            proposal: None,
            trials: 0,
            abandoned: false,
            referee: Referee::new(config.patience),
            config,
        };
        search.propose();
        search
    }

    fn trials_at(&self, load: f64) -> &[Measured] {
        match self.loads.binary_search_by(|stat| stat.load.total_cmp(&load)) {
            Ok(place) => &self.loads[place].trials,
            Err(_) => &[],
        }
    }

    fn add(&mut self, load: f64, measured: Measured) {
        match self.loads.binary_search_by(|stat| stat.load.total_cmp(&load)) {
            Ok(place) => self.loads[place].trials.push(measured),
            Err(place) => {
                let trials = alloc::vec![measured];
                self.loads.insert(place, LoadStat { load, trials });
            }
        }
    }

    /// Relevant bounds as RFC 9971 defines them; without an upper one, the largest
    /// lower bound of all.
    fn bounds(&self, goal: &Goal) -> Bounds {
        let mut bounds = Bounds { lower: None, upper: None };
        for stat in &self.loads {
            match classify(goal, &stat.trials) {
                Class::LowerBound => bounds.lower = Some(stat.load),
                Class::Undecided => {}
                Class::UpperBound => {
                    bounds.upper = Some(stat.load);
                    break;
                }
            }
        }
        bounds
    }

    fn propose(&mut self) {
        self.proposal = None;
        for index in 0..self.config.goals.len() {
            if self.abandoned || self.progress[index].ended.is_some() {
                continue;
            }
            if let Some((load, duration)) = self.approach(index) {
                self.proposal =
                    Some(Trial::lasting(duration, Load(load), self.config.frame, self.config.pauses));
                return;
            }
        }
    }

    /// The next load and trial duration for a goal; `None` if it has what it needs.
    fn approach(&mut self, index: usize) -> Option<(f64, Duration)> {
        loop {
            let phase = self.progress[index].phase;
            let goal = self.config.goals[index].in_phase(phase);
            if let Some(load) = self.progress[index].candidate {
                if load <= self.maximum && classify(&goal, self.trials_at(load)) == Class::Undecided {
                    return Some((load, goal.final_trial_duration));
                }
                self.progress[index].candidate = None;
            }
            match self.candidate(index, &goal) {
                Ok(Some(load)) => self.progress[index].candidate = Some(load),
                Ok(None) if phase + 1 < PHASES => self.progress[index] = Progress::phase(phase + 1),
                Ok(None) => return None,
                Err(_) if phase + 1 < PHASES => self.progress[index] = Progress::phase(phase + 1),
                Err(irregular) => {
                    self.progress[index].ended = Some(irregular);
                    return None;
                }
            }
        }
    }

    /// An undecided load worth measuring in this phase of a goal; `None` if its bounds are
    /// close enough, an error if a bound cannot be found.
    fn candidate(&mut self, index: usize, goal: &Goal) -> Result<Option<f64>, Irregular> {
        let bounds = self.bounds(goal);
        if bounds.within(goal.width) {
            return Ok(None);
        }
        let load = match (bounds.lower, bounds.upper) {
            (Some(lower), Some(upper)) => libm::sqrt(lower * upper),
            (Some(lower), None) => self.above(index, goal, lower)?,
            (None, Some(upper)) => self.below(index, goal, upper)?,
            (None, None) => self.first(index),
        };
        if load <= self.maximum {
            return Ok(Some(load));
        }
        // The tester has given up on such loads meanwhile.
        if bounds.lower.is_some_and(|lower| lower >= self.maximum) {
            return Err(Irregular::TesterLimit);
        }
        Ok(Some(self.maximum))
    }

    /// Where to begin a phase: at the bounds of the one before, the lower first; the first
    /// phase of all at Max Load.
    fn first(&self, index: usize) -> f64 {
        let before = self.before(index);
        before.lower.or(before.upper).unwrap_or(self.maximum)
    }

    /// Bounds of the phase before.
    fn before(&self, index: usize) -> Bounds {
        match self.progress[index].phase {
            0 => Bounds { lower: None, upper: None },
            phase => self.bounds(&self.config.goals[index].in_phase(phase - 1)),
        }
    }

    /// A load above a lower bound, in search of an upper one.
    fn above(&mut self, index: usize, goal: &Goal, lower: f64) -> Result<f64, Irregular> {
        if lower >= self.maximum {
            return Err(self.at_maximum());
        }
        let before = self.before(index).upper.filter(|&upper| upper > lower);
        let reached = lower / (1.0 - self.stretch(index, goal));
        Ok(before.map_or(reached, |upper| upper.min(reached)).min(self.maximum))
    }

    /// A load below an upper bound, in search of a lower one.
    fn below(&mut self, index: usize, goal: &Goal, upper: f64) -> Result<f64, Irregular> {
        if upper <= self.config.minimum.0 {
            return Err(Irregular::AtMinimum);
        }
        let before = self.before(index).lower.filter(|&lower| lower < upper);
        // What came through at the upper bound is a better guess than any step.
        let first = self.progress[index].phase == 0 && self.progress[index].reach == 1.0;
        let delivered = upper * self.least_forwarded(upper);
        let reached = upper * (1.0 - self.stretch(index, goal));
        let guess = if first { reached.min(delivered) } else { reached };
        Ok(before.map_or(guess, |lower| lower.max(guess)).max(self.config.minimum.0))
    }

    /// Smallest share of packets forwarded in any trial at a load.
    fn least_forwarded(&self, load: f64) -> f64 {
        self.trials_at(load).iter().map(|trial| 1.0 - trial.loss_ratio).fold(1.0, f64::min)
    }

    /// The relative distance at which to seek the missing bound; doubles from call to call.
    fn stretch(&mut self, index: usize, goal: &Goal) -> f64 {
        let progress = &mut self.progress[index];
        let stretch = (goal.width * progress.reach).min(0.5);
        progress.reach *= 2.0;
        stretch
    }

    fn at_maximum(&self) -> Irregular {
        if self.maximum < self.config.maximum.0 { Irregular::TesterLimit } else { Irregular::AtMaximum }
    }

    fn goal_result(&self, index: usize) -> GoalResult {
        let goal = self.config.goals[index];
        let Bounds { lower, upper } = self.bounds(&goal);
        let regular = Bounds { lower, upper }.within(goal.width);
        let why = self.progress[index].ended.unwrap_or(Irregular::Unfinished);
        GoalResult {
            goal,
            lower: lower.map(Load),
            upper: upper.map(Load),
            conditional_throughput: lower
                .map(|load| Load(load * forwarding_ratio(&goal, self.trials_at(load)))),
            irregular: (!regular).then_some(why),
        }
    }
}

impl Search for MlrSearch {
    type Outcome = MlrResult;

    fn next(&mut self) -> Option<Trial> {
        self.proposal
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.proposal.expect("a result answers a proposal");
        match self.referee.admit(&trial, result) {
            Admission::Counted => {
                self.trials += 1;
                let (duration, loss_ratio) = (trial.duration(), result.loss_ratio());
                self.add(trial.load.0, Measured { duration, loss_ratio });
            }
            Admission::Repeat => return,
            Admission::Lowered(load) if load >= self.config.minimum => self.maximum = load.0,
            Admission::Lowered(_) | Admission::Abandoned => self.abandoned = true,
        }
        self.propose();
    }

    fn result(&self) -> MlrResult {
        let durations = self.loads.iter().flat_map(|stat| &stat.trials).map(|trial| trial.duration);
        MlrResult {
            goals: (0..self.config.goals.len()).map(|index| self.goal_result(index)).collect(),
            trials: self.trials,
            traffic_time: durations.fold(Duration::ZERO, |sum, duration| sum + duration),
            tester_limit: (self.maximum < self.config.maximum.0).then_some(Load(self.maximum)),
            faults: self.referee.faults().to_vec(),
        }
    }
}
