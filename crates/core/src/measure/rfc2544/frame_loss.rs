//! RFC 2544 section 26.3: the share of frames lost at loads from the maximum down, until
//! two successive loads lose none.

use super::Deviation;
use crate::measure::trial::{
    Admission, Fault, FrameSize, Load, Patience, Pauses, Referee, Search, Trial, TrialResult,
};
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

const REQUIRED_DURATION: Duration = Duration::from_secs(60);
const LARGEST_STEP: f64 = 0.1;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrameLossConfig {
    /// Size of every frame.
    pub frame: FrameSize,
    /// The first load: the line's rate.
    pub maximum: Load,
    /// Each load is this share of the maximum below the one before; at most 0.1 by the RFC.
    pub step: f64,
    /// Length of a trial.
    pub duration: Duration,
    /// Pauses after each.
    pub pauses: Pauses,
    /// How much to bear from the tester.
    pub patience: Patience,
}

impl FrameLossConfig {
    /// The RFC's rules: steps of 10 %. Its section on frame loss names no trial length; that
    /// of section 24, 60 s, is taken.
    pub fn rfc2544(frame: FrameSize, maximum: Load) -> FrameLossConfig {
        FrameLossConfig {
            frame,
            maximum,
            step: LARGEST_STEP,
            duration: REQUIRED_DURATION,
            pauses: Pauses::RFC2544,
            patience: Patience::default(),
        }
    }
}

/// Loss at one load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossAtLoad {
    /// The load asked for.
    pub load: Load,
    /// Frames sent.
    pub sent: u64,
    /// Frames lost.
    pub lost: u64,
}

impl LossAtLoad {
    /// Share of frames lost: the RFC's ((input − output) · 100) / input, not in percent.
    pub fn ratio(&self) -> f64 {
        self.lost as f64 / self.sent as f64
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrameLossResult {
    /// The frames it holds for.
    pub frame: FrameSize,
    /// Loss at each load, from the highest down; a load the tester could not offer is missing.
    pub points: Vec<LossAtLoad>,
    /// Faults of the tester; their trials did not count.
    pub faults: Vec<Fault>,
    /// Where this was not the RFC's full procedure.
    pub deviations: Vec<Deviation>,
}

/// Steps down from the maximum.
#[derive(Clone, Debug)]
pub struct FrameLoss {
    config: FrameLossConfig,
    step: u32,
    lossless_in_a_row: u32,
    points: Vec<LossAtLoad>,
    abandoned: bool,
    referee: Referee,
}

impl FrameLoss {
    /// A new measurement. Panics unless maximum and step are above zero.
    pub fn new(config: FrameLossConfig) -> FrameLoss {
        assert!(config.maximum.0 > 0.0 && config.step > 0.0, "{config:?}");
        FrameLoss {
            step: 0,
            lossless_in_a_row: 0,
            points: Vec::new(),
            abandoned: false,
            referee: Referee::new(config.patience),
            config,
        }
    }
}

impl Search for FrameLoss {
    type Outcome = FrameLossResult;

    fn next(&mut self) -> Option<Trial> {
        let share = 1.0 - f64::from(self.step) * self.config.step;
        // Rounding leaves a last share next to zero where the step divides the maximum.
        let ended = self.abandoned || self.lossless_in_a_row == 2 || share < self.config.step * 1e-6;
        (!ended).then_some(Trial::lasting(
            self.config.duration,
            Load(self.config.maximum.0 * share),
            self.config.frame,
            self.config.pauses,
        ))
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.next().expect("a result answers a proposal");
        match self.referee.admit(&trial, result) {
            Admission::Counted => {
                let point = LossAtLoad { load: trial.load, sent: result.sent, lost: result.lost() };
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
        let coarse =
            (step > LARGEST_STEP).then_some(Deviation::CoarseSteps { required: LARGEST_STEP, used: step });
        let short = Deviation::of_duration(REQUIRED_DURATION, duration);
        let pauses = Deviation::of_pauses(self.config.pauses);
        FrameLossResult {
            frame: self.config.frame,
            points: self.points.clone(),
            faults: self.referee.faults().to_vec(),
            deviations: coarse.into_iter().chain(short).chain(pauses).collect(),
        }
    }
}
