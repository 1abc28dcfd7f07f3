//! Network of a tester and a router, in two namespaces with three links between them.

use crate::support::network::join_with_mtu;
use crate::support::{TemporaryFolder, TestProcess, netstage, output_text, within};
use netstage_harness::{needs, skip_busy};
use netstage_host::netns::{Namespace, Netlink, ethtool, spawn_in};
use serde_json::Value;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub const TIMEOUT: Duration = Duration::from_secs(20);
/// Room for a label above the largest packet.
const MTU: u32 = 1512;

/// Tester and router with three links: 192.0.2.2 to .1, .6 to .5 and .10 to .9.
pub struct TesterNetwork {
    pub tester: Namespace,
    pub router: Namespace,
    pub folder: TemporaryFolder,
    _lock: MutexGuard<'static, ()>,
}

/// Lock of the tests, as the generator in the kernel uses a whole CPU core.
static LOCK: Mutex<()> = Mutex::new(());

const PORTS: [&str; 3] = ["west", "east", "south"];

impl TesterNetwork {
    pub fn new(name: &str) -> TesterNetwork {
        needs::namespaces();
        let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let (tester, router) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        for number in 0..PORTS.len() as u8 {
            let (port, interface) = (format!("port{number}"), format!("eth{number}"));
            join_with_mtu((&tester, &port, 2 * number), (&router, &interface, 2 * number + 1), MTU);
            // Without GRO, a veth drops redirected frames, and a router would use its slow path until a trial starts.
            for (namespace, name) in [(&tester, &port), (&router, &interface)] {
                ethtool::enable_features(namespace, name, &["rx-gro".into()]).unwrap();
            }
            let address: IpAddr = [192, 0, 2, 4 * number + 1].into();
            Netlink::open(&router).unwrap().add_address(&interface, address, 30).unwrap();
            Netlink::open(&tester).unwrap().wait_until_ready(&port).unwrap();
            Netlink::open(&router).unwrap().wait_until_ready(&interface).unwrap();
        }
        TesterNetwork { tester, router, folder: TemporaryFolder::new(name), _lock: lock }
    }

    /// Writes the tester's configuration, with short trials unless set in `head`, which is added to the first table.
    pub fn configure(&self, head: &str, rest: &str) -> PathBuf {
        let mut text = String::from("[tester]\ndrain = \"200 ms\"\n");
        for (name, value) in [
            ("trial", "200 ms"),
            ("search", "100 ms"),
            ("step", "1 Mbit/s"),
            ("max_rate", "2 Mbit/s"),
            ("ready_within", "3 s"),
        ] {
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

    /// Adds IPv6 addresses to the router's first two links.
    pub fn add_ipv6(&self) {
        for number in 0..2 {
            // Neighbor solicitations need link-local addresses, which these namespaces do not assign.
            for address in [format!("2001:db8:ffff:{number}::1"), "fe80::1".to_owned()] {
                ip(&self.router, &format!("address add {address}/64 dev eth{number} nodad\n"));
            }
        }
    }

    pub fn setup(&self, configuration: &PathBuf, kind: &str) -> String {
        let mut command = netstage(&["test", "router", "--setup", kind]);
        let output = command.arg(configuration).output().unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts netstage's router with these routes.
    pub fn start(&self, routes: &str) -> TestProcess {
        self.start_with(routes, "")
    }

    /// Starts netstage's router with these routes and further tables of its configuration.
    pub fn start_with(&self, routes: &str, tables: &str) -> TestProcess {
        std::fs::write(self.folder.join("fib.txt"), routes).unwrap();
        let socket = self.folder.join("router.sock");
        let text = format!(
            "[router]\ninterfaces = [\"eth0\", \"eth1\", \"eth2\"]\nmpls = [\"eth0\", \"eth1\", \"eth2\"]\n\
             routes = \"fib.txt\"\nfast_path = \"xdp\"\nv6_rows = 64\ncontrol = \"{}\"\n{tables}",
            socket.display()
        );
        let file = self.folder.join("router.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = netstage(&["router", "run"]);
        command.arg(file).stdout(Stdio::null());
        let process = TestProcess::spawn_in(&self.router, command);
        let is_ready = || netstage_router::daemon::query(&socket).is_ok();
        assert!(within(TIMEOUT, is_ready), "the router does not respond");
        process
    }

    pub fn test(&self, configuration: &PathBuf) -> Output {
        self.start_test(configuration).output()
    }

    /// Removes the record, so that another test can run.
    pub fn remove_record(&self) {
        std::fs::remove_dir_all(self.folder.join("out")).unwrap();
    }

    /// Removes the record or its parts.
    pub fn remove_record_if_any(&self) {
        let _ = std::fs::remove_dir_all(self.folder.join("out"));
    }

    /// Starts a test.
    pub fn start_test(&self, configuration: &PathBuf) -> TestProcess {
        let mut command = netstage(&["test", "router", "--json", "--retries", "8", "--out"]);
        command.arg(self.folder.join("out")).arg(configuration);
        TestProcess::spawn_in(&self.tester, command)
    }
}

/// Changes the first two ports of a configuration to IPv6 and removes the third.
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

/// Runs a batch of ip(8) commands.
pub fn ip(namespace: &Namespace, batch: &str) {
    ip_with(namespace, &[], batch);
}

/// Runs a batch of ip(8) commands with options.
pub fn ip_with(namespace: &Namespace, options: &[&str], batch: &str) {
    let mut command = Command::new("ip");
    command.args(options).args(["-batch", "-"]).stdin(Stdio::piped());
    let mut ip = spawn_in(namespace, command).unwrap();
    ip.stdin.take().unwrap().write_all(batch.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success());
}

/// Returns the operation, size and trials of each cell.
pub fn trials(output: &Output) -> Vec<(String, String, Vec<Value>)> {
    let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    // Trials may be void on a busy machine.
    assert!([0, 5].contains(&result["exit"].as_u64().unwrap()), "{result:#}");
    let cell = |cell: &Value| {
        let setting = |index: usize| cell["settings"][index][1].as_str().unwrap().to_owned();
        let tests = cell["tests"].as_array().unwrap().iter();
        let trials = tests.flat_map(|test| test["trials"].as_array().unwrap().clone()).collect();
        (setting(0), setting(1), trials)
    };
    result["record"]["cells"].as_array().unwrap().iter().map(cell).collect()
}

/// Asserts that all packets were received and correct.
pub fn assert_all_received(cells: &[(String, String, Vec<Value>)]) {
    for (operation, size, trials) in cells {
        assert!(!trials.is_empty(), "{operation} {size}");
        for trial in trials {
            let count = |name: &str| trial[name].as_u64().unwrap();
            if let Some(reason) = trial["void"].as_str().filter(|_| count("sent") == 0) {
                skip_busy(format!("{operation} {size}: {reason}"));
            }
            assert!(count("sent") > 0, "{operation} {size}: {trial}");
            let none = ["lost", "duplicated", "reordered", "corrupted"].map(count);
            assert_eq!(none, [0; 4], "{operation} {size}: {trial}");
            let Some(delay) = trial["delay_ns"].as_u64() else {
                skip_busy(format!("{operation} {size}: delays below the tester's own: {trial}"))
            };
            assert!(delay > 0, "{operation} {size}: {trial}");
        }
    }
}

/// Asserts that packets were received and correct. Loss is accepted, as the capacity depends on the machine; the tester
/// has verified a packet to each network before the trials.
pub fn assert_received_correctly(cells: &[(String, String, Vec<Value>)]) {
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
    let result: Value = serde_json::from_slice(&output.stderr).unwrap_or_else(|_| panic!("{output:?}"));
    result["error"]["message"].as_str().unwrap().to_owned()
}

/// Returns the finding of a metric in a cell.
pub fn found(output: &Output, cell: usize, metric: &str) -> Option<f64> {
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = result["record"]["cells"][cell]["tests"][0]["findings"].as_array().unwrap().clone();
    findings.iter().find(|finding| finding["metric"] == metric)?["value"].as_f64()
}

/// Starts BIRD in the router, with the sessions of a tester.
pub fn bird(world: &TesterNetwork, configuration: &PathBuf) -> TestProcess {
    start_bird(world, &world.setup(configuration, "bird"))
}

/// Starts BIRD in the router with this configuration.
pub fn start_bird(world: &TesterNetwork, text: &str) -> TestProcess {
    let file = world.folder.join("bird.conf");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("bird");
    command.arg("-f").arg("-c").arg(&file).arg("-s").arg(world.folder.join("bird.ctl")).stderr(Stdio::null());
    TestProcess::new(spawn_in(&world.router, command).unwrap())
}
