//! References: flows that weights are relative to, and what is known of them here.
//!
//! A reference is a VPN flow of this router, which measures it and tells the peers that follow
//! it, or a peer's, which tells us. Either way one entry holds what is known, and every
//! VPN flow whose control names it computes with that. What is older than
//! [`REFERENCE_AGE`] nobody uses, and the nominal flow takes its place.
//!
//! Messages ([`netstage_core::fair::publication`]) belong to the path between two routers and to
//! no VPN: the generic associated channel's label lies directly beneath the tunnel's, or alone in
//! MPLS-in-UDP and where the last router has popped (RFC 5586 section 4.2.1).

use super::network::Tunnel;
use super::pool::{Buffered, HEADROOM};
use super::{Counter, Keys, Refused, State, flows};
use netstage_core::edge::Edge;
use netstage_core::fair::publication::{self, Heard};
use netstage_core::fair::{Published, REFERENCE_AGE};
use netstage_core::time::Instant;
use netstage_scenario::pe::{self, Flow, ReferenceSource, Router};
use netstage_wire::gach::{self, channel};
use netstage_wire::mpls::{Entry, Label};
use netstage_wire::reference::Reference as Message;

/// What stands for the two labels of a VPN flow in the digest: no VPN flow has them.
const CHANNEL: [Label; 2] = [Label::GENERIC_CHANNEL; 2];

/// All references, in the order of the configuration.
#[derive(Debug, Default)]
pub(super) struct References {
    list: Vec<Reference>,
    /// When own ones are looked at again; never if there are none.
    due: Instant,
}

#[derive(Debug)]
struct Reference {
    name: String,
    number: u32,
    role: Role,
    /// VPN flows that follow it.
    followers: u32,
    /// Since when it is asked for.
    since: Instant,
    is_old: bool,
    counts: Counts,
}

#[derive(Debug)]
enum Role {
    /// A VPN flow's, told to these peers, and when last. It asks soon, whether it has something to send
    /// or not, once it was told that others wait for what it measures.
    Own { flow: u32, peers: Vec<u32>, sent_ns: u64, is_awake: bool },
    /// A peer's.
    Followed { peer: u32, heard: Heard },
    /// Of another engine of this router.
    Elsewhere,
}

/// Messages about a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent to peers.
    pub published: u64,
    /// Received and believed.
    pub received: u64,
    /// Received and refused.
    pub refused: u64,
}

impl References {
    /// All references, and how many flows follow each. One whose flow is not in this part of the
    /// router is measured by another engine.
    pub fn new(router: &Router) -> References {
        let role = |source: &ReferenceSource| match source {
            ReferenceSource::Peer(peer) => Role::Followed { peer: *peer as u32, heard: Heard::default() },
            ReferenceSource::Flow { vpn, peer, publish_to } => {
                let is_it = |(of, flow): (usize, &Flow)| of == *vpn && flow.peer == *peer;
                flows::all(router).position(is_it).map_or(Role::Elsewhere, |flow| Role::Own {
                    flow: flow as u32,
                    peers: publish_to.iter().map(|peer| *peer as u32).collect(),
                    sent_ns: 0,
                    is_awake: false,
                })
            }
        };
        let reference = |reference: &pe::Reference| Reference {
            name: reference.name.clone(),
            number: reference.number,
            role: role(&reference.source),
            followers: 0,
            since: Instant::ZERO,
            is_old: false,
            counts: Counts::default(),
        };
        let mut list: Vec<Reference> = router.references.iter().map(reference).collect();
        for number in flows::all(router).filter_map(|(_, flow)| flow.reference()) {
            list[number].followers += 1;
        }
        let is_own = |reference: &Reference| matches!(reference.role, Role::Own { .. });
        let due = if list.iter().any(is_own) { Instant::ZERO } else { Instant::NEVER };
        References { list, due }
    }

    /// When to look at own ones at the latest.
    pub fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Those that have turned old, or are no more, and whether they are.
    pub fn watch<H: netstage_core::packet::Packet>(
        &mut self,
        now: Instant,
        edge: &Edge<H>,
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

impl State {
    /// Looks at own references, if it is time to, and tells their followers.
    #[inline]
    pub(super) fn publish(&mut self, now: Instant) {
        if now >= self.references.due {
            self.publish_all(now);
        }
    }

    #[cold]
    fn publish_all(&mut self, now: Instant) {
        self.references.due = now + publication::EVERY;
        let mut references = std::mem::take(&mut self.references.list);
        for (number, reference) in references.iter_mut().enumerate() {
            let Role::Own { flow, peers, sent_ns, is_awake } = &mut reference.role else { continue };
            if !std::mem::replace(is_awake, true) {
                self.edge.wake(now, *flow as usize);
            }
            // A flow whose peer is silent measures nothing; its followers shall notice.
            if self.edge.silent_since(*flow as usize).is_some() {
                continue;
            }
            let Some(published) = self.edge.publish(now, *flow as usize) else { continue };
            self.edge.handle_reference(number, published);
            // A clock set back must not make two look like one.
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

    fn send_reference(&mut self, number: usize, message: &Message) -> Result<(), Refused> {
        let buffer = self.pool.take().ok_or(Counter::BuffersExhausted)?;
        let keys = self.peers[number].keys.as_ref();
        let bytes = &mut self.pool.bytes(buffer)[HEADROOM + gach::HEADER..];
        let written =
            Keys::between(keys, CHANNEL, |authentication| publication::write(message, authentication, bytes));
        let length = gach::HEADER + written.expect("a buffer holds the least packet of IPv6");
        self.encapsulate_path_message(number, channel::REFERENCE, Buffered::new(buffer, length as u16))
    }

    /// A message of the path itself came by this port and tunnel, with these labels above the
    /// channel's.
    #[cold]
    pub(super) fn handle_path_message(
        &mut self,
        at: Instant,
        way: (usize, Option<&Tunnel>),
        above: impl Iterator<Item = Entry>,
        message: &[u8],
    ) -> Result<(), Refused> {
        match gach::read(message) {
            Ok(channel::REFERENCE) => {}
            Ok(_) => return Err(Counter::ChannelUnknown.into()),
            Err(_) => return Err(Counter::MessageMalformed.into()),
        }
        let bytes = &message[gach::HEADER..];
        let (message, length) = Message::read(bytes).map_err(|_| Counter::ReferenceMalformed)?;
        let bytes = &bytes[..length];
        let find = |reference: &Reference| reference.number == message.number;
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

    /// What a message tells, and what is remembered of it.
    fn take_reference(
        &self,
        at: Instant,
        number: usize,
        (port, tunnel): (usize, Option<&Tunnel>),
        mut above: impl Iterator<Item = Entry>,
        message: &Message,
        bytes: &[u8],
    ) -> Result<(Published, Role), Counter> {
        let Role::Followed { peer, mut heard } = self.references.list[number].role else {
            return Err(Counter::ReferenceForeign);
        };
        let is_from_peer = self.came_from(peer as usize, port, tunnel)?
            && above.all(|entry| self.may_be_above(peer as usize, entry.label));
        if !is_from_peer {
            return Err(Counter::ReferenceForeign);
        }
        let keys = self.peers[peer as usize].keys.as_ref();
        let taken =
            Keys::between(keys, CHANNEL, |authentication| heard.take(at, message, bytes, authentication));
        let published = taken.map_err(|refused| match refused {
            publication::Refused::Tlv | publication::Refused::Impossible(_) => Counter::ReferenceMalformed,
            publication::Refused::Digest => Counter::ReferenceForged,
            publication::Refused::Earlier => Counter::ReferenceReplayed,
        })?;
        Ok((published, Role::Followed { peer, heard }))
    }

    /// What was known of references both configurations have stays.
    pub(super) fn take_over_references(&mut self, now: Instant, old: &mut State) {
        let mut list = std::mem::take(&mut self.references.list);
        for (number, reference) in list.iter_mut().enumerate() {
            reference.since = now;
            let is_it = |known: &Reference| {
                known.number == reference.number
                    && match (&known.role, &reference.role) {
                        (Role::Own { flow: known, .. }, Role::Own { flow, .. }) => {
                            old.flow_names(*known as usize) == self.flow_names(*flow as usize)
                        }
                        (Role::Followed { peer: known, .. }, Role::Followed { peer, .. }) => {
                            old.names.peers[*known as usize] == self.names.peers[*peer as usize]
                        }
                        (Role::Elsewhere, Role::Elsewhere) => true,
                        _ => false,
                    }
            };
            let Some(known) = old.references.list.iter().position(is_it) else { continue };
            if let Some(published) = old.edge.reference(known) {
                self.edge.handle_reference(number, *published);
            }
            let known = &mut old.references.list[known];
            (reference.since, reference.is_old, reference.counts) = (known.since, known.is_old, known.counts);
            match (&known.role, &mut reference.role) {
                (Role::Own { sent_ns: known, .. }, Role::Own { sent_ns, is_awake, .. }) => {
                    (*sent_ns, *is_awake) = (*known, true);
                }
                (Role::Followed { heard: known, .. }, Role::Followed { heard, .. }) => *heard = *known,
                (Role::Elsewhere, Role::Elsewhere) => {}
                _ => unreachable!("both have one role"),
            }
        }
        self.references.list = list;
    }

    /// What is known of each reference.
    pub(super) fn reference_views(&self) -> impl ExactSizeIterator<Item = ReferenceView<'_>> {
        self.references.list.iter().enumerate().map(|(number, reference)| {
            let peer = |peer: &u32| self.names.peers[*peer as usize].as_str();
            ReferenceView {
                name: &reference.name,
                number: reference.number,
                source: match &reference.role {
                    Role::Own { flow, peers, .. } => {
                        let (vpn, far) = self.flow_names(*flow as usize);
                        Source::Flow { vpn, peer: far, publish_to: peers.iter().map(peer).collect() }
                    }
                    Role::Followed { peer: from, .. } => Source::Peer(peer(from)),
                    Role::Elsewhere => Source::Elsewhere,
                },
                published: self.edge.reference(number).copied(),
                is_old: reference.is_old,
                followers: reference.followers,
                counts: reference.counts,
            }
        })
    }
}

/// What is known of a reference.
#[derive(Clone, Debug)]
pub struct ReferenceView<'a> {
    /// Its name here.
    pub name: &'a str,
    /// Its number between routers.
    pub number: u32,
    /// Who measures it.
    pub source: Source<'a>,
    /// What is known of it, by the time it was measured or arrived here.
    pub published: Option<Published>,
    /// That is older than it may be, or there has been nothing for so long.
    pub is_old: bool,
    /// VPN flows that follow it.
    pub followers: u32,
    /// Messages about it.
    pub counts: Counts,
}

/// Who measures a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// A VPN flow of this router.
    Flow {
        /// Its VPN.
        vpn: &'a str,
        /// The peer it leads to.
        peer: &'a str,
        /// The peers that are told.
        publish_to: Vec<&'a str>,
    },
    /// This peer.
    Peer(&'a str),
    /// Another engine of this router.
    Elsewhere,
}
