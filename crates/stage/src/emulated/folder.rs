//! A private folder for a run's sockets and spools, removed with the run. What a killed run
//! left behind is removed by the next one.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "netstage-";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes one, readable by this user alone.
    pub fn new() -> io::Result<Folder> {
        // A socket's path has at most 107 bytes, so the folder is not below the record.
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder { path })
    }

    /// Where the agent of a node listens.
    pub fn socket(&self, node: usize) -> PathBuf {
        self.path.join(format!("{node}.sock"))
    }

    /// Where the agent of a node spools.
    pub fn spool(&self, node: usize) -> PathBuf {
        self.path.join(format!("{node}.spool"))
    }

    /// Where the provider edge router of a node listens.
    pub fn control(&self, node: usize) -> PathBuf {
        self.path.join(format!("{node}.pe"))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the agent of a node says what went wrong.
    pub fn log(&self, node: usize) -> PathBuf {
        self.path.join(format!("{node}.log"))
    }

    /// The last thing the agent of a node said, if anything.
    pub fn last_words(&self, node: usize) -> Option<String> {
        let log = fs::read_to_string(self.log(node)).ok()?;
        log.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes our own folders whose process is gone.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
        let Some((process, _)) = process else { continue };
        let Ok(process) = process.parse::<u32>() else { continue };
        let gone = !Path::new("/proc").join(process.to_string()).exists();
        let own = entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == nix::unistd::geteuid().as_raw());
        if gone && own {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
