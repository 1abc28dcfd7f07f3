//! What is bound to what: this router's labels, those that peers told of (all are kept, section 2.6.2.2),
//! and which peer has an address. It decides where a prefix's packets go, and not what anybody is told.

use super::{Binding, NextHop, Refused};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use netstage_wire::ldp::Identifier;
use netstage_wire::ldp::message::Fec;
use netstage_wire::mpls::Label;

/// What a peer told of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub label: Label,
    pub hops: Option<u8>,
    pub path: Box<[Ipv4Addr]>,
}

#[derive(Debug)]
struct Own {
    binding: Binding,
    outgoing: Vec<NextHop>,
}

#[derive(Debug, Default)]
struct Peer {
    mappings: BTreeMap<Fec, Remote>,
    addresses: BTreeSet<IpAddr>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    own: BTreeMap<Fec, Own>,
    /// Prefixes by their next hops.
    via: BTreeMap<IpAddr, BTreeSet<Fec>>,
    peers: BTreeMap<Identifier, Peer>,
    /// Peers that say an address is theirs; the first who said so is believed.
    owners: BTreeMap<IpAddr, Vec<Identifier>>,
    /// How many own bindings and peers hold a label that was allocated.
    holders: BTreeMap<Label, u32>,
}

impl Table {
    /// Binds a prefix, and tells which label nobody holds any more.
    pub fn bind(&mut self, fec: Fec, binding: Binding) -> Result<Option<Label>, Refused> {
        if fec == Fec::Wildcard {
            return Err(Refused::NotAPrefix);
        }
        if binding.label().is_some_and(Label::is_reserved) {
            return Err(Refused::ReservedLabel);
        }
        // It is held before it is given up, for it may be the same label.
        if let Some(label) = binding.label() {
            self.hold(label);
        }
        let freed = self.unbind(fec);
        for next_hop in next_hops(&binding) {
            self.via.entry(*next_hop).or_default().insert(fec);
        }
        // Where its packets went is compared when the caller refreshes it.
        let (label, outgoing) = freed.unwrap_or_default();
        self.own.insert(fec, Own { binding, outgoing });
        Ok(label)
    }

    /// Takes a binding away, if there is one: the label that nobody holds any more, and where packets went.
    pub fn unbind(&mut self, fec: Fec) -> Option<(Option<Label>, Vec<NextHop>)> {
        let own = self.own.remove(&fec)?;
        for next_hop in next_hops(&own.binding) {
            if let Some(fecs) = self.via.get_mut(next_hop) {
                fecs.remove(&fec);
                if fecs.is_empty() {
                    self.via.remove(next_hop);
                }
            }
        }
        let freed = own.binding.label().and_then(|label| self.let_go(label));
        Some((freed, own.outgoing))
    }

    /// Somebody holds a label.
    pub fn hold(&mut self, label: Label) {
        if !label.is_reserved() {
            *self.holders.entry(label).or_default() += 1;
        }
    }

    /// Somebody holds it no more; given back if nobody does.
    pub fn let_go(&mut self, label: Label) -> Option<Label> {
        let holders = self.holders.get_mut(&label)?;
        *holders -= 1;
        if *holders > 0 {
            return None;
        }
        self.holders.remove(&label);
        Some(label)
    }

    /// Labels that somebody holds.
    #[cfg(test)]
    pub fn holders(&self) -> impl Iterator<Item = Label> + '_ {
        self.holders.keys().copied()
    }

    pub fn binding(&self, fec: Fec) -> Option<&Binding> {
        Some(&self.own.get(&fec)?.binding)
    }

    pub fn own(&self) -> impl Iterator<Item = Fec> + '_ {
        self.own.keys().copied()
    }

    /// What the peers at a prefix's next hops told of it.
    pub fn downstream(&self, fec: Fec) -> impl Iterator<Item = (NextHop, &Remote)> {
        let next_hops = self.own.get(&fec).map_or(&[][..], |own| next_hops(&own.binding));
        next_hops.iter().filter_map(move |address| {
            let peer = self.owner(*address)?;
            let remote = self.mapping(peer, fec)?;
            Some((NextHop { address: *address, peer, label: remote.label }, remote))
        })
    }

    /// Whether packets of a bound prefix go to a peer if it tells of a label.
    pub fn is_via(&self, fec: Fec, peer: Identifier) -> bool {
        let next_hops = self.binding(fec).map_or(&[][..], next_hops);
        next_hops.iter().any(|next_hop| self.owner(*next_hop) == Some(peer))
    }

    /// Where a prefix's packets go, as it was last refreshed.
    pub fn outgoing(&self, fec: Fec) -> &[NextHop] {
        self.own.get(&fec).map_or(&[], |own| &own.outgoing)
    }

    /// Looks up anew where a prefix's packets go, and tells if that has changed.
    pub fn refresh(&mut self, fec: Fec) -> Option<Vec<NextHop>> {
        let outgoing: Vec<NextHop> = self.downstream(fec).map(|(next_hop, _)| next_hop).collect();
        let own = self.own.get_mut(&fec)?;
        if own.outgoing == outgoing {
            return None;
        }
        own.outgoing.clone_from(&outgoing);
        Some(outgoing)
    }

    /// The peer that has an address.
    pub fn owner(&self, address: IpAddr) -> Option<Identifier> {
        self.owners.get(&address)?.first().copied()
    }

    pub fn mapping(&self, peer: Identifier, fec: Fec) -> Option<&Remote> {
        self.peers.get(&peer)?.mappings.get(&fec)
    }

    pub fn mappings_of(&self, peer: Identifier) -> impl Iterator<Item = (Fec, Label)> + '_ {
        let known = self.peers.get(&peer).into_iter();
        known.flat_map(|peer| peer.mappings.iter().map(|(fec, remote)| (*fec, remote.label)))
    }

    pub fn mappings_for(&self, fec: Fec) -> impl Iterator<Item = (Identifier, Label)> + '_ {
        self.peers.iter().filter_map(move |(peer, known)| Some((*peer, known.mappings.get(&fec)?.label)))
    }

    pub fn mappings_count(&self, peer: Identifier) -> usize {
        self.peers.get(&peer).map_or(0, |peer| peer.mappings.len())
    }

    pub fn addresses_count(&self, peer: Identifier) -> usize {
        self.peers.get(&peer).map_or(0, |peer| peer.addresses.len())
    }

    /// A peer told of a prefix; what it told before is given back.
    pub fn insert(&mut self, peer: Identifier, fec: Fec, remote: Remote) -> Option<Remote> {
        self.peers.entry(peer).or_default().mappings.insert(fec, remote)
    }

    /// Takes away what a peer told of a prefix.
    pub fn remove(&mut self, peer: Identifier, fec: Fec) -> Option<Remote> {
        self.peers.get_mut(&peer)?.mappings.remove(&fec)
    }

    /// An address is a peer's; tells whether that is new.
    pub fn add_address(&mut self, peer: Identifier, address: IpAddr) -> bool {
        let is_new = self.peers.entry(peer).or_default().addresses.insert(address);
        if is_new {
            self.owners.entry(address).or_default().push(peer);
        }
        is_new
    }

    /// An address is a peer's no more; tells whether it was.
    pub fn remove_address(&mut self, peer: Identifier, address: IpAddr) -> bool {
        let was_there = self.peers.get_mut(&peer).is_some_and(|peer| peer.addresses.remove(&address));
        if was_there {
            self.disown(peer, address);
        }
        was_there
    }

    fn disown(&mut self, peer: Identifier, address: IpAddr) {
        let Some(owners) = self.owners.get_mut(&address) else { return };
        owners.retain(|owner| *owner != peer);
        if owners.is_empty() {
            self.owners.remove(&address);
        }
    }

    /// Bound prefixes whose next hop is an address.
    pub fn via(&self, address: IpAddr) -> Vec<Fec> {
        self.via.get(&address).map_or_else(Vec::new, |fecs| fecs.iter().copied().collect())
    }

    /// Forgets all a peer told; gives the bound prefixes whose packets went to it.
    pub fn forget(&mut self, peer: Identifier) -> BTreeSet<Fec> {
        let known = self.peers.remove(&peer).unwrap_or_default();
        let mut fecs = BTreeSet::new();
        for address in known.addresses {
            self.disown(peer, address);
            fecs.extend(self.via.get(&address).into_iter().flatten());
        }
        fecs
    }
}

/// Where packets of a binding go on.
fn next_hops(binding: &Binding) -> &[IpAddr] {
    match binding {
        Binding::Egress { .. } => &[],
        Binding::Transit { next_hops, .. } => next_hops,
    }
}
