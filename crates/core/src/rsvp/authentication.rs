//! Authentication of messages between neighbors (RFC 2747, 3097): a layer between a speaker and its interfaces.
//!
//! Each sent message has a sequence number and a digest (HMAC-MD5). A receiver accepts numbers in increasing order. It
//! learns the first number from a neighbor by a challenge, so that no recorded message is accepted after a restart. Numbers
//! are times, so those of a restarted router are above its earlier ones unless its clock was set back.
//!
//! Both directions may have the same key, and the digest does not cover IP addresses. So that a router recognizes its own
//! messages when somebody sends them back, its numbers contain a mark that only it can compute.
//!
//! Two routers that signal a repaired LSP through a bypass LSP are on no common link. A message between them is signed with
//! the key of the interface on which it leaves, and accepted if the interface on which it arrives has the same key.

use super::route::contains;
use super::{RsvpInterface, RsvpNeighbor, RsvpTransmit};
use crate::secret::equal;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::rsvp::object::{Challenge, DIGEST, HANDSHAKE, Integrity, Object, RawObject};
use netstage_wire::rsvp::write::{DIGEST_OFFSET, INTEGRITY, RsvpMessageFull, RsvpWriter, insert_integrity};
use netstage_wire::rsvp::{RsvpPacket, kind};

/// HMAC-MD5 (RFC 2104) of a message with a secret.
pub type RsvpDigest = fn(secret: &[u8], message: &[u8]) -> [u8; DIGEST];

/// Minimum time between two challenges to a neighbor, and between two responses to it.
const CHALLENGE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of neighbors per interface.
const MAX_NEIGHBORS: usize = 256;
/// Bits of a sequence number that mark its sender. The others are the time in units of 66 us.
const MARK_BITS: u32 = 16;
/// A challenge and its response do not leave the link, unless the neighbor is on none.
const LINK_TTL: u8 = 1;

/// Key of an interface, shared by all its neighbors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RsvpKey {
    /// Number, 48 bits.
    pub number: u64,
    /// Secret.
    pub secret: Vec<u8>,
}

/// Decision on a received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RsvpReception {
    /// Pass it to the speaker.
    Accept,
    /// Drop it.
    Drop,
    /// Drop it and send this challenge to its sender. Both answers may need a [next hop](super::RsvpSpeaker::routed).
    Challenge(RsvpTransmit),
    /// It was a challenge. Send this response, then repeat the messages to the neighbor, which has dropped them
    /// ([`RsvpSpeaker::repeat`](super::RsvpSpeaker::repeat)).
    Respond(RsvpTransmit),
}

/// Numbers of messages dropped by the authentication, and of its own messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RsvpAuthenticationCounters {
    /// Messages without INTEGRITY object.
    pub unauthenticated: u64,
    /// Messages with an unknown key.
    pub unknown_key: u64,
    /// Messages with a wrong digest.
    pub wrong_digest: u64,
    /// Messages whose sequence number is not above the last one.
    pub replayed: u64,
    /// Messages of this router that were sent back.
    pub reflected: u64,
    /// Messages from neighbors that had not answered a challenge yet.
    pub unchallenged: u64,
    /// Messages from further neighbors than an interface may have.
    pub limited: u64,
    /// Challenges sent.
    pub challenges: u64,
    /// Challenges answered.
    pub responses: u64,
}

/// Interface with authentication.
#[derive(Clone, Debug)]
struct Protected {
    address: Ipv4Addr,
    /// Prefix length of its subnet, bits.
    length: u8,
    /// The first key signs; all are accepted.
    keys: Vec<RsvpKey>,
}

/// Knowledge of a neighbor with a key.
#[derive(Clone, Copy, Debug)]
enum Association {
    /// It has to answer a challenge with this cookie.
    Challenged { cookie: [u8; DIGEST], at: Instant },
    /// Sequence number of its last accepted message.
    Known { last: u64 },
}

impl Association {
    fn is_answered_by(&self, answer: &[u8]) -> bool {
        matches!(self, Association::Challenged { cookie, .. } if equal(cookie, answer))
    }
}

/// Authentication on the interfaces of a speaker. Interfaces without keys send and accept messages as they are.
#[derive(Clone, Debug)]
pub struct RsvpAuthentication {
    /// Router ID.
    router: Ipv4Addr,
    digest: RsvpDigest,
    /// Secret of cookies and marks.
    secret: [u8; DIGEST],
    /// Time at the start of the clock, nanoseconds since 1970.
    epoch: u64,
    /// Time in the last sequence number.
    last_time: u64,
    interfaces: BTreeMap<u32, Protected>,
    /// Neighbors by key.
    associations: BTreeMap<(RsvpNeighbor, u64), Association>,
    /// Times of the last responses.
    responses: BTreeMap<RsvpNeighbor, Instant>,
    counters: RsvpAuthenticationCounters,
}

impl RsvpAuthentication {
    /// Creates the authentication of the speaker with a router ID. `epoch` is the time at [`Instant::ZERO`], nanoseconds
    /// since 1970; `secret` is random, and unknown to others.
    pub fn new(router: Ipv4Addr, digest: RsvpDigest, epoch: u64, secret: [u8; DIGEST]) -> RsvpAuthentication {
        RsvpAuthentication {
            router,
            digest,
            secret,
            epoch,
            last_time: 0,
            interfaces: BTreeMap::new(),
            associations: BTreeMap::new(),
            responses: BTreeMap::new(),
            counters: RsvpAuthenticationCounters::default(),
        }
    }

    /// Sets the keys of an interface. The first one signs, and all are accepted.
    pub fn set_interface(&mut self, number: u32, interface: &RsvpInterface, keys: Vec<RsvpKey>) {
        let protected = Protected { address: interface.address, length: interface.length, keys };
        if protected.keys.is_empty() {
            self.interfaces.remove(&number);
        } else {
            self.interfaces.insert(number, protected);
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> RsvpAuthenticationCounters {
        self.counters
    }

    /// Signs a message that the speaker sends. Each transmission has its own sequence number.
    pub fn sign(&mut self, now: Instant, transmit: RsvpTransmit) -> RsvpTransmit {
        self.sign_on(now, transmit.to.interface, transmit)
    }

    /// Signs a message with the key of an interface.
    fn sign_on(&mut self, now: Instant, interface: u32, mut transmit: RsvpTransmit) -> RsvpTransmit {
        if !self.interfaces.contains_key(&interface) {
            return transmit;
        }
        let sequence = self.next_sequence(now);
        let key = &self.interfaces[&interface].keys[0];
        let integrity = Integrity { flags: HANDSHAKE, key: key.number, sequence, digest: [0; DIGEST] };
        let length = transmit.bytes.len();
        transmit.bytes.resize(length + INTEGRITY, 0);
        // Messages of a speaker leave room for the object.
        if insert_integrity(&mut transmit.bytes, length, &integrity).is_ok() {
            let digest = (self.digest)(&key.secret, &transmit.bytes);
            transmit.bytes[DIGEST_OFFSET..DIGEST_OFFSET + DIGEST].copy_from_slice(&digest);
        }
        transmit
    }

    fn next_sequence(&mut self, now: Instant) -> u64 {
        self.last_time = (self.last_time + 1).max((self.epoch + now.0) >> MARK_BITS);
        self.last_time << MARK_BITS | self.mark(self.last_time)
    }

    fn mark(&self, time: u64) -> u64 {
        let digest = (self.digest)(&self.secret, &time.to_be_bytes());
        u64::from(u16::from_be_bytes([digest[0], digest[1]]))
    }

    /// Checks a message received from an IP source address.
    pub fn receive(&mut self, now: Instant, interface: u32, source: Ipv4Addr, bytes: &[u8]) -> RsvpReception {
        let Some(protected) = self.interfaces.get(&interface) else { return RsvpReception::Accept };
        // The speaker counts malformed messages.
        let Ok(packet) = RsvpPacket::new(bytes) else { return RsvpReception::Accept };
        let address = sender(&packet).unwrap_or(source);
        let from = match contains(protected.address, protected.length, address) {
            true => RsvpNeighbor { interface, address },
            false => RsvpNeighbor::remote(address),
        };
        if packet.kind == kind::INTEGRITY_CHALLENGE {
            return self.respond(now, interface, from, &packet);
        }
        let Some(Object::Integrity(integrity)) = first(&packet) else {
            self.counters.unauthenticated += 1;
            return RsvpReception::Drop;
        };
        let Some(key) = protected.keys.iter().find(|key| key.number == integrity.key) else {
            self.counters.unknown_key += 1;
            return RsvpReception::Drop;
        };
        let mut signed = bytes[..packet.length()].to_vec();
        signed[DIGEST_OFFSET..DIGEST_OFFSET + DIGEST].fill(0);
        if !equal(&(self.digest)(&key.secret, &signed), &integrity.digest) {
            self.counters.wrong_digest += 1;
            return RsvpReception::Drop;
        }
        let time = integrity.sequence >> MARK_BITS;
        let is_marked = integrity.sequence == time << MARK_BITS | self.mark(time);
        if is_marked || from.address == protected.address {
            self.counters.reflected += 1;
            return RsvpReception::Drop;
        }
        if packet.kind == kind::INTEGRITY_RESPONSE {
            self.complete(from, &integrity, &packet);
            return RsvpReception::Drop;
        }
        self.accept(now, from, &integrity)
    }

    /// Checks the sequence number of a message with a correct digest.
    fn accept(&mut self, now: Instant, from: RsvpNeighbor, integrity: &Integrity) -> RsvpReception {
        let answers = integrity.flags & HANDSHAKE != 0;
        match self.associations.get_mut(&(from, integrity.key)) {
            Some(Association::Known { last }) if integrity.sequence > *last => {
                *last = integrity.sequence;
                return RsvpReception::Accept;
            }
            Some(Association::Known { .. }) => {
                self.counters.replayed += 1;
                return RsvpReception::Drop;
            }
            Some(Association::Challenged { at, .. }) if now.since(*at) < CHALLENGE_INTERVAL => {
                self.counters.unchallenged += 1;
                return RsvpReception::Drop;
            }
            Some(Association::Challenged { .. }) => {}
            None => {
                let others = self.associations.keys().filter(|(other, _)| other.interface == from.interface);
                if others.count() >= MAX_NEIGHBORS {
                    self.counters.limited += 1;
                    return RsvpReception::Drop;
                }
            }
        }
        // Without a handshake, the first number counts (RFC 2747 section 4.2).
        if !answers {
            self.associations.insert((from, integrity.key), Association::Known { last: integrity.sequence });
            return RsvpReception::Accept;
        }
        self.counters.unchallenged += 1;
        self.challenge(now, from, integrity.key)
    }

    fn challenge(&mut self, now: Instant, to: RsvpNeighbor, key: u64) -> RsvpReception {
        self.counters.challenges += 1;
        // Two bytes more than the times for marks.
        let number = [&[0; 2][..], &self.counters.challenges.to_be_bytes()].concat();
        let cookie = (self.digest)(&self.secret, &number);
        self.associations.insert((to, key), Association::Challenged { cookie, at: now });
        let challenge = Challenge { key, cookie: &cookie };
        let message = self.message(to, kind::INTEGRITY_CHALLENGE, &challenge);
        message.map_or(RsvpReception::Drop, RsvpReception::Challenge)
    }

    /// Takes the sequence number of a neighbor that has answered the last challenge.
    fn complete(&mut self, from: RsvpNeighbor, integrity: &Integrity, packet: &RsvpPacket<'_>) {
        let expected = self.associations.get_mut(&(from, integrity.key));
        match (expected, challenge(packet)) {
            (Some(association), Some(challenge)) if association.is_answered_by(challenge.cookie) => {
                *association = Association::Known { last: integrity.sequence };
            }
            _ => self.counters.replayed += 1,
        }
    }

    /// Answers a challenge. Challenges are not authenticated, so their rate is limited.
    fn respond(
        &mut self,
        now: Instant,
        interface: u32,
        from: RsvpNeighbor,
        packet: &RsvpPacket<'_>,
    ) -> RsvpReception {
        let Some(challenge) = challenge(packet) else { return RsvpReception::Drop };
        let signs = |protected: &Protected| protected.keys[0].number == challenge.key;
        if !self.interfaces.get(&interface).is_some_and(signs) {
            self.counters.unknown_key += 1;
            return RsvpReception::Drop;
        }
        self.responses.retain(|_, at| now.since(*at) < CHALLENGE_INTERVAL);
        let others = self.responses.keys().filter(|other| other.interface == from.interface);
        if self.responses.contains_key(&from) || others.count() >= MAX_NEIGHBORS {
            return RsvpReception::Drop;
        }
        let Some(message) = self.message(from, kind::INTEGRITY_RESPONSE, &challenge) else {
            return RsvpReception::Drop;
        };
        self.responses.insert(from, now);
        self.counters.responses += 1;
        RsvpReception::Respond(self.sign_on(now, interface, message))
    }

    /// Returns a message with a challenge; `None` if the cookie is too long.
    fn message(&self, to: RsvpNeighbor, kind: u8, challenge: &Challenge<'_>) -> Option<RsvpTransmit> {
        let (source, ttl) = match to.is_remote() {
            true => (self.router, u8::MAX),
            false => (self.interfaces.get(&to.interface)?.address, LINK_TTL),
        };
        let mut buffer = [0; 128];
        let write = |buffer| {
            let mut writer = RsvpWriter::new(buffer, kind, 0, ttl)?;
            writer.object(&Object::Challenge(*challenge))?;
            Ok::<_, RsvpMessageFull>(writer.finish().to_vec())
        };
        let bytes = write(&mut buffer).ok()?;
        Some(RsvpTransmit { to, source, destination: to.address, ttl, has_router_alert: false, bytes })
    }
}

/// Returns the first object of a message.
fn first<'a>(packet: &RsvpPacket<'a>) -> Option<Object<'a>> {
    packet.objects().next()?.ok().and_then(|raw| Object::new(&raw).ok())
}

/// Returns the address of the router that has sent a message with an RSVP_HOP object. The IP source address of Path
/// messages is that of the ingress.
fn sender(packet: &RsvpPacket<'_>) -> Option<Ipv4Addr> {
    let of = |raw: RawObject<'_>| match Object::new(&raw) {
        Ok(Object::Hop(hop)) => Some(hop.address),
        _ => None,
    };
    packet.objects().flatten().find_map(of)
}

fn challenge<'a>(packet: &RsvpPacket<'a>) -> Option<Challenge<'a>> {
    packet.objects().flatten().find_map(|raw| match Object::new(&raw) {
        Ok(Object::Challenge(challenge)) => Some(challenge),
        _ => None,
    })
}
