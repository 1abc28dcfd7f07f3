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

pub use crate::obstacle::Error;
pub use control::{ask, signals};
pub use state::State;

use crate::agent::Socket;
use crate::obstacle::Obstacle;
use forward::Forwarding;
use machine::Machine;
use netstage_scenario::router::{self, Router};
use nix::sys::signalfd::SignalFd;
use std::path::Path;

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
