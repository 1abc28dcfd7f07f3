//! A daemon's socket in the file system: made for this user only, never taken from another
//! that lives, and removed at the end.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Longest path a Unix socket may have, bytes (`sun_path` and its final zero).
const LONGEST_PATH: usize = 107;

/// Why there is no socket to listen on.
#[derive(Debug, PartialEq, Eq)]
pub enum BindError {
    /// Somebody listens there.
    InUse(PathBuf),
    /// Something is there that is no socket.
    NotASocket(PathBuf),
    /// The system refuses.
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BindError::InUse(path) => {
                write!(f, "{}: somebody listens there; choose another socket", path.display())
            }
            BindError::NotASocket(path) => {
                write!(f, "{}: exists and is no socket; choose another path", path.display())
            }
            BindError::Socket { path, reason } => write!(f, "cannot listen on {}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for BindError {}

/// A listening socket, removed when dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    listener: Option<UnixListener>,
}

impl Socket {
    /// Makes the socket. One that a killed agent left is replaced.
    pub fn bind(path: &Path) -> Result<Socket, BindError> {
        let refused = |reason: String| BindError::Socket { path: path.to_owned(), reason };
        if path.as_os_str().len() > LONGEST_PATH {
            return Err(refused(format!("its path is longer than {LONGEST_PATH} bytes")));
        }
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path)?;
                UnixListener::bind(path)
            }
            other => other,
        };
        let listener = listener.map_err(|error| refused(error.to_string()))?;
        let socket = Socket { path: path.to_owned(), listener: Some(listener) };
        fs::set_permissions(path, Permissions::from_mode(0o600))
            .map_err(|error| refused(error.to_string()))?;
        Ok(socket)
    }

    /// The listener, for the runtime that is entered; can be taken once.
    pub fn listener(&mut self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.std_listener()?)
    }

    /// The listener, which does not block; can be taken once.
    pub fn std_listener(&mut self) -> io::Result<UnixListener> {
        let listener = self.listener.take().expect("taken once");
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    let refused = |error: io::Error| BindError::Socket { path: path.to_owned(), reason: error.to_string() };
    if !fs::symlink_metadata(path).map_err(refused)?.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(refused)
        }
        Err(error) => Err(refused(error)),
        Ok(_) => Err(BindError::InUse(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("netstage-socket-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_socket_in_use_is_not_taken_and_one_left_behind_is() {
        let path = path("stale");
        let first = Socket::bind(&path).unwrap();
        assert_eq!(Socket::bind(&path).unwrap_err(), BindError::InUse(path.clone()));
        drop(first);
        assert!(!path.exists());

        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind, as a killed agent leaves it");
        drop(Socket::bind(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_socket_stays() {
        let path = path("file");
        fs::write(&path, "precious").unwrap();
        assert_eq!(Socket::bind(&path).unwrap_err(), BindError::NotASocket(path.clone()));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_path_too_long_is_told() {
        let error = Socket::bind(&path(&"x".repeat(200))).unwrap_err();
        assert!(error.to_string().contains("longer than 107 bytes"), "{error}");
    }
}
