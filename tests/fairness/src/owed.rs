//! Rates that VPNs are owed: the weighted max-min share of the bottlenecks, at most what it gets alone.

use crate::draw::{Case, Customer};
use netstage_core::fair::allocation::weighted_max_min;
use serde::{Deserialize, Serialize};

/// Rates that a case owes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Owed {
    /// Rate that each VPN is owed at its egress, by span and VPN, in bit/s at the IP layer.
    pub rates: Vec<Vec<f64>>,
    /// Rate of each bottleneck that uncontrolled traffic leaves to the VPNs, by span.
    pub capacities: Vec<Vec<f64>>,
}

/// Returns the weighted max-min shares of the bottlenecks among the VPNs that `is_active` selects; 0 for the others.
/// Rates are those at the bottlenecks, before random loss.
pub fn weighted_shares(
    vpns: &[Customer],
    capacities: &[f64],
    demands: &[f64],
    is_active: impl Fn(&Customer) -> bool,
) -> Vec<f64> {
    let active: Vec<usize> = (0..vpns.len()).filter(|index| is_active(&vpns[*index])).collect();
    // A demand is a link of the VPN's own.
    let own = |index: usize| capacities.len() + index;
    let paths: Vec<Vec<usize>> =
        active.iter().map(|&index| vpns[index].cores.clone().chain([own(index)]).collect()).collect();
    let weights: Vec<f64> = active.iter().map(|&index| vpns[index].weight).collect();
    let rates = weighted_max_min(&paths, &[capacities, demands].concat(), &weights);
    let mut shares = vec![0.0; vpns.len()];
    active.iter().zip(rates).for_each(|(&index, rate)| shares[index] = rate);
    shares
}

impl Owed {
    /// Computes the owed rates from the capacities of each span and the demands at the bottlenecks.
    pub fn new(case: &Case, capacities: Vec<Vec<f64>>, demands: &[f64]) -> Owed {
        let of_span = |(start, capacities): (&u64, &Vec<f64>)| {
            let shares = weighted_shares(&case.vpns, capacities, demands, |vpn| vpn.active.contains(start));
            case.vpns.iter().zip(shares).map(|(vpn, share)| share * (1.0 - vpn.loss)).collect()
        };
        Owed { rates: case.spans.iter().zip(&capacities).map(of_span).collect(), capacities }
    }

    /// Checks that no bottleneck owes more than it has, and that each active VPN is owed something.
    pub fn check(&self, case: &Case) -> Result<(), String> {
        for ((start, rates), capacities) in case.spans.iter().zip(&self.rates).zip(&self.capacities) {
            for (index, capacity) in capacities.iter().enumerate() {
                let crossing = case.vpns.iter().zip(rates).filter(|(vpn, _)| vpn.cores.contains(&index));
                let sum: f64 = crossing.map(|(vpn, rate)| rate / (1.0 - vpn.loss)).sum();
                if sum > capacity * (1.0 + 1e-9) || *capacity > case.cores[index].rate {
                    return Err(format!("{sum} bit/s owed on core{index}, which has {capacity} bit/s"));
                }
            }
            if let Some((vpn, rate)) = (case.vpns.iter().zip(rates))
                .find(|(vpn, rate)| vpn.active.contains(start) != (**rate > 0.0) || !rate.is_finite())
            {
                return Err(format!("{rate} bit/s owed to a VPN that is active in {:?}", vpn.active));
            }
        }
        Ok(())
    }

    /// Returns the span that contains a time.
    pub fn span(case: &Case, time: u64) -> usize {
        case.spans.partition_point(|start| *start <= time) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw;

    /// Raises all rates in small steps, each by its weight, until a bottleneck or the demand stops it.
    fn filled(vpns: &[Customer], capacities: &[f64], demands: &[f64]) -> Vec<f64> {
        const STEPS: f64 = 20_000.0;
        let step = capacities.iter().copied().fold(0.0, f64::max) / STEPS;
        let mut rates = vec![0.0; vpns.len()];
        let mut grows = vec![true; vpns.len()];
        while grows.iter().any(|grows| *grows) {
            for index in 0..vpns.len() {
                if grows[index] {
                    rates[index] += step * vpns[index].weight;
                }
            }
            for index in 0..vpns.len() {
                let is_full = |core: usize| {
                    let crossing = (0..vpns.len()).filter(|other| vpns[*other].cores.contains(&core));
                    crossing.map(|other| rates[other]).sum::<f64>() >= capacities[core]
                };
                grows[index] &= rates[index] < demands[index] && !vpns[index].cores.clone().any(is_full);
            }
        }
        rates
    }

    #[test]
    fn shares_equal_those_of_step_by_step_filling() {
        for index in 0..60 {
            let case = draw::case(netstage_harness::seed("owed"), index);
            let capacities: Vec<f64> = case.cores.iter().map(|core| core.rate).collect();
            let mut random = netstage_differ::draw::Draw::new(index, "demands");
            let mut demand = || match random.one_in(2) {
                true => f64::INFINITY,
                false => capacities[0] * random.magnitude(1, 1_000) as f64 / 1_000.0,
            };
            let demands: Vec<f64> = case.vpns.iter().map(|_| demand()).collect();
            let shares = weighted_shares(&case.vpns, &capacities, &demands, |_| true);
            let expected = filled(&case.vpns, &capacities, &demands);
            // All rates of a step are wrong by at most one step of each VPN.
            let weights: f64 = case.vpns.iter().map(|vpn| vpn.weight).sum();
            let tolerance = 2.0 * capacities.iter().copied().fold(0.0, f64::max) / 20_000.0 * weights;
            for (share, expected) in shares.iter().zip(&expected) {
                assert!(
                    (share - expected).abs() < tolerance,
                    "case {index}: {shares:?}, expected {expected:?}"
                );
            }
            for (core, capacity) in capacities.iter().enumerate() {
                let crossing = case.vpns.iter().zip(&shares).filter(|(vpn, _)| vpn.cores.contains(&core));
                assert!(crossing.map(|(_, share)| share).sum::<f64>() <= capacity * (1.0 + 1e-9));
            }
        }
    }
}
