//! `[flow.NAME]`: who sends to whom, over which transport, in which pattern.

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
    /// Flows that differ only in their number and start time.
    pub(crate) struct Flow "a flow" {
        /// The host that sends; with an application, its client.
        from: At<NodeName>,
        /// The host that receives; with an application, its server. A multicast flow may have a list of them.
        to: At<OneOrMore<At<NodeName>>>,
        /// The VPN that carries it.
        vpn: Option<At<VpnName>>,
        /// How bytes are carried.
        transport: At<Transport> = "tcp",
        /// Version of IP.
        ip: At<Family> = "v4",
        /// How its TCP behaves.
        tcp: Option<At<Tcp>>,
        /// What sockets do with its datagrams.
        udp: Option<At<Datagrams>>,
        /// The group of a multicast flow.
        multicast: Option<At<Multicast>>,
        /// When bytes are handed over.
        traffic: At<Traffic> = "bulk",
        /// Number of flows: with more than one they are called `NAME[0]`, `NAME[1]`, …
        count: At<Count<1, 1_000_000>> = 1,
        /// When the first one starts.
        start: At<Duration> = "0 s",
        /// How much later each further one starts.
        stagger: Duration = "0 s",
        /// When the application stops sending; left out: at the end of the run.
        stop: Option<At<Duration>>,
        /// Background load: what it takes is not there to be shared.
        background: bool = false,
        /// Nodes between sender and receiver, in order, instead of the shortest path.
        via: Option<At<List<At<NodeName>>>>,
        /// Nodes on the way back, in order; left out: the same way.
        reverse_via: Option<At<List<At<NodeName>>>>,
    }
}

/// How bytes are carried.
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
    /// UDP to a multicast group. Not on `sim`.
    "multicast" => Transport::Multicast,
    /// ICMP echo: one-ended, any host answers with as many bytes.
    "icmp-echo" => Transport::IcmpEcho,
    /// UDP to a closed port: one-ended, the host answers port-unreachable.
    "udp-unreachable" => Transport::UdpUnreachable,
    /// QUIC (RFC 9000). Not on `sim`.
    "quic" => Transport::Quic,
});

choice!(Family {
    /// IPv4.
    "v4" => Family::V4,
    /// IPv6.
    "v6" => Family::V6,
});

table! {
    /// What sockets do with a flow's datagrams; `sim` has no use for `batch`.
    pub(crate) struct Datagrams "udp" {
        /// What routers, and PEs with classes, are to know of its urgency (DSCP, RFC 2474); 46 is voice.
        dscp: Count<0, 63> = 0,
        /// Send a checksum; without one (IPv4) packets with changed bits reach the receiver.
        checksum: bool = true,
        /// Fill payloads with a known pattern, and count the bits that differ.
        compare: bool = false,
        /// Packets the kernel splits from one buffer (UDP GSO); above 1 none has its own time.
        batch: Count<1, 64> = 1,
    }
}

table! {
    /// The group of a multicast flow. The ways to its receivers leave the sender by one link.
    pub(crate) struct Multicast "multicast" {
        /// Its address; left out: one of its own is chosen.
        group: Option<At<GroupAddress>>,
        /// Whose packets the receivers want.
        source: Source = "any",
        /// Links a packet may cross one after the other: its TTL, or IPv6 hop limit.
        hops: Count<1, 255> = 32,
    }
}

/// Whose packets the receivers of a group want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Any,
    Sender,
}

choice!(Source {
    /// Anyone's (any-source multicast).
    "any" => Source::Any,
    /// The sender's alone (source-specific multicast, RFC 4607).
    "sender" => Source::Sender,
});

table! {
    /// How a flow's TCP behaves.
    pub(crate) struct Tcp "tcp" {
        /// How the congestion window grows and shrinks.
        algorithm: At<Algorithm> = "newreno",
        /// With `aimd`: additive increase, segments per round trip.
        increase: Option<At<Positive>>,
        /// With `aimd`: multiplicative decrease.
        decrease: Option<At<Fraction>>,
        /// Selective acknowledgements (RFC 2018).
        sack: bool = true,
        /// What tells a loss; `rack` needs `sack`.
        loss_detection: At<LossDetection> = "duplicate-acks",
        /// Explicit congestion notification (RFC 3168).
        ecn: bool = false,
        /// Timestamps (RFC 7323): 12 bytes a segment, a round-trip sample per ACK.
        timestamps: bool = true,
        /// Largest payload of a segment.
        max_segment_size: Bytes<1, 65_483> = "1448 B",
        /// The receiver's advertised window.
        window: Bytes<1, 1_073_725_440> = "64 KiB",
        /// Initial congestion window, segments.
        initial_window: Count<1, 10_000> = 10,
        /// Acknowledge every this many segments.
        ack_every: Count<1, 1_000> = 2,
        /// Longest time an acknowledgement is held back.
        delayed_ack: Duration = "200 ms",
        /// Lower bound of the retransmission timeout (RFC 6298).
        min_rto: Span = "1 s",
        /// Retransmission timeout before the first round-trip sample.
        initial_rto: Span = "1 s",
        /// A new segment on each of the first two duplicate ACKs (RFC 3042).
        limited_transmit: bool = true,
        /// Open with SYN and SYN-ACK; otherwise data starts at once.
        handshake: bool = true,
    }
}

/// How the congestion window grows and shrinks.
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
    /// RFC 9438, but beside Reno as Linux: as fast as Reno where windows are small, not faster.
    "linux-cubic" => Algorithm::LinuxCubic,
    /// Increase and decrease as given, with NewReno's recovery.
    "aimd" => Algorithm::Aimd,
});

/// What tells a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossDetection {
    DuplicateAcks,
    Rack,
}

choice!(LossDetection {
    /// Three duplicate ACKs, or segments received above it (RFC 6675).
    "duplicate-acks" => LossDetection::DuplicateAcks,
    /// RACK-TLP (RFC 8985) with Proportional Rate Reduction (RFC 9937), as Linux.
    "rack" => LossDetection::Rack,
});

tagged! {
    /// When an application hands over how many bytes.
    pub(crate) enum Traffic "traffic" by "model" {
        /// As much as TCP takes.
        Bulk(Bulk) = "bulk",
        /// Constant bit rate.
        Cbr(Constant) = "cbr",
        /// Packets at exponential gaps.
        Poisson(Poisson) = "poisson",
        /// Constant bit rate while on; both phases exponential.
        OnOff(OnOff) = "on-off",
        /// Constant bit rate while on; both phases Pareto, so the sum of many is self-similar.
        Pareto(Pareto) = "pareto",
        /// Poisson whose rate jumps between states.
        Mmpp(Mmpp) = "mmpp",
        /// Gaps and sizes read from a file.
        Trace(Trace) = "trace",
        /// File transfers, each over a connection of its own; a dialogue, as all below.
        Ftp(Ftp) = "ftp",
        /// Web pages of many objects.
        Web(Pages) = "web",
        /// Video whose bit rate adapts.
        Video(Video) = "video",
        /// Video in frames, sent as they come.
        VideoFrames(VideoFrames) = "video-frames",
        /// A telephone call.
        Voip(Voip) = "voip",
        /// Name lookups.
        Dns(Lookups) = "dns",
        /// A game.
        Gaming(Gaming) = "gaming",
        /// Requests and responses.
        RequestResponse(RequestResponse) = "request-response",
        /// Blocks read and written.
        BlockStorage(Blocks) = "block-storage",
        /// What was learned from a capture.
        Learned(LearnedModel) = "learned",
    }
}

table! {
    /// Bulk transfer.
    pub(crate) struct Bulk "traffic \"bulk\"" {
        /// Bytes in all; left out: no end.
        size: Option<Bytes<1, 4_000_000_000_000_000>>,
    }
}

/// The layer a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Payload,
    Ip,
}

choice!(Layer {
    /// Payload alone.
    "payload" => Layer::Payload,
    /// With the headers of IP and of UDP or ICMP; not for TCP and QUIC.
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
    /// A rate and the packets it comes in.
    pub(crate) struct Load "traffic" {
        /// Rate; for a pattern with phases, while on.
        rate: At<BitRate>,
        ..packets: PacketSize
    }
}

table! {
    /// The packets a rate comes in.
    pub(crate) struct PacketSize "traffic" {
        /// Payload of each packet.
        packet: Bytes<1, 65_507> = "1000 B",
        /// The layer the rate counts.
        layer: At<Layer> = "payload",
    }
}

table! {
    /// On and off.
    pub(crate) struct OnOff "traffic \"on-off\"" {
        /// Mean length of an on phase.
        on: Span,
        /// Mean length of an off phase.
        off: Span,
        ..load: Load
    }
}

table! {
    /// On and off, heavy-tailed.
    pub(crate) struct Pareto "traffic \"pareto\"" {
        /// Mean length of an on phase.
        on: Span,
        /// Mean length of an off phase.
        off: Span,
        /// Shape of both: below 2 the lengths are heavy-tailed.
        shape: AboveOne = 1.5,
        ..load: Load
    }
}

table! {
    /// A Poisson process whose rate jumps.
    pub(crate) struct Mmpp "traffic \"mmpp\"" {
        /// Its states; from one, any other follows with equal chance.
        states: List<State, 2, 1000>,
        ..packets: PacketSize
    }
}

table! {
    /// A state of an MMPP.
    pub(crate) struct State "a state" {
        /// Mean rate.
        rate: At<BitRate>,
        /// Mean stay.
        mean: Span,
    }
}

table! {
    /// A trace.
    pub(crate) struct Trace "traffic \"trace\"" {
        /// CSV file, relative to the scenario: `gap_seconds,bytes` or `time_s,bytes` per line.
        file: At<FilePath>,
        /// Start again at the end.
        repeat: bool = false,
    }
}

/// Puts `[defaults.tcp]` under the `tcp` of a flow or test carried by TCP.
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
