//! Agents and their controller as separate processes: complete runs, and failures.
//!
//! The processes are instances of this test program, each started with one test selected. The traffic is
//! simulated by a stub, so that only agents and controller are tested.

#[path = "support/pretender.rs"]
mod pretender;

use netstage_agent::controller::{CollectedReports, ControlledAgents, ControllerError};
use netstage_agent::{EndReason, LocalAgent};
use netstage_agent_api::protocol::{OrderRefusalKind, read_report};
use netstage_agent_api::task::{self, Assignment};
use netstage_core::measure::ClockOffset;
use netstage_harness::{needs, within};
use netstage_host::clock::{Epoch, monotonic_ns};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pretender::{Pretender, assignment};
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

/// Far longer than any step takes, on any machine.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
const ROLE: &str = "NETSTAGE_TEST_ROLE";
const PLACE: &str = "NETSTAGE_TEST_PLACE";

/// Temporary folder, removed on drop.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("netstage-agents-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }

    fn spool(&self) -> PathBuf {
        self.0.join("spool")
    }

    fn spooled(&self) -> Vec<PathBuf> {
        fs::read_dir(self.spool()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// Starts one of the roles below as a process.
    fn start(&self, role: &str, name: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", role, "--nocapture"]).env(ROLE, name).env(PLACE, &self.0);
        Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn agent(&self, name: &str) -> Process {
        self.start("an_agent", name)
    }

    fn connect(&self, names: &[&str]) -> Result<ControlledAgents, ControllerError> {
        ControlledAgents::connect(names.iter().map(|name| (name.to_string(), self.socket(name))).collect())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Process that ends with its test.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < LIMIT, "the process does not end");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn assignments(nodes: &[&str], milliseconds: u64) -> Vec<(String, Assignment)> {
    nodes.iter().map(|node| assignment(node, "bulk", milliseconds)).collect()
}

fn start(agents: &mut ControlledAgents, assignments: Vec<(String, Assignment)>) {
    agents.prepare(assignments).unwrap();
    let epoch = agents.earliest_start();
    agents.start(epoch).unwrap();
}

/// Waits until something has been sent.
fn under_way(agents: &mut ControlledAgents) {
    assert!(within(LIMIT, || agents.overview().sent.0 > 0), "no packets are sent");
}

fn nodes(collected: &CollectedReports) -> Vec<&str> {
    collected.reports.iter().map(|report| report.node.as_str()).collect()
}

// Roles. They do nothing unless the process was started for them.

fn an_agent() {
    let (Ok(name), Ok(place)) = (std::env::var(ROLE), std::env::var(PLACE)) else { return };
    set_pdeathsig(Signal::SIGTERM).unwrap();
    let place = std::mem::ManuallyDrop::new(Place(place.into()));
    if name == "full" {
        // A file system of one page, in which no report fits. The namespace, and with it the mount, ends with
        // the process.
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        fs::create_dir_all(place.spool()).unwrap();
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("tmpfs"), &place.spool(), Some("tmpfs"), MsFlags::empty(), Some("size=4k")).unwrap();
    }
    let agent = LocalAgent::bind(&place.socket(&name), &place.spool()).unwrap();
    let ended = agent.serve(Pretender).unwrap();
    std::process::exit(match ended.reason {
        EndReason::Finished => 0,
        EndReason::ControllerGone => 10,
        EndReason::Interrupted => 11,
    });
}

fn a_controller() {
    let (Ok(_), Ok(place)) = (std::env::var(ROLE), std::env::var(PLACE)) else { return };
    set_pdeathsig(Signal::SIGTERM).unwrap();
    let place = std::mem::ManuallyDrop::new(Place(place.into()));
    let mut agents = place.connect(&["a", "b"]).unwrap();
    start(&mut agents, assignments(&["a", "b"], 60_000));
    under_way(&mut agents);
    fs::write(place.0.join("under-way"), "").unwrap();
    agents.watch(|_| ControlFlow::Continue(()));
}

fn several_runs_complete_and_leave_no_files() {
    needs::time(2);
    let place = Place::new("whole");
    let mut processes = ["a", "b"].map(|name| place.agent(name));
    let mut agents = place.connect(&["a", "b"]).unwrap();
    for length in [300, 200] {
        start(&mut agents, assignments(&["a", "b"], length));
        let mut overviews = 0;
        agents.watch(|overview| {
            overviews += 1;
            assert!(overview.running <= 2 && overview.lost_agents.is_empty());
            ControlFlow::Continue(())
        });
        assert!(overviews > 0);
        let collected = agents.collect();
        assert_eq!(nodes(&collected), ["a", "b"]);
        assert!(collected.reports.iter().all(|report| report.flows[0].bins[0].sent > 0));
        assert!(collected.lost.is_empty() && collected.warnings.is_empty(), "{collected:?}");
        // Processes of one machine read the same clock.
        assert!(agents.clocks().iter().all(|(_, clock)| clock == ClockOffset::SAME_CLOCK));
        assert!(place.spooled().is_empty());
    }
    agents.finish();
    for process in &mut processes {
        assert_eq!(process.ended().code(), Some(0));
    }
    assert!(!place.socket("a").exists() && !place.socket("b").exists());
}

fn a_killed_agent_is_named_and_the_results_of_the_others_are_kept() {
    needs::time(2);
    let place = Place::new("killed");
    let processes = ["a", "b", "c"].map(|name| place.agent(name));
    let mut agents = place.connect(&["a", "b", "c"]).unwrap();
    start(&mut agents, assignments(&["a", "b", "c"], 1_500));
    under_way(&mut agents);
    processes[1].signal(Signal::SIGKILL);
    let collected = agents.collect();
    assert_eq!(nodes(&collected), ["a", "c"]);
    let [loss] = &collected.lost[..] else { panic!("{:?}", collected.lost) };
    assert_eq!(loss.agent, "b");
    assert!(loss.reason.contains("after the start"), "{loss}");
    agents.finish();
}

fn agents_end_when_their_controller_is_killed_and_keep_their_reports() {
    let place = Place::new("orphans");
    let mut processes = ["a", "b"].map(|name| place.agent(name));
    let controller = place.start("a_controller", "controller");
    assert!(within(LIMIT, || place.0.join("under-way").exists()), "the run does not start");
    controller.signal(Signal::SIGKILL);
    for process in &mut processes {
        assert_eq!(process.ended().code(), Some(10));
    }
    let mut kept: Vec<String> = Vec::new();
    for path in place.spooled() {
        let report = read_report(task::VERSION, &fs::read(path).unwrap()).unwrap();
        assert!(report.flows[0].bins[0].sent > 0);
        kept.push(report.node);
    }
    kept.sort();
    assert_eq!(kept, ["a", "b"]);
    assert!(!place.socket("a").exists() && !place.socket("b").exists());
}

fn agents_end_when_their_controller_stops_sending_heartbeats() {
    needs::time(4);
    let place = Place::new("silent");
    let mut agent = ["a", "b"].map(|name| place.agent(name));
    let controller = place.start("a_controller", "controller");
    assert!(within(LIMIT, || place.0.join("under-way").exists()), "the run does not start");
    controller.signal(Signal::SIGSTOP);
    assert_eq!(agent[0].ended().code(), Some(10));
    assert_eq!(agent[1].ended().code(), Some(10));
    assert_eq!(place.spooled().len(), 2);
}

fn a_full_disk_is_reported_and_the_report_still_arrives() {
    needs::root();
    let place = Place::new("full");
    let _process = place.agent("full");
    let mut agents = place.connect(&["full"]).unwrap();
    start(&mut agents, vec![assignment("full", "large", 100)]);
    let collected = agents.collect();
    assert_eq!(nodes(&collected), ["full"]);
    assert_eq!(collected.reports[0].flows[0].bins.len(), 100_000);
    let [warning] = &collected.warnings[..] else { panic!("{:?}", collected.warnings) };
    let path = place.spool().join("full-1.json");
    assert!(warning.contains(path.to_str().unwrap()) && warning.contains("No space left"), "{warning}");
    agents.finish();
}

fn a_refusal_names_flow_reason_and_remedy() {
    let place = Place::new("refusal");
    let _processes = ["a", "b"].map(|name| place.agent(name));
    let mut agents = place.connect(&["a", "b"]).unwrap();
    let refused = vec![assignment("a", "bulk", 100), assignment("b", "port-in-use", 100)];
    let error = agents.prepare(refused).unwrap_err();
    let expected = "agent b refused: flow port-in-use: port 7 is in use (choose another port)";
    assert_eq!(error.to_string(), expected);
    assert!(
        matches!(error, ControllerError::Refused(refusals) if refusals[0].1.kind == OrderRefusalKind::InUse)
    );
    // Both agents can be used for another run.
    start(&mut agents, assignments(&["a", "b"], 100));
    assert_eq!(nodes(&agents.collect()), ["a", "b"]);
    let error = agents.prepare(assignments(&["nobody"], 1)).unwrap_err();
    assert_eq!(error, ControllerError::Unknown("nobody".into()));
    agents.finish();
}

fn a_start_in_the_past_is_refused() {
    let place = Place::new("late");
    let _process = place.agent("a");
    let mut agents = place.connect(&["a"]).unwrap();
    agents.prepare(assignments(&["a"], 100)).unwrap();
    let error = agents.start(Epoch(monotonic_ns() - 5_000_000)).unwrap_err();
    assert!(error.to_string().contains("ms late"), "{error}");
    start(&mut agents, assignments(&["a"], 100));
    assert_eq!(nodes(&agents.collect()), ["a"]);
}

fn a_panic_invalidates_the_run_and_the_agent_continues() {
    needs::time(2);
    let place = Place::new("panic");
    let _process = place.agent("a");
    let mut agents = place.connect(&["a"]).unwrap();
    start(&mut agents, vec![assignment("a", "panics", 100)]);
    let collected = agents.collect();
    assert!(collected.reports[0].void[0].contains("panicked: as requested by the test"), "{collected:?}");
    start(&mut agents, assignments(&["a"], 100));
    assert!(agents.collect().reports[0].void.is_empty());
}

fn a_run_can_be_stopped() {
    let place = Place::new("stop");
    let _process = place.agent("a");
    let mut agents = place.connect(&["a"]).unwrap();
    start(&mut agents, assignments(&["a"], 3_600_000));
    agents.watch(|overview| match overview.sent.0 {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    let collected = agents.collect();
    assert!(collected.reports[0].flows[0].bins[0].sent > 0);
}

fn a_second_controller_is_refused() {
    let place = Place::new("second");
    let _process = place.agent("a");
    let first = place.connect(&["a"]).unwrap();
    let error = place.connect(&["a"]).err().expect("the second controller is refused");
    assert!(
        matches!(&error, ControllerError::Refused(refusals) if refusals[0].1.kind == OrderRefusalKind::Busy),
        "{error}"
    );
    first.finish();
}

fn an_agent_that_does_not_answer_is_named() {
    needs::time(2);
    let place = Place::new("mute");
    let limit = std::time::Duration::from_millis(500);
    let connect = |name: &str| {
        let agents = vec![(name.to_owned(), place.socket(name))];
        ControlledAgents::connect_within(agents, limit).err().expect("no agent answers").to_string()
    };
    let _mute = UnixListener::bind(place.socket("mute")).unwrap();
    let error = connect("mute");
    assert!(error.contains("agent mute at") && error.contains("no answer"), "{error}");
    let error = connect("absent");
    assert!(error.contains("no agent listens"), "{error}");
    fs::write(place.socket("file"), "").unwrap();
    assert!(connect("file").contains("agent file at"));
}

fn twenty_agents_at_once() {
    needs::time(2);
    let place = Place::new("twenty");
    let names: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut processes: Vec<Process> = names.iter().map(|name| place.agent(name)).collect();
    let mut agents = place.connect(&names).unwrap();
    start(&mut agents, assignments(&names, 200));
    assert_eq!(nodes(&agents.collect()), names);
    agents.finish();
    assert!(processes.iter_mut().all(|process| process.ended().code() == Some(0)));
    let left: Vec<_> = fs::read_dir(&place.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["spool"]);
}

fn an_agent_that_does_not_stop_is_given_up() {
    let place = Place::new("stubborn");
    let _processes = ["a", "b"].map(|name| place.agent(name));
    let mut agents = place.connect(&["a", "b"]).unwrap();
    start(&mut agents, vec![assignment("a", "stubborn", 100), assignment("b", "bulk", 100)]);
    let collected = agents.collect();
    assert_eq!(nodes(&collected), ["b"]);
    assert!(collected.lost[0].reason.contains("still running"), "{collected:?}");
}

netstage_harness::tests![
    an_agent,
    a_controller,
    several_runs_complete_and_leave_no_files,
    a_killed_agent_is_named_and_the_results_of_the_others_are_kept,
    agents_end_when_their_controller_is_killed_and_keep_their_reports,
    agents_end_when_their_controller_stops_sending_heartbeats,
    a_full_disk_is_reported_and_the_report_still_arrives,
    a_refusal_names_flow_reason_and_remedy,
    a_start_in_the_past_is_refused,
    a_panic_invalidates_the_run_and_the_agent_continues,
    a_run_can_be_stopped,
    a_second_controller_is_refused,
    an_agent_that_does_not_answer_is_named,
    twenty_agents_at_once,
    #[ignore = "waits 10 s until the agent is given up"]
    an_agent_that_does_not_stop_is_given_up,
];
netstage_harness::main![self];
