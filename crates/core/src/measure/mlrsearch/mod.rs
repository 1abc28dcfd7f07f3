//! MLRsearch (RFC 9971): one search for several throughputs, each with its own loss ratio, with repeatable
//! results on noisy devices.
//!
//! A load is classified by all its trials together. It is a lower bound of a goal if the share of time with
//! too much loss stays within the goal's exceed ratio, and an upper bound if it cannot stay within it.
//! [`classification`] implements this logic as given in the RFC. The RFC leaves the choice of the next load
//! open. This search approaches each goal in phases, from short trials and a wide interval to the goal's
//! final duration and width, and bisects the interval in each phase.

mod classification;

pub use classification::{LoadClass, TrialMeasurement, classify};

use super::trial::{
    Admission, FaultTolerance, FrameSize, OfferedLoad, Pauses, Referee, TesterFault, Trial, TrialResult,
    TrialSearch,
};
use crate::time::Duration;
use alloc::vec::Vec;
use classification::forwarding_ratio;
use serde::{Deserialize, Serialize};

/// Conditions of a goal; the search finds the highest load that satisfies them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// Goal Loss Ratio: a trial with a higher loss ratio is a high-loss trial.
    pub loss_ratio: f64,
    /// Goal Exceed Ratio: the share of time that high-loss trials may take at a lower bound.
    pub exceed_ratio: f64,
    /// Goal Initial Trial Duration: duration of the shortest trial for this goal.
    pub initial_trial_duration: Duration,
    /// Goal Final Trial Duration: duration of the shortest trial that can establish a lower bound.
    pub final_trial_duration: Duration,
    /// Goal Duration Sum: maximum total duration of the trials at one load, unless another goal needs more.
    pub duration_sum: Duration,
    /// Goal Width: the search ends when (upper − lower) / upper is at most this.
    pub width: f64,
}

impl Goal {
    /// Returns the goal whose result is unconditionally an RFC 2544 throughput (RFC 9971, "MLRsearch
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

    /// Returns a goal that allows half of `trials` trials of this duration to exceed the loss ratio. This
    /// exceed ratio of 50 %, recommended by RFC 9971, gives repeatable results on noisy devices. With two
    /// trials of 60 s and a loss ratio of zero it is the search with loss verification of ETSI GS NFV-TST
    /// 009.
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

    /// Returns the goal of a phase, with shorter trials and a wider interval.
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

/// Number of phases per goal.
const PHASES: u32 = 4;

/// Parameters of the search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlrConfig {
    /// Goals, in the order of the search.
    pub goals: Vec<Goal>,
    /// Frame size.
    pub frame: FrameSize,
    /// Min Load; must give at least one packet in the shortest trial.
    pub minimum: OfferedLoad,
    /// Max Load: the line rate, or the maximum rate of the tester.
    pub maximum: OfferedLoad,
    /// Pauses after each trial.
    pub pauses: Pauses,
    /// Handling of tester faults.
    pub patience: FaultTolerance,
}

/// Reason a goal result is irregular.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IrregularReason {
    /// The device satisfies the goal at Max Load; `lower` is only an effective bound.
    AtMaximum,
    /// The device fails the goal at Min Load.
    AtMinimum,
    /// The tester cannot offer, or cannot receive, the load needed.
    TesterLimit,
    /// The trials are so short that a queue of the path absorbed the excess load: packets arrived more slowly than they
    /// were sent by more than the width of the goal.
    ShortTrials,
    /// The search has not ended.
    Unfinished,
}

/// Result for one goal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoalResult {
    /// Goal of the search.
    pub goal: Goal,
    /// Relevant Lower Bound: the largest load below `upper` that satisfies the goal, or the rate at which its packets arrived.
    pub lower: Option<OfferedLoad>,
    /// Relevant Upper Bound: the smallest load that fails the goal.
    pub upper: Option<OfferedLoad>,
    /// Conditional Throughput: the forwarding rate expected at the lower bound.
    pub conditional_throughput: Option<OfferedLoad>,
    /// `None` for a Regular Goal Result.
    pub irregular: Option<IrregularReason>,
}

/// Result of the search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlrResult {
    /// Results in the order of the goals.
    pub goals: Vec<GoalResult>,
    /// Number of valid trials.
    pub trials: u32,
    /// Total traffic time of valid trials.
    pub traffic_time: Duration,
    /// Load above which the tester failed.
    pub tester_limit: Option<OfferedLoad>,
    /// Tester faults; trials with faults are not counted.
    pub faults: Vec<TesterFault>,
}

/// A search for several goals.
#[derive(Clone, Debug)]
pub struct MlrSearch {
    config: MlrConfig,
    /// All trials, sorted by load.
    loads: Vec<LoadStat>,
    progress: Vec<GoalProgress>,
    maximum: f64,
    proposal: Option<Trial>,
    trials: u32,
    abandoned: bool,
    validator: Referee,
}

/// All trials at one load.
#[derive(Clone, Debug)]
struct LoadStat {
    load: f64,
    trials: Vec<TrialMeasurement>,
    /// Minimum ratio of the rate of arrival to that of the packets sent and not lost, over the longest trials, and their
    /// duration.
    arrival: (Duration, f64),
}

/// Progress toward one goal.
#[derive(Clone, Copy, Debug)]
struct GoalProgress {
    phase: u32,
    /// Load to be measured until it is classified.
    candidate: Option<f64>,
    /// Relative distance between the known bound and the next candidate for the missing one, in multiples of
    /// the width.
    reach: f64,
    ended: Option<IrregularReason>,
}

impl GoalProgress {
    fn phase(phase: u32) -> GoalProgress {
        GoalProgress { phase, candidate: None, reach: 1.0, ended: None }
    }
}

/// Tightest bounds of a goal among the loads measured.
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
    /// Creates a search. Panics unless there are goals, loss and exceed ratios are in [0, 1), widths are at
    /// least one millionth, durations are above zero, and 0 < minimum < maximum.
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
            progress: config.goals.iter().map(|_| GoalProgress::phase(0)).collect(),
            maximum: config.maximum.0,
            proposal: None,
            trials: 0,
            abandoned: false,
            validator: Referee::new(config.patience),
            config,
        };
        search.propose();
        search
    }

    fn trials_at(&self, load: f64) -> &[TrialMeasurement] {
        match self.loads.binary_search_by(|stat| stat.load.total_cmp(&load)) {
            Ok(place) => &self.loads[place].trials,
            Err(_) => &[],
        }
    }

    fn add(&mut self, load: f64, measured: TrialMeasurement, arrival: f64) {
        let place = match self.loads.binary_search_by(|stat| stat.load.total_cmp(&load)) {
            Ok(place) => place,
            Err(place) => {
                let arrival = (Duration::ZERO, f64::INFINITY);
                self.loads.insert(place, LoadStat { load, trials: Vec::new(), arrival });
                place
            }
        };
        let stat = &mut self.loads[place];
        stat.trials.push(measured);
        if measured.duration > stat.arrival.0 {
            stat.arrival = (measured.duration, arrival);
        } else if measured.duration == stat.arrival.0 {
            stat.arrival.1 = stat.arrival.1.min(arrival);
        }
    }

    /// Returns the relevant bounds as defined by RFC 9971; without an upper bound, the largest of all lower
    /// bounds.
    fn bounds(&self, goal: &Goal) -> Bounds {
        let mut bounds = Bounds { lower: None, upper: None };
        for stat in &self.loads {
            match classify(goal, &stat.trials) {
                LoadClass::LowerBound => bounds.lower = Some(stat.load),
                LoadClass::Undecided => {}
                LoadClass::UpperBound => {
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
                self.proposal = Some(Trial::with_duration(
                    duration,
                    OfferedLoad(load),
                    self.config.frame,
                    self.config.pauses,
                ));
                return;
            }
        }
    }

    /// Returns the next load and trial duration for a goal; `None` if the goal needs no more trials.
    fn approach(&mut self, index: usize) -> Option<(f64, Duration)> {
        loop {
            let phase = self.progress[index].phase;
            let goal = self.config.goals[index].in_phase(phase);
            if let Some(load) = self.progress[index].candidate {
                if load <= self.maximum && classify(&goal, self.trials_at(load)) == LoadClass::Undecided {
                    return Some((load, goal.final_trial_duration));
                }
                self.progress[index].candidate = None;
            }
            match self.candidate(index, &goal) {
                Ok(Some(load)) => self.progress[index].candidate = Some(load),
                Ok(None) if phase + 1 < PHASES => self.progress[index] = GoalProgress::phase(phase + 1),
                Ok(None) => return None,
                Err(_) if phase + 1 < PHASES => self.progress[index] = GoalProgress::phase(phase + 1),
                Err(irregular) => {
                    self.progress[index].ended = Some(irregular);
                    return None;
                }
            }
        }
    }

    /// Returns the next load to measure in this phase of a goal. Returns `None` if the bounds are close
    /// enough, and an error if a bound cannot be found.
    fn candidate(&mut self, index: usize, goal: &Goal) -> Result<Option<f64>, IrregularReason> {
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
        // The tester has failed at such loads in the meantime.
        if bounds.lower.is_some_and(|lower| lower >= self.maximum) {
            return Err(IrregularReason::TesterLimit);
        }
        Ok(Some(self.maximum))
    }

    /// Returns the first load of a phase: the lower, or else upper, bound of the previous phase. The first
    /// phase of all starts at Max Load.
    fn first(&self, index: usize) -> f64 {
        let before = self.previous_bounds(index);
        before.lower.or(before.upper).unwrap_or(self.maximum)
    }

    /// Returns the bounds of the previous phase.
    fn previous_bounds(&self, index: usize) -> Bounds {
        match self.progress[index].phase {
            0 => Bounds { lower: None, upper: None },
            phase => self.bounds(&self.config.goals[index].in_phase(phase - 1)),
        }
    }

    /// Returns a load above a lower bound to find an upper one.
    fn above(&mut self, index: usize, goal: &Goal, lower: f64) -> Result<f64, IrregularReason> {
        if lower >= self.maximum {
            return Err(self.at_maximum());
        }
        let before = self.previous_bounds(index).upper.filter(|&upper| upper > lower);
        let reached = lower / (1.0 - self.stretch(index, goal));
        Ok(before.map_or(reached, |upper| upper.min(reached)).min(self.maximum))
    }

    /// Returns a load below an upper bound to find a lower one.
    fn below(&mut self, index: usize, goal: &Goal, upper: f64) -> Result<f64, IrregularReason> {
        if upper <= self.config.minimum.0 {
            return Err(IrregularReason::AtMinimum);
        }
        let before = self.previous_bounds(index).lower.filter(|&lower| lower < upper);
        // The rate forwarded at the upper bound is a better guess than any fixed step.
        let first = self.progress[index].phase == 0 && self.progress[index].reach == 1.0;
        let delivered = upper * self.min_forwarded(upper);
        let reached = upper * (1.0 - self.stretch(index, goal));
        let guess = if first { reached.min(delivered) } else { reached };
        Ok(before.map_or(guess, |lower| lower.max(guess)).max(self.config.minimum.0))
    }

    /// Returns the smallest share of packets forwarded in any trial at a load.
    fn min_forwarded(&self, load: f64) -> f64 {
        self.trials_at(load).iter().map(|trial| 1.0 - trial.loss_ratio).fold(1.0, f64::min)
    }

    /// Returns the relative distance at which to look for the missing bound; doubles with each call.
    fn stretch(&mut self, index: usize, goal: &Goal) -> f64 {
        let progress = &mut self.progress[index];
        let stretch = (goal.width * progress.reach).min(0.5);
        progress.reach *= 2.0;
        stretch
    }

    fn at_maximum(&self) -> IrregularReason {
        if self.maximum < self.config.maximum.0 {
            IrregularReason::TesterLimit
        } else {
            IrregularReason::AtMaximum
        }
    }

    fn goal_result(&self, index: usize) -> GoalResult {
        let goal = self.config.goals[index];
        let Bounds { lower, upper } = self.bounds(&goal);
        let stat = self.loads.iter().find(|stat| Some(stat.load) == lower);
        let arrival = stat.map_or(1.0, |stat| stat.arrival.1).min(1.0);
        // Within the precision of the goal, a difference may be the variation of the delay.
        let is_short = arrival < 1.0 - goal.width;
        let irregular = match (Bounds { lower, upper }).within(goal.width) {
            true => is_short.then_some(IrregularReason::ShortTrials),
            false => match self.progress[index].ended {
                Some(IrregularReason::AtMaximum) if is_short => Some(IrregularReason::ShortTrials),
                ended => Some(ended.unwrap_or(IrregularReason::Unfinished)),
            },
        };
        GoalResult {
            goal,
            lower: lower.map(|load| OfferedLoad(load * arrival)),
            upper: upper.map(OfferedLoad),
            conditional_throughput: lower
                .map(|load| OfferedLoad(load * arrival * forwarding_ratio(&goal, self.trials_at(load)))),
            irregular,
        }
    }
}

impl TrialSearch for MlrSearch {
    type Outcome = MlrResult;

    fn next(&mut self) -> Option<Trial> {
        self.proposal
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.proposal.expect("a result is recorded after a proposal");
        match self.validator.admit(&trial, result) {
            Admission::Counted => {
                self.trials += 1;
                let (duration, loss_ratio) = (trial.duration(), result.loss_ratio());
                let arrival = result.delivered().0 / result.kept().0;
                self.add(trial.load.0, TrialMeasurement { duration, loss_ratio }, arrival);
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
            tester_limit: (self.maximum < self.config.maximum.0).then_some(OfferedLoad(self.maximum)),
            faults: self.validator.faults().to_vec(),
        }
    }
}
