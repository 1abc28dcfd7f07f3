//! Graceful restart (RFC 3478): a peer that has announced that it preserves its forwarding state may restart its LDP
//! without loss of packets. Its labels and addresses stay in use as stale after the loss of the session. They are
//! removed if no session is up in time, if the peer has not preserved its state, or if the new session does not confirm
//! them in time.
//!
//! The labels of this router that the peer holds are not free before that time either, because the peer may still
//! send packets with them.

use super::session::LdpSession;
use super::{LdpEvent, LdpSessionEnd, LdpSpeaker};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use netstage_wire::ldp::message::FtSession;
use netstage_wire::ldp::{Identifier, LdpStatus};
use netstage_wire::mpls::LabelValue;

/// Graceful restart of this router and of its peers. The times are whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GracefulRestart {
    /// Time for which peers are to keep the labels of this router after the loss of the session (FT Reconnect Timeout);
    /// zero if a restart of this router does not preserve its labels.
    pub reconnect: Duration,
    /// Time for which labels preserved over a restart are kept (Recovery Time); zero if this router starts without
    /// them.
    pub recovery: Duration,
    /// Maximum time for which the labels of a peer are kept after the loss of its session (Neighbor Liveness Timer).
    pub neighbor_liveness: Duration,
    /// Maximum time for which a peer with a new session may confirm its labels (Maximum Recovery Timer).
    pub max_recovery: Duration,
}

impl GracefulRestart {
    /// Returns the contents of the FT Session TLV.
    pub(super) fn ft_session(&self) -> FtSession {
        let milliseconds = |time: Duration| u32::try_from(time.0 / MILLISECOND).unwrap_or(u32::MAX);
        FtSession {
            learns_from_network: true,
            reconnect_timeout_ms: milliseconds(self.reconnect),
            recovery_time_ms: milliseconds(self.recovery),
        }
    }
}

const MILLISECOND: u64 = 1_000_000;

/// Peer whose labels are stale.
#[derive(Debug)]
pub(super) struct RestartingPeer {
    /// Time at which stale labels are removed.
    pub expires: Instant,
    reason: LdpSessionEnd,
    /// Labels of this router that the peer held in lost sessions.
    pub held: BTreeSet<LabelValue>,
}

impl LdpSpeaker {
    /// Returns the time for which the labels of a session are kept after its end: none if both routers have not
    /// agreed to it, or if the session was ended on purpose.
    pub(super) fn retention(&self, session: &LdpSession, why: LdpSessionEnd) -> Option<Duration> {
        let own = self.config.restart?;
        let theirs = session.ft_session.filter(|theirs| theirs.learns_from_network)?;
        let is_lost = match why {
            LdpSessionEnd::Lost => true,
            LdpSessionEnd::Sent(status) | LdpSessionEnd::Received(status) => {
                [LdpStatus::KEEPALIVE_EXPIRED, LdpStatus::HOLD_TIMER_EXPIRED].contains(&status)
            }
        };
        let reconnect = Duration(u64::from(theirs.reconnect_timeout_ms) * MILLISECOND);
        let retention = reconnect.min(own.neighbor_liveness);
        (is_lost && session.is_up() && retention > Duration::ZERO).then_some(retention)
    }

    /// Keeps the labels of a peer whose session was lost as stale.
    pub(super) fn begin_restart(
        &mut self,
        (now, retention): (Instant, Duration),
        peer: Identifier,
        reason: LdpSessionEnd,
        held: impl Iterator<Item = LabelValue>,
    ) {
        let expires = now + retention;
        self.table.mark_stale(peer);
        let restarting = self.restarting.entry(peer);
        let restarting = restarting.or_insert(RestartingPeer { expires, reason, held: BTreeSet::new() });
        (restarting.expires, restarting.reason) = (expires, reason);
        for label in held {
            if !restarting.held.insert(label) {
                // Still held once.
                self.table.release(label);
            }
        }
        self.events.push_back(LdpEvent::Restarting { peer, reason, expires });
    }

    /// Handles the new session of a peer: stale labels wait for confirmation if the peer has preserved its forwarding
    /// state.
    pub(super) fn resume(&mut self, now: Instant, peer: Identifier, theirs: Option<FtSession>) {
        let Some(restarting) = self.restarting.get_mut(&peer) else { return };
        let theirs = theirs.filter(|theirs| theirs.learns_from_network);
        let recovery = theirs.map_or(0, |theirs| u64::from(theirs.recovery_time_ms) * MILLISECOND);
        let max = self.config.restart.map_or(Duration::ZERO, |own| own.max_recovery);
        restarting.expires = now + Duration(recovery).min(max);
        self.expire_restarts(now);
    }

    /// Removes the stale labels whose time has passed.
    pub(super) fn expire_restarts(&mut self, now: Instant) {
        let expired = self.restarting.iter().filter(|(_, restarting)| restarting.expires <= now);
        let expired: Vec<Identifier> = expired.map(|(peer, _)| *peer).collect();
        for peer in expired {
            self.end_restart(peer);
        }
    }

    /// Removes the stale labels of a peer.
    pub(super) fn end_restart(&mut self, peer: Identifier) {
        let Some(RestartingPeer { reason, held, .. }) = self.restarting.remove(&peer) else { return };
        for label in held {
            self.events.extend(self.table.release(label).map(|label| LdpEvent::Free { label }));
        }
        let is_up = self.peers().any(|other| other == peer);
        let fecs = if is_up {
            let (mappings, addresses, fecs) = self.table.remove_stale(peer);
            let withdrawn = mappings.into_iter();
            self.events.extend(withdrawn.map(|(fec, label)| LdpEvent::Withdrawn { peer, fec, label }));
            let lost = addresses.into_iter();
            self.events.extend(lost.map(|address| LdpEvent::Address { peer, address, is_advertised: false }));
            fecs
        } else {
            self.events.push_back(LdpEvent::Down { peer, reason });
            self.table.remove_peer(peer)
        };
        for fec in fecs {
            self.refresh(fec);
        }
    }
}
