//! What a peer is told of this router's addresses and labels (RFC 5036 sections 2.6 and 2.8).
//!
//! Nothing is queued: what a peer was told is kept beside what it ought to be told now, prefixes for which
//! these may differ are marked, and the difference is worked out when a PDU is written. So PDUs are full, a
//! slow peer costs no more than a fast one, and what changed twice is told once.

use super::session::Session;
use super::table::Table;
use super::{Binding, Config, Control, Null};
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use netstage_wire::ldp::Identifier;
use netstage_wire::ldp::message::Fec;
use netstage_wire::ldp::write::{Outgoing, OutgoingMapping, Writer};
use netstage_wire::mpls::Label;

/// Addresses of one message: as many of the longer family as the shortest PDU has room for.
const ADDRESSES_TOLD: usize = 14;

/// A label as a peer is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Advertisement {
    label: Label,
    hops: Option<u8>,
    path: Box<[Ipv4Addr]>,
}

#[derive(Debug)]
struct Told {
    advertisement: Advertisement,
    /// The peer does not keep it, as it says; but it may have said so of a mapping before this one, which
    /// had the same label. So a label counts as held, and is withdrawn, all the same.
    is_released: bool,
}

/// A label as a peer ought to be told of it.
struct Wanted {
    advertisement: Advertisement,
    /// Where it leads is not known: no news for who has been told of the label. Else routers in a ring that
    /// have all refused each other's labels would all begin again.
    is_unknown: bool,
    /// It leads back to the peer, which is told so only if it uses the label and is to refuse it.
    leads_back: bool,
}

/// What a peer was told, and what it is yet to be.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    /// Prefixes of which there may be something to tell.
    pub dirty: BTreeSet<Fec>,
    pub has_new_addresses: bool,
    /// Prefixes for which the peer has asked, by which message.
    pub requests: BTreeMap<Fec, u32>,
    told: BTreeMap<Fec, Told>,
    /// Withdrawn and not released yet.
    withdrawn: BTreeSet<(Fec, Label)>,
    addresses: BTreeSet<IpAddr>,
}

/// What there is to tell of a prefix.
enum Step {
    Withdraw(Label),
    Map(Advertisement, Option<u32>),
}

impl Upstream {
    /// A peer uses a label no more, or none for the prefix; gives the labels that it held until now.
    pub fn release(&mut self, fec: Fec, label: Option<Label>) -> Vec<Label> {
        let range = match label {
            Some(label) => (fec, label)..=(fec, label),
            None => (fec, Label::IPV4_EXPLICIT_NULL)..=(fec, Label::MAX),
        };
        let released: Vec<Label> = self.withdrawn.range(range).map(|(_, label)| *label).collect();
        for label in &released {
            self.withdrawn.remove(&(fec, *label));
        }
        if !released.is_empty() {
            // Now the same label may be told again.
            self.dirty.insert(fec);
            return released;
        }
        if let Some(told) = self.told.get_mut(&fec)
            && label.is_none_or(|label| label == told.advertisement.label)
        {
            told.is_released = true;
        }
        released
    }

    /// Prefixes for which the peer holds a label, or this one.
    pub fn held(&self, label: Option<Label>) -> BTreeSet<Fec> {
        let told = self.told.iter().map(|(fec, told)| (*fec, told.advertisement.label));
        let both = told.chain(self.withdrawn.iter().copied());
        both.filter(|(_, held)| label.is_none_or(|label| label == *held)).map(|(fec, _)| fec).collect()
    }

    /// All labels that the peer holds, each as often as it does.
    pub fn into_held(self) -> impl Iterator<Item = Label> {
        let told = self.told.into_values().map(|told| told.advertisement.label);
        told.chain(self.withdrawn.into_iter().map(|(_, label)| label))
    }

    fn step(&mut self, fec: Fec, wanted: Option<Wanted>) -> Option<Step> {
        let told = self.told.get(&fec);
        if let Some(Told { advertisement, .. }) = told
            && wanted.as_ref().is_none_or(|wanted| wanted.advertisement.label != advertisement.label)
        {
            return Some(Step::Withdraw(advertisement.label));
        }
        let Wanted { advertisement, is_unknown, leads_back } = wanted?;
        // Its release would be taken for that of the new mapping.
        if self.withdrawn.contains(&(fec, advertisement.label)) {
            return None;
        }
        if leads_back && told.is_none_or(|told| told.is_released) {
            return None;
        }
        let is_told = told.is_some_and(|told| {
            let same_label = told.advertisement.label == advertisement.label;
            told.advertisement == advertisement || (is_unknown && same_label)
        });
        let request = self.requests.get(&fec).copied();
        (request.is_some() || !is_told).then_some(Step::Map(advertisement, request))
    }

    /// A step was written.
    fn take(&mut self, fec: Fec, step: Step, table: &mut Table) {
        match step {
            Step::Withdraw(label) => {
                self.told.remove(&fec);
                self.withdrawn.insert((fec, label));
            }
            Step::Map(advertisement, _) => {
                let label = advertisement.label;
                self.requests.remove(&fec);
                let before = self.told.insert(fec, Told { advertisement, is_released: false });
                if before.is_none() {
                    table.hold(label);
                }
            }
        }
    }

    /// Addresses of one family that the peer was told and are none any more, or that it is to be told.
    fn next_addresses(&mut self, own: &BTreeSet<IpAddr>) -> Option<(bool, Vec<IpAddr>)> {
        if !self.has_new_addresses {
            return None;
        }
        let is_withdrawal = !self.addresses.is_subset(own);
        let (from, without) = if is_withdrawal { (&self.addresses, own) } else { (own, &self.addresses) };
        let mut differing = from.difference(without).copied().peekable();
        let Some(is_v4) = differing.peek().map(IpAddr::is_ipv4) else {
            self.has_new_addresses = false;
            return None;
        };
        let of_family = differing.filter(|address| address.is_ipv4() == is_v4);
        Some((is_withdrawal, of_family.take(ADDRESSES_TOLD).collect()))
    }

    fn take_addresses(&mut self, is_withdrawal: bool, addresses: &[IpAddr]) {
        for address in addresses {
            if is_withdrawal {
                self.addresses.remove(address);
            } else {
                self.addresses.insert(*address);
            }
        }
    }
}

impl Session {
    /// A PDU of what is to be told, if anything is and the connection takes it.
    pub(super) fn next_pdu(
        &mut self,
        now: Instant,
        config: &Config,
        (sender, message_id): (Identifier, &mut u32),
        addresses: &BTreeSet<IpAddr>,
        table: &mut Table,
    ) -> Option<Vec<u8>> {
        let Upstream { dirty, has_new_addresses, .. } = &self.upstream;
        let has_something = !self.replies.is_empty() || !dirty.is_empty() || *has_new_addresses;
        if !has_something || !self.is_writable {
            return None;
        }
        let peer = self.peer?;
        let mut bytes = vec![0; self.most_bytes];
        let mut writer = Writer::new(&mut bytes, sender).ok()?;
        let mut put = |writer: &mut Writer<'_>, message: &Outgoing<'_>| {
            *message_id = message_id.wrapping_add(1);
            writer.message(*message_id, message).is_ok()
        };
        let mut has_room = true;
        while let (true, Some(reply)) = (has_room, self.replies.front().copied()) {
            has_room = put(&mut writer, &reply);
            if has_room {
                self.replies.pop_front();
            }
            // What follows is only understood by who has agreed.
            has_room &= !matches!(reply, Outgoing::Initialization(_));
        }
        while let (true, Some((is_withdrawal, list))) = (has_room, self.upstream.next_addresses(addresses)) {
            has_room = put(
                &mut writer,
                &if is_withdrawal { Outgoing::AddressWithdraw(&list) } else { Outgoing::Address(&list) },
            );
            if has_room {
                self.upstream.take_addresses(is_withdrawal, &list);
            }
        }
        while let (true, Some(fec)) = (has_room, self.upstream.dirty.first().copied()) {
            let wanted = wanted(config, table, fec, peer);
            let Some(step) = self.upstream.step(fec, wanted) else {
                self.upstream.dirty.pop_first();
                continue;
            };
            has_room = match &step {
                Step::Withdraw(label) => put(&mut writer, &Outgoing::LabelWithdraw(fec, Some(*label))),
                Step::Map(Advertisement { label, hops, path }, request_id) => {
                    let (label, hops, request_id) = (*label, *hops, *request_id);
                    put(
                        &mut writer,
                        &Outgoing::LabelMapping(OutgoingMapping { fec, label, request_id, hops, path }),
                    )
                }
            };
            if has_room {
                self.upstream.take(fec, step, table);
            }
        }
        let length = writer.bytes().len();
        if writer.is_empty() {
            return None;
        }
        bytes.truncate(length);
        self.sent(now);
        Some(bytes)
    }
}

/// What a peer ought to be told of a prefix; none: nothing.
fn wanted(config: &Config, table: &Table, fec: Fec, peer: Identifier) -> Option<Wanted> {
    let detects_loops = config.loop_detection.is_some();
    let own = if detects_loops { &[config.router][..] } else { &[] };
    let label = match *table.binding(fec)? {
        Binding::Egress { label } => {
            let label = label.unwrap_or_else(|| null(config.null, fec));
            let hops = detects_loops.then_some(1);
            let advertisement = Advertisement { label, hops, path: Box::default() };
            return Some(Wanted { advertisement, is_unknown: false, leads_back: false });
        }
        Binding::Transit { label, .. } => label,
    };
    let mut downstream = table.downstream(fec).peekable();
    if downstream.peek().is_none() {
        // A count of zero says that it is not known (section 3.4.4).
        let advertisement = Advertisement { label, hops: detects_loops.then_some(0), path: own.into() };
        let unknown = Wanted { advertisement, is_unknown: true, leads_back: false };
        return (config.control == Control::Independent).then_some(unknown);
    }
    // Where there are several ways it counts as the longest of them, and as one by all their routers.
    let (mut hops, mut path, mut leads_back) = (None, Vec::new(), false);
    for (next_hop, remote) in downstream {
        hops = longest(hops, remote.hops.or(detects_loops.then_some(0)));
        leads_back |= detects_loops && (next_hop.peer == peer || remote.path.contains(&peer.router));
        path.extend(remote.path.iter().filter(|router| !path.contains(*router)).copied().collect::<Vec<_>>());
    }
    path.extend(own);
    let advertisement = Advertisement { label, hops, path: path.into() };
    Some(Wanted { advertisement, is_unknown: false, leads_back })
}

/// Hops of the longest way, one more than those of the next router; of one that is not known, zero.
fn longest(so_far: Option<u8>, next: Option<u8>) -> Option<u8> {
    match (so_far, next) {
        (Some(0), _) | (_, Some(0)) => Some(0),
        (so_far, next) => so_far.max(next.map(|hops| hops.saturating_add(1))),
    }
}

fn null(null: Null, fec: Fec) -> Label {
    match (null, fec) {
        (Null::Implicit, _) => Label::IMPLICIT_NULL,
        (Null::Explicit, Fec::Prefix { address: IpAddr::V6(_), .. }) => Label::IPV6_EXPLICIT_NULL,
        (Null::Explicit, _) => Label::IPV4_EXPLICIT_NULL,
    }
}
