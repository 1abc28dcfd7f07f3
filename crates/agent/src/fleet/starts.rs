//! Starts of a controller, in the fleet's folder, and the changes of the folder since each of them. An agent that remembers
//! the last ones of its controller recognizes a folder in which they are missing: a copy, or an old backup.
//!
//! A change is a run, a token that was created or used, or an agent that joined, was removed or renewed its certificate. It
//! is written before the agents learn of it.

use super::private;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Prefix of the name that a restoration from a backup adds to those of the starts.
pub const RESTORED: &str = "restored-";
/// Maximum number of starts that are remembered.
const MAX_STARTS: usize = 1000;
/// Name of the file.
pub const FILE: &str = "starts.json";

/// Start of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredStart")]
pub struct ControllerStart {
    /// Random name.
    pub name: String,
    /// Number of changes until the next start.
    pub changes: u64,
}

/// Entry of the file; earlier versions wrote only the name.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredStart {
    Name(String),
    Counted { name: String, changes: u64 },
}

impl From<StoredStart> for ControllerStart {
    fn from(stored: StoredStart) -> ControllerStart {
        match stored {
            StoredStart::Name(name) => ControllerStart { name, changes: 0 },
            StoredStart::Counted { name, changes } => ControllerStart { name, changes },
        }
    }
}

/// Adds a random name with a prefix to those of the last starts, and returns them.
pub fn add(folder: &Path, prefix: &str) -> io::Result<Vec<ControllerStart>> {
    let path = folder.join(FILE);
    let mut starts = read(&path)?;
    let mut name = [0; 8];
    let random = SystemRandom::new().fill(&mut name);
    random.map_err(|_| io::Error::other("no random numbers"))?;
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    starts.push(ControllerStart { name: format!("{prefix}{name}"), changes: 0 });
    starts.drain(..starts.len().saturating_sub(MAX_STARTS));
    write(&path, &starts)?;
    Ok(starts)
}

/// Writes the file and syncs its folder: after a power failure, no start or change is missing that an agent knows.
fn write(path: &Path, starts: &[ControllerStart]) -> io::Result<()> {
    private::write_json(path, &starts)?;
    File::open(path.parent().expect("the file is in a folder"))?.sync_all()
}

fn read(path: &Path) -> io::Result<Vec<ControllerStart>> {
    match private::read_json(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

/// Counts the changes of the folder since the start of this controller.
pub struct ChangeCounter {
    path: PathBuf,
    /// Folders whose time of modification is that of the last change.
    watched: Vec<PathBuf>,
    changed_at: Vec<Option<SystemTime>>,
    own: ControllerStart,
}

impl ChangeCounter {
    /// Begins to count at the last one of these starts.
    pub fn new(folder: &Path, watched: &[&str], starts: &[ControllerStart]) -> ChangeCounter {
        let own = starts.last().cloned().unwrap_or_default();
        let watched: Vec<PathBuf> = watched.iter().map(|name| folder.join(name)).collect();
        let changed_at = modified_at(&watched);
        ChangeCounter { path: folder.join(FILE), watched, changed_at, own }
    }

    /// Counts a change since the last call, if there was one, and returns the starts in the folder. If the folder has been
    /// replaced, it is returned as it is, so that agents refuse it.
    pub fn follow(&mut self) -> io::Result<Vec<ControllerStart>> {
        let mut starts = read(&self.path)?;
        let changed_at = modified_at(&self.watched);
        if changed_at != self.changed_at
            && let Some(own) = starts.iter_mut().find(|start| **start == self.own)
        {
            own.changes += 1;
            let counted = own.clone();
            write(&self.path, &starts)?;
            (self.own, self.changed_at) = (counted, changed_at);
        }
        Ok(starts)
    }
}

fn modified_at(folders: &[PathBuf]) -> Vec<Option<SystemTime>> {
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    folders.iter().map(modified).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_until_the_folder_is_replaced() {
        let folder = netstage_harness::TemporaryFolder::new("starts");
        fs::create_dir(folder.join("agents")).unwrap();
        fs::write(folder.join(FILE), "[\"a1\"]").unwrap();
        let starts = add(&folder, "").unwrap();
        assert_eq!((starts.len(), starts[0].name.as_str()), (2, "a1"));
        let mut counter = ChangeCounter::new(&folder, &["agents"], &starts);
        assert_eq!(counter.follow().unwrap(), starts);
        let backup = fs::read(folder.join(FILE)).unwrap();
        for changes in 1..4 {
            fs::write(folder.join(format!("agents/{changes}")), "").unwrap();
            assert_eq!(counter.follow().unwrap()[1].changes, changes);
            assert_eq!(counter.follow().unwrap()[1].changes, changes);
        }
        fs::write(folder.join(FILE), &backup).unwrap();
        fs::write(folder.join("agents/new"), "").unwrap();
        assert_eq!(counter.follow().unwrap(), starts);
        let restored = add(&folder, RESTORED).unwrap();
        assert!(restored[2].name.starts_with(RESTORED));
        assert_eq!(counter.follow().unwrap(), restored);
    }
}
