//! Result of a window search: the best setting, estimates of the path, and the measured curve.

use super::race::difference;
use super::{Arm, Setting, TransferSample, WindowSearch, WindowSearchStage};
use crate::measure::Summary;
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Share of the best goodput at which a window has reached the knee.
const KNEE: f64 = 0.97;

/// Result of a window search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowSearchResult {
    /// Smallest window whose goodput equals the best within the tolerance, with 95 % confidence; otherwise
    /// the setting with the best goodput. `None` if no transfer kept the round-trip bound.
    pub best: Option<Setting>,
    /// True if no other setting is better by more than the tolerance, with 95 % confidence. False if the
    /// transfer limit was reached first.
    pub is_conclusive: bool,
    /// Relative gain in goodput over the same congestion control without a window limit.
    pub gain: Option<Summary>,
    /// Estimates of the path.
    pub path: PathEstimate,
    /// Knee, bytes: the smallest window with nearly the best goodput, interpolated between the windows tried.
    pub knee: Option<f64>,
    /// Smallest window from which on every larger one had retransmissions.
    pub losses_from: Option<u64>,
    /// Every setting tried, sorted by congestion control and window, with the unlimited window last.
    pub curve: Vec<SettingResult>,
}

/// Path properties estimated from the transfers (RFC 6349).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathEstimate {
    /// Payload rate of the bottleneck, bits per second: the highest goodput of any setting.
    pub bottleneck: f64,
    /// Base round trip: the median of the transfers' minimum round trips.
    pub base_round_trip: Duration,
    /// Bandwidth-delay product, bytes: bottleneck times base round trip.
    pub bandwidth_delay_product: f64,
    /// Maximum queue of the path, bytes: bottleneck times the growth of the round trip.
    pub buffer: f64,
}

/// Measurements of one setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettingResult {
    /// Setting of the transfers.
    pub setting: Setting,
    /// Payload rate, bits per second.
    pub goodput: Summary,
    /// Mean round trips, seconds.
    pub round_trip: Summary,
    /// Mean number of retransmitted segments per transfer.
    pub retransmissions: f64,
}

impl WindowSearchResult {
    pub(super) fn from_search(tune: &WindowSearch) -> Option<WindowSearchResult> {
        let tried: Vec<&Arm> = tune.arms.iter().filter(|arm| !arm.samples.is_empty()).collect();
        let best = choose_best(tune);
        let free = best.and_then(|best| {
            let free = Setting { window: None, ..best.setting };
            tried.iter().find(|arm| arm.setting == free && best.setting != free)
        });
        let mut curve: Vec<SettingResult> = tried.iter().map(|arm| SettingResult::from_arm(arm)).collect();
        curve.sort_by_key(|point| (point.setting.control, point.setting.window.unwrap_or(u64::MAX)));
        let control = best.map_or(0, |best| best.setting.control);
        let limited: Vec<&SettingResult> =
            curve.iter().filter(|p| p.setting.control == control && p.setting.window.is_some()).collect();
        Some(WindowSearchResult {
            best: best.map(|best| best.setting),
            is_conclusive: tune.stage == WindowSearchStage::Over { sure: true },
            gain: best.zip(free).map(|(best, free)| difference(&best.samples, &free.samples)),
            path: path(&tried)?,
            knee: best.and_then(|best| knee(&limited, mean(best, |s| s.goodput))),
            losses_from: losses_from(&limited),
            curve,
        })
    }
}

impl SettingResult {
    fn from_arm(arm: &Arm) -> SettingResult {
        let summary = |quantity: fn(&TransferSample) -> f64| {
            Summary::from_samples(
                &arm.samples.iter().map(|(_, sample)| quantity(sample)).collect::<Vec<f64>>(),
            )
        };
        SettingResult {
            setting: arm.setting,
            goodput: summary(|sample| sample.goodput),
            round_trip: summary(|sample| sample.mean_round_trip.as_secs_f64()),
            retransmissions: mean(arm, |sample| sample.retransmissions as f64),
        }
    }
}

/// Returns the smallest window that is not worse than the leader by more than the tolerance, with 95 %
/// confidence.
fn choose_best(tune: &WindowSearch) -> Option<&Arm> {
    let measured = |arm: &&Arm| !arm.samples.is_empty() && tune.is_allowed(arm);
    // Before the race, the setting with the best goodput leads.
    let leader = match tune.leader().filter(|arm| !tune.arms[*arm].samples.is_empty()) {
        Some(leader) => &tune.arms[leader],
        None => {
            let goodput = |arm: &&Arm| mean(arm, |s| s.goodput);
            tune.arms.iter().filter(measured).max_by(|a, b| goodput(a).total_cmp(&goodput(b)))?
        }
    };
    let is_as_good = |arm: &&Arm| {
        let behind = difference(&arm.samples, &leader.samples);
        behind.mean - behind.half_width > -tune.config.tolerance
    };
    let racing = tune.arms.iter().filter(|arm| arm.races && tune.is_allowed(arm)).filter(is_as_good);
    let smallest = racing.min_by_key(|arm| arm.setting.window.unwrap_or(u64::MAX));
    Some(smallest.unwrap_or(leader))
}

fn path(tried: &[&Arm]) -> Option<PathEstimate> {
    let samples = || tried.iter().flat_map(|arm| &arm.samples).map(|(_, sample)| sample);
    // The minimum of one transfer may be an ACK of the original segment taken for one of its retransmission.
    let mut minima: Vec<Duration> = samples().map(|sample| sample.min_round_trip).collect();
    minima.sort_unstable();
    let base_round_trip = *minima.get(minima.len() / 2)?;
    let bottleneck = tried.iter().map(|arm| mean(arm, |s| s.goodput)).fold(0.0, f64::max);
    let longest = samples().map(|sample| sample.max_round_trip).max()?;
    let grown = longest.as_secs_f64() - base_round_trip.as_secs_f64();
    Some(PathEstimate {
        bottleneck,
        base_round_trip,
        bandwidth_delay_product: bottleneck * base_round_trip.as_secs_f64() / 8.0,
        buffer: bottleneck * grown.max(0.0) / 8.0,
    })
}

/// Returns the window at which the curve first comes near the best goodput, interpolated between the windows
/// on both sides.
fn knee(limited: &[&SettingResult], best: f64) -> Option<f64> {
    let bytes = |point: &SettingResult| point.setting.window.map_or(f64::NAN, |window| window as f64);
    let enough = KNEE * best;
    let reached = limited.iter().position(|point| point.goodput.mean >= enough)?;
    let after = limited[reached];
    let Some(before) = reached.checked_sub(1).map(|at| limited[at]) else { return Some(bytes(after)) };
    let share = (enough - before.goodput.mean) / (after.goodput.mean - before.goodput.mean);
    Some(bytes(before) + share * (bytes(after) - bytes(before)))
}

fn losses_from(limited: &[&SettingResult]) -> Option<u64> {
    let lossy = limited.iter().rev().take_while(|point| point.retransmissions > 0.0);
    lossy.last().and_then(|point| point.setting.window)
}

/// Returns the mean of a quantity over the transfers of a setting; NaN without transfers.
pub(super) fn mean(arm: &Arm, quantity: impl Fn(&TransferSample) -> f64) -> f64 {
    arm.samples.iter().map(|(_, sample)| quantity(sample)).sum::<f64>() / arm.samples.len() as f64
}
