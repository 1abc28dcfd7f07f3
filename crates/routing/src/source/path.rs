//! What routes and labels lead to, as sources of routes report it.

use netstage_wire::mpls::Label;
use std::net::IpAddr;

/// A table and a prefix in it.
pub type Prefix = (u32, (IpAddr, u8));

/// By what packets leave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The interface.
    pub interface: u32,
    /// The next router; none where the destination itself is on the link.
    pub via: Option<IpAddr>,
    /// What is to be on top, the outermost first.
    pub labels: Vec<Label>,
}

/// Where a route or label leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// One of these, which the flow decides.
    Paths(Vec<Path>),
    /// This router itself.
    Local,
    /// Nowhere, and nobody is told.
    Discard,
}

/// What a label of this router's means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The labels of a path take its place, or nothing does (penultimate hop popping).
    Forward(Destination),
    /// What is beneath is looked up in a table.
    Pop {
        /// The table.
        table: u32,
    },
}

/// What a source tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Where a prefix leads from now on; none: it is no longer there.
    Route(Prefix, Option<Destination>),
    /// What a label means from now on; none: it was taken back.
    Label(Label, Option<Meaning>),
}

/// Somebody on an interface's link, by address.
pub type Neighbour = (u32, IpAddr);
