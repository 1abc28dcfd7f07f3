//! Holding another project's program on a host that is not ours: without privilege, with no more rights than
//! it needs, and so that nothing it starts outlives us.
//!
//! Process namespaces ([`super::hold`]) need a privilege that an agent on somebody's host has not. So our own
//! process between the two takes in whatever the program leaves behind (PR_SET_CHILD_SUBREAPER), and kills all
//! of it once its standard input is at its end: we have closed it, or are dead.
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

use super::hold::COMMAND;

/// The option of [`COMMAND`] that [`keep`]s.
pub const HERE: &str = "here";

/// Whom root has programs run as: the account that owns nothing.
const NOBODY: u32 = 65534;

/// Starts a program; `netstage` is this program's own file. All of it ends when the standard input of the process
/// returned here is closed, by us or by our end. Killing that process instead would leave the program behind.
pub fn spawn_kept(netstage: &Path, program: &Path, dress: impl FnOnce(&mut Command)) -> io::Result<Child> {
    let mut command = Command::new(netstage);
    command.arg(COMMAND).arg(format!("--{HERE}")).arg(program);
    dress(&mut command);
    // An interrupt at the terminal is the agent's to act on.
    command.stdin(Stdio::piped()).process_group(0).spawn()
}

/// Runs a program to its end, or to that of standard input; returns its exit code. The folder it is in is the
/// program's. What the program reads from standard input is where it tells errors.
pub fn keep(program: &OsStr, arguments: &[OsString]) -> io::Result<u8> {
    prctl::set_child_subreaper(true)?;
    prctl::set_no_new_privs()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(io::stderr().as_fd().try_clone_to_owned()?);
    match geteuid().is_root() {
        true => {
            give_away(Path::new("."))?;
            command.uid(NOBODY).gid(NOBODY);
        }
        false => no_ambient_capabilities()?,
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
    // What a child leaves behind when it is killed, is ours by the time its end is known.
    kill_children();
    while wait().is_ok() {
        kill_children();
    }
    Ok(code)
}

/// Makes the folder and all in it nobody's.
fn give_away(folder: &Path) -> io::Result<()> {
    lchown(folder, Some(NOBODY), Some(NOBODY))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => give_away(&entry.path())?,
            false => lchown(entry.path(), Some(NOBODY), Some(NOBODY))?,
        }
    }
    Ok(())
}

/// What the agent may do beyond its account, its programs need not.
fn no_ambient_capabilities() -> io::Result<()> {
    // SAFETY: prctl(2) reads no memory of ours; unused arguments are zero, as it demands.
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
