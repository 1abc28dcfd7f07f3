//! Privileges: those of root, or those of a process in its own user namespace.
//!
//! An unprivileged process is root in its own user namespace (user_namespaces(7)) over the network namespaces
//! it creates there, and over nothing else: veth, routes and AF_PACKET work, BPF does not.

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Uid, fork};
use std::{fmt, fs, io};

/// Privileges of this process over network namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// CAP_SYS_ADMIN and CAP_NET_ADMIN are held, as root or within a user namespace.
    Held,
    /// Not yet held, but [`become_privileged`] will succeed.
    UserNamespace,
    /// Neither held nor available, with the reason.
    Unavailable(PrivilegesUnavailable),
}

/// Error of a system that grants no user namespace with network privileges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivilegesUnavailable {
    /// Operation rejected by the kernel, with its error.
    pub failed_operation: String,
    /// Settings of this machine that cause the rejection, each with the value that would permit it.
    pub remedies: Vec<String>,
}

impl fmt::Display for PrivilegesUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "network namespaces are not permitted: {}; run as root, or permit them: ",
            self.failed_operation
        )?;
        f.write_str(&self.remedies.join("; or "))
    }
}

impl std::error::Error for PrivilegesUnavailable {}

/// Determines the privileges of this process by trying in a short-lived child.
pub fn privileges() -> Privileges {
    if holds_capabilities() {
        return Privileges::Held;
    }
    let (user, group) = (Uid::effective(), Gid::effective());
    let maps = IdMaps::of(user, group);
    // SAFETY: the child makes only system calls and ends by `_exit`; its texts are created before the fork,
    // because it may not allocate if other threads run.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            let code = match enter_user_namespace(&maps).and_then(|()| try_network()) {
                Ok(()) => 0,
                Err((step, errno)) => i32::min(errno as i32, 63) | ((step as i32) << 6),
            };
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        Ok(ForkResult::Parent { child }) => match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, 0)) => Privileges::UserNamespace,
            Ok(WaitStatus::Exited(_, code)) => {
                let step = [PrivilegeStep::Namespace, PrivilegeStep::Maps, PrivilegeStep::Network]
                    [(code as usize >> 6).min(2)];
                Privileges::Unavailable(forbidden(step, Errno::from_raw(code & 63)))
            }
            _ => Privileges::Unavailable(forbidden(PrivilegeStep::Namespace, Errno::EPERM)),
        },
        Err(errno) => Privileges::Unavailable(forbidden(PrivilegeStep::Namespace, errno)),
    }
}

/// Makes this process privileged over its own network namespaces: does nothing if it already is, otherwise
/// moves it into a new user namespace in which it is root.
///
/// Call it before any thread starts: the kernel moves only single-threaded processes. After an error the
/// process may be left in a user namespace without privileges, fit only to report the error.
pub fn become_privileged() -> Result<(), PrivilegesUnavailable> {
    if holds_capabilities() {
        return Ok(());
    }
    let maps = IdMaps::of(Uid::effective(), Gid::effective());
    enter_user_namespace(&maps).map_err(|(step, errno)| forbidden(step, errno))?;
    // A security module may grant the user namespace but not the capabilities in it. The network namespace is
    // released with the thread.
    let tried = std::thread::scope(|scope| scope.spawn(try_network).join());
    tried.expect("a system call does not panic").map_err(|(step, errno)| forbidden(step, errno))
}

/// Steps to network privileges, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrivilegeStep {
    Namespace,
    Maps,
    Network,
}

/// Mapping of the caller to root in a user namespace (user_namespaces(7)).
struct IdMaps {
    user: String,
    group: String,
}

impl IdMaps {
    fn of(user: Uid, group: Gid) -> IdMaps {
        IdMaps { user: format!("0 {user} 1"), group: format!("0 {group} 1") }
    }
}

/// Makes only system calls: runs between fork and exit.
fn enter_user_namespace(maps: &IdMaps) -> Result<(), (PrivilegeStep, Errno)> {
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| (PrivilegeStep::Namespace, errno))?;
    let write = |path: &str, text: &str| {
        fs::write(path, text).map_err(|error| (PrivilegeStep::Maps, errno_of(&error)))
    };
    // Without "deny" an unprivileged process may not write its group map.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &maps.user)?;
    write("/proc/self/gid_map", &maps.group)
}

fn try_network() -> Result<(), (PrivilegeStep, Errno)> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| (PrivilegeStep::Network, errno))
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Returns whether CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN are effective (capabilities(7)).
fn holds_capabilities() -> bool {
    const NEEDED: u64 = 1 << 12 | 1 << 13 | 1 << 21;
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask & NEEDED == NEEDED)
}

fn forbidden(step: PrivilegeStep, errno: Errno) -> PrivilegesUnavailable {
    let operation = match step {
        PrivilegeStep::Namespace => "creating a user namespace failed",
        PrivilegeStep::Maps => "mapping the user failed",
        PrivilegeStep::Network => "creating a network namespace within a user namespace failed",
    };
    let is_set_to = |name: &str, forbidding: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        fs::read_to_string(path).is_ok_and(|value| value.trim() == forbidding)
    };
    let mut grants = Vec::new();
    if is_set_to("kernel.unprivileged_userns_clone", "0") {
        grants.push("sysctl kernel.unprivileged_userns_clone=1".to_string());
    }
    for name in ["user.max_user_namespaces", "user.max_net_namespaces"] {
        if is_set_to(name, "0") || errno == Errno::ENOSPC {
            grants.push(format!("sysctl {name}=1000 (or more)"));
        }
    }
    if is_set_to("kernel.apparmor_restrict_unprivileged_userns", "1") {
        grants.push("sysctl kernel.apparmor_restrict_unprivileged_userns=0".to_string());
    }
    if grants.is_empty() {
        let hint = "a container needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW, or a seccomp profile that permits unshare";
        grants.push(hint.to_string());
    }
    PrivilegesUnavailable { failed_operation: format!("{operation} ({})", errno.desc()), remedies: grants }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_settings_to_change() {
        let text = forbidden(PrivilegeStep::Namespace, Errno::ENOSPC).to_string();
        assert!(text.contains("user.max_user_namespaces") && text.contains("root"), "{text}");
        let text = forbidden(PrivilegeStep::Network, Errno::EPERM).to_string();
        assert!(text.contains("network namespace within a user namespace"), "{text}");
    }
}
