//! Tests of `netstage measure` between two agents of a fleet, over a router with token buckets of the kernel.

use crate::support::fleet::{Fleet, LIMIT};
use crate::support::network::{address, default_route};
use crate::support::{TestProcess, expectation, mean, output_text, within};
use netstage_harness::skip_busy;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use netstage_host::netns::qdiscs::TokenBucket;
use serde_json::Value;
use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const AGENTS: [&str; 2] = ["left", "right"];
/// Rate of the line at the IP layer in frames of 1,518 B, bit/s.
const RATE: f64 = 8e6;
/// Bytes that the kernel counts per frame of 1,518 B, which has 1,500 B at the IP layer.
const FRAME: u64 = 1514;
/// Packets in the queue of the line, and packets for which the bucket has tokens.
const QUEUE: u64 = 40;
const TOKENS: u64 = 10;

/// Exit code of a void measurement.
const VOID: i32 = 5;

/// Two agents, whose packets pass a token bucket in each direction.
struct Line {
    fleet: Fleet,
    router: Namespace,
    _processes: Vec<TestProcess>,
}

impl Deref for Line {
    type Target = Fleet;

    fn deref(&self) -> &Fleet {
        &self.fleet
    }
}

impl Line {
    fn new(name: &str) -> Line {
        Line::with_rules(name, "")
    }

    /// Creates the line, with further rules in the policies of the agents.
    fn with_rules(name: &str, rules: &str) -> Line {
        let fleet = Fleet::new(name, &AGENTS);
        let router = fleet.join_by_router();
        let bucket = TokenBucket {
            rate: (RATE * FRAME as f64 / 1500.0 / 8.0).round() as u64,
            burst: (TOKENS * FRAME) as u32,
            limit: (QUEUE * FRAME) as u32,
        };
        for port in ["d1", "d2"] {
            Netlink::open(&router).unwrap().set_token_bucket(port, bucket).unwrap();
        }
        add_ipv6(&fleet, &router);
        let policy = format!(
            "[policy]\ncontrollers = [\"lab\"]\ndestinations = [\"10.1.0.0/16\", \"fd01::/16\"]\ninterfaces = [\"data\"]\n\
             max_duration = \"10 min\"\none_ended = true\n{rules}\n"
        );
        fs::write(fleet.folder.join("policy.toml"), policy).unwrap();
        let mut processes = vec![fleet.serve()];
        processes.extend(fleet.join_all(&AGENTS));
        Line { fleet, router, _processes: processes }
    }

    /// Drops this share of all UDP packets to the right host.
    fn lose(&self, share: f64) {
        let mut rules = Command::new("nft");
        rules.arg(format!(
            "table inet line {{ chain loss {{ type filter hook forward priority 0; oifname \"d2\" meta l4proto udp \
             numgen random mod 1000 < {:.0} drop; }}; }}",
            share * 1e3
        ));
        rules.stderr(Stdio::piped());
        let output = TestProcess::spawn_in(&self.router, rules).output();
        assert!(output.status.success(), "{}", output_text(&output));
    }

    fn try_measure(&self, arguments: &[&str]) -> Output {
        self.at_hub(&[&["measure"], arguments].concat())
    }

    /// Measures, and returns the record. A void result skips the test, as the load of the test machine is not tested.
    fn measure(&self, arguments: &[&str]) -> Value {
        self.measure_into(arguments[0], arguments)
    }

    fn measure_into(&self, out: &str, arguments: &[&str]) -> Value {
        let kind = arguments[0];
        let output = self.try_measure(&[arguments, &["--out", out]].concat());
        let printed = output_text(&output);
        if output.status.code() == Some(VOID) {
            skip_busy(printed.lines().find(|line| line.contains("void")).unwrap_or(&printed));
        }
        assert!(matches!(output.status.code(), Some(0 | 3)), "{printed}\n{}", self.logs());
        assert!(self.folder.join(out).join("report.html").exists());
        let record = crate::support::record(&self.folder.join(out));
        assert!(
            record["scenario"].as_str().unwrap().contains(&format!("netstage measure {kind}")),
            "{record:#}"
        );
        println!("{printed}");
        record
    }
}

/// Adds IPv6: the host of agent N has fd01:N::2, and the router fd01:N::1.
fn add_ipv6(fleet: &Fleet, router: &Namespace) {
    router.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
    for (number, host) in (1..).zip(&fleet.hosts) {
        let (own, gateway) = (format!("fd01:{number}::2"), format!("fd01:{number}::1"));
        let mut links = Netlink::open(host).unwrap();
        let far = format!("d{number}");
        // A router solicits the neighbors of packets that it forwards from its link-local address.
        for (own, gateway) in [(own.as_str(), gateway.as_str()), ("fe80::2", "fe80::1")] {
            links.add_address("data", address(own), 64).unwrap();
            Netlink::open(router).unwrap().add_address(&far, address(gateway), 64).unwrap();
        }
        links.add_route(&default_route(&gateway, "data")).unwrap();
    }
}

/// Returns the lower and upper bound of the rate in the first finding of a test.
fn bounds(record: &Value) -> (Option<f64>, Option<f64>) {
    let findings = record["cells"][0]["tests"][0]["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["metric"] == "test.throughput").unwrap();
    (found["low"].as_f64(), found["high"].as_f64())
}

/// Checks that a value is near the truth, with a tolerance relative to it.
fn assert_near(value: f64, truth: f64, tolerance: f64) {
    assert!((value / truth - 1.0).abs() <= tolerance, "{value} instead of {truth}");
}

fn latency_under_load_is_that_of_the_full_queue() {
    let line = Line::new("measure-rrul");
    let record = line.measure(&["rrul", "right", "-t", "6", "--max-delay", "1s"]);
    // All four flows of a direction share its line; TCP's payload is 1,448 B of 1,500 B.
    let full_queue = (QUEUE * FRAME * 8) as f64 / (RATE * FRAME as f64 / 1500.0);
    for direction in ["download", "upload"] {
        let throughput = 4.0 * expectation(&record, &format!("{direction}-throughput"));
        // Acknowledgments of the other direction and probes take a part.
        assert!((0.8 * RATE..RATE).contains(&throughput), "{direction}: {throughput}");
        // The means of the whole run leave out the time without load.
        let group = |class: &str| mean(&record, "flow.throughput", &format!("{direction}-{class}"));
        let throughput: f64 = ["be", "bk", "cs5", "ef"].into_iter().map(group).sum();
        assert!((0.8 * RATE..RATE).contains(&throughput), "{direction}: {throughput}");
        let idle = expectation(&record, &format!("{direction}-delay-idle"));
        assert!(idle < 0.1 * full_queue, "{direction}: {idle}");
        let loaded = expectation(&record, &format!("{direction}-delay-loaded"));
        assert!(
            (0.4 * full_queue..1.2 * full_queue).contains(&loaded),
            "{direction}: {loaded}, {full_queue}"
        );
    }
    let ping = expectation(&record, "ping-loaded");
    assert!((0.8 * full_queue..2.4 * full_queue).contains(&ping), "{ping}");
    let figures = fs::read_to_string(line.folder.join("rrul/figures.json")).unwrap();
    for figure in ["Download throughput", "Upload throughput", "One-way delay", "Round-trip time"] {
        assert!(figures.contains(figure), "{figure}");
    }
}

fn a_rate_at_the_limit_of_the_policy_is_a_lower_bound() {
    let line = Line::with_rules("measure-policy", "rate = \"4 Mbit/s\"");
    for (out, version) in [("bound4", "-4"), ("bound6", "-6")] {
        let test = ["right", version, "-l", "512", "-t", "1"];
        for (kind, more) in [("rfc2544", &["--tests", "throughput"][..]), ("mlrsearch", &[])] {
            let out = format!("{out}-{kind}");
            let record = line.measure_into(&out, &[&[kind], &test[..], more].concat());
            let (low, high) = bounds(&record);
            assert!(
                low.is_some_and(|low| (3.75e6..4.01e6).contains(&low)) && high.is_none(),
                "{low:?} {high:?}"
            );
            assert!(record.to_string().contains("the capacity may be higher"), "{record:#}");
        }
    }
    // A line rate that the user gives is an upper bound.
    let test = ["rfc2544", "right", "-m", "2M", "-l", "512", "-t", "1", "--tests", "throughput"];
    let (_, high) = bounds(&line.measure_into("bound", &test));
    assert_near(high.unwrap(), 2e6, 0.01);
}

fn methods_measure_over_ipv6() {
    let line = Line::new("measure-ipv6");
    let record = line.measure(&["rrul", "right", "-6", "-t", "5"]);
    let throughput = 4.0 * expectation(&record, "upload-throughput");
    assert!((0.7 * RATE..RATE).contains(&throughput), "{throughput}");
    // The version is that of the given addresses.
    let record =
        line.measure(&["ber", "left=fd01:1::2", "right=fd01:2::2", "-b", "1M", "-t", "1", "-l", "128,1518"]);
    assert!(record["scenario"].as_str().unwrap().contains("ip = \"v6\""), "{record:#}");
    assert_eq!(mean(&record, "test.base_loss", "errors"), 0.0);
    let fail = |arguments: &[&str], message: &str| {
        let output = line.try_measure(arguments);
        let printed = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(message), "{printed}");
    };
    fail(&["ber", "left=10.1.1.2", "right=fd01:2::2", "-b", "1M"], "give addresses of one IP version");
    fail(&["ber", "left", "right=10.1.2.2", "-6", "-b", "1M"], "omit -4 and -6");
    fail(&["rfc2544", "right", "-6", "-l", "64"], "use frame sizes of 84 B or more");
    fail(&["ber", "right", "-6", "-b", "1M", "--by", "payload"], "use by = \"loss\"");
}

fn a_written_scenario_can_be_changed_and_run_again() {
    let line = Line::new("measure-print");
    let printed =
        line.succeed(&["measure", "ber", "right", "-b", "1M", "-t", "1", "-l", "128,1518", "--print"]);
    let changed = printed.replace("rate = \"1000000 bit/s\"", "rate = \"2 Mbit/s\"");
    assert_ne!(changed, printed);
    fs::write(line.folder.join("ber.toml"), changed).unwrap();
    let record = line.run_live("ber.toml", "changed");
    let trials = record["cells"][0]["tests"][0]["trials"].as_array().unwrap();
    assert!(trials.len() >= 2, "{trials:#?}");
    trials.iter().for_each(|trial| assert_near(trial["requested_bps"].as_f64().unwrap(), 2e6, 0.01));
}

fn wrong_ends_have_a_remedy() {
    let line = Line::new("measure-ends");
    let fail = |arguments: &[&str], message: &str, remedy: &str| {
        let output = line.try_measure(&[arguments, &["--print"]].concat());
        let printed = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(message) && printed.contains(remedy), "{printed}");
    };
    fail(&["mlrsearch", "rigth"], "there is no agent rigth", "did you mean `right`?");
    fail(&["mlrsearch", "left", "left"], "left is sender and receiver", "give two agents");
    fail(&["ber", "right=10.1.2", "-b", "1M"], "10.1.2 is not an IP address", "agent's host");
    fail(&["ber", "right"], "--bitrate", "--help");
    fail(&["y1564", "right", "--service", "voice"], "missing committed rate", "voice,cir=10M");
    fail(&["rrul", "right", "-t", "3"], "-t is too short", "5 seconds");
    fail(&["rfc2544", "right", "-l", "20"], "frame_sizes", "64");
    let token = line.succeed(&["fleet", "token", "third"]);
    assert!(
        line.fleet
            .run_in(
                &line.hosts[0],
                &["fleet", "join", crate::support::fleet::CONTROLLER, token.trim(), "--state", "third"]
            )
            .status
            .success()
    );
    fail(&["rrul", "right"], "several agents can send to right: left, third", "give the sender before right");
    // Addresses and the sender's limit are in the scenario.
    let printed = line.succeed(&["measure", "rfc6349", "left=10.1.1.2", "right", "-m", "20M", "--print"]);
    assert!(printed.contains("left = { agent = \"left\", address = \"10.1.1.2\" }"), "{printed}");
    assert!(printed.contains("rate = \"20000000 bit/s\""), "{printed}");
}

fn rates_and_losses_of_a_known_line_are_found() {
    find_the_line("measure-truth", "-4", 1448.0);
}

fn rates_of_a_known_line_are_found_over_ipv6() {
    find_the_line("measure-truth6", "-6", 1428.0);
}

/// Measures the line by all methods, with segments of TCP of this size.
fn find_the_line(name: &str, version: &str, segment: f64) {
    let line = Line::new(name);
    let search = ["right", version, "-m", "16M", "-t", "3"];
    let found = |kind: &str, arguments: &[&str]| line.measure(&[&[kind], &search[..], arguments].concat());

    let record = found("mlrsearch", &["-l", "1518"]);
    assert_near(mean(&record, "test.throughput", "throughput"), RATE, 0.03);
    let record =
        found("rfc2544", &["-l", "1518", "--tests", "throughput,latency,frame-loss", "--repeats", "2"]);
    assert_near(mean(&record, "test.throughput", "throughput"), RATE, 0.03);
    // At twice the rate of the line, half of the packets are lost, except for those in queue and bucket.
    let kept = (RATE * 3.0 / 12_000.0 + (QUEUE + TOKENS) as f64) / (2.0 * RATE * 3.0 / 12_000.0);
    assert_near(mean(&record, "test.loss_ratio", "frame-loss"), 1.0 - kept, 0.03);

    let record = line.measure(&["rfc6349", "right", version, "-m", "16M", "-t", "6", "--search", "3"]);
    assert_near(mean(&record, "test.tcp_throughput", "transfer"), RATE * segment / 1500.0, 0.1);

    for (service, cir, accepted) in [("sold", "cir=5M", 1.0), ("oversold", "cir=10M", 0.0)] {
        let agreement = format!("{service},{cir}");
        let arguments = [
            "y1564",
            "right",
            version,
            "-m",
            "16M",
            "-t",
            "2",
            "--performance",
            "2",
            "--service",
            &agreement,
        ];
        let record = line.measure_into(service, &arguments);
        assert_eq!(mean(&record, "test.accepted", &format!("activation[{service}]")), accepted, "{service}");
    }

    // Losses do not depend on the size, so they are not bit errors.
    line.lose(0.05);
    let record = line.measure(&["ber", "right", version, "-b", "4M", "-t", "4", "-l", "128,512,1518"]);
    assert_near(mean(&record, "test.base_loss", "errors"), 0.05, 0.25);
    assert!(mean(&record, "test.bit_error_rate", "errors") < 1e-5);
}

/// Counts the saved trials of an unfinished run.
fn saved_trials(out: &Path) -> usize {
    fs::read_to_string(out.join("trials/0-1.jsonl")).unwrap_or_default().lines().count()
}

fn a_killed_series_goes_on_from_the_last_trial() {
    let line = Line::new("measure-killed");
    let search = "measure rfc2544 right -m 16M -l 1518 -t 1 --tests throughput --out out";
    let arguments: Vec<&str> = search.split(' ').collect();
    let out = line.folder.join("out");
    let mut command = line.start(&line.hub, "first.log", &arguments);
    assert!(within(LIMIT, || saved_trials(&out) > 2), "{}", line.logs());
    command.signal("-KILL");
    drop(command);
    let saved = saved_trials(&out);
    drop(line.start(&line.hub, "again.log", &arguments).output());
    let record = crate::support::record(&out);
    let trials = record["cells"][0]["tests"][0]["trials"].as_array().unwrap().len();
    assert_near(mean(&record, "test.throughput", "throughput"), RATE, 0.05);
    // Each trial is a run of the fleet. At most the trial that was killed ran twice.
    let runs = fs::read_dir(line.folder.join("fleet/runs")).unwrap();
    let runs = runs.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert!(saved < trials && runs <= trials + 1, "{saved} saved, {trials} trials, {runs} runs");
}

netstage_harness::tests![
    latency_under_load_is_that_of_the_full_queue,
    a_rate_at_the_limit_of_the_policy_is_a_lower_bound,
    methods_measure_over_ipv6,
    a_written_scenario_can_be_changed_and_run_again,
    wrong_ends_have_a_remedy,
    #[ignore = "the searches take five minutes"]
    rates_and_losses_of_a_known_line_are_found,
    #[ignore = "the searches take five minutes"]
    rates_of_a_known_line_are_found_over_ipv6,
    a_killed_series_goes_on_from_the_last_trial,
];
