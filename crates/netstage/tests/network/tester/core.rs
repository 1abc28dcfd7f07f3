//! Tests of a core of three routers: LSPs through two of them, and failures of a link and of a router during traffic.

use super::network::{TIMEOUT, TesterNetwork, assert_all_received, found, trials};
use crate::support::network::{address, join_with_mtu};
use crate::support::{TestProcess, netstage, within};
use netstage_harness::needs;
use netstage_host::netns::{Namespace, Netlink};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::Stdio;

const MTU: u32 = 1512;

/// The tester's port `west` is at the near router, `east` at the far one, and `south` at the third one. Links: 10.1.2.1 to
/// .2 between near and far, 10.1.3.1 to .2 between near and third, 10.1.4.1 to .2 between third and far. Router IDs:
/// 10.255.0.1 to .3.
struct Core {
    world: TesterNetwork,
    far: Namespace,
    third: Namespace,
}

const LINKS: [&str; 3] = ["direct", "detour", "back"];

impl Core {
    fn new(name: &str) -> Core {
        let world = TesterNetwork::new(name);
        let (far, third) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        Netlink::open(&world.router).unwrap().delete_link("eth1").unwrap();
        join_with_mtu((&world.tester, "port1", 2), (&far, "eth1", 3), MTU);
        Netlink::open(&far).unwrap().add_address("eth1", address("192.0.2.5"), 30).unwrap();
        let pairs = [(&world.router, &far), (&world.router, &third), (&third, &far)];
        for (number, (link, (left, right))) in LINKS.into_iter().zip(pairs).enumerate() {
            let mac = 10 + 2 * number as u8;
            join_with_mtu((left, link, mac), (right, link, mac + 1), MTU);
            for (end, namespace) in [left, right].into_iter().enumerate() {
                let own = address(&format!("10.1.{}.{}", number + 2, end + 1));
                Netlink::open(namespace).unwrap().add_address(link, own, 24).unwrap();
            }
        }
        for (number, namespace) in [&world.router, &far, &third].into_iter().enumerate() {
            namespace.loopback_up().unwrap();
            let own = address(&format!("10.255.0.{}", number + 1));
            Netlink::open(namespace).unwrap().add_address("lo", own, 32).unwrap();
        }
        // The third router has the port `south`.
        Netlink::open(&world.router).unwrap().delete_link("eth2").unwrap();
        join_with_mtu((&world.tester, "port2", 4), (&third, "eth2", 5), MTU);
        Netlink::open(&third).unwrap().add_address("eth2", address("192.0.2.9"), 30).unwrap();
        for port in ["port1", "port2"] {
            Netlink::open(&world.tester).unwrap().wait_until_ready(port).unwrap();
        }
        Core { world, far, third }
    }

    /// Starts a router in pipe mode, so that the TTL of packets does not depend on their way. Number 0 is the near router,
    /// 1 the far one, 2 the third.
    fn start(&self, number: usize, interfaces: &str, routes: &str, tables: &str) -> TestProcess {
        let folder = &self.world.folder;
        let namespace = [&self.world.router, &self.far, &self.third][number];
        std::fs::write(folder.join(format!("fib{number}.txt")), routes).unwrap();
        let socket = folder.join(format!("router{number}.sock"));
        let speaking: String = interfaces
            .split(", ")
            .map(|name| format!("[rsvp.interface.{}]\n", name.trim_matches('"')))
            .collect();
        let text = format!(
            "[router]\ninterfaces = [{interfaces}]\nmpls = [{interfaces}]\nroutes = \"fib{number}.txt\"\n\
             fast_path = \"off\"\nmodel = \"pipe\"\nv6_rows = 64\ncontrol = \"{}\"\n\
             [rsvp]\nrouter_id = \"10.255.0.{}\"\n{speaking}{tables}",
            socket.display(),
            number + 1
        );
        let file = folder.join(format!("router{number}.toml"));
        std::fs::write(&file, text).unwrap();
        let mut command = netstage(&["router", "run"]);
        command.arg(file).stdout(Stdio::null());
        let process = TestProcess::spawn_in(namespace, command);
        assert!(within(TIMEOUT, || netstage_router::daemon::query(&socket).is_ok()), "no router {number}");
        process
    }

    /// Waits until a router has LSPs of all its tunnels, and its BFD sessions are up.
    fn wait_until_protected(&self, number: usize) {
        let socket = self.world.folder.join(format!("router{number}.sock"));
        let state = || netstage_router::daemon::query(&socket).unwrap();
        let is_up = || {
            let state = state();
            state.tunnels.iter().all(|tunnel| tunnel.lsp.is_some())
                && state.bfd.iter().all(|session| session.state == "up")
        };
        assert!(within(TIMEOUT, is_up), "{:?}", state());
    }
}

/// Head of a configuration for packets through two routers.
fn head(operations: &str) -> String {
    format!(
        "router = \"core\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"46 B\"]\nmodel = \"pipe\"\nhops = 2\n\
         ready_within = \"15 s\"\n{operations}"
    )
}

fn lsps_lead_through_two_routers() {
    let core = Core::new("tester-core-rsvp");
    let head = head("operations = [\"push\", \"swap\", \"pop\"]\n");
    let rest = "[routes]\ncount = 64\n[labels]\nby = \"rsvp-te\"\npeers = 2\nloopback = \"198.51.100.1\"\n\
                router_loopback = \"10.255.0.2\"\n";
    let configuration = core.world.configure(&head, rest);
    // The LSPs of PUSH begin at the near router. Packets that the far router pops are routed.
    let mut tunnels = String::new();
    for peer in 0..2 {
        let networks = (peer..64).step_by(2).map(|network| format!("\"11.0.{network}.0/24\""));
        tunnels += &format!(
            "[rsvp.tunnel.peer{peer}]\nto = \"198.51.100.{}\"\nroute = [\"10.1.2.2\", \"192.0.2.6\"]\nprefixes = [{}]\n",
            peer + 1,
            networks.collect::<Vec<_>>().join(", ")
        );
    }
    let near = "192.0.2.4/30 via 10.1.2.2 dev direct\n10.255.0.2/32 via 10.1.2.2 dev direct\n";
    let _routers = [
        core.start(0, "\"eth0\", \"direct\"", near, &tunnels),
        core.start(1, "\"eth1\", \"direct\"", "11.0.0.0/16 via 192.0.2.6 dev eth1\n", ""),
    ];
    let cells = trials(&core.world.test(&configuration));
    assert_eq!(cells.len(), 3);
    assert_all_received(&cells);
}

/// Returns the settings of a convergence test with the failure that a command causes.
fn failure((operation, labels): (&str, &str), [fail, repair]: [&[String]; 2]) -> String {
    format!(
        "[routes]\ncount = 20\n[labels]\n{labels}\n[convergence]\nfail_command = {fail:?}\n\
         repair_command = {repair:?}\noperation = \"{operation}\"\nrate = \"1500 kbit/s\"\nbefore = \"300 ms\"\n\
         after = \"3 s\"\n"
    )
}

/// Packets without labels, and with labels of the routers' files.
const PLAIN: [(&str, &str); 2] = [("ip", ""), ("swap", "swap_to = 3000")];
/// Packets in LSPs that the tester signals.
const SIGNALED: (&str, &str) = ("swap", "by = \"rsvp-te\"");

/// Measures the outage of a failure for packets with these operations and labels.
fn assert_heals(core: &Core, name: &str, packets: &[(&str, &str)], head: &str, commands: [&[String]; 2]) {
    for packet in packets {
        let head = head.replace("sizes = [\"46 B\"]\n", "");
        let configuration = core.world.configure(&head, &failure(*packet, commands));
        let output = core.world.test(&configuration);
        assert_eq!(trials(&output).len(), 1);
        // A void run on a busy machine has no findings.
        if output.status.code() == Some(0) {
            let [median, last] = ["test.convergence.median", "test.convergence"]
                .map(|metric| found(&output, 0, metric).unwrap_or_else(|| panic!("{metric}: {output:?}")));
            let (operation, labels) = packet;
            println!(
                "{name}, {operation} {labels}: median {:.1} ms, last {:.1} ms",
                1e3 * median,
                1e3 * last
            );
            // Without protection, the packets would be lost until the end.
            assert!(last < 1.0, "{output:?}");
        }
        core.world.remove_record();
        core.wait_until_protected(0);
    }
}

fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn a_link_that_fails_is_bypassed() {
    let core = Core::new("tester-core-link");
    needs::program("nsenter", "util-linux");
    let near = "192.0.2.4/30 via 10.1.2.2 dev direct\n11.0.0.0/16 via 10.1.2.2 dev direct\n\
                label 2000 swap 2500 via 10.1.2.2 dev direct\n";
    let far = "11.0.0.0/16 via 192.0.2.6 dev eth1\nlabel 2500 swap 3000 via 192.0.2.6 dev eth1\n";
    let bypass = "[rsvp.tunnel.bypass]\nto = \"10.255.0.2\"\nroute = [\"10.1.3.2\", \"10.1.4.2\"]\n\
                  protects = \"10.1.2.2\"\n[bfd]\nneighbors = [\"10.1.2.2\"]\ninterval = \"10 ms\"\n";
    let _routers = [
        core.start(0, "\"eth0\", \"direct\", \"detour\"", near, bypass),
        core.start(
            1,
            "\"eth1\", \"direct\", \"back\"",
            far,
            "[bfd]\nneighbors = [\"10.1.2.1\"]\ninterval = \"10 ms\"\n",
        ),
        core.start(2, "\"detour\", \"back\"", "", ""),
    ];
    core.wait_until_protected(0);
    let namespace = format!("--net=/proc/{}/fd/{}", std::process::id(), core.far.as_fd().as_raw_fd());
    let [fail, repair] =
        ["down", "up"].map(|state| strings(["nsenter", &namespace, "ip", "link", "set", "direct", state]));
    let packets = [&PLAIN[..], &[SIGNALED]].concat();
    assert_heals(&core, "link", &packets, &head(""), [&fail, &repair]);
}

fn a_router_that_dies_is_avoided() {
    let core = Core::new("tester-core-router");
    // One label for each of the two receiving ports.
    let both = "via 10.1.2.2 dev direct or via 10.1.3.2 dev detour\n";
    let near = format!("11.0.0.0/16 {both}label 2000 swap 2500 {both}label 2001 swap 2501 {both}");
    let end = |at: &str| {
        format!("11.0.0.0/16 via {at}\nlabel 2500 swap 3000 via {at}\nlabel 2501 swap 3001 via {at}\n")
    };
    let bfd = |neighbors: &str| format!("[bfd]\nneighbors = [{neighbors}]\ninterval = \"10 ms\"\n");
    let [_near, mut far, _third] = [
        core.start(0, "\"eth0\", \"direct\", \"detour\"", &near, &bfd("\"10.1.2.2\", \"10.1.3.2\"")),
        core.start(1, "\"eth1\", \"direct\"", &end("192.0.2.6 dev eth1"), &bfd("\"10.1.2.1\"")),
        core.start(2, "\"eth2\", \"detour\"", &end("192.0.2.10 dev eth2"), &bfd("\"10.1.3.1\"")),
    ];
    core.wait_until_protected(0);
    let process = far.child().id().to_string();
    let [fail, repair] = ["-STOP", "-CONT"].map(|signal| strings(["kill", signal, &process]));
    assert_heals(
        &core,
        "router",
        &PLAIN,
        &head("").replace("[\"east\"]", "[\"east\", \"south\"]"),
        [&fail, &repair],
    );
}

netstage_harness::tests![
    lsps_lead_through_two_routers,
    a_link_that_fails_is_bypassed,
    a_router_that_dies_is_avoided,
];
