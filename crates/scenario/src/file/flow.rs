//! `[flow.NAME]`: sender, receivers, transport and traffic pattern.

use super::application::{
    Blocks, Ftp, Gaming, LearnedModel, Lookups, Pages, RequestResponse, Video, VideoFrames, Voip,
};
use crate::plan::Family;
use crate::scalar::{
    AboveOne, Bytes, Count, FilePath, Fraction, GroupAddress, NodeName, Positive, Span, VpnName,
};
use crate::table::{At, Decode, List, OneOrMore, choice, merge, table, tagged};
use crate::tree::{Node, Table, Value};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

table! {
    /// Flow, or a group of flows that differ only in number and start time.
    pub(crate) struct Flow "a flow" {
        /// Sending host; with an application, the client.
        from: At<NodeName>,
        /// Receiving host; with an application, the server. A multicast flow may have a list of hosts.
        to: At<OneOrMore<At<NodeName>>>,
        /// VPN that carries the flow.
        vpn: Option<At<VpnName>>,
        /// Transport protocol.
        transport: At<Transport> = "tcp",
        /// IP version.
        ip: At<Family> = "v4",
        /// TCP settings.
        tcp: Option<At<Tcp>>,
        /// UDP settings.
        udp: Option<At<Datagrams>>,
        /// Group of a multicast flow.
        multicast: Option<At<Multicast>>,
        /// Traffic pattern or application.
        traffic: At<Traffic> = "bulk",
        /// Number of flows; several flows are named `NAME[0]`, `NAME[1]`, …
        count: At<Count<1, 1_000_000>> = 1,
        /// Start time of the first flow.
        start: At<Duration> = "0 s",
        /// Interval between the start times of consecutive flows.
        stagger: Duration = "0 s",
        /// Time at which the application stops sending; default: the end of the run.
        stop: Option<At<Duration>>,
        /// Whether the flow is background load, whose rate is not available to the VPNs.
        background: bool = false,
        /// Nodes between sender and receiver, in order; default: the shortest path.
        via: Option<At<List<At<NodeName>>>>,
        /// Nodes of the reverse path, in order; default: the same path reversed.
        reverse_via: Option<At<List<At<NodeName>>>>,
    }
}

/// Transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    Multicast,
    IcmpEcho,
    UdpUnreachable,
    Quic,
}

choice!(Transport {
    /// TCP.
    "tcp" => Transport::Tcp,
    /// UDP.
    "udp" => Transport::Udp,
    /// UDP to a multicast group; not on `sim`.
    "multicast" => Transport::Multicast,
    /// ICMP echo: one-ended; any host answers with the same number of bytes.
    "icmp-echo" => Transport::IcmpEcho,
    /// UDP to a closed port: one-ended; the host answers port unreachable.
    "udp-unreachable" => Transport::UdpUnreachable,
    /// QUIC (RFC 9000); not on `sim`.
    "quic" => Transport::Quic,
});

choice!(Family {
    /// IPv4.
    "v4" => Family::V4,
    /// IPv6.
    "v6" => Family::V6,
});

table! {
    /// UDP settings; `sim` ignores `batch`.
    pub(crate) struct Datagrams "udp" {
        /// DSCP (RFC 2474), by which routers, and PEs with classes, prioritize packets; 46 is voice.
        dscp: Count<0, 63> = 0,
        /// Send a checksum. Without one (IPv4 only), packets with bit errors reach the receiver.
        checksum: bool = true,
        /// Fill payloads with a known pattern, and count bit errors.
        compare: bool = false,
        /// Packets per buffer handed to the kernel (UDP GSO); above 1, packets are not timed individually.
        batch: Count<1, 64> = 1,
    }
}

table! {
    /// Group of a multicast flow. The paths to all receivers leave the sender on one link.
    pub(crate) struct Multicast "multicast" {
        /// Group address; default: a unique one is chosen.
        group: Option<At<GroupAddress>>,
        /// Senders whose packets the receivers accept.
        source: Source = "any",
        /// Maximum number of links on a path: the TTL or IPv6 hop limit.
        hops: Count<1, 255> = 32,
    }
}

/// Senders whose packets the receivers of a group accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Any,
    Sender,
}

choice!(Source {
    /// Any sender (any-source multicast).
    "any" => Source::Any,
    /// The sender of the flow only (source-specific multicast, RFC 4607).
    "sender" => Source::Sender,
});

table! {
    /// TCP settings.
    pub(crate) struct Tcp "tcp" {
        /// Congestion control algorithm.
        algorithm: At<Algorithm> = "newreno",
        /// With `aimd`: additive increase in segments per round trip.
        increase: Option<At<Positive>>,
        /// With `aimd`: multiplicative decrease.
        decrease: Option<At<Fraction>>,
        /// Selective acknowledgments (RFC 2018).
        sack: bool = true,
        /// Loss detection; `rack` needs `sack`.
        loss_detection: At<LossDetection> = "duplicate-acks",
        /// Explicit congestion notification (RFC 3168).
        ecn: bool = false,
        /// Timestamps (RFC 7323): 12 bytes per segment, a round-trip sample per ACK.
        timestamps: bool = true,
        /// Maximum payload of a segment.
        max_segment_size: Bytes<1, 65_483> = "1448 B",
        /// Advertised window of the receiver.
        window: Bytes<1, 1_073_725_440> = "64 KiB",
        /// Initial congestion window in segments.
        initial_window: Count<1, 10_000> = 10,
        /// Segments per acknowledgment.
        ack_every: Count<1, 1_000> = 2,
        /// Maximum delay of an acknowledgment.
        delayed_ack: Duration = "200 ms",
        /// Minimum retransmission timeout (RFC 6298).
        min_rto: Span = "1 s",
        /// Retransmission timeout before the first round-trip sample.
        initial_rto: Span = "1 s",
        /// Limited transmit (RFC 3042): a new segment on each of the first two duplicate ACKs.
        limited_transmit: bool = true,
        /// Open the connection with SYN and SYN-ACK; otherwise data is sent at once.
        handshake: bool = true,
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
    /// RFC 9438, but as friendly to Reno as Linux: with small windows as fast as Reno, not faster.
    "linux-cubic" => Algorithm::LinuxCubic,
    /// Configured increase and decrease, with NewReno's recovery.
    "aimd" => Algorithm::Aimd,
});

/// Loss detection.
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
    pub(crate) enum Traffic "traffic" by "model" {
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
        Ftp(Ftp) = "ftp",
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
        size: Option<Bytes<1, 4_000_000_000_000_000>>,
    }
}

/// Layer at which a rate is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Payload,
    Ip,
}

choice!(Layer {
    /// Payload only.
    "payload" => Layer::Payload,
    /// Including the IP and UDP or ICMP headers; not for TCP and QUIC.
    "ip" => Layer::Ip,
});

table! {
    /// Constant bit rate.
    pub(crate) struct Constant "traffic \"cbr\"" {
        ..load: Load
    }
}

table! {
    /// Poisson packets.
    pub(crate) struct Poisson "traffic \"poisson\"" {
        ..load: Load
    }
}

table! {
    /// Rate and packet size.
    pub(crate) struct Load "traffic" {
        /// Rate; in a pattern with phases, the rate of the on phase.
        rate: At<BitRate>,
        ..packets: PacketSize
    }
}

table! {
    /// Packet size, and the layer of the rate.
    pub(crate) struct PacketSize "traffic" {
        /// Payload of each packet.
        packet: Bytes<1, 65_507> = "1000 B",
        /// Layer at which the rate is counted.
        layer: At<Layer> = "payload",
    }
}

table! {
    /// On and off phases with exponential lengths.
    pub(crate) struct OnOff "traffic \"on-off\"" {
        /// Mean length of an on phase.
        on: Span,
        /// Mean length of an off phase.
        off: Span,
        ..load: Load
    }
}

table! {
    /// On and off phases with Pareto lengths.
    pub(crate) struct Pareto "traffic \"pareto\"" {
        /// Mean length of an on phase.
        on: Span,
        /// Mean length of an off phase.
        off: Span,
        /// Shape of both distributions; below 2 they are heavy-tailed.
        shape: AboveOne = 1.5,
        ..load: Load
    }
}

table! {
    /// Markov-modulated Poisson process.
    pub(crate) struct Mmpp "traffic \"mmpp\"" {
        /// States; every other state follows with equal probability.
        states: List<State, 2, 1000>,
        ..packets: PacketSize
    }
}

table! {
    /// State of a Markov-modulated Poisson process.
    pub(crate) struct State "a state" {
        /// Mean rate.
        rate: At<BitRate>,
        /// Mean duration.
        mean: Span,
    }
}

table! {
    /// Trace of packets.
    pub(crate) struct Trace "traffic \"trace\"" {
        /// CSV file, relative to the scenario: `gap_seconds,bytes` or `time_s,bytes` per line.
        file: At<FilePath>,
        /// Repeat the trace from the start when it ends.
        repeat: bool = false,
    }
}

/// Merges `[defaults.tcp]` into the `tcp` table of a flow or test over TCP.
pub(crate) fn apply_tcp_defaults(flow: &mut Node, tcp: &Node) {
    let place = tcp.place;
    let Value::Table(fields) = &mut flow.value else { return };
    if fields.get("tcp").is_none() {
        fields.insert("tcp", place, Node { value: Value::Table(Table::default()), place, own: false });
    }
    if let Some(own) = fields.get_mut("tcp") {
        merge(own, tcp, &Tcp::kind());
    }
}
