//! Lock files, released when their process ends for any reason.

use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io;
use std::path::Path;

/// File locked by this process while this value exists.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock is released when the file is closed")] Flock<File>);

impl Lock {
    /// Locks the file, creating it if missing. Fails with `WouldBlock` if another process holds the lock.
    pub fn take(path: &Path) -> io::Result<Lock> {
        // Ownership of the file does not matter: locking needs no write access.
        let file = File::open(path).or_else(|_| File::create(path))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map(Lock).map_err(|(_, errno)| errno.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_holder() {
        let path = std::env::temp_dir().join(format!("netstage-lock-{}", std::process::id()));
        let lock = Lock::take(&path).unwrap();
        assert_eq!(Lock::take(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        Lock::take(&path).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
