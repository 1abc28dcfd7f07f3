//! The router as a daemon: forwards between interfaces of this host, with routes from the kernel, a file or a
//! routing daemon (FPM), until it is stopped.
//!
//! - [`machine`]: resources of the host; [`remains`]: cleanup after a killed router.
//! - [`forward`]: forwarding thread; [`interfaces`]: interface changes; [`egress`]: detection of lost
//!   redirected frames.
//! - [`reload`]: configuration changes.
//! - [`fpm`]: forwarding plane manager connections of a routing daemon.
//! - [`control`]: control socket; [`metrics`]: Prometheus metrics; [`state`]: state reported by both.

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

/// Error on start or reload of the daemon.
pub type Error = obstacle::Error<Errors>;

/// Running router.
#[derive(Debug)]
pub struct Daemon {
    control: PathBuf,
    forwarding: Forwarding,
    answering: Arc<Answering>,
    socket: Socket,
    _metrics: Option<Metrics>,
}

impl Daemon {
    /// Starts a router configured by a file.
    pub fn begin(path: &Path, log: Log) -> Result<Daemon, Error> {
        let router = router::load(path).map_err(Error::Configuration)?;
        let file = reload::read(&router)?;
        let socket = Socket::bind(&router.control).map_err(|error| {
            Obstacle::new(format!("control socket: {error}"), "set [router] `control` to another path")
        })?;
        let forwarding = Forwarding::begin(&router, file, Arc::clone(&log))?;
        let loaded = Loaded::new(path.to_owned(), router.clone(), log);
        let answering = Arc::new(Answering { orders: forwarding.orders(), loaded });
        let metrics =
            router.metrics.map(|address| Metrics::serve(address, Arc::clone(&answering), router.count));
        Ok(Daemon { control: router.control, forwarding, answering, socket, _metrics: metrics.transpose()? })
    }

    /// Returns the path of the control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Serves control requests until a signal stops the router. Returns the last state.
    pub fn serve(mut self, signals: &Signals) -> Result<Option<State>, Error> {
        let is_over = || self.forwarding.is_over();
        let served = control::serve(&mut self.socket, signals, &self.answering, is_over);
        served.map_err(|error| Obstacle::system("control socket", &error))?;
        let last = self.answering.show();
        self.forwarding.end();
        Ok(last)
    }
}
