//! Private folder for the sockets and spools of a run, removed at its end. The folder of a killed run is removed by the
//! next run.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "netstage-";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Private folder of a run.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Creates a folder that only this user can read.
    pub fn new() -> io::Result<RunFolder> {
        // A socket's path has at most 107 bytes, so the folder is not below the record.
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(RunFolder { path })
    }

    /// Returns the path of the socket of a node's agent.
    pub fn socket(&self, node: usize) -> PathBuf {
        self.path.join(format!("{node}.sock"))
    }

    /// Returns the path of the spool of a node's agent.
    pub fn spool(&self, node: usize) -> PathBuf {
        self.path.join(format!("{node}.spool"))
    }

    /// Returns the path of the control socket of a node's provider edge router.
    pub fn control(&self, node: usize) -> PathBuf {
        self.path.join(format!("{node}.pe"))
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the log of a node's agent.
    pub fn log(&self, node: usize) -> PathBuf {
        self.path.join(format!("{node}.log"))
    }

    /// Returns the last line of the log of a node's agent, if any.
    pub fn last_log_line(&self, node: usize) -> Option<String> {
        let log = fs::read_to_string(self.log(node)).ok()?;
        log.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes folders of this user whose process no longer exists.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
        let Some((process, _)) = process else { continue };
        let Ok(process) = process.parse::<u32>() else { continue };
        let is_gone = !Path::new("/proc").join(process.to_string()).exists();
        let is_own = entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == nix::unistd::geteuid().as_raw());
        if is_gone && is_own {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
