//! The state of an LSP at a router: path state and reservation state (RFC 2205 section 2).

use super::{Lsp, LspStatus, RsvpNeighbor};
use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::mpls::LabelValue;
use netstage_wire::rsvp::message::RsvpMessage;
use netstage_wire::rsvp::object::{
    FastReroute, MessageId, Object, RawObject, Sender, SessionAttribute, Style, TokenBucket, attribute_flag,
};
use netstage_wire::rsvp::route::{Route, RouteHop};

/// State of an LSP.
#[derive(Clone, Debug)]
pub(super) struct LspState {
    pub path: PathContents,
    /// `None` at the ingress.
    pub upstream: Option<Upstream>,
    /// `None` at the egress.
    pub downstream: Option<Downstream>,
    /// Reservation of the next hop; at the egress, of this router.
    pub reservation: Option<Reservation>,
    /// Label advertised to the previous hop.
    pub label: Option<LabelValue>,
    /// Previous hop that signals the LSP through its bypass LSP.
    pub backup: Option<Backup>,
}

/// Previous hop that has repaired an LSP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Backup {
    /// Sender in the messages of the repaired LSP.
    pub sender: Sender,
    pub upstream: Upstream,
}

/// Previous hop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Upstream {
    pub neighbor: RsvpNeighbor,
    /// Logical interface handle of the previous hop.
    pub handle: u32,
    /// Cleanup timeout.
    pub lifetime: Duration,
    /// ID of the last Path message.
    pub message_id: Option<MessageId>,
}

/// Next hop.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Downstream {
    pub neighbor: RsvpNeighbor,
    /// Address of this router on the link to it.
    pub address: Ipv4Addr,
    /// Explicit route from the next hop.
    pub route: Vec<RouteHop>,
    /// ID of the last Resv or ResvTear message.
    pub message_id: Option<MessageId>,
    /// The next hop has failed, and packets take the bypass LSP to it.
    pub repair: Option<Repair>,
}

/// Signaling of an LSP through a bypass LSP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Repair {
    /// Sender in the messages of the repaired LSP.
    pub sender: Sender,
    /// The next hop, as the end of the bypass LSP.
    pub merge_point: RsvpNeighbor,
    /// ID of the last Resv or ResvTear message.
    pub message_id: Option<MessageId>,
}

impl Upstream {
    /// Returns whether a message is from this hop. That of a repaired LSP may be on a link of this router, too.
    pub fn is(&self, from: RsvpNeighbor) -> bool {
        self.neighbor == from || self.neighbor == RsvpNeighbor::remote(from.address)
    }
}

impl Downstream {
    /// Returns the router that signals the LSP to this one, with the sender in its messages.
    pub fn signaled(&self, sender: Sender) -> (Sender, RsvpNeighbor) {
        self.repair.map_or((sender, self.neighbor), |repair| (repair.sender, repair.merge_point))
    }

    /// Returns the ID of the last Resv or ResvTear message from a neighbor; `None` if it is not this next hop.
    /// `is_backup`: in messages of the repaired LSP.
    pub fn last_id(&mut self, from: RsvpNeighbor, is_backup: bool) -> Option<&mut Option<MessageId>> {
        let repair = self.repair.as_mut().filter(|repair| repair.merge_point.address == from.address);
        match is_backup {
            true => repair.map(|repair| &mut repair.message_id),
            false => (self.neighbor == from).then_some(&mut self.message_id),
        }
    }
}

/// Contents of a Path message that are forwarded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PathContents {
    /// EtherType of the packets in the LSP.
    pub protocol: u16,
    pub tspec: TokenBucket,
    pub adspec: Option<Vec<u8>>,
    pub attribute: Option<Attribute>,
    /// Hops recorded up to the previous router; `None` if the route is not recorded.
    pub record_route: Option<Vec<u8>>,
    pub fast_reroute: Option<FastReroute>,
    /// Objects of unknown classes.
    pub foreign: Vec<Foreign>,
    /// Time to live of the Path message to be sent.
    pub ttl: u8,
}

/// Attributes of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attribute {
    pub affinities: Option<[u32; 3]>,
    pub setup: u8,
    pub holding: u8,
    pub flags: u8,
    pub name: Vec<u8>,
}

/// Object of an unknown class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Foreign {
    class: u8,
    c_type: u8,
    value: Vec<u8>,
}

/// Reservation state.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub contents: ReservationContents,
    /// Cleanup timeout.
    pub lifetime: Duration,
}

/// Contents of a Resv message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReservationContents {
    pub flowspec: TokenBucket,
    pub style: Style,
    /// Label of the next hop.
    pub label: LabelValue,
    /// Hops recorded from the next router to the egress.
    pub record_route: Option<Vec<u8>>,
}

impl Attribute {
    fn new(attribute: &SessionAttribute<'_>) -> Attribute {
        let SessionAttribute { affinities, setup, holding, flags, name } = *attribute;
        Attribute { affinities, setup, holding, flags, name: name.to_vec() }
    }

    fn object(&self) -> Object<'_> {
        let Attribute { affinities, setup, holding, flags, ref name } = *self;
        Object::SessionAttribute(SessionAttribute { affinities, setup, holding, flags, name })
    }
}

impl Foreign {
    pub fn raw(&self) -> RawObject<'_> {
        RawObject { class: self.class, c_type: self.c_type, value: &self.value }
    }
}

impl PathContents {
    /// Returns the contents of a Path message, which has a label request and a traffic specification.
    pub fn new(message: &RsvpMessage<'_>) -> Option<PathContents> {
        let foreign =
            |raw: RawObject<'_>| Foreign { class: raw.class, c_type: raw.c_type, value: raw.value.to_vec() };
        Some(PathContents {
            protocol: message.label_request?,
            tspec: message.tspec?,
            adspec: message.adspec.map(<[u8]>::to_vec),
            attribute: message.attribute.as_ref().map(Attribute::new),
            record_route: message.record_route.map(|route| route.bytes().to_vec()),
            fast_reroute: message.fast_reroute,
            foreign: message.forwarded().map(foreign).collect(),
            ttl: message.ttl.saturating_sub(1),
        })
    }

    /// Objects between the explicit route and the sender.
    pub fn attributes(&self) -> impl Iterator<Item = Object<'_>> {
        let attribute = self.attribute.as_ref().map(Attribute::object);
        attribute.into_iter().chain(self.fast_reroute.map(Object::FastReroute))
    }

    /// Objects that follow the sender.
    pub fn traffic(&self) -> impl Iterator<Item = Object<'_>> {
        let adspec = self.adspec.as_deref().map(Object::Adspec);
        core::iter::once(Object::SenderTspec(self.tspec)).chain(adspec)
    }

    /// Returns whether routers on the way may keep the LSP after a failure (RFC 4090 section 4.3).
    pub fn is_protected(&self) -> bool {
        self.has_flag(attribute_flag::LOCAL_PROTECTION)
    }

    fn has_flag(&self, flag: u8) -> bool {
        self.attribute.as_ref().is_some_and(|attribute| attribute.flags & flag != 0)
    }

    /// Style that the ingress requests (RFC 3209 section 4.7.1).
    pub fn style(&self) -> Style {
        if self.has_flag(attribute_flag::SHARED_EXPLICIT) {
            Style::SharedExplicit
        } else {
            Style::FixedFilter
        }
    }
}

impl LspState {
    /// Returns the previous hops, each with the LSP as its messages name it.
    pub fn previous_hops(&self, lsp: Lsp) -> impl Iterator<Item = (Lsp, Upstream)> + use<> {
        let backup = self.backup.map(|backup| (Lsp { sender: backup.sender, ..lsp }, backup.upstream));
        self.upstream.map(|upstream| (lsp, upstream)).into_iter().chain(backup)
    }

    /// Returns whether the next hop is repaired.
    pub fn is_repaired(&self) -> bool {
        self.downstream.as_ref().is_some_and(|next| next.repair.is_some())
    }

    pub fn status(&self, lsp: Lsp) -> LspStatus {
        let reservation = self.reservation.as_ref().map(|reservation| &reservation.contents);
        let outgoing = reservation.map(|contents| contents.label);
        LspStatus {
            lsp,
            upstream: self.upstream.map(|upstream| upstream.neighbor),
            downstream: self.downstream.as_ref().map(|downstream| downstream.neighbor),
            is_reserved: self.reservation.is_some(),
            is_repaired: self.is_repaired(),
            bandwidth: rate(&reservation.map_or(self.path.tspec, |contents| contents.flowspec)),
            incoming: self.label,
            outgoing: outgoing.filter(|_| self.downstream.is_some()),
        }
    }
}

/// Bandwidth of a token bucket.
pub(super) fn rate(bucket: &TokenBucket) -> BitRate {
    BitRate((f64::from(bucket.rate) * 8.0) as u64)
}

/// Encodes the hops of a route.
pub(super) fn encoded(hops: &[RouteHop]) -> Vec<u8> {
    hops.iter().filter_map(|hop| hop.to_bytes()).flatten().collect()
}

/// Returns the recorded route with this router in front.
pub(super) fn recorded(hop: RouteHop, rest: &[u8]) -> Vec<u8> {
    hop.to_bytes().into_iter().flatten().chain(rest.iter().copied()).collect()
}

/// Returns encoded hops as a route; `None` if they are malformed.
pub(super) fn route(bytes: &[u8], class: u8) -> Option<Route<'_>> {
    Route::new(bytes, class).ok()
}
