//! Receiving from a session (RFC 5036 sections 3.1 and 3.5): splits the byte stream into PDUs, decodes
//! their messages, and answers errors or ends the session according to section 3.5.1.

use super::{LdpConnection, LdpEvent, LdpSessionEnd, LdpSpeaker};
use crate::time::Instant;
use netstage_wire::ldp::message::{LdpMessage, Notification, kind};
use netstage_wire::ldp::write::Outgoing;
use netstage_wire::ldp::{Identifier, LdpStatus, Pdu, RawMessage};

/// Maximum number of replies pending for a peer that does not read them.
const MAX_REPLIES: usize = 65_536;

impl LdpSpeaker {
    /// Handles received bytes of a connection.
    pub fn handle_bytes(&mut self, now: Instant, connection: LdpConnection, bytes: &[u8]) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let mut input = core::mem::take(&mut session.input);
        input.extend_from_slice(bytes);
        let mut taken = 0;
        loop {
            match self.take_pdu(now, connection, &input[taken..]) {
                Ok(0) => break,
                Ok(length) => taken += length,
                Err((why, about)) => return self.end(now, connection, why, about),
            }
        }
        input.drain(..taken);
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.input = input;
        }
    }

    /// Processes the PDU at the beginning of a stream and returns its length; zero if it is incomplete or
    /// the hello of the peer is still missing.
    fn take_pdu(
        &mut self,
        now: Instant,
        connection: LdpConnection,
        stream: &[u8],
    ) -> Result<usize, (LdpSessionEnd, (u32, u16))> {
        let fatal = |status| (LdpSessionEnd::Sent(status), (0, 0));
        let Some(session) = self.sessions.get(&connection) else { return Ok(0) };
        let most_bytes = session.max_pdu_length;
        let Some(length) = Pdu::length(stream, most_bytes).map_err(fatal)? else { return Ok(0) };
        let Some(bytes) = stream.get(..length) else { return Ok(0) };
        let pdu = Pdu::new(bytes, most_bytes).map_err(fatal)?;
        match session.peer {
            Some(peer) if peer == pdu.sender => {}
            Some(_) => return Err(fatal(LdpStatus::BAD_IDENTIFIER)),
            None if self.transport(pdu.sender) == Some(session.remote) => {
                self.identify(now, connection, pdu.sender).map_err(fatal)?;
            }
            None if stream.len() <= most_bytes => return Ok(0),
            None => return Err(fatal(LdpStatus::NO_HELLO)),
        }
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.restart_keepalive_timer(now);
        }
        for raw in pdu.messages() {
            let raw = raw.map_err(fatal)?;
            let about = (raw.id, raw.kind);
            self.take_message(now, connection, pdu.sender, &raw).map_err(|why| (why, about))?;
        }
        Ok(length)
    }

    /// Processes a message. An error that does not end the session is answered with a notification.
    fn take_message(
        &mut self,
        now: Instant,
        connection: LdpConnection,
        peer: Identifier,
        raw: &RawMessage<'_>,
    ) -> Result<(), LdpSessionEnd> {
        let is_up = self.sessions.get(&connection).is_some_and(|session| session.is_up());
        let message = match LdpMessage::new(raw) {
            Ok(Some(LdpMessage::Notification(Notification { status, .. }))) if status.is_fatal() => {
                return Err(LdpSessionEnd::Received(status));
            }
            message => message,
        };
        let result = message.and_then(|message| match message {
            None => Ok(()),
            Some(LdpMessage::Initialization(theirs)) => self.take_initialization(now, connection, &theirs),
            Some(LdpMessage::KeepAlive) => self.take_keepalive(now, connection),
            Some(LdpMessage::Notification(notification)) => {
                self.events.extend(is_up.then_some(LdpEvent::Notified { peer, status: notification.status }));
                Ok(())
            }
            // Before the session is operational, any other message terminates it (section 2.5.4).
            Some(_) if !is_up => Err(LdpStatus::SHUTDOWN),
            Some(message) => self.handle_label_message(connection, peer, raw.id, &message),
        });
        match result {
            Err(status) if status.is_fatal() || !is_up => return Err(LdpSessionEnd::Sent(status)),
            // An invalid notification is not answered.
            Err(status) if raw.kind != kind::NOTIFICATION => {
                self.reply(connection, Outgoing::Notification(notification_about(status, raw.id, raw.kind)));
            }
            Ok(()) | Err(_) => {}
        }
        let unread = self.sessions.get(&connection).map_or(0, |session| session.replies.len());
        if unread > MAX_REPLIES { Err(LdpSessionEnd::Sent(LdpStatus::INTERNAL_ERROR)) } else { Ok(()) }
    }

    pub(super) fn reply(&mut self, connection: LdpConnection, reply: Outgoing<'static>) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.replies.push_back(reply);
        }
    }
}

/// Creates a notification about a message.
pub(super) fn notification_about(status: LdpStatus, message_id: u32, message_kind: u16) -> Notification {
    Notification { status, message_id, message_kind, request_id: None }
}
