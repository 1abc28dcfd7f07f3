//! Support of tests of scenarios with routing daemons: commands and the namespaces of their nodes.

use super::{netstage, output_text};
use netstage_harness::skip_busy;
use netstage_host::netns::Namespace;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn run(scenario: &Path, out: &Path, arguments: &[&str]) -> Command {
    let mut command = netstage(&["run"]);
    command.arg(scenario).arg("--out").arg(out).args(arguments);
    command
}

/// Asserts that all expectations were met. Skips the test if the machine was too busy.
pub fn assert_met(output: &Output) {
    match output.status.code() {
        Some(0) => {}
        Some(5) => skip_busy(output_text(output)),
        code => panic!("{code:?}\n{}", output_text(output)),
    }
}

/// Returns the folder of a run's sockets.
pub fn sockets(run: u32) -> PathBuf {
    std::env::temp_dir().join(format!("netstage-{run}-0"))
}

/// Returns the namespace of a host, which contains its agent.
pub fn namespace(run: u32, node: usize) -> Option<Namespace> {
    of_argument(sockets(run).join(format!("{node}.sock")).to_str().unwrap())
}

/// Returns the namespace of a router, which exists before its daemons start.
pub fn router_namespace(run: u32, node: usize) -> Option<Namespace> {
    of_argument(sockets(run).join(format!("routing/{node}/router.toml")).to_str().unwrap())
}

/// Returns the namespace of the process with this argument.
fn of_argument(argument: &str) -> Option<Namespace> {
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        line.split('\0').any(|word| word == argument).then_some(process)
    });
    Namespace::of_process(processes.next()?).ok()
}
