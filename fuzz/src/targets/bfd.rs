//! BFD packets from arbitrary bytes: rejected, or equal after they are written and parsed again; and a session that
//! receives them at arbitrary times.

use netstage_core::bfd::{BfdAuthenticationConfig, BfdEvent, BfdPeer, BfdSessionConfig, BfdSpeaker, TTL};
use netstage_core::time::{Duration, Instant};
use netstage_wire::bfd::{
    BfdAuthentication, BfdPacket, BfdState, DIGEST_START, DigestKind, MAX_DIGEST, MAX_PACKET,
};
use std::net::{IpAddr, Ipv4Addr};

const PEER: BfdPeer = BfdPeer { interface: 1, address: IpAddr::V4(Ipv4Addr::LOCALHOST) };

/// Accepts every key, so that the code behind the check is reached.
fn digest(_: BfdPeer, _: DigestKind, _: u8, _: &[u8]) -> Option<[u8; MAX_DIGEST]> {
    Some([0; MAX_DIGEST])
}

/// The first byte selects the session's authentication; then each packet is preceded by its length, by flags, and by
/// the time since the previous one in units of 50 ms.
pub fn run(bytes: &[u8]) {
    let Some((&kind, mut rest)) = bytes.split_first() else { return };
    let digest_kind = match kind % 6 {
        2 => Some(DigestKind::Md5),
        3 => Some(DigestKind::MeticulousMd5),
        4 => Some(DigestKind::Sha1),
        5 => Some(DigestKind::MeticulousSha1),
        _ => None,
    };
    let authentication = match (kind % 6, digest_kind) {
        (1, _) => BfdAuthenticationConfig::Password { key: 0, password: b"x".to_vec() },
        (_, Some(kind)) => BfdAuthenticationConfig::Digest { kind, key: 0 },
        _ => BfdAuthenticationConfig::None,
    };
    let mut config = BfdSessionConfig { authentication, ..BfdSessionConfig::default() };
    let mut speaker = BfdSpeaker::new(1, 1);
    speaker.set_session(PEER, config.clone()).expect("room");
    let (mut now, mut is_up) = (Instant::ZERO, false);
    while let [length, flags, delay, following @ ..] = rest {
        let (packet, after) = following.split_at(usize::from(*length).min(following.len()));
        rest = after;
        now += Duration::from_millis(50 * u64::from(*delay));
        let discriminator = speaker.session(PEER).expect("a session").discriminator;
        let packet = prepared(packet, *flags, discriminator);
        check(&packet);
        speaker.handle_packet(now, PEER, if flags & 4 == 0 { TTL } else { 1 }, &packet, Some(&digest));
        if flags & 8 != 0 {
            config.is_enabled = flags & 16 == 0;
            config.desired_min_tx = Duration::from_millis(u64::from(flags >> 5) * 100);
            speaker.set_session(PEER, config.clone()).expect("the session");
        }
        speaker.handle_timeout(now);
        let sent = std::iter::from_fn(|| speaker.poll_transmit(now, Some(&digest))).inspect(|sent| {
            let packet = BfdPacket::read(&sent.bytes).expect("a valid packet");
            assert!(!packet.is_poll || !packet.is_final);
        });
        assert!(sent.count() <= 2, "a response and a periodic packet");
        assert!(speaker.poll_timeout() > now);
        while let Some(event) = speaker.poll_event() {
            assert_ne!(is_up, matches!(event, BfdEvent::Up { .. }));
            is_up = !is_up;
        }
        assert_eq!(is_up, speaker.session(PEER).is_some_and(|session| session.state == BfdState::Up));
    }
}

/// Changes a packet so that more code is reached: flag 1 for the discriminator of the session, 2 for a valid digest.
fn prepared(packet: &[u8], flags: u8, discriminator: u32) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if let Some(field) = packet.get_mut(8..12).filter(|_| flags & 1 != 0) {
        field.copy_from_slice(&discriminator.to_be_bytes());
    }
    if let Some(digest) = packet.get_mut(DIGEST_START..).filter(|_| flags & 2 != 0) {
        digest.fill(0);
    }
    packet
}

fn check(bytes: &[u8]) {
    let Ok(packet) = BfdPacket::read(bytes) else { return };
    let mut again = [0; MAX_PACKET];
    let length = packet.write(&mut again).expect("room");
    assert_eq!(BfdPacket::read(&again[..length]), Ok(packet));
    assert_eq!(length, usize::from(again[3]));
    if let Some(BfdAuthentication::Digest { kind, digest, .. }) = packet.authentication {
        assert_eq!(digest.len(), kind.length());
    }
}
