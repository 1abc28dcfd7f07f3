//! What a route is announced with: the path attributes (RFC 4271 section 5) a table keeps, and
//! how they are written to a peer.

use super::attributes::{self, Attributes, flag};
use super::nlri::Family;
use std::fmt;
use std::net::IpAddr;

/// Stands for an AS number of more than two bytes (RFC 6793 sections 4.2.2 and 9).
pub(super) const AS_TRANS: u16 = 23_456;
/// AS numbers a segment can have.
const LONGEST_SEGMENT: usize = 255;

/// ORIGIN (RFC 4271 section 5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// By an interior protocol.
    Igp,
    /// By EGP.
    Egp,
    /// By other means.
    Incomplete,
}

/// What the AS numbers of a segment are (RFC 4271 section 4.3, RFC 5065 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// In no order.
    Set,
    /// In the order of the path, the latest first.
    Sequence,
    /// A sequence within a confederation.
    ConfederationSequence,
    /// A set within a confederation.
    ConfederationSet,
}

impl SegmentKind {
    pub(super) fn from_code(code: u8) -> Option<SegmentKind> {
        match code {
            1 => Some(SegmentKind::Set),
            2 => Some(SegmentKind::Sequence),
            3 => Some(SegmentKind::ConfederationSequence),
            4 => Some(SegmentKind::ConfederationSet),
            _ => None,
        }
    }

    const fn code(self) -> u8 {
        match self {
            SegmentKind::Set => 1,
            SegmentKind::Sequence => 2,
            SegmentKind::ConfederationSequence => 3,
            SegmentKind::ConfederationSet => 4,
        }
    }
}

/// A part of an AS path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment {
    /// What it is.
    pub kind: SegmentKind,
    /// Its AS numbers, at least one.
    pub numbers: Vec<u32>,
}

/// The autonomous systems a route has passed, the latest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AsPath {
    /// Its parts.
    pub segments: Vec<Segment>,
}

impl AsPath {
    /// A sequence; empty for a route of the own autonomous system.
    pub fn sequence(numbers: &[u32]) -> AsPath {
        let segments = numbers.chunks(LONGEST_SEGMENT);
        AsPath {
            segments: segments
                .map(|numbers| Segment { kind: SegmentKind::Sequence, numbers: numbers.to_vec() })
                .collect(),
        }
    }

    /// How long it counts: a set as one, a confederation's segments as nothing (RFC 4271 section
    /// 9.1.2.2, RFC 5065 section 5.3).
    pub fn length(&self) -> usize {
        let count = |segment: &Segment| match segment.kind {
            SegmentKind::Sequence => segment.numbers.len(),
            SegmentKind::Set => 1,
            _ => 0,
        };
        self.segments.iter().map(count).sum()
    }

    /// With another AS number ahead (RFC 4271 section 5.1.2).
    fn prepended(&self, number: u32) -> AsPath {
        let mut segments = self.segments.clone();
        match segments.first_mut() {
            Some(Segment { kind: SegmentKind::Sequence, numbers }) if numbers.len() < LONGEST_SEGMENT => {
                numbers.insert(0, number)
            }
            _ => segments.insert(0, Segment { kind: SegmentKind::Sequence, numbers: vec![number] }),
        }
        AsPath { segments }
    }

    /// From the two forms a peer with AS numbers of two bytes sends (RFC 6793 section 4.2.3).
    pub(super) fn merged(old: AsPath, new: AsPath) -> AsPath {
        let Some(mut missing) = old.length().checked_sub(new.length()) else { return old };
        let mut segments = Vec::new();
        for segment in old.segments {
            let taken = match segment.kind {
                SegmentKind::Sequence => segment.numbers.len().min(missing),
                SegmentKind::Set if missing > 0 => segment.numbers.len(),
                SegmentKind::Set => 0,
                _ => segment.numbers.len(),
            };
            missing -= if segment.kind == SegmentKind::Set { missing.min(1) } else { taken.min(missing) };
            if taken > 0 {
                segments.push(Segment { kind: segment.kind, numbers: segment.numbers[..taken].to_vec() });
            }
        }
        segments.extend(new.segments);
        AsPath { segments }
    }

    fn write(&self, four_octet_as: bool) -> Vec<u8> {
        let mut value = Vec::new();
        for segment in &self.segments {
            value.extend([segment.kind.code(), segment.numbers.len() as u8]);
            for &number in &segment.numbers {
                if four_octet_as {
                    value.extend(number.to_be_bytes());
                } else {
                    value.extend(u16::try_from(number).unwrap_or(AS_TRANS).to_be_bytes());
                }
            }
        }
        value
    }

    fn has_large_numbers(&self) -> bool {
        self.segments.iter().flat_map(|segment| &segment.numbers).any(|&number| number > u32::from(u16::MAX))
    }
}

impl fmt::Display for AsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.segments.iter().enumerate() {
            let (open, close) = match segment.kind {
                SegmentKind::Sequence => ("", ""),
                SegmentKind::Set => ("{", "}"),
                SegmentKind::ConfederationSequence => ("(", ")"),
                SegmentKind::ConfederationSet => ("[", "]"),
            };
            let numbers: Vec<String> = segment.numbers.iter().map(u32::to_string).collect();
            write!(f, "{}{open}{}{close}", if index > 0 { " " } else { "" }, numbers.join(" "))?;
        }
        Ok(())
    }
}

/// An attribute kept as it came.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawAttribute {
    /// Its flags (RFC 4271 section 4.3).
    pub flags: u8,
    /// Its type.
    pub code: u8,
    /// Its value.
    pub value: Vec<u8>,
}

/// The attributes that routes have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// How the route came into BGP.
    pub origin: Origin,
    /// The autonomous systems it passed.
    pub as_path: AsPath,
    /// Where its packets go.
    pub next_hop: IpAddr,
    /// MULTI_EXIT_DISC.
    pub multi_exit_discriminator: Option<u32>,
    /// LOCAL_PREF, which goes to internal peers only.
    pub local_preference: Option<u32>,
    /// Others that go to any peer, such as communities, as they came.
    pub others: Vec<RawAttribute>,
}

/// How attributes are written to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// AS numbers have four bytes (RFC 6793).
    pub four_octet_as: bool,
    /// The own AS number goes ahead of the path, as it does to an external peer.
    pub prepend: Option<u32>,
    /// LOCAL_PREF of paths that have none, to an internal peer; an external one gets none at all.
    pub local_preference: Option<u32>,
}

impl Path {
    /// A path with nothing but what is mandatory.
    pub fn new(next_hop: IpAddr, as_path: AsPath) -> Path {
        Path {
            origin: Origin::Igp,
            as_path,
            next_hop,
            multi_exit_discriminator: None,
            local_preference: None,
            others: Vec::new(),
        }
    }

    /// From attributes that were read, with the next hop that goes with the destination.
    pub(super) fn read(found: &Attributes<'_>, next_hop: IpAddr) -> Path {
        Path {
            origin: found.origin.unwrap_or(Origin::Incomplete),
            as_path: found.as_path(),
            next_hop,
            multi_exit_discriminator: found.multi_exit_discriminator,
            local_preference: found.local_preference,
            others: found.others.iter().map(|raw| raw.kept()).collect(),
        }
    }

    /// Appends the attributes for a family, those that carry its destinations left out: NEXT_HOP
    /// is there for IPv4 unicast only.
    pub(super) fn write(&self, family: Family, encoding: &Encoding, out: &mut Vec<u8>) {
        attributes::write(flag::TRANSITIVE, attributes::ORIGIN, &[self.origin as u8], out);
        let as_path = match encoding.prepend {
            Some(number) => &self.as_path.prepended(number),
            None => &self.as_path,
        };
        let value = as_path.write(encoding.four_octet_as);
        attributes::write(flag::TRANSITIVE, attributes::AS_PATH, &value, out);
        if let (Family::Ipv4Unicast, IpAddr::V4(next_hop)) = (family, self.next_hop) {
            attributes::write(flag::TRANSITIVE, attributes::NEXT_HOP, &next_hop.octets(), out);
        }
        if let Some(metric) = self.multi_exit_discriminator {
            attributes::write(flag::OPTIONAL, attributes::MULTI_EXIT_DISC, &metric.to_be_bytes(), out);
        }
        if let Some(default) = encoding.local_preference {
            let preference = self.local_preference.unwrap_or(default);
            attributes::write(flag::TRANSITIVE, attributes::LOCAL_PREF, &preference.to_be_bytes(), out);
        }
        let is_old = !encoding.four_octet_as && as_path.has_large_numbers();
        for raw in &self.others {
            attributes::write(raw.flags, raw.code, &raw.value, out);
        }
        if is_old {
            let flags = flag::OPTIONAL | flag::TRANSITIVE;
            attributes::write(flags, attributes::AS4_PATH, &as_path.write(true), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_of_paths_count_sets_once() {
        let mut path = AsPath::sequence(&[1, 2, 3]);
        path.segments.push(Segment { kind: SegmentKind::Set, numbers: vec![7, 8] });
        assert_eq!((path.length(), path.to_string()), (4, "1 2 3 {7 8}".to_string()));
        assert_eq!(path.prepended(70_000).to_string(), "70000 1 2 3 {7 8}");
        assert_eq!(AsPath::sequence(&[5; 300]).segments.len(), 2);
        assert_eq!(AsPath::sequence(&[5; 255]).prepended(6).segments[0].numbers, [6]);
    }

    #[test]
    fn two_forms_of_a_path_become_one() {
        // RFC 6793 section 4.2.3: what the longer old form has ahead is kept.
        let old = AsPath::sequence(&[100, 23_456, 23_456, 300]);
        let new = AsPath::sequence(&[70_000, 70_001, 300]);
        assert_eq!(AsPath::merged(old.clone(), new).to_string(), "100 70000 70001 300");
        // A new form that is longer than the old one is not believed.
        let longer = AsPath::sequence(&[1, 2, 3, 4, 5]);
        assert_eq!(AsPath::merged(old.clone(), longer), old);
    }
}
