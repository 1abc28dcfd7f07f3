//! PathErr and ResvErr messages (RFC 2205 sections 3.1.7 and 3.1.8). They change no state; they travel along the LSP to
//! the ingress or the egress.

use super::path::{Refusal, lsp_of};
use super::{Lsp, RsvpEvent, RsvpNeighbor, RsvpSpeaker};
use crate::time::Instant;
use alloc::vec;
use alloc::vec::Vec;
use netstage_wire::rsvp::message::{Flow, RsvpMessage};
use netstage_wire::rsvp::object::{ErrorSpec, Hop, Object, Sender, Session};
use netstage_wire::rsvp::{LOCALLY_REPAIRED, RsvpError, RsvpPacket, error_code, kind};

impl RsvpSpeaker {
    fn error(&self, (code, value): Refusal) -> ErrorSpec {
        ErrorSpec { node: self.config.router, flags: 0, code, value }
    }

    /// Answers a Path message with an error.
    pub(super) fn refuse_path(&mut self, from: RsvpNeighbor, message: &RsvpMessage<'_>, refusal: Refusal) {
        let (Some(lsp), Some(tspec)) = (lsp_of(message), message.tspec) else { return };
        let adspec = message.adspec.map(Object::Adspec);
        let traffic = core::iter::once(Object::SenderTspec(tspec)).chain(adspec);
        self.send_path_error(from, lsp, self.error(refusal), traffic.collect());
    }

    /// Answers a message with an unknown object (RFC 2205 section 3.10), if its LSP can be identified.
    pub(super) fn report_malformed(&mut self, interface: u32, packet: &RsvpPacket<'_>, error: RsvpError) {
        let Some(refusal) = error.report().filter(|_| packet.kind == kind::PATH) else { return };
        let (mut session, mut sender, mut hop) = (None::<Session>, None::<Sender>, None::<Hop>);
        let mut traffic = Vec::new();
        for raw in packet.objects().flatten() {
            match Object::new(&raw) {
                Ok(Object::Session(found)) => session = session.or(Some(found)),
                Ok(Object::SenderTemplate(found)) => sender = sender.or(Some(found)),
                Ok(Object::Hop(found)) => hop = hop.or(Some(found)),
                Ok(found @ (Object::SenderTspec(_) | Object::Adspec(_))) => traffic.push(found),
                _ => {}
            }
        }
        if let (Some(session), Some(sender), Some(hop)) = (session, sender, hop)
            && let Some(to) = self.adjacent(hop.address).filter(|to| to.interface == interface)
        {
            self.send_path_error(to, Lsp { session, sender }, self.error(refusal), traffic);
        }
    }

    /// Reports an error of this router about an existing LSP to the ingress.
    pub(super) fn report_path(&mut self, now: Instant, lsp: Lsp, refusal: Refusal) {
        self.forward_path_error(now, lsp, self.error(refusal));
    }

    fn forward_path_error(&mut self, now: Instant, lsp: Lsp, error: ErrorSpec) {
        let Some(state) = self.lsps.get(&lsp) else { return };
        let path = state.path.clone();
        match state.upstream {
            Some(_) => {
                for (named, upstream) in state.previous_hops(lsp) {
                    self.send_path_error(upstream.neighbor, named, error, path.traffic().collect());
                }
            }
            None if (error.code, error.value) == (error_code::NOTIFY, LOCALLY_REPAIRED) => {
                self.ingress_repaired(now, lsp, error.node);
            }
            None => self.ingress_failed(lsp, error),
        }
    }

    fn send_path_error(&mut self, to: RsvpNeighbor, lsp: Lsp, error: ErrorSpec, traffic: Vec<Object<'_>>) {
        let head =
            [Object::Session(lsp.session), Object::ErrorSpec(error), Object::SenderTemplate(lsp.sender)];
        self.send_control(to, kind::PATH_ERROR, &head.into_iter().chain(traffic).collect::<Vec<_>>());
    }

    pub(super) fn handle_path_error(&mut self, now: Instant, from: RsvpNeighbor, message: &RsvpMessage<'_>) {
        let (Some(named), Some(error)) = (lsp_of(message), message.error) else { return };
        let Some((lsp, is_backup)) = self.lsp_from_downstream(named) else {
            self.counters.unknown_lsp += 1;
            return;
        };
        let next = self.lsps.get_mut(&lsp).and_then(|state| state.downstream.as_mut());
        if next.and_then(|next| next.last_id(from, is_backup)).is_some() {
            self.forward_path_error(now, lsp, error);
        } else {
            self.counters.wrong_hop += 1;
        }
    }

    /// Answers the reservation of a sender with an error.
    pub(super) fn refuse_reservation(
        &mut self,
        from: RsvpNeighbor,
        message: &RsvpMessage<'_>,
        flow: &Flow<'_>,
        refusal: Refusal,
    ) {
        let (Some(session), Some(style)) = (message.session, message.style) else { return };
        let Some(address) = self.own_address(from) else { return };
        let objects = vec![
            Object::Session(session),
            Object::Hop(Hop { address, interface: message.hop.map_or(0, |hop| hop.interface) }),
            Object::ErrorSpec(self.error(refusal)),
            Object::Style(style),
            Object::Flowspec(flow.flowspec),
            Object::FilterSpec(flow.sender),
        ];
        self.send_control(from, kind::RESV_ERROR, &objects);
    }

    pub(super) fn handle_resv_error(&mut self, from: RsvpNeighbor, message: &RsvpMessage<'_>) {
        let (Some(session), Some(error), Some(style)) = (message.session, message.error, message.style)
        else {
            return;
        };
        for flow in message.flows() {
            let named = Lsp { session, sender: flow.sender };
            let found = self.lsp_from_upstream(named);
            let Some((lsp, state)) = found.and_then(|lsp| Some((lsp, self.lsps.get(&lsp)?))) else {
                self.counters.unknown_lsp += 1;
                continue;
            };
            if !state.previous_hops(lsp).any(|(own, upstream)| own == named && upstream.is(from)) {
                self.counters.wrong_hop += 1;
                continue;
            }
            let Some(next) = &state.downstream else { continue };
            let (sender, to) = next.signaled(lsp.sender);
            let Some(address) = self.own_address(to) else { continue };
            let objects = [
                Object::Session(session),
                Object::Hop(Hop { address, interface: to.interface }),
                Object::ErrorSpec(error),
                Object::Style(style),
                Object::Flowspec(flow.flowspec),
                Object::FilterSpec(sender),
            ];
            self.send_control(to, kind::RESV_ERROR, &objects);
        }
    }

    /// Reports an error about an LSP of this router.
    fn ingress_failed(&mut self, lsp: Lsp, error: ErrorSpec) {
        if let Ok(tunnel) = u16::try_from(lsp.session.tunnel) {
            self.events.push_back(RsvpEvent::Failed { tunnel, error });
        }
    }

    /// Reports an error of this router about a tunnel.
    pub(super) fn tunnel_failed(&mut self, tunnel: u16, refusal: Refusal) {
        let error = self.error(refusal);
        self.events.push_back(RsvpEvent::Failed { tunnel, error });
    }
}
