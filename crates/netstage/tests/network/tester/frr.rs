//! Test of netstage's router with FRR, which exchanges labels and routes with the tester by LDP and BGP and configures
//! the router: labels to swap, pop and push.

use super::network::{TesterNetwork, assert_all_received, found, ip, trials};
use crate::support::{TestProcess, netstage, within};
use netstage_harness::needs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

pub const FOLDER: &str = "/usr/lib/frr";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Library that makes zebra keep labels on a kernel without MPLS.
const LABELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../stage/src/topology/services/frr/labels.c");
/// Ends of the tester's paths.
const ENDS: [&str; 2] = ["198.51.100.1", "198.51.100.2"];

/// Forwarding router and its routing daemons.
struct Driven {
    _router: TestProcess,
    _daemons: TestProcess,
}

/// Starts router and daemons with the configuration that the tester prints.
fn start(world: &TesterNetwork, setup: &str) -> Driven {
    ip(&world.router, "link set lo up\n");
    let here = world.folder.display();
    let write = |name: &str, text: &str| std::fs::write(world.folder.join(name), text).unwrap();
    write(
        "router.toml",
        &format!(
            "[router]\ninterfaces = [\"eth0\", \"eth1\", \"eth2\"]\nmpls = [\"eth0\", \"eth1\", \"eth2\"]\n\
             fpm = \"127.0.0.1:2620\"\nv6_rows = 64\ncontrol = \"{here}/router.sock\"\n"
        ),
    );
    let mut command = netstage(&["router", "run"]);
    command.arg(world.folder.join("router.toml")).stdout(Stdio::null()).stderr(Stdio::null());
    let router = TestProcess::spawn_in(&world.router, command);
    let socket = world.folder.join("router.sock");
    assert!(within(TIMEOUT, || netstage_router::daemon::query(&socket).is_ok()), "no router");
    write(
        "zebra.conf",
        "no zebra nexthop kernel enable\nno fpm use-next-hop-groups\nfpm address 127.0.0.1 port 2620\n",
    );
    let (routes, sessions) = setup.split_at(setup.find("mpls ldp").unwrap());
    let (labels, sessions) = sessions.split_at(sessions.find("router bgp").unwrap_or(sessions.len()));
    write("staticd.conf", routes);
    // Interfaces are configured later, so that no session starts before all labels are bound.
    let (global, interfaces) = labels.split_at(labels.find("  interface").unwrap());
    let hello = " discovery hello interval 1\n discovery hello holdtime 3\n address-family ipv4\n";
    let global = global.replace(" address-family ipv4\n", hello);
    write("ldpd.conf", &format!("{global} exit-address-family\nexit\n"));
    write("bgpd.conf", sessions);
    let shim = match Path::new("/proc/sys/net/mpls").exists() {
        true => String::new(),
        false => {
            format!("cc -shared -fPIC -O2 -o {here}/labels.so {LABELS}\nexport LD_PRELOAD={here}/labels.so")
        }
    };
    let common = common(world);
    let script = format!(
        "({shim}
           {FOLDER}/zebra {common} -M dplane_fpm_nl -f {here}/zebra.conf -i {here}/zebra.pid)
         for daemon in staticd bgpd; do
           {FOLDER}/$daemon {common} -f {here}/$daemon.conf -i {here}/$daemon.pid
         done
         {FOLDER}/ldpd {common} -f {here}/ldpd.conf -i {here}/ldpd.pid --ctl_socket {here}
         exec sleep infinity"
    );
    let daemons = daemons(world, &script);
    let is_bound = || ENDS.iter().all(|end| vtysh(world, &["show mpls ldp binding"]).contains(end));
    assert!(within(TIMEOUT, is_bound), "no labels: {}", vtysh(world, &["show mpls ldp binding"]));
    let mut lines = vec!["configure terminal", "mpls ldp", "address-family ipv4"];
    lines.extend(interfaces.lines().filter(|line| line.starts_with("  ")));
    vtysh(world, &lines);
    Driven { _router: router, _daemons: daemons }
}

/// Returns the common arguments of all FRR daemons.
pub fn common(world: &TesterNetwork) -> String {
    let here = world.folder.display();
    format!("-d -u root -g root -z {here}/zserv.api --vty_socket {here} -A 127.0.0.1 -P 0")
}

/// Runs daemons with a script in the router's namespace. They end with the script.
pub fn daemons(world: &TesterNetwork, script: &str) -> TestProcess {
    let here = world.folder.display();
    // FRR's daemons run as root, which must belong to the group of the sockets.
    let script = format!(
        "sed 's/^\\(frrvty:.*:\\)[^:]*$/\\1root/' /etc/group > {here}/group
         mount --bind {here}/group /etc/group
         {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", &script]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    TestProcess::spawn_in(&world.router, command)
}

/// Runs commands in FRR's shell and returns the output.
fn vtysh(world: &TesterNetwork, commands: &[&str]) -> String {
    let mut shell = Command::new("vtysh");
    shell.arg("--vty_socket").arg(&*world.folder).args(["-d", "ldpd"]).stderr(Stdio::null());
    for command in commands {
        shell.args(["-c", command]);
    }
    String::from_utf8_lossy(&shell.output().unwrap().stdout).into_owned()
}

fn frr_configures_the_router_by_ldp_and_bgp() {
    let world = TesterNetwork::new("tester-frr");
    needs::program("ldpd", "frr");
    let head = "router = \"FRR\"\nready_within = \"60 s\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\n\
                sizes = [\"46 B\"]\noperations = [\"swap\", \"push\"]\n";
    let rest = "[routes]\ncount = 500\nby = \"bgp\"\n[bgp]\n\
                [labels]\nby = \"ldp\"\npeers = 2\npush = 700\nloopback = \"198.51.100.1\"\n";
    let configuration = world.configure(head, rest);
    let _driven = start(&world, &world.setup(&configuration, "frr"));
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 2);
    assert_all_received(&cells);
    world.remove_record();
    // Packets after the pop have the address of their port as next hop.
    let configuration = world.configure(&head.replace("\"swap\", \"push\"", "\"pop\""), rest);
    assert_all_received(&trials(&world.test(&configuration)));
}

/// Runs all events of LDP with packets that FRR's labels switch, and prints the results.
fn events_of_ldp_have_the_effects_that_frr_defines() {
    let world = TesterNetwork::new("tester-frr-events");
    needs::program("ldpd", "frr");
    let rest = "[routes]\ncount = 20\n[labels]\nby = \"ldp\"\npeers = 2\npush = 700\n[convergence]\n\
                events = [\"ldp-session-loss\", \"ldp-session-up\", \"ldp-shutdown\", \"label-withdraw\", \
                \"label-mapping\", \"ldp-restart\"]\nrate = \"3 Mbit/s\"\nafter = \"8 s\"\n";
    for to in ["\"east\"", "\"east\", \"south\""] {
        let head = format!("router = \"FRR\"\nready_within = \"60 s\"\nfrom = [\"west\"]\nto = [{to}]\n");
        let configuration = world.configure(&head, rest);
        let driven = start(&world, &world.setup(&configuration, "frr"));
        let output = world.test(&configuration);
        let cells = trials(&output);
        let metric = |cell, metric| found(&output, cell, metric);
        for (cell, (event, _, _)) in cells.iter().enumerate() {
            let [first, median, p99, last, outage] = [
                "test.convergence.first",
                "test.convergence.median",
                "test.convergence.p99",
                "test.convergence",
                "test.outage",
            ]
            .map(|name| metric(cell, name).map_or("-".into(), |time| format!("{:.1}", 1e3 * time)));
            let lost = metric(cell, "test.lost");
            println!("{to} {event}: {first} {median} {p99} {last} ms, outage {outage} ms, lost {lost:?}");
        }
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let of_cells = result["record"]["cells"].as_array().unwrap().iter();
        let verdicts: Vec<String> = of_cells.map(|cell| cell["tests"][0]["verdicts"].to_string()).collect();
        println!("{verdicts:#?}");
        // A void run on a busy machine has no findings.
        if output.status.code() == Some(0) {
            assert!(verdicts[3].contains("withdrawn labels"), "{verdicts:?}");
            assert!(verdicts[5].contains("advertises no FT Session TLV"), "{verdicts:?}");
            // FRR does not keep the labels of a speaker that restarts: packets are lost, or move to the other port.
            assert_eq!(metric(5, "test.outage").unwrap() > 0.9, !to.contains("south"), "{verdicts:?}");
        }
        drop(driven);
        world.remove_record();
    }
}

netstage_harness::tests![
    frr_configures_the_router_by_ldp_and_bgp,
    #[ignore = "two minutes of sessions that end and come: make test-full"]
    events_of_ldp_have_the_effects_that_frr_defines,
];
