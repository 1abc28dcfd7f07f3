//! Files that one process has at a time, until it ends, however it ends.

use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io;
use std::path::Path;

/// A file that nobody else has as long as this lives.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock goes with the file")] Flock<File>);

impl Lock {
    /// Takes it, making it where there is none; `WouldBlock` where another process has it.
    pub fn take(path: &Path) -> io::Result<Lock> {
        // Whom the file belongs to is all the same: to lock it, it need not be written.
        let file = File::open(path).or_else(|_| File::create(path))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map(Lock).map_err(|(_, errno)| errno.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_at_a_time() {
        let path = std::env::temp_dir().join(format!("netstage-lock-{}", std::process::id()));
        let lock = Lock::take(&path).unwrap();
        assert_eq!(Lock::take(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        Lock::take(&path).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
