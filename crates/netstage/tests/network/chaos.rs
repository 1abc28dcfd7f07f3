//! Real packets while agents and the emulator are stopped at random (SIGSTOP). The truth is the network of the scenario:
//! each answer is right within its interval, or void.

use super::emulation::{ScenarioFolder, children_of, json, processes_of};
use crate::support::output_text;
use netstage_harness::{needs, seed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::time::Duration;

/// Rate of the line at the IP layer, bits per second, and packets of its buffer.
const RATE: f64 = 8e6;
const BUFFER: f64 = 30.0;
/// Length of a trial, seconds.
const TRIAL: f64 = 1.5;

const NETWORK: &str = r#"
[scenario]
title = "Chaos"
duration = "2500 ms"
[node.a]
[node.b]
[node.middle]
kind = "router"
[link.access]
ends = ["a", "middle"]
rate = "100 Mbit/s"
buffer = "100 packets"
[link.line]
ends = ["middle", "b"]
rate = "8 Mbit/s"
delay = "2 ms"
buffer = "30 packets"
[measure]
interval = "100 ms"
"#;

/// Kinds of measurements, with their tables.
const KINDS: [(&str, &str); 4] = [
    (
        "loss",
        "[test.t]\nkind = \"loss\"\nfrom = \"a\"\nto = \"b\"\nframe_sizes = [\"1018 B\"]\ntrial = \"1500 ms\"\nrate = \"6 Mbit/s\"\ndrain = \"100 ms\"\n",
    ),
    (
        "throughput",
        "[test.t]\nkind = \"rfc2544-throughput\"\nfrom = \"a\"\nto = \"b\"\nframe_sizes = [\"1018 B\"]\ntrial = \"1500 ms\"\nmax_rate = \"12 Mbit/s\"\nresolution = \"20 %\"\ndrain = \"100 ms\"\n",
    ),
    (
        "flow",
        "[flow.f]\nfrom = \"a\"\nto = \"b\"\ntransport = \"udp\"\ntraffic = { model = \"cbr\", rate = \"6 Mbit/s\", packet = \"1000 B\" }\n",
    ),
    ("tcp", "[flow.f]\nfrom = \"a\"\nto = \"b\"\n"),
];

/// Pseudorandom numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Runs a measurement while processes are stopped for 5 to 400 ms at random. Returns its result.
fn run(kind: &str, tables: &str, random: &mut Random) -> Value {
    let place = ScenarioFolder::of(&format!("chaos-{kind}"), &format!("{NETWORK}{tables}"));
    let mut child = place.command("emu", "out").spawn().unwrap();
    let controller = child.id();
    while child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(100 + random.below(900)));
        let mut candidates = processes_of(controller);
        candidates.extend(children_of(controller));
        if candidates.is_empty() {
            continue;
        }
        let process = candidates[random.below(candidates.len() as u64) as usize];
        let stall = Duration::from_millis(5 + random.below(395));
        // The process may have ended in the meantime.
        let process = Pid::from_raw(process as i32);
        if kill(process, Signal::SIGSTOP).is_ok() {
            std::thread::sleep(stall);
            let _ = kill(process, Signal::SIGCONT);
        }
    }
    let output = child.wait_with_output().unwrap();
    assert!([Some(0), Some(5)].contains(&output.status.code()), "{kind}: {}", output_text(&output));
    json(&output)
}

/// Returns what is wrong with an answer, if anything.
fn fault(kind: &str, result: &Value) -> Option<String> {
    let cell = &result["record"]["cells"][0];
    let test = &cell["tests"][0];
    let finding = |metric: &str| {
        test["findings"].as_array().and_then(|all| all.iter().find(|finding| finding["metric"] == metric))
    };
    let summary = |metric: &str| {
        let all = cell["summary"].as_array().unwrap();
        all.iter()
            .find(|entry| entry["metric"] == metric && entry["subject"] == "f")
            .map_or(0.0, |entry| entry["mean"].as_f64().unwrap())
    };
    let number = |value: &Value, default: f64| value.as_f64().unwrap_or(default);
    match kind {
        "loss" => {
            let loss = finding("test.loss_ratio").expect("a loss ratio");
            (number(&loss["low"], 1.0) > 0.0).then(|| format!("{loss} on a line without loss"))
        }
        "throughput" => {
            let throughput = finding("test.throughput").expect("a throughput");
            let (low, high) = (number(&throughput["value"], 0.0), number(&throughput["high"], f64::INFINITY));
            let max = RATE + (BUFFER + 2.0) * 8_000.0 / TRIAL;
            (low > max * 1.01 || high < RATE * 0.99).then(|| format!("{throughput} on a line of {RATE}"))
        }
        "flow" => {
            let (lost, offered) = (summary("flow.lost"), summary("flow.offered"));
            (lost > 0.0 || offered < 5.5e6).then(|| format!("lost {lost}, offered {offered} of 6e6"))
        }
        _ => {
            // Payload behind headers, from the second half second on.
            let throughput = summary("flow.throughput");
            (throughput < 0.85 * RATE * 1448.0 / 1500.0)
                .then(|| format!("TCP {throughput} on a line of {RATE}"))
        }
    }
}

fn assert_right_or_void(cases: usize) {
    needs::emulation();
    let mut random = Random(seed("chaos"));
    let (mut wrong, mut void) = (Vec::new(), 0);
    for case in 0..cases {
        let (kind, tables) = KINDS[case % KINDS.len()];
        let result = run(kind, tables, &mut random);
        let reasons = result["record"]["void"].as_array().unwrap();
        if !reasons.is_empty() {
            void += 1;
            println!("{kind}: void: {}", reasons[0]);
        } else if let Some(fault) = fault(kind, &result) {
            wrong.push(format!("case {case}, {kind}: {fault}; warnings: {}", result["record"]["warnings"]));
        } else {
            println!("{kind}: right");
        }
    }
    println!("{cases} cases: {} wrong, {void} void", wrong.len());
    assert!(wrong.is_empty(), "{} of {cases} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn stopped_processes_give_right_answers_or_void_ones() {
    assert_right_or_void(10);
}

fn many_stopped_processes_give_right_answers_or_void_ones() {
    assert_right_or_void(100);
}

netstage_harness::tests![
    stopped_processes_give_right_answers_or_void_ones,
    #[ignore = "takes ten minutes"]
    many_stopped_processes_give_right_answers_or_void_ones,
];
