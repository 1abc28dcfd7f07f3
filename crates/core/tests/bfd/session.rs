//! One speaker whose neighbor's packets are made by hand.

use netstage_core::bfd::{
    BfdAuthenticationConfig, BfdEvent, BfdPeer, BfdSessionConfig, BfdSessionLimitError, BfdSpeaker,
    BfdStatus, TTL,
};
use netstage_core::time::{Duration, Instant};
use netstage_wire::bfd::{
    BfdAuthentication, BfdPacket, BfdState, Diagnostic, DigestKind, MAX_DIGEST, MAX_PACKET,
};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

const PEER: BfdPeer = BfdPeer { interface: 3, address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)) };
const REMOTE: u32 = 77;
const NO_KEYS: Option<netstage_core::bfd::BfdDigestFunction<'static>> = None;

/// Stands for a digest: the key ID and a sum of the bytes.
fn digest(_: BfdPeer, _: DigestKind, key: u8, bytes: &[u8]) -> Option<[u8; MAX_DIGEST]> {
    let sum = bytes.iter().fold(key, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
    (key < 10).then_some([sum; MAX_DIGEST])
}

fn ms(milliseconds: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(milliseconds)
}

struct Neighbor {
    speaker: BfdSpeaker,
    /// Fields of the neighbor's packets.
    packet: BfdPacket<'static>,
}

impl Neighbor {
    fn new(config: BfdSessionConfig) -> Neighbor {
        let mut speaker = BfdSpeaker::new(10, 1);
        speaker.set_session(PEER, config).unwrap();
        let packet = BfdPacket {
            diagnostic: Diagnostic::NONE,
            state: BfdState::Down,
            is_poll: false,
            is_final: false,
            is_control_plane_independent: false,
            is_demand: false,
            detect_multiplier: 3,
            my_discriminator: REMOTE,
            your_discriminator: speaker.session(PEER).unwrap().discriminator,
            desired_min_tx_us: 100_000,
            required_min_rx_us: 100_000,
            required_min_echo_rx_us: 0,
            authentication: None,
        };
        Neighbor { speaker, packet }
    }

    /// Creates a session that is up since 10 ms and whose poll sequence has ended.
    fn up(config: BfdSessionConfig) -> Neighbor {
        let mut neighbor = Neighbor::new(config);
        neighbor.send(10, |packet| packet.state = BfdState::Init);
        assert_eq!(neighbor.speaker.poll_event(), Some(BfdEvent::Up { peer: PEER }));
        neighbor.packet.state = BfdState::Up;
        assert_eq!(neighbor.transmit(10), [(BfdState::Up, true, false)]);
        neighbor.send(10, |packet| packet.is_final = true);
        neighbor.send(10, |_| {});
        neighbor
    }

    /// Sends one packet with changed fields.
    fn send(&mut self, at: u64, change: impl FnOnce(&mut BfdPacket<'static>)) {
        let mut packet = self.packet;
        change(&mut packet);
        let mut bytes = [0; MAX_PACKET];
        let length = packet.write(&mut bytes).unwrap();
        self.speaker.handle_packet(ms(at), PEER, TTL, &bytes[..length], NO_KEYS);
    }

    /// Returns the packets the speaker sends at a time, as (state, poll, final).
    fn transmit(&mut self, at: u64) -> Vec<(BfdState, bool, bool)> {
        let mut found = Vec::new();
        while let Some(transmit) = self.speaker.poll_transmit(ms(at), NO_KEYS) {
            let packet = BfdPacket::read(&transmit.bytes).unwrap();
            found.push((packet.state, packet.is_poll, packet.is_final));
        }
        found
    }

    fn status(&self) -> BfdStatus {
        self.speaker.session(PEER).unwrap()
    }

    fn down(&mut self) -> Option<(Diagnostic, BfdState)> {
        self.speaker.poll_event().map(|event| match event {
            BfdEvent::Down { diagnostic, remote_state, .. } => (diagnostic, remote_state),
            BfdEvent::Up { .. } => panic!("up"),
        })
    }
}

#[test]
fn states_change_as_in_the_rfc() {
    use BfdState::{AdminDown, Down, Init, Up};
    // RFC 5880 section 6.8.6: state, received state, next state.
    for (state, received, next) in [
        (Down, AdminDown, Down),
        (Down, Down, Init),
        (Down, Init, Up),
        (Down, Up, Down),
        (Init, AdminDown, Down),
        (Init, Down, Init),
        (Init, Init, Up),
        (Init, Up, Up),
        (Up, AdminDown, Down),
        (Up, Down, Down),
        (Up, Init, Up),
        (Up, Up, Up),
        (AdminDown, Down, AdminDown),
        (AdminDown, Up, AdminDown),
    ] {
        let config = BfdSessionConfig { is_enabled: state != AdminDown, ..BfdSessionConfig::default() };
        let mut neighbor = Neighbor::new(config);
        match state {
            Init => neighbor.send(1, |packet| packet.state = Down),
            Up => neighbor.send(1, |packet| packet.state = Init),
            _ => {}
        }
        assert_eq!(neighbor.status().state, state);
        neighbor.speaker.poll_event();
        neighbor.send(2, |packet| packet.state = received);
        assert_eq!(neighbor.status().state, next, "{state:?} {received:?}");
        let signaled =
            (state == Up && next == Down).then_some((Diagnostic::NEIGHBOR_SIGNALED_SESSION_DOWN, received));
        assert_eq!(neighbor.speaker.counters().admin_down, u64::from(state == AdminDown));
        if next == Up && state != Up {
            assert_eq!(neighbor.speaker.poll_event(), Some(BfdEvent::Up { peer: PEER }));
        }
        assert_eq!(neighbor.down(), signaled);
    }
}

#[test]
fn silence_is_judged_by_arrival_times() {
    let mut neighbor = Neighbor::up(BfdSessionConfig::default());
    // Three times the greater of 300 ms here and 100 ms there.
    assert_eq!(neighbor.status().detection_time, Some(Duration::from_millis(900)));
    // The caller was delayed until 2,000 ms, with packets waiting in the socket.
    neighbor.send(800, |_| {});
    neighbor.send(1_600, |_| {});
    neighbor.send(1_500, |_| {});
    neighbor.speaker.handle_timeout(ms(2_000));
    assert_eq!((neighbor.status().state, neighbor.down()), (BfdState::Up, None));
    neighbor.speaker.handle_timeout(Instant(ms(2_500).0 - 1));
    assert_eq!(neighbor.down(), None);
    let mut late = neighbor.speaker.clone();
    neighbor.speaker.handle_timeout(ms(2_500));
    let expired = Some((Diagnostic::CONTROL_DETECTION_TIME_EXPIRED, BfdState::Down));
    assert_eq!(neighbor.down(), expired);
    assert_eq!((neighbor.status().remote_discriminator, neighbor.status().detection_time), (0, None));
    assert_eq!(neighbor.speaker.counters().detection_timeouts, 1);
    // A silence that ended before the late call is found as well; the packet at its end starts the session again.
    std::mem::swap(&mut neighbor.speaker, &mut late);
    neighbor.send(2_501, |packet| (packet.state, packet.your_discriminator) = (BfdState::Down, 0));
    assert_eq!((neighbor.down(), neighbor.status().state), (expired, BfdState::Init));
    assert_eq!(neighbor.status().diagnostic, Diagnostic::CONTROL_DETECTION_TIME_EXPIRED, "kept until up");
}

#[test]
fn rejected_packets_are_counted_by_reason() {
    let mut neighbor = Neighbor::new(BfdSessionConfig::default());
    neighbor.send(1, |packet| packet.your_discriminator ^= 1);
    neighbor.send(1, |packet| (packet.your_discriminator, packet.state) = (0, BfdState::Init));
    neighbor.send(1, |packet| (packet.your_discriminator, packet.state) = (0, BfdState::Up));
    let password = BfdAuthentication::Password { key: 1, password: b"x" };
    neighbor.send(1, |packet| packet.authentication = Some(password));
    let mut bytes = [0; 24];
    neighbor.packet.write(&mut bytes).unwrap();
    for (at, byte) in [(0, 0x40), (1, bytes[1] | 1), (2, 0), (3, 23)] {
        let mut wrong = bytes;
        wrong[at] = byte;
        neighbor.speaker.handle_packet(ms(1), PEER, TTL, &wrong, NO_KEYS);
    }
    neighbor.speaker.handle_packet(ms(1), PEER, 254, &bytes, NO_KEYS);
    let stranger = BfdPeer { interface: 4, ..PEER };
    let mut first = bytes;
    first[8..12].fill(0);
    neighbor.speaker.handle_packet(ms(1), stranger, TTL, &first, NO_KEYS);
    let mut none = bytes;
    none[4..8].fill(0);
    neighbor.speaker.handle_packet(ms(1), PEER, TTL, &none, NO_KEYS);
    let counters = neighbor.speaker.counters();
    assert_eq!((counters.unknown_session, counters.missing_discriminator), (2, 2));
    assert_eq!((counters.wrong_authentication_type, counters.wrong_ttl), (1, 1));
    assert_eq!((counters.wrong_version, counters.multipoint, counters.wrong_length), (1, 1, 1));
    assert_eq!((counters.zero_detect_multiplier, counters.zero_discriminator), (1, 1));
    assert_eq!((counters.received, neighbor.status().state), (0, BfdState::Down));
    // Both kinds of correct packets are accepted, the second from another address.
    neighbor.speaker.handle_packet(ms(2), PEER, TTL, &first, NO_KEYS);
    neighbor.speaker.handle_packet(ms(2), stranger, TTL, &bytes, NO_KEYS);
    assert_eq!((neighbor.speaker.counters().received, neighbor.status().state), (2, BfdState::Init));
}

#[test]
fn polls_are_answered_at_once_and_once() {
    let mut neighbor = Neighbor::up(BfdSessionConfig::default());
    for _ in 0..5 {
        neighbor.send(11, |packet| packet.is_poll = true);
    }
    assert_eq!(neighbor.transmit(11), [(BfdState::Up, false, true)]);
    assert_eq!(neighbor.transmit(12), []);
}

#[test]
fn intervals_change_after_a_poll_sequence() {
    let config = BfdSessionConfig::default();
    let mut neighbor = Neighbor::up(config.clone());
    let set = |neighbor: &mut Neighbor, tx, rx| {
        let (desired_min_tx, required_min_rx) = (Duration::from_millis(tx), Duration::from_millis(rx));
        let config = BfdSessionConfig { desired_min_tx, required_min_rx, ..config.clone() };
        neighbor.speaker.set_session(PEER, config).unwrap();
        let status = neighbor.status();
        (status.transmit_interval.unwrap().0 / 1_000_000, status.detection_time.unwrap().0 / 1_000_000)
    };
    assert_eq!(set(&mut neighbor, 500, 200), (300, 900), "an increase and a decrease wait");
    assert_eq!(neighbor.transmit(20), [], "no additional packets");
    assert_eq!(neighbor.transmit(320), [(BfdState::Up, true, false)]);
    // A change during the sequence waits for its end and for a packet without the final bit.
    assert_eq!(set(&mut neighbor, 400, 250), (300, 900));
    neighbor.send(330, |packet| packet.is_final = true);
    assert_eq!(set(&mut neighbor, 400, 250), (500, 600));
    assert_eq!(neighbor.transmit(831), [(BfdState::Up, false, false)]);
    neighbor.send(832, |_| {});
    // A repeated response does not end the next sequence before its first packet.
    neighbor.send(833, |packet| packet.is_final = true);
    assert_eq!(set(&mut neighbor, 400, 250), (400, 750), "a decrease and an increase do not wait");
    assert_eq!(neighbor.transmit(1_300), [(BfdState::Up, true, false)]);
    neighbor.send(1_301, |packet| packet.required_min_rx_us = 800_000);
    assert_eq!(set(&mut neighbor, 400, 250), (800, 750));
}

#[test]
fn a_system_in_demand_mode_receives_only_responses_and_polls() {
    let mut neighbor = Neighbor::up(BfdSessionConfig::default());
    neighbor.packet.is_demand = true;
    neighbor.send(100, |packet| packet.is_poll = true);
    assert_eq!(neighbor.transmit(100), [(BfdState::Up, false, true)]);
    assert_eq!((neighbor.transmit(60_000), neighbor.status().transmit_interval), (vec![], None));
    let config = BfdSessionConfig { desired_min_tx: Duration::from_millis(50), ..Default::default() };
    neighbor.speaker.set_session(PEER, config).unwrap();
    assert_eq!(neighbor.transmit(900), [(BfdState::Up, true, false)]);
    neighbor.send(901, |packet| packet.is_final = true);
    assert_eq!(neighbor.transmit(990), []);
    neighbor.speaker.handle_timeout(ms(1_801));
    assert_eq!(neighbor.transmit(1_801), [(BfdState::Down, true, false)]);
}

#[test]
fn no_periodic_packets_are_sent_to_a_system_that_requests_none() {
    let mut neighbor = Neighbor::up(BfdSessionConfig::default());
    neighbor.send(100, |packet| packet.required_min_rx_us = 0);
    assert_eq!(neighbor.transmit(900), []);
}

#[test]
fn administrative_changes_are_signaled() {
    let config = BfdSessionConfig::default();
    let mut neighbor = Neighbor::up(config.clone());
    let disabled = BfdSessionConfig { is_enabled: false, ..config.clone() };
    neighbor.speaker.set_session(PEER, disabled).unwrap();
    assert_eq!(neighbor.down(), Some((Diagnostic::ADMINISTRATIVELY_DOWN, BfdState::Up)));
    assert_eq!(neighbor.transmit(50), [(BfdState::AdminDown, true, false)]);
    assert_eq!(neighbor.transmit(1_050), [(BfdState::AdminDown, true, false)]);
    neighbor.speaker.set_session(PEER, config).unwrap();
    assert_eq!(neighbor.transmit(1_060), [(BfdState::Down, true, false)]);
    neighbor.speaker.remove_session(PEER);
    assert_eq!((neighbor.speaker.poll_timeout(), neighbor.speaker.session(PEER)), (Instant::NEVER, None));
}

#[test]
fn sessions_are_limited_and_have_their_own_discriminators() {
    let mut speaker = BfdSpeaker::new(1_000, 7);
    for interface in 0..1_000 {
        speaker.set_session(BfdPeer { interface, ..PEER }, BfdSessionConfig::default()).unwrap();
    }
    let error = BfdSessionLimitError { max_sessions: 1_000 };
    let peer = BfdPeer { interface: 1_000, ..PEER };
    assert_eq!(speaker.set_session(peer, BfdSessionConfig::default()), Err(error));
    let known = BfdPeer { interface: 5, ..PEER };
    assert_eq!(speaker.set_session(known, BfdSessionConfig::default()), Ok(()));
    let mut found: Vec<u32> = speaker.sessions().map(|session| session.discriminator).collect();
    found.sort();
    found.dedup();
    assert!(found.len() == 1_000 && found[0] > 0);
    assert_eq!(std::iter::from_fn(|| speaker.poll_transmit(ms(0), NO_KEYS)).count(), 1_000);
}

#[test]
fn sequence_numbers_are_accepted_in_the_window() {
    for (kind, first) in [(DigestKind::Sha1, 0), (DigestKind::MeticulousMd5, 1)] {
        let authentication = BfdAuthenticationConfig::Digest { kind, key: 1 };
        let mut neighbor = Neighbor::new(BfdSessionConfig { authentication, ..Default::default() });
        let mut send = |at: u64, key: u8, sequence: u32| {
            let mut bytes = [0; MAX_PACKET];
            let zeros = &[0; MAX_DIGEST][..kind.length()];
            let section = BfdAuthentication::Digest { kind, key, sequence, digest: zeros };
            let packet =
                BfdPacket { authentication: Some(section), state: BfdState::Down, ..neighbor.packet };
            let length = packet.write(&mut bytes).unwrap();
            let right = digest(PEER, kind, 1, &bytes[..32]).unwrap();
            bytes[32..length].copy_from_slice(&right[..kind.length()]);
            let before = neighbor.speaker.counters();
            neighbor.speaker.handle_packet(ms(at), PEER, TTL, &bytes[..length], Some(&digest));
            let after = neighbor.speaker.counters();
            assert_eq!(
                1,
                after.received - before.received
                    + (after.wrong_sequence - before.wrong_sequence)
                    + (after.wrong_secret - before.wrong_secret)
            );
            after.received > before.received
        };
        assert!(!send(1, 2, 5), "a wrong digest does not set the sequence number");
        assert!(!send(1, 10, 5), "unknown key");
        assert!(send(1, 1, u32::MAX - 3));
        assert_eq!(send(2, 1, u32::MAX - 3), first == 0);
        assert!(!send(2, 1, u32::MAX - 4));
        assert!(!send(2, 1, 6), "3 times the multiplier is 9");
        assert!(send(2, 1, 5));
        assert!(!send(2, 1, 1_000));
        // The sequence number is forgotten after twice the detection time of 900 ms, not before.
        assert!(!send(1_802, 1, 1_000));
        assert!(send(1_803, 1, 1_000));
        let transmit = neighbor.speaker.poll_transmit(ms(1_803), Some(&digest)).unwrap();
        let packet = BfdPacket::read(&transmit.bytes).unwrap();
        let Some(BfdAuthentication::Digest { digest: sent, .. }) = packet.authentication else { panic!() };
        assert_eq!(sent, &digest(PEER, kind, 1, &transmit.bytes[..32]).unwrap()[..kind.length()]);
        assert_eq!(neighbor.speaker.poll_transmit(ms(9_000), NO_KEYS), None);
        assert_eq!(neighbor.speaker.counters().unsigned, 1);
    }
}

#[test]
fn passwords_are_compared() {
    let authentication = BfdAuthenticationConfig::Password { key: 4, password: b"secret".to_vec() };
    let mut neighbor = Neighbor::new(BfdSessionConfig { authentication, ..Default::default() });
    for (key, password) in [(4, &b"secreT"[..]), (4, b"secre"), (5, b"secret"), (4, b"secret")] {
        let section = BfdAuthentication::Password { key, password };
        let mut bytes = [0; MAX_PACKET];
        let packet = BfdPacket { authentication: Some(section), ..neighbor.packet };
        let length = packet.write(&mut bytes).unwrap();
        neighbor.speaker.handle_packet(ms(1), PEER, TTL, &bytes[..length], NO_KEYS);
    }
    neighbor.send(1, |_| {});
    let counters = neighbor.speaker.counters();
    assert_eq!((counters.wrong_secret, counters.received, counters.wrong_authentication_type), (3, 1, 1));
    let transmit = neighbor.speaker.poll_transmit(ms(1), NO_KEYS).unwrap();
    assert_eq!(transmit.bytes[24..], *b"\x01\x09\x04secret");
}

proptest! {
    #[test]
    fn arbitrary_packets_never_panic(packets in prop::collection::vec(
        (any::<u32>(), prop::collection::vec(any::<u8>(), 24..56), any::<bool>()), 1..40,
    )) {
        let mut neighbor = Neighbor::new(BfdSessionConfig::default());
        let mut now = Instant::ZERO;
        for (delay, mut bytes, is_known) in packets {
            bytes[0] = 0x20 | bytes[0] & 0x1f;
            bytes[1] &= 0xfa;
            bytes[3] = 24;
            if is_known {
                bytes[8..12].copy_from_slice(&neighbor.status().discriminator.to_be_bytes());
            }
            now += Duration(delay.into());
            neighbor.speaker.handle_packet(now, PEER, TTL, &bytes, NO_KEYS);
            neighbor.speaker.handle_timeout(now);
            let sent = std::iter::from_fn(|| neighbor.speaker.poll_transmit(now, NO_KEYS)).take(9).count();
            prop_assert!(sent <= 2);
            prop_assert!(neighbor.speaker.poll_timeout() > now);
        }
    }
}
