//! TCP flows whose windows are watched, identified by their endpoints before the connections exist.

use netstage_core::time::Duration;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Flows to watch during a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchSpec {
    /// Watched flows.
    pub flows: Vec<FlowSpec>,
    /// Width of a bin.
    pub interval: Duration,
    /// Number of bins.
    pub bins: usize,
}

impl WatchSpec {
    /// Returns the specification for a run of this duration, or `None` when no flow is watched.
    pub fn new(flows: Vec<FlowSpec>, duration: Duration, interval: Duration) -> Option<WatchSpec> {
        let bins = (duration.0 / interval.0) as usize;
        (!flows.is_empty()).then_some(WatchSpec { flows, interval, bins })
    }
}

/// One watched flow, in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSpec {
    /// Subject under which the observations are recorded.
    pub subject: String,
    /// Sender.
    pub source: WatchedEndpoint,
    /// Receiver.
    pub destination: WatchedEndpoint,
}

/// Endpoint of the connections to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WatchedEndpoint {
    /// IP address.
    pub address: IpAddr,
    /// Port, or `None` where the program chooses it.
    pub port: Option<u16>,
}

impl WatchedEndpoint {
    /// Returns the endpoint that matches any port of an address.
    pub fn any(address: IpAddr) -> WatchedEndpoint {
        WatchedEndpoint { address, port: None }
    }

    /// Returns the endpoint that matches one address and port.
    pub fn at(address: SocketAddr) -> WatchedEndpoint {
        WatchedEndpoint { address: address.ip(), port: Some(address.port()) }
    }

    /// Reports whether a socket address belongs to this endpoint.
    pub fn is(&self, end: SocketAddr) -> bool {
        self.address == end.ip() && self.port.is_none_or(|port| port == end.port())
    }
}
