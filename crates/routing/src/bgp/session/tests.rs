//! Two machines against each other in virtual time, over connections without delay, and one machine against
//! messages written by hand.

use super::*;
use crate::bgp::inject::{Injection, InjectionAction, SendOrder};
use crate::bgp::nlri::Nlri;
use crate::bgp::path::{AsPath, PathAttributes};
use crate::bgp::table::BgpTable;

fn settings(number: u8) -> BgpSettings {
    BgpSettings {
        identity: OpenParameters {
            local_as: 65_000 + u32::from(number),
            peer_as: None,
            identifier: [192, 0, 2, number].into(),
            hold_time: Duration::from_secs(90),
            families: BgpFamily::ALL.to_vec(),
            four_octet_as: true,
        },
        connects: true,
        connect_retry: Duration::from_secs(120),
        restart: None,
    }
}

/// Two machines and the connections between them.
struct ConnectedSessions {
    now: Instant,
    machines: [BgpSession; 2],
    /// Open connections, by opener.
    open: [bool; 2],
    /// Pending connection attempts.
    attempts: [bool; 2],
    events: [Vec<BgpEvent>; 2],
    /// Held-back bytes, by connection and receiver.
    held: Vec<(usize, usize, Vec<u8>)>,
    hold: bool,
}

impl ConnectedSessions {
    fn new(settings: [BgpSettings; 2]) -> ConnectedSessions {
        let machines = settings.map(BgpSession::new);
        let mut pair = ConnectedSessions {
            now: Instant::ZERO,
            machines,
            open: [false; 2],
            attempts: [false; 2],
            events: [vec![], vec![]],
            held: vec![],
            hold: false,
        };
        pair.machines.iter_mut().for_each(|machine| machine.handle_start(Instant::ZERO));
        pair.carry();
        pair
    }

    /// Returns the side that opened a connection, as seen by `machine`.
    fn side(opener: usize, machine: usize) -> ConnectionOpener {
        if opener == machine { ConnectionOpener::Local } else { ConnectionOpener::Peer }
    }

    fn carry(&mut self) {
        while let Some((from, transmit)) =
            (0..2).find_map(|from| Some((from, self.machines[from].poll_transmit()?)))
        {
            let opener = |side| if side == ConnectionOpener::Local { from } else { 1 - from };
            match transmit {
                BgpTransmit::Connect => self.attempts[from] = true,
                BgpTransmit::Abandon => self.attempts[from] = false,
                BgpTransmit::Bytes(side, bytes) if self.hold => {
                    self.held.push((opener(side), 1 - from, bytes))
                }
                BgpTransmit::Bytes(side, bytes) => self.deliver(opener(side), 1 - from, &bytes),
                BgpTransmit::Close(side) => {
                    let opener = opener(side);
                    self.open[opener] = false;
                    self.machines[1 - from]
                        .handle_closed(self.now, ConnectedSessions::side(opener, 1 - from));
                }
            }
        }
        for (machine, events) in self.machines.iter_mut().zip(&mut self.events) {
            events.extend(std::iter::from_fn(|| machine.poll_event()));
        }
    }

    fn deliver(&mut self, opener: usize, to: usize, bytes: &[u8]) {
        // In two pieces, as TCP may deliver them.
        let (one, two) = bytes.split_at(bytes.len() / 2);
        for piece in [one, two] {
            self.machines[to].handle_bytes(self.now, ConnectedSessions::side(opener, to), piece);
        }
    }

    fn release(&mut self) {
        self.hold = false;
        for (opener, to, bytes) in std::mem::take(&mut self.held) {
            self.deliver(opener, to, &bytes);
        }
        self.carry();
    }

    /// Completes the pending attempt of `opener`.
    fn connect(&mut self, opener: usize) {
        assert!(std::mem::take(&mut self.attempts[opener]));
        self.open[opener] = true;
        for machine in [opener, 1 - opener] {
            assert!(
                self.machines[machine].handle_connected(self.now, ConnectedSessions::side(opener, machine))
            );
        }
        self.carry();
    }

    fn run_until(&mut self, until: Instant) {
        loop {
            let next = self.machines.iter().map(BgpSession::poll_timeout).fold(until, Instant::min);
            self.now = self.now.max(next);
            if next == until {
                return;
            }
            self.machines.iter_mut().for_each(|machine| machine.handle_timeout(next));
            self.carry();
        }
    }

    fn states(&self) -> [BgpState; 2] {
        [self.machines[0].state(), self.machines[1].state()]
    }

    fn downs(&self, machine: usize) -> Vec<SessionEnd> {
        let down = |event: &BgpEvent| match event {
            BgpEvent::Down(down) => Some(down.clone()),
            _ => None,
        };
        self.events[machine].iter().filter_map(down).collect()
    }
}

fn passive(number: u8) -> BgpSettings {
    BgpSettings { connects: false, ..settings(number) }
}

/// Returns an established machine without a peer.
fn established(settings: BgpSettings) -> BgpSession {
    let mut pair = ConnectedSessions::new([settings, passive(9)]);
    pair.connect(0);
    let [machine, _] = pair.machines;
    machine
}

/// Returns the NOTIFICATION that a machine sends in answer to bytes. Asserts that it closes the connection.
fn notification(machine: &mut BgpSession, bytes: &[u8]) -> Notification {
    while machine.poll_transmit().is_some() {}
    machine.handle_bytes(Instant(1), ConnectionOpener::Local, bytes);
    let Some(BgpTransmit::Bytes(ConnectionOpener::Local, bytes)) = machine.poll_transmit() else {
        panic!("nothing sent")
    };
    assert_eq!(machine.poll_transmit(), Some(BgpTransmit::Close(ConnectionOpener::Local)));
    let frame = message::first(&bytes).unwrap().unwrap();
    assert_eq!((frame.kind, machine.state()), (message::NOTIFICATION, BgpState::Idle));
    let sent = Notification::read(frame.body).unwrap();
    let down = std::iter::from_fn(|| machine.poll_event()).last();
    assert_eq!(down, Some(BgpEvent::Down(SessionEnd::Sent(sent.clone()))));
    sent
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    message::write(kind, body, &mut bytes);
    bytes
}

#[test]
fn a_session_passes_through_all_states() {
    let mut pair = ConnectedSessions::new([settings(1), passive(2)]);
    assert_eq!(pair.states(), [BgpState::Connect, BgpState::Active]);
    pair.hold = true;
    pair.connect(0);
    assert_eq!(pair.states(), [BgpState::OpenSent; 2]);
    for (opener, to, bytes) in std::mem::take(&mut pair.held) {
        pair.deliver(opener, to, &bytes);
    }
    pair.carry();
    assert_eq!(pair.states(), [BgpState::OpenConfirm; 2]);
    pair.release();
    assert_eq!(pair.states(), [BgpState::Established; 2]);
    let BgpEvent::Established(negotiated) = &pair.events[0][0] else { panic!() };
    let expected = NegotiatedParameters {
        peer_as: 65_002,
        peer_identifier: [192, 0, 2, 2].into(),
        is_internal: false,
        hold_time: Duration::from_secs(90),
        families: BgpFamily::ALL.to_vec(),
        four_octet_as: true,
        route_refresh: true,
        end_of_rib: true,
    };
    assert_eq!(*negotiated, expected);
    // Keepalives keep it up.
    pair.run_until(Instant::ZERO + Duration::from_secs(1000));
    assert_eq!((pair.states(), pair.downs(0)), ([BgpState::Established; 2], vec![]));
}

#[test]
fn a_collision_keeps_the_connection_of_the_higher_identifier() {
    // RFC 4271 section 6.8; with equal identifiers the AS number decides (RFC 6286 section 2.3).
    let equal = BgpSettings {
        identity: OpenParameters { identifier: [192, 0, 2, 1].into(), ..settings(2).identity },
        ..settings(2)
    };
    for second in [settings(2), equal] {
        let mut pair = ConnectedSessions::new([settings(1), second]);
        pair.hold = true;
        pair.connect(0);
        pair.connect(1);
        pair.release();
        assert_eq!(pair.states(), [BgpState::Established; 2]);
        assert_eq!(pair.open, [false, true]);
        assert_eq!(pair.machines[0].established().unwrap().0, ConnectionOpener::Peer);
        assert_eq!(pair.machines[1].established().unwrap().0, ConnectionOpener::Local);
        // Closing the other connection does not end the session.
        assert_eq!((pair.downs(0), pair.downs(1)), (vec![], vec![]));
    }
}

#[test]
fn a_second_connection_is_rejected_once_established() {
    let mut pair = ConnectedSessions::new([settings(1), settings(2)]);
    pair.connect(0);
    assert_eq!(pair.states(), [BgpState::Established; 2]);
    assert_eq!(pair.attempts, [false; 2], "the other attempt was canceled");
    assert!(!pair.machines[0].handle_connected(pair.now, ConnectionOpener::Peer));
}

#[test]
fn a_silent_peer_is_dropped_after_the_hold_time() {
    let mut pair = ConnectedSessions::new([settings(1), passive(2)]);
    pair.connect(0);
    let start = pair.now;
    pair.hold = true;
    pair.run_until(start + Duration::from_secs(89));
    assert_eq!(pair.states(), [BgpState::Established; 2]);
    pair.run_until(start + Duration::from_secs(91));
    assert_eq!(pair.states(), [BgpState::Idle; 2]);
    assert_eq!(pair.downs(0), [SessionEnd::Sent(Notification::new(4, 0))]);
}

#[test]
fn without_a_hold_time_there_are_no_keepalives() {
    let silent = |mut settings: BgpSettings| {
        settings.identity.hold_time = Duration::ZERO;
        settings
    };
    let mut pair = ConnectedSessions::new([silent(settings(1)), passive(2)]);
    pair.connect(0);
    assert_eq!(pair.machines.each_ref().map(BgpSession::poll_timeout), [Instant::NEVER; 2]);
    assert_eq!(pair.states(), [BgpState::Established; 2]);
}

#[test]
fn a_silent_peer_is_dropped_after_four_minutes() {
    let mut machine = BgpSession::new(settings(1));
    machine.handle_start(Instant::ZERO);
    assert!(machine.handle_connected(Instant::ZERO, ConnectionOpener::Local));
    assert_eq!(machine.poll_timeout(), Instant::ZERO + Duration::from_secs(240));
    machine.handle_timeout(machine.poll_timeout());
    assert_eq!(machine.poll_event(), Some(BgpEvent::Down(SessionEnd::Sent(Notification::new(4, 0)))));
}

#[test]
fn connecting_is_retried() {
    let mut pair = ConnectedSessions::new([settings(1), passive(2)]);
    pair.machines[0].handle_connect_failed(pair.now);
    pair.attempts[0] = false;
    assert_eq!(pair.states()[0], BgpState::Active);
    pair.run_until(Instant::ZERO + Duration::from_secs(121));
    assert_eq!((pair.states()[0], pair.attempts[0]), (BgpState::Connect, true));
    // Connection lost before the peer's OPEN: back to Active (RFC 4271 section 8.2.2).
    let mut machine = BgpSession::new(settings(1));
    machine.handle_start(Instant::ZERO);
    machine.handle_connected(Instant::ZERO, ConnectionOpener::Local);
    machine.handle_closed(Instant::ZERO, ConnectionOpener::Local);
    assert_eq!((machine.state(), machine.poll_event()), (BgpState::Active, None));
    assert_eq!(machine.poll_timeout(), Instant::ZERO + Duration::from_secs(120));
}

#[test]
fn an_ended_session_restarts_if_configured() {
    let restarting = BgpSettings { restart: Some(Duration::from_secs(5)), ..settings(1) };
    let mut pair = ConnectedSessions::new([restarting, passive(2)]);
    pair.connect(0);
    pair.machines[0].handle_closed(pair.now, ConnectionOpener::Local);
    pair.carry();
    assert_eq!((pair.states()[0], pair.downs(0)), (BgpState::Idle, vec![SessionEnd::Lost]));
    pair.run_until(pair.now + Duration::from_secs(6));
    assert_eq!(pair.states()[0], BgpState::Connect);
}

#[test]
fn a_stop_notifies_the_peer() {
    let mut pair = ConnectedSessions::new([settings(1), passive(2)]);
    pair.connect(0);
    pair.machines[0].handle_stop();
    pair.carry();
    let shutdown = Notification::new(6, 2);
    assert_eq!(pair.downs(0), [SessionEnd::Sent(shutdown.clone())]);
    assert_eq!(pair.downs(1), [SessionEnd::Received(shutdown)]);
    assert_eq!((pair.states(), pair.open), ([BgpState::Idle; 2], [false; 2]));
    assert!(
        !pair.machines[0].handle_connected(pair.now, ConnectionOpener::Peer),
        "Idle accepts no connection"
    );
}

#[test]
fn errors_are_reported_with_the_codes_of_the_rfc() {
    let open = |edit: &dyn Fn(&mut BgpSettings)| {
        let mut settings = settings(9);
        edit(&mut settings);
        let mut bytes = Vec::new();
        settings.identity.write(&mut bytes);
        bytes
    };
    let waiting = || {
        let mut machine = BgpSession::new(BgpSettings {
            identity: OpenParameters { peer_as: Some(65_009), ..settings(1).identity },
            ..settings(1)
        });
        machine.handle_start(Instant::ZERO);
        machine.handle_connected(Instant::ZERO, ConnectionOpener::Local);
        machine
    };
    let edited = |place: usize, bytes: &[u8]| {
        let mut message = open(&|_| {});
        message[place..place + bytes.len()].copy_from_slice(bytes);
        message
    };
    let codes = |machine: &mut BgpSession, bytes: &[u8]| {
        let sent = notification(machine, bytes);
        (sent.code, sent.subcode, sent.data)
    };
    // In OpenSent.
    assert_eq!(codes(&mut waiting(), &[0; 19]), (1, 1, vec![]));
    assert_eq!(codes(&mut waiting(), &edited(19, &[3])), (2, 1, vec![0, 4]));
    let foreign = open(&|settings| settings.identity.local_as = 65_010);
    assert_eq!(codes(&mut waiting(), &foreign), (2, 2, vec![]));
    assert_eq!(codes(&mut waiting(), &edited(24, &[0; 4])), (2, 3, vec![]));
    assert_eq!(codes(&mut waiting(), &edited(29, &[7])), (2, 4, vec![]));
    assert_eq!(codes(&mut waiting(), &edited(22, &[0, 2])), (2, 6, vec![0, 2]));
    assert_eq!(codes(&mut waiting(), &edited(28, &[0])), (2, 0, vec![]));
    let mut without_common_family = waiting();
    without_common_family.settings.identity.families = vec![BgpFamily::Vpnv4];
    let other = open(&|settings| settings.identity.families = vec![BgpFamily::Ipv6Unicast]);
    assert_eq!(codes(&mut without_common_family, &other), (2, 7, vec![1, 4, 0, 1, 0, 128]));
    assert_eq!(codes(&mut waiting(), &frame(message::KEEPALIVE, &[])), (5, 1, vec![4]));
    // In OpenConfirm (RFC 6608 section 4).
    let confirmed = || {
        let mut machine = waiting();
        machine.handle_bytes(Instant(1), ConnectionOpener::Local, &open(&|_| {}));
        assert_eq!(machine.state(), BgpState::OpenConfirm);
        machine
    };
    assert_eq!(codes(&mut confirmed(), &open(&|_| {})), (5, 2, vec![1]));
    assert_eq!(codes(&mut confirmed(), &frame(message::UPDATE, &[0; 4])), (5, 2, vec![2]));
    // In Established.
    let up = || established(settings(1));
    assert_eq!(codes(&mut up(), &open(&|_| {})), (5, 3, vec![1]));
    assert_eq!(codes(&mut up(), &frame(message::UPDATE, &[0, 9, 0, 0])), (3, 1, vec![]));
    assert_eq!(codes(&mut up(), &frame(message::UPDATE, &[0, 2, 99, 1, 0, 0])), (3, 10, vec![]));
    assert_eq!(codes(&mut up(), &frame(message::ROUTE_REFRESH, &[0, 1])), (7, 1, vec![0, 1]));
    assert_eq!(codes(&mut up(), &frame(8, &[])), (1, 3, vec![8]));
}

#[test]
fn unknown_capabilities_are_tolerated() {
    // A capability of an unknown family, a truncated one and an unknown one, each in its own parameter.
    let mut body = vec![4, 0xfd, 0xf1, 0, 90, 192, 0, 2, 9, 0];
    for capability in [&[1, 4, 0x40, 9, 0, 99][..], &[65, 2, 1, 2], &[77, 1, 0], &[1, 4, 0, 1, 0, 1]] {
        body.extend([2, capability.len() as u8]);
        body.extend(capability);
    }
    body[9] = (body.len() - 10) as u8;
    let extended = [&body[..9], &[255, 255, 0, 9, 2, 0, 6, 1, 4, 0, 1, 0, 1][..]].concat();
    for body in [body, extended] {
        let mut machine = BgpSession::new(settings(1));
        machine.handle_start(Instant::ZERO);
        machine.handle_connected(Instant::ZERO, ConnectionOpener::Local);
        machine.handle_bytes(Instant::ZERO, ConnectionOpener::Local, &frame(message::OPEN, &body));
        machine.handle_bytes(Instant::ZERO, ConnectionOpener::Local, &frame(message::KEEPALIVE, &[]));
        let (_, negotiated) = machine.established().expect("the session is established");
        assert_eq!((negotiated.peer_as, negotiated.four_octet_as), (65_009, false));
        assert_eq!(negotiated.families, [BgpFamily::Ipv4Unicast]);
        assert!(!machine.refresh(BgpFamily::Ipv4Unicast), "the peer does not support route refresh");
    }
}

#[test]
fn routes_end_of_rib_and_refresh_requests_arrive() {
    let mut pair = ConnectedSessions::new([settings(1), passive(2)]);
    pair.connect(0);
    pair.events = [vec![], vec![]];
    let mut table = BgpTable::new();
    let path = PathAttributes::new("192.0.2.1".parse().unwrap(), AsPath::sequence(&[4_200_000_000]));
    let nlri = Nlri::labeled("10.0.0.0/8".parse().unwrap(), 77);
    let group = table.group(nlri.family, path).unwrap();
    table.push(group, &nlri);
    let mut bytes = Vec::new();
    let encoding = pair.machines[0].settings.identity.encoding(pair.machines[0].established().unwrap().1);
    let mut injection = Injection::new(&table, InjectionAction::Announce, SendOrder::Packed, &BgpFamily::ALL);
    injection.fill(&table, &encoding, usize::MAX / 2, &mut bytes);
    message::write_end_of_rib(BgpFamily::Ipv4Labeled, &mut bytes);
    pair.deliver(0, 1, &bytes);
    assert!(pair.machines[0].refresh(BgpFamily::Vpnv4));
    pair.carry();
    let [
        BgpEvent::Update(update),
        BgpEvent::EndOfRib(BgpFamily::Ipv4Labeled),
        BgpEvent::RefreshRequested(BgpFamily::Vpnv4),
    ] = &pair.events[1][..]
    else {
        panic!("{:?}", pair.events[1])
    };
    let (next_hop, destinations) = update.reachable().next().unwrap();
    assert_eq!(destinations.collect::<Vec<_>>(), [nlri]);
    assert_eq!(update.path(next_hop).as_path.to_string(), "65001 4200000000");
}
