//! `[service.NAME]`: other people's programs, from a list compiled in. Where packets are real they
//! run as they are; the simulator has a model of each.

use super::flow::Tcp;
use crate::scalar::{Bytes, Count, NodeName, Span, VpnName};
use crate::table::{At, List, Named, table, tagged};
use netstage_core::time::Duration;

tagged! {
    /// A program of another project, in its own process at its node.
    pub(crate) enum Service "service" by "program" {
        /// A file by FTP: `vsftpd` serves it and `curl` gets it. On `sim`, a TCP transfer of as
        /// many bytes.
        Ftp(Ftp) = "ftp",
        /// An exchange or provider whose routers FRR's daemons drive: OSPF finds ways between the core
        /// routers, LDP makes LSPs of them from edge to edge, and edges peer by BGP-4 over these. Without a
        /// core, edges peer over the LAN they share. All of them forward by netstage's router; flows through
        /// them have no `via`. For `emu` as root.
        Frr(Frr) = "frr",
    }
}

table! {
    /// Routers that FRR's daemons drive.
    pub(crate) struct Frr "service \"frr\"" {
        /// Routers of the core, of kind \"router\": they switch labels, run OSPF on the links between them and LDP on all, and hear of no network but the edges' own addresses. Left out: all edges are joined to one node of kind \"lan\", and peer over it.
        core: Option<At<List<At<NodeName>, 1, 1_000>>>,
        /// Routers at the edge, each with the number of its autonomous system. They push and pop, and announce to each other the addresses of the nodes behind them.
        edges: At<Named<Count<1, 4_294_967_294>>>,
        /// IPv6 between edges: over the LSPs of IPv4 (6PE, RFC 4798), or on the LAN.
        ipv6: bool = true,
        /// Routers of the core, and edges, greet their neighbours this often; on a LAN, BGP's sign of life.
        hello: At<Span> = "1 s",
        /// A neighbour of the core, or on the LAN, that is not heard for so long is gone.
        dead: At<Span> = "4 s",
        /// Longest wait for all routes to be there before the run begins.
        patience: Span = "90 s",
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
