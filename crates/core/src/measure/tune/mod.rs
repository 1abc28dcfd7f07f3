//! Search for the TCP window (and congestion control) with the highest goodput on a path, optionally within a
//! bound on the round trip. Each transfer uses another setting.
//!
//! The first transfers use a window that does not limit them. They give the bottleneck rate and the base
//! round trip (RFC 6349), and so the windows around which the knee is expected. A survey tries windows there.
//! It goes on beyond the last window while that one is the best, and then tries windows between the best and
//! its neighbors. Then the best windows race: every round has one transfer with each of them, in random
//! order, so that changes of the path affect all of them alike, and windows are compared within rounds.
//! Windows that are worse with 95 % confidence leave the race. The search ends when no other window can be
//! better than the leader by more than the tolerance, or at the transfer limit.
//!
//! Sans-IO: call [`WindowSearch::next`], run the transfer, call [`WindowSearch::record`]; repeat until `next`
//! returns `None`.

mod race;
mod search_result;
#[cfg(test)]
mod tests;

pub use search_result::{PathEstimate, SettingResult, WindowSearchResult};

use crate::rng::RandomStream;
use crate::time::Duration;
use alloc::vec::Vec;
use race::{RaceComparison, compare};
use search_result::mean;
use serde::{Deserialize, Serialize};

/// Range and limits of a window search.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowSearchConfig {
    /// Number of congestion controls to choose from, at least one; settings refer to them by index.
    pub controls: usize,
    /// Payload of a full segment, bytes. Windows are whole multiples of it.
    pub segment: u32,
    /// Largest window to try, bytes.
    pub max_window: u64,
    /// Maximum mean round trip of a transfer.
    pub delay_bound: Option<Duration>,
    /// Relative difference in goodput below which two settings count as equal.
    pub tolerance: f64,
    /// Maximum number of transfers.
    pub trials: usize,
}

/// Settings of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Setting {
    /// Index of the congestion control.
    pub control: usize,
    /// Window, bytes; `None` leaves it to the operating system.
    pub window: Option<u64>,
}

/// Measurements of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferSample {
    /// Received payload rate, bits per second.
    pub goodput: f64,
    /// Minimum round trip.
    pub min_round_trip: Duration,
    /// Mean round trip.
    pub mean_round_trip: Duration,
    /// Maximum round trip.
    pub max_round_trip: Duration,
    /// Retransmitted segments.
    pub retransmissions: u64,
}

/// Ratio between neighboring windows of the survey. Windows tried between them differ by its square root.
const STEP: f64 = core::f64::consts::SQRT_2;
/// Smallest window, segments: with fewer in flight, there are too few duplicate ACKs for fast retransmit (RFC
/// 5681).
const MIN_SEGMENTS: u64 = 4;
/// Limit of the survey's first range, as a multiple of the bandwidth-delay product.
const MAX_SURVEY: f64 = 4.0;
/// Share of the best goodput that a setting must reach in the survey to take part in the race.
const MIN_RACER_SHARE: f64 = 0.8;
/// Maximum number of settings in the race, not counting those without a window limit.
const MAX_RACERS: usize = 4;
/// Number of rounds before settings are compared.
const MIN_ROUNDS: usize = 3;
/// Growth of goodput from the second-largest window to the largest below which the curve is taken as flat.
const MIN_GROWTH: f64 = 1.03;

/// A search for the best window.
#[derive(Clone, Debug)]
pub struct WindowSearch {
    config: WindowSearchConfig,
    random: RandomStream,
    /// Settings tried, with the sample of each round.
    arms: Vec<Arm>,
    /// Settings still to be tried in this round, next one last.
    pending: Vec<usize>,
    round: usize,
    stage: WindowSearchStage,
    trials: usize,
}

#[derive(Clone, Debug)]
struct Arm {
    setting: Setting,
    samples: Vec<(usize, TransferSample)>,
    races: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowSearchStage {
    Free,
    Survey,
    Between,
    Race,
    Over { sure: bool },
}

impl WindowSearch {
    /// Creates a search. The order of transfers is drawn from `random`.
    ///
    /// Panics without a congestion control or a segment size, or if no window is allowed.
    pub fn new(config: WindowSearchConfig, random: RandomStream) -> WindowSearch {
        assert!(config.controls > 0 && config.segment > 0, "{config:?}");
        assert!(config.max_window >= MIN_SEGMENTS * u64::from(config.segment), "{config:?}");
        let mut tune = WindowSearch {
            config,
            random,
            arms: Vec::new(),
            pending: Vec::new(),
            round: 0,
            stage: WindowSearchStage::Free,
            trials: 0,
        };
        (0..tune.config.controls).for_each(|control| tune.add_setting(Setting { control, window: None }));
        tune.shuffle();
        tune
    }

    /// Returns the setting of the next transfer; `None` at the end.
    pub fn next(&self) -> Option<Setting> {
        self.pending.last().map(|arm| self.arms[*arm].setting)
    }

    /// Records the sample of the transfer proposed by [`WindowSearch::next`]. Panics if no transfer was
    /// proposed.
    pub fn record(&mut self, sample: TransferSample) {
        let arm = self.pending.pop().expect("a sample is recorded after a proposal");
        self.arms[arm].samples.push((self.round, sample));
        self.trials += 1;
        if self.trials >= self.config.trials {
            self.pending.clear();
            // The last round may be incomplete: it is not compared further, but earlier comparisons hold.
            self.stage = WindowSearchStage::Over {
                sure: self.stage == WindowSearchStage::Race && self.compare_racers(),
            };
        }
        while self.pending.is_empty() && !matches!(self.stage, WindowSearchStage::Over { .. }) {
            self.advance();
            self.shuffle();
        }
    }

    /// Returns the number of transfers so far.
    pub fn trials(&self) -> usize {
        self.trials
    }

    /// Returns the result so far; `None` before the first transfer.
    pub fn result(&self) -> Option<WindowSearchResult> {
        WindowSearchResult::from_search(self)
    }

    /// Chooses the transfers of the next round.
    fn advance(&mut self) {
        match self.stage {
            WindowSearchStage::Free => {
                self.survey();
                self.stage = WindowSearchStage::Survey;
            }
            WindowSearchStage::Survey => {
                (0..self.config.controls).for_each(|control| self.widen(control));
                if self.pending.is_empty() {
                    self.add_halfway_windows();
                    self.stage = WindowSearchStage::Between;
                }
            }
            WindowSearchStage::Between => {
                self.choose_racers();
                self.stage = WindowSearchStage::Race;
                self.next_round();
            }
            WindowSearchStage::Race => {
                if self.compare_racers() {
                    self.stage = WindowSearchStage::Over { sure: true };
                } else {
                    self.next_round();
                }
            }
            WindowSearchStage::Over { .. } => {}
        }
    }

    /// Adds windows around the knee expected from the unlimited transfers: from half the bandwidth-delay
    /// product to more than the unlimited transfers had in flight.
    fn survey(&mut self) {
        let free: Vec<TransferSample> =
            self.arms.iter().flat_map(|arm| &arm.samples).map(|(_, s)| *s).collect();
        let rate = free.iter().map(|sample| sample.goodput).fold(0.0, f64::max);
        let seconds = |trip: Duration| trip.as_secs_f64();
        let min = free.iter().map(|sample| seconds(sample.min_round_trip)).fold(f64::INFINITY, f64::min);
        let mean = free.iter().map(|sample| seconds(sample.mean_round_trip)).fold(min, f64::max);
        let bandwidth_delay_product = rate * min / 8.0;
        let smallest = (MIN_SEGMENTS * u64::from(self.config.segment)) as f64;
        let top =
            (rate * mean / 8.0 * 2.0).min(bandwidth_delay_product * MAX_SURVEY).max(smallest * MAX_SURVEY);
        let mut window = (bandwidth_delay_product / 2.0).max(smallest);
        while window <= top {
            (0..self.config.controls).for_each(|control| self.add_window(control, window));
            window *= STEP;
        }
    }

    /// Adds the next window of a congestion control if the best one is at an end of the tried range.
    fn widen(&mut self, control: usize) {
        let tried = self.windows(control);
        let Some(best) = self.best_of(&tried) else { return };
        let at = |arm: usize| self.arms[arm].setting.window.unwrap_or(self.config.max_window) as f64;
        let (first, last) = (tried[0], tried[tried.len() - 1]);
        let rises = tried.len() < 2
            || mean(&self.arms[last], |s| s.goodput)
                > MIN_GROWTH * mean(&self.arms[tried[tried.len() - 2]], |s| s.goodput);
        let (below, above) = (at(first) / STEP, at(last) * STEP);
        if best == last && rises && self.is_allowed(&self.arms[last]) {
            self.add_window(control, above);
        }
        if best == first {
            self.add_window(control, below);
        }
    }

    /// Adds the windows halfway to the neighbors of the best one and of the smallest one with equal goodput.
    fn add_halfway_windows(&mut self) {
        let limited = self.limited();
        let Some(best) = self.best_of(&limited) else { return };
        let control = self.arms[best].setting.control;
        let enough = (1.0 - self.config.tolerance) * mean(&self.arms[best], |s| s.goodput);
        let smallest =
            self.windows(control).into_iter().find(|arm| mean(&self.arms[*arm], |s| s.goodput) >= enough);
        let half = libm::sqrt(STEP);
        for arm in [Some(best), smallest].into_iter().flatten() {
            let window = self.arms[arm].setting.window.unwrap_or(self.config.max_window) as f64;
            self.add_window(control, window / half);
            self.add_window(control, window * half);
        }
    }

    /// Selects the settings that may be the best, and those without a window limit, which are the system's
    /// default. Among settings with equal goodput, smaller windows come first.
    fn choose_racers(&mut self) {
        let limited = self.limited();
        let best = self.best_of(&limited);
        let goodput = |arm: usize| mean(&self.arms[arm], |s| s.goodput);
        let top = best.map_or(0.0, goodput);
        let mut able: Vec<usize> = limited
            .into_iter()
            .filter(|arm| self.is_allowed(&self.arms[*arm]) && goodput(*arm) >= MIN_RACER_SHARE * top)
            .collect();
        able.sort_by(|a, b| {
            let is_behind =
                |arm: usize| Some(arm) != best && goodput(arm) < (1.0 - self.config.tolerance) * top;
            let window = |arm: usize| self.arms[arm].setting.window;
            let order = is_behind(*a).cmp(&is_behind(*b));
            let within =
                if is_behind(*a) { goodput(*b).total_cmp(&goodput(*a)) } else { window(*a).cmp(&window(*b)) };
            (Some(*b) == best).cmp(&(Some(*a) == best)).then(order).then(within)
        });
        able.truncate(MAX_RACERS);
        able.iter().for_each(|arm| self.arms[*arm].races = true);
        self.arms.iter_mut().filter(|arm| arm.setting.window.is_none()).for_each(|arm| arm.races = true);
    }

    fn next_round(&mut self) {
        self.round += 1;
        self.pending = self.racers();
    }

    fn racers(&self) -> Vec<usize> {
        (0..self.arms.len()).filter(|arm| self.arms[*arm].races).collect()
    }

    /// Removes settings that are worse from the race; returns whether the race is decided.
    fn compare_racers(&mut self) -> bool {
        let rounds = |arm: &Arm| arm.samples.len();
        if self.racers().iter().any(|arm| rounds(&self.arms[*arm]) < MIN_ROUNDS) {
            return false;
        }
        let racers = self.racers();
        let excluded: Vec<usize> =
            racers.iter().copied().filter(|arm| !self.is_allowed(&self.arms[*arm])).collect();
        excluded.into_iter().for_each(|arm| self.arms[arm].races = false);
        let Some(leader) = self.leader() else { return true };
        let settings: Vec<Setting> = self.arms.iter().map(|arm| arm.setting).collect();
        let window = |arm: usize| settings[arm].window.unwrap_or(u64::MAX);
        let mut decided = true;
        for arm in self.racers() {
            match compare(&self.arms[arm].samples, &self.arms[leader].samples, self.config.tolerance) {
                _ if arm == leader => {}
                RaceComparison::Worse => self.arms[arm].races = false,
                // Only a smaller window may still be preferred to the leader.
                RaceComparison::NotBetter => self.arms[arm].races = window(arm) < window(leader),
                RaceComparison::Open => decided = false,
            }
        }
        decided
    }

    /// Returns the setting in the race with the highest goodput.
    fn leader(&self) -> Option<usize> {
        let allowed = self.racers().into_iter().filter(|arm| self.is_allowed(&self.arms[*arm]));
        allowed.max_by(|a, b| {
            let goodput = |arm: &usize| mean(&self.arms[*arm], |s| s.goodput);
            goodput(a).total_cmp(&goodput(b))
        })
    }

    /// Returns the setting with the highest goodput within the round-trip bound; if none is within it, the
    /// one with the shortest round trip.
    fn best_of(&self, arms: &[usize]) -> Option<usize> {
        let value = |arm: usize| {
            let arm = &self.arms[arm];
            let trip = mean(arm, |s| s.mean_round_trip.as_secs_f64());
            let allowed = self.is_allowed(arm);
            (allowed, if allowed { mean(arm, |s| s.goodput) } else { -trip })
        };
        arms.iter().copied().max_by(|a, b| {
            let (a, b) = (value(*a), value(*b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        })
    }

    fn is_allowed(&self, arm: &Arm) -> bool {
        let trip = mean(arm, |s| s.mean_round_trip.as_secs_f64());
        self.config.delay_bound.is_none_or(|bound| trip <= bound.as_secs_f64())
    }

    /// Returns the settings with a window limit.
    fn limited(&self) -> Vec<usize> {
        (0..self.arms.len()).filter(|arm| self.arms[*arm].setting.window.is_some()).collect()
    }

    /// Returns the settings tried with a congestion control, sorted by window.
    fn windows(&self, control: usize) -> Vec<usize> {
        let tried = |arm: &usize| {
            let Setting { control: tried_control, window } = self.arms[*arm].setting;
            tried_control == control && window.is_some()
        };
        let mut arms: Vec<usize> = (0..self.arms.len()).filter(tried).collect();
        arms.sort_by_key(|arm| self.arms[*arm].setting.window);
        arms
    }

    /// Adds a window, rounded to whole segments and clamped to the allowed range, unless it was tried before.
    fn add_window(&mut self, control: usize, bytes: f64) {
        let segment = u64::from(self.config.segment);
        let segments = libm::round(bytes / segment as f64) as u64;
        let window = segments.clamp(MIN_SEGMENTS, self.config.max_window / segment) * segment;
        self.add_setting(Setting { control, window: Some(window) });
    }

    fn add_setting(&mut self, setting: Setting) {
        if self.arms.iter().all(|arm| arm.setting != setting) {
            self.pending.push(self.arms.len());
            self.arms.push(Arm { setting, samples: Vec::new(), races: false });
        }
    }

    /// Shuffles the pending settings (Fisher and Yates).
    fn shuffle(&mut self) {
        for at in (1..self.pending.len()).rev() {
            let other = self.random.below(at as u64 + 1) as usize;
            self.pending.swap(at, other);
        }
    }
}
