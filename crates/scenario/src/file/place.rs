//! `[place]`: which hosts of a fleet stand for the nodes, where a run is on real hosts.

use crate::address::{Address, LinkAddress};
use crate::scalar::{AgentName, InterfaceName, Label};
use crate::table::{At, List, Named, table};

table! {
    /// The agent that stands for a node.
    pub(crate) struct Placement "a placement" short "agent" {
        /// The agent, by name.
        agent: Option<At<AgentName>>,
        /// Any agent with this label that is free, in the order of their names.
        label: Option<At<Label>>,
        /// The address of its host that flows use, of a `pe` the end of its tunnels; left out, the first it tells of.
        address: Option<Address>,
        /// Of a `pe`: the interfaces of its host that stand for its links, by the names of the links.
        interfaces: Named<Attachment>,
    }
}

table! {
    /// The interface that stands for a link.
    pub(crate) struct Attachment "an interface" short "name" {
        /// The interface. One towards customers is the router's: the kernel must have no address there.
        name: At<InterfaceName>,
        /// Towards customers: the router's addresses there, with the length of the link's prefix: ["10.0.1.1/24"].
        address: List<LinkAddress>,
        /// Towards customers: the router their addresses are behind, where they are not on the link.
        via: Option<Address>,
    }
}
