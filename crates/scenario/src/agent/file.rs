//! The tables of an agent's policy, as written.

use crate::address::PrefixText;
use crate::plan::Program;
use crate::scalar::{FleetName, InterfaceName, Span};
use crate::table::{List, choice, table};
use netstage_core::quantity::BitRate;

table! {
    /// An agent's policy.
    pub(crate) struct File "the file" {
        /// What the agent may be asked to do. What is left out is not limited.
        policy: Policy,
    }
}

table! {
    /// What the agent may be asked to do. What is left out is not limited.
    pub(crate) struct Policy "[policy]" {
        /// Fleets whose controllers may command.
        controllers: Option<List<FleetName>>,
        /// Most payload bits per second the agent sends, all flows together. Traffic without a rate of its own is refused then.
        rate: Option<BitRate>,
        /// Longest run.
        longest: Option<Span>,
        /// Prefixes it sends to, multicast groups among them.
        destinations: Option<List<PrefixText>>,
        /// Interfaces of this host that flows and routers use.
        interfaces: Option<List<InterfaceName>>,
        /// Send to hosts that have not agreed, too: ICMP echo, and UDP to a closed port.
        one_ended: bool = false,
        /// Be a provider edge router, too.
        routers: bool = false,
        /// Tell what happens to the windows of TCP flows it sends: programs in the kernel, which need root.
        tcp_events: bool = false,
        /// Services whose programs, or the clients of these, it starts; none where it is left out.
        services: Option<List<Program>>,
    }
}

choice!(Program {
    /// vsftpd and curl.
    "ftp" => Program::Ftp,
    /// tgtd and iscsi-perf.
    "iscsi" => Program::Iscsi,
});
