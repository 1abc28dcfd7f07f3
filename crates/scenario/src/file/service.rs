//! `[service.NAME]`: other people's programs, from a list compiled in. Where packets are real they
//! run as they are; the simulator has a model of each.

use super::flow::Tcp;
use crate::scalar::{Bytes, NodeName, VpnName};
use crate::table::{At, List, table, tagged};
use netstage_core::time::Duration;

tagged! {
    /// A program of another project, in its own process at its node.
    pub(crate) enum Service "service" by "program" {
        /// A file by FTP: `vsftpd` serves it and `curl` gets it. On `sim`, a TCP transfer of as
        /// many bytes.
        Ftp(Ftp) = "ftp",
    }
}

table! {
    /// One file from server to client.
    pub(crate) struct Ftp "service \"ftp\"" {
        /// The host that gets the file.
        client: At<NodeName>,
        /// The host that has it.
        server: At<NodeName>,
        /// Size of the file.
        size: Bytes<32, 4_294_967_295>,
        /// When the client begins.
        start: At<Duration> = "0 s",
        /// The VPN that carries the client's packets.
        vpn: Option<At<VpnName>>,
        /// How its TCP behaves, as far as hosts let routes decide: window, segment size, algorithm.
        tcp: Option<At<Tcp>>,
        /// Nodes between client and server, in order, instead of the shortest path.
        via: Option<At<List<At<NodeName>>>>,
        /// Nodes on the way back, in order; left out: the same way.
        reverse_via: Option<At<List<At<NodeName>>>>,
    }
}
