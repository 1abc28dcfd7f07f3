//! I2VFC and alternative schemes in whole networks: rates follow weights, and links are fully used.

mod support;

use netstage_core::fair::{Decrease, I2vfcConfig, VpnControl, WeightReference};
use netstage_core::measure::weighted_fairness;
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::queue;
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::plan::Plan;
use support::*;

/// VPN 1 has a fixed decrease; the other VPNs derive theirs from it.
fn window(index: usize, increase: f64, decrease: f64) -> VpnControl {
    let decrease = if index == 0 { Decrease::Fixed(decrease) } else { Decrease::FromWeight };
    VpnControl::I2vfc(I2vfcConfig {
        increase,
        decrease,
        reference: WeightReference::Vpn(0),
        ..I2vfcConfig::default()
    })
}

/// Returns the mean of F over the bins from 15 s on.
fn fairness(plan: &Plan, outcome: &RunOutcome) -> f64 {
    let weights: Vec<f64> = plan.vpns.iter().map(|vpn| vpn.settings.weight).collect();
    let rates_of = |vpn: &str| &outcome.get(Metric::VpnThroughput, vpn).unwrap().values;
    let bins = 15..outcome.bins;
    let count = bins.len() as f64;
    let index = |bin: usize| {
        let rates: Vec<f64> = plan.vpns.iter().map(|vpn| rates_of(&vpn.name)[bin]).collect();
        weighted_fairness(&rates, &weights)
    };
    bins.map(index).sum::<f64>() / count
}

fn utilization(outcome: &RunOutcome, link: &str) -> f64 {
    let values = &outcome.get(Metric::LinkUtilization, link).unwrap().values[15..];
    values.iter().sum::<f64>() / values.len() as f64
}

fn run(plan: &Plan) -> RunOutcome {
    netstage_sim::run(plan, 1, &|| false).unwrap()
}

#[test]
fn windows_share_one_bottleneck_by_weight_and_fill_it() {
    let none = Dumbbell::default().plan();
    let controlled = Dumbbell { control: |index| window(index, 0.1, 0.1), ..Dumbbell::default() }.plan();
    let (free, fair) = (run(&none), run(&controlled));
    assert!(fairness(&none, &free) < 0.85);
    assert!(fairness(&controlled, &fair) > 0.95, "F = {}", fairness(&controlled, &fair));
    assert!(utilization(&fair, "bottleneck.forward") > 0.97);
    // Congestion moves from the core to the PEs.
    let sum = |outcome: &RunOutcome, metric, subject: &str| -> f64 {
        outcome.get(metric, subject).map_or(0.0, |series| series.values.iter().sum())
    };
    let core = |outcome| sum(outcome, Metric::LinkDrops, "bottleneck.forward");
    assert!(
        core(&fair) < core(&free) / 10.0,
        "{} drops in the core, {} without control",
        core(&fair),
        core(&free)
    );
    assert!(sum(&fair, Metric::VpnQueueDrops, "vpn1") > 0.0);
}

#[test]
fn windows_share_several_bottlenecks_in_series() {
    let plan = parking_lot([20, 10, 30], [1.0, 3.0, 1.0, 5.0], |index| window(index, 0.5, 0.01));
    let outcome = run(&plan);
    assert!(fairness(&plan, &outcome) > 0.95, "F = {}", fairness(&plan, &outcome));
    for link in ["link1.forward", "link2.forward", "link3.forward"] {
        assert!(utilization(&outcome, link) > 0.95);
    }
}

#[test]
fn deficit_round_robin_in_the_core_is_nearly_ideal() {
    let mut plan = Dumbbell::default().plan();
    let mut weights: Vec<f64> = plan.vpns.iter().map(|vpn| vpn.settings.weight).collect();
    weights.push(12.0 * 0.3 / 0.7); // Background traffic outside the VPNs, with the rate it needs.
    let bottleneck = plan.links.iter_mut().find(|link| link.name == "bottleneck").unwrap();
    bottleneck.directions[0].queue = queue::QueueConfig::DeficitRoundRobin(queue::DrrConfig {
        weights,
        buffer_per_class: Capacity::Packets(50),
    });
    let outcome = run(&plan);
    assert!(fairness(&plan, &outcome) > 0.97, "F = {}", fairness(&plan, &outcome));
    assert!(utilization(&outcome, "bottleneck.forward") > 0.97);
}

#[test]
fn fixed_rates_are_kept_within_0_2_percent() {
    let control = |index: usize| VpnControl::FixedRate {
        rate: BitRate(2_900_000 * [1, 2, 2, 3, 4][index]),
        queue: 128,
    };
    let plan = Dumbbell { control, ..Dumbbell::default() }.plan();
    let outcome = run(&plan);
    assert!(fairness(&plan, &outcome) > 0.999);
    for (vpn, times) in plan.vpns.iter().zip([1.0, 2.0, 2.0, 3.0, 4.0]) {
        let values = &outcome.get(Metric::VpnThroughput, &vpn.name).unwrap().values[15..];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!((mean / (2.9e6 * times) - 1.0).abs() < 0.002, "{}: {mean}", vpn.name);
    }
}
