//! Connection of a session: expected messages, and the hold and keepalive timers (RFC 4271 sections 8.2.2
//! and 10).

use super::{BgpEvent, BgpState};
use crate::bgp::attributes::AttributeContext;
use crate::bgp::message::{self, MessageParts};
use crate::bgp::nlri::BgpFamily;
use crate::bgp::notification::{Notification, code, subcode};
use crate::bgp::open::{NegotiatedParameters, OpenParameters, ReceivedOpen};
use crate::bgp::update::{self, Update};
use netstage_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Hold time until the peer's OPEN arrives, as suggested by RFC 4271 section 8.2.2.
const FIRST_HOLD: Duration = Duration::from_secs(240);
/// Number of keepalives per hold time (RFC 4271 section 10).
const KEEPALIVES: u64 = 3;

/// Progress of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    OpenSent,
    OpenConfirm(NegotiatedParameters),
    Established(NegotiatedParameters),
}

/// Result of handling a message.
#[derive(Debug)]
pub(super) enum MessageResult {
    Stay,
    Opened(NegotiatedParameters),
    Established(NegotiatedParameters),
    /// Local error, to be sent to the peer.
    Failed(Notification),
    /// NOTIFICATION received from the peer.
    Ended(Notification),
}

#[derive(Debug)]
pub(super) struct BgpConnection {
    phase: ConnectionPhase,
    /// Bytes of an incomplete message.
    input: Vec<u8>,
    hold_at: Instant,
    keepalive_at: Instant,
}

impl BgpConnection {
    /// Creates a connection whose OPEN has been sent.
    pub(super) fn new(now: Instant) -> BgpConnection {
        BgpConnection {
            phase: ConnectionPhase::OpenSent,
            input: Vec::new(),
            hold_at: now + FIRST_HOLD,
            keepalive_at: Instant::NEVER,
        }
    }

    pub(super) fn phase(&self) -> &ConnectionPhase {
        &self.phase
    }

    pub(super) fn state(&self) -> BgpState {
        match self.phase {
            ConnectionPhase::OpenSent => BgpState::OpenSent,
            ConnectionPhase::OpenConfirm(_) => BgpState::OpenConfirm,
            ConnectionPhase::Established(_) => BgpState::Established,
        }
    }

    /// Takes the bytes left over from earlier, extended by these.
    pub(super) fn take_input(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        input
    }

    /// Stores the bytes from `offset` on for later.
    pub(super) fn keep_input(&mut self, mut input: Vec<u8>, offset: usize) {
        input.drain(..offset);
        self.input = input;
    }

    pub(super) fn hold_at(&self) -> Instant {
        self.hold_at
    }

    pub(super) fn timeout(&self) -> Instant {
        self.hold_at.min(self.keepalive_at)
    }

    /// Accepts the peer's OPEN and returns the KEEPALIVE that confirms it.
    pub(super) fn confirm(&mut self, now: Instant, negotiated: NegotiatedParameters) -> Vec<u8> {
        self.phase = ConnectionPhase::OpenConfirm(negotiated);
        self.restart_hold_timer(now);
        self.handle_sent(now);
        keepalive()
    }

    /// Restarts the keepalive timer after a message was sent.
    pub(super) fn handle_sent(&mut self, now: Instant) {
        self.keepalive_at = match self.hold_time() {
            Some(hold_time) => now + hold_time / KEEPALIVES,
            None => Instant::NEVER,
        };
    }

    /// Returns a KEEPALIVE if one is due.
    pub(super) fn keepalive(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.keepalive_at > now {
            return None;
        }
        self.handle_sent(now);
        Some(keepalive())
    }

    pub(super) fn handle_frame(
        &mut self,
        now: Instant,
        frame: MessageParts<'_>,
        identity: &OpenParameters,
        events: &mut VecDeque<BgpEvent>,
    ) -> MessageResult {
        if frame.kind == message::NOTIFICATION {
            return MessageResult::Ended(Notification::read(frame.body).expect("its length was checked"));
        }
        let unexpected =
            |subcode| MessageResult::Failed(Notification::with(code::STATE_MACHINE, subcode, &[frame.kind]));
        match (&self.phase, frame.kind) {
            (ConnectionPhase::OpenSent, message::OPEN) => {
                match ReceivedOpen::read(frame.body).and_then(|open| identity.negotiate(&open)) {
                    Ok(negotiated) => MessageResult::Opened(negotiated),
                    Err(notification) => MessageResult::Failed(notification),
                }
            }
            (ConnectionPhase::OpenSent, _) => unexpected(subcode::IN_OPEN_SENT),
            (ConnectionPhase::OpenConfirm(negotiated), message::KEEPALIVE) => {
                let negotiated = negotiated.clone();
                self.phase = ConnectionPhase::Established(negotiated.clone());
                self.restart_hold_timer(now);
                MessageResult::Established(negotiated)
            }
            (ConnectionPhase::OpenConfirm(_), _) => unexpected(subcode::IN_OPEN_CONFIRM),
            (ConnectionPhase::Established(_), message::OPEN) => unexpected(subcode::IN_ESTABLISHED),
            (ConnectionPhase::Established(negotiated), kind) => {
                let read = match kind {
                    message::UPDATE => handle_update(frame.body, negotiated, events),
                    message::ROUTE_REFRESH => handle_route_refresh(frame.body, negotiated, events),
                    _ => Ok(()),
                };
                self.restart_hold_timer(now);
                read.map_or_else(MessageResult::Failed, |()| MessageResult::Stay)
            }
        }
    }

    /// Restarts the hold timer after a message from the peer.
    fn restart_hold_timer(&mut self, now: Instant) {
        self.hold_at = self.hold_time().map_or(Instant::NEVER, |hold_time| now + hold_time);
    }

    fn hold_time(&self) -> Option<Duration> {
        match &self.phase {
            ConnectionPhase::OpenSent => None,
            ConnectionPhase::OpenConfirm(negotiated) | ConnectionPhase::Established(negotiated) => {
                Some(negotiated.hold_time).filter(|hold_time| *hold_time > Duration::ZERO)
            }
        }
    }
}

fn keepalive() -> Vec<u8> {
    let mut message = Vec::new();
    message::write(message::KEEPALIVE, &[], &mut message);
    message
}

fn handle_update(
    body: &[u8],
    negotiated: &NegotiatedParameters,
    events: &mut VecDeque<BgpEvent>,
) -> Result<(), Notification> {
    if let Some(family) = update::end_of_rib(body) {
        if negotiated.families.contains(&family) {
            events.push_back(BgpEvent::EndOfRib(family));
        }
        return Ok(());
    }
    let source = AttributeContext {
        four_octet_as: negotiated.four_octet_as,
        is_internal: negotiated.is_internal,
        dump: None,
    };
    let update = Update::read(body, source, |family| negotiated.families.contains(&family))?;
    events.push_back(BgpEvent::Update(update));
    Ok(())
}

fn handle_route_refresh(
    body: &[u8],
    negotiated: &NegotiatedParameters,
    events: &mut VecDeque<BgpEvent>,
) -> Result<(), Notification> {
    let [high, low, subtype, safi] = *body else {
        // RFC 7313 section 5. Longer messages carry outbound route filters, which were not offered.
        return Err(Notification::with(code::ROUTE_REFRESH, 1, body));
    };
    let family = BgpFamily::from_codes(u16::from_be_bytes([high, low]), safi);
    // The markers of enhanced route refresh (RFC 7313 section 3.2) were not offered either.
    if let Some(family) = family.filter(|family| subtype == 0 && negotiated.families.contains(family)) {
        events.push_back(BgpEvent::RefreshRequested(family));
    }
    Ok(())
}
