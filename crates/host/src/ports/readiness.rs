//! Readiness of a port in an asynchronous task.

use super::FramePort;
use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a port with the current runtime, which wakes a task when frames arrive.
pub fn register(port: &impl FramePort) -> io::Result<AsyncFd<OwnedFd>> {
    let descriptor = port.fd().ok_or(io::ErrorKind::Unsupported)?.try_clone_to_owned()?;
    // SAFETY: the registration owns a valid descriptor, which is neither replaced nor closed while registered.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}
