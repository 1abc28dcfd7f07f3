//! `netstage measure` as people meet it: a server and a client between two namespaces, and
//! everything that goes wrong.

use crate::pair::Pair;
use crate::support::{Folder, Process, netstage, within};
use netstage_harness::needs;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::{Netlink, VethOptions};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{ChildStdout, Command, Output};
use std::time::{Duration, Instant};

const SERVER: &str = "10.1.0.1";
const KEY: &str = "00112233445566778899aabbccddeeff";
/// Far longer than anything here takes, on any machine.
const LIMIT: Duration = Duration::from_secs(60);

fn measure(key: &str, arguments: &[&str]) -> Command {
    let mut command = netstage(&[&["measure"], arguments].concat());
    command.env("NETSTAGE_KEY", key);
    command
}

/// A server on the right, and what it says.
struct Server {
    process: Process,
    said: BufReader<ChildStdout>,
}

impl Server {
    fn start(pair: &Pair, arguments: &[&str]) -> Server {
        let command = measure(KEY, &[&["serve", "--json"], arguments].concat());
        let mut process = Process::spawn_in(&pair.right, command);
        let said = BufReader::new(process.child().stdout.take().unwrap());
        let mut server = Server { process, said };
        server.wait_for("listening");
        server
    }

    /// Reads on until an event of this name.
    fn wait_for(&mut self, event: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ends before {event}");
            let value: Value = serde_json::from_str(&line).unwrap();
            if value["event"] == event {
                return value;
            }
        }
    }
}

/// Packets that a link has received.
fn arrived(namespace: &Namespace, link: &str) -> u64 {
    Netlink::open(namespace).unwrap().link(link).unwrap().statistics.received_packets
}

/// A client on the left.
fn client(pair: &Pair, key: &str, arguments: &[&str]) -> Process {
    Process::spawn_in(&pair.left, measure(key, arguments))
}

/// The result of a client, and its exit code.
fn measured(pair: &Pair, arguments: &[&str]) -> (Value, i32) {
    result(client(pair, KEY, arguments).output())
}

/// What came of it, and the exit code. A host that stood still makes a measurement void, which is not what
/// is tested here: that counts as measured.
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

fn tcp_to_the_server_both_ways() {
    let pair = pair();
    let _server = Server::start(&pair, &[]);
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

fn a_transfer_ends_when_all_is_there() {
    let pair = pair();
    let mut server = Server::start(&pair, &["--once"]);
    // IPv6, and text: the other half of what is shown.
    let output = client(&pair, KEY, &["tcp", "fd00::1", "-n", "1M", "-w", "64K", "-M", "1000"]).output();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("received 1.049 MB"), "{text}");
    assert!(!text.contains('\u{1b}'), "no escape codes where there is no terminal");
    assert_eq!(server.wait_for("free")["reason"], "finished");
    assert_eq!(server.process.output().status.code(), Some(0));
}

fn udp_from_the_server_is_counted_packet_by_packet() {
    let pair = pair();
    let mut server = Server::start(&pair, &["--max-rate", "3M", "--max-time", "5"]);
    let options =
        ["udp", SERVER, "-R", "-t", "1", "-l", "500", "--pattern", "poisson", "--dscp", "ef", "--json"];
    let (result, code) = measured(&pair, &[&options[..], &["-b", "2M", "--data-port", "6000"]].concat());
    assert_eq!(code, 0, "{result:#}");
    let flow = &result["summary"]["flows"][0];
    let sent = flow["sent"]["packets"].as_u64().unwrap();
    // 500 a second; within five standard deviations.
    assert!((388..612).contains(&sent), "{result:#}");
    assert_eq!(flow["received"]["packets"], sent);
    assert_eq!(flow["lost_packets"], 0);
    assert_eq!(flow["delay"]["count"], sent);
    assert_eq!(result["clock"]["one_way_error_ns"], 0, "one clock");
    assert_eq!(server.wait_for("run")["what"], "sends 1 UDP flow of 2 Mbit/s for up to 1 s");

    for (more, remedy) in [(["-b4M", "-t1"], "--max-rate"), (["-b1M", "-t6"], "--max-time")] {
        let (refused, code) = measured(&pair, &["udp", SERVER, more[0], more[1], "--json"]);
        assert_eq!(code, 2, "{refused}");
        assert!(refused["error"]["help"].as_str().unwrap().contains(remedy), "{refused}");
    }
}

fn quic_arrives() {
    let pair = pair();
    let _server = Server::start(&pair, &[]);
    let (result, code) = measured(&pair, &["quic", SERVER, "-t", "0.5", "-b", "4M", "--json"]);
    assert_eq!(code, 0, "{result:#}");
    assert!(result["summary"]["flows"][0]["received"]["bytes"].as_u64().unwrap() > 100_000);
}

fn another_key_gets_nowhere() {
    let pair = pair();
    let mut server = Server::start(&pair, &[]);
    let other = "ffeeddccbbaa99887766554433221100";
    let (refused, code) = result(client(&pair, other, &["tcp", SERVER, "--json"]).output());
    assert_eq!(code, 2, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("another key"), "{refused}");
    assert_eq!(server.wait_for("turned-away")["reason"], "it has another key");
    let (weak, code) = result(client(&pair, "1234", &["tcp", SERVER, "--json"]).output());
    assert_eq!(code, 2);
    assert!(weak["error"]["message"].as_str().unwrap().contains("fewer than 128"), "{weak}");
    // Neither took it from those who have the key.
    assert_eq!(measured(&pair, &["tcp", SERVER, "-t", "0.2", "--json"]).1, 0);
}

fn a_second_client_is_told_that_the_server_is_busy() {
    let pair = pair();
    let mut server = Server::start(&pair, &[]);
    let first = client(&pair, KEY, &["udp", SERVER, "-t", "2", "--json"]);
    server.wait_for("run");
    let (busy, code) = measured(&pair, &["udp", SERVER, "-t", "1", "--json"]);
    assert_eq!(code, 1, "{busy}");
    assert!(busy["error"]["message"].as_str().unwrap().contains("busy"), "{busy}");
    let (result, code) = self::result(first.output());
    assert_eq!(code, 0, "{result:#}");
    assert_eq!(result["summary"]["flows"][0]["lost_packets"], 0);
    // And one right behind it is not.
    assert_eq!(measured(&pair, &["udp", SERVER, "-t", "0.2", "--json"]).1, 0);
}

fn a_server_that_is_killed_is_named_and_the_figures_kept() {
    let pair = pair();
    let mut server = Server::start(&pair, &[]);
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

fn a_client_that_is_killed_leaves_the_server_to_the_next() {
    let pair = pair();
    let mut server = Server::start(&pair, &[]);
    let mut lost = client(&pair, KEY, &["udp", SERVER, "-R", "-t", "60"]);
    server.wait_for("run");
    assert!(within(LIMIT, || arrived(&pair.left, "left0") > 50));
    lost.signal("-KILL");
    let free = server.wait_for("free");
    assert!(free["reason"].as_str().unwrap().contains("went away"), "{free}");
    let (result, code) = measured(&pair, &["tcp", SERVER, "-t", "0.2", "-R", "--json"]);
    assert_eq!(code, 0, "{result:#}");
}

fn an_interrupt_keeps_what_was_measured() {
    let pair = pair();
    let mut server = Server::start(&pair, &[]);
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
        let (refused, code) = result(command.output().unwrap());
        assert_eq!(code, 2);
        assert!(refused["error"]["help"].as_str().unwrap().contains("--limit 11000000"), "{refused}");
    }
    let pair = pair();
    let icmp = ["icmp", SERVER, "-t", "0.5", "-b", "12M", "-l", "1000", "--limit", "12M", "--json"];
    let (result, code) = measured(&pair, &icmp);
    assert_eq!(code, 0, "{result:#}");
    let flow = &result["summary"]["flows"][0];
    assert_eq!(flow["lost_packets"], 0);
    assert_eq!(flow["round_trip"]["count"], flow["sent"]["packets"]);
}

fn whoever_is_not_there_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let run = |arguments: &[&str]| result(measure(KEY, arguments).arg("--json").output().unwrap());
    let (error, code) = run(&["tcp", "127.0.0.1", "-p", &free]);
    assert_eq!(code, 1);
    assert!(error["error"]["help"].as_str().unwrap().contains("measure serve"), "{error}");
    // Something listens, but is no server of ours.
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

fn a_server_without_a_key_makes_one_and_prints_the_command() {
    let pair = pair();
    let folder = Folder::new("key");
    let mut command = netstage(&["measure", "serve", "--once", "-p", "5300"]);
    command.env_remove("NETSTAGE_KEY");
    let mut server = Process::spawn_in(&pair.right, command);
    let mut said = BufReader::new(server.child().stdout.take().unwrap());
    let mut hint = String::new();
    assert!(within(LIMIT, || {
        hint.clear();
        said.read_line(&mut hint).unwrap();
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
    let (result, code) = self::result(Process::spawn_in(&pair.left, command).output());
    assert_eq!(code, 0, "{result:#}");
}

fn stamp_meets_its_own_reflector_with_and_without_a_key() {
    let pair = pair();
    let folder = Folder::new("stamp");
    let file = |name: &str, key: &str| {
        let path = folder.join(name);
        fs::write(&path, key).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (key, other) = (file("key", KEY), file("other", "ffeeddccbbaa99887766554433221100"));
    let _open = Server::start(&pair, &["--stamp"]);
    let _keyed = Server::start(&pair, &["-p", "5301", "--stamp", "8620", "--stamp-key-file", &key]);
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
        assert_eq!((&counts["sent"], &counts["answered"]), (&20.into(), &20.into()), "{result:#}");
        assert_eq!((&counts["lost_forward"], &counts["lost_backward"]), (&0.into(), &0.into()));
        assert_eq!((&result["round_trip"]["count"], &counts["rejected"]), (&20.into(), &0.into()));
        // One machine, one clock: both ways together are the round trip, to the timestamps' steps.
        let median = |what: &str| result[what]["p50_ns"].as_i64().unwrap();
        assert!(median("forward") > 0 && median("backward") > 0, "{result:#}");
    }
    // Another key, or none where one is wanted: silence.
    for more in [&["-p", "8620", "--key-file", &other][..], &["-p", "8620"]] {
        let (result, code) = stamp(more);
        assert_eq!(code, 1, "{result:#}");
        assert_eq!(result["counts"]["answered"], 0);
        assert!(result["warnings"].to_string().contains("same key"), "{result:#}");
    }
}

netstage_harness::tests![
    tcp_to_the_server_both_ways,
    a_transfer_ends_when_all_is_there,
    udp_from_the_server_is_counted_packet_by_packet,
    quic_arrives,
    another_key_gets_nowhere,
    a_second_client_is_told_that_the_server_is_busy,
    a_server_that_is_killed_is_named_and_the_figures_kept,
    a_client_that_is_killed_leaves_the_server_to_the_next,
    an_interrupt_keeps_what_was_measured,
    one_ended_senders_are_limited,
    whoever_is_not_there_is_named,
    a_server_without_a_key_makes_one_and_prints_the_command,
    stamp_meets_its_own_reflector_with_and_without_a_key,
];
