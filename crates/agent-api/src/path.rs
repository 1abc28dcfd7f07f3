//! Search for the paths of flows between hosts behind NAT. It precedes the consents of a run: each agent offers the
//! addresses at which it may be reached, and then checks those of the other end of each flow. Sent as JSON, like tasks.

use crate::protocol::generated as wire;
use crate::task::FlowSide;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{AddrParseError, IpAddr, SocketAddr};

/// Maximum number of flows whose paths one agent searches.
pub const MAX_PATHS: usize = 256;

/// Flows whose paths are searched, at one of their ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSearch {
    /// Key of the run, hexadecimal, which authenticates checks and answers.
    pub key: String,
    /// Flows.
    pub flows: Vec<PathFlow>,
}

/// End of a flow whose path is searched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathFlow {
    /// Number of the flow.
    pub id: u32,
    /// Local side.
    pub side: FlowSide,
    /// Protocol of its packets.
    pub protocol: PathProtocol,
    /// Local port. Both ends of a TCP flow listen at theirs; zero lets the system select that of a sender over UDP.
    pub port: u16,
    /// Only local address to use, or `None` for all.
    pub address: Option<IpAddr>,
    /// Only IPv6 may be used.
    pub only_ipv6: bool,
}

/// Protocol of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathProtocol {
    /// UDP, and protocols over it.
    Udp,
    /// TCP.
    Tcp,
}

/// Addresses of one end of a flow, in order of preference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathAddresses {
    /// Number of the flow.
    pub id: u32,
    /// Addresses of the host, and those of the NAT in front of it.
    pub addresses: Vec<SocketAddr>,
}

/// Result of the checks of one end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FoundPath {
    /// Number of the flow.
    pub id: u32,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the other end. For TCP, that from which its connection came has port 0.
    pub remote: SocketAddr,
    /// This end opened the TCP connection. UDP has none.
    pub has_opened: bool,
}

/// Address of a host, and the address at which its controller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatMapping {
    /// Address of the host.
    pub address: IpAddr,
    /// Address and port that the controller has seen.
    pub mapped: SocketAddr,
    /// The mapped port depends on the destination.
    pub varies: bool,
}

impl NatMapping {
    /// Returns whether a NAT is between the host and the controller.
    pub fn is_translated(&self) -> bool {
        self.address != self.mapped.ip()
    }
}

impl fmt::Display for NatMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mapping = if self.varies { "varying port" } else { "fixed port" };
        write!(f, "{} ({mapping})", self.mapped.ip())
    }
}

impl TryFrom<&wire::NatMapping> for NatMapping {
    type Error = AddrParseError;

    fn try_from(message: &wire::NatMapping) -> Result<NatMapping, AddrParseError> {
        let (address, mapped) = (message.address.parse()?, message.mapped.parse()?);
        Ok(NatMapping { address, mapped, varies: message.varies })
    }
}
