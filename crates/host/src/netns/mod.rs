//! Anonymous network namespaces: created without a name, held by file descriptors, gone when the last
//! descriptor and the last process inside are gone. Nothing is written to `/run/netns`, and nothing outside the
//! namespaces created here changes.
//!
//! - [`user`]: privileges without root.
//! - [`netlink`]: links, addresses, neighbors and routes (rtnetlink).
//! - [`addresses`], [`routes`]: their addition and removal; [`qdiscs`]: queueing disciplines of links.
//! - [`multicast`]: multicast forwarding.
//! - [`process_namespace`]: external programs and their descendants; [`supervision`]: the same without privileges.
//! - [`settings`]: temporary changes of settings.
//! - [`lookup`]: lookup of routes and neighbors.
//! - [`route_monitor`]: all routes and neighbors, and their changes.
//! - [`ethtool`]: control of offloads, so that observed frames are those a wire would carry.
//!
//! The namespaces, addresses and routes of a scenario are chosen elsewhere.
#![allow(unsafe_code)]

mod addresses;
pub mod ethtool;
pub mod lookup;
pub mod multicast;
pub mod netlink;
pub mod process_namespace;
pub mod qdiscs;
pub mod route_monitor;
pub mod routes;
mod rules;
pub mod settings;
mod spawn;
pub mod supervision;
pub mod user;

pub use netlink::Netlink;
pub use spawn::spawn_in;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::fstat;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};
use std::thread;

/// Network namespace. It exists as long as this value, a clone of it, or a process in it.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// Creates a namespace with a loopback interface that is down. Needs CAP_SYS_ADMIN, see [`user`].
    pub fn new() -> io::Result<Namespace> {
        in_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Namespace::of_this_thread()
        })?
    }

    /// Opens the namespace of the calling thread.
    pub fn of_this_thread() -> io::Result<Namespace> {
        Ok(Namespace { fd: File::open("/proc/thread-self/ns/net")?.into() })
    }

    /// Opens the namespace at a path, for example below /run/netns.
    pub fn at(path: &Path) -> io::Result<Namespace> {
        Ok(Namespace { fd: File::open(path)?.into() })
    }

    /// Opens the namespace of a process.
    pub fn of_process(process: u32) -> io::Result<Namespace> {
        Ok(Namespace { fd: File::open(format!("/proc/{process}/ns/net"))?.into() })
    }

    /// Returns its number, which is unique as long as it exists.
    pub fn number(&self) -> io::Result<u64> {
        Ok(fstat(&self.fd)?.st_ino)
    }

    /// Returns another handle of the same namespace.
    pub fn try_clone(&self) -> io::Result<Namespace> {
        Ok(Namespace { fd: self.fd.try_clone()? })
    }

    /// Runs `task` in a thread inside the namespace, which needs CAP_SYS_ADMIN unless the caller is inside.
    /// Sockets opened there stay inside. A panic of `task` resumes in the caller.
    pub fn run<T: Send>(&self, task: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_thread(|| {
            // Entering the current namespace needs no privilege.
            if Namespace::of_this_thread()?.number()? != self.number()? {
                setns(&self.fd, CloneFlags::CLONE_NEWNET)?;
            }
            Ok(task())
        })?
    }

    /// Sets a kernel parameter of this namespace, in the notation of `sysctl`: `net.ipv4.ip_forward`. If the
    /// name contains a `/`, dots are literal, so that an interface `eth0.5` is reached by
    /// `net/ipv4/conf/eth0.5/forwarding`.
    pub fn sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        let path = sysctl_path(name)?;
        let written = self.run(|| std::fs::write(&path, value))?;
        written.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot set {name} to {value} ({path}): {error}"))
        })
    }

    /// Returns a kernel parameter of this namespace without the final newline.
    pub fn sysctl_value(&self, name: &str) -> io::Result<String> {
        let path = sysctl_path(name)?;
        let read = self.run(|| std::fs::read_to_string(&path))?;
        match read {
            Ok(text) => Ok(text.trim_end().to_string()),
            Err(error) => Err(io::Error::new(error.kind(), format!("cannot read {name} ({path}): {error}"))),
        }
    }

    /// Brings the loopback interface up.
    pub fn loopback_up(&self) -> Result<(), netlink::NetlinkError> {
        Netlink::open(self)?.set_up("lo")
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs `task` in a temporary thread, so that the caller's namespace never changes.
fn in_thread<T: Send>(task: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, task)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Returns the path of a parameter. Rejects parameters outside network namespaces, which belong to the machine.
fn sysctl_path(name: &str) -> io::Result<String> {
    let relative = if name.contains('/') { name.to_string() } else { name.replace('.', "/") };
    let is_plain = Path::new(&relative).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || !relative.starts_with("net/") {
        let message = format!("{name} is not a parameter of a network namespace: expected net.…");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(format!("/proc/sys/{relative}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_the_machine_are_rejected() {
        assert_eq!(sysctl_path("net.ipv4.ip_forward").unwrap(), "/proc/sys/net/ipv4/ip_forward");
        assert_eq!(sysctl_path("net/ipv4/conf/a.1/mtu").unwrap(), "/proc/sys/net/ipv4/conf/a.1/mtu");
        for name in ["kernel.panic", "net/../kernel/panic", "/net/ipv4/ip_forward", "vm.swappiness", ""] {
            assert_eq!(sysctl_path(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }
}
