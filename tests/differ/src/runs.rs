//! Simulated runs of drawn scenarios.

use crate::network::Network;
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::{LoadOptions, parse};
use netstage_sim::{EventLoopOptions, run_with};
use std::collections::BTreeMap;

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

/// Returns the total throughput of each flow in bits, of one run per seed, with all times of the network divided by
/// `scale`.
pub fn repeated(
    network: &Network,
    scale: u64,
    seeds: impl IntoIterator<Item = u64>,
) -> Result<Vec<BTreeMap<String, f64>>, String> {
    let plan = plan(&network.clone().scaled(scale).file())?;
    Ok(seeds.into_iter().map(|seed| totals(&run(&plan, seed, true))).collect())
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
