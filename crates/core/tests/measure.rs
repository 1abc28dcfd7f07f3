//! Property tests of the statistics over random samples.

use netstage_core::measure::{Bound, Summary, converged_from, jain, weighted_fairness};
use proptest::prelude::*;

proptest! {
    #[test]
    fn fairness_is_between_one_over_n_and_one(
        shares in prop::collection::vec((0.0..1e9_f64, 0.01..100.0_f64), 1..50)
    ) {
        let (throughputs, weights): (Vec<f64>, Vec<f64>) = shares.into_iter().unzip();
        let index = weighted_fairness(&throughputs, &weights);
        if throughputs.iter().all(|&throughput| throughput == 0.0) {
            prop_assert!(index.is_nan());
        } else {
            prop_assert!(index >= 1.0 / throughputs.len() as f64 - 1e-12 && index <= 1.0 + 1e-12);
        }
    }

    #[test]
    fn fairness_does_not_depend_on_the_unit(
        throughputs in prop::collection::vec(1e-3..1e3_f64, 1..50), exponent in -150..150_i32
    ) {
        let scaled: Vec<f64> = throughputs.iter().map(|x| x * 10_f64.powi(exponent)).collect();
        prop_assert!((jain(&throughputs) - jain(&scaled)).abs() < 1e-12);
    }

    #[test]
    fn fairness_does_not_depend_on_the_order(
        throughputs in prop::collection::vec(0.1..1e3_f64, 1..50), turn in 0..50_usize
    ) {
        let mut turned = throughputs.clone();
        turned.rotate_left(turn % throughputs.len());
        prop_assert!((jain(&throughputs) - jain(&turned)).abs() < 1e-12);
    }

    #[test]
    fn convergence_is_the_earliest_bin_within_the_bound(series in prop::collection::vec(0.0..1.0_f64, 0..60)) {
        let bound = Bound::AtLeast(0.3);
        let settled = |from: usize| series[from..].iter().all(|&value| bound.holds(value));
        let earliest = (0..series.len()).find(|&from| settled(from));
        prop_assert_eq!(converged_from(&series, bound), earliest);
    }

    #[test]
    fn summaries_shift_and_scale_with_the_samples(
        samples in prop::collection::vec(-100.0..100.0_f64, 2..60), shift in -100.0..100.0_f64
    ) {
        let moved: Vec<f64> = samples.iter().map(|sample| 2.0 * sample + shift).collect();
        let (before, after) = (Summary::from_samples(&samples), Summary::from_samples(&moved));
        prop_assert!((after.mean - (2.0 * before.mean + shift)).abs() < 1e-9);
        prop_assert!((after.half_width - 2.0 * before.half_width).abs() < 1e-9 * (1.0 + before.half_width));
    }
}

#[test]
fn confidence_interval_has_the_stated_coverage() {
    let mut rng = netstage_core::rng::RandomStream::new(5, "coverage");
    let experiments = 20_000;
    let covered = (0..experiments)
        .filter(|_| {
            let samples: [f64; 6] = core::array::from_fn(|_| 3.0 + 2.0 * rng.normal());
            let summary = Summary::from_samples(&samples);
            (summary.mean - 3.0).abs() <= summary.half_width
        })
        .count();
    // Tolerance: four standard deviations of a binomial count around 95 %.
    let share = covered as f64 / f64::from(experiments);
    assert!((share - 0.95).abs() < 4.0 * (0.95 * 0.05 / f64::from(experiments)).sqrt(), "{share}");
}
