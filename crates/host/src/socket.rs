//! Control socket of a daemon: accessible by this user only, never taken over from a running process, removed
//! at the end.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Maximum path length of a Unix socket in bytes (`sun_path` without its final zero).
const MAX_PATH: usize = 107;

/// Error of creating a control socket.
#[derive(Debug, PartialEq, Eq)]
pub enum BindError {
    /// Another process listens on the socket.
    InUse(PathBuf),
    /// The path exists and is not a socket.
    NotASocket(PathBuf),
    /// Error of the system.
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Error message.
        reason: String,
    },
}

impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BindError::InUse(path) => {
                write!(f, "{}: another process listens on this socket; choose another path", path.display())
            }
            BindError::NotASocket(path) => {
                write!(f, "{}: exists and is not a socket; choose another path", path.display())
            }
            BindError::Socket { path, reason } => write!(f, "cannot listen on {}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for BindError {}

/// Listening socket, removed on drop.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    listener: Option<UnixListener>,
}

impl ControlSocket {
    /// Creates the socket. A stale one of a killed process is replaced.
    pub fn bind(path: &Path) -> Result<ControlSocket, BindError> {
        let socket_error = |reason: String| BindError::Socket { path: path.to_owned(), reason };
        if path.as_os_str().len() > MAX_PATH {
            return Err(socket_error(format!("the path is longer than {MAX_PATH} bytes")));
        }
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path)?;
                UnixListener::bind(path)
            }
            other => other,
        };
        let listener = listener.map_err(|error| socket_error(error.to_string()))?;
        let socket = ControlSocket { path: path.to_owned(), listener: Some(listener) };
        fs::set_permissions(path, Permissions::from_mode(0o600))
            .map_err(|error| socket_error(error.to_string()))?;
        Ok(socket)
    }

    /// Takes the listener for the current runtime; call it once.
    pub fn listener(&mut self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.std_listener()?)
    }

    /// Takes the non-blocking listener; call it once.
    pub fn std_listener(&mut self) -> io::Result<UnixListener> {
        let listener = self.listener.take().expect("taken once");
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    let socket_error =
        |error: io::Error| BindError::Socket { path: path.to_owned(), reason: error.to_string() };
    if !fs::symlink_metadata(path).map_err(socket_error)?.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(socket_error)
        }
        Err(error) => Err(socket_error(error)),
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
    fn a_stale_socket_is_replaced_but_one_in_use_is_not() {
        let path = path("stale");
        let first = ControlSocket::bind(&path).unwrap();
        assert_eq!(ControlSocket::bind(&path).unwrap_err(), BindError::InUse(path.clone()));
        drop(first);
        assert!(!path.exists());

        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the socket is stale, as a killed agent leaves it");
        drop(ControlSocket::bind(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_kept() {
        let path = path("file");
        fs::write(&path, "precious").unwrap();
        assert_eq!(ControlSocket::bind(&path).unwrap_err(), BindError::NotASocket(path.clone()));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_path_that_is_too_long_is_reported() {
        let error = ControlSocket::bind(&path(&"x".repeat(200))).unwrap_err();
        assert!(error.to_string().contains("longer than 107 bytes"), "{error}");
    }
}
