//! Runs an external program on a host that is not ours: without privileges, with the fewest rights, and without
//! leaving processes behind.
//!
//! Process namespaces ([`super::process_namespace`]) need a privilege that an agent usually lacks. Instead, a supervisor
//! process of ours adopts all orphaned descendants of the program (PR_SET_CHILD_SUBREAPER), and kills them once
//! its standard input is closed, deliberately or by the death of the agent.
//!
//! ```text
//! agent ── `netstage held --here PROGRAM …` ── PROGRAM ── …
//! ```

use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{Pid, geteuid};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::lchown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::process_namespace::COMMAND;

/// Option of [`COMMAND`] that selects [`supervise`].
pub const UNPRIVILEGED_OPTION: &str = "here";

/// Unprivileged account for programs started by root.
const NOBODY: u32 = 65534;

/// Starts a program in a folder, which it owns; `netstage` is the path of this executable. The program and its descendants
/// end when the standard input of the returned process is closed, deliberately or because this process ended. Killing the
/// returned process would leave the program behind.
pub fn spawn_supervised(
    netstage: &Path,
    program: &Path,
    folder: &Path,
    configure: impl FnOnce(&mut Command),
) -> io::Result<Child> {
    let folder = std::path::absolute(folder)?;
    let mut command = Command::new(netstage);
    command
        .arg(COMMAND)
        .arg(format!("--{UNPRIVILEGED_OPTION}"))
        .arg(&folder)
        .arg(program)
        .current_dir(&folder);
    configure(&mut command);
    // An interrupt at the terminal is handled by the agent.
    command.stdin(Stdio::piped()).process_group(0).spawn()
}

/// Runs a program until it exits or standard input is closed; returns its exit code. The program becomes the
/// owner of a folder, which is for it alone. Its standard input is a duplicate of standard error.
pub fn supervise(program: &OsStr, arguments: &[OsString], folder: &Path) -> io::Result<u8> {
    prctl::set_child_subreaper(true)?;
    prctl::set_no_new_privs()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(io::stderr().as_fd().try_clone_to_owned()?);
    match geteuid().is_root() {
        true => {
            change_owner(folder)?;
            command.uid(NOBODY).gid(NOBODY);
        }
        false => drop_ambient_capabilities()?,
    }
    let child = command.spawn()?;
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        kill_children();
    });
    let program = Pid::from_raw(child.id() as i32);
    let code = loop {
        match wait()? {
            WaitStatus::Exited(process, code) if process == program => break code as u8,
            WaitStatus::Signaled(process, signal, _) if process == program => break 128 + signal as u8,
            _ => {}
        }
    };
    // Orphans of a killed child are ours by the time its exit is reported.
    kill_children();
    while wait().is_ok() {
        kill_children();
    }
    Ok(code)
}

/// Makes the unprivileged account the owner of the folder and its contents.
fn change_owner(folder: &Path) -> io::Result<()> {
    lchown(folder, Some(NOBODY), Some(NOBODY))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => change_owner(&entry.path())?,
            false => lchown(entry.path(), Some(NOBODY), Some(NOBODY))?,
        }
    }
    Ok(())
}

/// Drops ambient capabilities: programs do not need the agent's privileges.
fn drop_ambient_capabilities() -> io::Result<()> {
    // SAFETY: prctl(2) reads no memory of this process; unused arguments must be zero.
    match unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Kills the children of all threads.
fn kill_children() {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for thread in threads {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_ascii_whitespace().filter_map(|number| number.parse().ok()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
    }
}
