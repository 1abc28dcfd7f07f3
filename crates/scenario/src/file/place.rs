//! `[place]`: which hosts of a fleet stand for the nodes, where a run is on real hosts.

use crate::address::Address;
use crate::scalar::{AgentName, Label};
use crate::table::{At, table};

table! {
    /// The agent that stands for a node.
    pub(crate) struct Placement "a placement" short "agent" {
        /// The agent, by name.
        agent: Option<At<AgentName>>,
        /// Any agent with this label that is free, in the order of their names.
        label: Option<At<Label>>,
        /// The address of its host that flows use; left out, the first it tells of.
        address: Option<Address>,
    }
}
