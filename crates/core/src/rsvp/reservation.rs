//! Reservation state: Resv and ResvTear messages, labels and admission (RFC 2205 sections 3.1.4 and 3.1.6, RFC 3209
//! section 4.1).

use super::agenda::Timer;
use super::neighbor::{Outgoing, Slot, is_stale, lifetime};
use super::path::Refusal;
use super::state::{Repair, Reservation, ReservationContents, Upstream, rate, recorded, route};
use super::{EgressLabel, Lsp, RsvpEvent, RsvpNeighbor, RsvpNextHop, RsvpSpeaker};
use crate::time::{Duration, Instant};
use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::mpls::LabelValue;
use netstage_wire::rsvp::message::{Flow, RsvpMessage};
use netstage_wire::rsvp::object::{Hop, Object, Style, class};
use netstage_wire::rsvp::route::RouteHop;
use netstage_wire::rsvp::{BANDWIDTH_UNAVAILABLE, error_code, kind, routing_error};

impl RsvpSpeaker {
    pub(super) fn handle_resv(&mut self, now: Instant, from: RsvpNeighbor, message: &RsvpMessage<'_>) {
        let (Some(session), Some(style)) = (message.session, message.style) else { return };
        for flow in message.flows() {
            let lsp = Lsp { session, sender: flow.sender };
            if let Err(refusal) = self.accept_reservation(now, from, lsp, style, &flow, message) {
                self.refuse_reservation(from, message, &flow, refusal);
                if matches!(refusal.0, error_code::ADMISSION | error_code::ROUTING)
                    && let Some((lsp, _)) = self.lsp_from_downstream(lsp)
                {
                    self.report_path(now, lsp, refusal);
                }
            }
        }
    }

    /// Checks the reservation of a sender, and installs it.
    fn accept_reservation(
        &mut self,
        now: Instant,
        from: RsvpNeighbor,
        named: Lsp,
        style: Style,
        flow: &Flow<'_>,
        message: &RsvpMessage<'_>,
    ) -> Result<(), Refusal> {
        let found = self.lsp_from_downstream(named);
        let Some((lsp, state)) = found.and_then(|(lsp, _)| Some((lsp, self.lsps.get_mut(&lsp)?))) else {
            self.counters.unknown_lsp += 1;
            return Err((error_code::NO_PATH, 0));
        };
        let neighbor = state.downstream.as_ref().map(|next| next.neighbor);
        let last = state.downstream.as_mut().and_then(|next| next.last_id(from, lsp != named));
        let (Some(last), Some(neighbor), Some(label)) = (last, neighbor, flow.label) else {
            self.counters.wrong_hop += 1;
            return Err((error_code::NO_SENDER, 0));
        };
        if is_stale(*last, message.id) {
            self.counters.stale += 1;
            return Ok(());
        }
        let is_null = [LabelValue::IPV4_EXPLICIT_NULL, LabelValue::IMPLICIT_NULL].contains(&label);
        if label.is_reserved() && !is_null {
            return Err((error_code::ROUTING, routing_error::UNACCEPTABLE_LABEL));
        }
        let last = core::mem::replace(last, message.id);
        let record_route = flow.record_route.map(|route| route.bytes().to_vec());
        let contents = ReservationContents { flowspec: flow.flowspec, style, label, record_route };
        let has_upstream = state.upstream.is_some();
        self.index(from, Slot::Resv(named), last, None);
        let link = self.links.entry(neighbor.interface).or_default();
        if !link.reserve(lsp, style, rate(&flow.flowspec).0) {
            self.counters.no_bandwidth += 1;
            return Err((error_code::ADMISSION, BANDWIDTH_UNAVAILABLE));
        }
        let Some(state) = self.lsps.get_mut(&lsp) else { return Ok(()) };
        if has_upstream && state.label.is_none() {
            state.label = self.labels.allocate();
            if state.label.is_none() {
                link.release(lsp);
                self.counters.no_label += 1;
                return Err((error_code::ROUTING, routing_error::NO_LABEL));
            }
        }
        self.index(from, Slot::Resv(named), None, message.id);
        let lifetime = lifetime(Duration::from_millis(message.refresh_ms.unwrap_or(0).into()));
        self.agenda.set(Timer::ResvCleanup(lsp), now + lifetime);
        self.agenda.cancel(Timer::Setup(lsp));
        self.install_reservation(now, lsp, neighbor, Reservation { contents, lifetime });
        Ok(())
    }

    /// Installs a reservation of the next hop, and forwards a change upstream.
    fn install_reservation(&mut self, now: Instant, lsp: Lsp, next: RsvpNeighbor, reservation: Reservation) {
        let Some(state) = self.lsps.get_mut(&lsp) else { return };
        let (label, contents) = (reservation.contents.label, reservation.contents.clone());
        let previous = state.reservation.replace(reservation);
        if previous.as_ref().is_some_and(|previous| previous.contents == contents) {
            return;
        }
        let to = RsvpNextHop { neighbor: next, label };
        let is_moved = previous.is_none_or(|previous| previous.contents.label != label);
        match state.label {
            Some(label) if is_moved => self.events.push_back(RsvpEvent::Forward { label, to }),
            None if is_moved => self.ingress_reserved(now, lsp, to),
            _ => {}
        }
        self.send_resv(now, lsp);
    }

    fn egress_label(&self, endpoint: Ipv4Addr) -> EgressLabel {
        self.config.endpoints.get(&endpoint).copied().unwrap_or(self.config.egress)
    }

    /// Returns whether this router has no label for a new LSP to one of its addresses.
    pub(super) fn lacks_egress_label(&self, lsp: Lsp) -> bool {
        let has_label = self.lsps.get(&lsp).is_some_and(|state| state.label.is_some());
        !has_label
            && self.egress_label(lsp.session.endpoint) == EgressLabel::Own
            && self.labels.is_exhausted()
    }

    /// Answers a Path message at the egress.
    pub(super) fn reserve_at_egress(&mut self, now: Instant, lsp: Lsp) {
        let present = self.lsps.get(&lsp).and_then(|state| state.label);
        let label = match self.egress_label(lsp.session.endpoint) {
            EgressLabel::ImplicitNull => Some(LabelValue::IMPLICIT_NULL),
            EgressLabel::ExplicitNull => Some(LabelValue::IPV4_EXPLICIT_NULL),
            EgressLabel::Own => present.or_else(|| self.labels.allocate()),
        };
        // A path without a free label was refused.
        let Some(label) = label else { return };
        if present.is_none() && !label.is_reserved() {
            self.events.push_back(RsvpEvent::Pop { label });
        }
        let lifetime = lifetime(self.config.refresh);
        let Some(state) = self.lsps.get_mut(&lsp) else { return };
        let record_route = state.path.record_route.as_ref().map(|_| Vec::new());
        let (flowspec, style) = (state.path.tspec, state.path.style());
        let contents = ReservationContents { flowspec, style, label, record_route };
        state.label = Some(label);
        state.reservation = Some(Reservation { contents, lifetime });
        self.send_resv(now, lsp);
    }

    /// Sends Resv messages upstream.
    fn send_resv(&mut self, now: Instant, lsp: Lsp) {
        let hops = self.lsps.get(&lsp).map(|state| state.previous_hops(lsp));
        hops.into_iter().flatten().for_each(|(named, upstream)| self.send_resv_to(now, lsp, named, upstream));
    }

    /// Sends a Resv message to a previous hop. `named`: the LSP in its messages.
    pub(super) fn send_resv_to(&mut self, now: Instant, lsp: Lsp, named: Lsp, upstream: Upstream) {
        let Some(state) = self.lsps.get(&lsp) else { return };
        let (Some(reservation), Some(label)) = (state.reservation.clone(), state.label) else { return };
        let Some((mut objects, message)) = self.resv_head(upstream, lsp, kind::RESV) else { return };
        let here = RouteHop::strict(message.source);
        let contents = reservation.contents;
        let recorded_bytes = contents.record_route.as_ref().map(|rest| recorded(here, rest));
        let recorded = recorded_bytes.as_deref().and_then(|bytes| route(bytes, class::RECORD_ROUTE));
        objects.push(Object::TimeValues(self.refresh_ms()));
        objects.extend(descriptor(named, &contents));
        objects.push(Object::Label(label));
        objects.extend(recorded.map(Object::RecordRoute));
        self.send(now, upstream.neighbor, Slot::Resv(named), &Outgoing { objects, ..message });
    }

    /// Returns the addresses of a message to the previous hop, and its first objects.
    fn resv_head(
        &self,
        upstream: Upstream,
        lsp: Lsp,
        kind: u8,
    ) -> Option<(Vec<Object<'static>>, Outgoing<'static>)> {
        let source = self.own_address(upstream.neighbor)?;
        let destination = upstream.neighbor.address;
        let hop = Object::Hop(Hop { address: source, interface: upstream.handle });
        let message = Outgoing { kind, source, destination, ttl: u8::MAX, objects: Vec::new(), foreign: &[] };
        Some((vec![Object::Session(lsp.session), hop], message))
    }

    pub(super) fn refresh_reservation(&mut self, now: Instant, named: Lsp) {
        let Some(lsp) = self.lsp_from_upstream(named) else { return };
        let hop =
            self.lsps.get(&lsp).and_then(|state| state.previous_hops(lsp).find(|(own, _)| *own == named));
        let Some((_, upstream)) = hop else { return };
        if !self.refresh(now, upstream.neighbor, Slot::Resv(named)) {
            self.send_resv_to(now, lsp, named, upstream);
        }
    }

    pub(super) fn reservation_timeout(&mut self, now: Instant, lsp: Lsp) {
        self.counters.reservation_timeouts += 1;
        self.remove_reservation(now, lsp, true);
    }

    pub(super) fn handle_resv_tear(&mut self, now: Instant, from: RsvpNeighbor, message: &RsvpMessage<'_>) {
        let Some(session) = message.session else { return };
        for flow in message.flows() {
            let named = Lsp { session, sender: flow.sender };
            let found = self.lsp_from_downstream(named);
            let Some((lsp, state)) = found.and_then(|(lsp, _)| Some((lsp, self.lsps.get_mut(&lsp)?))) else {
                self.counters.unknown_lsp += 1;
                continue;
            };
            let last = state.downstream.as_mut().and_then(|next| next.last_id(from, lsp != named));
            let Some(last) = last else {
                self.counters.wrong_hop += 1;
                continue;
            };
            if is_stale(*last, message.id) {
                self.counters.stale += 1;
                continue;
            }
            let last = core::mem::replace(last, message.id);
            self.index(from, Slot::Resv(named), last, None);
            self.remove_reservation(now, lsp, true);
        }
    }

    /// Removes the reservation of an LSP, with its bandwidth and label, and with a ResvTear message upstream if
    /// requested.
    pub(super) fn remove_reservation(&mut self, now: Instant, lsp: Lsp, tears_upstream: bool) {
        let Some(state) = self.lsps.get_mut(&lsp) else { return };
        let Some(reservation) = state.reservation.take() else { return };
        let (label, upstream) = (state.label.take(), state.upstream);
        let next = state.downstream.as_ref().map(|next| (next.neighbor, next.message_id, next.repair));
        let hops = state.previous_hops(lsp);
        self.agenda.cancel(Timer::ResvCleanup(lsp));
        if let Some((neighbor, message_id, repair)) = next {
            self.links.entry(neighbor.interface).or_default().release(lsp);
            self.index(neighbor, Slot::Resv(lsp), message_id, None);
            if let Some(Repair { sender, merge_point, message_id }) = repair {
                self.index(merge_point, Slot::Resv(Lsp { sender, ..lsp }), message_id, None);
            }
            self.agenda.set(Timer::Setup(lsp), now + self.config.setup_timeout);
        }
        let Some(upstream) = upstream else { return self.ingress_unreserved(lsp) };
        if let Some(label) = label.filter(|label| !label.is_reserved()) {
            self.events.push_back(RsvpEvent::Discard { label });
            self.quarantine(now, label, upstream.neighbor);
        }
        for (named, upstream) in hops {
            self.forget(now, upstream.neighbor, Slot::Resv(named));
            let head = self.resv_head(upstream, lsp, kind::RESV_TEAR).filter(|_| tears_upstream);
            if let Some((mut objects, message)) = head {
                objects.extend(descriptor(named, &reservation.contents));
                self.send(now, upstream.neighbor, Slot::Resv(named), &Outgoing { objects, ..message });
            }
        }
    }
}

/// Returns the style and the flow descriptor of a sender.
pub(super) fn descriptor(lsp: Lsp, contents: &ReservationContents) -> [Object<'static>; 3] {
    let flowspec = Object::Flowspec(contents.flowspec);
    [Object::Style(contents.style), flowspec, Object::FilterSpec(lsp.sender)]
}
