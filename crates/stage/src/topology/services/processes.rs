//! Programs that run as long as a run does, and what they say.

use netstage_host::obstacle::Obstacle;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Processes that go when this does.
#[derive(Default)]
pub struct Processes(Vec<Process>);

struct Process {
    /// As whom it is spoken of: `node.west: zebra`.
    name: String,
    child: Child,
    log: PathBuf,
}

impl Processes {
    /// Adds one, which writes to a log.
    pub fn keep(&mut self, name: String, child: Child, log: PathBuf) {
        self.0.push(Process { name, child, log });
    }

    /// Ends a process.
    pub fn end(&mut self, name: &str) {
        drop(Processes(self.0.extract_if(.., |process| process.name == name).collect()));
    }

    /// Who of them has ended by itself, and what it said last.
    pub fn ended(&mut self) -> Vec<String> {
        let ended = self.0.iter_mut().filter_map(|process| match process.child.try_wait() {
            Ok(Some(_)) => Some(format!("{} has ended: {}", process.name, last_words(&process.log))),
            _ => None,
        });
        ended.collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // All at once, then each is buried. What they started goes with them.
        for process in &mut self.0 {
            let _ = process.child.kill();
        }
        for process in &mut self.0 {
            let _ = process.child.wait();
        }
    }
}

/// Has a command write what it says to a log; returns where that is.
pub fn log_to(path: PathBuf, command: &mut Command) -> Result<PathBuf, Obstacle> {
    let cannot = |error: io::Error| Obstacle::broken(format!("{}: {error}", path.display()));
    let file = File::create(&path).map_err(cannot)?;
    command.stdin(Stdio::null()).stdout(file.try_clone().map_err(cannot)?).stderr(file);
    Ok(path)
}

/// The last line of a log.
pub fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or("it said nothing").trim().to_owned()
}
