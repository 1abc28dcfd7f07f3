//! Command line of the checker.

use std::process::ExitCode;

const USAGE: &str = "usage: netstage-differ [COUNT [SEED]]
       netstage-differ draw SEED
       netstage-differ chain SEED";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (subject, numbers) = match words.as_slice() {
        [subject @ ("draw" | "chain"), numbers @ ..] => (*subject, numbers),
        numbers => ("", numbers),
    };
    let numbers: Result<Vec<u64>, _> = numbers.iter().map(|number| number.parse()).collect();
    let scenario = match (subject, numbers.as_deref()) {
        ("draw", Ok([seed])) => netstage_differ::real_network(*seed),
        ("chain", Ok([seed])) => netstage_differ::chain(*seed),
        ("", Ok([])) => return check(5_000, netstage_harness::seed("differ")),
        ("", Ok([count])) => return check(*count, netstage_harness::seed("differ")),
        ("", Ok([count, seed])) => return check(*count, *seed),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    print!("{scenario}");
    ExitCode::SUCCESS
}

fn check(count: u64, seed: u64) -> ExitCode {
    let findings = netstage_differ::simulate(seed, count);
    for finding in &findings {
        println!("seed {}: {}: {}\n{}", finding.seed, finding.check, finding.message, finding.scenario);
    }
    println!("{count} scenarios from seed {seed}: {} findings", findings.len());
    ExitCode::from(u8::from(!findings.is_empty()))
}
