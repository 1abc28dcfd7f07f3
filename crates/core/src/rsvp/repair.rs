//! Local repair by bypass LSPs (facility backup of RFC 4090, link protection): when a link fails, the router before it keeps
//! the LSPs whose ingress asks for protection, and reports the repair. Their packets take the bypass LSP to the next hop,
//! which the caller's forwarding does for all packets to that neighbor. The router behind the link keeps the LSPs, too. The
//! ingress sets up another LSP, and uses it instead of the repaired one (make before break).
//!
//! The repaired LSP is not signaled through the bypass LSP: it ends when its state is not refreshed over the link in time.

use super::{Lsp, RsvpNeighbor, RsvpSpeaker};
use crate::time::Instant;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::rsvp::{LOCALLY_REPAIRED, error_code};

impl RsvpSpeaker {
    /// Sets whether packets to a neighbor take a bypass LSP while it or the link to it has failed. Without it, the repaired
    /// LSPs through the neighbor end.
    pub fn set_bypass(&mut self, now: Instant, neighbor: Ipv4Addr, is_established: bool) {
        if is_established {
            self.bypassed.insert(neighbor);
        } else if self.bypassed.remove(&neighbor) {
            self.repaired(|next| next.address == neighbor).into_iter().for_each(|lsp| self.abandon(now, lsp));
        }
    }

    /// Keeps an LSP whose previous or next hop has failed. Returns `false` if it has to end.
    pub(super) fn repair(&mut self, now: Instant, lsp: Lsp, failed: RsvpNeighbor) -> bool {
        let Some(state) = self.lsps.get_mut(&lsp) else { return false };
        if !state.path.is_protected() || state.reservation.is_none() {
            return false;
        }
        match &mut state.downstream {
            Some(next) if next.neighbor == failed => {
                if !self.bypassed.contains(&failed.address) {
                    return false;
                }
                if !core::mem::replace(&mut next.is_repaired, true) {
                    self.report_path(now, lsp, (error_code::NOTIFY, LOCALLY_REPAIRED));
                }
            }
            // The previous hop may have a bypass LSP.
            _ => {}
        }
        true
    }

    /// Signals repaired LSPs again whose next hops work again, and may have lost them.
    pub(super) fn resume_paths(&mut self, now: Instant, works: impl Fn(RsvpNeighbor) -> bool) {
        for lsp in self.repaired(works) {
            if let Some(next) = self.lsps.get_mut(&lsp).and_then(|state| state.downstream.as_mut()) {
                next.is_repaired = false;
            }
            self.send_path(now, lsp);
        }
    }

    /// Returns the repaired LSPs with these next hops.
    fn repaired(&self, selects: impl Fn(RsvpNeighbor) -> bool) -> Vec<Lsp> {
        let of = |(lsp, state): (&Lsp, &super::state::LspState)| {
            let next = state.downstream.as_ref()?;
            (next.is_repaired && selects(next.neighbor)).then_some(*lsp)
        };
        self.lsps.iter().filter_map(of).collect()
    }
}
