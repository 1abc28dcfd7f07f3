//! Measures the controller's load by a thousand agents, and the accuracy of their common start. Agents and
//! controller are processes on this machine. Prints progress on standard error and the result as JSON, without
//! judging it.
//!
//! ```text
//! cargo run --release -p netstage-bench --bin fleet_rates -- target/release/netstage 1000
//! ```
//!
//! Each agent sends one packet to itself at the start of the run, whose lateness is that of the start, and
//! reports ten bins per second. The kernel enforces a policy on each agent, or the one in the file `POLICY`. For
//! comparison, bare timers: as many processes that sleep until one absolute time.

use netstage_agent::controller::{AgentAddress, ControlledAgents};
use netstage_agent::fleet::folder::TokenGrant;
use netstage_agent::fleet::{AgentAvailability, FleetFolder, member};
use netstage_agent_api::task::{Assignment, FlowSide, FlowTask};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_host::clock::monotonic_ns;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use serde_json::json;
use std::error::Error;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time;

const SECONDS: u64 = 20;
/// Ten bins per second.
const INTERVAL: Duration = Duration::from_millis(100);
const FIRST_PORT: u16 = 6001;
/// The kernel enforces these limits on each agent; its packets stay far below them.
const POLICY: &str = r#"[policy]
controllers = ["bench"]
rate = "1 Gbit/s"
destinations = ["127.0.0.0/8"]
bytes_per_day = "100 GB"
"#;

/// Processes that end with this value.
struct ChildProcesses(Vec<Child>);

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match command(&arguments[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn command(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    match arguments {
        [word, at] if word == "timer" => timer(at.parse()?),
        [program, count, policy @ ..] if policy.len() < 2 => {
            let policy = policy.first().map_or_else(|| Ok(POLICY.to_owned()), fs::read_to_string)?;
            let folder = std::env::temp_dir().join(format!("netstage-fleet-rates-{}", std::process::id()));
            let result = measure(Path::new(program), count.parse()?, &policy, &folder);
            let _ = fs::remove_dir_all(&folder);
            result
        }
        _ => Err("usage: fleet_rates PROGRAM AGENTS [POLICY]".into()),
    }
}

/// Sleeps until a monotonic time, and prints the lateness of the wake-up in nanoseconds.
fn timer(at_ns: u64) -> Result<(), Box<dyn Error>> {
    println!("ready");
    let at = nix::sys::time::TimeSpec::new((at_ns / 1_000_000_000) as i64, (at_ns % 1_000_000_000) as i64);
    clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &at)?;
    let late = monotonic_ns().saturating_sub(at_ns);
    println!("{late}");
    Ok(())
}

fn timers(count: usize) -> Result<Vec<u64>, Box<dyn Error>> {
    // Late enough for all processes to be asleep by then.
    let at = monotonic_ns() + 3_000_000_000 + count as u64 * 10_000_000;
    let mut crew = ChildProcesses(Vec::new());
    for _ in 0..count {
        let mut command = Command::new(std::env::current_exe()?);
        crew.0.push(command.args(["timer", &at.to_string()]).stdout(Stdio::piped()).spawn()?);
    }
    let mut late = Vec::new();
    for child in &mut crew.0 {
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let last = output.lines().last().ok_or("the timer process printed nothing")??;
        late.push(last.parse()?);
    }
    Ok(late)
}

fn measure(program: &Path, count: usize, policy: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let fleet = FleetFolder::create(&folder.join("fleet"), "bench")?;
    let (hub, address) = serve(program, &fleet)?;
    let hub_process = hub.0[0].id();
    let names: Vec<String> = (0..count).map(|number| format!("agent-{number}")).collect();
    let begin = time::Instant::now();
    for name in &names {
        let (valid, lasting) = (time::Duration::from_secs(3600), time::Duration::from_secs(86_400));
        let token = fleet.token(&TokenGrant { agent: name.clone(), labels: Vec::new(), valid, lasting })?;
        member::join(&folder.join(name), &address, &token)?;
    }
    let joined_s = begin.elapsed().as_secs_f64();
    eprintln!("{count} agents joined one after the other in {joined_s:.1} s");
    let (crew, idle_s) = start(program, policy, folder, &fleet, &names)?;
    let places = names.iter().map(|name| (name.clone(), AgentAddress::Fleet(fleet.socket()))).collect();
    let begin = time::Instant::now();
    let mut agents = ControlledAgents::connect_within(places, time::Duration::from_secs(120))?;
    let connected_s = begin.elapsed().as_secs_f64();
    eprintln!("connected in {connected_s:.2} s");
    let parts: Vec<(String, Assignment)> =
        names.iter().enumerate().map(|(index, name)| part(index, name)).collect();
    let begin = time::Instant::now();
    agents.new_run_numbered(1, true);
    agents.collect_consents(&parts)?;
    let agreed_s = begin.elapsed().as_secs_f64();
    agents.add_agents(parts)?;
    let ready_s = begin.elapsed().as_secs_f64();
    let epoch = agents.start_together()?;
    let announced_s = begin.elapsed().as_secs_f64();
    while monotonic_ns() < epoch.0 {
        std::thread::sleep(time::Duration::from_millis(1));
    }
    let started_s = begin.elapsed().as_secs_f64();
    eprintln!(
        "agreed {agreed_s:.2} s, ready {ready_s:.2} s, start announced {announced_s:.2} s, started {started_s:.2} s"
    );

    let load = run_traffic(&mut agents, &crew, hub_process);
    let collected = agents.collect();
    let (reports, lost) = (collected.reports.len(), collected.lost.len());
    eprintln!("{:.1} results per agent and second, {reports} reports, {lost} agents lost", load.results);
    if let Some(loss) = collected.lost.first() {
        eprintln!("{loss}");
    }
    if let Some(remark) = &collected.slow_start {
        eprintln!("{remark}");
    }
    agents.finish();
    let flows = collected.reports.iter().flat_map(|report| &report.flows);
    let late: Vec<u64> = flows.filter_map(|flow| flow.schedule.map(|schedule| schedule.late_ns.2)).collect();
    drop((crew, hub));
    let result = json!({
        "agents": count,
        "joined_s": joined_s,
        "idle_s": idle_s,
        "connected_s": connected_s,
        "agreed_s": agreed_s,
        "ready_s": ready_s,
        "announced_s": announced_s,
        "started_s": started_s,
        "commander_cores": load.cores[0],
        "commander_mb": load.peak[0] >> 20,
        "hub_cores": load.cores[1],
        "hub_mb": load.peak[1] >> 20,
        "agents_cores": load.agents_cores,
        "results_per_second": load.results,
        "reports": reports,
        "lost": lost,
        "remark": collected.slow_start,
        "late_ms": late_ms(late),
        "timers_late_ms": late_ms(timers(count)?),
    });
    println!("{result}");
    Ok(())
}

/// Starts a controller; returns the address to which agents connect.
fn serve(program: &Path, fleet: &FleetFolder) -> Result<(ChildProcesses, String), Box<dyn Error>> {
    let mut hub = Command::new(program);
    hub.args(["fleet", "serve", "--listen", "127.0.0.1:0", "--fleet"]).arg(fleet.folder());
    let mut hub = ChildProcesses(vec![hub.stderr(Stdio::piped()).spawn()?]);
    let mut output = BufReader::new(hub.0[0].stderr.take().ok_or("no output")?).lines();
    let first = output.next().ok_or("the controller ended")??;
    let address = first.rsplit(' ').next().ok_or("no address")?.to_owned();
    // The controller blocks unless its log is read.
    std::thread::spawn(move || output.for_each(drop));
    Ok((hub, address))
}

/// Starts the agents' processes; returns the time in seconds until all are connected.
fn start(
    program: &Path,
    policy: &str,
    folder: &Path,
    fleet: &FleetFolder,
    names: &[String],
) -> Result<(ChildProcesses, f64), Box<dyn Error>> {
    let policy_file = folder.join("agent.toml");
    fs::write(&policy_file, policy)?;
    let mut crew = ChildProcesses(Vec::new());
    let begin = time::Instant::now();
    for name in names {
        let mut command = Command::new(program);
        command.args(["agent", "--state"]).arg(folder.join(name)).arg("--policy").arg(&policy_file);
        command.stderr(Stdio::null());
        crew.0.push(command.spawn()?);
    }
    while fleet.agents()?.iter().filter(|agent| agent.state == AgentAvailability::Idle).count() < names.len()
    {
        std::thread::sleep(time::Duration::from_millis(200));
    }
    let idle_s = begin.elapsed().as_secs_f64();
    eprintln!("{} processes started and connected in {idle_s:.1} s", names.len());
    Ok((crew, idle_s))
}

/// Processor and memory use during a run: of the commanding process, then of the controller.
struct ControllerLoad {
    cores: [f64; 2],
    peak: [u64; 2],
    agents_cores: f64,
    /// Results per agent and second.
    results: f64,
}

fn run_traffic(agents: &mut ControlledAgents, crew: &ChildProcesses, hub_process: u32) -> ControllerLoad {
    let agent_seconds = || crew.0.iter().map(|agent| used(agent.id()).0).sum::<f64>();
    let agents_before = agent_seconds();
    let before = [used(std::process::id()), used(hub_process)];
    let (mut bins, mut peak) = (0, [0; 2]);
    let begin = time::Instant::now();
    let mut after = before;
    agents.watch(|overview| {
        bins += overview.ended.bins.len();
        if overview.now.0 < SECONDS * 1_000_000_000 {
            after = [used(std::process::id()), used(hub_process)];
            peak = [0, 1].map(|which| after[which].1.max(peak[which]));
        }
        ControlFlow::Continue(())
    });
    let seconds = begin.elapsed().as_secs_f64().min(SECONDS as f64);
    let agents_cores = (agent_seconds() - agents_before) / seconds;
    let cores = [0, 1].map(|which| (after[which].0 - before[which].0) / seconds);
    eprintln!("cores: controller {:.3}, hub {:.3}, agents {agents_cores:.3}", cores[0], cores[1]);
    ControllerLoad { cores, peak, agents_cores, results: bins as f64 / seconds / crew.0.len() as f64 }
}

fn part(index: usize, name: &str) -> (String, Assignment) {
    let duration = Duration::from_secs(SECONDS);
    // Consents are confirmed at the address of a host, which has ports for a few agents.
    let own = [127, 0, 1 + (index / 250) as u8, 1 + (index % 250) as u8];
    let flow = |side| FlowTask {
        id: index as u32,
        ..FlowTask::udp(
            &format!("f{index}"),
            side,
            [(own, 0).into(), (own, FIRST_PORT + index as u16).into()],
            Pattern::Cbr { rate: BitRate(8), packet: 100 },
            duration,
        )
    };
    let flows = vec![flow(FlowSide::Send), flow(FlowSide::Receive)];
    let assignment = Assignment::of_flows(name, duration, INTERVAL, flows);
    (name.into(), assignment)
}

/// Returns the processor seconds and resident bytes of a process.
fn used(process: u32) -> (f64, u64) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let pages = read("statm").split(' ').nth(1).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    ((ticks(11) + ticks(12)) / 100.0, pages * 4096)
}

/// Returns the count, median, 99th percentile and maximum of lateness in milliseconds.
fn late_ms(mut late: Vec<u64>) -> serde_json::Value {
    late.sort_unstable();
    let at = |share: f64| {
        let index = ((late.len() as f64 * share) as usize).min(late.len().saturating_sub(1));
        late.get(index).map_or(0.0, |late| *late as f64 / 1e6)
    };
    json!({ "count": late.len(), "median": at(0.5), "p99": at(0.99), "max": at(1.0) })
}
