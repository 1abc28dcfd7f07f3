//! Received UPDATE messages (RFC 4271 section 4.3): a validated view of the bytes, so that a message with a
//! thousand destinations needs one allocation.
//!
//! Errors are handled according to RFC 7606: [`Update::malformed`] returns the reason for which announced
//! routes are treated as withdrawn.

use super::attributes::{AS_PATH, AttributeContext, Attributes, MalformedRoute, NEXT_HOP, ORIGIN};
use super::nlri::{BgpFamily, Destinations, count};
use super::notification::{Notification, code, subcode};
use super::path::PathAttributes;
use std::net::IpAddr;
use std::ops::Range;

/// Range of destinations in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DestinationRange {
    family: BgpFamily,
    bytes: Range<usize>,
    next_hop: Option<IpAddr>,
}

/// Received UPDATE message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    body: Box<[u8]>,
    attributes: Range<usize>,
    /// Destinations, without a next hop if withdrawn. IPv4 unicast has its own fields in the message; other
    /// families are in attributes.
    parts: [Option<DestinationRange>; 4],
    source: AttributeContext,
    malformed: Option<MalformedRoute>,
}

impl Update {
    /// Parses the body of a message. Destinations of families rejected by `is_wanted` are left out.
    pub(super) fn read(
        body: &[u8],
        source: AttributeContext,
        is_wanted: impl Fn(BgpFamily) -> bool,
    ) -> Result<Update, Notification> {
        let malformed_list = || Notification::new(code::UPDATE, subcode::MALFORMED_ATTRIBUTES);
        let withdrawn = span(body, 0).ok_or_else(malformed_list)?;
        let attributes = span(body, withdrawn.end).ok_or_else(malformed_list)?;
        let announced = attributes.end..body.len();
        for part in [&withdrawn, &announced] {
            count(BgpFamily::Ipv4Unicast, &body[part.clone()])
                .ok_or_else(|| Notification::new(code::UPDATE, subcode::INVALID_NETWORK))?;
        }
        let found = Attributes::read(&body[attributes.clone()], source)?;
        let range_of = |part: &[u8]| {
            let start = part.as_ptr() as usize - body.as_ptr() as usize;
            start..start + part.len()
        };
        let malformed = found.malformed.or_else(|| missing(&found, !announced.is_empty()));
        let mut parts = [
            Some(DestinationRange { family: BgpFamily::Ipv4Unicast, bytes: withdrawn, next_hop: None }),
            found.unreach.map(|part| DestinationRange {
                family: part.family,
                bytes: range_of(part.nlri),
                next_hop: None,
            }),
            found.reach.map(|part| DestinationRange {
                family: part.family,
                bytes: range_of(part.nlri),
                next_hop: Some(part.next_hop),
            }),
            Some(DestinationRange {
                family: BgpFamily::Ipv4Unicast,
                bytes: announced,
                next_hop: found.next_hop.map(IpAddr::V4),
            }),
        ];
        for part in &mut parts {
            part.take_if(|part| part.bytes.is_empty() || !is_wanted(part.family));
            if let Some(part) = part.as_mut().filter(|_| malformed.is_some()) {
                part.next_hop = None;
            }
        }
        Ok(Update { body: body.into(), attributes, parts, source, malformed })
    }

    /// Iterates over the announced destinations, by family, with their next hops.
    pub fn reachable(&self) -> impl Iterator<Item = (IpAddr, Destinations<'_>)> {
        self.parts.iter().flatten().filter_map(|part| Some((part.next_hop?, self.destinations(part))))
    }

    /// Iterates over the withdrawn destinations, by family. Apply them before the announced ones.
    pub fn unreachable(&self) -> impl Iterator<Item = Destinations<'_>> {
        self.parts.iter().flatten().filter(|part| part.next_hop.is_none()).map(|part| self.destinations(part))
    }

    fn destinations(&self, part: &DestinationRange) -> Destinations<'_> {
        Destinations::new(part.family, &self.body[part.bytes.clone()])
    }

    /// Returns the path attributes of the announced destinations with this next hop.
    pub fn path(&self, next_hop: IpAddr) -> PathAttributes {
        let found = Attributes::read(&self.body[self.attributes.clone()], self.source);
        PathAttributes::read(&found.expect("the attributes were parsed before"), next_hop)
    }

    /// Returns the reason for treating the announced routes as withdrawn, or `None`.
    pub fn malformed(&self) -> Option<MalformedRoute> {
        self.malformed
    }
}

/// Returns the family of an End-of-RIB marker (RFC 4724 section 2), or `None` for other messages.
pub(super) fn end_of_rib(body: &[u8]) -> Option<BgpFamily> {
    match *body {
        [0, 0, 0, 0] => Some(BgpFamily::Ipv4Unicast),
        [0, 0, 0, 6, _, 15, 3, high, low, safi] | [0, 0, 0, 7, _, 15, 0, 3, high, low, safi] => {
            BgpFamily::from_codes(u16::from_be_bytes([high, low]), safi)
        }
        _ => None,
    }
}

/// Returns the range of a field with a two-byte length at `start`.
fn span(body: &[u8], start: usize) -> Option<Range<usize>> {
    let length: [u8; 2] = body.get(start..start + 2)?.try_into().ok()?;
    let range = start + 2..start + 2 + usize::from(u16::from_be_bytes(length));
    (range.end <= body.len()).then_some(range)
}

/// Returns the first missing mandatory attribute (RFC 4271 section 5, RFC 7606 section 3 (d)).
fn missing(found: &Attributes<'_>, has_ipv4: bool) -> Option<MalformedRoute> {
    let is_announcement = has_ipv4 || found.reach.is_some_and(|reach| !reach.nlri.is_empty());
    let code = if !is_announcement {
        return None;
    } else if found.origin.is_none() {
        ORIGIN
    } else if found.as_path.is_none() {
        AS_PATH
    } else if has_ipv4 && found.next_hop.is_none() {
        NEXT_HOP
    } else {
        return None;
    };
    Some(MalformedRoute::Missing(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bgp::nlri::Nlri;

    const SOURCE: AttributeContext = AttributeContext { four_octet_as: true, is_internal: false, dump: None };
    const IGP: [u8; 4] = [0x40, 1, 1, 0];
    const PATH: [u8; 9] = [0x40, 2, 6, 2, 1, 0, 1, 0x11, 0x70];
    const HOP: [u8; 7] = [0x40, 3, 4, 192, 0, 2, 1];

    fn body(attributes: &[&[u8]], nlri: &[u8]) -> Vec<u8> {
        let attributes = attributes.concat();
        let mut body = vec![0, 0];
        body.extend((attributes.len() as u16).to_be_bytes());
        body.extend(attributes);
        body.extend(nlri);
        body
    }

    fn read(attributes: &[&[u8]], nlri: &[u8]) -> Result<Update, Notification> {
        Update::read(&body(attributes, nlri), SOURCE, |_| true)
    }

    #[test]
    fn an_announcement_is_parsed_with_its_path() {
        let update = read(&[&IGP, &PATH, &HOP], &[24, 10, 1, 2, 0]).unwrap();
        let (next_hop, destinations) = update.reachable().next().unwrap();
        assert_eq!(next_hop.to_string(), "192.0.2.1");
        let found: Vec<String> = destinations.map(|nlri| nlri.prefix.to_string()).collect();
        assert_eq!(found, ["10.1.2.0/24", "0.0.0.0/0"]);
        assert_eq!(update.path(next_hop).as_path.to_string(), "70000");
        assert_eq!((update.unreachable().count(), update.malformed()), (0, None));
    }

    #[test]
    fn malformed_attributes_withdraw_their_routes() {
        // RFC 7606 section 7.
        let wrong: &[(u8, &[u8])] = &[
            (1, &[0x40, 1, 1, 3]),
            (1, &[0xc0, 1, 1, 0]),
            (2, &[0x40, 2, 6, 9, 1, 0, 1, 0x11, 0x70]),
            (2, &[0x40, 2, 5, 2, 1, 0, 1, 0x11]),
            (2, &[0x40, 2, 2, 2, 0]),
            (3, &[0x40, 3, 3, 1, 2, 3]),
            (4, &[0x80, 4, 1, 0]),
            (8, &[0xc0, 8, 3, 1, 2, 3]),
            (8, &[0xc0, 8, 0]),
            (32, &[0xc0, 32, 4, 1, 2, 3, 4]),
        ];
        for &(code, bytes) in wrong {
            let good: Vec<&[u8]> =
                [&IGP[..], &PATH, &HOP].into_iter().filter(|attribute| attribute[1] != code).collect();
            let update = read(&[&[bytes], &good[..]].concat(), &[8, 10]).unwrap();
            assert_eq!(update.malformed(), Some(MalformedRoute::Attribute(code)), "{bytes:?}");
            assert_eq!((update.reachable().count(), update.unreachable().count()), (0, 1));
            let missing = read(&good, &[8, 10]).unwrap();
            let expected = (code <= 3).then_some(MalformedRoute::Missing(code));
            assert_eq!(missing.malformed(), expected);
        }
        let cut = read(&[&IGP, &PATH, &HOP, &[0xc0, 8, 9, 1]], &[8, 10]).unwrap();
        assert_eq!(cut.malformed(), Some(MalformedRoute::Cut));
    }

    #[test]
    fn unknown_attributes_are_tolerated() {
        let unknown: &[u8] = &[0xc0, 200, 2, 7, 8];
        let non_transitive: &[u8] = &[0x80, 201, 0];
        let aggregator: &[u8] = &[0xc0, 7, 1, 9];
        let preference: &[u8] = &[0x40, 5, 1, 9];
        let update =
            read(&[&IGP, unknown, non_transitive, aggregator, preference, &PATH, &HOP, &IGP], &[8, 10])
                .unwrap();
        assert_eq!(update.malformed(), None);
        let others = update.path("192.0.2.1".parse().unwrap()).others;
        assert_eq!(others.iter().map(|raw| (raw.flags, raw.code)).collect::<Vec<_>>(), [(0xe0, 200)]);
        // Every implementation must support the well-known attributes (RFC 4271 section 6.3).
        let well_known = read(&[&[0x40, 99, 1, 5]], &[]).unwrap_err();
        assert_eq!(well_known, Notification::with(3, 2, &[0x40, 99, 1, 5]));
    }

    #[test]
    fn unparsable_destinations_end_the_session() {
        let subcode = |result: Result<Update, Notification>| result.unwrap_err().subcode;
        assert_eq!(subcode(read(&[&IGP, &PATH, &HOP], &[33, 1, 2, 3, 4, 5])), subcode::INVALID_NETWORK);
        assert_eq!(subcode(read(&[&[0x80, 14, 3, 0, 2, 1]], &[])), subcode::OPTIONAL_ATTRIBUTE);
        let unreach: &[u8] = &[0x80, 15, 3, 0, 2, 1];
        assert_eq!(subcode(read(&[unreach, unreach], &[])), subcode::MALFORMED_ATTRIBUTES);
        assert_eq!(subcode(Update::read(&[0, 9, 0, 0], SOURCE, |_| true)), subcode::MALFORMED_ATTRIBUTES);
        // An unsupported family is ignored.
        assert!(read(&[&[0x80, 15, 4, 0, 25, 70, 1]], &[]).is_ok());
        let withdrawn = Update::read(&[0, 2, 8, 10, 0, 0], SOURCE, |_| false).unwrap();
        assert_eq!(withdrawn.unreachable().count(), 0);
    }

    #[test]
    fn labels_and_distinguishers_are_parsed() {
        // RFC 4364 section 4.3.4, with a zero route distinguisher in the next hop.
        let reach: &[u8] = &[
            0x80, 14, 32, 0, 1, 128, 12, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 9, 0, 112, 0, 1, 1, 0, 0, 0, 1,
            0, 0, 0, 2, 10, 1, 2,
        ];
        let update = read(&[&IGP, &PATH, reach], &[]).unwrap();
        let (next_hop, mut destinations) = update.reachable().next().unwrap();
        let Nlri { distinguisher, prefix, label, .. } = destinations.next().unwrap();
        assert_eq!(next_hop.to_string(), "192.0.2.9");
        assert_eq!((distinguisher.unwrap().to_string(), label), ("1:2".to_string(), Some(16)));
        assert_eq!(prefix.to_string(), "10.1.2.0/24");
    }

    #[test]
    fn end_of_rib_markers_are_recognized() {
        for family in BgpFamily::ALL {
            let mut bytes = Vec::new();
            crate::bgp::message::write_end_of_rib(family, &mut bytes);
            assert_eq!(end_of_rib(&bytes[19..]), Some(family));
        }
        assert_eq!(end_of_rib(&[0, 2, 8, 10, 0, 0]), None);
    }
}
