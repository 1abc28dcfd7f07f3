//! Holding another project's program so that nothing it starts outlives us.
//!
//! The kernel's parent-death signal reaches a child, not what the child starts. So a program
//! runs in a process namespace (pid_namespaces(7)): its first process is ours, and when that
//! one ends the kernel kills all others in it.
//!
//! ```text
//! fabric ── `netstage held PROGRAM …` ── the same again, as process 1 ── PROGRAM ── …
//! ```
//! Each of the first two dies with the one before it.

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

/// The command of netstage that [`hold`]s.
pub const COMMAND: &str = "held";

/// Its option: the folder that is /run for the program.
pub const RUN: &str = "--run";

/// Starts a program inside a network namespace; `netstage` is this program's own file. What it
/// starts ends when the process returned here does, and that ends with ours.
pub fn spawn_held(
    namespace: &Namespace,
    netstage: &Path,
    program: &Path,
    dress: impl FnOnce(&mut Command),
) -> io::Result<Child> {
    let mut command = Command::new(netstage);
    command.arg(COMMAND).arg(program);
    dress(&mut command);
    spawn_in(namespace, command)
}

/// As [`spawn_held`], and `run` is /run for the program and what it starts: programs that keep their sockets
/// there under a name of their own can then run several times.
pub fn spawn_held_apart(
    namespace: &Namespace,
    netstage: &Path,
    program: &Path,
    run: &Path,
    dress: impl FnOnce(&mut Command),
) -> io::Result<Child> {
    let mut command = Command::new(netstage);
    command.arg(COMMAND).arg(RUN).arg(run).arg(program);
    dress(&mut command);
    spawn_in(namespace, command)
}

/// Runs a program to its end in a process namespace of its own; returns its exit code. Call it
/// before any thread starts. Needs CAP_SYS_ADMIN.
pub fn hold(program: &OsStr, arguments: &[OsString], run: Option<&Path>) -> io::Result<u8> {
    match getpid() == Pid::from_raw(1) {
        true => run_as_first(program, arguments),
        false => start_first(program, arguments, run),
    }
}

/// Puts a folder in place of /run, for this process and those it starts.
fn put_in_place_of_run(folder: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&Path> = None;
    // What is mounted here shall not be seen by others.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(folder), "/run", none, MsFlags::MS_BIND, none)?;
    Ok(())
}

/// The first process of a new namespace: this program again.
fn start_first(program: &OsStr, arguments: &[OsString], run: Option<&Path>) -> io::Result<u8> {
    run.map_or(Ok(()), put_in_place_of_run)?;
    unshare(CloneFlags::CLONE_NEWPID)?;
    let (alive, ours) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).arg(program).args(arguments);
    let ours_raw = ours.as_raw_fd();
    let enter = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // A parent that died before the line above sends no signal any more; its number cannot
        // be seen from here, but its end of the pipe is then closed.
        // SAFETY: closes this process's copy of a descriptor nothing else here uses.
        unsafe { libc::close(ours_raw) };
        let mut ends = [PollFd::new(alive.as_fd(), PollFlags::empty())];
        match poll(&mut ends, PollTimeout::ZERO)? {
            0 => Ok(()),
            _ => Err(io::Error::from(Errno::ESRCH)),
        }
    };
    // SAFETY: between fork and exec `enter` makes system calls only.
    unsafe { command.pre_exec(enter) };
    let status = command.spawn()?.wait()?;
    drop(ours);
    Ok(status.code().map_or(u8::MAX, |code| code as u8))
}

/// As the first process: starts the program, and buries whoever is left to it.
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
