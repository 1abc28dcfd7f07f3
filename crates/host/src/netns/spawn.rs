//! Start of programs inside a namespace, so that they never outlive their parent.
//!
//! The kernel sends the parent-death signal when the *thread* that forked ends. One thread, which lives as long
//! as the process, therefore starts all programs.

use super::Namespace;
use nix::sched::{CloneFlags, setns};
use nix::sys::{prctl, signal::Signal};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Sender};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

static SPAWNER: LazyLock<Sender<Job>> = LazyLock::new(|| {
    let (sender, jobs) = mpsc::channel::<Job>();
    let thread = thread::Builder::new().name("spawner".into());
    thread.spawn(move || jobs.into_iter().for_each(|job| job())).expect("the spawner thread starts");
    sender
});

/// Starts `command` inside `namespace`. The kernel kills it with SIGKILL when this process ends for any reason;
/// its own children are not killed (see [`super::hold`]).
///
/// The child joins only the network namespace: files, users and processes are shared.
pub fn spawn_in(namespace: &Namespace, mut command: Command) -> io::Result<Child> {
    let namespace = namespace.try_clone()?;
    let parent = nix::unistd::getpid();
    let (answer, child) = mpsc::channel();
    let job = move || {
        let enter = move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET)?;
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // A parent that died before the line above sends no signal any more.
            if nix::unistd::getppid() != parent {
                return Err(io::Error::other("the parent is gone"));
            }
            Ok(())
        };
        // SAFETY: between fork and exec, `enter` only makes system calls; it neither allocates nor takes a lock
        // (its error is a static string).
        unsafe { command.pre_exec(enter) };
        let _ = answer.send(command.spawn());
    };
    SPAWNER.send(Box::new(job)).expect("the spawner never ends");
    child.recv().expect("the spawner answers every job")
}
