//! Tests of the distributions of applications and transfers: the same file in the simulator and with real packets.

use crate::emulation::{ScenarioFolder, json};
use crate::support::mean;
use netstage_harness::{needs, skip_busy};
use serde_json::Value;

const SCENARIO: &str = r#"
[scenario]
duration = "8 s"
repeat = 2
[node.a]
[node.b]
[link.line]
ends = ["a", "b"]
rate = "20 Mbit/s"
delay = "10 ms"
buffer = "100 packets"
[defaults.flow]
from = "a"
to = "b"
[flow.names]
transport = "udp"
traffic = { model = "dns", interval = "50 ms" }
count = 2
[flow.call]
transport = "udp"
traffic = { model = "voip", codec = "g711" }
[flow.pages]
traffic = { model = "web", think = "100 ms" }
[flow.small]
traffic = { model = "bulk", size = "200 kB" }
count = 8
stagger = "700 ms"
[flow.huge]
traffic = { model = "bulk", size = "1 GB" }
start = "7 s"
[measure]
interval = "1 s"
[expect.lookups]
metric = "app.transaction_time"
subject = "names[*]"
statistic = "p90"
at_least = "20 ms"
[expect.too-few]
metric = "flow.completion_time"
subject = "small[*]"
statistic = "p99"
at_most = "100 s"
missed = "16 values"
[plot.lookups]
metric = "app.transaction_time"
against = "cdf"
[plot.transfers]
metric = "flow.completion_time"
against = "box"
"#;

/// Returns an entry of a list by its metric and subject.
fn entry<'a>(list: &'a Value, metric: &str, subject: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|entry| entry["metric"] == metric && entry["subject"] == subject)
}

fn distributions_of_applications_are_kept_on_both_stages() {
    needs::emulation();
    let place = ScenarioFolder::of("tails", SCENARIO);
    for stage in ["sim", "emu"] {
        let output = place.command(stage, stage).output().unwrap();
        let result = json(&output);
        // On a busy machine, a connection can fail, too, which the exit code prefers.
        let void = &result["record"]["void"];
        if void.as_array().is_some_and(|reasons| !reasons.is_empty()) {
            skip_busy(void.to_string());
        }
        assert_eq!(output.status.code(), Some(0), "{stage}: {result:#}");
        let cell = &result["record"]["cells"][0];
        let found = |metric: &str, subject: &str| {
            let found = entry(&cell["distributions"], metric, subject);
            found.unwrap_or_else(|| panic!("{stage}: no {metric} of {subject}: {cell:#}"))
        };
        let value =
            |entry: &Value, name: &str| entry[name].as_f64().unwrap_or_else(|| panic!("{stage}: {entry}"));
        // The summary has the number per run.
        for (metric, subject) in [("app.transaction_time", "names"), ("app.page_load_time", "pages")] {
            let per_run = mean(&result["record"], "app.transactions", subject);
            assert_eq!(value(found(metric, subject), "count"), 2.0 * per_run, "{stage}, {subject}");
        }
        // A round trip takes 20 ms and a packet's time; a real one may be late, but not early.
        let lookups = found("app.transaction_time", "names");
        let names = ["min", "p50", "p90", "p95", "max"];
        let values = names.map(|name| value(lookups, name));
        assert!(values[0] >= 0.02 && values.is_sorted(), "{stage}: {lookups}");
        assert_eq!(lookups["p999"], Value::Null, "{stage}: {lookups}");
        for name in ["p50", "p90", "p95"] {
            let [low, high] = [0, 1].map(|end| lookups["intervals"][name][end].as_f64().unwrap());
            assert!((low..=high).contains(&value(lookups, name)), "{stage}: {lookups}");
        }
        // 200 kB take at least 80 ms on the line and 10 ms to the other end. The large transfer never ends.
        let transfers = found("flow.completion_time", "small");
        assert_eq!((value(transfers, "count"), &transfers["p90"]), (16.0, &Value::Null), "{stage}");
        assert!(value(transfers, "min") >= 0.09, "{stage}: {transfers}");
        assert_eq!(entry(&cell["distributions"], "flow.completion_time", "huge"), None, "{stage}");
        // A score for each second of two runs.
        let scores = found("app.mos", "call");
        assert!(value(scores, "count") == 16.0 && value(scores, "max") <= 4.5, "{stage}: {scores}");
        let delays = found("app.delay", "call");
        assert!(value(delays, "min") >= 0.01, "{stage}: {delays}");
        // The first packet of each direction and run has no variation.
        let variation = found("app.delay_variation", "call");
        assert_eq!(value(variation, "count") + 4.0, value(delays, "count"), "{stage}");
        let mut expectations = result["record"]["expectations"].as_array().unwrap().iter();
        let few = expectations.find(|expectation| expectation["name"] == "too-few").unwrap();
        assert_eq!(few["cells"][0]["achieved"], "16 of 368 values needed", "{stage}: {few}");
    }
}

netstage_harness::tests![distributions_of_applications_are_kept_on_both_stages];
