//! Test of Open vSwitch as the router under test: MPLS in its user-space data path, configured with the output of
//! `--setup ovs`.

use super::network::{TIMEOUT, TesterNetwork, assert_received_correctly, trials};
use crate::support::{TestProcess, within};
use netstage_harness::skip;
use netstage_host::netns::spawn_in;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Open vSwitch in the router's namespace, stopped when dropped.
struct Switch<'a> {
    world: &'a TesterNetwork,
    _daemons: [TestProcess; 2],
}

impl Switch<'_> {
    /// Starts the switch. Its ports 1 to 3 are connected to the tester's ports east, south and west.
    fn start(world: &TesterNetwork) -> Switch<'_> {
        let database = world.folder.join("conf.db");
        let socket = format!("unix:{}", world.folder.join("db.sock").display());
        run(world, "ovsdb-tool", &["create", &database.display().to_string(), SCHEMA]);
        let server =
            start(world, "ovsdb-server", &[&database.display().to_string(), &format!("--remote=p{socket}")]);
        assert!(within(TIMEOUT, || world.folder.join("db.sock").exists()), "no database");
        let daemon = start(world, "ovs-vswitchd", &[&socket]);
        let switch = Switch { world, _daemons: [server, daemon] };
        let mut bridge =
            "--timeout=10 add-br br0 -- set bridge br0 datapath_type=netdev fail-mode=secure".to_owned();
        for (number, port) in [(1, "eth1"), (2, "eth2"), (3, "eth0")] {
            bridge += &format!(" -- add-port br0 {port} -- set interface {port} ofport_request={number}");
        }
        let mut arguments = vec![format!("--db={socket}")];
        arguments.extend(bridge.split(' ').map(str::to_owned));
        run(world, "ovs-vsctl", &arguments);
        switch
    }

    /// Replaces all flows by those the tester prints, with the MAC addresses filled in.
    fn set(&self, flows: &str) {
        let mut flows = flows.to_owned();
        for (port, number) in [(1, 1), (2, 2), (3, 0)] {
            let mac = |last: u8| format!("02:00:00:00:00:{last:02x}");
            flows = flows
                .replace(&format!("ROUTER-MAC-{port},"), &format!("{},", mac(2 * number + 1)))
                .replace(&format!("TESTER-MAC-{port},"), &format!("{},", mac(2 * number)));
        }
        let file = self.world.folder.join("flows");
        std::fs::write(&file, flows).unwrap();
        run(self.world, "ovs-ofctl", &["del-flows", "br0"]);
        run(self.world, "ovs-ofctl", &["-O", "OpenFlow13", "add-flows", "br0", &file.display().to_string()]);
    }
}

fn command(world: &TesterNetwork, program: &str, arguments: &[impl AsRef<std::ffi::OsStr>]) -> Command {
    let mut command = Command::new(program);
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, &*world.folder);
    }
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(world: &TesterNetwork, program: &str, arguments: &[&str]) -> TestProcess {
    let mut command = command(world, program, arguments);
    command.stderr(Stdio::null()).stdout(Stdio::null());
    TestProcess::new(spawn_in(&world.router, command).unwrap())
}

fn run(world: &TesterNetwork, program: &str, arguments: &[impl AsRef<std::ffi::OsStr>]) {
    let command = command(world, program, arguments);
    let output: Output = spawn_in(&world.router, command).unwrap().wait_with_output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
}

fn open_vswitch_pushes_swaps_and_pops() {
    let world = TesterNetwork::new("tester-ovs");
    if !Path::new(SCHEMA).exists() {
        skip("needs openvswitch-switch (Debian)");
    }
    let switch = Switch::start(&world);
    // Open vSwitch copies the time to live into labels, but not out of them.
    for (operations, model) in
        [("\"push\", \"swap\"", "uniform"), ("\"swap\", \"pop\", \"unlabeled\"", "pipe")]
    {
        let head = format!(
            "router = \"OVS\"\nready_within = \"10 s\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"46 B\"]\n\
             model = \"{model}\"\noperations = [{operations}]\n"
        );
        let configuration = world.configure(&head, "[routes]\ncount = 20\n[labels]\npeers = 2\n");
        switch.set(&world.setup(&configuration, "ovs"));
        let cells = trials(&world.test(&configuration));
        assert_eq!(cells.len(), operations.split(',').count());
        assert_received_correctly(&cells);
        world.remove_record();
    }
}

netstage_harness::tests![open_vswitch_pushes_swaps_and_pops];
