//! Mean of repeated runs and its confidence interval.

use serde::{Deserialize, Serialize};

/// Mean, standard deviation and confidence interval of independent samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// Mean; NaN without samples.
    pub mean: f64,
    /// Sample standard deviation (n − 1 in the denominator); NaN below two samples.
    pub standard_deviation: f64,
    /// Half the width of the 95 % confidence interval of the mean, for normally distributed samples
    /// (Student's t); NaN below two samples.
    pub half_width: f64,
}

impl Summary {
    /// Summarizes samples.
    pub fn from_samples(samples: &[f64]) -> Summary {
        let count = samples.len();
        let n = count as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let (mut standard_deviation, mut half_width) = (f64::NAN, f64::NAN);
        if count >= 2 {
            let squares: f64 = samples.iter().map(|sample| (sample - mean) * (sample - mean)).sum();
            standard_deviation = libm::sqrt(squares / (n - 1.0));
            half_width = student_t_975(count - 1) * standard_deviation / libm::sqrt(n);
        }
        Summary { count, mean, standard_deviation, half_width }
    }
}

/// 0.975 quantiles of Student's t distribution for 1 to 30 degrees of freedom.
#[rustfmt::skip]
const STUDENT_T_975: [f64; 30] = [
    12.706_204_736_175, 4.302_652_729_749, 3.182_446_305_284, 2.776_445_105_198, 2.570_581_835_636,
    2.446_911_851_145, 2.364_624_251_593, 2.306_004_135_204, 2.262_157_162_798, 2.228_138_851_986,
    2.200_985_160_092, 2.178_812_829_667, 2.160_368_656_463, 2.144_786_687_918, 2.131_449_545_560,
    2.119_905_299_221, 2.109_815_577_833, 2.100_922_040_241, 2.093_024_054_408, 2.085_963_447_266,
    2.079_613_844_728, 2.073_873_067_904, 2.068_657_610_419, 2.063_898_561_628, 2.059_538_552_753,
    2.055_529_438_643, 2.051_830_516_480, 2.048_407_141_795, 2.045_229_642_133, 2.042_272_456_301,
];

/// Returns the 0.975 quantile of Student's t distribution, the factor of a two-sided 95 % interval. Exact to
/// 12 digits up to 30 degrees of freedom, to 7 above (Abramowitz and Stegun 26.7.5).
///
/// Panics if `degrees_of_freedom` is 0.
pub fn student_t_975(degrees_of_freedom: usize) -> f64 {
    assert!(degrees_of_freedom > 0, "a confidence interval needs at least two samples");
    if let Some(&quantile) = STUDENT_T_975.get(degrees_of_freedom - 1) {
        return quantile;
    }
    let z = 1.959_963_984_540_054_f64;
    let (n, z2) = (degrees_of_freedom as f64, z * z);
    let g1 = z * (z2 + 1.0) / 4.0;
    let g2 = z * ((5.0 * z2 + 16.0) * z2 + 3.0) / 96.0;
    let g3 = z * (((3.0 * z2 + 19.0) * z2 + 17.0) * z2 - 15.0) / 384.0;
    let g4 = z * ((((79.0 * z2 + 776.0) * z2 + 1482.0) * z2 - 1920.0) * z2 - 945.0) / 92_160.0;
    z + (((g4 / n + g3) / n + g2) / n + g1) / n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_match_published_tables() {
        // Values from printed tables; above 30 degrees of freedom, from numerical inversion of the
        // distribution.
        let known =
            [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (19, 2.0930), (29, 2.0452), (30, 2.0423)];
        for (degrees, quantile) in known {
            assert!((student_t_975(degrees) - quantile).abs() < 5.1e-5, "{degrees}");
        }
        let computed = [
            (31, 2.039_513_446_396),
            (40, 2.021_075_390_306),
            (60, 2.000_297_822_014),
            (100, 1.983_971_518_524),
            (120, 1.979_930_405_082),
            (1000, 1.962_339_080_827),
        ];
        for (degrees, quantile) in computed {
            assert!((student_t_975(degrees) - quantile).abs() < 1e-7, "{degrees}");
        }
        assert!((student_t_975(usize::MAX) - 1.959_963_984_540).abs() < 1e-12);
    }

    #[test]
    fn quantiles_decrease_toward_the_normal_distribution() {
        for degrees in 1..200 {
            assert!(student_t_975(degrees) > student_t_975(degrees + 1), "{degrees}");
        }
    }

    #[test]
    fn summary_of_ten_samples_matches_hand_calculation() {
        // 1 to 10: mean 5.5, variance 82.5 / 9, half width 2.262157 · 3.027650 / √10.
        let samples: [f64; 10] = core::array::from_fn(|index| index as f64 + 1.0);
        let summary = Summary::from_samples(&samples);
        assert_eq!((summary.count, summary.mean), (10, 5.5));
        assert!((summary.standard_deviation - 3.027_650_354).abs() < 1e-9);
        assert!((summary.half_width - 2.165_851_285).abs() < 1e-6);
    }

    #[test]
    fn fewer_than_two_samples_have_no_interval() {
        assert!(Summary::from_samples(&[]).mean.is_nan());
        let one = Summary::from_samples(&[3.0]);
        assert_eq!(one.mean, 3.0);
        assert!(one.half_width.is_nan() && one.standard_deviation.is_nan());
        assert_eq!(Summary::from_samples(&[2.0, 2.0]).half_width, 0.0);
    }
}
