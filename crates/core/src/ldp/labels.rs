//! Addresses and labels received from a peer (RFC 5036 sections 3.5.5 to 3.5.11 and appendix A.1). All are
//! kept up to a limit, and a label that is not kept is released. A withdrawal is answered by a release, a
//! request by a mapping.

use super::receive::notification_about;
use super::table::RemoteMapping;
use super::{LdpConnection, LdpEvent, LdpSpeaker};
use alloc::vec::Vec;
use core::net::IpAddr;
use netstage_wire::ldp::message::{
    Abort, Addresses, Fec, LabelRequestMessage, LdpMessage, Mapping, Notification, Removal,
};
use netstage_wire::ldp::message::{Routers, kind};
use netstage_wire::ldp::write::Outgoing;
use netstage_wire::ldp::{Identifier, LdpStatus};
use netstage_wire::mpls::LabelValue;

/// Maximum number of addresses kept per peer.
const MAX_ADDRESSES: usize = 16_384;

impl LdpSpeaker {
    pub(super) fn handle_label_message(
        &mut self,
        connection: LdpConnection,
        peer: Identifier,
        message_id: u32,
        message: &LdpMessage<'_>,
    ) -> Result<(), LdpStatus> {
        match message {
            LdpMessage::Address(addresses) => self.take_addresses(connection, peer, addresses),
            LdpMessage::AddressWithdraw(addresses) => self.take_address_withdraw(peer, addresses),
            LdpMessage::LabelMapping(mapping) => {
                return self.take_mapping(connection, peer, message_id, mapping);
            }
            LdpMessage::LabelWithdraw(removal) => self.take_withdraw(connection, peer, removal),
            LdpMessage::LabelRelease(removal) => self.take_release(connection, removal),
            LdpMessage::LabelRequest(request) => {
                return self.take_request(connection, peer, message_id, request);
            }
            LdpMessage::LabelAbortRequest(abort) => self.take_abort(connection, abort),
            // A hello is not valid in a session.
            LdpMessage::Hello(_) => return Err(LdpStatus::SHUTDOWN),
            LdpMessage::Notification(_) | LdpMessage::Initialization(_) | LdpMessage::KeepAlive => {}
        }
        Ok(())
    }

    fn take_addresses(&mut self, connection: LdpConnection, peer: Identifier, addresses: &Addresses<'_>) {
        for address in addresses.iter() {
            if self.table.addresses_count(peer) >= MAX_ADDRESSES {
                return self.report_full(connection, peer);
            }
            if self.table.add_address(peer, address) {
                self.events.push_back(LdpEvent::Address { peer, address, is_advertised: true });
                self.refresh_via(address);
            }
        }
    }

    fn take_address_withdraw(&mut self, peer: Identifier, addresses: &Addresses<'_>) {
        for address in addresses.iter() {
            if self.table.remove_address(peer, address) {
                self.events.push_back(LdpEvent::Address { peer, address, is_advertised: false });
                self.refresh_via(address);
            }
        }
    }

    fn refresh_via(&mut self, next_hop: IpAddr) {
        for fec in self.table.prefixes_via(next_hop) {
            self.refresh(fec);
        }
    }

    /// Refreshes a prefix after a change of a peer's mapping, if the peer is a next hop.
    fn refresh_from(&mut self, peer: Identifier, fec: Fec) {
        if self.table.is_via(fec, peer) {
            self.refresh(fec);
        }
    }

    /// Reports once that a peer has exceeded a limit.
    fn report_full(&mut self, connection: LdpConnection, peer: Identifier) {
        if let Some(session) = self.sessions.get_mut(&connection)
            && !core::mem::replace(&mut session.is_full, true)
        {
            self.events.push_back(LdpEvent::Full { peer });
        }
    }

    fn take_mapping(
        &mut self,
        connection: LdpConnection,
        peer: Identifier,
        message_id: u32,
        mapping: &Mapping<'_>,
    ) -> Result<(), LdpStatus> {
        let label = mapping.label;
        let is_null =
            [LabelValue::IPV4_EXPLICIT_NULL, LabelValue::IPV6_EXPLICIT_NULL, LabelValue::IMPLICIT_NULL]
                .contains(&label);
        if label.is_reserved() && !is_null {
            return Err(LdpStatus::MALFORMED_TLV);
        }
        let is_loop = self.is_loop(mapping.hops, &mapping.path);
        for fec in mapping.fecs.iter() {
            if fec == Fec::Wildcard {
                return Err(LdpStatus::MALFORMED_TLV);
            }
            if is_loop {
                // A mapping with a loop must not be used (section 2.8.2).
                self.forget_mapping(peer, fec);
                self.reply(connection, Outgoing::LabelRelease(fec, Some(label)));
                let notification =
                    notification_about(LdpStatus::LOOP_DETECTED, message_id, kind::LABEL_MAPPING);
                self.reply(connection, Outgoing::Notification(notification));
                continue;
            }
            let is_new = self.table.mapping(peer, fec).is_none();
            if is_new && self.table.mappings_count(peer) >= self.config.max_bindings {
                self.reply(connection, Outgoing::LabelRelease(fec, Some(label)));
                self.report_full(connection, peer);
                continue;
            }
            // Paths are needed for loop detection only.
            let path = match self.config.loop_detection {
                Some(_) => mapping.path.iter().collect(),
                None => [].into(),
            };
            // A restarted peer does not know its stale labels any more.
            let was_stale = self.table.is_stale(peer, fec);
            let previous = self.table.insert(peer, fec, RemoteMapping { label, hops: mapping.hops, path });
            let previous = previous.map(|previous| previous.label);
            if previous != Some(label) {
                let release = previous.filter(|_| !was_stale);
                let release = release.map(|previous| Outgoing::LabelRelease(fec, Some(previous)));
                release.into_iter().for_each(|release| self.reply(connection, release));
                self.events.push_back(LdpEvent::Mapping { peer, fec, label });
            }
            self.refresh_from(peer, fec);
        }
        Ok(())
    }

    /// Returns whether a message has passed this router before, or too many routers (section 2.8).
    fn is_loop(&self, hops: Option<u8>, path: &Routers<'_>) -> bool {
        let Some(max_hops) = self.config.loop_detection else { return false };
        let is_long = hops.is_some_and(|hops| hops > max_hops) || path.iter().len() > usize::from(max_hops);
        is_long || path.iter().any(|router| router == self.config.router)
    }

    fn forget_mapping(&mut self, peer: Identifier, fec: Fec) {
        if let Some(RemoteMapping { label, .. }) = self.table.remove(peer, fec) {
            self.events.push_back(LdpEvent::Withdrawn { peer, fec, label });
            self.refresh_from(peer, fec);
        }
    }

    fn take_withdraw(&mut self, connection: LdpConnection, peer: Identifier, removal: &Removal<'_>) {
        for fec in removal.fecs.iter() {
            let mappings: Vec<(Fec, LabelValue)> = match fec {
                Fec::Wildcard => self.table.mappings_of(peer).collect(),
                fec => self.table.mapping(peer, fec).map(|remote| (fec, remote.label)).into_iter().collect(),
            };
            for (fec, known) in mappings {
                if removal.label.is_none_or(|label| label == known) {
                    self.forget_mapping(peer, fec);
                }
            }
            self.reply(connection, Outgoing::LabelRelease(fec, removal.label));
        }
    }

    fn take_release(&mut self, connection: LdpConnection, removal: &Removal<'_>) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let Some(peer) = session.peer else { return };
        for fec in removal.fecs.iter() {
            let fecs = match fec {
                Fec::Wildcard => session.upstream.held(removal.label),
                fec => [fec].into(),
            };
            for fec in fecs {
                for label in session.upstream.release(fec, removal.label) {
                    self.events.push_back(LdpEvent::Released { peer, fec, label });
                    self.events.extend(self.table.release(label).map(|label| LdpEvent::Free { label }));
                }
            }
        }
    }

    fn take_request(
        &mut self,
        connection: LdpConnection,
        peer: Identifier,
        message_id: u32,
        request: &LabelRequestMessage<'_>,
    ) -> Result<(), LdpStatus> {
        let is_loop = self.is_loop(request.hops, &request.path);
        for fec in request.fecs.iter() {
            let error = match self.table.binding(fec) {
                _ if fec == Fec::Wildcard => return Err(LdpStatus::MALFORMED_TLV),
                None => Some(LdpStatus::NO_ROUTE),
                _ if is_loop => Some(LdpStatus::LOOP_DETECTED),
                _ if self.table.is_via(fec, peer) => Some(LdpStatus::LOOP_DETECTED),
                Some(_) => None,
            };
            let Some(session) = self.sessions.get_mut(&connection) else { return Ok(()) };
            match error {
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

    fn take_abort(&mut self, connection: LdpConnection, abort: &Abort<'_>) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        for fec in abort.fecs.iter() {
            // An answered request is not aborted; the peer releases the label.
            if session.upstream.requests.get(&fec) == Some(&abort.request_id) {
                session.upstream.requests.remove(&fec);
                let aborted = answer(LdpStatus::REQUEST_ABORTED, abort.request_id);
                session.replies.push_back(Outgoing::Notification(aborted));
            }
        }
    }

    /// Answers all pending requests for a prefix with an error.
    pub(super) fn answer_requests(&mut self, fec: Fec, status: LdpStatus) {
        for session in self.sessions.values_mut() {
            if let Some(message_id) = session.upstream.requests.remove(&fec) {
                session.replies.push_back(Outgoing::Notification(answer(status, message_id)));
            }
        }
    }
}

/// Creates a notification that answers a label request.
fn answer(status: LdpStatus, request_id: u32) -> Notification {
    Notification {
        request_id: Some(request_id),
        ..notification_about(status, request_id, kind::LABEL_REQUEST)
    }
}
