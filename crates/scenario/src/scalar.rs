//! Scalar values of a configuration file: bounded numbers, strings and quantities.

use crate::error::Problems;
use crate::quantity::{self, Dimension};
use crate::table::{Decode, ValueKind, mismatch};
use crate::tree::{TomlNode, TomlValue};
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::time::Duration;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

impl Decode for bool {
    fn kind() -> ValueKind {
        ValueKind::Boolean
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        match node.value {
            TomlValue::Boolean(value) => Some(value),
            _ => mismatch(node, &Self::kind(), problems),
        }
    }
}

impl Decode for String {
    fn kind() -> ValueKind {
        ValueKind::Text("a string")
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        node.text().map(str::to_owned).or_else(|| mismatch(node, &Self::kind(), problems))
    }
}

/// Declares a string type. The tables of counted VPNs share the names in them, which are `Rc<str>`.
macro_rules! text {
    (@type) => { String };
    (@type $shared:ty) => { $shared };
    ($($(#[doc = $doc:literal])* $name:ident $(: $shared:ty)? = $holds:literal;)+) => {
        $($(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub text!(@type $($shared)?));

        impl Decode for $name {
            fn kind() -> ValueKind {
                ValueKind::Text($holds)
            }
            fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
                node.text().map(|t| $name(t.into())).or_else(|| mismatch(node, &Self::kind(), problems))
            }
        })+
    };
}

pub(crate) use text;

text! {
    NodeName: Rc<str> = "the name of a node";
    VpnName: Rc<str> = "the name of a VPN";
    InterfaceName = "the name of a network interface";
    MetricName = "the name of a metric";
    /// Name of a flow, VPN or link direction, possibly with `*`.
    SubjectPattern = "the name of a subject, in which `*` matches any text";
    /// Swept path, or `variant`.
    SweptPath = "a swept path";
    /// Name of a fleet, as configured at its controller.
    FleetName = "the name of a fleet";
    AgentName = "the name of an agent, as listed by `netstage fleet ls`";
    Label = "a label of agents";
    /// Path of a file, relative to the file that contains it.
    FilePath = "the path of a file";
}

/// Address of a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupAddress(pub IpAddr);

impl Decode for GroupAddress {
    fn kind() -> ValueKind {
        ValueKind::Text("a multicast address such as \"239.1.2.3\" or \"ff3e::1234\"")
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let address = node.text().and_then(|text| text.parse::<IpAddr>().ok());
        match address.filter(IpAddr::is_multicast) {
            Some(address) => Some(GroupAddress(address)),
            None => mismatch(node, &Self::kind(), problems),
        }
    }
}

/// Integer within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoundedCount<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> Decode for BoundedCount<MIN, MAX> {
    fn kind() -> ValueKind {
        ValueKind::Integer { min: MIN, max: MAX }
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        match node.value {
            TomlValue::Integer(number) if (i128::from(MIN)..=i128::from(MAX)).contains(&number) => {
                Some(BoundedCount(number as u64))
            }
            _ => mismatch(node, &Self::kind(), problems),
        }
    }
}

/// Returns the number of a node, if finite.
pub(crate) fn number(node: &TomlNode) -> Option<f64> {
    match &node.value {
        TomlValue::Integer(number) => Some(*number as f64),
        TomlValue::Float(number) => number.parse().ok().filter(|n: &f64| n.is_finite()),
        _ => None,
    }
}

/// Declares a bounded number type.
macro_rules! number {
    ($($(#[doc = $doc:literal])* $name:ident = $bounds:literal, $min:expr, $max:expr, $holds:expr;)+) => {
        $($(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) struct $name(pub f64);

        impl Decode for $name {
            fn kind() -> ValueKind {
                ValueKind::Number { bounds: $bounds, min: $min, max: $max }
            }
            fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
                let holds: fn(f64) -> bool = $holds;
                number(node).filter(|n| holds(*n)).map($name).or_else(|| mismatch(node, &Self::kind(), problems))
            }
        })+
    };
}

number! {
    Number = "", f64::NEG_INFINITY, f64::INFINITY, |_| true;
    Positive = "above 0", 0.0, f64::INFINITY, |n| n > 0.0;
    Scale = "from 0 to 1000", 0.0, 1000.0, |n| (0.0..=1000.0).contains(&n);
    AtLeastOne = "from 1", 1.0, f64::INFINITY, |n| n >= 1.0;
    AboveOne = "above 1", 1.0, f64::INFINITY, |n| n > 1.0;
    Fraction = "above 0 and below 1", 0.0, 1.0, |n| n > 0.0 && n < 1.0;
    Weighting = "above 0, at most 1", 0.0, 1.0, |n| n > 0.0 && n <= 1.0;
}

/// Number from 0 to 1, or a percentage such as "1 %".
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Probability(pub f64);

impl Decode for Probability {
    fn kind() -> ValueKind {
        ValueKind::Either(vec![
            ValueKind::Number { bounds: "from 0 to 1", min: 0.0, max: 1.0 },
            ValueKind::Quantity(&[Dimension::Share]),
        ])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let value = match node.text() {
            Some(_) => share(node, problems)?,
            None => match number(node) {
                Some(value) => value,
                None => return mismatch(node, &Self::kind(), problems),
            },
        };
        if (0.0..=1.0).contains(&value) {
            return Some(Probability(value));
        }
        let expected = "a number from 0 to 1 or a percentage from \"0 %\" to \"100 %\"";
        problems.push(node.place, format!("expected {expected}, found {}", node.describe()));
        None
    }
}

/// Returns a percentage such as "10 %" as a fraction, without an upper bound.
pub(crate) fn share(node: &TomlNode, problems: &mut Problems) -> Option<f64> {
    quantity(node, &[Dimension::Share], problems).map(|(_, parts)| parts as f64 / 1e12)
}

/// Returns the quantity of a node in its base unit.
pub(crate) fn quantity(
    node: &TomlNode,
    dimensions: &'static [Dimension],
    problems: &mut Problems,
) -> Option<(Dimension, u64)> {
    let Some(text) = node.text() else { return mismatch(node, &ValueKind::Quantity(dimensions), problems) };
    match quantity::parse(text, dimensions) {
        Ok(value) => Some(value),
        Err(refusal) => {
            problems.push_with_help(node.place, refusal.message, refusal.help);
            None
        }
    }
}

/// Returns the quantity of a node if it is within a range. `bounds` describes the range in the message.
pub(crate) fn bounded(
    node: &TomlNode,
    dimensions: &'static [Dimension],
    range: std::ops::RangeInclusive<u64>,
    bounds: fmt::Arguments<'_>,
    problems: &mut Problems,
) -> Option<(Dimension, u64)> {
    let value = quantity(node, dimensions, problems)?;
    if range.contains(&value.1) {
        return Some(value);
    }
    problems.push(node.place, format!("{} must be {bounds}, found {}", value.0.name(), node.describe()));
    None
}

impl Decode for BitRate {
    fn kind() -> ValueKind {
        ValueKind::Quantity(&[Dimension::Rate])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let max = 100_000_000_000_000;
        bounded(node, &[Dimension::Rate], 1..=max, format_args!("above 0 and at most 100 Tbit/s"), problems)
            .map(|v| BitRate(v.1))
    }
}

/// Maximum duration: a year of 366 days.
const MAX_DURATION: u64 = 366 * 86_400 * 1_000_000_000;

impl Decode for Duration {
    fn kind() -> ValueKind {
        ValueKind::Quantity(&[Dimension::Time])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        bounded(node, &[Dimension::Time], 0..=MAX_DURATION, format_args!("at most 8784 h"), problems)
            .map(|v| Duration(v.1))
    }
}

/// Duration above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PositiveDuration(pub Duration);

impl Decode for PositiveDuration {
    fn kind() -> ValueKind {
        ValueKind::Quantity(&[Dimension::Time])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        bounded(
            node,
            &[Dimension::Time],
            1..=MAX_DURATION,
            format_args!("above 0 and at most 8784 h"),
            problems,
        )
        .map(|v| PositiveDuration(Duration(v.1)))
    }
}

/// Size in bytes, within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoundedSize<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> Decode for BoundedSize<MIN, MAX> {
    fn kind() -> ValueKind {
        ValueKind::Quantity(&[Dimension::Size])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        bounded(node, &[Dimension::Size], MIN..=MAX, format_args!("from {MIN} B to {MAX} B"), problems)
            .map(|v| BoundedSize(v.1))
    }
}

/// Number of queued packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLength(pub u32);

const MAX_PACKETS: u64 = 10_000_000;

impl Decode for QueueLength {
    fn kind() -> ValueKind {
        ValueKind::Quantity(&[Dimension::Packets])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        bounded(node, &[Dimension::Packets], 1..=MAX_PACKETS, format_args!("from 1 to 10000000"), problems)
            .map(|v| QueueLength(v.1 as u32))
    }
}

impl Decode for Capacity {
    fn kind() -> ValueKind {
        ValueKind::Quantity(&[Dimension::Packets, Dimension::Size])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let both: &[Dimension] = &[Dimension::Packets, Dimension::Size];
        match quantity(node, both, problems)? {
            (Dimension::Packets, 1..=MAX_PACKETS) => {
                QueueLength::decode(node, problems).map(|p| Capacity::Packets(p.0))
            }
            (Dimension::Size, bytes @ 1..=16_000_000_000) => Some(Capacity::Bytes(bytes)),
            _ => {
                let message = format!(
                    "a buffer must be from 1 packet to 10000000 packets, or from 1 B to 16 GB, found {}",
                    node.describe()
                );
                problems.push(node.place, message);
                None
            }
        }
    }
}

/// Value of a metric: a number in its unit, or a quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Amount {
    pub value: f64,
    pub dimension: Option<Dimension>,
}

impl Decode for Amount {
    fn kind() -> ValueKind {
        ValueKind::Either(vec![
            Number::kind(),
            ValueKind::Quantity(&[Dimension::Rate, Dimension::Time, Dimension::Packets, Dimension::Share]),
        ])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let Some(_) = node.text() else {
            return match number(node) {
                Some(value) => Some(Amount { value, dimension: None }),
                None => mismatch(node, &Self::kind(), problems),
            };
        };
        let all: &[Dimension] = &[Dimension::Rate, Dimension::Time, Dimension::Packets, Dimension::Share];
        let (dimension, value) = quantity(node, all, problems)?;
        let value = match dimension {
            Dimension::Time => value as f64 / 1e9,
            Dimension::Share => value as f64 / 1e12,
            _ => value as f64,
        };
        Some(Amount { value, dimension: Some(dimension) })
    }
}
