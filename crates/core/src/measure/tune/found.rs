//! What a search for a window found: the setting, the path, and the curve they are read from.

use super::race::difference;
use super::{Arm, Sample, Setting, Stage, Tune};
use crate::measure::Summary;
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A window reaches the knee with this share of the best goodput.
const KNEE: f64 = 0.97;

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The smallest window that carries as much as the best, within the tolerance and with 95 % confidence, or else
    /// the best; `None` if no transfer kept within the bound of the round trip.
    pub best: Option<Setting>,
    /// Whether nothing else is better by more than the tolerance, with 95 % confidence; or the transfers were used up.
    pub is_sure: bool,
    /// By how much more it carries than the same congestion control without a limit, as a share.
    pub gain: Option<Summary>,
    /// The path.
    pub path: Path,
    /// The knee: the least window with nearly the best goodput, bytes, between those tried.
    pub knee: Option<f64>,
    /// The smallest window from which on every transfer had something to send again.
    pub losses_from: Option<u64>,
    /// All that was tried, by congestion control and window, without a limit last.
    pub curve: Vec<Measured>,
}

/// What the transfers found of the path (RFC 6349).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Payload the narrowest place carries, bits per second: the most any setting reached.
    pub bottleneck: f64,
    /// The least round trip of most transfers.
    pub base_round_trip: Duration,
    /// Bytes that fill the path: bottleneck times base round trip.
    pub bandwidth_delay_product: f64,
    /// Bytes that waited on the path at most: bottleneck times the growth of the round trip.
    pub buffer: f64,
}

/// What one setting came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The setting.
    pub setting: Setting,
    /// Payload, bits per second.
    pub goodput: Summary,
    /// Mean round trips, seconds.
    pub round_trip: Summary,
    /// Segments sent again in a transfer, in the mean.
    pub retransmissions: f64,
}

impl Found {
    pub(super) fn of(tune: &Tune) -> Option<Found> {
        let tried: Vec<&Arm> = tune.arms.iter().filter(|arm| !arm.samples.is_empty()).collect();
        let best = chosen(tune);
        let free = best.and_then(|best| {
            let free = Setting { window: None, ..best.setting };
            tried.iter().find(|arm| arm.setting == free && best.setting != free)
        });
        let mut curve: Vec<Measured> = tried.iter().map(|arm| Measured::of(arm)).collect();
        curve.sort_by_key(|of| (of.setting.control, of.setting.window.unwrap_or(u64::MAX)));
        let control = best.map_or(0, |best| best.setting.control);
        let limited: Vec<&Measured> =
            curve.iter().filter(|of| of.setting.control == control && of.setting.window.is_some()).collect();
        Some(Found {
            best: best.map(|best| best.setting),
            is_sure: tune.stage == Stage::Over { sure: true },
            gain: best.zip(free).map(|(best, free)| difference(&best.samples, &free.samples)),
            path: path(&tried)?,
            knee: best.and_then(|best| knee(&limited, mean(best, |s| s.goodput))),
            losses_from: losses_from(&limited),
            curve,
        })
    }
}

impl Measured {
    fn of(arm: &Arm) -> Measured {
        let summary = |of: fn(&Sample) -> f64| {
            Summary::of(&arm.samples.iter().map(|(_, sample)| of(sample)).collect::<Vec<f64>>())
        };
        Measured {
            setting: arm.setting,
            goodput: summary(|sample| sample.goodput),
            round_trip: summary(|sample| sample.mean_round_trip.as_secs_f64()),
            retransmissions: mean(arm, |sample| sample.retransmissions as f64),
        }
    }
}

/// The smallest that is surely not worse than the leader by more than the tolerance.
fn chosen(tune: &Tune) -> Option<&Arm> {
    let measured = |arm: &&Arm| !arm.samples.is_empty() && tune.is_allowed(arm);
    // Before the race, whoever did best leads.
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

fn path(tried: &[&Arm]) -> Option<Path> {
    let samples = || tried.iter().flat_map(|arm| &arm.samples).map(|(_, sample)| sample);
    // One transfer's least may be a retransmission that was taken for an answer.
    let mut least: Vec<Duration> = samples().map(|sample| sample.least_round_trip).collect();
    least.sort_unstable();
    let base_round_trip = *least.get(least.len() / 2)?;
    let bottleneck = tried.iter().map(|arm| mean(arm, |s| s.goodput)).fold(0.0, f64::max);
    let longest = samples().map(|sample| sample.longest_round_trip).max()?;
    let grown = longest.as_secs_f64() - base_round_trip.as_secs_f64();
    Some(Path {
        bottleneck,
        base_round_trip,
        bandwidth_delay_product: bottleneck * base_round_trip.as_secs_f64() / 8.0,
        buffer: bottleneck * grown.max(0.0) / 8.0,
    })
}

/// Where the curve first comes near the best, on the line between the windows on both sides.
fn knee(limited: &[&Measured], best: f64) -> Option<f64> {
    let bytes = |of: &Measured| of.setting.window.map_or(f64::NAN, |window| window as f64);
    let enough = KNEE * best;
    let reached = limited.iter().position(|of| of.goodput.mean >= enough)?;
    let after = limited[reached];
    let Some(before) = reached.checked_sub(1).map(|at| limited[at]) else { return Some(bytes(after)) };
    let share = (enough - before.goodput.mean) / (after.goodput.mean - before.goodput.mean);
    Some(bytes(before) + share * (bytes(after) - bytes(before)))
}

fn losses_from(limited: &[&Measured]) -> Option<u64> {
    let lossy = limited.iter().rev().take_while(|of| of.retransmissions > 0.0);
    lossy.last().and_then(|of| of.setting.window)
}

/// The mean of what a setting's transfers found; NaN without any.
pub(super) fn mean(arm: &Arm, of: impl Fn(&Sample) -> f64) -> f64 {
    arm.samples.iter().map(|(_, sample)| of(sample)).sum::<f64>() / arm.samples.len() as f64
}
