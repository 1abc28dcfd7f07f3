//! RFC 2544 section 26.1: the fastest load at which every frame sent is received.

use super::Deviation;
use crate::measure::trial::{
    Admission, Fault, FrameSize, Load, Patience, Pauses, Referee, Search, Trial, TrialResult,
};
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What to search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputConfig {
    /// Size of every frame.
    pub frame: FrameSize,
    /// Where the search begins: the line's rate, or what the tester can send.
    pub maximum: Load,
    /// The search ends when loss-free and lossy load lie within this share of the maximum.
    pub resolution: f64,
    /// Length of a trial.
    pub duration: Duration,
    /// Pauses after each.
    pub pauses: Pauses,
    /// How much to bear from the tester.
    pub patience: Patience,
}

impl ThroughputConfig {
    /// The RFC's rules: trials of 60 s, its pauses; to 0.1 % of the maximum.
    pub fn rfc2544(frame: FrameSize, maximum: Load) -> ThroughputConfig {
        ThroughputConfig {
            frame,
            maximum,
            resolution: 0.001,
            duration: Duration::from_secs(60),
            pauses: Pauses::RFC2544,
            patience: Patience::default(),
        }
    }

    fn deviations(&self) -> Vec<Deviation> {
        let duration = Deviation::of_duration(Duration::from_secs(60), self.duration);
        duration.into_iter().chain(Deviation::of_pauses(self.pauses)).collect()
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputResult {
    /// The frames it holds for.
    pub frame: FrameSize,
    /// The highest load without loss; `None` if no trial was free of loss.
    pub throughput: Option<Load>,
    /// The lowest load with loss; `None` if the device lost nothing at any load tried.
    pub lossy: Option<Load>,
    /// The load above which the tester itself failed, where that ended the search: the
    /// device may carry more.
    pub tester_limit: Option<Load>,
    /// Trials that counted.
    pub trials: u32,
    /// Faults of the tester; their trials did not count.
    pub faults: Vec<Fault>,
    /// Where this was not the RFC's full procedure.
    pub deviations: Vec<Deviation>,
}

/// Binary search for the throughput, from the maximum down.
#[derive(Clone, Debug)]
pub struct Throughput {
    config: ThroughputConfig,
    /// No loss at this load; zero until some trial had none.
    low: f64,
    /// No trial is proposed above this load.
    high: f64,
    high_is: High,
    done: bool,
    trials: u32,
    referee: Referee,
}

/// What is known of the upper end of the interval.
#[derive(Clone, Copy, Debug, PartialEq)]
enum High {
    Untried,
    UntriedTesterLimit,
    Lossy,
}

impl Throughput {
    /// A new search. Panics unless maximum and resolution are above zero.
    pub fn new(config: ThroughputConfig) -> Throughput {
        assert!(config.maximum.0 > 0.0 && config.resolution > 0.0, "{config:?}");
        Throughput {
            low: 0.0,
            high: config.maximum.0,
            high_is: High::Untried,
            done: false,
            trials: 0,
            referee: Referee::new(config.patience),
            config,
        }
    }

    fn proposal(&self) -> f64 {
        match self.high_is {
            High::Untried | High::UntriedTesterLimit => self.high,
            High::Lossy => f64::midpoint(self.low, self.high),
        }
    }

    fn trial(&self, load: f64) -> Trial {
        Trial::lasting(self.config.duration, Load(load), self.config.frame, self.config.pauses)
    }

    fn counted(&mut self, load: f64, lossless: bool) {
        self.trials += 1;
        if lossless {
            self.low = load;
            self.done = self.high_is != High::Lossy;
        } else {
            self.high = load;
            self.high_is = High::Lossy;
        }
        self.done |= self.high - self.low <= self.config.resolution * self.config.maximum.0;
    }
}

impl Search for Throughput {
    type Outcome = ThroughputResult;

    fn next(&mut self) -> Option<Trial> {
        (!self.done).then(|| self.trial(self.proposal()))
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.next().expect("a result answers a proposal");
        match self.referee.admit(&trial, result) {
            Admission::Counted => self.counted(trial.load.0, result.lost() == 0),
            Admission::Repeat => {}
            Admission::Lowered(load) => {
                self.high = load.0.max(self.low);
                self.high_is = High::UntriedTesterLimit;
                self.done = self.high - self.low <= self.config.resolution * self.config.maximum.0;
            }
            Admission::Abandoned => self.done = true,
        }
    }

    fn result(&self) -> ThroughputResult {
        ThroughputResult {
            frame: self.config.frame,
            throughput: (self.low > 0.0).then_some(Load(self.low)),
            lossy: (self.high_is == High::Lossy).then_some(Load(self.high)),
            tester_limit: (self.high_is == High::UntriedTesterLimit).then_some(Load(self.high)),
            trials: self.trials,
            faults: self.referee.faults().to_vec(),
            deviations: self.config.deviations(),
        }
    }
}
