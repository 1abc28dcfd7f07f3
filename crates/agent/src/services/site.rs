//! Where programs of services run: in a namespace of ours, or on a host that is not.

use netstage_host::netns::Namespace;
use netstage_host::netns::custody::spawn_kept;
use netstage_host::netns::hold::spawn_held;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output};

/// A place for programs.
#[derive(Debug)]
pub struct Site {
    /// This program's own file.
    netstage: PathBuf,
    /// The namespace; none where it is the host of this process, and somebody else's.
    namespace: Option<Namespace>,
}

impl Site {
    /// In a namespace.
    pub fn inside(namespace: &Namespace, netstage: &Path) -> io::Result<Site> {
        Ok(Site { netstage: netstage.to_owned(), namespace: Some(namespace.try_clone()?) })
    }

    /// Where this process is.
    pub fn here() -> io::Result<Site> {
        Ok(Site { netstage: std::env::current_exe()?, namespace: None })
    }

    /// Starts a program there.
    pub fn start(&self, program: &Path, dress: impl FnOnce(&mut Command)) -> io::Result<Program> {
        let mut child = match &self.namespace {
            Some(namespace) => spawn_held(namespace, &self.netstage, program, dress)?,
            None => spawn_kept(&self.netstage, program, dress)?,
        };
        let life = child.stdin.take();
        Ok(Program { child, life })
    }

    /// Runs a task there.
    pub fn run<T: Send>(&self, task: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.namespace {
            Some(namespace) => namespace.run(task),
            None => Ok(task()),
        }
    }
}

/// A program, which ends with this value, and with it all it has started.
#[derive(Debug)]
pub struct Program {
    child: Child,
    /// While it is open, the program lives; none where it is killed instead.
    life: Option<ChildStdin>,
}

impl Program {
    /// What it writes, where that was piped.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for its end, and gives what it said on its standard error, where that was piped.
    pub fn wait(mut self) -> io::Result<Output> {
        let mut stderr = Vec::new();
        if let Some(mut said) = self.child.stderr.take() {
            io::Read::read_to_end(&mut said, &mut stderr)?;
        }
        Ok(Output { status: self.child.wait()?, stdout: Vec::new(), stderr })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.life.take().is_none() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
