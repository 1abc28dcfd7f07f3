//! The router as a daemon: on this machine's interfaces, by the kernel's routes or a file's, until it is
//! told to end.
//!
//! - [`machine`]: interfaces, ports and the program in the kernel.
//! - [`forward`]: the thread that forwards.
//! - [`control`]: what it tells to who asks; [`state`]: in which shape.

mod control;
mod forward;
mod machine;
pub mod state;

pub use control::{ask, signals};
pub use state::State;

use crate::agent::Socket;
use crate::obstacle::Obstacle;
use forward::Forwarding;
use machine::Machine;
use netstage_scenario::Errors;
use netstage_scenario::router::{self, Router};
use nix::sys::signalfd::SignalFd;
use std::fmt;
use std::path::Path;

/// Why a router does not begin.
#[derive(Debug)]
pub enum Error {
    /// The file is wrong.
    Configuration(Errors),
    /// The machine does not have, or allow, what the file asks for.
    Machine(Obstacle),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Configuration(errors) => write!(f, "{errors}"),
            Error::Machine(obstacle) => write!(f, "{obstacle}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Obstacle> for Error {
    fn from(obstacle: Obstacle) -> Error {
        Error::Machine(obstacle)
    }
}

impl From<Errors> for Error {
    fn from(errors: Errors) -> Error {
        Error::Configuration(errors)
    }
}

/// A router that runs.
#[derive(Debug)]
pub struct Daemon {
    router: Router,
    forwarding: Forwarding,
    socket: Socket,
}

impl Daemon {
    /// Begins to forward as a file says. `tell` hears what goes on, from any thread.
    pub fn begin(path: &Path, tell: impl Fn(&str) + Send + 'static) -> Result<Daemon, Error> {
        let router = router::load(path)?;
        let socket = Socket::bind(&router.control).map_err(|error| {
            Obstacle::new(format!("control socket: {error}"), "give [router] `control` another path")
        })?;
        let machine = Machine::prepare(&router, &tell)?;
        let forwarding = Forwarding::begin(machine, &router, Box::new(tell))?;
        Ok(Daemon { router, forwarding, socket })
    }

    /// The configuration it has.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Answers who asks, until one of these signals ends it; how it stood then.
    pub fn serve(mut self, signals: &SignalFd) -> Result<Option<State>, Error> {
        let served = control::serve(&mut self.socket, signals, &self.forwarding);
        served.map_err(|error| Obstacle::system("the control socket fails", &error))?;
        let last = self.forwarding.show();
        self.forwarding.end();
        Ok(last)
    }
}
