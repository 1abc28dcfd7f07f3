//! Path attributes in UPDATE messages and table dumps: parsing with the error handling of RFC 7606, and
//! writing.
//!
//! A malformed attribute is discarded, or its routes are treated as withdrawn (RFC 7606 section 2). The
//! session ends only if the destinations themselves cannot be parsed.

use super::nlri::{BgpFamily, count};
use super::notification::{Notification, code, subcode};
use super::path::{AsPath, AsPathSegment, Origin, RawAttribute, SegmentKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const ORIGIN: u8 = 1;
pub(super) const AS_PATH: u8 = 2;
pub(super) const NEXT_HOP: u8 = 3;
pub(super) const MULTI_EXIT_DISC: u8 = 4;
pub(super) const LOCAL_PREF: u8 = 5;
const ATOMIC_AGGREGATE: u8 = 6;
const AGGREGATOR: u8 = 7;
const COMMUNITIES: u8 = 8;
const ORIGINATOR_ID: u8 = 9;
const CLUSTER_LIST: u8 = 10;
pub(super) const MP_REACH_NLRI: u8 = 14;
pub(super) const MP_UNREACH_NLRI: u8 = 15;
const EXTENDED_COMMUNITIES: u8 = 16;
pub(super) const AS4_PATH: u8 = 17;
const AS4_AGGREGATOR: u8 = 18;
const LARGE_COMMUNITIES: u8 = 32;

/// Attribute flags (RFC 4271 section 4.3).
pub(super) mod flag {
    pub(crate) const OPTIONAL: u8 = 0x80;
    pub(crate) const TRANSITIVE: u8 = 0x40;
    pub(crate) const PARTIAL: u8 = 0x20;
    pub(crate) const EXTENDED_LENGTH: u8 = 0x10;
}

/// Attribute in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attribute<'a> {
    pub flags: u8,
    pub code: u8,
    pub value: &'a [u8],
}

impl Attribute<'_> {
    /// Copies the attribute, to be propagated without interpretation.
    pub(super) fn to_raw(self) -> RawAttribute {
        RawAttribute {
            flags: self.flags & !flag::EXTENDED_LENGTH,
            code: self.code,
            value: self.value.to_vec(),
        }
    }
}

/// Reason why routes are treated as withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedRoute {
    /// Wrong flags, length or value in the attribute of this type.
    Attribute(u8),
    /// Missing mandatory attribute of this type.
    Missing(u8),
    /// Attribute truncated by the end of the list.
    Cut,
}

/// MP_REACH_NLRI (RFC 4760 section 3) of a supported family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReachableNlri<'a> {
    pub family: BgpFamily,
    pub next_hop: IpAddr,
    pub nlri: &'a [u8],
}

/// MP_UNREACH_NLRI (RFC 4760 section 4) of a supported family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreachableNlri<'a> {
    pub family: BgpFamily,
    pub nlri: &'a [u8],
}

/// Parsed list of attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes<'a> {
    pub origin: Option<Origin>,
    pub as_path: Option<&'a [u8]>,
    pub as4_path: Option<&'a [u8]>,
    pub next_hop: Option<Ipv4Addr>,
    pub multi_exit_discriminator: Option<u32>,
    pub local_preference: Option<u32>,
    pub reach: Option<ReachableNlri<'a>>,
    pub unreach: Option<UnreachableNlri<'a>>,
    /// Other attributes that may be propagated, uninterpreted.
    pub others: Vec<Attribute<'a>>,
    /// First error for which the routes are treated as withdrawn.
    pub malformed: Option<MalformedRoute>,
    /// The list has at least one attribute.
    pub any: bool,
    /// AS numbers have four octets.
    pub four_octet_as: bool,
}

/// Context in which attributes are parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttributeContext {
    /// AS numbers have four octets.
    pub four_octet_as: bool,
    /// Internal peer. LOCAL_PREF, ORIGINATOR_ID and CLUSTER_LIST are used only from internal peers (RFC 7606
    /// section 7.5).
    pub is_internal: bool,
    /// Family of a table dump entry, whose MP_REACH_NLRI has only the next hop (RFC 6396 section 4.3.4).
    pub dump: Option<BgpFamily>,
}

impl<'a> Attributes<'a> {
    /// Parses a list. An error ends the session.
    pub(super) fn read(
        mut bytes: &'a [u8],
        source: AttributeContext,
    ) -> Result<Attributes<'a>, Notification> {
        let mut found = Attributes { four_octet_as: source.four_octet_as, ..Attributes::default() };
        let mut seen = [0_u64; 4];
        while !bytes.is_empty() {
            found.any = true;
            let Some((attribute, rest)) = split(bytes) else {
                // RFC 7606 section 4: the destinations can still be parsed.
                found.fail(MalformedRoute::Cut);
                break;
            };
            bytes = rest;
            let (word, bit) = (usize::from(attribute.code / 64), 1 << (attribute.code % 64));
            if seen[word] & bit != 0 {
                // RFC 7606 section 3 (g): duplicates after the first are discarded.
                if matches!(attribute.code, MP_REACH_NLRI | MP_UNREACH_NLRI) {
                    return Err(Notification::new(code::UPDATE, subcode::MALFORMED_ATTRIBUTES));
                }
                continue;
            }
            seen[word] |= bit;
            found.apply(attribute, source)?;
        }
        Ok(found)
    }

    fn fail(&mut self, malformed: MalformedRoute) {
        self.malformed.get_or_insert(malformed);
    }

    fn apply(&mut self, attribute: Attribute<'a>, source: AttributeContext) -> Result<(), Notification> {
        let Attribute { flags, code, value } = attribute;
        let number = || value.try_into().ok().map(u32::from_be_bytes);
        let is_destinations = matches!(code, MP_REACH_NLRI | MP_UNREACH_NLRI);
        if !is_destinations && expected_flags(code).is_some_and(|of| flags & 0xc0 != of) {
            // RFC 7606 section 3 (c).
            self.fail(MalformedRoute::Attribute(code));
            return Ok(());
        }
        let is_valid = match code {
            ORIGIN => {
                self.origin = origin(value);
                self.origin.is_some()
            }
            AS_PATH => {
                self.as_path = Some(value);
                is_as_path(value, source.four_octet_as)
            }
            NEXT_HOP => {
                self.next_hop = value.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets));
                value.len() == 4
            }
            MULTI_EXIT_DISC => {
                self.multi_exit_discriminator = number();
                value.len() == 4
            }
            LOCAL_PREF if !source.is_internal => true,
            LOCAL_PREF => {
                self.local_preference = number();
                value.len() == 4
            }
            MP_REACH_NLRI => {
                self.reach = reach(value, source.dump)?;
                true
            }
            MP_UNREACH_NLRI => {
                self.unreach = unreach(value)?;
                true
            }
            // RFC 6793 section 6: discarded if malformed or from a peer with four-octet AS numbers.
            AS4_PATH => {
                self.as4_path = Some(value).filter(|value| !source.four_octet_as && is_as_path(value, true));
                true
            }
            AS4_AGGREGATOR => true,
            // RFC 7606 sections 7.6 and 7.7: discarded if malformed.
            ATOMIC_AGGREGATE | AGGREGATOR => {
                let length = if code == ATOMIC_AGGREGATE { 0 } else { 8 };
                if value.len() == length && (code == ATOMIC_AGGREGATE || source.four_octet_as) {
                    self.others.push(attribute);
                }
                true
            }
            ORIGINATOR_ID | CLUSTER_LIST if !source.is_internal => true,
            ORIGINATOR_ID => value.len() == 4,
            CLUSTER_LIST => is_list(value, 4),
            COMMUNITIES => self.list(attribute, 4),
            EXTENDED_COMMUNITIES => self.list(attribute, 8),
            LARGE_COMMUNITIES => self.list(attribute, 12),
            _ if flags & flag::OPTIONAL == 0 => {
                let mut whole = Vec::new();
                write(flags, code, value, &mut whole);
                let subcode = subcode::UNRECOGNIZED_WELL_KNOWN;
                return Err(Notification::with(code::UPDATE, subcode, &whole));
            }
            // RFC 4271 section 5: unknown transitive attributes are propagated with the Partial bit, others
            // discarded.
            _ => {
                if flags & flag::TRANSITIVE != 0 {
                    self.others.push(Attribute { flags: flags | flag::PARTIAL, ..attribute });
                }
                true
            }
        };
        if !is_valid {
            self.fail(MalformedRoute::Attribute(code));
        }
        Ok(())
    }

    /// Keeps an attribute whose value is a nonempty list of items of `width` bytes. Returns `false` if it is
    /// malformed.
    fn list(&mut self, attribute: Attribute<'a>, width: usize) -> bool {
        let is_valid = is_list(attribute.value, width);
        if is_valid {
            self.others.push(attribute);
        }
        is_valid
    }

    /// Returns the AS path, merged from AS_PATH and AS4_PATH.
    pub(super) fn as_path(&self) -> AsPath {
        let old = read_as_path(self.as_path.unwrap_or_default(), self.four_octet_as).unwrap_or_default();
        match self.as4_path.and_then(|value| read_as_path(value, true)) {
            Some(new) => AsPath::merged(old, new),
            None => old,
        }
    }
}

/// Returns the Optional and Transitive flags that a known attribute must have.
fn expected_flags(code: u8) -> Option<u8> {
    match code {
        ORIGIN | AS_PATH | NEXT_HOP | LOCAL_PREF | ATOMIC_AGGREGATE => Some(flag::TRANSITIVE),
        MULTI_EXIT_DISC | ORIGINATOR_ID | CLUSTER_LIST => Some(flag::OPTIONAL),
        AGGREGATOR | COMMUNITIES | EXTENDED_COMMUNITIES | LARGE_COMMUNITIES => {
            Some(flag::OPTIONAL | flag::TRANSITIVE)
        }
        _ => None,
    }
}

/// Splits off the first attribute.
fn split(bytes: &[u8]) -> Option<(Attribute<'_>, &[u8])> {
    let (&[flags, code], rest) = bytes.split_first_chunk()?;
    let (length, rest) = if flags & flag::EXTENDED_LENGTH != 0 {
        let (length, rest) = rest.split_first_chunk()?;
        (usize::from(u16::from_be_bytes(*length)), rest)
    } else {
        let (&length, rest) = rest.split_first()?;
        (usize::from(length), rest)
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((Attribute { flags, code, value }, rest))
}

/// Appends an attribute, with an extended length if necessary.
pub(super) fn write(flags: u8, code: u8, value: &[u8], out: &mut Vec<u8>) {
    let flags = flags & !flag::EXTENDED_LENGTH;
    match u8::try_from(value.len()) {
        Ok(length) => out.extend([flags, code, length]),
        Err(_) => {
            out.extend([flags | flag::EXTENDED_LENGTH, code]);
            out.extend((value.len() as u16).to_be_bytes());
        }
    }
    out.extend_from_slice(value);
}

fn origin(value: &[u8]) -> Option<Origin> {
    match value {
        [0] => Some(Origin::Igp),
        [1] => Some(Origin::Egp),
        [2] => Some(Origin::Incomplete),
        _ => None,
    }
}

fn is_list(value: &[u8], width: usize) -> bool {
    !value.is_empty() && value.len().is_multiple_of(width)
}

fn is_as_path(value: &[u8], four_octet_as: bool) -> bool {
    let width = if four_octet_as { 4 } else { 2 };
    let mut rest = value;
    while let Some((&[kind, count], after)) = rest.split_first_chunk() {
        if SegmentKind::from_code(kind).is_none() || count == 0 {
            return false;
        }
        let Some(after) = after.get(usize::from(count) * width..) else { return false };
        rest = after;
    }
    rest.is_empty()
}

fn read_as_path(value: &[u8], four_octet_as: bool) -> Option<AsPath> {
    let width = if four_octet_as { 4 } else { 2 };
    let mut segments = Vec::new();
    let mut rest = value;
    while let Some((&[kind, count], after)) = rest.split_first_chunk() {
        let (numbers, after) = after.split_at_checked(usize::from(count) * width)?;
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        let numbers = numbers.chunks_exact(width).map(number).collect();
        segments.push(AsPathSegment { kind: SegmentKind::from_code(kind)?, numbers });
        rest = after;
    }
    Some(AsPath { segments })
}

fn optional_error() -> Notification {
    Notification::new(code::UPDATE, subcode::OPTIONAL_ATTRIBUTE)
}

/// Parses MP_REACH_NLRI. Returns `None` for an unsupported family, whose routes are ignored (RFC 4760
/// section 7).
fn reach(value: &[u8], dump: Option<BgpFamily>) -> Result<Option<ReachableNlri<'_>>, Notification> {
    let is_abbreviated = value.first().is_some_and(|&first| first != 0);
    let (family, rest) = match dump {
        Some(family) if is_abbreviated => (Some(family), value),
        _ => {
            let (&[high, low, safi], rest) = value.split_first_chunk().ok_or_else(optional_error)?;
            (BgpFamily::from_codes(u16::from_be_bytes([high, low]), safi), rest)
        }
    };
    let (&length, rest) = rest.split_first().ok_or_else(optional_error)?;
    let (address, rest) = rest.split_at_checked(usize::from(length)).ok_or_else(optional_error)?;
    let Some(family) = family else { return Ok(None) };
    let next_hop = next_hop(family, address).ok_or_else(optional_error)?;
    if dump.is_some() {
        return Ok(Some(ReachableNlri { family, next_hop, nlri: &[] }));
    }
    // A reserved byte precedes the destinations.
    let nlri = rest.get(1..).ok_or_else(optional_error)?;
    count(family, nlri).ok_or_else(optional_error)?;
    Ok(Some(ReachableNlri { family, next_hop, nlri }))
}

/// Parses a next hop. IPv6 may add a second, link-local address (RFC 2545 section 3); VPN families have a
/// route distinguisher first (RFC 4364 section 4.3.2).
fn next_hop(family: BgpFamily, bytes: &[u8]) -> Option<IpAddr> {
    let bytes = if family == BgpFamily::Vpnv4 { bytes.get(8..)? } else { bytes };
    match bytes.len() {
        4 => bytes.first_chunk().map(|octets| Ipv4Addr::from(*octets).into()),
        16 | 32 | 40 => bytes.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into()),
        _ => None,
    }
}

fn unreach(value: &[u8]) -> Result<Option<UnreachableNlri<'_>>, Notification> {
    let (&[high, low, safi], nlri) = value.split_first_chunk().ok_or_else(optional_error)?;
    let Some(family) = BgpFamily::from_codes(u16::from_be_bytes([high, low]), safi) else { return Ok(None) };
    count(family, nlri).ok_or_else(optional_error)?;
    Ok(Some(UnreachableNlri { family, nlri }))
}
