//! Processes of the route server, and threads of its members. The server starts before the run, the sessions with it.

use super::configuration::{self, ROA_TABLE, RTR_ADDRESS};
use super::members::{Member, MemberHandle, lock, make_changes};
use super::{BIRD, CLIENT, ProgramUsage, RTR_SERVER, RouteServerReport, RouteServerSpec};
use crate::topology::services::find;
use crate::topology::services::processes::{Processes, last_log_line, log_to};
use netstage_agent_api::results::{Buckets, Usage};
use netstage_core::measure::Histogram;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::netns::{Namespace, spawn_in};
use netstage_host::startup_error::StartupError;
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Polling interval.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);
/// Maximum wait until a program listens and has its route origin authorizations.
const START_LIMIT: std::time::Duration = std::time::Duration::from_secs(20);

/// Running route server.
pub struct RunningRouteServer {
    spec: Arc<RouteServerSpec>,
    processes: Processes,
    /// Programs with their process numbers.
    programs: Vec<(&'static str, u32)>,
    members: Vec<Member>,
    changes: Option<JoinHandle<()>>,
    usage: Option<JoinHandle<ProgramUsage>>,
}

impl RunningRouteServer {
    /// Starts the programs and waits until the route server can reject invalid origins.
    pub fn start(
        spec: RouteServerSpec,
        nodes: &[Option<Namespace>],
    ) -> Result<RunningRouteServer, StartupError> {
        let mut running = RunningRouteServer {
            spec: Arc::new(spec),
            processes: Processes::default(),
            programs: Vec::new(),
            members: Vec::new(),
            changes: None,
            usage: None,
        };
        let spec = Arc::clone(&running.spec);
        let namespace = nodes[spec.server.node].as_ref().expect("the node of a route server is used");
        running.prepare().map_err(|error| running.broken(format!("cannot write its files: {error}")))?;
        if spec.server.rpki {
            let mut command = Command::new(running.program(RTR_SERVER)?);
            let (address, port) = RTR_ADDRESS;
            command.arg("-bind").arg(format!("{address}:{port}")).args(["-metrics.addr", ""]);
            command.arg("-cache").arg(running.file("payloads.json")).args(["-checktime=false"]);
            running.spawn(RTR_SERVER, namespace, command)?;
        }
        let mut command = Command::new(running.program(BIRD)?);
        command.arg("-f").arg("-c").arg(running.file("bird.conf")).arg("-s").arg(running.file("bird.ctl"));
        running.spawn(BIRD, namespace, command)?;
        running.wait_until_ready()?;
        Ok(running)
    }

    fn broken(&self, message: String) -> StartupError {
        StartupError::without_remedy(format!("service.{}: {message}", self.spec.server.name))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.spec.folder.join(name)
    }

    fn program(&self, name: &str) -> Result<PathBuf, StartupError> {
        find(name).ok_or_else(|| self.broken(format!("{name} is not installed")))
    }

    fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(&self.spec.folder)?;
        fs::write(self.file("bird.conf"), configuration::bird(&self.spec))?;
        fs::write(self.file("payloads.json"), configuration::payloads(&self.spec.server))
    }

    fn spawn(
        &mut self,
        program: &'static str,
        namespace: &Namespace,
        mut command: Command,
    ) -> Result<(), StartupError> {
        let log = log_to(self.file(&format!("{program}.log")), &mut command)?;
        let child = spawn_in(namespace, command)
            .map_err(|error| self.broken(format!("cannot start {program}: {error}")))?;
        self.programs.push((program, child.id()));
        self.processes.add(program.into(), child, log);
        Ok(())
    }

    /// Waits until BIRD answers and has the route origin authorizations of all members.
    fn wait_until_ready(&mut self) -> Result<(), StartupError> {
        let limit = std::time::Instant::now() + START_LIMIT;
        let command = match self.spec.server.rpki {
            true => format!("show route count table {ROA_TABLE}"),
            false => "show status".to_owned(),
        };
        let count = self.spec.server.members.len();
        let expected =
            if self.spec.server.rpki { format!("{count} of {count} routes") } else { String::new() };
        let client = self.program(CLIENT)?;
        loop {
            let mut query = Command::new(&client);
            query.arg("-r").arg("-s").arg(self.file("bird.ctl")).arg(&command).stdin(Stdio::null());
            let answer =
                query.output().map_err(|error| self.broken(format!("cannot run {CLIENT}: {error}")))?;
            let text = String::from_utf8_lossy(&answer.stdout).into_owned();
            if answer.status.success() && text.contains(&expected) {
                return Ok(());
            }
            if let Some(ended) = self.ended().pop() {
                return Err(StartupError::without_remedy(ended));
            }
            if std::time::Instant::now() > limit {
                let found = text.lines().last().unwrap_or("no answer of bird").to_owned();
                let logged = last_log_line(&self.file("bird.log"));
                let seconds = START_LIMIT.as_secs();
                return Err(self.broken(format!("not ready after {seconds} s: {found}; {logged}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Starts the sessions of the members at the epoch. Changes end when `stop` is set.
    pub fn run(
        &mut self,
        epoch: Epoch,
        nodes: &[Option<Namespace>],
        stop: &Arc<AtomicBool>,
    ) -> io::Result<()> {
        let spec = &self.spec;
        for (index, member) in spec.server.members.iter().enumerate() {
            let namespace = nodes[member.node].as_ref().expect("the node of a member is used");
            self.members.push(Member::start(spec, index, namespace, epoch)?);
        }
        let handles: Vec<MemberHandle> = self.members.iter().map(|member| member.handle.clone()).collect();
        let (spec, stop_flag) = (Arc::clone(spec), Arc::clone(stop));
        self.changes = Some(thread::spawn(move || make_changes(&spec, &handles, epoch, &stop_flag)));
        let (spec, stop_flag) = (Arc::clone(&self.spec), Arc::clone(stop));
        let programs = self.programs.clone();
        self.usage = Some(thread::spawn(move || sample_usage(&spec, &programs, epoch, &stop_flag)));
        Ok(())
    }

    /// Returns a message for each program that has exited, with the last line of its log.
    pub fn ended(&mut self) -> Vec<String> {
        let service = &self.spec.server.name;
        self.processes.exited().into_iter().map(|ended| format!("service.{service}: {ended}")).collect()
    }

    /// Ends the sessions and returns the results. `stop` must be set.
    pub fn finish(mut self) -> RouteServerReport {
        let names = self.spec.changes.iter().cloned();
        let mut convergence: Vec<_> = names.map(|name| (name, Histogram::default())).collect();
        self.changes.take().map(JoinHandle::join);
        let usage = self.usage.take().and_then(|sampling| sampling.join().ok()).unwrap_or_default();
        // All records are complete before the first session ends, as its end changes the routes of the others.
        let finished: Vec<_> = self.members.iter().map(|member| lock(&member.record).finish()).collect();
        let mut members = Vec::new();
        for (report, times) in finished {
            times.iter().for_each(|(number, time)| convergence[*number].1.record(time.0));
            members.push(report);
        }
        let convergence = convergence.into_iter();
        RouteServerReport {
            name: self.spec.server.name.clone(),
            members,
            convergence: convergence
                .map(|(name, times)| (name, Buckets(times.buckets().collect())))
                .collect(),
            usage,
        }
    }
}

/// Samples the resources of the programs at the start of the run and at the end of each bin.
fn sample_usage(
    spec: &RouteServerSpec,
    programs: &[(&'static str, u32)],
    epoch: Epoch,
    stop: &AtomicBool,
) -> ProgramUsage {
    let named = |(program, _): &(&str, u32)| (format!("{}.{program}", spec.server.name), Vec::new());
    let mut samples: ProgramUsage = programs.iter().map(named).collect();
    let bins = spec.duration.0 / spec.interval.0;
    for bin in 0..=bins {
        let due = Instant(bin * spec.interval.0);
        while epoch.now() < due || netstage_host::clock::monotonic_ns() < epoch.0 {
            if stop.load(Ordering::Relaxed) && bin < bins {
                return samples;
            }
            let wait = due.since(epoch.now().min(due)).max(Duration::from_millis(1));
            thread::sleep(std::time::Duration::from_nanos(wait.0).min(POLL_INTERVAL));
        }
        for ((_, samples), (_, process)) in samples.iter_mut().zip(programs) {
            samples.push(usage(*process));
        }
    }
    samples
}

/// Returns the resources that a process has used so far, from proc(5); zero for a process that has ended.
fn usage(process: u32) -> Usage {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces. The fields after it start with field 3.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    let field =
        |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let setting = |name, default| sysconf(name).ok().flatten().map_or(default, |value| value as u64);
    let tick_ns = 1_000_000_000 / setting(SysconfVar::CLK_TCK, 100);
    Usage {
        user_ns: field(14) * tick_ns,
        system_ns: field(15) * tick_ns,
        resident: field(24) * setting(SysconfVar::PAGE_SIZE, 4096),
    }
}
