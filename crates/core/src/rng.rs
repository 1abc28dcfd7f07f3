//! Random streams. Each subject of a scenario draws from its own stream, derived from
//! the seed and the subject's name, so adding a flow leaves the others unchanged.
//!
//! Samplers are ours over `libm`: the same seed gives the same bytes on any machine.

use rand_core::Rng as _;
use rand_pcg::Pcg64Mcg;

/// One stream of random numbers.
#[derive(Clone, Debug)]
pub struct Stream(Pcg64Mcg);

impl Stream {
    /// The stream of `subject` under `seed`.
    pub fn new(seed: u64, subject: &str) -> Stream {
        // FNV-1a spreads the name; the finaliser of SplitMix64 spreads the seed.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for byte in subject.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let high = split_mix(seed ^ hash);
        let low = split_mix(high ^ hash.rotate_left(32));
        Stream(Pcg64Mcg::new((u128::from(high) << 64) | u128::from(low)))
    }

    /// 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in [0, 1), 53 bits.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// True with this probability; draws nothing when it is 0 or 1.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && (probability >= 1.0 || self.uniform() < probability)
    }

    /// Exponential with this mean.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.uniform())
    }

    /// A stream of its own for one part of this stream's subject. Draws nothing from this
    /// stream; parts of different names are independent of it and of each other.
    pub fn fork(&self, part: &str) -> Stream {
        let mut parent = self.clone();
        let key = parent.next_u64() ^ parent.next_u64().rotate_left(32);
        Stream::new(key, part)
    }

    /// Uniform in 0..bound, without bias (Lemire 2019, "Fast random integer generation in
    /// an interval"). Panics if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no integer is below zero");
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Failures before the first success of trials that succeed with this probability;
    /// `u64::MAX`, and nothing drawn, where it is zero.
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

    /// Pareto with this mean and shape (> 1): heavy-tailed for shapes below 2.
    pub fn pareto(&mut self, mean: f64, shape: f64) -> f64 {
        let scale = mean * (shape - 1.0) / shape;
        scale * libm::pow(1.0 - self.uniform(), -1.0 / shape)
    }

    /// Standard normal (Box–Muller, one of the pair).
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.uniform()));
        radius * libm::cos(2.0 * core::f64::consts::PI * self.uniform())
    }

    /// Log-normal with this mean and standard deviation, both positive.
    pub fn lognormal(&mut self, mean: f64, deviation: f64) -> f64 {
        let ratio = deviation / mean;
        let variance = libm::log1p(ratio * ratio);
        libm::exp(libm::log(mean) - variance / 2.0 + libm::sqrt(variance) * self.normal())
    }

    /// Largest extreme value (Gumbel) with this mode and scale.
    pub fn extreme(&mut self, mode: f64, scale: f64) -> f64 {
        // Half a step keeps the draw off both ends, where the value is infinite.
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

    // Golden values, computed by an independent implementation from the published
    // algorithms (the last bit of a logarithm or power is libm's). A change here changes
    // every published figure.
    #[test]
    fn streams_are_fixed_for_all_time() {
        let mut stream = Stream::new(1, "flow.bulk");
        let golden =
            [0x7e36_11fc_5657_027e, 0x7240_6083_2465_1405, 0xbe8b_9d56_dc48_4ee2, 0x9424_9344_fb3d_5c4c];
        assert_eq!(golden.map(|_| stream.next_u64()), golden);
        let mut fork = Stream::new(1, "flow.bulk").fork("queue");
        assert_eq!([fork.next_u64(), fork.next_u64()], [0x538a_64ea_d871_eceb, 0xc495_4946_8641_0f9f]);
    }

    #[test]
    fn samplers_are_fixed_for_all_time() {
        fn drawn<T>(name: &str, draw: impl Fn(&mut Stream) -> T) -> [T; 4] {
            let mut stream = Stream::new(1, name);
            core::array::from_fn(|_| draw(&mut stream))
        }
        assert_eq!(
            drawn("uni", Stream::uniform),
            [0.5017563676022907, 0.8854904869306754, 0.4263588845137395, 0.8556788543745985]
        );
        assert_eq!(
            drawn("exp", |stream| stream.exponential(2.0)),
            [1.0648825512776163, 0.5101375146534126, 0.2754823382862222, 0.40824764002792874]
        );
        assert_eq!(
            drawn("pareto", |stream| stream.pareto(3.0, 1.5)),
            [8.215937832721993, 2.9922320755978182, 2.5070015813282676, 1.3687167231510444]
        );
        assert_eq!(
            drawn("normal", Stream::normal),
            [0.6310078027142708, -0.6190702019324794, 1.5414655992069481, -0.06961271662325544]
        );
        assert_eq!(drawn("geo", |stream| stream.geometric(1e-3)), [547, 5118, 2165, 1388]);
        assert_eq!(drawn("below", |stream| stream.below(10)), [5, 6, 8, 7]);
    }

    #[test]
    fn seeds_subjects_and_forks_have_their_own_streams() {
        let first = Stream::new(1, "flow.bulk").next_u64();
        assert_ne!(Stream::new(2, "flow.bulk").next_u64(), first);
        assert_ne!(Stream::new(1, "flow.bulk2").next_u64(), first);
        assert_ne!(Stream::new(1, "flow.bulk").fork("queue").next_u64(), first);
    }

    #[test]
    fn integers_below_a_bound_are_uniform() {
        let mut stream = Stream::new(3, "below");
        let mut seen = [0_u32; 7];
        for _ in 0..70_000 {
            seen[stream.below(7) as usize] += 1;
        }
        let chi_square: f64 = seen.iter().map(|&n| (f64::from(n) - 1e4).powi(2) / 1e4).sum();
        assert!(chi_square < 16.8, "99 % quantile of chi-square with 6 degrees: {chi_square}");
    }

    #[test]
    fn certain_and_impossible_trials_draw_nothing() {
        let mut stream = Stream::new(4, "certain");
        assert_eq!((stream.geometric(0.0), stream.geometric(1.0)), (u64::MAX, 0));
        assert_eq!((stream.chance(0.0), stream.chance(1.0)), (false, true));
        assert_eq!(stream.next_u64(), Stream::new(4, "certain").next_u64());
    }

    #[test]
    fn samplers_have_their_means() {
        let mut stream = Stream::new(7, "means");
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
        // Its mean lies Euler's constant times the scale above the mode.
        assert!((mean(sums[7]) - 2.154).abs() < 0.03);
    }
}
