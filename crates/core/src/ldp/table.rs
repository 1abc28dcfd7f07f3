//! The label information base: the bindings of this router, the mappings of its peers (all are kept,
//! section 2.6.2.2), and the owners of addresses. It determines the outgoing labels of prefixes, but not
//! the advertisements.

use super::{Binding, BindingError, NextHop};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use netstage_wire::ldp::Identifier;
use netstage_wire::ldp::message::Fec;
use netstage_wire::mpls::LabelValue;

/// A label mapping received from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteMapping {
    pub label: LabelValue,
    pub hops: Option<u8>,
    pub path: Box<[Ipv4Addr]>,
}

#[derive(Debug)]
struct LocalBinding {
    binding: Binding,
    outgoing: Vec<NextHop>,
}

#[derive(Debug, Default)]
struct PeerEntry {
    mappings: BTreeMap<Fec, RemoteMapping>,
    addresses: BTreeSet<IpAddr>,
    /// Mappings and addresses of a lost session that no new session has confirmed (RFC 3478).
    stale: BTreeSet<Fec>,
    stale_addresses: BTreeSet<IpAddr>,
}

#[derive(Debug, Default)]
pub(super) struct LabelInformationBase {
    own: BTreeMap<Fec, LocalBinding>,
    /// Bound prefixes by next hop.
    via: BTreeMap<IpAddr, BTreeSet<Fec>>,
    peers: BTreeMap<Identifier, PeerEntry>,
    /// Peers that have advertised an address; the first one counts as its owner.
    owners: BTreeMap<IpAddr, Vec<Identifier>>,
    /// Reference counts of allocated labels, held by local bindings and by peers.
    holders: BTreeMap<LabelValue, u32>,
}

impl LabelInformationBase {
    /// Binds a prefix and returns the previous label if it is free now.
    pub fn bind(&mut self, fec: Fec, binding: Binding) -> Result<Option<LabelValue>, BindingError> {
        if fec == Fec::Wildcard {
            return Err(BindingError::NotAPrefix);
        }
        if binding.label().is_some_and(LabelValue::is_reserved) {
            return Err(BindingError::ReservedLabel);
        }
        // The new label is held before the old one is released, because they may be equal.
        if let Some(label) = binding.label() {
            self.hold(label);
        }
        let freed = self.unbind(fec);
        for next_hop in next_hops(&binding) {
            self.via.entry(*next_hop).or_default().insert(fec);
        }
        // The old outgoing labels are kept for the comparison in `refresh`.
        let (label, outgoing) = freed.unwrap_or_default();
        self.own.insert(fec, LocalBinding { binding, outgoing });
        Ok(label)
    }

    /// Removes a binding; returns its label if it is free now, and its outgoing labels.
    pub fn unbind(&mut self, fec: Fec) -> Option<(Option<LabelValue>, Vec<NextHop>)> {
        let own = self.own.remove(&fec)?;
        for next_hop in next_hops(&own.binding) {
            if let Some(fecs) = self.via.get_mut(next_hop) {
                fecs.remove(&fec);
                if fecs.is_empty() {
                    self.via.remove(next_hop);
                }
            }
        }
        let freed = own.binding.label().and_then(|label| self.release(label));
        Some((freed, own.outgoing))
    }

    /// Adds a holder of a label.
    pub fn hold(&mut self, label: LabelValue) {
        if !label.is_reserved() {
            *self.holders.entry(label).or_default() += 1;
        }
    }

    /// Removes a holder of a label; returns the label if it is free now.
    pub fn release(&mut self, label: LabelValue) -> Option<LabelValue> {
        let holders = self.holders.get_mut(&label)?;
        *holders -= 1;
        if *holders > 0 {
            return None;
        }
        self.holders.remove(&label);
        Some(label)
    }

    /// Iterates over the labels with holders.
    #[cfg(test)]
    pub fn holders(&self) -> impl Iterator<Item = LabelValue> + '_ {
        self.holders.keys().copied()
    }

    pub fn binding(&self, fec: Fec) -> Option<&Binding> {
        Some(&self.own.get(&fec)?.binding)
    }

    pub fn bound_prefixes(&self) -> impl Iterator<Item = Fec> + '_ {
        self.own.keys().copied()
    }

    /// Iterates over the mappings that the peers at a prefix's next hops have advertised.
    pub fn downstream(&self, fec: Fec) -> impl Iterator<Item = (NextHop, &RemoteMapping)> {
        let next_hops = self.own.get(&fec).map_or(&[][..], |own| next_hops(&own.binding));
        next_hops.iter().filter_map(move |address| {
            let peer = self.owner(*address)?;
            let remote = self.mapping(peer, fec)?;
            Some((NextHop { address: *address, peer, label: remote.label }, remote))
        })
    }

    /// Returns whether a peer is a next hop of a bound prefix.
    pub fn is_via(&self, fec: Fec, peer: Identifier) -> bool {
        let next_hops = self.binding(fec).map_or(&[][..], next_hops);
        next_hops.iter().any(|next_hop| self.owner(*next_hop) == Some(peer))
    }

    /// Returns the outgoing labels of a prefix, as of the last refresh.
    pub fn outgoing(&self, fec: Fec) -> &[NextHop] {
        self.own.get(&fec).map_or(&[], |own| &own.outgoing)
    }

    /// Updates the outgoing labels of a prefix and returns them if they have changed.
    pub fn refresh(&mut self, fec: Fec) -> Option<Vec<NextHop>> {
        let outgoing: Vec<NextHop> = self.downstream(fec).map(|(next_hop, _)| next_hop).collect();
        let own = self.own.get_mut(&fec)?;
        if own.outgoing == outgoing {
            return None;
        }
        own.outgoing.clone_from(&outgoing);
        Some(outgoing)
    }

    /// Returns the peer that has an address.
    pub fn owner(&self, address: IpAddr) -> Option<Identifier> {
        self.owners.get(&address)?.first().copied()
    }

    pub fn mapping(&self, peer: Identifier, fec: Fec) -> Option<&RemoteMapping> {
        self.peers.get(&peer)?.mappings.get(&fec)
    }

    pub fn mappings_of(&self, peer: Identifier) -> impl Iterator<Item = (Fec, LabelValue)> + '_ {
        let known = self.peers.get(&peer).into_iter();
        known.flat_map(|peer| peer.mappings.iter().map(|(fec, remote)| (*fec, remote.label)))
    }

    pub fn mappings_for(&self, fec: Fec) -> impl Iterator<Item = (Identifier, LabelValue)> + '_ {
        self.peers.iter().filter_map(move |(peer, known)| Some((*peer, known.mappings.get(&fec)?.label)))
    }

    pub fn mappings_count(&self, peer: Identifier) -> usize {
        self.peers.get(&peer).map_or(0, |peer| peer.mappings.len())
    }

    pub fn addresses_count(&self, peer: Identifier) -> usize {
        self.peers.get(&peer).map_or(0, |peer| peer.addresses.len())
    }

    /// Stores a mapping of a peer and returns the one it replaces.
    pub fn insert(&mut self, peer: Identifier, fec: Fec, remote: RemoteMapping) -> Option<RemoteMapping> {
        let known = self.peers.entry(peer).or_default();
        known.stale.remove(&fec);
        known.mappings.insert(fec, remote)
    }

    /// Returns whether a mapping of a peer waits for its confirmation after a restart.
    pub fn is_stale(&self, peer: Identifier, fec: Fec) -> bool {
        self.peers.get(&peer).is_some_and(|known| known.stale.contains(&fec))
    }

    /// Marks all mappings and addresses of a peer as stale.
    pub fn mark_stale(&mut self, peer: Identifier) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.stale = known.mappings.keys().copied().collect();
        known.stale_addresses.clone_from(&known.addresses);
    }

    /// Removes the stale mappings and addresses of a peer and returns them, and the bound prefixes that may have lost a
    /// next hop.
    pub fn remove_stale(
        &mut self,
        peer: Identifier,
    ) -> (Vec<(Fec, LabelValue)>, BTreeSet<IpAddr>, BTreeSet<Fec>) {
        let Some(known) = self.peers.get_mut(&peer) else { return Default::default() };
        let addresses = core::mem::take(&mut known.stale_addresses);
        let stale = core::mem::take(&mut known.stale).into_iter();
        let mappings = stale.filter_map(|fec| Some((fec, known.mappings.remove(&fec)?.label)));
        let mappings: Vec<(Fec, LabelValue)> = mappings.collect();
        let mut fecs: BTreeSet<Fec> = mappings.iter().map(|(fec, _)| *fec).collect();
        for address in &addresses {
            self.remove_address(peer, *address);
            fecs.extend(self.via.get(address).into_iter().flatten());
        }
        (mappings, addresses, fecs)
    }

    /// Removes and returns a mapping of a peer.
    pub fn remove(&mut self, peer: Identifier, fec: Fec) -> Option<RemoteMapping> {
        let known = self.peers.get_mut(&peer)?;
        known.stale.remove(&fec);
        known.mappings.remove(&fec)
    }

    /// Adds an address of a peer; returns whether it is new.
    pub fn add_address(&mut self, peer: Identifier, address: IpAddr) -> bool {
        let known = self.peers.entry(peer).or_default();
        known.stale_addresses.remove(&address);
        let is_new = known.addresses.insert(address);
        if is_new {
            self.owners.entry(address).or_default().push(peer);
        }
        is_new
    }

    /// Removes an address of a peer; returns whether it was present.
    pub fn remove_address(&mut self, peer: Identifier, address: IpAddr) -> bool {
        let was_present = self.peers.get_mut(&peer).is_some_and(|known| {
            known.stale_addresses.remove(&address);
            known.addresses.remove(&address)
        });
        if was_present {
            self.disown(peer, address);
        }
        was_present
    }

    fn disown(&mut self, peer: Identifier, address: IpAddr) {
        let Some(owners) = self.owners.get_mut(&address) else { return };
        owners.retain(|owner| *owner != peer);
        if owners.is_empty() {
            self.owners.remove(&address);
        }
    }

    /// Returns the bound prefixes that have this next hop.
    pub fn prefixes_via(&self, address: IpAddr) -> Vec<Fec> {
        self.via.get(&address).map_or_else(Vec::new, |fecs| fecs.iter().copied().collect())
    }

    /// Removes all addresses and mappings of a peer; returns the bound prefixes for which it was a next hop.
    pub fn remove_peer(&mut self, peer: Identifier) -> BTreeSet<Fec> {
        let known = self.peers.remove(&peer).unwrap_or_default();
        let mut fecs = BTreeSet::new();
        for address in known.addresses {
            self.disown(peer, address);
            fecs.extend(self.via.get(&address).into_iter().flatten());
        }
        fecs
    }
}

/// Returns the next hops of a binding.
fn next_hops(binding: &Binding) -> &[IpAddr] {
    match binding {
        Binding::Egress { .. } => &[],
        Binding::Transit { next_hops, .. } => next_hops,
    }
}
