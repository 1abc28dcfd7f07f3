//! Tests of `netstage measure`: a server and a client in two namespaces, and errors.

use crate::pair::Pair;
use crate::support::{
    TemporaryFolder, TestProcess, expectation, mean, netstage, output_text, record, within,
};
use netstage_harness::{needs, skip_busy};
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::{Netlink, VethOptions};
use netstage_host::netns::qdiscs::TokenBucket;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{ChildStdout, Command, Output};
use std::time::{Duration, Instant};

const SERVER: &str = "10.1.0.1";
const KEY: &str = "00112233445566778899aabbccddeeff";
/// Timeout that suffices for all tests on any machine.
const LIMIT: Duration = Duration::from_secs(60);

fn measure(key: &str, arguments: &[&str]) -> Command {
    let mut command = netstage(&[&["measure"], arguments].concat());
    command.env("NETSTAGE_KEY", key);
    command
}

/// Server in the right namespace, and its output.
struct MeasurementServer {
    process: TestProcess,
    output: BufReader<ChildStdout>,
}

impl MeasurementServer {
    fn start(pair: &Pair, arguments: &[&str]) -> MeasurementServer {
        let command = measure(KEY, &[&["serve", "--json"], arguments].concat());
        let mut process = TestProcess::spawn_in(&pair.right, command);
        let output = BufReader::new(process.child().stdout.take().unwrap());
        let mut server = MeasurementServer { process, output };
        server.wait_for("listening");
        server
    }

    /// Reads events until one with this name.
    fn wait_for(&mut self, event: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "no event {event}");
            let value: Value = serde_json::from_str(&line).unwrap();
            if value["event"] == event {
                return value;
            }
        }
    }
}

/// Returns the number of packets that a link has received.
fn arrived(namespace: &Namespace, link: &str) -> u64 {
    Netlink::open(namespace).unwrap().link(link).unwrap().statistics.received_packets
}

/// Starts a client in the left namespace.
fn client(pair: &Pair, key: &str, arguments: &[&str]) -> TestProcess {
    TestProcess::spawn_in(&pair.left, measure(key, arguments))
}

/// Runs a client and returns its result and exit code.
fn measured(pair: &Pair, arguments: &[&str]) -> (Value, i32) {
    result(client(pair, KEY, arguments).output())
}

/// Returns the result and the exit code. A void measurement on a busy machine counts as success.
fn result(output: Output) -> (Value, i32) {
    const VOID: i32 = 5;
    let text = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
    let value = serde_json::from_slice(text).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(text)));
    let code = output.status.code().unwrap();
    (value, if code == VOID { 0 } else { code })
}

fn pair() -> Pair {
    needs::namespaces();
    Pair::new(VethOptions::default())
}

fn tcp_is_measured_in_both_directions() {
    let pair = pair();
    let _server = MeasurementServer::start(&pair, &[]);
    let arguments =
        ["tcp", SERVER, "-t", "1", "-i", "0.25", "-O", "0.25", "-b", "8M", "-P", "2", "--bidir", "--json"];
    let (result, code) = measured(&pair, &arguments);
    assert_eq!(code, 0, "{result:#}");
    let sum = &result["summary"]["sum"];
    for direction in ["forward", "reverse"] {
        let rate = sum[direction]["received_bits_per_second"].as_f64().unwrap();
        assert!((rate / 16e6 - 1.0).abs() < 0.2, "{direction}: {rate}");
    }
    let intervals = result["intervals"].as_array().unwrap();
    assert_eq!(intervals.len(), 5);
    assert_eq!((&intervals[0]["omitted"], &intervals[1]["omitted"]), (&true.into(), &false.into()));
    assert!(intervals.iter().all(|interval| interval["flows"].as_array().unwrap().len() == 4));
    assert!(intervals[2]["flows"][0]["tcp"]["round_trip_ns"].as_u64().unwrap() > 0);
    assert_eq!(result["clock"]["same_clock"], true);
}

fn a_transfer_ends_when_all_bytes_have_arrived() {
    let pair = pair();
    let mut server = MeasurementServer::start(&pair, &["--once"]);
    // IPv6, and output as text.
    let output = client(&pair, KEY, &["tcp", "fd00::1", "-n", "1M", "-w", "64K", "-M", "1000"]).output();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("received 1.049 MB"), "{text}");
    assert!(!text.contains('\u{1b}'), "no escape codes without a terminal");
    assert_eq!(server.wait_for("free")["reason"], "finished");
    assert_eq!(server.process.output().status.code(), Some(0));
}

fn udp_packets_from_the_server_are_counted() {
    let pair = pair();
    let mut server = MeasurementServer::start(&pair, &["--max-rate", "3M", "--max-time", "5"]);
    let options =
        ["udp", SERVER, "-R", "-t", "1", "-l", "500", "--pattern", "poisson", "--dscp", "ef", "--json"];
    let (result, code) = measured(&pair, &[&options[..], &["-b", "2M", "--data-port", "6000"]].concat());
    assert_eq!(code, 0, "{result:#}");
    let flow = &result["summary"]["flows"][0];
    let sent = flow["sent"]["packets"].as_u64().unwrap();
    // 500 packets per second, within five standard deviations.
    assert!((388..612).contains(&sent), "{result:#}");
    assert_eq!(flow["received"]["packets"], sent);
    assert_eq!(flow["lost_packets"], 0);
    assert_eq!(flow["delay"]["count"], sent);
    assert_eq!(result["clock"]["one_way_error_ns"], 0, "both ends use the same clock");
    assert_eq!(server.wait_for("run")["what"], "sends 1 UDP flow of 2 Mbit/s for up to 1 s");

    for (more, remedy) in [(["-b4M", "-t1"], "--max-rate"), (["-b1M", "-t6"], "--max-time")] {
        let (rejected, code) = measured(&pair, &["udp", SERVER, more[0], more[1], "--json"]);
        assert_eq!(code, 2, "{rejected}");
        assert!(rejected["error"]["help"].as_str().unwrap().contains(remedy), "{rejected}");
    }
}

fn quic_is_measured() {
    let pair = pair();
    let _server = MeasurementServer::start(&pair, &[]);
    let (result, code) = measured(&pair, &["quic", SERVER, "-t", "0.5", "-b", "4M", "--json"]);
    assert_eq!(code, 0, "{result:#}");
    assert!(result["summary"]["flows"][0]["received"]["bytes"].as_u64().unwrap() > 100_000);
}

fn a_client_with_another_key_is_rejected() {
    let pair = pair();
    let mut server = MeasurementServer::start(&pair, &[]);
    let other = "ffeeddccbbaa99887766554433221100";
    let (rejected, code) = result(client(&pair, other, &["tcp", SERVER, "--json"]).output());
    assert_eq!(code, 2, "{rejected}");
    assert!(rejected["error"]["message"].as_str().unwrap().contains("wrong key"), "{rejected}");
    assert_eq!(server.wait_for("turned-away")["reason"], "the client has another key");
    let (weak, code) = result(client(&pair, "1234", &["tcp", SERVER, "--json"]).output());
    assert_eq!(code, 2);
    assert!(weak["error"]["message"].as_str().unwrap().contains("fewer than 128"), "{weak}");
    // The server remains available to clients with the key.
    let (result, code) = measured(&pair, &["tcp", SERVER, "-t", "0.2", "--json"]);
    assert_eq!(code, 0, "{result:#}");
}

fn a_second_client_is_rejected_as_busy() {
    let pair = pair();
    let mut server = MeasurementServer::start(&pair, &[]);
    let first = client(&pair, KEY, &["udp", SERVER, "-t", "2", "--json"]);
    server.wait_for("run");
    let (busy, code) = measured(&pair, &["udp", SERVER, "-t", "1", "--json"]);
    assert_eq!(code, 1, "{busy}");
    assert!(busy["error"]["message"].as_str().unwrap().contains("busy"), "{busy}");
    let (result, code) = self::result(first.output());
    assert_eq!(code, 0, "{result:#}");
    assert_eq!(result["summary"]["flows"][0]["lost_packets"], 0);
    // A later client is accepted.
    assert_eq!(measured(&pair, &["udp", SERVER, "-t", "0.2", "--json"]).1, 0);
}

fn a_killed_server_is_named_and_the_results_are_kept() {
    let pair = pair();
    let mut server = MeasurementServer::start(&pair, &[]);
    let client = client(&pair, KEY, &["udp", SERVER, "-t", "30", "-i", "0.1", "--json"]);
    server.wait_for("run");
    assert!(within(LIMIT, || arrived(&pair.right, "right0") > 100));
    server.process.signal("-KILL");
    let began = Instant::now();
    let (result, code) = self::result(client.output());
    assert!(began.elapsed() < Duration::from_secs(15));
    assert_eq!(code, 1, "{result:#}");
    assert_eq!(result["lost_agents"][0]["agent"], "server");
    assert!(result["summary"]["flows"][0]["received"]["packets"].as_u64().unwrap() > 0, "{result:#}");
}

fn the_rate_of_a_killed_server_is_that_of_its_last_report() {
    let pair = pair();
    let mut server = MeasurementServer::start(&pair, &[]);
    // The server reports every second, and is killed within the third one.
    let client = client(&pair, KEY, &["tcp", SERVER, "-t", "30", "-i", "1", "-b", "8M", "--json"]);
    server.wait_for("run");
    assert!(within(LIMIT, || arrived(&pair.right, "right0") > 1_750));
    server.process.signal("-KILL");
    let (result, code) = self::result(client.output());
    assert_eq!(code, 1, "{result:#}");
    let rate = result["summary"]["flows"][0]["received"]["bits_per_second"].as_f64().unwrap();
    assert!((rate / 8e6 - 1.0).abs() < 0.1, "{result:#}");
}

fn the_server_is_available_after_a_killed_client() {
    let pair = pair();
    let mut server = MeasurementServer::start(&pair, &[]);
    let mut lost = client(&pair, KEY, &["udp", SERVER, "-R", "-t", "60"]);
    server.wait_for("run");
    assert!(within(LIMIT, || arrived(&pair.left, "left0") > 50));
    lost.signal("-KILL");
    let free = server.wait_for("free");
    assert!(free["reason"].as_str().unwrap().contains("disconnected unexpectedly"), "{free}");
    let (result, code) = measured(&pair, &["tcp", SERVER, "-t", "0.2", "-R", "--json"]);
    assert_eq!(code, 0, "{result:#}");
}

fn results_are_kept_after_an_interrupt() {
    let pair = pair();
    let mut server = MeasurementServer::start(&pair, &[]);
    let mut client = client(&pair, KEY, &["tcp", SERVER, "-t", "60", "-i", "0.2", "-b", "1M", "--json"]);
    server.wait_for("run");
    assert!(within(LIMIT, || arrived(&pair.right, "right0") > 100));
    client.signal("-INT");
    let (result, code) = self::result(client.output());
    assert_eq!(code, 130, "{result:#}");
    assert_eq!(result["interrupted"], true);
    assert!(result["summary"]["flows"][0]["received"]["bytes"].as_u64().unwrap() > 0);
    let measured = result["summary"]["measured_s"].as_f64().unwrap();
    assert!(measured < 30.0, "{measured}");
    assert_eq!(server.wait_for("free")["reason"], "finished");
    server.process.signal("-TERM");
    assert_eq!(server.process.output().status.code(), Some(130));
}

fn one_ended_senders_are_limited() {
    for method in ["icmp", "udp-unreachable"] {
        let mut command = measure(KEY, &[method, "127.0.0.1", "-b", "11M", "-l", "1000", "--json"]);
        let (rejected, code) = result(command.output().unwrap());
        assert_eq!(code, 2);
        assert!(rejected["error"]["help"].as_str().unwrap().contains("--limit 11000000"), "{rejected}");
    }
    let pair = pair();
    let icmp = ["icmp", SERVER, "-t", "0.5", "-b", "12M", "-l", "1000", "--limit", "12M", "--json"];
    let (result, code) = measured(&pair, &icmp);
    assert_eq!(code, 0, "{result:#}");
    let flow = &result["summary"]["flows"][0];
    assert_eq!(flow["lost_packets"], 0);
    assert_eq!(flow["round_trip"]["count"], flow["sent"]["packets"]);
}

fn a_missing_server_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let run = |arguments: &[&str]| result(measure(KEY, arguments).arg("--json").output().unwrap());
    let (error, code) = run(&["tcp", "127.0.0.1", "-p", &free]);
    assert_eq!(code, 1);
    assert!(error["error"]["help"].as_str().unwrap().contains("measure serve"), "{error}");
    // Another server listens.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let answering = std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = other.accept().unwrap();
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        let _ = stream.read(&mut [0; 1000]);
    });
    let (error, code) = run(&["tcp", "127.0.0.1", "-p", &port]);
    assert_eq!(code, 1);
    assert!(error["error"]["message"].as_str().unwrap().contains("not netstage"), "{error}");
    answering.join().unwrap();
    let (error, code) = run(&["tcp", "no-such-host.invalid"]);
    assert_eq!(code, 2, "{error}");
}

fn a_server_without_a_key_generates_one_and_prints_the_command() {
    let pair = pair();
    let folder = TemporaryFolder::new("key");
    let mut command = netstage(&["measure", "serve", "--once", "-p", "5300"]);
    command.env_remove("NETSTAGE_KEY");
    let mut server = TestProcess::spawn_in(&pair.right, command);
    let mut output = BufReader::new(server.child().stdout.take().unwrap());
    let mut hint = String::new();
    assert!(within(LIMIT, || {
        hint.clear();
        output.read_line(&mut hint).unwrap();
        hint.contains("NETSTAGE_KEY=")
    }));
    let key = hint.trim().strip_prefix("NETSTAGE_KEY=").unwrap().split(' ').next().unwrap();
    assert!(hint.contains(" netstage measure tcp ") && hint.contains("-p 5300"), "{hint}");
    let file = folder.join("key");
    fs::write(&file, key).unwrap();
    let file = file.to_str().unwrap();
    let mut command =
        netstage(&["measure", "tcp", SERVER, "-p", "5300", "-t", "0.2", "--key-file", file, "--json"]);
    command.env_remove("NETSTAGE_KEY");
    let (result, code) = self::result(TestProcess::spawn_in(&pair.left, command).output());
    assert_eq!(code, 0, "{result:#}");
}

/// Server behind a line of random rate in both directions.
struct LineToServer {
    pair: Pair,
    folder: TemporaryFolder,
    /// Rate at the IP layer in frames of 1,518 B, bit/s.
    rate: u64,
    _server: MeasurementServer,
}

impl LineToServer {
    fn new(name: &str) -> LineToServer {
        let pair = pair();
        let server = MeasurementServer::start(&pair, &[]);
        let rate = netstage_harness::seed(name) % 5 * 1_000_000 + 4_000_000;
        println!("{rate} bit/s");
        // Frames of 1,514 B for the kernel have 1,500 B at the IP layer.
        let bucket = TokenBucket { rate: rate * 1514 / 1500 / 8, burst: 10 * 1514, limit: 40 * 1514 };
        for (end, link) in [(&pair.left, "left0"), (&pair.right, "right0")] {
            Netlink::open(end).unwrap().set_token_bucket(link, bucket).unwrap();
        }
        LineToServer { pair, folder: TemporaryFolder::new(name), rate, _server: server }
    }

    /// Runs a method and returns its record. A void result skips the test.
    fn record(&self, arguments: &[&str]) -> Value {
        let out = self.folder.join(arguments.join(" ").replace('/', "-"));
        let max_rate = format!("{}K", self.rate / 500);
        let command = [arguments, &["-m", &max_rate, "--out", out.to_str().unwrap()]].concat();
        let output = client(&self.pair, KEY, &command).output();
        let printed = output_text(&output);
        match output.status.code() {
            Some(0 | 3) => record(&out),
            Some(5) => skip_busy(&printed),
            _ => panic!("{printed}"),
        }
    }

    /// Checks a rate against a share of that of the line.
    fn check(&self, found: f64, share: f64, tolerance: f64) {
        let truth = share * self.rate as f64;
        assert!((found / truth - 1.0).abs() <= tolerance, "{found} instead of {truth}");
    }
}

fn the_rate_of_a_line_to_a_server_is_found() {
    let line = LineToServer::new("server-rate");
    for direction in [None, Some("-R")] {
        let arguments: Vec<&str> =
            ["mlrsearch", SERVER, "-t", "1", "-l", "1518"].into_iter().chain(direction).collect();
        line.check(mean(&line.record(&arguments), "test.throughput", "throughput"), 1.0, 0.05);
    }
    let _limited = MeasurementServer::start(&line.pair, &["--max-rate", "1M", "-p", "5302"]);
    let out = line.folder.join("refused");
    let search = ["mlrsearch", SERVER, "-p", "5302", "-m", "8M", "-t", "1", "--out", out.to_str().unwrap()];
    let refused = client(&line.pair, KEY, &search).output();
    let printed = output_text(&refused);
    assert_eq!(refused.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("this server allows 1000000 bit/s") && printed.contains("--max-rate"),
        "{printed}"
    );
    let other = "ffeeddccbbaa99887766554433221100";
    let wrong = output_text(&client(&line.pair, other, &search).output());
    assert!(wrong.contains("has another key"), "{wrong}");
}

fn all_methods_measure_to_a_server() {
    let line = LineToServer::new("server-methods");
    let rfc2544 = ["rfc2544", SERVER, "-t", "2", "-l", "1518", "--tests", "throughput"];
    line.check(mean(&line.record(&rfc2544), "test.throughput", "throughput"), 1.0, 0.05);
    let transfer = line.record(&["rfc6349", SERVER, "-t", "4", "--search", "2"]);
    line.check(mean(&transfer, "test.tcp_throughput", "transfer"), 1448.0 / 1500.0, 0.1);
    let oversold = format!("gold,cir={}K", line.rate / 500);
    let services = line.record(&["y1564", SERVER, "-t", "1", "--performance", "1", "--service", &oversold]);
    assert_eq!(mean(&services, "test.accepted", "activation[gold]"), 0.0);
    let clean = line.record(&["ber", SERVER, "-b", "1M", "-t", "2", "-l", "128,1518"]);
    assert_eq!(mean(&clean, "test.bit_error_rate", "errors"), 0.0);
    let record = line.record(&["rrul", SERVER, "-t", "5"]);
    for direction in ["download", "upload"] {
        let sum = 4.0 * expectation(&record, &format!("{direction}-throughput"));
        // Acknowledgments of the other direction and probes take a part.
        line.check(sum, 0.875, 0.125);
    }
}

fn stamp_works_with_and_without_a_key() {
    let pair = pair();
    let folder = TemporaryFolder::new("stamp");
    let file = |name: &str, key: &str| {
        let path = folder.join(name);
        fs::write(&path, key).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (key, other) = (file("key", KEY), file("other", "ffeeddccbbaa99887766554433221100"));
    let _open = MeasurementServer::start(&pair, &["--stamp"]);
    let _keyed =
        MeasurementServer::start(&pair, &["-p", "5301", "--stamp", "8620", "--stamp-key-file", &key]);
    let stamp = |more: &[&str]| {
        let arguments = [&["stamp", SERVER, "-t", "0.4", "-i", "0.02", "--json"], more].concat();
        measured(&pair, &arguments)
    };
    for more in
        [&["--padding", "100"][..], &["-p", "8620", "--key-file", &key, "--session", "7", "--dscp", "ef"]]
    {
        let (result, code) = stamp(more);
        assert_eq!(code, 0, "{result:#}");
        let counts = &result["counts"];
        // A busy sender skips late packets.
        let count = |name: &str| counts[name].as_u64().unwrap();
        let sent = count("sent");
        assert_eq!((sent + count("skipped"), count("answered")), (20, sent), "{result:#}");
        assert_eq!((&counts["lost_forward"], &counts["lost_backward"]), (&0.into(), &0.into()));
        assert_eq!((&result["round_trip"]["count"], count("rejected")), (&sent.into(), 0));
        // Both ends use the same clock, so one-way delays are positive.
        let median = |part: &str| result[part]["p50_ns"].as_i64().unwrap();
        assert!(median("forward") > 0 && median("backward") > 0, "{result:#}");
    }
    // A server with a key does not reply to another key or to none.
    for more in [&["-p", "8620", "--key-file", &other][..], &["-p", "8620"]] {
        let (result, code) = stamp(more);
        assert_eq!(code, 1, "{result:#}");
        assert_eq!(result["counts"]["answered"], 0);
        assert!(result["warnings"].to_string().contains("same key"), "{result:#}");
    }
}

netstage_harness::tests![
    tcp_is_measured_in_both_directions,
    a_transfer_ends_when_all_bytes_have_arrived,
    udp_packets_from_the_server_are_counted,
    quic_is_measured,
    a_client_with_another_key_is_rejected,
    a_second_client_is_rejected_as_busy,
    a_killed_server_is_named_and_the_results_are_kept,
    the_rate_of_a_killed_server_is_that_of_its_last_report,
    the_server_is_available_after_a_killed_client,
    results_are_kept_after_an_interrupt,
    one_ended_senders_are_limited,
    a_missing_server_is_named,
    a_server_without_a_key_generates_one_and_prints_the_command,
    stamp_works_with_and_without_a_key,
    the_rate_of_a_line_to_a_server_is_found,
    #[ignore = "the methods take two minutes"]
    all_methods_measure_to_a_server,
];
