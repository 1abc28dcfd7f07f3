//! `[vpn.NAME]` and the control of a VPN at its ingress PE.

use super::network::FqCodel;
use crate::error::Problems;
use crate::quantity::Dimension;
use crate::scalar::{
    AtLeastOne, BoundedCount, Fraction, NodeName, Positive, PositiveDuration, QueueLength, VpnName, bounded,
    number,
};
use crate::table::{
    Decode, List, Literal, Located, NoFields, ValueKind, choice, mismatch, table, tagged, word,
};
use crate::tree::TomlNode;
use netstage_core::edge::VpnFlowSettings;
use netstage_core::fair::{
    self, I2vfcConfig, LossMeasure, NominalReference, SilenceAction, SilencePolicy, WeightRule,
};
use netstage_core::quantity::BitRate;
use netstage_core::queue::{CodelConfig, FqCodelConfig, TrafficClass};
use netstage_core::time::Duration;
use netstage_wire::Encapsulation;

table! {
    /// Traffic of a VPN in one direction. The reverse direction, if it is to be controlled, is a separate VPN: `back`.
    pub(crate) struct VpnTable "a VPN" {
        /// Number of identical VPNs, named `NAME1`, `NAME2`, …, each with its own copy of the flows.
        count: Option<BoundedCount<0, 10_000>>,
        /// Share relative to the other VPNs: a number, or computed from the topology.
        weight: Located<VpnWeight> = 1,
        /// Ingress PE.
        ingress: Located<NodeName>,
        /// Egress PE.
        egress: Located<NodeName>,
        /// Encapsulation of the packets between the PEs. Links carry it; the VPN's metrics do not count it.
        encapsulation: Encapsulation = word(Encapsulation::None),
        /// VPN that carries the reverse traffic, mainly acknowledgments, and whose reverse traffic this VPN carries;
        /// default: none, so that the reverse traffic is not controlled.
        back: Option<Located<VpnName>>,
        /// Nodes between ingress and egress, in order; default: the shortest path.
        via: Option<Located<List<Located<NodeName>>>>,
        /// Nodes of the reverse path, in order; default: the same path reversed.
        reverse_via: Option<Located<List<Located<NodeName>>>>,
        ..treatment: Treatment
    }
}

table! {
    /// Treatment of a VPN flow at its ingress, in a scenario and by a provider edge router.
    pub(crate) struct Treatment "a VPN" {
        /// Control at the ingress.
        control: Located<ControlTable> = "rate-consensus",
        /// Minimum rate of the window or of rate consensus, at the IP layer. The operator must ensure that the links carry the sum of all
        /// minimums. Weights computed from the topology allocate the minimums first.
        minimum: Option<Located<BitRate>>,
        /// Maximum rate, at the IP layer.
        maximum: Option<BitRate>,
        /// Ingress classes, by DSCP; unlisted DSCPs belong to the last class. Default: a queue for
        /// each flow inside the VPN (FQ-CoDel) under rate consensus, otherwise one first-in, first-out queue.
        classes: Option<Located<List<ClassTable, 1, 64>>>,
        /// Silence that raises an alarm: two queries at least this far apart, and all between, are unanswered.
        silent_after: PositiveDuration = milliseconds(SilencePolicy::default().after),
        /// Treatment of packets while the peer is silent, for control `i2vfc`.
        when_silent: Located<SilenceAction> = word(SilencePolicy::default().action),
    }
}

table! {
    /// Class of a VPN flow's ingress queue.
    pub(crate) struct ClassTable "a class" {
        /// DSCPs of the class, as numbers (46 is expedited forwarding); the first class that lists a DSCP applies.
        dscp: List<BoundedCount<0, 63>>,
        /// Priority; lower numbers send first.
        priority: BoundedCount<0, 255> = 0,
        /// Weight among classes of the same priority.
        weight: Positive = 1,
        /// Capacity in packets.
        buffer: QueueLength = format!("{} packets", I2vfcConfig::default().queue),
        /// Queue discipline.
        queue: ClassQueue = "drop-tail",
    }
}

tagged! {
    /// Queue discipline of a class.
    pub(crate) enum ClassQueue "class queue" by "kind" {
        /// First in, first out; packets that do not fit are dropped.
        DropTail(NoFields) = "drop-tail",
        /// FQ-CoDel (RFC 8290): a queue per flow inside the VPN.
        FqCodel(FqCodel) = "fq-codel",
    }
}

impl ClassTable {
    /// Returns the class for the engine.
    pub(crate) fn traffic_class(&self) -> TrafficClass {
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

choice!(SilenceAction {
    /// Packets are sent; each second of silence counts as a loss, and the window shrinks to one packet or the minimum.
    "shrink" => SilenceAction::Shrink,
    /// Fail open: packets are sent at the rate of the last window.
    "open" => SilenceAction::Open,
    /// Fail closed: packets are dropped and counted, and a router notifies their senders.
    "closed" => SilenceAction::Closed,
});

impl Treatment {
    /// Returns the checked settings. `window` returns the configuration of a window with its reference, if known.
    /// With `shares`, a minimum counts in the computation of weights, and is valid without a window.
    pub(crate) fn settings(
        &self,
        weight: f64,
        shares: bool,
        window: impl FnOnce(&I2vfc) -> Option<I2vfcConfig>,
        problems: &mut Problems,
    ) -> Option<VpnFlowSettings> {
        let control = match &self.control.value {
            ControlTable::None(_) => fair::VpnControl::None,
            ControlTable::FixedRate(fixed) => {
                fair::VpnControl::FixedRate { rate: fixed.rate, queue: fixed.queue.0 }
            }
            // The links or the path are set where they are known.
            ControlTable::RateConsensus(_) => {
                fair::VpnControl::RateConsensus(fair::CoreMembership::default())
            }
            ControlTable::I2vfc(i2vfc) => fair::VpnControl::I2vfc(I2vfcConfig {
                silence: SilencePolicy { after: self.silent_after.0, action: self.when_silent.value },
                ..window(i2vfc)?
            }),
        };
        if !matches!(control, fair::VpnControl::I2vfc(_)) {
            let has_rate = matches!(control, fair::VpnControl::RateConsensus(_));
            let minimum = self.minimum.as_ref().filter(|minimum| minimum.own && !shares && !has_rate);
            let silence = Some(self.when_silent.place).filter(|_| self.when_silent.own);
            let windowless = [
                (silence, "when_silent", "queries the peer"),
                (minimum.map(|minimum| minimum.place), "minimum", "has a window"),
            ];
            for (place, field, what) in windowless {
                let Some(place) = place else { continue };
                let message = format!("`{field}` needs control \"i2vfc\": no other control {what}");
                problems.push_help(place, message, "remove it, or set control = \"i2vfc\"");
            }
        }
        if let (Some(minimum), Some(maximum)) = (&self.minimum, self.maximum)
            && minimum.value > maximum
        {
            let help = "lower `minimum`, or raise `maximum`";
            problems.push_help(minimum.place, "`minimum` exceeds `maximum`", help);
        }
        let classes = self.classes.iter().flat_map(|classes| &classes.value.0);
        let mut classes: Vec<TrafficClass> = classes.map(ClassTable::traffic_class).collect();
        if classes.is_empty() && matches!(control, fair::VpnControl::RateConsensus(_)) {
            classes.push(flow_queues());
        }
        Some(VpnFlowSettings {
            weight,
            control,
            minimum: self.minimum.as_ref().map(|minimum| minimum.value),
            maximum: self.maximum,
            classes,
        })
    }
}

/// Returns the default class of a VPN under rate consensus: a queue for each flow inside.
fn flow_queues() -> TrafficClass {
    TrafficClass {
        codepoints: Vec::new(),
        priority: 0,
        weight: 1.0,
        packets: 10_000,
        fq_codel: Some(FqCodelConfig {
            codel: CodelConfig {
                target: Duration::from_millis(20),
                interval: Duration::from_millis(200),
                ecn: true,
            },
            flows: 1024,
            quantum: 1514,
        }),
    }
}

fn milliseconds(duration: Duration) -> Literal {
    format!("{} ms", duration.0 / 1_000_000).into()
}

/// Weight of a VPN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum VpnWeight {
    Given(f64),
    MaxMin,
    Proportional,
}

impl Decode for VpnWeight {
    fn kind() -> ValueKind {
        ValueKind::Either(vec![
            ValueKind::Number { bounds: "above 0", min: 0.0, max: f64::INFINITY },
            ValueKind::Choice(vec![
                ("max-min", "Max-min fair share of the capacity left by background load."),
                ("proportional", "Proportionally fair share of the capacity left by background load."),
            ]),
        ])
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        match (node.text(), number(node)) {
            (Some("max-min"), _) => Some(VpnWeight::MaxMin),
            (Some("proportional"), _) => Some(VpnWeight::Proportional),
            (None, Some(weight)) if (1e-9..=1e9).contains(&weight) => Some(VpnWeight::Given(weight)),
            _ => mismatch(node, &Self::kind(), problems),
        }
    }
}

tagged! {
    /// Control of a VPN at its ingress.
    pub(crate) enum ControlTable "control" by "kind" {
        /// No control.
        None(NoFields) = "none",
        /// One AIMD window for the VPN between its two PEs.
        I2vfc(I2vfc) = "i2vfc",
        /// A rate for the VPN between its two PEs, by [consensus](fairness.md#rate-consensus) with the VPNs that share
        /// its bottleneck.
        RateConsensus(RateConsensusTable) = "rate-consensus",
        /// Shaper with a fixed rate.
        FixedRate(FixedRate) = "fixed-rate",
    }
}

table! {
    /// Control by rate consensus.
    pub(crate) struct RateConsensusTable "control \"rate-consensus\"" {
        /// Knowledge of PEs about the links that their VPNs share with others, in scenarios.
        links: Located<LinkKnowledge> = "known",
    }
}

/// Knowledge of PEs about the links of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKnowledge {
    Known,
    Unknown,
}

choice!(LinkKnowledge {
    /// The links follow from the topology.
    "known" => LinkKnowledge::Known,
    /// PEs find out which VPNs share a bottleneck, as routers whose flows have no `links`.
    "unknown" => LinkKnowledge::Unknown,
});

table! {
    /// Fixed-rate control.
    pub(crate) struct FixedRate "control \"fixed-rate\"" {
        /// Rate, at the IP layer.
        rate: BitRate,
        /// Capacity of the ingress queue.
        queue: QueueLength = format!("{} packets", I2vfcConfig::default().queue),
    }
}

table! {
    /// Window control.
    pub(crate) struct I2vfc "control \"i2vfc\"" {
        /// Additive increase a, packets per round trip.
        increase: Located<Positive> = I2vfcConfig::default().increase,
        /// Multiplicative decrease b, or `from-weight`: computed from weight, loss and round trip.
        decrease: Located<Decrease> = default_decrease(),
        /// Reference of the weight: `nominal`, a VPN with a fixed decrease, or in a PE's file a [reference.NAME].
        reference: Located<VpnName> = "nominal",
        /// Nominal flow, with `reference = "nominal"`.
        nominal: Option<Located<NominalFlow>>,
        /// Parameter that applies the weight: a, b or both.
        rule: WeightRule = word(I2vfcConfig::default().rule),
        /// Initial window, packets.
        initial_window: AtLeastOne = I2vfcConfig::default().initial_window,
        /// Capacity of the ingress queue.
        queue: QueueLength = format!("{} packets", I2vfcConfig::default().queue),
        /// Data packets per management packet.
        report_every: BoundedCount<1, 1_000_000> = I2vfcConfig::default().report_every,
        /// Maximum delay of a management packet with fewer than `report_every` packets, while the window is open.
        report_within: ReportWithin = milliseconds(I2vfcConfig::default().report_within),
        /// Maximum interval between probes of an idle VPN. The first interval is one second; each next one is doubled.
        idle_probe: IdleProbe = milliseconds(I2vfcConfig::default().idle_probe),
        /// Decrease the window on a congestion mark (ECN) of the core as on a lost packet.
        ecn: bool = I2vfcConfig::default().marks_are_losses,
        /// Pace packets over the round-trip time.
        pacing: bool = I2vfcConfig::default().pacing,
        /// Measure of loss.
        loss_measure: LossMeasure = word(I2vfcConfig::default().loss_measure),
    }
}

table! {
    /// Nominal flow: constants shared by all PEs.
    pub(crate) struct NominalFlow "a nominal flow" {
        /// Weight.
        weight: Positive = NominalReference::default().weight,
        /// Multiplicative decrease.
        decrease: Fraction = NominalReference::default().decrease,
        /// Round-trip time.
        round_trip: PositiveDuration = milliseconds(NominalReference::default().round_trip),
    }
}

impl I2vfc {
    /// Returns the configuration, with the nominal flow as reference.
    pub(crate) fn config(&self) -> I2vfcConfig {
        let nominal = self.nominal.as_ref().map_or_else(NominalReference::default, |n| NominalReference {
            weight: n.weight.0,
            decrease: n.decrease.0,
            round_trip: n.round_trip.0,
        });
        I2vfcConfig {
            increase: self.increase.value.0,
            decrease: match self.decrease.value {
                Decrease::Fixed(decrease) => fair::Decrease::Fixed(decrease),
                Decrease::FromWeight => fair::Decrease::FromWeight,
            },
            reference: fair::WeightReference::Nominal(nominal),
            rule: self.rule,
            initial_window: self.initial_window.0,
            queue: self.queue.0,
            report_every: self.report_every.0 as u32,
            report_within: self.report_within.0,
            idle_probe: self.idle_probe.0,
            marks_are_losses: self.ecn,
            silence: I2vfcConfig::default().silence,
            pacing: self.pacing,
            loss_measure: self.loss_measure,
        }
    }
}

fn default_decrease() -> Literal {
    match I2vfcConfig::default().decrease {
        fair::Decrease::Fixed(decrease) => decrease.into(),
        fair::Decrease::FromWeight => "from-weight".into(),
    }
}

/// Maximum delay of a query: well below the second of silence that counts as a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ReportWithin(pub Duration);

impl Decode for ReportWithin {
    fn kind() -> ValueKind {
        ValueKind::Quantity(&[Dimension::Time])
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let bounds = 1_000_000..=500_000_000;
        bounded(node, &[Dimension::Time], bounds, format_args!("from 1 ms to 500 ms"), problems)
            .map(|(_, nanoseconds)| ReportWithin(Duration(nanoseconds)))
    }
}

/// Maximum interval between probes of an idle VPN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IdleProbe(pub Duration);

impl Decode for IdleProbe {
    fn kind() -> ValueKind {
        ValueKind::Quantity(&[Dimension::Time])
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let bounds = 1_000_000_000..=3_600_000_000_000;
        bounded(node, &[Dimension::Time], bounds, format_args!("from 1 s to 3600 s"), problems)
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
    fn kind() -> ValueKind {
        ValueKind::Either(vec![
            Fraction::kind(),
            ValueKind::Choice(vec![(
                "from-weight",
                "Computed from the weight, the measured loss and the round-trip time.",
            )]),
        ])
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        match (node.text(), number(node)) {
            (Some("from-weight"), _) => Some(Decrease::FromWeight),
            (None, Some(decrease)) if decrease > 0.0 && decrease < 1.0 => Some(Decrease::Fixed(decrease)),
            _ => mismatch(node, &Self::kind(), problems),
        }
    }
}

choice!(WeightRule {
    /// Adjust b within its feasible range, then a.
    "decrease-then-increase" => WeightRule::DecreaseThenIncrease,
    /// Adjust b only; an infeasible weight is reported.
    "decrease" => WeightRule::Decrease,
    /// Adjust a only.
    "increase" => WeightRule::Increase,
});

choice!(Encapsulation {
    /// None; headers are not counted.
    "none" => Encapsulation::None,
    /// Two labels.
    "mpls" => Encapsulation::Mpls,
    /// VPN label in UDP over IPv4 (RFC 7510).
    "mpls-in-udp" => Encapsulation::MplsInUdp,
});

choice!(LossMeasure {
    /// Loss events per packet over the last eight intervals (as RFC 5348).
    "loss-events" => LossMeasure::LossEvents,
    /// Smoothed ratio of packets dropped to packets sent.
    "drop-ratio" => LossMeasure::DropRatio,
});
