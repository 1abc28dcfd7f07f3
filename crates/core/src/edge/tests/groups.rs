//! PEs that do not know the core find out whose flows share a bottleneck, and links that become slow.

extern crate std;

use super::network::{GreedyPe, Link, Network};
use super::*;
use crate::fair::CoreMembership;
use crate::fair::allocation::weighted_max_min;
use crate::fair::crowd::NEWS_INTERVAL;
use crate::fair::paths::FIRST_PATH;

fn whole(random: &mut RandomStream, from: usize, to: usize) -> usize {
    from + random.below((to + 1 - from) as u64) as usize
}

/// A core: rates of links in bytes per second; weight, path and delay of each PE's flow.
#[derive(Clone, Debug)]
struct Case {
    rates: Vec<f64>,
    pes: Vec<(f64, Vec<usize>, Duration)>,
}

impl Case {
    /// Draws one to three links and two to eight PEs. Each link is the only one of a PE; other PEs cross neighboring links.
    fn draw(random: &mut RandomStream) -> Case {
        let links = whole(random, 1, 3);
        let rates = (0..links).map(|_| 5e5 * whole(random, 1, 12) as f64).collect();
        let pes = (0..whole(random, 2, 8).max(links + 1)).map(|number| {
            let first = if number < links { number } else { whole(random, 0, links - 1) };
            let last = if number < links { first } else { whole(random, first, links - 1) };
            let delay = Duration::from_millis(whole(random, 3, 60) as u64);
            (whole(random, 1, 8) as f64, (first..=last).collect(), delay)
        });
        let pes = pes.collect();
        Case { rates, pes }
    }

    /// Returns the fairness index of the rates in seconds 20 to 60 divided by owed rates. `membership` is that of the PE with
    /// this number.
    fn fairness(&self, membership: impl Fn(usize) -> CoreMembership) -> f64 {
        let links = self.rates.iter().map(|rate| Link::new(*rate, 0.1 * rate)).collect();
        let pe = |(number, (weight, path, delay)): (usize, &(f64, Vec<usize>, Duration))| {
            GreedyPe::new(*weight, membership(number), path, *delay)
        };
        let mut network = Network::new(links, self.pes.iter().enumerate().map(pe).collect());
        run_until(&mut network, Instant(20_000_000_000));
        network.pes.iter_mut().for_each(|pe| pe.delivered = 0);
        run_until(&mut network, Instant(60_000_000_000));
        let paths: Vec<Vec<usize>> = self.pes.iter().map(|(_, path, _)| path.clone()).collect();
        let weights: Vec<f64> = self.pes.iter().map(|(weight, ..)| *weight).collect();
        let owed = weighted_max_min(&paths, &self.rates, &weights);
        let shares: Vec<f64> =
            network.pes.iter().zip(owed).map(|(pe, owed)| pe.delivered as f64 / owed).collect();
        let (sum, squares) =
            (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
        sum * sum / squares / shares.len() as f64
    }
}

fn run_until(network: &mut Network, end: Instant) {
    while network.now < end {
        if network.now.0.is_multiple_of(NEWS_INTERVAL.0) {
            network.exchange_news();
        }
        network.step();
    }
}

const CASES: u32 = 48;

/// In random cores, groups that PEs find are fairer than one group of all.
#[test]
fn pes_find_out_who_shares_a_bottleneck() {
    let mut random = RandomStream::new(netstage_harness::seed("groups"), "groups");
    let (mut one, mut found) = (0.0, 0.0);
    for _ in 0..CASES {
        let case = Case::draw(&mut random);
        one += 1.0 - case.fairness(|_| CoreMembership::Links(vec![0]));
        let fairness = case.fairness(|pe| CoreMembership::Path(FIRST_PATH + pe as u32));
        found += 1.0 - fairness;
        if fairness < 0.95 {
            std::println!("F {fairness:.3}: {case:?}");
        }
    }
    std::println!(
        "mean F with one group {:.4}, with groups found {:.4}",
        1.0 - one / f64::from(CASES),
        1.0 - found / f64::from(CASES)
    );
    assert!(found < 0.75 * one, "{found} {one}");
}

/// After a link has become slow, as a line that backs up another one is, its flows soon have their shares again.
#[test]
fn a_link_that_becomes_slow_is_shared_again() {
    let mut random = RandomStream::new(netstage_harness::seed("slow links"), "slow");
    for _ in 0..10 {
        let (slow, buffer) =
            (1e5 * whole(&mut random, 1, 20) as f64, 0.05 * whole(&mut random, 1, 10) as f64);
        let weights: Vec<f64> = (0..3).map(|_| whole(&mut random, 1, 5) as f64).collect();
        let pes = weights.iter().map(|weight| {
            let delay = Duration::from_millis(whole(&mut random, 3, 60) as u64);
            GreedyPe::new(*weight, CoreMembership::Links(vec![0]), &[0], delay)
        });
        let mut network = Network::new(vec![Link::new(5e6, 5e5)], pes.collect());
        run_until(&mut network, Instant(15_000_000_000));
        network.change_link(0, slow, (buffer * slow).max(9000.0));
        run_until(&mut network, Instant(35_000_000_000));
        network.pes.iter_mut().for_each(|pe| pe.delivered = 0);
        run_until(&mut network, Instant(45_000_000_000));
        let sum: f64 = weights.iter().sum();
        let share = |(pe, weight): (&GreedyPe, &f64)| pe.delivered as f64 / 10.0 / (slow * weight / sum);
        let shares: Vec<f64> = network.pes.iter().zip(&weights).map(share).collect();
        let case = alloc::format!("{slow} B/s, buffer {buffer} s, weights {weights:?}");
        assert!(shares.iter().all(|share| (0.8..1.2).contains(share)), "{case}: {shares:?}");
    }
}
