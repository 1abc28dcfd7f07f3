//! Fleet with a hostile member. The hub, the honest agents and the hostile one are real, and use mutual TLS
//! on the loopback interface; the traffic is simulated by a stub. Whatever one agent does, the runs of the
//! others continue.

#[path = "support/liar.rs"]
mod liar;
#[path = "support/pretender.rs"]
mod pretender;

use liar::{Lie, connect, dial};
use netstage_agent::controller::{
    AgentAddress, ClockComparison, CollectedReports, ControlledAgents, ControllerError,
};
use netstage_agent::fleet::folder::TokenGrant;
use netstage_agent::fleet::hub::Hub;
use netstage_agent::fleet::member::{self, FleetAgent};
use netstage_agent::fleet::runs::FleetRuns;
use netstage_agent::fleet::token::Token;
use netstage_agent::fleet::{AgentAvailability, FleetFolder};
use netstage_agent_api::results::AgentReport;
use netstage_agent_api::task::{Assignment, FlowSide};
use netstage_core::fleet::{Policy, Receipt};
use netstage_core::measure::ClockOffset;
use netstage_harness::{needs, within};
use netstage_host::log::{Log, MAX_BURST};
use netstage_host::shutdown::DaemonShutdown;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use pretender::{Pretender, assignment};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Far longer than any step takes, on any machine.
const LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const HONEST: [&str; 2] = ["ber-1", "fra-1"];
const ENEMY: &str = "eve";

/// Fleet of two honest agents, whose hub listens on the loopback interface.
struct Stage {
    folder: PathBuf,
    fleet: FleetFolder,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
    running: Vec<(DaemonShutdown, JoinHandle<()>)>,
    run: u64,
}

/// File system of half a megabyte, in a mount namespace of this thread and of those it starts later.
struct Disk(PathBuf);

impl Disk {
    fn mount(folder: &Path) -> Disk {
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        fs::create_dir_all(folder).unwrap();
        mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some("size=512k,mode=700")).unwrap();
        Disk(folder.to_owned())
    }

    fn fill(&self) {
        let mut filler = File::create(self.0.join("filler")).unwrap();
        while filler.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
        // The stage is dropped first, and cannot remove the mount point.
        let stage = self.0.ancestors().find(|folder| folder.parent() == Some(&std::env::temp_dir()));
        let _ = stage.map(fs::remove_dir_all);
    }
}

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("netstage-hostile-{}-{name}", std::process::id()))
}

impl Stage {
    fn new(name: &str) -> Stage {
        let folder = place(name);
        let _ = fs::remove_dir_all(&folder);
        Stage::at(folder)
    }

    fn at(folder: PathBuf) -> Stage {
        let fleet = FleetFolder::create(&folder.join("fleet"), "lab").unwrap();
        let lines = Arc::new(Mutex::new(String::new()));
        let log: Log = {
            let lines = Arc::clone(&lines);
            Arc::new(move |_, line| *lines.lock().unwrap() += &format!("{line}\n"))
        };
        let hub = Hub::bind(fleet.clone(), "127.0.0.1:0".parse().unwrap(), log).unwrap();
        let (address, ender) = (hub.address().unwrap(), hub.shutdown_handle());
        let serving = std::thread::spawn(move || hub.serve().unwrap());
        let mut stage = Stage { folder, fleet, address, log: lines, running: vec![(ender, serving)], run: 0 };
        for name in HONEST {
            stage.join(name);
            let policy = Policy::default();
            let agent = FleetAgent::open(&stage.folder.join(name), policy, Arc::new(|_, _| {})).unwrap();
            let ender = agent.shutdown_handle();
            let serving = std::thread::spawn(move || agent.serve(Arc::new(Pretender)).unwrap());
            stage.running.push((ender, serving));
        }
        stage.wait_for(&HONEST, AgentAvailability::Idle);
        stage
    }

    fn join(&self, name: &str) {
        let (valid, lasting) = (Duration::from_secs(3600), Duration::from_secs(3600));
        let token =
            self.fleet.token(&TokenGrant { agent: name.into(), labels: Vec::new(), valid, lasting }).unwrap();
        member::join(&self.folder.join(name), &self.address.to_string(), &token).unwrap();
    }

    /// Lets the hostile agent join like any other, and then misbehave.
    fn enemy(&mut self, lie: Lie) {
        self.join(ENEMY);
        self.running.push(connect(self.address, self.folder.join(ENEMY), lie));
    }

    fn state_of(&self, name: &str) -> Option<AgentAvailability> {
        let agents = self.fleet.agents().unwrap();
        agents.into_iter().find(|agent| agent.name == name).map(|agent| agent.state)
    }

    fn wait_for(&self, names: &[&str], state: AgentAvailability) {
        let are = || names.iter().all(|name| self.state_of(name) == Some(state));
        assert!(within(LIMIT, are), "{:?}\n{}", self.fleet.agents(), self.log());
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Starts a run on these agents.
    fn begin(&mut self, names: &[&str], milliseconds: u64) -> Result<ControlledAgents, ControllerError> {
        let at = |name: &&str| (name.to_string(), AgentAddress::Fleet(self.fleet.socket()));
        let places: Vec<(String, AgentAddress)> = names.iter().map(at).collect();
        let mut agents = ControlledAgents::connect(places)?;
        self.run += 1;
        agents.new_run_numbered(self.run, true);
        let parts: Vec<_> = names.iter().map(|name| part(name, milliseconds)).collect();
        let begun = agents.collect_consents(&parts).and_then(|()| agents.add_agents(parts).map(drop));
        let begun = begun.and_then(|()| agents.start_together().map(drop));
        if let Err(error) = begun {
            agents.finish();
            return Err(error);
        }
        Ok(agents)
    }

    /// Completes a run on the honest agents.
    fn honest_run(&mut self) {
        self.wait_for(&HONEST, AgentAvailability::Idle);
        let end = Instant::now() + LIMIT;
        let mut agents = loop {
            match self.begin(&HONEST, 100) {
                // The status may still be that before the end of the previous run.
                Err(error) if error.is_busy() && Instant::now() < end => std::thread::sleep(POLL_INTERVAL),
                begun => break begun.unwrap(),
            }
        };
        let collected = agents.collect();
        agents.finish();
        assert_honest(&collected);
        assert!(collected.lost.is_empty(), "{collected:?}");
    }

    /// Completes a run with the hostile agent. Returns the reason of its loss.
    fn run_with_enemy(&mut self) -> String {
        self.wait_for(&[ENEMY], AgentAvailability::Idle);
        let mut agents = self.begin(&[HONEST[0], ENEMY, HONEST[1]], 1_000).unwrap();
        agents.watch(|overview| {
            assert!(overview.ended.bins.iter().all(|bin| bin.bin < 10), "{:?}", overview.ended.bins);
            ControlFlow::Continue(())
        });
        let collected = agents.collect();
        agents.finish();
        assert_honest(&collected);
        let [loss] = &collected.lost[..] else { panic!("{collected:?}") };
        assert_eq!(loss.agent, ENEMY);
        loss.reason.clone()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for (ender, thread) in self.running.drain(..).rev() {
            ender.request();
            let _ = thread.join();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn part(name: &str, milliseconds: u64) -> (String, Assignment) {
    let (name, mut part) = assignment(name, "bulk", milliseconds);
    part.flows[0].side = FlowSide::Receive;
    (name, part)
}

fn assert_honest(collected: &CollectedReports) {
    let honest: Vec<&str> = collected.reports.iter().map(|report| report.node.as_str()).collect();
    assert_eq!(honest, HONEST, "{collected:?}");
    assert!(collected.reports.iter().all(|report| report.void.is_empty()), "{collected:?}");
}

fn impossible_counters_and_bins_do_not_harm_other_agents() {
    needs::time(8);
    let mut stage = Stage::new("sums");
    stage.enemy(Lie::Numbers);
    let reason = stage.run_with_enemy();
    assert!(reason.contains("more bins reported than the run has"), "{reason}");
    stage.honest_run();
}

fn an_agent_that_floods_is_lost() {
    needs::time(3);
    let mut stage = Stage::new("flood");
    stage.enemy(Lie::Flood);
    stage.wait_for(&[ENEMY], AgentAvailability::Idle);
    let why = match stage.begin(&[HONEST[0], ENEMY], 1_000) {
        Err(error) => error.to_string(),
        // On a busy machine, the flood exceeds the limit after the start.
        Ok(mut agents) => {
            let collected = agents.collect();
            agents.finish();
            collected.lost.first().unwrap_or_else(|| panic!("the flood was accepted")).to_string()
        }
    };
    assert!(why.contains("agent eve was lost") && why.contains("more than"), "{why}");
    stage.honest_run();
}

fn giant_messages_are_not_read() {
    needs::time(10);
    let mut stage = Stage::new("giant");
    stage.enemy(Lie::GiantReport);
    let reason = stage.run_with_enemy();
    assert!(reason.contains("report exceeds"), "{reason}");
    stage.honest_run();
    let mut stage = Stage::new("endless");
    stage.enemy(Lie::EndlessReport);
    let reason = stage.run_with_enemy();
    assert!(reason.contains("report exceeds"), "{reason}");
    let mut stage = Stage::new("giant-word");
    stage.enemy(Lie::GiantWord);
    stage.wait_for(&[ENEMY], AgentAvailability::Idle);
    assert!(stage.begin(&[HONEST[0], ENEMY], 100).is_err());
    stage.honest_run();
}

fn progress_sent_too_early_or_for_another_run_is_ignored() {
    needs::time(6);
    let mut stage = Stage::new("early");
    stage.enemy(Lie::Early);
    let reason = stage.run_with_enemy();
    assert!(reason.contains("there is no such report"), "{reason}");
    stage.honest_run();
}

fn an_agent_that_does_not_answer_is_named() {
    needs::time(15);
    let mut stage = Stage::new("mute");
    stage.enemy(Lie::Mute);
    stage.wait_for(&[ENEMY], AgentAvailability::Idle);
    let error = stage.begin(&[HONEST[0], ENEMY, HONEST[1]], 1_000).err().expect("the agent never answers");
    assert!(
        matches!(&error, ControllerError::Lost(losses) if losses.len() == 1 && losses[0].agent == ENEMY),
        "{error}"
    );
    stage.honest_run();
}

fn a_report_in_the_name_of_another_node_can_be_rejected() {
    needs::time(3);
    let mut stage = Stage::new("others");
    stage.enemy(Lie::OthersNames);
    stage.wait_for(&[ENEMY], AgentAvailability::Idle);
    let mut agents = stage.begin(&[HONEST[0], ENEMY, HONEST[1]], 300).unwrap();
    let mut kept = Vec::new();
    let collected = agents.collect_and_store(|agent, report| match agent == report.node {
        true => {
            kept.push(agent.to_owned());
            Ok(())
        }
        false => Err(format!("it belongs to node {}", report.node)),
    });
    agents.finish();
    assert_eq!(kept, HONEST);
    assert!(collected.warnings[0].contains("cannot store the report of agent eve"), "{collected:?}");
}

fn clock_offsets_that_contradict_the_controllers_are_rejected() {
    needs::time(3);
    let mut stage = Stage::new("clocks");
    stage.enemy(Lie::Early);
    stage.wait_for(&[ENEMY], AgentAvailability::Idle);
    let mut agents = stage.begin(&[HONEST[0], ENEMY], 300).unwrap();
    let at = |address: &str| ClockComparison {
        from: ENEMY.into(),
        to: HONEST[0].into(),
        at: address.parse().unwrap(),
    };
    // It reports three comparisons, of which only the first address was requested.
    let asked = [at("192.0.2.1:4704"), at("192.0.2.2:4704")];
    agents.compare_clocks(&asked);
    assert_eq!((agents.clocks().compared(), agents.clocks().contradictions()), (0, &asked[..1]));
    assert_eq!(agents.clocks().offset_between(ENEMY, HONEST[0]), Some(ClockOffset::SAME_CLOCK));
    agents.finish();
    stage.honest_run();
}

fn an_agent_of_another_version_is_shown_but_not_used() {
    needs::time(3);
    let mut stage = Stage::new("version");
    stage.enemy(Lie::Version);
    let logged = || stage.log().contains("supports agent protocol versions 9 to 12");
    assert!(within(LIMIT, logged), "{}", stage.log());
    let error = stage.begin(&[HONEST[0], ENEMY], 100).err().expect("the agent is not connected").to_string();
    assert!(error.contains("agent eve is not connected"), "{error}");
    // Text from the agent contains no control characters, and is truncated.
    assert!(!stage.log().contains('\u{1b}'));
    let there =
        || stage.fleet.agents().unwrap().iter().any(|agent| agent.name == ENEMY && !agent.version.is_empty());
    assert!(within(LIMIT, there));
    let agents = stage.fleet.agents().unwrap();
    let enemy = agents.iter().find(|agent| agent.name == ENEMY).unwrap();
    assert_eq!(enemy.version, "9[2J", "control characters are removed");
    assert_eq!(enemy.host.len(), 64);
    stage.honest_run();
}

fn reports_that_cannot_be_stored_stay_with_their_agents() {
    needs::time(2);
    let mut stage = Stage::new("kept");
    let mut agents = stage.begin(&HONEST, 100).unwrap();
    let collected = agents.collect_and_store(|_, _| Err("No space left on device".into()));
    agents.finish();
    assert_eq!(collected.warnings.len(), 2, "{collected:?}");
    assert!(collected.warnings[0].contains("it stays with the agent: No space left"), "{collected:?}");
    stage.wait_for(&HONEST, AgentAvailability::Idle);
    let at = |name: &&str| (name.to_string(), AgentAddress::Fleet(stage.fleet.socket()));
    let agents =
        ControlledAgents::connect(HONEST.iter().map(at).collect::<Vec<(String, AgentAddress)>>()).unwrap();
    for expected in [2, 0] {
        let mut fetched = Vec::new();
        let losses = agents.fetch_stored_reports(|agent, run, report| {
            fetched.push((agent.to_owned(), run, report.node.clone()));
            true
        });
        assert!(losses.is_empty(), "{losses:?}");
        assert_eq!(fetched.len(), expected, "{fetched:?}");
        assert!(fetched.iter().all(|(agent, run, node)| agent == node && *run == 1));
    }
    agents.finish();
}

fn a_slow_agent_postpones_the_start_of_all() {
    needs::time(6);
    let mut stage = Stage::new("hesitant");
    stage.enemy(Lie::Hesitant);
    stage.wait_for(&[ENEMY], AgentAvailability::Idle);
    let mut agents = stage.begin(&[HONEST[0], ENEMY, HONEST[1]], 300).unwrap();
    let collected = agents.collect();
    agents.finish();
    assert_honest(&collected);
    let remark = collected.slow_start.expect("the record mentions the postponement");
    assert!(
        remark.starts_with("the start was postponed ") && remark.contains(" times, because some of 3"),
        "{remark}"
    );
    stage.honest_run();
}

fn an_agent_that_never_prepares_is_given_up_and_the_others_are_released() {
    let mut stage = Stage::new("unprepared");
    stage.enemy(Lie::Unprepared);
    stage.wait_for(&[ENEMY], AgentAvailability::Idle);
    let error =
        stage.begin(&[HONEST[0], ENEMY, HONEST[1]], 300).err().expect("the agent never answers").to_string();
    assert_eq!(error, "agent eve was lost: no answer within 60s");
    stage.honest_run();
}

fn a_full_disk_of_the_controller_loses_no_report() {
    needs::root();
    let folder = place("full");
    let disk = Disk::mount(&folder.join("fleet"));
    let mut stage = Stage::at(folder);
    let late = TokenGrant {
        agent: "late".into(),
        labels: Vec::new(),
        valid: Duration::from_secs(3600),
        lasting: Duration::from_secs(3600),
    };
    let token = stage.fleet.token(&late).unwrap();
    let mut runs = FleetRuns::read_all(&stage.fleet).unwrap();
    let nodes = || HONEST.map(|name| (name.to_owned(), name.to_owned())).into();
    let run = runs.open("full", nodes()).unwrap();
    stage.run = run - 1;
    let mut agents = stage.begin(&HONEST, 300).unwrap();
    disk.fill();
    let mut keep = |agent: &str, report: &AgentReport| match runs.receive(run, agent, report) {
        Ok(receipt) => {
            assert_eq!(receipt, Receipt::New);
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    };
    let collected = agents.collect_and_store(&mut keep);
    agents.finish();
    // The run is complete. Reports that cannot be stored here stay with the agents.
    assert_honest(&collected);
    assert_eq!(collected.warnings.len(), 2, "{collected:?}");
    assert!(collected.warnings[0].contains("it stays with the agent: No space left"), "{collected:?}");
    for part in [".report.json", "free space on this disk, then run `netstage fleet runs --fetch`"] {
        assert!(collected.warnings[0].contains(part), "{collected:?}");
    }
    // The hub reports the error and continues.
    assert!(
        within(LIMIT, || stage.log().contains("cannot write the status of the agents")),
        "{}",
        stage.log()
    );
    let again = stage.fleet.token(&TokenGrant { agent: "later".into(), ..late }).unwrap_err().to_string();
    assert!(again.contains("tokens") && again.contains("No space left"), "{again}");
    let refused =
        FleetRuns::read_all(&stage.fleet).unwrap().open("another", nodes()).unwrap_err().to_string();
    assert!(refused.contains("No space left"), "{refused}");
    // A status that cannot be written does not mean that no controller serves the fleet.
    assert!(within(LIMIT, || !stage.fleet.is_served()));
    let problem = stage.fleet.require_service().unwrap_err();
    assert!(!problem.is_missing, "{problem}");
    for error in [again, refused, problem.to_string()] {
        assert!(error.starts_with("the disk is full: "), "{error}");
        assert!(error.contains(stage.fleet.folder().to_str().unwrap()), "{error}");
        assert!(error.contains("free space there") && !error.contains("permissions"), "{error}");
    }
    assert_eq!(stage.log().matches("cannot write the status").count(), 1, "{}", stage.log());
    disk.free();
    stage.wait_for(&HONEST, AgentAvailability::Idle);
    let at = |name: &&str| (name.to_string(), AgentAddress::Fleet(stage.fleet.socket()));
    let agents =
        ControlledAgents::connect(HONEST.iter().map(at).collect::<Vec<(String, AgentAddress)>>()).unwrap();
    let losses =
        agents.fetch_stored_reports(|agent, fetched, report| fetched == run && keep(agent, report).is_ok());
    agents.finish();
    assert!(losses.is_empty(), "{losses:?}");
    assert!(runs.missing(run).is_empty());
    member::join(&stage.folder.join("late"), &stage.address.to_string(), &token).unwrap();
}

fn a_full_disk_of_an_agent_loses_no_report() {
    needs::root();
    let folder = place("full-agent");
    let disk = Disk::mount(&folder.join(HONEST[0]).join("spool"));
    let mut stage = Stage::at(folder);
    disk.fill();
    let refused =
        stage.begin(&HONEST, 100).err().expect("the disk has no space for the run number").to_string();
    assert!(refused.contains("agent ber-1 refused") && refused.contains("accepted-runs"), "{refused}");
    disk.free();
    stage.wait_for(&HONEST, AgentAvailability::Idle);
    let mut agents = stage.begin(&HONEST, 500).unwrap();
    disk.fill();
    let collected = agents.collect();
    agents.finish();
    assert_honest(&collected);
    let [warning] = &collected.warnings[..] else { panic!("{collected:?}") };
    assert!(warning.contains("agent ber-1 could not spool its report"), "{warning}");
    disk.free();
    stage.honest_run();
}

fn idle_connections_do_not_lock_out_agents() {
    needs::time(2);
    let mut stage = Stage::new("half-open");
    // Many half-open connections.
    let mut silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(stage.address).unwrap()).collect();
    // Half a handshake, and bytes that are not TLS.
    silent[0].write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).unwrap();
    silent[1].write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    stage.enemy(Lie::Version);
    assert!(within(LIMIT, || stage.log().contains("agent eve joined")), "{}", stage.log());
    stage.honest_run();
    let mut answer = Vec::new();
    silent[1].set_read_timeout(Some(LIMIT)).unwrap();
    silent[1].read_to_end(&mut answer).expect("the connection is closed");
    assert!(stage.log().contains("TLS error"), "{}", stage.log());
}

fn rejected_joins_are_logged_at_a_bounded_rate() {
    needs::time(2);
    let stage = Stage::new("rejected-joins");
    let authority = stage.fleet.authorities().unwrap().presented().fingerprint();
    for _ in 0..2 * MAX_BURST {
        let token = Token::generate(&authority).unwrap();
        let rejected = member::join(&stage.folder.join(ENEMY), &stage.address.to_string(), &token);
        assert!(rejected.unwrap_err().message.contains("the token was used, or is unknown"));
    }
    let logged = stage.log().lines().filter(|line| line.contains("the token was used")).count();
    assert!((MAX_BURST as usize..2 * MAX_BURST as usize).contains(&logged), "{logged}");
    // Other events are still logged.
    stage.join(ENEMY);
    assert!(stage.log().contains("agent eve joined"), "{}", stage.log());
}

fn connections_with_invalid_data_after_the_handshake_are_closed() {
    needs::time(2);
    let stage = Stage::new("garbage");
    stage.join(ENEMY);
    let (address, folder) = (stage.address, stage.folder.join(ENEMY));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = dial(address, &folder, true).await.unwrap();
        stream.write_all(&[0xff; 4096]).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the connection is closed");
        // A client without a certificate cannot use the agent protocol.
        let mut stranger = dial(address, &folder, false).await.unwrap();
        let ended = tokio::time::timeout(LIMIT, stranger.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the connection is rejected");
    });
    assert!(within(LIMIT, || stage.log().contains("no client certificate")), "{}", stage.log());
    assert!(within(LIMIT, || stage.log().contains("agent eve")), "{}", stage.log());
}

netstage_harness::tests![
    impossible_counters_and_bins_do_not_harm_other_agents,
    an_agent_that_floods_is_lost,
    giant_messages_are_not_read,
    progress_sent_too_early_or_for_another_run_is_ignored,
    an_agent_that_does_not_answer_is_named,
    a_report_in_the_name_of_another_node_can_be_rejected,
    clock_offsets_that_contradict_the_controllers_are_rejected,
    an_agent_of_another_version_is_shown_but_not_used,
    reports_that_cannot_be_stored_stay_with_their_agents,
    a_slow_agent_postpones_the_start_of_all,
    #[ignore = "waits a minute until the agent is given up"]
    an_agent_that_never_prepares_is_given_up_and_the_others_are_released,
    a_full_disk_of_the_controller_loses_no_report,
    a_full_disk_of_an_agent_loses_no_report,
    idle_connections_do_not_lock_out_agents,
    rejected_joins_are_logged_at_a_bounded_rate,
    connections_with_invalid_data_after_the_handshake_are_closed,
];
netstage_harness::main![self];
