//! The router as a daemon: on this machine's interfaces, by the routes of the kernel, a file or a routing daemon (FPM),
//! until it is stopped.
//!
//! - [`machine`]: what it needs of the machine; [`remains`]: what is left of it should it be killed.
//! - [`forward`]: the thread that forwards; [`interfaces`]: interfaces while they change; [`egress`]: whether
//!   what leaves arrives.
//! - [`reload`]: another configuration.
//! - [`fpm`]: where a routing daemon's forwarding plane manager connects.
//! - [`control`]: the control socket; [`metrics`]: for Prometheus; [`state`]: what both tell.

mod control;
mod egress;
mod forward;
mod fpm;
mod interfaces;
mod machine;
mod metrics;
mod reload;
mod remains;
pub mod state;

pub use control::{ask, labels, reload, routes};
pub use netstage_host::log::{Level, Log};
pub use netstage_host::signals::Signals;
pub use remains::{Cleaned, clean};
pub use state::State;

use control::Answering;
use forward::Forwarding;
use metrics::Metrics;
use netstage_host::obstacle::{self, Obstacle};
use netstage_host::socket::Socket;
use netstage_scenario::{Errors, router};
use reload::Loaded;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why the daemon does not start, or refuses a configuration.
pub type Error = obstacle::Error<Errors>;

/// A router that runs.
#[derive(Debug)]
pub struct Daemon {
    control: PathBuf,
    forwarding: Forwarding,
    answering: Arc<Answering>,
    socket: Socket,
    _metrics: Option<Metrics>,
}

impl Daemon {
    /// Begins to forward as a file says.
    pub fn begin(path: &Path, log: Log) -> Result<Daemon, Error> {
        let router = router::load(path).map_err(Error::Configuration)?;
        let file = reload::read(&router)?;
        let socket = Socket::bind(&router.control).map_err(|error| {
            Obstacle::new(format!("control socket: {error}"), "give [router] `control` another path")
        })?;
        let forwarding = Forwarding::begin(&router, file, Arc::clone(&log))?;
        let loaded = Loaded::new(path.to_owned(), router.clone(), log);
        let answering = Arc::new(Answering { orders: forwarding.orders(), loaded });
        let metrics =
            router.metrics.map(|address| Metrics::serve(address, Arc::clone(&answering), router.count));
        Ok(Daemon { control: router.control, forwarding, answering, socket, _metrics: metrics.transpose()? })
    }

    /// Its control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Answers who asks, until one of these signals ends it; how it stood then.
    pub fn serve(mut self, signals: &Signals) -> Result<Option<State>, Error> {
        let is_over = || self.forwarding.is_over();
        let served = control::serve(&mut self.socket, signals, &self.answering, is_over);
        served.map_err(|error| Obstacle::system("the control socket fails", &error))?;
        let last = self.answering.show();
        self.forwarding.end();
        Ok(last)
    }
}
