//! Tests of `netstage tcp tune` and `[test.NAME] kind = "tcp-window"`: comparison of the found window with the link and
//! with a sweep.

use crate::apart::{EmulatedPair, line};
use crate::support::{TemporaryFolder, TestProcess, netstage, record, text, within};
use netstage_core::link;
use netstage_core::quantity::Capacity;
use netstage_core::time::Duration;
use netstage_harness::{needs, skip};
use netstage_host::netns::{Namespace, spawn_in};
use netstage_tcp_watch::filter::Filter;
use netstage_tcp_watch::programs::Programs;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

const SERVER: &str = "10.1.0.1";
const KEY: &str = "00112233445566778899aabbccddeeff";
/// Link of the VPN paper: 28.5 Mbit/s of payload and 20 ms, a bandwidth-delay product of 71 kB, and a queue of 68
/// packets.
const RATE: u64 = 29_600_000;
const ROUND_TRIP_MS: f64 = 20.0;

fn paper_line() -> link::LinkDirectionConfig {
    link::LinkDirectionConfig { buffer: Capacity::Packets(68), ..line(RATE, Duration::from_millis(10)) }
}

/// Starts a server in a namespace.
fn serve(right: &Namespace) -> TestProcess {
    let mut server = TestProcess::spawn_in(right, with_key(&["measure", "serve", "--json"]));
    let mut output = BufReader::new(server.child().stdout.take().unwrap());
    let mut first = String::new();
    output.read_line(&mut first).unwrap();
    assert!(first.contains("listening"), "{first}");
    // The pipe must be read, or the server blocks.
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    server
}

fn with_key(arguments: &[&str]) -> Command {
    let mut command = netstage(arguments);
    command.env("NETSTAGE_KEY", KEY);
    command
}

fn client(left: &Namespace, arguments: &[&str]) -> Output {
    TestProcess::spawn_in(left, with_key(arguments)).output()
}

fn json(output: &Output) -> Value {
    // A void result on a busy machine is accepted.
    assert!(matches!(output.status.code(), Some(0 | 5)), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn a_window_is_found_between_two_hosts_with_an_explanation() {
    needs::namespaces();
    let folder = TemporaryFolder::new("tcp-tune");
    let out = folder.join("record");
    let short = ["-t", "0.5", "-O", "0.3", "--max-window", "1M"];
    let ((found, reversed, invalid), _) = EmulatedPair::new().emulate(paper_line(), |left, right| {
        let _server = serve(right);
        let tune = |more: &[&str]| client(left, &[&["tcp", "tune", SERVER], &short[..], more].concat());
        let found = tune(&["-C", "reno,cubic", "--trials", "9", "--json", "--out", out.to_str().unwrap()]);
        let reversed = tune(&["-R", "--trials", "4"]);
        let invalid = tune(&["-C", "no-such-control"]);
        (found, reversed, invalid)
    });
    let found = json(&found);
    assert_eq!(found["controls"], serde_json::json!(["reno", "cubic"]));
    let path = &found["found"]["path"];
    // Bounds that do not depend on the load of the machine: the delay and rate of the link, except for packets that
    // were queued before a short transfer was measured.
    let (rate, trip) = (number(&path["bottleneck"]), number(&path["base_round_trip"]) / 1e6);
    assert!(rate > 0.0 && rate < RATE as f64 * 1.2, "{rate}");
    assert!(trip >= ROUND_TRIP_MS, "{trip}");
    let product = number(&path["bandwidth_delay_product"]);
    assert!((product / (rate * trip / 8e3) - 1.0).abs() < 0.01, "{product}");
    let transfers = found["transfers"].as_array().unwrap();
    assert!((3..=9).contains(&transfers.len()), "{found:#}");
    // Each transfer has the requested window: the bytes per round trip do not exceed it.
    for transfer in transfers {
        let Some(window) = transfer["setting"]["window"].as_f64() else { continue };
        let in_flight = number(&transfer["sample"]["goodput"]) * ROUND_TRIP_MS / 8e3;
        // The peer's window is a multiple of its scale, and the first bin may start before the transfer.
        assert!(in_flight < 1.15 * window + 4_096.0, "{transfer}");
    }
    let permanent = found["permanent"].to_string();
    if !found["found"]["best"]["window"].is_null() {
        for part in
            ["replace 10.1.0.1/32 dev eth0 cwnd lock", "replace 10.1.0.0/32 NEXTHOP", "tcp_rmem", "SO_SNDBUF"]
        {
            assert!(permanent.contains(part), "{part}: {permanent}");
        }
    }
    assert!(permanent.contains("congctl"), "{permanent}");
    let report = netstage(&["report"]).arg(&out).output().unwrap();
    let report = text(&report.stdout);
    for part in ["round trip", "bandwidth delay product", "do not suffice"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for part in ["Throughput over the window", "Trials of tune", "reno, no limit"] {
        assert!(page.contains(part), "{part}");
    }

    let stdout = text(&reversed.stdout);
    assert!(reversed.status.success() || reversed.status.code() == Some(5), "{}", text(&reversed.stderr));
    for part in ["TCP from 10.1.0.1", "path: ", "throughput", "do not suffice"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert_eq!(invalid.status.code(), Some(4), "{}", text(&invalid.stderr));
    assert!(text(&invalid.stderr).contains("no-such-control"), "{}", text(&invalid.stderr));
}

fn invalid_searches_are_rejected() {
    for (arguments, code, part) in [
        (&["127.0.0.1", "-t", "0.1"][..], 2, "0.5 s or more"),
        (&["127.0.0.1", "--tolerance", "0"], 2, "--tolerance"),
        (&["127.0.0.1", "--max-window", "1K"], 2, "at least four segments"),
        (&["no.such.host.invalid"], 2, "cannot resolve no.such.host.invalid"),
        (&["https://127.0.0.1/x"], 2, "unsupported URL scheme https://"),
        (&["http:///x"], 2, "invalid URL"),
        (&["http://127.0.0.1/x", "-p", "8080"], 2, "cannot be combined with a URL"),
        (&["127.0.0.1", "--sink", "discard", "-R"], 2, "cannot be used with"),
        // No server listens on this port.
        (&["127.0.0.1", "-p", "1"], 1, "no server at 127.0.0.1:1"),
    ] {
        let output = with_key(&[&["tcp", "tune"], arguments].concat()).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

/// Starts a foreign server, which sends a response after the first data of each connection and discards the rest.
fn discard_server(listener: TcpListener, response: &'static [u8]) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                let _ = stream.read(&mut buffer).and_then(|_| stream.write_all(response));
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
            });
        }
    });
}

fn a_window_is_found_to_servers_that_only_receive() {
    needs::namespaces();
    if let Err(obstacle) = Programs::load(Filter::default()) {
        skip(obstacle.to_string());
    }
    let short = ["-t", "0.6", "-O", "0.4", "--max-window", "1M", "-C", "cubic", "--json", "--trials"];
    let tune = |left: &Namespace, target: &str, trials: &str, more: &[&str]| {
        client(left, &[&["tcp", "tune", target], &short[..], &[trials], more].concat())
    };
    let (outcome, _) = EmulatedPair::new().emulate(paper_line(), |left, right| {
        let listen = |port: u16| right.run(|| TcpListener::bind((SERVER, port)).unwrap()).unwrap();
        discard_server(listen(9), b"");
        discard_server(listen(80), b"HTTP/1.1 100 Continue\r\n\r\n");
        discard_server(listen(81), b"HTTP/1.1 413 Content Too Large\r\n\r\n");
        let discarded = tune(left, SERVER, "6", &["--sink", "discard"]);
        let posted = tune(left, &format!("http://{SERVER}/upload"), "3", &[]);
        let rejected = tune(left, &format!("http://{SERVER}:81/"), "3", &[]);
        let missing = tune(left, SERVER, "3", &["--sink", "iperf3"]);
        let mut iperf3 = Command::new("iperf3");
        iperf3.arg("-s").stdout(Stdio::null()).stderr(Stdio::null());
        let received = spawn_in(right, iperf3).ok().map(|server| {
            let _server = TestProcess::new(server);
            let listens = || right.run(|| TcpListener::bind((SERVER, 5201)).is_err()).unwrap();
            assert!(within(std::time::Duration::from_secs(20), listens));
            tune(left, SERVER, "4", &["--sink", "iperf3"])
        });
        (discarded, posted, rejected, missing, received)
    });
    let (discarded, posted, rejected, missing, received) = outcome;
    let found = json(&discarded);
    let path = &found["found"]["path"];
    let (rate, trip) = (number(&path["bottleneck"]), number(&path["base_round_trip"]) / 1e6);
    assert!(rate > 1e6 && rate < RATE as f64 * 1.2 && trip >= ROUND_TRIP_MS, "{path}");
    for transfer in found["transfers"].as_array().unwrap() {
        let Some(window) = transfer["setting"]["window"].as_f64() else { continue };
        let in_flight = number(&transfer["sample"]["goodput"]) * ROUND_TRIP_MS / 8e3;
        assert!(in_flight < 1.15 * window + 4_096.0, "{transfer}");
    }
    for found in [Some(posted), received].into_iter().flatten() {
        let found = json(&found);
        assert!(number(&found["found"]["path"]["bottleneck"]) > 1e6, "{found:#}");
    }
    for (output, part) in [(&rejected, "413 Content Too Large"), (&missing, "no server at 10.1.0.1:5201")] {
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stdout).contains(part) || text(&output.stderr).contains(part), "{output:?}");
    }
}

/// Returns the windows of a sweep, log-spaced around the bandwidth-delay product of 71 kB.
fn sweep(count: i32) -> Vec<u64> {
    let (min, max) = (20e3_f64, 1e6_f64);
    let step = (max / min).powf(1.0 / f64::from(count - 1));
    (0..count).map(|at| (min * step.powi(at)).round() as u64).collect()
}

/// Comparison of a search with a sweep: number of windows, repetitions, and seconds of each transfer.
struct SweepComparison {
    windows: i32,
    rounds: usize,
    seconds: u64,
    search: &'static [&'static str],
}

impl SweepComparison {
    /// Runs both. Returns the seconds of the search, the seconds of the sweep, and the throughput of the found window
    /// relative to the best of the sweep.
    fn compare(&self) -> (f64, f64, f64) {
        let hour = Duration::from_secs(3_600);
        let seconds = (self.seconds - 1).to_string();
        let ((found, at_found, swept), _) =
            EmulatedPair::new().emulate_for(hour, paper_line(), |left, right| {
                let _server = serve(right);
                let search =
                    [&["tcp", "tune", SERVER, "-C", "cubic", "--max-window", "2M", "--json"], self.search]
                        .concat();
                let found = json(&client(left, &search));
                let rate = |window: u64| {
                    let window = format!("{window}B");
                    let arguments = [
                        "measure", "tcp", SERVER, "-C", "cubic", "-w", &window, "-t", &seconds, "-O", "1",
                        "-i", "1", "--json",
                    ];
                    let measured = json(&client(left, &arguments));
                    number(&measured["summary"]["sum"]["forward"]["received_bits_per_second"])
                };
                let windows = sweep(self.windows);
                let mut swept: Vec<(u64, f64)> = windows.iter().map(|window| (*window, 0.0)).collect();
                let best = found["found"]["best"]["window"].as_u64().unwrap_or(2 << 20);
                let mut at_found = 0.0;
                for _ in 0..self.rounds {
                    swept.iter_mut().for_each(|(window, sum)| *sum += rate(*window) / self.rounds as f64);
                    at_found += rate(best) / self.rounds as f64;
                }
                (found, at_found, swept)
            });
        let took = number(&found["transfer_s"]) * found["transfers"].as_array().unwrap().len() as f64;
        let (window, best) = swept.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        println!("{swept:?}");
        println!("{} in {took} s", found["verdict"]);
        println!("found window {at_found}, best of the sweep {best} at {window}: {:.4}", at_found / best);
        (took, (swept.len() * self.rounds) as f64 * self.seconds as f64, at_found / best)
    }
}

/// The documented quality of the search: within 3 % of the best of a sweep of 20 windows × 5 × 10 s, in a fifth of its
/// time.
fn measures_the_window_against_a_sweep_of_twenty_windows() {
    needs::namespaces();
    let (took, sweep, share) = SweepComparison { windows: 20, rounds: 5, seconds: 10, search: &[] }.compare();
    assert!(took <= sweep / 5.0, "{took} of {sweep}");
    assert!(share > 0.97, "{share}");
}

/// Fewer and shorter transfers with less precision: within 5 %, in less time than the sweep.
fn the_window_is_as_good_as_the_best_of_a_sweep() {
    needs::namespaces();
    let search = &["-t", "2", "-O", "1", "--trials", "30"];
    let (took, sweep, share) = SweepComparison { windows: 9, rounds: 3, seconds: 4, search }.compare();
    assert!(took <= sweep, "{took} of {sweep}");
    assert!(share > 0.95, "{share}");
}

/// The simulator does not depend on the load of the machine: within 3 %.
fn the_window_in_the_simulator_is_within_three_percent_of_the_best_of_a_sweep() {
    let folder = TemporaryFolder::new("tcp-window-sweep");
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/papers/vpn-tcp");
    let run = |scenario: &str, arguments: &[&str]| -> Value {
        let out = folder.join(scenario);
        let mut command = netstage(&["run", &format!("{scenarios}/{scenario}.toml"), "--on", "sim", "--out"]);
        let output = command.arg(&out).args(arguments).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{}", text(&output.stderr));
        record(&out)
    };
    let value = |record: &Value, cell: usize, metric: &str| {
        let found = record["cells"][cell]["summary"].as_array().unwrap().iter();
        let found = found.clone().find(|entry| entry["metric"] == metric).unwrap();
        number(&found["mean"])
    };
    let tuned = run("best-window", &[]);
    assert_eq!(value(&tuned, 0, "test.window.conclusive"), 1.0);
    let window = value(&tuned, 0, "test.window");
    let all: Vec<String> =
        sweep(20).iter().chain([&(window as u64)]).map(|window| format!("{window} B")).collect();
    let vary = format!("flow.bulk.tcp.window={}", all.join(","));
    // The same network, with a flow of each window.
    let swept = run("fig5", &["--vary", &vary, "--set", "scenario.duration=\"10 s\""]);
    let rates: Vec<f64> = (0..all.len()).map(|cell| value(&swept, cell, "flow.throughput")).collect();
    let (found, others) = rates.split_last().unwrap();
    let best = others.iter().copied().fold(0.0, f64::max);
    assert!(*found > 0.97 * best, "{found} of {best}: {rates:?}");
}

netstage_harness::tests![
    a_window_is_found_between_two_hosts_with_an_explanation,
    invalid_searches_are_rejected,
    a_window_is_found_to_servers_that_only_receive,
    #[ignore = "takes 20 minutes"]
    measures_the_window_against_a_sweep_of_twenty_windows,
    #[ignore = "takes four minutes"]
    the_window_is_as_good_as_the_best_of_a_sweep,
    the_window_in_the_simulator_is_within_three_percent_of_the_best_of_a_sweep,
];
