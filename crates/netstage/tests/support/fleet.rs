//! Fleet in namespaces: the controller's host, the agents' hosts, and a management network between them.
#![allow(dead_code)]

use super::network::{address, default_route, join};
use super::{PROGRAM, TemporaryFolder, TestProcess, as_unit, netstage, output_text, within};
use netstage_harness::needs;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use netstage_host::netns::routes::StaticRoute;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

pub const CONTROLLER: &str = "192.168.77.1:4700";
/// Timeout that suffices for all tests on any machine.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Hosts of a fleet. All agents use `policy.toml` in the folder.
pub struct Fleet {
    pub hub: Namespace,
    pub hosts: Vec<Namespace>,
    pub names: Vec<&'static str>,
    pub folder: TemporaryFolder,
    /// Additional environment of all processes.
    pub environment: Vec<(&'static str, PathBuf)>,
}

impl Fleet {
    /// Creates a fleet, or skips the test if it may not create namespaces.
    pub fn new(name: &str, names: &[&'static str]) -> Fleet {
        needs::namespaces();
        let hub = Namespace::new().unwrap();
        hub.loopback_up().unwrap();
        let mut hub_links = Netlink::open(&hub).unwrap();
        hub_links.create_bridge("mgmt").unwrap();
        hub_links.add_address("mgmt", address("192.168.77.1"), 24).unwrap();
        hub_links.set_up("mgmt").unwrap();
        let host = |index: usize| {
            let number = index as u8 + 1;
            let host = Namespace::new().unwrap();
            host.loopback_up().unwrap();
            let port = format!("m{number}");
            join((&host, "mgmt", 10 + number), (&hub, &port, 20 + number));
            hub_links.set_bridge(&port, "mgmt").unwrap();
            let mut links = Netlink::open(&host).unwrap();
            links.add_address("mgmt", address(&format!("192.168.77.1{number}")), 24).unwrap();
            host
        };
        let hosts = (0..names.len()).map(host).collect();
        let (names, folder) = (names.to_vec(), TemporaryFolder::new(name));
        let fleet = Fleet { hub, hosts, names, folder, environment: Vec::new() };
        fleet.succeed(&["fleet", "init", "--name", "lab"]);
        fleet
    }

    /// Joins the hosts by a router. The host of agent N (from 1) has address 10.1.N.2 on interface `data`, and the
    /// router `dN`.
    pub fn join_by_router(&self) -> Namespace {
        let router = Namespace::new().unwrap();
        router.sysctl("net/ipv4/ip_forward", "1").unwrap();
        for (number, host) in (1..).zip(&self.hosts) {
            let far = format!("d{number}");
            join((host, "data", 30 + number), (&router, &far, 40 + number));
            let mut links = Netlink::open(host).unwrap();
            links.add_address("data", address(&format!("10.1.{number}.2")), 24).unwrap();
            let gateway = format!("10.1.{number}.1");
            Netlink::open(&router).unwrap().add_address(&far, address(&gateway), 24).unwrap();
            let route =
                StaticRoute { destination: (address("10.1.0.0"), 16), ..default_route(&gateway, "data") };
            links.add_route(&route).unwrap();
        }
        router
    }

    /// Writes the policy of agents that a router joins, with these further rules.
    pub fn write_policy(&self, rules: &str) {
        let policy = format!(
            "[policy]\ncontrollers = [\"lab\"]\ndestinations = [\"10.1.0.0/16\"]\ninterfaces = [\"data\"]\n{rules}\n"
        );
        fs::write(self.folder.join("policy.toml"), policy).unwrap();
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = netstage(arguments);
        command.current_dir(&*self.folder).env("NETSTAGE_FLEET", self.folder.join("fleet"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command on the controller's host.
    pub fn at_hub(&self, arguments: &[&str]) -> Output {
        self.run_in(&self.hub, arguments)
    }

    pub fn run_in(&self, namespace: &Namespace, arguments: &[&str]) -> Output {
        TestProcess::spawn_in(namespace, self.command(arguments)).output()
    }

    /// Runs a command on the controller's host, which must succeed, and returns its standard output.
    pub fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.at_hub(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", output_text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn start(&self, namespace: &Namespace, log: &str, arguments: &[&str]) -> TestProcess {
        self.start_command(namespace, log, self.command(arguments))
    }

    fn start_command(&self, namespace: &Namespace, log: &str, mut command: Command) -> TestProcess {
        let log = File::options().create(true).append(true).open(self.folder.join(log)).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        TestProcess::spawn_in(namespace, command)
    }

    /// Starts the controller again, after the previous process has ended.
    pub fn serve_again(&self) -> TestProcess {
        let _ = fs::remove_file(self.folder.join("hub.log"));
        self.serve()
    }

    pub fn serve(&self) -> TestProcess {
        let process =
            self.start(&self.hub, "hub.log", &["fleet", "serve", "--listen", CONTROLLER, "--metrics"]);
        self.wait_for_log("hub.log", "listening for agents on");
        process
    }

    pub fn agent(&self, index: usize) -> TestProcess {
        self.agent_with(index, None)
    }

    /// Starts an agent, with this `PATH` if given.
    pub fn agent_with(&self, index: usize, path: Option<&str>) -> TestProcess {
        let name = self.names[index];
        let mut command = self.command(&["agent", "--state", name, "--policy", "policy.toml", "--metrics"]);
        command.envs(path.map(|path| ("PATH", path)));
        self.start_command(&self.hosts[index], &format!("{name}.log"), command)
    }

    /// Starts an agent whose monotonic clock is ahead by `seconds`.
    pub fn agent_ahead(&self, index: usize, seconds: u32) -> TestProcess {
        let name = self.names[index];
        let mut command = Command::new("unshare");
        command.args(["--time", "--monotonic", &seconds.to_string(), "--fork", "--kill-child", PROGRAM]);
        command.args(["agent", "--state", name, "--policy", "policy.toml"]).current_dir(&*self.folder);
        command.stdin(Stdio::null());
        self.start_command(&self.hosts[index], &format!("{name}.log"), command)
    }

    /// Returns a copy of the package's unit file `netstage-NAME.service`, with the path of the program under test.
    pub fn unit(&self, name: &str) -> PathBuf {
        let program = self.folder.join("netstage");
        if !program.exists() {
            self.folder.program("netstage", &fs::read(PROGRAM).unwrap());
        }
        let name = format!("netstage-{name}.service");
        let unit = super::project().join("packaging").join(&name);
        let text = fs::read_to_string(unit).unwrap().replace("/usr/bin/netstage", program.to_str().unwrap());
        let copy = self.folder.join(name);
        fs::write(&copy, text).unwrap();
        copy
    }

    /// Starts an agent that has joined, restricted by a unit and an optional drop-in.
    pub fn agent_as(&self, unit: &Path, drop_in: Option<&Path>, index: usize) -> TestProcess {
        let name = self.names[index];
        let status = Command::new("chown").args(["-R", "65534:65534"]).arg(self.folder.join(name)).status();
        assert!(status.unwrap().success());
        let unit = [Some(unit), drop_in].into_iter().flatten().map(|file| file.display().to_string());
        let unit = unit.collect::<Vec<_>>().join(":");
        let arguments = ["agent", "--state", name, "--policy", "policy.toml"];
        self.start_as(&unit, &self.hosts[index], &format!("{name}.log"), &arguments)
    }

    /// Starts the controller, restricted by a unit.
    pub fn serve_as(&self, unit: &Path) -> TestProcess {
        let arguments = ["fleet", "serve", "--fleet", "fleet", "--listen", CONTROLLER];
        let process = self.start_as(&unit.display().to_string(), &self.hub, "hub.log", &arguments);
        self.wait_for_log("hub.log", "listening for agents on");
        process
    }

    fn start_as(&self, unit: &str, namespace: &Namespace, log: &str, arguments: &[&str]) -> TestProcess {
        let log = File::create(self.folder.join(log)).unwrap();
        let mut command = as_unit(unit, &self.folder.join("netstage"));
        command.args(arguments).current_dir(&*self.folder).stdout(Stdio::null()).stderr(log);
        TestProcess::spawn_in(namespace, command)
    }

    /// Fetches Prometheus metrics from an address in a namespace.
    pub fn scrape(&self, namespace: &Namespace, address: &str) -> String {
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail", &format!("http://{address}/metrics")]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = TestProcess::spawn_in(namespace, command).output();
        assert!(output.status.success(), "{}", output_text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn join(&self, index: usize, token: &str) -> Output {
        self.run_in(&self.hosts[index], &["fleet", "join", CONTROLLER, token, "--state", self.names[index]])
    }

    /// Joins and starts all agents, each with a label.
    pub fn join_all(&self, labels: &[&str]) -> Vec<TestProcess> {
        self.join_all_as(labels, |index| self.agent(index))
    }

    /// Like [`join_all`](Fleet::join_all), with a function that starts an agent.
    pub fn join_all_as(&self, labels: &[&str], start: impl Fn(usize) -> TestProcess) -> Vec<TestProcess> {
        let agents = self.names.iter().zip(labels).enumerate().map(|(index, (name, label))| {
            let token = self.succeed(&["fleet", "token", name, "--label", label]);
            let output = self.join(index, token.trim());
            assert!(output.status.success(), "{}", output_text(&output));
            start(index)
        });
        let agents = agents.collect();
        self.wait_for_all("idle");
        agents
    }

    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    pub fn wait_for_log(&self, name: &str, part: &str) {
        assert!(within(LIMIT, || self.log(name).contains(part)), "no {part:?} in {name}\n{}", self.logs());
    }

    /// Returns the logs of the controller and all agents.
    pub fn logs(&self) -> String {
        let section = |name: &str| format!("{name}.log:\n{}", self.log(&format!("{name}.log")));
        ["hub"].iter().chain(&self.names).map(|name| section(name)).collect::<Vec<_>>().join("\n")
    }

    pub fn states(&self) -> Vec<(String, String)> {
        let agents: Value = serde_json::from_str(&self.succeed(&["fleet", "ls", "--json"])).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        agents.as_array().unwrap().iter().map(|agent| (text(&agent["name"]), text(&agent["state"]))).collect()
    }

    pub fn wait_for(&self, expected: &[(&str, &str)]) {
        let is_reached = || {
            let states = self.states();
            expected.iter().all(|(name, state)| states.iter().any(|(n, s)| n == name && s == state))
        };
        assert!(within(LIMIT, is_reached), "{:?}\n{}", self.states(), self.logs());
    }

    /// Waits until all agents have this state.
    pub fn wait_for_all(&self, state: &str) {
        self.wait_for(&self.names.iter().map(|name| (*name, state)).collect::<Vec<_>>());
    }

    /// Runs a scenario on the agents and returns its record, which must not contain failures. A void run is accepted,
    /// as the load of the test machine is not tested.
    pub fn run_live(&self, scenario: &str, out: &str) -> Value {
        let output = self.run_with(scenario, out, &[]);
        let has_record = matches!(output.status.code(), Some(0 | 3 | 5));
        assert!(has_record, "{}\n{}", output_text(&output), self.logs());
        let record = super::record(&self.folder.join(out));
        assert!(record["failures"].is_null(), "{record:#}");
        record
    }

    pub fn run_with(&self, scenario: &str, out: &str, more: &[&str]) -> Output {
        self.at_hub(&[&["run", scenario, "--on", "live", "--out", out], more].concat())
    }

    /// Counts the rows of an agent's journal of bins.
    pub fn counted(&self, agent: &str) -> usize {
        let rows = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default().lines().count();
        self.in_spool(agent, "bins").iter().map(rows).sum()
    }

    /// Returns the reports that an agent stores.
    pub fn spooled(&self, agent: &str) -> Vec<PathBuf> {
        self.in_spool(agent, "json")
    }

    fn in_spool(&self, agent: &str, extension: &str) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.folder.join(agent).join("spool")) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
    }
}
