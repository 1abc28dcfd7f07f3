//! Test of the commands in docs/why-is-my-vpn-slow.md.

use crate::support::{TemporaryFolder, record, run_page};
use netstage_harness::needs;
use serde_json::Value;

fn the_page_works_as_written() {
    needs::namespaces();
    for (program, package) in
        [("wireguard-go", "wireguard-go"), ("wg", "wireguard-tools"), ("tc", "iproute2")]
    {
        needs::program(program, package);
    }
    let folder = TemporaryFolder::new("why-slow");
    let text = run_page("why-is-my-vpn-slow.md", &folder);
    let summary = |record: &Value, metric: &str| -> f64 {
        let entries = record["cells"][0]["summary"].as_array().unwrap().iter();
        entries.filter(|entry| entry["metric"] == metric).filter_map(|entry| entry["mean"].as_f64()).sum()
    };
    let (slow, tuned) = (record(&folder.join("slow")), record(&folder.join("tuned")));
    assert!(summary(&slow, "flow.throughput") > 0.0, "{}", slow["cells"]);
    // The queue has 300 kB at 20 Mbit/s.
    assert!(summary(&tuned, "test.buffer") > 50e3, "{}", tuned["cells"]);
    assert!(summary(&tuned, "test.window") > 0.0);
    for name in ["slow/report.html", "tuned/report.html"] {
        assert!(std::fs::read_to_string(folder.join(name)).unwrap().contains("<html"), "{name}");
    }
    // The line has 20 Mbit/s and the queue 120 ms at least.
    let diagnosis = text.split("bufferbloat: ").nth(1).unwrap_or_else(|| panic!("{text}"));
    assert!(diagnosis.lines().next().unwrap().contains("of queue, and 1"), "{diagnosis}");
    for part in ["to make it permanent", "restored", "segments with lowered window"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The receiver advertises the size of its buffer.
    let last = text.rsplit("receive window ").next().unwrap().split_once(';').unwrap().0;
    let kilobytes: f64 = last.strip_suffix(" kB").unwrap_or_else(|| panic!("{last}")).parse().unwrap();
    assert!(kilobytes <= 48.0, "{last}");
}

netstage_harness::tests![
    #[ignore = "takes two minutes"]
    the_page_works_as_written,
];
