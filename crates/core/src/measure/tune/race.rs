//! Two settings beside each other, round by round.

use super::Sample;
use crate::measure::Summary;
use alloc::vec::Vec;

/// How one stands against the leader, with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It carries less.
    Worse,
    /// It carries more by the tolerance at most, if at all.
    NotBetter,
    /// Either may be.
    Open,
}

/// How one stands against the leader. Goodputs are compared within rounds, as shares of the leader's.
pub(super) fn compare(one: &[(usize, Sample)], leader: &[(usize, Sample)], tolerance: f64) -> Standing {
    let difference = difference(one, leader);
    let highest = difference.mean + difference.half_width;
    match highest {
        highest if highest < 0.0 => Standing::Worse,
        highest if highest < tolerance => Standing::NotBetter,
        _ => Standing::Open,
    }
}

/// By how much more one carries than the other, as a share of the other's, in the rounds both took part in.
pub(super) fn difference(one: &[(usize, Sample)], other: &[(usize, Sample)]) -> Summary {
    let pair = |(round, sample): &(usize, Sample)| {
        let (_, beside) = other.iter().find(|(of, _)| of == round)?;
        Some(sample.goodput / beside.goodput.max(f64::MIN_POSITIVE) - 1.0)
    };
    Summary::of(&one.iter().filter_map(pair).collect::<Vec<f64>>())
}
