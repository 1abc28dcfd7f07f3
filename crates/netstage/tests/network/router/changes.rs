//! What changes while routers run: interfaces and their links, configurations, and whether what is sent arrives.

use crate::router::world::{PATIENCE, Stream, World, counted, interface, label, route, socket, state};
use crate::support::network::{address, join};
use crate::support::{Folder, within};
use netstage_host::netns::{Netlink, ethtool, spawn_in};
use netstage_router::daemon::reload;
use std::process::Command;

fn what_would_be_lost_on_a_veth_goes_by_the_slow_path() {
    let world = World::new();
    let folder = Folder::new("router-egress");
    // Nothing at the far host would take redirected frames.
    ethtool::offloads_off(&world.hosts[1], "eth0").unwrap();
    world.configure(&folder, 0, "", "");
    world.configure(&folder, 1, "", "");
    let (_near, mut far) = (world.begin(&folder, 0), world.begin(&folder, 1));
    assert!(within(PATIENCE, || interface(&folder, 0, "core0").slow.is_none()));
    let slow = interface(&folder, 1, "edge0").slow.unwrap();
    assert!(slow.contains("ethtool -K INTERFACE gro on"), "{slow}");
    let stream = Stream::begin(&world);
    assert!(within(PATIENCE, || stream.sent() > 200));
    let (sent, lost) = stream.end();
    // All but what came before the stations were known, which waits; the slow path sent it.
    assert!(sent > 100 && lost.is_empty(), "{lost:?} of {sent}");
    assert!(counted(&state(&folder, 1), "program", "forwarded") >= u64::from(sent));

    // With the remedy the fast path does.
    ethtool::switch_on(&world.hosts[1], "eth0", &["rx-gro".into()]).unwrap();
    assert!(within(PATIENCE, || interface(&folder, 1, "edge0").slow.is_none()));
    let before = counted(&state(&folder, 1), "program", "forwarded");
    assert!(world.reaches(900));
    assert_eq!(counted(&state(&folder, 1), "program", "forwarded"), before);

    // Taken back while frames flow, it is noticed.
    let stream = Stream::begin(&world);
    ethtool::offloads_off(&world.hosts[1], "eth0").unwrap();
    assert!(within(PATIENCE, || interface(&folder, 1, "edge0").slow.is_some()));
    let until = stream.sent();
    assert!(within(PATIENCE, || stream.sent() > until + 200));
    let (sent, lost) = stream.end();
    let late: Vec<&u32> = lost.iter().filter(|number| **number >= until).collect();
    assert!(!lost.is_empty() && late.is_empty(), "{late:?} of {sent} were lost though it was noticed");
    far.signal("-TERM");
    let said = String::from_utf8(far.output().stderr).unwrap();
    let alarms = said.matches("alarm: edge0: redirected frames are lost").count();
    assert_eq!(alarms, 2, "once each time: {said}");
    assert!(said.contains("edge0: redirected frames arrive"), "{said}");
}

fn interfaces_are_followed() {
    let world = World::new();
    let folder = Folder::new("router-interfaces");
    let _routers = world.begin_both(&folder, "");
    world.transfer();
    // The core takes less, and what may be divided is.
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
    let is_divided = || world.reaches(1400) && counted(&state(&folder, 0), "program", "divided") > 0;
    assert!(within(PATIENCE, is_divided));
    set_mtu("1500");
    assert!(within(PATIENCE, || {
        let before = counted(&state(&folder, 0), "program", "divided");
        world.reaches(1400) && counted(&state(&folder, 0), "program", "divided") == before
    }));

    // An address by which senders are told.
    Netlink::open(&world.routers[0]).unwrap().add_address("edge0", address("10.0.0.9"), 24).unwrap();
    assert!(within(PATIENCE, || route(&folder, 0, "10.0.0.9/32").is_some_and(|route| route.to == "local")));

    // Down, and up.
    let mut netlink = Netlink::open(&world.routers[0]).unwrap();
    netlink.set_down("core0").unwrap();
    let failure = || interface(&folder, 0, "core0").failure;
    assert!(within(PATIENCE, || failure().is_some_and(|why| why.contains("down"))), "{:?}", failure());
    netlink.set_up("core0").unwrap();
    assert!(within(PATIENCE, || failure().is_none() && world.reaches(100)), "{:?}", failure());

    // Removed, and made again.
    netlink.delete_link("core0").unwrap();
    assert!(within(PATIENCE, || failure().is_some_and(|why| why.contains("gone"))), "{:?}", failure());
    assert!(!world.reaches(100));
    assert!(route(&folder, 0, "192.0.2.0/24").is_none());
    world.join_core();
    assert!(within(PATIENCE, || failure().is_none() && world.reaches(100)), "{:?}", failure());
    assert!(within(PATIENCE, || [0, 1].iter().all(|site| interface(&folder, *site, "core0").slow.is_none())));
    assert_eq!(world.routers[0].sysctl_value("net/ipv4/conf/core0/forwarding").unwrap(), "0");
    let before = counted(&state(&folder, 0), "kernel", "pushed");
    world.transfer();
    assert!(counted(&state(&folder, 0), "kernel", "pushed") > before + 700, "the program is on it again");
}

fn another_configuration_is_taken_without_a_lost_frame_or_not_at_all() {
    let world = World::new();
    let folder = Folder::new("router-reloads");
    let [mut near, _far] = world.begin_both(&folder, "");
    world.transfer();
    join((&world.routers[0], "edge1", 17), (&world.hosts[0], "eth1", 33));
    let stream = Stream::begin(&world);
    let control = socket(&folder, 0);
    let (file, routes) = (folder.join("router0.toml"), folder.join("fib0.txt"));
    let read = |path| std::fs::read_to_string(path).unwrap();
    let (good, few) = (read(&file), read(&routes));
    assert_eq!(reload(&control).unwrap(), Vec::<String>::new());

    // Many routes more, and some again, and an interface.
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

    // Mistakes change nothing.
    let (interfaces, count) = (state(&folder, 0).interfaces.len(), state(&folder, 0).routes);
    for (path, text, why) in [
        (&routes, "10.0.0.0/33 local\n".to_owned(), "fib0.txt: line 1: `10.0.0.0/33` is no prefix"),
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
        assert!(refusal.contains(why), "{refusal}");
        std::fs::write(path, before).unwrap();
        let now = state(&folder, 0);
        assert_eq!((now.interfaces.len(), now.routes), (interfaces, count));
        assert!(now.refusal.contains(why));
    }

    // Back to what was, by a signal.
    std::fs::write(&routes, &few).unwrap();
    std::fs::write(&file, &good).unwrap();
    near.signal("-HUP");
    assert!(within(PATIENCE, || state(&folder, 0).configurations == 4));
    let now = state(&folder, 0);
    assert_eq!((now.refused_configurations, now.refusal.as_str(), now.interfaces.len()), (4, "", 2));
    assert!(route(&folder, 0, "10.100.7.0/24").is_none() && label(&folder, 0, 400).is_none());
    assert_eq!(forwards("edge1"), "1", "it is given back");
    let (sent, lost) = stream.end();
    // As many as there was time for.
    assert!(sent > 20 && lost.is_empty(), "{lost:?} of {sent}");
}

netstage_harness::tests![
    what_would_be_lost_on_a_veth_goes_by_the_slow_path,
    interfaces_are_followed,
    another_configuration_is_taken_without_a_lost_frame_or_not_at_all,
];
