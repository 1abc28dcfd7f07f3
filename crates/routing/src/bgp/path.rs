//! Path attributes of routes (RFC 4271 section 5) as stored in tables, and their encoding for a peer.

use super::attributes::{self, Attributes, flag};
use super::nlri::BgpFamily;
use std::fmt;
use std::net::IpAddr;

/// Placeholder for four-octet AS numbers in two-octet fields (RFC 6793 sections 4.2.2 and 9).
pub(super) const AS_TRANS: u16 = 23_456;
/// Maximum number of AS numbers in a segment.
const LONGEST_SEGMENT: usize = 255;

/// ORIGIN (RFC 4271 section 5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Interior routing protocol (IGP).
    Igp,
    /// EGP.
    Egp,
    /// Other source (incomplete).
    Incomplete,
}

/// Type of an AS path segment (RFC 4271 section 4.3, RFC 5065 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// Unordered set.
    Set,
    /// Sequence, most recent AS first.
    Sequence,
    /// Sequence within a confederation.
    ConfederationSequence,
    /// Set within a confederation.
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

/// Segment of an AS path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AsPathSegment {
    /// Type of the segment.
    pub kind: SegmentKind,
    /// AS numbers, at least one.
    pub numbers: Vec<u32>,
}

/// AS path of a route, most recent AS first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AsPath {
    /// Segments.
    pub segments: Vec<AsPathSegment>,
}

impl AsPath {
    /// Returns a path of a sequence; empty for routes of the local AS.
    pub fn sequence(numbers: &[u32]) -> AsPath {
        let segments = numbers.chunks(LONGEST_SEGMENT);
        AsPath {
            segments: segments
                .map(|numbers| AsPathSegment { kind: SegmentKind::Sequence, numbers: numbers.to_vec() })
                .collect(),
        }
    }

    /// Returns the path length for route selection: a set counts as one, confederation segments as zero (RFC
    /// 4271 section 9.1.2.2, RFC 5065 section 5.3).
    pub fn length(&self) -> usize {
        let count = |segment: &AsPathSegment| match segment.kind {
            SegmentKind::Sequence => segment.numbers.len(),
            SegmentKind::Set => 1,
            _ => 0,
        };
        self.segments.iter().map(count).sum()
    }

    /// Returns the path with an AS number prepended (RFC 4271 section 5.1.2).
    fn prepended(&self, number: u32) -> AsPath {
        let mut segments = self.segments.clone();
        match segments.first_mut() {
            Some(AsPathSegment { kind: SegmentKind::Sequence, numbers })
                if numbers.len() < LONGEST_SEGMENT =>
            {
                numbers.insert(0, number)
            }
            _ => segments.insert(0, AsPathSegment { kind: SegmentKind::Sequence, numbers: vec![number] }),
        }
        AsPath { segments }
    }

    /// Merges AS_PATH and AS4_PATH of a peer with two-octet AS numbers (RFC 6793 section 4.2.3).
    pub(super) fn merged(as_path: AsPath, as4_path: AsPath) -> AsPath {
        let Some(mut missing) = as_path.length().checked_sub(as4_path.length()) else { return as_path };
        let mut segments = Vec::new();
        for segment in as_path.segments {
            let kept = match segment.kind {
                SegmentKind::Sequence => segment.numbers.len().min(missing),
                SegmentKind::Set if missing > 0 => segment.numbers.len(),
                SegmentKind::Set => 0,
                _ => segment.numbers.len(),
            };
            missing -= if segment.kind == SegmentKind::Set { missing.min(1) } else { kept.min(missing) };
            if kept > 0 {
                segments
                    .push(AsPathSegment { kind: segment.kind, numbers: segment.numbers[..kept].to_vec() });
            }
        }
        segments.extend(as4_path.segments);
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

/// Uninterpreted attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawAttribute {
    /// Flags (RFC 4271 section 4.3).
    pub flags: u8,
    /// Type code.
    pub code: u8,
    /// Value.
    pub value: Vec<u8>,
}

/// Path attributes shared by routes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathAttributes {
    /// ORIGIN.
    pub origin: Origin,
    /// AS_PATH.
    pub as_path: AsPath,
    /// Next hop.
    pub next_hop: IpAddr,
    /// MULTI_EXIT_DISC.
    pub multi_exit_discriminator: Option<u32>,
    /// LOCAL_PREF; sent to internal peers only.
    pub local_preference: Option<u32>,
    /// Other attributes that may be sent to any peer, such as communities, uninterpreted.
    pub others: Vec<RawAttribute>,
}

/// Encoding of attributes for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// AS numbers have four octets (RFC 6793).
    pub four_octet_as: bool,
    /// Local AS number to prepend, for an external peer.
    pub prepend: Option<u32>,
    /// Default LOCAL_PREF for an internal peer; `None` omits LOCAL_PREF.
    pub local_preference: Option<u32>,
}

impl PathAttributes {
    /// Creates a path with the mandatory attributes only.
    pub fn new(next_hop: IpAddr, as_path: AsPath) -> PathAttributes {
        PathAttributes {
            origin: Origin::Igp,
            as_path,
            next_hop,
            multi_exit_discriminator: None,
            local_preference: None,
            others: Vec::new(),
        }
    }

    /// Creates a path from parsed attributes and the next hop of the destinations.
    pub(super) fn read(found: &Attributes<'_>, next_hop: IpAddr) -> PathAttributes {
        PathAttributes {
            origin: found.origin.unwrap_or(Origin::Incomplete),
            as_path: found.as_path(),
            next_hop,
            multi_exit_discriminator: found.multi_exit_discriminator,
            local_preference: found.local_preference,
            others: found.others.iter().map(|raw| raw.to_raw()).collect(),
        }
    }

    /// Appends the attributes for a family, without MP_REACH_NLRI. NEXT_HOP is written for IPv4 unicast
    /// only.
    pub(super) fn write(&self, family: BgpFamily, encoding: &Encoding, out: &mut Vec<u8>) {
        attributes::write(flag::TRANSITIVE, attributes::ORIGIN, &[self.origin as u8], out);
        let as_path = match encoding.prepend {
            Some(number) => &self.as_path.prepended(number),
            None => &self.as_path,
        };
        let value = as_path.write(encoding.four_octet_as);
        attributes::write(flag::TRANSITIVE, attributes::AS_PATH, &value, out);
        if let (BgpFamily::Ipv4Unicast, IpAddr::V4(next_hop)) = (family, self.next_hop) {
            attributes::write(flag::TRANSITIVE, attributes::NEXT_HOP, &next_hop.octets(), out);
        }
        if let Some(metric) = self.multi_exit_discriminator {
            attributes::write(flag::OPTIONAL, attributes::MULTI_EXIT_DISC, &metric.to_be_bytes(), out);
        }
        if let Some(default) = encoding.local_preference {
            let preference = self.local_preference.unwrap_or(default);
            attributes::write(flag::TRANSITIVE, attributes::LOCAL_PREF, &preference.to_be_bytes(), out);
        }
        let needs_as4_path = !encoding.four_octet_as && as_path.has_large_numbers();
        for raw in &self.others {
            attributes::write(raw.flags, raw.code, &raw.value, out);
        }
        if needs_as4_path {
            let flags = flag::OPTIONAL | flag::TRANSITIVE;
            attributes::write(flags, attributes::AS4_PATH, &as_path.write(true), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_adds_one_to_the_path_length() {
        let mut path = AsPath::sequence(&[1, 2, 3]);
        path.segments.push(AsPathSegment { kind: SegmentKind::Set, numbers: vec![7, 8] });
        assert_eq!((path.length(), path.to_string()), (4, "1 2 3 {7 8}".to_string()));
        assert_eq!(path.prepended(70_000).to_string(), "70000 1 2 3 {7 8}");
        assert_eq!(AsPath::sequence(&[5; 300]).segments.len(), 2);
        assert_eq!(AsPath::sequence(&[5; 255]).prepended(6).segments[0].numbers, [6]);
    }

    #[test]
    fn as_path_and_as4_path_are_merged() {
        // RFC 6793 section 4.2.3: the leading AS numbers of the longer AS_PATH are kept.
        let as_path = AsPath::sequence(&[100, 23_456, 23_456, 300]);
        let as4_path = AsPath::sequence(&[70_000, 70_001, 300]);
        assert_eq!(AsPath::merged(as_path.clone(), as4_path).to_string(), "100 70000 70001 300");
        // An AS4_PATH longer than the AS_PATH is ignored.
        let longer = AsPath::sequence(&[1, 2, 3, 4, 5]);
        assert_eq!(AsPath::merged(as_path.clone(), longer), as_path);
    }
}
