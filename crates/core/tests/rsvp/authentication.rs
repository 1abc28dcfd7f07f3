//! Authentication between two routers, and an attacker on their link that records, repeats, reflects, reorders, changes
//! and drops messages, and invents challenges. The truth is a list of the messages in the order of their transmission.

use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::rsvp::{
    RsvpAuthentication, RsvpConfig, RsvpEvent, RsvpInterface, RsvpKey, RsvpNeighbor, RsvpReception,
    RsvpSpeaker, RsvpTransmit, TunnelRequest,
};
use netstage_core::time::{Duration, Instant};
use netstage_wire::rsvp::object::{Challenge, Hello, Hop, Object, Sender, Session};
use netstage_wire::rsvp::route::RouteHop;
use netstage_wire::rsvp::write::RsvpWriter;
use netstage_wire::rsvp::{RsvpPacket, kind};
use std::net::Ipv4Addr;

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const KEY: u64 = 7;

/// Stands for HMAC-MD5.
fn digest(secret: &[u8], message: &[u8]) -> [u8; 16] {
    let mut state = [0x9e37_79b9_7f4a_7c15_u64, 0xd1b5_4a32_d192_ed03];
    for byte in secret.iter().chain(message).chain(secret) {
        state[0] = (state[0] ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(7);
        state[1] = state[1].wrapping_add(state[0]).rotate_left(31).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
    [state[0].to_be_bytes(), state[1].to_be_bytes()].concat().try_into().unwrap()
}

fn written(kind: u8, objects: &[Object<'_>]) -> Vec<u8> {
    let mut bytes = [0; 200];
    let mut writer = RsvpWriter::new(&mut bytes, kind, 0, 1).unwrap();
    objects.iter().for_each(|object| writer.object(object).unwrap());
    writer.finish().to_vec()
}

fn transmit(from: usize, bytes: Vec<u8>) -> RsvpTransmit {
    let to = RsvpNeighbor { interface: 1, address: ADDRESSES[1 - from] };
    RsvpTransmit {
        to,
        source: ADDRESSES[from],
        destination: to.address,
        ttl: 1,
        has_router_alert: false,
        bytes,
    }
}

fn keys(secrets: &[&str]) -> Vec<RsvpKey> {
    let keys = secrets.iter().enumerate();
    keys.map(|(place, secret)| RsvpKey { number: KEY + place as u64, secret: secret.as_bytes().to_vec() })
        .collect()
}

fn authentication(router: usize, instance: u64, secrets: &[&str]) -> RsvpAuthentication {
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&(instance << 1 | router as u64).to_be_bytes());
    let id = Ipv4Addr::new(10, 255, 0, router as u8);
    let mut authentication = RsvpAuthentication::new(id, digest, 1_700_000_000_000_000_000, secret);
    let interface = RsvpInterface { address: ADDRESSES[router], length: 24, bandwidth: None };
    authentication.set_interface(1, &interface, keys(secrets));
    authentication
}

/// Two routers with a key, and the attacker.
struct Link {
    now: Instant,
    random: RandomStream,
    routers: [RsvpAuthentication; 2],
    instances: u64,
    /// Every message ever sent, with its sender.
    sent: Vec<(usize, Vec<u8>)>,
    /// Position in `sent` of the last message that each router accepted from the other.
    accepted: [Option<usize>; 2],
    /// Contents, which make each message unique.
    number: u32,
}

impl Link {
    fn new(seed: u64) -> Link {
        Link {
            now: Instant(1_000_000_000),
            random: RandomStream::new(seed, "authentication"),
            routers: [0, 1].map(|router| authentication(router, 0, &["secret"])),
            instances: 0,
            sent: Vec::new(),
            accepted: [None; 2],
            number: 0,
        }
    }

    /// Sends a message: a hello or a path message.
    fn send(&mut self, from: usize) -> usize {
        self.number += 1;
        let hello = Hello { is_request: true, source: self.number, destination: 0 };
        let session = Session { endpoint: ADDRESSES[1], tunnel: self.number, extended: 0 };
        let bytes = if self.random.below(2) == 0 {
            written(kind::HELLO, &[Object::Hello(hello)])
        } else {
            let hop = Object::Hop(Hop { address: ADDRESSES[from], interface: 0 });
            let sender = Object::SenderTemplate(Sender { address: Ipv4Addr::LOCALHOST, lsp: 1 });
            written(kind::PATH_TEAR, &[Object::Session(session), hop, sender])
        };
        let signed = self.routers[from].sign(self.now, transmit(from, bytes));
        self.record(from, signed.bytes)
    }

    fn record(&mut self, from: usize, bytes: Vec<u8>) -> usize {
        self.sent.push((from, bytes));
        self.sent.len() - 1
    }

    /// Delivers a message, and the challenges and responses that follow if the link loses nothing.
    fn deliver(&mut self, to: usize, bytes: &[u8], loses: bool) -> bool {
        match self.routers[to].receive(self.now, 1, ADDRESSES[1 - to], bytes) {
            // Such a message is counted by the speaker.
            RsvpReception::Accept if RsvpPacket::new(bytes).is_err() => {}
            RsvpReception::Accept => {
                let place = self.sent.iter().position(|(_, sent)| sent == bytes);
                let place = place.expect("an accepted message was sent by a router");
                assert_eq!(self.sent[place].0, 1 - to, "accepted its own message");
                assert!(self.accepted[to] < Some(place), "accepted an old message");
                self.accepted[to] = Some(place);
                return true;
            }
            RsvpReception::Drop => {}
            RsvpReception::Challenge(message) | RsvpReception::Respond(message) => {
                assert_eq!((message.source, message.destination), (ADDRESSES[to], ADDRESSES[1 - to]));
                let place = self.record(to, message.bytes);
                if !loses {
                    let bytes = self.sent[place].1.clone();
                    self.deliver(1 - to, &bytes, loses);
                }
            }
        }
        false
    }

    /// One step of the attacker or of a router.
    fn step(&mut self) {
        let router = self.random.below(2) as usize;
        self.now += Duration(self.random.below(400_000_000));
        match self.random.below(12) {
            0..5 => {
                let place = self.send(router);
                if self.random.below(4) > 0 {
                    let (bytes, loses) = (self.sent[place].1.clone(), self.random.below(3) == 0);
                    self.deliver(1 - router, &bytes, loses);
                }
            }
            // Repeats a message, to the other router or to its sender.
            5..9 if !self.sent.is_empty() => {
                let place = self.random.below(self.sent.len() as u64) as usize;
                let bytes = self.sent[place].1.clone();
                self.deliver(router, &bytes, true);
            }
            9 if !self.sent.is_empty() => {
                let place = self.random.below(self.sent.len() as u64) as usize;
                let mut bytes = self.sent[place].1.clone();
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
                self.deliver(router, &bytes, true);
            }
            10 => {
                let challenge = Object::Challenge(Challenge { key: KEY, cookie: &[9; 16] });
                self.deliver(router, &written(kind::INTEGRITY_CHALLENGE, &[challenge]), true);
            }
            11 if self.random.below(5) == 0 => {
                self.instances += 1;
                self.routers[router] = authentication(router, self.instances, &["secret"]);
            }
            _ => {}
        }
    }
}

#[test]
fn only_new_messages_of_the_neighbor_are_accepted() {
    let seed = netstage_harness::seed("RSVP authentication");
    for case in 0..300 {
        let mut link = Link::new(seed + case);
        (0..200).for_each(|_| link.step());
        // After the attack, a message of each router and one more arrive.
        for router in [0, 1] {
            link.now += Duration::from_secs(2);
            let found = [(); 2].map(|()| {
                let place = link.send(router);
                let bytes = link.sent[place].1.clone();
                link.deliver(1 - router, &bytes, false)
            });
            assert!(found[1], "seed {}", seed + case);
        }
    }
}

#[test]
fn each_reason_is_counted() {
    let mut routers = [authentication(0, 0, &["new", "old"]), authentication(1, 0, &["new", "old"])];
    let now = Instant(1);
    let hello = written(kind::HELLO, &[Object::Hello(Hello { is_request: true, source: 1, destination: 0 })]);
    let mut other = authentication(0, 9, &["wrong"]);
    let wrong = other.sign(now, transmit(0, hello.clone())).bytes;
    let signed = routers[0].sign(now, transmit(0, hello.clone())).bytes;
    let mut unknown = signed.clone();
    unknown[19] = 99;
    for bytes in [&hello, &wrong, &unknown, &signed] {
        routers[1].receive(now, 1, ADDRESSES[0], bytes);
    }
    // A message of the router itself.
    let own = routers[1].sign(now, transmit(1, hello.clone())).bytes;
    routers[1].receive(now, 1, ADDRESSES[0], &own);
    let counters = routers[1].counters();
    assert_eq!(
        (counters.unauthenticated, counters.wrong_digest, counters.unknown_key, counters.reflected),
        (1, 1, 1, 1)
    );
    assert_eq!((counters.unchallenged, counters.challenges, counters.replayed), (1, 1, 0));
    // Another interface has no keys.
    assert_eq!(routers[1].receive(now, 2, ADDRESSES[0], &hello), RsvpReception::Accept);
    // A neighbor that signs with the old key is accepted after its handshake.
    let mut previous = authentication(0, 4, &[]);
    let interface = RsvpInterface { address: ADDRESSES[0], length: 24, bandwidth: None };
    previous.set_interface(1, &interface, keys(&["new", "old"]).split_off(1));
    let signed = |previous: &mut RsvpAuthentication| previous.sign(now, transmit(0, hello.clone())).bytes;
    let bytes = signed(&mut previous);
    let RsvpReception::Challenge(challenge) = routers[1].receive(now, 1, ADDRESSES[0], &bytes) else {
        panic!("not challenged");
    };
    assert_eq!(RsvpPacket::new(&challenge.bytes).unwrap().kind, kind::INTEGRITY_CHALLENGE);
    let RsvpReception::Respond(response) = previous.receive(now, 1, ADDRESSES[1], &challenge.bytes) else {
        panic!("no response");
    };
    assert_eq!(routers[1].receive(now, 1, ADDRESSES[0], &response.bytes), RsvpReception::Drop);
    let bytes = signed(&mut previous);
    assert_eq!(routers[1].receive(now, 1, ADDRESSES[0], &bytes), RsvpReception::Accept);
    assert_eq!(routers[1].receive(now, 1, ADDRESSES[0], &bytes), RsvpReception::Drop);
    assert_eq!(routers[1].counters().replayed, 1);
}

/// Two speakers set up an LSP in the time of the handshakes, long before the first refresh.
#[test]
fn a_neighbor_gets_the_messages_again_that_it_has_dropped() {
    let mut now = Instant(1_000_000_000);
    let router = |number: usize| Ipv4Addr::new(10, 255, 0, number as u8);
    let mut speakers =
        [0, 1].map(|number| RsvpSpeaker::new(RsvpConfig::new(router(number), 1 + number as u32)));
    let mut routers = [0, 1].map(|number| authentication(number, 0, &["secret"]));
    for (number, speaker) in speakers.iter_mut().enumerate() {
        let interface = RsvpInterface { address: ADDRESSES[number], length: 24, bandwidth: None };
        speaker.set_interface(now, 1, interface);
    }
    let route = vec![RouteHop::strict(ADDRESSES[1])];
    let request = TunnelRequest {
        endpoint: router(1),
        route,
        bandwidth: BitRate(0),
        name: Vec::new(),
        is_protected: false,
    };
    speakers[0].set_tunnel(now, 1, request);
    let end = now + Duration::from_secs(1);
    while now < end {
        let mut answers = Vec::new();
        for from in [0, 1] {
            speakers[from].handle_timeout(now);
            while let Some(transmit) = speakers[from].poll_transmit() {
                answers.push((from, routers[from].sign(now, transmit)));
            }
        }
        while let Some((from, message)) = answers.pop() {
            let to = 1 - from;
            match routers[to].receive(now, 1, message.source, &message.bytes) {
                RsvpReception::Accept => speakers[to].handle_packet(now, 1, message.source, &message.bytes),
                RsvpReception::Drop => {}
                RsvpReception::Challenge(challenge) => answers.push((to, challenge)),
                RsvpReception::Respond(response) => {
                    speakers[to].repeat(response.to);
                    answers.push((to, response));
                }
            }
        }
        now += Duration::from_millis(10);
    }
    let is_up = |event| matches!(event, RsvpEvent::Up { .. });
    assert!(std::iter::from_fn(|| speakers[0].poll_event()).any(is_up));
    assert!(routers.iter().all(|router| router.counters().responses == 1));
}

/// Two routers on no common link, which signal a repaired LSP.
#[test]
fn messages_between_links_need_a_common_key() {
    let now = Instant(1);
    let id = |router: usize| Ipv4Addr::new(10, 255, 0, router as u8);
    let path = |router| {
        let session = Object::Session(Session { endpoint: ADDRESSES[1], tunnel: 1, extended: 0 });
        let hop = Object::Hop(Hop { address: id(router), interface: 0 });
        let sender = Object::SenderTemplate(Sender { address: ADDRESSES[0], lsp: 1 });
        transmit(router, written(kind::PATH_TEAR, &[session, hop, sender]))
    };
    let mut routers = [authentication(0, 0, &["secret"]), authentication(1, 0, &["secret"])];
    let plain = path(0).bytes;
    assert_eq!(routers[1].receive(now, 1, id(0), &plain), RsvpReception::Drop);
    let other = authentication(0, 5, &["other"]).sign(now, path(0)).bytes;
    assert_eq!(routers[1].receive(now, 1, id(0), &other), RsvpReception::Drop);
    assert_eq!((routers[1].counters().unauthenticated, routers[1].counters().wrong_digest), (1, 1));
    let signed = routers[0].sign(now, path(0)).bytes;
    let RsvpReception::Challenge(challenge) = routers[1].receive(now, 1, id(0), &signed) else {
        panic!("not challenged");
    };
    assert_eq!((challenge.source, challenge.destination, challenge.ttl), (id(1), id(0), 255));
    let RsvpReception::Respond(response) = routers[0].receive(now, 1, challenge.source, &challenge.bytes)
    else {
        panic!("no response");
    };
    assert_eq!((response.source, response.destination, response.ttl), (id(0), id(1), 255));
    assert_eq!(routers[1].receive(now, 1, response.source, &response.bytes), RsvpReception::Drop);
    let signed = routers[0].sign(now, path(0)).bytes;
    assert_eq!(routers[1].receive(now, 1, id(0), &signed), RsvpReception::Accept);
    assert_eq!(routers[1].receive(now, 1, id(0), &signed), RsvpReception::Drop);
}
