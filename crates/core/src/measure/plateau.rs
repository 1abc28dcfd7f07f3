//! Search for the capacity of a path: raises the offered rate until the received rate stops growing.
//!
//! Unlike the throughput of RFC 2544, the capacity does not require zero loss, so it is also defined on a
//! path with random loss. The loss of the unloaded path is measured first; only higher loss counts as
//! overload.

use super::Summary;
use super::trial::{
    Admission, FaultTolerance, FrameSize, OfferedLoad, Pauses, Referee, TesterFault, Trial, TrialResult,
    TrialSearch,
};
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Parameters of the search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauConfig {
    /// Packet size.
    pub frame: FrameSize,
    /// First load; should be far below the capacity.
    pub first: OfferedLoad,
    /// Highest load to try.
    pub maximum: OfferedLoad,
    /// Factor between successive loads; above 1.
    pub factor: f64,
    /// Relative difference up to which received rates belong to the same plateau; also the relative width of
    /// the knee interval.
    pub tolerance: f64,
    /// Number of trials on the plateau to average.
    pub repeats: u32,
    /// Duration of a trial.
    pub duration: Duration,
    /// Pauses after each trial.
    pub pauses: Pauses,
    /// Handling of tester faults.
    pub patience: FaultTolerance,
}

impl PlateauConfig {
    /// Returns a configuration with a factor of 1.5, a tolerance of 2 %, and three trials of 5 s on the
    /// plateau.
    pub fn new(frame: FrameSize, first: OfferedLoad, maximum: OfferedLoad) -> PlateauConfig {
        PlateauConfig {
            frame,
            first,
            maximum,
            factor: 1.5,
            tolerance: 0.02,
            repeats: 3,
            duration: Duration::from_secs(5),
            pauses: Pauses::RFC2544,
            patience: FaultTolerance::default(),
        }
    }
}

/// Offered and received rate of one trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauPoint {
    /// Load sent by the generator.
    pub offered: OfferedLoad,
    /// Received rate.
    pub received: OfferedLoad,
}

/// Reason no plateau was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlateauError {
    /// The path carries the highest load.
    AboveMaximum,
    /// The tester reached its limit before the path did.
    TesterLimit,
    /// Nothing was received.
    NothingReceived,
    /// The search has not ended.
    Unfinished,
}

/// Result of the search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauResult {
    /// Packet size.
    pub frame: FrameSize,
    /// Received rate on the plateau, packets per second: mean and confidence interval.
    pub capacity: Result<Summary, PlateauError>,
    /// Interval of loads that contains the knee, at which the path becomes full. At the lower load, loss does
    /// not exceed that of the unloaded path.
    pub knee: Option<(OfferedLoad, OfferedLoad)>,
    /// Share of packets lost at the lowest load: the loss of the unloaded path.
    pub loss_when_idle: Option<f64>,
    /// Offered and received rates of all valid trials, sorted by offered load.
    pub curve: Vec<PlateauPoint>,
    /// Tester faults; trials with faults are not counted.
    pub faults: Vec<TesterFault>,
}

/// Stage of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PlateauStage {
    /// Raise the load.
    Climb {
        load: f64,
    },
    /// Repeat above the knee.
    Average {
        load: f64,
        remaining: u32,
    },
    /// Bisect between a load the path carries and one it does not.
    Knee {
        carried: f64,
        full: f64,
    },
    Ended(Option<PlateauError>),
}

/// A search for the capacity of a path.
#[derive(Clone, Debug)]
pub struct Plateau {
    config: PlateauConfig,
    stage: PlateauStage,
    curve: Vec<PlateauPoint>,
    /// Share of packets lost at the first load.
    idle_loss: Option<f64>,
    /// Received rates on the plateau.
    plateau: Vec<f64>,
    validator: Referee,
}

impl Plateau {
    /// Creates a search. Panics unless 0 < `first` ≤ `maximum`, `factor` > 1, and `tolerance` is in (0, 0.5).
    pub fn new(config: PlateauConfig) -> Plateau {
        assert!(config.first.0 > 0.0 && config.first <= config.maximum, "{config:?}");
        assert!(config.factor > 1.0 && config.tolerance > 0.0 && config.tolerance < 0.5, "{config:?}");
        Plateau {
            stage: PlateauStage::Climb { load: config.first.0 },
            curve: Vec::new(),
            idle_loss: None,
            plateau: Vec::new(),
            validator: Referee::new(config.patience),
            config,
        }
    }

    /// Returns the share of packets received on the unloaded path.
    fn idle_share(&self) -> f64 {
        self.curve.first().map_or(1.0, |point| point.received.0 / point.offered.0)
    }

    /// Returns whether the loss exceeds that of the unloaded path by more than the tolerance.
    fn is_full(&self, point: PlateauPoint) -> bool {
        point.received.0 < point.offered.0 * self.idle_share() * (1.0 - self.config.tolerance)
    }

    fn continue_climb(&mut self, load: f64, point: PlateauPoint) {
        if point.received.0 == 0.0 {
            self.stage = PlateauStage::Ended(Some(PlateauError::NothingReceived));
        } else if self.is_full(point) {
            // Average well above the knee, so that every trial fills the path.
            let above = (load * self.config.factor).min(self.config.maximum.0);
            self.stage = PlateauStage::Average { load: above, remaining: self.config.repeats.max(1) };
        } else if load >= self.config.maximum.0 {
            self.stage = PlateauStage::Ended(Some(PlateauError::AboveMaximum));
        } else {
            self.stage = PlateauStage::Climb { load: (load * self.config.factor).min(self.config.maximum.0) };
        }
    }

    /// Returns the highest load carried and the lowest load not carried, between which the knee lies.
    fn knee(&self) -> (f64, f64) {
        let full = |point: &&PlateauPoint| self.is_full(**point);
        let lowest =
            self.curve.iter().filter(full).map(|point| point.offered.0).fold(f64::INFINITY, f64::min);
        let carried = self.curve.iter().map(|point| point.offered.0).filter(|&load| load < lowest);
        (carried.fold(0.0, f64::max), lowest)
    }

    fn bisect(&mut self) {
        let (carried, full) = self.knee();
        let is_precise = full - carried <= self.config.tolerance * full;
        self.stage =
            if is_precise { PlateauStage::Ended(None) } else { PlateauStage::Knee { carried, full } };
    }

    fn count_trial(&mut self, point: PlateauPoint) {
        self.curve.push(point);
        match self.stage {
            PlateauStage::Climb { load } => self.continue_climb(load, point),
            PlateauStage::Average { load, remaining } => {
                self.plateau.push(point.received.0);
                match remaining - 1 {
                    0 => self.bisect(),
                    remaining => self.stage = PlateauStage::Average { load, remaining },
                }
            }
            PlateauStage::Knee { .. } => self.bisect(),
            PlateauStage::Ended(_) => unreachable!("no trial is proposed after the end"),
        }
    }

    fn lower_limit(&mut self, limit: OfferedLoad) {
        match self.stage {
            // The tester's limit may still be above the knee.
            PlateauStage::Average { remaining, .. } if limit.0 >= self.knee().1 => {
                self.stage = PlateauStage::Average { load: limit.0, remaining }
            }
            PlateauStage::Climb { load } if limit.0 > load / self.config.factor => {
                self.config.maximum = limit;
                self.stage = PlateauStage::Climb { load: limit.0 };
            }
            _ => self.stage = PlateauStage::Ended(Some(PlateauError::TesterLimit)),
        }
    }
}

impl TrialSearch for Plateau {
    type Outcome = PlateauResult;

    fn next(&mut self) -> Option<Trial> {
        let load = match self.stage {
            PlateauStage::Climb { load } | PlateauStage::Average { load, .. } => load,
            PlateauStage::Knee { carried, full } => f64::midpoint(carried, full),
            PlateauStage::Ended(_) => return None,
        };
        Some(Trial::with_duration(
            self.config.duration,
            OfferedLoad(load),
            self.config.frame,
            self.config.pauses,
        ))
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.next().expect("a result is recorded after a proposal");
        match self.validator.admit(&trial, result) {
            Admission::Counted => {
                self.idle_loss.get_or_insert(result.loss_ratio());
                self.count_trial(PlateauPoint { offered: result.offered(), received: result.delivered() });
            }
            Admission::Repeat => {}
            Admission::Lowered(limit) => self.lower_limit(limit),
            Admission::Abandoned => self.stage = PlateauStage::Ended(Some(PlateauError::TesterLimit)),
        }
    }

    fn result(&self) -> PlateauResult {
        let capacity = match self.stage {
            PlateauStage::Ended(Some(PlateauError::AboveMaximum)) if !self.validator.faults().is_empty() => {
                Err(PlateauError::TesterLimit)
            }
            PlateauStage::Ended(Some(reason)) => Err(reason),
            PlateauStage::Climb { .. } | PlateauStage::Average { .. } => Err(PlateauError::Unfinished),
            PlateauStage::Knee { .. } | PlateauStage::Ended(None) => Ok(Summary::from_samples(&self.plateau)),
        };
        let knee = capacity.as_ref().ok().map(|_| self.knee());
        let mut curve = self.curve.clone();
        curve.sort_by(|one, other| one.offered.0.total_cmp(&other.offered.0));
        PlateauResult {
            frame: self.config.frame,
            capacity,
            knee: knee.map(|(carried, full)| (OfferedLoad(carried), OfferedLoad(full))),
            loss_when_idle: self.idle_loss,
            curve,
            faults: self.validator.faults().to_vec(),
        }
    }
}
