//! Deterministic random streams. Each component of a scenario draws from its own stream, derived from the
//! seed and the component's name, so adding a flow does not change the random numbers of the others.
//!
//! The samplers are implemented here on top of `libm`, so that the same seed gives the same bytes on any
//! machine.

use rand_core::Rng as _;
use rand_pcg::Pcg64Mcg;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct RandomStream(Pcg64Mcg);

impl RandomStream {
    /// Creates the stream of `subject` for `seed`.
    pub fn new(seed: u64, subject: &str) -> RandomStream {
        // FNV-1a hashes the name; the finalizer of SplitMix64 mixes in the seed.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for byte in subject.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let high = split_mix(seed ^ hash);
        let low = split_mix(high ^ hash.rotate_left(32));
        RandomStream(Pcg64Mcg::new((u128::from(high) << 64) | u128::from(low)))
    }

    /// Returns 64 uniformly distributed bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number that is uniform in [0, 1), with 53 bits of precision.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns true with this probability; draws no number if it is 0 or 1.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && (probability >= 1.0 || self.uniform() < probability)
    }

    /// Samples an exponential distribution with this mean.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.uniform())
    }

    /// Derives an independent stream for one part of this stream's subject. Draws no number from this
    /// stream; forks with different names are independent of it and of each other.
    pub fn fork(&self, part: &str) -> RandomStream {
        let mut parent = self.clone();
        let key = parent.next_u64() ^ parent.next_u64().rotate_left(32);
        RandomStream::new(key, part)
    }

    /// Returns an integer that is uniform in `0..bound`, without bias (Lemire 2019, "Fast random integer
    /// generation in an interval").
    ///
    /// # Panics
    ///
    /// Panics if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "the bound is above zero");
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Samples the number of failures before the first success in trials with this success probability.
    /// Returns `u64::MAX` and draws no number if the probability is zero.
    #[inline]
    pub fn geometric(&mut self, probability: f64) -> u64 {
        if probability <= 0.0 {
            return u64::MAX;
        }
        if probability >= 1.0 {
            return 0;
        }
        (libm::log(1.0 - self.uniform()) / libm::log1p(-probability)) as u64
    }

    /// Samples a Pareto distribution with this mean and shape (> 1); heavy-tailed for shapes below 2.
    pub fn pareto(&mut self, mean: f64, shape: f64) -> f64 {
        let scale = mean * (shape - 1.0) / shape;
        scale * libm::pow(1.0 - self.uniform(), -1.0 / shape)
    }

    /// Samples the standard normal distribution (Box–Muller, using one value of the pair).
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.uniform()));
        radius * libm::cos(2.0 * core::f64::consts::PI * self.uniform())
    }

    /// Samples a log-normal distribution with this mean and standard deviation, both positive.
    pub fn lognormal(&mut self, mean: f64, deviation: f64) -> f64 {
        let ratio = deviation / mean;
        let variance = libm::log1p(ratio * ratio);
        libm::exp(libm::log(mean) - variance / 2.0 + libm::sqrt(variance) * self.normal())
    }

    /// Samples the Gumbel distribution (largest extreme value) with this mode and scale.
    pub fn extreme(&mut self, mode: f64, scale: f64) -> f64 {
        // The offset of half a step avoids 0 and 1, where the value is infinite.
        let uniform = self.uniform() + 0.5 / (1u64 << 53) as f64;
        mode - scale * libm::log(-libm::log(uniform))
    }
}

fn split_mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Golden values from an independent implementation of the published algorithms (the last bit of a
    // logarithm or power depends on libm). Changing them changes every published figure.
    #[test]
    fn streams_match_golden_values() {
        let mut stream = RandomStream::new(1, "flow.bulk");
        let golden =
            [0x7e36_11fc_5657_027e, 0x7240_6083_2465_1405, 0xbe8b_9d56_dc48_4ee2, 0x9424_9344_fb3d_5c4c];
        assert_eq!(golden.map(|_| stream.next_u64()), golden);
        let mut fork = RandomStream::new(1, "flow.bulk").fork("queue");
        assert_eq!([fork.next_u64(), fork.next_u64()], [0x538a_64ea_d871_eceb, 0xc495_4946_8641_0f9f]);
    }

    #[test]
    fn samplers_match_golden_values() {
        fn draw_four<T>(name: &str, draw: impl Fn(&mut RandomStream) -> T) -> [T; 4] {
            let mut stream = RandomStream::new(1, name);
            core::array::from_fn(|_| draw(&mut stream))
        }
        assert_eq!(
            draw_four("uni", RandomStream::uniform),
            [0.5017563676022907, 0.8854904869306754, 0.4263588845137395, 0.8556788543745985]
        );
        assert_eq!(
            draw_four("exp", |stream| stream.exponential(2.0)),
            [1.0648825512776163, 0.5101375146534126, 0.2754823382862222, 0.40824764002792874]
        );
        assert_eq!(
            draw_four("pareto", |stream| stream.pareto(3.0, 1.5)),
            [8.215937832721993, 2.9922320755978182, 2.5070015813282676, 1.3687167231510444]
        );
        assert_eq!(
            draw_four("normal", RandomStream::normal),
            [0.6310078027142708, -0.6190702019324794, 1.5414655992069481, -0.06961271662325544]
        );
        assert_eq!(draw_four("geo", |stream| stream.geometric(1e-3)), [547, 5118, 2165, 1388]);
        assert_eq!(draw_four("below", |stream| stream.below(10)), [5, 6, 8, 7]);
    }

    #[test]
    fn seeds_subjects_and_forks_give_different_streams() {
        let first = RandomStream::new(1, "flow.bulk").next_u64();
        assert_ne!(RandomStream::new(2, "flow.bulk").next_u64(), first);
        assert_ne!(RandomStream::new(1, "flow.bulk2").next_u64(), first);
        assert_ne!(RandomStream::new(1, "flow.bulk").fork("queue").next_u64(), first);
    }

    #[test]
    fn integers_below_a_bound_are_uniform() {
        let mut stream = RandomStream::new(3, "below");
        let mut seen = [0_u32; 7];
        for _ in 0..70_000 {
            seen[stream.below(7) as usize] += 1;
        }
        let chi_square: f64 = seen.iter().map(|&n| (f64::from(n) - 1e4).powi(2) / 1e4).sum();
        assert!(chi_square < 16.8, "99 % quantile of chi-square with 6 degrees: {chi_square}");
    }

    #[test]
    fn certain_and_impossible_trials_draw_no_numbers() {
        let mut stream = RandomStream::new(4, "certain");
        assert_eq!((stream.geometric(0.0), stream.geometric(1.0)), (u64::MAX, 0));
        assert_eq!((stream.chance(0.0), stream.chance(1.0)), (false, true));
        assert_eq!(stream.next_u64(), RandomStream::new(4, "certain").next_u64());
    }

    #[test]
    fn sample_means_match_the_distributions() {
        let mut stream = RandomStream::new(7, "means");
        let n = 200_000;
        let mean = |sum: f64| sum / f64::from(n);
        let mut sums = [0.0; 8];
        for _ in 0..n {
            sums[0] += stream.uniform();
            sums[1] += stream.exponential(2.0);
            sums[2] += stream.pareto(3.0, 2.5);
            let z = stream.normal();
            sums[3] += z * z;
            sums[4] += stream.geometric(0.02) as f64;
            let lognormal = stream.lognormal(5.0, 2.0);
            sums[5] += lognormal;
            sums[6] += (lognormal - 5.0) * (lognormal - 5.0);
            sums[7] += stream.extreme(1.0, 2.0);
        }
        assert!((mean(sums[0]) - 0.5).abs() < 0.005);
        assert!((mean(sums[1]) - 2.0).abs() < 0.02);
        assert!((mean(sums[2]) - 3.0).abs() < 0.06);
        assert!((mean(sums[3]) - 1.0).abs() < 0.02);
        assert!((mean(sums[4]) - 49.0).abs() < 0.5);
        assert!((mean(sums[5]) - 5.0).abs() < 0.05);
        assert!((mean(sums[6]) - 4.0).abs() < 0.2);
        // The mean of the Gumbel distribution is the mode plus Euler's constant times the scale.
        assert!((mean(sums[7]) - 2.154).abs() < 0.03);
    }
}
