//! Scenarios with routing daemons: whether they can run here, and where their nodes are.

use super::{netstage, said, text};
use netstage_harness::skip_busy;
use netstage_host::netns::Namespace;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn run(scenario: &Path, out: &Path, arguments: &[&str]) -> Command {
    let mut command = netstage(&["run"]);
    command.arg(scenario).arg("--out").arg(out).args(arguments);
    command
}

/// Met; skipped where the machine was too busy to tell.
pub fn assert_met(output: &Output) {
    match output.status.code() {
        Some(0) => {}
        Some(5) => skip_busy(text(&output.stderr)),
        code => panic!("{code:?}\n{}", said(output)),
    }
}

/// The folder of a run's sockets.
pub fn sockets(run: u32) -> PathBuf {
    std::env::temp_dir().join(format!("netstage-{run}-0"))
}

/// The namespace of a host, in which its agent is.
pub fn namespace(run: u32, node: usize) -> Option<Namespace> {
    of_word(sockets(run).join(format!("{node}.sock")).to_str().unwrap())
}

/// The namespace of a router, there before its daemons are.
pub fn router_namespace(run: u32, node: usize) -> Option<Namespace> {
    of_word(sockets(run).join(format!("routing/{node}/router.toml")).to_str().unwrap())
}

/// The namespace of the process that was given this argument.
fn of_word(argument: &str) -> Option<Namespace> {
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        line.split('\0').any(|word| word == argument).then_some(process)
    });
    Namespace::of_process(processes.next()?).ok()
}
