//! Parsed RSVP messages, with the objects that their types require (RFC 2205 section 3.1, RFC 3209 section 3).

use super::object::{
    ErrorSpec, FastReroute, Hello, Hop, Integrity, MessageId, MessageIds, Object, RawObject, Sender, Session,
    SessionAttribute, Style, TokenBucket, class,
};
use super::route::Route;
use super::{REFRESH_REDUCTION, RsvpError, RsvpPacket, kind};
use crate::mpls::LabelValue;
use core::net::Ipv4Addr;

/// Message with parsed objects. Objects that the message type requires are present.
#[derive(Clone, Copy, Debug)]
pub struct RsvpMessage<'a> {
    /// Message type.
    pub kind: u8,
    /// IP time to live with which the message was sent.
    pub ttl: u8,
    /// The sender reduces refreshes.
    pub reduces_refreshes: bool,
    /// Authentication.
    pub integrity: Option<Integrity>,
    /// Identifier of the message.
    pub id: Option<MessageId>,
    /// Session.
    pub session: Option<Session>,
    /// Previous hop of path messages, next hop of reservations.
    pub hop: Option<Hop>,
    /// Refresh period, milliseconds.
    pub refresh_ms: Option<u32>,
    /// Error.
    pub error: Option<ErrorSpec>,
    /// Explicit route.
    pub explicit_route: Option<Route<'a>>,
    /// Recorded route of a Path message. Those of reservations are in [`Flow`].
    pub record_route: Option<Route<'a>>,
    /// EtherType of the packets in the LSP.
    pub label_request: Option<u16>,
    /// Attributes of the session.
    pub attribute: Option<SessionAttribute<'a>>,
    /// Sender of a path.
    pub sender: Option<Sender>,
    /// Traffic of the sender.
    pub tspec: Option<TokenBucket>,
    /// Properties of the path for integrated services.
    pub adspec: Option<&'a [u8]>,
    /// Reservation style.
    pub style: Option<Style>,
    /// Receiver that asks for a confirmation.
    pub confirm: Option<Ipv4Addr>,
    /// Request for local protection.
    pub fast_reroute: Option<FastReroute>,
    /// Detours.
    pub detour: Option<&'a [u8]>,
    /// Hello.
    pub hello: Option<Hello>,
    packet: RsvpPacket<'a>,
}

/// Sender of a reservation with its label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow<'a> {
    /// Requested reservation.
    pub flowspec: TokenBucket,
    /// Sender.
    pub sender: Sender,
    /// Label; present in Resv messages.
    pub label: Option<LabelValue>,
    /// Recorded route.
    pub record_route: Option<Route<'a>>,
}

impl<'a> RsvpMessage<'a> {
    /// Parses a message. Objects of unknown classes are handled by their classes (RFC 2205 section 3.10).
    pub fn new(packet: &RsvpPacket<'a>) -> Result<RsvpMessage<'a>, RsvpError> {
        let mut message = RsvpMessage {
            kind: packet.kind,
            ttl: packet.ttl,
            reduces_refreshes: packet.flags & REFRESH_REDUCTION != 0,
            integrity: None,
            id: None,
            session: None,
            hop: None,
            refresh_ms: None,
            error: None,
            explicit_route: None,
            record_route: None,
            label_request: None,
            attribute: None,
            sender: None,
            tspec: None,
            adspec: None,
            style: None,
            confirm: None,
            fast_reroute: None,
            detour: None,
            hello: None,
            packet: *packet,
        };
        // The framing is checked first, so that a message with an unknown object can be identified.
        packet.objects().try_for_each(|raw| raw.map(drop))?;
        packet.objects().flatten().try_for_each(|raw| message.add(Object::new(&raw)?, raw.class))?;
        message.check()?;
        Ok(message)
    }

    /// Adds an object. Of several objects of a class, the first counts (RFC 3209 sections 4.2 to 4.4).
    fn add(&mut self, object: Object<'a>, class: u8) -> Result<(), RsvpError> {
        match object {
            Object::Integrity(integrity) => drop(self.integrity.get_or_insert(integrity)),
            Object::MessageId(id) => drop(self.id.get_or_insert(id)),
            Object::Session(session) => drop(self.session.get_or_insert(session)),
            Object::Hop(hop) => drop(self.hop.get_or_insert(hop)),
            Object::TimeValues(period) => drop(self.refresh_ms.get_or_insert(period)),
            Object::ErrorSpec(error) => drop(self.error.get_or_insert(error)),
            Object::ExplicitRoute(route) => drop(self.explicit_route.get_or_insert(route)),
            Object::RecordRoute(route) => drop(self.record_route.get_or_insert(route)),
            Object::LabelRequest(protocol) => drop(self.label_request.get_or_insert(protocol)),
            Object::SessionAttribute(attribute) => drop(self.attribute.get_or_insert(attribute)),
            Object::SenderTemplate(sender) => drop(self.sender.get_or_insert(sender)),
            Object::SenderTspec(tspec) => drop(self.tspec.get_or_insert(tspec)),
            Object::Adspec(adspec) => drop(self.adspec.get_or_insert(adspec)),
            Object::Style(style) => drop(self.style.get_or_insert(style)),
            Object::ResvConfirm(receiver) => drop(self.confirm.get_or_insert(receiver)),
            Object::FastReroute(request) => drop(self.fast_reroute.get_or_insert(request)),
            Object::Detour(detour) => drop(self.detour.get_or_insert(detour)),
            Object::Hello(hello) => drop(self.hello.get_or_insert(hello)),
            // Flows are parsed one by one; their order is checked at the end.
            Object::Flowspec(_) | Object::FilterSpec(_) | Object::Label(_) if self.style.is_none() => {
                return Err(RsvpError::Malformed(class));
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), RsvpError> {
        let need =
            |is_present: bool, class: u8| if is_present { Ok(()) } else { Err(RsvpError::Missing(class)) };
        let (is_path, is_resv) = (self.kind == kind::PATH, self.kind == kind::RESV);
        match self.kind {
            kind::ACK | kind::SUMMARY_REFRESH => return Ok(()),
            kind::HELLO => return need(self.hello.is_some(), class::HELLO),
            kind::PATH | kind::PATH_TEAR | kind::PATH_ERROR => {
                need(self.session.is_some(), class::SESSION)?;
                need(self.sender.is_some(), class::SENDER_TEMPLATE)?;
            }
            kind::RESV | kind::RESV_TEAR | kind::RESV_ERROR | kind::RESV_CONFIRM => {
                need(self.session.is_some(), class::SESSION)?;
                need(self.style.is_some(), class::STYLE)?;
                self.check_flows()?;
            }
            _ => return Err(RsvpError::Kind(self.kind)),
        }
        if !matches!(self.kind, kind::PATH_ERROR | kind::RESV_CONFIRM) {
            need(self.hop.is_some(), class::HOP)?;
        }
        if matches!(self.kind, kind::PATH_ERROR | kind::RESV_ERROR | kind::RESV_CONFIRM) {
            need(self.error.is_some(), class::ERROR_SPEC)?;
        }
        if is_path || is_resv {
            need(self.refresh_ms.is_some(), class::TIME_VALUES)?;
        }
        if is_path {
            need(self.label_request.is_some(), class::LABEL_REQUEST)?;
            need(self.tspec.is_some(), class::SENDER_TSPEC)?;
        }
        Ok(())
    }

    /// Checks the flow descriptors: each sender has a flowspec before it, in a Resv message also a label after it.
    fn check_flows(&self) -> Result<(), RsvpError> {
        let (mut has_flowspec, mut senders, mut labels) = (false, 0_usize, 0_usize);
        for raw in self.packet.objects().flatten() {
            match raw.class {
                class::FLOWSPEC if self.kind == kind::RESV && labels != senders => {
                    return Err(RsvpError::Malformed(class::FLOWSPEC));
                }
                class::FLOWSPEC => has_flowspec = true,
                class::FILTER_SPEC => {
                    let follows_label = self.kind != kind::RESV || labels == senders;
                    if !has_flowspec || !follows_label {
                        return Err(RsvpError::Malformed(class::FILTER_SPEC));
                    }
                    senders += 1;
                }
                class::LABEL => {
                    labels += 1;
                    if labels != senders {
                        return Err(RsvpError::Malformed(class::LABEL));
                    }
                }
                _ => {}
            }
        }
        match senders {
            0 => Err(RsvpError::Missing(class::FILTER_SPEC)),
            _ if self.kind == kind::RESV && labels != senders => Err(RsvpError::Missing(class::LABEL)),
            _ => Ok(()),
        }
    }

    /// Iterates over the senders of a reservation.
    pub fn flows(&self) -> impl Iterator<Item = Flow<'a>> + use<'a> {
        let mut objects = self.packet.objects().flatten().filter_map(|raw| Object::new(&raw).ok());
        let (mut flowspec, mut pending) = (None, None::<Flow<'a>>);
        core::iter::from_fn(move || {
            loop {
                let before = match objects.next() {
                    None => return pending.take(),
                    Some(Object::Flowspec(next)) => {
                        flowspec = Some(next);
                        pending.take()
                    }
                    Some(Object::FilterSpec(sender)) => match flowspec {
                        Some(flowspec) => {
                            pending.replace(Flow { flowspec, sender, label: None, record_route: None })
                        }
                        None => None,
                    },
                    Some(Object::Label(label)) => {
                        if let Some(flow) = &mut pending {
                            flow.label = Some(label);
                        }
                        None
                    }
                    Some(Object::RecordRoute(route)) => {
                        if let Some(flow) = &mut pending {
                            flow.record_route = Some(route);
                        }
                        None
                    }
                    Some(_) => None,
                };
                if before.is_some() {
                    return before;
                }
            }
        })
    }

    /// Iterates over the acknowledged messages, and over those that the sender does not know (`false`).
    pub fn acknowledgments(&self) -> impl Iterator<Item = (MessageId, bool)> + use<'a> {
        self.packet.objects().flatten().filter_map(|raw| match Object::new(&raw) {
            Ok(Object::Acknowledged(id)) => Some((id, true)),
            Ok(Object::Unknown(id)) => Some((id, false)),
            _ => None,
        })
    }

    /// Iterates over the lists of messages to be refreshed.
    pub fn refreshed(&self) -> impl Iterator<Item = MessageIds<'a>> + use<'a> {
        self.packet.objects().flatten().filter_map(|raw| match Object::new(&raw) {
            Ok(Object::MessageIds(ids)) => Some(ids),
            _ => None,
        })
    }

    /// Iterates over the objects of unknown classes that are forwarded with the message.
    pub fn forwarded(&self) -> impl Iterator<Item = RawObject<'a>> + use<'a> {
        let is_forwarded =
            |raw: &RawObject<'_>| Object::new(raw) == Ok(Object::Foreign { is_forwarded: true });
        self.packet.objects().flatten().filter(is_forwarded)
    }
}
