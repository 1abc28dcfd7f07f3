//! Advertisement of this router's addresses and labels to a peer (RFC 5036 sections 2.6 and 2.8).
//!
//! Advertisements are not queued. The advertised state is stored per peer, prefixes that may differ from the
//! current state are marked dirty, and the difference is computed when a PDU is written. Hence PDUs are full, a
//! slow peer needs no more memory than a fast one, and several changes of a prefix are advertised as one.

use super::session::LdpSession;
use super::table::LabelInformationBase;
use super::{Binding, LabelControl, LdpConfig, NullLabel};
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use netstage_wire::ldp::Identifier;
use netstage_wire::ldp::message::Fec;
use netstage_wire::ldp::write::{Outgoing, OutgoingMapping, Writer};
use netstage_wire::mpls::LabelValue;

/// Maximum number of addresses per message: as many IPv6 addresses as fit into the shortest PDU.
const MAX_ADDRESSES: usize = 14;

/// Contents of a label mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Advertisement {
    label: LabelValue,
    hops: Option<u8>,
    path: Box<[Ipv4Addr]>,
}

/// A mapping that was sent to the peer.
#[derive(Debug)]
struct SentMapping {
    advertisement: Advertisement,
    /// True if the peer has released the label. The release may refer to an earlier mapping with the same
    /// label, so the label still counts as held, and is withdrawn before reuse.
    is_released: bool,
}

/// The mapping that the peer should have.
struct DesiredMapping {
    advertisement: Advertisement,
    /// True if the downstream path is unknown. The mapping is not repeated with the same label, because
    /// routers in a loop that have rejected each other's labels would advertise them again.
    is_unknown: bool,
    /// True if the path leads back to the peer. The mapping is sent only if the peer uses the label, so that
    /// the peer rejects it.
    leads_back: bool,
}

/// Advertised and pending state of a peer.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    /// Prefixes whose advertisement may have to change.
    pub dirty: BTreeSet<Fec>,
    pub has_new_addresses: bool,
    /// Pending label requests of the peer, with their message IDs.
    pub requests: BTreeMap<Fec, u32>,
    advertised: BTreeMap<Fec, SentMapping>,
    /// Labels withdrawn but not yet released.
    withdrawn: BTreeSet<(Fec, LabelValue)>,
    addresses: BTreeSet<IpAddr>,
}

/// Next message about a prefix.
enum LabelMessage {
    Withdraw(LabelValue),
    Map(Advertisement, Option<u32>),
}

impl Upstream {
    /// Handles the release of a label, or of all labels of a prefix; returns the labels that the peer no
    /// longer holds.
    pub fn release(&mut self, fec: Fec, label: Option<LabelValue>) -> Vec<LabelValue> {
        let range = match label {
            Some(label) => (fec, label)..=(fec, label),
            None => (fec, LabelValue::IPV4_EXPLICIT_NULL)..=(fec, LabelValue::MAX),
        };
        let released: Vec<LabelValue> = self.withdrawn.range(range).map(|(_, label)| *label).collect();
        for label in &released {
            self.withdrawn.remove(&(fec, *label));
        }
        if !released.is_empty() {
            // The same label may be advertised again.
            self.dirty.insert(fec);
            return released;
        }
        if let Some(mapping) = self.advertised.get_mut(&fec)
            && label.is_none_or(|label| label == mapping.advertisement.label)
        {
            mapping.is_released = true;
        }
        released
    }

    /// Returns the prefixes for which the peer holds this label, or any label.
    pub fn held(&self, label: Option<LabelValue>) -> BTreeSet<Fec> {
        let advertised = self.advertised.iter().map(|(fec, mapping)| (*fec, mapping.advertisement.label));
        let both = advertised.chain(self.withdrawn.iter().copied());
        both.filter(|(_, held)| label.is_none_or(|label| label == *held)).map(|(fec, _)| fec).collect()
    }

    /// Returns all labels that the peer holds, once per prefix.
    pub fn into_held(self) -> impl Iterator<Item = LabelValue> {
        let advertised = self.advertised.into_values().map(|mapping| mapping.advertisement.label);
        advertised.chain(self.withdrawn.into_iter().map(|(_, label)| label))
    }

    fn next_step(&mut self, fec: Fec, wanted: Option<DesiredMapping>) -> Option<LabelMessage> {
        let advertised = self.advertised.get(&fec);
        if let Some(SentMapping { advertisement, .. }) = advertised
            && wanted.as_ref().is_none_or(|wanted| wanted.advertisement.label != advertisement.label)
        {
            return Some(LabelMessage::Withdraw(advertisement.label));
        }
        let DesiredMapping { advertisement, is_unknown, leads_back } = wanted?;
        // The pending release would be taken for a release of the new mapping.
        if self.withdrawn.contains(&(fec, advertisement.label)) {
            return None;
        }
        if leads_back && advertised.is_none_or(|mapping| mapping.is_released) {
            return None;
        }
        let is_advertised = advertised.is_some_and(|mapping| {
            let same_label = mapping.advertisement.label == advertisement.label;
            mapping.advertisement == advertisement || (is_unknown && same_label)
        });
        let request = self.requests.get(&fec).copied();
        (request.is_some() || !is_advertised).then_some(LabelMessage::Map(advertisement, request))
    }

    /// Records a step that was written to a PDU.
    fn complete(&mut self, fec: Fec, step: LabelMessage, table: &mut LabelInformationBase) {
        match step {
            LabelMessage::Withdraw(label) => {
                self.advertised.remove(&fec);
                self.withdrawn.insert((fec, label));
            }
            LabelMessage::Map(advertisement, _) => {
                let label = advertisement.label;
                self.requests.remove(&fec);
                let previous = self.advertised.insert(fec, SentMapping { advertisement, is_released: false });
                if previous.is_none() {
                    table.hold(label);
                }
            }
        }
    }

    /// Returns whether the next address message is a withdrawal, and its addresses, all of one family.
    fn next_addresses(&mut self, own: &BTreeSet<IpAddr>) -> Option<(bool, Vec<IpAddr>)> {
        if !self.has_new_addresses {
            return None;
        }
        let is_withdrawal = !self.addresses.is_subset(own);
        let (from, excluded) = if is_withdrawal { (&self.addresses, own) } else { (own, &self.addresses) };
        let mut differing = from.difference(excluded).copied().peekable();
        let Some(is_v4) = differing.peek().map(IpAddr::is_ipv4) else {
            self.has_new_addresses = false;
            return None;
        };
        let of_family = differing.filter(|address| address.is_ipv4() == is_v4);
        Some((is_withdrawal, of_family.take(MAX_ADDRESSES).collect()))
    }

    fn complete_addresses(&mut self, is_withdrawal: bool, addresses: &[IpAddr]) {
        for address in addresses {
            if is_withdrawal {
                self.addresses.remove(address);
            } else {
                self.addresses.insert(*address);
            }
        }
    }
}

impl LdpSession {
    /// Returns the next PDU, or `None` if nothing is pending or the connection is not writable.
    pub(super) fn next_pdu(
        &mut self,
        now: Instant,
        config: &LdpConfig,
        (sender, message_id): (Identifier, &mut u32),
        addresses: &BTreeSet<IpAddr>,
        table: &mut LabelInformationBase,
    ) -> Option<Vec<u8>> {
        let Upstream { dirty, has_new_addresses, .. } = &self.upstream;
        let is_pending = !self.replies.is_empty() || !dirty.is_empty() || *has_new_addresses;
        if !is_pending || !self.is_writable {
            return None;
        }
        let peer = self.peer?;
        let mut bytes = vec![0; self.max_pdu_length];
        let mut writer = Writer::new(&mut bytes, sender).ok()?;
        let mut write = |writer: &mut Writer<'_>, message: &Outgoing<'_>| {
            *message_id = message_id.wrapping_add(1);
            writer.message(*message_id, message).is_ok()
        };
        let mut has_room = true;
        while let (true, Some(reply)) = (has_room, self.replies.front().copied()) {
            has_room = write(&mut writer, &reply);
            if has_room {
                self.replies.pop_front();
            }
            // Further messages need the peer's agreement to the session parameters.
            has_room &= !matches!(reply, Outgoing::Initialization(_));
        }
        while let (true, Some((is_withdrawal, list))) = (has_room, self.upstream.next_addresses(addresses)) {
            has_room = write(
                &mut writer,
                &if is_withdrawal { Outgoing::AddressWithdraw(&list) } else { Outgoing::Address(&list) },
            );
            if has_room {
                self.upstream.complete_addresses(is_withdrawal, &list);
            }
        }
        while let (true, Some(fec)) = (has_room, self.upstream.dirty.first().copied()) {
            let wanted = wanted(config, table, fec, peer);
            let Some(step) = self.upstream.next_step(fec, wanted) else {
                self.upstream.dirty.pop_first();
                continue;
            };
            has_room = match &step {
                LabelMessage::Withdraw(label) => {
                    write(&mut writer, &Outgoing::LabelWithdraw(fec, Some(*label)))
                }
                LabelMessage::Map(Advertisement { label, hops, path }, request_id) => {
                    let (label, hops, request_id) = (*label, *hops, *request_id);
                    write(
                        &mut writer,
                        &Outgoing::LabelMapping(OutgoingMapping { fec, label, request_id, hops, path }),
                    )
                }
            };
            if has_room {
                self.upstream.complete(fec, step, table);
            }
        }
        let length = writer.bytes().len();
        if writer.is_empty() {
            return None;
        }
        bytes.truncate(length);
        self.schedule_keepalive(now);
        Some(bytes)
    }
}

/// Returns the mapping of a prefix that a peer should have, if any.
fn wanted(
    config: &LdpConfig,
    table: &LabelInformationBase,
    fec: Fec,
    peer: Identifier,
) -> Option<DesiredMapping> {
    let detects_loops = config.loop_detection.is_some();
    let own = if detects_loops { &[config.router][..] } else { &[] };
    let label = match *table.binding(fec)? {
        Binding::Egress { label } => {
            let label = label.unwrap_or_else(|| null(config.null, fec));
            let hops = detects_loops.then_some(1);
            let advertisement = Advertisement { label, hops, path: Box::default() };
            return Some(DesiredMapping { advertisement, is_unknown: false, leads_back: false });
        }
        Binding::Transit { label, .. } => label,
    };
    let mut downstream = table.downstream(fec).peekable();
    if downstream.peek().is_none() {
        // A hop count of zero means unknown (section 3.4.4).
        let advertisement = Advertisement { label, hops: detects_loops.then_some(0), path: own.into() };
        let unknown = DesiredMapping { advertisement, is_unknown: true, leads_back: false };
        return (config.control == LabelControl::Independent).then_some(unknown);
    }
    // Several next hops count as one path with the maximum hop count and the routers of all paths.
    let (mut hops, mut path, mut leads_back) = (None, Vec::new(), false);
    for (next_hop, remote) in downstream {
        hops = max_hops(hops, remote.hops.or(detects_loops.then_some(0)));
        leads_back |= detects_loops && (next_hop.peer == peer || remote.path.contains(&peer.router));
        path.extend(remote.path.iter().filter(|router| !path.contains(*router)).copied().collect::<Vec<_>>());
    }
    path.extend(own);
    let advertisement = Advertisement { label, hops, path: path.into() };
    Some(DesiredMapping { advertisement, is_unknown: false, leads_back })
}

/// Returns the maximum of the current hop count and that of the next router plus one; zero if either is
/// unknown.
fn max_hops(current: Option<u8>, next: Option<u8>) -> Option<u8> {
    match (current, next) {
        (Some(0), _) | (_, Some(0)) => Some(0),
        (current, next) => current.max(next.map(|hops| hops.saturating_add(1))),
    }
}

fn null(null: NullLabel, fec: Fec) -> LabelValue {
    match (null, fec) {
        (NullLabel::Implicit, _) => LabelValue::IMPLICIT_NULL,
        (NullLabel::Explicit, Fec::Prefix { address: IpAddr::V6(_), .. }) => LabelValue::IPV6_EXPLICIT_NULL,
        (NullLabel::Explicit, _) => LabelValue::IPV4_EXPLICIT_NULL,
    }
}
