//! Runs an external program so that none of its descendants outlives this process.
//!
//! The kernel's parent-death signal reaches a child, but not its descendants. The program therefore runs in a
//! process namespace (pid_namespaces(7)) whose first process is ours: when that process ends, the kernel kills
//! all others in the namespace.
//!
//! ```text
//! fabric ── `netstage held PROGRAM …` ── the same again, as process 1 ── PROGRAM ── …
//! ```
//! Each of the first two processes dies with its parent.

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{Pid, getpid, pipe2};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

use super::{Namespace, spawn_in};
use crate::realtime::{Rank, enter_realtime};

/// Command of netstage that runs [`run_in_process_namespace`].
pub const COMMAND: &str = "held";

/// Option for the folder mounted at /run.
const RUN_OPTION: &str = "--run";
/// Option for real-time scheduling.
const REALTIME_OPTION: &str = "--realtime";

/// Surroundings of a program and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldOptions<'a> {
    /// Folder mounted at /run, so that programs with fixed socket names there can run several times.
    pub run: Option<&'a Path>,
    /// Priority over every ordinary thread, if permitted: for programs that must answer within milliseconds.
    pub is_realtime: bool,
}

/// Starts a program inside a network namespace; `netstage` is the path of this executable. Its descendants end
/// with the returned process, which ends with this process.
pub fn spawn_in_process_namespace(
    namespace: &Namespace,
    netstage: &Path,
    program: &Path,
    options: HeldOptions<'_>,
    configure: impl FnOnce(&mut Command),
) -> io::Result<Child> {
    let mut command = Command::new(netstage);
    command.arg(COMMAND);
    if let Some(folder) = options.run {
        command.arg(RUN_OPTION).arg(folder);
    }
    if options.is_realtime {
        command.arg(REALTIME_OPTION);
    }
    command.arg(program);
    configure(&mut command);
    spawn_in(namespace, command)
}

/// Runs a program in a process namespace until it exits; returns its exit code. Call it before any thread
/// starts. Needs CAP_SYS_ADMIN.
pub fn run_in_process_namespace(
    program: &OsStr,
    arguments: &[OsString],
    options: HeldOptions<'_>,
) -> io::Result<u8> {
    match getpid() == Pid::from_raw(1) {
        true => run_as_first(program, arguments),
        false => start_first(program, arguments, options),
    }
}

/// Mounts a folder at /run for this process and its descendants.
fn mount_run(folder: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&Path> = None;
    // Keep the mount private to this namespace.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(folder), "/run", none, MsFlags::MS_BIND, none)?;
    Ok(())
}

/// Starts this executable again as the first process of a new namespace.
fn start_first(program: &OsStr, arguments: &[OsString], options: HeldOptions<'_>) -> io::Result<u8> {
    options.run.map_or(Ok(()), mount_run)?;
    if options.is_realtime {
        // All descendants inherit it.
        enter_realtime(Rank::Traffic);
    }
    unshare(CloneFlags::CLONE_NEWPID)?;
    let (alive, parent_end) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).arg(program).args(arguments);
    let parent_end_raw = parent_end.as_raw_fd();
    let enter = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // A parent that died before the line above sends no signal any more. Its process number is not visible
        // here, but its end of the pipe is then closed. SAFETY: closes this process's copy of a descriptor that
        // nothing else here uses.
        unsafe { libc::close(parent_end_raw) };
        let mut ends = [PollFd::new(alive.as_fd(), PollFlags::empty())];
        match poll(&mut ends, PollTimeout::ZERO)? {
            0 => Ok(()),
            _ => Err(io::Error::from(Errno::ESRCH)),
        }
    };
    // SAFETY: between fork and exec, `enter` only makes system calls.
    unsafe { command.pre_exec(enter) };
    let status = command.spawn()?.wait()?;
    drop(parent_end);
    Ok(status.code().map_or(u8::MAX, |code| code as u8))
}

/// Starts the program as the first process, and reaps orphans.
fn run_as_first(program: &OsStr, arguments: &[OsString]) -> io::Result<u8> {
    let child = Command::new(program).args(arguments).spawn()?;
    let program = Pid::from_raw(child.id() as i32);
    loop {
        match wait() {
            Ok(WaitStatus::Exited(process, code)) if process == program => return Ok(code as u8),
            Ok(WaitStatus::Signaled(process, signal, _)) if process == program => {
                return Ok(128 + signal as u8);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
