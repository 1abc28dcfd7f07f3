//! Comparison of netstage's link emulator with the kernel's netem, with the same scenarios and arrivals, in a virtual
//! machine whose clock counts instructions and is thus independent of the host's load.

use crate::support::TemporaryFolder;
use netstage_harness::needs;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs in the virtual machine: `NAME EMULATOR SCENARIO [OPTION…]`, with the result in `NAME.EMULATOR.json`.
const RUNS: [&str; 7] = [
    "full-line own bench/netem/full-line.toml",
    "full-line netem bench/netem/full-line.toml",
    "impaired-way own bench/netem/impaired-way.toml",
    "impaired-way netem bench/netem/impaired-way.toml",
    "tcp own bench/netem/tcp.toml",
    "tcp netem bench/netem/tcp.toml",
    "errors mixed bench/netem/full-line.toml --set link.line.ber=1e-6",
];

/// Duration of each run in seconds.
const SECONDS: f64 = 8.0;

/// Results of all runs.
struct EmulatorResults(TemporaryFolder);

impl EmulatorResults {
    /// Performs all runs in a virtual machine.
    fn new() -> EmulatorResults {
        needs::program("qemu-system-x86_64", "qemu-system-x86");
        needs::time(300);
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = TemporaryFolder::new("netem");
        let command = |run: &str| {
            let (program, out) = (env!("CARGO_BIN_EXE_netstage"), folder.display());
            let words: Vec<&str> = run.splitn(4, ' ').collect();
            let (name, emulator, scenario) = (words[0], words[1], words[2]);
            let more = words.get(3).copied().unwrap_or_default();
            format!(
                "{program} run {scenario} --on emu --emulator {emulator} --json --set 'scenario.duration={SECONDS} s' \
                 {more} --out {out}/{name}.{emulator} >{out}/{name}.{emulator}.json || exit\n"
            )
        };
        let script = folder.join("runs.sh");
        fs::write(&script, RUNS.map(command).concat()).unwrap();
        let mut machine = Command::new(top.join("scripts/vm.sh"));
        machine.current_dir(&top).args(["--counted", "--out"]).arg(&*folder).arg("bash").arg(&script);
        let output = machine.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{:?}\n{stderr}", output.status.code());
        EmulatorResults(folder)
    }

    fn record(&self, name: &str, emulator: &str) -> Value {
        let text = fs::read_to_string(self.0.join(format!("{name}.{emulator}.json"))).unwrap();
        let result: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            result["record"]["void"].as_array().map(Vec::len),
            Some(0),
            "{}",
            result["record"]["void"]
        );
        result["record"].clone()
    }

    /// Returns a value with netstage and with netem.
    fn both(&self, name: &str, value: impl Fn(&Value) -> f64) -> (f64, f64) {
        let result = |emulator| value(&self.record(name, emulator)["cells"][0]);
        (result("own"), result("netem"))
    }
}

fn mean(metric: &str, subject: &str) -> impl Fn(&Value) -> f64 {
    entry("summary", metric, subject, "mean")
}

fn quantile(metric: &str, subject: &str, which: &str) -> impl Fn(&Value) -> f64 {
    entry("distributions", metric, subject, which)
}

fn entry(list: &str, metric: &str, subject: &str, field: &str) -> impl Fn(&Value) -> f64 {
    move |cell| {
        let entries = cell[list].as_array().unwrap();
        let found = entries.iter().find(|entry| entry["metric"] == metric && entry["subject"] == subject);
        found.unwrap_or_else(|| panic!("no {metric} of {subject}"))[field].as_f64().unwrap()
    }
}

/// Asserts that both values agree within `relative` of the first plus `absolute`.
fn assert_equal(name: &str, (own, netem): (f64, f64), relative: f64, absolute: f64) {
    println!("{name}: {own} with netstage, {netem} with netem");
    assert!((own - netem).abs() <= own.abs() * relative + absolute, "{name}: {own} and {netem}");
}

fn netem_and_netstage_have_the_same_effect_on_packets() {
    let results = EmulatorResults::new();

    // The same arrivals at the same queue have the same drops, except where arrival and departure coincide.
    let both = |value: &dyn Fn(&Value) -> f64| results.both("full-line", value);
    let drops = both(&mean("link.drops", "line.forward"));
    assert!(drops.0 > 50.0, "the line is full: {} drops", drops.0);
    assert_equal("drops", drops, 0.01, 2.0);
    assert_equal("lost of the flow", both(&mean("flow.lost", "probe")), 0.01, 2.0);
    assert_equal("rate", both(&mean("link.throughput", "line.forward")), 0.001, 0.0);
    assert_equal("utilization", both(&mean("link.utilization", "line.forward")), 0.001, 0.0);
    assert_equal("queue", both(&mean("link.queue", "line.forward")), 0.02, 0.05);
    for which in ["p50", "p99", "p999"] {
        assert_equal(which, both(&quantile("flow.delay", "probe", which)), 0.0, 100e-6);
    }

    // Loss and jitter are random: within four standard deviations of the configured values.
    let both = |value: &dyn Fn(&Value) -> f64| results.both("impaired-way", value);
    let packets = both(&mean("flow.sent", "probe"));
    assert_equal("sent", packets, 0.0, 1.0);
    let expected = packets.0 * 0.02;
    let lost = both(&mean("link.lost", "line.forward"));
    for lost in [lost.0, lost.1] {
        assert!((lost - expected).abs() < 4.0 * (expected * 0.98).sqrt(), "{lost} of {expected} lost");
    }
    for which in ["p50", "p99"] {
        assert_equal(which, both(&quantile("flow.delay", "probe", which)), 0.0, 400e-6);
    }
    let reordered = both(&mean("flow.reordered", "probe"));
    assert_equal("reordered", reordered, 0.05, 0.0);

    // TCP has the same throughput and round trip.
    let both = |value: &dyn Fn(&Value) -> f64| results.both("tcp", value);
    let drops = both(&mean("link.drops", "line.forward"));
    assert!(drops.0 > 0.0 && drops.1 > 0.0, "{drops:?} dropped");
    assert_equal("throughput", both(&mean("flow.throughput", "bulk")), 0.02, 0.0);
    assert_equal("round trip", both(&mean("flow.round_trip", "bulk")), 0.05, 0.0);

    // Links that netem does not support are emulated by netstage.
    let mixed = results.record("errors", "mixed");
    let differences = mixed["differences"].to_string();
    assert!(
        differences.contains("netem emulated link.access: ")
            && differences.contains("link.line: a bit error rate"),
        "{differences}"
    );
    assert_eq!(mixed["stage"], "emu-mixed");
    assert!(mean("link.lost", "line.forward")(&mixed["cells"][0]) > 10.0, "bit errors lose packets");
}

netstage_harness::tests![
    #[ignore = "a virtual machine: some minutes"]
    netem_and_netstage_have_the_same_effect_on_packets,
];
