//! Draws scenarios at random, runs them, and checks what must hold for every scenario: `make differ`.
//!
//! Each scenario has its own seed. A violation is reported with the seed and a smaller scenario that still has it.

mod checks;
pub mod draw;
#[expect(missing_docs, reason = "the fields are those of the scenario file")]
pub mod network;
pub mod runs;
mod shrink;
mod sweeps;

use checks::{CHECKS, Case, Check};
use network::Network;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
pub use sweeps::sweep_difference;

/// Violation of a check.
#[derive(Debug)]
pub struct Finding {
    /// Seed of the scenario.
    pub seed: u64,
    /// Name of the check.
    pub check: &'static str,
    /// Violation in the smaller scenario.
    pub message: String,
    /// Smaller scenario, as a file.
    pub scenario: String,
}

/// Returns the scenario file of a random network that Linux hosts can run.
pub fn real_network(seed: u64) -> String {
    draw::real_network(seed).file()
}

/// Returns the scenario file of a random chain of bottlenecks.
pub fn chain(seed: u64) -> String {
    draw::chain(seed).file()
}

/// Simulates `count` scenarios, whose seeds begin with `first`, and checks each.
pub fn simulate(first: u64, count: u64) -> Vec<Finding> {
    let (next, findings) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let found = check(seed);
                    findings.lock().expect("no thread panics with the lock").extend(found);
                }
            });
        }
    });
    findings.into_inner().expect("no thread panics with the lock")
}

fn check(seed: u64) -> Vec<Finding> {
    let network = draw::network(seed);
    let failed = CHECKS.iter().filter_map(|check| Some((check, violation(check, &network, seed)?)));
    let finding = |(check, message): (&Check, String)| {
        let smaller = shrink::shrink(&network, |candidate| violation(check, candidate, seed).is_some());
        let message = violation(check, &smaller, seed).unwrap_or(message);
        Finding { seed, check: check.0, message, scenario: smaller.file() }
    };
    failed.map(finding).collect()
}

/// Returns the violation of a check by a scenario, if any. A panic is a violation.
fn violation(check: &Check, network: &Network, seed: u64) -> Option<String> {
    let run = || Case::new(network.clone(), seed).and_then(|case| check.1(&case));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.err(),
        Err(_) => Some("it panicked".to_owned()),
    }
}
