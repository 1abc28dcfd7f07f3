//! Tables of the configuration file.

use super::{CounterGranularity, FastPath, KilledBehavior};
use crate::address::{Address, HopText, LabelNumber, Listen, Loopback, PrefixText, V4Address};
use crate::file::control::ClassTable;
use crate::key::SharedKey;
use crate::scalar::{BoundedCount, FilePath, InterfaceName, PositiveDuration};
use crate::table::{List, Located, NamedTables, choice, table};
use netstage_core::forward::TunnelModel;
use netstage_core::quantity::BitRate;
use netstage_core::rsvp::EgressLabel;

table! {
    /// Configuration of a router.
    pub(crate) struct RouterFile "the file" {
        /// Settings of the router.
        router: RouterSection,
        /// VPNs, by name: groups of interfaces with their own address space.
        vpn: NamedTables<RouterVpnTable>,
        /// Interfaces with a limited sending rate, by name.
        port: NamedTables<RouterPortTable>,
        /// RSVP-TE. Default: the router does not speak it.
        rsvp: Option<Located<RsvpSection>>,
        /// BFD. Default: the router does not speak it.
        bfd: Option<Located<BfdSection>>,
        /// Loop-free alternates. Default: none.
        alternates: Option<Located<AlternatesSection>>,
    }
}

table! {
    /// Settings of the router.
    pub(crate) struct RouterSection "[router]" {
        /// Interfaces to forward between. The kernel keeps their addresses and neighbors, and does not forward packets received on them.
        interfaces: List<Located<InterfaceName>, 1, 64>,
        /// Interfaces that accept labeled packets.
        mpls: List<Located<InterfaceName>>,
        /// Interfaces that drop forwarded packets without labels unless a route to their source leads over the same interface (strict uRPF, RFC 3704). For customers with one link; `ip route` of the customers' networks must lead there.
        urpf_strict: List<Located<InterfaceName>>,
        /// Interfaces that drop forwarded packets without labels unless some route leads to their source (loose uRPF, RFC 3704). Packets from the prefix of a discard route are dropped as well.
        urpf_loose: List<Located<InterfaceName>>,
        /// Control socket, for `netstage router show` and `reload`.
        control: FilePath = "/run/netstage-router.sock",
        /// Listening address and port of the Prometheus exporter. Default: no exporter.
        metrics: Option<Listen>,
        /// File of routes and labels, relative to this file.
        routes: Option<FilePath>,
        /// Use routes and labels of the kernel as well, as set with `ip route` or by a routing daemon.
        follow_kernel: bool = true,
        /// Listening address for FRR's forwarding plane manager (zebra's module `dplane_fpm_nl`), whose routes and labels take precedence over those of the kernel. Must be a loopback address, because connections are not authenticated.
        fpm: Option<Loopback>,
        /// Forwarding path.
        fast_path: FastPath = "auto",
        /// Relation of the time to live and traffic class of a label to those of the packet below.
        model: TunnelModel = "uniform",
        /// Maximum number of IPv4 /24 networks that contain longer prefixes; 1 kB each.
        v4_rows: BoundedCount<16, 4_194_304> = 16384,
        /// Memory for IPv6 routes in kB. A prefix takes 1 kB for every 8 bits after the first 16 that it does not share with other prefixes.
        v6_rows: BoundedCount<16, 4_194_304> = 65536,
        /// Maximum number of next hops and groups of next hops. If each prefix has a counter, each takes one as well.
        next_hops: BoundedCount<16, 1_048_576> = 65536,
        /// Granularity of packet counters of routes.
        count: CounterGranularity = "next-hop",
        /// Behavior of the kernel program when the router process is killed.
        when_killed: KilledBehavior = "stop",
        /// Folder in a bpffs where the kernel program is pinned with `when_killed = "forward"`. It is created if missing.
        pins: FilePath = "/sys/fs/bpf/netstage",
    }
}

table! {
    /// A VPN.
    pub(crate) struct RouterVpnTable "a VPN" {
        /// Interfaces of the VPN.
        interfaces: List<Located<InterfaceName>, 1, 64>,
        /// Kernel routing table of the VPN (`ip route show table`).
        kernel_table: Option<BoundedCount<1, 4_294_967_294>>,
    }
}

table! {
    /// Interface with a limited sending rate. Its frames are sent in user space.
    pub(crate) struct RouterPortTable "a port" {
        /// Sending rate of frames, including the Ethernet header.
        rate: BitRate,
        /// Queue classes, selected by DSCP, or by the traffic class of labeled packets, which maps to the eight class selectors. Packets that match no class use the last one. Default: one FIFO queue.
        classes: List<ClassTable, 0, 64>,
    }
}

table! {
    /// RSVP-TE (RFC 3209): label-switched paths along explicit routes, with reserved bandwidth.
    pub(crate) struct RsvpSection "[rsvp]" {
        /// Router ID: IPv4 address of this host at which LSPs begin and end, such as one of the loopback interface.
        router_id: V4Address,
        /// Interfaces that speak RSVP-TE, by name. They accept labeled packets.
        interface: NamedTables<RsvpInterfaceTable>,
        /// LSPs that begin at this router, by name.
        tunnel: NamedTables<RsvpTunnelTable>,
        /// First label that RSVP-TE assigns; labels of other sources must be below.
        first_label: LabelNumber = 524_288,
        /// Label with which packets arrive in LSPs that end here.
        egress: EgressLabel = "implicit-null",
        /// Mean interval between refreshes of the state of an LSP.
        refresh: PositiveDuration = "30 s",
        /// Interval between hellos to neighbors; a neighbor that does not answer for 3.5 intervals is regarded as failed.
        hello: PositiveDuration = "3 s",
    }
}

table! {
    /// Interface that speaks RSVP-TE.
    pub(crate) struct RsvpInterfaceTable "an RSVP-TE interface" {
        /// Bandwidth for reservations of sent packets. Default: no limit.
        bandwidth: Option<BitRate>,
        /// Keys shared with all neighbors on the interface, which authenticate messages (RFC 2747). The first one signs; all are accepted. Default: no authentication.
        keys: List<Located<SharedKey>>,
    }
}

table! {
    /// LSP that begins at this router. It is set up again when it fails. After a change, packets stay on the previous path until the new one is established.
    pub(crate) struct RsvpTunnelTable "a tunnel" {
        /// Router ID of the last router.
        to: V4Address,
        /// Explicit route without this router: strict hops are neighbors of the hop before, loose hops are reached by routes. Default: by routes.
        route: List<HopText, 0, 64>,
        /// Bandwidth to reserve. Default: none.
        bandwidth: Option<BitRate>,
        /// Prefixes in the main table whose packets take the LSP while it is up.
        prefixes: List<Located<PrefixText>>,
        /// Routers on the way keep the LSP when a link fails, and send its packets through their bypass LSPs (local protection, RFC 4090).
        local_protection: bool = false,
        /// Neighbor whose packets take the LSP while the neighbor or the link to it has failed (facility backup, RFC 4090): its address on the link. The LSP ends at this neighbor, and `route` leads around the link.
        protects: Option<Located<V4Address>>,
    }
}

table! {
    /// BFD (RFC 5880): fast detection of failed neighbors. A failed neighbor gets no packets of routes that have other next hops, and its RSVP-TE LSPs end.
    pub(crate) struct BfdSection "[bfd]" {
        /// Addresses of neighbors on the links of the router's interfaces.
        neighbors: List<Located<Address>, 0, 1_024>,
        /// Socket of FRR's bfdd, whose sessions the router runs instead of `neighbors`, with bfdd's intervals. bfdd is started with `--dplaneaddr unix:PATH`.
        bfdd: Option<Located<FilePath>>,
        /// Interval at which packets are sent and expected. The longer interval of both neighbors applies.
        interval: Located<PositiveDuration> = "50 ms",
        /// Number of intervals without a packet after which a neighbor is down.
        multiplier: BoundedCount<1, 255> = 3,
    }
}

table! {
    /// Loop-free alternates (RFC 5286): packets to a failed neighbor take another one that forwards them without this router. They are calculated from the link-state database of FRR's ospfd, and replace labels with those that ldpd has received from the other neighbor.
    pub(crate) struct AlternatesSection "[alternates]" {
        /// Command-line socket of ospfd, such as `/run/frr/ospfd.vty`, relative to this file.
        ospfd: FilePath,
        /// Command-line socket of ldpd. Required if interfaces accept labels.
        ldpd: Option<FilePath>,
    }
}

choice!(EgressLabel {
    /// None: the router before removes the label.
    "implicit-null" => EgressLabel::ImplicitNull,
    /// Explicit null, which keeps the traffic class.
    "explicit-null" => EgressLabel::ExplicitNull,
    /// A label for each LSP.
    "own" => EgressLabel::Own,
});

choice!(FastPath {
    /// XDP on interfaces that support it, user space on others.
    "auto" => FastPath::Auto,
    /// XDP, with an error if an interface does not support it.
    "xdp" => FastPath::Xdp,
    /// User space.
    "off" => FastPath::Off,
});

choice!(CounterGranularity {
    /// One counter for all routes with the same next hops.
    "next-hop" => CounterGranularity::NextHop,
    /// One counter per prefix.
    "prefix" => CounterGranularity::Prefix,
});

choice!(KilledBehavior {
    /// It stops forwarding.
    "stop" => KilledBehavior::Stop,
    /// It continues to forward with its current routes, and the next router process takes over without a gap. `netstage clean` removes it.
    "forward" => KilledBehavior::Forward,
});

choice!(TunnelModel {
    /// Uniform model (RFC 3443): each hop of an LSP counts for the packet.
    "uniform" => TunnelModel::Uniform,
    /// Pipe model: the LSP has its own values, and counts as one hop.
    "pipe" => TunnelModel::Pipe,
});
