//! Admission control: bandwidth of each outgoing link (RFC 2205 section 2.4). Senders of a session with the
//! shared-explicit style share the maximum of their reservations (RFC 3209 section 2.4.3), so that an LSP and its
//! replacement are not counted twice.

use super::Lsp;
use alloc::collections::BTreeMap;
use netstage_wire::rsvp::object::{Sender, Session, Style};

/// Reservations that share bandwidth: all senders of a session, or one sender.
type Share = (Session, Option<Sender>);

/// Returns the share of an LSP.
fn share(lsp: Lsp, style: Style) -> Share {
    (lsp.session, (style == Style::FixedFilter).then_some(lsp.sender))
}

#[derive(Clone, Debug, Default)]
pub(super) struct LinkAdmission {
    /// Bandwidth available to reservations, bits per second; `None` for a link without admission control.
    capacity_bps: Option<u64>,
    reserved_bps: u64,
    shares: BTreeMap<Share, BTreeMap<Lsp, u64>>,
}

impl LinkAdmission {
    /// Changes the bandwidth available to reservations. Existing reservations stay.
    pub fn set_capacity(&mut self, capacity_bps: Option<u64>) {
        self.capacity_bps = capacity_bps;
    }

    /// Bandwidth of all reservations, bits per second.
    pub fn reserved_bps(&self) -> u64 {
        self.reserved_bps
    }

    /// Number of LSPs with a reservation.
    pub fn reservations(&self) -> usize {
        self.shares.values().map(BTreeMap::len).sum()
    }

    /// Returns whether the link can carry a new or changed reservation. A reservation that does not grow is always
    /// admitted.
    pub fn admits(&self, lsp: Lsp, style: Style, rate_bps: u64) -> bool {
        let members = self.shares.get(&share(lsp, style));
        let shared = |without: Option<Lsp>| {
            let rates = members.into_iter().flatten().filter(|(member, _)| Some(**member) != without);
            rates.map(|(_, rate)| *rate).max().unwrap_or(0)
        };
        let (before, after) = (shared(None), shared(Some(lsp)).max(rate_bps));
        let total = (self.reserved_bps - before).saturating_add(after);
        after <= before || self.capacity_bps.is_none_or(|capacity| total <= capacity)
    }

    /// Reserves bandwidth for an LSP, in place of its previous reservation. Returns `false`, with the previous
    /// reservation unchanged, if the link cannot carry it.
    pub fn reserve(&mut self, lsp: Lsp, style: Style, rate_bps: u64) -> bool {
        if !self.admits(lsp, style, rate_bps) {
            return false;
        }
        self.release(lsp);
        self.change(share(lsp, style), |members| {
            members.insert(lsp, rate_bps);
        });
        true
    }

    /// Releases the bandwidth of an LSP.
    pub fn release(&mut self, lsp: Lsp) {
        for style in [Style::SharedExplicit, Style::FixedFilter] {
            self.change(share(lsp, style), |members| {
                members.remove(&lsp);
            });
        }
    }

    fn change(&mut self, share: Share, change: impl FnOnce(&mut BTreeMap<Lsp, u64>)) {
        let rate = |members: &BTreeMap<Lsp, u64>| members.values().copied().max().unwrap_or(0);
        let members = self.shares.entry(share).or_default();
        let before = rate(members);
        change(members);
        self.reserved_bps = (self.reserved_bps - before).saturating_add(rate(members));
        if members.is_empty() {
            self.shares.remove(&share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    const EGRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn lsp(tunnel: u32, lsp: u32) -> Lsp {
        let session = Session { endpoint: EGRESS, tunnel, extended: 1 };
        Lsp { session, sender: Sender { address: Ipv4Addr::new(10, 0, 0, 1), lsp } }
    }

    #[test]
    fn senders_of_a_session_share_the_maximum() {
        let mut link = LinkAdmission::default();
        link.set_capacity(Some(100));
        assert!(link.reserve(lsp(1, 1), Style::SharedExplicit, 60));
        assert!(!link.reserve(lsp(2, 1), Style::SharedExplicit, 50), "another session");
        assert!(!link.reserve(lsp(1, 2), Style::FixedFilter, 50), "a reservation of its own");
        assert!(link.reserve(lsp(1, 2), Style::SharedExplicit, 90));
        assert_eq!((link.reserved_bps(), link.reservations()), (90, 2));
        link.release(lsp(1, 2));
        assert_eq!((link.reserved_bps(), link.reservations()), (60, 1));
        link.set_capacity(Some(10));
        assert!(link.reserve(lsp(1, 1), Style::SharedExplicit, 60), "an existing reservation is refreshed");
        assert!(!link.reserve(lsp(1, 1), Style::SharedExplicit, 61));
        link.release(lsp(1, 1));
        assert_eq!((link.reserved_bps(), link.reservations()), (0, 0));
    }
}
