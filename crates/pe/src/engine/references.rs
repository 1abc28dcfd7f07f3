//! Reference flows of relative weights, and their last known values.
//!
//! A reference is either a VPN flow of this router, which measures it and publishes the values to the peers
//! that follow it, or a flow of a peer, which publishes its values to this router. In both cases one entry
//! holds the values, and every VPN flow whose control names the reference uses them. Values older than
//! [`REFERENCE_AGE`] are not used; the nominal flow replaces them.
//!
//! Messages ([`netstage_core::fair::publication`]) belong to the path between two routers and to no VPN. The
//! generic associated channel label (GAL) lies directly beneath the tunnel label. It is the only label in
//! MPLS-in-UDP and after penultimate hop popping (RFC 5586 section 4.2.1).

use super::network::ReceivingTunnel;
use super::pool::{HEADROOM, StoredPacket};
use super::{Counter, EngineState, Keys, PacketDrop, flows};
use netstage_core::edge::ProviderEdge;
use netstage_core::fair::publication::{self, PublicationReceiver};
use netstage_core::fair::{PublishedReference, REFERENCE_AGE};
use netstage_core::time::Instant;
use netstage_scenario::pe::{self, PeConfig, ReferenceSource, VpnFlowConfig};
use netstage_wire::gach::{self, channel};
use netstage_wire::mpls::{LabelStackEntry, LabelValue};
use netstage_wire::reference::ReferenceMessage as Message;

/// Replaces the two labels of a VPN flow in the digest; no VPN flow has these labels.
const CHANNEL: [LabelValue; 2] = [LabelValue::GENERIC_CHANNEL; 2];

/// All references, in configuration order.
#[derive(Debug, Default)]
pub(super) struct References {
    list: Vec<EngineReference>,
    /// Next publication of local references; never if there are none.
    due: Instant,
}

#[derive(Debug)]
struct EngineReference {
    name: String,
    number: u32,
    role: ReferenceRole,
    /// Number of VPN flows that follow the reference.
    followers: u32,
    /// Start of waiting for values.
    since: Instant,
    is_old: bool,
    counts: ReferenceCounts,
}

#[derive(Debug)]
enum ReferenceRole {
    /// Measured by a VPN flow of this router and published to these peers. The flow is woken before the first
    /// publication, even if it has nothing to send, since followers wait for its measurements.
    Own { flow: u32, peers: Vec<u32>, sent_ns: u64, is_awake: bool },
    /// Measured and published by a peer.
    Followed { peer: u32, heard: PublicationReceiver },
    /// Measured by another engine of this router.
    Elsewhere,
}

/// Counts of messages about a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferenceCounts {
    /// Sent to peers.
    pub published: u64,
    /// Received and accepted.
    pub received: u64,
    /// Received and rejected.
    pub refused: u64,
}

impl References {
    /// Collects all references with the number of flows that follow each. If the flow of a reference is not
    /// in this part of the router, another engine measures it.
    pub fn new(router: &PeConfig) -> References {
        let role = |source: &ReferenceSource| match source {
            ReferenceSource::Peer(peer) => {
                ReferenceRole::Followed { peer: *peer as u32, heard: PublicationReceiver::default() }
            }
            ReferenceSource::Flow { vpn, peer, publish_to } => {
                let is_source =
                    |(of_vpn, flow): (usize, &VpnFlowConfig)| of_vpn == *vpn && flow.peer == *peer;
                flows::all(router).position(is_source).map_or(ReferenceRole::Elsewhere, |flow| {
                    ReferenceRole::Own {
                        flow: flow as u32,
                        peers: publish_to.iter().map(|peer| *peer as u32).collect(),
                        sent_ns: 0,
                        is_awake: false,
                    }
                })
            }
        };
        let reference = |reference: &pe::ReferenceConfig| EngineReference {
            name: reference.name.clone(),
            number: reference.number,
            role: role(&reference.source),
            followers: 0,
            since: Instant::ZERO,
            is_old: false,
            counts: ReferenceCounts::default(),
        };
        let mut list: Vec<EngineReference> = router.references.iter().map(reference).collect();
        for number in flows::all(router).filter_map(|(_, flow)| flow.reference()) {
            list[number].followers += 1;
        }
        let is_own = |reference: &EngineReference| matches!(reference.role, ReferenceRole::Own { .. });
        let due = if list.iter().any(is_own) { Instant::ZERO } else { Instant::NEVER };
        References { list, due }
    }

    /// Returns the time of the next publication.
    pub fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Returns the references that became stale or fresh since the last call, each with its present
    /// staleness.
    pub fn watch<H: netstage_core::packet::QueuePacket>(
        &mut self,
        now: Instant,
        edge: &ProviderEdge<H>,
    ) -> Vec<(usize, bool)> {
        let list = self.list.iter_mut().enumerate();
        let changed = list.filter_map(|(number, reference)| {
            let heard_at = edge.reference(number).map_or(reference.since, |published| published.at);
            let is_old = now.since(heard_at) > REFERENCE_AGE;
            (std::mem::replace(&mut reference.is_old, is_old) != is_old).then_some((number, is_old))
        });
        changed.collect()
    }
}

impl EngineState {
    /// Measures local references and publishes them to their followers, if due.
    #[inline]
    pub(super) fn publish(&mut self, now: Instant) {
        if now >= self.references.due {
            self.publish_all(now);
        }
    }

    #[cold]
    fn publish_all(&mut self, now: Instant) {
        self.references.due = now + publication::PUBLICATION_INTERVAL;
        let mut references = std::mem::take(&mut self.references.list);
        for (number, reference) in references.iter_mut().enumerate() {
            let ReferenceRole::Own { flow, peers, sent_ns, is_awake } = &mut reference.role else { continue };
            if !std::mem::replace(is_awake, true) {
                self.edge.wake(now, *flow as usize);
            }
            // A flow with a silent peer measures nothing; its followers must notice.
            if self.edge.silent_since(*flow as usize).is_some() {
                continue;
            }
            let Some(published) = self.edge.publish(now, *flow as usize) else { continue };
            self.edge.handle_reference(number, published);
            // Timestamps must stay distinct after the clock is set back.
            *sent_ns = self.epoch_unix_ns.saturating_add(now.0).max(*sent_ns + 1);
            let Some(message) = publication::message(reference.number, &published, *sent_ns) else {
                continue;
            };
            for peer in peers.iter() {
                match self.send_reference(*peer as usize, &message) {
                    Ok(()) => reference.counts.published += 1,
                    Err(refused) => self.count(refused),
                }
            }
        }
        self.references.list = references;
    }

    fn send_reference(&mut self, number: usize, message: &Message) -> Result<(), PacketDrop> {
        let buffer = self.pool.take().ok_or(Counter::BuffersExhausted)?;
        let keys = self.peers[number].keys.as_ref();
        let bytes = &mut self.pool.bytes(buffer)[HEADROOM + gach::HEADER..];
        let written =
            Keys::between(keys, CHANNEL, |authentication| publication::write(message, authentication, bytes));
        let length = gach::HEADER + written.expect("a buffer holds the minimum IPv6 packet");
        self.encapsulate_path_message(number, channel::REFERENCE, StoredPacket::new(buffer, length as u16))
    }

    /// Handles a message of the path itself, received through this port and tunnel. `above` are the labels
    /// above the GAL.
    #[cold]
    pub(super) fn handle_path_message(
        &mut self,
        at: Instant,
        way: (usize, Option<&ReceivingTunnel>),
        above: impl Iterator<Item = LabelStackEntry>,
        message: &[u8],
    ) -> Result<(), PacketDrop> {
        match gach::read(message) {
            Ok(channel::REFERENCE) => {}
            Ok(channel::NEWS) => return self.handle_news(at, way, above, &message[gach::HEADER..]),
            Ok(_) => return Err(Counter::ChannelUnknown.into()),
            Err(_) => return Err(Counter::MessageMalformed.into()),
        }
        let bytes = &message[gach::HEADER..];
        let (message, length) = Message::read(bytes).map_err(|_| Counter::ReferenceMalformed)?;
        let bytes = &bytes[..length];
        let find = |reference: &EngineReference| reference.number == message.number;
        let number = self.references.list.iter().position(find).ok_or(Counter::ReferenceUnknown)?;
        let taken = self.take_reference(at, number, way, above, &message, bytes);
        let reference = &mut self.references.list[number];
        match taken {
            Ok((published, role)) => {
                reference.counts.received += 1;
                reference.role = role;
                self.edge.handle_reference(number, published);
                Ok(())
            }
            Err(counter) => {
                reference.counts.refused += 1;
                Err(counter.into())
            }
        }
    }

    /// Validates a message. Returns its values and the updated role.
    fn take_reference(
        &self,
        at: Instant,
        number: usize,
        (port, tunnel): (usize, Option<&ReceivingTunnel>),
        mut above: impl Iterator<Item = LabelStackEntry>,
        message: &Message,
        bytes: &[u8],
    ) -> Result<(PublishedReference, ReferenceRole), Counter> {
        let ReferenceRole::Followed { peer, mut heard } = self.references.list[number].role else {
            return Err(Counter::ReferenceForeign);
        };
        let is_from_peer = self.is_from_peer(peer as usize, port, tunnel)?
            && above.all(|entry| self.may_be_above(peer as usize, entry.label));
        if !is_from_peer {
            return Err(Counter::ReferenceForeign);
        }
        let keys = self.peers[peer as usize].keys.as_ref();
        let taken =
            Keys::between(keys, CHANNEL, |authentication| heard.accept(at, message, bytes, authentication));
        let published = taken.map_err(|refused| match refused {
            publication::PublicationError::Tlv | publication::PublicationError::Impossible(_) => {
                Counter::ReferenceMalformed
            }
            publication::PublicationError::Digest => Counter::ReferenceForged,
            publication::PublicationError::NotNewer => Counter::ReferenceReplayed,
        })?;
        Ok((published, ReferenceRole::Followed { peer, heard }))
    }

    /// Adopts the values of references that are in both configurations.
    pub(super) fn take_over_references(&mut self, now: Instant, old: &mut EngineState) {
        let mut list = std::mem::take(&mut self.references.list);
        for (number, reference) in list.iter_mut().enumerate() {
            reference.since = now;
            let is_same = |known: &EngineReference| {
                known.number == reference.number
                    && match (&known.role, &reference.role) {
                        (ReferenceRole::Own { flow: known, .. }, ReferenceRole::Own { flow, .. }) => {
                            old.flow_names(*known as usize) == self.flow_names(*flow as usize)
                        }
                        (
                            ReferenceRole::Followed { peer: known, .. },
                            ReferenceRole::Followed { peer, .. },
                        ) => old.names.peers[*known as usize] == self.names.peers[*peer as usize],
                        (ReferenceRole::Elsewhere, ReferenceRole::Elsewhere) => true,
                        _ => false,
                    }
            };
            let Some(known) = old.references.list.iter().position(is_same) else { continue };
            if let Some(published) = old.edge.reference(known) {
                self.edge.handle_reference(number, *published);
            }
            let known = &mut old.references.list[known];
            (reference.since, reference.is_old, reference.counts) = (known.since, known.is_old, known.counts);
            match (&known.role, &mut reference.role) {
                (ReferenceRole::Own { sent_ns: known, .. }, ReferenceRole::Own { sent_ns, is_awake, .. }) => {
                    (*sent_ns, *is_awake) = (*known, true);
                }
                (ReferenceRole::Followed { heard: known, .. }, ReferenceRole::Followed { heard, .. }) => {
                    *heard = *known
                }
                (ReferenceRole::Elsewhere, ReferenceRole::Elsewhere) => {}
                _ => unreachable!("both have one role"),
            }
        }
        self.references.list = list;
    }

    /// Returns all references with their values.
    pub(super) fn reference_views(&self) -> impl ExactSizeIterator<Item = ReferenceView<'_>> {
        self.references.list.iter().enumerate().map(|(number, reference)| {
            let peer = |peer: &u32| self.names.peers[*peer as usize].as_str();
            ReferenceView {
                name: &reference.name,
                number: reference.number,
                source: match &reference.role {
                    ReferenceRole::Own { flow, peers, .. } => {
                        let (vpn, far) = self.flow_names(*flow as usize);
                        MeasurementSource::Flow {
                            vpn,
                            peer: far,
                            publish_to: peers.iter().map(peer).collect(),
                        }
                    }
                    ReferenceRole::Followed { peer: from, .. } => MeasurementSource::Peer(peer(from)),
                    ReferenceRole::Elsewhere => MeasurementSource::Elsewhere,
                },
                published: self.edge.reference(number).copied(),
                is_old: reference.is_old,
                followers: reference.followers,
                counts: reference.counts,
            }
        })
    }
}

/// Present state of a reference.
#[derive(Clone, Debug)]
pub struct ReferenceView<'a> {
    /// Name on this router.
    pub name: &'a str,
    /// Number in messages between routers.
    pub number: u32,
    /// Origin of the measurements.
    pub source: MeasurementSource<'a>,
    /// Last known values, with the time of measurement or arrival.
    pub published: Option<PublishedReference>,
    /// The values are too old, or none have arrived for too long.
    pub is_old: bool,
    /// Number of VPN flows that follow it.
    pub followers: u32,
    /// Counts of messages about it.
    pub counts: ReferenceCounts,
}

/// Origin of the measurements of a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeasurementSource<'a> {
    /// A VPN flow of this router.
    Flow {
        /// VPN of the flow.
        vpn: &'a str,
        /// Destination of the flow.
        peer: &'a str,
        /// Peers it is published to.
        publish_to: Vec<&'a str>,
    },
    /// This peer.
    Peer(&'a str),
    /// Another engine of this router.
    Elsewhere,
}
