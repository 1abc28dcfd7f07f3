//! The router as a daemon: forwards between interfaces of this host, with routes from the kernel, a file or a
//! routing daemon (FPM), until it is stopped.
//!
//! - [`host`]: resources of the host; [`cleanup`]: cleanup after a killed router.
//! - [`forward`]: forwarding thread; [`interfaces`]: interface changes; [`egress`]: detection of lost
//!   redirected frames.
//! - [`reload`]: configuration changes.
//! - [`fpm`]: forwarding plane manager connections of a routing daemon; [`rsvp`]: RSVP-TE; [`bfd`]: failures of neighbors;
//!   [`lfa`]: loop-free alternates.
//! - [`control`]: control socket; [`metrics`]: Prometheus metrics; [`state`]: state reported by both.

mod bfd;
mod cleanup;
mod control;
mod egress;
mod forward;
mod fpm;
mod host;
mod interfaces;
mod lfa;
mod metrics;
mod reload;
mod rsvp;
pub mod state;

pub use cleanup::{CleanupResult, clean};
pub use control::{labels, query, reload, routes};
pub use netstage_host::log::{Level, Log};
pub use netstage_host::signals::Signals;
pub use state::RouterState;

use control::ControlState;
use forward::RouterForwardingThread;
use metrics::Metrics;
use netstage_host::socket::ControlSocket;
use netstage_host::startup_error::{self, StartupError};
use netstage_scenario::{Errors, router};
use reload::RouterConfigurationFile;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Error on start or reload of the daemon.
pub type RouterError = startup_error::DaemonError<Errors>;

/// Running router.
#[derive(Debug)]
pub struct RouterDaemon {
    control: PathBuf,
    forwarding: RouterForwardingThread,
    answering: Arc<ControlState>,
    socket: ControlSocket,
    _metrics: Option<Metrics>,
}

impl RouterDaemon {
    /// Starts a router configured by a file.
    pub fn begin(path: &Path, log: Log) -> Result<RouterDaemon, RouterError> {
        let router = router::load(path).map_err(RouterError::Configuration)?;
        let file = reload::read(&router)?;
        let socket = ControlSocket::bind(&router.control).map_err(|error| {
            StartupError::new(format!("control socket: {error}"), "set [router] `control` to another path")
        })?;
        let forwarding = RouterForwardingThread::begin(&router, file, Arc::clone(&log))?;
        let loaded = RouterConfigurationFile::new(path.to_owned(), router.clone(), log);
        let (orders, rsvp, bfd) = (forwarding.orders(), forwarding.rsvp(), forwarding.bfd());
        let answering = Arc::new(ControlState { orders, rsvp, bfd, loaded });
        let metrics =
            router.metrics.map(|address| Metrics::serve(address, Arc::clone(&answering), router.count));
        Ok(RouterDaemon {
            control: router.control,
            forwarding,
            answering,
            socket,
            _metrics: metrics.transpose()?,
        })
    }

    /// Returns the path of the control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Serves control requests until a signal stops the router. Returns the last state.
    pub fn serve(mut self, signals: &Signals) -> Result<Option<RouterState>, RouterError> {
        let is_over = || self.forwarding.is_over();
        let served = control::serve(&mut self.socket, signals, &self.answering, is_over);
        served.map_err(|error| StartupError::from_system("control socket", &error))?;
        let last = self.answering.show();
        self.forwarding.end();
        Ok(last)
    }
}
