//! `[test.NAME]`: measurements that consist of trials. docs/measurement.md describes the methods and results.

use super::flow::{Algorithm, Tcp};
use crate::plan::ErrorsBy;
use crate::scalar::{Bytes, Count, NodeName, Probability, Span, VpnName};
use crate::table::{At, List, Named, choice, table, tagged};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

tagged! {
    /// Measurement that consists of trials. Each trial starts with the network in its initial state.
    pub(crate) enum Test "test" by "kind" {
        /// Maximum rate without loss (RFC 2544, 26.1).
        Throughput(Throughput) = "rfc2544-throughput",
        /// Delay at the throughput rate (RFC 2544, 26.2).
        Latency(Latency) = "rfc2544-latency",
        /// Frame loss at decreasing rates (RFC 2544, 26.3).
        FrameLoss(FrameLoss) = "rfc2544-frame-loss",
        /// Longest burst without loss (RFC 9004).
        BackToBack(BackToBack) = "rfc9004-back-to-back",
        /// Throughput that is repeatable on a noisy network (MLRsearch, RFC 9971).
        Mlrsearch(Mlrsearch) = "mlrsearch",
        /// Maximum received rate, regardless of loss.
        Plateau(Plateau) = "plateau",
        /// Maximum rate without loss whose mean delay in every second stays near the delay at a low rate.
        Steady(Steady) = "steady-rate",
        /// Packet loss at one rate.
        Loss(Loss) = "loss",
        /// Bit error rate, from the increase of loss with packet size or from compared payloads.
        BitError(BitError) = "bit-error",
        /// TCP throughput compared with the capacity of the path, and the cause of its limit (RFC 6349).
        Transfer(Transfer) = "rfc6349",
        /// Window and congestion control with the highest TCP throughput.
        Tune(Tune) = "tcp-window",
        /// Compliance of services with their agreements, each alone and all together (ITU-T Y.1564).
        Activation(Activation) = "y1564",
        /// Loss, delay and delay variation in both directions, from reflected packets (STAMP, RFC 8762).
        Stamp(Stamp) = "stamp",
    }
}

table! {
    /// RFC 2544 throughput: binary search, starting at the maximum rate.
    pub(crate) struct Throughput "test \"rfc2544-throughput\"" {
        /// Length of a trial; the RFC specifies 60 s.
        trial: Span = "60 s",
        /// Resolution of the search, relative to the maximum rate.
        resolution: At<Probability> = "0.1 %",
        ..packets: Searched
    }
}

table! {
    /// RFC 2544 latency: delay of a tagged frame in each trial.
    pub(crate) struct Latency "test \"rfc2544-latency\"" {
        /// Rate, at the IP layer; default: the throughput, which is measured first.
        rate: Option<At<BitRate>>,
        /// Length of a trial; the RFC specifies 120 s.
        trial: Span = "120 s",
        /// Number of trials; the RFC specifies 20.
        repeats: Count<1, 10_000> = 20,
        /// Resolution of the search, relative to the maximum rate.
        resolution: At<Probability> = "0.1 %",
        ..packets: Searched
    }
}

table! {
    /// RFC 2544 frame loss: decreasing rates from the maximum, until two consecutive rates have no loss.
    pub(crate) struct FrameLoss "test \"rfc2544-frame-loss\"" {
        /// Length of a trial.
        trial: Span = "60 s",
        /// Step between rates, relative to the maximum rate.
        step: At<Probability> = "10 %",
        ..packets: Searched
    }
}

table! {
    /// RFC 9004 back-to-back frames, and the buffer size derived from them.
    pub(crate) struct BackToBack "test \"rfc9004-back-to-back\"" {
        /// Length of a trial of the throughput search, whose result corrects the buffer size.
        trial: Span = "60 s",
        /// Resolution of the throughput search, relative to the maximum rate.
        resolution: At<Probability> = "0.1 %",
        /// Maximum burst length.
        longest: At<Span> = "2 s",
        /// Number of searches; the RFC specifies 50.
        repeats: Count<1, 10_000> = 50,
        ..packets: Searched
    }
}

table! {
    /// MLRsearch: a rate is classified by all its trials together.
    pub(crate) struct Mlrsearch "test \"mlrsearch\"" {
        /// Loss ratio above which a trial has high loss.
        loss_tolerance: Probability = 0,
        /// Fraction of the time that may have high loss.
        exceed: Probability = 0.5,
        /// Length of the shortest trial.
        initial_trial: Span = "1 s",
        /// Length of the final trials.
        trial: Span = "60 s",
        /// Total length of all trials at one rate; default: two final trials.
        trials_together: Option<Span>,
        /// Resolution of the search: distance of the bounds, relative to the upper bound.
        resolution: At<Probability> = "0.5 %",
        ..packets: Searched
    }
}

table! {
    /// Increasing rates from a small fraction of the maximum, until the received rate no longer grows.
    pub(crate) struct Plateau "test \"plateau\"" {
        /// Length of a trial.
        trial: Span = "5 s",
        /// Trials on the plateau, which are averaged.
        repeats: Count<1, 10_000> = 3,
        ..packets: Searched
    }
}

table! {
    /// Search in whole steps: a binary search with short trials, then trials of full length at decreasing rates until
    /// one passes. In no second may the mean delay exceed ten times the delay at the low rate plus 20 us, and the
    /// delay may not have an upward trend.
    pub(crate) struct Steady "test \"steady-rate\"" {
        /// Length of the final trial.
        trial: Span = "60 s",
        /// Length of the trials of the binary search.
        search: Span = "2 s",
        /// Step of the rate, at the IP layer.
        step: At<BitRate> = "1 Mbit/s",
        /// Low rate, at the IP layer.
        low: At<BitRate> = "1 Mbit/s",
        ..packets: Searched
    }
}

table! {
    /// Packets of one or several sizes, at a rate the network carries.
    pub(crate) struct BitError "test \"bit-error\"" {
        /// Source of the bit error rate.
        by: At<ErrorsBy> = "loss",
        /// Rate, at the IP layer.
        rate: At<BitRate>,
        /// Length of the trial of each size.
        trial: Span = "60 s",
        ..packets: Packets
    }
}

table! {
    /// RFC 6349: round-trip time of the idle path, bottleneck rate (a plateau of full-size UDP packets), then a
    /// transfer.
    pub(crate) struct Transfer "test \"rfc6349\"" {
        /// Bytes to transfer; default: as many as `trial` allows.
        size: Option<Bytes<1, 4_000_000_000_000_000>>,
        /// Maximum length of the transfer.
        trial: Span = "30 s",
        /// TCP settings.
        tcp: Option<At<Tcp>>,
        /// Maximum rate of the bottleneck search, at the IP layer; default: the rate of the sender's link.
        max_rate: Option<At<BitRate>>,
        /// Length of a trial of this search.
        search: Span = "5 s",
        /// Maximum wait for outstanding packets.
        drain: Duration = "2 s",
        ..probe: Probe
    }
}

table! {
    /// Search for the smallest window with maximum TCP throughput: transfers with windows around the bandwidth-delay
    /// product, in random order, until no other window is significantly better.
    pub(crate) struct Tune "test \"tcp-window\"" {
        /// Length of a transfer, without `settle`.
        trial: Span = "4 s",
        /// Length of the start of a transfer that is not evaluated.
        settle: Duration = "1 s",
        /// Maximum number of transfers; transfers disturbed by the stage do not count.
        trials: Count<1, 10_000> = 40,
        /// Difference of throughput that is not significant.
        tolerance: At<Probability> = "1.5 %",
        /// Maximum mean round-trip time; default: unlimited.
        max_round_trip: Option<Span>,
        /// Congestion control algorithms to compare; default: that of `tcp`.
        algorithms: Option<At<List<At<Algorithm>, 1, 8>>>,
        /// Maximum window, also used as the unlimited window; replaces the window of `tcp`.
        largest: Bytes<262_144, 1_073_725_440> = "16 MiB",
        /// Other TCP settings.
        tcp: Option<At<Tcp>>,
        ..probe: Probe
    }
}

table! {
    /// Packet loss at one rate.
    pub(crate) struct Loss "test \"loss\"" {
        /// Rate, at the IP layer.
        rate: At<BitRate>,
        /// Length of a trial.
        trial: Span = "10 s",
        /// Number of trials, which are evaluated together.
        repeats: Count<1, 10_000> = 1,
        ..packets: Packets
    }
}

table! {
    /// Service activation: each service alone at 25, 50, 75 and 100 % of its committed rate and above, then all
    /// services together at their committed rates.
    pub(crate) struct Activation "test \"y1564\"" {
        /// Services, by name.
        service: Named<Promise>,
        /// Length of a step of one service; the recommendation specifies 1 s to 60 s.
        step: Span = "60 s",
        /// Length of the test of all services together; the recommendation specifies 15 min, 2 h or 24 h.
        performance: Span = "15 min",
        /// Maximum wait for outstanding packets.
        drain: Duration = "2 s",
        ..probe: Probe
    }
}

table! {
    /// Agreement for a service. Rates count frames with their frame check sequence.
    pub(crate) struct Promise "a service agreement" {
        /// Frame size.
        frame_size: Bytes<64, 65_553>,
        /// Committed rate (CIR).
        committed: BitRate,
        /// Excess rate, carried if capacity is available (EIR); default: none.
        excess: Option<BitRate>,
        /// Whether the network polices the service: rates above committed plus excess must be dropped.
        policed: bool = false,
        /// Maximum mean delay (FTD); default: unlimited.
        delay: Option<Span>,
        /// Maximum 99.9th percentile of the delay above the minimum (FDV); default: unlimited.
        delay_variation: Option<Span>,
        /// Maximum ratio of frames lost (FLR).
        loss_ratio: Probability = 0,
    }
}

table! {
    /// STAMP: the session-sender at `from` sends packets, and the session-reflector at `to` answers each.
    pub(crate) struct Stamp "test \"stamp\"" {
        /// Interval between packets.
        interval: Span = "20 ms",
        /// Length of the session.
        trial: At<Span> = "10 s",
        /// Size of the packets as Ethernet frames with frame check sequence: 90 B for a plain test packet, 94 B or more
        /// with extra padding (RFC 8972).
        frame_size: At<Bytes<90, 9_018>> = "90 B",
        /// Maximum wait for answers.
        drain: Duration = "2 s",
        ..probe: Probe
    }
}

table! {
    /// Packets at rates up to a maximum.
    pub(crate) struct Searched "test" {
        /// Maximum rate, at the IP layer; default: the rate of the sender's link.
        max_rate: Option<At<BitRate>>,
        ..packets: Packets
    }
}

table! {
    /// Packets of a test.
    pub(crate) struct Packets "test" {
        /// Transport.
        transport: At<Carrier> = "udp",
        /// Sizes as Ethernet frames with frame check sequence, as in RFC 2544: the IP packet is 18 B smaller.
        /// Default: 64, 128, 256, 512, 1024, 1280 and 1518 B.
        frame_sizes: Option<At<List<Bytes<64, 65_553>, 1, 100>>>,
        /// Maximum wait for outstanding packets.
        drain: Duration = "2 s",
        ..probe: Probe
    }
}

table! {
    /// Path and background load of a test.
    pub(crate) struct Probe "test" {
        /// Sending host.
        from: At<NodeName>,
        /// Receiving host.
        to: At<NodeName>,
        /// VPN that carries the packets.
        vpn: Option<At<VpnName>>,
        /// Nodes between sender and receiver, in order; default: the shortest path.
        via: Option<At<List<At<NodeName>>>>,
        /// Nodes of the reverse path, in order; default: the same path reversed.
        reverse_via: Option<At<List<At<NodeName>>>>,
        /// Flows that run during the test, by name.
        load: List<At<String>>,
        /// Time for which these flows run before the test starts.
        warm_up: Duration = "0 s",
    }
}

/// Transport of a test's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Udp,
    IcmpEcho,
    UdpUnreachable,
}

choice!(Carrier {
    /// UDP over IPv4 from one host to the other.
    "udp" => Carrier::Udp,
    /// ICMP echo, measured by the sender only: loss in both directions counts, and delays are round-trip times.
    "icmp-echo" => Carrier::IcmpEcho,
    /// UDP to a closed port, measured by the sender only, from the port unreachable messages, which quote up to 548 B
    /// of the packet.
    "udp-unreachable" => Carrier::UdpUnreachable,
});

choice!(ErrorsBy {
    /// Increase of loss with packet size, if damaged packets are dropped on the path.
    "loss" => ErrorsBy::Loss,
    /// Comparison of the received payload with the one sent: UDP without a checksum, so that damaged packets arrive.
    "payload" => ErrorsBy::Payload,
});

impl Test {
    /// Returns the path and load of the test.
    pub fn probe(&self) -> &Probe {
        match self {
            Test::Transfer(test) => &test.probe,
            Test::Tune(test) => &test.probe,
            Test::Activation(test) => &test.probe,
            Test::Stamp(test) => &test.probe,
            _ => &self.packets().expect("all other tests have packets").probe,
        }
    }

    /// Returns the packets of the test, if it has one set of packets.
    pub fn packets(&self) -> Option<&Packets> {
        Some(match self {
            Test::Throughput(test) => &test.packets.packets,
            Test::Latency(test) => &test.packets.packets,
            Test::FrameLoss(test) => &test.packets.packets,
            Test::BackToBack(test) => &test.packets.packets,
            Test::Mlrsearch(test) => &test.packets.packets,
            Test::Plateau(test) => &test.packets.packets,
            Test::Steady(test) => &test.packets.packets,
            Test::Loss(test) => &test.packets,
            Test::BitError(test) => &test.packets,
            Test::Transfer(_) | Test::Tune(_) | Test::Activation(_) | Test::Stamp(_) => return None,
        })
    }
}
