//! The capacity of a path, by raising the offered rate until the received rate tops out.
//!
//! Unlike RFC 2544's throughput it does not ask for zero loss, so a path that loses packets
//! by itself has a plateau all the same: loss there is told apart from what the path loses
//! when it is not full.

use super::Summary;
use super::trial::{
    Admission, Fault, FrameSize, Load, Patience, Pauses, Referee, Search, Trial, TrialResult,
};
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What to search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauConfig {
    /// Size of every packet.
    pub frame: FrameSize,
    /// The first load, which should be far below the capacity.
    pub first: Load,
    /// The highest load tried.
    pub maximum: Load,
    /// Each load is so many times the one before; above 1.
    pub factor: f64,
    /// Share by which received rates may differ and still be the same plateau; also how
    /// closely the knee is found.
    pub tolerance: f64,
    /// Trials on the plateau that are averaged.
    pub repeats: u32,
    /// Length of a trial.
    pub duration: Duration,
    /// Pauses after each.
    pub pauses: Pauses,
    /// How much to bear from the tester.
    pub patience: Patience,
}

impl PlateauConfig {
    /// Steps of 1.5, 2 % tolerance, three trials of 5 s on the plateau.
    pub fn new(frame: FrameSize, first: Load, maximum: Load) -> PlateauConfig {
        PlateauConfig {
            frame,
            first,
            maximum,
            factor: 1.5,
            tolerance: 0.02,
            repeats: 3,
            duration: Duration::from_secs(5),
            pauses: Pauses::RFC2544,
            patience: Patience::default(),
        }
    }
}

/// Received against offered, in one trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// The load that left the generator.
    pub offered: Load,
    /// The rate that was received.
    pub received: Load,
}

/// Why there is no plateau.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoPlateau {
    /// The path carries the highest load tried.
    AboveMaximum,
    /// The tester fell short before the path did.
    TesterLimit,
    /// Nothing was received.
    NothingReceived,
    /// The search has not ended.
    Unfinished,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauResult {
    /// The packets it holds for.
    pub frame: FrameSize,
    /// Received rate on the plateau, packets per second: mean, and how far to trust it.
    pub capacity: Result<Summary, NoPlateau>,
    /// Between these loads the path fills: at the lower one all that it does not lose anyway
    /// came through.
    pub knee: Option<(Load, Load)>,
    /// Share of packets lost at the lowest load: what the path loses without being full.
    pub loss_when_idle: Option<f64>,
    /// All trials that counted, by offered load.
    pub curve: Vec<Received>,
    /// Faults of the tester; their trials did not count.
    pub faults: Vec<Fault>,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Raise the load.
    Climb {
        load: f64,
    },
    /// Repeat above the knee.
    Average {
        load: f64,
        left: u32,
    },
    /// Halve between a load the path carries and one it does not.
    Knee {
        carried: f64,
        full: f64,
    },
    Ended(Option<NoPlateau>),
}

/// The search.
#[derive(Clone, Debug)]
pub struct Plateau {
    config: PlateauConfig,
    stage: Stage,
    curve: Vec<Received>,
    /// Received rates on the plateau.
    plateau: Vec<f64>,
    referee: Referee,
}

impl Plateau {
    /// A new search. Panics unless 0 < first ≤ maximum, factor > 1 and tolerance in (0, 0.5).
    pub fn new(config: PlateauConfig) -> Plateau {
        assert!(config.first.0 > 0.0 && config.first <= config.maximum, "{config:?}");
        assert!(config.factor > 1.0 && config.tolerance > 0.0 && config.tolerance < 0.5, "{config:?}");
        Plateau {
            stage: Stage::Climb { load: config.first.0 },
            curve: Vec::new(),
            plateau: Vec::new(),
            referee: Referee::new(config.patience),
            config,
        }
    }

    /// Share of packets received when the path was not full.
    fn idle_share(&self) -> f64 {
        self.curve.first().map_or(1.0, |point| point.received.0 / point.offered.0)
    }

    /// Whether the path kept back more of this than it does when it is not full.
    fn is_full(&self, point: Received) -> bool {
        point.received.0 < point.offered.0 * self.idle_share() * (1.0 - self.config.tolerance)
    }

    fn climbed(&mut self, load: f64, point: Received) {
        if point.received.0 == 0.0 {
            self.stage = Stage::Ended(Some(NoPlateau::NothingReceived));
        } else if self.is_full(point) {
            // Well above the knee, so that every trial fills the path.
            let above = (load * self.config.factor).min(self.config.maximum.0);
            self.stage = Stage::Average { load: above, left: self.config.repeats.max(1) };
        } else if load >= self.config.maximum.0 {
            self.stage = Stage::Ended(Some(NoPlateau::AboveMaximum));
        } else {
            self.stage = Stage::Climb { load: (load * self.config.factor).min(self.config.maximum.0) };
        }
    }

    /// The knee lies between the highest load carried and the lowest one not.
    fn knee(&self) -> (f64, f64) {
        let full = |point: &&Received| self.is_full(**point);
        let lowest =
            self.curve.iter().filter(full).map(|point| point.offered.0).fold(f64::INFINITY, f64::min);
        let carried = self.curve.iter().map(|point| point.offered.0).filter(|&load| load < lowest);
        (carried.fold(0.0, f64::max), lowest)
    }

    fn halve(&mut self) {
        let (carried, full) = self.knee();
        let found = full - carried <= self.config.tolerance * full;
        self.stage = if found { Stage::Ended(None) } else { Stage::Knee { carried, full } };
    }

    fn counted(&mut self, point: Received) {
        self.curve.push(point);
        match self.stage {
            Stage::Climb { load } => self.climbed(load, point),
            Stage::Average { load, left } => {
                self.plateau.push(point.received.0);
                match left - 1 {
                    0 => self.halve(),
                    left => self.stage = Stage::Average { load, left },
                }
            }
            Stage::Knee { .. } => self.halve(),
            Stage::Ended(_) => unreachable!("no trial is proposed at the end"),
        }
    }

    fn lowered(&mut self, limit: Load) {
        match self.stage {
            // The tester's own limit may still lie above the knee.
            Stage::Average { left, .. } => self.stage = Stage::Average { load: limit.0, left },
            Stage::Climb { load } if limit.0 > load / self.config.factor => {
                self.config.maximum = limit;
                self.stage = Stage::Climb { load: limit.0 };
            }
            _ => self.stage = Stage::Ended(Some(NoPlateau::TesterLimit)),
        }
    }
}

impl Search for Plateau {
    type Outcome = PlateauResult;

    fn next(&mut self) -> Option<Trial> {
        let load = match self.stage {
            Stage::Climb { load } | Stage::Average { load, .. } => load,
            Stage::Knee { carried, full } => f64::midpoint(carried, full),
            Stage::Ended(_) => return None,
        };
        Some(Trial::lasting(self.config.duration, Load(load), self.config.frame, self.config.pauses))
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.next().expect("a result answers a proposal");
        match self.referee.admit(&trial, result) {
            Admission::Counted => {
                self.counted(Received { offered: result.offered(), received: result.delivered() });
            }
            Admission::Repeat => {}
            Admission::Lowered(limit) => self.lowered(limit),
            Admission::Abandoned => self.stage = Stage::Ended(Some(NoPlateau::TesterLimit)),
        }
    }

    fn result(&self) -> PlateauResult {
        let capacity = match self.stage {
            Stage::Ended(Some(NoPlateau::AboveMaximum)) if !self.referee.faults().is_empty() => {
                Err(NoPlateau::TesterLimit)
            }
            Stage::Ended(Some(why)) => Err(why),
            Stage::Climb { .. } | Stage::Average { .. } => Err(NoPlateau::Unfinished),
            Stage::Knee { .. } | Stage::Ended(None) => Ok(Summary::of(&self.plateau)),
        };
        let knee = capacity.as_ref().ok().map(|_| self.knee());
        let mut curve = self.curve.clone();
        curve.sort_by(|one, other| one.offered.0.total_cmp(&other.offered.0));
        PlateauResult {
            frame: self.config.frame,
            capacity,
            knee: knee.map(|(carried, full)| (Load(carried), Load(full))),
            loss_when_idle: self.curve.first().map(|_| 1.0 - self.idle_share()),
            curve,
            faults: self.referee.faults().to_vec(),
        }
    }
}
