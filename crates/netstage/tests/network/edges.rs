//! Provider edge routers on the emulated stage: VPNs share a core of real packets by weight.

use crate::support::{Folder, mean, netstage, said};
use netstage_harness::needs;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;

fn run(folder: &Folder, scenario: &Path, options: &[&str]) -> Output {
    let mut command = netstage(&["run", "--json", "--out", "out"]);
    command.current_dir(folder).arg(scenario).args(options).output().unwrap()
}

/// The record of a run whose agents were not lost.
fn record(folder: &Folder, scenario: &Path, options: &[&str]) -> Value {
    let output = run(folder, scenario, options);
    let mut result: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
    // Connection requests meet a full queue like any packet; an agent that is lost is another matter.
    let failures = result["record"]["failures"].to_string();
    assert!(!failures.contains("agent"), "{failures}");
    result["record"].take()
}

fn scenario(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name)
}

/// Both directions of two VPNs, weights 3 to 1 against five to twenty TCP flows. How much a busy
/// machine carries is its own affair; that weights decide and not the number of flows is ours.
fn weights_hold_in_both_directions_whatever_the_number_of_flows() {
    needs::emulation();
    let folder = Folder::new("edges-two-way");
    let options = ["--on", "emu", "--set", "scenario.duration=12 s", "--set", "flow.silver-*.count=10"];
    let record = record(&folder, &scenario("examples/two-way-vpns.toml"), &options);
    for direction in ["down", "up"] {
        let share = |vpn: &str| mean(&record, "vpn.throughput", &format!("{vpn}-{direction}"));
        let (gold, silver) = (share("gold"), share("silver"));
        // Without control five flows against twenty have a quarter, not three times as much.
        assert!(gold > silver && silver > 1e5, "{direction}: gold {gold:.0}, silver {silver:.0} bit/s");
        let window = |vpn: &str| mean(&record, "vpn.window", &format!("{vpn}-{direction}"));
        assert!(window("gold") > 1.0 && window("silver") >= 1.0);
        let trip = mean(&record, "vpn.round_trip", &format!("gold-{direction}"));
        assert!((0.024..1.0).contains(&trip), "{direction}: {trip} s");
    }
    for pe in ["west", "east"] {
        assert!((1e-6..1.0).contains(&mean(&record, "pe.processor.own", pe)));
        assert!((1e6..1e9).contains(&mean(&record, "pe.memory", pe)), "of a process");
    }
    let differences = record["differences"].to_string();
    assert!(
        !differences.contains("MPLS-in-UDP"),
        "the scenario counts what is around packets: {differences}"
    );
}

/// The weight is relative to what another PE measures and tells: a fixed decrease and four times its
/// share against as many TCP flows. As above, how much is the machine's affair.
fn a_weight_relative_to_another_pes_vpn_holds() {
    needs::emulation();
    let folder = Folder::new("edges-reference");
    let text = fs::read_to_string(scenario("examples/fair-two-vpns.toml")).unwrap();
    let file = folder.join("pair.toml");
    // Without what is expected of its whole length.
    let network = text.split("# The weighted fairness index").next().unwrap();
    fs::write(&file, network.replace("[1, 2, 4]", "[4]")).unwrap();
    let record = record(&folder, &file, &["--on", "emu", "--set", "scenario.duration=20 s"]);
    let [gold, silver] = ["gold", "silver"].map(|vpn| mean(&record, "vpn.throughput", vpn));
    assert!(gold > 1.5 * silver && silver > 1e5, "gold {gold:.0}, silver {silver:.0} bit/s");
    let differences = record["differences"].to_string();
    assert!(!differences.contains("nominal"), "{differences}");
}

fn what_a_pe_does_not_forward_is_refused() {
    let folder = Folder::new("edges-refused");
    let text = fs::read_to_string(scenario("examples/two-way-vpns.toml")).unwrap();
    let stray = text.replacen("vpn = \"gold-down\"\ncount", "count", 1);
    let file = folder.join("stray.toml");
    fs::write(&file, stray).unwrap();
    let output = run(&folder, &file, &["--on", "emu"]);
    assert_eq!(output.status.code(), Some(2));
    let said = said(&output);
    assert!(said.contains("flow.gold-down") && said.contains("is in no VPN"), "{said}");
}

netstage_harness::tests![
    weights_hold_in_both_directions_whatever_the_number_of_flows,
    a_weight_relative_to_another_pes_vpn_holds,
    what_a_pe_does_not_forward_is_refused,
];
