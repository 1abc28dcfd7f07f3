//! Tests of namespaces: their contents, their isolation, and their removal.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_harness::{needs, skip, within};
use netstage_host::netns::multicast::MulticastRoutes;
use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_host::netns::{Namespace, ethtool, spawn_in};
use pair::{LEFT_MAC, Pair, RIGHT_MAC};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Test timeout, exceeded only by a broken program.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the kernel's name of a namespace: `net:[4026532000]`.
fn identity(namespace: &Namespace) -> String {
    let link = format!("/proc/self/fd/{}", namespace.as_fd().as_raw_fd());
    fs::read_link(link).unwrap().to_string_lossy().into_owned()
}

/// Returns whether a process is in this namespace or holds it open.
fn is_held(identity: &str) -> bool {
    let is_same = |path: std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy() == identity)
    };
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    processes.filter(|path| path.join("ns").exists()).any(|process| {
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        is_same(process.join("ns/net")) || files.map(|file| file.path()).any(is_same)
    })
}

fn udp(namespace: &Namespace, address: &str) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn datagrams_pass_between_two_namespaces() {
    let pair = Pair::new(VethOptions::default());
    for (left, right) in [("10.1.0.0:7", "10.1.0.1:7"), ("[fd00::]:7", "[fd00::1]:7")] {
        let (sender, receiver) = (udp(&pair.left, left), udp(&pair.right, right));
        sender.send_to(b"hello", right).unwrap();
        let mut bytes = [0; 16];
        let (length, from) = receiver.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..length], from), (&b"hello"[..], left.parse().unwrap()));
    }
    let statistics = Netlink::open(&pair.right).unwrap().link("right0").unwrap().statistics;
    // Only the sent datagrams have been transmitted: one IPv4 and one IPv6.
    assert_eq!((statistics.received_packets, statistics.sent_packets), (2, 0));
}

fn links_have_the_requested_properties() {
    let pair = Pair::new(VethOptions { mtu: 9000, ..VethOptions::default() });
    let mut netlink = Netlink::open(&pair.left).unwrap();
    let names: Vec<String> = netlink.links().unwrap().into_iter().map(|link| link.name).collect();
    assert_eq!(names, ["lo", "left0"]);
    let link = netlink.link("left0").unwrap();
    assert_eq!((link.mtu, link.mac, link.up), (9000, Some(LEFT_MAC), true));
    assert_eq!(ethtool::enabled_offloads(&pair.left, "left0").unwrap(), Vec::<String>::new());
    netlink.set_down("left0").unwrap();
    assert!(!netlink.link("left0").unwrap().up);
    netlink.delete_link("left0").unwrap();
    let error = Netlink::open(&pair.right).unwrap().link("right0").unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(libc::ENODEV), "{error}");
}

fn routes_apply_their_gateway_and_metrics() {
    let pair = Pair::new(VethOptions::default());
    for (namespace, link, own, gateway, far) in [
        (&pair.left, "left0", "192.0.2.1", "10.1.0.1", "192.0.2.2"),
        (&pair.right, "right0", "192.0.2.2", "10.1.0.0", "192.0.2.1"),
        (&pair.left, "left0", "2001:db8::1", "fd00::1", "2001:db8::2"),
        (&pair.right, "right0", "2001:db8::2", "fd00::", "2001:db8::1"),
    ] {
        let [own, gateway, far] = [own, gateway, far].map(|text| text.parse::<IpAddr>().unwrap());
        let length = if own.is_ipv4() { 32 } else { 128 };
        let mut netlink = Netlink::open(namespace).unwrap();
        netlink.add_address("lo", own, length).unwrap();
        let metrics = Metrics {
            mtu: Some(1400),
            window: Some(65_535),
            locked_window: Some(90),
            initial_window: Some(4),
            initial_receive_window: Some(20),
            rto_min_ms: Some(1000),
            ecn: true,
            congestion_control: Some("reno".into()),
            rank: Some(7),
        };
        let destination = (far, length);
        let preferred_source = Some(own);
        let route = StaticRoute { destination, gateway: Some(gateway), link, preferred_source, metrics };
        netlink.add_route(&route).unwrap();
        let error = netlink.add_route(&route).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert!(error.to_string().contains(&format!("add route {far}/{length} via {gateway} on {link}")));
    }
    for address in ["192.0.2.2:9", "[2001:db8::2]:9"] {
        let listener = pair.right.run(|| TcpListener::bind(address)).unwrap().unwrap();
        let connect = || TcpStream::connect_timeout(&address.parse().unwrap(), TIMEOUT);
        let stream = pair.left.run(connect).unwrap().unwrap();
        let (_, from) = listener.accept().unwrap();
        assert_eq!(from.ip(), stream.local_addr().unwrap().ip());
        assert_ne!(stream.local_addr().unwrap().ip().to_string(), "10.1.0.0", "the preferred source is used");
        let algorithm = socket_option_text(&stream, libc::TCP_CONGESTION);
        assert_eq!(algorithm, "reno");
    }
}

#[allow(unsafe_code)]
fn socket_option_text(stream: &TcpStream, option: libc::c_int) -> String {
    let mut bytes = [0_u8; 16];
    let mut length = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `bytes`.
    let answer = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            bytes.as_mut_ptr().cast(),
            &mut length,
        )
    };
    assert_eq!(answer, 0);
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_string()
}

fn parameters_are_set_only_in_the_namespace() {
    needs::namespaces();
    let (host, inside) = (Namespace::of_this_thread().unwrap(), Namespace::new().unwrap());
    let before = host.sysctl_value("net.ipv4.ip_default_ttl").unwrap();
    inside.sysctl("net.ipv4.ip_default_ttl", "33").unwrap();
    for (name, value) in [
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.icmp_ratelimit", "0"),
        ("net.ipv4.tcp_ecn", "1"),
        ("net.ipv6.conf.default.accept_dad", "0"),
    ] {
        inside.sysctl(name, value).unwrap();
        assert_eq!(inside.sysctl_value(name).unwrap(), value, "{name}");
    }
    assert_eq!(inside.sysctl_value("net.ipv4.ip_default_ttl").unwrap(), "33");
    assert_eq!(host.sysctl_value("net.ipv4.ip_default_ttl").unwrap(), before);
    let error = inside.sysctl("net.ipv4.no_such_thing", "1").unwrap_err();
    assert!(error.to_string().contains("net.ipv4.no_such_thing"), "{error}");
}

fn a_panic_in_a_namespace_reaches_the_caller() {
    needs::namespaces();
    let namespace = Namespace::new().unwrap();
    let identity = identity(&namespace);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let moved = namespace;
        moved.run(|| panic!("requested panic")).unwrap();
    }));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"requested panic"));
    assert!(within(TIMEOUT, || !is_held(&identity)), "the namespace still exists");
}

fn an_error_names_the_request() {
    needs::namespaces();
    let namespace = Namespace::new().unwrap();
    let error = Netlink::open(&namespace).unwrap().set_up("eth7").unwrap_err();
    assert!(error.to_string().contains("eth7"), "{error}");
    let end = |name| VethEnd { namespace: &namespace, name, mac: RIGHT_MAC };
    let error = create_veth(end("same"), end("same"), VethOptions::default()).unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists, "{error}");
    let error = ethtool::disable_offloads(&namespace, "a name longer than any interface's").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

fn a_child_runs_in_the_namespace_and_outlives_the_calling_thread() {
    needs::namespaces();
    let namespace = Namespace::new().unwrap();
    // The calling thread ends; the child lives on.
    let start = || {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        spawn_in(&namespace, command).unwrap()
    };
    let mut child = std::thread::scope(|scope| scope.spawn(start).join()).unwrap();
    let child_namespace = fs::read_link(format!("/proc/{}/ns/net", child.id())).unwrap();
    assert_eq!(child_namespace.to_string_lossy(), identity(&namespace));
    child.stdin.take().unwrap().write_all(b"alive").unwrap();
    let mut answer = String::new();
    child.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "alive");
    assert!(child.wait().unwrap().success());
    let error = spawn_in(&namespace, Command::new("/no/such/program")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

/// Helper of another test: creates two namespaces with a child and waits to be killed.
fn stage_and_wait() {
    if std::env::var_os("NETSTAGE_TEST_STAGE").is_none() {
        skip("helper of another test");
    }
    let pair = Pair::new(VethOptions::default());
    let mut command = Command::new("sleep");
    command.arg("600");
    let mut child = spawn_in(&pair.right, command).unwrap();
    println!("\nstaged {} {} {}", identity(&pair.left), identity(&pair.right), child.id());
    child.wait().unwrap();
}

fn nothing_remains_after_kill_9() {
    needs::namespaces();
    let mut stage = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stage_and_wait", "--ignored", "--nocapture"])
        .env("NETSTAGE_TEST_STAGE", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(stage.stdout.take().unwrap()).lines();
    let staged = lines.find_map(|line| line.unwrap().strip_prefix("staged ").map(String::from)).unwrap();
    let [left, right, child] = staged.split(' ').collect::<Vec<_>>().try_into().unwrap();
    assert!(is_held(left) && is_held(right));
    let mut host = Netlink::open(&Namespace::of_this_thread().unwrap()).unwrap();
    let is_of_stage =
        |link: &netstage_host::netns::netlink::NetworkLink| ["left0", "right0"].contains(&link.name.as_str());
    assert!(!host.links().unwrap().iter().any(is_of_stage), "no link of the stage exists on the host");
    stage.kill().unwrap();
    stage.wait().unwrap();
    let is_gone = || {
        let state = fs::read_to_string(format!("/proc/{child}/stat"));
        state.is_err() || state.is_ok_and(|text| text.contains(") Z"))
    };
    assert!(within(TIMEOUT, is_gone), "the child still runs");
    assert!(within(TIMEOUT, || !is_held(left) && !is_held(right)), "the namespaces still exist");
    assert!(!host.links().unwrap().iter().any(is_of_stage));
}

fn multicast_routes_belong_to_the_namespace_and_end_on_drop() {
    let pair = Pair::new(VethOptions::default());
    let mut netlink = Netlink::open(&pair.left).unwrap();
    let [from, to] = ["lo", "left0"].map(|name| netlink.link(name).unwrap().index);
    let lines_of = |namespace: &Namespace, file: &'static str| {
        let text = namespace.run(|| fs::read_to_string(format!("/proc/thread-self/net/{file}"))).unwrap();
        text.unwrap_or_default().lines().skip(1).map(str::to_owned).collect::<Vec<String>>()
    };
    for (source, group, links, routes) in [
        ("10.1.0.0", "239.1.1.1", "ip_mr_vif", "ip_mr_cache"),
        ("fd00::", "ff18::1", "ip6_mr_vif", "ip6_mr_cache"),
    ] {
        let (source, group): (IpAddr, IpAddr) = (source.parse().unwrap(), group.parse().unwrap());
        let result = MulticastRoutes::open(&pair.left, group);
        if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(nix::libc::ENOPROTOOPT)) {
            skip(format!("this kernel does not forward {group}"));
        }
        let mut routes_value = result.unwrap();
        routes_value.add(source, group, from, &[to]).unwrap();
        assert_eq!((lines_of(&pair.left, links).len(), lines_of(&pair.left, routes).len()), (2, 1));
        assert!(lines_of(&pair.left, links).iter().any(|line| line.contains("left0")));
        let error = MulticastRoutes::open(&pair.left, group).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "only one process may forward");
        let other = if group.is_ipv4() { "ff18::1" } else { "239.1.1.1" };
        assert!(routes_value.add(source, other.parse().unwrap(), from, &[to]).is_err());
        assert_eq!(lines_of(&pair.right, links), Vec::<String>::new());
        drop(routes_value);
        assert_eq!((lines_of(&pair.left, links), lines_of(&pair.left, routes)), (Vec::new(), Vec::new()));
    }
}

netstage_harness::tests![
    datagrams_pass_between_two_namespaces,
    links_have_the_requested_properties,
    routes_apply_their_gateway_and_metrics,
    parameters_are_set_only_in_the_namespace,
    a_panic_in_a_namespace_reaches_the_caller,
    an_error_names_the_request,
    a_child_runs_in_the_namespace_and_outlives_the_calling_thread,
    #[ignore = "started by the test of kill -9"]
    stage_and_wait,
    nothing_remains_after_kill_9,
    multicast_routes_belong_to_the_namespace_and_end_on_drop,
];
netstage_harness::main![self];
