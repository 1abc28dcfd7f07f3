//! Time and memory of checks of large sweeps. The test is alone in its process, whose memory it measures.

use netstage_scenario::{LoadOptions, parse};
use std::fs;
use std::time::{Duration, Instant};

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

fn list(count: usize, unit: &str) -> String {
    let values: Vec<String> = (1..=count).map(|value| format!("\"{value} {unit}\"")).collect();
    format!("[{}]\n", values.join(", "))
}

/// Returns the maximum resident memory of this process, bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn large_sweeps_are_checked_or_refused_within_bounds() {
    // Unoptimized code may take ten times as long.
    let limit = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });
    let text = format!("{NETWORK}\"link.line.delay\" = {}", list(10_000, "us"));
    let begin = Instant::now();
    let scenario = parse("many.toml", &text, None, &LoadOptions::default()).unwrap();
    assert_eq!(scenario.cells.len(), 10_000);
    assert!(begin.elapsed() < limit, "{:?}", begin.elapsed());

    let text = format!(
        "{NETWORK}\"link.line.delay\" = {}\"link.line.buffer\" = {}\"flow.bulk.stop\" = {}",
        list(1_000, "us"),
        list(1_000, "packets"),
        list(1_000, "ms")
    );
    let begin = Instant::now();
    let error = parse("more.toml", &text, None, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("the sweep has more than"), "{}", &error[..error.len().min(400)]);
    assert!(begin.elapsed() < limit / 10, "{:?}", begin.elapsed());
    let peak = peak_memory();
    assert!(peak < 200 << 20, "{} MB", peak >> 20);
}
