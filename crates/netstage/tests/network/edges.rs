//! Tests of provider edge routers in the emulator: VPNs share a core by weight.

use crate::support::{TemporaryFolder, mean, netstage, output_text};
use netstage_harness::needs;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;

fn run(folder: &TemporaryFolder, scenario: &Path, options: &[&str]) -> Output {
    let mut command = netstage(&["run", "--json", "--out", "out"]);
    command.current_dir(folder).arg(scenario).args(options).output().unwrap()
}

/// Runs a scenario and returns its record. No agent may be lost.
fn record(folder: &TemporaryFolder, scenario: &Path, options: &[&str]) -> Value {
    let output = run(folder, scenario, options);
    let mut result: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", output_text(&output)));
    // Failed connection requests are accepted, as the queue may be full; a lost agent is not.
    let failures = result["record"]["failures"].to_string();
    assert!(!failures.contains("agent"), "{failures}");
    result["record"].take()
}

fn scenario(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name)
}

/// Two VPNs with weights 3 : 1 and five and twenty TCP flows, in both directions. The throughput depends on the load of
/// the test machine; the shares must follow the weights, not the number of flows.
fn weights_apply_in_both_directions_independently_of_the_number_of_flows() {
    needs::emulation();
    let folder = TemporaryFolder::new("edges-two-way");
    let options = ["--on", "emu", "--set", "scenario.duration=12 s", "--set", "flow.silver-*.count=10"];
    let record = record(&folder, &scenario("examples/two-way-vpns.toml"), &options);
    for direction in ["down", "up"] {
        let share = |vpn: &str| mean(&record, "vpn.throughput", &format!("{vpn}-{direction}"));
        let (gold, silver) = (share("gold"), share("silver"));
        // Without control, the share of five flows would be a quarter of that of twenty, not three times.
        assert!(gold > silver && silver > 1e5, "{direction}: gold {gold:.0}, silver {silver:.0} bit/s");
        let permitted = |vpn: &str| mean(&record, "vpn.permitted", &format!("{vpn}-{direction}"));
        assert!(permitted("gold") > permitted("silver") && permitted("silver") > 1e5);
        let trip = mean(&record, "vpn.round_trip", &format!("gold-{direction}"));
        assert!((0.024..1.0).contains(&trip), "{direction}: {trip} s");
    }
    for pe in ["west", "east"] {
        assert!((1e-6..1.0).contains(&mean(&record, "pe.processor.own", pe)));
        assert!((1e6..1e9).contains(&mean(&record, "pe.memory", pe)), "memory of {pe}");
    }
    let differences = record["differences"].to_string();
    assert!(!differences.contains("MPLS-in-UDP"), "the scenario models the encapsulation: {differences}");
}

/// The weight is relative to the reference of another PE: four times its share with a fixed decrease and the same
/// number of TCP flows.
fn a_weight_can_be_relative_to_the_vpn_of_another_pe() {
    needs::emulation();
    let folder = TemporaryFolder::new("edges-reference");
    let text = fs::read_to_string(scenario("examples/fair-windows.toml")).unwrap();
    let file = folder.join("pair.toml");
    // The expectations apply to the full duration and are removed.
    let network = text.split("# The weighted fairness index").next().unwrap();
    fs::write(&file, network.replace("[1, 2, 4]", "[4]")).unwrap();
    let record = record(&folder, &file, &["--on", "emu", "--set", "scenario.duration=20 s"]);
    let [gold, silver] = ["gold", "silver"].map(|vpn| mean(&record, "vpn.throughput", vpn));
    assert!(gold > 1.5 * silver && silver > 1e5, "gold {gold:.0}, silver {silver:.0} bit/s");
    let differences = record["differences"].to_string();
    assert!(!differences.contains("nominal"), "{differences}");
}

/// Returns the share of gold in the throughput of both VPNs, and the throughput of both in Mbit/s.
fn share_of_gold(record: &Value) -> (f64, f64) {
    let value = |name: &str| {
        let mut entries = record["expectations"].as_array().unwrap().iter();
        let entry = entries.find(|entry| entry["name"] == name).unwrap();
        entry["cells"][0]["mean"].as_f64().unwrap_or_else(|| panic!("{entry:#}")) / 1e6
    };
    let (gold, silver) = (value("gold"), value("silver"));
    (gold / (gold + silver), gold + silver)
}

/// Real packets and the simulator share bytes by weight, with packets of 1,500 B against 200 B, and with one TCP flow
/// against many.
fn rates_follow_weights_on_real_packets_as_in_the_simulator() {
    needs::emulation();
    let text = fs::read_to_string(scenario("examples/fair-rates.toml")).unwrap();
    let expected = |vpn: &str| {
        format!(
            "[expect.{vpn}]\nmetric = \"vpn.throughput\"\nsubject = \"{vpn}\"\nover = [\"5 s\", \"20 s\"]\nat_least = 0\n"
        )
    };
    // The expectations of the example are for the full duration and a machine without other load.
    let network = text.split("# The weighted fairness index").next().unwrap();
    let sizes = network.replace("\"30 s\"", "\"20 s\"") + &expected("gold") + &expected("silver");
    let datagrams = sizes.find("transport = \"udp\"").unwrap()..sizes.find("[expect.gold]").unwrap();
    let mut flows = sizes.clone();
    flows.replace_range(datagrams, "count = 30\nstagger = \"10 ms\"\n");
    let flows = flows.replace("weight = 4", "weight = 1").replacen("count = 10", "count = 1", 1);
    // The default window of a receiver limits a single flow to its share. The flow takes some seconds to reach it, by one
    // segment per round trip.
    let flows = flows
        .replacen("[defaults.vpn]", "[defaults.flow]\ntcp = { window = \"4 MiB\" }\n\n[defaults.vpn]", 1)
        .replace("\"5 s\", \"20 s\"", "\"10 s\", \"20 s\"");
    for (case, text, owed) in [("sizes", sizes, 0.8), ("flows", flows, 0.5)] {
        let [real, simulated] = ["emu", "sim"].map(|stage| {
            let folder = TemporaryFolder::new(&format!("edges-rates-{case}-{stage}"));
            let file = folder.join("rates.toml");
            fs::write(&file, &text).unwrap();
            share_of_gold(&record(&folder, &file, &["--on", stage]))
        });
        println!("{case}: share of gold and Mbit/s: real {real:.3?}, simulated {simulated:.3?}");
        assert!((real.0 / owed - 1.0).abs() < 0.05, "{case}: {real:?}, owed {owed}");
        assert!((real.0 - simulated.0).abs() < 0.05, "{case}: {real:?}, simulated {simulated:?}");
        // Beside other tests, less of the link is used than on an idle machine.
        assert!(real.1 > simulated.1 / 2.0, "{case}: {real:?}, simulated {simulated:?}");
    }
}

fn a_flow_that_a_pe_cannot_forward_is_rejected() {
    let folder = TemporaryFolder::new("edges-refused");
    let text = fs::read_to_string(scenario("examples/two-way-vpns.toml")).unwrap();
    let stray = text.replacen("vpn = \"gold-down\"\ncount", "count", 1);
    let file = folder.join("stray.toml");
    fs::write(&file, stray).unwrap();
    let output = run(&folder, &file, &["--on", "emu"]);
    assert_eq!(output.status.code(), Some(2));
    let printed = output_text(&output);
    assert!(printed.contains("flow.gold-down") && printed.contains("is in no VPN"), "{printed}");
}

netstage_harness::tests![
    weights_apply_in_both_directions_independently_of_the_number_of_flows,
    a_weight_can_be_relative_to_the_vpn_of_another_pe,
    rates_follow_weights_on_real_packets_as_in_the_simulator,
    a_flow_that_a_pe_cannot_forward_is_rejected,
];
