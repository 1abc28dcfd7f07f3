//! Comparison of two settings, round by round.

use super::Sample;
use crate::measure::Summary;
use alloc::vec::Vec;

/// Result of comparing a setting with the leader, with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Lower goodput than the leader.
    Worse,
    /// Goodput higher by at most the tolerance.
    NotBetter,
    /// Undecided.
    Open,
}

/// Compares a setting with the leader. Goodputs are compared within rounds, relative to the leader's.
pub(super) fn compare(one: &[(usize, Sample)], leader: &[(usize, Sample)], tolerance: f64) -> Standing {
    let difference = difference(one, leader);
    let highest = difference.mean + difference.half_width;
    match highest {
        highest if highest < 0.0 => Standing::Worse,
        highest if highest < tolerance => Standing::NotBetter,
        _ => Standing::Open,
    }
}

/// Returns the relative difference in goodput between two settings over the rounds that both took part in.
pub(super) fn difference(one: &[(usize, Sample)], other: &[(usize, Sample)]) -> Summary {
    let pair = |(round, sample): &(usize, Sample)| {
        let (_, reference) = other.iter().find(|(other_round, _)| other_round == round)?;
        Some(sample.goodput / reference.goodput.max(f64::MIN_POSITIVE) - 1.0)
    };
    Summary::of(&one.iter().filter_map(pair).collect::<Vec<f64>>())
}
