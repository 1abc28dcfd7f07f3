//! Where an agent's programs of services have their files: a folder that goes with the run. What a killed agent
//! left there goes when the next one begins, or by `netstage clean`.

use netstage_host::lock::Lock;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Name of the folder in that of the agent.
const NAME: &str = "services";
/// Tells that an agent has it.
const LOCK: &str = "lock";

/// The folder, for one agent at a time.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    _lock: Lock,
}

impl Scratch {
    /// That of the agent whose state is in this folder. What an agent before left in it, goes.
    pub fn open(state: &Path) -> io::Result<Scratch> {
        let folder = state.join(NAME);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let lock = Lock::take(&folder.join(LOCK))?;
        let scratch = Scratch { folder, _lock: lock };
        scratch.clear()?;
        Ok(scratch)
    }

    /// Removes the folder of an agent that is gone; whether there was anything in it.
    pub fn clean(state: &Path) -> io::Result<bool> {
        if !state.join(NAME).exists() {
            return Ok(false);
        }
        match Scratch::left(state) {
            Ok(was_left) => {
                fs::remove_dir_all(state.join(NAME))?;
                Ok(was_left)
            }
            // An agent that is there has it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn left(state: &Path) -> io::Result<bool> {
        let was_left = fs::read_dir(state.join(NAME))?.flatten().any(|entry| entry.file_name() != LOCK);
        Scratch::open(state).map(|_| was_left)
    }

    /// An empty folder.
    pub fn folder(&self, name: &str) -> io::Result<Folder> {
        let folder = Folder(self.folder.join(name));
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

/// A folder that goes with this value.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_goes_unless_an_agent_has_it() {
        let state = netstage_harness::Folder::new("scratch");
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
