//! Computation of the increase a and the decrease b of each VPN flow's window from the weights.
//!
//! AIMD(a, b) at loss p and round trip R carries x = (1/R)·√(a(2 − b)/(2bp)) packets/s (Floyd, Handley,
//! Padhye 2000). With g = (2 − b)/b, equal normalized shares need a·g ∝ (r·R)²·p.

use super::{Decrease, WeightRule};

/// Range of b. Beyond it, b stays at the limit and a is adjusted instead.
///
/// Above 0.5 a VPN flow reduces its rate more than the TCP flows inside it; below 0.002 a window recovers
/// too slowly from a wrong initial value.
pub const DECREASE_RANGE: (f64, f64) = (0.002, 0.5);

/// The inputs for the parameters of a VPN flow: its own state, or that of its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Basis {
    /// Weight r.
    pub weight: f64,
    /// Round trip R in seconds.
    pub round_trip: f64,
    /// Loss p and the number of loss events it is based on; `None` before the first event.
    pub loss: Option<(f64, u64)>,
}

/// Current increase and decrease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Additive increase a, in packets per round trip.
    pub increase: f64,
    /// Multiplicative decrease b.
    pub decrease: f64,
    /// Whether the weight is beyond the range of the rule; the flow then gets less than its share.
    pub infeasible: bool,
}

/// Returns the gain g = (2 − b)/b of a decrease b.
pub fn gain(decrease: f64) -> f64 {
    (2.0 - decrease) / decrease
}

/// Returns the decrease b = 2/(1 + g) for a gain g.
pub fn decrease_for(gain: f64) -> f64 {
    2.0 / (1.0 + gain)
}

/// Number of loss events at which the measured and the assumed loss ratio have equal influence.
const EVIDENCE: f64 = 4.0;

/// Returns the loss ratio pᵢ/p₁: 1 at first, approaching the measured ratio as loss events accumulate.
fn loss_ratio(own: &Basis, reference: &Basis) -> f64 {
    let (Some((p, events)), Some((p_ref, events_ref))) = (own.loss, reference.loss) else { return 1.0 };
    let evidence = events.min(events_ref) as f64;
    libm::exp(libm::log(p / p_ref) * evidence / (evidence + EVIDENCE))
}

/// Computes the parameters that give `own` its weight relative to `reference`, which runs AIMD(`increase`,
/// `reference_decrease`).
pub fn from_weight(
    own: &Basis,
    reference: &Basis,
    reference_decrease: f64,
    increase: f64,
    decrease: Decrease,
    rule: WeightRule,
) -> Parameters {
    if let (Decrease::Fixed(decrease), WeightRule::Decrease | WeightRule::DecreaseThenIncrease) =
        (decrease, rule)
    {
        return Parameters { increase, decrease, infeasible: false };
    }
    let shares = own.weight / reference.weight * (own.round_trip / reference.round_trip);
    let required_gain = gain(reference_decrease) * shares * shares * loss_ratio(own, reference);
    match rule {
        WeightRule::Increase => {
            let decrease = match decrease {
                Decrease::Fixed(decrease) => decrease,
                Decrease::FromWeight => reference_decrease,
            };
            Parameters { increase: increase * required_gain / gain(decrease), decrease, infeasible: false }
        }
        WeightRule::Decrease => {
            let infeasible = required_gain <= 1.0;
            let decrease = if infeasible { 0.99 } else { decrease_for(required_gain) };
            Parameters { increase, decrease, infeasible }
        }
        WeightRule::DecreaseThenIncrease => {
            let (lowest, highest) = DECREASE_RANGE;
            let decrease = decrease_for(required_gain).clamp(lowest, highest);
            Parameters { increase: increase * required_gain / gain(decrease), decrease, infeasible: false }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basis(weight: f64, round_trip: f64) -> Basis {
        Basis { weight, round_trip, loss: None }
    }

    /// Relative throughput according to the AIMD law, at equal loss.
    fn aimd_throughput(parameters: &Parameters, round_trip: f64) -> f64 {
        libm::sqrt(parameters.increase * gain(parameters.decrease)) / round_trip
    }

    #[test]
    fn every_rule_achieves_the_weights_of_the_aimd_law() {
        let reference = basis(1.0, 0.1);
        let base = Parameters { increase: 0.1, decrease: 0.1, infeasible: false };
        for rule in [WeightRule::Decrease, WeightRule::Increase, WeightRule::DecreaseThenIncrease] {
            for (weight, round_trip) in [(2.0, 0.05), (2.0, 0.15), (3.0, 0.1), (4.0, 0.05), (0.5, 0.2)] {
                let own = basis(weight, round_trip);
                let got = from_weight(&own, &reference, 0.1, 0.1, Decrease::FromWeight, rule);
                let ratio = aimd_throughput(&got, round_trip) / aimd_throughput(&base, 0.1);
                assert!((ratio - weight).abs() < 1e-9, "{rule:?} {weight} {round_trip}: {ratio}");
                assert!(!got.infeasible);
            }
        }
    }

    #[test]
    fn a_weight_beyond_the_range_of_b_is_reported() {
        let reference = basis(1.0, 0.1);
        let own = basis(0.1, 0.05);
        let got = from_weight(&own, &reference, 0.25, 0.1, Decrease::FromWeight, WeightRule::Decrease);
        assert!(got.infeasible);
        let got =
            from_weight(&own, &reference, 0.25, 0.1, Decrease::FromWeight, WeightRule::DecreaseThenIncrease);
        assert!(!got.infeasible && got.increase < 0.1 && got.decrease == DECREASE_RANGE.1);
    }

    #[test]
    fn the_loss_ratio_approaches_the_measurement_with_more_loss_events() {
        let with = |p, events| Basis { loss: Some((p, events)), ..basis(1.0, 0.1) };
        assert_eq!(loss_ratio(&basis(1.0, 0.1), &with(0.01, 5)), 1.0);
        let early = loss_ratio(&with(0.02, 1), &with(0.01, 100));
        let late = loss_ratio(&with(0.02, 1000), &with(0.01, 1000));
        assert!(early < 1.2 && (1.9..2.0).contains(&late), "{early} {late}");
    }
}
