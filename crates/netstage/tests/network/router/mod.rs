//! Tests of two routers in namespaces: hosts behind them communicate through an LSP, with and without the fast path,
//! with routes from the kernel and from files.

pub mod answers;
pub mod bfd;
pub mod bypass;
pub mod changes;
pub mod freertr;
pub mod kernel;
pub mod killed;
pub mod limits;
mod network;
pub mod output;
pub mod rsvp;

use self::network::{TIMEOUT, TwoSites, counted, interface, label, route, socket, state};
use crate::support::network::address;
use crate::support::{TemporaryFolder, TestProcess, as_service, output_text};
use netstage_host::netns::Netlink;
use netstage_router::daemon::reload;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

fn test_sites(fast_path: &str) {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new(&format!("router-{fast_path}"));
    let mut routers = world.start_both(&folder, &format!("fast_path = \"{fast_path}\""));
    world.transfer();
    let state = state(&folder, 0);
    assert_eq!(state.fast_path, fast_path != "off");
    if state.fast_path {
        // All packets except those sent before address resolution.
        let (pushed, popped) = (counted(&state, "kernel", "pushed"), counted(&state, "kernel", "popped"));
        assert!(pushed > 700 && popped > 700, "{pushed} {popped}");
        assert!(counted(&state, "program", "forwarded") < 100);
        let label = label(&folder, 0, 300).unwrap();
        // The label was queried later, when more packets may have passed.
        assert!(label.to == "pop" && label.packets.is_some_and(|packets| packets >= popped), "{label:?}");
    } else {
        assert!(counted(&state, "program", "forwarded") > 1400);
    }
    let to = |prefix| route(&folder, 0, prefix).unwrap().to;
    assert_eq!(to("10.0.1.0/24"), "via 192.0.2.2 dev core0 push 301");
    assert_eq!(to("10.0.0.0/24"), "dev edge0", "route of the kernel");
    assert!(state.neighbors.iter().any(|neighbor| neighbor.address == "192.0.2.2" && neighbor.mac.is_some()));

    // The kernel does not forward while the router runs, and its setting is restored.
    assert_eq!(world.forwards(), "0");
    routers[0].signal("-TERM");
    let [near, _far] = routers;
    let output = near.output();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("ready; control socket"), "{stderr}");
    assert_eq!(world.forwards(), "1");
    assert!(!socket(&folder, 0).exists());
}

fn sites_communicate_by_the_fast_path() {
    test_sites("auto");
}

fn sites_communicate_by_the_slow_path() {
    test_sites("off");
}

/// A host sends from an address of nobody, from one behind the other router, and from its own.
fn test_sources(fast_path: &str) {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new(&format!("router-sources-{fast_path}"));
    let head = |check: &str| format!("fast_path = \"{fast_path}\"\n{check} = [\"edge0\"]");
    let [mut near, _far] = world.start_both(&folder, &head("urpf_strict"));
    world.transfer();
    let (nowhere, elsewhere) = ("203.0.113.7", "10.0.1.77");
    for source in [nowhere, elsewhere] {
        Netlink::open(&world.hosts[0]).unwrap().add_address("lo", address(source), 32).unwrap();
    }
    let arrives = |source: &str| {
        let [_, far] = world.sockets();
        let from = world.hosts[0].run(|| UdpSocket::bind((address(source), 0))).unwrap().unwrap();
        (0..10).for_each(|_| _ = from.send_to(source.as_bytes(), "10.0.1.2:7").unwrap());
        // Packets from the previous source may arrive late.
        let mut bytes = [0; 16];
        std::iter::from_fn(|| far.recv(&mut bytes).ok().map(|length| &bytes[..length] == source.as_bytes()))
            .any(|is_from_here| is_from_here)
    };
    let dropped = || {
        let counters = state(&folder, 0).counters;
        counters
            .iter()
            .filter(|counter| counter.name == "spoofed")
            .map(|counter| counter.packets)
            .sum::<u64>()
    };
    assert!(arrives("10.0.0.2") && !arrives(nowhere) && !arrives(elsewhere));
    assert_eq!(dropped(), 20);
    if fast_path == "auto" {
        assert_eq!(counted(&state(&folder, 0), "kernel", "spoofed"), 20);
    }
    // A loose check only asks whether there is a route.
    world.configure(&folder, 0, &head("urpf_loose"), "");
    assert_eq!(reload(&socket(&folder, 0)).unwrap(), ["interface edge0 changed"]);
    assert!(arrives("10.0.0.2") && arrives(elsewhere) && !arrives(nowhere));
    assert_eq!(dropped(), 30);
    world.configure(&folder, 0, &head("urpf_loose").replace("[\"edge0\"]", "[]"), "");
    reload(&socket(&folder, 0)).unwrap();
    assert!(arrives(nowhere));
    near.signal("-TERM");
    assert_eq!(near.output().status.code(), Some(0));
}

fn spoofed_sources_are_dropped_by_the_fast_path() {
    test_sources("auto");
}

fn spoofed_sources_are_dropped_by_the_slow_path() {
    test_sources("off");
}

/// The router starts as the package's service: with the privileges of its unit, which suffice for its kernel program.
fn the_unit_starts_the_router() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-unit");
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    for site in 0..2 {
        world.configure(&folder, site, "fast_path = \"auto\"", "");
    }
    let mut command = as_service("netstage-router.service");
    command.args(["router", "run"]).arg(folder.join("router0.toml"));
    command.env("NOTIFY_SOCKET", folder.join("notify"));
    let mut near = TestProcess::spawn_in(&world.routers[0], command);
    let mut bytes = [0; 64];
    let Ok(length) = manager.recv(&mut bytes) else {
        near.signal("-KILL");
        panic!("not ready after {TIMEOUT:?}: {}", output_text(&near.output()));
    };
    assert_eq!(&bytes[..length], b"READY=1\n");
    let _far = world.start(&folder, 1);
    world.wait_for_fast_path(&folder);
    world.transfer();
    assert!(state(&folder, 0).fast_path && counted(&state(&folder, 0), "kernel", "pushed") > 700);
}

fn labels_are_forwarded_on_a_link_without_ethernet() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-tun");
    let line = world.join_core_by_tun();
    // The fast path runs on the sites' Ethernet interfaces.
    let _routers = [0, 1].map(|site| {
        world.configure(&folder, site, "", "");
        world.start(&folder, site)
    });
    world.transfer();
    let state = state(&folder, 0);
    assert!(counted(&state, "program", "forwarded") > 1400);
    assert_eq!(route(&folder, 0, "10.0.1.0/24").unwrap().to, "via 192.0.2.2 dev core0 push 301");
    let slow = |name| interface(&folder, 0, name).slow;
    assert!(slow("core0").is_some_and(|reason| reason.contains("Ethernet")), "{:?}", slow("core0"));
    assert!(line.labeled() > 700);
}

fn errors_are_reported_with_a_remedy() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-refuses");
    let run = |text: &str| {
        let file = folder.join("router.toml");
        std::fs::write(&file, text).unwrap();
        world.refused(&file)
    };
    let control = format!("control = \"{}\"\n", folder.join("a.sock").display());
    let (code, printed) = run(&format!("[router]\n{control}interfaces = [\"eth7\"]\n"));
    assert!(code == Some(1) && printed.contains("there is no interface eth7"), "{code:?} {printed}");
    std::fs::write(folder.join("fib.txt"), "10.0.0.0/8 dev edge0\n10.1.0.0/16 via core0\n").unwrap();
    let (code, printed) =
        run(&format!("[router]\n{control}interfaces = [\"edge0\"]\nroutes = \"fib.txt\"\n"));
    assert!(
        code == Some(1) && printed.contains("line 2: `core0` is not an IP address"),
        "{code:?} {printed}"
    );
    let (code, printed) = run(&format!("[router]\n{control}interfaces = [\"edge0\", \"edge0\"]\n"));
    assert!(code == Some(2) && printed.contains("`edge0` is listed twice"), "{code:?} {printed}");
    assert_eq!(world.forwards(), "1", "the setting is restored");
}

netstage_harness::tests![
    sites_communicate_by_the_fast_path,
    sites_communicate_by_the_slow_path,
    spoofed_sources_are_dropped_by_the_fast_path,
    spoofed_sources_are_dropped_by_the_slow_path,
    the_unit_starts_the_router,
    labels_are_forwarded_on_a_link_without_ethernet,
    errors_are_reported_with_a_remedy,
];
