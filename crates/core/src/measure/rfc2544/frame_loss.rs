//! Frame loss rate (RFC 2544 section 26.3): the share of frames lost at loads decreasing from the maximum,
//! until two successive loads have no loss.

use super::Deviation;
use crate::measure::trial::{
    Admission, FaultTolerance, FrameSize, OfferedLoad, Pauses, Referee, TesterFault, Trial, TrialResult,
    TrialSearch,
};
use crate::measure::{Interval, clopper_pearson};
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

const REQUIRED_DURATION: Duration = Duration::from_secs(60);
const MAX_STEP: f64 = 0.1;

/// Parameters of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrameLossConfig {
    /// Frame size.
    pub frame: FrameSize,
    /// First load: the line rate.
    pub maximum: OfferedLoad,
    /// Step between loads as a share of the maximum; the RFC allows at most 0.1.
    pub step: f64,
    /// Duration of a trial.
    pub duration: Duration,
    /// Pauses after each trial.
    pub pauses: Pauses,
    /// Handling of tester faults.
    pub patience: FaultTolerance,
}

impl FrameLossConfig {
    /// Returns the configuration required by RFC 2544: steps of 10 %. Section 26.3 gives no trial duration;
    /// the 60 s of section 24 are used.
    pub fn rfc2544(frame: FrameSize, maximum: OfferedLoad) -> FrameLossConfig {
        FrameLossConfig {
            frame,
            maximum,
            step: MAX_STEP,
            duration: REQUIRED_DURATION,
            pauses: Pauses::RFC2544,
            patience: FaultTolerance::default(),
        }
    }
}

/// Loss at one load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossAtLoad {
    /// Requested load.
    pub load: OfferedLoad,
    /// Frames sent.
    pub sent: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames sent late, which may have caused as many losses.
    pub late: u64,
    /// Duplicates received.
    pub duplicated: u64,
    /// Received rate.
    pub delivered: OfferedLoad,
}

impl LossAtLoad {
    /// Returns the loss of a trial at this load.
    pub fn of(load: OfferedLoad, result: &TrialResult) -> LossAtLoad {
        let (sent, lost, late) = (result.sent, result.lost(), result.late);
        LossAtLoad { load, sent, lost, late, duplicated: result.duplicated, delivered: result.delivered() }
    }

    /// Returns the loss of two trials at the same load. The received rate is the mean, weighted by the frames sent.
    pub fn and(self, other: LossAtLoad) -> LossAtLoad {
        let sent = self.sent + other.sent;
        let share = other.sent as f64 / sent as f64;
        LossAtLoad {
            sent,
            lost: self.lost + other.lost,
            late: self.late + other.late,
            duplicated: self.duplicated + other.duplicated,
            delivered: OfferedLoad((1.0 - share) * self.delivered.0 + share * other.delivered.0),
            ..self
        }
    }

    /// Returns the 95 % interval of the ratio of frames that the path loses. The losses that late frames may have caused
    /// extend it downward.
    pub fn interval(&self) -> Interval {
        let lower = clopper_pearson(self.lost.saturating_sub(self.late), self.sent, 0.95).lower;
        Interval { lower, ..clopper_pearson(self.lost, self.sent, 0.95) }
    }

    /// Returns the share of frames lost, 0 to 1: the RFC's ((input − output) · 100) / input without the
    /// factor 100.
    pub fn ratio(&self) -> f64 {
        self.lost as f64 / self.sent as f64
    }
}

/// Result of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrameLossResult {
    /// Frame size.
    pub frame: FrameSize,
    /// Loss at each load, highest load first. Loads that the tester could not offer are missing.
    pub points: Vec<LossAtLoad>,
    /// Tester faults; trials with faults are not counted.
    pub faults: Vec<TesterFault>,
    /// Deviations from the RFC's procedure.
    pub deviations: Vec<Deviation>,
}

/// A measurement that steps down from the maximum load.
#[derive(Clone, Debug)]
pub struct FrameLoss {
    config: FrameLossConfig,
    step: u32,
    lossless_in_a_row: u32,
    points: Vec<LossAtLoad>,
    abandoned: bool,
    validator: Referee,
}

impl FrameLoss {
    /// Creates a measurement. Panics unless maximum and step are above zero.
    pub fn new(config: FrameLossConfig) -> FrameLoss {
        assert!(config.maximum.0 > 0.0 && config.step > 0.0, "{config:?}");
        FrameLoss {
            step: 0,
            lossless_in_a_row: 0,
            points: Vec::new(),
            abandoned: false,
            validator: Referee::new(config.patience),
            config,
        }
    }
}

impl TrialSearch for FrameLoss {
    type Outcome = FrameLossResult;

    fn next(&mut self) -> Option<Trial> {
        let share = 1.0 - f64::from(self.step) * self.config.step;
        // If the step divides the maximum, rounding may leave a last load just above zero.
        let ended = self.abandoned || self.lossless_in_a_row == 2 || share < self.config.step * 1e-6;
        (!ended).then_some(Trial::with_duration(
            self.config.duration,
            OfferedLoad(self.config.maximum.0 * share),
            self.config.frame,
            self.config.pauses,
        ))
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.next().expect("a result is recorded after a proposal");
        match self.validator.admit(&trial, result) {
            Admission::Counted => {
                let point = LossAtLoad::of(trial.load, result);
                self.lossless_in_a_row = if point.lost == 0 { self.lossless_in_a_row + 1 } else { 0 };
                self.points.push(point);
                self.step += 1;
            }
            Admission::Repeat => {}
            Admission::Lowered(_) => self.step += 1,
            Admission::Abandoned => self.abandoned = true,
        }
    }

    fn result(&self) -> FrameLossResult {
        let (step, duration) = (self.config.step, self.config.duration);
        let coarse = (step > MAX_STEP).then_some(Deviation::CoarseSteps { required: MAX_STEP, used: step });
        let short = Deviation::of_duration(REQUIRED_DURATION, duration);
        let pauses = Deviation::of_pauses(self.config.pauses);
        FrameLossResult {
            frame: self.config.frame,
            points: self.points.clone(),
            faults: self.validator.faults().to_vec(),
            deviations: coarse.into_iter().chain(short).chain(pauses).collect(),
        }
    }
}
