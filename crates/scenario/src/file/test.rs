//! `[test.NAME]`: measurements made of trials. What each kind finds, and by which method, is in
//! docs/measurement.md.

use super::flow::{Algorithm, Tcp};
use crate::plan::ErrorsBy;
use crate::scalar::{Bytes, Count, NodeName, Probability, Span, VpnName};
use crate::table::{At, List, Named, choice, table, tagged};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

tagged! {
    /// A measurement made of trials, each on the network as it stands at the start.
    pub(crate) enum Test "test" by "kind" {
        /// The highest rate without loss (RFC 2544, 26.1).
        Throughput(Throughput) = "rfc2544-throughput",
        /// The delay at the throughput (RFC 2544, 26.2).
        Latency(Latency) = "rfc2544-latency",
        /// What is lost at rates from the highest down (RFC 2544, 26.3).
        FrameLoss(FrameLoss) = "rfc2544-frame-loss",
        /// The longest burst without loss (RFC 9004).
        BackToBack(BackToBack) = "rfc9004-back-to-back",
        /// A throughput that comes out the same again on a noisy network (MLRsearch, RFC 9971).
        Mlrsearch(Mlrsearch) = "mlrsearch",
        /// The rate at which what comes through tops out, whatever is lost before.
        Plateau(Plateau) = "plateau",
        /// The highest rate without loss whose mean delay stays, second by second, near that of a low rate.
        Steady(Steady) = "steady-rate",
        /// What is lost of packets sent at one rate.
        Loss(Loss) = "loss",
        /// The bit error rate, from how loss grows with the size of packets or from payloads compared.
        BitError(BitError) = "bit-error",
        /// A TCP transfer beside what its path allows, and what limits it (RFC 6349).
        Transfer(Transfer) = "rfc6349",
        /// The window, and congestion control, with which TCP carries most.
        Tune(Tune) = "tcp-window",
        /// Whether services keep what was agreed, each alone and all together (ITU-T Y.1564).
        Activation(Activation) = "y1564",
        /// Loss, delay and its variation there and back, from packets that are answered (STAMP, RFC 8762).
        Stamp(Stamp) = "stamp",
    }
}

table! {
    /// RFC 2544 throughput: a binary search, from the highest rate down.
    pub(crate) struct Throughput "test \"rfc2544-throughput\"" {
        /// Length of a trial; the RFC asks for 60 s.
        trial: Span = "60 s",
        /// Where the search ends, as a share of the highest rate.
        resolution: At<Probability> = "0.1 %",
        ..packets: Searched
    }
}

table! {
    /// RFC 2544 latency: of a tagged frame in each trial.
    pub(crate) struct Latency "test \"rfc2544-latency\"" {
        /// The rate, at the IP layer; left out: the throughput, searched for first.
        rate: Option<At<BitRate>>,
        /// Length of a trial; the RFC asks for 120 s.
        trial: Span = "120 s",
        /// Number of trials; the RFC asks for 20.
        repeats: Count<1, 10_000> = 20,
        /// Where the search ends, as a share of the highest rate.
        resolution: At<Probability> = "0.1 %",
        ..packets: Searched
    }
}

table! {
    /// RFC 2544 frame loss: down from the highest rate, until two rates in a row lose nothing.
    pub(crate) struct FrameLoss "test \"rfc2544-frame-loss\"" {
        /// Length of a trial.
        trial: Span = "60 s",
        /// How far each rate is below the one before, as a share of the highest.
        step: At<Probability> = "10 %",
        ..packets: Searched
    }
}

table! {
    /// RFC 9004 back-to-back frames, and the buffer they imply.
    pub(crate) struct BackToBack "test \"rfc9004-back-to-back\"" {
        /// Length of a trial of the search for the throughput, which corrects the buffer.
        trial: Span = "60 s",
        /// Where that search ends, as a share of the highest rate.
        resolution: At<Probability> = "0.1 %",
        /// The longest burst tried.
        longest: At<Span> = "2 s",
        /// Number of searches; the RFC asks for 50.
        repeats: Count<1, 10_000> = 50,
        ..packets: Searched
    }
}

table! {
    /// MLRsearch: a rate is judged by all its trials together.
    pub(crate) struct Mlrsearch "test \"mlrsearch\"" {
        /// A trial that loses more than this has high loss.
        loss_tolerance: Probability = 0,
        /// Share of the time that may have high loss.
        exceed: Probability = 0.5,
        /// The shortest trial.
        initial_trial: Span = "1 s",
        /// Length of the trials that decide.
        trial: Span = "60 s",
        /// Length of all trials at one rate together; left out: two of those that decide.
        trials_together: Option<Span>,
        /// Where the search ends: the width between bounds, as a share of the upper.
        resolution: At<Probability> = "0.5 %",
        ..packets: Searched
    }
}

table! {
    /// Rates up from a small share of the highest, until more no longer comes through.
    pub(crate) struct Plateau "test \"plateau\"" {
        /// Length of a trial.
        trial: Span = "5 s",
        /// Trials on the plateau, of which the mean is taken.
        repeats: Count<1, 10_000> = 3,
        ..packets: Searched
    }
}

table! {
    /// Rates in whole steps: by halves in short trials, then a trial of full length, and down until one is
    /// carried. The mean delay of no second may be more than ten times that at the low rate and 20 us, and none may
    /// tell a trend upwards.
    pub(crate) struct Steady "test \"steady-rate\"" {
        /// Length of the trial that decides.
        trial: Span = "60 s",
        /// Length of those that look for the rate at which that is worth while.
        search: Span = "2 s",
        /// Rates are whole multiples of this, at the IP layer.
        step: At<BitRate> = "1 Mbit/s",
        /// The low rate, at the IP layer.
        low: At<BitRate> = "1 Mbit/s",
        ..packets: Searched
    }
}

table! {
    /// Packets of one or several sizes at one rate, which the network carries.
    pub(crate) struct BitError "test \"bit-error\"" {
        /// What the bit error rate is concluded from.
        by: At<ErrorsBy> = "loss",
        /// The rate, at the IP layer.
        rate: At<BitRate>,
        /// Length of the trial of each size.
        trial: Span = "60 s",
        ..packets: Packets
    }
}

table! {
    /// RFC 6349: the round trip of an idle path, the rate of its line (a plateau of UDP packets
    /// of full size), then a transfer.
    pub(crate) struct Transfer "test \"rfc6349\"" {
        /// Bytes to transfer; left out: as many as the time allows.
        size: Option<Bytes<1, 4_000_000_000_000_000>>,
        /// The longest the transfer takes.
        trial: Span = "30 s",
        /// How its TCP behaves.
        tcp: Option<At<Tcp>>,
        /// The highest rate of the search for the line's, at the IP layer; left out: what the
        /// sender's own link carries.
        max_rate: Option<At<BitRate>>,
        /// Length of a trial of that search.
        search: Span = "5 s",
        /// How long packets still under way are waited for.
        drain: Duration = "2 s",
        ..probe: Probe
    }
}

table! {
    /// A search for the smallest window with which TCP carries as much as with any other: transfers with windows
    /// around the one that fills the path, in random order, until nothing else is surely better.
    pub(crate) struct Tune "test \"tcp-window\"" {
        /// Length of a transfer, without what is left out.
        trial: Span = "4 s",
        /// How much of its beginning is left out.
        settle: Duration = "1 s",
        /// Most transfers; those a stage spoiled do not count.
        trials: Count<1, 10_000> = 40,
        /// Shares of throughput below this make no difference.
        tolerance: At<Probability> = "1.5 %",
        /// The longest mean round trip; left out: any.
        max_round_trip: Option<Span>,
        /// Congestion controls to choose from; left out: that of `tcp`.
        algorithms: Option<At<List<At<Algorithm>, 1, 8>>>,
        /// The largest window tried, and what stands for no limit, in place of `tcp`'s.
        largest: Bytes<262_144, 1_073_725_440> = "16 MiB",
        /// How its TCP behaves otherwise.
        tcp: Option<At<Tcp>>,
        ..probe: Probe
    }
}

table! {
    /// Loss at one rate.
    pub(crate) struct Loss "test \"loss\"" {
        /// The rate, at the IP layer.
        rate: At<BitRate>,
        /// Length of a trial.
        trial: Span = "10 s",
        /// Number of trials; they count together.
        repeats: Count<1, 10_000> = 1,
        ..packets: Packets
    }
}

table! {
    /// Service activation: each service alone at 25, 50, 75 and 100 % of its committed rate and
    /// above, then all together at their committed rates.
    pub(crate) struct Activation "test \"y1564\"" {
        /// The services, by name.
        service: Named<Promise>,
        /// Length of a step of one service; the recommendation has 1 s to 60 s.
        step: Span = "60 s",
        /// Length of the test of all together; the recommendation has 15 min, 2 h and 24 h.
        performance: Span = "15 min",
        /// How long packets still under way are waited for.
        drain: Duration = "2 s",
        ..probe: Probe
    }
}

table! {
    /// What was agreed for a service. Rates count frames with their check sequence.
    pub(crate) struct Promise "a promised service" {
        /// Size of its frames.
        frame_size: Bytes<64, 65_553>,
        /// The committed rate (CIR).
        committed: BitRate,
        /// What is carried above it as far as there is room (EIR); left out: nothing.
        excess: Option<BitRate>,
        /// The network polices it: more than committed and excess must not come through.
        policed: bool = false,
        /// Largest mean delay (FTD); left out: any.
        delay: Option<Span>,
        /// Largest delay of 99.9 % of frames above the least (FDV); left out: any.
        delay_variation: Option<Span>,
        /// Largest share of frames lost (FLR).
        loss_ratio: Probability = 0,
    }
}

table! {
    /// STAMP: the session-sender at `from` sends packets one by one, the session-reflector at `to`
    /// answers each.
    pub(crate) struct Stamp "test \"stamp\"" {
        /// From packet to packet.
        interval: Span = "20 ms",
        /// How long packets are sent.
        trial: At<Span> = "10 s",
        /// Size of the packets, as Ethernet frames with their check sequence: 90 B is a test packet
        /// as it is, 94 B and more have extra padding (RFC 8972).
        frame_size: At<Bytes<90, 9_018>> = "90 B",
        /// How long answers are waited for.
        drain: Duration = "2 s",
        ..probe: Probe
    }
}

table! {
    /// Packets at rates up to a highest.
    pub(crate) struct Searched "test" {
        /// The highest rate, at the IP layer; left out: what the sender's own link carries.
        max_rate: Option<At<BitRate>>,
        ..packets: Packets
    }
}

table! {
    /// The packets of a test.
    pub(crate) struct Packets "test" {
        /// How they are carried.
        transport: At<Carrier> = "udp",
        /// Sizes as Ethernet frames with their check sequence, as RFC 2544 counts: the IP packet
        /// is 18 B smaller. Left out: 64, 128, 256, 512, 1024, 1280 and 1518 B.
        frame_sizes: Option<At<List<Bytes<64, 65_553>, 1, 100>>>,
        /// How long packets still under way are waited for.
        drain: Duration = "2 s",
        ..probe: Probe
    }
}

table! {
    /// Where a test sends, and beside what.
    pub(crate) struct Probe "test" {
        /// The host that sends.
        from: At<NodeName>,
        /// The host that receives.
        to: At<NodeName>,
        /// The VPN that carries its packets.
        vpn: Option<At<VpnName>>,
        /// Nodes between sender and receiver, in order, instead of the shortest path.
        via: Option<At<List<At<NodeName>>>>,
        /// Nodes on the way back, in order; left out: the same way.
        reverse_via: Option<At<List<At<NodeName>>>>,
        /// Flows that run beside its packets, by name.
        load: List<At<String>>,
        /// How long these flows run before its packets start.
        warm_up: Duration = "0 s",
    }
}

/// How a test's packets are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Udp,
    IcmpEcho,
    UdpUnreachable,
}

choice!(Carrier {
    /// UDP over IPv4, sent by one end and received by the other.
    "udp" => Carrier::Udp,
    /// ICMP echo, measured by the sender alone: what is lost either way counts, and delays are
    /// round trips.
    "icmp-echo" => Carrier::IcmpEcho,
    /// UDP to a closed port, measured by the sender alone from the answers, which quote up to 548 B
    /// of what they answer.
    "udp-unreachable" => Carrier::UdpUnreachable,
});

choice!(ErrorsBy {
    /// How loss grows with size, where damaged packets are thrown away on the way.
    "loss" => ErrorsBy::Loss,
    /// The bits of payloads, compared with those sent: UDP without a checksum, so that damaged
    /// packets arrive.
    "payload" => ErrorsBy::Payload,
});

impl Test {
    /// Where it sends, and beside what.
    pub fn probe(&self) -> &Probe {
        match self {
            Test::Transfer(test) => &test.probe,
            Test::Tune(test) => &test.probe,
            Test::Activation(test) => &test.probe,
            Test::Stamp(test) => &test.probe,
            _ => &self.packets().expect("all others are of packets").probe,
        }
    }

    /// Its packets, where they are all alike.
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
