//! Back-to-back frames (RFC 9004, which updates RFC 2544 section 26.4): the longest burst at line rate
//! without loss, averaged over repeated searches, and the buffer time it implies.

use super::Deviation;
use crate::measure::Summary;
use crate::measure::trial::{
    Admission, FaultTolerance, FrameSize, Length, OfferedLoad, Pauses, Referee, TesterFault, Trial,
    TrialResult, TrialSearch,
};
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

const REQUIRED_REPEATS: u32 = 50;

/// Parameters of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackToBackConfig {
    /// Frame size.
    pub frame: FrameSize,
    /// Line rate, at which bursts are sent: the maximum theoretical frame rate.
    pub line: OfferedLoad,
    /// Longest burst to try, packets; RFC 2544 requires at least 2 s worth of packets.
    pub max_burst: u64,
    /// Difference between lossless and lossy burst at which a search ends, packets.
    pub resolution: u64,
    /// Number of times a lossy burst is repeated; it counts as lossless if one repeat is (binary search with
    /// loss verification, ETSI GS NFV-TST 009 section 12.3.3).
    pub verifications: u32,
    /// Number of searches to average; RFC 9004 requires at least 50.
    pub repeats: u32,
    /// Measured throughput of the device for this frame size, used to correct the buffer time.
    pub throughput: Option<OfferedLoad>,
    /// Pauses after each burst.
    pub pauses: Pauses,
    /// Handling of tester faults.
    pub patience: FaultTolerance,
}

impl BackToBackConfig {
    /// Returns the configuration required by RFC 9004: bursts of up to 2 s and 50 searches with a resolution
    /// of one packet.
    pub fn rfc9004(frame: FrameSize, line: OfferedLoad, throughput: Option<OfferedLoad>) -> BackToBackConfig {
        BackToBackConfig {
            frame,
            line,
            max_burst: (line.0 * 2.0) as u64,
            resolution: 1,
            verifications: 0,
            repeats: REQUIRED_REPEATS,
            throughput,
            pauses: Pauses::RFC2544,
            patience: FaultTolerance::default(),
        }
    }
}

/// Result of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackToBackResult {
    /// Frame size.
    pub frame: FrameSize,
    /// Line rate, packets per second.
    pub line: OfferedLoad,
    /// Longest lossless burst of each search, packets.
    pub bursts: Vec<u64>,
    /// True if a search had no loss at the longest burst. The buffer is then larger than tested, or the
    /// device forwards at line rate and no burst can fill it.
    pub unbounded: bool,
    /// Throughput used to correct the buffer time.
    pub throughput: Option<OfferedLoad>,
    /// Tester faults; trials with faults are not counted.
    pub faults: Vec<TesterFault>,
    /// Deviations from the RFC's procedure.
    pub deviations: Vec<Deviation>,
}

impl BackToBackResult {
    /// Returns mean, standard deviation and confidence interval of the bursts, in packets.
    pub fn summary(&self) -> Summary {
        let packets: Vec<f64> = self.bursts.iter().map(|&burst| burst as f64).collect();
        Summary::from_samples(&packets)
    }

    /// Returns the Implied DUT Buffer Time: mean burst divided by line rate.
    pub fn implied_buffer_time(&self) -> Option<Duration> {
        (!self.bursts.is_empty()).then(|| Duration::from_secs_f64(self.summary().mean / self.line.0))
    }

    /// Returns the Corrected DUT Buffer Time, which excludes packets forwarded while the burst arrives:
    /// implied time · (1 − throughput / line rate). `None` without a throughput.
    pub fn corrected_buffer_time(&self) -> Option<Duration> {
        let share = (self.throughput?.0 / self.line.0).min(1.0);
        let implied = self.implied_buffer_time()?;
        Some(Duration::from_secs_f64(implied.as_secs_f64() * (1.0 - share)))
    }
}

/// A repeated binary search over burst lengths.
#[derive(Clone, Debug)]
pub struct BackToBack {
    config: BackToBackConfig,
    /// Longest burst known to be lossless. `high` is the shortest lossy burst, or the longest burst to try
    /// before it is tried.
    low: u64,
    high: u64,
    high_tried: bool,
    verified: u32,
    bursts: Vec<u64>,
    unbounded: bool,
    abandoned: bool,
    validator: Referee,
}

impl BackToBack {
    /// Creates a measurement. Panics unless line rate, longest burst and resolution are above zero.
    pub fn new(config: BackToBackConfig) -> BackToBack {
        assert!(config.line.0 > 0.0 && config.max_burst > 0 && config.resolution > 0, "{config:?}");
        BackToBack {
            low: 0,
            high: config.max_burst,
            high_tried: false,
            verified: 0,
            bursts: Vec::new(),
            unbounded: false,
            abandoned: false,
            validator: Referee::new(config.patience),
            config,
        }
    }

    fn count_trial(&mut self, burst: u64, lossless: bool) {
        if !lossless && self.verified < self.config.verifications {
            self.verified += 1;
            return;
        }
        self.verified = 0;
        if lossless {
            self.low = burst;
        } else {
            self.high = burst;
        }
        let unbounded = lossless && !self.high_tried;
        self.high_tried = true;
        if unbounded || self.high - self.low <= self.config.resolution {
            self.unbounded |= unbounded;
            self.bursts.push(self.low);
            (self.low, self.high, self.high_tried) = (0, self.config.max_burst, false);
        }
    }
}

impl TrialSearch for BackToBack {
    type Outcome = BackToBackResult;

    fn next(&mut self) -> Option<Trial> {
        if self.abandoned || self.bursts.len() as u32 >= self.config.repeats {
            return None;
        }
        let burst = if self.high_tried { self.low.midpoint(self.high) } else { self.high };
        Some(Trial {
            load: self.config.line,
            frame: self.config.frame,
            length: Length::Packets(burst),
            pauses: self.config.pauses,
            tag_after: None,
        })
    }

    fn record(&mut self, result: &TrialResult) {
        let trial = self.next().expect("a result is recorded after a proposal");
        // A pause in the burst empties a part of the buffer. Only the last packet may fall behind the end.
        let is_interrupted = result.lost() == 0 && result.sent + 1 < trial.packets();
        let interruption = TesterFault::GeneratorStopped { requested: trial.packets(), sent: result.sent };
        let fault = result.fault(&trial, self.config.patience.tolerance);
        let fault = fault.or(is_interrupted.then_some(interruption));
        match self.validator.decide(result, fault) {
            Admission::Counted => self.count_trial(trial.packets(), result.lost() == 0),
            Admission::Repeat => {}
            // Bursts below line rate would measure something else.
            Admission::Lowered(_) | Admission::Abandoned => self.abandoned = true,
        }
    }

    fn result(&self) -> BackToBackResult {
        let repeats = Deviation::of_repeats(REQUIRED_REPEATS, self.bursts.len() as u32);
        let pauses = Deviation::of_pauses(self.config.pauses);
        BackToBackResult {
            frame: self.config.frame,
            line: self.config.line,
            bursts: self.bursts.clone(),
            unbounded: self.unbounded,
            throughput: self.config.throughput,
            faults: self.validator.faults().to_vec(),
            deviations: repeats.into_iter().chain(pauses).collect(),
        }
    }
}
