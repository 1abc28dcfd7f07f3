//! Packets per second that one processor core forwards between two veth pairs: by the router's program, by the
//! kernel, by a program that looks up the kernel's routes, by Open vSwitch, and without a router; and the rates
//! of the generators.
//!
//! ```text
//! cargo run --release -p netstage-bench --bin router_rates                    # root
//! cargo run --release -p netstage-bench --bin router_rates -- --bytes 64 --rounds 5 --json FILE
//! ```
//! A program creates the frames (live frames of BPF_PROG_TEST_RUN), so generation, forwarding and counting share the core; only Open vSwitch has a second core. All setups are prepared first and measured in turns; a rate is the median of the rounds.

mod datapaths;
mod network;
mod open_vswitch;

use datapaths::Datapath;
use serde_json::json;
use std::error::Error;
use std::path::PathBuf;

type BenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Goal for the ratio of two rates.
struct Goal {
    tested: Datapath,
    reference: Datapath,
    min: f64,
}

const fn goal(tested: Datapath, reference: Datapath, min: f64) -> Goal {
    Goal { tested, reference, min }
}

const GOALS: &[Goal] = &[
    goal(Datapath::Swap, Datapath::Kernel, 2.3),
    goal(Datapath::Ip(datapaths::USUAL), Datapath::Kernel, 2.1),
    goal(Datapath::Swap, Datapath::FibLookup, 1.5),
    goal(Datapath::Ip(datapaths::USUAL), Datapath::FibLookup, 1.5),
    goal(Datapath::Ip(datapaths::MANY), Datapath::Ip(datapaths::FEW), 0.75),
    goal(Datapath::Verified, Datapath::Ip(datapaths::USUAL), 0.95),
    goal(Datapath::Push, Datapath::SwitchPush, 10.0),
    goal(Datapath::Swap, Datapath::SwitchSwap, 10.0),
    goal(Datapath::Pop, Datapath::SwitchPop, 10.0),
    goal(Datapath::Stamped, Datapath::Bare, 0.85),
    goal(Datapath::Stamped, Datapath::Trafgen, 5.0),
];

struct RateArguments {
    lengths: Vec<usize>,
    rounds: usize,
    json: Option<PathBuf>,
}

fn arguments() -> BenchResult<RateArguments> {
    let mut arguments = RateArguments { lengths: vec![64, 1500], rounds: 3, json: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--bytes" => arguments.lengths = vec![value()?.parse()?],
            "--rounds" => arguments.rounds = value()?.parse()?,
            "--json" => arguments.json = Some(value()?.into()),
            _ => {
                return Err(
                    format!("unknown argument {word}; use --bytes N, --rounds N or --json FILE").into()
                );
            }
        }
    }
    Ok(arguments)
}

/// Rates of one setup, by round.
struct DatapathRates {
    way: Datapath,
    length: usize,
    rates: Vec<f64>,
}

fn main() -> BenchResult<()> {
    let arguments = arguments()?;
    let mut stages = Vec::new();
    for way in Datapath::ALL {
        match way.prepare() {
            Ok(stage) => stages.push((*way, stage)),
            Err(error) => println!("skipped: {}: {error}", way.name()),
        }
    }
    let mut measured: Vec<DatapathRates> = Vec::new();
    for _ in 0..arguments.rounds {
        for length in &arguments.lengths {
            for (way, stage) in &mut stages {
                let rate = way.rate(stage, *length)?;
                match measured.iter_mut().find(|one| (one.way, one.length) == (*way, *length)) {
                    Some(one) => one.rates.push(rate),
                    None => measured.push(DatapathRates { way: *way, length: *length, rates: vec![rate] }),
                }
            }
        }
    }
    for length in &arguments.lengths {
        print(&measured, *length);
    }
    if let Some(file) = arguments.json {
        let ways = measured.iter().map(|one| {
            json!({"way": one.way.name(), "bytes": one.length, "rates": one.rates, "median": median(&one.rates)})
        });
        let goals = arguments.lengths.iter().flat_map(|length| {
            let reached = move |goal: &Goal, ratio| {
                json!({"of": goal.tested.name(), "to": goal.reference.name(), "bytes": length, "least": goal.min, "ratio": ratio})
            };
            ratios(&measured, *length).into_iter().map(move |(goal, ratio)| reached(goal, ratio))
        });
        let all = json!({"ways": ways.collect::<Vec<_>>(), "goals": goals.collect::<Vec<_>>()});
        std::fs::write(file, serde_json::to_string_pretty(&all)?)?;
    }
    Ok(())
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get((sorted.len().saturating_sub(1)) / 2), sorted.get(sorted.len() / 2)) {
        (Some(low), Some(high)) => (low + high) / 2.0,
        _ => f64::NAN,
    }
}

fn rates_of(measured: &[DatapathRates], way: Datapath, length: usize) -> Option<&DatapathRates> {
    measured.iter().find(|one| (one.way, one.length) == (way, length))
}

/// Returns the median of each ratio with a goal, computed by round: each compares rates measured within
/// seconds.
fn ratios(measured: &[DatapathRates], length: usize) -> Vec<(&'static Goal, f64)> {
    let ratio = |goal: &'static Goal| {
        let (tested, reference) =
            (rates_of(measured, goal.tested, length)?, rates_of(measured, goal.reference, length)?);
        let ratios: Vec<f64> =
            tested.rates.iter().zip(&reference.rates).map(|(one, other)| one / other).collect();
        Some((goal, median(&ratios)))
    };
    GOALS.iter().filter_map(ratio).collect()
}

fn print(measured: &[DatapathRates], length: usize) {
    let kernel = rates_of(measured, Datapath::Kernel, length).map_or(f64::NAN, |one| median(&one.rates));
    println!("\n{length} bytes\n{:<34}{:>7}  {:>15}  {:>8}", "", "Mpps", "from to", "/ kernel");
    for one in measured.iter().filter(|one| one.length == length) {
        let [min, max] =
            [f64::min, f64::max].map(|choose| one.rates.iter().copied().reduce(choose).unwrap_or(f64::NAN));
        let middle = median(&one.rates);
        let range = format!("{:.2} {:.2}", min / 1e6, max / 1e6);
        println!("{:<34}{:>7.2}  {range:>15}  {:>8.2}", one.way.name(), middle / 1e6, middle / kernel);
    }
    for (Goal { tested, reference, min }, ratio) in ratios(measured, length) {
        let word = if ratio >= *min { "reached" } else { "missed" };
        println!("{} / {}: {ratio:.2}, goal {min}: {word}", tested.name(), reference.name());
    }
}
