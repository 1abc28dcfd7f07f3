//! RSVP messages from arbitrary bytes: rejected, or parsed to objects that are equal after they are written and parsed
//! again.

use netstage_wire::rsvp::message::RsvpMessage;
use netstage_wire::rsvp::object::Object;
use netstage_wire::rsvp::write::RsvpWriter;
use netstage_wire::rsvp::{HEADER, RsvpPacket, kind};

/// Checks a message without a checksum, so that the code behind the checksum is reached.
pub fn run(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let length = bytes.len().min(usize::from(u16::MAX)) & !3;
    if length < HEADER {
        assert!(RsvpPacket::new(&bytes[..length]).is_err());
        return;
    }
    bytes[0] = 0x10 | bytes[0] & 0xf;
    bytes[2..4].fill(0);
    bytes[6..8].copy_from_slice(&(length as u16).to_be_bytes());
    for packet in RsvpPacket::new(&bytes).expect("a valid header").messages().flatten() {
        check(&packet);
    }
}

fn check(packet: &RsvpPacket<'_>) {
    let parsed =
        |packet: &RsvpPacket<'_>| packet.objects().flatten().filter(|raw| Object::new(raw).is_ok()).count();
    let mut buffer = vec![0; 1 << 16];
    let mut writer = RsvpWriter::new(&mut buffer, packet.kind, packet.flags, packet.ttl).expect("room");
    for raw in packet.objects().flatten() {
        let Ok(object) = Object::new(&raw) else { continue };
        match object {
            Object::Ignored | Object::Foreign { .. } => writer.raw(&raw).expect("room"),
            object => writer.object(&object).expect("room"),
        }
    }
    let again = RsvpPacket::new(writer.finish()).expect("a message");
    assert_eq!(parsed(packet), parsed(&again));
    let Ok(message) = RsvpMessage::new(packet) else { return };
    let flows = message.flows().count();
    assert!(message.kind != kind::RESV || flows > 0 && message.flows().all(|flow| flow.label.is_some()));
    message.acknowledgments().for_each(drop);
    message.refreshed().flat_map(|ids| ids.iter()).for_each(drop);
    message.forwarded().for_each(|raw| assert!(raw.class >= 0xc0));
}
