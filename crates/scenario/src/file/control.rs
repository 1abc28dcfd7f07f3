//! `[vpn.NAME]` and how a VPN is controlled at its ingress PE.

use super::network::FqCodel;
use crate::error::Problems;
use crate::quantity::Dimension;
use crate::scalar::{
    AtLeastOne, Count, Fraction, NodeName, Packets, Positive, Span, VpnName, bounded, number,
};
use crate::table::{At, Decode, Kind, List, Literal, NoFields, choice, mismatch, table, tagged, word};
use crate::tree::Node;
use netstage_core::edge::Settings;
use netstage_core::fair::{self, Config, LossMeasure, Nominal, Rule, Silence, WhenSilent};
use netstage_core::quantity::BitRate;
use netstage_core::queue::TrafficClass;
use netstage_core::time::Duration;
use netstage_wire::Encapsulation;

table! {
    /// A VPN's traffic in one direction. The way back, if it is to be controlled, is a VPN of its own: `back`.
    pub(crate) struct Vpn "a VPN" {
        /// So many VPNs instead of one, alike but for their names, `NAME1`, `NAME2`, …; each has flows of its own for every flow of this VPN, numbered like it.
        count: Option<Count<0, 10_000>>,
        /// Its share relative to the other VPNs: a number, or computed from the topology.
        weight: At<Weight> = 1,
        /// The PE where its traffic enters.
        ingress: At<NodeName>,
        /// The PE where its traffic leaves.
        egress: At<NodeName>,
        /// What its packets have around them between the PEs. Links carry it; the VPN's own figures leave it out.
        encapsulation: Encapsulation = word(Encapsulation::None),
        /// The VPN from egress to ingress that carries what comes back, acknowledgements above all, and whose own comes back by this one; left out: nobody controls that.
        back: Option<At<VpnName>>,
        /// Nodes between ingress and egress, in order, instead of the shortest path.
        via: Option<At<List<At<NodeName>>>>,
        /// Nodes on the way back, in order; left out: the same way.
        reverse_via: Option<At<List<At<NodeName>>>>,
        ..treatment: Treatment
    }
}

table! {
    /// How a VPN flow is treated at its ingress, in a scenario and by a provider edge router.
    pub(crate) struct Treatment "a VPN" {
        /// How it is controlled at its ingress.
        control: At<Control> = "i2vfc",
        /// Rate at the IP layer its window never falls short of; the sum of all on a link is the operator's business. A weight computed from the topology shares these out first.
        minimum: Option<At<BitRate>>,
        /// Rate at the IP layer it never exceeds.
        maximum: Option<BitRate>,
        /// Classes in which its packets wait at the ingress, by DSCP; what is in no class's list belongs to the last. Left out: first in, first out.
        classes: Option<At<List<Class, 1, 64>>>,
        /// The far end is silent, and that is an alarm, when two queries this far apart, or more, are unanswered, and all between them.
        silent_after: Span = milliseconds(Silence::default().after),
        /// What becomes of packets while the far end is silent.
        when_silent: At<WhenSilent> = word(Silence::default().then),
    }
}

table! {
    /// Packets of a VPN flow that wait together.
    pub(crate) struct Class "a class" {
        /// DSCPs of its packets, as numbers (46 is expedited forwarding); the first class that has one counts.
        dscp: List<Count<0, 63>>,
        /// Classes of a lower number send before those of a higher one.
        priority: Count<0, 255> = 0,
        /// Share among classes of one priority.
        weight: Positive = 1,
        /// Packets that may wait.
        buffer: Packets = format!("{} packets", Config::default().queue),
        /// In what order.
        queue: ClassQueue = "drop-tail",
    }
}

tagged! {
    /// How the packets of a class wait.
    pub(crate) enum ClassQueue "a class's queue" by "kind" {
        /// First in, first out; what does not fit is dropped.
        DropTail(NoFields) = "drop-tail",
        /// FQ-CoDel (RFC 8290): each flow inside has a queue of its own.
        FqCodel(FqCodel) = "fq-codel",
    }
}

impl Class {
    /// What it says.
    pub(crate) fn checked(&self) -> TrafficClass {
        TrafficClass {
            codepoints: self.dscp.0.iter().map(|codepoint| codepoint.0 as u8).collect(),
            priority: self.priority.0 as u8,
            weight: self.weight.0,
            packets: self.buffer.0,
            fq_codel: match &self.queue {
                ClassQueue::DropTail(_) => None,
                ClassQueue::FqCodel(fq_codel) => Some(fq_codel.config()),
            },
        }
    }
}

choice!(WhenSilent {
    /// They go on, each second of silence is a loss, and the window goes towards one packet or the minimum.
    "shrink" => WhenSilent::Shrink,
    /// They go on at the rate of the last window: fail open.
    "open" => WhenSilent::Open,
    /// They are refused and counted, and a router tells their senders: fail closed.
    "closed" => WhenSilent::Closed,
});

impl Treatment {
    /// What it says, checked. `window` is the configuration of a window with its reference, where that is known;
    /// `shares` says that minima count in computing weights, with a window or without.
    pub(crate) fn settings(
        &self,
        weight: f64,
        shares: bool,
        window: impl FnOnce(&I2vfc) -> Option<Config>,
        problems: &mut Problems,
    ) -> Option<Settings> {
        let control = match &self.control.value {
            Control::None(_) => fair::Control::None,
            Control::FixedRate(fixed) => fair::Control::FixedRate { rate: fixed.rate, queue: fixed.queue.0 },
            Control::I2vfc(i2vfc) => fair::Control::I2vfc(Config {
                silence: Silence { after: self.silent_after.0, then: self.when_silent.value },
                ..window(i2vfc)?
            }),
        };
        if !matches!(control, fair::Control::I2vfc(_)) {
            let minimum = self.minimum.as_ref().filter(|minimum| minimum.own && !shares);
            let silence = Some(self.when_silent.place).filter(|_| self.when_silent.own);
            let windowless = [
                (silence, "when_silent", "asks the peer anything"),
                (minimum.map(|minimum| minimum.place), "minimum", "has a window"),
            ];
            for (place, field, what) in windowless {
                let Some(place) = place else { continue };
                let message = format!("`{field}` needs the control `i2vfc`: no other {what}");
                problems.push_help(place, message, "leave it out, or take that control");
            }
        }
        if let (Some(minimum), Some(maximum)) = (&self.minimum, self.maximum)
            && minimum.value > maximum
        {
            problems.push_help(minimum.place, "the minimum is more than the maximum", "lower it");
        }
        let classes = self.classes.iter().flat_map(|classes| &classes.value.0);
        Some(Settings {
            weight,
            control,
            minimum: self.minimum.as_ref().map(|minimum| minimum.value),
            maximum: self.maximum,
            classes: classes.map(Class::checked).collect(),
        })
    }
}

fn milliseconds(duration: Duration) -> Literal {
    format!("{} ms", duration.0 / 1_000_000).into()
}

/// A VPN's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Weight {
    Given(f64),
    MaxMin,
    Proportional,
}

impl Decode for Weight {
    fn kind() -> Kind {
        Kind::Either(vec![
            Kind::Number { bounds: "above 0", min: 0.0, max: f64::INFINITY },
            Kind::Choice(vec![
                ("max-min", "The VPN's max-min fair share of what the background leaves."),
                ("proportional", "The VPN's proportionally fair share of what the background leaves."),
            ]),
        ])
    }

    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        match (node.text(), number(node)) {
            (Some("max-min"), _) => Some(Weight::MaxMin),
            (Some("proportional"), _) => Some(Weight::Proportional),
            (None, Some(weight)) if (1e-9..=1e9).contains(&weight) => Some(Weight::Given(weight)),
            _ => mismatch(node, &Self::kind(), problems),
        }
    }
}

tagged! {
    /// How a VPN is controlled at its ingress.
    pub(crate) enum Control "control" by "kind" or "i2vfc" {
        /// Not at all: packets pass.
        None(NoFields) = "none",
        /// One AIMD window for the VPN, between its two PEs.
        I2vfc(I2vfc) = "i2vfc",
        /// A shaper of fixed rate.
        FixedRate(FixedRate) = "fixed-rate",
    }
}

table! {
    /// A fixed rate.
    pub(crate) struct FixedRate "control \"fixed-rate\"" {
        /// Rate at the IP layer.
        rate: BitRate,
        /// Packets that may wait at the ingress.
        queue: Packets = format!("{} packets", Config::default().queue),
    }
}

table! {
    /// The window of a VPN.
    pub(crate) struct I2vfc "control \"i2vfc\"" {
        /// Additive increase a, packets per round trip.
        increase: At<Positive> = Config::default().increase,
        /// Multiplicative decrease b, or `from-weight`: computed from weight, loss and round trip.
        decrease: At<Decrease> = default_decrease(),
        /// What the weight is relative to: a VPN with a fixed decrease, or `nominal`; in the file of a provider edge router the name of a [reference.NAME].
        reference: At<VpnName> = "nominal",
        /// The nominal flow, for `reference = "nominal"`.
        nominal: Option<At<NominalFlow>>,
        /// Which of a and b carries the weight.
        rule: Rule = word(Config::default().rule),
        /// Initial window, packets.
        initial_window: AtLeastOne = Config::default().initial_window,
        /// Packets that may wait at the ingress.
        queue: Packets = format!("{} packets", Config::default().queue),
        /// Data packets per management packet.
        report_every: Count<1, 1_000_000> = Config::default().report_every,
        /// How long a query may wait for `report_every` packets while the window is open.
        report_within: ReportWithin = milliseconds(Config::default().report_within),
        /// Longest time between two probes of an idle VPN: they come a second after the last packet, then after twice as long each time.
        idle_probe: IdleProbe = milliseconds(Config::default().idle_probe),
        /// A congestion mark (ECN) set by the core decreases the window as a lost packet does.
        ecn: bool = Config::default().marks_count,
        /// Spread packets over the round trip.
        pacing: bool = Config::default().pacing,
        /// How loss is measured.
        loss_measure: LossMeasure = word(Config::default().loss_measure),
    }
}

table! {
    /// A flow that exists only as constants shared by all PEs.
    pub(crate) struct NominalFlow "a nominal flow" {
        /// Its weight.
        weight: Positive = Nominal::default().weight,
        /// Its multiplicative decrease.
        decrease: Fraction = Nominal::default().decrease,
        /// Its round trip.
        round_trip: Span = milliseconds(Nominal::default().round_trip),
    }
}

impl I2vfc {
    /// What it says, relative to its nominal flow.
    pub(crate) fn config(&self) -> Config {
        let nominal = self.nominal.as_ref().map_or_else(Nominal::default, |n| Nominal {
            weight: n.weight.0,
            decrease: n.decrease.0,
            round_trip: n.round_trip.0,
        });
        Config {
            increase: self.increase.value.0,
            decrease: match self.decrease.value {
                Decrease::Fixed(decrease) => fair::Decrease::Fixed(decrease),
                Decrease::FromWeight => fair::Decrease::FromWeight,
            },
            reference: fair::Reference::Nominal(nominal),
            rule: self.rule,
            initial_window: self.initial_window.0,
            queue: self.queue.0,
            report_every: self.report_every.0 as u32,
            report_within: self.report_within.0,
            idle_probe: self.idle_probe.0,
            marks_count: self.ecn,
            silence: Config::default().silence,
            pacing: self.pacing,
            loss_measure: self.loss_measure,
        }
    }
}

fn default_decrease() -> Literal {
    match Config::default().decrease {
        fair::Decrease::Fixed(decrease) => decrease.into(),
        fair::Decrease::FromWeight => "from-weight".into(),
    }
}

/// How long a query may wait: well below the second after which silence is a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ReportWithin(pub Duration);

impl Decode for ReportWithin {
    fn kind() -> Kind {
        Kind::Quantity(&[Dimension::Time])
    }

    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let bounds = 1_000_000..=500_000_000;
        bounded(node, &[Dimension::Time], bounds, "from 1 ms to 500 ms", problems)
            .map(|(_, nanoseconds)| ReportWithin(Duration(nanoseconds)))
    }
}

/// How rarely an idle VPN may probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IdleProbe(pub Duration);

impl Decode for IdleProbe {
    fn kind() -> Kind {
        Kind::Quantity(&[Dimension::Time])
    }

    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let bounds = 1_000_000_000..=3_600_000_000_000;
        bounded(node, &[Dimension::Time], bounds, "from 1 s to 3600 s", problems)
            .map(|(_, nanoseconds)| IdleProbe(Duration(nanoseconds)))
    }
}

/// Multiplicative decrease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Decrease {
    Fixed(f64),
    FromWeight,
}

impl Decode for Decrease {
    fn kind() -> Kind {
        Kind::Either(vec![
            Fraction::kind(),
            Kind::Choice(vec![("from-weight", "Computed from the weight, measured loss and round trip.")]),
        ])
    }

    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        match (node.text(), number(node)) {
            (Some("from-weight"), _) => Some(Decrease::FromWeight),
            (None, Some(decrease)) if decrease > 0.0 && decrease < 1.0 => Some(Decrease::Fixed(decrease)),
            _ => mismatch(node, &Self::kind(), problems),
        }
    }
}

choice!(Rule {
    /// Move b while that is feasible, and a beyond.
    "decrease-then-increase" => Rule::DecreaseThenIncrease,
    /// Move b only; a weight that asks for more is reported.
    "decrease" => Rule::Decrease,
    /// Keep b, scale a.
    "increase" => Rule::Increase,
});

choice!(Encapsulation {
    /// Nothing: headers are left out of account.
    "none" => Encapsulation::None,
    /// Two labels.
    "mpls" => Encapsulation::Mpls,
    /// The VPN's label in UDP over IPv4 (RFC 7510).
    "mpls-in-udp" => Encapsulation::MplsInUdp,
});

choice!(LossMeasure {
    /// Loss events per packet over the last eight intervals (as RFC 5348).
    "loss-events" => LossMeasure::LossEvents,
    /// Packets dropped per packet sent, smoothed.
    "drop-ratio" => LossMeasure::DropRatio,
});
