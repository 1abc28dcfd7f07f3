//! Local repair by bypass LSPs, as the merge point (`repair` is the other side): the previous hop signals an LSP through its
//! bypass LSP with another sender address, because the link between the two routers has failed. The LSP is then kept by the
//! refreshes of both previous hops, the one on the link and the one at the other end of the bypass LSP, and both get the
//! reservation. A Path message over the link ends the use of the bypass.

use super::agenda::Timer;
use super::neighbor::{Slot, is_stale, lifetime};
use super::path::lsp_of;
use super::route::contains;
use super::state::{Backup, LspState, Upstream};
use super::{Lsp, RsvpNeighbor, RsvpSpeaker};
use crate::time::{Duration, Instant};
use core::net::Ipv4Addr;
use netstage_wire::rsvp::message::RsvpMessage;

impl RsvpSpeaker {
    /// Handles a Path message of a repaired LSP. It creates no LSP and changes none; a wrong one is not answered, because
    /// its sender may be any host.
    pub(super) fn handle_backup_path(&mut self, now: Instant, from: RsvpNeighbor, message: &RsvpMessage<'_>) {
        let (Some(named), Some(hop)) = (lsp_of(message), message.hop) else { return };
        let Some(lsp) = self.merged_lsp(named).or_else(|| self.protected_lsp(named, from.address)) else {
            self.counters.wrong_backup += 1;
            return;
        };
        let from = RsvpNeighbor::remote(from.address);
        let before = self.lsps.get(&lsp).and_then(|state| state.backup).map(|backup| backup.upstream);
        match before {
            Some(before) if before.neighbor != from => {
                self.counters.wrong_backup += 1;
                return;
            }
            Some(before) if is_stale(before.message_id, message.id) => {
                self.counters.stale += 1;
                return;
            }
            Some(_) => {}
            None if self.is_within_limits(from) => {
                self.use_neighbor(now, from, true, Some(message.reduces_refreshes));
            }
            None => return,
        }
        let lifetime = lifetime(Duration::from_millis(message.refresh_ms.unwrap_or(0).into()));
        let upstream = Upstream { neighbor: from, handle: hop.interface, lifetime, message_id: message.id };
        let last = before.and_then(|before| before.message_id);
        self.index(from, Slot::Path(named), last, message.id);
        self.agenda.set(Timer::PathCleanup(named), now + lifetime);
        if let Some(state) = self.lsps.get_mut(&lsp) {
            state.backup = Some(Backup { sender: named.sender, upstream });
        }
        if before.is_none_or(|before| before.handle != upstream.handle) {
            self.send_resv_to(now, lsp, named, upstream);
        }
    }

    /// Returns whether a Path message from a neighbor on a link is that of a repaired LSP, because the router ID of its sender
    /// is an address on this link.
    pub(super) fn is_backup(&self, named: Lsp) -> bool {
        let is_previous = |state: &LspState| {
            state.upstream.is_some_and(|upstream| upstream.neighbor.address == named.sender.address)
        };
        let is_protected =
            |(lsp, state): (Lsp, &LspState)| lsp.sender.lsp == named.sender.lsp && is_previous(state);
        let is_other = !self.lsps.contains_key(&named);
        is_other && (self.merged_lsp(named).is_some() || self.senders(named.session).any(is_protected))
    }

    /// Returns the LSP of a message from a previous hop.
    pub(super) fn lsp_from_upstream(&self, named: Lsp) -> Option<Lsp> {
        if self.lsps.contains_key(&named) { Some(named) } else { self.merged_lsp(named) }
    }

    /// Returns the LSP that a previous hop has repaired, by the sender in the messages of the repaired LSP.
    pub(super) fn merged_lsp(&self, named: Lsp) -> Option<Lsp> {
        let is_merged = |state: &LspState| state.backup.is_some_and(|backup| backup.sender == named.sender);
        self.senders(named.session).find(|(_, state)| is_merged(state)).map(|(lsp, _)| lsp)
    }

    /// Returns the LSP that the router at `from` may signal with another sender address: one with the same LSP ID that
    /// asks for protection, and whose previous hop is not known to be another router.
    fn protected_lsp(&self, named: Lsp, from: Ipv4Addr) -> Option<Lsp> {
        let is_other = |previous: RsvpNeighbor, address: Ipv4Addr| {
            let interface = self.interfaces.get(&previous.interface);
            let is_on_link = interface.is_some_and(|own| contains(own.address, own.length, address));
            is_on_link && address != previous.address
        };
        let may_be_repaired = |(lsp, state): &(Lsp, &LspState)| {
            let is_same = lsp.sender.lsp == named.sender.lsp && lsp.sender.address != named.sender.address;
            let is_possible = state.upstream.is_some_and(|upstream| {
                ![from, named.sender.address].iter().any(|address| is_other(upstream.neighbor, *address))
            });
            is_same && is_possible && state.path.is_protected() && state.backup.is_none()
        };
        let is_previous = |state: &LspState| {
            state.upstream.is_some_and(|upstream| upstream.neighbor.address == named.sender.address)
        };
        let candidates = || self.senders(named.session).filter(may_be_repaired);
        let exact = candidates().find(|(_, state)| is_previous(state));
        let found = exact.or_else(|| candidates().next()).map(|(lsp, _)| lsp);
        found.filter(|_| !self.lsps.contains_key(&named))
    }

    /// Forgets the previous hop at the other end of the bypass LSP.
    pub(super) fn end_backup(&mut self, now: Instant, lsp: Lsp) {
        let Some(backup) = self.lsps.get_mut(&lsp).and_then(|state| state.backup.take()) else { return };
        self.forget(now, backup.upstream.neighbor, Slot::Resv(Lsp { sender: backup.sender, ..lsp }));
        self.release_backup(lsp, backup);
    }

    pub(super) fn release_backup(&mut self, lsp: Lsp, backup: Backup) {
        let (named, upstream) = (Lsp { sender: backup.sender, ..lsp }, backup.upstream);
        self.agenda.cancel(Timer::PathCleanup(named));
        self.index(upstream.neighbor, Slot::Path(named), upstream.message_id, None);
        self.release_neighbor(upstream.neighbor, true);
    }

    /// Handles missing refreshes of one of the previous hops. The LSP lasts while the other one refreshes it.
    pub(super) fn path_timeout(&mut self, now: Instant, named: Lsp) {
        let (lsp, has_other) = match (self.lsps.get(&named), self.merged_lsp(named)) {
            (Some(state), _) => (named, state.backup.is_some()),
            (None, Some(lsp)) => (lsp, self.agenda.is_running(Timer::PathCleanup(lsp))),
            (None, None) => return,
        };
        self.counters.path_timeouts += u64::from(!has_other);
        if !has_other {
            self.remove_path(now, lsp, true, true);
        } else if lsp != named {
            self.end_backup(now, lsp);
        }
    }
}
