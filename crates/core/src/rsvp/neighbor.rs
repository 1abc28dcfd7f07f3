//! Transmission to neighbors: refreshes, retransmission until acknowledged, and summary refreshes (RFC 2961); limits on
//! the state that a neighbor can create.

use super::agenda::Timer;
use super::state::Foreign;
use super::{Lsp, RsvpEvent, RsvpNeighbor, RsvpSpeaker, RsvpTransmit};
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::mpls::LabelValue;
use netstage_wire::rsvp::object::{ACK_DESIRED, MessageId, MessageIds, Object, Sender, Session};
use netstage_wire::rsvp::write::{INTEGRITY, RsvpWriter};
use netstage_wire::rsvp::{REFRESH_REDUCTION, kind};

/// Maximum length of a message, bytes: that of an Ethernet frame without the IP header, its router alert option and the
/// object for authentication.
const MAX_MESSAGE: usize = 1476 - INTEGRITY;
/// First retransmission interval, doubled each time, and number of retransmissions (RFC 2961 section 6.3).
const RETRANSMISSION: Duration = Duration::from_millis(500);
const MAX_RETRANSMISSIONS: u32 = 3;
/// Maximum number of messages to a neighbor that are retransmitted until acknowledged. Others wait, so that the setup of
/// many LSPs at once does not overflow the neighbor's buffers.
const WINDOW: usize = 256;
/// Maximum number of message IDs in a summary refresh.
const MAX_SUMMARY: usize = 300;
/// Message IDs are collected for a summary refresh during the refresh period divided by this.
const SUMMARIES_PER_PERIOD: u64 = 8;
/// Limits of the refresh period of a neighbor.
const MIN_REFRESH: Duration = Duration::from_millis(100);
const MAX_REFRESH: Duration = Duration::from_secs(3600);

/// State of an LSP at a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// Path state.
    Path(Lsp),
    /// Reservation state.
    Resv(Lsp),
}

/// A neighbor.
#[derive(Clone, Debug, Default)]
pub(super) struct Neighbor {
    /// The neighbor supports refresh reduction.
    pub reduces_refreshes: bool,
    /// Number of LSPs with this previous or next hop.
    pub uses: usize,
    /// Number of LSPs with this previous hop.
    pub paths: usize,
    /// Number of labels in quarantine that were advertised to the neighbor.
    pub quarantined: usize,
    /// Exceeding of a limit has been reported.
    is_limited: bool,
    /// Last message sent about each state.
    sent: BTreeMap<Slot, Sent>,
    /// States by the ID of the last message sent.
    ids: BTreeMap<u32, Slot>,
    /// Epoch and ID of the last message received about each state.
    received: BTreeSet<(u32, u32, Slot)>,
    /// IDs for the next summary refresh.
    summary: Vec<u32>,
    /// Number of outstanding messages.
    outstanding: usize,
    /// States whose message waits for the window.
    waiting: VecDeque<Slot>,
    /// Instance in hellos; zero if the neighbor does not answer.
    pub instance: u32,
}

/// A sent message.
#[derive(Clone, Debug)]
struct Sent {
    transmit: RsvpTransmit,
    id: Option<u32>,
    is_tear: bool,
    delivery: Delivery,
}

/// Progress of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// It is not sent yet.
    Waiting,
    /// It is retransmitted until acknowledged.
    Outstanding { retransmissions: u32 },
    /// It was acknowledged.
    Acknowledged,
    /// It is not acknowledged, because it has no ID or the neighbor does not answer.
    Unconfirmed,
}

/// A message to be encoded.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    pub kind: u8,
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub ttl: u8,
    pub objects: Vec<Object<'a>>,
    /// Objects of unknown classes, after the others.
    pub foreign: &'a [Foreign],
}

impl RsvpSpeaker {
    /// Encodes a message; `None`, counted, if it is too long.
    fn encode(&mut self, to: RsvpNeighbor, message: &Outgoing<'_>, id: Option<u32>) -> Option<RsvpTransmit> {
        let flags = if self.config.reduces_refreshes { REFRESH_REDUCTION } else { 0 };
        let id = id.map(|id| Object::MessageId(MessageId { flags: ACK_DESIRED, epoch: self.epoch(), id }));
        let mut buffer = [0; MAX_MESSAGE];
        let write = |buffer| {
            let mut writer = RsvpWriter::new(buffer, message.kind, flags, message.ttl)?;
            id.iter().chain(&message.objects).try_for_each(|object| writer.object(object))?;
            message.foreign.iter().try_for_each(|foreign| writer.raw(&foreign.raw()))?;
            Ok::<_, netstage_wire::rsvp::write::RsvpMessageFull>(writer.finish().to_vec())
        };
        let Ok(bytes) = write(&mut buffer) else {
            self.counters.too_long += 1;
            return None;
        };
        let passes_routers = matches!(message.kind, kind::PATH | kind::PATH_TEAR | kind::RESV_CONFIRM);
        let has_router_alert = passes_routers && !to.is_remote();
        let Outgoing { source, destination, ttl, .. } = *message;
        Some(RsvpTransmit { to, source, destination, ttl, has_router_alert, bytes })
    }

    fn epoch(&self) -> u32 {
        self.config.instance & 0xff_ffff
    }

    /// Sends a message without retransmission.
    pub(super) fn send_once(&mut self, to: RsvpNeighbor, message: &Outgoing<'_>) {
        let transmit = self.encode(to, message, None);
        self.transmits.extend(transmit);
    }

    /// Sends a message about a state to a neighbor, in place of the previous message. Path and Resv messages are
    /// refreshed until [`forget`](RsvpSpeaker::forget); tear messages are retransmitted until acknowledged.
    pub(super) fn send(&mut self, now: Instant, to: RsvpNeighbor, slot: Slot, message: &Outgoing<'_>) {
        self.forget(now, to, slot);
        let is_tear = matches!(message.kind, kind::PATH_TEAR | kind::RESV_TEAR);
        let reduces = self.config.reduces_refreshes
            && self.neighbors.get(&to).is_some_and(|neighbor| neighbor.reduces_refreshes);
        let id = reduces.then(|| {
            self.message_id = self.message_id.wrapping_add(1);
            self.message_id
        });
        let Some(transmit) = self.encode(to, message, id) else { return };
        let max_sent = self.config.max_paths.saturating_mul(2);
        let neighbor = self.neighbors.get_mut(&to);
        let is_kept = |neighbor: &&mut Neighbor| !is_tear || id.is_some() && neighbor.sent.len() < max_sent;
        let Some(neighbor) = neighbor.filter(is_kept) else { return self.transmits.push_back(transmit) };
        match id {
            Some(id) => {
                neighbor.ids.insert(id, slot);
                neighbor.waiting.push_back(slot);
            }
            None => self.transmits.push_back(transmit.clone()),
        }
        let delivery = if id.is_some() { Delivery::Waiting } else { Delivery::Unconfirmed };
        neighbor.sent.insert(slot, Sent { transmit, id, is_tear, delivery });
        self.fill_window(now, to);
        if !is_tear {
            self.set_refresh_timer(now, slot);
        }
    }

    /// Sends waiting messages to a neighbor, as far as the window permits.
    fn fill_window(&mut self, now: Instant, to: RsvpNeighbor) {
        let Some(neighbor) = self.neighbors.get_mut(&to) else { return };
        while neighbor.outstanding < WINDOW
            && let Some(slot) = neighbor.waiting.pop_front()
        {
            // The message may have been replaced or forgotten.
            let sent = neighbor.sent.get_mut(&slot).filter(|sent| sent.delivery == Delivery::Waiting);
            if let Some(sent) = sent
                && let Some(id) = sent.id
            {
                sent.delivery = Delivery::Outstanding { retransmissions: 0 };
                neighbor.outstanding += 1;
                self.transmits.push_back(sent.transmit.clone());
                self.agenda.set(Timer::Retransmission(to, id), now + RETRANSMISSION);
            }
        }
    }

    /// Ends the retransmission of a message, and lets others follow.
    fn settle(&mut self, now: Instant, to: RsvpNeighbor, slot: Slot, delivery: Delivery) {
        let Some(neighbor) = self.neighbors.get_mut(&to) else { return };
        let Some(sent) = neighbor.sent.get_mut(&slot) else { return };
        if matches!(sent.delivery, Delivery::Outstanding { .. }) {
            neighbor.outstanding -= 1;
        }
        sent.delivery = delivery;
        if let Some(id) = sent.id {
            self.agenda.cancel(Timer::Retransmission(to, id));
        }
        self.fill_window(now, to);
    }

    /// Repeats the messages to a neighbor that it has not acknowledged.
    pub fn repeat(&mut self, to: RsvpNeighbor) {
        let Some(neighbor) = self.neighbors.get(&to) else { return };
        let is_missing = |sent: &&Sent| !matches!(sent.delivery, Delivery::Acknowledged | Delivery::Waiting);
        let missing = neighbor.sent.values().filter(is_missing);
        self.transmits.extend(missing.map(|sent| sent.transmit.clone()));
    }

    fn set_refresh_timer(&mut self, now: Instant, slot: Slot) {
        let wait = self.config.refresh.0 / 2 + self.random.below(self.config.refresh.0.max(1));
        self.agenda.set(refresh_timer(slot), now + Duration(wait));
    }

    /// Refreshes a state at a neighbor. Returns `false` if the message has to be encoded again, because the neighbor
    /// has begun or ceased to reduce refreshes.
    pub(super) fn refresh(&mut self, now: Instant, to: RsvpNeighbor, slot: Slot) -> bool {
        let Some(neighbor) = self.neighbors.get_mut(&to) else { return false };
        let reduces = neighbor.reduces_refreshes && self.config.reduces_refreshes;
        let Some(sent) = neighbor.sent.get(&slot).filter(|sent| sent.id.is_some() == reduces) else {
            return false;
        };
        match (sent.delivery, sent.id) {
            (Delivery::Acknowledged, Some(id)) => {
                neighbor.summary.push(id);
                let is_full = neighbor.summary.len() >= MAX_SUMMARY;
                self.agenda
                    .set_if_idle(Timer::SummaryRefresh(to), now + self.config.refresh / SUMMARIES_PER_PERIOD);
                if is_full {
                    self.send_summary_refresh(to);
                }
            }
            (Delivery::Waiting, _) => {}
            _ => self.transmits.push_back(sent.transmit.clone()),
        }
        self.set_refresh_timer(now, slot);
        true
    }

    /// Sends the collected message IDs (RFC 2961 section 5.5).
    pub(super) fn send_summary_refresh(&mut self, to: RsvpNeighbor) {
        self.agenda.cancel(Timer::SummaryRefresh(to));
        let Some(neighbor) = self.neighbors.get_mut(&to) else { return };
        let ids = &neighbor.ids;
        let current = core::mem::take(&mut neighbor.summary).into_iter().filter(|id| ids.contains_key(id));
        let bytes: Vec<u8> = current.flat_map(u32::to_be_bytes).collect();
        if !bytes.is_empty() {
            let ids = MessageIds::new(self.epoch(), &bytes);
            self.send_control(to, kind::SUMMARY_REFRESH, &[Object::MessageIds(ids)]);
        }
    }

    /// Returns the address of this router in messages to a neighbor.
    pub(super) fn own_address(&self, to: RsvpNeighbor) -> Option<Ipv4Addr> {
        match to.is_remote() {
            true => Some(self.config.router),
            false => self.interfaces.get(&to.interface).map(|interface| interface.address),
        }
    }

    /// Sends a message to a neighbor.
    pub(super) fn send_control(&mut self, to: RsvpNeighbor, kind: u8, objects: &[Object<'_>]) {
        let Some(source) = self.own_address(to) else { return };
        // A hello does not leave the link (RFC 3209 section 5.1).
        let ttl = if kind == kind::HELLO { 1 } else { u8::MAX };
        let destination = to.address;
        let message = Outgoing { kind, source, destination, ttl, objects: objects.to_vec(), foreign: &[] };
        self.send_once(to, &message);
    }

    pub(super) fn retransmit(&mut self, now: Instant, to: RsvpNeighbor, id: u32) {
        let Some(neighbor) = self.neighbors.get_mut(&to) else { return };
        let Some(slot) = neighbor.ids.get(&id).copied() else { return };
        let Some(sent) = neighbor.sent.get_mut(&slot) else { return };
        let Delivery::Outstanding { retransmissions } = &mut sent.delivery else { return };
        if *retransmissions < MAX_RETRANSMISSIONS {
            *retransmissions += 1;
            let wait = RETRANSMISSION * (1 << *retransmissions);
            self.transmits.push_back(sent.transmit.clone());
            self.counters.retransmitted += 1;
            self.agenda.set(Timer::Retransmission(to, id), now + wait);
        } else if sent.is_tear {
            self.forget(now, to, slot);
            self.drop_neighbor_if_unused(to);
        } else {
            self.settle(now, to, slot, Delivery::Unconfirmed);
        }
    }

    /// Handles the acknowledgment of a message, or the report that the neighbor does not know it.
    pub(super) fn handle_acknowledgment(
        &mut self,
        now: Instant,
        from: RsvpNeighbor,
        id: MessageId,
        is_known: bool,
    ) {
        let is_ours = id.epoch == self.epoch();
        let Some(neighbor) = self.neighbors.get_mut(&from).filter(|_| is_ours) else { return };
        let Some(slot) = neighbor.ids.get(&id.id).copied() else { return };
        let Some(sent) = neighbor.sent.get_mut(&slot) else { return };
        match (is_known, sent.is_tear) {
            (true, false) => self.settle(now, from, slot, Delivery::Acknowledged),
            (true, true) => {
                self.forget(now, from, slot);
                self.drop_neighbor_if_unused(from);
            }
            // Only a message that was acknowledged before is in a summary refresh.
            (false, _) if sent.delivery == Delivery::Acknowledged => {
                sent.delivery = Delivery::Waiting;
                neighbor.waiting.push_back(slot);
                self.fill_window(now, from);
            }
            (false, _) => {}
        }
    }

    /// Forgets the last message sent about a state: it is neither refreshed nor retransmitted.
    pub(super) fn forget(&mut self, now: Instant, to: RsvpNeighbor, slot: Slot) {
        self.settle(now, to, slot, Delivery::Unconfirmed);
        let Some(neighbor) = self.neighbors.get_mut(&to) else { return };
        let Some(sent) = neighbor.sent.remove(&slot) else { return };
        // A tear message is not refreshed; the state may meanwhile be refreshed at another neighbor.
        if !sent.is_tear {
            self.agenda.cancel(refresh_timer(slot));
        }
        if let Some(id) = sent.id {
            neighbor.ids.remove(&id);
        }
    }

    /// Replaces the ID of the last message received about a state.
    pub(super) fn index(
        &mut self,
        from: RsvpNeighbor,
        slot: Slot,
        previous: Option<MessageId>,
        current: Option<MessageId>,
    ) {
        let Some(neighbor) = self.neighbors.get_mut(&from) else { return };
        if let Some(id) = previous {
            neighbor.received.remove(&(id.epoch, id.id, slot));
        }
        if let Some(id) = current {
            neighbor.received.insert((id.epoch, id.id, slot));
        }
    }

    /// Returns the states whose last message had this ID.
    pub(super) fn indexed(&self, from: RsvpNeighbor, epoch: u32, id: u32) -> Vec<Slot> {
        let Some(neighbor) = self.neighbors.get(&from) else { return Vec::new() };
        // The range begins at the least slot.
        let zero = Ipv4Addr::UNSPECIFIED;
        let session = Session { endpoint: zero, tunnel: 0, extended: 0 };
        let least = Slot::Path(Lsp { session, sender: Sender { address: zero, lsp: 0 } });
        let after = neighbor.received.range((epoch, id, least)..);
        after.take_while(|(e, i, _)| (*e, *i) == (epoch, id)).map(|(_, _, slot)| *slot).collect()
    }

    /// Counts a use of a neighbor by an LSP. `reduces`: the neighbor supports refresh reduction, if known.
    pub(super) fn use_neighbor(
        &mut self,
        now: Instant,
        neighbor: RsvpNeighbor,
        as_previous_hop: bool,
        reduces: Option<bool>,
    ) {
        let is_new = !self.neighbors.contains_key(&neighbor);
        let entry = self.neighbors.entry(neighbor).or_default();
        entry.uses += 1;
        entry.paths += usize::from(as_previous_hop);
        entry.reduces_refreshes = reduces.unwrap_or(entry.reduces_refreshes);
        if is_new && self.config.hello.is_some() && !neighbor.is_remote() {
            self.agenda.set(Timer::Hello(neighbor), now);
        }
    }

    /// Returns whether a neighbor may create another path state; reports it otherwise.
    pub(super) fn is_within_limits(&mut self, neighbor: RsvpNeighbor) -> bool {
        let is_within = match self.neighbors.get_mut(&neighbor) {
            Some(entry) => {
                let is_within = entry.paths + entry.quarantined < self.config.max_paths;
                if !is_within && !core::mem::replace(&mut entry.is_limited, true) {
                    self.events.push_back(RsvpEvent::Limited { neighbor });
                }
                is_within
            }
            None => {
                let others = self.neighbors.keys().filter(|other| other.interface == neighbor.interface);
                others.count() < self.config.max_neighbors
            }
        };
        self.counters.limited += u64::from(!is_within);
        is_within
    }

    pub(super) fn release_neighbor(&mut self, neighbor: RsvpNeighbor, as_previous_hop: bool) {
        if let Some(entry) = self.neighbors.get_mut(&neighbor) {
            entry.uses -= 1;
            entry.paths -= usize::from(as_previous_hop);
        }
        self.drop_neighbor_if_unused(neighbor);
    }

    fn drop_neighbor_if_unused(&mut self, neighbor: RsvpNeighbor) {
        let max_paths = self.config.max_paths;
        let Some(entry) = self.neighbors.get_mut(&neighbor) else { return };
        entry.is_limited &= entry.paths + entry.quarantined >= max_paths;
        if entry.uses == 0 && entry.quarantined == 0 && entry.sent.is_empty() {
            self.neighbors.remove(&neighbor);
            self.agenda.cancel(Timer::Hello(neighbor));
            self.agenda.cancel(Timer::HelloTimeout(neighbor));
            self.agenda.cancel(Timer::SummaryRefresh(neighbor));
        }
    }

    /// Puts a label into quarantine until the previous hop can no longer have a reservation with it.
    pub(super) fn quarantine(&mut self, now: Instant, label: LabelValue, advertised_to: RsvpNeighbor) {
        if let Some(entry) = self.neighbors.get_mut(&advertised_to) {
            entry.quarantined += 1;
        }
        self.quarantine.insert(label, advertised_to);
        let end = lifetime(self.config.refresh) + self.config.refresh;
        self.agenda.set(Timer::Label(label), now + end);
    }

    pub(super) fn end_quarantine(&mut self, label: LabelValue) {
        let Some(neighbor) = self.quarantine.remove(&label) else { return };
        self.labels.release(label);
        if let Some(entry) = self.neighbors.get_mut(&neighbor) {
            entry.quarantined -= 1;
        }
        self.drop_neighbor_if_unused(neighbor);
    }

    /// Returns the refresh period for TIME_VALUES objects, milliseconds.
    pub(super) fn refresh_ms(&self) -> u32 {
        u32::try_from(self.config.refresh.0 / 1_000_000).unwrap_or(u32::MAX)
    }
}

fn refresh_timer(slot: Slot) -> Timer {
    match slot {
        Slot::Path(lsp) => Timer::PathRefresh(lsp),
        Slot::Resv(lsp) => Timer::ResvRefresh(lsp),
    }
}

/// Returns the cleanup timeout of a state with this refresh period: three refreshes may be lost (RFC 2205 section 3.7).
pub(super) fn lifetime(refresh: Duration) -> Duration {
    refresh.clamp(MIN_REFRESH, MAX_REFRESH) * 21 / 4
}

/// Returns whether a message is older than the last one about the same state (RFC 2961 section 4.5).
pub(super) fn is_stale(last: Option<MessageId>, current: Option<MessageId>) -> bool {
    match (last, current) {
        (Some(last), Some(current)) => {
            last.epoch == current.epoch && (current.id.wrapping_sub(last.id) as i32) < 0
        }
        _ => false,
    }
}
