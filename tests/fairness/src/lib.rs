//! Draws cores that VPNs share, runs each under several controls, and judges how fairly each control shares it:
//! `make fairness`. docs/fairness.md describes the method.

mod draw;
mod judge;
mod owed;
mod record;
pub mod report;
mod runs;

pub use draw::Features;
pub use judge::Measures;
pub use owed::Owed;
pub use record::{CaseRecord, Records, RunRecord};
pub use runs::Control;

use draw::Case;
use netstage_differ::network::Network;
use netstage_scenario::outcome::RunOutcome;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Controls that every case runs with, and their names.
pub fn standard_controls() -> Vec<(String, Control)> {
    let law = |name: &str| Control::Law(format!("{name:?}"));
    let controls = [
        ("none", Control::none()),
        ("i2vfc", law("i2vfc")),
        ("rate-consensus", law("rate-consensus")),
        ("oracle", Control::Oracle),
        ("drr", Control::Drr),
    ];
    controls.map(|(name, control)| (name.to_owned(), control)).into()
}

/// Returns the scenario file of a case with a control.
pub fn scenario(seed: u64, index: u64, control: &Control) -> Result<String, String> {
    let case = draw::case(seed, index);
    let owed = match control {
        // The file does not depend on what is owed.
        Control::Law(_) => Owed::new(&case, Vec::new(), &[]),
        Control::Oracle | Control::Drr => runs::owed(&case, &runs::run(&case, &case.network)?)?,
    };
    Ok(runs::network(&case, &owed, control).file())
}

/// Returns the number of packets that the bottlenecks of a case carry at most in a run.
pub fn packets(seed: u64, index: u64) -> f64 {
    let case = draw::case(seed, index);
    let rate: f64 = case.cores.iter().map(|core| core.rate).sum();
    rate / 8.0 / case.features.smallest_packet as f64 * runs::seconds(case.network.duration)
}

/// Runs the cases of a seed with all controls that the records lack, on all processors. `ended` receives the number
/// of cases that have ended.
pub fn run(
    seed: u64,
    cases: impl IntoIterator<Item = u64>,
    controls: &[(String, Control)],
    records: &Mutex<Records>,
    ended: &(dyn Fn(usize) + Sync),
) -> Result<(), String> {
    let cases: Vec<u64> = cases.into_iter().collect();
    let (next, complete, failure) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(None));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&index) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = run_case(seed, index, controls, records) {
                        next.store(cases.len(), Ordering::Relaxed);
                        *failure.lock().expect("no thread panics with the lock") =
                            Some(format!("case {index} of seed {seed}: {error}"));
                        return;
                    }
                    ended(complete.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    failure.into_inner().expect("no thread panics with the lock").map_or(Ok(()), Err)
}

fn run_case(
    seed: u64,
    index: u64,
    controls: &[(String, Control)],
    records: &Mutex<Records>,
) -> Result<(), String> {
    let lock = || records.lock().expect("no thread panics with the lock");
    let missing = lock().missing(index, controls)?;
    if missing.is_empty() {
        return Ok(());
    }
    let case = draw::case(seed, index);
    let known = lock().owed(index);
    let mut uncontrolled = None;
    let owed = match known {
        Some(owed) => owed,
        None => {
            let run = timed_run(&case, &case.network)?;
            let owed = runs::owed(&case, &run.0)?;
            owed.check(&case)?;
            lock().add_case(index, case.features.clone(), owed.clone())?;
            uncontrolled = Some(run);
            owed
        }
    };
    for (name, control) in missing {
        let network = runs::network(&case, &owed, &control);
        let known = uncontrolled.take().filter(|_| control == Control::none());
        let (outcome, seconds) = known.map_or_else(|| timed_run(&case, &network), Ok)?;
        judge::check(&case, &outcome).map_err(|error| format!("{name}: {error}"))?;
        let measures = judge::measure(&case, &owed, &control, &network, &outcome);
        let run =
            RunRecord { text: control.text().to_owned(), packets: outcome.totals.sent, seconds, measures };
        lock().add_run(index, &name, run)?;
    }
    Ok(())
}

/// Runs a network; returns the outcome and the seconds that it took.
fn timed_run(case: &Case, network: &Network) -> Result<(RunOutcome, f64), String> {
    let begin = Instant::now();
    let outcome = runs::run(case, network)?;
    Ok((outcome, begin.elapsed().as_secs_f64()))
}
