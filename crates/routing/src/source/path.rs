//! Destinations of routes and labels, as reported by route sources.

use netstage_wire::mpls::LabelValue;
use std::net::IpAddr;

/// Routing table and prefix.
pub type TablePrefix = (u32, (IpAddr, u8));

/// Path of packets to a next hop.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoutePath {
    /// Index of the outgoing interface.
    pub interface: u32,
    /// Address of the next hop; `None` if the destination is on the link itself.
    pub via: Option<IpAddr>,
    /// Labels to push, outermost first.
    pub labels: Vec<LabelValue>,
}

/// Destination of a route or label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// Paths to choose from, by flow.
    Paths(Vec<RoutePath>),
    /// This router.
    Local,
    /// Discarded without an ICMP error.
    Discard,
}

/// Action for packets with an incoming label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelAction {
    /// The label is replaced with the labels of a path, or popped if there are none (penultimate hop
    /// popping).
    Forward(Destination),
    /// The label is popped and the packet looked up in a table.
    Pop {
        /// Index of the table.
        table: u32,
    },
}

/// Change reported by a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceChange {
    /// New destination of a prefix, or `None` if the route was removed.
    Route(TablePrefix, Option<Destination>),
    /// New action of a label, or `None` if the label was removed.
    Label(LabelValue, Option<LabelAction>),
}

/// Neighbor by interface and address.
pub type InterfaceNeighbor = (u32, IpAddr);
