//! Anonymous network namespaces: made without a name, held by file descriptors, gone when
//! the last descriptor and the last process inside are gone. Nothing is written to
//! `/run/netns`, and nothing outside the namespaces made here is ever changed.
//!
//! - [`user`]: doing all this without being root.
//! - [`netlink`]: links, addresses, neighbours and routes (rtnetlink).
//! - [`addresses`], [`routes`]: of links and ways; [`qdiscs`]: queueing disciplines of links.
//! - [`multicast`]: which packets to groups a namespace forwards.
//! - [`hold`]: other people's programs, which may start further ones; [`custody`]: the same without privilege.
//! - [`settings`]: settings changed for a while.
//! - [`lookup`]: routes and neighbours the kernel has found.
//! - [`feed`]: all the kernel knows of routes and neighbours, and what changes.
//! - [`ethtool`]: switching offloads off, so that what is seen is what is sent.
//!
//! Which namespaces, addresses and routes a scenario needs is decided elsewhere.
#![allow(unsafe_code)]

mod addresses;
pub mod custody;
pub mod ethtool;
pub mod feed;
pub mod hold;
pub mod lookup;
pub mod multicast;
pub mod netlink;
pub mod qdiscs;
pub mod routes;
pub mod settings;
mod spawn;
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

/// A network namespace. It lives as long as this value, a clone of it, or a process in it.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// Makes an empty one: a loopback interface that is down, and nothing else.
    /// Needs CAP_SYS_ADMIN, see [`user`].
    pub fn new() -> io::Result<Namespace> {
        inside_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Namespace::of_this_thread()
        })?
    }

    /// The one the calling thread is in.
    pub fn of_this_thread() -> io::Result<Namespace> {
        Ok(Namespace { fd: File::open("/proc/thread-self/ns/net")?.into() })
    }

    /// The one that is at a path, as below /run/netns.
    pub fn at(path: &Path) -> io::Result<Namespace> {
        Ok(Namespace { fd: File::open(path)?.into() })
    }

    /// The one a process is in.
    pub fn of_process(process: u32) -> io::Result<Namespace> {
        Ok(Namespace { fd: File::open(format!("/proc/{process}/ns/net"))?.into() })
    }

    /// Its number: no other has the same while it lives.
    pub fn number(&self) -> io::Result<u64> {
        Ok(fstat(&self.fd)?.st_ino)
    }

    /// Another handle of the same namespace.
    pub fn try_clone(&self) -> io::Result<Namespace> {
        Ok(Namespace { fd: self.fd.try_clone()? })
    }

    /// Runs `task` in a thread that is inside, which needs CAP_SYS_ADMIN unless the caller is. Sockets opened there stay inside, wherever
    /// they are used later. A panic of `task` goes on in the caller.
    pub fn run<T: Send>(&self, task: impl FnOnce() -> T + Send) -> io::Result<T> {
        inside_a_thread(|| {
            // To be where one is needs no privilege.
            if Namespace::of_this_thread()?.number()? != self.number()? {
                setns(&self.fd, CloneFlags::CLONE_NEWNET)?;
            }
            Ok(task())
        })?
    }

    /// Sets a kernel parameter of this namespace, written as `sysctl` writes it:
    /// `net.ipv4.ip_forward`. A `/` stands for itself, so an interface whose name has
    /// a dot is reached by `net/ipv4/conf/eth0.5/forwarding`.
    pub fn sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        let path = sysctl_path(name)?;
        let written = self.run(|| std::fs::write(&path, value))?;
        written.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot set {name} to {value} ({path}): {error}"))
        })
    }

    /// Reads a kernel parameter of this namespace, without the newline at its end.
    pub fn sysctl_value(&self, name: &str) -> io::Result<String> {
        let path = sysctl_path(name)?;
        let read = self.run(|| std::fs::read_to_string(&path))?;
        match read {
            Ok(text) => Ok(text.trim_end().to_string()),
            Err(error) => Err(io::Error::new(error.kind(), format!("cannot read {name} ({path}): {error}"))),
        }
    }

    /// Brings the loopback interface up.
    pub fn loopback_up(&self) -> Result<(), netlink::Error> {
        Netlink::open(self)?.set_up("lo")
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs `task` in a thread of its own, which ends with it: the namespace of the caller
/// never changes.
fn inside_a_thread<T: Send>(task: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, task)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Only what belongs to a network namespace may be written: all else is the machine's.
fn sysctl_path(name: &str) -> io::Result<String> {
    let relative = if name.contains('/') { name.to_string() } else { name.replace('.', "/") };
    let plain = Path::new(&relative).components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || !relative.starts_with("net/") {
        let message = format!("{name} is no parameter of a network namespace: expected net.…");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(format!("/proc/sys/{relative}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_the_machine_are_refused() {
        assert_eq!(sysctl_path("net.ipv4.ip_forward").unwrap(), "/proc/sys/net/ipv4/ip_forward");
        assert_eq!(sysctl_path("net/ipv4/conf/a.1/mtu").unwrap(), "/proc/sys/net/ipv4/conf/a.1/mtu");
        for name in ["kernel.panic", "net/../kernel/panic", "/net/ipv4/ip_forward", "vm.swappiness", ""] {
            assert_eq!(sysctl_path(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }
}
