//! Reception: decoding, the sender of a message, acknowledgments (RFC 2961 section 4) and summary refreshes.

use super::agenda::Timer;
use super::neighbor::Slot;
use super::route::contains;
use super::{RsvpNeighbor, RsvpSpeaker};
use crate::time::Instant;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::rsvp::message::RsvpMessage;
use netstage_wire::rsvp::object::{ACK_DESIRED, MessageId, Object};
use netstage_wire::rsvp::{RsvpPacket, kind};

impl RsvpSpeaker {
    /// Handles a received message: the payload of an IP packet with protocol 46 and this source address. The packet has the
    /// router alert option, or [is addressed](RsvpSpeaker::is_local) to this router.
    pub fn handle_packet(&mut self, now: Instant, interface: u32, source: Ipv4Addr, bytes: &[u8]) {
        if !self.interfaces.contains_key(&interface) {
            self.counters.wrong_interface += 1;
            return;
        }
        match RsvpPacket::new(bytes) {
            Ok(packet) => packet.messages().for_each(|message| match message {
                Ok(message) => self.handle_message(now, interface, source, &message),
                Err(_) => self.counters.malformed += 1,
            }),
            Err(_) => self.counters.malformed += 1,
        }
    }

    fn handle_message(&mut self, now: Instant, interface: u32, source: Ipv4Addr, packet: &RsvpPacket<'_>) {
        self.counters.received += 1;
        let message = match RsvpMessage::new(packet) {
            Ok(message) => message,
            Err(error) => {
                self.counters.malformed += 1;
                return self.report_malformed(interface, packet, error);
            }
        };
        // The source address of messages that pass routers without RSVP, or are sent on behalf of the ingress, is not
        // that of the neighbor.
        let address = message.hop.map_or(source, |hop| hop.address);
        let from = self.neighbor(interface, address);
        // Only the Path messages of repaired LSPs are accepted from unknown routers that are on no link of this one.
        let is_known = !from.is_remote() || self.neighbors.contains_key(&from);
        let is_hello = message.kind == kind::HELLO;
        if self.is_local(address) || !is_known && message.kind != kind::PATH || from.is_remote() && is_hello {
            self.counters.wrong_hop += 1;
            return;
        }
        if let Some(neighbor) = self.neighbors.get_mut(&from) {
            neighbor.reduces_refreshes = message.reduces_refreshes;
        }
        for (id, is_known) in message.acknowledgments() {
            self.handle_acknowledgment(now, from, id, is_known);
            if !from.is_remote() {
                self.handle_acknowledgment(now, RsvpNeighbor::remote(address), id, is_known);
            }
        }
        match message.kind {
            kind::PATH => self.handle_path(now, from, &message),
            kind::PATH_TEAR => self.handle_path_tear(now, from, &message),
            kind::PATH_ERROR => self.handle_path_error(now, from, &message),
            kind::RESV => self.handle_resv(now, from, &message),
            kind::RESV_TEAR => self.handle_resv_tear(now, from, &message),
            kind::RESV_ERROR => self.handle_resv_error(from, &message),
            kind::SUMMARY_REFRESH => self.handle_summary_refresh(now, from, &message),
            kind::HELLO => message.hello.into_iter().for_each(|hello| self.handle_hello(now, from, hello)),
            _ => {}
        }
        let is_known = !from.is_remote() || self.neighbors.contains_key(&from);
        if let Some(id) = message.id.filter(|id| is_known && id.flags & ACK_DESIRED != 0) {
            self.send_control(from, kind::ACK, &[Object::Acknowledged(MessageId { flags: 0, ..id })]);
        }
    }

    /// Returns the sender of a message from an interface.
    fn neighbor(&self, interface: u32, address: Ipv4Addr) -> RsvpNeighbor {
        let own = self.interfaces.get(&interface);
        if own.is_some_and(|own| contains(own.address, own.length, address)) {
            RsvpNeighbor { interface, address }
        } else {
            RsvpNeighbor::remote(address)
        }
    }

    /// Refreshes the listed states, and reports unknown message IDs.
    fn handle_summary_refresh(&mut self, now: Instant, from: RsvpNeighbor, message: &RsvpMessage<'_>) {
        let mut unknown = Vec::new();
        for (epoch, id) in message.refreshed().flat_map(|ids| ids.iter().map(move |id| (ids.epoch, id))) {
            let mut slots = self.indexed(from, epoch, id);
            slots.extend(self.indexed(RsvpNeighbor::remote(from.address), epoch, id));
            if slots.is_empty() {
                unknown.push(Object::Unknown(MessageId { flags: 0, epoch, id }));
            }
            for slot in slots {
                match slot {
                    Slot::Path(named) => {
                        let lsp = self.lsp_from_upstream(named).unwrap_or(named);
                        let mut hops =
                            self.lsps.get(&lsp).into_iter().flat_map(|state| state.previous_hops(lsp));
                        if let Some((_, upstream)) = hops.find(|(own, _)| *own == named) {
                            self.agenda.set(Timer::PathCleanup(named), now + upstream.lifetime);
                        }
                    }
                    Slot::Resv(named) => {
                        let Some((lsp, _)) = self.lsp_from_downstream(named) else { continue };
                        let reservation = self.lsps.get(&lsp).and_then(|state| state.reservation.as_ref());
                        if let Some(reservation) = reservation {
                            self.agenda.set(Timer::ResvCleanup(lsp), now + reservation.lifetime);
                        }
                    }
                }
            }
        }
        for unknown in unknown.chunks(100) {
            self.send_control(from, kind::ACK, unknown);
        }
    }
}
