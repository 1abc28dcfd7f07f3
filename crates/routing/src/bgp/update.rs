//! UPDATE messages as they are received (RFC 4271 section 4.3): a view over the bytes, checked
//! once, so that a message of a thousand destinations is one allocation.
//!
//! Errors are handled by RFC 7606: [`Update::malformed`] says why routes that were announced
//! count as withdrawn.

use super::attributes::{AS_PATH, Attributes, Malformed, NEXT_HOP, ORIGIN, Source};
use super::nlri::{Destinations, Family, count};
use super::notification::{Notification, code, subcode};
use super::path::Path;
use std::net::IpAddr;
use std::ops::Range;

/// Destinations within the message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    family: Family,
    bytes: Range<usize>,
    next_hop: Option<IpAddr>,
}

/// An UPDATE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    body: Box<[u8]>,
    attributes: Range<usize>,
    /// Without next hop where they are withdrawn. IPv4 unicast has a place of its own in the
    /// message, the other families are in attributes.
    parts: [Option<Part>; 4],
    source: Source,
    malformed: Option<Malformed>,
}

impl Update {
    /// Reads the body of a message; destinations of families that `is_wanted` denies are left out.
    pub(super) fn read(
        body: &[u8],
        source: Source,
        is_wanted: impl Fn(Family) -> bool,
    ) -> Result<Update, Notification> {
        let malformed_list = || Notification::new(code::UPDATE, subcode::MALFORMED_ATTRIBUTES);
        let withdrawn = span(body, 0).ok_or_else(malformed_list)?;
        let attributes = span(body, withdrawn.end).ok_or_else(malformed_list)?;
        let announced = attributes.end..body.len();
        for part in [&withdrawn, &announced] {
            count(Family::Ipv4Unicast, &body[part.clone()])
                .ok_or_else(|| Notification::new(code::UPDATE, subcode::INVALID_NETWORK))?;
        }
        let found = Attributes::read(&body[attributes.clone()], source)?;
        let place = |part: &[u8]| {
            let start = part.as_ptr() as usize - body.as_ptr() as usize;
            start..start + part.len()
        };
        let malformed = found.malformed.or_else(|| missing(&found, !announced.is_empty()));
        let mut parts = [
            Some(Part { family: Family::Ipv4Unicast, bytes: withdrawn, next_hop: None }),
            found.unreach.map(|part| Part { family: part.family, bytes: place(part.nlri), next_hop: None }),
            found.reach.map(|part| Part {
                family: part.family,
                bytes: place(part.nlri),
                next_hop: Some(part.next_hop),
            }),
            Some(Part {
                family: Family::Ipv4Unicast,
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

    /// What is announced, by family, with the next hop.
    pub fn reachable(&self) -> impl Iterator<Item = (IpAddr, Destinations<'_>)> {
        self.parts.iter().flatten().filter_map(|part| Some((part.next_hop?, self.destinations(part))))
    }

    /// What is withdrawn, by family. It comes before what is announced.
    pub fn unreachable(&self) -> impl Iterator<Item = Destinations<'_>> {
        self.parts.iter().flatten().filter(|part| part.next_hop.is_none()).map(|part| self.destinations(part))
    }

    fn destinations(&self, part: &Part) -> Destinations<'_> {
        Destinations::new(part.family, &self.body[part.bytes.clone()])
    }

    /// The attributes of what is announced, with this next hop.
    pub fn path(&self, next_hop: IpAddr) -> Path {
        let found = Attributes::read(&self.body[self.attributes.clone()], self.source);
        Path::read(&found.expect("it was read before"), next_hop)
    }

    /// Why what was announced is treated as withdrawn, if it is.
    pub fn malformed(&self) -> Option<Malformed> {
        self.malformed
    }
}

/// The family whose initial routes a message ends (RFC 4724 section 2), if it is that.
pub(super) fn end_of_rib(body: &[u8]) -> Option<Family> {
    match *body {
        [0, 0, 0, 0] => Some(Family::Ipv4Unicast),
        [0, 0, 0, 6, _, 15, 3, high, low, safi] | [0, 0, 0, 7, _, 15, 0, 3, high, low, safi] => {
            Family::from_codes(u16::from_be_bytes([high, low]), safi)
        }
        _ => None,
    }
}

/// What follows a length of two bytes at `start`.
fn span(body: &[u8], start: usize) -> Option<Range<usize>> {
    let length: [u8; 2] = body.get(start..start + 2)?.try_into().ok()?;
    let range = start + 2..start + 2 + usize::from(u16::from_be_bytes(length));
    (range.end <= body.len()).then_some(range)
}

/// A mandatory attribute that is not there (RFC 4271 section 5, RFC 7606 section 3 (d)).
fn missing(found: &Attributes<'_>, has_ipv4: bool) -> Option<Malformed> {
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
    Some(Malformed::Missing(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bgp::nlri::Nlri;

    const SOURCE: Source = Source { four_octet_as: true, is_internal: false, dump: None };
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
    fn an_announcement_is_read_with_its_path() {
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
        // RFC 7606 section 7, one by one.
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
            assert_eq!(update.malformed(), Some(Malformed::Attribute(code)), "{bytes:?}");
            assert_eq!((update.reachable().count(), update.unreachable().count()), (0, 1));
            let missing = read(&good, &[8, 10]).unwrap();
            let expected = (code <= 3).then_some(Malformed::Missing(code));
            assert_eq!(missing.malformed(), expected);
        }
        let cut = read(&[&IGP, &PATH, &HOP, &[0xc0, 8, 9, 1]], &[8, 10]).unwrap();
        assert_eq!(cut.malformed(), Some(Malformed::Cut));
    }

    #[test]
    fn attributes_nobody_knows_are_tolerated() {
        let unknown: &[u8] = &[0xc0, 200, 2, 7, 8];
        let secret: &[u8] = &[0x80, 201, 0];
        let aggregator: &[u8] = &[0xc0, 7, 1, 9];
        let preference: &[u8] = &[0x40, 5, 1, 9];
        let update =
            read(&[&IGP, unknown, secret, aggregator, preference, &PATH, &HOP, &IGP], &[8, 10]).unwrap();
        assert_eq!(update.malformed(), None);
        let others = update.path("192.0.2.1".parse().unwrap()).others;
        assert_eq!(others.iter().map(|raw| (raw.flags, raw.code)).collect::<Vec<_>>(), [(0xe0, 200)]);
        // Well-known means that everybody has to know it (RFC 4271 section 6.3).
        let well_known = read(&[&[0x40, 99, 1, 5]], &[]).unwrap_err();
        assert_eq!(well_known, Notification::with(3, 2, &[0x40, 99, 1, 5]));
    }

    #[test]
    fn what_cannot_be_told_apart_ends_the_session() {
        let subcode = |result: Result<Update, Notification>| result.unwrap_err().subcode;
        assert_eq!(subcode(read(&[&IGP, &PATH, &HOP], &[33, 1, 2, 3, 4, 5])), subcode::INVALID_NETWORK);
        assert_eq!(subcode(read(&[&[0x80, 14, 3, 0, 2, 1]], &[])), subcode::OPTIONAL_ATTRIBUTE);
        let unreach: &[u8] = &[0x80, 15, 3, 0, 2, 1];
        assert_eq!(subcode(read(&[unreach, unreach], &[])), subcode::MALFORMED_ATTRIBUTES);
        assert_eq!(subcode(Update::read(&[0, 9, 0, 0], SOURCE, |_| true)), subcode::MALFORMED_ATTRIBUTES);
        // A family nobody asked for is left out.
        assert!(read(&[&[0x80, 15, 4, 0, 25, 70, 1]], &[]).is_ok());
        let withdrawn = Update::read(&[0, 2, 8, 10, 0, 0], SOURCE, |_| false).unwrap();
        assert_eq!(withdrawn.unreachable().count(), 0);
    }

    #[test]
    fn labels_and_distinguishers_are_read() {
        // RFC 4364 section 4.3.4, the next hop with a distinguisher of zero.
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
    fn the_end_of_the_initial_routes_is_seen() {
        for family in Family::ALL {
            let mut bytes = Vec::new();
            crate::bgp::message::write_end_of_rib(family, &mut bytes);
            assert_eq!(end_of_rib(&bytes[19..]), Some(family));
        }
        assert_eq!(end_of_rib(&[0, 2, 8, 10, 0, 0]), None);
    }
}
