//! Processes of gateways. They start before the run, which begins when packets pass all tunnels.

use super::{GatewaysSpec, TunnelSpec, openvpn, strongswan, wireguard};
use crate::topology::address;
use crate::topology::services::processes::{Processes, last_log_line, log_to};
use crate::topology::services::{find, reachability};
use netstage_host::netns::process_namespace::{HeldOptions, spawn_in_process_namespace};
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::startup_error::StartupError;
use netstage_scenario::plan::GatewaySoftware;
use ring::rand::{SecureRandom as _, SystemRandom};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum wait until a program has created its interface or listens.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Maximum wait until packets pass all tunnels.
const TUNNEL_LIMIT: Duration = Duration::from_secs(30);

/// Running gateways.
pub struct Gateways {
    processes: Processes,
}

/// Pre-shared key of two gateways, as hexadecimal digits.
pub struct Secret(pub String);

impl Secret {
    fn generate() -> io::Result<Secret> {
        let mut bytes = [0; 32];
        let drawn = SystemRandom::new().fill(&mut bytes);
        drawn.map_err(|_| io::Error::other("the system provides no random numbers"))?;
        Ok(Secret(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

/// Configuration files of a gateway.
enum GatewayConfiguration {
    StrongSwan([PathBuf; 2]),
    WireGuard(PathBuf),
    OpenVpn(PathBuf),
}

impl GatewayConfiguration {
    /// Writes the configurations of both ends, with new keys.
    fn write(tunnel: &TunnelSpec, folders: [&Path; 2]) -> io::Result<[GatewayConfiguration; 2]> {
        let both = |write: &dyn Fn(usize) -> io::Result<GatewayConfiguration>| Ok([write(0)?, write(1)?]);
        match tunnel.software {
            GatewaySoftware::StrongSwan => {
                let secret = Secret::generate()?;
                both(&|end| {
                    strongswan::write(tunnel, end, &secret, folders[end])
                        .map(GatewayConfiguration::StrongSwan)
                })
            }
            GatewaySoftware::WireGuard => {
                let keys = [wireguard::Keys::generate()?, wireguard::Keys::generate()?];
                both(&|end| {
                    wireguard::write(tunnel, end, &keys, folders[end]).map(GatewayConfiguration::WireGuard)
                })
            }
            GatewaySoftware::OpenVpn => {
                let identity = |end: usize| openvpn::OpenVpnIdentity::generate(&tunnel.ends[end].name);
                let identities = [identity(0)?, identity(1)?];
                both(&|end| {
                    openvpn::write(tunnel, end, &identities, folders[end]).map(GatewayConfiguration::OpenVpn)
                })
            }
        }
    }
}

/// Gateway that is being started.
struct StartingGateway<'a> {
    /// Name in messages, such as `node.west`.
    name: String,
    namespace: &'a Namespace,
    netstage: &'a Path,
    /// Folder of the gateway, and the folder mounted as /run for its programs.
    folder: PathBuf,
    run: PathBuf,
}

impl Gateways {
    /// Starts all gateways and waits until the probes of all flows succeed. `nodes` are the namespaces of the network,
    /// whose links must already forward frames.
    pub fn start(
        spec: GatewaysSpec,
        nodes: &[Option<Namespace>],
        netstage: &Path,
    ) -> Result<Gateways, StartupError> {
        let mut gateways = Gateways { processes: Processes::default() };
        for tunnel in &spec.tunnels {
            gateways.start_tunnel(tunnel, &spec.folder, nodes, netstage)?;
        }
        let mut probes = spec.probes;
        let limit = Instant::now() + TUNNEL_LIMIT;
        loop {
            let unreachable = reachability::unreachable_flows(&mut probes, nodes);
            let Some(first) = unreachable.first() else { return Ok(gateways) };
            if let Some(ended) = gateways.ended().pop() {
                return Err(StartupError::without_remedy(ended));
            }
            if Instant::now() > limit {
                let others = unreachable.len() - 1;
                let more = if others > 0 { format!(" (and {others} more)") } else { String::new() };
                return Err(StartupError::without_remedy(format!(
                    "the tunnels of the gateways are not up after {} s: {first}{more}",
                    TUNNEL_LIMIT.as_secs()
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns a message for each process that has exited, with the last line of its log.
    pub fn ended(&mut self) -> Vec<String> {
        self.processes.exited()
    }

    fn start_tunnel(
        &mut self,
        tunnel: &TunnelSpec,
        folder: &Path,
        nodes: &[Option<Namespace>],
        netstage: &Path,
    ) -> Result<(), StartupError> {
        let start = |end: usize| {
            let gateway = &tunnel.ends[end];
            let folder = folder.join(gateway.node.to_string());
            StartingGateway {
                name: format!("node.{}", gateway.name),
                namespace: nodes[gateway.node].as_ref().expect("a gateway is used"),
                netstage,
                run: folder.join("run"),
                folder,
            }
        };
        let starts = [start(0), start(1)];
        for start in &starts {
            fs::create_dir_all(&start.run).map_err(|e| start.broken("create its folder", &e))?;
        }
        let configurations = GatewayConfiguration::write(tunnel, [&starts[0].folder, &starts[1].folder]);
        let configurations = configurations.map_err(|e| starts[0].broken("write its configuration", &e))?;
        for (start, configuration) in starts.iter().zip(&configurations) {
            self.launch(start, configuration)?;
        }
        // The initiator is configured last, so that the responder is ready.
        for end in [1, 0] {
            let (start, gateway) = (&starts[end], &tunnel.ends[end]);
            let interface = self.configure(start, &configurations[end])?;
            let mut netlink = Netlink::open(start.namespace).map_err(|e| start.failed(&e))?;
            if tunnel.software.fixed_mtu().is_none() {
                netlink.set_mtu(interface, tunnel.mtu).map_err(|e| start.failed(&e))?;
            }
            netlink.set_up(interface).map_err(|e| start.failed(&e))?;
            for &destination in &gateway.behind {
                let route = StaticRoute {
                    destination: (destination, address::host_prefix(destination)),
                    gateway: None,
                    link: interface,
                    preferred_source: None,
                    metrics: Metrics::default(),
                };
                netlink.add_route(&route).map_err(|e| start.failed(&e))?;
            }
        }
        Ok(())
    }

    /// Starts the program that creates the interface.
    fn launch(
        &mut self,
        start: &StartingGateway,
        configuration: &GatewayConfiguration,
    ) -> Result<(), StartupError> {
        match configuration {
            GatewayConfiguration::StrongSwan([settings, _]) => {
                self.keep(start, strongswan::PROGRAM, |command| {
                    command.env("STRONGSWAN_CONF", settings);
                })?;
                self.wait(start, strongswan::PROGRAM, || start.run.join(strongswan::SOCKET).exists())?;
                self.wait_for_interface(start, strongswan::PROGRAM, strongswan::INTERFACE)
            }
            GatewayConfiguration::WireGuard(_) => {
                let mut netlink = Netlink::open(start.namespace).map_err(|e| start.failed(&e))?;
                if netlink.create_wireguard(wireguard::INTERFACE).is_ok() {
                    return Ok(());
                }
                if find(wireguard::PROGRAM).is_none() {
                    return Err(StartupError::missing_feature(
                        format!(
                            "{}: this kernel has no WireGuard, and {} is not installed",
                            start.name,
                            wireguard::PROGRAM
                        ),
                        format!("sudo apt-get install {} (Debian)", wireguard::PROGRAM),
                    ));
                }
                self.keep(start, wireguard::PROGRAM, |command| {
                    command.args(["-f", wireguard::INTERFACE]);
                })?;
                let socket = start.run.join(format!("wireguard/{}.sock", wireguard::INTERFACE));
                self.wait(start, wireguard::PROGRAM, || socket.exists())?;
                self.wait_for_interface(start, wireguard::PROGRAM, wireguard::INTERFACE)
            }
            GatewayConfiguration::OpenVpn(configuration) => {
                self.keep(start, openvpn::PROGRAM, |command| {
                    command.arg("--config").arg(configuration);
                })?;
                self.wait_for_interface(start, openvpn::PROGRAM, openvpn::INTERFACE)
            }
        }
    }

    /// Configures the tunnel, unless the program has read its configuration at the start. Returns the interface.
    fn configure(
        &mut self,
        start: &StartingGateway,
        configuration: &GatewayConfiguration,
    ) -> Result<&'static str, StartupError> {
        match configuration {
            GatewayConfiguration::StrongSwan([settings, connection]) => {
                let socket = format!("unix://{}", start.run.join(strongswan::SOCKET).display());
                start.run_to_completion(strongswan::CONTROL_PROGRAM, |command| {
                    command.env("STRONGSWAN_CONF", settings);
                    command.args(["--load-all", "--uri", &socket, "--file"]).arg(connection);
                })?;
                Ok(strongswan::INTERFACE)
            }
            GatewayConfiguration::WireGuard(configuration) => {
                start.run_to_completion(wireguard::CONTROL_PROGRAM, |command| {
                    command.args(["setconf", wireguard::INTERFACE]).arg(configuration);
                })?;
                Ok(wireguard::INTERFACE)
            }
            GatewayConfiguration::OpenVpn(_) => Ok(openvpn::INTERFACE),
        }
    }

    /// Starts a program that lasts for the whole run.
    fn keep(
        &mut self,
        start: &StartingGateway,
        program: &str,
        add_arguments: impl FnOnce(&mut Command),
    ) -> Result<(), StartupError> {
        let (child, log) = start.spawn(program, add_arguments)?;
        self.processes.add(format!("{}: {program}", start.name), child, log);
        Ok(())
    }

    fn wait_for_interface(
        &mut self,
        start: &StartingGateway,
        program: &str,
        name: &str,
    ) -> Result<(), StartupError> {
        let mut netlink = Netlink::open(start.namespace).map_err(|e| start.failed(&e))?;
        self.wait(start, program, || netlink.link(name).is_ok())
    }

    /// Waits until `done` returns true.
    fn wait(
        &mut self,
        start: &StartingGateway,
        program: &str,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), StartupError> {
        let limit = Instant::now() + START_LIMIT;
        while !done() {
            if let Some(ended) = self.ended().pop() {
                return Err(StartupError::without_remedy(ended));
            }
            if Instant::now() > limit {
                let line = last_log_line(&start.log(program));
                return Err(StartupError::without_remedy(format!(
                    "{}: {program} did not start within {} s: {line}",
                    start.name,
                    START_LIMIT.as_secs()
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl StartingGateway<'_> {
    fn log(&self, program: &str) -> PathBuf {
        self.folder.join(format!("{program}.log"))
    }

    fn spawn(
        &self,
        program: &str,
        add_arguments: impl FnOnce(&mut Command),
    ) -> Result<(Child, PathBuf), StartupError> {
        let path = find(program).ok_or_else(|| {
            StartupError::without_remedy(format!("{}: {program} is no longer installed", self.name))
        })?;
        let mut log = Ok(PathBuf::new());
        let options = HeldOptions { run: Some(&self.run), ..HeldOptions::default() };
        let child = spawn_in_process_namespace(self.namespace, self.netstage, &path, options, |command| {
            add_arguments(command);
            log = log_to(self.log(program), command);
        });
        let child = child.map_err(|e| self.broken(&format!("start {program}"), &e))?;
        Ok((child, log?))
    }

    /// Runs a program to its end.
    fn run_to_completion(
        &self,
        program: &str,
        add_arguments: impl FnOnce(&mut Command),
    ) -> Result<(), StartupError> {
        let (mut child, log) = self.spawn(program, add_arguments)?;
        let status: io::Result<ExitStatus> = child.wait();
        match status {
            Ok(status) if status.success() => Ok(()),
            _ => Err(StartupError::without_remedy(format!(
                "{}: {program} failed: {}",
                self.name,
                last_log_line(&log)
            ))),
        }
    }

    fn broken(&self, action: &str, error: &io::Error) -> StartupError {
        StartupError::without_remedy(format!("{}: cannot {action}: {error}", self.name))
    }

    fn failed(&self, error: &netstage_host::netns::netlink::NetlinkError) -> StartupError {
        StartupError::without_remedy(format!("{}: {error}", self.name))
    }
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}
