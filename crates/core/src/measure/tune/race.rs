//! Comparison of two settings, round by round.

use super::TransferSample;
use crate::measure::Summary;
use alloc::vec::Vec;

/// Result of comparing a setting with the leader, with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RaceComparison {
    /// Lower goodput than the leader.
    Worse,
    /// Goodput higher by at most the tolerance.
    NotBetter,
    /// Undecided.
    Open,
}

/// Compares a setting with the leader. Goodputs are compared within rounds, relative to the leader's.
pub(super) fn compare(
    one: &[(usize, TransferSample)],
    leader: &[(usize, TransferSample)],
    tolerance: f64,
) -> RaceComparison {
    let difference = difference(one, leader);
    let highest = difference.mean + difference.half_width;
    match highest {
        highest if highest < 0.0 => RaceComparison::Worse,
        highest if highest < tolerance => RaceComparison::NotBetter,
        _ => RaceComparison::Open,
    }
}

/// Returns the relative difference in goodput between two settings over the rounds that both took part in.
pub(super) fn difference(one: &[(usize, TransferSample)], other: &[(usize, TransferSample)]) -> Summary {
    let pair = |(round, sample): &(usize, TransferSample)| {
        let (_, reference) = other.iter().find(|(other_round, _)| other_round == round)?;
        Some(sample.goodput / reference.goodput.max(f64::MIN_POSITIVE) - 1.0)
    };
    Summary::from_samples(&one.iter().filter_map(pair).collect::<Vec<f64>>())
}
