//! Tables of the configuration file.

use super::{ConvergenceEvent, Generator, LabelSource, Operation, PacketSize, Profile, RouteSource};
use crate::address::{Address, LabelNumber, LinkAddress};
use crate::error::Problems;
use crate::scalar::{
    BoundedCount, BoundedSize, FilePath, InterfaceName, PositiveDuration, Probability, text,
};
use crate::table::{Decode, List, Located, NamedTables, ValueKind, choice, mismatch, table};
use crate::tree::TomlNode;
use netstage_core::forward::TunnelModel;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

table! {
    /// Configuration of a router tester.
    pub(crate) struct TesterFile "the file" {
        /// Tests and their parameters.
        tester: TesterSection,
        /// Interfaces of this host that are connected to the router, by name.
        port: NamedTables<TesterPortTable>,
        /// Routes of the router, and destinations of packets.
        routes: TesterRoutesTable,
        /// Labels, for operations that use them.
        labels: Option<Located<LabelsTable>>,
        /// BGP sessions that advertise routes.
        bgp: Option<Located<Bgp>>,
        /// Withdrawal and advertisement of routes during traffic.
        convergence: Option<Located<Convergence>>,
    }
}

table! {
    /// Tests and their parameters.
    pub(crate) struct TesterSection "[tester]" {
        /// Name of the router in reports.
        router: String = "router",
        /// Test profile: methods, packets and durations.
        profile: Profile = "paper",
        /// Forwarding operations to test. Default: all operations of the profile.
        operations: Option<Located<List<Operation, 1, 6>>>,
        /// Sizes of IP packets, including headers; at least 66 B for IPv6. Default: the sizes of the profile.
        sizes: Option<Located<List<PacketSize, 1, 100>>>,
        /// Sending ports.
        from: List<Located<PortName>, 1, 8>,
        /// Receiving ports.
        to: List<Located<PortName>, 1, 8>,
        /// Send in both directions. Rates are then totals of both directions.
        bidirectional: bool = false,
        /// Line rate of a port, including Ethernet preamble and gap; it is 100 % in results.
        line: BitRate = "1 Gbit/s",
        /// Maximum rate at the IP layer. Default: the line rate of the sending ports.
        max_rate: Option<BitRate>,
        /// Duration of a decisive trial. Default: the duration of the profile.
        trial: Option<PositiveDuration>,
        /// Duration of the shorter trials that narrow the range first (profile `paper`).
        search: PositiveDuration = "2 s",
        /// Resolution of the search, as a rate at the IP layer (profile `paper`).
        step: BitRate = "1 Mbit/s",
        /// Waiting time for packets in flight at the end of a trial.
        drain: Duration = "500 ms",
        /// Expected handling of the time to live and traffic class of labels by the router.
        model: TunnelModel = "uniform",
        /// Number of routers on the path of the packets, each of which decreases the time to live.
        hops: BoundedCount<1, 32> = 1,
        /// Packet generator.
        generator: Generator = "auto",
        /// Loss ratios such as ["0 %", "0.5 %"]: for each, the highest rate whose loss does not exceed it is searched (MLRsearch, RFC 9971), and the loss is measured at rates down from the maximum (RFC 2544, 26.3).
        loss_ratios: Option<List<Located<Probability>, 1, 8>>,
        /// Runs of every search. Several runs give a confidence interval.
        repeat: BoundedCount<1, 1_000> = 1,
        /// Time limit for the router to install advertised routes and labels.
        ready_within: PositiveDuration = "60 s",
    }
}

table! {
    /// Interface connected to the router.
    pub(crate) struct TesterPortTable "a port" {
        /// Name of the interface. Received test packets do not reach the kernel; other packets do.
        interface: Located<InterfaceName>,
        /// Address of the tester on the link, with the prefix length. The interface has it while the tester runs.
        address: Located<LinkAddress>,
        /// Address of the router on the link.
        router: Located<Address>,
        /// Name of the router's interface, for `--setup`.
        router_interface: Option<String>,
    }
}

table! {
    /// Routes of the router, and destinations of packets.
    pub(crate) struct TesterRoutesTable "[routes]" {
        /// First network: an IPv4 /24 such as "11.0.0.0", or an IPv6 /48 such as "2001:db8::". The others follow it. It determines the IP version of packets.
        first: Located<Address> = "11.0.0.0",
        /// Number of networks per direction.
        count: BoundedCount<1, 1_000_000> = 50_000,
        /// Source of the router's routes.
        by: Located<RouteSource> = "manual",
    }
}

table! {
    /// Labels, for operations that use them. These are the labels of the first peer; those of other peers follow.
    pub(crate) struct LabelsTable "[labels]" {
        /// Source of the router's labels. With LDP and RSVP-TE each port acts as a separate router, and the router under test assigns the labels it swaps and pops.
        by: LabelSource = "manual",
        /// Label that the router pushes for the first peer. Networks are distributed over peers in turn.
        push: LabelNumber = 1_000,
        /// Label that the router swaps.
        swap: LabelNumber = 2_000,
        /// Label that replaces it.
        swap_to: LabelNumber = 3_000,
        /// Label that the router pops before it looks up the packet below.
        pop: LabelNumber = 4_000,
        /// Label that the router pops for the next router, without a lookup.
        php: LabelNumber = 5_000,
        /// Address of the first peer, the end of the router's label switched path. It is the next hop of BGP routes, for PUSH. The router needs a route to it.
        loopback: Address = "198.51.100.1",
        /// With LDP and RSVP-TE: address of the router itself, for POP. Default: its address on the link of the sending port.
        router_loopback: Option<Address>,
        /// Number of label switched paths, each to a separate peer. The peers are behind the receiving ports in turn.
        peers: BoundedCount<1, 64> = 1,
    }
}

table! {
    /// BGP sessions that advertise routes, one from each receiving port.
    pub(crate) struct Bgp "[bgp]" {
        /// Autonomous system number of the tester.
        own_as: BoundedCount<1, 4_294_967_295> = 65_002,
        /// Autonomous system number of the router.
        router_as: BoundedCount<1, 4_294_967_295> = 65_001,
        /// Key of the TCP MD5 option (RFC 2385).
        md5: Option<String>,
        /// File of additional routes, relative to this file, which give the router a table as large and as varied as a real one: an MRT file (RFC 6396, optionally compressed with gzip), or a text file with a prefix and a next hop per line. The first receiving port advertises them with itself as next hop. Routes to tested networks or parts of them are omitted.
        additional_routes: Option<Located<FilePath>>,
    }
}

table! {
    /// Convergence tests: during traffic, the routes of the first receiving port are withdrawn and advertised by BGP, its labels or its session end and return by LDP, or a link or router fails. If `operations` is not set, no other test runs.
    pub(crate) struct Convergence "[convergence]" {
        /// Events, each in a trial of its own. Default: `failure` with `fail_command`, otherwise `withdraw` and `announce`.
        events: Option<Located<List<ConvergenceEvent, 1, 9>>>,
        /// Program and arguments that cause the failure of a link or router. The tester runs it once during traffic, as its own user and in its own network namespace.
        fail_command: Option<List<String, 1, 64>>,
        /// Program and arguments that end the failure after the trial.
        repair_command: Option<List<String, 1, 64>>,
        /// Forwarding operation of the packets when a link or router fails, or with events of LDP: `push`, `swap`, `php` or `unlabeled`, whose packets leave with the label or by the LSP of the tester. Default: `swap` with events of LDP, otherwise `ip`.
        operation: Option<Located<Operation>>,
        /// Time from the loss of the session to the restart of the LDP speaker (`ldp-restart`).
        restart_after: PositiveDuration = "1 s",
        /// FT Reconnect Timeout and Recovery Time that the tester advertises in the trial of `ldp-restart` (RFC 3478), in whole milliseconds: the time for which the router is to keep the labels.
        reconnect_time: Located<PositiveDuration> = "30 s",
        /// Packet rate at the IP layer. Packets go to the networks in turn, so the resolution of times is the interval between two packets to the same network.
        rate: BitRate = "100 Mbit/s",
        /// Size of the IP packets, including headers. Default: 46 B, or 66 B for IPv6.
        size: Option<BoundedSize<46, 9_000>>,
        /// Time from the first packet to the event.
        before: PositiveDuration = "1 s",
        /// Time from the event to the last packet. Must be longer than the convergence time of the router.
        after: PositiveDuration = "10 s",
    }
}

text! {
    /// Name of a port.
    PortName = "the name of a port";
}

choice!(Profile {
    /// Comparison of routers for MPLS-IX: IP, PUSH, SWAP and POP with packets of 46 to 1498 B, in steps of 1 Mbit/s. In trials of 60 s no packet may be lost, and the mean delay per second may neither grow nor reach ten times the delay at a low rate.
    "paper" => Profile::Paper,
    /// RFC 2544 for IP: throughput, latency at that rate, and loss at higher rates.
    "rfc2544" => Profile::Rfc2544,
    /// RFC 5695: the same for PUSH, SWAP, POP, PHP, and the last label popped without a lookup below it.
    "rfc5695" => Profile::Rfc5695,
    /// MLRsearch (RFC 9971) for IP, PUSH, SWAP and POP.
    "mlrsearch" => Profile::Mlrsearch,
});

choice!(Operation {
    /// IP packets arrive and leave without labels.
    "ip" => Operation::Ip,
    /// IP packets arrive and leave with a label.
    "push" => Operation::Push,
    /// Packets arrive with a label and leave with another one.
    "swap" => Operation::Swap,
    /// Packets arrive with a label and leave without it, by the route of their address.
    "pop" => Operation::Pop,
    /// Packets arrive with two labels and leave with the inner one.
    "php" => Operation::Php,
    /// Packets arrive with a label and leave without it, forwarded by the label alone.
    "unlabeled" => Operation::Unlabeled,
});

choice!(ConvergenceEvent {
    /// All routes are withdrawn: packets stop, or leave through the other receiving ports, which advertise the same routes as backup.
    "withdraw" => ConvergenceEvent::Withdraw,
    /// All routes are advertised again.
    "announce" => ConvergenceEvent::Announce,
    /// `fail_command` causes the failure of a link or router.
    "failure" => ConvergenceEvent::Failure,
    /// The LDP session of the first receiving port ends without a notification: the TCP connection is reset, and the port sends no more hellos. Packets stop, or move to the other receiving ports, which advertise labels for the same LSPs.
    "ldp-session-loss" => ConvergenceEvent::LdpSessionLoss,
    /// The LDP session of the first receiving port ends with a Shutdown notification.
    "ldp-shutdown" => ConvergenceEvent::LdpShutdown,
    /// The LDP session of the first receiving port is established again; the time starts when it is up.
    "ldp-session-up" => ConvergenceEvent::LdpSessionUp,
    /// The first receiving port withdraws the labels of all LSPs (Label Withdraw).
    "label-withdraw" => ConvergenceEvent::LabelWithdraw,
    /// The first receiving port advertises the labels again (Label Mapping).
    "label-mapping" => ConvergenceEvent::LabelMapping,
    /// The LDP speaker of the first receiving port restarts: it has advertised graceful restart (FT Session TLV, RFC 3478), its session is lost, and it comes back after `restart_after`.
    "ldp-restart" => ConvergenceEvent::LdpRestart,
});

choice!(RouteSource {
    /// You configure them. `netstage test router CONFIG --setup` prints the configuration for some routers.
    "manual" => RouteSource::User,
    /// The tester advertises them with BGP-4.
    "bgp" => RouteSource::Bgp,
});

choice!(LabelSource {
    /// You configure them. `netstage test router CONFIG --setup` prints the configuration for some routers.
    "manual" => LabelSource::User,
    /// The tester advertises them with LDP (RFC 5036).
    "ldp" => LabelSource::Ldp,
    /// The tester signals them with RSVP-TE (RFC 3209), as LSPs through the router; for PUSH, the router signals LSPs to the peers.
    "rsvp-te" => LabelSource::RsvpTe,
});

choice!(Generator {
    /// Fastest generator that the sending interfaces support. The report names it, and why faster ones were not used.
    "auto" => Generator::Auto,
    /// Kernel program (XDP live frames).
    "xdp" => Generator::Xdp,
    /// AF_XDP: slower, with an individual departure time for each packet.
    "af-xdp" => Generator::AfXdp,
    /// AF_PACKET: slowest, works with any driver.
    "af-packet" => Generator::AfPacket,
});

impl Decode for PacketSize {
    fn kind() -> ValueKind {
        ValueKind::Text("a size such as \"46 B\", or \"imix\"")
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        match node.text() {
            None => mismatch(node, &Self::kind(), problems),
            Some("imix") => Some(PacketSize::Imix { smallest: super::build::MIN_IPV4 }),
            Some(_) => BoundedSize::<46, 9_000>::decode(node, problems)
                .map(|bytes| PacketSize::Bytes(bytes.0 as u32)),
        }
    }
}
