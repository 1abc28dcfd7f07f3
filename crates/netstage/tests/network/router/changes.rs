//! Tests of changes while routers run: interfaces, configurations, and loss of redirected frames.

use crate::router::network::{
    DatagramStream, StreamEnd, TIMEOUT, TwoSites, counted, interface, label, route, socket, state,
};
use crate::support::network::{address, join};
use crate::support::{TemporaryFolder, within};
use netstage_host::netns::{Netlink, ethtool, spawn_in};
use netstage_router::daemon::reload;
use std::process::Command;

fn the_slow_path_is_used_where_redirected_frames_are_lost() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-egress");
    // The far host drops redirected frames.
    ethtool::disable_offloads(&world.hosts[1], "eth0").unwrap();
    world.configure(&folder, 0, "", "");
    world.configure(&folder, 1, "", "");
    let (_near, mut far) = (world.start(&folder, 0), world.start(&folder, 1));
    assert!(within(TIMEOUT, || interface(&folder, 0, "core0").slow.is_none()));
    let slow = interface(&folder, 1, "edge0").slow.unwrap();
    assert!(slow.contains("ethtool -K INTERFACE gro on"), "{slow}");
    let stream = DatagramStream::start(&world);
    assert!(within(TIMEOUT, || stream.sent() > 200));
    let StreamEnd { sent, lost, .. } = stream.end();
    // All packets arrive by the slow path; those sent before address resolution were queued.
    assert!(sent > 100 && lost.is_empty(), "{lost:?} of {sent}");
    assert!(counted(&state(&folder, 1), "program", "forwarded") >= u64::from(sent));

    // With the remedy, the fast path forwards.
    ethtool::enable_features(&world.hosts[1], "eth0", &["rx-gro".into()]).unwrap();
    assert!(within(TIMEOUT, || interface(&folder, 1, "edge0").slow.is_none()));
    let before = counted(&state(&folder, 1), "program", "forwarded");
    assert!(world.reaches(900));
    assert_eq!(counted(&state(&folder, 1), "program", "forwarded"), before);

    // The reverse change is detected while frames flow.
    let stream = DatagramStream::start(&world);
    ethtool::disable_offloads(&world.hosts[1], "eth0").unwrap();
    assert!(within(TIMEOUT, || interface(&folder, 1, "edge0").slow.is_some()));
    let until = stream.sent();
    assert!(within(TIMEOUT, || stream.sent() > until + 200));
    let StreamEnd { sent, lost, .. } = stream.end();
    let late: Vec<&u32> = lost.iter().filter(|number| **number >= until).collect();
    assert!(!lost.is_empty() && late.is_empty(), "{late:?} of {sent} were lost after the detection");
    far.signal("-TERM");
    let printed = String::from_utf8(far.output().stderr).unwrap();
    let alarms = printed.matches("alarm: edge0: redirected frames are lost").count();
    assert_eq!(alarms, 2, "one alarm per detection: {printed}");
    assert!(printed.contains("edge0: redirected frames arrive"), "{printed}");
}

fn changes_of_interfaces_are_detected() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-interfaces");
    let _routers = world.start_both(&folder, "");
    world.transfer();
    // With a smaller MTU of the core, packets are fragmented.
    world.hosts[0].sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
    let set_mtu = |mtu: &str| {
        for router in &world.routers {
            let mut command = Command::new("ip");
            command.args(["link", "set", "core0", "mtu", mtu]);
            let mut child = spawn_in(router, command).unwrap();
            assert!(child.wait().unwrap().success());
        }
    };
    set_mtu("1000");
    let is_fragmented = || world.reaches(1400) && counted(&state(&folder, 0), "program", "divided") > 0;
    assert!(within(TIMEOUT, is_fragmented));
    set_mtu("1500");
    assert!(within(TIMEOUT, || {
        let before = counted(&state(&folder, 0), "program", "divided");
        world.reaches(1400) && counted(&state(&folder, 0), "program", "divided") == before
    }));

    // An added address becomes a local route.
    Netlink::open(&world.routers[0]).unwrap().add_address("edge0", address("10.0.0.9"), 24).unwrap();
    assert!(within(TIMEOUT, || route(&folder, 0, "10.0.0.9/32").is_some_and(|route| route.to == "local")));

    // Interface down and up.
    let mut netlink = Netlink::open(&world.routers[0]).unwrap();
    netlink.set_down("core0").unwrap();
    let failure = || interface(&folder, 0, "core0").failure;
    assert!(within(TIMEOUT, || failure().is_some_and(|why| why.contains("down"))), "{:?}", failure());
    netlink.set_up("core0").unwrap();
    assert!(within(TIMEOUT, || failure().is_none() && world.reaches(100)), "{:?}", failure());

    // Interface removed and created again.
    netlink.delete_link("core0").unwrap();
    assert!(within(TIMEOUT, || failure().is_some_and(|why| why.contains("gone"))), "{:?}", failure());
    assert!(!world.reaches(100));
    assert!(route(&folder, 0, "192.0.2.0/24").is_none());
    world.join_core();
    assert!(within(TIMEOUT, || failure().is_none() && world.reaches(100)), "{:?}", failure());
    assert!(within(TIMEOUT, || [0, 1].iter().all(|site| interface(&folder, *site, "core0").slow.is_none())));
    assert_eq!(world.routers[0].sysctl_value("net/ipv4/conf/core0/forwarding").unwrap(), "0");
    let before = counted(&state(&folder, 0), "kernel", "pushed");
    world.transfer();
    assert!(
        counted(&state(&folder, 0), "kernel", "pushed") > before + 700,
        "the fast path uses the interface again"
    );
}

fn a_new_configuration_is_applied_without_loss_or_rejected() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-reloads");
    let [mut near, _far] = world.start_both(&folder, "");
    world.transfer();
    join((&world.routers[0], "edge1", 17), (&world.hosts[0], "eth1", 33));
    let stream = DatagramStream::start(&world);
    let control = socket(&folder, 0);
    let (file, routes) = (folder.join("router0.toml"), folder.join("fib0.txt"));
    let read = |path| std::fs::read_to_string(path).unwrap();
    let (good, few) = (read(&file), read(&routes));
    assert_eq!(reload(&control).unwrap(), Vec::<String>::new());

    // Adds many routes and an interface.
    let many: String =
        (0..2_000).map(|n| format!("10.{}.{}.0/24 discard\n", 100 + n / 256, n % 256)).collect();
    std::fs::write(&routes, format!("{few}{many}label 400 via 192.0.2.2 dev core0\n")).unwrap();
    let more = good.replace("[\"edge0\", \"core0\"]", "[\"edge1\", \"edge0\", \"core0\"]");
    std::fs::write(&file, &more).unwrap();
    let changes = reload(&control).unwrap();
    assert_eq!(changes, ["interface edge1 added", "2001 routes and labels changed"]);
    assert_eq!(route(&folder, 0, "10.100.7.0/24").unwrap().to, "discard");
    assert_eq!(label(&folder, 0, 400).unwrap().to, "via 192.0.2.2 dev core0");
    assert_eq!(interface(&folder, 0, "edge1").failure, None);
    let forwards =
        |name: &str| world.routers[0].sysctl_value(&format!("net/ipv4/conf/{name}/forwarding")).unwrap();
    assert_eq!(forwards("edge1"), "0");

    // Invalid configurations change nothing.
    let (interfaces, count) = (state(&folder, 0).interfaces.len(), state(&folder, 0).routes);
    for (path, text, reason) in [
        (&routes, "10.0.0.0/33 local\n".to_owned(), "fib0.txt: line 1: `10.0.0.0/33` is neither a prefix"),
        (&file, more.replace("edge1", "edge7"), "there is no interface edge7"),
        (
            &file,
            more.replace("v6_rows = 64", "v6_rows = 65"),
            "`v6_rows` cannot be changed while the router runs",
        ),
        (&file, more.replace("mpls = ", "mlps = "), "did you mean `mpls`"),
    ] {
        let before = read(path);
        std::fs::write(path, text).unwrap();
        let refusal = reload(&control).unwrap_err().to_string();
        assert!(refusal.contains(reason), "{refusal}");
        std::fs::write(path, before).unwrap();
        let now = state(&folder, 0);
        assert_eq!((now.interfaces.len(), now.routes), (interfaces, count));
        assert!(now.refusal.contains(reason));
    }

    // Restores the configuration by a signal.
    std::fs::write(&routes, &few).unwrap();
    std::fs::write(&file, &good).unwrap();
    near.signal("-HUP");
    assert!(within(TIMEOUT, || state(&folder, 0).configurations == 4));
    let now = state(&folder, 0);
    assert_eq!((now.refused_configurations, now.refusal.as_str(), now.interfaces.len()), (4, "", 2));
    assert!(route(&folder, 0, "10.100.7.0/24").is_none() && label(&folder, 0, 400).is_none());
    assert_eq!(forwards("edge1"), "1", "the setting is restored");
    let StreamEnd { sent, lost, .. } = stream.end();
    assert!(sent > 20 && lost.is_empty(), "{lost:?} of {sent}");
}

netstage_harness::tests![
    the_slow_path_is_used_where_redirected_frames_are_lost,
    changes_of_interfaces_are_detected,
    a_new_configuration_is_applied_without_loss_or_rejected,
];
