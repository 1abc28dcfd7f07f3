//! The router tester around real routers, in namespaces: netstage's own and the Linux kernel, right and wrong.
//! Rates are low: what is seen is that every packet is looked at, not how fast this machine is.

mod support;

use netstage_core::ldp::{Binding, Config, Null};
use netstage_live::ldp::{self, Fec, Label};
use netstage_live::netns::{Namespace, Netlink, ethtool, spawn_in};
use serde_json::Value;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::network::{is_privileged, join_by};
use support::{Folder, Process, run_page, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_netstage");
const PATIENCE: Duration = Duration::from_secs(20);
/// Room for a label above the largest packet.
const MTU: u32 = 1512;

/// A tester and a router, with three links between them: 192.0.2.2 to .1, .6 to .5 and .10 to .9.
struct World {
    tester: Namespace,
    router: Namespace,
    folder: Folder,
}

const PORTS: [&str; 3] = ["west", "east", "south"];

impl World {
    /// Without privileges there is none.
    fn new(name: &str) -> Option<World> {
        if !is_privileged() {
            return None;
        }
        let (tester, router) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        for number in 0..PORTS.len() as u8 {
            let (here, there) = (format!("port{number}"), format!("eth{number}"));
            join_by((&tester, &here, 2 * number), (&router, &there, 2 * number + 1), MTU);
            // Frames that a program sends to it are lost otherwise.
            ethtool::switch_on(&router, &there, &["rx-gro".into()]).unwrap();
            let address: IpAddr = [192, 0, 2, 4 * number + 1].into();
            Netlink::open(&router).unwrap().add_address(&there, address, 30).unwrap();
            Netlink::open(&tester).unwrap().wait_until_ready(&here).unwrap();
            Netlink::open(&router).unwrap().wait_until_ready(&there).unwrap();
        }
        Some(World { tester, router, folder: Folder::new(name) })
    }

    /// Writes the tester's configuration; `head` goes into its first table.
    fn configure(&self, head: &str, rest: &str) -> PathBuf {
        let mut text = format!(
            "[tester]\ntrial = \"500 ms\"\nsearch = \"200 ms\"\nstep = \"1 Mbit/s\"\nmax_rate = \"4 Mbit/s\"\n\
             drain = \"200 ms\"\n{head}\n{rest}\n"
        );
        if !head.contains("ready_within") {
            text = text.replacen('\n', "\nready_within = \"3 s\"\n", 1);
        }
        for (number, name) in PORTS.iter().enumerate() {
            let last = 4 * number + 1;
            text += &format!(
                "[port.{name}]\ninterface = \"port{number}\"\naddress = \"192.0.2.{}/30\"\nrouter = \"192.0.2.{last}\"\n\
                 router_interface = \"eth{number}\"\n",
                last + 1
            );
        }
        let file = self.folder.join("tester.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    fn setup(&self, configuration: &PathBuf, kind: &str) -> String {
        let output =
            Command::new(PROGRAM).args(["test", "router", "--setup", kind]).arg(configuration).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Begins netstage's own router with these routes.
    fn begin(&self, routes: &str) -> Process {
        std::fs::write(self.folder.join("fib.txt"), routes).unwrap();
        let socket = self.folder.join("router.sock");
        let text = format!(
            "[router]\ninterfaces = [\"eth0\", \"eth1\", \"eth2\"]\nmpls = [\"eth0\", \"eth1\", \"eth2\"]\n\
             routes = \"fib.txt\"\nfast_path = \"xdp\"\nv6_rows = 64\ncontrol = \"{}\"\n",
            socket.display()
        );
        let file = self.folder.join("router.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["router", "run"]).arg(file).stderr(Stdio::piped());
        let process = Process::new(spawn_in(&self.router, command).unwrap());
        let answers = || netstage_live::router::daemon::ask(&socket).is_ok();
        assert!(within(PATIENCE, answers), "the router does not answer");
        process
    }

    fn test(&self, configuration: &PathBuf) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(["test", "router", "--json", "--retries", "8", "--out"]).arg(self.folder.join("out"));
        command.arg(configuration).stdout(Stdio::piped()).stderr(Stdio::piped());
        spawn_in(&self.tester, command).unwrap().wait_with_output().unwrap()
    }
}

/// Runs a batch of `ip`.
fn ip(namespace: &Namespace, batch: &str) {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped());
    let mut ip = spawn_in(namespace, command).unwrap();
    ip.stdin.take().unwrap().write_all(batch.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success());
}

/// What was found, cell by cell: operation, size, trials.
fn trials(output: &Output) -> Vec<(String, String, Vec<Value>)> {
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    // A machine that stood still voids trials, and nothing else here.
    assert!([0, 5].contains(&told["exit"].as_u64().unwrap()), "{told:#}");
    let cell = |cell: &Value| {
        let setting = |place: usize| cell["settings"][place][1].as_str().unwrap().to_owned();
        let tests = cell["tests"].as_array().unwrap().iter();
        let trials = tests.flat_map(|test| test["trials"].as_array().unwrap().clone()).collect();
        (setting(0), setting(1), trials)
    };
    told["record"]["cells"].as_array().unwrap().iter().map(cell).collect()
}

/// Everything that was sent came back, and as it had to be.
fn all_came_back(cells: &[(String, String, Vec<Value>)]) {
    for (operation, size, trials) in cells {
        assert!(!trials.is_empty(), "{operation} {size}");
        for trial in trials {
            let count = |name: &str| trial[name].as_u64().unwrap();
            assert!(count("sent") > 0, "{operation} {size}: {trial}");
            let none = ["lost", "duplicated", "reordered", "corrupted"].map(count);
            assert_eq!(none, [0; 4], "{operation} {size}: {trial}");
            assert!(trial["delay_ns"].as_u64().unwrap() > 0, "{operation} {size}: {trial}");
        }
    }
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stderr).unwrap_or_else(|_| panic!("{output:?}"));
    told["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_router_does_both_ways_what_labels_and_routes_say() {
    let Some(world) = World::new("tester-own") else { return };
    let head = "router = \"netstage\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\nboth_ways = true\n\
                sizes = [\"46 B\", \"imix\"]\n";
    let operations = "operations = [\"ip\", \"swap\", \"pop\", \"php\", \"unlabelled\"]\n";
    let rest = "[routes]\ncount = 1000\n[labels]\npeers = 4\n";
    let configuration = world.configure(&format!("{head}{operations}"), rest);
    let router = world.begin(&world.setup(&configuration, "netstage"));
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 10);
    all_came_back(&cells);
    // The addresses the tester lent are gone.
    let addresses = Netlink::open(&world.tester).unwrap().addresses().unwrap();
    assert!(!addresses.iter().any(|own| own.address.is_ipv4()), "{addresses:?}");
    drop(router);
    std::fs::remove_dir_all(world.folder.join("out")).unwrap();
    let configuration = world.configure(&format!("{head}operations = [\"push\"]\n"), rest);
    let router = world.begin(&world.setup(&configuration, "netstage"));
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 2);
    all_came_back(&cells);
    drop(router);
}

#[test]
fn the_kernel_forwards_ip_as_every_generator_sends_it() {
    let Some(world) = World::new("tester-kernel") else { return };
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    for generator in ["xdp", "af-xdp", "af-packet"] {
        let head = format!(
            "router = \"Linux\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"46 B\", \"1498 B\"]\n\
             generator = \"{generator}\"\n"
        );
        let configuration = world.configure(&head, "[routes]\ncount = 50\n");
        ip(&world.router, &world.setup(&configuration, "linux"));
        let cells = trials(&world.test(&configuration));
        assert_eq!(cells.len(), 2);
        all_came_back(&cells);
        std::fs::remove_dir_all(world.folder.join("out")).unwrap();
    }
}

#[test]
fn an_interface_that_takes_no_live_frames_is_sent_by_otherwise() {
    let Some(world) = World::new("tester-auto") else { return };
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    ip(&world.tester, "link add mac0 link port0 type macvlan\nlink set mac0 up\n");
    let head = "router = \"Linux\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"46 B\"]\n";
    let configuration = world.configure(head, "[routes]\ncount = 50\n");
    let text = std::fs::read_to_string(&configuration).unwrap().replace("\"port0\"", "\"mac0\"");
    std::fs::write(&configuration, text).unwrap();
    ip(&world.router, &world.setup(&configuration, "linux"));
    let output = world.test(&configuration);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let said = told["record"].to_string();
    assert!(said.contains("The tester sends by AF_XDP"), "{said}");
    assert!(said.contains("live frames of XDP do not leave by mac0"), "{said}");
    all_came_back(&trials(&output));
}

#[test]
fn a_router_that_does_otherwise_is_told_apart() {
    let Some(world) = World::new("tester-wrong") else { return };
    let head = "router = \"box\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\nsizes = [\"46 B\"]\noperations = [\"swap\"]\n";
    let configuration = world.configure(head, "[routes]\n[labels]\n");
    let right = world.setup(&configuration, "netstage");
    for (from, to, message) in [
        (
            "swap 3000",
            "swap 3007",
            "box forwarded 25000 otherwise than it shall: labels 3007 (time to live 47) instead of 3000 (time to live 47)",
        ),
        ("eth1", "eth2", "to another port than the one they shall leave by"),
        ("2000", "2500", "25000 came back from box: it does not know all routes or labels yet"),
    ] {
        let router =
            world.begin(&right.replacen(from, to, 1).replace("192.0.2.6 dev eth2", "192.0.2.10 dev eth2"));
        let refusal = refusal(&world.test(&configuration));
        assert!(refusal.contains(message), "{refusal}");
        drop(router);
        let _ = std::fs::remove_dir_all(world.folder.join("out"));
    }
}

#[test]
fn bird_hears_of_networks_and_the_kernel_forwards_to_them() {
    let Some(world) = World::new("tester-bird") else { return };
    if Command::new("bird").arg("--version").output().is_err() {
        println!("skipped: needs bird2");
        return;
    }
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let head =
        "router = \"Linux with BIRD\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\nsizes = [\"46 B\"]\n";
    let rest = "[routes]\ncount = 2000\nby = \"bgp\"\n[bgp]\nown_as = 65002\nrouter_as = 65001\n";
    let configuration = world.configure(head, rest);
    let refused = refusal(&world.test(&configuration));
    assert!(refused.contains("no BGP session with 192.0.2.5: connection refused"), "{refused}");
    std::fs::remove_dir_all(world.folder.join("out")).unwrap();
    let _bird = bird(&world, &configuration);
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 1);
    all_came_back(&cells);
}

fn bird(world: &World, configuration: &PathBuf) -> Process {
    let file = world.folder.join("bird.conf");
    std::fs::write(&file, world.setup(configuration, "bird")).unwrap();
    let mut command = Command::new("bird");
    command.arg("-f").arg("-c").arg(&file).arg("-s").arg(world.folder.join("bird.ctl")).stderr(Stdio::null());
    Process::new(spawn_in(&world.router, command).unwrap())
}

/// What a test of a cell found, by metric.
fn found(output: &Output, cell: usize, metric: &str) -> Option<f64> {
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = told["record"]["cells"][cell]["tests"][0]["findings"].as_array().unwrap().clone();
    findings.iter().find(|finding| finding["metric"] == metric)?["value"].as_f64()
}

#[test]
fn packets_follow_routes_that_go_and_come() {
    let Some(world) = World::new("tester-convergence") else { return };
    if Command::new("bird").arg("--version").output().is_err() {
        println!("skipped: needs bird2");
        return;
    }
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let rest = "[routes]\ncount = 500\nby = \"bgp\"\n[bgp]\nown_as = 65002\nrouter_as = 65001\n\
                [convergence]\nrate = \"10 Mbit/s\"\nbefore = \"300 ms\"\nafter = \"3 s\"\n";
    for to in ["\"east\"", "\"east\", \"south\""] {
        let head = format!("router = \"BIRD\"\nready_within = \"20 s\"\nfrom = [\"west\"]\nto = [{to}]\n");
        let configuration = world.configure(&head, rest);
        let bird = bird(&world, &configuration);
        let output = world.test(&configuration);
        let cells = trials(&output);
        let events: Vec<&str> = cells.iter().map(|(event, _, _)| event.as_str()).collect();
        assert_eq!(events, ["withdraw", "announce"]);
        // Where the machine stood still there are no figures, and it is said so.
        for cell in (0..2).filter(|_| output.status.code() == Some(0)) {
            let time =
                |metric| found(&output, cell, metric).unwrap_or_else(|| panic!("{metric}: {output:?}"));
            let [first, last] = ["test.convergence.first", "test.convergence"].map(time);
            assert!((0.0..3.0).contains(&first) && first <= last && last < 3.0, "{first} {last}");
        }
        if to.contains("south") && output.status.code() == Some(0) {
            // The others stood by: what is lost is lost until packets leave by them.
            let lost = found(&output, 0, "test.lost").unwrap();
            assert!(lost < 30_000.0, "{lost}");
        }
        drop(bird);
        std::fs::remove_dir_all(world.folder.join("out")).unwrap();
    }
}

/// The router's own side of label distribution, as a routing daemon beside it would be: what it binds is what
/// its file of routes says.
struct Distributor {
    commands: tokio::sync::mpsc::UnboundedSender<ldp::Command>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Distributor {
    fn begin(router: &Namespace, bindings: Vec<(Fec, Binding)>) -> Distributor {
        let (commands, received) = tokio::sync::mpsc::unbounded_channel();
        let own: Ipv4Addr = [192, 0, 2, 1].into();
        let interface = |number: u8| ldp::Interface {
            name: format!("eth{number}"),
            address: [192, 0, 2, 4 * number + 1].into(),
        };
        let place = ldp::Place {
            namespace: router.try_clone().unwrap(),
            interfaces: (0..3).map(interface).collect(),
            targets: Vec::new(),
            md5_keys: Vec::new(),
        };
        commands.send(ldp::Command::SetAddresses(vec![own.into()])).unwrap();
        commands.send(ldp::Command::Bind(bindings)).unwrap();
        let config = Config { null: Null::Explicit, ..Config::new(own, own) };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let epoch = std::time::Instant::now();
            runtime
                .block_on(ldp::run(config, place, epoch, received, |_, report| {
                    if let ldp::Report::Fault(fault) = report {
                        println!("the router: {fault}");
                    }
                }))
                .unwrap();
        });
        Distributor { commands, thread: Some(thread) }
    }
}

impl Drop for Distributor {
    fn drop(&mut self) {
        let _ = self.commands.send(ldp::Command::Stop);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn labels_are_those_the_router_has_told_of() {
    let Some(world) = World::new("tester-ldp") else { return };
    let head = "router = \"box\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"46 B\"]\n\
                operations = [\"push\", \"swap\", \"unlabelled\", \"pop\"]\n";
    let rest =
        "[routes]\ncount = 100\n[labels]\nby = \"ldp\"\npeers = 2\npush = 700\nloopback = \"198.51.100.1\"\n";
    let configuration = world.configure(head, rest);
    let refused = refusal(&world.test(&configuration));
    assert!(
        refused.contains("swap: no LDP session with 192.0.2.1 yet") || refused.contains("none came back"),
        "{refused}"
    );
    std::fs::remove_dir_all(world.folder.join("out")).unwrap();
    let host = |last| Fec::Prefix { address: IpAddr::from([198, 51, 100, last]), length: 32 };
    let next = || vec![IpAddr::from([192, 0, 2, 6])];
    let label = |number| Label::new(number).unwrap();
    let transit = |last, number| (host(last), Binding::Transit { label: label(number), next_hops: next() });
    let own = Fec::Prefix { address: [192, 0, 2, 1].into(), length: 32 };
    let bindings = vec![
        transit(1, 4100),
        transit(2, 555),
        transit(129, 91),
        transit(130, 90),
        (own, Binding::Egress { label: None }),
    ];
    let _distributor = Distributor::begin(&world.router, bindings);
    let mut routes = String::from(
        "label 4100 swap 700 via 192.0.2.6 dev eth1\nlabel 555 swap 701 via 192.0.2.6 dev eth1\n\
         label 91 via 192.0.2.6 dev eth1\nlabel 90 via 192.0.2.6 dev eth1\n",
    );
    for network in 0..100 {
        routes += &format!("11.0.{network}.0/24 via 192.0.2.6 dev eth1 push {}\n", 700 + network % 2);
    }
    let router = world.begin(&routes);
    // Hellos are some seconds apart.
    let head = format!("ready_within = \"30 s\"\n{head}");
    let configuration = world.configure(&head.replace(", \"pop\"", ""), rest);
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 3);
    all_came_back(&cells);
    drop(router);
    std::fs::remove_dir_all(world.folder.join("out")).unwrap();
    // Explicit null is popped, and what is beneath looked up.
    let plain: String =
        (0..100).map(|network| format!("11.0.{network}.0/24 via 192.0.2.6 dev eth1\n")).collect();
    let _router = world.begin(&plain);
    let configuration = world.configure(&head.replace("\"push\", \"swap\", \"unlabelled\", ", ""), rest);
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 1);
    all_came_back(&cells);
}

/// The shell blocks of docs/router-test.md, as they stand.
#[test]
#[ignore = "takes some minutes of measuring, and needs ethtool"]
fn the_guide_does_what_it_says() {
    if !is_privileged() {
        return;
    }
    let folder = Folder::new("tester-guide");
    let text = run_page("router-test.md", &folder);
    let record = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(folder.join(name).join("record.json")).unwrap()).unwrap()
    };
    let (own, linux) = (record("record"), record("linux"));
    assert_eq!((own["cells"].as_array().unwrap().len(), linux["cells"].as_array().unwrap().len()), (9, 3));
    for name in ["record/report.html", "linux/report.html", "comparison.html"] {
        assert!(std::fs::read_to_string(folder.join(name)).unwrap().contains("<html"), "{name}");
    }
    assert!(text.contains("Comparison of record and linux"), "{text}");
}
