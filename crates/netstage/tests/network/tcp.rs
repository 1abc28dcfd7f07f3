//! `netstage tcp`: connections between two namespaces, watched and limited by the program.

use crate::support::network::{address, default_route, join};
use crate::support::{Folder, PROGRAM, Process, netstage, text, within};
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

/// Namespaces, and programs in the kernel.
fn watching() {
    needs::namespaces();
    if let Err(obstacle) = Programs::load(Filter::default()) {
        skip(obstacle.to_string());
    }
}

/// Two joined namespaces.
struct World {
    left: Namespace,
    right: Namespace,
}

impl World {
    fn new() -> World {
        let (left, right) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        join((&left, "eth0", 1), (&right, "eth0", 2));
        for (namespace, own) in [(&left, "10.0.0.1"), (&right, "10.0.0.2")] {
            let mut netlink = Netlink::open(namespace).unwrap();
            netlink.add_address("eth0", address(own), 24).unwrap();
            netlink.wait_until_ready("eth0").unwrap();
        }
        World { left, right }
    }

    /// Sends a little every millisecond from left to right while `task` runs.
    fn while_sending<T>(&self, task: impl FnOnce() -> T) -> T {
        let listener = self.right.run(|| TcpListener::bind(("10.0.0.2", PORT)).unwrap()).unwrap();
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
        Process::spawn_in(&self.left, self.command(arguments)).output()
    }

    /// The command under way, and the lines it prints.
    fn begin(&self, arguments: &[&str]) -> (Process, Lines<BufReader<ChildStdout>>) {
        begin(&self.left, self.command(arguments))
    }
}

fn begin(namespace: &Namespace, command: Command) -> (Process, Lines<BufReader<ChildStdout>>) {
    let mut process = Process::spawn_in(namespace, command);
    let said = BufReader::new(process.child().stdout.take().unwrap()).lines();
    (process, said)
}

/// The window that limits the connection, as the command's table has it: `-` where nothing does.
fn limit(table: &str) -> &str {
    let row = table.lines().rfind(|line| line.contains("> 10.0.0.2:7000"));
    row.and_then(|row| row.split_whitespace().nth(4)).unwrap_or_else(|| panic!("{table}"))
}

/// The program with a mount of its own before it.
fn after_mount(mount: &str, arguments: &str) -> Command {
    let script = format!("mount {mount} && exec {PROGRAM} tcp watch {arguments}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn every_event_is_a_line_and_a_record_is_kept() {
    watching();
    let (world, folder) = (World::new(), Folder::new("tcp-watch"));
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
    assert!(limited, "twenty segments a millisecond leave the window open");

    let report = |arguments: &[&str]| netstage(&["report"]).arg(&out).args(arguments).output().unwrap();
    let json: Value = serde_json::from_slice(&report(&["--json"]).stdout).unwrap();
    let names: Vec<&str> =
        json["figures"].as_array().unwrap().iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    for figure in ["windows-1", "throughput-1", "causes", "limits"] {
        assert!(names.contains(&figure), "{names:?}");
    }
    let said = text(&report(&[]).stdout);
    // A window that never changed is followed by nothing; round trips always differ.
    for part in ["> 10.0.0.2:7000", "What throughput follows", "flow.round_trip"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(Path::new(&out).join("report.html").exists());
    // Without programs in the kernel there is less, of the same kind.
    let arguments = ["watch", "--port", "7000", "--by", "polling", "--for", "0.5", "--ndjson"];
    let output = world.while_sending(|| world.tcp(&arguments));
    let said = text(&output.stdout);
    assert!(said.contains("\"remote\":\"10.0.0.2:7000\"") && said.contains("acknowledged"), "{said}");
    assert!(text(&output.stderr).contains("looks a second"), "{}", text(&output.stderr));
    // The same folder is not written to again, and other namespaces' connections are not told of.
    let again = world.tcp(&["watch", "--for", "0.1", "--out", out.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    let elsewhere = ["watch", "--namespace", &namespace, "--for", "0.2", "--ndjson"];
    let output = world.while_sending(|| world.tcp(&elsewhere));
    assert!(!text(&output.stdout).contains("10.0.0.2:7000"));
}

fn limits_hold_while_the_command_runs_and_clean_puts_back_those_of_a_killed_one() {
    watching();
    let (world, folder) = (World::new(), Folder::new("tcp-limit"));
    let state = folder.join("state");
    let state = state.to_str().unwrap();
    let windows = |limit: &[&str]| -> String {
        let output =
            world.tcp(&[&["limit", "--port", "7000", "--state", state, "--for", "0.6"], limit].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    world.while_sending(|| {
        let said = windows(&["--cwnd", "7", "--every", "0.2"]);
        assert_eq!(limit(&said), "7", "{said}");
        assert!(said.contains("put back"), "{said}");
        // Nothing is left of it.
        assert_eq!(limit(&windows(&["--window", "1G"])), "-");

        let arguments = ["limit", "--port", "7000", "--state", state, "--cwnd", "9"];
        let mut killed = Process::spawn_in(&world.left, world.command(&arguments));
        let noted =
            || std::fs::read_dir(state).unwrap().flatten().any(|file| file.metadata().unwrap().len() > 0);
        assert!(within(Duration::from_secs(20), noted));
        killed.signal("-KILL");
        killed.output();
        assert!(noted());
        let cleaned = netstage_tcp_watch::clean::clean(Path::new(state)).unwrap();
        assert!(cleaned > 0);
        assert!(!noted());
        assert_eq!(limit(&windows(&["--window", "1G"])), "-");
    });
}

fn tracing_goes_with_the_command_or_by_clean() {
    watching();
    let world = World::new();
    let arguments = ["watch", "--port", "7000", "--by", "tracing", "--ndjson"];
    let output = world.while_sending(|| world.tcp(&[&arguments[..], &["--for", "1"]].concat()));
    let (said, noted) = (text(&output.stdout), text(&output.stderr));
    if output.status.code() == Some(4) {
        skip(noted);
    }
    assert!(output.status.success() && noted.contains("by tracing: what is unsent"), "{noted}");
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, events) = lines.split_last().unwrap();
    assert_eq!(last["lost"], 0, "{last}");
    let acks: Vec<&Value> = events
        .iter()
        .filter(|event| event["remote"] == "10.0.0.2:7000" && event["event"] == "acknowledged")
        .collect();
    // Far more than looks at the list of sockets would have told, in the order of time.
    assert!(acks.len() > 60, "{}", acks.len());
    let number = |event: &Value, name: &str| event[name].as_u64().unwrap();
    assert!(acks.windows(2).all(|pair| number(pair[0], "time") <= number(pair[1], "time")));
    let acknowledged: Vec<u64> = acks.iter().map(|event| number(event, "acknowledged")).collect();
    assert!(acknowledged.is_sorted() && acknowledged.last() > acknowledged.first(), "{acknowledged:?}");
    assert!(acks.iter().all(|event| number(event, "cwnd") > 0 && number(event, "peer_window") > 0));

    // Nothing is left of it, what runs is left alone, and what was killed is removed.
    let (mut killed, mut heard) = world.begin(&arguments);
    world.while_sending(|| assert!(heard.next().unwrap().unwrap().contains("began")));
    assert_eq!(tracefs::clean(), 0);
    killed.signal("-KILL");
    killed.output();
    assert_eq!(tracefs::clean(), 1);
    assert_eq!(tracefs::clean(), 0);
}

fn a_kernel_without_type_information_is_watched_by_its_tracing() {
    watching();
    let world = World::new();
    // The types are hidden from the program alone.
    let without = |arguments: &str| {
        let command = after_mount("-t tmpfs none /sys/kernel/btf", arguments);
        world.while_sending(|| Process::spawn_in(&world.left, command).output())
    };
    let output = without("--by kernel --for 0.2");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("CONFIG_DEBUG_INFO_BTF"), "{said}");
    let output = without("--port 7000 --for 0.5 --ndjson");
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("CONFIG_DEBUG_INFO_BTF"), "{said}");
    assert!(said.contains("by tracing: ") || said.contains("looks a second"), "{said}");
    assert!(text(&output.stdout).contains("\"remote\":\"10.0.0.2:7000\""));
}

fn a_kernel_without_the_tracepoint_of_turns_tells_what_two_records_suggest() {
    const TYPES: &str = "/sys/kernel/btf/vmlinux";
    watching();
    let (world, folder) = (World::new(), Folder::new("tcp-tracepoint"));
    // As before Linux 5.19: its type goes by another name, for the program alone.
    let mut types = std::fs::read(TYPES).unwrap();
    let name = b"btf_trace_tcp_cong_state_set\0";
    let at = types.windows(name.len()).position(|bytes| bytes == name).unwrap();
    types[at] = b'x';
    let file = folder.join("types");
    std::fs::write(&file, types).unwrap();
    // A queue of the device that is too small for a window, again and again.
    world.left.sysctl("net.ipv4.tcp_congestion_control", "reno").unwrap();
    let mut queue = Command::new("tc");
    queue.args("qdisc add dev eth0 root tbf rate 60mbit burst 15000 limit 6000".split(' '));
    assert!(spawn_in(&world.left, queue).unwrap().wait().unwrap().success());
    let mount = format!("--bind {} {TYPES}", file.display());
    let command = after_mount(&mount, "--by kernel --port 7000 --for 2 --ndjson");
    let output = world.while_sending(|| Process::spawn_in(&world.left, command).output());
    let (told, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("not told here: tcp_cong_state_set, which tells reductions"), "{said}");
    assert_eq!(said.matches("not told here").count(), 1, "the others run: {said}");
    assert!(told.contains("\"event\":\"acknowledged\"") && told.contains("local-device"), "{told}");
}

fn a_process_that_exits_ends_what_limits_it() {
    watching();
    let (world, folder) = (World::new(), Folder::new("tcp-limit-exit"));
    let state = folder.join("state");
    let listener = world.right.run(|| TcpListener::bind(("10.0.0.2", PORT)).unwrap()).unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", &format!("exec 3<>/dev/tcp/10.0.0.2/{PORT}; read line <&3")]);
    let mut client = Process::spawn_in(&world.left, command);
    let _accepted = listener.accept().unwrap();
    let process = client.child().id().to_string();
    let arguments =
        ["limit", "--process", &process, "--cwnd", "9", "--every", "0.1", "--state", state.to_str().unwrap()];
    let (limiting, said) = world.begin(&arguments);
    let mut rows = said.map_while(Result::ok).filter(|line| line.contains("> 10.0.0.2:7000"));
    assert!(rows.next().is_some());
    client.signal("-KILL");
    client.output();
    // The view ends: there is nobody to limit.
    let _ = rows.last();
    assert!(limiting.output().status.success());
    assert_eq!(std::fs::read_dir(&state).unwrap().count(), 0, "nothing is noted any more");
}

fn of_ten_thousand_flows_nothing_is_lost() {
    const FLOWS: usize = 10_000;
    watching();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if most < 2 * FLOWS as u64 + 1_000 {
        skip(format!("{most} open files at most"));
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let world = World::new();
    let mut command = world.command(&["watch", "--port", "7000", "--namespace"]);
    command.args(["/proc/self/ns/net", "--ndjson"]);
    let (mut watching, mut said) = begin(&world.left, command);
    let listener = world.right.run(|| TcpListener::bind(("10.0.0.2", PORT)).unwrap()).unwrap();
    let connect = || world.left.run(|| TcpStream::connect(("10.0.0.2", PORT)).unwrap()).unwrap();
    // The first one shows that it watches.
    let mut first = connect();
    let mut flows = vec![listener.accept().unwrap().0];
    let heard = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !heard.load(Ordering::Relaxed) && first.write_all(b"0").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        assert!(said.next().unwrap().unwrap().contains("began"));
        heard.store(true, Ordering::Relaxed);
    });
    let last = thread::scope(|scope| {
        let last = scope.spawn(|| said.map_while(Result::ok).last().unwrap());
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
    // Each began, and wrote three times, which was acknowledged each time or at once.
    assert!(last["records"].as_u64().unwrap() >= 2 * FLOWS as u64, "{last}");
    assert!(watching.output().status.success());
}

/// A cgroup of version 2 that goes with its test; none where there is no such hierarchy.
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
        // Its processes may take a moment to go.
        assert!(within(Duration::from_secs(20), || std::fs::remove_dir(&self.0).is_ok()));
    }
}

/// The window a peer advertised with its first segment, as the socket that took its connection sees it.
fn first_window(namespace: &Namespace) -> u64 {
    let mut polling = Polling::new(Filter::default(), &[namespace.try_clone().unwrap()]).unwrap();
    let mut windows = Vec::new();
    let taken = || {
        polling.poll(|record, _| windows.push((record.local.port(), record.snapshot.peer_window))).unwrap();
        windows.iter().any(|(port, _)| *port == PORT)
    };
    assert!(within(Duration::from_secs(20), taken));
    windows.iter().find(|(port, _)| *port == PORT).unwrap().1
}

fn connections_of_a_container_are_limited_before_their_first_segment() {
    watching();
    // As podman names them: the container's, and that of its monitor.
    let id = format!("{:016x}", 0x5eed_0000_0000_0000 + u64::from(std::process::id()));
    let [cgroup, monitor] = ["", "conmon-"].map(|part| Cgroup::new(&format!("libpod-{part}{id}.scope")));
    let (Some(cgroup), Some(_monitor)) = (cgroup, monitor) else {
        skip("no hierarchy of cgroups of version 2 to write to");
    };
    let (world, folder) = (World::new(), Folder::new("tcp-limit-cgroup"));
    let state = folder.join("state");
    let path = cgroup.0.to_str().unwrap();
    let state = state.to_str().unwrap();
    let options = ["--window", "9000B", "--cwnd", "7", "--state", state, "--every", "0.1"];
    let arguments = [&["limit", "--container", &id], &options[..]].concat();
    let (mut limiting, mut said) = world.begin(&arguments);
    assert!(said.next().unwrap().unwrap().contains("0 connections limited"));
    let listener = world.right.run(|| TcpListener::bind(("10.0.0.2", PORT)).unwrap()).unwrap();
    let mut command = Command::new("bash");
    let script = format!("echo $$ > {path}/cgroup.procs; exec 3<>/dev/tcp/10.0.0.2/{PORT}; read line <&3");
    command.args(["-c", &script]);
    let _client = Process::spawn_in(&world.left, command);
    let mut stream = listener.accept().unwrap().0;
    let window = first_window(&world.right);
    assert!(window <= 9_000, "{window}");
    let row = said.by_ref().map(Result::unwrap).find(|line| line.contains("> 10.0.0.2:7000")).unwrap();
    assert_eq!(limit(&row), "7");
    limiting.signal("-INT");
    assert!(said.map_while(Result::ok).last().unwrap().contains("put back 1 connection"));
    assert!(limiting.output().status.success());
    // Nothing is left of it, and what begins now is free.
    let look = ["limit", "--cgroup", path, "--window", "1G", "--for", "0.1", "--state", state];
    assert_eq!(limit(&text(&world.tcp(&look).stdout)), "-");
    stream.write_all(b"over\n").unwrap();
}

/// The routes of a namespace, as ip(8) has them.
fn routes(namespace: &Namespace) -> String {
    let mut command = Command::new("ip");
    command.args(["route", "show"]).stdout(Stdio::piped());
    text(&Process::spawn_in(namespace, command).output().stdout)
}

fn a_route_limits_what_begins_and_goes_with_the_command_or_by_clean() {
    watching();
    let (world, folder) = (World::new(), Folder::new("tcp-limit-route"));
    let state = folder.join("state");
    let keep = ["--state", state.to_str().unwrap()];
    let options = ["limit", "--route", "10.0.0.2", "--cwnd", "11", "--window", "20000B"];
    let arguments = [&options[..], &keep].concat();
    let begin = || {
        let (limiting, mut said) = world.begin(&arguments);
        assert!(said.next().unwrap().unwrap().contains("connections to 10.0.0.2"));
        (limiting, said)
    };
    let (limiting, said) = begin();
    let there = routes(&world.left);
    for part in ["10.0.0.2 dev eth0", "cwnd lock 11", "window 20000"] {
        assert!(there.contains(part), "{part}: {there}");
    }
    world.while_sending(|| {
        let window = first_window(&world.right);
        assert!(window <= 20_000, "{window}");
    });
    // The kernel remembers the route's limit with the host, as the first connection ends.
    let looked = world.while_sending(|| {
        let look = ["limit", "--port", "7000", "--window", "1G", "--for", "0.1"];
        text(&world.tcp(&[&look[..], &keep].concat()).stdout)
    });
    assert_eq!(limit(&looked), "11");
    // Another one would be in its way.
    let again = world.tcp(&arguments);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("ip route change 10.0.0.2"), "{}", text(&again.stderr));
    assert!(routes(&world.left).contains("cwnd lock 11"));
    limiting_ends(limiting, "-INT");
    assert!(said.map_while(Result::ok).last().unwrap().contains("took away 1 route"));
    assert!(!routes(&world.left).contains("cwnd"), "{}", routes(&world.left));

    let (limiting, _said) = begin();
    limiting_ends(limiting, "-KILL");
    assert!(routes(&world.left).contains("cwnd lock 11"));
    assert_eq!(netstage_tcp_watch::clean::clean(&state).unwrap(), 1);
    assert!(!routes(&world.left).contains("cwnd"), "{}", routes(&world.left));
}

fn limiting_ends(mut limiting: Process, signal: &str) {
    limiting.signal(signal);
    limiting.output();
}

fn a_gateway_limits_what_hosts_advertise_through_it() {
    watching();
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
    for (namespace, link, own, by) in ends {
        let mut netlink = Netlink::open(namespace).unwrap();
        netlink.add_address(link, address(own), 24).unwrap();
        netlink.wait_until_ready(link).unwrap();
        if let Some(by) = by {
            netlink.add_route(&default_route(by, link)).unwrap();
        }
    }
    gateway.sysctl("net.ipv4.ip_forward", "1").unwrap();
    let command =
        ["tcp", "limit", "--gateway", "eth1", "--window", "30000B", "--port", "7000", "--every", "0.1"];
    let (mut limiting, mut said) = begin(&gateway, netstage(&command));
    assert!(said.next().is_some_and(|line| line.unwrap().contains("lowered")));

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
        // All of it arrives: checksums are right.
        assert_eq!(receiver.join().unwrap(), 3_000_000);
    });
    // The window scale rounds up.
    assert!(windows.len() > 3 && windows.iter().all(|window| *window <= LIMIT + 2_048), "{windows:?}");
    assert!(windows.iter().any(|window| *window > LIMIT / 2), "{windows:?}");
    limiting.signal("-INT");
    let last = said.map_while(Result::ok).last().unwrap();
    assert!(!last.contains("lowered: 0,") && last.ends_with("began before: 0"), "{last}");
    assert!(limiting.output().status.success());
}

fn what_is_wrong_is_said() {
    watching();
    let world = World::new();
    for (arguments, code, part) in [
        (&["watch", "--process", "4194999"][..], 1, "there is no process 4194999"),
        (&["watch", "--namespace", "no-such"], 1, "no namespace at /run/netns/no-such"),
        (&["watch", "--container", "0123456789ab"], 1, "no container"),
        (&["watch", "--cgroup", "no/such"], 1, "no cgroup"),
        (&["watch", "--address", "10.0.0.300"], 2, "is no address"),
        (&["watch", "--interval", "1us"], 2, "expected 1ms or more"),
        (&["limit", "--port", "1"], 2, "nothing to limit"),
        (&["limit", "--cwnd", "10"], 2, "say which"),
        (&["limit", "--cwnd", "10", "--route", "192.0.2.1"], 1, "no way to 192.0.2.1"),
        (&["limit", "--cwnd", "10", "--route", "10.0.0.2", "--port", "1"], 2, "a route knows no"),
        (&["limit", "--gateway", "eth7", "--window", "30K"], 1, "no interface eth7"),
        (&["limit", "--gateway", "eth0", "--window", "30K", "--process", "1"], 1, "knows no processes"),
        (&["limit", "--cwnd", "10", "--process", "4194999"], 1, "there is no process 4194999"),
    ] {
        let output = world.tcp(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}

fn who_may_not_is_told_what_it_takes() {
    watching();
    let nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
        command.arg(PROGRAM).args(["tcp", "watch", "--for", "0.2"]).args(arguments);
        command.output().unwrap()
    };
    let output = nobody(&["--by", "kernel"]);
    let said = text(&output.stderr);
    if output.status.code() == Some(126) || output.status.code() == Some(127) {
        skip(format!("nobody may run the program here: {said}"));
    }
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("CAP_BPF"), "{said}");
    // Left to itself it tells what anybody may see.
    let output = nobody(&[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("CAP_BPF") && said.contains("looks a second"), "{said}");
}

netstage_harness::tests![
    every_event_is_a_line_and_a_record_is_kept,
    limits_hold_while_the_command_runs_and_clean_puts_back_those_of_a_killed_one,
    tracing_goes_with_the_command_or_by_clean,
    a_kernel_without_type_information_is_watched_by_its_tracing,
    a_kernel_without_the_tracepoint_of_turns_tells_what_two_records_suggest,
    a_process_that_exits_ends_what_limits_it,
    of_ten_thousand_flows_nothing_is_lost,
    connections_of_a_container_are_limited_before_their_first_segment,
    a_route_limits_what_begins_and_goes_with_the_command_or_by_clean,
    a_gateway_limits_what_hosts_advertise_through_it,
    what_is_wrong_is_said,
    who_may_not_is_told_what_it_takes,
];
