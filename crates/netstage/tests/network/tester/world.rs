//! A tester around a router, in two namespaces with three links between them.

use crate::support::network::join_by;
use crate::support::{Folder, Process, netstage, said, within};
use netstage_harness::needs;
use netstage_host::netns::{Namespace, Netlink, ethtool, spawn_in};
use serde_json::Value;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(20);
/// Room for a label above the largest packet.
const MTU: u32 = 1512;

/// A tester and a router, with three links between them: 192.0.2.2 to .1, .6 to .5 and .10 to .9.
pub struct World {
    pub tester: Namespace,
    pub router: Namespace,
    pub folder: Folder,
    _alone: MutexGuard<'static, ()>,
}

/// The generator in the kernel takes a core for itself: two tests at once would take from each other what
/// they measure with.
static ALONE: Mutex<()> = Mutex::new(());

const PORTS: [&str; 3] = ["west", "east", "south"];

impl World {
    pub fn new(name: &str) -> World {
        needs::namespaces();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (tester, router) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        for number in 0..PORTS.len() as u8 {
            let (here, there) = (format!("port{number}"), format!("eth{number}"));
            join_by((&tester, &here, 2 * number), (&router, &there, 2 * number + 1), MTU);
            // Frames that a program sends there are lost otherwise; a router that finds it off at the tester's
            // end sends by its slow path until a trial begins.
            for (namespace, name) in [(&tester, &here), (&router, &there)] {
                ethtool::switch_on(namespace, name, &["rx-gro".into()]).unwrap();
            }
            let address: IpAddr = [192, 0, 2, 4 * number + 1].into();
            Netlink::open(&router).unwrap().add_address(&there, address, 30).unwrap();
            Netlink::open(&tester).unwrap().wait_until_ready(&here).unwrap();
            Netlink::open(&router).unwrap().wait_until_ready(&there).unwrap();
        }
        World { tester, router, folder: Folder::new(name), _alone: alone }
    }

    /// Writes the tester's configuration, of short trials unless `head` says otherwise, which goes into its first table.
    pub fn configure(&self, head: &str, rest: &str) -> PathBuf {
        let mut text = String::from("[tester]\nstep = \"1 Mbit/s\"\ndrain = \"200 ms\"\n");
        for (name, value) in
            [("trial", "200 ms"), ("search", "100 ms"), ("max_rate", "2 Mbit/s"), ("ready_within", "3 s")]
        {
            if !head.contains(&format!("{name} =")) {
                text += &format!("{name} = \"{value}\"\n");
            }
        }
        text += &format!("{head}\n{rest}\n");
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

    /// The router's addresses of IPv6 by its first two links.
    pub fn give_ipv6(&self) {
        for number in 0..2 {
            // A router solicits from its link-local address, which these namespaces do not give by themselves.
            for address in [format!("2001:db8:ffff:{number}::1"), "fe80::1".to_owned()] {
                ip(&self.router, &format!("address add {address}/64 dev eth{number} nodad\n"));
            }
        }
    }

    pub fn setup(&self, configuration: &PathBuf, kind: &str) -> String {
        let mut command = netstage(&["test", "router", "--setup", kind]);
        let output = command.arg(configuration).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Begins netstage's own router with these routes.
    pub fn begin(&self, routes: &str) -> Process {
        std::fs::write(self.folder.join("fib.txt"), routes).unwrap();
        let socket = self.folder.join("router.sock");
        let text = format!(
            "[router]\ninterfaces = [\"eth0\", \"eth1\", \"eth2\"]\nmpls = [\"eth0\", \"eth1\", \"eth2\"]\n\
             routes = \"fib.txt\"\nfast_path = \"xdp\"\nv6_rows = 64\ncontrol = \"{}\"\n",
            socket.display()
        );
        let file = self.folder.join("router.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = netstage(&["router", "run"]);
        command.arg(file).stdout(Stdio::null());
        let process = Process::spawn_in(&self.router, command);
        let answers = || netstage_router::daemon::ask(&socket).is_ok();
        assert!(within(PATIENCE, answers), "the router does not answer");
        process
    }

    pub fn test(&self, configuration: &PathBuf) -> Output {
        self.begin_test(configuration).output()
    }

    /// Makes room for the record of another test.
    pub fn forget(&self) {
        std::fs::remove_dir_all(self.folder.join("out")).unwrap();
    }

    /// Begins a test.
    pub fn begin_test(&self, configuration: &PathBuf) -> Process {
        let mut command = netstage(&["test", "router", "--json", "--retries", "8", "--out"]);
        command.arg(self.folder.join("out")).arg(configuration);
        Process::spawn_in(&self.tester, command)
    }
}

/// Has the first two ports of a configuration talk to the router by IPv6, and leaves out the third.
pub fn to_ipv6(configuration: &PathBuf) {
    let mut text = std::fs::read_to_string(configuration).unwrap();
    for (number, last) in [(0, 0), (1, 4)] {
        text = text
            .replace(&format!("192.0.2.{}/30", last + 2), &format!("2001:db8:ffff:{number}::2/64"))
            .replace(&format!("\"192.0.2.{}\"", last + 1), &format!("\"2001:db8:ffff:{number}::1\""));
    }
    text.truncate(text.find("[port.south]").unwrap());
    std::fs::write(configuration, text).unwrap();
}

/// Runs a batch of `ip`.
pub fn ip(namespace: &Namespace, batch: &str) {
    ip_with(namespace, &[], batch);
}

/// The same with options.
pub fn ip_with(namespace: &Namespace, options: &[&str], batch: &str) {
    let mut command = Command::new("ip");
    command.args(options).args(["-batch", "-"]).stdin(Stdio::piped());
    let mut ip = spawn_in(namespace, command).unwrap();
    ip.stdin.take().unwrap().write_all(batch.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success());
}

/// What was found, cell by cell: operation, size, trials.
pub fn trials(output: &Output) -> Vec<(String, String, Vec<Value>)> {
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
pub fn all_came_back(cells: &[(String, String, Vec<Value>)]) {
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

/// Of what came back all was as it had to be. That the router does so with a packet to each network was seen
/// before the trials; how many it carries is the machine's affair.
pub fn came_back_right(cells: &[(String, String, Vec<Value>)]) {
    for (operation, size, trials) in cells {
        assert!(!trials.is_empty(), "{operation} {size}");
        for trial in trials {
            let count = |name: &str| trial[name].as_u64().unwrap();
            assert!(count("lost") < count("sent") && count("corrupted") == 0, "{operation} {size}: {trial}");
        }
    }
}

pub fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stderr).unwrap_or_else(|_| panic!("{output:?}"));
    told["error"]["message"].as_str().unwrap().to_owned()
}

/// What a test of a cell found, by metric.
pub fn found(output: &Output, cell: usize, metric: &str) -> Option<f64> {
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = told["record"]["cells"][cell]["tests"][0]["findings"].as_array().unwrap().clone();
    findings.iter().find(|finding| finding["metric"] == metric)?["value"].as_f64()
}

/// BIRD in the router, with the sessions of a tester.
pub fn bird(world: &World, configuration: &PathBuf) -> Process {
    bird_of(world, &world.setup(configuration, "bird"))
}

/// The same, told this.
pub fn bird_of(world: &World, text: &str) -> Process {
    let file = world.folder.join("bird.conf");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("bird");
    command.arg("-f").arg("-c").arg(&file).arg("-s").arg(world.folder.join("bird.ctl")).stderr(Stdio::null());
    Process::new(spawn_in(&world.router, command).unwrap())
}
