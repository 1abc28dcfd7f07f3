//! Open vSwitch of Debian with its user-space data path (AF_PACKET), in a separate namespace and folder: it
//! forwards MPLS on Linux without kernel support.

use super::BenchResult;
use super::network::{OUT, RECEIVER};
use netstage_host::netns::{Namespace, ethtool, spawn_in};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Label operation of the switch.
pub enum SwitchOperation {
    Push(u32),
    Swap(u32, u32),
    Pop(u32),
}

impl SwitchOperation {
    fn flow(&self) -> String {
        let mac = |mac: &[u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let (to, from) = (mac(&RECEIVER), mac(&OUT));
        let leave = format!("mod_dl_dst:{to},mod_dl_src:{from},output:2");
        match self {
            SwitchOperation::Push(label) => format!(
                "in_port=1,ip,nw_dst=11.0.0.0/8,actions=dec_ttl,push_mpls:0x8847,set_mpls_label:{label},{leave}"
            ),
            SwitchOperation::Swap(label, other) => {
                format!(
                    "in_port=1,mpls,mpls_label={label},actions=dec_mpls_ttl,set_mpls_label:{other},{leave}"
                )
            }
            SwitchOperation::Pop(label) => format!(
                "in_port=1,mpls,mpls_label={label},mpls_bos=1,actions=dec_mpls_ttl,pop_mpls:0x0800,{leave}"
            ),
        }
    }
}

/// Running switch, stopped on drop.
pub struct Switch {
    folder: PathBuf,
    daemons: Vec<Child>,
}

/// Checks whether a program is installed; the error names its package.
pub fn installed(program: &str, package: &str) -> BenchResult<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    is_installed
        .then_some(())
        .ok_or_else(|| format!("{program} is not installed (apt-get install {package})").into())
}

impl Switch {
    pub fn start(router: &Namespace, task: SwitchOperation) -> BenchResult<Switch> {
        installed("ovs-vswitchd", "openvswitch-switch")?;
        let name = format!("netstage-switch-{}-{}", std::process::id(), router_name(&task));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let mut switch = Switch { folder, daemons: Vec::new() };
        let database = switch.folder.join("conf.db");
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        switch.run(router, Command::new("ovsdb-tool").arg("create").arg(&database).arg(schema))?;
        let socket = format!("unix:{}", switch.folder.join("db.sock").display());
        let mut server = Command::new("ovsdb-server");
        server.arg(&database).arg(format!("--remote=p{socket}"));
        switch.daemon(router, server)?;
        switch.wait("db.sock")?;
        let mut daemon = Command::new("ovs-vswitchd");
        daemon.arg(&socket);
        switch.daemon(router, daemon)?;
        // Redirected frames arrive only if NAPI is enabled, by generic receive offload or by a program.
        ethtool::enable_features(router, "in", &["rx-gro".into()])?;
        let bridge = "--timeout=10 add-br br0 -- set bridge br0 datapath_type=netdev fail-mode=secure \
                      -- add-port br0 in -- set interface in ofport_request=1 \
                      -- add-port br0 out -- set interface out ofport_request=2";
        let mut command = Command::new("ovs-vsctl");
        command.arg(format!("--db={socket}")).args(bridge.split_whitespace());
        switch.run(router, &mut command)?;
        switch.run(router, Command::new("ovs-ofctl").args(["add-flow", "br0", &task.flow()]))?;
        Ok(switch)
    }

    fn configure<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, &self.folder);
        }
        command
    }

    fn daemon(&mut self, router: &Namespace, mut command: Command) -> BenchResult<()> {
        let log = std::fs::File::create(self.folder.join(format!("log-{}", self.daemons.len())))?;
        self.configure(&mut command).stdout(Stdio::null()).stderr(log);
        self.daemons.push(spawn_in(router, command)?);
        Ok(())
    }

    fn run(&self, router: &Namespace, command: &mut Command) -> BenchResult<()> {
        let command = self.configure(command);
        let output = router.run(|| command.output())??;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("{:?}: {message}", command.get_program()).into());
        }
        Ok(())
    }

    fn wait(&self, file: &str) -> BenchResult<()> {
        let start = Instant::now();
        while !self.folder.join(file).exists() {
            if start.elapsed() > TIMEOUT {
                return Err(format!("Open vSwitch did not create {file} within {TIMEOUT:?}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

fn router_name(task: &SwitchOperation) -> &'static str {
    match task {
        SwitchOperation::Push(_) => "push",
        SwitchOperation::Swap(..) => "swap",
        SwitchOperation::Pop(_) => "pop",
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // Errors of daemons that have ended already are ignored.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
