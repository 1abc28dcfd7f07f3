//! RSVP-TE speakers with neighbors that follow the RFCs, fail, or do not follow them.

use crate::network::{Network, config, router_id};
use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::rsvp::{
    EgressLabel, Lsp, RsvpConfig, RsvpEvent, RsvpInterface, RsvpNeighbor, RsvpSpeaker, RsvpTransmit,
};
use netstage_core::time::{Duration, Instant};
use netstage_wire::mpls::LabelValue;
use netstage_wire::rsvp::message::RsvpMessage;
use netstage_wire::rsvp::object::{
    Hop, Object, Sender, Session, SessionAttribute, Style, TokenBucket, attribute_flag, class,
};
use netstage_wire::rsvp::route::{Route, RouteHop};
use netstage_wire::rsvp::write::RsvpWriter;
use netstage_wire::rsvp::{RsvpPacket, kind, routing_error};
use std::net::Ipv4Addr;

const START: Instant = Instant(1_000_000_000);
const SESSION: Session = Session { endpoint: Ipv4Addr::new(10, 255, 0, 9), tunnel: 7, extended: 1 };
const BUCKET: TokenBucket =
    TokenBucket { rate: 1000.0, size: 1000.0, peak: 1000.0, min_policed: 0, max_packet: 1500 };
/// Neighbors of the speaker under test, on its interfaces 1 and 2.
const UPSTREAM: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 9);
const DOWNSTREAM: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 9);
/// Router ID of the neighbor upstream, which has a bypass LSP to the speaker.
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 7);
const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);

fn written(kind: u8, objects: &[Object<'_>]) -> Vec<u8> {
    let mut bytes = [0; 1500];
    let mut writer = RsvpWriter::new(&mut bytes, kind, 0, 64).unwrap();
    objects.iter().for_each(|object| writer.object(object).unwrap());
    writer.finish().to_vec()
}

fn path(lsp: u32, route: &[RouteHop], recorded: &[RouteHop]) -> Vec<u8> {
    let sender = Sender { address: Ipv4Addr::new(10, 255, 0, 8), lsp };
    path_from(UPSTREAM, sender, 0, route, recorded)
}

/// Returns a Path message of a previous hop, with flags of its SESSION_ATTRIBUTE.
fn path_from(hop: Ipv4Addr, sender: Sender, flags: u8, route: &[RouteHop], recorded: &[RouteHop]) -> Vec<u8> {
    let attribute = SessionAttribute { affinities: None, setup: 7, holding: 7, flags, name: b"name" };
    let encode = |hops: &[RouteHop]| hops.iter().flat_map(|hop| hop.to_bytes().unwrap()).collect::<Vec<u8>>();
    let (route, recorded) = (encode(route), encode(recorded));
    written(
        kind::PATH,
        &[
            Object::Session(SESSION),
            Object::Hop(Hop { address: hop, interface: 5 }),
            Object::TimeValues(30_000),
            Object::ExplicitRoute(Route::new(&route, class::EXPLICIT_ROUTE).unwrap()),
            Object::LabelRequest(0x800),
            Object::SessionAttribute(attribute),
            Object::SenderTemplate(sender),
            Object::SenderTspec(BUCKET),
            Object::RecordRoute(Route::new(&recorded, class::RECORD_ROUTE).unwrap()),
        ],
    )
}

/// Returns a Path message of a repaired LSP: from the router `plr`, whose address on the failed link is `sender`.
fn backup(plr: Ipv4Addr, sender: Ipv4Addr, lsp: u32) -> Vec<u8> {
    let flags = attribute_flag::LOCAL_PROTECTION;
    path_from(plr, Sender { address: sender, lsp }, flags, &[RouteHop::strict(config(1).router)], &[])
}

fn resv(lsp: u32, label: LabelValue, handle: u32) -> Vec<u8> {
    written(
        kind::RESV,
        &[
            Object::Session(SESSION),
            Object::Hop(Hop { address: DOWNSTREAM, interface: handle }),
            Object::TimeValues(30_000),
            Object::Style(Style::SharedExplicit),
            Object::Flowspec(BUCKET),
            Object::FilterSpec(Sender { address: Ipv4Addr::new(10, 255, 0, 8), lsp }),
            Object::Label(label),
        ],
    )
}

fn speaker(config: RsvpConfig, bandwidth: Option<u64>) -> RsvpSpeaker {
    let mut speaker = RsvpSpeaker::new(config);
    for (number, address) in [(1, HERE), (2, Ipv4Addr::new(10, 0, 2, 1))] {
        let interface = RsvpInterface { address, length: 24, bandwidth: bandwidth.map(BitRate) };
        speaker.set_interface(START, number, interface);
    }
    speaker
}

/// Strict route through the speaker to its neighbor downstream.
fn through() -> [RouteHop; 2] {
    [RouteHop::strict(HERE), RouteHop::strict(DOWNSTREAM)]
}

fn sent(speaker: &mut RsvpSpeaker) -> Vec<RsvpTransmit> {
    core::iter::from_fn(|| speaker.poll_transmit()).collect()
}

fn events(speaker: &mut RsvpSpeaker) -> Vec<RsvpEvent> {
    core::iter::from_fn(|| speaker.poll_event()).collect()
}

/// Returns the errors in PathErr and ResvErr messages to a neighbor.
fn errors(speaker: &mut RsvpSpeaker, to: Ipv4Addr) -> Vec<(u8, u8, u16)> {
    let error = |transmit: &RsvpTransmit| {
        let message = RsvpMessage::new(&RsvpPacket::new(&transmit.bytes).unwrap()).unwrap();
        message.error.map(|error| (message.kind, error.code, error.value))
    };
    sent(speaker).iter().filter(|transmit| transmit.to.address == to).filter_map(error).collect()
}

#[test]
fn labels_lead_along_the_explicit_route() {
    for egress in [EgressLabel::ImplicitNull, EgressLabel::ExplicitNull, EgressLabel::Own] {
        let configs = (0..4).map(|router| RsvpConfig { egress, ..config(router) }).collect();
        let mut network = Network::new(configs, &[(0, 1), (1, 2), (2, 3), (0, 3)], None);
        let route = network.strict(&[0, 1, 2, 3]);
        network.set_tunnel((0, 1), network.request(3, route, 0));
        network.run(Duration::from_secs(1));
        network.check();
        let own = network.speakers[3].lsps().next().unwrap().incoming;
        let expected = match egress {
            EgressLabel::ImplicitNull => Some(LabelValue::IMPLICIT_NULL),
            EgressLabel::ExplicitNull => Some(LabelValue::IPV4_EXPLICIT_NULL),
            EgressLabel::Own => own.filter(|label| !label.is_reserved()),
        };
        let status = |router: usize| network.speakers[router].lsps().next().unwrap();
        assert!(expected.is_some() && status(2).outgoing == expected, "{:?}", status(2));
        assert_eq!(status(1).outgoing, status(2).incoming);
        assert!(network.is_up((0, 1)));
    }
}

#[test]
fn summary_refreshes_replace_path_and_resv_messages() {
    let sent = |reduces_refreshes: bool| {
        let mut network = Network::chain(3, reduces_refreshes);
        for tunnel in 0..50 {
            network.set_tunnel((0, tunnel), network.request(2, Vec::new(), 0));
        }
        network.run(Duration::from_secs(600));
        network.check();
        assert!((0..50).all(|tunnel| network.is_up((0, tunnel))));
        network.speakers[1].counters().sent
    };
    let (full, reduced) = (sent(false), sent(true));
    assert!(full > 2 * 50 * 600 / 45, "{full}");
    assert!(reduced * 2 < full, "{reduced} of {full} messages");
}

#[test]
fn an_lsp_and_its_replacement_share_bandwidth() {
    let configs = (0..3).map(config).collect();
    let mut network = Network::new(configs, &[(0, 1), (1, 2)], Some(1000));
    network.set_tunnel((0, 1), network.request(2, Vec::new(), 700));
    network.run(Duration::from_secs(1));
    network.set_tunnel((0, 2), network.request(2, Vec::new(), 200));
    network.set_tunnel((0, 1), network.request(2, Vec::new(), 800));
    network.run(Duration::from_secs(1));
    assert_eq!(network.reports["up"], 3, "both sizes of the first tunnel, and the second tunnel");
    assert_eq!(network.speakers[1].reserved(2), (BitRate(1000), 3), "packets may still be in the first LSP");
    network.run(Duration::from_secs(2));
    assert_eq!(network.speakers[1].reserved(2), (BitRate(1000), 2));
    network.set_tunnel((0, 2), network.request(2, Vec::new(), 208));
    network.run(Duration::from_secs(1));
    assert!(network.reports["failed"] > 0 && network.is_up((0, 2)), "the previous LSP stays in use");
    network.check();
}

#[test]
fn a_silent_neighbor_is_detected_by_hellos() {
    let hello = Some(Duration::from_secs(1));
    let configs = (0..3).map(|router| RsvpConfig { hello, ..config(router) }).collect();
    let mut network = Network::new(configs, &[(0, 1), (1, 2)], None);
    network.set_tunnel((0, 1), network.request(2, Vec::new(), 0));
    network.run(Duration::from_secs(10));
    assert!(network.is_up((0, 1)) && network.reports["neighbor up"] == 4);
    network.up[1] = false;
    network.run(Duration::from_secs(5));
    assert!(!network.is_up((0, 1)), "the reservation behind the silent neighbor is gone");
    assert_eq!(network.reports["neighbor down"], 2);
    network.up[1] = true;
    network.run(Duration::from_secs(60));
    assert!(network.is_up((0, 1)));
}

#[test]
fn errors_of_explicit_routes_are_named() {
    let other = RouteHop::strict(Ipv4Addr::new(192, 0, 2, 1));
    let [here, next] = through();
    for (route, recorded, value) in [
        (&[next][..], &[][..], routing_error::BAD_FIRST_HOP),
        (&[here, other], &[], routing_error::BAD_STRICT_HOP),
        (&[here, RouteHop::loose(Ipv4Addr::new(192, 0, 2, 1))], &[], routing_error::BAD_LOOSE_HOP),
        (&[here], &[], routing_error::NO_ROUTE),
        (&[here, RouteHop::strict(UPSTREAM)], &[], routing_error::LOOP),
        (&[here, next], &[here], routing_error::LOOP),
    ] {
        let mut speaker = speaker(config(1), None);
        speaker.handle_packet(START, 1, UPSTREAM, &path(1, route, recorded));
        assert_eq!(errors(&mut speaker, UPSTREAM), [(kind::PATH_ERROR, 24, value)], "{route:?}");
        assert_eq!((speaker.count(), speaker.neighbors()), (0, 0));
    }
}

#[test]
fn a_second_previous_hop_is_refused() {
    let mut speaker = speaker(config(1), None);
    speaker.handle_packet(START, 1, UPSTREAM, &path(1, &through(), &[]));
    let mut elsewhere = path(1, &through(), &[]);
    // The address in the hop object: message header, session, object header.
    elsewhere[8 + 16 + 4 + 3] = 10;
    elsewhere[2..4].fill(0);
    sent(&mut speaker);
    speaker.handle_packet(START, 1, Ipv4Addr::new(10, 0, 1, 10), &elsewhere);
    let error = (kind::PATH_ERROR, 24, routing_error::LOOP);
    assert_eq!(errors(&mut speaker, Ipv4Addr::new(10, 0, 1, 10)), [error]);
    assert_eq!(speaker.count(), 1);
}

#[test]
fn a_storm_of_paths_is_bounded() {
    let mut speaker = speaker(RsvpConfig { max_paths: 100, ..config(1) }, None);
    for lsp in 0..10_000 {
        speaker.handle_packet(START, 1, UPSTREAM, &path(lsp, &through(), &[]));
    }
    let neighbor = RsvpNeighbor { interface: 1, address: UPSTREAM };
    assert_eq!(events(&mut speaker), [RsvpEvent::Limited { neighbor }]);
    assert_eq!((speaker.count(), speaker.counters().limited), (100, 9_900));
    assert_eq!(errors(&mut speaker, UPSTREAM).len(), 9_900);
    // Labels in quarantine count as well.
    for lsp in 0..100 {
        speaker.handle_packet(START, 2, DOWNSTREAM, &resv(lsp, LabelValue::new(77).unwrap(), 2));
    }
    assert_eq!(speaker.labels(), (100, 0));
    let end = START + Duration::from_secs(158);
    while speaker.poll_timeout() <= end {
        speaker.handle_timeout(speaker.poll_timeout());
    }
    assert_eq!((speaker.count(), speaker.labels()), (0, (0, 100)));
    speaker.handle_packet(end, 1, UPSTREAM, &path(1, &through(), &[]));
    assert_eq!(speaker.count(), 0);
    while speaker.poll_timeout() < Instant::NEVER {
        speaker.handle_timeout(speaker.poll_timeout());
    }
    assert_eq!((speaker.labels(), speaker.neighbors()), ((0, 0), 0));
}

#[test]
fn previous_hops_of_an_interface_are_bounded() {
    let mut speaker = speaker(RsvpConfig { max_neighbors: 8, ..config(1) }, None);
    for host in 10..250 {
        let mut bytes = path(host, &through(), &[]);
        bytes[8 + 16 + 4 + 3] = host as u8;
        bytes[2..4].fill(0);
        speaker.handle_packet(START, 1, Ipv4Addr::new(10, 0, 1, host as u8), &bytes);
    }
    assert_eq!((speaker.count(), speaker.counters().limited), (8, 232));
}

#[test]
fn an_lsp_that_is_never_reserved_is_named_once() {
    let mut speaker = speaker(config(1), None);
    for second in 0..1_000 {
        let now = START + Duration::from_secs(second);
        if second % 30 == 0 {
            speaker.handle_packet(now, 1, UPSTREAM, &path(1, &through(), &[]));
        }
        speaker.handle_timeout(now);
    }
    let lsp = Lsp { session: SESSION, sender: Sender { address: Ipv4Addr::new(10, 255, 0, 8), lsp: 1 } };
    let upstream = Some(RsvpNeighbor { interface: 1, address: UPSTREAM });
    let downstream = RsvpNeighbor { interface: 2, address: DOWNSTREAM };
    assert_eq!(events(&mut speaker), [RsvpEvent::Unreserved { lsp, upstream, downstream }]);
    assert_eq!((speaker.counters().unreserved, speaker.labels()), (1, (0, 0)));
}

#[test]
fn reservations_that_cannot_be_used_are_refused() {
    let label = |number| LabelValue::new(number).unwrap();
    let few = RsvpConfig { labels: label(16)..=label(16), ..config(1) };
    let mut speaker = speaker(few, Some(9_000));
    for lsp in [1, 2] {
        speaker.handle_packet(START, 1, UPSTREAM, &path(lsp, &through(), &[]));
    }
    sent(&mut speaker);
    let mut refused = |bytes: &[u8], from: u32, address| {
        speaker.handle_packet(START, from, address, bytes);
        let found: Vec<_> = sent(&mut speaker)
            .iter()
            .filter_map(|transmit| {
                RsvpMessage::new(&RsvpPacket::new(&transmit.bytes).unwrap()).unwrap().error
            })
            .map(|error| (error.code, error.value))
            .collect();
        found
    };
    assert_eq!(refused(&resv(1, LabelValue::ROUTER_ALERT, 2), 2, DOWNSTREAM), [(24, 6); 2]);
    assert_eq!(refused(&resv(3, label(50), 2), 2, DOWNSTREAM), [(3, 0)]);
    assert_eq!(refused(&resv(1, label(50), 2), 1, DOWNSTREAM), []);
    assert_eq!(refused(&resv(1, label(50), 2), 2, DOWNSTREAM), []);
    assert_eq!(refused(&resv(2, label(51), 2), 2, DOWNSTREAM), [(24, 9); 2], "no label");
    assert_eq!(speaker.reserved(2), (BitRate(8_000), 1));
    assert_eq!((speaker.counters().wrong_hop, speaker.counters().no_label), (1, 1));
}

/// A speaker with a protected LSP, which is reserved.
fn merge_point(config: RsvpConfig) -> (RsvpSpeaker, LabelValue) {
    let mut speaker = speaker(config, None);
    let sender = Sender { address: Ipv4Addr::new(10, 255, 0, 8), lsp: 1 };
    let path = path_from(UPSTREAM, sender, attribute_flag::LOCAL_PROTECTION, &through(), &[]);
    speaker.handle_packet(START, 1, UPSTREAM, &path);
    speaker.handle_packet(START, 2, DOWNSTREAM, &resv(1, LabelValue::new(50).unwrap(), 2));
    let next_hop = RsvpNeighbor { interface: 2, address: DOWNSTREAM };
    speaker.set_route(START, REMOTE, 32, Some(next_hop));
    sent(&mut speaker);
    let label = speaker.lsps().next().unwrap().incoming.unwrap();
    (speaker, label)
}

#[test]
fn a_repaired_lsp_is_reserved_for_its_previous_hop() {
    let (mut speaker, label) = merge_point(config(1));
    speaker.handle_packet(START, 2, REMOTE, &backup(REMOTE, UPSTREAM, 1));
    let answers = sent(&mut speaker);
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(
        (answer.to.address, answer.destination, answer.source),
        (DOWNSTREAM, REMOTE, config(1).router)
    );
    assert!(!answer.has_router_alert);
    let packet = RsvpPacket::new(&answer.bytes).unwrap();
    let message = RsvpMessage::new(&packet).unwrap();
    let flow = message.flows().next().unwrap();
    assert_eq!((message.kind, flow.label, flow.sender.address), (kind::RESV, Some(label), UPSTREAM));
    assert_eq!(message.hop, Some(Hop { address: config(1).router, interface: 5 }));
    assert_eq!(speaker.count(), 1, "it is the same LSP");
    // The refreshes of the previous hop keep it, and end it.
    for second in (20..=400).step_by(20) {
        let now = START + Duration::from_secs(second);
        speaker.handle_packet(now, 2, DOWNSTREAM, &resv(1, LabelValue::new(50).unwrap(), 2));
        speaker.handle_packet(now, 2, REMOTE, &backup(REMOTE, UPSTREAM, 1));
        speaker.handle_timeout(now);
    }
    assert_eq!((speaker.count(), speaker.counters().path_timeouts), (1, 0));
    let end = START + Duration::from_secs(600);
    while speaker.poll_timeout() <= end {
        speaker.handle_timeout(speaker.poll_timeout());
    }
    assert_eq!((speaker.count(), speaker.counters().path_timeouts), (0, 1));
}

#[test]
fn wrong_paths_of_repaired_lsps_are_counted() {
    let stranger = Ipv4Addr::new(192, 0, 2, 1);
    let same_link = Ipv4Addr::new(10, 0, 1, 77);
    let (speaker, _) = merge_point(config(1));
    for (reason, bytes) in [
        ("another LSP ID", backup(REMOTE, UPSTREAM, 2)),
        ("another router on the link as the sender", backup(REMOTE, same_link, 1)),
        ("the sender of the protected LSP itself", backup(REMOTE, Ipv4Addr::new(10, 255, 0, 8), 1)),
    ] {
        let mut speaker = speaker.clone();
        speaker.handle_packet(START, 2, stranger, &bytes);
        assert_eq!((speaker.counters().wrong_backup, speaker.neighbors()), (1, 2), "{reason}");
        assert_eq!((sent(&mut speaker), events(&mut speaker).len()), (vec![], 1), "{reason}");
    }
    // An LSP without protection.
    let mut plain = self::speaker(config(1), None);
    plain.handle_packet(START, 1, UPSTREAM, &path(1, &through(), &[]));
    plain.handle_packet(START, 2, REMOTE, &backup(REMOTE, UPSTREAM, 1));
    assert_eq!((plain.count(), plain.counters().wrong_backup), (1, 1));
    // A second router.
    let mut taken = speaker.clone();
    for plr in [REMOTE, stranger, REMOTE] {
        taken.handle_packet(START, 2, plr, &backup(plr, UPSTREAM, 1));
    }
    taken.handle_packet(START, 2, stranger, &backup(stranger, stranger, 1));
    assert_eq!(taken.counters().wrong_backup, 2);
    // Only the first router can end the LSP.
    let tear = |plr| {
        let hop = Object::Hop(Hop { address: plr, interface: 5 });
        let sender = Object::SenderTemplate(Sender { address: UPSTREAM, lsp: 1 });
        written(kind::PATH_TEAR, &[Object::Session(SESSION), hop, sender, Object::SenderTspec(BUCKET)])
    };
    taken.handle_packet(START, 2, stranger, &tear(stranger));
    assert_eq!((taken.count(), taken.counters().wrong_hop), (1, 1));
    taken.handle_packet(START, 2, REMOTE, &tear(REMOTE));
    assert_eq!(taken.count(), 0);
    // The number of routers is bounded.
    let (mut limited, _) = merge_point(RsvpConfig { max_neighbors: 1, ..config(1) });
    let sender = Sender { address: Ipv4Addr::new(10, 255, 0, 8), lsp: 2 };
    let second = path_from(UPSTREAM, sender, attribute_flag::LOCAL_PROTECTION, &through(), &[]);
    limited.handle_packet(START, 1, UPSTREAM, &second);
    for (plr, lsp) in [(REMOTE, 1), (stranger, 2)] {
        limited.handle_packet(START, 2, plr, &backup(plr, UPSTREAM, lsp));
    }
    assert_eq!((limited.neighbors(), limited.counters().limited), (3, 1));
}

/// The router ID of the previous hop is its address on another link.
#[test]
fn the_previous_hop_of_a_repaired_lsp_may_be_a_neighbor() {
    let (mut speaker, _) = merge_point(config(1));
    let plr = Ipv4Addr::new(10, 0, 2, 7);
    speaker.handle_packet(START, 2, plr, &backup(plr, UPSTREAM, 1));
    let answers = sent(&mut speaker);
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].to.address, answers[0].destination), (plr, plr));
    assert_eq!((speaker.count(), speaker.counters().loops), (1, 0));
}

#[test]
fn arbitrary_messages_leave_no_state() {
    let mut random = RandomStream::new(1, "arbitrary messages");
    let protected = Sender { address: Ipv4Addr::new(10, 255, 0, 8), lsp: 1 };
    let messages = [
        path(1, &through(), &[]),
        resv(1, LabelValue::new(50).unwrap(), 2),
        path_from(UPSTREAM, protected, attribute_flag::LOCAL_PROTECTION, &through(), &[]),
        backup(REMOTE, UPSTREAM, 1),
    ];
    let mut speaker = speaker(config(1), Some(9_000));
    let mut now = START;
    for _ in 0..50_000 {
        let mut bytes = messages[random.below(4) as usize].clone();
        for _ in 0..random.below(4) {
            let at = 1 + random.below(bytes.len() as u64 - 1) as usize;
            bytes[at] = random.below(256) as u8;
        }
        if random.chance(0.2) {
            bytes[1] = random.below(24) as u8;
        }
        bytes[2..4].fill(0);
        let (interface, source) = if random.chance(0.5) { (1, UPSTREAM) } else { (2, DOWNSTREAM) };
        speaker.handle_packet(now, interface, source, &bytes);
        now += Duration(random.below(200_000_000));
        speaker.handle_timeout(now);
        sent(&mut speaker);
        events(&mut speaker);
    }
    let end = now + Duration::from_secs(8 * 3600);
    while speaker.poll_timeout() <= end {
        speaker.handle_timeout(speaker.poll_timeout());
    }
    assert_eq!((speaker.count(), speaker.neighbors(), speaker.labels()), (0, 0, (0, 0)));
    assert_eq!((speaker.reserved(1).1, speaker.reserved(2).1, router_id(1)), (0, 0, config(1).router));
}
