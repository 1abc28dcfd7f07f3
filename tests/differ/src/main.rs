//! Command line of the checker: `netstage-differ [COUNT [SEED]]`, or `netstage-differ draw SEED SAMPLE`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let draws = arguments.first().is_some_and(|first| first == "draw");
    if draws {
        arguments.remove(0);
    }
    let numbers: Result<Vec<u64>, _> = arguments.iter().map(|argument| argument.parse()).collect();
    match (draws, numbers.as_deref()) {
        (true, Ok([seed, sample])) => {
            print!("{}", netstage_differ::real_network(*seed, *sample));
            ExitCode::SUCCESS
        }
        (false, Ok([])) => check(5_000, netstage_harness::seed("differ")),
        (false, Ok([count])) => check(*count, netstage_harness::seed("differ")),
        (false, Ok([count, seed])) => check(*count, *seed),
        _ => {
            eprintln!("usage: netstage-differ [COUNT [SEED]]\n       netstage-differ draw SEED SAMPLE");
            ExitCode::from(2)
        }
    }
}

fn check(count: u64, seed: u64) -> ExitCode {
    let findings = netstage_differ::simulate(seed, count);
    for finding in &findings {
        println!("seed {}: {}: {}\n{}", finding.seed, finding.check, finding.message, finding.scenario);
    }
    println!("{count} scenarios from seed {seed}: {} findings", findings.len());
    ExitCode::from(u8::from(!findings.is_empty()))
}
