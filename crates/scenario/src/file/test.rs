//! `[test.NAME]`: measurements that consist of trials. docs/measurement.md describes the methods and results.

use super::flow::{Algorithm, TcpTable};
use crate::plan::{ErrorDetection, IpVersion};
use crate::scalar::{BoundedCount, BoundedSize, NodeName, PositiveDuration, Probability, VpnName};
use crate::table::{List, Located, NamedTables, choice, table, tagged};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use std::rc::Rc;

tagged! {
    /// Measurement that consists of trials. Each trial starts with the network in its initial state.
    pub(crate) enum TestTable "test" by "kind" {
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
        Steady(SteadyRateTable) = "steady-rate",
        /// Packet loss at one rate.
        Loss(LossTable) = "loss",
        /// Bit error rate, from the increase of loss with packet size or from compared payloads.
        BitError(BitError) = "bit-error",
        /// TCP throughput compared with the capacity of the path, and the cause of its limit (RFC 6349).
        Transfer(TransferTable) = "rfc6349",
        /// Window and congestion control with the highest TCP throughput.
        Tune(TuneTable) = "tcp-window",
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
        trial: PositiveDuration = "60 s",
        /// Resolution of the search, relative to the maximum rate.
        resolution: Located<Probability> = "0.1 %",
        ..packets: RateSearchTable
    }
}

table! {
    /// RFC 2544 latency: delay of a tagged frame in each trial.
    pub(crate) struct Latency "test \"rfc2544-latency\"" {
        /// Rate, at the IP layer; default: the throughput, which is measured first.
        rate: Option<Located<BitRate>>,
        /// Length of a trial; the RFC specifies 120 s.
        trial: PositiveDuration = "120 s",
        /// Number of trials; the RFC specifies 20.
        repeats: BoundedCount<1, 10_000> = 20,
        /// Resolution of the search, relative to the maximum rate.
        resolution: Located<Probability> = "0.1 %",
        ..packets: RateSearchTable
    }
}

table! {
    /// RFC 2544 frame loss: decreasing rates from the maximum, until two consecutive rates have no loss.
    pub(crate) struct FrameLoss "test \"rfc2544-frame-loss\"" {
        /// Length of a trial.
        trial: PositiveDuration = "60 s",
        /// Step between rates, relative to the maximum rate.
        step: Located<Probability> = "10 %",
        ..packets: RateSearchTable
    }
}

table! {
    /// RFC 9004 back-to-back frames, and the buffer size derived from them.
    pub(crate) struct BackToBack "test \"rfc9004-back-to-back\"" {
        /// Length of a trial of the throughput search, whose result corrects the buffer size.
        trial: PositiveDuration = "60 s",
        /// Resolution of the throughput search, relative to the maximum rate.
        resolution: Located<Probability> = "0.1 %",
        /// Maximum burst length.
        max_burst: Located<PositiveDuration> = "2 s",
        /// Number of searches; the RFC specifies 50.
        repeats: BoundedCount<1, 10_000> = 50,
        ..packets: RateSearchTable
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
        initial_trial: PositiveDuration = "1 s",
        /// Length of the final trials.
        trial: PositiveDuration = "60 s",
        /// Total length of all trials at one rate; default: two final trials.
        trials_together: Option<PositiveDuration>,
        /// Resolution of the search: distance of the bounds, relative to the upper bound.
        resolution: Located<Probability> = "0.5 %",
        ..packets: RateSearchTable
    }
}

table! {
    /// Increasing rates from a small fraction of the maximum, until the received rate no longer grows.
    pub(crate) struct Plateau "test \"plateau\"" {
        /// Length of a trial.
        trial: PositiveDuration = "5 s",
        /// Trials on the plateau, which are averaged.
        repeats: BoundedCount<1, 10_000> = 3,
        ..packets: RateSearchTable
    }
}

table! {
    /// Search in whole steps: a binary search with short trials, then trials of full length at decreasing rates until
    /// one passes. In no second may the mean delay exceed ten times the delay at the low rate plus 20 us, and the
    /// delay may not have an upward trend.
    pub(crate) struct SteadyRateTable "test \"steady-rate\"" {
        /// Length of the final trial.
        trial: PositiveDuration = "60 s",
        /// Length of the trials of the binary search.
        search: PositiveDuration = "2 s",
        /// Step of the rate, at the IP layer.
        step: Located<BitRate> = "1 Mbit/s",
        /// Low rate, at the IP layer.
        low: Located<BitRate> = "1 Mbit/s",
        ..packets: RateSearchTable
    }
}

table! {
    /// Packets of one or several sizes, at a rate the network carries.
    pub(crate) struct BitError "test \"bit-error\"" {
        /// Source of the bit error rate.
        by: Located<ErrorDetection> = "loss",
        /// Rate, at the IP layer.
        rate: Located<BitRate>,
        /// Length of the trial of each size.
        trial: PositiveDuration = "60 s",
        ..packets: TestPackets
    }
}

table! {
    /// RFC 6349: round-trip time of the idle path, bottleneck rate (a plateau of full-size UDP packets), then a
    /// transfer.
    pub(crate) struct TransferTable "test \"rfc6349\"" {
        /// Bytes to transfer; default: as many as `trial` allows.
        size: Option<BoundedSize<1, 4_000_000_000_000_000>>,
        /// Maximum length of the transfer.
        trial: PositiveDuration = "30 s",
        /// TCP settings.
        tcp: Option<Located<Rc<TcpTable>>>,
        /// Maximum rate of the bottleneck search, at the IP layer; default: the rate of the sender's link.
        max_rate: Option<Located<BitRate>>,
        /// Length of a trial of this search.
        search: PositiveDuration = "5 s",
        /// Maximum wait for outstanding packets.
        drain: Duration = "2 s",
        ..probe: TestPath
    }
}

table! {
    /// Search for the smallest window with maximum TCP throughput: transfers with windows around the bandwidth-delay
    /// product, in random order, until no other window is significantly better.
    pub(crate) struct TuneTable "test \"tcp-window\"" {
        /// Length of a transfer, without `settle`.
        trial: PositiveDuration = "4 s",
        /// Length of the start of a transfer that is not evaluated.
        settle: Duration = "1 s",
        /// Maximum number of transfers; transfers disturbed by the stage do not count.
        trials: BoundedCount<1, 10_000> = 40,
        /// Difference of throughput that is not significant.
        tolerance: Located<Probability> = "1.5 %",
        /// Maximum mean round-trip time; default: unlimited.
        max_round_trip: Option<PositiveDuration>,
        /// Congestion control algorithms to compare; default: that of `tcp`.
        algorithms: Option<Located<List<Located<Algorithm>, 1, 8>>>,
        /// Maximum window, also used as the unlimited window; replaces the window of `tcp`.
        largest: BoundedSize<262_144, 1_073_725_440> = "16 MiB",
        /// Other TCP settings.
        tcp: Option<Located<Rc<TcpTable>>>,
        ..probe: TestPath
    }
}

table! {
    /// Packet loss at one rate.
    pub(crate) struct LossTable "test \"loss\"" {
        /// Rate, at the IP layer.
        rate: Located<BitRate>,
        /// Length of a trial.
        trial: PositiveDuration = "10 s",
        /// Number of trials, which are evaluated together.
        repeats: BoundedCount<1, 10_000> = 1,
        ..packets: TestPackets
    }
}

table! {
    /// Service activation: each service alone at 25, 50, 75 and 100 % of its committed rate and above, then all
    /// services together at their committed rates.
    pub(crate) struct Activation "test \"y1564\"" {
        /// Services, by name.
        service: NamedTables<ServiceAgreement>,
        /// Length of a step of one service; the recommendation specifies 1 s to 60 s.
        step: PositiveDuration = "60 s",
        /// Length of the test of all services together; the recommendation specifies 15 min, 2 h or 24 h.
        performance: PositiveDuration = "15 min",
        /// Maximum wait for outstanding packets.
        drain: Duration = "2 s",
        ..probe: TestPath
    }
}

table! {
    /// Agreement for a service. Rates count frames with their frame check sequence.
    pub(crate) struct ServiceAgreement "a service agreement" {
        /// Frame size.
        frame_size: BoundedSize<64, 65_553>,
        /// Committed rate (CIR).
        committed: BitRate,
        /// Excess rate, carried if capacity is available (EIR); default: none.
        excess: Option<BitRate>,
        /// Whether the network polices the service: rates above committed plus excess must be dropped.
        policed: bool = false,
        /// Maximum mean delay (FTD); default: unlimited.
        delay: Option<PositiveDuration>,
        /// Maximum 99.9th percentile of the delay above the minimum (FDV); default: unlimited.
        delay_variation: Option<PositiveDuration>,
        /// Maximum ratio of frames lost (FLR).
        loss_ratio: Probability = 0,
    }
}

table! {
    /// STAMP: the session-sender at `from` sends packets, and the session-reflector at `to` answers each.
    pub(crate) struct Stamp "test \"stamp\"" {
        /// Interval between packets.
        interval: PositiveDuration = "20 ms",
        /// Length of the session.
        trial: Located<PositiveDuration> = "10 s",
        /// Size of the packets as Ethernet frames with frame check sequence: 90 B for a plain test packet, 94 B or more
        /// with extra padding (RFC 8972).
        frame_size: Located<BoundedSize<90, 9_018>> = "90 B",
        /// Maximum wait for answers.
        drain: Duration = "2 s",
        ..probe: TestPath
    }
}

table! {
    /// Packets at rates up to a maximum.
    pub(crate) struct RateSearchTable "test" {
        /// Maximum rate, at the IP layer; default: the rate of the sender's link.
        max_rate: Option<Located<BitRate>>,
        ..packets: TestPackets
    }
}

table! {
    /// Packets of a test.
    pub(crate) struct TestPackets "test" {
        /// Transport.
        transport: Located<TestTransport> = "udp",
        /// Sizes as Ethernet frames with frame check sequence, as in RFC 2544: the IP packet is 18 B smaller.
        /// Default: 64, 128, 256, 512, 1024, 1280 and 1518 B.
        frame_sizes: Option<Located<List<BoundedSize<64, 65_553>, 1, 100>>>,
        /// Maximum wait for outstanding packets.
        drain: Duration = "2 s",
        ..probe: TestPath
    }
}

table! {
    /// Path and background load of a test.
    pub(crate) struct TestPath "test" {
        /// Sending host.
        from: Located<NodeName>,
        /// Receiving host.
        to: Located<NodeName>,
        /// IP version. Frames of IPv6 have 84 B or more; instead of 64 B, the default is 84 B.
        ip: Located<IpVersion> = "v4",
        /// VPN that carries the packets.
        vpn: Option<Located<VpnName>>,
        /// Nodes between sender and receiver, in order; default: the shortest path.
        via: Option<Located<List<Located<NodeName>>>>,
        /// Nodes of the reverse path, in order; default: the same path reversed.
        reverse_via: Option<Located<List<Located<NodeName>>>>,
        /// Flows that run during the test, by name.
        load: List<Located<String>>,
        /// Time for which these flows run before the test starts.
        warm_up: Duration = "0 s",
    }
}

/// Transport of a test's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestTransport {
    Udp,
    IcmpEcho,
    UdpUnreachable,
}

choice!(TestTransport {
    /// UDP from one host to the other.
    "udp" => TestTransport::Udp,
    /// ICMP echo, measured by the sender only: loss in both directions counts, and delays are round-trip times.
    "icmp-echo" => TestTransport::IcmpEcho,
    /// UDP to a closed port, measured by the sender only, from the port unreachable messages, which quote up to 548 B
    /// of the packet.
    "udp-unreachable" => TestTransport::UdpUnreachable,
});

choice!(ErrorDetection {
    /// Increase of loss with packet size, if damaged packets are dropped on the path.
    "loss" => ErrorDetection::Loss,
    /// Comparison of the received payload with the one sent: UDP without a checksum, so that damaged packets arrive.
    "payload" => ErrorDetection::Payload,
});

impl TestTable {
    /// Returns the path and load of the test.
    pub fn path(&self) -> &TestPath {
        match self {
            TestTable::Transfer(test) => &test.probe,
            TestTable::Tune(test) => &test.probe,
            TestTable::Activation(test) => &test.probe,
            TestTable::Stamp(test) => &test.probe,
            _ => &self.packets().expect("all other tests have packets").probe,
        }
    }

    /// Returns the packets of the test, if it has one set of packets.
    pub fn packets(&self) -> Option<&TestPackets> {
        Some(match self {
            TestTable::Throughput(test) => &test.packets.packets,
            TestTable::Latency(test) => &test.packets.packets,
            TestTable::FrameLoss(test) => &test.packets.packets,
            TestTable::BackToBack(test) => &test.packets.packets,
            TestTable::Mlrsearch(test) => &test.packets.packets,
            TestTable::Plateau(test) => &test.packets.packets,
            TestTable::Steady(test) => &test.packets.packets,
            TestTable::Loss(test) => &test.packets,
            TestTable::BitError(test) => &test.packets,
            TestTable::Transfer(_) | TestTable::Tune(_) | TestTable::Activation(_) | TestTable::Stamp(_) => {
                return None;
            }
        })
    }
}
