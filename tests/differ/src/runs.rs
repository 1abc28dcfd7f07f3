//! Simulated runs of drawn scenarios.

use crate::draw::Draw;
use crate::network::Network;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::{LoadOptions, parse};
use netstage_sim::{EventLoopOptions, run_with};
use std::collections::BTreeMap;

/// Start offsets of a scenario whose times are not scaled are below this.
const SPREAD: u64 = 100_000_000;

/// Parses a scenario file.
pub fn plan(file: &str) -> Result<Plan, String> {
    let scenario = parse("drawn.toml", file, None, &LoadOptions::default())
        .map_err(|error| format!("the file is rejected: {error}"))?;
    let plan = scenario.cells.into_iter().next().expect("a file without sweeps has one cell").plan;
    match netstage_sim::unsupported_feature(&plan) {
        Some(feature) => Err(format!("the simulator rejects the plan: {feature}")),
        None => Ok(plan),
    }
}

/// Runs a plan.
pub fn run(plan: &Plan, seed: u64, merge: bool) -> RunOutcome {
    run_with(plan, seed, EventLoopOptions { merge }, &|| false).expect("nobody interrupts the run")
}

/// Maximum error of a link's rate, that of an Ethernet clock (IEEE 802.3): 100 ppm.
const CLOCK_ERROR: f64 = 1e-4;

/// Scenario with all its times divided by `scale`, of which repeated runs are samples. Each has its own seed, each flow
/// its own start offset, and each link the error of its own clock. Otherwise, packets of flows and links whose rates
/// have simple ratios would meet in the same order in all samples.
pub struct Repeats {
    plan: Plan,
    scale: u64,
}

impl Repeats {
    pub fn new(network: &Network, scale: u64) -> Result<Repeats, String> {
        Ok(Repeats { plan: plan(&network.scaled(scale).file())?, scale })
    }

    /// Returns the total throughput of each flow in bits, of one run per seed.
    pub fn totals(&self, seeds: impl IntoIterator<Item = u64>) -> Vec<BTreeMap<String, f64>> {
        seeds.into_iter().map(|seed| totals(&run(&self.shifted(seed), seed, true))).collect()
    }

    fn shifted(&self, seed: u64) -> Plan {
        let mut plan = self.plan.clone();
        let mut draw = Draw::new(seed, "start offsets");
        for flow in &mut plan.flows {
            flow.start += Duration(draw.between(0, SPREAD) / self.scale);
        }
        for direction in plan.links.iter_mut().flat_map(|link| &mut link.directions) {
            let error = (draw.between(0, 2_000) as f64 / 1_000.0 - 1.0) * CLOCK_ERROR;
            direction.rate = BitRate((direction.rate.0 as f64 * (1.0 + error)).round() as u64);
        }
        plan
    }
}

/// Returns the total of a metric per subject: the sum over all bins times the width of a bin.
pub fn sums(outcome: &RunOutcome, metric: Metric) -> BTreeMap<String, f64> {
    let of_metric = outcome.series.iter().filter(|series| series.metric == metric);
    of_metric.map(|series| (series.subject.clone(), series.values.iter().sum())).collect()
}

/// Returns the payload of each flow in bits.
pub fn totals(outcome: &RunOutcome) -> BTreeMap<String, f64> {
    let seconds = outcome.interval.as_secs_f64();
    let bits = |(subject, sum): (String, f64)| (subject, (sum * seconds).round());
    sums(outcome, Metric::FlowThroughput).into_iter().map(bits).collect()
}
