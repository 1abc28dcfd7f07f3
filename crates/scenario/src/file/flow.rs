//! `[flow.NAME]`: sender, receivers, transport and traffic pattern.

use super::application::{
    Blocks, FtpTraffic, Gaming, LearnedModel, Lookups, Pages, RequestResponse, Video, VideoFrames, Voip,
};
use crate::plan::IpVersion;
use crate::scalar::{
    AboveOne, BoundedCount, BoundedSize, FilePath, Fraction, GroupAddress, NodeName, Positive,
    PositiveDuration, VpnName,
};
use crate::table::{Decode, List, Located, OneOrMore, choice, disowned, merge, table, tagged};
use crate::tree::{TomlNode, TomlTable};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use std::rc::Rc;

table! {
    /// Flow, or a group of flows that differ only in number and start time.
    pub(crate) struct FlowTable "a flow" {
        /// Sending host; with an application, the client.
        from: Located<NodeName>,
        /// Receiving host; with an application, the server. A multicast flow may have a list of hosts.
        to: Located<OneOrMore<Located<NodeName>>>,
        /// VPN that carries the flow.
        vpn: Option<Located<VpnName>>,
        /// Transport protocol.
        transport: Located<TransportChoice> = "tcp",
        /// IP version. Default: "v4"; on `live`, "v6" if that is the only one that both hosts have.
        ip: Option<Located<IpVersion>>,
        /// TCP settings.
        tcp: Option<Located<Rc<TcpTable>>>,
        /// UDP settings.
        udp: Option<Located<UdpTable>>,
        /// Group of a multicast flow.
        multicast: Option<Located<MulticastTable>>,
        /// Traffic pattern or application.
        traffic: Located<Rc<TrafficTable>> = "bulk",
        /// Number of flows; several flows are named `NAME[0]`, `NAME[1]`, …
        count: Located<BoundedCount<1, 1_000_000>> = 1,
        /// Start time of the first flow.
        start: Located<Duration> = "0 s",
        /// Interval between the start times of consecutive flows.
        stagger: Duration = "0 s",
        /// Time at which the application stops sending; default: the end of the run.
        stop: Option<Located<Duration>>,
        /// Whether the flow is background load, whose rate is not available to the VPNs.
        background: bool = false,
        /// Nodes between sender and receiver, in order; default: the shortest path.
        via: Option<Located<List<Located<NodeName>>>>,
        /// Nodes of the reverse path, in order; default: the same path reversed.
        reverse_via: Option<Located<List<Located<NodeName>>>>,
    }
}

/// Transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportChoice {
    Tcp,
    Udp,
    Multicast,
    IcmpEcho,
    UdpUnreachable,
    Quic,
}

choice!(TransportChoice {
    /// TCP.
    "tcp" => TransportChoice::Tcp,
    /// UDP.
    "udp" => TransportChoice::Udp,
    /// UDP to a multicast group; not on `sim`.
    "multicast" => TransportChoice::Multicast,
    /// ICMP echo: one-ended; any host answers with the same number of bytes.
    "icmp-echo" => TransportChoice::IcmpEcho,
    /// UDP to a closed port: one-ended; the host answers port unreachable.
    "udp-unreachable" => TransportChoice::UdpUnreachable,
    /// QUIC (RFC 9000); not on `sim`.
    "quic" => TransportChoice::Quic,
});

choice!(IpVersion {
    /// IPv4.
    "v4" => IpVersion::V4,
    /// IPv6.
    "v6" => IpVersion::V6,
});

table! {
    /// UDP settings; `sim` ignores `batch` and `pacing`.
    pub(crate) struct UdpTable "udp" {
        /// DSCP (RFC 2474), by which routers, and PEs with classes, prioritize packets; 46 is voice.
        dscp: BoundedCount<0, 63> = 0,
        /// Send a checksum. Without one (IPv4 only), packets with bit errors reach the receiver.
        checksum: bool = true,
        /// Fill payloads with a known pattern, and count bit errors.
        compare: bool = false,
        /// Packets per buffer handed to the kernel (UDP GSO); above 1, packets are not timed individually.
        batch: BoundedCount<1, 64> = 1,
        /// Waiting of the sender until a packet is due.
        pacing: Pacing = "sleep",
    }
}

/// Waiting of a sender until a packet is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pacing {
    Sleep,
    Spin,
}

choice!(Pacing {
    /// Sleeps, and spins at the end for at most a fifth of the time.
    "sleep" => Pacing::Sleep,
    /// Spins on a [CPU of its own](traffic.md#pacing), for all flows that the host sends on schedule.
    "spin" => Pacing::Spin,
});

table! {
    /// Group of a multicast flow. The paths to all receivers leave the sender on one link.
    pub(crate) struct MulticastTable "multicast" {
        /// Group address; default: a unique one is chosen.
        group: Option<Located<GroupAddress>>,
        /// Senders whose packets the receivers accept.
        source: AcceptedSenders = "any",
        /// Maximum number of links on a path: the TTL or IPv6 hop limit.
        hops: BoundedCount<1, 255> = 32,
    }
}

/// Senders whose packets the receivers of a group accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptedSenders {
    Any,
    Sender,
}

choice!(AcceptedSenders {
    /// Any sender (any-source multicast).
    "any" => AcceptedSenders::Any,
    /// The sender of the flow only (source-specific multicast, RFC 4607).
    "sender" => AcceptedSenders::Sender,
});

table! {
    /// TCP settings.
    pub(crate) struct TcpTable "tcp" {
        /// Implementation that the simulator follows; real packets have that of the host.
        stack: TcpStack = "rfc",
        /// Congestion control algorithm.
        algorithm: Located<Algorithm> = "newreno",
        /// With `aimd`: additive increase in segments per round trip.
        increase: Option<Located<Positive>>,
        /// With `aimd`: multiplicative decrease.
        decrease: Option<Located<Fraction>>,
        /// End of slow start; `linux-cubic` has a rule of its own.
        slow_start: SlowStart = "standard",
        /// Selective acknowledgments (RFC 2018).
        sack: bool = true,
        /// Loss detection; `rack` needs `sack`.
        loss_detection: Located<LossDetection> = "duplicate-acks",
        /// Explicit congestion notification (RFC 3168).
        ecn: bool = false,
        /// Timestamps (RFC 7323): 12 bytes per segment, a round-trip sample per ACK.
        timestamps: bool = true,
        /// Maximum payload of a segment.
        max_segment_size: BoundedSize<1, 65_483> = "1448 B",
        /// Advertised window of the receiver.
        window: BoundedSize<1, 1_073_725_440> = "64 KiB",
        /// Initial congestion window in segments.
        initial_window: BoundedCount<1, 10_000> = 10,
        /// Segments per acknowledgment.
        ack_every: BoundedCount<1, 1_000> = 2,
        /// Maximum delay of an acknowledgment.
        delayed_ack: Duration = "200 ms",
        /// Minimum retransmission timeout (RFC 6298).
        min_rto: PositiveDuration = "1 s",
        /// Retransmission timeout before the first round-trip sample.
        initial_rto: PositiveDuration = "1 s",
        /// Limited transmit (RFC 3042): a new segment on each of the first two duplicate ACKs.
        limited_transmit: bool = true,
        /// Open the connection with SYN and SYN-ACK; otherwise data is sent at once.
        handshake: bool = true,
        /// DSCP of the sender's packets (RFC 2474); acknowledgments of real packets have that of their host.
        dscp: BoundedCount<0, 63> = 0,
    }
}

/// Congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Reno,
    NewReno,
    Cubic,
    LinuxCubic,
    Aimd,
}

choice!(Algorithm {
    /// RFC 5681; fast recovery ends at the first new ACK.
    "reno" => Algorithm::Reno,
    /// RFC 6582.
    "newreno" => Algorithm::NewReno,
    /// RFC 9438.
    "cubic" => Algorithm::Cubic,
    /// RFC 9438 as in Linux: with small windows as fast as Reno, not faster, and with HyStart, which ends slow start before the
    /// first loss.
    "linux-cubic" => Algorithm::LinuxCubic,
    /// Configured increase and decrease, with NewReno's recovery.
    "aimd" => Algorithm::Aimd,
});

/// Loss detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpStack {
    Rfc,
    Linux,
}

choice!(TcpStack {
    /// The recommendations of the RFCs, and the settings below.
    "rfc" => TcpStack::Rfc,
    /// Linux 6.18: `loss_detection = "rack"` if `sack` is true, `cubic` as `linux-cubic`, `ack_every = 2`, `delayed_ack = "40 ms"`, `min_rto = "200 ms"`, limited transmit and handshake, in place of these settings, and [other choices](tcp.md#as-in-linux).
    "linux" => TcpStack::Linux,
});

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlowStart {
    Standard,
    HyStartPlusPlus,
}

choice!(SlowStart {
    /// At the first loss or mark.
    "standard" => SlowStart::Standard,
    /// HyStart++ (RFC 9406): the first slow start also ends when the delay increases.
    "hystart++" => SlowStart::HyStartPlusPlus,
});

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossDetection {
    DuplicateAcks,
    Rack,
}

choice!(LossDetection {
    /// Three duplicate ACKs, or enough segments received above the lost one (RFC 6675).
    "duplicate-acks" => LossDetection::DuplicateAcks,
    /// RACK-TLP (RFC 8985) with Proportional Rate Reduction (RFC 9937), as in Linux.
    "rack" => LossDetection::Rack,
});

tagged! {
    /// Traffic pattern or application of a flow.
    pub(crate) enum TrafficTable "traffic" by "model" {
        /// Bulk transfer, limited only by the transport.
        Bulk(Bulk) = "bulk",
        /// Constant bit rate.
        Cbr(Constant) = "cbr",
        /// Packets at exponential intervals.
        Poisson(Poisson) = "poisson",
        /// Constant bit rate in on phases; both phases exponential.
        OnOff(OnOff) = "on-off",
        /// Constant bit rate in on phases; both phases Pareto, so that the sum of many flows is self-similar.
        Pareto(Pareto) = "pareto",
        /// Markov-modulated Poisson process: a Poisson process whose rate changes between states.
        Mmpp(Mmpp) = "mmpp",
        /// Packet intervals and sizes from a file.
        Trace(Trace) = "trace",
        /// File transfers over separate connections. This and all following models have a client and a server.
        Ftp(FtpTraffic) = "ftp",
        /// Web pages with many objects.
        Web(Pages) = "web",
        /// Adaptive video.
        Video(Video) = "video",
        /// Video in frames, sent at the frame rate.
        VideoFrames(VideoFrames) = "video-frames",
        /// Telephone call.
        Voip(Voip) = "voip",
        /// DNS lookups.
        Dns(Lookups) = "dns",
        /// Game.
        Gaming(Gaming) = "gaming",
        /// Requests and responses.
        RequestResponse(RequestResponse) = "request-response",
        /// Reads and writes of blocks.
        BlockStorage(Blocks) = "block-storage",
        /// Model learned from a capture.
        Learned(LearnedModel) = "learned",
    }
}

table! {
    /// Bulk transfer.
    pub(crate) struct Bulk "traffic \"bulk\"" {
        /// Total bytes; default: unlimited.
        size: Option<BoundedSize<1, 4_000_000_000_000_000>>,
    }
}

/// Layer at which a rate is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateLayer {
    Payload,
    Ip,
}

choice!(RateLayer {
    /// Payload only.
    "payload" => RateLayer::Payload,
    /// Including the IP and UDP or ICMP headers; not for TCP and QUIC.
    "ip" => RateLayer::Ip,
});

table! {
    /// Constant bit rate.
    pub(crate) struct Constant "traffic \"cbr\"" {
        ..load: RateTable
    }
}

table! {
    /// Poisson packets.
    pub(crate) struct Poisson "traffic \"poisson\"" {
        ..load: RateTable
    }
}

table! {
    /// Rate and packet size.
    pub(crate) struct RateTable "traffic" {
        /// Rate; in a pattern with phases, the rate of the on phase.
        rate: Located<BitRate>,
        ..packets: PacketSize
    }
}

table! {
    /// Packet size, and the layer of the rate.
    pub(crate) struct PacketSize "traffic" {
        /// Payload of each packet.
        packet: BoundedSize<1, 65_507> = "1000 B",
        /// Layer at which the rate is counted.
        layer: Located<RateLayer> = "payload",
    }
}

table! {
    /// On and off phases with exponential lengths.
    pub(crate) struct OnOff "traffic \"on-off\"" {
        /// Mean length of an on phase.
        on: PositiveDuration,
        /// Mean length of an off phase.
        off: PositiveDuration,
        ..load: RateTable
    }
}

table! {
    /// On and off phases with Pareto lengths.
    pub(crate) struct Pareto "traffic \"pareto\"" {
        /// Mean length of an on phase.
        on: PositiveDuration,
        /// Mean length of an off phase.
        off: PositiveDuration,
        /// Shape of both distributions; below 2 they are heavy-tailed.
        shape: AboveOne = 1.5,
        ..load: RateTable
    }
}

table! {
    /// Markov-modulated Poisson process.
    pub(crate) struct Mmpp "traffic \"mmpp\"" {
        /// States; every other state follows with equal probability.
        states: List<MmppStateTable, 2, 1000>,
        ..packets: PacketSize
    }
}

table! {
    /// State of a Markov-modulated Poisson process.
    pub(crate) struct MmppStateTable "a state" {
        /// Mean rate.
        rate: Located<BitRate>,
        /// Mean duration.
        mean: PositiveDuration,
    }
}

table! {
    /// Trace of packets.
    pub(crate) struct Trace "traffic \"trace\"" {
        /// CSV file, relative to the scenario: `gap_seconds,bytes` or `time_s,bytes` per line.
        file: Located<FilePath>,
        /// Repeat the trace from the start when it ends.
        repeat: bool = false,
    }
}

/// Merges `[defaults.tcp]` into the `tcp` table of a flow or test over TCP.
pub(crate) fn apply_tcp_defaults(flow: &mut TomlTable, tcp: &TomlNode) {
    match flow.get_mut("tcp") {
        Some(own) => merge(own, tcp, &TcpTable::kind()),
        None => flow.insert("tcp", tcp.place, disowned(tcp)),
    }
}
