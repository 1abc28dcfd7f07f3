//! Folders that go when their test does, and waiting.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A folder that goes when the test does.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// An empty one; no two tests of a binary may use the same name.
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("netstage-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until it holds, at most this long.
pub fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !holds() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}
