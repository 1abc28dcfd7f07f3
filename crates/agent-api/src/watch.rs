//! TCP flows whose windows are watched, known by their ends before they begin.

use netstage_core::time::Duration;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Flows to watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchSpec {
    /// Each flow.
    pub flows: Vec<FlowSpec>,
    /// Width of a bin.
    pub interval: Duration,
    /// Their number.
    pub bins: usize,
}

impl WatchSpec {
    /// Of a run; none where there is nothing to watch.
    pub fn new(flows: Vec<FlowSpec>, duration: Duration, interval: Duration) -> Option<WatchSpec> {
        let bins = (duration.0 / interval.0) as usize;
        (!flows.is_empty()).then_some(WatchSpec { flows, interval, bins })
    }
}

/// What one end of a flow sends: to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSpec {
    /// The subject of what is seen.
    pub subject: String,
    /// The sender's end.
    pub source: End,
    /// The receiver's.
    pub destination: End,
}

/// One end of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct End {
    /// Its address.
    pub address: IpAddr,
    /// Its port; none where programs choose.
    pub port: Option<u16>,
}

impl End {
    /// Of any port.
    pub fn any(address: IpAddr) -> End {
        End { address, port: None }
    }

    /// At one.
    pub fn at(address: SocketAddr) -> End {
        End { address: address.ip(), port: Some(address.port()) }
    }

    /// Whether a connection's end is this one.
    pub fn is(&self, end: SocketAddr) -> bool {
        self.address == end.ip() && self.port.is_none_or(|port| port == end.port())
    }
}
