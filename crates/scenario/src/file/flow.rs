//! `[flow.NAME]`: who sends to whom, over which transport, in which pattern.

use crate::scalar::{AboveOne, Bytes, Count, FilePath, Fraction, NodeName, Positive, Span, VpnName};
use crate::table::{At, Decode, List, choice, merge, table, tagged};
use crate::tree::{Node, Table, Value};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

table! {
    /// Flows that differ only in their number and start time.
    pub(crate) struct Flow "a flow" {
        /// The host that sends.
        from: At<NodeName>,
        /// The host that receives.
        to: At<NodeName>,
        /// The VPN that carries it.
        vpn: Option<At<VpnName>>,
        /// How bytes are carried.
        transport: At<Transport> = "tcp",
        /// How its TCP behaves.
        tcp: Option<At<Tcp>>,
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
}

choice!(Transport {
    /// TCP.
    "tcp" => Transport::Tcp,
    /// UDP over IPv4.
    "udp" => Transport::Udp,
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
        /// Selective acknowledgements (RFC 2018, RFC 6675).
        sack: bool = true,
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
    Aimd,
}

choice!(Algorithm {
    /// RFC 5681; fast recovery ends at the first new ACK.
    "reno" => Algorithm::Reno,
    /// RFC 6582.
    "newreno" => Algorithm::NewReno,
    /// RFC 9438.
    "cubic" => Algorithm::Cubic,
    /// Increase and decrease as given, with NewReno's recovery.
    "aimd" => Algorithm::Aimd,
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
    /// With the headers of IPv4 and UDP; for UDP only.
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
