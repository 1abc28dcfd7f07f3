//! Processes that last for a whole run, and their logs.

use netstage_host::startup_error::StartupError;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Processes that are killed when dropped.
#[derive(Default)]
pub struct Processes(Vec<LoggedProcess>);

struct LoggedProcess {
    /// Name in messages, such as `node.west: zebra`.
    name: String,
    child: Child,
    log: PathBuf,
}

impl Processes {
    /// Adds a process that writes to a log.
    pub fn add(&mut self, name: String, child: Child, log: PathBuf) {
        self.0.push(LoggedProcess { name, child, log });
    }

    /// Kills a process.
    pub fn kill(&mut self, name: &str) {
        drop(Processes(self.0.extract_if(.., |process| process.name == name).collect()));
    }

    /// Returns a message for each process that has exited, with the last line of its log.
    pub fn exited(&mut self) -> Vec<String> {
        let exited = self.0.iter_mut().filter_map(|process| match process.child.try_wait() {
            Ok(Some(_)) => Some(format!("{} has exited: {}", process.name, last_log_line(&process.log))),
            _ => None,
        });
        exited.collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Kills all of them before waiting for each. Their child processes die with them.
        for process in &mut self.0 {
            let _ = process.child.kill();
        }
        for process in &mut self.0 {
            let _ = process.child.wait();
        }
    }
}

/// Redirects the output of a command to a log and returns its path.
pub fn log_to(path: PathBuf, command: &mut Command) -> Result<PathBuf, StartupError> {
    let cannot = |error: io::Error| StartupError::without_remedy(format!("{}: {error}", path.display()));
    let file = File::create(&path).map_err(cannot)?;
    command.stdin(Stdio::null()).stdout(file.try_clone().map_err(cannot)?).stderr(file);
    Ok(path)
}

/// Returns the last line of a log.
pub fn last_log_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("no output").trim().to_owned()
}
