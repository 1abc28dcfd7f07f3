//! The window (and congestion control) with which TCP carries most over a path, or most within a bound of the
//! round trip: a search over transfers, each with another window.
//!
//! First comes a transfer with a window that does not limit it. What it found of the path (bottleneck rate, base
//! round trip, RFC 6349) says around which windows the knee is expected; a survey tries windows there, goes on where the best is
//! the last one tried, and looks between. Then the windows that did well race against each other: every round has
//! a transfer with each, in random order, so that what the path does otherwise hits all alike, and windows are
//! compared within rounds. Those surely worse leave. It ends when no other window is surely better than
//! the leader by more than a tolerance, or when the transfers it may take are used up.
//!
//! Sans-IO: [`Tune::next`], the transfer itself, [`Tune::record`], until the first answers `None`.

mod found;
mod race;
#[cfg(test)]
mod tests;

pub use found::{Found, Measured, Path};

use crate::rng::Stream;
use crate::time::Duration;
use alloc::vec::Vec;
use found::mean;
use race::{Standing, compare};
use serde::{Deserialize, Serialize};

/// What is searched, and how far.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Congestion controls to choose from, which settings name by their place; one at least.
    pub controls: usize,
    /// Payload of a full segment, bytes: windows are whole multiples of it.
    pub segment: u32,
    /// The largest window tried, bytes.
    pub largest: u64,
    /// The longest mean round trip a transfer may have.
    pub delay_bound: Option<Duration>,
    /// Shares of goodput below this make no difference.
    pub tolerance: f64,
    /// Most transfers.
    pub trials: usize,
}

/// What a transfer is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Setting {
    /// Congestion control, by its place.
    pub control: usize,
    /// Bytes; none: as much as the system likes.
    pub window: Option<u64>,
}

/// What a transfer found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Payload that arrived, bits per second.
    pub goodput: f64,
    /// The least round trip.
    pub least_round_trip: Duration,
    /// Their mean.
    pub mean_round_trip: Duration,
    /// The longest.
    pub longest_round_trip: Duration,
    /// Segments sent again.
    pub retransmissions: u64,
}

/// Windows of the survey lie so far apart, and those looked at between them half as far.
const STEP: f64 = core::f64::consts::SQRT_2;
/// The smallest window, segments: with fewer under way, duplicate ACKs cannot tell of a loss (RFC 5681).
const SMALLEST: u64 = 4;
/// The survey begins with no more than so many times what fills the path.
const MOST_FILLS: f64 = 4.0;
/// Settings that in the survey carried less than this share of the best do not race.
const HOPELESS: f64 = 0.8;
/// Settings that race, at most, beside those without a limit.
const RACERS: usize = 4;
/// Rounds before anything is concluded.
const ROUNDS: usize = 3;
/// A goodput that grows by less than this from the last but one window to the last has reached its top.
const LEVEL: f64 = 1.03;

/// The search.
#[derive(Clone, Debug)]
pub struct Tune {
    config: Config,
    random: Stream,
    /// All that were tried, with what each round found.
    arms: Vec<Arm>,
    /// Those still to be tried in this round, the next one last.
    pending: Vec<usize>,
    round: usize,
    stage: Stage,
    trials: usize,
}

#[derive(Clone, Debug)]
struct Arm {
    setting: Setting,
    samples: Vec<(usize, Sample)>,
    races: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Survey,
    Between,
    Race,
    Over { sure: bool },
}

impl Tune {
    /// Before the first transfer; the order of transfers is drawn from `random`.
    ///
    /// Panics without a congestion control or a segment, and if not one window is allowed.
    pub fn new(config: Config, random: Stream) -> Tune {
        assert!(config.controls > 0 && config.segment > 0, "{config:?}");
        assert!(config.largest >= SMALLEST * u64::from(config.segment), "{config:?}");
        let mut tune = Tune {
            config,
            random,
            arms: Vec::new(),
            pending: Vec::new(),
            round: 0,
            stage: Stage::Free,
            trials: 0,
        };
        (0..tune.config.controls).for_each(|control| tune.ask(Setting { control, window: None }));
        tune.shuffle();
        tune
    }

    /// What the next transfer is to be made with; `None` at the end.
    pub fn next(&self) -> Option<Setting> {
        self.pending.last().map(|arm| self.arms[*arm].setting)
    }

    /// What the transfer found that [`Tune::next`] asked for. Panics if none was.
    pub fn record(&mut self, sample: Sample) {
        let arm = self.pending.pop().expect("a sample answers a question");
        self.arms[arm].samples.push((self.round, sample));
        self.trials += 1;
        if self.trials >= self.config.trials {
            self.pending.clear();
            // What the last round lacks it cannot be judged by, but what was judged before holds.
            self.stage = Stage::Over { sure: self.stage == Stage::Race && self.judge() };
        }
        while self.pending.is_empty() && !matches!(self.stage, Stage::Over { .. }) {
            self.go_on();
            self.shuffle();
        }
    }

    /// Transfers so far.
    pub fn trials(&self) -> usize {
        self.trials
    }

    /// What is known so far; `None` before the first transfer.
    pub fn result(&self) -> Option<Found> {
        Found::of(self)
    }

    /// The round is over: what comes next.
    fn go_on(&mut self) {
        match self.stage {
            Stage::Free => {
                self.survey();
                self.stage = Stage::Survey;
            }
            Stage::Survey => {
                (0..self.config.controls).for_each(|control| self.widen(control));
                if self.pending.is_empty() {
                    self.look_between();
                    self.stage = Stage::Between;
                }
            }
            Stage::Between => {
                self.choose_racers();
                self.stage = Stage::Race;
                self.next_round();
            }
            Stage::Race => {
                if self.judge() {
                    self.stage = Stage::Over { sure: true };
                } else {
                    self.next_round();
                }
            }
            Stage::Over { .. } => {}
        }
    }

    /// Asks for windows around the knee that the free transfers let expect: from half of what fills the path to
    /// more than what the free ones had under way.
    fn survey(&mut self) {
        let free: Vec<Sample> = self.arms.iter().flat_map(|arm| &arm.samples).map(|(_, s)| *s).collect();
        let rate = free.iter().map(|sample| sample.goodput).fold(0.0, f64::max);
        let seconds = |trip: Duration| trip.as_secs_f64();
        let least = free.iter().map(|sample| seconds(sample.least_round_trip)).fold(f64::INFINITY, f64::min);
        let mean = free.iter().map(|sample| seconds(sample.mean_round_trip)).fold(least, f64::max);
        let fills = rate * least / 8.0;
        let smallest = (SMALLEST * u64::from(self.config.segment)) as f64;
        let top = (rate * mean / 8.0 * 2.0).min(fills * MOST_FILLS).max(smallest * MOST_FILLS);
        let mut window = (fills / 2.0).max(smallest);
        while window <= top {
            (0..self.config.controls).for_each(|control| self.ask_window(control, window));
            window *= STEP;
        }
    }

    /// Asks for the next window of a control where the best was at an end of those tried.
    fn widen(&mut self, control: usize) {
        let tried = self.windows(control);
        let Some(best) = self.best_of(&tried) else { return };
        let at = |arm: usize| self.arms[arm].setting.window.unwrap_or(self.config.largest) as f64;
        let (first, last) = (tried[0], tried[tried.len() - 1]);
        let rises = tried.len() < 2
            || mean(&self.arms[last], |s| s.goodput)
                > LEVEL * mean(&self.arms[tried[tried.len() - 2]], |s| s.goodput);
        let (below, above) = (at(first) / STEP, at(last) * STEP);
        if best == last && rises && self.is_allowed(&self.arms[last]) {
            self.ask_window(control, above);
        }
        if best == first {
            self.ask_window(control, below);
        }
    }

    /// Asks for the windows halfway to the neighbours of the best, and of the smallest that carried as much.
    fn look_between(&mut self) {
        let limited = self.limited();
        let Some(best) = self.best_of(&limited) else { return };
        let control = self.arms[best].setting.control;
        let enough = (1.0 - self.config.tolerance) * mean(&self.arms[best], |s| s.goodput);
        let smallest =
            self.windows(control).into_iter().find(|arm| mean(&self.arms[*arm], |s| s.goodput) >= enough);
        let half = libm::sqrt(STEP);
        for arm in [Some(best), smallest].into_iter().flatten() {
            let window = self.arms[arm].setting.window.unwrap_or(self.config.largest) as f64;
            self.ask_window(control, window / half);
            self.ask_window(control, window * half);
        }
    }

    /// Those that may be the best, and those without a limit: they are what there is now. Of those that carried as
    /// much as the best, the smallest.
    fn choose_racers(&mut self) {
        let limited = self.limited();
        let best = self.best_of(&limited);
        let goodput = |arm: usize| mean(&self.arms[arm], |s| s.goodput);
        let top = best.map_or(0.0, goodput);
        let mut able: Vec<usize> = limited
            .into_iter()
            .filter(|arm| self.is_allowed(&self.arms[*arm]) && goodput(*arm) >= HOPELESS * top)
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
        able.truncate(RACERS);
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

    /// Takes those surely worse out of the race; whether it is decided.
    fn judge(&mut self) -> bool {
        let rounds = |arm: &Arm| arm.samples.len();
        if self.racers().iter().any(|arm| rounds(&self.arms[*arm]) < ROUNDS) {
            return false;
        }
        let racers = self.racers();
        let out: Vec<usize> =
            racers.iter().copied().filter(|arm| !self.is_allowed(&self.arms[*arm])).collect();
        out.into_iter().for_each(|arm| self.arms[arm].races = false);
        let Some(leader) = self.leader() else { return true };
        let settings: Vec<Setting> = self.arms.iter().map(|arm| arm.setting).collect();
        let window = |arm: usize| settings[arm].window.unwrap_or(u64::MAX);
        let mut decided = true;
        for arm in self.racers() {
            match compare(&self.arms[arm].samples, &self.arms[leader].samples, self.config.tolerance) {
                _ if arm == leader => {}
                Standing::Worse => self.arms[arm].races = false,
                // Only a smaller one may still be preferred.
                Standing::NotBetter => self.arms[arm].races = window(arm) < window(leader),
                Standing::Open => decided = false,
            }
        }
        decided
    }

    /// The one of those racing that carried most.
    fn leader(&self) -> Option<usize> {
        let allowed = self.racers().into_iter().filter(|arm| self.is_allowed(&self.arms[*arm]));
        allowed.max_by(|a, b| {
            let goodput = |arm: &usize| mean(&self.arms[*arm], |s| s.goodput);
            goodput(a).total_cmp(&goodput(b))
        })
    }

    /// The one that carried most within the bound; where none is within it, the one with the shortest round trip.
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

    /// All with a window.
    fn limited(&self) -> Vec<usize> {
        (0..self.arms.len()).filter(|arm| self.arms[*arm].setting.window.is_some()).collect()
    }

    /// Windows tried with a control, from the smallest.
    fn windows(&self, control: usize) -> Vec<usize> {
        let tried = |arm: &usize| {
            let Setting { control: of, window } = self.arms[*arm].setting;
            of == control && window.is_some()
        };
        let mut arms: Vec<usize> = (0..self.arms.len()).filter(tried).collect();
        arms.sort_by_key(|arm| self.arms[*arm].setting.window);
        arms
    }

    /// Asks for a window, as whole segments, unless it was asked for or is not allowed.
    fn ask_window(&mut self, control: usize, bytes: f64) {
        let segment = u64::from(self.config.segment);
        let segments = libm::round(bytes / segment as f64) as u64;
        let window = segments.clamp(SMALLEST, self.config.largest / segment) * segment;
        self.ask(Setting { control, window: Some(window) });
    }

    fn ask(&mut self, setting: Setting) {
        if self.arms.iter().all(|arm| arm.setting != setting) {
            self.pending.push(self.arms.len());
            self.arms.push(Arm { setting, samples: Vec::new(), races: false });
        }
    }

    /// Fisher and Yates.
    fn shuffle(&mut self) {
        for at in (1..self.pending.len()).rev() {
            let other = self.random.below(at as u64 + 1) as usize;
            self.pending.swap(at, other);
        }
    }
}
