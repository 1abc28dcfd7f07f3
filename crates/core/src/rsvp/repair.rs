//! Local repair by bypass LSPs (facility backup of RFC 4090, link protection), as the point of local repair: when a link
//! fails, the router before it keeps the LSPs whose ingress asks for protection, and reports the repair. Their packets take
//! the bypass LSP to the next hop, the merge point, which the caller's forwarding does for all packets to that neighbor. The
//! ingress sets up another LSP if it can, and uses it instead of the repaired one (make before break).
//!
//! The repaired LSP is signaled between the two routers until the link works again. In these messages, the sender is the
//! address of the point of local repair on the failed link (sender template-specific method, RFC 4090 section 6.4.3). The
//! messages are packets between the router IDs, without router alert option, so that other routers only forward them. A
//! Path message begins on the way of the bypass LSP. The other side is `merge`.

use super::neighbor::Slot;
use super::state::{Downstream, LspState, Repair};
use super::{Lsp, RsvpBypass, RsvpNeighbor, RsvpSpeaker};
use crate::time::Instant;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::rsvp::object::{Sender, Session};
use netstage_wire::rsvp::{LOCALLY_REPAIRED, error_code};

impl RsvpSpeaker {
    /// Sets the bypass LSP that packets to a neighbor take while it or the link to it has failed. Without it, the repaired
    /// LSPs through the neighbor end.
    pub fn set_bypass(&mut self, now: Instant, neighbor: Ipv4Addr, bypass: Option<RsvpBypass>) {
        let before = match bypass {
            Some(bypass) => self.bypasses.insert(neighbor, bypass),
            None => self.bypasses.remove(&neighbor),
        };
        let end = |bypass: RsvpBypass| bypass.merge_point;
        if before.is_some_and(|before| bypass.map(end) != Some(before.merge_point)) {
            self.repaired(|next| next.address == neighbor).into_iter().for_each(|lsp| self.abandon(now, lsp));
        }
    }

    /// Keeps an LSP whose previous or next hop has failed. Returns `false` if it has to end.
    pub(super) fn repair(&mut self, now: Instant, lsp: Lsp, failed: RsvpNeighbor) -> bool {
        let Some(state) = self.lsps.get(&lsp) else { return false };
        let next = state.downstream.as_ref().filter(|next| next.neighbor == failed);
        let is_kept = if next.is_some() { state.is_repaired() } else { state.backup.is_some() };
        if is_kept {
            return true;
        }
        if !state.path.is_protected() || state.reservation.is_none() {
            return false;
        }
        // The previous hop may have a bypass LSP.
        let Some(next) = next else { return true };
        let Some(bypass) = self.bypasses.get(&failed.address) else { return false };
        let merge_point = RsvpNeighbor::remote(bypass.merge_point);
        let Some(sender) = self.backup_sender(lsp, next) else { return false };
        self.forget(now, failed, Slot::Path(lsp));
        let reduces = self.neighbors.get(&failed).map(|neighbor| neighbor.reduces_refreshes);
        self.use_neighbor(now, merge_point, false, reduces);
        if let Some(next) = self.lsps.get_mut(&lsp).and_then(|state| state.downstream.as_mut()) {
            next.repair = Some(Repair { sender, merge_point, message_id: None });
        }
        self.report_path(now, lsp, (error_code::NOTIFY, LOCALLY_REPAIRED));
        self.send_path(now, lsp);
        true
    }

    /// Returns the sender in the messages of a repaired LSP. It differs from that of the ingress, which may be this router.
    fn backup_sender(&self, lsp: Lsp, next: &Downstream) -> Option<Sender> {
        let own = core::iter::once(next.address).chain(self.addresses());
        let mut senders = own.map(|address| Sender { address, ..lsp.sender });
        senders.find(|sender| self.lsp_from_downstream(Lsp { sender: *sender, ..lsp }).is_none())
    }

    /// Signals repaired LSPs over the link again whose next hops work again, and may have lost them.
    pub(super) fn resume_paths(&mut self, now: Instant, works: impl Fn(RsvpNeighbor) -> bool) {
        for lsp in self.repaired(works) {
            let next = self.lsps.get_mut(&lsp).and_then(|state| state.downstream.as_mut());
            if let Some(repair) = next.and_then(|next| next.repair.take()) {
                self.end_repair(now, lsp, repair);
            }
            // The merge point forgets the other previous hop with this message.
            self.send_path(now, lsp);
        }
    }

    /// Ends the refreshes of a repaired LSP.
    pub(super) fn end_repair(&mut self, now: Instant, lsp: Lsp, repair: Repair) {
        let backup = Lsp { sender: repair.sender, ..lsp };
        self.forget(now, repair.merge_point, Slot::Path(backup));
        self.index(repair.merge_point, Slot::Resv(backup), repair.message_id, None);
        self.release_neighbor(repair.merge_point, false);
    }

    /// Returns the LSP of a message from a next hop, and whether the message is that of the repaired LSP.
    pub(super) fn lsp_from_downstream(&self, named: Lsp) -> Option<(Lsp, bool)> {
        if self.lsps.contains_key(&named) {
            return Some((named, false));
        }
        let is_repaired = |state: &LspState| {
            let repair = state.downstream.as_ref().and_then(|next| next.repair);
            repair.is_some_and(|repair| repair.sender == named.sender)
        };
        self.senders(named.session).find(|(_, state)| is_repaired(state)).map(|(lsp, _)| (lsp, true))
    }

    /// Iterates over the LSPs of a session.
    pub(super) fn senders(&self, session: Session) -> impl Iterator<Item = (Lsp, &LspState)> {
        let first = Lsp { session, sender: Sender { address: Ipv4Addr::UNSPECIFIED, lsp: 0 } };
        let from = self.lsps.range(first..).map(|(lsp, state)| (*lsp, state));
        from.take_while(move |(lsp, _)| lsp.session == session)
    }

    /// Returns the repaired LSPs with these next hops.
    fn repaired(&self, selects: impl Fn(RsvpNeighbor) -> bool) -> Vec<Lsp> {
        let of = |(lsp, state): (&Lsp, &LspState)| {
            let next = state.downstream.as_ref()?;
            (next.repair.is_some() && selects(next.neighbor)).then_some(*lsp)
        };
        self.lsps.iter().filter_map(of).collect()
    }
}
