//! Goodness of fit: each part of a capture against the model of the other parts.
//!
//! A model draws independent samples of one distribution. Parts are consecutive, so that both a distribution that changes
//! during the capture and samples that depend on each other increase the distance.

use netstage_core::rng::RandomStream;
use netstage_core::traffic::application::Quantiles;
use netstage_scenario::learned::{GoodnessOfFit, HeldOutFit};

/// Points of a quantile table.
const POINTS: usize = 513;
/// Parts of a capture.
const PARTS: usize = 5;
/// Minimum number of samples in each part. The limit of the distance is then 0.66.
const MIN_SAMPLES: usize = 10;
/// Probability that one of the parts of a capture exceeds its limit by chance.
const FALSE_ALARM: f64 = 0.01;
/// Minimum number of turns drawn for the distribution of the bytes of a connection.
const MIN_DRAWN_TURNS: u64 = 200_000;
/// Minimum number of connections drawn for each connection of the capture. They add at most 5 % to the variance.
const DRAWN_PER_CONNECTION: usize = 4;

/// Divides the items into consecutive parts of equal numbers.
pub fn parts<T>(items: &[T]) -> [&[T]; PARTS] {
    std::array::from_fn(|part| &items[part * items.len() / PARTS..(part + 1) * items.len() / PARTS])
}

/// Samples of a quantity, in the parts of the capture.
pub struct Quantity {
    name: String,
    unit: &'static str,
    parts: [Vec<u64>; PARTS],
}

impl Quantity {
    /// Creates a quantity. The unit is `s` (samples in nanoseconds), `bytes` or empty.
    pub fn new(name: &str, unit: &'static str, parts: [Vec<u64>; PARTS]) -> Quantity {
        Quantity { name: name.to_owned(), unit, parts }
    }

    /// Returns the distribution of all samples.
    pub fn table(&self) -> Quantiles {
        Quantiles::from_samples(self.parts.concat(), POINTS)
    }

    fn table_without(&self, part: usize) -> Quantiles {
        let others = (0..PARTS).filter(|other| *other != part);
        Quantiles::from_samples(others.flat_map(|other| &self.parts[other]).copied().collect(), POINTS)
    }

    /// Compares each part with the distribution of the others.
    pub fn fit(&self) -> GoodnessOfFit {
        self.fit_to(|part| self.table_without(part))
    }

    /// Compares each part of the bytes of connections with connections drawn from a model of the other parts. The distance
    /// is large if turns of a connection depend on each other.
    pub fn fit_connections(&self, turns: &Quantity, sizes: [&Quantity; 2]) -> GoodnessOfFit {
        self.fit_to(|part| {
            let turns = turns.table_without(part);
            let sizes = sizes.map(|quantity| quantity.table_without(part));
            let mut stream = RandomStream::new(part as u64, &self.name);
            let (mut totals, mut drawn_turns) = (Vec::new(), 0);
            let connections = self.parts.iter().map(Vec::len).sum::<usize>();
            while drawn_turns < MIN_DRAWN_TURNS || totals.len() < connections * DRAWN_PER_CONNECTION {
                let count = turns.draw(&mut stream).max(1);
                drawn_turns += count;
                let turn = |_| sizes.iter().map(|size| size.draw(&mut stream)).sum::<u64>();
                totals.push((0..count).map(turn).sum());
            }
            Quantiles::from_samples(totals, POINTS)
        })
    }

    fn fit_to(&self, model_without: impl Fn(usize) -> Quantiles) -> GoodnessOfFit {
        let samples = self.parts.concat();
        let (mean, variation) = moments(&samples);
        GoodnessOfFit {
            quantity: self.name.clone(),
            unit: self.unit.to_owned(),
            samples: samples.len() as u64,
            mean: mean * if self.unit == "s" { 1e-9 } else { 1.0 },
            variation,
            autocorrelation: autocorrelation(&samples, mean),
            held_out: self.held_out(samples.len(), model_without),
        }
    }

    fn held_out(&self, total: usize, model_without: impl Fn(usize) -> Quantiles) -> HeldOutFit {
        let fewest = self.parts.iter().map(Vec::len).min().unwrap_or(0);
        if fewest < MIN_SAMPLES {
            let reason = format!("a fifth of the capture has {fewest} samples, {MIN_SAMPLES} are needed");
            return HeldOutFit::NotTested { reason };
        }
        let compare = |part: usize| {
            let mut samples = self.parts[part].clone();
            samples.sort_unstable();
            let fitted = total - samples.len();
            (part, distance(&model_without(part), &samples), limit(fitted, samples.len()))
        };
        let worst = (0..PARTS).map(compare).max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)));
        let (part, distance, limit) = worst.expect("a capture has parts");
        let samples = self.parts[part].len();
        HeldOutFit::Tested {
            part: part as u32 + 1,
            parts: PARTS as u32,
            samples: samples as u64,
            fitted: (total - samples) as u64,
            distance,
            limit,
        }
    }
}

/// Returns the asymptotic quantile of the two-sample Kolmogorov-Smirnov statistic, with the probability of a false alarm
/// divided among the parts (Bonferroni).
fn limit(fitted: usize, held_out: usize) -> f64 {
    let probability = FALSE_ALARM / PARTS as f64;
    let scale = (-(probability / 2.0).ln() / 2.0).sqrt();
    (scale * (1.0 / fitted as f64 + 1.0 / held_out as f64).sqrt()).min(1.0)
}

/// Returns the Kolmogorov-Smirnov distance of sorted samples from a model.
fn distance(model: &Quantiles, samples: &[u64]) -> f64 {
    let share = |count: usize| count as f64 / samples.len() as f64;
    let (mut below, mut max) = (0, 0.0_f64);
    while let Some(&value) = samples.get(below) {
        let through = below + samples[below..].partition_point(|sample| *sample == value);
        let before = value.checked_sub(1).map_or(0.0, |before| model.cumulative(before));
        max = max.max((before - share(below)).abs()).max((model.cumulative(value) - share(through)).abs());
        below = through;
    }
    max
}

/// Returns the mean and the coefficient of variation.
fn moments(samples: &[u64]) -> (f64, f64) {
    let n = samples.len().max(1) as f64;
    let mean = samples.iter().map(|value| *value as f64).sum::<f64>() / n;
    let variance = samples.iter().map(|value| (*value as f64 - mean).powi(2)).sum::<f64>() / n;
    (mean, if mean > 0.0 { variance.sqrt() / mean } else { 0.0 })
}

/// Returns the correlation of each sample with the next.
fn autocorrelation(samples: &[u64], mean: f64) -> f64 {
    let deviation = |value: &u64| *value as f64 - mean;
    let variance: f64 = samples.iter().map(|value| deviation(value).powi(2)).sum();
    let covariance: f64 = samples.windows(2).map(|pair| deviation(&pair[0]) * deviation(&pair[1])).sum();
    if variance > 0.0 { covariance / variance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(samples: &[u64]) -> Quantity {
        Quantity::new("x", "bytes", parts(samples).map(<[u64]>::to_vec))
    }

    #[test]
    fn distances_and_autocorrelation_match_known_values() {
        assert_eq!(distance(&Quantiles(vec![2]), &[2, 2]), 0.0);
        assert_eq!(distance(&Quantiles(vec![1, 2]), &[3, 4]), 1.0);
        // Draws of 10 to 19, each with a probability of 10 %.
        let uniform = Quantiles(vec![10, 20]);
        assert!((distance(&uniform, &[14]) - 0.5).abs() < 1e-12);
        assert!((distance(&uniform, &(10..20).collect::<Vec<_>>())).abs() < 1e-12);
        assert!((distance(&uniform, &[19, 19]) - 0.9).abs() < 1e-12);
        assert!((autocorrelation(&[1, 3, 1, 3, 1, 3], 2.0) + 5.0 / 6.0).abs() < 1e-12);
        // Massey, 1951: 1.36 at 5 % and 1.63 at 1 %, here at 0.2 %.
        assert!((limit(200, 200) - 0.1858).abs() < 1e-4, "{}", limit(200, 200));
    }

    #[test]
    fn independent_samples_of_one_distribution_fit() {
        let mut stream = RandomStream::new(1, "independent samples");
        let mut alarms = 0;
        for case in 0..1_000 {
            let count = 50 + stream.below(2_000) as usize;
            let samples: Vec<u64> = (0..count)
                .map(|_| match case % 3 {
                    0 => stream.exponential(1e6) as u64,
                    1 => 100 + 900 * stream.below(2),
                    _ => stream.pareto(1e4, 1.2) as u64,
                })
                .collect();
            alarms += u32::from(quantity(&samples).fit().held_out.differs());
        }
        // 99.9 % of the binomial distribution with 1 %.
        assert!(alarms <= 21, "{alarms} of 1,000 captures differ from their own distribution");
    }

    #[test]
    fn changes_and_dependence_do_not_fit() {
        let mut stream = RandomStream::new(2, "dependent samples");
        for case in 0..200 {
            let count = 500 + stream.below(2_000) as usize;
            let samples: Vec<u64> = (0..count)
                .map(|index| match case % 2 {
                    // The mean is fourfold during the last third.
                    0 => stream.exponential(if index * 3 > count * 2 { 4e4 } else { 1e4 }) as u64,
                    // A new value follows after a fiftieth of the samples.
                    _ => RandomStream::new(case, &(index * 50 / count).to_string()).below(1_000),
                })
                .collect();
            let fit = quantity(&samples).fit();
            assert!(fit.held_out.differs(), "case {case}: {fit:?}");
        }
    }

    #[test]
    fn connections_whose_turns_have_equal_sizes_differ_from_independent_turns() {
        for dependent in [false, true] {
            let mut stream = RandomStream::new(3, "connections");
            let connections: Vec<Vec<u64>> = (0..400)
                .map(|_| {
                    let size = 1_000 + stream.below(100_000);
                    let turn = |_| if dependent { size } else { 1_000 + stream.below(100_000) };
                    (0..10).map(turn).collect()
                })
                .collect();
            let parts = parts(&connections);
            let turns = Quantity::new("turns", "", parts.map(|part| vec![10; part.len()]));
            let request = Quantity::new("request", "bytes", parts.map(|part| vec![100; part.len() * 10]));
            let response = Quantity::new("response", "bytes", parts.map(<[_]>::concat));
            let bytes = |part: &[Vec<u64>]| part.iter().map(|c| 1_000 + c.iter().sum::<u64>()).collect();
            let bytes = Quantity::new("connection", "bytes", parts.map(bytes));
            let fit = bytes.fit_connections(&turns, [&request, &response]);
            assert_eq!(fit.held_out.differs(), dependent, "{fit:?}");
        }
    }

    #[test]
    fn few_samples_are_not_tested() {
        let reason = "a fifth of the capture has 9 samples, 10 are needed".to_owned();
        assert_eq!(quantity(&[1; 49]).fit().held_out, HeldOutFit::NotTested { reason });
        let HeldOutFit::Tested { parts, samples, fitted, distance, .. } = quantity(&[1; 50]).fit().held_out
        else {
            panic!()
        };
        assert_eq!((parts, samples, fitted, distance), (5, 10, 40, 0.0));
    }
}
