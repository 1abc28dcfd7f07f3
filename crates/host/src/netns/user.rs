//! Privileges: root's own, or those a process has inside a user namespace it makes.
//!
//! In a user namespace (user_namespaces(7)) a process without any privilege is root over
//! the network namespaces it makes there, and over nothing else: veth, routes and AF_PACKET
//! work, BPF does not.

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Uid, fork};
use std::{fmt, fs, io};

/// What this process may do with network namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// It has CAP_SYS_ADMIN and CAP_NET_ADMIN: as root, or within a user namespace.
    Held,
    /// Not yet: [`become_privileged`] will succeed.
    UserNamespace,
    /// Neither, and why.
    Neither(Forbidden),
}

/// Why no user namespace with network privileges can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    /// What the kernel refused, and with which error.
    pub refused: String,
    /// Settings of this machine that explain it, each with what would allow it.
    pub grants: Vec<String>,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network namespaces are not allowed here: {}. Run as root, or allow it: ", self.refused)?;
        f.write_str(&self.grants.join("; or "))
    }
}

impl std::error::Error for Forbidden {}

/// What this process may do, found by trying in a child that ends at once.
pub fn privileges() -> Privileges {
    if holds_capabilities() {
        return Privileges::Held;
    }
    let (user, group) = (Uid::effective(), Gid::effective());
    let maps = Maps::of(user, group);
    // SAFETY: the child makes system calls only and ends by `_exit`; the texts it writes
    // were made before the fork, since it may not allocate where threads run.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            let code = match enter_user_namespace(&maps).and_then(|()| try_network()) {
                Ok(()) => 0,
                Err((step, errno)) => i32::min(errno as i32, 63) | ((step as i32) << 6),
            };
            // SAFETY: ends the child without running what the parent registered for its end.
            unsafe { libc::_exit(code) }
        }
        Ok(ForkResult::Parent { child }) => match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, 0)) => Privileges::UserNamespace,
            Ok(WaitStatus::Exited(_, code)) => {
                let step = [Step::Namespace, Step::Maps, Step::Network][(code as usize >> 6).min(2)];
                Privileges::Neither(forbidden(step, Errno::from_raw(code & 63)))
            }
            _ => Privileges::Neither(forbidden(Step::Namespace, Errno::EPERM)),
        },
        Err(errno) => Privileges::Neither(forbidden(Step::Namespace, errno)),
    }
}

/// Makes this process privileged over network namespaces of its own: does nothing where it
/// already is, else moves it into a new user namespace in which it is root.
///
/// Call it before any thread starts: the kernel moves only processes of one thread. After
/// an error the process may be left in a user namespace without privileges, fit to report.
pub fn become_privileged() -> Result<(), Forbidden> {
    if holds_capabilities() {
        return Ok(());
    }
    let maps = Maps::of(Uid::effective(), Gid::effective());
    enter_user_namespace(&maps).map_err(|(step, errno)| forbidden(step, errno))?;
    // A security module may grant the user namespace but not the capabilities in it. The
    // thread takes its network namespace with it.
    let tried = std::thread::scope(|scope| scope.spawn(try_network).join());
    tried.expect("no panic in a system call").map_err(|(step, errno)| forbidden(step, errno))
}

/// Steps on the way to network privileges, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Namespace,
    Maps,
    Network,
}

/// The texts that map the caller to root in a user namespace (user_namespaces(7)).
struct Maps {
    user: String,
    group: String,
}

impl Maps {
    fn of(user: Uid, group: Gid) -> Maps {
        Maps { user: format!("0 {user} 1"), group: format!("0 {group} 1") }
    }
}

/// System calls only: runs between fork and exit.
fn enter_user_namespace(maps: &Maps) -> Result<(), (Step, Errno)> {
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| (Step::Namespace, errno))?;
    let write =
        |path: &str, text: &str| fs::write(path, text).map_err(|error| (Step::Maps, errno_of(&error)));
    // Without "deny" an unprivileged process may not write its group map.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &maps.user)?;
    write("/proc/self/gid_map", &maps.group)
}

fn try_network() -> Result<(), (Step, Errno)> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| (Step::Network, errno))
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Whether CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN are effective (capabilities(7)).
fn holds_capabilities() -> bool {
    const NEEDED: u64 = 1 << 12 | 1 << 13 | 1 << 21;
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask & NEEDED == NEEDED)
}

fn forbidden(step: Step, errno: Errno) -> Forbidden {
    let what = match step {
        Step::Namespace => "a user namespace was refused",
        Step::Maps => "mapping the user was refused",
        Step::Network => "a network namespace within a user namespace was refused",
    };
    let off = |name: &str, forbidding: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        fs::read_to_string(path).is_ok_and(|value| value.trim() == forbidding)
    };
    let mut grants = Vec::new();
    if off("kernel.unprivileged_userns_clone", "0") {
        grants.push("sysctl kernel.unprivileged_userns_clone=1".to_string());
    }
    for name in ["user.max_user_namespaces", "user.max_net_namespaces"] {
        if off(name, "0") || errno == Errno::ENOSPC {
            grants.push(format!("sysctl {name}=1000 (or more)"));
        }
    }
    if off("kernel.apparmor_restrict_unprivileged_userns", "1") {
        grants.push("sysctl kernel.apparmor_restrict_unprivileged_userns=0".to_string());
    }
    if grants.is_empty() {
        let hint = "a container needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW, or a seccomp profile that permits unshare";
        grants.push(hint.to_string());
    }
    Forbidden { refused: format!("{what} ({})", errno.desc()), grants }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_to_grant() {
        let text = forbidden(Step::Namespace, Errno::ENOSPC).to_string();
        assert!(text.contains("user.max_user_namespaces") && text.contains("root"), "{text}");
        let text = forbidden(Step::Network, Errno::EPERM).to_string();
        assert!(text.contains("network namespace within a user namespace"), "{text}");
    }
}
