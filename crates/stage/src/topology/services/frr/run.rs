//! The processes: a router and its daemons in each node, started before the run, which begins when all of
//! them know where packets go.

use super::{Daemon, RouterSpec, RoutingSpec, configuration, labels};
use crate::topology::services::processes::{self, Processes, last_words};
use crate::topology::services::reach;
use netstage_host::netns::hold::spawn_held;
use netstage_host::netns::{Namespace, spawn_in};
use netstage_host::obstacle::Obstacle;
use netstage_router::daemon::routes;
use netstage_router::daemon::state::RouteFilter;
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

/// As whom the daemons run: so they were built.
const USER: &str = "frr";
/// How often something is looked for.
const LOOK: Duration = Duration::from_millis(200);
/// Longest time without progress until the LDP sessions of routers that lack an LSP are reset, doubled after each reset:
/// in a new session a peer advertises all its labels.
const STALLED: Duration = Duration::from_secs(15);
/// Longest time vtysh may take, in seconds.
const VTYSH_LIMIT: &str = "20";
/// Longest wait for a process to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);

/// What ldpd has bound labels to.
#[derive(Default, Deserialize)]
struct Bindings {
    bindings: Vec<Binding>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Binding {
    prefix: String,
    /// "-" where there is none.
    local_label: String,
}

/// When nothing has been learned for too long.
struct Stall {
    lacking: Vec<String>,
    since: Instant,
    limit: Duration,
}

impl Stall {
    fn new(now: Instant) -> Stall {
        Stall { lacking: Vec::new(), since: now, limit: STALLED }
    }

    /// Whether the same has been lacking for the limit, which is twice as long from then on.
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

/// What routers lack, each asked until it lacks nothing any more.
fn until_all<'a>(
    routers: &'a [RouterSpec],
    lacks: impl Fn(&Routing, &RouterSpec) -> Option<String> + 'a,
) -> impl FnMut(&Routing) -> Vec<String> + 'a {
    let mut learning: Vec<&RouterSpec> = routers.iter().collect();
    move |routing| {
        let mut lacking = Vec::new();
        learning.retain(|router| {
            let lack = lacks(routing, router);
            let is_lacking = lack.is_some();
            lacking.extend(lack);
            is_lacking
        });
        lacking
    }
}

/// Routers that run.
pub struct Routing {
    spec: RoutingSpec,
    processes: Processes,
}

impl Routing {
    /// Starts all of them, and waits until every router knows where packets go and those of every flow arrive.
    /// `nodes` are the network's namespaces, between which frames are carried meanwhile.
    pub fn start(
        spec: RoutingSpec,
        nodes: &[Option<Namespace>],
        netstage: &Path,
    ) -> Result<Routing, Obstacle> {
        let mut routing = Routing { spec, processes: Processes::default() };
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
            routing.wait_for(&routing.folder(router).join("router.sock"), router, "router")?;
        }
        let limit = Instant::now() + Duration::from_nanos(routing.spec.patience.0);
        for wave in 0..Daemon::WAVES.len() {
            for router in &routers {
                for (daemon, _) in &router.waves[wave].daemons {
                    routing.start_daemon(router, *daemon, namespace(nodes, router), netstage, &library)?;
                }
            }
            for router in routers.iter().filter(|_| wave == 0) {
                routing.wait_for(&routing.folder(router).join("zserv.api"), router, "zebra")?;
            }
            let distributes = has_labels && Daemon::WAVES[wave].contains(&Daemon::Ldp);
            if distributes {
                let prefixes = routers.iter().flat_map(|router| &router.waves[wave].expects);
                let prefixes: BTreeSet<&String> = prefixes.map(|(prefix, _)| prefix).collect();
                let unbound = |routing: &Routing, router: &RouterSpec| routing.unbound(router, &prefixes);
                let mut all = until_all(&routers, unbound);
                let mut stall = Stall::new(Instant::now());
                routing.wait_until(limit, |routing| {
                    let lacking = all(routing);
                    if stall.is_due(Instant::now(), &lacking) {
                        let stalled = routers.iter().filter(|router| unbound(routing, router).is_some());
                        for router in stalled.collect::<Vec<_>>() {
                            routing.end_daemon(router, Daemon::Ldp);
                            let namespace = namespace(nodes, router);
                            routing.start_daemon(router, Daemon::Ldp, namespace, netstage, &library)?;
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
                            // A daemon that does not answer is asked again after the next stall.
                            let _ = routing.vtysh(router, Daemon::Ldp, &["clear mpls ldp neighbor"]);
                        },
                    );
                }
                Ok(lacking)
            })?;
        }
        let mut probes = routing.spec.probes.clone();
        routing.wait_until(limit, |_| Ok(reach::lacking(&mut probes, nodes)))?;
        Ok(routing)
    }

    /// Starts LDP discovery on all routers at once: a peer that is found long after the others makes its neighbors wait
    /// longer from attempt to attempt, up to two minutes (RFC 5036, section 2.5.3).
    fn start_discovery(&self, routers: &[RouterSpec]) -> Result<(), Obstacle> {
        thread::scope(|scope| {
            let start = |router| scope.spawn(move || self.configure_interfaces(router));
            let started: Vec<_> = routers.iter().map(start).collect();
            started.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
        })
    }

    /// Configures the interfaces of a router's ldpd.
    fn configure_interfaces(&self, router: &RouterSpec) -> Result<(), Obstacle> {
        let node = &router.name;
        let output = self.vtysh(router, Daemon::Ldp, &configuration::label_peers(&router.label_interfaces));
        let output = output.map_err(|error| {
            let message = format!("node.{node}: cannot configure ldpd by vtysh: {error}");
            match error.kind() {
                io::ErrorKind::TimedOut => Obstacle::broken(message),
                _ => Obstacle::missing(message, "sudo apt-get install frr (Debian)"),
            }
        })?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let printed = String::from_utf8_lossy(&output.stdout);
                Err(Obstacle::broken(format!(
                    "node.{node}: ldpd does not accept its interfaces: {}",
                    printed.trim()
                )))
            }
        }
    }

    /// The first prefix to which a router's ldpd has bound no label yet. Sessions begin after that: ldpd (FRR 8.4)
    /// at times does not advertise a label that it binds while a session comes up.
    fn unbound(&self, router: &RouterSpec, prefixes: &BTreeSet<&String>) -> Option<String> {
        let output = self.vtysh(router, Daemon::Ldp, &["show mpls ldp ipv4 binding json"]).ok();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        // Without an answer nothing is bound.
        let bindings: Bindings = serde_json::from_slice(&text).unwrap_or_default();
        let bound = bindings.bindings.iter().filter(|binding| binding.local_label != "-");
        let bound: BTreeSet<&String> = bound.map(|binding| &binding.prefix).collect();
        let prefix = prefixes.difference(&bound).next()?;
        Some(format!("node.{} has no label for {prefix}", router.name))
    }

    /// Runs commands in one of a router's daemons. vtysh itself waits for a daemon forever.
    fn vtysh(&self, router: &RouterSpec, daemon: Daemon, commands: &[impl AsRef<str>]) -> io::Result<Output> {
        let mut vtysh = Command::new("timeout");
        vtysh.args(["--kill-after=1", VTYSH_LIMIT, "vtysh"]);
        vtysh.arg("--vty_socket").arg(self.folder(router)).args(["-d", daemon.program()]);
        for command in commands {
            vtysh.arg("-c").arg(command.as_ref());
        }
        let output = vtysh.stdin(Stdio::null()).output()?;
        // As timeout(1) reports a time that is over, the same after SIGKILL, and a program that is missing.
        match output.status.code() {
            Some(124 | 137) | None => {
                let message = format!("no answer within {VTYSH_LIMIT} s");
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
            Some(127) => Err(io::ErrorKind::NotFound.into()),
            Some(_) => Ok(output),
        }
    }

    /// Waits until nothing is lacking any more.
    fn wait_until(
        &mut self,
        limit: Instant,
        mut lacking: impl FnMut(&mut Routing) -> Result<Vec<String>, Obstacle>,
    ) -> Result<(), Obstacle> {
        loop {
            let mut lacking = lacking(self)?;
            if lacking.is_empty() {
                return Ok(());
            }
            if let Some(ended) = self.ended().pop() {
                return Err(Obstacle::broken(ended));
            }
            if Instant::now() > limit {
                const MOST: usize = 5;
                let more = lacking.len().saturating_sub(MOST);
                lacking.truncate(MOST);
                let more = if more > 0 { format!(", and {more} more") } else { String::new() };
                return Err(Obstacle::broken(format!(
                    "service.{}: routing has not converged within its `patience`: {}{more}",
                    self.spec.name,
                    lacking.join("; ")
                )));
            }
            thread::sleep(LOOK);
        }
    }

    /// Who of them has ended by itself, and what it said last.
    pub fn ended(&mut self) -> Vec<String> {
        let service = &self.spec.name;
        self.processes.ended().into_iter().map(|ended| format!("service.{service}: {ended}")).collect()
    }

    /// Whereto a router does not know how, of what it is to learn by a wave of daemons.
    fn lacks(&self, router: &RouterSpec, wave: usize) -> Option<String> {
        let expects = &router.waves[wave].expects;
        if expects.is_empty() {
            return None;
        }
        let (mut known, mut by_lsps) = (BTreeSet::new(), BTreeSet::new());
        // A router that does not answer yet knows nothing.
        let _ = routes(&self.folder(router).join("router.sock"), &RouteFilter::default(), &mut |route| {
            if route.to.contains(" push ") {
                by_lsps.insert(route.prefix.clone());
            }
            known.insert(route.prefix);
            Ok(())
        });
        let knows = |(prefix, by_lsp): &&(String, bool)| match by_lsp {
            true => by_lsps.contains(prefix),
            false => known.contains(prefix),
        };
        let (prefix, by_lsp) = expects.iter().find(|expected| !knows(expected))?;
        let what = if *by_lsp { "LSP" } else { "way" };
        Some(format!("node.{} has no {what} to {prefix}", router.name))
    }

    fn folder(&self, router: &RouterSpec) -> PathBuf {
        self.spec.folder.join(router.node.to_string())
    }

    /// Folders and files, which the daemons read as a user of their own.
    fn prepare(&self) -> Result<(), Obstacle> {
        let name = &self.spec.name;
        let broken =
            |error: io::Error| Obstacle::broken(format!("service.{name}: cannot prepare it: {error}"));
        let user = User::from_name(USER).ok().flatten().ok_or_else(|| {
            Obstacle::missing(
                format!("service.{name}: there is no user {USER}, as whom FRR's daemons run"),
                "sudo apt-get install frr (Debian)",
            )
        })?;
        fs::create_dir_all(&self.spec.folder).map_err(broken)?;
        // Others may pass, but not look.
        let above = self.spec.folder.parent().into_iter();
        for folder in above.chain([&*self.spec.folder]) {
            fs::set_permissions(folder, Permissions::from_mode(0o711)).map_err(broken)?;
        }
        for router in &self.spec.routers {
            let folder = self.folder(router);
            fs::create_dir_all(&folder).map_err(broken)?;
            fs::write(folder.join("router.toml"), with_socket(router, &folder)).map_err(broken)?;
            for (daemon, text) in router.waves.iter().flat_map(|wave| &wave.daemons) {
                fs::write(folder.join(format!("{}.conf", daemon.program())), text).map_err(broken)?;
            }
            let given = chown(&folder, Some(user.uid), Some(user.gid));
            given.map_err(|error| {
                Obstacle::missing(
                    format!("service.{name}: FRR's daemons run as a user of their own ({USER}), which is forbidden: {error}"),
                    "run it as root",
                )
            })?;
        }
        Ok(())
    }

    fn start_daemon(
        &mut self,
        router: &RouterSpec,
        daemon: Daemon,
        namespace: &Namespace,
        netstage: &Path,
        library: &Option<PathBuf>,
    ) -> Result<(), Obstacle> {
        let (folder, program) = (self.folder(router), daemon.program());
        let path = daemon.path().ok_or_else(|| Obstacle::broken(format!("{program} is not installed")))?;
        let mut log = Ok(PathBuf::new());
        let child = spawn_held(namespace, netstage, &path, |command| {
            command.arg("--vty_socket").arg(&folder).arg("-z").arg(folder.join("zserv.api"));
            command.arg("-i").arg(folder.join(format!("{program}.pid")));
            command.arg("-f").arg(folder.join(format!("{program}.conf")));
            command.args(["-P", "0", "--log", "stdout"]);
            match daemon {
                Daemon::Zebra => {
                    command.args(["-M", "dplane_fpm_nl"]);
                    if let Some(library) = library {
                        command.env("LD_PRELOAD", library);
                    }
                }
                Daemon::Ldp => drop(command.arg("--ctl_socket").arg(&folder)),
                Daemon::Static | Daemon::Ospf | Daemon::Bgp => {}
            }
            log = self.log(router, program, command);
        });
        self.keep(router, program, child, log?)
    }

    fn end_daemon(&mut self, router: &RouterSpec, daemon: Daemon) {
        self.processes.end(&process_name(router, daemon.program()));
    }

    fn log(&self, router: &RouterSpec, program: &str, command: &mut Command) -> Result<PathBuf, Obstacle> {
        processes::log_to(self.folder(router).join(format!("{program}.log")), command)
    }

    fn keep(
        &mut self,
        router: &RouterSpec,
        program: &str,
        child: io::Result<Child>,
        log: PathBuf,
    ) -> Result<(), Obstacle> {
        let name = process_name(router, program);
        let child = child.map_err(|error| {
            Obstacle::broken(format!("service.{}: {name} cannot be started: {error}", self.spec.name))
        })?;
        self.processes.keep(name, child, log);
        Ok(())
    }

    fn wait_for(&self, socket: &Path, router: &RouterSpec, program: &str) -> Result<(), Obstacle> {
        let limit = Instant::now() + LISTEN_LIMIT;
        while !socket.exists() {
            if Instant::now() > limit {
                let words = last_words(&self.folder(router).join(format!("{program}.log")));
                return Err(Obstacle::broken(format!(
                    "service.{}: node.{}: {program} does not listen: {words}",
                    self.spec.name, router.name
                )));
            }
            thread::sleep(LOOK / 10);
        }
        Ok(())
    }
}

fn namespace<'a>(nodes: &'a [Option<Namespace>], router: &RouterSpec) -> &'a Namespace {
    nodes[router.node].as_ref().expect("a router that is driven is used")
}

fn process_name(router: &RouterSpec, program: &str) -> String {
    format!("node.{}: {program}", router.name)
}

/// A socket is told by its whole path.
fn with_socket(router: &RouterSpec, folder: &Path) -> String {
    let socket = format!("control = \"{}\"", folder.join("router.sock").display());
    router.configuration.replace("control = \"router.sock\"", &socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_due_once_nothing_has_changed_and_later_each_time() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let lacking = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (two, one) = (lacking(&["a", "b"]), lacking(&["b"]));
        let mut stall = Stall::new(begin);
        assert!(!stall.is_due(at(0), &two) && !stall.is_due(at(14), &two));
        assert!(!stall.is_due(at(20), &one), "one has learned");
        assert!(!stall.is_due(at(34), &one) && stall.is_due(at(35), &one));
        assert!(!stall.is_due(at(64), &one) && stall.is_due(at(65), &one));
        assert!(!stall.is_due(at(1000), &[]), "nothing is lacking");
    }
}
