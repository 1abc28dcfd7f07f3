//! What a peer tells of its addresses and labels, and what follows from it (RFC 5036 sections 3.5.5 to
//! 3.5.11 and appendix A.1): all is kept that there is room for, a label that is not kept is released, a
//! withdrawal is answered by a release and a request by a mapping.

use super::receive::about;
use super::table::Remote;
use super::{Connection, Event, Speaker};
use alloc::vec::Vec;
use core::net::IpAddr;
use netstage_wire::ldp::message::{Abort, Addresses, Fec, Mapping, Message, Notification, Removal, Request};
use netstage_wire::ldp::message::{Routers, kind};
use netstage_wire::ldp::write::Outgoing;
use netstage_wire::ldp::{Identifier, Status};
use netstage_wire::mpls::Label;

/// Addresses that are kept of one peer.
const MOST_ADDRESSES: usize = 16_384;

impl Speaker {
    pub(super) fn take_told(
        &mut self,
        connection: Connection,
        peer: Identifier,
        message_id: u32,
        message: &Message<'_>,
    ) -> Result<(), Status> {
        match message {
            Message::Address(addresses) => self.take_addresses(connection, peer, addresses),
            Message::AddressWithdraw(addresses) => self.take_address_withdraw(peer, addresses),
            Message::LabelMapping(mapping) => {
                return self.take_mapping(connection, peer, message_id, mapping);
            }
            Message::LabelWithdraw(removal) => self.take_withdraw(connection, peer, removal),
            Message::LabelRelease(removal) => self.take_release(connection, removal),
            Message::LabelRequest(request) => {
                return self.take_request(connection, peer, message_id, request);
            }
            Message::LabelAbortRequest(abort) => self.take_abort(connection, abort),
            // Discovery has no place in a session.
            Message::Hello(_) => return Err(Status::SHUTDOWN),
            Message::Notification(_) | Message::Initialization(_) | Message::KeepAlive => {}
        }
        Ok(())
    }

    fn take_addresses(&mut self, connection: Connection, peer: Identifier, addresses: &Addresses<'_>) {
        for address in addresses.iter() {
            if self.table.addresses_count(peer) >= MOST_ADDRESSES {
                return self.tell_full(connection, peer);
            }
            if self.table.add_address(peer, address) {
                self.events.push_back(Event::Address { peer, address, is_there: true });
                self.refresh_via(address);
            }
        }
    }

    fn take_address_withdraw(&mut self, peer: Identifier, addresses: &Addresses<'_>) {
        for address in addresses.iter() {
            if self.table.remove_address(peer, address) {
                self.events.push_back(Event::Address { peer, address, is_there: false });
                self.refresh_via(address);
            }
        }
    }

    fn refresh_via(&mut self, next_hop: IpAddr) {
        for fec in self.table.via(next_hop) {
            self.refresh(fec);
        }
    }

    /// A peer tells something else of a prefix, most of which go nowhere near it.
    fn refresh_from(&mut self, peer: Identifier, fec: Fec) {
        if self.table.is_via(fec, peer) {
            self.refresh(fec);
        }
    }

    /// Tells the caller once that a peer tells more than is kept.
    fn tell_full(&mut self, connection: Connection, peer: Identifier) {
        if let Some(session) = self.sessions.get_mut(&connection)
            && !core::mem::replace(&mut session.is_full, true)
        {
            self.events.push_back(Event::Full { peer });
        }
    }

    fn take_mapping(
        &mut self,
        connection: Connection,
        peer: Identifier,
        message_id: u32,
        mapping: &Mapping<'_>,
    ) -> Result<(), Status> {
        let label = mapping.label;
        let is_null =
            [Label::IPV4_EXPLICIT_NULL, Label::IPV6_EXPLICIT_NULL, Label::IMPLICIT_NULL].contains(&label);
        if label.is_reserved() && !is_null {
            return Err(Status::MALFORMED_TLV);
        }
        let is_loop = self.is_loop(mapping.hops, &mapping.path);
        for fec in mapping.fecs.iter() {
            if fec == Fec::Wildcard {
                return Err(Status::MALFORMED_TLV);
            }
            if is_loop {
                // What leads back here is not to be used (section 2.8.2).
                self.forget_mapping(peer, fec);
                self.reply(connection, Outgoing::LabelRelease(fec, Some(label)));
                let notification = about(Status::LOOP_DETECTED, message_id, kind::LABEL_MAPPING);
                self.reply(connection, Outgoing::Notification(notification));
                continue;
            }
            let is_new = self.table.mapping(peer, fec).is_none();
            if is_new && self.table.mappings_count(peer) >= self.config.most_bindings {
                self.reply(connection, Outgoing::LabelRelease(fec, Some(label)));
                self.tell_full(connection, peer);
                continue;
            }
            // Paths are only ever asked for where loops are looked for.
            let path = match self.config.loop_detection {
                Some(_) => mapping.path.iter().collect(),
                None => [].into(),
            };
            let before = self.table.insert(peer, fec, Remote { label, hops: mapping.hops, path });
            let before = before.map(|before| before.label);
            if before != Some(label) {
                let replaced = before.map(|before| Outgoing::LabelRelease(fec, Some(before)));
                replaced.into_iter().for_each(|release| self.reply(connection, release));
                self.events.push_back(Event::Mapping { peer, fec, label });
            }
            self.refresh_from(peer, fec);
        }
        Ok(())
    }

    /// Whether a message has come by here before, or by too many (section 2.8).
    fn is_loop(&self, hops: Option<u8>, path: &Routers<'_>) -> bool {
        let Some(most) = self.config.loop_detection else { return false };
        let is_long = hops.is_some_and(|hops| hops > most) || path.iter().len() > usize::from(most);
        is_long || path.iter().any(|router| router == self.config.router)
    }

    fn forget_mapping(&mut self, peer: Identifier, fec: Fec) {
        if let Some(Remote { label, .. }) = self.table.remove(peer, fec) {
            self.events.push_back(Event::Withdrawn { peer, fec, label });
            self.refresh_from(peer, fec);
        }
    }

    fn take_withdraw(&mut self, connection: Connection, peer: Identifier, removal: &Removal<'_>) {
        for fec in removal.fecs.iter() {
            let told: Vec<(Fec, Label)> = match fec {
                Fec::Wildcard => self.table.mappings_of(peer).collect(),
                fec => self.table.mapping(peer, fec).map(|remote| (fec, remote.label)).into_iter().collect(),
            };
            for (fec, _) in
                told.into_iter().filter(|(_, told)| removal.label.is_none_or(|label| label == *told))
            {
                self.forget_mapping(peer, fec);
            }
            self.reply(connection, Outgoing::LabelRelease(fec, removal.label));
        }
    }

    fn take_release(&mut self, connection: Connection, removal: &Removal<'_>) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        for fec in removal.fecs.iter() {
            let fecs = match fec {
                Fec::Wildcard => session.upstream.held(removal.label),
                fec => [fec].into(),
            };
            for label in fecs.into_iter().flat_map(|fec| session.upstream.release(fec, removal.label)) {
                self.events.extend(self.table.let_go(label).map(|label| Event::Free { label }));
            }
        }
    }

    fn take_request(
        &mut self,
        connection: Connection,
        peer: Identifier,
        message_id: u32,
        request: &Request<'_>,
    ) -> Result<(), Status> {
        let is_loop = self.is_loop(request.hops, &request.path);
        for fec in request.fecs.iter() {
            let refused = match self.table.binding(fec) {
                _ if fec == Fec::Wildcard => return Err(Status::MALFORMED_TLV),
                None => Some(Status::NO_ROUTE),
                _ if is_loop => Some(Status::LOOP_DETECTED),
                _ if self.table.is_via(fec, peer) => Some(Status::LOOP_DETECTED),
                Some(_) => None,
            };
            let Some(session) = self.sessions.get_mut(&connection) else { return Ok(()) };
            match refused {
                Some(status) => {
                    session.replies.push_back(Outgoing::Notification(answer(status, message_id)));
                }
                None => {
                    session.upstream.requests.insert(fec, message_id);
                    session.upstream.dirty.insert(fec);
                }
            }
        }
        Ok(())
    }

    fn take_abort(&mut self, connection: Connection, abort: &Abort<'_>) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        for fec in abort.fecs.iter() {
            // One that was answered is not aborted, and the label is released by who does not want it.
            if session.upstream.requests.get(&fec) == Some(&abort.request_id) {
                session.upstream.requests.remove(&fec);
                let aborted = answer(Status::REQUEST_ABORTED, abort.request_id);
                session.replies.push_back(Outgoing::Notification(aborted));
            }
        }
    }

    /// Tells all who wait for a label that there will be none.
    pub(super) fn answer_requests(&mut self, fec: Fec, status: Status) {
        for session in self.sessions.values_mut() {
            if let Some(message_id) = session.upstream.requests.remove(&fec) {
                session.replies.push_back(Outgoing::Notification(answer(status, message_id)));
            }
        }
    }
}

/// What a request comes to if not to a label.
fn answer(status: Status, request_id: u32) -> Notification {
    Notification { request_id: Some(request_id), ..about(status, request_id, kind::LABEL_REQUEST) }
}
