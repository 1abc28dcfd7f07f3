//! Tests of what is reported of a run whose controller was killed.

use crate::support::fleet::{Fleet, LIMIT};
use crate::support::{TestProcess, output_text, record, within};
use netstage_host::netns::Namespace;
use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

const AGENTS: [&str; 2] = ["left", "right"];
/// Exit code of a void run.
const VOID: i32 = 5;
/// Time after which the traffic of the run with a lease has ended.
const LEASE: Duration = Duration::from_secs(4);

struct KilledController {
    fleet: Fleet,
    _router: Namespace,
    hub: Option<TestProcess>,
    _agents: Vec<TestProcess>,
}

impl KilledController {
    fn new(name: &str, settings: &str) -> KilledController {
        let fleet = Fleet::new(name, &AGENTS);
        let router = fleet.join_by_router();
        fleet.write_policy("max_lease = \"10 s\"");
        let flow = |name: &str, from: &str, to: &str| {
            format!("[flow.{name}]\nfrom = \"{from}\"\nto = \"{to}\"\ntransport = \"udp\"\n")
        };
        let scenario = format!(
            "[scenario]\nduration = \"15 s\"\n{settings}\n[node.left]\n[node.right]\n[link.wire]\n\
             ends = [\"left\", \"right\"]\nrate = \"1 Gbit/s\"\nbuffer = \"100 packets\"\n[place]\nleft = \"left\"\n\
             right = \"right\"\n[defaults.flow]\ntraffic = {{ model = \"cbr\", rate = \"4 Mbit/s\", packet = \"500 B\" }}\n\
             {}{}[measure]\ninterval = \"100 ms\"\n",
            flow("east", "left", "right"),
            flow("west", "right", "left")
        );
        fs::write(fleet.folder.join("run.toml"), scenario).unwrap();
        let hub = Some(fleet.serve());
        let agents = fleet.join_all(&AGENTS);
        KilledController { fleet, _router: router, hub, _agents: agents }
    }

    /// Starts a run, and kills the controller when both agents have recorded some bins.
    fn run_until_killed(&mut self) -> TestProcess {
        let mut command = self.fleet.command(&["run", "run.toml", "--on", "live", "--out", "out"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = TestProcess::spawn_in(&self.fleet.hub, command);
        let is_recording = || AGENTS.iter().all(|agent| self.fleet.counted(agent) > 20);
        assert!(within(LIMIT, is_recording), "{}", self.fleet.logs());
        self.hub.as_mut().unwrap().signal("-KILL");
        self.hub = None;
        run
    }
}

fn the_error_of_a_run_without_its_controller_says_what_interrupted_it() {
    let mut stage = KilledController::new("interrupted", "");
    let run = stage.run_until_killed();
    let output = run.output();
    let printed = output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    for agent in AGENTS {
        let expected =
            format!("agent {agent} was lost: the controller of the fleet ended, which interrupted the run");
        assert!(printed.contains(&expected), "{printed}");
    }
    assert!(!printed.contains("process ended"), "{printed}");
}

fn the_record_of_a_run_that_outlived_its_lease_says_that_it_was_interrupted() {
    let mut stage = KilledController::new("interrupted-lease", "lease = \"4 s\"");
    let run = stage.run_until_killed();
    sleep(LEASE + Duration::from_secs(2));
    stage.hub = Some(stage.fleet.serve_again());
    let output = run.output();
    let printed = output_text(&output);
    let record = record(&stage.fleet.folder.join("out"));
    let void = record["void"].to_string();
    for node in AGENTS {
        assert!(
            void.contains(&format!("agent {node} lost its controller, so the run was interrupted at ")),
            "{record:#}"
        );
    }
    // The agents do not stop at the same time, for which neither is to blame.
    assert!(!void.contains("reports is wrong"), "{record:#}");
    assert!(record["failures"].is_null(), "{record:#}");
    assert_eq!(output.status.code(), Some(VOID), "{printed}");
}

netstage_harness::tests![
    the_error_of_a_run_without_its_controller_says_what_interrupted_it,
    the_record_of_a_run_that_outlived_its_lease_says_that_it_was_interrupted,
];
