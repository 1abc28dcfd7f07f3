//! Site of service programs: a namespace that netstage owns, or a host that it does not own.

use netstage_host::netns::Namespace;
use netstage_host::netns::process_namespace::{HeldOptions, spawn_in_process_namespace};
use netstage_host::netns::supervision::spawn_supervised;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output};

/// Site where programs run.
#[derive(Debug)]
pub struct ProgramSite {
    /// Path of the netstage program.
    netstage: PathBuf,
    /// Namespace of the programs, or `None` for the host of this process, which netstage does not own.
    namespace: Option<Namespace>,
}

impl ProgramSite {
    /// Returns the site of a namespace.
    pub fn in_namespace(namespace: &Namespace, netstage: &Path) -> io::Result<ProgramSite> {
        Ok(ProgramSite { netstage: netstage.to_owned(), namespace: Some(namespace.try_clone()?) })
    }

    /// Returns the site of this process.
    pub fn current() -> io::Result<ProgramSite> {
        Ok(ProgramSite { netstage: std::env::current_exe()?, namespace: None })
    }

    /// Starts a program at the site, in a folder for it alone.
    pub fn start(
        &self,
        program: &Path,
        folder: &Path,
        dress: impl FnOnce(&mut Command),
    ) -> io::Result<RunningProgram> {
        let netstage = &self.netstage;
        let mut child = match &self.namespace {
            Some(namespace) => {
                let options = HeldOptions::default();
                spawn_in_process_namespace(namespace, netstage, program, options, |command| {
                    dress(command.current_dir(folder));
                })?
            }
            None => spawn_supervised(netstage, program, folder, dress)?,
        };
        let lifeline = child.stdin.take();
        Ok(RunningProgram { child, lifeline })
    }

    /// Runs a task at the site.
    pub fn run<T: Send>(&self, task: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.namespace {
            Some(namespace) => namespace.run(task),
            None => Ok(task()),
        }
    }
}

/// Running program. Dropping it ends the program and all its descendants.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
    /// Pipe that keeps the program alive while it is open; without one, the program is killed on drop.
    lifeline: Option<ChildStdin>,
}

impl RunningProgram {
    /// Returns the standard output, if it is piped.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns the exit status if the program has ended.
    pub fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the end of the program, and returns its standard error, if that is piped.
    pub fn wait(mut self) -> io::Result<Output> {
        let mut stderr = Vec::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            io::Read::read_to_end(&mut pipe, &mut stderr)?;
        }
        Ok(Output { status: self.child.wait()?, stdout: Vec::new(), stderr })
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if self.lifeline.take().is_none() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
