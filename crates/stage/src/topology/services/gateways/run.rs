//! The processes of gateways, started before the run, which begins when packets pass all tunnels.

use super::{GatewaysSpec, TunnelSpec, openvpn, strongswan, wireguard};
use crate::topology::address;
use crate::topology::services::processes::{Processes, last_words, log_to};
use crate::topology::services::{find, reach};
use netstage_host::netns::hold::spawn_held_apart;
use netstage_host::netns::routes::{Metrics, Route};
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::obstacle::Obstacle;
use netstage_scenario::plan::Software;
use ring::rand::{SecureRandom as _, SystemRandom};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// How often something is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for a program to make its interface or to listen.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Longest wait for packets to pass all tunnels.
const TUNNEL_LIMIT: Duration = Duration::from_secs(30);

/// Gateways that run.
pub struct Gateways {
    processes: Processes,
}

/// A key that two gateways share, as hexadecimal digits.
pub struct Secret(pub String);

impl Secret {
    fn generate() -> io::Result<Secret> {
        let mut bytes = [0; 32];
        let drawn = SystemRandom::new().fill(&mut bytes);
        drawn.map_err(|_| io::Error::other("the system gives no random numbers"))?;
        Ok(Secret(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

/// What an end is told, and where.
enum Told {
    StrongSwan([PathBuf; 2]),
    WireGuard(PathBuf),
    OpenVpn(PathBuf),
}

impl Told {
    /// Writes it for both ends, with keys of their own.
    fn write(tunnel: &TunnelSpec, folders: [&Path; 2]) -> io::Result<[Told; 2]> {
        let both = |write: &dyn Fn(usize) -> io::Result<Told>| Ok([write(0)?, write(1)?]);
        match tunnel.software {
            Software::StrongSwan => {
                let secret = Secret::generate()?;
                both(&|end| strongswan::write(tunnel, end, &secret, folders[end]).map(Told::StrongSwan))
            }
            Software::WireGuard => {
                let keys = [wireguard::Keys::generate()?, wireguard::Keys::generate()?];
                both(&|end| wireguard::write(tunnel, end, &keys, folders[end]).map(Told::WireGuard))
            }
            Software::OpenVpn => {
                let name = |end: usize| openvpn::Identity::generate(&tunnel.ends[end].name);
                let identities = [name(0)?, name(1)?];
                both(&|end| openvpn::write(tunnel, end, &identities, folders[end]).map(Told::OpenVpn))
            }
        }
    }
}

/// One gateway while it is started.
struct Start<'a> {
    /// As whom it is spoken of: `node.west`.
    name: String,
    namespace: &'a Namespace,
    netstage: &'a Path,
    /// Its own folder, and what is /run for its programs.
    folder: PathBuf,
    run: PathBuf,
}

impl Gateways {
    /// Starts all of them, and waits until packets of every flow arrive. `nodes` are the network's namespaces,
    /// between which frames are carried meanwhile.
    pub fn start(
        spec: GatewaysSpec,
        nodes: &[Option<Namespace>],
        netstage: &Path,
    ) -> Result<Gateways, Obstacle> {
        let mut gateways = Gateways { processes: Processes::default() };
        for tunnel in &spec.tunnels {
            gateways.start_tunnel(tunnel, &spec.folder, nodes, netstage)?;
        }
        let mut probes = spec.probes;
        let limit = Instant::now() + TUNNEL_LIMIT;
        loop {
            let lacking = reach::lacking(&mut probes, nodes);
            let Some(lack) = lacking.first() else { return Ok(gateways) };
            if let Some(ended) = gateways.ended().pop() {
                return Err(Obstacle::broken(ended));
            }
            if Instant::now() > limit {
                let others = lacking.len() - 1;
                let more = if others > 0 { format!(", nor do {others} more") } else { String::new() };
                return Err(Obstacle::broken(format!(
                    "the gateways' tunnels are not there after {} s: {lack}{more}",
                    TUNNEL_LIMIT.as_secs()
                )));
            }
            thread::sleep(LOOK);
        }
    }

    /// Who of them has ended by itself, and what it said last.
    pub fn ended(&mut self) -> Vec<String> {
        self.processes.ended()
    }

    fn start_tunnel(
        &mut self,
        tunnel: &TunnelSpec,
        folder: &Path,
        nodes: &[Option<Namespace>],
        netstage: &Path,
    ) -> Result<(), Obstacle> {
        let start = |end: usize| {
            let gateway = &tunnel.ends[end];
            let folder = folder.join(gateway.node.to_string());
            Start {
                name: format!("node.{}", gateway.name),
                namespace: nodes[gateway.node].as_ref().expect("a gateway is used"),
                netstage,
                run: folder.join("run"),
                folder,
            }
        };
        let starts = [start(0), start(1)];
        for start in &starts {
            fs::create_dir_all(&start.run).map_err(|e| start.broken("prepare it", &e))?;
        }
        let told = Told::write(tunnel, [&starts[0].folder, &starts[1].folder]);
        let told = told.map_err(|e| starts[0].broken("prepare it", &e))?;
        for (start, told) in starts.iter().zip(&told) {
            self.launch(start, told)?;
        }
        // The end that begins is told last, so that the other one knows already.
        for end in [1, 0] {
            let (start, gateway) = (&starts[end], &tunnel.ends[end]);
            let interface = self.tell(start, &told[end])?;
            let mut netlink = Netlink::open(start.namespace).map_err(|e| start.failed(&e))?;
            if tunnel.software.largest_packet().is_none() {
                netlink.set_mtu(interface, tunnel.mtu).map_err(|e| start.failed(&e))?;
            }
            netlink.set_up(interface).map_err(|e| start.failed(&e))?;
            for &destination in &gateway.behind {
                let route = Route {
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

    /// Starts what makes the interface.
    fn launch(&mut self, start: &Start, told: &Told) -> Result<(), Obstacle> {
        match told {
            Told::StrongSwan([settings, _]) => {
                self.keep(start, strongswan::PROGRAM, |command| {
                    command.env("STRONGSWAN_CONF", settings);
                })?;
                self.wait(start, strongswan::PROGRAM, || start.run.join(strongswan::SOCKET).exists())?;
                self.wait_for_interface(start, strongswan::PROGRAM, strongswan::INTERFACE)
            }
            Told::WireGuard(_) => {
                let mut netlink = Netlink::open(start.namespace).map_err(|e| start.failed(&e))?;
                if netlink.create_wireguard(wireguard::INTERFACE).is_ok() {
                    return Ok(());
                }
                if find(wireguard::PROGRAM).is_none() {
                    return Err(Obstacle::missing(
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
            Told::OpenVpn(configuration) => {
                self.keep(start, openvpn::PROGRAM, |command| {
                    command.arg("--config").arg(configuration);
                })?;
                self.wait_for_interface(start, openvpn::PROGRAM, openvpn::INTERFACE)
            }
        }
    }

    /// Tells it of its tunnel, where that takes more than to start it; returns its interface.
    fn tell(&mut self, start: &Start, told: &Told) -> Result<&'static str, Obstacle> {
        match told {
            Told::StrongSwan([settings, connection]) => {
                let socket = format!("unix://{}", start.run.join(strongswan::SOCKET).display());
                start.ask(strongswan::TELLER, |command| {
                    command.env("STRONGSWAN_CONF", settings);
                    command.args(["--load-all", "--uri", &socket, "--file"]).arg(connection);
                })?;
                Ok(strongswan::INTERFACE)
            }
            Told::WireGuard(configuration) => {
                start.ask(wireguard::TELLER, |command| {
                    command.args(["setconf", wireguard::INTERFACE]).arg(configuration);
                })?;
                Ok(wireguard::INTERFACE)
            }
            Told::OpenVpn(_) => Ok(openvpn::INTERFACE),
        }
    }

    /// Starts a program that lasts as long as the run.
    fn keep(
        &mut self,
        start: &Start,
        program: &str,
        dress: impl FnOnce(&mut Command),
    ) -> Result<(), Obstacle> {
        let (child, log) = start.spawn(program, dress)?;
        self.processes.keep(format!("{}: {program}", start.name), child, log);
        Ok(())
    }

    fn wait_for_interface(&mut self, start: &Start, program: &str, name: &str) -> Result<(), Obstacle> {
        let mut netlink = Netlink::open(start.namespace).map_err(|e| start.failed(&e))?;
        self.wait(start, program, || netlink.link(name).is_ok())
    }

    /// Waits until a program has done something.
    fn wait(&mut self, start: &Start, program: &str, mut done: impl FnMut() -> bool) -> Result<(), Obstacle> {
        let limit = Instant::now() + START_LIMIT;
        while !done() {
            if let Some(ended) = self.ended().pop() {
                return Err(Obstacle::broken(ended));
            }
            if Instant::now() > limit {
                let words = last_words(&start.log(program));
                return Err(Obstacle::broken(format!("{}: {program} does not start: {words}", start.name)));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Start<'_> {
    fn log(&self, program: &str) -> PathBuf {
        self.folder.join(format!("{program}.log"))
    }

    fn spawn(&self, program: &str, dress: impl FnOnce(&mut Command)) -> Result<(Child, PathBuf), Obstacle> {
        let path = find(program)
            .ok_or_else(|| Obstacle::broken(format!("{}: {program} is not installed any more", self.name)))?;
        let mut log = Ok(PathBuf::new());
        let child = spawn_held_apart(self.namespace, self.netstage, &path, &self.run, |command| {
            dress(command);
            log = log_to(self.log(program), command);
        });
        let child = child.map_err(|e| self.broken(&format!("start {program}"), &e))?;
        Ok((child, log?))
    }

    /// Runs a program to its end.
    fn ask(&self, program: &str, dress: impl FnOnce(&mut Command)) -> Result<(), Obstacle> {
        let (mut child, log) = self.spawn(program, dress)?;
        let ended: io::Result<ExitStatus> = child.wait();
        match ended {
            Ok(status) if status.success() => Ok(()),
            _ => Err(Obstacle::broken(format!("{}: {program} has failed: {}", self.name, last_words(&log)))),
        }
    }

    fn broken(&self, doing: &str, error: &io::Error) -> Obstacle {
        Obstacle::broken(format!("{}: cannot {doing}: {error}", self.name))
    }

    fn failed(&self, error: &netstage_host::netns::netlink::Error) -> Obstacle {
        Obstacle::broken(format!("{}: {error}", self.name))
    }
}

/// Writes a file that only its owner reads.
pub fn private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}
