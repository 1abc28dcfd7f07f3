//! Tests of `netstage tcp`: observation and limits of connections between two namespaces.

use crate::support::network::{address, default_route, join};
use crate::support::{PROGRAM, TemporaryFolder, TestProcess, netstage, text, within};
use netstage_harness::{needs, skip};
use netstage_host::netns::netlink::Netlink;
use netstage_host::netns::{Namespace, spawn_in};
use netstage_tcp_watch::filter::Filter;
use netstage_tcp_watch::polling::Polling;
use netstage_tcp_watch::programs::Programs;
use netstage_tcp_watch::tracefs;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const PORT: u16 = 7_000;

/// Skips the test without namespaces or BPF programs.
fn need_bpf() {
    needs::namespaces();
    if let Err(obstacle) = Programs::load(Filter::default()) {
        skip(obstacle.to_string());
    }
}

/// Two connected namespaces.
struct TwoHosts {
    left: Namespace,
    right: Namespace,
}

impl TwoHosts {
    fn new() -> TwoHosts {
        let (left, right) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        join((&left, "eth0", 1), (&right, "eth0", 2));
        for (namespace, own) in [(&left, "10.0.0.1"), (&right, "10.0.0.2")] {
            let mut netlink = Netlink::open(namespace).unwrap();
            netlink.add_address("eth0", address(own), 24).unwrap();
            netlink.wait_until_ready("eth0").unwrap();
        }
        TwoHosts { left, right }
    }

    /// Sends 20 kB every millisecond from left to right while `task` runs.
    fn while_sending<T>(&self, task: impl FnOnce() -> T) -> T {
        // The connection of an earlier call may take a moment to end.
        let mut listener = None;
        within(Duration::from_secs(10), || {
            listener = self.right.run(|| TcpListener::bind(("10.0.0.2", PORT)).ok()).unwrap();
            listener.is_some()
        });
        let listener = listener.expect("the port becomes free");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = listener.accept().unwrap().0;
                let mut buffer = vec![0; 1 << 16];
                while stream.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
            });
            let mut stream = self.left.run(|| TcpStream::connect(("10.0.0.2", PORT)).unwrap()).unwrap();
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) && stream.write_all(&[0; 20_000]).is_ok() {
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
            over.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        netstage(&[&["tcp"], arguments].concat())
    }

    fn tcp(&self, arguments: &[&str]) -> Output {
        TestProcess::spawn_in(&self.left, self.command(arguments)).output()
    }

    /// Starts a command and returns it with the lines of its output.
    fn start(&self, arguments: &[&str]) -> (TestProcess, Lines<BufReader<ChildStdout>>) {
        start(&self.left, self.command(arguments))
    }
}

fn start(namespace: &Namespace, command: Command) -> (TestProcess, Lines<BufReader<ChildStdout>>) {
    let mut process = TestProcess::spawn_in(namespace, command);
    let lines = BufReader::new(process.child().stdout.take().unwrap()).lines();
    (process, lines)
}

/// Returns the window that limits the connection from the command's table; `-`: none.
fn limit(table: &str) -> &str {
    let row = table.lines().rfind(|line| line.contains("> 10.0.0.2:7000"));
    row.and_then(|row| row.split_whitespace().nth(4)).unwrap_or_else(|| panic!("{table}"))
}

/// Returns a command that runs the program after a private mount.
fn after_mount(mount: &str, arguments: &str) -> Command {
    let script = format!("mount {mount} && exec {PROGRAM} tcp watch {arguments}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn events_are_printed_as_lines_and_a_record_is_written() {
    need_bpf();
    let (world, folder) = (TwoHosts::new(), TemporaryFolder::new("tcp-watch"));
    let out = folder.join("record");
    let namespace = std::process::id().to_string();
    let arguments =
        ["watch", "--port", "7000", "--address", "10.0.0.0/24", "--for", "2", "--ndjson", "--out"];
    let output = world.while_sending(|| world.tcp(&[&arguments[..], &[out.to_str().unwrap()]].concat()));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, events) = lines.split_last().unwrap();
    assert_eq!((&last["lost"], last["flows"].as_u64().unwrap() > 0), (&0.into(), true));
    let first = events.iter().find(|event| event["remote"] == "10.0.0.2:7000").unwrap();
    assert_eq!(first["event"], "began");
    for field in
        ["time", "cwnd", "in_flight", "peer_window", "state", "retransmissions", "smoothed_round_trip"]
    {
        assert!(!first[field].is_null(), "{field}: {first}");
    }
    let limited = events.iter().any(|event| event["cause"] == "application-limited");
    assert!(limited, "the application sends less than the window allows");

    let report = |arguments: &[&str]| netstage(&["report"]).arg(&out).args(arguments).output().unwrap();
    let json: Value = serde_json::from_slice(&report(&["--json"]).stdout).unwrap();
    let names: Vec<&str> =
        json["figures"].as_array().unwrap().iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    for figure in ["windows-1", "throughput-1", "causes", "limits"] {
        assert!(names.contains(&figure), "{names:?}");
    }
    let printed = text(&report(&[]).stdout);
    // A constant window has no correlation; round trips always vary.
    for part in ["> 10.0.0.2:7000", "Correlation with throughput", "flow.round_trip"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(Path::new(&out).join("report.html").exists());
    // Polling without BPF programs gives fewer events of the same format.
    let arguments = ["watch", "--port", "7000", "--source", "polling", "--for", "0.5", "--ndjson"];
    let output = world.while_sending(|| world.tcp(&arguments));
    let printed = text(&output.stdout);
    assert!(
        printed.contains("\"remote\":\"10.0.0.2:7000\"") && printed.contains("acknowledged"),
        "{printed}"
    );
    assert!(text(&output.stderr).contains("polls a second"), "{}", text(&output.stderr));
    // The record is not overwritten, and connections of other namespaces are not reported.
    let repeated = world.tcp(&["watch", "--for", "0.1", "--out", out.to_str().unwrap()]);
    assert_eq!(repeated.status.code(), Some(2), "{}", text(&repeated.stderr));
    let other_namespace = ["watch", "--namespace", &namespace, "--for", "0.2", "--ndjson"];
    let output = world.while_sending(|| world.tcp(&other_namespace));
    assert!(!text(&output.stdout).contains("10.0.0.2:7000"));
}

fn a_flow_is_diagnosed_as_text_and_as_json() {
    need_bpf();
    let world = TwoHosts::new();
    let arguments = ["why", "--port", "7000", "--to", "10.0.0.2", "--for", "2"];
    let output = world.while_sending(|| world.tcp(&[&arguments[..], &["--json"]].concat()));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let flow = &report["flows"][0];
    assert_eq!((&flow["remote"], &report["lost"]), (&"10.0.0.2:7000".into(), &0.into()), "{report}");
    // The application sends 20 kB, then sleeps for a millisecond, on a path that takes microseconds.
    assert_eq!(flow["bottleneck"], "application", "{report}");
    let shares = flow["shares"].as_array().unwrap();
    assert_eq!(shares.iter().filter_map(|share| share["percent"].as_u64()).sum::<u64>(), 100, "{report}");
    assert!(flow["round_trip"]["now"].as_u64() > Some(0), "{report}");
    let output = world.while_sending(|| world.tcp(&arguments));
    let printed = text(&output.stdout);
    for part in ["> 10.0.0.2:7000", "application: it offers no data", "round trip", " min, "] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    // `tcp watch` ends with the diagnosis.
    let output = world.while_sending(|| world.tcp(&["watch", "--port", "7000", "--for", "1"]));
    assert!(text(&output.stdout).contains("application: it offers no data"), "{}", text(&output.stdout));
    let nothing = world.tcp(&["why", "--port", "9", "--for", "0.2"]);
    assert_eq!(nothing.status.code(), Some(1), "{}", text(&nothing.stdout));
    assert!(text(&nothing.stderr).contains("no flow sent data"), "{}", text(&nothing.stderr));
}

fn limits_end_with_the_command_or_by_clean() {
    need_bpf();
    let (world, folder) = (TwoHosts::new(), TemporaryFolder::new("tcp-limit"));
    let state = folder.join("state");
    let state = state.to_str().unwrap();
    let windows = |limit: &[&str]| -> String {
        let output =
            world.tcp(&[&["limit", "--port", "7000", "--state", state, "--for", "0.6"], limit].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    world.while_sending(|| {
        let printed = windows(&["--cwnd", "7", "--every", "0.2"]);
        assert_eq!(limit(&printed), "7", "{printed}");
        assert!(printed.contains("restored"), "{printed}");
        // The limit was removed.
        assert_eq!(limit(&windows(&["--window", "1G"])), "-");

        let arguments = ["limit", "--port", "7000", "--state", state, "--cwnd", "9"];
        let mut killed = TestProcess::spawn_in(&world.left, world.command(&arguments));
        let is_saved =
            || std::fs::read_dir(state).unwrap().flatten().any(|file| file.metadata().unwrap().len() > 0);
        assert!(within(Duration::from_secs(20), is_saved));
        killed.signal("-KILL");
        killed.output();
        assert!(is_saved());
        let cleaned = netstage_tcp_watch::clean::clean(Path::new(state)).unwrap();
        assert!(cleaned > 0);
        assert!(!is_saved());
        assert_eq!(limit(&windows(&["--window", "1G"])), "-");
    });
}

fn tracing_ends_with_the_command_or_by_clean() {
    need_bpf();
    let world = TwoHosts::new();
    let arguments = ["watch", "--port", "7000", "--source", "tracing", "--ndjson"];
    let output = world.while_sending(|| world.tcp(&[&arguments[..], &["--for", "1"]].concat()));
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if output.status.code() == Some(4) {
        skip(stderr);
    }
    assert!(output.status.success() && stderr.contains("by tracing: unsent bytes"), "{stderr}");
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, events) = lines.split_last().unwrap();
    assert_eq!(last["lost"], 0, "{last}");
    let acks: Vec<&Value> = events
        .iter()
        .filter(|event| event["remote"] == "10.0.0.2:7000" && event["event"] == "acknowledged")
        .collect();
    // Far more events than polling gives, in order of time.
    assert!(acks.len() > 60, "{}", acks.len());
    let number = |event: &Value, name: &str| event[name].as_u64().unwrap();
    assert!(acks.windows(2).all(|pair| number(pair[0], "time") <= number(pair[1], "time")));
    let acknowledged: Vec<u64> = acks.iter().map(|event| number(event, "acknowledged")).collect();
    assert!(acknowledged.is_sorted() && acknowledged.last() > acknowledged.first(), "{acknowledged:?}");
    assert!(acks.iter().all(|event| number(event, "cwnd") > 0 && number(event, "peer_window") > 0));

    // Tracing instances of a running command are kept; those of a killed one are removed.
    let (mut killed, mut lines) = world.start(&arguments);
    world.while_sending(|| assert!(lines.next().unwrap().unwrap().contains("began")));
    assert_eq!(tracefs::clean(), 0);
    killed.signal("-KILL");
    killed.output();
    assert_eq!(tracefs::clean(), 1);
    assert_eq!(tracefs::clean(), 0);
}

fn a_kernel_without_type_information_is_observed_by_tracing() {
    need_bpf();
    let world = TwoHosts::new();
    // The type information is hidden from the program only.
    let without = |arguments: &str| {
        let command = after_mount("-t tmpfs none /sys/kernel/btf", arguments);
        world.while_sending(|| TestProcess::spawn_in(&world.left, command).output())
    };
    let output = without("--source kernel --for 0.2");
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{printed}");
    assert!(printed.contains("CONFIG_DEBUG_INFO_BTF"), "{printed}");
    let output = without("--port 7000 --for 0.5 --ndjson");
    let printed = text(&output.stderr);
    assert!(output.status.success() && printed.contains("CONFIG_DEBUG_INFO_BTF"), "{printed}");
    assert!(printed.contains("by tracing: ") || printed.contains("polls a second"), "{printed}");
    assert!(text(&output.stdout).contains("\"remote\":\"10.0.0.2:7000\""));
}

fn reductions_are_inferred_without_their_tracepoint() {
    const TYPES: &str = "/sys/kernel/btf/vmlinux";
    need_bpf();
    let (world, folder) = (TwoHosts::new(), TemporaryFolder::new("tcp-tracepoint"));
    // The type has another name for the program, as before Linux 5.19.
    let mut types = std::fs::read(TYPES).unwrap();
    let name = b"btf_trace_tcp_cong_state_set\0";
    let at = types.windows(name.len()).position(|bytes| bytes == name).unwrap();
    types[at] = b'x';
    let file = folder.join("types");
    std::fs::write(&file, types).unwrap();
    // A device queue that is too small for the window causes repeated reductions.
    world.left.sysctl("net.ipv4.tcp_congestion_control", "reno").unwrap();
    let mut queue = Command::new("tc");
    queue.args("qdisc add dev eth0 root tbf rate 60mbit burst 15000 limit 6000".split(' '));
    assert!(spawn_in(&world.left, queue).unwrap().wait().unwrap().success());
    let mount = format!("--bind {} {TYPES}", file.display());
    let command = after_mount(&mount, "--source kernel --port 7000 --for 2 --ndjson");
    let output = world.while_sending(|| TestProcess::spawn_in(&world.left, command).output());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains(
            "not available: exact reductions, which are inferred from two records (tcp_cong_state_set"
        ),
        "{stderr}"
    );
    assert_eq!(stderr.matches("not available").count(), 1, "the others run: {stderr}");
    assert!(stdout.contains("\"event\":\"acknowledged\"") && stdout.contains("local-device"), "{stdout}");
}

fn the_command_ends_with_the_limited_process() {
    need_bpf();
    let (world, folder) = (TwoHosts::new(), TemporaryFolder::new("tcp-limit-exit"));
    let state = folder.join("state");
    let listener = world.right.run(|| TcpListener::bind(("10.0.0.2", PORT)).unwrap()).unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", &format!("exec 3<>/dev/tcp/10.0.0.2/{PORT}; read line <&3")]);
    let mut client = TestProcess::spawn_in(&world.left, command);
    let _connection = listener.accept().unwrap();
    let process = client.child().id().to_string();
    let arguments =
        ["limit", "--process", &process, "--cwnd", "9", "--every", "0.1", "--state", state.to_str().unwrap()];
    let (limiting, lines) = world.start(&arguments);
    let mut rows = lines.map_while(Result::ok).filter(|line| line.contains("> 10.0.0.2:7000"));
    assert!(rows.next().is_some());
    client.signal("-KILL");
    client.output();
    // The command ends with the process.
    let _ = rows.last();
    assert!(limiting.output().status.success());
    assert_eq!(std::fs::read_dir(&state).unwrap().count(), 0, "no state remains");
}

fn no_event_of_ten_thousand_flows_is_lost() {
    const FLOWS: usize = 10_000;
    need_bpf();
    let (_, max) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if max < 2 * FLOWS as u64 + 1_000 {
        skip(format!("the limit of open files is {max}"));
    }
    setrlimit(Resource::RLIMIT_NOFILE, max, max).unwrap();
    let world = TwoHosts::new();
    let mut command = world.command(&["watch", "--port", "7000", "--namespace"]);
    command.args(["/proc/self/ns/net", "--ndjson"]);
    let (mut watching, mut lines) = start(&world.left, command);
    let listener = world.right.run(|| TcpListener::bind(("10.0.0.2", PORT)).unwrap()).unwrap();
    let connect = || world.left.run(|| TcpStream::connect(("10.0.0.2", PORT)).unwrap()).unwrap();
    // The first flow shows that the program observes.
    let mut first = connect();
    let mut flows = vec![listener.accept().unwrap().0];
    let is_observed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_observed.load(Ordering::Relaxed) && first.write_all(b"0").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        assert!(lines.next().unwrap().unwrap().contains("began"));
        is_observed.store(true, Ordering::Relaxed);
    });
    let last = thread::scope(|scope| {
        let last = scope.spawn(|| lines.map_while(Result::ok).last().unwrap());
        for _ in 1..FLOWS {
            flows.push(connect());
            flows.push(listener.accept().unwrap().0);
        }
        for _ in 0..3 {
            flows.iter_mut().for_each(|flow| flow.write_all(&[0; 100]).unwrap());
        }
        watching.signal("-INT");
        last.join().unwrap()
    });
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!((&last["flows"], &last["lost"]), (&FLOWS.into(), &0.into()), "{last}");
    // Each flow has a start and at least one acknowledgment of its three writes.
    assert!(last["records"].as_u64().unwrap() >= 2 * FLOWS as u64, "{last}");
    assert!(watching.output().status.success());
}

/// Cgroup of version 2, removed at the end of the test.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Option<Cgroup> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists());
        let folder = root?.join(name);
        std::fs::create_dir(&folder).ok()?;
        Some(Cgroup(folder))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The end of its processes may take a moment.
        assert!(within(Duration::from_secs(20), || std::fs::remove_dir(&self.0).is_ok()));
    }
}

/// Returns the window that the peer advertised with its first segment, as seen by the accepting socket.
fn first_window(namespace: &Namespace) -> u64 {
    let mut polling = Polling::new(Filter::default(), &[namespace.try_clone().unwrap()]).unwrap();
    let mut windows = Vec::new();
    let is_accepted = || {
        polling.poll(|record, _| windows.push((record.local.port(), record.snapshot.peer_window))).unwrap();
        windows.iter().any(|(port, _)| *port == PORT)
    };
    assert!(within(Duration::from_secs(20), is_accepted));
    windows.iter().find(|(port, _)| *port == PORT).unwrap().1
}

fn connections_of_a_container_are_limited_before_their_first_segment() {
    need_bpf();
    // Cgroups with the names that podman uses for a container and its monitor.
    let id = format!("{:016x}", 0x5eed_0000_0000_0000 + u64::from(std::process::id()));
    let [cgroup, monitor] = ["", "conmon-"].map(|part| Cgroup::new(&format!("libpod-{part}{id}.scope")));
    let (Some(cgroup), Some(_monitor)) = (cgroup, monitor) else {
        skip("no hierarchy of cgroups of version 2 to write to");
    };
    let (world, folder) = (TwoHosts::new(), TemporaryFolder::new("tcp-limit-cgroup"));
    let state = folder.join("state");
    let path = cgroup.0.to_str().unwrap();
    let state = state.to_str().unwrap();
    let options = ["--window", "9000B", "--cwnd", "7", "--state", state, "--every", "0.1"];
    let arguments = [&["limit", "--container", &id], &options[..]].concat();
    let (mut limiting, mut lines) = world.start(&arguments);
    assert!(lines.next().unwrap().unwrap().contains("0 connections and "));
    let listener = world.right.run(|| TcpListener::bind(("10.0.0.2", PORT)).unwrap()).unwrap();
    let mut command = Command::new("bash");
    let script = format!("echo $$ > {path}/cgroup.procs; exec 3<>/dev/tcp/10.0.0.2/{PORT}; read line <&3");
    command.args(["-c", &script]);
    let _client = TestProcess::spawn_in(&world.left, command);
    let mut stream = listener.accept().unwrap().0;
    let window = first_window(&world.right);
    assert!(window <= 9_000, "{window}");
    let row = lines.by_ref().map(Result::unwrap).find(|line| line.contains("> 10.0.0.2:7000")).unwrap();
    assert_eq!(limit(&row), "7");
    limiting.signal("-INT");
    assert!(lines.map_while(Result::ok).last().unwrap().contains("restored 1 connection"));
    assert!(limiting.output().status.success());
    // The limits were removed, and new connections are not limited.
    let query = ["limit", "--cgroup", path, "--window", "1G", "--for", "0.1", "--state", state];
    assert_eq!(limit(&text(&world.tcp(&query).stdout)), "-");
    stream.write_all(b"over\n").unwrap();
}

/// Returns the routes of a namespace in the format of ip(8).
fn routes(namespace: &Namespace) -> String {
    let mut command = Command::new("ip");
    command.args(["route", "show"]).stdout(Stdio::piped());
    text(&TestProcess::spawn_in(namespace, command).output().stdout)
}

fn a_route_limits_new_connections_until_the_end_of_the_command_or_clean() {
    need_bpf();
    let (world, folder) = (TwoHosts::new(), TemporaryFolder::new("tcp-limit-route"));
    let state = folder.join("state");
    let keep = ["--state", state.to_str().unwrap()];
    let options = ["limit", "--route", "10.0.0.2", "--cwnd", "11", "--window", "20000B"];
    let arguments = [&options[..], &keep].concat();
    let start = || {
        let (limiting, mut lines) = world.start(&arguments);
        assert!(lines.next().unwrap().unwrap().contains("connections to 10.0.0.2"));
        (limiting, lines)
    };
    let (limiting, lines) = start();
    let found = routes(&world.left);
    for part in ["10.0.0.2 dev eth0", "cwnd lock 11", "window 20000"] {
        assert!(found.contains(part), "{part}: {found}");
    }
    world.while_sending(|| {
        let window = first_window(&world.right);
        assert!(window <= 20_000, "{window}");
    });
    // The kernel caches the route's limit for the host when the first connection ends.
    let table = world.while_sending(|| {
        let query = ["limit", "--port", "7000", "--window", "1G", "--for", "0.1"];
        text(&world.tcp(&[&query[..], &keep].concat()).stdout)
    });
    assert_eq!(limit(&table), "11");
    // A second route conflicts with the first.
    let repeated = world.tcp(&arguments);
    assert_eq!(repeated.status.code(), Some(1), "{}", text(&repeated.stderr));
    assert!(text(&repeated.stderr).contains("ip route change 10.0.0.2"), "{}", text(&repeated.stderr));
    assert!(routes(&world.left).contains("cwnd lock 11"));
    stop(limiting, "-INT");
    assert!(lines.map_while(Result::ok).last().unwrap().contains("removed 1 route"));
    assert!(!routes(&world.left).contains("cwnd"), "{}", routes(&world.left));

    let (limiting, _lines) = start();
    stop(limiting, "-KILL");
    assert!(routes(&world.left).contains("cwnd lock 11"));
    assert_eq!(netstage_tcp_watch::clean::clean(&state).unwrap(), 1);
    assert!(!routes(&world.left).contains("cwnd"), "{}", routes(&world.left));
}

fn stop(mut process: TestProcess, signal: &str) {
    process.signal(signal);
    process.output();
}

fn a_gateway_limits_the_windows_advertised_through_it() {
    need_bpf();
    const LIMIT: u64 = 30_000;
    let (left, gateway, right) =
        (Namespace::new().unwrap(), Namespace::new().unwrap(), Namespace::new().unwrap());
    join((&left, "eth0", 1), (&gateway, "eth0", 2));
    join((&gateway, "eth1", 3), (&right, "eth0", 4));
    let ends = [
        (&left, "eth0", "10.0.0.1", Some("10.0.0.2")),
        (&gateway, "eth0", "10.0.0.2", None),
        (&gateway, "eth1", "10.0.1.2", None),
        (&right, "eth0", "10.0.1.1", Some("10.0.1.2")),
    ];
    for (namespace, link, own, gateway) in ends {
        let mut netlink = Netlink::open(namespace).unwrap();
        netlink.add_address(link, address(own), 24).unwrap();
        netlink.wait_until_ready(link).unwrap();
        if let Some(gateway) = gateway {
            netlink.add_route(&default_route(gateway, link)).unwrap();
        }
    }
    gateway.sysctl("net.ipv4.ip_forward", "1").unwrap();
    let command =
        ["tcp", "limit", "--gateway", "eth1", "--window", "30000B", "--port", "7000", "--every", "0.1"];
    let (mut limiting, mut lines) = start(&gateway, netstage(&command));
    assert!(lines.next().is_some_and(|line| line.unwrap().contains("lowered")));

    let listener = right.run(|| TcpListener::bind(("10.0.1.1", PORT)).unwrap()).unwrap();
    let mut stream = left.run(|| TcpStream::connect(("10.0.1.1", PORT)).unwrap()).unwrap();
    let number = left.number().unwrap() as u32;
    let filter = Filter { namespaces: vec![number], ..Filter::default() };
    let mut polling = Polling::new(filter, &[left.try_clone().unwrap()]).unwrap();
    let mut windows = Vec::new();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
        });
        for _ in 0..30 {
            stream.write_all(&[0; 100_000]).unwrap();
            thread::sleep(Duration::from_millis(10));
            polling.poll(|record, _| windows.push(record.snapshot.peer_window)).unwrap();
        }
        drop(stream);
        // All bytes arrive, so the checksums are correct.
        assert_eq!(receiver.join().unwrap(), 3_000_000);
    });
    // The window scale rounds up.
    assert!(windows.len() > 3 && windows.iter().all(|window| *window <= LIMIT + 2_048), "{windows:?}");
    assert!(windows.iter().any(|window| *window > LIMIT / 2), "{windows:?}");
    limiting.signal("-INT");
    let last = lines.map_while(Result::ok).last().unwrap();
    assert!(!last.contains("lowered window: 0,") && last.ends_with("of older connections: 0"), "{last}");
    assert!(limiting.output().status.success());
}

fn errors_are_reported() {
    need_bpf();
    let world = TwoHosts::new();
    for (arguments, code, part) in [
        (&["watch", "--process", "4194999"][..], 1, "no such process 4194999"),
        (&["watch", "--namespace", "no-such"], 1, "no namespace at /run/netns/no-such"),
        (&["watch", "--container", "0123456789ab"], 1, "no container"),
        (&["watch", "--cgroup", "no/such"], 1, "no cgroup"),
        (&["watch", "--address", "10.0.0.300"], 2, "is not an address"),
        (&["watch", "--interval", "1us"], 2, "expected 1ms or more"),
        (&["limit", "--port", "1"], 2, "no limit"),
        (&["limit", "--cwnd", "10"], 2, "this would limit every connection"),
        (&["limit", "--cwnd", "10", "--route", "192.0.2.1"], 1, "no route to 192.0.2.1"),
        (
            &["limit", "--cwnd", "10", "--route", "10.0.0.2", "--port", "1"],
            2,
            "cannot be combined with filters",
        ),
        (&["limit", "--gateway", "eth7", "--window", "30K"], 1, "no interface eth7"),
        (&["limit", "--gateway", "eth0", "--window", "30K", "--process", "1"], 1, "cannot filter by process"),
        (&["limit", "--cwnd", "10", "--process", "4194999"], 1, "no such process 4194999"),
    ] {
        let output = world.tcp(arguments);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {printed}");
        assert!(printed.contains(part), "{arguments:?}: {printed}");
    }
}

fn missing_privileges_are_named() {
    need_bpf();
    let nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
        command.arg(PROGRAM).args(["tcp", "watch", "--for", "0.2"]).args(arguments);
        command.output().unwrap()
    };
    let output = nobody(&["--source", "kernel"]);
    let printed = text(&output.stderr);
    if output.status.code() == Some(126) || output.status.code() == Some(127) {
        skip(format!("nobody may run the program here: {printed}"));
    }
    assert_eq!(output.status.code(), Some(4), "{printed}");
    assert!(printed.contains("CAP_BPF"), "{printed}");
    // By default the program falls back to polling, which needs no privileges.
    let output = nobody(&[]);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(printed.contains("CAP_BPF") && printed.contains("polls a second"), "{printed}");
}

netstage_harness::tests![
    events_are_printed_as_lines_and_a_record_is_written,
    a_flow_is_diagnosed_as_text_and_as_json,
    limits_end_with_the_command_or_by_clean,
    tracing_ends_with_the_command_or_by_clean,
    a_kernel_without_type_information_is_observed_by_tracing,
    reductions_are_inferred_without_their_tracepoint,
    the_command_ends_with_the_limited_process,
    no_event_of_ten_thousand_flows_is_lost,
    connections_of_a_container_are_limited_before_their_first_segment,
    a_route_limits_new_connections_until_the_end_of_the_command_or_clean,
    a_gateway_limits_the_windows_advertised_through_it,
    errors_are_reported,
    missing_privileges_are_named,
];
