//! RFC 9004, which updates RFC 2544 section 26.4: the longest burst at the line's rate that
//! loses nothing, searched repeatedly, and the buffer it implies.

use super::Deviation;
use crate::measure::Summary;
use crate::measure::trial::{
    Admission, Fault, FrameSize, Length, Load, Patience, Pauses, Referee, Search, Trial, TrialResult,
};
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

const REQUIRED_REPEATS: u32 = 50;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackToBackConfig {
    /// Size of every frame.
    pub frame: FrameSize,
    /// The line's rate, at which bursts are sent: the maximum theoretical frame rate.
    pub line: Load,
    /// The longest burst tried, packets; RFC 2544 asks for at least 2 s of them.
    pub longest: u64,
    /// A search ends when loss-free and lossy burst differ by this many packets.
    pub resolution: u64,
    /// A lossy burst is repeated this often, and counts as loss-free if one repeat is
    /// (binary search with loss verification, ETSI GS NFV-TST 009 section 12.3.3).
    pub verifications: u32,
    /// How many searches are averaged; RFC 9004 asks for 50 or more.
    pub repeats: u32,
    /// Throughput of the device for these frames, if it was measured: corrects the buffer.
    pub throughput: Option<Load>,
    /// Pauses after each burst.
    pub pauses: Pauses,
    /// How much to bear from the tester.
    pub patience: Patience,
}

impl BackToBackConfig {
    /// The RFC's rules: bursts of up to 2 s, 50 searches to one packet.
    pub fn rfc9004(frame: FrameSize, line: Load, throughput: Option<Load>) -> BackToBackConfig {
        BackToBackConfig {
            frame,
            line,
            longest: (line.0 * 2.0) as u64,
            resolution: 1,
            verifications: 0,
            repeats: REQUIRED_REPEATS,
            throughput,
            pauses: Pauses::RFC2544,
            patience: Patience::default(),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackToBackResult {
    /// The frames it holds for.
    pub frame: FrameSize,
    /// The line's rate, packets per second.
    pub line: Load,
    /// Longest burst without loss of each search, packets.
    pub bursts: Vec<u64>,
    /// Some search lost nothing at the longest burst: the buffer is larger than was tried,
    /// or the device keeps up with the line and no burst can fill it.
    pub unbounded: bool,
    /// Throughput the buffer is corrected with.
    pub throughput: Option<Load>,
    /// Faults of the tester; their trials did not count.
    pub faults: Vec<Fault>,
    /// Where this was not the RFC's full procedure.
    pub deviations: Vec<Deviation>,
}

impl BackToBackResult {
    /// Mean, spread and confidence of the bursts, in packets.
    pub fn summary(&self) -> Summary {
        let packets: Vec<f64> = self.bursts.iter().map(|&burst| burst as f64).collect();
        Summary::of(&packets)
    }

    /// Implied DUT Buffer Time: mean burst over the line's rate.
    pub fn implied_buffer_time(&self) -> Option<Duration> {
        (!self.bursts.is_empty()).then(|| Duration::from_secs_f64(self.summary().mean / self.line.0))
    }

    /// Corrected DUT Buffer Time: less what the device forwards while the burst arrives,
    /// implied · (1 − throughput / line rate). `None` without a throughput.
    pub fn corrected_buffer_time(&self) -> Option<Duration> {
        let share = (self.throughput?.0 / self.line.0).min(1.0);
        let implied = self.implied_buffer_time()?;
        Some(Duration::from_secs_f64(implied.as_secs_f64() * (1.0 - share)))
    }
}

/// Repeats a binary search over burst lengths.
#[derive(Clone, Debug)]
pub struct BackToBack {
    config: BackToBackConfig,
    /// No loss in a burst this long; one lossy burst (or one not yet tried) above it.
    low: u64,
    high: u64,
    high_tried: bool,
    verified: u32,
    bursts: Vec<u64>,
    unbounded: bool,
    abandoned: bool,
    referee: Referee,
}

impl BackToBack {
    /// A new measurement. Panics unless line rate, longest burst and resolution are above zero.
    pub fn new(config: BackToBackConfig) -> BackToBack {
        assert!(config.line.0 > 0.0 && config.longest > 0 && config.resolution > 0, "{config:?}");
        BackToBack {
            low: 0,
            high: config.longest,
            high_tried: false,
            verified: 0,
            bursts: Vec::new(),
            unbounded: false,
            abandoned: false,
            referee: Referee::new(config.patience),
            config,
        }
    }

    fn counted(&mut self, burst: u64, lossless: bool) {
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
            (self.low, self.high, self.high_tried) = (0, self.config.longest, false);
        }
    }
}

impl Search for BackToBack {
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
        let trial = self.next().expect("a result answers a proposal");
        match self.referee.admit(&trial, result) {
            Admission::Counted => self.counted(trial.packets(), result.lost() == 0),
            Admission::Repeat => {}
            // Bursts below the line's rate would answer another question.
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
            faults: self.referee.faults().to_vec(),
            deviations: repeats.into_iter().chain(pauses).collect(),
        }
    }
}
