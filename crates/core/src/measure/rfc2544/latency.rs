//! Latency (RFC 2544 section 26.2): the delay of one tagged frame at the throughput, averaged over repeats.

use super::Deviation;
use crate::measure::Summary;
use crate::measure::trial::{
    Admission, FaultTolerance, FrameSize, Length, OfferedLoad, Pauses, Referee, TesterFault, Trial,
    TrialResult, TrialSearch,
};
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

const REQUIRED_DURATION: Duration = Duration::from_secs(120);
const REQUIRED_REPEATS: u32 = 20;

/// Parameters of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyConfig {
    /// Frame size.
    pub frame: FrameSize,
    /// Load; must be the throughput for this frame size.
    pub load: OfferedLoad,
    /// Duration of a trial; the frame at its middle is tagged.
    pub duration: Duration,
    /// Number of trials to average.
    pub repeats: u32,
    /// Pauses after each trial.
    pub pauses: Pauses,
    /// Handling of tester faults.
    pub patience: FaultTolerance,
}

impl LatencyConfig {
    /// Returns the configuration required by RFC 2544: 20 trials of 120 s, with the frame sent after 60 s
    /// tagged.
    pub fn rfc2544(frame: FrameSize, throughput: OfferedLoad) -> LatencyConfig {
        LatencyConfig {
            frame,
            load: throughput,
            duration: REQUIRED_DURATION,
            repeats: REQUIRED_REPEATS,
            pauses: Pauses::RFC2544,
            patience: FaultTolerance::default(),
        }
    }
}

/// Result of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyResult {
    /// Frame size.
    pub frame: FrameSize,
    /// Load.
    pub load: OfferedLoad,
    /// Delays of the tagged frames, one per trial in which the frame arrived.
    pub delays: Vec<Duration>,
    /// Number of tagged frames lost.
    pub lost: u32,
    /// Frames lost by the device in all trials. If not zero, the load was above the throughput.
    pub frames_lost: u64,
    /// Tester faults; trials with faults are not counted.
    pub faults: Vec<TesterFault>,
    /// Deviations from the RFC's procedure.
    pub deviations: Vec<Deviation>,
}

impl LatencyResult {
    /// Returns mean, standard deviation and confidence interval of the delays, in seconds.
    pub fn summary(&self) -> Summary {
        let seconds: Vec<f64> = self.delays.iter().map(|delay| delay.as_secs_f64()).collect();
        Summary::from_samples(&seconds)
    }
}

/// A measurement that repeats one trial.
#[derive(Clone, Debug)]
pub struct Latency {
    config: LatencyConfig,
    delays: Vec<Duration>,
    lost: u32,
    frames_lost: u64,
    abandoned: bool,
    validator: Referee,
}

impl Latency {
    /// Creates a measurement. Panics if the load is not above zero.
    pub fn new(config: LatencyConfig) -> Latency {
        assert!(config.load.0 > 0.0, "{config:?}");
        Latency {
            delays: Vec::new(),
            lost: 0,
            frames_lost: 0,
            abandoned: false,
            validator: Referee::new(config.patience),
            config,
        }
    }
}

impl TrialSearch for Latency {
    type Outcome = LatencyResult;

    fn next(&mut self) -> Option<Trial> {
        let ended = self.abandoned || self.delays.len() as u32 + self.lost >= self.config.repeats;
        (!ended).then_some(Trial {
            load: self.config.load,
            frame: self.config.frame,
            length: Length::Time(self.config.duration),
            pauses: self.config.pauses,
            tag_after: Some(self.config.duration / 2),
        })
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.next().expect("a result is recorded after a proposal");
        let fault = result.fault_of_delays(&trial, self.config.patience.tolerance);
        match self.validator.decide(result, fault) {
            Admission::Counted => {
                self.frames_lost += result.lost();
                match result.tagged_delay {
                    Some(delay) => self.delays.push(delay),
                    None => self.lost += 1,
                }
            }
            Admission::Repeat => {}
            // Latency at another load would be another measurement.
            Admission::Lowered(_) | Admission::Abandoned => self.abandoned = true,
        }
    }

    fn result(&self) -> LatencyResult {
        let duration = Deviation::of_duration(REQUIRED_DURATION, self.config.duration);
        let repeats = Deviation::of_repeats(REQUIRED_REPEATS, self.delays.len() as u32 + self.lost);
        let pauses = Deviation::of_pauses(self.config.pauses);
        LatencyResult {
            frame: self.config.frame,
            load: self.config.load,
            delays: self.delays.clone(),
            lost: self.lost,
            frames_lost: self.frames_lost,
            faults: self.validator.faults().to_vec(),
            deviations: duration.into_iter().chain(repeats).chain(pauses).collect(),
        }
    }
}
