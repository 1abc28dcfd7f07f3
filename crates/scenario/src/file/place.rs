//! `[place]`: agents of a fleet that take the place of nodes in a run on real hosts.

use crate::address::{Address, LinkAddress};
use crate::scalar::{AgentName, InterfaceName, Label};
use crate::table::{List, Located, NamedTables, table};

table! {
    /// Agent that takes the place of a node.
    pub(crate) struct PlacementTable "a placement" short "agent" {
        /// Name of the agent.
        agent: Option<Located<AgentName>>,
        /// Label; the first free agent with it is used, in the order of names.
        label: Option<Located<Label>>,
        /// Host address used by flows, with a `pe` by its tunnels; default: the first address the agent reports.
        address: Option<Address>,
        /// With a `pe`: interfaces of the host that take the place of links, by link name.
        interfaces: NamedTables<AttachmentTable>,
    }
}

table! {
    /// Interface that takes the place of a link.
    pub(crate) struct AttachmentTable "an interface" short "name" {
        /// Name of the interface. The kernel must have no address on a customer interface, which belongs to the router.
        name: Located<InterfaceName>,
        /// On a customer interface: addresses of the router with prefix lengths, such as ["10.0.1.1/24"].
        address: List<LinkAddress>,
        /// On a customer interface: next hop to the customers' addresses, if these are not on the link.
        via: Option<Address>,
    }
}
