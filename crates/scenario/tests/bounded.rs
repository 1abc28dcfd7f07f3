//! Memory of checks of large sweeps. The test is alone in its process, whose memory it measures.

use netstage_scenario::{LoadOptions, load_with, parse};
use std::fs;
use std::path::Path;

const NETWORK: &str = r#"
[scenario]
title = "Many cells"
duration = "1 s"
[node.a]
[node.b]
[link.line]
ends = ["a", "b"]
rate = "1 Mbit/s"
[flow.bulk]
from = "a"
to = "b"
[expect.fast]
metric = "flow.throughput"
at_least = "0.1 Mbit/s"
[sweep]
"#;

fn values(count: usize, unit: &str) -> Vec<String> {
    (1..=count).map(|value| format!("{value} {unit}")).collect()
}

fn list(count: usize, unit: &str) -> String {
    format!("{:?}\n", values(count, unit))
}

/// Returns the maximum resident memory of this process, bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn large_sweeps_are_checked_or_refused_within_bounds() {
    let text = format!("{NETWORK}\"link.line.delay\" = {}", list(10_000, "us"));
    let scenario = parse("many.toml", &text, None, &LoadOptions::default()).unwrap();
    assert_eq!(scenario.cells.len(), 10_000);

    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/examples/provider-50-vpns.toml");
    for path in ["flow.f01.stagger", "link.*.delay", "defaults.tcp.initial_rto"] {
        let vary = vec![(path.to_owned(), values(2_000, "us"))];
        let options = LoadOptions { vary, ..LoadOptions::default() };
        // The plans need more than 200 MB.
        let large = load_with(&file, &options, |cell| cell.settings);
        assert_eq!(large.map(|large| large.cells.len()).map_err(|errors| errors.problems), Ok(2_000));
    }

    let text = format!(
        "{NETWORK}\"link.line.delay\" = {}\"link.line.buffer\" = {}\"flow.bulk.stop\" = {}",
        list(1_000, "us"),
        list(1_000, "packets"),
        list(1_000, "ms")
    );
    let error = parse("more.toml", &text, None, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("the sweep has more than"), "{}", &error[..error.len().min(400)]);
    let peak = peak_memory();
    assert!(peak < 100 << 20, "{} MB", peak >> 20);
}
