//! OPEN messages (RFC 4271 section 4.2), their capabilities (RFC 5492), and the negotiation between two
//! peers.
//!
//! Capabilities are parsed one by one, so that an unknown or malformed one does not invalidate the others
//! (RFC 5492 section 3).

use super::nlri::BgpFamily;
use super::notification::{Notification, code, subcode};
use super::path::{AS_TRANS, Encoding};
use netgauze_bgp_pkt::BgpMessage;
use netgauze_bgp_pkt::capabilities::{
    BgpCapability, FourOctetAsCapability, GracefulRestartCapability, MultiProtocolExtensionsCapability,
};
use netgauze_bgp_pkt::open::{BgpOpenMessage, BgpOpenMessageParameter};
use netgauze_iana::address_family::AddressType;
use netgauze_parse_utils::WritablePdu;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFrom;
use netstage_core::time::Duration;
use std::net::Ipv4Addr;

/// LOCAL_PREF of routes without a value.
const LOCAL_PREFERENCE: u32 = 100;

/// Local parameters of a session, and expectations on the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenParameters {
    /// Local AS number.
    pub local_as: u32,
    /// Peer's AS number; `None` accepts any.
    pub peer_as: Option<u32>,
    /// Local BGP identifier.
    pub identifier: Ipv4Addr,
    /// Proposed hold time: zero for none, or at least three seconds.
    pub hold_time: Duration,
    /// Offered address families.
    pub families: Vec<BgpFamily>,
    /// Offer of four-octet AS numbers.
    pub four_octet_as: bool,
}

/// Parsed OPEN message of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReceivedOpen {
    pub peer_as: u32,
    pub identifier: Ipv4Addr,
    hold_time_s: u16,
    families: Vec<BgpFamily>,
    four_octet_as: bool,
    route_refresh: bool,
    end_of_rib: bool,
}

/// Session parameters negotiated by both peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiatedParameters {
    /// Peer's AS number.
    pub peer_as: u32,
    /// Peer's BGP identifier.
    pub peer_identifier: Ipv4Addr,
    /// `true` for an internal session (IBGP).
    pub is_internal: bool,
    /// Smaller of both hold times; zero for none.
    pub hold_time: Duration,
    /// Address families offered by both peers.
    pub families: Vec<BgpFamily>,
    /// AS numbers have four octets.
    pub four_octet_as: bool,
    /// The peer supports ROUTE-REFRESH.
    pub route_refresh: bool,
    /// The peer sends End-of-RIB markers (RFC 4724 section 3).
    pub end_of_rib: bool,
}

impl OpenParameters {
    /// Appends the local OPEN message.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut capabilities: Vec<BgpCapability> = self
            .families
            .iter()
            .map(|family| MultiProtocolExtensionsCapability::new(address_type(*family)))
            .map(BgpCapability::MultiProtocolExtensions)
            .collect();
        capabilities.push(BgpCapability::RouteRefresh);
        if self.four_octet_as {
            capabilities.push(BgpCapability::FourOctetAs(FourOctetAsCapability::new(self.local_as)));
        }
        // Without families: no state is kept over a restart, but End-of-RIB markers are sent (RFC 4724
        // section 3).
        let restart = GracefulRestartCapability::new(false, false, 0, []);
        capabilities.push(BgpCapability::GracefulRestartCapability(restart));
        let short_as = u16::try_from(self.local_as).unwrap_or(AS_TRANS);
        let parameters = [BgpOpenMessageParameter::new_capabilities(capabilities)];
        let open = BgpOpenMessage::new(short_as, self.hold_time_s(), self.identifier, parameters);
        BgpMessage::Open(open).write(out).expect("writing a short message to a vector cannot fail");
    }

    fn hold_time_s(&self) -> u16 {
        u16::try_from(self.hold_time.0 / 1_000_000_000).unwrap_or(u16::MAX)
    }

    /// Returns the negotiated parameters, or the NOTIFICATION that rejects the peer.
    pub(super) fn negotiate(&self, peer: &ReceivedOpen) -> Result<NegotiatedParameters, Notification> {
        let reject = |subcode| Err(Notification::new(code::OPEN, subcode));
        let is_internal = peer.peer_as == self.local_as;
        if self.peer_as.is_some_and(|expected| expected != peer.peer_as) || peer.peer_as == 0 {
            return reject(subcode::BAD_PEER_AS);
        }
        // RFC 6286 section 2.2: identifiers are unique within an AS.
        if peer.identifier.is_unspecified() || (is_internal && peer.identifier == self.identifier) {
            return reject(subcode::BAD_IDENTIFIER);
        }
        let families: Vec<BgpFamily> =
            self.families.iter().copied().filter(|family| peer.families.contains(family)).collect();
        if families.is_empty() {
            let mut offered = Vec::new();
            for (afi, safi) in self.families.iter().map(|family| family.codes()) {
                offered.extend([1, 4, (afi >> 8) as u8, afi as u8, 0, safi]);
            }
            return Err(Notification::with(code::OPEN, subcode::UNSUPPORTED_CAPABILITY, &offered));
        }
        Ok(NegotiatedParameters {
            peer_as: peer.peer_as,
            peer_identifier: peer.identifier,
            is_internal,
            hold_time: Duration::from_secs(u64::from(self.hold_time_s().min(peer.hold_time_s))),
            families,
            four_octet_as: self.four_octet_as && peer.four_octet_as,
            route_refresh: peer.route_refresh,
            end_of_rib: peer.end_of_rib,
        })
    }

    /// Returns the encoding of routes for a peer.
    pub fn encoding(&self, negotiated: &NegotiatedParameters) -> Encoding {
        Encoding {
            four_octet_as: negotiated.four_octet_as,
            prepend: (!negotiated.is_internal).then_some(self.local_as),
            local_preference: negotiated.is_internal.then_some(LOCAL_PREFERENCE),
        }
    }
}

impl ReceivedOpen {
    /// Parses the body of a message (RFC 4271 section 6.2).
    pub(super) fn read(body: &[u8]) -> Result<ReceivedOpen, Notification> {
        let reject = |subcode| Notification::new(code::OPEN, subcode);
        let (fixed, parameters) = body.split_first_chunk::<10>().ok_or_else(|| reject(0))?;
        let [version, a, b, c, d, identifier @ .., length] = *fixed;
        if version != 4 {
            return Err(Notification::with(code::OPEN, subcode::UNSUPPORTED_VERSION, &[0, 4]));
        }
        let hold_time_s = u16::from_be_bytes([c, d]);
        if matches!(hold_time_s, 1 | 2) {
            return Err(Notification::with(code::OPEN, subcode::UNACCEPTABLE_HOLD_TIME, &[c, d]));
        }
        let mut open = ReceivedOpen {
            peer_as: u32::from(u16::from_be_bytes([a, b])),
            identifier: Ipv4Addr::from(identifier),
            hold_time_s,
            families: Vec::new(),
            four_octet_as: false,
            route_refresh: false,
            end_of_rib: false,
        };
        let mut has_families = false;
        for (kind, value) in parameter_list(length, parameters).ok_or_else(|| reject(0))? {
            if kind != 2 {
                return Err(reject(subcode::UNSUPPORTED_PARAMETER));
            }
            for capability in capability_list(value).ok_or_else(|| reject(0))? {
                has_families |= capability[0] == 1;
                open.apply(capability);
            }
        }
        // Without multiprotocol capability the peer supports IPv4 unicast only (RFC 4760 section 8).
        if !has_families {
            open.families.push(BgpFamily::Ipv4Unicast);
        }
        Ok(open)
    }

    fn apply(&mut self, capability: &[u8]) {
        match BgpCapability::parse(&mut SliceReader::new(capability)) {
            Ok(BgpCapability::MultiProtocolExtensions(found)) => {
                let family =
                    BgpFamily::ALL.into_iter().find(|family| address_type(*family) == found.address_type());
                self.families.extend(family);
            }
            Ok(BgpCapability::RouteRefresh | BgpCapability::CiscoRouteRefresh) => self.route_refresh = true,
            Ok(BgpCapability::FourOctetAs(found)) => {
                self.four_octet_as = true;
                self.peer_as = found.asn4();
            }
            Ok(BgpCapability::GracefulRestartCapability(_)) => self.end_of_rib = true,
            _ => {}
        }
    }
}

fn address_type(family: BgpFamily) -> AddressType {
    match family {
        BgpFamily::Ipv4Unicast => AddressType::Ipv4Unicast,
        BgpFamily::Ipv6Unicast => AddressType::Ipv6Unicast,
        BgpFamily::Ipv4Labeled => AddressType::Ipv4NlriMplsLabels,
        BgpFamily::Ipv6Labeled => AddressType::Ipv6NlriMplsLabels,
        BgpFamily::Vpnv4 => AddressType::Ipv4MplsLabeledVpn,
    }
}

/// Splits the optional parameters into type and value; lengths have one or two octets (RFC 9072 section 2).
fn parameter_list(length: u8, bytes: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let (width, mut rest) = match *bytes {
        [255, high, low, ref rest @ ..] if length != 0 => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            (2, (rest.len() == length).then_some(rest)?)
        }
        _ => (1, (bytes.len() == usize::from(length)).then_some(bytes)?),
    };
    let mut parameters = Vec::new();
    while let Some((&kind, after)) = rest.split_first() {
        let (head, after) = after.split_at_checked(width)?;
        let length = head.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
        let (value, after) = after.split_at_checked(length)?;
        parameters.push((kind, value));
        rest = after;
    }
    Some(parameters)
}

/// Splits a parameter into capabilities, each with code and length.
fn capability_list(mut rest: &[u8]) -> Option<Vec<&[u8]>> {
    let mut capabilities = Vec::new();
    while !rest.is_empty() {
        let (capability, after) = rest.split_at_checked(2 + usize::from(*rest.get(1)?))?;
        capabilities.push(capability);
        rest = after;
    }
    Some(capabilities)
}
