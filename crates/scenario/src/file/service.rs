//! `[service.NAME]`: programs of other projects, from a built-in list. The simulator has a model of each.

use super::flow::TcpTable;
use crate::plan::LimitAction;
use crate::scalar::{BoundedCount, BoundedSize, NodeName, PositiveDuration, VpnName};
use crate::table::{List, Located, NamedTables, choice, table, tagged, word};
use netstage_core::time::Duration;
use std::rc::Rc;

tagged! {
    /// Program of another project, in a separate process at its node.
    pub(crate) enum ServiceTable "service" by "program" {
        /// FTP transfer of a file: `vsftpd` serves it and `curl` downloads it. On `sim`, a TCP transfer of the
        /// same size.
        Ftp(FtpServiceTable) = "ftp",
        /// iSCSI reads of a disk: `tgtd` serves the disk and `iscsi-perf` reads its blocks in sequence until the end
        /// of the run. On `sim`, the block-storage model.
        Iscsi(Iscsi) = "iscsi",
        /// Exchange point or provider network with FRR's routing daemons: OSPF between core routers, LSPs by LDP from
        /// edge to edge, and BGP-4 between edges over the LSPs. Without a core, edges peer over the LAN they share. All
        /// of them forward with netstage's router; flows through them have no `via`. On `emu` only, as root.
        Frr(Frr) = "frr",
        /// Route server of an exchange (RFC 7947): BIRD at a node on a LAN, with one BGP-4 session to each member. Members
        /// are netstage's BGP speakers: they announce prefixes, and record what they receive. Their sessions start with
        /// the run. On `emu` only.
        Bird(Bird) = "bird",
    }
}

table! {
    /// Route server with BIRD.
    pub(crate) struct Bird "service \"bird\"" {
        /// Node of the route server, linked to a node of kind "lan".
        server: Located<NodeName>,
        /// AS number of the route server.
        server_as: BoundedCount<1, 4_294_967_294> = 64_500,
        /// Members and their AS numbers, on the same LAN. The members of a node with a `count` have consecutive numbers.
        members: Located<NamedTables<BoundedCount<1, 4_294_967_294>>>,
        /// Number of prefixes (/24) that each member announces at the start of the run. No two members announce the same
        /// prefix.
        routes: Located<BoundedCount<1, 1_000_000>> = 100,
        /// Maximum number of accepted prefixes of a member; default: unlimited.
        import_limit: Option<Located<BoundedCount<1, 10_000_000>>>,
        /// Action on a member that exceeds `import_limit`.
        limit_action: LimitAction = word(LimitAction::Disable),
        /// Rejects routes whose origin is invalid (RFC 6811). stayrtr provides the route origin authorizations by RTR
        /// (RFC 8210): one for each member, with all its prefixes.
        rpki: bool = true,
        /// Changes of members during the run.
        schedule: List<MemberChangeTable>,
    }
}

choice!(LimitAction {
    /// Close the session, until an operator enables it again.
    "disable" => LimitAction::Disable,
    /// Reject further prefixes.
    "block" => LimitAction::Block,
});

tagged! {
    /// Change of a member during the run.
    pub(crate) enum MemberChangeTable "a change" by "action" {
        /// Announces further prefixes of its own.
        Announce(AnnouncedPrefixes) = "announce",
        /// Announces prefixes of the next members, with itself as the origin.
        Leak(AnnouncedPrefixes) = "leak",
        /// Withdraws and announces its prefixes repeatedly, as fast as the server takes the messages.
        Flood(Flood) = "flood",
        /// Closes its session permanently.
        Shutdown(Shutdown) = "shutdown",
    }
}

table! {
    /// Announcement of further prefixes.
    pub(crate) struct AnnouncedPrefixes "a change" {
        /// Time of the change.
        at: Located<Duration>,
        /// Member that changes.
        member: Located<NodeName>,
        /// Number of prefixes.
        routes: Located<BoundedCount<1, 1_000_000>>,
    }
}

table! {
    /// Repeated withdrawal and announcement.
    pub(crate) struct Flood "a change" {
        /// Time of the change.
        at: Located<Duration>,
        /// Member that changes.
        member: Located<NodeName>,
        /// Duration.
        duration: PositiveDuration,
    }
}

table! {
    /// End of a session.
    pub(crate) struct Shutdown "a change" {
        /// Time of the change.
        at: Located<Duration>,
        /// Member that changes.
        member: Located<NodeName>,
    }
}

table! {
    /// Routers with FRR's routing daemons.
    pub(crate) struct Frr "service \"frr\"" {
        /// Core routers, of kind "router": they switch labels, run OSPF between them and LDP on all links, and have
        /// routes to the edges only. Default: none; all edges are linked to one node of kind "lan", and peer over it.
        core: Option<Located<List<Located<NodeName>, 1, 1_000>>>,
        /// Edge routers and their AS numbers. They push and pop labels, and advertise the nodes behind them.
        edges: Located<NamedTables<BoundedCount<1, 4_294_967_294>>>,
        /// IPv6 between edges: over IPv4 LSPs (6PE, RFC 4798), or on the LAN.
        ipv6: bool = true,
        /// Hello interval of OSPF and LDP; on a LAN, the keepalive interval of BGP.
        hello: Located<PositiveDuration> = "1 s",
        /// Time without a hello, or on a LAN a keepalive, after which a neighbor is down.
        dead: Located<PositiveDuration> = "4 s",
        /// Interval of BFD packets between core routers; on a LAN, between BGP peers. A neighbor is down after three
        /// intervals without a packet. Packets over a failed link of the core then take bypass LSPs, until OSPF has
        /// found new routes. Without it, only `dead` detects failures.
        bfd: Option<Located<PositiveDuration>>,
        /// Maximum wait for all routes before the run starts.
        patience: PositiveDuration = "90 s",
    }
}

table! {
    /// iSCSI reads of a disk.
    pub(crate) struct Iscsi "service \"iscsi\"" {
        /// Host that reads (initiator).
        client: Located<NodeName>,
        /// Host with the disk (target).
        server: Located<NodeName>,
        /// Size of a read, a multiple of 512 B.
        block: Located<BoundedSize<512, 16_777_216>> = "64 KiB",
        /// Outstanding commands.
        queue_depth: BoundedCount<1, 1_000> = 8,
        /// Start time of the client.
        start: Located<Duration> = "0 s",
        /// VPN that carries the client's packets.
        vpn: Option<Located<VpnName>>,
        /// TCP settings, as far as routes of the host can set them: window, segment size and algorithm.
        tcp: Option<Located<Rc<TcpTable>>>,
        /// Nodes between client and server, in order; default: the shortest path.
        via: Option<Located<List<Located<NodeName>>>>,
        /// Nodes of the reverse path, in order; default: the same path reversed.
        reverse_via: Option<Located<List<Located<NodeName>>>>,
    }
}

table! {
    /// Transfer of a file from server to client.
    pub(crate) struct FtpServiceTable "service \"ftp\"" {
        /// Host that downloads the file.
        client: Located<NodeName>,
        /// Host with the file.
        server: Located<NodeName>,
        /// Size of the file.
        size: BoundedSize<32, 4_294_967_295>,
        /// Start time of the client.
        start: Located<Duration> = "0 s",
        /// VPN that carries the client's packets.
        vpn: Option<Located<VpnName>>,
        /// TCP settings, as far as routes of the host can set them: window, segment size and algorithm.
        tcp: Option<Located<Rc<TcpTable>>>,
        /// Nodes between client and server, in order; default: the shortest path.
        via: Option<Located<List<Located<NodeName>>>>,
        /// Nodes of the reverse path, in order; default: the same path reversed.
        reverse_via: Option<Located<List<Located<NodeName>>>>,
    }
}
