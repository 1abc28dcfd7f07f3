//! Throughput (RFC 2544 section 26.1): the highest load at which every frame sent is received.

use super::Deviation;
use crate::measure::trial::{
    Admission, FaultTolerance, FrameSize, OfferedLoad, Pauses, Referee, TesterFault, Trial, TrialResult,
    TrialSearch,
};
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Parameters of the search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputConfig {
    /// Frame size.
    pub frame: FrameSize,
    /// First load: the line rate, or the maximum rate of the tester.
    pub maximum: OfferedLoad,
    /// Difference between lossless and lossy load at which the search ends, as a share of the maximum.
    pub resolution: f64,
    /// Duration of a trial.
    pub duration: Duration,
    /// Pauses after each trial.
    pub pauses: Pauses,
    /// Handling of tester faults.
    pub patience: FaultTolerance,
}

impl ThroughputConfig {
    /// Returns the configuration required by RFC 2544 (trials of 60 s and the RFC's pauses), with a
    /// resolution of 0.1 % of the maximum.
    pub fn rfc2544(frame: FrameSize, maximum: OfferedLoad) -> ThroughputConfig {
        ThroughputConfig {
            frame,
            maximum,
            resolution: 0.001,
            duration: Duration::from_secs(60),
            pauses: Pauses::RFC2544,
            patience: FaultTolerance::default(),
        }
    }

    fn deviations(&self) -> Vec<Deviation> {
        let duration = Deviation::of_duration(Duration::from_secs(60), self.duration);
        duration.into_iter().chain(Deviation::of_pauses(self.pauses)).collect()
    }
}

/// Result of the search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputResult {
    /// Frame size.
    pub frame: FrameSize,
    /// Highest load without loss, or the rate at which its packets arrived if a queue of the path absorbed a part of it;
    /// `None` if every trial had loss.
    pub throughput: Option<OfferedLoad>,
    /// Lowest load with loss; `None` if no trial had loss.
    pub lossy: Option<OfferedLoad>,
    /// Load above which the tester failed, if that ended the search; the device may carry more.
    pub tester_limit: Option<OfferedLoad>,
    /// Set if a load above the throughput had no loss, because a queue of the path absorbed its excess in a short trial.
    pub is_absorbed: bool,
    /// Number of valid trials.
    pub trials: u32,
    /// Tester faults; trials with faults are not counted.
    pub faults: Vec<TesterFault>,
    /// Deviations from the RFC's procedure.
    pub deviations: Vec<Deviation>,
}

/// A binary search for the throughput, from the maximum down.
#[derive(Clone, Debug)]
pub struct Throughput {
    config: ThroughputConfig,
    /// Highest load sent without loss, or the rate at which its packets arrived; zero before the first lossless trial.
    low: f64,
    /// Set if a load above `low` had no loss because a queue of the path absorbed its excess.
    is_absorbed: bool,
    /// Highest load at which the device is not known to lose packets: above `low` if the tester sent less than requested.
    floor: f64,
    /// Upper limit of the loads to propose.
    high: f64,
    high_is: UpperEnd,
    done: bool,
    trials: u32,
    validator: Referee,
}

/// Status of the upper end of the interval.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UpperEnd {
    Untried,
    UntriedTesterLimit,
    Lossy,
}

impl Throughput {
    /// Creates a search. Panics unless maximum and resolution are above zero.
    pub fn new(config: ThroughputConfig) -> Throughput {
        assert!(config.maximum.0 > 0.0 && config.resolution > 0.0, "{config:?}");
        Throughput {
            low: 0.0,
            is_absorbed: false,
            floor: 0.0,
            high: config.maximum.0,
            high_is: UpperEnd::Untried,
            done: false,
            trials: 0,
            validator: Referee::new(config.patience),
            config,
        }
    }

    fn proposal(&self) -> f64 {
        match self.high_is {
            UpperEnd::Untried | UpperEnd::UntriedTesterLimit => self.high,
            UpperEnd::Lossy => f64::midpoint(self.floor, self.high),
        }
    }

    fn trial(&self, load: f64) -> Trial {
        Trial::with_duration(self.config.duration, OfferedLoad(load), self.config.frame, self.config.pauses)
    }

    fn is_resolved(&self) -> bool {
        self.high - self.floor <= self.config.resolution * self.config.maximum.0
    }

    /// Raises the lower bound to what a trial without losses carried.
    fn raise_low(&mut self, load: f64, result: &TrialResult) {
        let carried = result.carried(OfferedLoad(load)).0;
        if load > self.low {
            self.is_absorbed = load - carried > self.config.resolution * self.config.maximum.0;
        }
        self.low = self.low.max(carried);
    }

    fn count_trial(&mut self, load: f64, lossless: bool) {
        self.trials += 1;
        if lossless {
            self.floor = load;
            self.done = self.high_is != UpperEnd::Lossy;
        } else {
            self.high = load;
            self.high_is = UpperEnd::Lossy;
        }
        self.done |= self.is_resolved();
    }
}

impl TrialSearch for Throughput {
    type Outcome = ThroughputResult;

    fn next(&mut self) -> Option<Trial> {
        (!self.done).then(|| self.trial(self.proposal()))
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.next().expect("a result is recorded after a proposal");
        let fault = result.fault(&trial, self.config.patience.tolerance);
        if matches!(fault, Some(TesterFault::GeneratorShort { .. } | TesterFault::GeneratorStopped { .. })) {
            // The packets that left kept their spacing: the losses of a trial with fewer packets show the limit of the
            // device, and a trial without losses is a lower bound at the mean rate over its full length.
            if result.lost() > result.late {
                self.count_trial(trial.load.0, false);
                return;
            }
            if result.lost() == 0 {
                self.raise_low(result.sent as f64 / trial.duration().as_secs_f64(), result);
            }
        }
        match self.validator.admit(&trial, result) {
            Admission::Counted if result.lost() == 0 => {
                self.raise_low(trial.load.0, result);
                self.count_trial(trial.load.0, true);
            }
            Admission::Counted => self.count_trial(trial.load.0, false),
            Admission::Repeat => {}
            Admission::Lowered(_) if self.high_is == UpperEnd::Lossy => {
                self.floor = trial.load.0;
                self.done = self.is_resolved();
            }
            Admission::Lowered(load) => {
                self.high = load.0.max(self.low);
                self.high_is = UpperEnd::UntriedTesterLimit;
                self.floor = self.low;
                self.done = self.is_resolved();
            }
            Admission::Abandoned => self.done = true,
        }
    }

    fn result(&self) -> ThroughputResult {
        ThroughputResult {
            frame: self.config.frame,
            throughput: (self.low > 0.0).then_some(OfferedLoad(self.low)),
            lossy: (self.high_is == UpperEnd::Lossy).then_some(OfferedLoad(self.high)),
            tester_limit: (self.high_is == UpperEnd::UntriedTesterLimit).then_some(OfferedLoad(self.high)),
            is_absorbed: self.is_absorbed,
            trials: self.trials,
            faults: self.validator.faults().to_vec(),
            deviations: self.config.deviations(),
        }
    }
}
