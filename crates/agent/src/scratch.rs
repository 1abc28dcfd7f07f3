//! Folder for the files of service programs, removed after each run. Files left by a killed agent are removed
//! when the next agent starts, or by `netstage clean`.

use netstage_host::lock::Lock;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Name of the folder inside the agent's state folder.
const NAME: &str = "services";
/// File locked by the agent that uses the folder.
const LOCK: &str = "lock";

/// Scratch folder, used by one agent at a time.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    _lock: Lock,
}

impl Scratch {
    /// Opens the scratch folder inside an agent's state folder, and removes the files an earlier agent left
    /// in it.
    pub fn open(state: &Path) -> io::Result<Scratch> {
        let folder = state.join(NAME);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let lock = Lock::take(&folder.join(LOCK))?;
        let scratch = Scratch { folder, _lock: lock };
        scratch.clear()?;
        Ok(scratch)
    }

    /// Removes the scratch folder of an agent that is gone. Returns whether it contained anything.
    pub fn clean(state: &Path) -> io::Result<bool> {
        if !state.join(NAME).exists() {
            return Ok(false);
        }
        match Scratch::clear_leftovers(state) {
            Ok(had_leftovers) => {
                fs::remove_dir_all(state.join(NAME))?;
                Ok(had_leftovers)
            }
            // A running agent uses the folder.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn clear_leftovers(state: &Path) -> io::Result<bool> {
        let had_leftovers = fs::read_dir(state.join(NAME))?.flatten().any(|entry| entry.file_name() != LOCK);
        Scratch::open(state).map(|_| had_leftovers)
    }

    /// Creates an empty folder.
    pub fn folder(&self, name: &str) -> io::Result<ScratchFolder> {
        let folder = ScratchFolder(self.folder.join(name));
        DirBuilder::new().mode(0o700).create(&folder.0)?;
        Ok(folder)
    }

    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)?.flatten() {
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Folder that is removed on drop.
#[derive(Debug)]
pub struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_files_are_removed_unless_an_agent_uses_the_folder() {
        let state = netstage_harness::TemporaryFolder::new("scratch");
        assert!(!Scratch::clean(&state).unwrap());
        let scratch = Scratch::open(&state).unwrap();
        std::mem::forget(scratch.folder("7").unwrap());
        assert!(Scratch::open(&state).is_err() && !Scratch::clean(&state).unwrap());
        assert!(state.join("services/7").exists());
        drop(scratch);
        assert!(Scratch::clean(&state).unwrap() && !state.join("services").exists());
        let scratch = Scratch::open(&state).unwrap();
        std::mem::forget(scratch.folder("8").unwrap());
        drop(scratch);
        let scratch = Scratch::open(&state).unwrap();
        assert!(!state.join("services/8").exists());
        let folder = scratch.folder("9").unwrap();
        assert!(folder.path().exists());
        drop(folder);
        assert!(!state.join("services/9").exists());
    }
}
