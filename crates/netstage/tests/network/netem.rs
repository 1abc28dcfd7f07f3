//! netstage's link emulator beside the kernel's netem: the same scenarios, the same arrivals. In a
//! virtual machine whose clock counts instructions, so what else the host does moves no figure.

use crate::support::Folder;
use netstage_harness::needs;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs inside: `NAME EMULATOR SCENARIO [OPTION…]` each, its result in `NAME.EMULATOR.json`.
const RUNS: [&str; 7] = [
    "full-line own bench/netem/full-line.toml",
    "full-line netem bench/netem/full-line.toml",
    "impaired-way own bench/netem/impaired-way.toml",
    "impaired-way netem bench/netem/impaired-way.toml",
    "tcp own bench/netem/tcp.toml",
    "tcp netem bench/netem/tcp.toml",
    "errors mixed bench/netem/full-line.toml --set link.line.ber=1e-6",
];

/// Length of each run, seconds.
const SECONDS: f64 = 8.0;

/// What every run came to.
struct Results(Folder);

impl Results {
    /// Runs them all, in a virtual machine.
    fn new() -> Results {
        needs::program("qemu-system-x86_64", "qemu-system-x86");
        needs::time(300);
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = Folder::new("netem");
        let one = |run: &str| {
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
        fs::write(&script, RUNS.map(one).concat()).unwrap();
        let mut machine = Command::new(top.join("scripts/vm.sh"));
        machine.current_dir(&top).args(["--counted", "--out"]).arg(&*folder).arg("bash").arg(&script);
        let output = machine.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{:?}\n{said}", output.status.code());
        Results(folder)
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

    /// A metric's value by netstage and by netem.
    fn both(&self, name: &str, value: impl Fn(&Value) -> f64) -> (f64, f64) {
        let of = |emulator| value(&self.record(name, emulator)["cells"][0]);
        (of("own"), of("netem"))
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

/// Both are the same but for `relative` of the first and `absolute`.
fn same(what: &str, (own, netem): (f64, f64), relative: f64, absolute: f64) {
    println!("{what}: {own} by netstage, {netem} by netem");
    assert!((own - netem).abs() <= own.abs() * relative + absolute, "{what}: {own} and {netem}");
}

fn netem_does_to_packets_what_netstage_does() {
    let results = Results::new();

    // The same arrivals at the same queue: the same drops, but where arrival and departure meet.
    let of = |value: &dyn Fn(&Value) -> f64| results.both("full-line", value);
    let drops = of(&mean("link.drops", "line.forward"));
    assert!(drops.0 > 50.0, "the line is full: {} drops", drops.0);
    same("drops", drops, 0.01, 2.0);
    same("lost of the flow", of(&mean("flow.lost", "probe")), 0.01, 2.0);
    same("rate", of(&mean("link.throughput", "line.forward")), 0.001, 0.0);
    same("utilisation", of(&mean("link.utilisation", "line.forward")), 0.001, 0.0);
    same("queue", of(&mean("link.queue", "line.forward")), 0.02, 0.05);
    for which in ["p50", "p99", "p999"] {
        same(which, of(&quantile("flow.delay", "probe", which)), 0.0, 100e-6);
    }

    // Losses and jitter are drawn by each for itself: within four standard deviations of what is asked.
    let of = |value: &dyn Fn(&Value) -> f64| results.both("impaired-way", value);
    let packets = of(&mean("flow.sent", "probe"));
    same("sent", packets, 0.0, 1.0);
    let expected = packets.0 * 0.02;
    let lost = of(&mean("link.lost", "line.forward"));
    for lost in [lost.0, lost.1] {
        assert!((lost - expected).abs() < 4.0 * (expected * 0.98).sqrt(), "{lost} of {expected} lost");
    }
    for which in ["p50", "p99"] {
        same(which, of(&quantile("flow.delay", "probe", which)), 0.0, 400e-6);
    }
    let reordered = of(&mean("flow.reordered", "probe"));
    same("reordered", reordered, 0.05, 0.0);

    // TCP is told of no drop, and finds the same line.
    let of = |value: &dyn Fn(&Value) -> f64| results.both("tcp", value);
    let drops = of(&mean("link.drops", "line.forward"));
    assert!(drops.0 > 0.0 && drops.1 > 0.0, "{drops:?} dropped");
    same("throughput", of(&mean("flow.throughput", "bulk")), 0.02, 0.0);
    same("round trip", of(&mean("flow.round_trip", "bulk")), 0.05, 0.0);

    // What netem cannot be stays with netstage.
    let mixed = results.record("errors", "mixed");
    let told = mixed["differences"].to_string();
    assert!(
        told.contains("netem worked link.access: ") && told.contains("link.line: a bit error rate"),
        "{told}"
    );
    assert_eq!(mixed["stage"], "emu-mixed");
    assert!(mean("link.lost", "line.forward")(&mixed["cells"][0]) > 10.0, "bit errors lose packets");
}

netstage_harness::tests![
    #[ignore = "a virtual machine: some minutes"]
    netem_does_to_packets_what_netstage_does,
];
