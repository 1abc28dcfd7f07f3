//! Tests of VPN gateways: the same scenario with real programs and with their models.

use crate::emulation::mean;
use crate::support::{TemporaryFolder, netstage, output_text, within};
use netstage_harness::needs;
use netstage_harness::scenario::network;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// Returns a scenario with a pair of gateways of each kind, a link between them, and a flow below its capacity through
/// each.
fn scenario() -> String {
    let mut text = String::from(
        r#"
[scenario]
duration = "6 s"
[measure]
tcp = "events"
[defaults.link]
rate = "100 Mbit/s"
[defaults.flow]
transport = "udp"
traffic = { model = "cbr", rate = "1 Mbit/s", packet = "1000 B" }
stop = "2 s"
[node.a]
[node.b]
[service.disk]
program = "iscsi"
client = "b"
server = "a"
via = ["wireguard2", "wireguard1"]
start = "2 s"
"#,
    );
    for kind in ["ipsec", "wireguard", "openvpn"] {
        let cipher = if kind == "ipsec" { "cipher = \"3des-sha1\"" } else { "" };
        text.push_str(&format!(
            r#"
[node.{kind}1]
kind = "{kind}"
{cipher}
[node.{kind}2]
kind = "{kind}"
{cipher}
[link.{kind}-a]
ends = ["a", "{kind}1"]
[link.{kind}]
ends = ["{kind}1", "{kind}2"]
delay = "2 ms"
[link.{kind}-b]
ends = ["{kind}2", "b"]
[flow.{kind}]
from = "a"
to = "b"
via = ["{kind}1", "{kind}2"]
[flow.{kind}-six]
from = "b"
to = "a"
ip = "v6"
via = ["{kind}2", "{kind}1"]
"#
        ));
    }
    text
}

fn command(folder: &TemporaryFolder, stage: &str) -> Command {
    fs::write(folder.join("gateways.toml"), scenario()).unwrap();
    let mut command = netstage(&["run", "gateways.toml", "--json", "--on", stage, "--out", stage]);
    command.current_dir(folder);
    command
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", output_text(output)))
}

/// Counts the processes whose command contains a text.
fn processes(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let commands = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    commands.filter(|command| String::from_utf8_lossy(command).contains(mark)).count()
}

fn real_gateways_match_their_models_and_no_process_remains() {
    needs::namespaces();
    let folder = TemporaryFolder::new("gateways");
    let simulated = json(&command(&folder, "sim").output().unwrap());
    let child = command(&folder, "emu").spawn().unwrap();
    let mark = format!("netstage-{}-", child.id());
    let gateways = || processes(&mark) >= 6;
    assert!(within(Duration::from_secs(60), gateways), "the gateways run");
    let emulated = json(&child.wait_with_output().unwrap());
    for kind in ["ipsec", "wireguard", "openvpn"] {
        for (metric, subject) in
            [("flow.throughput", kind.to_owned()), ("flow.throughput", format!("{kind}-six"))]
        {
            let (real, model) = (mean(&emulated, metric, &subject), mean(&simulated, metric, &subject));
            assert!((real / model - 1.0).abs() < 0.01, "{metric} of {subject}: {real}, model {model}");
        }
        if kind == "wireguard" {
            // This link also carries the disk traffic.
            continue;
        }
        // The link carries the modeled encapsulation, apart from the padding of smaller packets and the messages of the
        // gateways.
        let [real, model] =
            [&emulated, &simulated].map(|result| mean(result, "link.throughput", &format!("{kind}.forward")));
        assert!((real / model - 1.0).abs() < 0.02, "{kind}: {real} bit/s on the link, model {model}");
    }
    for result in [&simulated, &emulated] {
        assert!(mean(result, "app.transactions", "disk") > 0.0, "blocks are read through the tunnel");
        assert!(mean(result, "flow.throughput", "disk") > 0.0);
        assert!(
            mean(result, "flow.window.usable", "disk[backward]") > 1.0,
            "the target's window is measured"
        );
    }
    assert!(within(Duration::from_secs(5), || processes(&mark) == 0), "the gateways end with the run");
    assert!(
        !Path::new("/tmp")
            .read_dir()
            .unwrap()
            .flatten()
            .any(|entry| { entry.file_name().to_string_lossy().starts_with(&mark) })
    );
}

fn a_missing_gateway_program_is_reported_before_the_run() {
    needs::namespaces();
    let folder = TemporaryFolder::new("no-gateway");
    let output = command(&folder, "emu").env("PATH", "").output().unwrap();
    let printed = output_text(&output);
    assert_eq!(output.status.code(), Some(4), "{printed}");
    assert!(printed.contains("node.wireguard1: wg is not installed"), "{printed}");
    assert!(printed.contains("apt-get install wireguard-tools"), "{printed}");
}

/// Runs a scenario with a pair of gateways whose program is this script.
fn with_script(name: &str, script: &str) -> (Option<i32>, String) {
    let folder = TemporaryFolder::new(name);
    let text = r#"
[scenario]
duration = "20 s"
[defaults.link]
rate = "100 Mbit/s"
[flow.bulk]
from = "a"
to = "b"
transport = "udp"
traffic = { model = "cbr", rate = "1 Mbit/s", packet = "1000 B" }
"#;
    let programs = TemporaryFolder::new("programs");
    programs.program("openvpn", format!("#!/bin/sh\n{script}\n").as_bytes());
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut command = command(&folder, "emu");
    let network = network(&[("host", "a b"), ("openvpn", "west east")], "a:a,west line:west,east b:east,b");
    fs::write(folder.join("gateways.toml"), format!("{text}{network}")).unwrap();
    let child = command.env("PATH", path).spawn().unwrap();
    let mark = format!("netstage-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    assert!(within(Duration::from_secs(5), || processes(&mark) == 0), "all processes end with the run");
    (output.status.code(), output_text(&output))
}

fn the_output_of_a_gateway_that_fails_to_start_is_reported() {
    needs::namespaces();
    let (code, printed) = with_script("gateway-fails", "echo 'no cipher of that name' >&2; exit 1");
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("no cipher of that name") && printed.contains("openvpn"), "{printed}");
}

/// The gateway ends some seconds after its start: during the run, or before it on a slow machine.
fn a_gateway_that_ends_early_is_reported() {
    needs::namespaces();
    let script = "case \"$*\" in *genkey*|*--version*|*--show*) exec /usr/sbin/openvpn \"$@\";; esac\n\
                  (sleep 6; kill $$) > /dev/null 2>&1 &\nexec /usr/sbin/openvpn \"$@\"";
    let (code, printed) = with_script("gateway-dies", script);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("has exited") && printed.contains("openvpn"), "{printed}");
}

netstage_harness::tests![
    real_gateways_match_their_models_and_no_process_remains,
    a_missing_gateway_program_is_reported_before_the_run,
    the_output_of_a_gateway_that_fails_to_start_is_reported,
    a_gateway_that_ends_early_is_reported,
];
