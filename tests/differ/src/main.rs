//! Command line of the checker: `netstage-differ [COUNT [SEED]]`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (Ok(count), Ok(seed)) = (
        arguments.next().unwrap_or(Ok(5_000)),
        arguments.next().unwrap_or_else(|| Ok(netstage_harness::seed("differ"))),
    ) else {
        eprintln!("usage: netstage-differ [COUNT [SEED]]");
        return ExitCode::from(2);
    };
    let findings = netstage_differ::simulate(seed, count);
    for finding in &findings {
        println!("seed {}: {}: {}\n{}", finding.seed, finding.check, finding.message, finding.scenario);
    }
    println!("{count} scenarios from seed {seed}: {} findings", findings.len());
    ExitCode::from(u8::from(!findings.is_empty()))
}
