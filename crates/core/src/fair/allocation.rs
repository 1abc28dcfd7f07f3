//! Reference allocations computed from the topology: the rate of each flow under weighted max-min fairness
//! and under proportional fairness (Kelly, Maulloo and Tan 1998).
//!
//! A path is the list of links a flow crosses, as indices into the capacities.

use alloc::vec;
use alloc::vec::Vec;

/// Computes weighted max-min fair rates: the rate of a flow can increase only at the expense of a flow
/// whose rate per weight is no larger (progressive filling, Bertsekas and Gallager, section 6.5.2).
///
/// Rates have the unit of the capacities. A flow that crosses no link gets infinity.
///
/// # Panics
///
/// Panics unless there is one weight per path, all weights are positive and no link on a path has a
/// negative capacity.
pub fn weighted_max_min(paths: &[Vec<usize>], capacities: &[f64], weights: &[f64]) -> Vec<f64> {
    check(paths, capacities, weights);
    let mut rates = vec![f64::INFINITY; paths.len()];
    let mut remaining = capacities.to_vec();
    let mut growing: Vec<usize> = (0..paths.len()).filter(|flow| !paths[*flow].is_empty()).collect();
    while !growing.is_empty() {
        let mut demand = vec![0.0; capacities.len()];
        for &flow in &growing {
            for &link in &paths[flow] {
                demand[link] += weights[flow];
            }
        }
        let level = |link: usize| remaining[link].max(0.0) / demand[link];
        let bottleneck = (0..capacities.len())
            .filter(|link| demand[*link] > 0.0)
            .min_by(|a, b| level(*a).total_cmp(&level(*b)))
            .expect("a flow that still grows crosses a link");
        let share = level(bottleneck);
        let (stopped, unstopped): (Vec<usize>, Vec<usize>) =
            growing.into_iter().partition(|flow| paths[*flow].contains(&bottleneck));
        for flow in stopped {
            rates[flow] = share * weights[flow];
            for &link in &paths[flow] {
                remaining[link] -= rates[flow];
            }
        }
        growing = unstopped;
    }
    rates
}

/// Computes weighted proportionally fair rates: the rates that maximize Σ wᵢ·log xᵢ within the capacities.
///
/// Newton's method on a logarithmic barrier gives about seven digits. The cost grows with the cube of the
/// number of flows. A flow that crosses no link gets infinity.
///
/// # Panics
///
/// Panics unless there is one weight per path, all weights are positive and all links on paths have
/// positive capacities.
pub fn proportional_fair(paths: &[Vec<usize>], capacities: &[f64], weights: &[f64]) -> Vec<f64> {
    check(paths, capacities, weights);
    let flows: Vec<usize> = (0..paths.len()).filter(|flow| !paths[*flow].is_empty()).collect();
    let mut rates = vec![f64::INFINITY; paths.len()];
    if flows.is_empty() {
        return rates;
    }
    let mut crossing: Vec<(f64, Vec<usize>)> = capacities.iter().map(|c| (*c, Vec::new())).collect();
    for (index, &flow) in flows.iter().enumerate() {
        for &link in &paths[flow] {
            crossing[link].1.push(index);
        }
    }
    crossing.retain(|(_, members)| !members.is_empty());
    assert!(crossing.iter().all(|(capacity, _)| *capacity > 0.0), "a link in use has no capacity");
    // The barrier is self-concordant in units of the largest capacity and the smallest weight.
    let unit = crossing.iter().map(|(capacity, _)| *capacity).fold(0.0, f64::max);
    crossing.iter_mut().for_each(|(capacity, _)| *capacity /= unit);
    let smallest = flows.iter().map(|flow| weights[*flow]).fold(f64::INFINITY, f64::min);
    let weights: Vec<f64> = flows.iter().map(|flow| weights[*flow] / smallest).collect();
    let solved = maximize(&crossing, &weights);
    for (index, &flow) in flows.iter().enumerate() {
        rates[flow] = solved[index] * unit;
    }
    rates
}

fn check(paths: &[Vec<usize>], capacities: &[f64], weights: &[f64]) {
    assert_eq!(paths.len(), weights.len(), "there is one weight per path");
    assert!(weights.iter().all(|w| *w > 0.0 && w.is_finite()), "weights are positive");
    assert!(paths.iter().flatten().all(|link| capacities[*link] >= 0.0), "capacities are not negative");
}

/// Follows the maxima of Σ wᵢ/μ·log xᵢ + Σ log(slack) as μ decreases.
fn maximize(links: &[(f64, Vec<usize>)], weights: &[f64]) -> Vec<f64> {
    let count = weights.len();
    let mut rates = vec![f64::INFINITY; count];
    for (capacity, members) in links {
        for &member in members {
            rates[member] = rates[member].min(0.5 * capacity / members.len() as f64);
        }
    }
    let mut barrier = 1.0;
    while barrier > 1e-9 {
        barrier *= 0.2;
        for _ in 0..200 {
            let mut gradient: Vec<f64> = (0..count).map(|i| -weights[i] / (barrier * rates[i])).collect();
            let mut hessian = vec![0.0; count * count];
            for i in 0..count {
                hessian[i * count + i] = weights[i] / (barrier * rates[i] * rates[i]);
            }
            for (capacity, members) in links {
                let slack = capacity - members.iter().map(|m| rates[*m]).sum::<f64>();
                for &row in members {
                    gradient[row] += 1.0 / slack;
                    for &column in members {
                        hessian[row * count + column] += 1.0 / (slack * slack);
                    }
                }
            }
            let step = solve(&mut hessian, &gradient, count);
            let square: f64 = step.iter().zip(&gradient).map(|(s, g)| s * g).sum();
            let decrement = libm::sqrt(square.max(0.0));
            // A damped step stays within the bounds whatever its length.
            let mut length = if decrement < 0.25 { 1.0 } else { 1.0 / (1.0 + decrement) };
            let moved = loop {
                let moved: Vec<f64> = rates.iter().zip(&step).map(|(x, s)| x - length * s).collect();
                let inside = moved.iter().all(|x| *x > 0.0)
                    && links.iter().all(|(c, members)| members.iter().map(|m| moved[*m]).sum::<f64>() < *c);
                if inside || length < 1e-12 {
                    break inside.then_some(moved);
                }
                length /= 2.0;
            };
            match moved {
                Some(moved) => rates = moved,
                None => break,
            }
            if decrement < 1e-6 {
                break;
            }
        }
    }
    rates
}

/// Solves H·x = g for a positive definite H, and replaces H by its Cholesky factor.
fn solve(hessian: &mut [f64], gradient: &[f64], count: usize) -> Vec<f64> {
    for row in 0..count {
        for column in 0..=row {
            let mut sum = hessian[row * count + column];
            for k in 0..column {
                sum -= hessian[row * count + k] * hessian[column * count + k];
            }
            hessian[row * count + column] = if row == column {
                libm::sqrt(sum.max(1e-300))
            } else {
                sum / hessian[column * count + column]
            };
        }
    }
    let mut solution = gradient.to_vec();
    for row in 0..count {
        for k in 0..row {
            solution[row] -= hessian[row * count + k] * solution[k];
        }
        solution[row] /= hessian[row * count + row];
    }
    for row in (0..count).rev() {
        for k in row + 1..count {
            solution[row] -= hessian[k * count + row] * solution[k];
        }
        solution[row] /= hessian[row * count + row];
    }
    solution
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(rates: &[f64], expected: &[f64]) {
        for (rate, expected) in rates.iter().zip(expected) {
            assert!((rate - expected).abs() <= 1e-5 * expected, "{rates:?}, expected {expected}");
        }
        assert_eq!(rates.len(), expected.len());
    }

    #[test]
    fn one_link_is_shared_by_weight() {
        let paths = [vec![0], vec![0], vec![0]];
        assert_near(&weighted_max_min(&paths, &[60.0], &[1.0, 2.0, 3.0]), &[10.0, 20.0, 30.0]);
        assert_near(&proportional_fair(&paths, &[60.0], &[1.0, 2.0, 3.0]), &[10.0, 20.0, 30.0]);
    }

    #[test]
    fn max_min_on_the_parking_lot_gives_the_weights_of_the_paper() {
        for (third, expected) in [(10.0, 5.0), (20.0, 15.0), (30.0, 25.0)] {
            let paths = [vec![0, 1, 2], vec![0], vec![1], vec![2]];
            let rates = weighted_max_min(&paths, &[20.0, 10.0, third], &[1.0; 4]);
            assert_near(&rates, &[5.0, 15.0, 5.0, expected]);
        }
    }

    #[test]
    fn proportional_fairness_on_two_links_gives_the_long_flow_a_third() {
        let paths = [vec![0, 1], vec![0], vec![1]];
        assert_near(&proportional_fair(&paths, &[3e7, 3e7], &[1.0; 3]), &[1e7, 2e7, 2e7]);
        // x₀ = w₀ / (λ₀ + λ₁), which is w₀/(w₀ + w₁ + w₂) for links of equal capacity.
        assert_near(&proportional_fair(&paths, &[1.0, 1.0], &[2.0, 1.0, 1.0]), &[0.5, 0.5, 0.5]);
    }

    #[test]
    fn a_flow_without_links_is_not_limited() {
        let paths = [vec![], vec![0]];
        assert_eq!(weighted_max_min(&paths, &[5.0], &[1.0, 1.0]), [f64::INFINITY, 5.0]);
        assert_eq!(proportional_fair(&paths, &[5.0], &[1.0, 1.0])[0], f64::INFINITY);
    }

    /// Checks the optimality condition of proportional fairness, that no feasible rates yᵢ have a positive
    /// sum of wᵢ·(yᵢ − xᵢ)/xᵢ, and the bottleneck condition of max-min fairness.
    #[test]
    fn allocations_of_random_networks_are_optimal() {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        for _ in 0..50 {
            let links = 1 + random(6);
            let flows = 1 + random(12);
            let capacities: Vec<f64> = (0..links).map(|_| 1e6 * (1 + random(1000)) as f64).collect();
            let weights: Vec<f64> = (0..flows).map(|_| 0.5 + random(8) as f64).collect();
            let paths: Vec<Vec<usize>> = (0..flows)
                .map(|_| {
                    let mut path: Vec<usize> = (0..links).filter(|_| random(2) == 0).collect();
                    if path.is_empty() {
                        path.push(random(links));
                    }
                    path
                })
                .collect();
            let load = |rates: &[f64], link: usize| -> f64 {
                (0..flows).filter(|f| paths[*f].contains(&link)).map(|f| rates[f]).sum()
            };
            let max_min = weighted_max_min(&paths, &capacities, &weights);
            let fair = proportional_fair(&paths, &capacities, &weights);
            for (link, capacity) in capacities.iter().enumerate() {
                assert!(load(&max_min, link) <= capacity * (1.0 + 1e-9));
                assert!(load(&fair, link) <= capacity * (1.0 + 1e-9));
            }
            for (flow, path) in paths.iter().enumerate() {
                let bottleneck = path.iter().any(|&link| {
                    let full = load(&max_min, link) >= capacities[link] * (1.0 - 1e-9);
                    let is_max = (0..flows)
                        .filter(|f| paths[*f].contains(&link))
                        .all(|f| max_min[f] / weights[f] <= max_min[flow] / weights[flow] * (1.0 + 1e-9));
                    full && is_max
                });
                assert!(bottleneck, "flow {flow} has no bottleneck");
            }
            let gain: f64 = (0..flows).map(|f| weights[f] * (max_min[f] - fair[f]) / fair[f]).sum();
            assert!(gain <= 1e-4, "max-min would gain {gain}");
            for (flow, path) in paths.iter().enumerate() {
                // The solver does not return link prices, so check that no flow can grow alone.
                let full = path.iter().any(|&l| load(&fair, l) >= capacities[l] * (1.0 - 1e-6));
                assert!(full, "flow {flow} could grow");
            }
        }
    }
}
