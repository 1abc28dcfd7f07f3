//! Processes: a router and its daemons in each node. They start before the run, which begins after convergence.

use super::{FrrDaemon, RouterSpec, RoutingSpec, configuration, labels};
use crate::topology::services::processes::{self, Processes, last_log_line};
use crate::topology::services::reachability;
use netstage_host::netns::process_namespace::{HeldOptions, spawn_in_process_namespace};
use netstage_host::netns::{Namespace, spawn_in};
use netstage_host::startup_error::StartupError;
use netstage_router::daemon::state::RouteFilter;
use netstage_router::daemon::{query, routes};
use nix::unistd::{User, chown};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// User of the daemons, fixed when FRR is compiled.
const USER: &str = "frr";
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time without progress until the LDP sessions of routers without an expected LSP are reset, doubled after
/// each reset. In a new session a peer advertises all its labels.
const STALL_LIMIT: Duration = Duration::from_secs(15);
/// Maximum time for a vtysh command, in seconds.
const VTYSH_LIMIT: &str = "20";
/// Maximum wait until a process listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);

/// Label bindings of ldpd.
#[derive(Default, Deserialize)]
struct Bindings {
    bindings: Vec<Binding>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Binding {
    prefix: String,
    /// Local label; "-" if none is bound.
    local_label: String,
}

/// Detects that routers have learned nothing for too long.
struct Stall {
    lacking: Vec<String>,
    since: Instant,
    limit: Duration,
}

impl Stall {
    fn new(now: Instant) -> Stall {
        Stall { lacking: Vec::new(), since: now, limit: STALL_LIMIT }
    }

    /// Returns whether the same routes have been missing for the limit, and then doubles the limit.
    fn is_due(&mut self, now: Instant, lacking: &[String]) -> bool {
        if self.lacking != lacking {
            self.lacking = lacking.to_vec();
            self.since = now;
        }
        let is_due = !lacking.is_empty() && now.duration_since(self.since) >= self.limit;
        if is_due {
            (self.since, self.limit) = (now, 2 * self.limit);
        }
        is_due
    }
}

/// Returns a function that lists what routers lack. A router that lacks nothing is not checked again.
fn until_all<'a>(
    routers: &'a [RouterSpec],
    lacks: impl Fn(&RoutingProcesses, &RouterSpec) -> Option<String> + 'a,
) -> impl FnMut(&RoutingProcesses) -> Vec<String> + 'a {
    let mut pending: Vec<&RouterSpec> = routers.iter().collect();
    move |routing| {
        let mut lacking = Vec::new();
        pending.retain(|router| {
            let lack = lacks(routing, router);
            let is_lacking = lack.is_some();
            lacking.extend(lack);
            is_lacking
        });
        lacking
    }
}

/// Running routers.
pub struct RoutingProcesses {
    spec: RoutingSpec,
    processes: Processes,
}

impl RoutingProcesses {
    /// Starts all routers and waits until routing has converged and the probes of all flows succeed. `nodes` are the
    /// namespaces of the network, whose links must already forward frames.
    pub fn start(
        spec: RoutingSpec,
        nodes: &[Option<Namespace>],
        netstage: &Path,
    ) -> Result<RoutingProcesses, StartupError> {
        let mut routing = RoutingProcesses { spec, processes: Processes::default() };
        routing.prepare()?;
        let routers = routing.spec.routers.clone();
        let has_labels = routers.iter().any(|router| !router.label_interfaces.is_empty());
        let library = if has_labels { labels::library(&routing.spec.folder)? } else { None };
        for router in &routers {
            let (namespace, folder) = (namespace(nodes, router), routing.folder(router));
            let mut command = Command::new(netstage);
            command.args(["router", "run"]).arg(folder.join("router.toml"));
            let log = routing.log(router, "router", &mut command)?;
            let child = spawn_in(namespace, command);
            routing.keep(router, "router", child, log)?;
        }
        for router in &routers {
            routing.wait_for(&routing.folder(router).join(configuration::ROUTER_SOCKET), router, "router")?;
        }
        let limit = Instant::now() + Duration::from_nanos(routing.spec.patience.0);
        for wave in 0..FrrDaemon::WAVES.len() {
            for router in &routers {
                for (daemon, _) in &router.waves[wave].daemons {
                    routing.start_daemon(router, *daemon, namespace(nodes, router), netstage, &library)?;
                }
            }
            for router in routers.iter().filter(|_| wave == 0) {
                routing.wait_for(&routing.folder(router).join("zserv.api"), router, "zebra")?;
            }
            let distributes = has_labels && FrrDaemon::WAVES[wave].contains(&FrrDaemon::Ldp);
            if distributes {
                let prefixes = routers.iter().flat_map(|router| &router.waves[wave].required);
                let prefixes: BTreeSet<&String> = prefixes.map(|(prefix, _)| prefix).collect();
                let unbound =
                    |routing: &RoutingProcesses, router: &RouterSpec| routing.unbound(router, &prefixes);
                let mut all = until_all(&routers, unbound);
                let mut stall = Stall::new(Instant::now());
                routing.wait_until(limit, |routing| {
                    let lacking = all(routing);
                    if stall.is_due(Instant::now(), &lacking) {
                        let stalled = routers.iter().filter(|router| unbound(routing, router).is_some());
                        for router in stalled.collect::<Vec<_>>() {
                            routing.end_daemon(router, FrrDaemon::Ldp);
                            let namespace = namespace(nodes, router);
                            routing.start_daemon(router, FrrDaemon::Ldp, namespace, netstage, &library)?;
                        }
                    }
                    Ok(lacking)
                })?;
                routing.start_discovery(&routers)?;
            }
            let mut all = until_all(&routers, |routing, router| routing.lacks(router, wave));
            let mut stall = Stall::new(Instant::now());
            routing.wait_until(limit, |routing| {
                let lacking = all(routing);
                if distributes && stall.is_due(Instant::now(), &lacking) {
                    routers.iter().filter(|router| routing.lacks(router, wave).is_some()).for_each(
                        |router| {
                            // A reset that fails is repeated after the next stall.
                            let _ = routing.vtysh(router, FrrDaemon::Ldp, &["clear mpls ldp neighbor"]);
                        },
                    );
                }
                Ok(lacking)
            })?;
        }
        let mut probes = routing.spec.probes.clone();
        routing.wait_until(limit, |_| Ok(reachability::unreachable_flows(&mut probes, nodes)))?;
        Ok(routing)
    }

    /// Starts LDP discovery on all routers at once. The neighbors of a peer that starts late would retry with increasing
    /// delays of up to two minutes (RFC 5036, section 2.5.3).
    fn start_discovery(&self, routers: &[RouterSpec]) -> Result<(), StartupError> {
        thread::scope(|scope| {
            let start = |router| scope.spawn(move || self.configure_interfaces(router));
            let started: Vec<_> = routers.iter().map(start).collect();
            started.into_iter().try_for_each(|thread| thread.join().expect("the thread does not panic"))
        })
    }

    /// Configures the interfaces of a router's ldpd.
    fn configure_interfaces(&self, router: &RouterSpec) -> Result<(), StartupError> {
        let node = &router.name;
        let output =
            self.vtysh(router, FrrDaemon::Ldp, &configuration::label_peers(&router.label_interfaces));
        let output = output.map_err(|error| {
            let message = format!("node.{node}: cannot configure ldpd by vtysh: {error}");
            match error.kind() {
                io::ErrorKind::TimedOut => StartupError::without_remedy(message),
                _ => StartupError::missing_feature(message, "sudo apt-get install frr (Debian)"),
            }
        })?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let printed = String::from_utf8_lossy(&output.stdout);
                Err(StartupError::without_remedy(format!(
                    "node.{node}: ldpd does not accept its interfaces: {}",
                    printed.trim()
                )))
            }
        }
    }

    /// Returns a message with the first prefix to which a router's ldpd has bound no label yet. Sessions start when all
    /// labels are bound, because ldpd (FRR 8.4) sometimes does not advertise a label bound while a session comes up.
    fn unbound(&self, router: &RouterSpec, prefixes: &BTreeSet<&String>) -> Option<String> {
        let output = self.vtysh(router, FrrDaemon::Ldp, &["show mpls ldp ipv4 binding json"]).ok();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        // No response counts as no bindings.
        let bindings: Bindings = serde_json::from_slice(&text).unwrap_or_default();
        let bound = bindings.bindings.iter().filter(|binding| binding.local_label != "-");
        let bound: BTreeSet<&String> = bound.map(|binding| &binding.prefix).collect();
        let prefix = prefixes.difference(&bound).next()?;
        Some(format!("node.{} has no label for {prefix}", router.name))
    }

    /// Runs vtysh commands in a daemon of a router, with a time limit, because vtysh waits for a daemon forever.
    fn vtysh(
        &self,
        router: &RouterSpec,
        daemon: FrrDaemon,
        commands: &[impl AsRef<str>],
    ) -> io::Result<Output> {
        let mut vtysh = Command::new("timeout");
        vtysh.args(["--kill-after=1", VTYSH_LIMIT, "vtysh"]);
        vtysh.arg("--vty_socket").arg(self.folder(router)).args(["-d", daemon.program()]);
        for command in commands {
            vtysh.arg("-c").arg(command.as_ref());
        }
        let output = vtysh.stdin(Stdio::null()).output()?;
        // Exit status of timeout(1): 124 for a timeout, 137 after SIGKILL, 127 for a missing program.
        match output.status.code() {
            Some(124 | 137) | None => {
                let message = format!("no response within {VTYSH_LIMIT} s");
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
            Some(127) => Err(io::ErrorKind::NotFound.into()),
            Some(_) => Ok(output),
        }
    }

    /// Waits until nothing is missing.
    fn wait_until(
        &mut self,
        limit: Instant,
        mut lacking: impl FnMut(&mut RoutingProcesses) -> Result<Vec<String>, StartupError>,
    ) -> Result<(), StartupError> {
        loop {
            let mut lacking = lacking(self)?;
            if lacking.is_empty() {
                return Ok(());
            }
            if let Some(ended) = self.ended().pop() {
                return Err(StartupError::without_remedy(ended));
            }
            if Instant::now() > limit {
                const MAX_SHOWN: usize = 5;
                let more = lacking.len().saturating_sub(MAX_SHOWN);
                lacking.truncate(MAX_SHOWN);
                let more = if more > 0 { format!(", and {more} more") } else { String::new() };
                return Err(StartupError::without_remedy(format!(
                    "service.{}: routing has not converged within its `patience`: {}{more}",
                    self.spec.name,
                    lacking.join("; ")
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns a message for each process that has exited, with the last line of its log.
    pub fn ended(&mut self) -> Vec<String> {
        let service = &self.spec.name;
        self.processes.exited().into_iter().map(|ended| format!("service.{service}: {ended}")).collect()
    }

    /// Returns a message with the first prefix that a router must learn from a wave of daemons and has not learned yet.
    fn lacks(&self, router: &RouterSpec, wave: usize) -> Option<String> {
        let is_last = wave + 1 == router.waves.len();
        if is_last && let Some(lack) = self.lacks_bypass(router) {
            return Some(lack);
        }
        let required = &router.waves[wave].required;
        if required.is_empty() {
            return None;
        }
        let (mut reachable, mut reachable_by_lsp) = (BTreeSet::new(), BTreeSet::new());
        // No response counts as no routes.
        let _ = routes(
            &self.folder(router).join(configuration::ROUTER_SOCKET),
            &RouteFilter::default(),
            &mut |route| {
                if route.to.contains(" push ") {
                    reachable_by_lsp.insert(route.prefix.clone());
                }
                reachable.insert(route.prefix);
                Ok(())
            },
        );
        let is_learned = |(prefix, by_lsp): &&(String, bool)| match by_lsp {
            true => reachable_by_lsp.contains(prefix),
            false => reachable.contains(prefix),
        };
        let (prefix, by_lsp) = required.iter().find(|expected| !is_learned(expected))?;
        let kind = if *by_lsp { "LSP" } else { "route" };
        Some(format!("node.{} has no {kind} to {prefix}", router.name))
    }

    /// Returns a message with the first bypass LSP that a router has not set up yet.
    fn lacks_bypass(&self, router: &RouterSpec) -> Option<String> {
        if !router.runs_bfd {
            return None;
        }
        let node = &router.name;
        let Ok(state) = query(&self.folder(router).join(configuration::ROUTER_SOCKET)) else {
            return Some(format!("node.{node} does not answer"));
        };
        let tunnel = state.tunnels.iter().find(|tunnel| tunnel.lsp.is_none())?;
        let reason = tunnel.failure.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
        Some(format!("node.{node} has no bypass LSP `{}`{reason}", tunnel.name))
    }

    fn folder(&self, router: &RouterSpec) -> PathBuf {
        self.spec.folder.join(router.node.to_string())
    }

    /// Creates the folders and files, readable by the daemons' user.
    fn prepare(&self) -> Result<(), StartupError> {
        let name = &self.spec.name;
        let broken = |error: io::Error| {
            StartupError::without_remedy(format!("service.{name}: cannot write its files: {error}"))
        };
        let user = User::from_name(USER).ok().flatten().ok_or_else(|| {
            StartupError::missing_feature(
                format!("service.{name}: missing user {USER}, which FRR's daemons need"),
                "sudo apt-get install frr (Debian)",
            )
        })?;
        fs::create_dir_all(&self.spec.folder).map_err(broken)?;
        // Other users may traverse the folders, but not list them.
        let parent = self.spec.folder.parent().into_iter();
        for folder in parent.chain([&*self.spec.folder]) {
            fs::set_permissions(folder, Permissions::from_mode(0o711)).map_err(broken)?;
        }
        for router in &self.spec.routers {
            let folder = self.folder(router);
            fs::create_dir_all(&folder).map_err(broken)?;
            fs::write(folder.join("router.toml"), with_sockets(router, &folder)).map_err(broken)?;
            for (daemon, text) in router.waves.iter().flat_map(|wave| &wave.daemons) {
                fs::write(folder.join(format!("{}.conf", daemon.program())), text).map_err(broken)?;
            }
            let result = chown(&folder, Some(user.uid), Some(user.gid));
            result.map_err(|error| {
                StartupError::missing_feature(
                    format!("service.{name}: cannot run FRR's daemons as user {USER}: {error}"),
                    "run it as root",
                )
            })?;
        }
        Ok(())
    }

    fn start_daemon(
        &mut self,
        router: &RouterSpec,
        daemon: FrrDaemon,
        namespace: &Namespace,
        netstage: &Path,
        library: &Option<PathBuf>,
    ) -> Result<(), StartupError> {
        let (folder, program) = (self.folder(router), daemon.program());
        let path = daemon
            .path()
            .ok_or_else(|| StartupError::without_remedy(format!("{program} is not installed")))?;
        let mut log = Ok(PathBuf::new());
        // A late BFD packet is a failure to its neighbor.
        let options = HeldOptions { is_realtime: daemon == FrrDaemon::Bfd, ..HeldOptions::default() };
        let child = spawn_in_process_namespace(namespace, netstage, &path, options, |command| {
            command.arg("--vty_socket").arg(&folder).arg("-z").arg(folder.join("zserv.api"));
            command.arg("-i").arg(folder.join(format!("{program}.pid")));
            command.arg("-f").arg(folder.join(format!("{program}.conf")));
            command.args(["-P", "0", "--log", "stdout"]);
            match daemon {
                FrrDaemon::Zebra => {
                    command.args(["-M", "dplane_fpm_nl"]);
                    if let Some(library) = library {
                        command.env("LD_PRELOAD", library);
                    }
                }
                FrrDaemon::Ldp => drop(command.arg("--ctl_socket").arg(&folder)),
                FrrDaemon::Bfd => {
                    command.arg("--bfdctl").arg(folder.join("bfdd.sock"));
                    if router.runs_bfd {
                        let socket = folder.join(configuration::BFDD_SOCKET);
                        command.arg("--dplaneaddr").arg(format!("unix:{}", socket.display()));
                    }
                }
                FrrDaemon::Static | FrrDaemon::Ospf | FrrDaemon::Bgp => {}
            }
            log = self.log(router, program, command);
        });
        self.keep(router, program, child, log?)
    }

    fn end_daemon(&mut self, router: &RouterSpec, daemon: FrrDaemon) {
        self.processes.kill(&process_name(router, daemon.program()));
    }

    fn log(
        &self,
        router: &RouterSpec,
        program: &str,
        command: &mut Command,
    ) -> Result<PathBuf, StartupError> {
        processes::log_to(self.folder(router).join(format!("{program}.log")), command)
    }

    fn keep(
        &mut self,
        router: &RouterSpec,
        program: &str,
        child: io::Result<Child>,
        log: PathBuf,
    ) -> Result<(), StartupError> {
        let name = process_name(router, program);
        let child = child.map_err(|error| {
            StartupError::without_remedy(format!("service.{}: cannot start {name}: {error}", self.spec.name))
        })?;
        self.processes.add(name, child, log);
        Ok(())
    }

    fn wait_for(&self, socket: &Path, router: &RouterSpec, program: &str) -> Result<(), StartupError> {
        let limit = Instant::now() + LISTEN_LIMIT;
        while !socket.exists() {
            if Instant::now() > limit {
                let line = last_log_line(&self.folder(router).join(format!("{program}.log")));
                return Err(StartupError::without_remedy(format!(
                    "service.{}: node.{}: {program} does not listen after {} s: {line}",
                    self.spec.name,
                    router.name,
                    LISTEN_LIMIT.as_secs()
                )));
            }
            thread::sleep(POLL_INTERVAL / 10);
        }
        Ok(())
    }
}

fn namespace<'a>(nodes: &'a [Option<Namespace>], router: &RouterSpec) -> &'a Namespace {
    nodes[router.node].as_ref().expect("a router with routing daemons is used")
}

fn process_name(router: &RouterSpec, program: &str) -> String {
    format!("node.{}: {program}", router.name)
}

/// Replaces the names of the sockets by absolute paths.
fn with_sockets(router: &RouterSpec, folder: &Path) -> String {
    let names = [configuration::ROUTER_SOCKET, configuration::BFDD_SOCKET];
    names.iter().fold(router.configuration.clone(), |text, name| {
        text.replace(&format!("\"{name}\""), &format!("\"{}\"", folder.join(name).display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_due_after_no_progress_with_a_doubling_limit() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let lacking = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (two, one) = (lacking(&["a", "b"]), lacking(&["b"]));
        let mut stall = Stall::new(start);
        assert!(!stall.is_due(at(0), &two) && !stall.is_due(at(14), &two));
        assert!(!stall.is_due(at(20), &one), "one router has made progress");
        assert!(!stall.is_due(at(34), &one) && stall.is_due(at(35), &one));
        assert!(!stall.is_due(at(64), &one) && stall.is_due(at(65), &one));
        assert!(!stall.is_due(at(1000), &[]), "nothing is missing");
    }
}
