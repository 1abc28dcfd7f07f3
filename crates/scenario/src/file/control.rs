//! `[vpn.NAME]` and how a VPN is controlled at its ingress PE.

use crate::error::Problems;
use crate::quantity::Dimension;
use crate::scalar::{
    AtLeastOne, Count, Fraction, NodeName, Packets, Positive, Span, VpnName, bounded, number,
};
use crate::table::{At, Decode, Kind, List, Literal, NoFields, choice, mismatch, table, tagged, word};
use crate::tree::Node;
use netstage_core::fair::{self, Config, LossMeasure, Nominal, Rule};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_wire::Encapsulation;

table! {
    /// A VPN's traffic in one direction. The way back, if it is to be controlled, is a VPN of its own: `back`.
    pub(crate) struct Vpn "a VPN" {
        /// So many VPNs instead of one, alike but for their names, `NAME1`, `NAME2`, …; each has flows of its own for every flow of this VPN, numbered like it.
        count: Option<Count<0, 10_000>>,
        /// Its share relative to the other VPNs: a number, or computed from the topology.
        weight: At<Weight> = 1,
        /// Guaranteed rate at the IP layer, with a computed weight: shared out first.
        minimum: Option<At<BitRate>>,
        /// The PE where its traffic enters.
        ingress: At<NodeName>,
        /// The PE where its traffic leaves.
        egress: At<NodeName>,
        /// How it is controlled at its ingress.
        control: At<Control> = "i2vfc",
        /// What its packets have around them between the PEs. Links carry it; the VPN's own figures leave it out.
        encapsulation: Encapsulation = word(Encapsulation::None),
        /// The VPN from egress to ingress that carries what comes back, acknowledgements above all, and whose own comes back by this one; left out: nobody controls that.
        back: Option<At<VpnName>>,
        /// Nodes between ingress and egress, in order, instead of the shortest path.
        via: Option<At<List<At<NodeName>>>>,
        /// Nodes on the way back, in order; left out: the same way.
        reverse_via: Option<At<List<At<NodeName>>>>,
    }
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
        /// What the weight is relative to: a VPN with a fixed decrease, or `nominal`.
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
        /// How long a query may wait for `report_every` packets while the window is open; left out: 10 ms, or 250 ms in the file of a provider edge router, which may have many idle VPN flows.
        report_within: Option<ReportWithin>,
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
        round_trip: Span = format!("{} ms", Nominal::default().round_trip.0 / 1_000_000),
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
            report_within: self.report_within.map_or(Config::default().report_within, |within| within.0),
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
