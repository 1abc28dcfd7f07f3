//! STAMP packets from arbitrary bytes, at a reflector and at a sender: accepted or rejected. A reflected packet
//! has the length of the received one, and the reply to a session's own packet is accepted.

use netstage_core::measure::stamp::{
    ClockReading, ReceivedPacketInfo, ReflectorConfig, SenderConfig, SessionReflector, SessionSender,
};
use netstage_core::time::Instant;
use netstage_wire::stamp::tlv::tlvs;
use netstage_wire::stamp::{Mode, ReflectorPacket, SenderPacket};
use std::net::SocketAddr;

/// Accepts every digest, so that the code behind the check is reached.
fn mac(_: &[&[u8]]) -> [u8; 16] {
    [0; 16]
}

pub fn run(bytes: &[u8]) {
    for mode in [Mode::Unauthenticated, Mode::Authenticated] {
        let mut packet = bytes.to_vec();
        if let Some(digest) = packet.get_mut(96..112).filter(|_| mode == Mode::Authenticated) {
            digest.fill(0);
        }
        let now = ClockReading { instant: Instant(0), unix: 1 << 60 };
        let address = SocketAddr::from(([127, 0, 0, 1], 862));
        let arrival = ReceivedPacketInfo {
            instant: now.instant,
            unix: now.unix,
            source: address,
            destination: address,
            ttl: 64,
            dscp: 0,
            ecn: 0,
        };
        let mut reply = Vec::new();
        let mut reflector = SessionReflector::new(ReflectorConfig { mode, ..ReflectorConfig::default() });
        let reflected = reflector.reflect(&packet, &arrival, Some(&mac), || now.unix, &mut reply);
        let mut sender = SessionSender::new(SenderConfig { mode, ..SenderConfig::default() }, Instant(0));
        let _ = sender.handle_packet(&packet, now, Some(&mac));
        if reflected.is_err() {
            continue;
        }
        assert_eq!(reply.len(), packet.len());
        // The TLVs keep their positions.
        assert!(
            tlvs(&reply, mode.base()).map(|place| place.map(|place| place.end)).eq(tlvs(
                &packet,
                mode.base()
            )
            .map(|place| place.map(|place| place.end)))
        );
        let asked = SenderPacket::read(&packet, mode).expect("the packet was reflected");
        let answer = ReflectorPacket::read(&reply, mode).expect("a reply is whole");
        assert_eq!((answer.sender, answer.session), (asked, asked.session));
    }
}
